"""Which running gangs go to other nodes so that nodes of pools empty: consolidation.

    Consolidation(context, search).find() -> moves, and the nodes that they empty

A move as any other (`moves.py`), for the sake of no job. It is looked for in quiet times: no job
waits that could use room, and no gang moves. A node is emptied of all its gangs or of none, each
goes as a whole, and they go to nodes that stay anyway: nodes in use, and nodes of no pool. So with
each set of moves fewer nodes of consolidating pools are in use: no sequence goes on for ever, and
no gang is sent to and fro. That is checked here.

The nodes that are used least are tried first, a bounded number in a decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np

from fairlead.api.names import POOL
from fairlead.api.values.quantity import CPU
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.evict.moves import largest_first
from fairlead.decide.placement.evict.victim_search import VictimSearch
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.search import Plan
from fairlead.decide.placement.waiting.lost_work import silent_seconds
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.requests import is_device
from fairlead.model.gang.gangs import InvalidGang
from fairlead.model.holdings.claims import Claim
from fairlead.model.inventory.nodes import Bools

#: Between two searches.
_LOOK_SECONDS = 60.0
#: Nodes that are tried in a decision.
_NODES_MAX = 32
#: Places that are sought in a decision, and the nodes that all these searches may look at.
_PLACES_MIN, _PLACES_MAX, _WORK_MAX = 16, 256, 400_000


class NodesInUseDoNotFall(AssertionError):
    """Moves would not lower the number of nodes in use: an error of the planner."""


def check_nodes_fall(before: int, after: int) -> None:
    """Raise unless fewer nodes of consolidating pools are in use after the moves."""
    if not after < before:
        raise NodesInUseDoNotFall(f"{after} nodes would be in use instead of {before}")


@dataclass(frozen=True, slots=True)
class Emptying:
    """Moves that empty nodes, in the order of the gangs' keys: where each goes, and the nodes that
    it leaves empty.
    """

    places: dict[ObjectKey, Plan] = field(default_factory=dict)
    nodes: dict[ObjectKey, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Nodes:
    """The nodes as consolidation sees them, by slot."""

    #: A job that stays has a place on it, or a pod of others is bound to it.
    in_use: Bools
    #: It belongs to a pool that may be consolidated.
    is_consolidating: Bools
    #: Nothing uses it and it belongs to a pool, so it may go.
    may_go: Bools
    #: It would go once its gangs have left it.
    may_empty: Bools
    #: How many more nodes of each pool may be emptied.
    spare: Counter[str]


@dataclass(slots=True)
class _Trial:
    """The moves that were found so far."""

    #: With the gangs at their next places, beside those that they have.
    present: FreedCapacity
    #: Nodes that no gang goes to.
    closed: Bools
    emptied: set[int] = field(default_factory=set[int])
    #: Nodes that gangs leave or go to.
    touched: set[int] = field(default_factory=set[int])
    plans: dict[ObjectKey, Plan] = field(default_factory=dict[ObjectKey, Plan])


class Consolidation:
    """The search of one decision."""

    def __init__(self, context: PlanningContext, search: VictimSearch) -> None:
        self._context = context
        self._search = search
        self._cluster = context.cluster
        nodes = self._cluster.table.capacity
        self._places_left = max(_PLACES_MIN, min(_PLACES_MAX, _WORK_MAX // nodes))
        self._again_at = inf
        #: The claims that were looked at, and whether they may move now.
        self._movable: dict[ObjectKey, tuple[Claim, bool]] = {}
        self._silent = inf
        self._not_worth_it: set[int] = set()

    def find(self) -> Emptying:
        """Return the moves; none unless the time is quiet and some are worth what they cost."""
        context, memory = self._context, self._context.state.emptying
        if not self._cluster.pools.consolidates_to or not self._is_quiet():
            return Emptying()
        known = context.memory.tried_nodes(self._tried_nodes)
        if known is None:
            return Emptying()
        tried = dict.fromkeys(known)
        found = self._search_nodes(tried)
        memory.looked_at, memory.again_at = context.now, self._again_at
        memory.tried = {} if found.places else tried  # moves that are not made are found again
        if self._again_at < inf:
            context.wakes.append(max(self._again_at, context.now + _LOOK_SECONDS))
        return found

    def _tried_nodes(self) -> list[str] | None:
        """Return the nodes that earlier searches have tried to empty; None where none is due."""
        context, memory = self._context, self._context.state.emptying
        due_at = memory.looked_at + _LOOK_SECONDS
        if context.now < due_at:
            context.wakes.append(due_at)
            return None
        basis = self._basis()
        is_same, memory.basis = basis == memory.basis, basis
        if is_same and context.now < memory.again_at:
            context.wakes += [memory.again_at] if memory.again_at < inf else []
            return None
        return list(memory.tried) if is_same else []

    def _basis(self) -> tuple[object, ...]:
        """Return a value that differs once something has changed that the search looks at, but for
        time.
        """
        cluster, table = self._cluster, self._cluster.table
        versions = (table.nodes_version, cluster.pools.version, cluster.teams.version)
        evictable = tuple(self._context.state.sets.evictable)
        return (*versions, hash(table.used.tobytes()), hash(evictable))

    def _is_quiet(self) -> bool:
        """True when no job waits that could use room, and none is about to get or leave a place."""
        context, state = self._context, self._context.state
        sets = state.sets
        if sets.nominees or sets.preempted or sets.repairable or self._cluster.uncertain:
            return False
        groups = list(state.queue.groups(lambda _: True))
        if len(groups) > context.policy.fresh_jobs_max:
            return False
        return all(
            isinstance(group.shape.gang, InvalidGang) or context.on_empty(group.shape) is not None
            for group in groups
        )

    def _search_nodes(self, tried: dict[str, None]) -> Emptying:
        nodes, names = self._nodes(), self._cluster.table.names
        trial = _Trial(FreedCapacity.of(self._cluster, ()), nodes.may_go.copy())
        for slot in self._candidates(nodes, tried):
            if slot in trial.touched:
                continue
            if self._places_left <= 0:
                self._look_again(_LOOK_SECONDS)
                break
            is_empty = any(self._empty(slots, nodes, trial) for slots in self._sets(slot, nodes))
            if not is_empty and slot not in self._not_worth_it:  # which time may change
                tried[names[slot]] = None
        if not trial.plans:
            return Emptying()
        self._look_again(_LOOK_SECONDS)
        in_use = nodes.in_use & nodes.is_consolidating
        left = in_use.copy()
        left[list(trial.emptied)] = False
        for plan in trial.plans.values():
            left[plan.distinct_slots] |= nodes.is_consolidating[plan.distinct_slots]
        check_nodes_fall(int(in_use.sum()), int(left.sum()))
        ledger = self._cluster.ledger
        leaves = {
            key: tuple(sorted(names[s] for s in ledger.slots(key).tolist() if s in trial.emptied))
            for key in sorted(trial.plans)
        }
        return Emptying({key: trial.plans[key] for key in leaves}, leaves)

    def _look_again(self, seconds: float) -> None:
        self._again_at = min(self._again_at, self._context.now + seconds)

    def _nodes(self) -> _Nodes:
        cluster, table = self._cluster, self._cluster.table
        in_use = np.zeros(table.capacity, dtype=np.bool_)
        for key in self._staying():
            in_use[cluster.ledger.slots(key)] = True
        with_pods = [table.slot(name) for name in cluster.pools.nodes_with_pods()]
        has_pods = np.zeros(table.capacity, dtype=np.bool_)
        has_pods[[slot for slot in with_pods if slot is not None]] = True
        in_use |= has_pods
        numbers, pools = table.labels.domains(POOL)
        kept = cluster.pools.consolidates_to
        table_of = np.array([name in kept for name in pools] + [False], dtype=np.bool_)
        is_consolidating = table_of[numbers] & table.exists
        counts = Counter(pools[i] for i in numbers[in_use & is_consolidating].tolist())
        spare = Counter({name: counts[name] - least for name, least in kept.items()})
        may_empty = in_use & is_consolidating & ~has_pods & table.ready & ~table.cordoned
        return _Nodes(in_use, is_consolidating, (numbers >= 0) & ~in_use, may_empty, spare)

    def _staying(self) -> Iterator[ObjectKey]:
        leaving = self._context.state.sets.leaving
        return (
            claim.key for claim in self._cluster.ledger.claims_by_priority()
            if claim.key not in leaving
        )  # fmt: skip

    def _candidates(self, nodes: _Nodes, tried: dict[str, None]) -> list[int]:
        """Return some slots whose gangs may all move and that were not tried, the least used first;
        notes what their gangs would lose.
        """
        table, found = self._cluster.table, list[int]()
        slots = np.flatnonzero(nodes.may_empty)
        devices = [table.row(each) for each in table.resources if is_device(each)]
        held = table.used[devices][:, slots].sum(axis=0)
        order = np.lexsort((table.rank[slots], table.used[table.row(CPU), slots], held))
        for slot in slots[order].tolist():
            if table.names[slot] in tried or nodes.spare[self._pool_of(slot)] <= 0:
                continue
            if not all(map(self._may_move, self._cluster.ledger.claims_on(slot))):
                continue
            if len(found) == _NODES_MAX:
                self._look_again(_LOOK_SECONDS)
                break
            found.append(slot)
        self._silent = silent_seconds(
            (self._search.run(claim) for claim, may in self._movable.values() if may),
            self._context.now,
        )
        return found

    def _pool_of(self, slot: int) -> str:
        return self._cluster.table.labels.labels(slot).get(POOL, "")

    def _may_move(self, claim: Claim) -> bool:
        if claim.key not in self._movable:
            until = self._context.contained(claim.key, partial(self._search.moves_from, claim))
            if until is not None and until > self._context.now:
                self._look_again(until - self._context.now)
            self._movable[claim.key] = (claim, until is not None and until <= self._context.now)
        return self._movable[claim.key][1]

    def _sets(self, slot: int, nodes: _Nodes) -> Iterator[tuple[int, ...]]:
        """Yield what may be emptied with a node: the nodes that its gangs have alone, then only
        itself.
        """
        ledger, names = self._cluster.ledger, self._cluster.table.names
        gangs = {claim.key for claim in ledger.claims_on(slot)}
        around = {s for key in gangs for s in ledger.slots(key).tolist() if nodes.may_empty[s]}
        alone = (s for s in around if gangs.issuperset(c.key for c in ledger.claims_on(s)))
        candidates = sorted(alone, key=names.__getitem__)
        if len(candidates) > 1:
            yield tuple(candidates)
        yield (slot,)

    def _empty(self, slots: tuple[int, ...], nodes: _Nodes, trial: _Trial) -> bool:
        """Move all gangs of these nodes in the trial; False leaves it as it was."""
        ledger = self._cluster.ledger
        claims = {c.key: c for slot in slots for c in ledger.claims_on(slot)}
        own = {slot for key in claims for slot in ledger.slots(key).tolist()}
        asked = Counter(map(self._pool_of, slots))
        if len(trial.plans) + len(claims) > self._context.policy.moves_max or own & trial.touched:
            return False
        if any(nodes.spare[pool] < count for pool, count in asked.items()):
            return False
        if not self._is_worth_it(slots, claims.values()):
            self._not_worth_it.update(slots)
            self._look_again(_LOOK_SECONDS)
            return False
        closed = trial.closed.copy()
        closed[list(slots)] = True
        mark, plans = trial.present.mark(), dict[ObjectKey, Plan]()
        movers = [
            self._context.contained(key, partial(self._search.mover_of, claim, 0.0))
            for key, claim in claims.items()
        ]
        for mover in largest_first(each for each in movers if each is not None):
            self._places_left -= 1
            plan = mover.destination(self._cluster, trial.present, closed)
            if plan is None:
                break
            plans[mover.candidate.key] = plan
        if len(plans) < len(claims):
            trial.present.rollback_to(mark)
            return False
        trial.closed = closed
        trial.emptied |= set(slots)
        trial.plans |= plans
        targets = (plan.distinct_slots.tolist() for plan in plans.values())
        trial.touched |= own.union(*targets)
        nodes.spare.subtract(asked)
        return True

    def _is_worth_it(self, slots: tuple[int, ...], claims: Iterable[Claim]) -> bool:
        """True where the work that is lost is less than what the nodes would be kept for.

        Both in device seconds, of a node without devices in seconds. A node is kept until its last
        gang ends, by its time limit, but at most for the horizon of the policy: later jobs may need
        it then.
        """
        context, table, now = self._context, self._cluster.table, self._context.now
        lost = sum(self._search.run(c).lost_gpu_seconds(now, self._silent) for c in claims)
        saved = 0.0
        for slot in slots:
            ends = [self._cluster.jobs[c.key].ends_at for c in self._cluster.ledger.claims_on(slot)]
            left = max(inf if end is None else max(0.0, end - now) for end in ends)
            devices = sum(int(table.owned(r)[slot]) for r in table.resources if is_device(r))
            saved += max(devices, 1) * min(left, context.policy.consolidation_horizon_seconds)
        return lost < saved
