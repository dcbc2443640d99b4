"""What a decision costs: a large gang, many small jobs, and the same arithmetic in bare numpy.

The ratios say how much the planner adds (verdicts, groups, transactions, names) to what it cannot
do without: vector operations (how many members fit on each node, which nodes first, how many on
each), and the decoding of an event's job.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np

from bench import bare
from bench.harness import Report, cpu_slowness
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import ContainerImage, Node
from fairlead.api.meta import Condition
from fairlead.api.names import BLOCK, RACK, SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.whatif import would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH, as_written, make_job, make_nodes, make_placement

NODES, GPUS = 7_500, 8
MEMBERS = 1_000
SMALL_JOBS = 5_000
ROUNDS, ROUNDS_SMALL, ROUNDS_IMAGES = 7, 3, 15
#: One block, and one of its racks if possible, which a gang of 1,000 GPUs does not fit into.
NEAR = Topology(BLOCK, True, RACK)
EVENTS = 500
PREEMPTION_NODES, PREEMPTION_GANGS, PREEMPTIONS = 10_000, 1_000, 100
_SHARE = PREEMPTION_NODES // PREEMPTION_GANGS
#: The head of the queue waits for a thousand nodes; of the others one in ten is idle.
USERS = 50
BACKFILL_HEAD, BACKFILL_IDLE, BACKFILL_WAITING, BACKFILLS = 1_000, 500, 10_000, 20
#: Jobs with a reservation under conservative backfill, by figure.
RESERVED, CONSERVATIVE = {"conservative": 32, "conservative_100": 100}, 5
REQUEST = np.array([0, 0, 1, 1], dtype=np.int64)


def run(report: Report) -> None:
    """Measure each decision in turns with its bare version."""
    nodes = make_nodes(NODES, gpus=GPUS)
    _add(report, "gang_1000", ROUNDS, lambda: _gang(nodes), _bare_gang, per_second=(1e3, "ms CPU"))
    near = network_of(nodes)
    _add(report, "gang_1000_near", ROUNDS, lambda: _gang(near, NEAR), _bare_near,
         per_second=(1e3, "ms CPU"))  # fmt: skip
    micro = (1e6, "us CPU")
    _add(report, "small_job", ROUNDS_SMALL, lambda: _small(nodes), _bare_small, per_second=micro)
    _images(report, nodes)
    _preemptions(report)
    _backfills(report, nodes)
    _backfills(report, nodes, is_predicted=True)
    for name, reserved in RESERVED.items():
        _conservative(report, nodes, name, reserved)
    _add(report, "job_event", ROUNDS_SMALL, lambda: _event(nodes), _bare_event, per_second=micro)


def _add(
    report: Report,
    name: str,
    rounds: int,
    ours: Callable[[], float],
    bare_version: Callable[[], float],
    *,
    per_second: tuple[float, str],
) -> None:
    """Report the median ratio of the rounds, and our cost on the reference core."""
    costs, ratios = [], []
    for _ in range(rounds):
        seconds, plain = ours(), bare_version()
        costs.append(seconds / cpu_slowness())
        ratios.append(seconds / plain)
    scale, unit = per_second
    report.add(f"planner.{name}_ratio", statistics.median(ratios), "x bare")
    report.add(f"planner.{name}", statistics.median(costs) * scale, unit)


def _images(report: Report, nodes: list[Node]) -> None:
    """Report what the same gang costs where half of the nodes, or all, report its image, which is
    known from jobs before or new, in turns with nodes that report none.
    """
    others = tuple(ContainerImage((f"registry.example/base-{i}:1",)) for i in range(49))
    reported = (others, (ContainerImage(("docker.io/library/train:1",)), *others))
    for name, every, is_new in (("half", 2, False), ("all", 1, False), ("new", 2, True)):
        kinds = [reporting(node, reported[i % every == 0]) for i, node in enumerate(nodes)]
        costs = [(_gang(kinds, is_new=is_new), _gang(nodes)) for _ in range(ROUNDS_IMAGES)]
        ratio = statistics.median(one / plain for one, plain in costs)
        report.add(f"planner.gang_1000_images_{name}", ratio, "x without")


def reporting(node: Node, images: tuple[ContainerImage, ...]) -> Node:
    """Return the node with these images."""
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, images=images))


def network_of(nodes):  # type: ignore[no-untyped-def]
    """Return the nodes in racks of 16 and blocks of 20 racks."""
    return [
        msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels={
            **node.metadata.labels, BLOCK: f"block-{i // 320}", RACK: f"rack-{i // 16}",
        }))
        for i, node in enumerate(nodes)
    ]  # fmt: skip


def _gang(  # type: ignore[no-untyped-def]
    nodes, topology: Topology | None = None, *, is_new: bool = False
) -> float:
    """Return the CPU seconds of the decision that places one gang on an empty cluster."""
    state = PlacementState.of(nodes)
    decide(state, PlacementPolicy(), EPOCH)  # the table is built, its columns are not yet cut
    other = make_job("other", gpus=2, topology=topology)  # which the domains are known from
    assert would_fit(state.cluster, state.cluster.gang_of(other)).reason is Reason.PLACED
    if not is_new:
        state.cluster.table.images.lacking(("docker.io/library/train:1",))
    state.cluster.job_changed(make_job("gang", count=MEMBERS, gpus=1, topology=topology))
    gc.collect()
    start = time.process_time()
    decision = decide(state, PlacementPolicy(), EPOCH)
    taken = time.process_time() - start
    assert len(decision.actions) == 1, "the gang is placed"
    return taken


def _small(nodes) -> float:  # type: ignore[no-untyped-def]
    """Return the CPU seconds per small job, placed over as many decisions as it takes."""
    state = PlacementState.of(nodes)
    waiting: dict[tuple[str, str], Job] = {}
    for i in range(SMALL_JOBS):
        job = make_job(f"small-{i}", count=1, gpus=1, created=EPOCH + i)
        waiting[job.metadata.key] = job
        state.cluster.job_changed(job)
    taken = 0.0
    now = EPOCH + SMALL_JOBS
    while waiting:
        gc.collect()
        start = time.process_time()
        decision = decide(state, PlacementPolicy(), now)
        taken += time.process_time() - start
        assert decision.actions, "every decision comes nearer to the end"
        for action in decision.actions:
            job = as_written(action)
            state.cluster.job_changed(job)
            if job.status.placement is not None:
                del waiting[job.metadata.key]
        now += 1
    return taken / SMALL_JOBS


def _preemptions(report: Report) -> None:
    """Report what a decision costs in which a gang preempts, beside a loop over gangs and nodes."""
    rng = random.Random(1)  # a benchmark
    nodes = make_nodes(PREEMPTION_NODES, gpus=GPUS)
    order = list(range(PREEMPTION_NODES))
    rng.shuffle(order)
    running, plain = list[Job](), list[tuple[int, float, list[int]]]()
    for number in range(PREEMPTION_GANGS):
        own = order[number * _SHARE : (number + 1) * _SHARE]
        age, priority = 3600 + rng.randrange(100_000), rng.choice((0, 1, 2))
        at = format_time(EPOCH - age)
        running.append(
            make_job(
                f"low-{number:04}", count=_SHARE, gpus=GPUS, priority=priority,
                placement=make_placement([nodes[i].metadata.name for i in own]),
                status={"attempts": (Attempt(number=1, begun_at=at, started_at=at),)},
            )
        )  # fmt: skip
        plain.append((priority, float(age * GPUS * _SHARE), own))
    state = PlacementState.of(nodes, running)
    decide(state, PlacementPolicy(), EPOCH)
    costs, ratios = [], []
    for number in range(PREEMPTIONS):
        members = rng.choice((1, 8, 64, 256, 1000))
        seconds = _preempt(state, make_job(f"high-{number}", count=members, gpus=GPUS, priority=9))
        start = time.process_time()
        bare.preempt(plain, [0] * PREEMPTION_NODES, members=members)
        ratios.append(seconds / (time.process_time() - start))
        costs.append(seconds)
    p99 = statistics.quantiles(costs, n=100)[98] / cpu_slowness()
    report.add("planner.preemption_ratio", statistics.median(ratios), "x bare")
    report.add("planner.preemption_p99", p99 * 1e3, "ms CPU")


def _backfills(report: Report, nodes: list[Node], *, is_predicted: bool = False) -> None:
    """Report what a decision costs while room is kept for the head of the queue, after one job has
    come, beside a loop over the ends of running jobs. Predicted: jobs have no limits, and before
    each decision one more tells how long jobs run.
    """
    rng = random.Random(2)  # a benchmark
    running, ends = _running(rng, nodes, is_predicted=is_predicted)
    waiting = [
        make_job(f"wait-{i:05}", count=rng.choice((1, 2, 4, 8, 16, 600)), created=EPOCH + i,
                 time_limit_seconds=rng.choice((None, 200_000, 300_000)))
        for i in range(BACKFILL_WAITING)
    ]  # fmt: skip
    head = make_job("head", count=BACKFILL_HEAD, created=EPOCH - 1)
    past = [
        # Each user's run for another time: the head's nodes come free one after another.
        _past(f"user-{user}", "run", n, (600.0 + 4300.0 * n) * (1 + user / USERS), count=count)
        for user in range(USERS) for count in (1, 2, 4, 8) for n in range(20)
    ]  # fmt: skip
    past += [_past("short", "short", n, 60.0) for n in range(20)]
    state = PlacementState.of(nodes, [*running, head, *waiting, *(past if is_predicted else ())])
    policy, costs, ratios = PlacementPolicy(starvation_seconds=0.0), list[float](), list[float]()
    decide(state, policy, EPOCH)
    for number in range(BACKFILLS):
        job = make_job(f"short-{number}", created=EPOCH + BACKFILL_WAITING,
                       time_limit_seconds=None if is_predicted else 60)  # fmt: skip
        state.cluster.job_changed(_of("short", job))
        if is_predicted:
            state.cluster.job_changed(_past("short", "short", 100 + number, 60.0))
        gc.collect()
        start = time.process_time()
        decision = decide(state, policy, EPOCH)
        costs.append(time.process_time() - start)
        placed = [a for a in decision.actions if isinstance(a, PlaceJob)]
        assert [a.job.metadata.name for a in placed][-1] == job.metadata.name, "it is backfilled"
        state.cluster.job_deleted(job.metadata.key)
        start = time.process_time()
        assert bare.first_start(ends, BACKFILL_IDLE, members=BACKFILL_HEAD) > EPOCH
        ratios.append(costs[-1] / (time.process_time() - start))
    name = "planner.backfill_predicted" if is_predicted else "planner.backfill"
    report.add(f"{name}_ratio", statistics.median(ratios), "x bare")
    report.add(name, statistics.median(costs) / cpu_slowness() * 1e3, "ms CPU")


def _running(
    rng: random.Random, nodes: list[Node], *, is_predicted: bool = False
) -> tuple[list[Job], list[tuple[float, int]]]:
    """Return jobs that run on most nodes, and when so many nodes come free."""
    names = [node.metadata.name for node in nodes]
    running, ends, first = list[Job](), list[tuple[float, int]](), 0
    while first < NODES - BACKFILL_IDLE:
        count = min(rng.choice((1, 1, 1, 2, 4, 8)), NODES - BACKFILL_IDLE - first)
        limit = rng.randrange(600, 86_400)
        placement = msgspec.structs.replace(
            make_placement(names[first : first + count]), placed_at=format_time(EPOCH)
        )
        job = make_job(f"run-{first:04}", count=count, placement=placement,
                       time_limit_seconds=None if is_predicted else limit)  # fmt: skip
        running.append(_of(f"user-{rng.randrange(USERS)}", job) if is_predicted else job)
        ends.append((EPOCH + limit, count))
        first += count
    return running, ends


def _conservative(report: Report, nodes: list[Node], name: str, reserved: int) -> None:
    """Report what a decision costs beside so many reserved jobs, as a job has begun since, beside a
    loop over the ends of running jobs for each; and one that finds all their starts.
    """
    rng = random.Random(2)  # a benchmark
    running, ends = _running(rng, nodes)
    waiting = [
        make_job(f"wait-{i:05}", count=rng.choice((600, 700, 800, 900, 1_000)), created=EPOCH + i,
                 time_limit_seconds=rng.choice((50_000, 200_000, 300_000)))
        for i in range(BACKFILL_WAITING)
    ]  # fmt: skip
    state, costs, ratios = PlacementState.of(nodes, [*running, *waiting]), [], []
    policy = PlacementPolicy(starvation_seconds=0.0, backfill_reservations_max=reserved)
    decide(state, policy, EPOCH)
    for number in range(CONSERVATIVE + 1):
        job = make_job(f"short-{number}", created=EPOCH + BACKFILL_WAITING, time_limit_seconds=60)
        state.cluster.job_changed(job)
        gc.collect()
        start = time.process_time()
        decision = decide(state, policy, EPOCH)
        costs.append(time.process_time() - start)
        (placed,) = [a for a in decision.actions if isinstance(a, PlaceJob)]
        assert placed.job.metadata.name == job.metadata.name, "it is backfilled"
        state.cluster.job_changed(as_written(placed))
        start = time.process_time()
        for _ in range(reserved):
            bare.first_start(ends, BACKFILL_IDLE, members=BACKFILL_HEAD)
        ratios.append(costs[-1] / (time.process_time() - start))
    report.add(f"planner.{name}_ratio", statistics.median(ratios[1:]), "x bare")
    report.add(f"planner.{name}_found_ratio", ratios[0], "x bare")
    report.add(f"planner.{name}", statistics.median(costs[1:]) / cpu_slowness() * 1e3, "ms CPU")


def _of(user: str, job: Job) -> Job:
    meta = msgspec.structs.replace(job.metadata, annotations={SUBMITTED_BY: user})
    return msgspec.structs.replace(job, metadata=meta)


def _past(user: str, stem: str, number: int, seconds: float, *, count: int = 1) -> Job:
    """Return a job of a user, like those whose names begin so, that ran for so long."""
    end = format_time(EPOCH - 60)
    run = Attempt(1, started_at=format_time(EPOCH - 60 - seconds), finished_at=end,
                  reason="Succeeded")  # fmt: skip
    done = (Condition(type="Succeeded", status="True"),)
    status = {"attempts": (run,), "finished_at": end}
    name = f"{stem}-{number}-{count}-{user}"
    return _of(user, make_job(name, count=count, conditions=done, status=status))


def _preempt(state: PlacementState, job: Job) -> float:
    """Return the CPU seconds of the decision that nominates a gang; it is then deleted."""
    state.cluster.job_changed(job)
    gc.collect()
    start = time.process_time()
    decision = decide(state, PlacementPolicy(), EPOCH)
    taken = time.process_time() - start
    assert isinstance(decision.actions[0], NominateJob), "the gang preempts"
    state.cluster.job_deleted(job.metadata.key)
    return taken


def _event(nodes) -> float:  # type: ignore[no-untyped-def]
    """Return the CPU seconds of taking in one job and its end, with a full queue."""
    state = PlacementState.of(nodes[:1])
    for i in range(SMALL_JOBS):
        state.cluster.job_changed(make_job(f"small-{i}", count=9, gpus=1, created=EPOCH + i))
    jobs = [make_job(f"new-{i}", count=9, gpus=1, created=EPOCH + i) for i in range(EVENTS)]
    gc.collect()
    start = time.process_time()
    for job in jobs:
        state.cluster.job_changed(job)
        state.cluster.job_deleted(job.metadata.key)
    return (time.process_time() - start) / len(jobs)


def _free() -> np.ndarray:
    """Return int64[resource, node]: what idle nodes have, in the order of `REQUEST`."""
    return np.tile(np.array([[128_000], [1 << 40], [110], [GPUS]]), (1, NODES)).astype(np.int64)


def _bare_gang() -> float:
    """Return the CPU seconds of the arithmetic that places a gang."""
    free, key, repeats = _free(), np.arange(NODES), 20
    gc.collect()
    start = time.process_time()
    for _ in range(repeats):
        bare.place_gang(free, REQUEST, key, members=MEMBERS)
    return (time.process_time() - start) / repeats


def _bare_near() -> float:
    """Return the CPU seconds for the rooms of racks and blocks, and to place it in one block."""
    free, racks, repeats = _free(), np.arange(NODES) // 16, 20
    gc.collect()
    start = time.process_time()
    for _ in range(repeats):
        fits = (free // np.maximum(REQUEST, 1)[:, None])[REQUEST > 0].min(axis=0)
        by_rack = np.bincount(racks, weights=fits)
        by_block = np.bincount(np.arange(len(by_rack)) // 20, weights=by_rack)
        block = int(np.where(by_block >= MEMBERS, by_block, np.inf).argmin())
        inside = free[:, racks // 20 == block]
        bare.place_gang(inside, REQUEST, np.arange(inside.shape[1]), members=MEMBERS)
    return (time.process_time() - start) / repeats


def _bare_small() -> float:
    """Return the CPU seconds per member of the arithmetic that places them one by one."""
    free, key = _free(), np.arange(NODES)
    fits = np.full(NODES, GPUS)
    gc.collect()
    start = time.process_time()
    for _ in range(SMALL_JOBS):
        bare.place_one(free, fits, key, REQUEST)
    return (time.process_time() - start) / SMALL_JOBS


def _bare_event() -> float:
    """Return the CPU seconds of decoding one job."""
    events = [
        msgspec.json.encode(make_job(f"new-{i}", count=9, gpus=1, created=EPOCH + i))
        for i in range(EVENTS)
    ]
    gc.collect()
    start = time.process_time()
    for event in events:
        bare.read_job(event)
    return (time.process_time() - start) / EVENTS
