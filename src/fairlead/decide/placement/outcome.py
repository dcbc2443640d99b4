"""Turn plans and verdicts into what is written on jobs. `at` is now, as it goes over the wire."""

from __future__ import annotations

from collections import Counter
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus, VerdictStatus
from fairlead.api.jobs.placement import (
    HeldNodes,
    Nomination,
    Placement,
    Preemption,
    PreemptionKind,
    RolePlacement,
    Victim,
)
from fairlead.api.meta import (
    Condition,
    find_condition,
    is_true,
    merge_diff,
    set_condition,
    to_wire,
)
from fairlead.api.names import ADMITTED, PLACED, POOL
from fairlead.api.values.quantity import is_gpu
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.attempts.record import new_record
from fairlead.decide.attempts.seats import with_places_left
from fairlead.decide.attempts.status import (
    ReleaseCause,
    StatusDraft,
    back_off_verdict,
    is_moving,
    preempted_verdict,
    refusal_verdict,
)
from fairlead.decide.placement.actions import (
    Action,
    NominateJob,
    PlaceJob,
    PreemptJob,
    RecordActualPlacement,
    ReleaseJob,
    WithdrawNomination,
    WithdrawPreemption,
    WriteVerdict,
)
from fairlead.decide.placement.desk.repair import PlacedGang
from fairlead.decide.placement.evict.victims import Victims
from fairlead.decide.placement.places.search import Plan
from fairlead.decide.placement.places.whatif import placed_facts
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.gang.phase import Phase, phase_of


def place_job(
    job: Job,
    plan: Plan,
    verdict: Verdict,
    names: list[str],
    *,
    now: float,
    priority: int = 0,
    team: str = "",
    may_borrow: bool = False,
    held: tuple[HeldNodes, ...] = (),
) -> PlaceJob:
    """Return the write that places the job's current attempt; `names` are the nodes by slot.

    `priority` is the highest that the gang has during the attempt. `team` and `may_borrow` say
    which teams' nodes its members tolerate, `held` of which pools and lenders its GPUs are. The
    attempt begins with it if it is the job's first: nothing can be left of an earlier one.
    """
    at = format_time(now)
    roles = _roles(job, plan, names)
    placement = Placement(job.status.attempt, roles, at, team, may_borrow, held, priority)
    is_first = not job.status.attempts and is_true(job.status.conditions, ADMITTED)
    begun = new_record(job, now, placement) if is_first and job.spec.adopts is None else None
    placed = _condition(job, "True", verdict, at)
    return PlaceJob(job, placement, placed, verdict_status(job, verdict, at), begun)


def placed_job(cluster: ClusterState, entry: QueueEntry, plan: Plan, now: float) -> PlacedGang:
    """Return what becomes of a gang that has a place."""
    verdict = Verdict(Reason.PLACED, placed_facts(plan, len(plan.distinct_slots)))
    may_borrow = isinstance(entry.gang, GangRequest) and entry.gang.may_borrow
    action = place_job(
        entry.job, plan, verdict, cluster.table.names, now=now, priority=entry.lane.priority,
        team=entry.lane.team, may_borrow=may_borrow, held=held_nodes(cluster, entry, plan),
    )  # fmt: skip
    return PlacedGang(verdict, action)


def nominate_job(
    job: Job, found: Victims, verdict: Verdict, names: list[str], *, at: str, kind: PreemptionKind
) -> NominateJob:
    """Return the write that keeps places for a job until its victims have left them."""
    victims = tuple(Victim(namespace=v.key[0], name=v.key[1], uid=v.uid) for v in found.victims)
    nomination = Nomination(_roles(job, found.plan, names), victims, at, kind)
    placed = _condition(job, "False", verdict, at)
    return NominateJob(job, nomination, placed, verdict_status(job, verdict, at))


