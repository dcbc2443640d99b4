"""The preemption stage: a gang of higher priority gets the room of whole gangs of lower priority.

    1. The gang is nominated: `status.nomination` holds its places and its victims, in one write.
       From then on its places count as used, so no other job can get them.
    2. Once that write is seen, each victim gets `status.preemption`. The jobs controller lets it
       save a checkpoint, ends its attempt and gives its place back.
    3. The gang is placed as soon as it fits, there or on other nodes that it need not borrow. That
       ends the nomination; victims that still run by then are asked no more.

Every step follows from what the objects say, so the scheduler may die after any of them. A
nomination that cannot come true any more (a node is lost, another scheduler took the room) is
withdrawn, and the gang is looked at again.

No sequence of preemptions goes on for ever: each lowers `potential`, which is checked here.
docs/design/preemption.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import TypeAlias

import numpy as np

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, PreemptionKind
from fairlead.decide.attempts.status import is_moving
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.repair import grown
from fairlead.decide.placement.evict.moves import largest_first
from fairlead.decide.placement.evict.victim_search import KEEPS_PLACE, VictimSearch, take_places
from fairlead.decide.placement.evict.victims import Candidate, Victims
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.image_preference import with_images
from fairlead.decide.placement.places.search import Plan, take_plan, uses_of
from fairlead.decide.placement.places.size import of_size, planned
from fairlead.decide.placement.waiting.order import LaneKey
from fairlead.decide.placement.waiting.patience import waiting_since
from fairlead.decide.placement.waiting.queue import EqualJobs, QueueEntry
from fairlead.decide.placement.waiting.quota import held_verdict, quota_verdict
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.gang.phase import phase_of


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

    context: PlanningContext
    #: It knows the victims of all nominations that hold or are made.
    search: VictimSearch = field(init=False)
    #: Nominations that are seen and hold, and those that are made by this decision.
    standing: dict[ObjectKey, Standing] = field(default_factory=dict[ObjectKey, Standing])
    made: dict[ObjectKey, Victims] = field(default_factory=dict[ObjectKey, Victims])
    #: Nominations that are seen and do not hold any more.
    dropped: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])
    #: Where the victims go that are moved; and the job for which this decision moves some.
    moves: dict[ObjectKey, Plan] = field(default_factory=dict[ObjectKey, Plan])
    moves_for: ObjectKey | None = None
    #: The groups for which gangs may be moved, by id.
    _may_move: dict[int, None] = field(default_factory=dict[int, None])
    #: When jobs that are protected now may become victims of one that looked for some.
    retry_at: float = float("inf")
    #: Nominations that are seen and not judged yet, in the queue's order.
    _unsettled: dict[ObjectKey, tuple[GangRequest, Plan]] = field(
        default_factory=dict[ObjectKey, tuple[GangRequest, Plan]]
    )
    #: Nominations that end with this decision. They stay booked: the write may still fail, and what
    #: another gang was given there would then be given twice.
    _ending: dict[ObjectKey, tuple[GangRequest, Plan]] = field(
        default_factory=dict[ObjectKey, tuple[GangRequest, Plan]]
    )

    def __post_init__(self) -> None:
        self.search = VictimSearch(self.context)

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
        context, state = self.context, self.context.state
        nominees = sorted(
            state.sets.nominees, key=lambda key: state.queue.order_of(state.jobs[key])
        )
        for key in nominees:
            entry = state.jobs[key]
            if is_moving(entry.job):
                nomination = entry.job.status.nomination
                places = nomination.roles if nomination is not None else ()
                gang = of_size(entry.gang, [(each.role, len(each.nodes)) for each in places])
                if entry.job.status.placement is None and gang is not None:
                    context.limits.take(entry, gang)  # as while it ran
                continue
            context.contained(key, partial(self._read_plan, key, state.jobs[key]))
        for key in tuple(self._unsettled):
            context.contained(key, partial(self._settle, key, state.jobs[key]))
            self._unsettled.pop(key)

    def _read_plan(self, key: ObjectKey, entry: QueueEntry) -> None:
        plan = self._plan_of(entry)
        limit, quota = self.context.limits.verdict(entry), held_verdict(self.context.quota, entry)
        is_over = limit is not None or quota is not None or key in self.context.state.unresolved
        if plan is None or not isinstance(entry.gang, GangRequest) or is_over:
            self.dropped[key] = None
        else:
            self._unsettled[key] = (entry.gang, plan)
            self.context.limits.take(entry, planned(entry.gang, plan))

    def _settle(self, key: ObjectKey, entry: QueueEntry) -> None:
        """Place one nominated gang, keep its place or drop it.

        Its place may overlap those of gangs that come after it and have victims of their own: what
        is kept for them counts as free. What was kept for gangs before it whose nominations end now
        is no reason to drop it, and no room to start in.
        """
        context = self.context
        capacity, cluster = context.capacity, context.cluster
        gang, plan = self._unsettled[key]
        kept_for_others = [
            use for other, each in self._unsettled.items() if other != key for use in uses_of(*each)
        ]
        here = FreedCapacity.of(cluster, [*uses_of(gang, plan), *kept_for_others])
        if take_places(here, cluster.table, gang, plan):
            context.note_placed(entry, self._grown(entry, gang, plan))
            return
        kept = capacity.mark()
        take_plan(capacity, gang, plan, sign=-1)
        # Its places are its team's: what it borrowed elsewhere could be taken back at once.
        elsewhere = context.plan(entry, gang, borrows=False)
        if elsewhere is not None:
            context.note_placed(entry, elsewhere)
            take_plan(capacity, gang, plan)
            self._ending[key] = (gang, plan)
            return
        kept_for_others += [use for each in self._ending.values() for use in uses_of(*each)]
        for victims in self._present_victims(entry, plan):
            leaving = (*self.search.uses_of(victims), *self.search.leaving_uses(victims))
            room = FreedCapacity.of(cluster, [*leaving, *kept_for_others])
            if take_places(room, cluster.table, gang, plan):
                break
        else:
            capacity.rollback_to(kept)
            self.dropped[key] = None
            self._ending[key] = (gang, plan)
            return
        capacity.rollback_to(kept)
        if not self._plan_moves(entry, plan, victims):
            self.dropped[key] = None
            self._ending[key] = (gang, plan)
            return
        self.standing[key] = Standing(entry, plan, victims)
        self.search.victims.update(dict.fromkeys(victims))

    def _plan_moves(self, entry: QueueEntry, plan: Plan, victims: Iterable[ObjectKey]) -> bool:
        """Find a place for each victim that is to move and was not asked yet; False if one has
        none, so that nothing is taken without a place to go.
        """
        context, nomination = self.context, entry.job.status.nomination
        if nomination is None or not nomination.kind.is_move:
            return True
        asked = [key for key in victims if key not in context.state.sets.leaving]
        movers = [mover for key in asked if (mover := self.search.mover(key)) is not None]
        if len(movers) < len(asked):
            return False
        mark = context.capacity.mark()
        closed = np.zeros(context.cluster.table.capacity, dtype=np.bool_)
        closed[plan.distinct_slots] = True
        found = dict[ObjectKey, Plan]()
        for mover in largest_first(movers):
            present = FreedCapacity.of(context.cluster, ())
            place = mover.destination(context.cluster, present, closed)
            if place is None:
                context.capacity.rollback_to(mark)
                return False
            take_plan(context.capacity, mover.gang, place)
            found[mover.candidate.key] = place
        self.moves |= found
        return True

    def _grown(self, entry: QueueEntry, gang: GangRequest, plan: Plan) -> Plan:
        """Return the places of a nomination, which are booked, with those of further members."""
        growth = self.context.growth(entry)
        if growth is None:
            return plan
        wanted = with_images(self.context.cluster.table, entry.job, gang)
        return grown(self.context.capacity, wanted, plan, growth)

    def _plan_of(self, entry: QueueEntry) -> Plan | None:
        """Return the places of a nomination; None when it is of no more use to the job."""
        ledger, table = self.context.cluster.ledger, self.context.cluster.table
        kept, gang = ledger.nomination(entry.age.job_key), entry.gang
        if kept is None or entry.group is None or not isinstance(gang, GangRequest):
            return None
        if not gang.has_size([(role, len(nodes)) for role, _, nodes in kept.roles]):
            return None
        slots = ([table.occupy(node) for node in nodes] for _, _, nodes in kept.roles)
        return Plan(tuple(np.array(each, dtype=np.int64) for each in slots))

    def _present_victims(self, entry: QueueEntry, plan: Plan) -> Iterable[tuple[ObjectKey, ...]]:
        """Return the victims that may be preempted, fewest first: those on nominated nodes still,
        with those that came back to such nodes, with those that a rule about pods makes victims.
        """
        nomination, wanted = entry.job.status.nomination, plan.distinct_slots
        ledger, state = self.context.cluster.ledger, self.context.state
        jobs, leaving = state.jobs, state.sets.leaving
        near, back, far = list[ObjectKey](), list[ObjectKey](), list[ObjectKey]()
        since = (nomination.nominated_at if nomination is not None else "") or ""
        for victim in nomination.victims if nomination is not None else ():
            key = (victim.namespace, victim.name)
            claim = ledger.claim(key)
            if claim is None or claim.uid != victim.uid:
                continue
            moves = nomination is not None and nomination.kind.is_move
            if not self.search.gives_way(claim, entry.lane, moves=moves):
                continue
            if np.isin(ledger.slots(key), wanted).any():
                place = jobs[key].job.status.placement
                is_back = place is not None and (place.placed_at or "") > since
                (back if is_back and key not in leaving else near).append(key)
            elif claim.is_marked:
                far.append(key)
        return dict.fromkeys(map(tuple, (near, near + back, near + back + far)))

    # New nominations

    def seekers(self) -> Iterator[EqualJobs]:
        """Yield the groups that may find victims.

        Those at the head of the queue that are above any job that holds nodes; and wherever they
        are in the queue, those of teams that have lent nodes, some at a time.
        """
        context = self.context
        queue, jobs = context.state.queue, context.state.jobs
        lowest = next(context.cluster.ledger.claims_by_priority(), None)
        if lowest is None:
            return
        seen: dict[int, None] = {}
        for group in self._asking():
            self._may_move[id(group)] = seen[id(group)] = None
            yield group
        for order in islice(queue.in_order(), context.policy.fresh_jobs_max):
            entry = jobs[order.job_key]
            group = entry.group
            if group is None or id(group) in seen or not isinstance(entry.gang, GangRequest):
                continue
            seen[id(group)] = None
            is_above = self.is_on and entry.lane.priority > lowest.priority
            if self._is_due_to_move(entry):
                self._may_move[id(group)] = None
            moves = id(group) in self._may_move and entry.lane.priority >= lowest.priority
            if entry.lane.may_preempt and (is_above or moves or self._has_lent(entry.lane)):
                yield group
        owners = queue.groups(lambda lane: lane.may_preempt and self._has_lent(lane))
        others = {g.order(0).job_key: g for g in owners if id(g) not in seen}
        for key in context.memory.sought(lambda: self._take_turns(others.values())):
            if key in others:
                yield others[key]

    def _take_turns(self, groups: Iterable[EqualJobs]) -> list[ObjectKey]:
        """Return the first jobs of the groups whose turn it is; each has had it then."""
        context, most = self.context, self.context.policy.fresh_jobs_max
        due = [g for g in groups if self._is_due(g)]
        chosen = nsmallest(most, due, key=lambda g: (g.sought_at, g.order(0)))
        for group in chosen:
            group.sought_at = context.began  # not when a forecast looks ahead to
        if len(due) > most:
            context.wakes.append(context.now + context.policy.deep_refresh_seconds)
        return [group.order(0).job_key for group in chosen]

    def _asking(self) -> Iterator[EqualJobs]:
        """Yield the groups of the jobs that ask that others are moved for them."""
        if self.context.policy.defragments_on_request:
            yield from self.context.state.queue.groups(
                lambda lane: lane.asks_moves and lane.may_preempt
            )

    def _is_due_to_move(self, entry: QueueEntry) -> bool:
        """True for a job that has waited so long that others are moved for it; else decide again
        when it has.
        """
        context = self.context
        if not context.policy.defragments or not entry.lane.may_preempt:
            return False
        due_at = waiting_since(entry.job, context.began) + context.policy.starvation_seconds
        if context.now < due_at:
            context.wakes.append(due_at)
        return context.now >= due_at

    def _has_lent(self, lane: LaneKey) -> bool:
        return self.is_on and self.context.cluster.uses.lent_to_jobs[lane.team] > 0

    def _is_due(self, group: EqualJobs) -> bool:
        """True unless the last search found no victims, and nothing has changed since."""
        gang, found = group.shape.gang, group.no_victims
        if not isinstance(gang, GangRequest):
            return False
        basis = self._basis(group, gang)
        return found is None or found[0] != basis or self.context.now >= found[1]

    def nominate(self, group: EqualJobs, entry: QueueEntry) -> bool:
        """Keep a place for a gang that does not fit now, if jobs of lower priority can make it.

        False when there is none; the others of its group then find none either.
        """
        context, gang = self.context, entry.gang
        is_on = self.is_on or id(group) in self._may_move
        if not is_on or not entry.lane.may_preempt or not isinstance(gang, GangRequest):
            return False
        if gang.topology.is_patient:
            return False
        if len(self.made) >= context.policy.nominations_max:
            context.wakes.append(context.now)
            return False
        found = self._find(group, entry, gang)
        if found is None:
            return False
        if self.moves_for != entry.age.job_key:  # what moves does not wait
            check_potential((True, entry.lane.priority), map(self._standard, found.victims))
        take_plan(context.capacity, gang, found.plan)
        context.limits.take(entry, gang)
        self.made[entry.age.job_key] = found
        self.search.victims.update(dict.fromkeys(victim.key for victim in found.victims))
        return True

    def _find(self, group: EqualJobs, entry: QueueEntry, gang: GangRequest) -> Victims | None:
        """Return the victims of a gang. The room of its own nomination that ends counts as free:
        one write replaces that nomination by the new one.
        """
        context, ending = self.context, self._ending.get(entry.age.job_key)
        kept = context.capacity.mark()
        if ending is not None:
            take_plan(context.capacity, *ending, sign=-1)
        basis, before, found = self._basis(group, gang), group.no_victims, None
        key = entry.age.job_key
        retry_at = before[1] if before is not None and before[0] == basis else -np.inf
        if context.memory.has_no_victims(key, is_known=context.now < retry_at):
            self._none_until(retry_at)
        elif quota_verdict(context.quota, entry) is None:
            found, retry_at = self.search.find(entry, gang) if self.is_on else (None, np.inf)
            if found is None and self._is_first_to_move(group):
                moves, moves_retry_at = self.search.find_moves(entry.lane, key, gang)
                retry_at = min(retry_at, moves_retry_at)
                if moves is not None:
                    self.moves_for = key
                    found = Victims(tuple(move.candidate for move in moves.moves), moves.plan)
            if found is None:
                group.no_victims = (basis, retry_at)
                self._none_until(retry_at)
        context.capacity.rollback_to(kept)
        return found

    def _basis(self, group: EqualJobs, gang: GangRequest) -> tuple[object, ...]:
        """Return a value that differs once something has changed that may bring victims, but for
        time.
        """
        is_first, evictable = self._is_first_to_move(group), self.context.state.evictable_version
        return (*self.context.basis(gang), is_first, evictable)

    def _is_first_to_move(self, group: EqualJobs) -> bool:
        """True where gangs may be moved for a group, and are moved for no other job now."""
        jobs = self.context.state.jobs
        if id(group) not in self._may_move or self.moves_for is not None:
            return False
        preemptions = (jobs[key].job.status.preemption for key in self.context.state.sets.preempted)
        moving = any(each is not None and each.kind.is_move for each in preemptions)
        return not moving and not any(
            (kept := each.entry.job.status.nomination) is not None and kept.kind.is_move
            for each in self.standing.values()
        )

    def _none_until(self, at: float) -> None:
        """Note that there are no victims, and no others before this instant."""
        self.retry_at = min(self.retry_at, at)
        self.context.wakes += [at] if np.isfinite(at) else []

    def _standard(self, victim: Candidate) -> Standard:
        return (not victim.is_borrowed, victim.priority)

    # What follows for the victims

    def requests(self) -> Iterator[tuple[QueueEntry, QueueEntry]]:
        """Yield the victims that were not asked yet, each after the job that it makes room for."""
        jobs, asked = self.context.state.jobs, dict[ObjectKey, None]()
        for standing in self.standing.values():
            for key in standing.victims:
                is_asked = key in asked or key in self.context.state.sets.leaving
                asked[key] = None
                if not is_asked and not self.context.is_left_alone(key):
                    yield standing.entry, jobs[key]

    def withdrawals(self) -> Iterator[QueueEntry]:
        """Yield the victims that run on, since nothing waits for them any more."""
        state = self.context.state
        for key in sorted(state.sets.preempted):
            entry = state.jobs[key]
            may_stay = phase_of(entry.job) in KEEPS_PLACE and not self._is_wanted(entry.job)
            if may_stay and not self.context.is_left_alone(key):
                yield entry

    def _is_wanted(self, job: Job) -> bool:
        preemption, jobs = job.status.preemption, self.context.state.jobs
        assert preemption is not None
        if preemption.kind is PreemptionKind.EMPTY:
            return self._has_next_place(job)
        other = jobs.get((preemption.namespace, preemption.name))
        if other is None or other.job.metadata.uid != preemption.uid:
            return False
        key, nomination = other.age.job_key, other.job.status.nomination
        if key in self.made:
            return any(victim.uid == job.metadata.uid for victim in self.made[key].victims)
        return key not in self.dropped and _names(nomination, job)

    def _has_next_place(self, job: Job) -> bool:
        """True while members could start where a job is to move."""
        table, ledger = self.context.cluster.table, self.context.cluster.ledger
        kept = ledger.nomination(job.metadata.key)
        slots = [table.slot(node) for _, _, nodes in (kept.roles if kept else ()) for node in nodes]
        return bool(slots) and all(
            slot is not None and table.ready[slot] and not table.cordoned[slot] for slot in slots
        )

    def verdict(self, standing: Standing) -> Verdict:
        """Return why a nominated job waits."""
        nodes, victims = len(standing.plan.distinct_slots), standing.victims
        if not victims:
            return Verdict(Reason.RESERVED, {"nodes": nodes})
        jobs = self.context.state.jobs
        saving = sum(_saves(jobs[key].job) for key in victims)
        nomination = standing.entry.job.status.nomination
        if nomination is not None and nomination.kind.is_move:
            return Verdict(Reason.DEFRAGMENTING, {"moves": len(victims), "nodes": nodes}, victims)
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
