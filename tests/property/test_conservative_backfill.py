"""Conservative backfill: no job that starts delays any of the jobs ahead that have a reservation.

On one node whose GPUs are the only resource that matters, the starts are compared with those of a
plain profile of free GPUs (Mu'alem and Feitelson, TPDS 2001), made again at each instant. On
several nodes, where places matter, the schedule of each decision is added up.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.answers.forecast import Forecasts
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.kept_room import End, QueueReservation
from fairlead.decide.placement.places.search import Plan, uses_of
from fairlead.decide.placement.stages.fit import Fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node

BOUNDED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
GPUS = 12
LEAST = st.sampled_from([None, None, 1])
LIMITS = st.sampled_from([30, 70, 170, 300, 300, 970])
NO_PREDICTION = PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=0.0)


def policy_of(reservations: int) -> PlacementPolicy:
    return PlacementPolicy(
        starvation_seconds=0.0,
        predictions_seconds_max=0.0,
        backfill_reservations_max=reservations,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job of the model: so many GPUs for so long at most; it ends after a part of that."""

    name: str
    at: float
    gpus: int
    limit: int
    part: float

    @property
    def hold(self) -> float:
        return self.limit + GRACE_SECONDS_DEFAULT

    def as_job(self) -> Job:
        return make_job(
            self.name, gpus=self.gpus, created=EPOCH + self.at, time_limit_seconds=self.limit
        )


@dataclass(frozen=True, slots=True)
class Span:
    """GPUs in use from an instant to another one."""

    start: float
    end: float
    gpus: int


@st.composite
def a_load(draw: st.DrawFn) -> list[Wanted]:
    """Jobs in order of arrival."""
    at, out = 0.0, list[Wanted]()
    for number in range(draw(st.integers(2, 14))):
        at += draw(st.sampled_from([0.0, 0.0, 5.0, 40.0]))
        out.append(Wanted(
            f"j{number:02}", at, draw(st.integers(1, GPUS)), draw(LIMITS),
            draw(st.sampled_from([1.0, 1.0, 0.5, 0.1])),
        ))  # fmt: skip
    return out


# The model


def first_start(job: Wanted, busy: Sequence[Span], now: float) -> float:
    """Return the first instant from which on so many GPUs are free for as long as it may run."""
    for start in sorted({now, *(span.end for span in busy if span.end > now)}):
        instants = [start, *(s.start for s in busy if start < s.start < start + job.hold)]
        used = (sum(s.gpus for s in busy if s.start <= at < s.end) for at in instants)
        if max(used) + job.gpus <= GPUS:
            return start
    raise AssertionError("at the last end all GPUs are free")


def model_starts(
    running: Sequence[Span], queue: Sequence[Wanted], now: float, reservations: int
) -> dict[str, float]:
    """Return when each waiting job starts by the profile; of those without a reservation only
    those that start now.
    """
    busy, out, reserved = list(running), dict[str, float](), 0
    for job in queue:
        start = first_start(job, busy, now)
        if start == now or reserved < reservations:
            reserved += start > now
            busy.append(Span(start, start + job.hold, job.gpus))
            out[job.name] = start
    return out


# The planner


class World:
    """One node; jobs end after a part of what they may use."""

    def __init__(self, reservations: int) -> None:
        self._policy = policy_of(reservations)
        self.state = PlacementState.of([make_node("n", gpus=GPUS)])

    def submit(self, job: Wanted) -> None:
        self.state.cluster.job_changed(job.as_job())

    def end(self, name: str) -> None:
        self.state.cluster.job_deleted(("default", name))

    def start(self, now: float) -> set[str]:
        """Decide once; return the jobs that start."""
        actions = decide(self.state, self._policy, now).actions
        for action in actions:
            self.state.cluster.job_changed(as_written(action))
        return {a.job.metadata.name for a in actions if isinstance(a, PlaceJob)}


def compared(load: list[Wanted], reservations: int) -> int:
    """Run a load in both; return how many starts were not in order of arrival."""
    world, now, passed = World(reservations), 0.0, 0
    arrivals, queue = list(load), list[Wanted]()
    ends, running = list[tuple[float, str]](), dict[str, Span]()
    while arrivals or queue:
        now = min([*(job.at for job in arrivals[:1]), *(end for end, _ in ends[:1])])
        while ends and ends[0][0] <= now:
            name = heapq.heappop(ends)[1]
            del running[name]
            world.end(name)
        while arrivals and arrivals[0].at <= now:
            world.submit(arrivals[0])
            queue.append(arrivals.pop(0))
        starts = model_starts([*running.values()], queue, now, reservations)
        expected = {name for name, start in starts.items() if start == now}
        assert world.start(EPOCH + now) == expected
        left = [job for job in queue if job.name not in expected]
        passed += sum(name > left[0].name for name in expected if left)
        for job in queue:
            if job.name in expected:
                running[job.name] = Span(now, now + job.hold, job.gpus)
                heapq.heappush(ends, (now + job.hold * job.part, job.name))
        queue = left
    return passed


@BOUNDED
@given(a_load(), st.sampled_from([1, 2, 3, 100]))
def test_on_one_node_jobs_start_as_by_a_profile(load: list[Wanted], reservations: int) -> None:
    passed = compared(load, reservations)
    event("some jobs pass others" if passed else "all start in order")


