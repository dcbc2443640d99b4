"""Events of a job: what Kubernetes takes, and a warning only for what is undesired."""

from __future__ import annotations

import re

import pytest

from fairlead.decide.attempts.notes import EventReason, PendingEvent, event
from fairlead.runtime.events import EventKind
from fairlead.testing.builders import make_job

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
