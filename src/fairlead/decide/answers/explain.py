"""`fairlead why`: a verdict turned into the answer that a person needs, in five parts.

Verdict, arithmetic, who is ahead and who holds the room, when it may start, and what would change
it. All of it comes from the same planner: the verdict is made as a decision makes it, "may start
by" follows from the decisions to come (`decide.forecast`), and each suggestion was tried before it
is made. A client builds the state from lists, without the members' pods of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil

from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.meta import find_condition
from fairlead.api.names import ADMITTED, FAILURE_TARGET
from fairlead.api.values.quantity import ATTACHED
from fairlead.api.values.times import parse_time
from fairlead.decide.answers.expected_start import expected_start
from fairlead.decide.answers.explanation import (
    AHEAD_MAX,
    CLAIMED_NODES_MAX,
    HOLDERS_MAX,
    VOLUMES_MAX,
    Ahead,
    Amounts,
    ClaimedPlace,
    ClaimHolder,
    Explanation,
    Forecast,
    Holder,
    OverduePod,
    PreemptionAhead,
    VolumePlace,
)
from fairlead.decide.answers.forecast import Forecasts, preemption_of
from fairlead.decide.answers.suggestions import suggestions
from fairlead.decide.answers.supposed import supposed
from fairlead.decide.attempts.backoff import borrower_backoff
from fairlead.decide.attempts.status import back_off_verdict, preempted_verdict, refusal_verdict
from fairlead.decide.jobs.admitting.dependencies import find_cycle
from fairlead.decide.jobs.admitting.gate import (
    CancelJob,
    Refuse,
    admitted_verdict,
    begun_of,
    cycle_verdicts,
    dependency_state,
    gate,
)
from fairlead.decide.jobs.restart import cancel_message, is_cancelled
from fairlead.decide.placement.cycle import answer_now
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.reach_words import reach_text
from fairlead.decide.placement.places.unplaceable import eligible_nodes, resource_order
from fairlead.decide.placement.places.whatif import would_fit
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.decide.placement.waiting.patience import with_end
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.placement.waiting.quota import TakenQuota, held_verdict, quota_verdict
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason, Trait
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.gang.phase import Phase, is_failing, phase_of
from fairlead.model.holdings.completion import ends_at
from fairlead.model.holdings.pod_owner import owners_of
from fairlead.model.inventory.device_offers import UNLIMITED, is_row

#: Pods that are looked at for those that are overdue.
_OVERDUE_MAX = 10_000


def explain(
    state: PlacementState,
    key: ObjectKey,
    now: float,
    policy: PlacementPolicy | None = None,
    *,
    is_late: Callable[[], bool] | None = None,
    forecasts: Forecasts | None = None,
    may_try: Callable[[], bool] = lambda: True,
    decided: Verdict | None = None,
) -> Explanation | None:
    """Return why a job is where it is; None when it is unknown or has ended.

    `policy` is the scheduler's; by default the planner's own defaults. With `is_late`
    the expected start is asked as well, which takes up to forty forecasts, until it is true.
    Who asks about many jobs gives the same `forecasts` of this state, instant and policy each time.
    Changes are tried while `may_try` is true. `decided` is the verdict of a decision on this state.
    """
    entry = state.jobs.get(key)
    if entry is None or entry.job.is_finished:
        return None
    state.advance(now)
    verdict = _settled(state, entry.job, now)
    gang = entry.gang
    if verdict is not None or isinstance(gang, InvalidGang):
        verdict = verdict or would_fit(state.cluster, gang)
        overdue = tuple(_overdue_of(state.cluster, entry.job, now))
        return Explanation(key, verdict, _since(entry.job, verdict), overdue=overdue)
    policy = policy or PlacementPolicy()
    forecasts = forecasts or Forecasts(state, now, policy)
    verdict = decided or _waiting_verdict(state, entry, gang, now=now, forecasts=forecasts)
    verdict = with_end(verdict, entry, now)
    open_to = gang if verdict.reason is Reason.BORROW_BACK_OFF else gang.accepting
    if verdict.reason.has(Trait.IS_TIMED):
        open_to = open_to.instant
    explanation = Explanation(
        key,
        verdict,
        _since(entry.job, verdict),
        arithmetic=_arithmetic(state.cluster, open_to),
        volumes=_volumes(state.cluster, key) if gang.has_reach else (),
        claimed=tuple(_claimed(state.cluster, open_to)),
        ahead=_ahead(state, state.queue.order_of(entry)),
        suggestions=tuple(suggestions(state, entry, verdict, policy, now=now, may_try=may_try)),
        borrower_backoff=borrower_backoff(entry.job.status) if gang.borrowing else None,
    )
    if verdict.reason.has(Trait.HAS_FORECAST):
        awaited = forecasts.of(key)
    elif verdict.reason.has(Trait.HAS_VICTIMS):
        awaited = preemption_of(state, key, now, verdict.blockers)
    else:
        return explanation
    if is_late is not None and not isinstance(awaited, PreemptionAhead):
        found = expected_start(state, key, now, policy, is_late=is_late)
        bound = awaited.may_start_by if isinstance(awaited, Forecast) else None
        if found is not None and found.says_more(now, bound):
            explanation = replace(explanation, expected=found)
    overdue = tuple(islice(_overdue_for(state.cluster, gang, now), HOLDERS_MAX))
    holders = _holders(state, verdict, gang)
    return replace(explanation, holders=holders, overdue=overdue, forecast=awaited)


def explain_changed(
    state: PlacementState,
    job: Job,
    now: float,
    policy: PlacementPolicy,
    *,
    is_late: Callable[[], bool] | None = None,
    gives_up: Callable[[], bool] = lambda: False,
    may_try: Callable[[], bool] = lambda: True,
) -> Explanation | None:
    """Return what a decision would do with a job if it waited as it says here, else why it waits.

    The state is used for the calculation and is as it was at the end. The forecast looks no further
    once `gives_up` is true; the others are those of `explain`.
    """
    key = job.metadata.key
    with supposed(state, job):
        verdict, place = answer_now(state, key, now, policy)
        if verdict is not None and verdict.reason is Reason.PLACED:
            return Explanation(key, verdict, None, place=place)
        forecasts = Forecasts(state, now, policy, is_late=gives_up)
        found = explain(
            state, key, now, policy, is_late=is_late, forecasts=forecasts, may_try=may_try,
            decided=verdict,
        )  # fmt: skip
        if found is None or verdict is None or not verdict.reason.has(Trait.KEEPS_PLACE):
            return found
        awaited = preemption_of(state, key, now, verdict.blockers)
        return replace(found, forecast=awaited, suggestions=())


# The verdict


def _settled(state: PlacementState, job: Job, now: float) -> Verdict | None:
    """Return the verdict of a job that does not wait for a place; None when it does."""
    match phase_of(job):
        case Phase.FINISHED | Phase.QUEUED | Phase.REPAIRING:
            return None
        case Phase.STOPPING | Phase.CANCELLING if is_cancelled(job):
            left = job.status.members.pending + job.status.members.running
            return Verdict(Reason.STOPPING, {"cause": cancel_message(job), "members": left})
        case Phase.STOPPING | Phase.CANCELLING | Phase.HELD:
            return Verdict(Reason.HELD)
        case Phase.BETWEEN_ATTEMPTS if is_failing(job):
            left = job.status.members.pending + job.status.members.running
            target = find_condition(job.status.conditions, FAILURE_TARGET)
            assert target is not None
            return Verdict(Reason.STOPPING, {"cause": target.message, "members": left})
        case Phase.UNADMITTED:
            return _unadmitted(state, job, now)
        case Phase.PLACED | Phase.ACTIVE | Phase.BETWEEN_ATTEMPTS:
            return _placed(job.status, now)


def _placed(status: JobStatus, now: float) -> Verdict | None:
    """Return the verdict of a job with a placement of its current attempt, or in its back-off."""
    preempted = preempted_verdict(status)
    if preempted is not None:
        return preempted
    record, left = status.current_attempt, status.members.running
    if record is not None and record.finished_at and left:
        return Verdict(Reason.RESTARTING, {"cause": record.message, "members": left})
    if status.restart_at and parse_time(status.restart_at) > now:
        seconds = ceil(parse_time(status.restart_at) - now)
        return Verdict(
            Reason.BACKING_OFF, {"attempt": status.attempt + 1, "backoff_seconds": seconds}
        )
    placement = status.placement
    if placement is None or placement.attempt != status.attempt:
        return None
    nodes = set(nodes_of(placement))
    members = sum(len(role.nodes) for role in placement.roles)
    return Verdict(Reason.PLACED, {"nodes_used": len(nodes), "members": members})


def _unadmitted(state: PlacementState, job: Job, now: float) -> Verdict | None:
    """Return why a job may have no place yet; None when it is about to be admitted."""
    if job.spec.adopts is not None:
        return _gathering(job)
    status = job.status
    refused = preempted_verdict(status) or refusal_verdict(status) or back_off_verdict(status)
    if refused is not None:
        return refused
    cycle = find_cycle(job, lambda key: other.job if (other := state.jobs.get(key)) else None)
    if any(after.elements for after in job.spec.after):  # the planner does not know arrays
        return next(cycle_verdicts(cycle), None) or admitted_verdict(job)
    others = {a.job: state.jobs.get((job.metadata.namespace, a.job)) for a in job.spec.after}
    dependencies = {
        name: dependency_state(None if other is None else other.job)
        for name, other in others.items()
    }
    begun = begun_of(job, lambda _, name: other.job if (other := others[name]) else None)
    gated = gate(job, dependencies, now=now, begun=begun, cycle=cycle)
    return gated.verdict if isinstance(gated, Refuse | CancelJob) else None


def _gathering(job: Job) -> Verdict:
    """Return why a group of another tool's pods may have no place yet."""
    adopts, members = job.spec.adopts, job.status.members
    owner = f"{adopts.kind} {adopts.name}" if adopts is not None else ""
    condition = find_condition(job.status.conditions, ADMITTED)
    if condition is not None and condition.reason == Reason.GROUP_UNGATED.value:
        return Verdict(Reason.GROUP_UNGATED, {"ungated": members.running, "owner": owner})
    facts = {"members_present": members.pending, "members": job.member_count, "owner": owner}
    is_held = condition is not None and condition.reason == Reason.GROUP_HELD.value
    return Verdict(Reason.GROUP_HELD if is_held else Reason.GROUP_INCOMPLETE, facts)


