"""Events of a job: what Kubernetes takes, and a warning only for what is undesired."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import OwnerReference
from fairlead.decide.attempts.notes import EventReason, PendingEvent, event, is_left_to_array
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.job_actions import EmitEvent
from fairlead.decide.reasons import Reason
from fairlead.runtime.events import EventKind
from fairlead.testing.builders import EPOCH, make_job

#: What a job goes through without anything being wrong.
WANTED = {
    "Admitted", "Started", "Succeeded", "Held", "Released", "Restarting", "CauseRevised",
    "Cancelled", "Moved",
}  # fmt: skip


@pytest.mark.parametrize("reason", EventReason)
def test_an_event_has_a_type_that_kubernetes_knows_and_says_what_happened(
    reason: EventReason,
) -> None:
    job = make_job("a")
    made = event(job, PendingEvent(reason, "It happened"))
    assert (made.job, made.reason, made.message) == (job, reason.value, "It happened")
    assert EventKind(made.type) in EventKind
    assert re.fullmatch(r"[A-Z][A-Za-z]{2,127}", reason.value)
    if reason.value in WANTED:
        assert made.type == "Normal"


def test_what_ends_an_attempt_or_a_job_for_worse_is_a_warning() -> None:
    for reason in (EventReason.FAILED, EventReason.MEMBER_LOST, EventReason.PREEMPTED):
        assert event(make_job("a"), PendingEvent(reason, "It happened")).type == "Warning"


def test_an_element_has_events_of_what_goes_wrong_only_and_any_other_job_of_all() -> None:
    job = make_job("sweep-7", attempt=0)
    owner = OwnerReference(names.API_VERSION, "JobArray", "sweep", "array-uid", controller=True)
    element = replace(job, metadata=replace(job.metadata, owner_references=(owner,)))

    def said(job: Job) -> set[EventReason]:
        draft = StatusDraft.of(job, EPOCH).admitted(1)
        actions = [
            action
            for reason in EventReason
            for action in draft.write(PendingEvent(reason, "It happened"))
        ]
        return {EventReason(each.reason) for each in actions if isinstance(each, EmitEvent)}

    assert said(job) == set(EventReason)
    left = {EventReason.ADMITTED, EventReason.STARTED, EventReason.SUCCEEDED}
    assert said(element) == set(EventReason) - left
    assert is_left_to_array(element, Reason.PLACED.value)
    assert not is_left_to_array(job, Reason.PLACED.value)
    assert not is_left_to_array(element, Reason.PREEMPTED.value)