def preempt_job(
    job: Job, other: Job, priority: int, at: str, *, place: Plan | None, names: list[str]
) -> PreemptJob:
    """Return the request that a job gives its place back for another one of this priority; with
    a place, that it moves there.
    """
    progress, meta = job.status.progress, other.metadata
    kind = PreemptionKind.PREEMPT if place is None else PreemptionKind.MOVE
    preemption = Preemption(
        meta.namespace, meta.name, meta.uid, priority, requested_at=at,
        checkpoint_step=progress.checkpoint_step if progress is not None else None,
        kind=kind,
    )  # fmt: skip
    if place is None:
        return PreemptJob(job, preemption)
    return PreemptJob(job, preemption, Nomination(_roles(job, place, names), nominated_at=at))


def move_job(
    job: Job, empties: tuple[str, ...], at: str, *, place: Plan, names: list[str]
) -> PreemptJob:
    """Return the request that a job moves to a place, and so leaves nodes that are to empty."""
    progress = job.status.progress
    preemption = Preemption(
        requested_at=at, kind=PreemptionKind.EMPTY, empties=empties,
        checkpoint_step=progress.checkpoint_step if progress is not None else None,
    )  # fmt: skip
    return PreemptJob(job, preemption, Nomination(_roles(job, place, names), nominated_at=at))


def asked_verdict(action: PreemptJob) -> Verdict:
    """Return what a victim's event says."""
    verdict = preempted_verdict(status_after(action))
    assert verdict is not None
    return verdict


def _roles(job: Job, plan: Plan, names: list[str]) -> tuple[RolePlacement, ...]:
    return tuple(
        RolePlacement(role=role.name, nodes=tuple(map(names.__getitem__, slots.tolist())))
        for role, slots in zip(job.spec.roles, plan.slots, strict=True)
    )


def status_after(action: Action) -> JobStatus:
    """Return the job's status as the action leaves it."""
    return with_places_left(action.job, _changed_status(action))


def _changed_status(action: Action) -> JobStatus:
    status = action.job.status
    match action:
        case RecordActualPlacement():
            return replace(status, placement=action.placement)
        case WithdrawNomination():
            return replace(status, nomination=None)
        case PreemptJob():
            return replace(status, preemption=action.preemption, nomination=action.nomination)
        case WithdrawPreemption():
            return replace(status, preemption=None, nomination=None)
        case PlaceJob():
            if action.begun is not None:
                now = parse_time(action.begun.begun_at)
                status = StatusDraft.of(action.job, now).opened(action.begun).status
            status = replace(status, placement=action.placement, nomination=None)
        case ReleaseJob():
            kept = status.nomination if is_moving(action.job) else None
            status = replace(status, placement=None, nomination=kept, preemption=None)
        case NominateJob():
            status = replace(status, nomination=action.nomination)
        case WriteVerdict():
            pass
        case _:
            assert_never(action)
    conditions = set_condition(status.conditions, action.placed)
    return replace(status, verdict=action.verdict, conditions=conditions)


def status_patch(action: Action, stored: JobStatus | None = None) -> dict[str, Any]:
    """Return what an action writes: a JSON merge patch of the job's status; {} for nothing.

    `stored` is the status that the API has where that is not the one which was decided on: of a
    job that is admitted with this write.
    """
    status, after = action.job.status, status_after(action)
    if stored is not None and stored is not status and stored != status:
        return merge_diff(to_wire(stored), to_wire(after))
    return merge_diff(_owned_part(status), _owned_part(after))


def _owned_part(status: JobStatus) -> dict[str, Any]:
    """Return, as it goes over the wire, the part of a status that the scheduler writes.

    Conditions of others go along in the list, unchanged: the resourceVersion guards them.
    """
    part = JobStatus(
        state=status.state,
        members=status.members,
        attempts=status.attempts,
        placement=status.placement,
        former_places=status.former_places,
        nomination=status.nomination,
        preemption=status.preemption,
        verdict=status.verdict,
        conditions=status.conditions,
    )
    return to_wire(part)