def _waiting_verdict(
    state: PlacementState, entry: QueueEntry, gang: GangRequest, *, now: float, forecasts: Forecasts
) -> Verdict:
    """Return the planner's verdict now; what the scheduler wrote where only it can know."""
    written = _written(entry.job.status)
    if written is not None and written.reason.has(Trait.WRITTEN_ONLY):
        return written
    verdict = would_fit(state.cluster, gang)
    is_fit = verdict.reason is Reason.PLACED
    over = (held_verdict if is_fit else quota_verdict)(TakenQuota(state.cluster), entry)
    if over is not None and (is_fit or verdict.outcome is Outcome.WAITING):
        return over
    if not is_fit:
        return verdict
    if written is not None and written.outcome is Outcome.WAITING:
        awaited = forecasts.of(entry.age.job_key)
        if not (isinstance(awaited, Forecast) and awaited.may_start_by <= now):
            return written  # it fits but for others
    ahead = state.queue.position(state.queue.order_of(entry))
    return Verdict(Reason.PENDING_EVALUATION, {"ahead": ahead})


def _written(status: JobStatus) -> Verdict | None:
    """Return the verdict in the status of a job; None without one that is known here."""
    written, nomination, blockers = status.verdict, status.nomination, list[ObjectKey]()
    reason = Reason.of(written.reason) if written is not None else None
    if written is None or reason is None:
        return None
    if reason.has(Trait.HAS_JOB_AHEAD):
        namespace, _, name = str(written.facts.get("job", "")).partition("/")
        blockers = [(namespace, name)]
    if reason.has(Trait.HAS_VICTIMS) and nomination is not None:
        blockers = [(victim.namespace, victim.name) for victim in nomination.victims]
    return Verdict(reason, dict(written.facts), tuple(blockers))


