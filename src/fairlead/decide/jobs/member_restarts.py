"""Members that are replaced while the others run (policy Member)."""

from __future__ import annotations

from fairlead.api.bounds import MEMBER_RESTARTS_MAX
from fairlead.api.job import Cause, JobStatus, MemberRestart
from fairlead.api.times import format_micro_time, parse_time
from fairlead.decide.attempts.notes import EventReason, Note
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.jobs.actions import Action
from fairlead.decide.jobs.attempt_end import AttemptEnd, close_attempt
from fairlead.decide.jobs.cleanup import delete_pods
from fairlead.decide.jobs.failure_cause import failures
from fairlead.decide.jobs.member_failure import Failure
from fairlead.decide.jobs.restart import backoff_seconds, infrastructure_limit
from fairlead.decide.jobs.view import JobView


def note_restarts(view: JobView, draft: StatusDraft) -> tuple[Action, ...]:
    """Write which members are being replaced, each failure counted once, before a pod is deleted.

    An entry stays until the member's new pod is there. A failure beyond a limit ends the attempt.
    """
    entries, before = draft.status.member_restarts, draft.status.member_restarts
    if entries:
        uids = {(m.role, m.index): m.uid for m in view.current.members.values()}
        entries = tuple(r for r in entries if uids.get((r.role, r.index), r.pod_uid) == r.pod_uid)
    known = {r.pod_uid for r in entries}
    draft, notes = draft.set(member_restarts=entries), list[Note]()
    for failure in failures(view):
        member = failure.member
        if member is None or member.uid in known or member.node in view.cordoned:
            continue  # known, or the end of the attempt once its cause has settled
        if len(draft.status.member_restarts) >= MEMBER_RESTARTS_MAX:
            break
        counted = _counted(view, draft, failure)
        if counted is None:
            end = AttemptEnd(failure.reason, failure.message, failure)
            return close_attempt(view, draft, end)
        draft = counted
        text = f"Replacing a member: {failure.message} (cause: {failure.cause.value})"
        notes.append(Note(EventReason.MEMBER_RESTARTED, text))
    if draft.status.member_restarts == before:
        return ()
    return draft.set(members=view.member_counts).write(*notes)


def _counted(view: JobView, draft: StatusDraft, failure: Failure) -> StatusDraft | None:
    """Return the status with the failure counted and its member noted; None beyond a limit."""
    job, cause, member = view.job, failure.cause, failure.member
    assert member is not None
    counted = draft.counted(cause)
    count, limit = counted.status.infrastructure_failures, infrastructure_limit(job, view.policy)
    if cause is Cause.USER:
        count, limit = counted.status.user_failures, job.spec.restart.limit
    if count > limit:
        return None
    entry = MemberRestart(
        role=member.role,
        index=member.index,
        pod_uid=member.uid,
        cause=cause,
        reason=failure.reason.value,
        restart_at=format_micro_time(view.now + backoff_seconds(job, cause, count)),
    )
    return counted.set(member_restarts=(*counted.status.member_restarts, entry))


def delete_replaced(view: JobView) -> tuple[Action, ...]:
    """Delete the pods of members that are being replaced: a name is free once its pod is gone."""
    restarts = view.job.status.member_restarts
    if not restarts:
        return ()
    uids = {r.pod_uid for r in restarts}
    going = [m for m in view.current.members.values() if m.uid in uids]
    return tuple(delete_pods(view, going))


def absent_members(status: JobStatus, now: float) -> frozenset[tuple[str, int]]:
    """Return the members whose back-off is not over."""
    return frozenset(
        (r.role, r.index)
        for r in status.member_restarts
        if r.restart_at is not None and now < parse_time(r.restart_at)
    )
