"""The search for victims: which jobs a gang could make leave, and what room that gives it.

It reads the decision as it stands: what is about to be given back counts as free, but for what may
stay after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fairlead.api.names import JOB_NAME
from fairlead.api.values.times import parse_time
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.evict.moves import Mover, Moves, MoveSearch
from fairlead.decide.placement.evict.victims import Candidate, Victims, find_victims
from fairlead.decide.placement.places.capacity import Capacity
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.image_preference import with_images
from fairlead.decide.placement.places.kept_room import QueueReservation
from fairlead.decide.placement.places.neighbours import rules_hold
from fairlead.decide.placement.places.search import Plan, members_of, plan_gang
from fairlead.decide.placement.places.size import of_size
from fairlead.decide.placement.waiting.lost_work import HoldingAttempt, run_of, silent_seconds
from fairlead.decide.placement.waiting.order import LaneKey
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.model.holdings.claims import Claim, PodUse
from fairlead.model.holdings.pod_owner import owners_of
from fairlead.model.inventory.nodes import Bools, NodeTable, Use, counted

#: A pod that should have gone so long ago may never go: its room does not count as leaving.
_LATE_SECONDS_MAX = 60.0
#: Phases in which a job can still keep its place when it is not preempted after all.
KEEPS_PLACE = (Phase.ACTIVE, Phase.PLACED, Phase.BETWEEN_ATTEMPTS, Phase.REPAIRING)


@dataclass(slots=True)
class VictimSearch:
    """The victims that gangs of one decision find."""

    context: PlanningContext
    #: The victims of all nominations that hold or are made.
    victims: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])

    def find(self, entry: QueueEntry, gang: GangRequest) -> tuple[Victims | None, float]:
        """Return the victims, or None and when protected jobs may become victims."""
        cluster, lane = self.context.cluster, entry.lane
        candidates, retry_at = self._candidates(lane)
        is_leaving_any = self._is_leaving_any
        if not candidates and not is_leaving_any:
            return None, retry_at
        promised = dict(self._promised())
        shared = {key: claim for key, claim in promised.items() if self.gives_way(claim, lane)}
        kept = tuple(key for key in promised if key not in shared)
        barred = self._barred(lane.team, self.context.reservations)
        room = FreedCapacity.of(cluster, self.leaving_uses(kept), barred)
        mark = room.mark()
        plan = plan_gang(room, cluster.table, gang) if is_leaving_any else None
        if plan is not None:
            found: Victims | None = Victims((), plan)
        else:
            room.rollback_to(mark)
            found = find_victims(cluster, gang, candidates, room)
        if found is None:
            return None, retry_at
        also = tuple(self._shared(shared.values(), kept, gang, found, team=lane.team))
        return Victims((*found.victims, *also), found.plan), retry_at

    def _promised(self) -> Iterator[tuple[ObjectKey, Claim]]:
        """Yield the claims that are to go and may stay after all, by key.

        Those of victims of other gangs, which may find room elsewhere, and of jobs that their users
        hold, who may release them before they have given it back.
        """
        state, ledger = self.context.state, self.context.cluster.ledger
        for key in sorted({**state.sets.preempted, **self.victims, **state.sets.leaving}):
            claim, job = ledger.claim(key), state.jobs[key].job
            phase = phase_of(job)
            is_stopped = phase is Phase.STOPPING and job.spec.suspend and not job.spec.cancel
            if claim is not None and (is_stopped or phase in (Phase.HELD, *KEEPS_PLACE)):
                yield key, claim

    def _shared(
        self, claims: Iterable[Claim], kept: tuple[ObjectKey, ...], gang: GangRequest,
        found: Victims, *, team: str,
    ) -> Iterator[Candidate]:  # fmt: skip
        """Yield the victims of others that a plan needs to be gone, too: at no further cost."""
        cluster, plan = self.context.cluster, found.plan
        for claim in claims:
            is_needed = np.isin(cluster.ledger.slots(claim.key), plan.distinct_slots).any()
            if not is_needed and claim.is_marked:
                uses = self.uses_of(victim.key for victim in found.victims)
                room = FreedCapacity.of(cluster, [*uses, *self.leaving_uses((*kept, claim.key))])
                is_needed = not take_places(room, cluster.table, gang, plan)
            if is_needed:
                is_borrowed = self._borrows_from(claim, team)
                yield Candidate(claim.key, claim.uid, claim.priority, is_borrowed, 0.0)

    def _barred(self, team: str, reservations: Iterable[QueueReservation]) -> Bools | None:
        """Return the nodes that no job preempts for: those of other teams are lent while idle.

        What is reserved for a job of another team bars no node that is the team's own.
        """
        context = self.context
        barred = [context.kept_from(team, each).nodes for each in reservations]
        foreign = context.foreign(team)
        if foreign is not None:
            barred.append(foreign)
        return np.logical_or.reduce(barred) if barred else None

    def gives_way(self, claim: Claim, lane: LaneKey, *, moves: bool = False) -> bool:
        """True for a claim of lower priority, and for one that borrows nodes of the lane's team; of
        one that moves, for one of no higher priority.
        """
        if moves:
            return claim.priority <= lane.priority
        return claim.priority < lane.priority or self._borrows_from(claim, lane.team)

    def _borrows_from(self, claim: Claim, team: str) -> bool:
        uses = self.context.cluster.uses
        if not team or claim.team == team or not uses.lent_to_jobs[team]:
            return False
        return any(uses.owner(node) == team for _, _, nodes in claim.roles for node in nodes)

    def _candidates(self, lane: LaneKey) -> tuple[list[Candidate], float]:
        """Return the jobs that give way and may be preempted, and when there may be more.

        A job that borrows from the lane's own team is not protected by the time it has run.
        """
        context, ledger = self.context, self.context.cluster.ledger
        runs: list[tuple[Claim, HoldingAttempt]] = []
        retry_at = float("inf")
        borrowed: set[ObjectKey] = set()
        has_lent = context.cluster.uses.lent_to_jobs[lane.team] > 0
        for claim in ledger.claims_by_priority():
            if claim.priority >= lane.priority and not has_lent:
                break
            if not self.gives_way(claim, lane) or not self._may_be_victim(claim):
                continue
            run = self.run(claim)
            if has_lent and self._borrows_from(claim, lane.team):
                borrowed.add(claim.key)
            protected_until = run.holding_from + context.policy.preemption_min_run_seconds
            if context.now < protected_until and claim.key not in borrowed:
                retry_at = min(retry_at, protected_until)
            else:
                runs.append((claim, run))
        bound = silent_seconds((run for _, run in runs), context.now)
        candidates = [
            Candidate(
                claim.key, claim.uid, claim.priority, claim.key in borrowed,
                run.lost_gpu_seconds(context.now, bound),
            )
            for claim, run in runs
        ]  # fmt: skip
        return candidates, retry_at

    def run(self, claim: Claim) -> HoldingAttempt:
        """Return the attempt that holds nodes, and what it would cost to stop it."""
        entry = self.context.state.jobs[claim.key]
        entry.run = entry.run or run_of(entry.job, claim)
        return entry.run

    # Moves

    def find_moves(
        self, lane: LaneKey, key: ObjectKey, gang: GangRequest
    ) -> tuple[Moves | None, float]:
        """Return the gangs that other nodes are found for so that this one fits; None, and when
        gangs that have just started may move.
        """
        context, cluster = self.context, self.context.cluster
        claims, retry_at = self._movable(lane)
        if not claims:
            return None, retry_at
        runs = [self.run(claim) for claim in claims]
        bound = silent_seconds(runs, context.now)
        found_movers = (
            self.mover_of(claim, run.lost_gpu_seconds(context.now, bound))
            for claim, run in zip(claims, runs, strict=True)
        )
        movers = [mover for mover in found_movers if mover is not None]
        others = (each for each in context.reservations if each.head != key)
        barred = self._barred(lane.team, others)
        room = FreedCapacity.of(cluster, (), barred)
        found = MoveSearch(cluster, gang, movers, room).find(context.policy.moves_max)
        return found, retry_at

    def mover(self, key: ObjectKey) -> Mover | None:
        """Return a gang that has been chosen to move; None for one that is of no use any more."""
        claim = self.context.cluster.ledger.claim(key)
        return None if claim is None else self.mover_of(claim, 0.0)

    def mover_of(self, claim: Claim, lost: float) -> Mover | None:
        """Return a gang that may move; None for one that does not have the size of its job."""
        context, entry = self.context, self.context.state.jobs[claim.key]
        gang = of_size(entry.gang, [(role, len(nodes)) for role, _, nodes in claim.roles])
        if gang is None:
            return None
        gang = with_images(context.cluster.table, entry.job, gang)
        uses = tuple(context.cluster.ledger.uses_of(claim.key))
        barred = self._barred(entry.lane.team, context.reservations)
        candidate = Candidate(claim.key, claim.uid, 0, is_borrowed=False, lost_gpu_seconds=lost)
        return Mover(candidate, gang, claim.size, uses, barred)

    def _movable(self, lane: LaneKey) -> tuple[list[Claim], float]:
        """Return the claims that may move for a job of the lane, and when there may be more."""
        context, retry_at = self.context, float("inf")
        found = list[Claim]()
        for claim in context.cluster.ledger.claims_by_priority():
            if claim.priority > lane.priority:
                break
            since = self.moves_from(claim)
            if since is None:
                continue
            if context.now < since:
                retry_at = min(retry_at, since)
            else:
                found.append(claim)
        return found, retry_at

    def moves_from(self, claim: Claim) -> float | None:
        """Return since when a gang may be moved; None for one that may not, however long it runs:
        one of another tool, one that borrows nodes, one that is leaving or waits for nodes.
        """
        context, entry = self.context, self.context.state.jobs[claim.key]
        is_kept = entry.job.status.nomination is not None or claim.is_adopted
        if is_kept or not isinstance(entry.gang, GangRequest) or self._is_borrowing(claim):
            return None
        if not self._may_be_victim(claim):
            return None
        return self.run(claim).began_at + context.policy.move_min_run_seconds

    def _is_borrowing(self, claim: Claim) -> bool:
        uses = self.context.cluster.uses
        if not uses.has_owners:
            return False
        nodes = (node for _, _, nodes in claim.roles for node in nodes)
        return any(uses.owner(node) not in ("", claim.team) for node in nodes)

    def _may_be_victim(self, claim: Claim) -> bool:
        context, key = self.context, claim.key
        if key not in context.state.sets.evictable or key in self.victims:
            return False
        if claim.is_adopted and not context.policy.preempts_adopted:
            return False
        return context.capacity.holds(key) and not context.is_left_alone(key)

    def leaving_uses(self, but: tuple[ObjectKey, ...]) -> Iterator[Use]:
        """Yield what is about to be given back: by jobs that stop, and by pods that do."""
        context, ledger = self.context, self.context.cluster.ledger
        for key in {**context.state.sets.leaving, **self.victims}:
            if key not in but and context.capacity.holds(key):
                yield from ledger.uses_of(key)
        yield from ledger.leaving_uses(self._is_late)

    def _is_late(self, pod: PodUse) -> bool:
        """True for a pod that should have gone so long ago that it may never go.

        When it should go is an instant of the API server, whose clock may be behind: then each pod
        would be late as soon as it is deleted. When its attempt has ended is one of our own.
        """
        since = self.context.now - _LATE_SECONDS_MAX
        if pod.leaves_at is None or pod.leaves_at > since:
            return False
        key = (pod.key[0], pod.labels.get(JOB_NAME, ""))
        entry = self.context.state.jobs.get(key)
        if entry is None or pod.owner not in owners_of(key, entry.job.metadata.uid):
            return True
        records = [a for a in entry.job.status.attempts if str(a.number) == pod.attempt]
        ended_at = records[-1].finished_at if records else None
        return ended_at is None or parse_time(ended_at) + pod.grace_seconds <= since

    @property
    def _is_leaving_any(self) -> bool:
        return any(True for _ in self.leaving_uses(()))

    def uses_of(self, keys: Iterable[ObjectKey]) -> Iterator[Use]:
        """Yield what jobs hold."""
        for key in keys:
            yield from self.context.cluster.ledger.uses_of(key)


def take_places(capacity: Capacity, table: NodeTable, gang: GangRequest, plan: Plan) -> bool:
    """Take the places of a plan if there is room for all of them; False leaves some taken."""
    for role, slots in zip(gang.roles, plan.slots, strict=True):
        distinct, counts = counted(slots)
        if (capacity.fits(role.member)[distinct] < counts).any():
            return False
        capacity.take(distinct, counts, role.member)
    return rules_hold(capacity.marks, table, members_of(gang, plan))