@BOUNDED
@given(a_load())
def test_on_one_node_reservations_and_forecasts_say_when_jobs_start(load: list[Wanted]) -> None:
    """The first jobs run; the others wait, for as long as the reservations and `why` say."""
    world, policy = World(100), policy_of(100)
    first, others = load[: len(load) // 2], load[len(load) // 2 :]
    for job in first:
        world.submit(job)
    started, now = world.start(EPOCH), load[-1].at
    running = [Span(0.0, job.hold, job.gpus) for job in first if job.name in started]
    queue = [*(job for job in first if job.name not in started), *others]
    for job in others:
        world.submit(job)
    expected = model_starts(running, queue, now, 100)
    _, reservations = schedule_of(world.state, policy, EPOCH + now)
    for each in reservations:
        event("a job has a reservation")
        assert each.starts_by == EPOCH + expected[each.head[1]]
    forecasts = Forecasts(world.state, EPOCH + now, policy)
    for job in queue:
        found = forecasts.of(("default", job.name))
        assert isinstance(found, Forecast)
        assert found.may_start_by == EPOCH + expected[job.name]


def test_a_second_reservation_matters() -> None:
    """A canary: the last job leaves room for the first one that waits, and delays the second."""
    half, large = Wanted("j1-half", 0.0, 8, 70, 1.0), Wanted("j2-large", 0.0, 10, 70, 1.0)
    small = Wanted("j3-small", 0.0, 4, 570, 1.0)
    load = [Wanted("j0-runs", 0.0, 6, 70, 1.0), half, large, small]
    for reservations, starts in ((1, True), (2, False)):
        world = World(reservations)
        for job in load:
            world.submit(job)
        assert world.start(EPOCH) == ({"j0-runs", "j3-small"} if starts else {"j0-runs"})
        assert compared(load, reservations) == starts


# Several nodes


@st.composite
def a_queue(draw: st.DrawFn) -> tuple[list[Node], list[Job], list[Job]]:
    """Nodes of two kinds, jobs that may run on them, and jobs that come later."""
    kinds = st.sampled_from([{}, {}, {"kind": "x"}, {"kind": "y"}])
    nodes = [
        make_node(f"n{i}", gpus=draw(st.sampled_from([4, 8, 8])), labels={"kind": "xy"[i % 2]})
        for i in range(draw(st.integers(1, 6)))
    ]

    def jobs(
        letter: str, count_max: int, created: float, limits: st.SearchStrategy[int | None]
    ) -> list[Job]:
        return [
            make_job(f"{letter}{i}", count=draw(st.integers(1, 4)), min_count=draw(LEAST),
                     gpus=draw(st.sampled_from([1, 2, 4, 8])), created=created + i,
                     node_selector=draw(kinds), time_limit_seconds=draw(limits))
            for i in range(draw(st.integers(1, count_max)))
        ]  # fmt: skip

    older = jobs("a", 6, EPOCH - 99, LIMITS)
    return nodes, older, jobs("z", 10, EPOCH, st.one_of(LIMITS, LIMITS, LIMITS, st.none()))


def schedule_of(
    state: PlacementState, policy: PlacementPolicy, now: float
) -> tuple[list[End], tuple[QueueReservation, ...]]:
    """Return until when what one decision places uses what, and what it keeps for whom."""
    state.advance(now)
    with state.cluster.transaction() as transaction:
        context = PlanningContext(state, policy, now, PresentCapacity(state.cluster, transaction))
        Fit(context).run()
    placed = list[End]()
    for entry, plan in context.outcomes:
        assert isinstance(entry.gang, GangRequest)
        assert isinstance(plan, Plan)
        placed.append((now + entry.hold_seconds, tuple(uses_of(entry.gang, plan))))
    return placed, context.reservations


def running_of(nodes: list[Node], jobs: list[Job]) -> dict[str, Job]:
    """Return those of the jobs that start on empty nodes."""
    actions = decide(PlacementState.of(nodes, jobs), NO_PREDICTION, EPOCH).actions
    return {a.job.metadata.name: as_written(a) for a in actions if isinstance(a, PlaceJob)}


@BOUNDED
@given(a_queue(), st.sampled_from([2, 3, 100]))
def test_no_node_is_used_twice_in_the_schedule_of_a_decision(
    queue: tuple[list[Node], list[Job], list[Job]], reservations: int
) -> None:
    """What runs, what starts and what has a reservation is one schedule: each may have its nodes at
    its time for as long as it may run, so no start delays a job ahead.
    """
    nodes, older, later = queue
    running, now = running_of(nodes, older), EPOCH + 1
    waiting = [job for job in older if job.metadata.name not in running]
    state = PlacementState.of(nodes, [*running.values(), *waiting, *later])
    placed, kept = schedule_of(state, policy_of(reservations), now)
    table = state.cluster.table
    spans = [(now, end, uses) for end, uses in placed]
    for each in kept:
        if each.place:
            event("a job has a place ahead")
            spans.append((each.at, each.ends_by(is_predicted=False), each.place))
    for name, job in running.items():
        entry = state.cluster.jobs["default", name]
        assert entry.ends_at is not None
        uses = tuple(state.cluster.ledger.uses_of(job.metadata.key))
        spans.append((EPOCH, entry.ends_at, uses))
    for at in {start for start, _, _ in spans}:
        free = table.allocatable.copy()
        for start, end, uses in spans:
            for slots, counts, request in uses if start <= at < end else ():
                free[:, slots] -= table.vector(request)[:, None] * counts
        assert (free >= 0).all(), "more is used than there is"
    if len(kept) > 1:
        event(f"{min(len(kept), 4)} reservations")
