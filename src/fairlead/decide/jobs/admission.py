"""The gate before the queue: may the job have (or keep asking for) a place?

Who is refused for the moment waits with a verdict; who can never pass is cancelled or held, as the
job itself says. Dependencies are looked at once, before the first attempt; `suspend` always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from fairlead.api.job import After, AfterFailed, AfterState
from fairlead.decide.jobs.view import DependencyState, JobView
from fairlead.decide.reasons import REASONS, Reason
from fairlead.decide.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Admit:
    """Nothing stands in the way."""


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


def gate(view: JobView) -> Gate:
    """Judge a job that is neither finished nor cancelled and has no pods."""
    if view.job.status.attempt > 0:
        return Refuse(HELD) if view.job.spec.suspend else Admit()
    unmet = list(_unmet(view))
    for after, verdict in unmet:
        if verdict.reason is Reason.DEPENDENCY_FAILED and after.on_unmet is AfterFailed.CANCEL:
            return CancelJob(verdict)
    verdicts = [verdict for _, verdict in unmet]
    if view.job.spec.suspend:
        verdicts.insert(0, HELD)
    if not verdicts:
        return Admit()
    return Refuse(max(verdicts, key=lambda v: REASONS[v.reason].severity))


def _unmet(view: JobView) -> Iterator[tuple[After, Verdict]]:
    """Yield the dependencies that do not hold, each with its verdict."""
    for after in view.job.spec.after:
        state = view.dependencies.get(after.job, DependencyState.MISSING)
        blockers = ((view.job.metadata.namespace, after.job),)
        facts = {"job": after.job, "state": after.state.value}
        match state:
            case DependencyState.MISSING:
                yield after, Verdict(Reason.DEPENDENCY_MISSING, facts, blockers)
            case DependencyState.UNFINISHED:
                yield after, Verdict(Reason.DEPENDENCY, facts, blockers)
            case DependencyState.SUCCEEDED | DependencyState.FAILED:
                if not _holds(after.state, state):
                    ended = {"job": after.job, "state": state.value, "wanted": after.state.value}
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
