"""What it would cost to stop a running gang: GPU-seconds since its last checkpoint, and a restart.

A job that reports no checkpoints is charged as the median of those that do, so that reporting costs
nobody's place; where no job reports, it is charged for all the time that it ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from msgspec import Struct

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.values.times import parse_time
from fairlead.model.holdings.claims import Claim


class HoldingAttempt(Struct, frozen=True):
    """A job's attempt that holds nodes. Instants are seconds since the epoch.

    `devices` is 1 for a job without any. `saved_at` is None for a job that reports no checkpoints.
    `holding_from` is when the job last began to work on nodes that it did not hold before.
    `has_ended` is True while the next attempt is waited for.
    """

    devices: int
    began_at: float
    saved_at: float | None
    restart_seconds: float
    holding_from: float
    has_ended: bool = False

    def unsaved_seconds(self, now: float) -> float:
        """Return how long it has worked since its last checkpoint, or since its start."""
        if self.has_ended:
            return 0.0
        return max(0.0, now - (self.began_at if self.saved_at is None else self.saved_at))

    def lost_gpu_seconds(self, now: float, silent_seconds: float) -> float:
        """Return what is lost if it stops now; `silent_seconds` bounds it for silent jobs."""
        unsaved = self.unsaved_seconds(now)
        if self.saved_at is None:
            unsaved = min(unsaved, silent_seconds)
        return self.devices * (unsaved + self.restart_seconds)


def run_of(job: Job, claim: Claim) -> HoldingAttempt:
    """Return the run of a job that has this claim.

    It begins with the start of the attempt, or with its placement until all members run. A member
    may report any instant; none before that counts.
    """
    status, record = job.status, job.status.current_attempt
    placed = status.placement.placed_at if status.placement is not None else None
    begun = record.begun_at if record is not None and record.begun_at else placed
    started = record.started_at if record is not None else None
    began_at = _seconds(started or begun)
    saved_at, progress = None, status.progress
    if progress is not None and progress.checkpoint_step is not None:
        saved_at = max(began_at, _seconds(progress.saved_at))
    has_ended = record is not None and record.finished_at is not None
    restart = began_at - _seconds(begun) if started and begun and not has_ended else 0.0
    return HoldingAttempt(
        max(claim.size[0], 1), began_at, saved_at, max(restart, 0.0),
        _holding_from(status, began_at), has_ended,
    )  # fmt: skip


def _holding_from(status: JobStatus, began_at: float) -> float:
    """Return when the first of the attempts began that followed one another on kept nodes.

    An attempt that failed keeps them for the next one, so a job that fails before it may be
    preempted, again and again, gains no time by it.
    """
    for record in reversed(status.attempts):
        if record.number == status.attempt:
            continue
        if record.cause is None:
            break
        began_at = min(began_at, _seconds(record.started_at or record.begun_at) or began_at)
    return began_at


def silent_seconds(runs: Iterable[HoldingAttempt], now: float) -> float:
    """Return for how long silent jobs are charged: the median of the others, else without bound."""
    reported = [
        run.unsaved_seconds(now) for run in runs if run.saved_at is not None and not run.has_ended
    ]
    return median(reported) if reported else float("inf")


def _seconds(at: str | None) -> float:
    return parse_time(at) if at else 0.0
