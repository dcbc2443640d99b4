"""Jobs of arrays' elements: which may run, and when one that is deleted may go."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition, OwnerReference, find_condition
from fairlead.api.values.times import format_micro_time, format_time
from fairlead.decide.job_actions import RemoveFinalizer, WriteJobStatus
from fairlead.decide.jobs.following.pods import JobPods
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import ElementState, JobView
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH, make_job, make_member_pod, make_placement

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


BEGUN = Attempt(1, begun_at=format_micro_time(EPOCH))


def begun(*, element_state: ElementState, now: float, phase: str, **spec: Any) -> JobView:
    """Return a job whose member was seen to start at EPOCH + 1."""
    job = make_job(
        "sweep-7",
        attempt=1,
        placement=make_placement(["n0"]),
        status={"attempts": (BEGUN,)},
        **spec,
    )
    meta = replace(job.metadata, owner_references=(ARRAY,), finalizers=(names.JOB_FINALIZER,))
    job, pods = replace(job, metadata=meta), JobPods()
    pods.put(make_member_pod(job, 0, node="n0", phase="Pending"), EPOCH)
    pods.put(make_member_pod(job, 0, node="n0", phase="Running"), EPOCH + 1.0)
    if phase != "Running":
        pods.put(make_member_pod(job, 0, node="n0", phase=phase), now)
    return JobView(job, JobsPolicy(), now, pods=pods, element=element_state)


def written(view: JobView) -> list[tuple[str, str | None]]:
    """Return the state and the start of the attempt that are written."""
    actions = decide_job(view).actions
    found = [action.status for action in actions if isinstance(action, WriteJobStatus)]
    return [(status.state, status.attempts[-1].started_at) for status in found]


STARTED = format_micro_time(EPOCH + 1.0)
SHORT = JobsPolicy().short_element_seconds


def test_that_an_element_runs_is_written_once_it_has_run_for_a_while_and_when_it_began() -> None:
    early = begun(element_state=ElementState.OPEN, now=EPOCH + 1.5, phase="Running")
    assert written(early) == []
    assert decide_job(early).wake_at == EPOCH + 1.0 + SHORT
    late = begun(element_state=ElementState.OPEN, now=EPOCH + 1.0 + SHORT, phase="Running")
    assert written(late) == [("Running", STARTED)]


def test_that_any_other_job_runs_is_written_at_once() -> None:
    view = begun(element_state=ElementState.NONE, now=EPOCH + 1.5, phase="Running")
    assert written(view) == [("Running", STARTED)]


def test_an_element_that_ends_before_is_written_once_with_the_time_that_it_took() -> None:
    view = begun(element_state=ElementState.OPEN, now=EPOCH + 2.0, phase="Succeeded")
    assert written(view) == [("Succeeded", STARTED)]


def test_the_time_limit_of_an_element_is_not_put_off() -> None:
    view = begun(
        element_state=ElementState.OPEN, now=EPOCH + 2.0, phase="Running", time_limit_seconds=1
    )
    assert written(view) == [("Running", STARTED)]


def test_an_element_counts_as_started_now_where_the_clock_was_set_back_since() -> None:
    view = begun(element_state=ElementState.OPEN, now=EPOCH - 3600.0, phase="Running")
    assert written(view) == [("Running", format_micro_time(EPOCH - 3600.0))]
