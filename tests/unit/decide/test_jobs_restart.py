"""How long a restart waits."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api.jobs.job import Cause, Restart
from fairlead.api.values.bounds import BACKOFF_SECONDS_MAX
from fairlead.api.values.times import format_time
from fairlead.decide.jobs.restart import backoff_seconds
from fairlead.testing.builders import EPOCH, make_job


@pytest.mark.parametrize("seconds", [10**9, 10**12, 2**63, 10**30])
@pytest.mark.parametrize("failures", [1, 2, 50])
@pytest.mark.parametrize("cause", list(Cause))
def test_the_end_of_a_back_off_is_a_date_that_the_api_takes(
    seconds: int, failures: int, cause: Cause
) -> None:
    restart = Restart(backoff_seconds=seconds, backoff_seconds_max=seconds)
    job = make_job("a")
    job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, restart=restart))
    wait = backoff_seconds(job, cause, failures)
    assert wait <= BACKOFF_SECONDS_MAX
    assert len(format_time(EPOCH + wait)) == len("2026-01-01T00:00:00Z")