def release_job(job: Job, verdict: Verdict | None, at: str) -> ReleaseJob:
    """Return the write that takes the placement away; the status of a held job says so."""
    phase = phase_of(job)
    if verdict is None and phase is Phase.HELD:
        verdict = Verdict(Reason.HELD)
    elif verdict is None and phase is Phase.UNADMITTED:
        status = job.status
        verdict = preempted_verdict(status) or refusal_verdict(status) or back_off_verdict(status)
    if verdict is not None:
        condition = _condition(job, "False", verdict, at)
        return ReleaseJob(job, condition, verdict_status(job, verdict, at))
    cause = ReleaseCause.OUTDATED
    if phase is Phase.FINISHED:
        cause = ReleaseCause.FINISHED
    elif phase is Phase.CANCELLING:
        cause = ReleaseCause.CANCELLED
    condition = Condition(
        type=PLACED,
        status="False",
        reason=cause.value,
        message="the nodes were given back" if job.status.placement else "",
        observed_generation=job.metadata.generation or None,
        last_transition_time=at,
    )
    return ReleaseJob(job, condition, None)


def changed_verdict(job: Job, verdict: Verdict, at: str, *, is_fresh: bool) -> WriteVerdict | None:
    """Return the write of a verdict, or None when the job's status says it well enough.

    With `is_fresh` every number counts, else only the outcome: deep in the queue a number that is a
    little old does no harm, and writing it on ten thousand jobs would.
    """
    written = job.status.verdict
    condition = find_condition(job.status.conditions, PLACED)
    if written is not None and condition is not None and condition.status == "False":
        same = written.reason == verdict.reason.value and written.facts == dict(verdict.facts)
        if same or (not is_fresh and written.outcome == verdict.outcome.value):
            return None
    return WriteVerdict(
        job, _condition(job, "False", verdict, at), verdict_status(job, verdict, at)
    )


def verdict_status(job: Job, verdict: Verdict, at: str) -> VerdictStatus:
    """Return the verdict as data; `since` stays while the reason does."""
    written = job.status.verdict
    since = at
    if written is not None and written.reason == verdict.reason.value and written.since:
        since = written.since
    return VerdictStatus(
        outcome=verdict.outcome.value,
        reason=verdict.reason.value,
        facts=dict(verdict.facts),
        since=since,
    )


def _condition(job: Job, status: str, verdict: Verdict, at: str) -> Condition:
    return Condition(
        type=PLACED,
        status=status,
        reason=verdict.reason.value,
        message=verdict.message,
        observed_generation=job.metadata.generation or None,
        last_transition_time=at,
    )


def held_nodes(cluster: ClusterState, entry: QueueEntry, plan: Plan) -> tuple[HeldNodes, ...]:
    """Return the GPUs of a planned gang; () where all are of no pool and borrowed of no team.

    A team that lends nodes to members without GPUs is named, too.
    """
    if isinstance(entry.gang, InvalidGang):
        return ()
    table, owner, gpus = cluster.table, cluster.uses.owner, Counter[tuple[str, str]]()
    if not cluster.uses.has_owners and not table.labels.ordered_domains(POOL)[1]:
        return ()
    for role, slots in zip(entry.gang.roles, plan.slots, strict=True):
        each = sum(amount for name, amount in role.member.request if is_gpu(name))
        if not each and not cluster.uses.has_owners:
            continue
        alike = slots if cluster.uses.has_owners else table.labels.domains(POOL)[0][slots]
        one_each = dict(zip(alike.tolist(), slots.tolist(), strict=True))
        for group, count in Counter[int](alike.tolist()).items():
            slot = one_each[group]
            team = owner(table.names[slot])
            lender = team if team != entry.lane.team else ""
            if each or lender:
                gpus[table.labels.labels(slot).get(POOL, ""), lender] += each * count
    if set(gpus) <= {("", "")}:
        return ()
    price = cluster.pools.gpu_hour_micros
    return tuple(
        HeldNodes(pool, lender, count, price.get(pool, 0) if count else 0)
        for (pool, lender), count in sorted(gpus.items())
    )
