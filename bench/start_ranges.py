"""How often a job starts within the range that was expected: the planner alone, event by event.

Jobs come and end as they are given; between events the planner decides until it places none. Now
and then a waiting job is asked about, and its start is compared with the answer. Of each job that
starts the run time is compared with the range that its draws come from.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.answers.expected_start import DRAWS, expected_start
from fairlead.decide.answers.explanation import ExpectedStart
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.run_times import Likeness
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node


class Load(NamedTuple):
    """A job: when it comes, whose it is, its members of one GPU each, and how long it runs."""

    at: float
    user: str
    members: int
    run_seconds: float


class Answer(NamedTuple):
    """What was expected of a job when it was asked about, and when it started; instants."""

    asked_at: float
    expected: ExpectedStart
    started_at: float

    @property
    def is_right(self) -> bool:
        """True when the job started within the range, to the second."""
        return self.expected.earliest - 1 <= self.started_at <= self.expected.latest + 1


@dataclass(slots=True)
class StartRanges:
    """A cluster of `nodes` with `gpus` each, and the answers of all jobs that were asked about."""

    nodes: int
    gpus: int
    #: The chance that a job is asked about after an event, once so many have come.
    ask: float
    ask_from: int = 300
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    answers: list[Answer] = field(default_factory=list[Answer])
    #: How long jobs waited, in order of their starts.
    waits: list[float] = field(default_factory=list[float])
    #: Questions without an answer.
    unknown: int = 0
    #: Whether each job that started since ran for as long as its draws say; None: not predicted.
    ends: list[bool | None] = field(default_factory=list["bool | None"])
    _state: PlacementState = field(init=False)
    _ends: list[tuple[float, ObjectKey]] = field(default_factory=list[tuple[float, ObjectKey]])
    _loads: dict[ObjectKey, Load] = field(default_factory=dict[ObjectKey, Load])
    _asked: dict[ObjectKey, list[tuple[float, ExpectedStart]]] = field(
        default_factory=dict[ObjectKey, list[tuple[float, ExpectedStart]]]
    )

    def __post_init__(self) -> None:
        """Make the cluster."""
        shape = [make_node(f"node-{n:03}", gpus=self.gpus) for n in range(self.nodes)]
        self._state = PlacementState.of(shape)

    def run(self, loads: Sequence[Load], seed: int) -> None:
        """Let all jobs come, run and end. `loads` is in order of time."""
        rng, count = random.Random(seed), 0  # a benchmark
        while count < len(loads) or self._ends:
            comes_at = EPOCH + loads[count].at if count < len(loads) else inf
            now = min(comes_at, self._ends[0][0] if self._ends else inf)
            while self._ends and self._ends[0][0] <= now:
                self._end(heapq.heappop(self._ends)[1], now)
            while count < len(loads) and EPOCH + loads[count].at <= now:
                self._submit(loads[count], count, now)
                count += 1
            self._place(now)
            if count > self.ask_from and rng.random() < self.ask:
                waiting = [key for key, entry in self._state.jobs.items() if entry.group]
                if waiting:
                    self._question(rng.choice(waiting), now)

    def _submit(self, load: Load, number: int, now: float) -> None:
        job = make_job(f"train-{number}", count=load.members, gpus=1, cpu=1, memory="1Gi",
                       created=now)  # fmt: skip
        meta = replace(job.metadata, annotations={SUBMITTED_BY: load.user})
        self._loads[meta.key] = load
        self._state.cluster.job_changed(replace(job, metadata=meta))

    def _place(self, now: float) -> None:
        is_placing = True
        while is_placing:
            actions = decide(self._state, self.policy, now).actions
            is_placing = any(isinstance(action, PlaceJob) for action in actions)
            for action in actions:
                job, key = as_written(action), action.job.metadata.key
                if isinstance(action, PlaceJob):
                    at = format_time(now)
                    self.waits.append(now - EPOCH - self._loads[key].at)
                    job = _with_status(job, attempt=1, attempts=(Attempt(1, at, at),))
                    heapq.heappush(self._ends, (now + self._loads[key].run_seconds, key))
                    asked = self._asked.pop(key, ())
                    self.answers += (Answer(at, expected, now) for at, expected in asked)
                    self._note_end(key)
                self._state.cluster.job_changed(job)

    def _note_end(self, key: ObjectKey) -> None:
        if len(self._loads) <= self.ask_from:
            return
        likeness = Likeness.of(self._state.cluster.jobs[key])
        first, last = (
            self._state.run_times.remaining(likeness, 0.0, quantile)
            for quantile in (0.5 / DRAWS, 1 - 0.5 / DRAWS)
        )
        is_known = first is not None and last is not None
        seconds = self._loads[key].run_seconds
        self.ends.append(first - 1 <= seconds <= last + 1 if is_known else None)

    def _end(self, key: ObjectKey, now: float) -> None:
        job, at = self._state.jobs[key].job, format_time(now)
        attempt = replace(job.status.attempts[0], finished_at=at, reason="Succeeded")
        conditions = (*job.status.conditions, Condition(type="Succeeded", status="True"))
        self._state.cluster.job_changed(_with_status(
            job, attempts=(attempt,), conditions=conditions, placement=None, finished_at=at,
        ))  # fmt: skip

    def _question(self, key: ObjectKey, now: float) -> None:
        expected = expected_start(self._state, key, now, self.policy)
        if expected is None:
            self.unknown += 1
        else:
            self._asked.setdefault(key, []).append((now, expected))


def _with_status(job: Job, **status: object) -> Job:
    return replace(job, status=replace(job.status, **status))


def draw_loads(seed: int, count: int, *, every_seconds: float, users: int = 6) -> list[Load]:
    """Return jobs of 1 to 16 members that come at random; each user has a size and a typical run
    time of its own, 2 minutes to an hour and a half, about which runs are log-normal with sigma 1.
    """
    rng = random.Random(seed)  # a benchmark
    typical = [rng.uniform(5.0, 8.5) for _ in range(users)]
    sizes = rng.sample((1, 1, 2, 4, 8, 16), users)
    at, out = 0.0, list[Load]()
    for _ in range(count):
        at += rng.expovariate(1 / every_seconds)
        user = rng.randrange(users)
        run_seconds = rng.lognormvariate(typical[user], 1.0)
        out.append(Load(at, f"user-{user}", sizes[user], run_seconds))
    return out
