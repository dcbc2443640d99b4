"""When a job gives its nodes back at the latest: its time limit, then its grace period."""

from __future__ import annotations

from fairlead.api.jobs.job import Job
from fairlead.api.values.times import parse_time
from fairlead.model.health.windows import hold_seconds


def ends_at(job: Job) -> float | None:
    """Return when the job gives its nodes back at the latest; None when nothing says it.

    The time limit counts from the start of the attempt; members that do not end by themselves then
    have their grace period. The next attempt has the whole limit again.
    """
    if job.spec.time_limit_seconds is None:
        return None
    began = began_at(job)
    return None if began is None else began + hold_seconds(job)


def began_at(job: Job) -> float | None:
    """Return when the attempt that holds nodes began: when it was placed, until it has started.

    None where none holds nodes, or it has ended.
    """
    status = job.status
    current = [a for a in status.attempts if a.number == status.attempt]
    if any(a.finished_at for a in current):
        return None
    placed_at = status.placement.placed_at if status.placement else None
    began = next((at for at in (*(a.started_at for a in current), placed_at) if at), None)
    return None if began is None else parse_time(began)