def _since(job: Job, verdict: Verdict) -> float | None:
    """Return since when the verdict holds, where that is known."""
    record, written = job.status.current_attempt, job.status.verdict
    if verdict.reason in _BETWEEN_ATTEMPTS and record is not None and record.finished_at:
        return parse_time(record.finished_at)
    if written is None or written.reason != verdict.reason.value or not written.since:
        return None
    return parse_time(written.since)


#: What holds from the end of an attempt on.
_BETWEEN_ATTEMPTS = (Reason.RESTARTING, Reason.BACKING_OFF)


# The numbers


def _arithmetic(state: ClusterState, gang: GangRequest) -> tuple[Amounts, ...]:
    """Return each resource that is asked, on the nodes that are available to the gang."""
    nodes = eligible_nodes(state, [role.member.constraints for role in gang.roles])
    resources = sorted({r for role in gang.roles for r, _ in role.member.request})
    out: list[Amounts] = []
    for resource in sorted(resources, key=resource_order):
        asked = gang.total(resource)
        free = int(state.table.unused(resource)[nodes].sum())
        total = int(state.table.owned(resource)[nodes].sum())
        if resource.startswith(ATTACHED) and total >= UNLIMITED:
            continue  # nodes without a limit are among them
        if resource != "pods" or asked > free:
            out.append(Amounts(resource, asked, free, total, max(asked - free, 0)))
    return tuple(out)


