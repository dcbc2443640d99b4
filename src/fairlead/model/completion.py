"""When a job gives its nodes back at the latest: its time limit, then its grace period."""

from __future__ import annotations

from fairlead.api.job import Job
from fairlead.api.times import parse_time
from fairlead.model.windows import hold_seconds


def ends_at(job: Job) -> float | None:
    """Return when the job gives its nodes back at the latest; None when nothing says it.

    The time limit counts from the start of the attempt, or from its placement until it has started;
    members that do not end by themselves then have their grace period.
    """
    status = job.status
    if job.spec.time_limit_seconds is None:
        return None
    current = [a for a in status.attempts if a.number == status.attempt]
    if any(a.finished_at for a in current):
        return None  # the next attempt has the whole limit again
    placed_at = status.placement.placed_at if status.placement else None
    began = next((at for at in (*(a.started_at for a in current), placed_at) if at), None)
    return None if began is None else parse_time(began) + hold_seconds(job)
