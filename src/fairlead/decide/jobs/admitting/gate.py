"""The gate before the queue: may the job have (or keep asking for) a place?

A job that is refused for now waits with a verdict; one that can never pass is cancelled or held, as
its spec says. Dependencies count once, before the job queues, and `notBefore` until its first
attempt begins; `suspend` and the deadline always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from fairlead.api import names
from fairlead.api.jobs.after import After, AfterFailed, AfterState
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of
from fairlead.api.meta import find_condition, is_true
from fairlead.api.values.times import parse_time
from fairlead.decide.jobs.view import DependencyState, ElementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict, earliest


@dataclass(frozen=True, slots=True)
class MayQueue:
    """The job may queue for a place."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not now; the verdict says why."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Never; the verdict says why."""

    verdict: Verdict


Gate: TypeAlias = MayQueue | Refuse | CancelJob

HELD = Verdict(Reason.HELD)
_NONE_BEGUN: Mapping[str, float] = {}
#: Names along a ring that are shown.
CYCLE_SHOWN_MAX = 12


def gate(
    job: Job,
    dependencies: Mapping[str, DependencyState],
    element: ElementState = ElementState.NONE,
    *,
    now: float,
    begun: Mapping[str, float] = _NONE_BEGUN,
    cycle: Sequence[str] = (),
) -> Gate:
    """Judge a job that is neither finished nor cancelled and has no pods.

    `dependencies` holds the state of each job in `spec.after`; a job that is left out is missing.
    `begun` says when those of them that have run or ended first did. `cycle` are the names along a
    ring in which the job waits for itself (`find_cycle`).
    A job of an array's element that has ended came late, and never runs: the element would run
    twice (docs/design/arrays.md).
    """
    if element in (ElementState.ENDED, ElementState.MISSING):
        return _not_open(job, element)
    if (latest := _latest_start(job)) is not None and now >= latest:
        limit = job.spec.time_limit_seconds or 0
        facts = {"limit_seconds": limit, "until": job.spec.deadline or ""}
        return CancelJob(Verdict(Reason.DEADLINE_MISSED, facts))
    if job.status.attempt > 0:
        if job.spec.suspend:
            return Refuse(HELD)
        early = None if has_begun(job) else next(_early(job, now), None)
        return MayQueue() if early is None else Refuse(early)
    unmet = _unmet(job, dependencies, begun, now)
    for after, verdict in unmet:
        if verdict.reason is Reason.DEPENDENCY_FAILED and after.on_unmet is AfterFailed.CANCEL:
            return CancelJob(verdict)
    verdicts = [*cycle_verdicts(cycle), *_early(job, now), *(verdict for _, verdict in unmet)]
    if job.spec.suspend:
        verdicts.insert(0, HELD)
    if not verdicts:
        return MayQueue()
    return Refuse(max(verdicts, key=lambda v: v.reason.severity))


def cycle_verdicts(cycle: Sequence[str]) -> Iterator[Verdict]:
    """Yield that a job waits for itself, where it does."""
    if len(cycle) > CYCLE_SHOWN_MAX:
        cycle = (*cycle[: CYCLE_SHOWN_MAX - 1], "...", cycle[-1])
    if cycle:
        yield Verdict(Reason.DEPENDENCY_CYCLE, {"path": " -> ".join(cycle)})


def changes_at(job: Job, now: float, begun: Mapping[str, float] = _NONE_BEGUN) -> float | None:
    """Return when time alone changes what the gate says of a job; None: never."""
    if job.spec.not_before is None and job.spec.deadline is None and not begun:
        return None
    first = parse_time(job.spec.not_before) if job.spec.not_before else None
    delays = [
        begun[after.job] + after.delay_seconds
        for after in job.spec.after
        if after.delay_seconds and after.job in begun
    ]
    instants = (first, _latest_start(job), *delays)
    return earliest(*(at for at in instants if at is not None and at > now))


def _latest_start(job: Job) -> float | None:
    """Return when an attempt must have begun to end by the deadline; None without one."""
    if job.spec.deadline is None:
        return None
    return parse_time(job.spec.deadline) - (job.spec.time_limit_seconds or 0)


def has_begun(job: Job) -> bool:
    """True once an attempt of the job has begun."""
    return job.status.attempt > 1 or bool(job.status.attempts)


def _early(job: Job, now: float) -> Iterator[Verdict]:
    """Yield that it is too early for the first attempt."""
    first = job.spec.not_before
    if first is not None and now < parse_time(first):
        yield Verdict(Reason.NOT_BEFORE, {"until": first})


def _not_open(job: Job, element: ElementState) -> Refuse | CancelJob:
    owner = array_reference_of(job.metadata)
    array = "" if owner is None else owner.name
    if element is ElementState.MISSING:
        return Refuse(Verdict(Reason.ARRAY_MISSING, {"array": array}))
    index = job.metadata.name.removeprefix(f"{array}-")
    return CancelJob(Verdict(Reason.ELEMENT_ENDED, {"array": array, "index": index}))


def dependency_state(job: Job | JobArray | None) -> DependencyState:
    """Return the state of a job, or of a whole array, as those see it that wait for it."""
    if job is None:
        return DependencyState.MISSING
    if is_true(job.status.conditions, names.SUCCEEDED):
        return DependencyState.SUCCEEDED
    if is_true(job.status.conditions, names.FAILED):
        return DependencyState.FAILED
    if isinstance(job, Job):
        is_begun = job.status.started_at is not None
    else:
        is_begun = job.status.elements.total > 0 and not job.status.elements.waiting
    return DependencyState.STARTED if is_begun else DependencyState.UNFINISHED


def begun_at(job: Job | None) -> float | None:
    """Return when a job first ran, or ended without; None where it has done neither."""
    text = None if job is None else job.status.started_at or job.status.finished_at
    return parse_time(text) if text else None


def begun_of(job: Job, find: Callable[[str, str], Job | None]) -> dict[str, float]:
    """Return when those jobs first ran after which the job waits a while. `find` returns a job by
    its namespace and name.
    """
    found = {
        after.job: begun_at(find(job.metadata.namespace, after.job))
        for after in job.spec.after
        if after.delay_seconds
    }
    return {name: at for name, at in found.items() if at is not None}


def admitted_verdict(job: Job) -> Verdict | None:
    """Return the verdict of the gate that the condition Admitted shows; None where it shows none.

    For those who do not know what the job waits for, such as arrays.
    """
    said = find_condition(job.status.conditions, names.ADMITTED)
    if said is None or said.status == "True":
        return None
    for state in DependencyState:
        states = {after.job: state for after in job.spec.after}
        unmet = (verdict for _, verdict in _unmet(job, states, _NONE_BEGUN, math.inf))
        for verdict in (HELD, *_early(job, -math.inf), *unmet):
            if verdict.message == said.message:
                return verdict
    return None


def _unmet(
    job: Job, dependencies: Mapping[str, DependencyState], begun: Mapping[str, float], now: float
) -> list[tuple[After, Verdict]]:
    """Return the dependencies that do not hold, each with its verdict. Of those of which one is
    enough none where one holds, and those that can hold no more only where all of them are so.
    """
    found: list[tuple[After, Verdict]] = []
    alternatives: list[tuple[After, Verdict]] = []
    has_one = False
    for after in job.spec.after:
        state = dependencies.get(after.job, DependencyState.MISSING)
        is_over = begun.get(after.job, -math.inf) + after.delay_seconds <= now
        verdict = _unmet_verdict(job, after, state, is_over=is_over)
        has_one |= after.alternative and verdict is None
        if verdict is not None:
            (alternatives if after.alternative else found).append((after, verdict))
    if has_one:
        return found
    open_ = [each for each in alternatives if each[1].reason is not Reason.DEPENDENCY_FAILED]
    return found + (open_ or alternatives)


def _unmet_verdict(
    job: Job, after: After, state: DependencyState, *, is_over: bool
) -> Verdict | None:
    """Return the verdict of a dependency that does not hold; None for one that does. `is_over`: its
    delay is.
    """
    blockers = () if after.elements else ((job.metadata.namespace, after.job),)
    waits = Verdict(Reason.DEPENDENCY, {"job": after.target, "state": after.wanted}, blockers)
    match state:
        case DependencyState.MISSING:
            return replace(waits, reason=Reason.DEPENDENCY_MISSING)
        case DependencyState.NO_ELEMENT:
            return Verdict(Reason.NO_SUCH_ELEMENT, {"job": after.target})
        case DependencyState.UNFINISHED:
            return waits
        case DependencyState.STARTED:
            return None if after.state is AfterState.STARTED and is_over else waits
        case DependencyState.SUCCEEDED | DependencyState.FAILED:
            if _holds(after.state, state):
                return None if is_over else waits
            ended = {"job": after.target, "state": state.value, "wanted": after.state.value}
            return Verdict(Reason.DEPENDENCY_FAILED, ended, blockers)
        case _:
            assert_never(state)


def _holds(wanted: AfterState, state: DependencyState) -> bool:
    match wanted:
        case AfterState.SUCCEEDED:
            return state is DependencyState.SUCCEEDED
        case AfterState.FAILED:
            return state is DependencyState.FAILED
        case AfterState.FINISHED | AfterState.STARTED:
            return True
        case _:
            assert_never(wanted)
