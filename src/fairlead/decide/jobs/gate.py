"""The gate before the queue: may the job have (or keep asking for) a place?

A job that is refused for now waits with a verdict; one that can never pass is cancelled or held, as
its spec says. Dependencies count once, before the first attempt; `suspend` always.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from fairlead.api import names
from fairlead.api.job import After, AfterFailed, AfterState, Job
from fairlead.api.job_array import JobArray, array_reference_of
from fairlead.api.meta import find_condition, is_true
from fairlead.decide.jobs.view import DependencyState, ElementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Admit:
    """The job may queue for a place."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not now; the verdict says why."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Never; the verdict says why."""

    verdict: Verdict


Gate: TypeAlias = Admit | Refuse | CancelJob

HELD = Verdict(Reason.HELD)


def gate(
    job: Job,
    dependencies: Mapping[str, DependencyState],
    element: ElementState = ElementState.NONE,
) -> Gate:
    """Judge a job that is neither finished nor cancelled and has no pods.

    `dependencies` holds the state of each job in `spec.after`; a job that is left out is missing.
    A job of an array's element that has ended came late, and never runs: the element would run
    twice (docs/design/arrays.md).
    """
    if element in (ElementState.ENDED, ElementState.MISSING):
        return _not_open(job, element)
    if job.status.attempt > 0:
        return Refuse(HELD) if job.spec.suspend else Admit()
    unmet = list(_unmet(job, dependencies))
    for after, verdict in unmet:
        if verdict.reason is Reason.DEPENDENCY_FAILED and after.on_unmet is AfterFailed.CANCEL:
            return CancelJob(verdict)
    verdicts = [verdict for _, verdict in unmet]
    if job.spec.suspend:
        verdicts.insert(0, HELD)
    if not verdicts:
        return Admit()
    return Refuse(max(verdicts, key=lambda v: v.reason.severity))


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
    return DependencyState.UNFINISHED


def admitted_verdict(job: Job) -> Verdict | None:
    """Return the verdict of the gate that the condition Admitted shows; None where it shows none.

    For those who do not know what the job waits for, such as arrays.
    """
    said = find_condition(job.status.conditions, names.ADMITTED)
    if said is None or said.status == "True":
        return None
    for state in DependencyState:
        states = {after.job: state for after in job.spec.after}
        for verdict in (HELD, *(verdict for _, verdict in _unmet(job, states))):
            if verdict.message == said.message:
                return verdict
    return None


def _unmet(
    job: Job, dependencies: Mapping[str, DependencyState]
) -> Iterator[tuple[After, Verdict]]:
    """Yield the dependencies that do not hold, each with its verdict."""
    for after in job.spec.after:
        state = dependencies.get(after.job, DependencyState.MISSING)
        blockers = () if after.elements else ((job.metadata.namespace, after.job),)
        facts = {"job": after.target, "state": after.state.value}
        match state:
            case DependencyState.MISSING:
                yield after, Verdict(Reason.DEPENDENCY_MISSING, facts, blockers)
            case DependencyState.NO_ELEMENT:
                yield after, Verdict(Reason.NO_SUCH_ELEMENT, {"job": after.target})
            case DependencyState.UNFINISHED:
                yield after, Verdict(Reason.DEPENDENCY, facts, blockers)
            case DependencyState.SUCCEEDED | DependencyState.FAILED:
                if not _holds(after.state, state):
                    ended = {"job": after.target, "state": state.value, "wanted": after.state.value}
                    yield after, Verdict(Reason.DEPENDENCY_FAILED, ended, blockers)
            case _:
                assert_never(state)


def _holds(wanted: AfterState, state: DependencyState) -> bool:
    match wanted:
        case AfterState.SUCCEEDED:
            return state is DependencyState.SUCCEEDED
        case AfterState.FAILED:
            return state is DependencyState.FAILED
        case AfterState.FINISHED:
            return True
        case _:
            assert_never(wanted)
