"""The planner at the sizes that its design promises: thousands of gangs, lost nodes, 100,000 nodes.

Costs are CPU time on the reference core. Ratios are over a plain Python loop that finds a place on
the last of as many nodes, timed beside it, or over the same work at another size.
"""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from bench import bare
from bench.groups.planner import GPUS, NEAR, network_of, reporting
from bench.harness import Report, cpu_slowness
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import ContainerImage, Node
from fairlead.decide.answers.explain import explain, explain_changed
from fairlead.decide.answers.forecast import Forecasts
from fairlead.decide.answers.supposed import submitted
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_nodes,
    make_placement,
    make_pod,
)

#: Upstream's own scenario of gang scheduling: gangs of three on 5,000 nodes.
GANG_NODES, GANGS, GANG_MEMBERS, GANGS_TIMED = 5_000, 3_000, 3, 300
NEAR_NODES, NEAR_MEMBERS, NEAR_ROUNDS = 100_000, 1_000, 15
REPAIR_NODES, REPAIR_MEMBERS, REPAIR_LOST, REPAIRS = 7_500, 500, 8, 20
WAITING_NODES, WAITING, SHAPES, CHANGES, EXPLAINED = 7_500, 10_000, 200, 30, 500
SUBMITTED = 100
EVENT_NODES, EVENTS = 7_500, 2_000
LARGE_NODES, LARGE_PODS = 100_000, 200_000
#: Of each node, of these those that all nodes have, and of the cluster.
NODE_IMAGES, BASE_IMAGES, IMAGES = 50, 20, 5_000


def run(report: Report) -> None:
    """Measure, each without pauses of the garbage collector."""
    for measure in (_many_gangs, _near, _repairs, _waiting, _shapes, _events, _memory):
        gc.collect()
        gc.disable()
        try:
            measure(report)
        finally:
            gc.enable()


