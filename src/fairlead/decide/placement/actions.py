"""The closed set of the scheduler's actions: each is one compare-and-swap of a job's status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.jobs.job import Attempt, Job, VerdictStatus
from fairlead.api.jobs.placement import Nomination, Placement, Preemption
from fairlead.api.meta import Condition


@dataclass(frozen=True, slots=True)
class PlaceJob:
    """Write the placement of a whole gang: one compare-and-swap on the job's status.

    With `begun`, the record of the attempt that it is for is opened by the same write.
    """

    job: Job
    placement: Placement
    placed: Condition
    verdict: VerdictStatus
    begun: Attempt | None = None


@dataclass(frozen=True, slots=True)
class RecordActualPlacement:
    """Write where another scheduler has put a placed gang; compare-and-swap."""

    job: Job
    placement: Placement


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Take the placement away (held, finished or not repairable); compare-and-swap."""

    job: Job
    placed: Condition
    verdict: VerdictStatus | None


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """Write a changed verdict of a job that is not placed."""

    job: Job
    placed: Condition
    verdict: VerdictStatus


@dataclass(frozen=True, slots=True)
class NominateJob:
    """Keep places for a job until its victims have left them; compare-and-swap."""

    job: Job
    nomination: Nomination
    placed: Condition
    verdict: VerdictStatus


@dataclass(frozen=True, slots=True)
class WithdrawNomination:
    """Keep no places for the job any more."""

    job: Job


@dataclass(frozen=True, slots=True)
class PreemptJob:
    """Request that the job gives its place back, for another one or so that nodes empty;
    compare-and-swap.

    With a nomination it moves there.
    """

    job: Job
    preemption: Preemption
    nomination: Nomination | None = None


@dataclass(frozen=True, slots=True)
class WithdrawPreemption:
    """Let a job keep its place after all; fails when it has begun to give it back."""

    job: Job


Action: TypeAlias = (
    PlaceJob
    | RecordActualPlacement
    | ReleaseJob
    | WriteVerdict
    | NominateJob
    | WithdrawNomination
    | PreemptJob
    | WithdrawPreemption
)
