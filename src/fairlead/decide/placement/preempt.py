"""The preemption stage: a gang of higher priority gets the room of whole gangs of lower priority.

    1. The gang is nominated: `status.nomination` holds its places and its victims, in one write.
       From then on its places count as used, so no other job can get them.
    2. Once that write is seen, each victim gets `status.preemption`. The jobs controller lets it
       save a checkpoint, ends its attempt and gives its place back.
    3. The gang is placed as soon as it fits, there or elsewhere. That ends the nomination; victims
       that still run by then are asked no more.

Every step follows from what the objects say, so the scheduler may die after any of them. A
nomination that cannot come true any more (a node is lost, another scheduler took the room) is
withdrawn, and the gang is looked at again.

No sequence of preemptions goes on for ever: each lowers `potential`, which is checked here.
docs/design/preemption.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np

from fairlead.api.job import Job
from fairlead.api.placement import Nomination
from fairlead.decide.placement.capacity import Capacity
from fairlead.decide.placement.context import Context
from fairlead.decide.placement.freed import FreedCapacity
from fairlead.decide.placement.lost_work import Run, run_of, silent_seconds
from fairlead.decide.placement.order import LaneKey
from fairlead.decide.placement.queue import Group, QueueEntry
from fairlead.decide.placement.quota import quota_verdict
from fairlead.decide.placement.search import Plan, plan_gang, take_plan
from fairlead.decide.placement.victims import Candidate, Victims, find_victims
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.claims import Claim
from fairlead.model.gangs import GangRequest
from fairlead.model.labels import FOREIGN
from fairlead.model.nodes import Bools, Ints
from fairlead.model.phase import Phase, phase_of
from fairlead.model.requests import Request

#: A pod that should have gone so long ago may never go: its room does not count as leaving.
_LATE_SECONDS_MAX = 60.0
#: Phases in which a job can still keep its place when it is not preempted after all.
_KEEPS_PLACE = (Phase.ACTIVE, Phase.PLACED, Phase.BETWEEN_ATTEMPTS, Phase.REPAIRING)

#: Called with a nominated job that has its place now.
OnPlan: TypeAlias = Callable[[QueueEntry, Plan], None]


class PotentialRises(AssertionError):
    """A preemption would not lower the potential: an error of the planner."""


#: Whether a job runs on no other team's nodes, and its priority.
Standard: TypeAlias = tuple[bool, int]


def potential(waiting: Iterable[Standard]) -> tuple[Standard, ...]:
    """Return what every preemption lowers: the jobs that wait, those that would not borrow first,
    by priority, highest first.

    The tuples are compared from left to right. Among finitely many jobs no sequence of such tuples
    falls for ever (the multiset order of Dershowitz and Manna is well-founded).
    """
    return tuple(sorted(waiting, reverse=True))


def check_potential(beneficiary: Standard, victims: Iterable[Standard]) -> None:
    """Raise unless the potential falls when the victims wait in place of the beneficiary."""
    before, after = potential([beneficiary]), potential(victims)
    if not after < before:
        raise PotentialRises(f"{after} would wait instead of {before}")


@dataclass(frozen=True, slots=True)
class Standing:
    """A nomination that holds: the gang waits for the victims that are still there."""

    entry: QueueEntry
    plan: Plan
    victims: tuple[ObjectKey, ...]


@dataclass(slots=True)
class Preempting:
    """The nominations of one decision. Call `place_nominees` first, then `nominate` in order."""

    context: Context
    on_plan: OnPlan
    #: Nominations that are seen and hold, and those that are made by this decision.
    standing: dict[ObjectKey, Standing] = field(default_factory=dict[ObjectKey, Standing])
    made: dict[ObjectKey, Victims] = field(default_factory=dict[ObjectKey, Victims])
    #: Nominations that are seen and do not hold any more.
    dropped: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])
    #: The victims of all nominations that hold or are made.
    victims: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])

    @property
    def is_on(self) -> bool:
        """True when jobs may be preempted."""
        return self.context.policy.preempts

    def is_nominated(self, key: ObjectKey) -> bool:
        """True for a job whose places are kept for it."""
        return key in self.standing or key in self.made

    # Nominations that are seen

    def place_nominees(self) -> None:
        """Place the nominated gangs that fit now; keep the places of the others, or drop them."""
        state = self.context.state
        for key in sorted(state.nominees, key=lambda key: state.queue.order_of(state.jobs[key])):
            self.context.contained(key, partial(self._settle, key, state.jobs[key]))

    def _settle(self, key: ObjectKey, entry: QueueEntry) -> None:
        context = self.context
        capacity, table = context.capacity, context.cluster.table
        plan = self._plan_of(entry)
        if plan is None or not isinstance(entry.gang, GangRequest):
            self.dropped[key] = None
            return
        kept = capacity.mark()
        take_plan(capacity, entry.gang, plan, sign=-1)
        released = capacity.mark()
        if _take_places(capacity, entry.gang, plan):
            self.on_plan(entry, plan)
            return
        capacity.rollback_to(released)
        elsewhere = plan_gang(context.limited(entry, entry.gang), table, entry.gang)
        if elsewhere is not None:
            self.on_plan(entry, elsewhere)
            return
        victims = tuple(self._present_victims(entry, plan))
        uses = [use for key in victims for use in context.cluster.ledger.uses_of(key)]
        room = FreedCapacity.of(context.cluster, [*uses, *self._leaving_uses(victims)])
        if not _take_places(room, entry.gang, plan):
            self.dropped[key] = None
            return
        capacity.rollback_to(kept)
        self.standing[key] = Standing(entry, plan, victims)
        self.victims.update(dict.fromkeys(victims))

    def _plan_of(self, entry: QueueEntry) -> Plan | None:
        """Return the places of a nomination; None when it is of no more use to the job."""
        ledger, table = self.context.cluster.ledger, self.context.cluster.table
        kept, gang = ledger.nomination(entry.age.job_key), entry.gang
        if kept is None or entry.group is None or not isinstance(gang, GangRequest):
            return None
        if [(r, len(nodes)) for r, _, nodes in kept.roles] != [
            (r.name, r.count) for r in gang.roles
        ]:
            return None
        slots = ([table.occupy(node) for node in nodes] for _, _, nodes in kept.roles)
        return Plan(tuple(np.array(each, dtype=np.int64) for each in slots))

    def _present_victims(self, entry: QueueEntry, plan: Plan) -> Iterator[ObjectKey]:
        """Yield the victims that are on nominated nodes still and may be preempted."""
        context, nomination = self.context, entry.job.status.nomination
        ledger, wanted = context.cluster.ledger, plan.distinct_slots
        for victim in nomination.victims if nomination is not None else ():
            key = (victim.namespace, victim.name)
            claim = ledger.claim(key)
            if claim is None or claim.uid != victim.uid or not self._gives_way(claim, entry.lane):
                continue
            if np.isin(ledger.slots(key), wanted).any():
                yield key

    # New nominations

    def seekers(self) -> Iterator[Group]:
        """Yield the groups at the head of the queue that are above any job that holds nodes."""
        context = self.context
        queue, jobs = context.state.queue, context.state.jobs
        lowest = next(context.cluster.ledger.claims_by_priority(), None)
        if not self.is_on or lowest is None:
            return
        seen: dict[int, None] = {}
        for order in islice(queue.in_order(), context.policy.fresh_jobs_max):
            entry = jobs[order.job_key]
            group = entry.group
            if group is None or id(group) in seen or not isinstance(entry.gang, GangRequest):
                continue
            seen[id(group)] = None
            is_above = entry.lane.priority > lowest.priority
            has_lent = context.cluster.uses.lent[entry.lane.team] > 0
            if entry.lane.may_preempt and (is_above or has_lent):
                yield group

    def nominate(self, group: Group, entry: QueueEntry) -> bool:
        """Keep a place for a gang that does not fit now, if jobs of lower priority can make it.

        False when there is none; the others of its group then find none either.
        """
        context, gang = self.context, entry.gang
        if not self.is_on or not entry.lane.may_preempt or not isinstance(gang, GangRequest):
            return False
        if len(self.made) >= context.policy.nominations_max:
            context.wakes.append(context.now)
            return False
        basis = context.basis(gang)
        if group.no_victims is not None and group.no_victims[0] == basis:
            retry_at = group.no_victims[1]
            if context.now < retry_at:
                context.wakes += [retry_at] if np.isfinite(retry_at) else []
                return False
        if quota_verdict(context.cluster, entry) is not None:
            return False
        found, retry_at = self._search(entry, gang)
        if found is None:
            group.no_victims = (basis, retry_at)
            context.wakes += [retry_at] if np.isfinite(retry_at) else []
            return False
        check_potential((True, entry.lane.priority), map(self._standard, found.victims))
        take_plan(context.capacity, gang, found.plan)
        self.made[entry.age.job_key] = found
        self.victims.update(dict.fromkeys(victim.key for victim in found.victims))
        return True

    def _search(self, entry: QueueEntry, gang: GangRequest) -> tuple[Victims | None, float]:
        """Return the victims, or None and when protected jobs may become victims."""
        cluster, lane = self.context.cluster, entry.lane
        candidates, retry_at = self._candidates(lane)
        promised = dict(self._promised())
        shared = {key: claim for key, claim in promised.items() if self._gives_way(claim, lane)}
        kept = tuple(key for key in promised if key not in shared)
        room = FreedCapacity.of(cluster, self._leaving_uses(kept), self._barred(lane.team))
        mark = room.mark()
        plan = plan_gang(room, cluster.table, gang) if self._is_leaving_any else None
        if plan is not None:
            found: Victims | None = Victims((), plan)
        else:
            room.rollback_to(mark)
            found = find_victims(cluster, gang, candidates, room)
        if found is None:
            return None, retry_at
        also = tuple(self._shared(shared.values(), found.plan, lane.team))
        return Victims((*found.victims, *also), found.plan), retry_at

    def _promised(self) -> Iterator[tuple[ObjectKey, Claim]]:
        """Yield the claims that are to go and may stay after all.

        Those of victims of other gangs, which may find room elsewhere, and of jobs that their users
        hold, who may release them before they have stopped.
        """
        state, ledger = self.context.state, self.context.cluster.ledger
        for key in {**state.preempted, **self.victims, **state.leaving}:
            claim, job = ledger.claim(key), state.jobs[key].job
            is_held = phase_of(job) is Phase.STOPPING and job.spec.suspend and not job.spec.cancel
            if claim is not None and (is_held or phase_of(job) in _KEEPS_PLACE):
                yield key, claim

    def _shared(self, claims: Iterable[Claim], plan: Plan, team: str) -> Iterator[Candidate]:
        """Yield the victims of others whose nodes a plan needs, too: at no further cost."""
        for claim in claims:
            if np.isin(self.context.cluster.ledger.slots(claim.key), plan.distinct_slots).any():
                is_borrowed = self._borrows_from(claim, team)
                yield Candidate(claim.key, claim.uid, claim.priority, is_borrowed, 0.0, ())

    def _barred(self, team: str) -> Bools | None:
        """Return the nodes that no job preempts for: those of other teams are lent while idle."""
        capacity, cluster = self.context.capacity, self.context.cluster
        if not cluster.uses.has_owners:
            return capacity.barred
        foreign = cluster.table.labels.tiers(team) == FOREIGN
        return foreign if capacity.barred is None else foreign | capacity.barred

    def _gives_way(self, claim: Claim, lane: LaneKey) -> bool:
        """True for a claim of lower priority, and for one that borrows nodes of the lane's team."""
        return claim.priority < lane.priority or self._borrows_from(claim, lane.team)

    def _borrows_from(self, claim: Claim, team: str) -> bool:
        uses = self.context.cluster.uses
        if not team or claim.team == team or not uses.lent[team]:
            return False
        return any(uses.owner(node) == team for _, _, nodes in claim.roles for node in nodes)

    def _standard(self, victim: Candidate) -> Standard:
        return (not victim.is_borrowed, victim.priority)

    def _candidates(self, lane: LaneKey) -> tuple[list[Candidate], float]:
        """Return the jobs that give way and may be preempted, and when there may be more.

        A job that borrows from the lane's own team is not protected by the time it has run.
        """
        context, ledger = self.context, self.context.cluster.ledger
        runs: list[tuple[Claim, Run]] = []
        retry_at = float("inf")
        borrowed: set[ObjectKey] = set()
        has_lent = context.cluster.uses.lent[lane.team] > 0
        for claim in ledger.claims_by_priority():
            if claim.priority >= lane.priority and not has_lent:
                break
            entry = context.state.jobs[claim.key]
            if not self._gives_way(claim, lane) or not self._may_be_victim(claim):
                continue
            run = entry.run = entry.run or run_of(entry.job, claim)
            if self._borrows_from(claim, lane.team):
                borrowed.add(claim.key)
            protected_until = run.began_at + context.policy.preemption_min_run_seconds
            if context.now < protected_until and claim.key not in borrowed:
                retry_at = min(retry_at, protected_until)
            else:
                runs.append((claim, run))
        bound = silent_seconds((run for _, run in runs), context.now)
        vector = context.cluster.table.vector
        candidates = [
            Candidate(
                claim.key, claim.uid, claim.priority, claim.key in borrowed,
                run.lost_gpu_seconds(context.now, bound),
                tuple((s, n, vector(request)) for s, n, request in ledger.uses_of(claim.key)),
            )
            for claim, run in runs
        ]  # fmt: skip
        return candidates, retry_at

    def _may_be_victim(self, claim: Claim) -> bool:
        context, key = self.context, claim.key
        if claim.is_adopted and not context.policy.preempts_adopted:
            return False
        if key in self.victims or context.is_left_alone(key):
            return False
        return key in context.state.evictable

    def _leaving_uses(self, but: tuple[ObjectKey, ...]) -> Iterator[tuple[Ints, Ints, Request]]:
        """Yield what is about to be given back: by jobs that stop, and by pods that do."""
        context, ledger = self.context, self.context.cluster.ledger
        for key in {**context.state.leaving, **self.victims}:
            if key not in but:
                yield from ledger.uses_of(key)
        yield from ledger.leaving_uses(context.now - _LATE_SECONDS_MAX)

    @property
    def _is_leaving_any(self) -> bool:
        return any(True for _ in self._leaving_uses(()))

    # What follows for the victims

    def requests(self) -> Iterator[tuple[QueueEntry, QueueEntry]]:
        """Yield the victims that were not asked yet, each after the job that it makes room for."""
        jobs, asked = self.context.state.jobs, dict[ObjectKey, None]()
        for standing in self.standing.values():
            for key in standing.victims:
                is_asked = key in asked or key in self.context.state.leaving
                asked[key] = None
                if not is_asked and not self.context.is_left_alone(key):
                    yield standing.entry, jobs[key]

    def withdrawals(self) -> Iterator[QueueEntry]:
        """Yield the victims that run on, since nothing waits for them any more."""
        state = self.context.state
        for key in sorted(state.preempted):
            entry = state.jobs[key]
            may_stay = phase_of(entry.job) in _KEEPS_PLACE and not self._is_wanted(entry.job)
            if may_stay and not self.context.is_left_alone(key):
                yield entry

    def _is_wanted(self, job: Job) -> bool:
        preemption, jobs = job.status.preemption, self.context.state.jobs
        assert preemption is not None
        other = jobs.get((preemption.namespace, preemption.name))
        if other is None or other.job.metadata.uid != preemption.uid:
            return False
        key, nomination = other.age.job_key, other.job.status.nomination
        return key not in self.dropped and _names(nomination, job)

    def verdict(self, standing: Standing) -> Verdict:
        """Return why a nominated job waits."""
        nodes, victims = len(standing.plan.distinct_slots), standing.victims
        if not victims:
            return Verdict(Reason.RESERVED, {"nodes": nodes})
        jobs = self.context.state.jobs
        saving = sum(_saves(jobs[key].job) for key in victims)
        if saving:
            facts = {"victims": len(victims), "saving": saving, "nodes": nodes}
            return Verdict(Reason.WAITING_FOR_CHECKPOINT, facts, victims)
        return Verdict(Reason.PREEMPTING, {"victims": len(victims), "nodes": nodes}, victims)


def _names(nomination: Nomination | None, job: Job) -> bool:
    uid = job.metadata.uid
    return nomination is not None and any(victim.uid == uid for victim in nomination.victims)


def _saves(job: Job) -> bool:
    """True for a running job that was asked, and reports checkpoints."""
    record, progress = job.status.current_attempt, job.status.progress
    is_running = record is not None and bool(record.started_at) and record.finished_at is None
    reports = progress is not None and progress.checkpoint_step is not None
    return is_running and reports and job.status.preemption is not None


def _take_places(capacity: Capacity, gang: GangRequest, plan: Plan) -> bool:
    """Take the places of a plan if there is room for all of them; False leaves some taken."""
    for role, slots in zip(gang.roles, plan.slots, strict=True):
        distinct, counts = np.unique(slots, return_counts=True)
        if (capacity.fits(role.member)[distinct] < counts).any():
            return False
        capacity.take(distinct, counts, role.member)
    return True