def timed(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def place_gang(state: PlacementState, job: Job) -> float:
    """Return the CPU seconds of taking in a gang and placing it; it then runs."""
    placed = list[PlaceJob]()
    seconds = timed(partial(state.cluster.job_changed, job))
    seconds += timed(partial(_decide_into, placed, state))
    (action,) = placed
    state.cluster.job_changed(as_written(action))
    return seconds


def _decide_into(placed: list[PlaceJob], state: PlacementState) -> None:
    actions = decide(state, PlacementPolicy(), EPOCH).actions
    placed.extend(action for action in actions if isinstance(action, PlaceJob))


def _many_gangs(report: Report) -> None:
    """Report what one more gang costs on an empty cluster and on one with thousands of gangs."""
    state = PlacementState.of(make_nodes(GANG_NODES, gpus=GPUS))
    free = [GPUS] * GANG_NODES
    early, late, ratios = list[float](), list[float](), list[float]()
    for number in range(GANGS + GANGS_TIMED):
        seconds = place_gang(state, make_job(f"gang-{number}", count=GANG_MEMBERS, gpus=1))
        plain = timed(lambda: bare.place_members(free, 1, members=GANG_MEMBERS))
        if number < GANGS_TIMED:
            early.append(seconds)
        elif number >= GANGS:
            late.append(seconds)
            ratios.append(seconds / plain)
    report.add("planner_scale.gang_of_3_ratio", statistics.median(ratios), "x bare")
    report.add("planner_scale.gang_of_3_late", _mean(late) / _mean(early), "x")
    report.add("planner_scale.gang_of_3", _mean(late) / cpu_slowness() * 1e3, "ms CPU")


def _near(report: Report) -> None:
    """Report what a gang in one required block, in one rack if possible, costs on 100,000 nodes."""
    state = PlacementState.of(network_of(make_nodes(NEAR_NODES, gpus=GPUS)))
    decide(state, PlacementPolicy(), EPOCH)
    costs = list[float]()
    for number in range(NEAR_ROUNDS):
        job = make_job(f"near-{number}", count=NEAR_MEMBERS, gpus=1, topology=NEAR)
        costs.append(place_gang(state, job))
        state.cluster.job_deleted(job.metadata.key)
    report_cost(
        report,
        "planner_scale.gang_1000_near_of_100000",
        statistics.median(costs[1:]),
        nodes=NEAR_NODES,
    )


def _repairs(report: Report) -> None:
    """Report what it costs to replace some lost nodes of a gang."""
    nodes = make_nodes(REPAIR_NODES, gpus=GPUS)
    own = [node.metadata.name for node in nodes[:REPAIR_MEMBERS]]
    job = make_job(
        "wide", count=REPAIR_MEMBERS, gpus=GPUS, placement=make_placement(own), attempt=2
    )
    costs = list[float]()
    for number in range(REPAIRS):
        state = PlacementState.of(nodes, [job])
        decide(state, PlacementPolicy(), EPOCH)
        state.cluster.job_deleted(job.metadata.key)
        for name in own[number * REPAIR_LOST : (number + 1) * REPAIR_LOST]:
            state.cluster.node_deleted(name)
        state.cluster.job_changed(job)
        found = list[PlaceJob]()
        costs.append(timed(partial(_decide_into, found, state)))
        (action,) = found
        placement = as_written(action).status.placement
        assert placement is not None
        moved = set(placement.roles[0].nodes) - set(own)
        assert len(moved) == REPAIR_LOST, "the healthy members stay"
    _add(report, "repair", statistics.median(costs), nodes=REPAIR_NODES)


def _waiting(report: Report) -> None:
    """Report decisions and explanations on a full cluster with thousands of waiting jobs."""
    rng = random.Random(1)  # a benchmark
    nodes = make_nodes(WAITING_NODES, gpus=GPUS)
    names = [node.metadata.name for node in nodes]
    full = make_job("full", count=WAITING_NODES, gpus=GPUS, placement=make_placement(names),
                    time_limit_seconds=7 * 86_400)  # fmt: skip
    waiting = waiting_jobs(rng, WAITING)
    state = PlacementState.of(nodes, [full, *waiting])
    first = timed(lambda: decide(state, PlacementPolicy(), EPOCH + WAITING))
    _add(report, "cycle_of_10000", first, nodes=WAITING_NODES)
    changes = list[float]()
    for job in waiting_jobs(rng, CHANGES, first=WAITING):
        state.cluster.job_changed(job)
        changes.append(timed(lambda: decide(state, PlacementPolicy(), EPOCH + 2 * WAITING)))
    now, policy, answers = EPOCH + 2 * WAITING, PlacementPolicy(), list[float]()
    forecasts = Forecasts(state, now, policy)
    for job in rng.sample(waiting, EXPLAINED):
        ask = partial(explain, state, job.metadata.key, now, policy, forecasts=forecasts)
        answers.append(timed(ask))
    asked = list[float]()
    for each in waiting_jobs(rng, SUBMITTED, first=WAITING + CHANGES):
        job = submitted(each, now)
        asked.append(timed(partial(explain_changed, state, job, now, policy, may_try=never)))
    _add(report, "change_of_10000", statistics.median(changes), nodes=WAITING_NODES)
    _add(report, "why_first", answers[0], nodes=WAITING_NODES)
    _add(report, "why", _mean(answers), nodes=WAITING_NODES)
    _add(report, "submitted", _mean(asked), nodes=WAITING_NODES)


def waiting_jobs(rng: random.Random, count: int, *, first: int = 0) -> list[Job]:
    """Return jobs of some hundred shapes; numbers from `first` on, in their order of creation."""
    shape_rng = random.Random(1)  # the same shapes for all calls
    shapes = [
        (shape_rng.randrange(1, 512), shape_rng.randrange(1, GPUS + 1)) for _ in range(SHAPES)
    ]
    jobs = list[Job]()
    for number in range(first, first + count):
        members, gpus = rng.choice(shapes)
        created = EPOCH + number
        jobs.append(make_job(f"wait-{number:05}", count=members, gpus=gpus, created=created))
    return jobs


def never() -> bool:
    """Return False: what would let the job start is not asked, as by `submit`."""
    return False


def _shapes(report: Report) -> None:
    """Report the decision after one more job where each waiting job asks for something else, and
    the free devices are one on each node.
    """
    nodes = make_nodes(WAITING_NODES, gpus=GPUS)
    names = [node.metadata.name for node in nodes]
    full = make_job("full", count=WAITING_NODES, gpus=GPUS - 1, placement=make_placement(names))
    waiting = [_distinct(number) for number in range(WAITING)]
    state, changes = PlacementState.of(nodes, [full, *waiting]), list[float]()
    for number in range(CHANGES):
        state.cluster.job_changed(_distinct(WAITING + number))
        changes.append(timed(lambda: decide(state, PlacementPolicy(), EPOCH + 2 * WAITING)))
    report_cost(
        report,
        "planner_scale.change_of_10000_shapes",
        statistics.median(changes),
        nodes=WAITING_NODES,
    )


def _distinct(number: int) -> Job:
    return make_job(
        f"wait-{number:05}", count=2, gpus=2 + number % (GPUS - 1), memory=f"{number + 1}Mi",
        created=EPOCH + number,
    )  # fmt: skip


def _events(report: Report) -> None:
    """Report what it costs to take in a changed node and a changed pod."""
    nodes = with_images(make_nodes(EVENT_NODES, gpus=GPUS))
    cluster = ClusterState.of(nodes)
    pods = [
        make_pod(f"pod-{i}", node=nodes[i].metadata.name, gpus=1, phase="Running")
        for i in range(EVENTS)
    ]
    beats = [msgspec.structs.replace(node, metadata=_later(node)) for node in nodes[:EVENTS]]

    def take_pods() -> None:
        for pod in pods:
            cluster.pod_changed(pod)

    def take_nodes() -> None:
        for node in beats:
            cluster.node_changed(node)

    for name, call in (("pod", take_pods), ("node", take_nodes)):
        _add(report, f"{name}_events_of_{EVENTS}", timed(call), nodes=EVENT_NODES)


def with_images(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes as a kubelet reports them: each with 50 images of three names, shared as
    after decoding; no two nodes with the same.
    """
    rng = random.Random(1)  # a benchmark
    known = [
        ContainerImage(tuple(f"registry.example/team/train-{i}{end}" for end in (
            f"@sha256:{i:064x}", f":v{i}", ":main"
        )))
        for i in range(IMAGES)
    ]  # fmt: skip
    base, others = known[:BASE_IMAGES], known[BASE_IMAGES:]
    return [
        reporting(node, (*base, *rng.sample(others, NODE_IMAGES - BASE_IMAGES))) for node in nodes
    ]


def _later(node: Node):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(node.metadata, resource_version="2")


def _memory(report: Report) -> None:
    """Report the memory of a process that knows 100,000 nodes, with images, and 200,000 pods."""
    command = [sys.executable, "-m", "bench.groups.planner_scale"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    report.add("planner_scale.memory_of_100000", int(done.stdout) / 1e6, "MB")


def _add(report: Report, name: str, seconds: float, *, nodes: int) -> None:
    report_cost(report, f"planner_scale.{name}", seconds, nodes=nodes)


def report_cost(report: Report, name: str, seconds: float, *, nodes: int) -> None:
    """Report a cost in milliseconds, and over the loop over so many nodes."""
    free = [0] * (nodes - 1) + [1]
    loops = [timed(lambda: bare.place_members(free.copy(), 1, members=1)) for _ in range(9)]
    report.add(f"{name}_ratio", seconds / statistics.median(loops), "x loop")
    report.add(name, seconds / cpu_slowness() * 1e3, "ms CPU")


def _mean(costs: Sequence[float]) -> float:
    return statistics.fmean(costs)


def main() -> None:
    """Build the large cluster and print the resident bytes of this process."""
    nodes = with_images(make_nodes(LARGE_NODES, gpus=GPUS))
    pods = [
        make_pod(f"pod-{i:06}", node=nodes[i % LARGE_NODES].metadata.name, gpus=4)
        for i in range(LARGE_PODS)
    ]
    state = PlacementState.of(nodes, pods=pods)
    decide(state, PlacementPolicy(), EPOCH)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * 4096)


if __name__ == "__main__":
    main()
