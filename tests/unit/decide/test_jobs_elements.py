"""Jobs of arrays' elements: which may run, and when one that is deleted may go."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import Job
from fairlead.api.meta import Condition, OwnerReference, find_condition
from fairlead.api.times import format_time
from fairlead.decide.job_actions import RemoveFinalizer, WriteJobStatus
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import ElementState, JobView
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH, make_job

ARRAY = OwnerReference(names.API_VERSION, "JobArray", "sweep", "array-uid", controller=True)


def element(**more: Any) -> Job:
    job = make_job("sweep-7", attempt=0, **more)
    meta = replace(job.metadata, owner_references=(ARRAY,), finalizers=(names.JOB_FINALIZER,))
    return replace(job, metadata=meta)


def test_the_job_of_an_element_that_has_ended_fails_and_one_whose_array_is_unseen_waits() -> None:
    ended = decide_job(JobView(element(), JobsPolicy(), EPOCH, element=ElementState.ENDED))
    [status] = [a.status for a in ended.actions if isinstance(a, WriteJobStatus)]
    failed = find_condition(status.conditions, names.FAILED)
    assert failed is not None
    assert (failed.reason, failed.message) == (
        "ElementEnded", "element 7 of array sweep has ended already",
    )  # fmt: skip
    assert (status.state, status.attempt) == ("Cancelled", 0)
    unseen = decide_job(JobView(element(), JobsPolicy(), EPOCH, element=ElementState.MISSING))
    [verdict] = unseen.verdicts.values()
    assert (verdict.reason, verdict.facts) == (Reason.ARRAY_MISSING, {"array": "sweep"})
    opened = decide_job(JobView(element(), JobsPolicy(), EPOCH, element=ElementState.OPEN))
    assert [a.status.attempt for a in opened.actions if isinstance(a, WriteJobStatus)] == [1]


@pytest.mark.parametrize(
    ("state", "is_released"),
    [(ElementState.OPEN, False), (ElementState.ENDED, True), (ElementState.MISSING, True),
     (ElementState.NONE, True)],
)  # fmt: skip
def test_the_job_of_an_element_that_is_deleted_stays_until_its_end_is_recorded(
    state: ElementState, is_released: bool
) -> None:
    job = element(conditions=[Condition("Succeeded", "True")])
    deleted = replace(job.metadata, deletion_timestamp=format_time(EPOCH))
    job = replace(job, metadata=deleted)
    decision = decide_job(JobView(job, JobsPolicy(), EPOCH, element=state))
    found = [action for action in decision.actions if isinstance(action, RemoveFinalizer)]
    assert bool(found) is is_released
