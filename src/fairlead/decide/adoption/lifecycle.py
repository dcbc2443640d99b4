"""What a group of other tools' pods needs next: `decide_group`, a function of what there is of it.

One Job object represents a group, so the one planner places it and `status.placement` is the
reservation, as for any job. Every decision either writes down what was learned or, once the status
says it, changes the world accordingly. After a crash, the status is enough to resume.

    no job     a first member is there and the group's size is known: make the job
    gathering  not Admitted: holds nothing; becomes complete, then it is admitted
    queued     Admitted, no record of the current attempt: the scheduler's turn
    open       the record is open: members are released onto their places (module `releasing`)
    finished   Succeeded or Failed holds

Members that run stay when others have to move: the next attempt repairs the placement around them.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState, MemberCounts
from fairlead.api.meta import find_condition
from fairlead.api.values.times import parse_time
from fairlead.decide.adoption import releasing
from fairlead.decide.adoption.actions import (
    Action,
    CreateJob,
    EmitPodWarning,
    EvictMember,
)
from fairlead.decide.adoption.empty_seats import (
    done_seats,
    waiting_done,
    with_done,
    with_ends_recorded,
)
from fairlead.decide.adoption.ending import ended_draft, finish_gone, wait_again
from fairlead.decide.adoption.group_job import (
    GroupRequest,
    deviations,
    job_for,
    single_member_job,
)
from fairlead.decide.adoption.members import (
    GroupMember,
    chosen,
    expected_of,
    follows_from,
    has_other_roles,
    is_complete,
    is_whole,
    roles_of,
    take_census,
)
from fairlead.decide.adoption.view import (
    AdoptionPolicy,
    GroupContext,
    GroupView,
    read_of,
    readable,
)
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.notes import EventReason, PendingEvent, event
from fairlead.decide.attempts.record import new_record
from fairlead.decide.attempts.status import preempted_verdict
from fairlead.decide.job_actions import DeleteJob, RecordHistory, RemoveFinalizer
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import NOTHING, Decision, Verdict, earliest
from fairlead.decide.words import plural
from fairlead.model.gang.phase import OPEN, Phase, is_current, phase_of
from fairlead.model.pools.grouping import Tool

#: Tools whose objects may say that their pods cannot start together: read before anything else.
_MAY_REFUSE = (Tool.STATEFUL_SET, Tool.JOB_SET, Tool.LEADER_WORKER_SET)


def decide_group(view: GroupView, policy: AdoptionPolicy, now: float) -> Decision[Action]:
    """Return what is to be done about one group now; `NOTHING` when it is as it should be."""
    job = view.job
    if job is None:
        return _without_job(view, policy, now)
    facts = view.reading.facts if view.reading else None
    census = take_census(view.members.values(), job.metadata.uid, facts)
    census.done = done_seats(job, census.ended, (*census.released, *census.leaving))
    if phase_of(job) not in OPEN and not census.released:
        census.done = waiting_done(job, census)
    group = GroupContext(view, job, census, policy, now)
    if job.metadata.deletion_timestamp is not None:
        return _deleted(group)
    phase = phase_of(job)
    if phase is Phase.FINISHED:
        return _finished(group)
    if phase in OPEN:
        return releasing.decide_members(group)
    admitted = find_condition(job.status.conditions, names.ADMITTED)
    if admitted is not None and admitted.status == "True" and is_current(job, admitted):
        return _queued(group)
    return _gathering(group)


# No job yet


def _without_job(view: GroupView, policy: AdoptionPolicy, now: float) -> Decision[Action]:
    """Create the job that represents the group, as soon as its size is known."""
    reading = view.reading
    facts = reading.facts if reading else None
    census, group = take_census(view.members.values(), "", facts), view.group
    gated = census.gated
    if not gated or group is None:
        return NOTHING
    source = readable(group)
    expected = expected_of(census, facts, view.elsewhere)
    needs_reading = group.tool in _MAY_REFUSE or not expected.is_known
    if source is not None and reading is None and (needs_reading or not source.uid):
        return Decision((read_of(view.key, source),))
    if facts is not None and facts.problem:
        reason, text = EventReason.NO_GANG, f"{group.words} is no gang: {facts.problem}"
    elif not expected.is_known:
        reason = EventReason.SIZE_UNKNOWN
        text = (
            f"The size of {group.words} is unknown: add the annotation {names.GROUP_SIZE} with "
            "the number of its pods to each of them"
        )
    else:
        members = chosen(gated, expected)
        if not members:
            return Decision(tuple(single_member_job(member) for member in gated))
        named = group.source.uid if group.source is not None else ""
        uid = named or (facts.uid if facts is not None else "")
        return Decision((CreateJob(job_for(GroupRequest(group, tuple(members), expected, uid))),))
    warning = EmitPodWarning(view.key, gated[0].pod, reason.value, text)
    if source is None or reading is None:
        return Decision((warning,))
    due = reading.next_at(policy)
    if now < due:
        return Decision((warning,), wake_at=due)
    return Decision((warning, read_of(view.key, source)))


# Gathering


def _gathering(group: GroupContext) -> Decision[Action]:
    """Decide about a group without a place; pods of an earlier attempt are deleted first."""
    job, census, expected = group.job, group.census, group.expected
    if census.released:
        return Decision(tuple(EvictMember(job, member.pod) for member in census.released))
    if census.is_empty:
        return _vanished(group)
    why = deviations(job, group.view.group, census)
    if why:
        return _replace(job, why)
    read_at = None
    present = len(census.gated) + len(census.done | census.former)
    if present != expected.count or not expected.is_known:
        read_at = group.next_read_at
        if read_at is not None and group.now >= read_at:
            return group.read()
    members = chosen(census.gated, expected)
    if not expected.is_known or not is_complete(members, expected, census):
        return _refuse(group, read_at)
    if not is_whole(job, census) or job.member_count < expected.count:
        if has_other_roles(job, roles_of(members, expected)):
            return Decision((DeleteJob(job),))  # it never had a place; a new one is created
        if not is_whole(job, census):
            return _refuse(group, read_at)
    if not follows_from(job, census):
        return _replace(job, "its roles say more than its pods")
    if census.is_gated_by_others:
        return _refuse(group, None)
    not_before = parse_time(job.status.restart_at) if job.status.restart_at else group.now
    if group.now < not_before:
        return Decision(wake_at=not_before)
    has_given = bool(job.status.vacant) and job.status.placement is not None
    if job.status.preemption is not None or has_given:  # until the scheduler has taken it back
        return NOTHING
    return Decision(_admit(group))


def _replace(job: Job, why: str) -> Decision[Action]:
    """Delete a job that is not what follows from its pods; another one is created from these."""
    note = PendingEvent(EventReason.REPLACED, f"Deleted; its pods get another job: {why}")
    return Decision((DeleteJob(job), event(job, note)))


def _admit(group: GroupContext) -> tuple[Action, ...]:
    status = group.job.status
    number = status.attempt + 1 if status.current_attempt else max(status.attempt, 1)
    text = f"Admitted to the queue with {plural(group.job.member_count, 'member')}"
    draft = with_ends_recorded(group.draft, group.census, vacant=())
    return draft.admitted(number).write(PendingEvent(EventReason.ADMITTED, text))


def _refuse(group: GroupContext, wake_at: float | None) -> Decision[Action]:
    """Write why the group may not have a place. Its counts may be a little old."""
    job, census = group.job, group.census
    count = max(group.expected.count, job.member_count)
    facts: dict[str, int | str] = {"owner": group.owner}
    if census.strays:
        verdict = Verdict(Reason.GROUP_UNGATED, {**facts, "ungated": len(census.strays)})
    else:
        present = len(census.gated) + len(census.done)
        facts |= {"members_present": present, "members": count}
        is_held = census.is_gated_by_others and present >= count
        verdict = Verdict(Reason.GROUP_HELD if is_held else Reason.GROUP_INCOMPLETE, facts)
    draft = with_done(group.draft, census).not_admitted(verdict.reason, verdict.message)
    counts = MemberCounts(job.member_count, len(census.gated), len(census.strays))
    draft = draft.set(members=counts)
    draft = draft.state(JobState.HELD if job.spec.suspend else JobState.WAITING)
    before = find_condition(job.status.conditions, names.ADMITTED)
    due = group.view.counts_written_at + group.policy.count_seconds
    is_news = (
        before is None or before.reason != verdict.reason.value
        or draft.status.seats != job.status.seats
    )  # fmt: skip
    is_small = job.member_count <= group.policy.small_gang_members_max
    if not is_news and not is_small and group.now < due:
        return Decision(wake_at=earliest(due, wake_at))
    return Decision(draft.write(), {job.metadata.key: verdict}, wake_at)


def _vanished(group: GroupContext) -> Decision[Action]:
    """Decide about a group without pods: read whether its owner will create more."""
    reading, since = group.view.reading, group.view.idle_since
    if group.source is None or group.job.status.attempt == 0:
        return Decision(finish_gone(group))
    if reading is None or (since is not None and reading.at < since):
        return group.read()
    if not reading.facts.exists or reading.facts.ended is not None:
        return Decision(finish_gone(group))
    due = reading.next_at(group.policy)
    if group.now >= due:
        return group.read()
    return _refuse(group, due)


# Queued


def _queued(group: GroupContext) -> Decision[Action]:
    """The planner's turn. What it finds is taken only while the group is still whole."""
    job, census, status = group.job, group.census, group.job.status
    is_placed = status.placement is not None and status.placement.attempt == status.attempt
    preempted = preempted_verdict(status)
    if preempted is not None and status.placement is not None:
        return Decision(wait_again(group, EndReason.PREEMPTED, f"it {preempted.message}"))
    if census.released and status.placement is None:
        text = "no replacement was found for the nodes that it lost"
        return Decision(wait_again(group, EndReason.PLACEMENT_LOST, text))
    if not census.released and (census.is_gated_by_others or not is_whole(job, census)):
        return _refuse(group, None)  # the scheduler gives back what it may have found
    draft = with_done(group.draft, census)
    if job.spec.suspend or job.spec.cancel:
        return Decision(draft.state(JobState.HELD).write())
    if is_placed:
        return Decision(_open(group))
    if not census.released:
        return Decision(draft.state(JobState.WAITING).write())
    # Refused members must go before their tool can create them again, for another node.
    going = [m for m in census.released if m.refused_at is not None and _is_lost(job, m)]
    evictions = tuple(EvictMember(job, member.pod) for member in going)
    return Decision((*draft.state(JobState.RESTARTING).write(), *evictions))


