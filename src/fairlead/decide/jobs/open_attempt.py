"""An attempt under way: its pods are made, counted, and judged when one of them fails.

In the steady state of a big gang a decision costs the same whatever its size: it compares counts.
Only what is missing, or in trouble, is walked.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.bounds import MEMBER_RESTARTS_MAX
from fairlead.api.job import (
    Attempt,
    Cause,
    JobState,
    JobStatus,
    MemberRestart,
    Progress,
    RestartPolicy,
)
from fairlead.api.meta import Condition, find_condition
from fairlead.api.times import parse_time
from fairlead.decide.attempts.job_status import (
    EventReason,
    Note,
    earliest,
    plural,
    stamp,
    template_digest,
    with_attempt,
    with_condition,
    with_state,
    write,
)
from fairlead.decide.jobs import exit_code, failure_cause, members, native
from fairlead.decide.jobs.actions import (
    Action,
    CreateConfigMap,
    CreatePod,
    CreatePodGroup,
    CreateService,
)
from fairlead.decide.jobs.cleanup import counts_of, delete_pods, duration, sweep, with_running
from fairlead.decide.jobs.end_reason import EndReason, cause_of
from fairlead.decide.jobs.failure_cause import Failure, Settling
from fairlead.decide.jobs.lost_nodes import MOVES, cordoned_seat, nodes_lost
from fairlead.decide.jobs.pods import MemberPhase, fold_progress
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.refused import REFUSED, delay_seconds
from fairlead.decide.jobs.restart import (
    absent_members,
    backoff_seconds,
    cancel_message,
    infrastructure_limit,
    is_cancelled,
)
from fairlead.decide.jobs.view import JobView, Refusal
from fairlead.decide.verdict import Decision

#: How long after a try that the API may have refused the job is looked at again.
_LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _End:
    """How the attempt ends."""

    reason: EndReason
    message: str
    failure: Failure | None = None


def reported(view: JobView) -> Progress | None:
    """Return what members of the current attempt have reported, pods that are gone included."""
    pods = view.pods
    return pods.progress if pods.progress_attempt == view.job.status.attempt else None


def decide_open_attempt(
    view: JobView, policy: JobsPolicy, now: float, attempt: Attempt
) -> Decision[Action]:
    """Decide about a job whose current attempt has begun and not ended."""
    status = view.job.status
    status = replace(status, progress=fold_progress(status.progress, reported(view)))
    changed = _changed_spec(view, attempt)
    if changed is not None and not is_cancelled(view.job):
        return _close(view, policy, now, changed, status=status)
    succeeded = view.current.counts[MemberPhase.SUCCEEDED]
    if changed is None and succeeded >= view.job.member_count:
        return Decision(_succeed(view, status, now, attempt))
    found = failure_cause.assess(view, policy, now)
    end = _end(view, policy, now, found)
    if end is not None:
        return _close(view, policy, now, end, status=status)
    if not attempt.started_at and _all_started(view):
        return Decision(_started(view, status, now, attempt))
    told = _tell_held_back(view, status, now)
    if told:
        return Decision(told)
    if view.job.spec.restart.policy is RestartPolicy.MEMBER:
        restarts = _member_restarts(view, policy, now, status)
        if restarts:
            return Decision(restarts)
    counted, count_at = _counts(view, policy, now, status)
    actions = (*counted, *_make(view, policy, now), *_replace_members(view, policy, now))
    stale = (
        *delete_pods(view, view.pods.others(status.attempt), policy, now),
        *sweep(view, keep_attempt=status.attempt),
    )
    settle_at = found.until if isinstance(found, Settling) else None
    wake_at = earliest(count_at, settle_at, _wake_at(view, policy, now, attempt))
    return Decision((*actions, *stale), wake_at=wake_at)


# The end of an attempt


def _end(
    view: JobView, policy: JobsPolicy, now: float, found: Failure | Settling | None
) -> _End | None:
    """Return how the attempt ends now, None when it goes on."""
    job = view.job
    if is_cancelled(job):
        return _End(EndReason.CANCELLED, cancel_message(job))
    if job.spec.suspend:
        return _End(EndReason.SUSPENDED, "held by its user")
    fatal = isinstance(found, Failure) and not _is_single(view, found)
    if fatal:
        assert isinstance(found, Failure)
        return _End(found.reason, found.message + _others(view, found), found)
    placement = job.status.placement
    if placement is None or placement.attempt != job.status.attempt:
        return _End(EndReason.PLACEMENT_LOST, "its place was taken away while it had pods")
    refused = view.refused
    if refused is not None and now >= refused.ends_at(policy):
        text = refused.message
        if refused.refusal is Refusal.POD_HELD_BACK:
            text += f" (refused for {duration(now - refused.since)})"
        return _End(EndReason(refused.refusal.value), text)
    return _time_end(view, policy, now) or _cordoned(view) or _vanished(view, policy)


def _cordoned(view: JobView) -> _End | None:
    """Return the end of an attempt that lacks a pod whose node is cordoned: none is made there."""
    seat = cordoned_seat(view)
    if seat is None:
        return None
    text = f"member {seat.role.name}-{seat.index} (rank {seat.rank}) has no pod, and its node "
    return _End(EndReason.DRAINED, text + f"{seat.node} is cordoned")


def _changed_spec(view: JobView, attempt: Attempt) -> _End | None:
    """Return the end of an attempt that would need pods of another spec than it began with.

    Roles are immutable, but not every API server sees to it. A gang that is complete goes on as it
    began and the next attempt is of the new spec; one that lacks members, or has other roles or
    counts, cannot: a gang is never made of two templates. Nobody's failure, so not counted.
    """
    job, placement = view.job, view.job.status.placement
    is_other = placement is not None and not members.covers(job, placement)
    if not is_other:
        is_complete = len(view.current.members) >= job.member_count
        if is_complete or not attempt.template_digest:
            return None
        is_other = template_digest(job) != attempt.template_digest
    if not is_other:
        return None
    text = (
        f"spec.roles or spec.checkpoint was changed while attempt {attempt.number} ran; the next "
        "one is of the new spec"
    )
    return _End(EndReason.SPEC_CHANGED, text)


def _is_single(view: JobView, failure: Failure) -> bool:
    """True when only this member is replaced: policy Member, and its node takes it again."""
    if view.job.spec.restart.policy is not RestartPolicy.MEMBER or failure.reason in MOVES:
        return False  # a new node needs a new placement, and so a new attempt
    return failure.member is None or failure.member.node not in view.cordoned


def _others(view: JobView, culprit: Failure) -> str:
    """Say how many members went down with it."""
    failed = view.current.counts[MemberPhase.FAILED]
    if culprit.member is not None and culprit.member.phase is MemberPhase.FAILED:
        failed -= 1
    return f"; {plural(failed, 'other member')} failed as well" if failed > 0 else ""


def _time_end(view: JobView, policy: JobsPolicy, now: float) -> _End | None:
    attempt, limit = view.job.status.attempts[-1], view.job.spec.time_limit_seconds
    if attempt.started_at:
        if limit is None or now < parse_time(attempt.started_at) + limit:
            return None
        text = f"attempt {attempt.number} ran for its time limit of {duration(limit)}"
        return _End(EndReason.TIME_LIMIT, text)
    if not attempt.begun_at:
        return None
    if now < parse_time(attempt.begun_at) + policy.start_seconds_max:
        return None
    pending = counts_of(view).pending
    text = f"{plural(pending, 'member')} had not started after "
    return _End(EndReason.START_TIMEOUT, text + duration(policy.start_seconds_max))


def _vanished(view: JobView, policy: JobsPolicy) -> _End | None:
    """A pod that must have been there is gone without a word: the gang is broken.

    Pods were all there once the gang has started or, where peers go by address, once the peers were
    written. Before that a missing pod is one that has not been made yet.
    """
    job, pods = view.job, view.current
    missing = job.member_count - len(pods.members)
    if missing <= 0 or job.spec.restart.policy is RestartPolicy.MEMBER:
        return None
    by_address = policy.peer_naming is PeerNaming.ADDRESS
    peers_known = by_address and members.peers_name(job, job.status.attempt) in view.config_maps
    if not job.status.attempts[-1].started_at and not peers_known:
        return None
    assert job.status.placement is not None
    for seat in members.seats(job, job.status.placement):
        name = members.member_name(job, job.status.attempt, seat.role.name, seat.index)
        if name not in pods.members:
            text = f"pod {name} (rank {seat.rank}, node {seat.node}) has vanished"
            if missing > 1:
                text += f", and {plural(missing - 1, 'other')}"
            return _End(EndReason.POD_VANISHED, text)
    return None


def _close(
    view: JobView, policy: JobsPolicy, now: float, end: _End, *, status: JobStatus
) -> Decision[Action]:
    """End the attempt, but not while a pod may come late: an open record keeps its place."""
    if now < view.late_until:
        return Decision(wake_at=view.late_until)
    return Decision(_stop(view, policy, now, end, status=status))


def _stop(
    view: JobView, policy: JobsPolicy, now: float, end: _End, *, status: JobStatus
) -> tuple[Action, ...]:
    """Write that the attempt has ended, and why, before anything of it is deleted."""
    job, attempt = view.job, status.attempts[-1]
    cause = cause_of(end.reason, status.attempts[:-1])
    closed = replace(
        attempt,
        finished_at=stamp(now),
        cause=cause,
        reason=end.reason.value,
        message=end.message,
        exit_code=exit_code.exit_code_of(end.failure),
        nodes_lost=nodes_lost(view, end.reason, end.failure),
        pods_version=view.pods.newest_version,
    )
    new = replace(with_attempt(status, closed), members=counts_of(view), member_restarts=())
    if cause is Cause.USER:
        new = replace(new, user_failures=new.user_failures + 1)
    elif cause is not None:
        new = replace(new, infrastructure_failures=new.infrastructure_failures + 1)
    if cause is not None:
        wait = backoff_seconds(job, cause, new.user_failures)
        new = replace(new, restart_at=stamp(now + wait))
    elif end.reason.value in REFUSED:
        new = replace(new, restart_at=stamp(now + delay_seconds(new, policy, now)))
    new = with_running(view, new, now, end.reason.value)
    if end.reason.value in REFUSED:
        text = f"The API server refuses pods, so the nodes are given back: {end.message}"
        note = Note(EventReason.PODS_REFUSED, text)
        return write(view.job, with_state(new, JobState.STOPPING), note)
    if cause is None:
        new = with_state(new, JobState.STOPPING)
        return write(view.job, new, Note(EventReason.STOPPING, f"Stopping the gang: {end.message}"))
    # Whether it restarts follows from the limits, a moment later; see `_over`.
    new = with_state(new, JobState.RESTARTING)
    text = f"Attempt {attempt.number} ended: {end.message} (cause: {cause.value})"
    return write(view.job, new, Note(EventReason.MEMBER_LOST, text))


def _succeed(view: JobView, status: JobStatus, now: float, attempt: Attempt) -> tuple[Action, ...]:
    """Record the job and write that every member has ended well."""
    job = view.job
    closed = replace(
        attempt,
        started_at=attempt.started_at or stamp(now),
        finished_at=stamp(now),
        reason=EndReason.SUCCEEDED.value,
    )
    took = now - parse_time(job.status.started_at or closed.started_at or stamp(now))
    all_ = "its one member" if job.member_count == 1 else f"all {job.member_count} members"
    text = f"Succeeded: {all_} ended well after {duration(took)}"
    if attempt.number > 1:
        text += f" and {plural(attempt.number, 'attempt')}"
    new = replace(
        with_attempt(status, closed),
        members=counts_of(view),
        member_restarts=(),
        started_at=status.started_at or closed.started_at,
        finished_at=closed.finished_at,
    )
    new = with_running(view, new, now, names.SUCCEEDED)
    succeeded = Condition(names.SUCCEEDED, "True", "AllMembersSucceeded", text)
    new = with_state(with_condition(view.job, new, now, succeeded), JobState.SUCCEEDED)
    return write(view.job, new, Note(EventReason.SUCCEEDED, text), record=True)


# The beginning


def _all_started(view: JobView) -> bool:
    pods = view.current
    return (
        len(pods.members) >= view.job.member_count
        and pods.counts[MemberPhase.PENDING] == 0
        and pods.counts[MemberPhase.FAILED] == 0
    )


def _started(view: JobView, status: JobStatus, now: float, attempt: Attempt) -> tuple[Action, ...]:
    """Write that all members run. The time limit counts from here."""
    job = view.job
    new = with_attempt(status, replace(attempt, started_at=stamp(now)))
    new = replace(new, members=counts_of(view), started_at=status.started_at or stamp(now))
    new = with_condition(view.job, new, now, Condition(names.RUNNING, "True", "AllMembersRun"))
    all_ = "its one member runs" if job.member_count == 1 else f"all {job.member_count} members run"
    text = f"Started: {all_} (attempt {attempt.number}"
    if attempt.resumed_from_step is not None:
        text += f", resumed from step {attempt.resumed_from_step}"
    note = Note(EventReason.STARTED, text + ")")
    return write(view.job, with_state(new, JobState.RUNNING), note)


def _tell_held_back(view: JobView, status: JobStatus, now: float) -> tuple[Action, ...]:
    """Write that the API takes no pods now, in its words, and that it takes them again."""
    held = EndReason.POD_HELD_BACK.value
    running = find_condition(status.conditions, names.RUNNING)
    is_told = running is not None and running.reason == held
    if (view.refused is not None) == is_told:
        return ()
    started = status.attempts[-1].started_at is not None
    reason, words = ("AllMembersRun" if started else "Starting"), ""
    if view.refused is not None:
        reason, words = held, view.refused.message
    condition = Condition(names.RUNNING, "True" if started else "False", reason, words)
    return write(view.job, with_condition(view.job, status, now, condition))


def _make(view: JobView, policy: JobsPolicy, now: float) -> tuple[Action, ...]:
    """Make what is missing; while the API holds it back, one thing from time to time."""
    refused = view.refused
    if refused is None:
        return _missing(view, policy, now)
    return _missing(view, policy, now)[:1] if now >= refused.retry_at else ()


def _missing(view: JobView, policy: JobsPolicy, now: float) -> tuple[Action, ...]:
    """Make what the placement asks for and is not there: pods, then (or before) their peers."""
    job, pods = view.job, view.current
    attempt = job.status.attempts[-1]
    actions: list[Action] = []
    uses_dns = policy.peer_naming is PeerNaming.DNS
    has_service = members.service_name(job) in view.services
    has_peers = members.peers_name(job, attempt.number) in view.config_maps
    if members.needs_service(job, policy) and not has_service:
        actions.append(CreateService(job, members.headless_service(job)))
    complete = len(pods.members) >= job.member_count and pods.addressed_count >= job.member_count
    # Containers wait for the peers: with pinned members nobody starts before all have their node.
    is_settled = policy.binding is None or pods.bound_count >= job.member_count
    if not has_peers and (complete or (uses_dns and is_settled)):
        actions.append(CreateConfigMap(job, members.peers(job, policy, pods)))
    group = native.group_name(job, attempt.number)
    if group not in view.pod_groups:
        assert job.status.placement is not None
        placement = job.status.placement
        if not pods.members and native.is_native(job, placement, policy, view.bindings):
            return (*actions, CreatePodGroup(job))  # a gang's pods come after its group
        group = ""
    if len(pods.members) < job.member_count:
        resume_step = attempt.resumed_from_step
        if attempt.started_at and job.status.progress is not None:  # policy Member
            resume_step = job.status.progress.checkpoint_step
        missing = members.missing_pods(
            job, policy, pods,
            resume_step=resume_step, absent=absent_members(job.status, now),
            bindings=view.bindings, group=group,
        )  # fmt: skip
        actions.extend(CreatePod(job, pod) for pod in missing)
    return tuple(actions)


def _counts(
    view: JobView, policy: JobsPolicy, now: float, status: JobStatus
) -> tuple[tuple[Action, ...], float | None]:
    """Write counts and progress if it is time, else return when it will be.

    Small gangs' counts are written as they change. Progress always waits its turn: members report
    it every few seconds, for as long as they run.
    """
    counts = counts_of(view)
    state = JobState.RUNNING if status.attempts[-1].started_at else JobState.STARTING
    new = with_state(replace(status, members=counts), state)
    actions = write(view.job, new)
    if not actions:
        return (), None
    old = view.job.status
    urgent = old.state != new.state or old.observed_generation != view.job.metadata.generation
    small = counts.total <= policy.small_gang_members_max and old.members != counts
    due_at = view.counts_written_at + policy.progress_write_seconds
    return (actions, None) if urgent or small or now >= due_at else ((), due_at)


def _wake_at(view: JobView, policy: JobsPolicy, now: float, attempt: Attempt) -> float | None:
    """Return when time alone will matter: limits, and the patience with nodes and images."""
    limit = view.job.spec.time_limit_seconds
    ends_at = None
    if attempt.started_at:
        ends_at = None if limit is None else parse_time(attempt.started_at) + limit
    elif attempt.begun_at:
        ends_at = parse_time(attempt.begun_at) + policy.start_seconds_max
    starts = [
        failure_cause.start_patience_ends_at(pods.members[name], policy, now)
        for pods in (view.current,)
        for name in pods.troubled
    ]
    lost = [t.lost_at(policy) for t in view.node_troubles.values() if not t.is_lost(policy, now)]
    refused = view.refused
    if refused is not None:
        # Tried now: how it went is known a little later.
        tried_at = refused.retry_at if refused.retry_at > now else now + _LOOK_AGAIN_SECONDS
        starts += [tried_at, refused.ends_at(policy)]
    back = [parse_time(r.restart_at) for r in view.job.status.member_restarts if r.restart_at]
    return earliest(ends_at, *starts, *lost, *(at for at in back if at > now))


def _member_restarts(
    view: JobView, policy: JobsPolicy, now: float, status: JobStatus
) -> tuple[Action, ...]:
    """Write which members are being replaced, each failure counted once, before a pod is deleted.

    An entry stays until the member's new pod is there. A failure beyond a limit ends the attempt.
    """
    job, pods = view.job, view.current
    by_member = (
        {(m.role, m.index): m.uid for m in pods.members.values()}
        if (status.member_restarts)
        else {}
    )
    kept = tuple(
        r
        for r in status.member_restarts
        if by_member.get((r.role, r.index), r.pod_uid) == r.pod_uid
    )
    known = {r.pod_uid for r in kept}
    new, notes = replace(status, member_restarts=kept), list[Note]()
    for failure in failure_cause.failures(view, policy, now):
        member = failure.member
        if member is None or member.uid in known or member.node in view.cordoned:
            continue  # known, or the end of the attempt once its cause has settled
        if len(new.member_restarts) >= MEMBER_RESTARTS_MAX:
            break
        user = failure.cause is Cause.USER
        count = (new.user_failures if user else new.infrastructure_failures) + 1
        limit = job.spec.restart.limit if user else infrastructure_limit(job, policy)
        if count > limit:
            return _stop(
                view, policy, now, _End(failure.reason, failure.message, failure), status=new
            )
        wait = backoff_seconds(job, failure.cause, count)
        entry = MemberRestart(
            role=member.role,
            index=member.index,
            pod_uid=member.uid,
            cause=failure.cause,
            reason=failure.reason.value,
            restart_at=stamp(now + wait),
        )
        new = replace(
            new,
            member_restarts=(*new.member_restarts, entry),
            user_failures=count if user else new.user_failures,
            infrastructure_failures=new.infrastructure_failures if user else count,
        )
        text = f"Replacing a member: {failure.message} (cause: {failure.cause.value})"
        notes.append(Note(EventReason.MEMBER_RESTARTED, text))
    if new.member_restarts == status.member_restarts:
        return ()
    return write(view.job, replace(new, members=counts_of(view)), *notes)


def _replace_members(view: JobView, policy: JobsPolicy, now: float) -> tuple[Action, ...]:
    """Delete the pods of members that are being replaced: a name is free once its pod is gone."""
    restarts = view.job.status.member_restarts
    if not restarts:
        return ()
    uids = {r.pod_uid for r in restarts}
    going = [m for m in view.current.members.values() if m.uid in uids]
    return tuple(delete_pods(view, going, policy, now))
