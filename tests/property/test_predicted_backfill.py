"""Backfill by the run times of past jobs: as good as time limits where these tell the truth, and
bounded where they do not.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from math import inf

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.decide.past_jobs import of, past

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting import run_times
from fairlead.decide.placement.waiting.run_times import Likeness
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node

BOUNDED = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
RUNS = (60, 300, 1000)
GPUS = st.sampled_from([1, 2, 3, 4, 8])
NEVER = PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=0.0)
ALWAYS = PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=inf)
BOUND = 500.0
#: So many past jobs that all ran equally long predict that the next one does. Few, for speed.
FEW = 3


@pytest.fixture(autouse=True, scope="module")
def few_past_jobs_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_times, "SAMPLES_MIN", FEW)
        yield


def seconds_of(job: Job) -> int:
    """How long all jobs of its user ran."""
    return int(job.metadata.annotations[SUBMITTED_BY].removeprefix("user-"))


def past_of(jobs: Iterable[Job], count: int = FEW) -> list[Job]:
    """Past jobs that are like these."""
    entries = ClusterState.of(jobs=jobs).jobs.values()
    kinds = {Likeness.of(entry): entry.job for entry in entries}
    return [each for job in kinds.values() for each in past(job, seconds_of(job), count=count)]


def with_limit(job: Job) -> Job:
    """The same job with a time limit that it uses."""
    limit = seconds_of(job) - GRACE_SECONDS_DEFAULT
    return replace(job, spec=replace(job.spec, time_limit_seconds=limit))


@st.composite
def a_queue(draw: st.DrawFn) -> tuple[list[Node], list[Job], list[Job]]:
    """Nodes, jobs that may run on them, and later ones, the head of the queue first; each has a
    limit, or a user all of whose jobs ran for as long.
    """

    def a_job(name: str, count_max: int, created: float) -> Job:
        seconds, is_limited = draw(st.sampled_from(RUNS)), draw(st.integers(0, 3)) == 0
        job = make_job(
            name, count=draw(st.integers(1, count_max)), gpus=draw(GPUS), created=created
        )
        job = of(f"user-{seconds}", job)
        return with_limit(job) if is_limited else job

    nodes = [
        make_node(f"n{i}", gpus=draw(st.sampled_from([4, 8, 8])))
        for i in range(draw(st.integers(1, 6)))
    ]
    older = [a_job(f"a{i}", 4, EPOCH - 9) for i in range(draw(st.integers(1, 6)))]
    head = a_job("head", 6, EPOCH)
    later = [a_job(f"z{i}", 3, EPOCH + i) for i in range(1, draw(st.integers(2, 9)))]
    return nodes, older, [head, *later]


def placed_of(
    nodes: list[Node], jobs: list[Job], now: float, policy: PlacementPolicy
) -> dict[str, Job]:
    """Decide until nothing more is placed; return the jobs that hold nodes."""
    state, out = PlacementState.of(nodes, jobs), dict[str, Job]()
    while True:
        actions = decide(state, policy, now).actions
        new = [as_written(action) for action in actions if isinstance(action, PlaceJob)]
        if not new:
            return out
        out |= {job.metadata.name: job for job in new}
        for job in new:
            state.cluster.job_changed(job)


@BOUNDED
@given(a_queue())
def test_past_jobs_that_tell_the_truth_are_as_good_as_time_limits(
    queue: tuple[list[Node], list[Job], list[Job]],
) -> None:
    """With time limits the start of the head is bounded, and no later job delays it."""
    nodes, older, waiting = queue
    running = list(placed_of(nodes, older, EPOCH, NEVER).values())
    jobs = [*past_of((*older, *waiting)), *running, *waiting]
    found = placed_of(nodes, jobs, EPOCH + 1, ALWAYS)
    stated = placed_of(nodes, [with_limit(job) for job in (*running, *waiting)], EPOCH + 1, NEVER)
    assert {name: job.status.placement for name, job in found.items()} == {
        name: job.status.placement for name, job in stated.items()
    }
    if "head" not in found:
        is_equal = found.keys() == placed_of(nodes, jobs, EPOCH + 1, NEVER).keys()
        event("the same without past jobs" if is_equal else "more than without past jobs")


class World:
    """A cluster in which jobs end as they do, whatever past jobs tell."""

    def __init__(self, nodes: list[Node], policy: PlacementPolicy, past_jobs: list[Job]) -> None:
        self._state, self._policy = PlacementState.of(nodes, past_jobs), policy
        self._ends: list[tuple[float, str, Job]] = []
        self._runs: dict[str, float] = {}
        #: When each job started, and ends.
        self.spans: dict[str, tuple[float, float]] = {}

    def submit(self, job: Job, run_seconds: float) -> None:
        """Let a job wait."""
        self._runs[job.metadata.name] = run_seconds
        self._state.cluster.job_changed(job)

    def decide(self, now: float) -> None:
        """Let jobs end that are over, and start those that may."""
        while self._ends and self._ends[0][0] <= now:
            end, _, job = heapq.heappop(self._ends)
            done = (*job.status.conditions, Condition(type="Succeeded", status="True"))
            ran = Attempt(1, started_at=format_time(self.spans[job.metadata.name][0]),
                          finished_at=format_time(end), reason="Succeeded")  # fmt: skip
            status = replace(job.status, conditions=done, placement=None, attempts=(ran,),
                             finished_at=format_time(end))  # fmt: skip
            self._state.cluster.job_changed(replace(job, status=status))
        actions = decide(self._state, self._policy, now).actions
        for action in actions:
            job, name = as_written(action), action.job.metadata.name
            if isinstance(action, PlaceJob):
                end = now + self._runs[name]
                started = Attempt(1, started_at=format_time(now))
                job = replace(job, status=replace(job.status, attempt=1, attempts=(started,)))
                self.spans[name] = (now, end)
                heapq.heappush(self._ends, (end, name, job))
            self._state.cluster.job_changed(job)


def a_stream(bound: float, runs: list[tuple[int, float]], *, until: float) -> World:
    """Run a job on all nodes against a stream of small ones, two a minute, each of a user and with
    a run time of its own; half of the nodes are in use when it comes.
    """
    policy = PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=bound)
    firsts = [of("user-300", make_job(f"first-{n}", created=EPOCH - 1)) for n in range(2)]
    head = of("user-1000", make_job("head", count=4, created=EPOCH))
    later = [
        (of(f"user-{seconds}", make_job(f"z{n}", created=EPOCH + 30.0 * n)), run_seconds)
        for n, (seconds, run_seconds) in enumerate(runs * int(until / 30 / len(runs)))
    ]
    told = past_of([*firsts, head, *(job for job, _ in later)], count=20)
    world = World([make_node(f"n{i}") for i in range(4)], policy, told)
    for job in firsts:
        world.submit(job, 700.0)
    world.decide(EPOCH)
    world.submit(head, 100.0)
    for number, (job, run_seconds) in enumerate(later):
        world.submit(job, run_seconds)
        world.decide(EPOCH + 30.0 * number)
    return world


@settings(BOUNDED, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(RUNS), st.floats(10.0, 1200.0)), min_size=1, max_size=8))
def test_wrong_predictions_delay_the_head_by_a_bound(runs: list[tuple[int, float]]) -> None:
    """After the bound no job without a limit starts before it: it waits for those that run."""
    world = a_stream(BOUND, runs, until=3000.0)
    started = world.spans.pop("head")[0]
    before = {name: span for name, span in world.spans.items() if span[0] < started}
    assert all(start < EPOCH + BOUND for start, _ in before.values())
    last_end = max(end for _, end in before.values())
    assert last_end <= started <= last_end + 30.0
    if len(before) > 2:
        event("some were started before it")


def test_predictions_without_a_bound_delay_the_head_for_longer() -> None:
    """A canary: jobs that past jobs tell to be short, and are not, come one after the other."""
    assert "head" not in a_stream(inf, [(60, 900.0)], until=1500.0).spans
    assert "head" in a_stream(BOUND, [(60, 900.0)], until=1500.0).spans