def _is_lost(job: Job, member: GroupMember) -> bool:
    last = job.status.attempts[-1] if job.status.attempts else None
    return last is not None and member.node in last.nodes_lost


def _open(group: GroupContext) -> tuple[Action, ...]:
    """Open the attempt's record. From here on members are released, and the place may not go."""
    draft, status = group.draft.opened(new_record(group.job, group.now)), group.job.status
    census, vacant = group.census, status.vacant
    if not census.released:  # what is done already needs no node
        vacant = frozenset(census.done)
    draft = with_ends_recorded(draft, census, vacant=vacant)
    if census.released:
        draft = draft.set(members=status.members)
    return draft.state(JobState.RESTARTING if status.started_at else JobState.STARTING).write()


# The end


def _finished(group: GroupContext) -> Decision[Action]:
    """Keep the job until its owner is collected, or for a time; a new round gets a new job."""
    job = group.job
    if group.census.gated:
        return Decision((DeleteJob(job),))  # its tool goes on: another job represents it
    if job.metadata.owner_references:
        return NOTHING
    ended_at = parse_time(job.status.finished_at) if job.status.finished_at else group.now
    due = ended_at + group.policy.keep_finished_seconds
    return Decision((DeleteJob(job),)) if group.now >= due else Decision(wake_at=due)


def _deleted(group: GroupContext) -> Decision[Action]:
    """Keep the reservation until no member that it covers is left.

    Then it ends, though others may keep the object: their finalizers hold no nodes.
    """
    job, census = group.job, group.census
    if census.released or any(m.job_uid == job.metadata.uid for m in census.leaving):
        return NOTHING
    actions: list[Action] = []
    is_ours = names.JOB_FINALIZER in job.metadata.finalizers
    if not job.is_finished and (job.status.attempt or job.status.placement is not None):
        all_good = max(len(census.done), job.status.members.succeeded) >= job.member_count
        reason = EndReason.SUCCEEDED if all_good else EndReason.DELETED
        draft = ended_draft(group, reason, f"{group.owner} or the job was deleted")
        if not is_ours or len(job.metadata.finalizers) > 1:
            return Decision(draft.write(record=True))
        actions.append(RecordHistory(replace(job, status=draft.status)))
    if is_ours:
        actions.append(RemoveFinalizer(job, names.JOB_FINALIZER))
    return Decision(tuple(actions))
