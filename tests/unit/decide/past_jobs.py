"""Past jobs of users, from which run times are predicted."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job, JobStatus
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.placement.waiting.run_times import SAMPLES_MIN
from fairlead.testing.builders import EPOCH


def of(user: str, job: Job) -> Job:
    return replace(job, metadata=replace(job.metadata, annotations={SUBMITTED_BY: user}))


def past(like: Job, seconds: float, *, count: int = SAMPLES_MIN) -> list[Job]:
    """Jobs like this one that have ended, each of which ran for so long."""
    end, meta = format_time(EPOCH - 3600), like.metadata
    run = Attempt(1, started_at=format_time(EPOCH - 3600 - seconds), finished_at=end,
                  reason="Succeeded")  # fmt: skip
    done = (Condition(type="Succeeded", status="True"),)
    status = JobStatus(attempt=1, attempts=(run,), finished_at=end, conditions=done)
    user = meta.annotations.get(SUBMITTED_BY, "")
    names = (f"{meta.name}-{number}-{user}" for number in range(count))
    return [
        replace(like, metadata=replace(meta, name=name, uid=f"job-{name}"), status=status)
        for name in names
    ]
