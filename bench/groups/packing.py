"""How many nodes a day of arrivals and departures of 1, 2, 4 and 8 GPUs keeps in use.

The planner places each job as it comes, and nothing moves. Every ten minutes the nodes in use are
compared with the fewest that the running jobs would fit on, were all of them placed again: each
size divides the next larger one and the node, for which first-fit decreasing is exact and leaves at
most one node that is not full (Coffman, Garey and Johnson, "Bin packing with divisible item sizes",
Journal of Complexity 3, 1987), so the optimum is the sum over eight, rounded up. No policy that
does not move jobs is at the optimum all day. Beside ours stand, on the same days: a first fit; a
plain best fit; and one that knows when each job will end, and prefers nodes that are in use until
then, which is what ours could gain from knowing all run times.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench.harness import Report
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, as_written, make_job, make_nodes

NODES, GPUS = 200, 8
#: GPUs of a job and how many in a hundred ask for so many; most ask for one.
SIZES, SHARES = (1, 2, 4, 8), (50, 15, 15, 20)
#: Jobs an hour, and their run times: the logarithm's mean and spread, in seconds. About 0.6 of the
#: GPUs are in use.
ARRIVALS_HOUR, LOG_SECONDS = 160, (8.0, 1.3)
DAY, WARM_UP, SAMPLE = 86_400.0, 6 * 3600.0, 600.0
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Run:
    """A job of the day; instants are seconds."""

    at: float
    number: int
    gpus: int
    ends_at: float


#: Returns the node of a job. And takes a job that ends on a node.
Place = Callable[[Run], int]
Release = Callable[[Run, int], None]


def run(report: Report) -> None:
    """Play the same days with each."""
    policies: dict[str, Callable[[], tuple[Place, Release]]] = {
        "first_fit_": lambda: _fit(_first),
        "best_fit_": lambda: _fit(_tightest),
        "known_ends_": lambda: _fit(_lasting),
        "": _planner,
    }
    for name, make in policies.items():
        found = [_above(day(seed), *make()) for seed in SEEDS]
        report.add(f"packing.{name}above_optimum", statistics.fmean(found), "%")


def day(seed: int) -> Iterator[Run]:
    """Yield the jobs of a day in order."""
    rng, now, number = random.Random(seed), 0.0, 0  # a benchmark
    while (now := now + rng.expovariate(ARRIVALS_HOUR / 3600)) < DAY:
        (size,) = rng.choices(SIZES, SHARES)
        yield Run(now, number, size, now + rng.lognormvariate(*LOG_SECONDS))
        number += 1


def _above(runs: Iterable[Run], place: Place, release: Release) -> float:
    """Return by how many percent more nodes than the optimum are in use, the mean of the samples
    after the first hours.
    """
    ends: list[tuple[float, int, Run, int]] = []
    used, held, next_sample = [0] * NODES, 0, WARM_UP
    samples = list[float]()
    for each in runs:
        while ends and ends[0][0] <= each.at:
            _, _, ended, node = heapq.heappop(ends)
            release(ended, node)
            used[node] -= ended.gpus
            held -= ended.gpus
        if each.at >= next_sample:
            samples.append(sum(map(bool, used)) / -(-held // GPUS) - 1)
            next_sample += SAMPLE
        node = place(each)
        used[node] += each.gpus
        held += each.gpus
        assert used[node] <= GPUS, "no node is overfull"
        heapq.heappush(ends, (each.ends_at, each.number, each, node))
    return 100 * statistics.fmean(samples)


def _planner() -> tuple[Place, Release]:
    state = PlacementState.of(make_nodes(NODES, gpus=GPUS))
    slots = {name: slot for slot, name in enumerate(state.cluster.table.names)}

    def place(run: Run) -> int:
        state.cluster.job_changed(make_job(f"job-{run.number}", gpus=run.gpus))
        actions = decide(state, PlacementPolicy(), EPOCH).actions
        (placed,) = [action for action in actions if isinstance(action, PlaceJob)]
        written = as_written(placed)
        state.cluster.job_changed(written)
        assert written.status.placement is not None
        return slots[written.status.placement.roles[0].nodes[0]]

    def release(run: Run, _node: int) -> None:
        state.cluster.job_deleted(("default", f"job-{run.number}"))

    return place, release


@dataclass
class _Node:
    """A node of the plain policies: its free GPUs, and when its jobs end."""

    free: int
    ends: list[float]


def _fit(order: Callable[[_Node, float], tuple[float, ...]]) -> tuple[Place, Release]:
    """Return a plain policy: of the nodes with room, the first by the order."""
    nodes = [_Node(GPUS, []) for _ in range(NODES)]

    def place(run: Run) -> int:
        fitting = (i for i, node in enumerate(nodes) if node.free >= run.gpus)
        chosen = min(fitting, key=lambda i: (*order(nodes[i], run.ends_at), i))
        nodes[chosen].free -= run.gpus
        nodes[chosen].ends.append(run.ends_at)
        return chosen

    def release(run: Run, node: int) -> None:
        nodes[node].free += run.gpus
        nodes[node].ends.remove(run.ends_at)

    return place, release


def _first(_node: _Node, _ends_at: float) -> tuple[float, ...]:
    return ()


def _tightest(node: _Node, _ends_at: float) -> tuple[float, ...]:
    return (node.free,)


def _lasting(node: _Node, ends_at: float) -> tuple[float, ...]:
    """Put nodes in use first, by how much longer than now they are kept in use."""
    longer = max(0.0, ends_at - max(node.ends, default=0.0))
    return (float(not node.ends), longer, float(node.free))