def _volumes(state: ClusterState, key: ObjectKey) -> tuple[VolumePlace, ...]:
    """Return from where the volumes of a job can be reached, those that it shares first."""
    found = state.volumes.reached(key[0], state.jobs[key].claims.of_volumes)
    places = (VolumePlace(claim, volume, reach_text(reach)) for claim, volume, reach in found)
    return tuple(islice(places, VOLUMES_MAX))


def _claimed(state: ClusterState, gang: GangRequest) -> Iterator[ClaimedPlace]:
    """Yield where there is what the claims of a gang ask for, on nodes that are open to it."""
    rows = sorted({r for role in gang.roles for r, _ in role.member.request if is_row(r)})
    if not rows:
        return
    table = state.table
    nodes = eligible_nodes(state, [role.member.constraints for role in gang.roles]).nonzero()[0]
    nodes = nodes[table.rank[nodes].argsort()]
    for row in rows:
        total = table.owned(row)[nodes]
        has, is_free = total > 0, table.unused(row)[nodes] > 0
        if row.startswith(ATTACHED) and total.max(initial=0) >= UNLIMITED:
            continue  # nodes without a limit are among them
        free_on, taken_on = (
            tuple(table.names[slot] for slot in nodes[chosen][:CLAIMED_NODES_MAX].tolist())
            for chosen in (has & is_free, has & ~is_free)
        )
        holders = tuple(islice(_claim_holders(state.devices, row), HOLDERS_MAX))
        counts = int(has.sum()), int((has & is_free).sum())
        yield ClaimedPlace(row, *counts, free_on, taken_on, holders)


def _claim_holders(devices: DeviceTable, row: str) -> Iterator[ClaimHolder]:
    """Yield the claims that have devices of a row beside those that count as of a member."""
    marks = devices.marks
    for found in (each for each in marks.rows.rows if each.name == row):
        for key in sorted(devices.pools.takers):
            has = devices.pools.devices_of[key]
            masks = [marks.masks[pool][1].get(name, 0) for pool, name in has if pool in marks.masks]
            users = devices.claims[key].status.reserved_for[:HOLDERS_MAX]
            if count := sum(found.takes(mask) > 0 for mask in masks):
                yield ClaimHolder(key, count, tuple(each.name for each in users))


def _ahead(state: PlacementState, order: OrderKey) -> Ahead:
    position = state.queue.position(order)
    first = state.queue.first(min(position, AHEAD_MAX))
    return Ahead(position, len(state.queue), tuple(o.job_key for o in first))


def _holders(state: PlacementState, verdict: Verdict, gang: GangRequest) -> tuple[Holder, ...]:
    resource = str(verdict.facts.get("resource", "")) or _leading_resource(gang)
    out: list[Holder] = []
    for key in verdict.blockers[:HOLDERS_MAX]:
        claim = state.cluster.ledger.claim(key)
        if claim is not None:
            nodes = len(state.cluster.ledger.slots(key))
            end = ends_at(state.jobs[key].job)
            out.append(Holder(key, resource, claim.amount(resource), nodes, end))
    return tuple(out)


def _leading_resource(gang: GangRequest) -> str:
    asked = [r for r, _ in gang.roles[gang.placing_order()[0]].member.request]
    return min(asked, key=resource_order)


def _overdue_of(state: ClusterState, job: Job, now: float) -> Iterator[OverduePod]:
    """Yield pods of the job itself that were to be gone and are not.

    A finalizer of another tool keeps a pod, and so does a kubelet that no longer confirms ends.
    """
    key, uid = job.metadata.key, job.metadata.uid
    own = owners_of(key, uid)
    for pod, node, since, owner in islice(state.ledger.overdue(now), _OVERDUE_MAX):
        if owner in own:
            yield OverduePod(pod, node, since)


def _overdue_for(state: ClusterState, gang: GangRequest, now: float) -> Iterator[OverduePod]:
    """Yield such pods, of any job, on nodes that are available to the gang."""
    nodes = eligible_nodes(state, [role.member.constraints for role in gang.roles])
    for pod, node, since, _ in islice(state.ledger.overdue(now), _OVERDUE_MAX):
        slot = state.table.slot(node)
        if slot is not None and nodes[slot]:
            yield OverduePod(pod, node, since)
