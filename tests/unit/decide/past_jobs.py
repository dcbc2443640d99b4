"""Past jobs of users, from which run times are predicted."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.times import format_time
from fairlead.decide.run_times import SAMPLES_MIN
from fairlead.testing.builders import EPOCH, make_job


def of(user: str, job: Job) -> Job:
    return replace(job, metadata=replace(job.metadata, annotations={SUBMITTED_BY: user}))


def past(user: str, seconds: float) -> list[Job]:
    """Enough jobs of a user that have ended, each of which ran for so long."""
    end = format_time(EPOCH - 3600)
    run = Attempt(1, started_at=format_time(EPOCH - 3600 - seconds), finished_at=end)
    status = {"attempts": (run,), "finished_at": end}
    done = (Condition(type="Succeeded", status="True"),)
    return [
        of(user, make_job(f"past-{user}-{n}", conditions=done, status=status))
        for n in range(SAMPLES_MIN)
    ]
