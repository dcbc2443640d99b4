"""What to buy: the planner's own answer for waiting gangs, on a cluster with more nodes.

The gangs are tried in the order of the queue, in one transaction. Nodes that are coming count as if
they were there. A gang that still finds no place is tried with nodes of one offer after another (a
pool in a domain): it is bought for completely, inside its topology constraint, or not at all. What
one gang leaves free of the nodes that it needs, the next one may use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

import numpy as np

from fairlead.api import names
from fairlead.api.cluster.node_pool import NodePool, PoolDomain
from fairlead.api.kubernetes.core import Node, NodeSpec, NodeStatus
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.quantity import PODS
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.search import Plan, plan_gang
from fairlead.decide.placement.waiting.job_limits import RunningLimits
from fairlead.decide.removal.trust import Fact
from fairlead.model.asks.requests import MemberClass
from fairlead.model.claimed.device_pools import template_node
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, JobKey, RoleRequest
from fairlead.model.inventory.device_offers import NO_VOLUMES
from fairlead.model.inventory.nodes import Bools

#: Gangs of one decision; the others are tried once these have their nodes.
GANGS_MAX = 5_000
_PODS_DEFAULT = 110
#: Nodes of an offer that are added first.
_CHUNK = 16


class Unbought(Enum):
    """Why nothing is bought for a gang. The closed set."""

    NO_POOL_MATCHES = "NoPoolMatches"
    POOLS_FULL = "PoolsFull"
    UNAVAILABLE = "Unavailable"
    TOPOLOGY = "TopologyNotOffered"
    #: With the gangs before it, it is beyond a limit of its team or user.
    LIMIT = "JobLimit"


@dataclass(frozen=True, slots=True)
class Offer:
    """Nodes that could be bought: of one pool, in one domain.

    `room`: how many more; `pool_room`: how many more in all domains of the pool together.
    """

    pool: str
    domain: str
    template: Node
    room: int
    pool_room: int
    weight: int = 0
    is_unavailable: bool = False
    #: Nodes of the pool, in all domains together, that are to stay free.
    headroom: int = 0
    #: What a node costs per hour, in millionths.
    price_micros: int = 0
    #: The node whose devices that claims ask for each node will have.
    like: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(pool, domain)."""
        return (self.pool, self.domain)

    @property
    def name(self) -> str:
        """The pool, and the domain where there is one, for people."""
        return f"{self.pool}/{self.domain}" if self.domain else self.pool


@dataclass(slots=True)
class Purchase:
    """Nodes to buy of an offer, and for which jobs."""

    count: int = 0
    jobs: list[JobKey] = field(default_factory=list)
    #: Offers that come before this one in the order, and why they were passed over.
    passed: dict[str, Unbought] = field(default_factory=dict[str, Unbought])


@dataclass(slots=True)
class Demand:
    """The answer."""

    purchases: dict[tuple[str, str], Purchase] = field(default_factory=dict)
    #: Gangs that nothing is bought for, and why.
    unbought: dict[JobKey, tuple[Unbought, Mapping[str, Fact]]] = field(default_factory=dict)
    #: Gangs that have a place on nodes that are there or coming.
    served: dict[JobKey, None] = field(default_factory=dict)
    #: Nodes that are there and that a waiting gang will use, or where a place is kept for one.
    needed: set[str] = field(default_factory=set[str])
    #: How many of the nodes that are coming, by offer, a gang will use.
    coming_used: dict[tuple[str, str], int] = field(default_factory=dict)


def template_of(pool: NodePool, domain: PoolDomain | None) -> Node:
    """Return a node of a pool in a domain, as it will be once it takes work."""
    spec, name = pool.spec, pool.metadata.name
    labels = {**spec.template.labels, **(domain.labels if domain else {}), names.POOL: name}
    resources = {PODS: _PODS_DEFAULT, **spec.template.resources}
    where = f".{domain.name}" if domain else ""
    return Node(
        metadata=ObjectMeta(name=f"{name}{where}", labels=labels),
        spec=NodeSpec(taints=spec.template.taints),
        status=NodeStatus(capacity=resources, allocatable=resources),
    )


def offers_of(
    pool: NodePool, room: int, *, sizes: Mapping[str, int] = {}, avoided: Collection[str] = (),
    headroom: int = 0, like: str = "",
) -> list[Offer]:  # fmt: skip
    """Return what a pool offers: `room` more nodes at most, in each domain what its limit leaves
    beside the `sizes` that are there. Domains that are `avoided` are unavailable now. `like`: see
    `device_source`.
    """
    room = max(0, room)
    return [
        Offer(
            pool.metadata.name, name, template_of(pool, domain),
            room if domain is None else max(0, min(room, domain.max - sizes.get(name, 0))), room,
            pool.spec.weight, name in avoided, headroom, pool.spec.price_micros, like,
        )
        for domain in pool.spec.domains or (None,)
        for name in (domain.name if domain is not None else "",)
    ]  # fmt: skip


def device_source(state: ClusterState, pool: str, nodes: Iterable[str]) -> str:
    """Return the node whose devices, and limits of volumes, new nodes of a pool will have: of
    `nodes`, those of the pool that are there, the one with most, else that of its template.

    Those that are there are right, whatever the template says, as for Cluster Autoscaler
    (`SanitizedTemplateNodeInfoFromNodeInfo` before `TemplateNodeInfo`).
    """
    known, limits = state.table.devices.devices, state.table.devices.volumes.nodes
    there = [
        (sum(known.get(n, {}).values()), sum(limits.get(n, NO_VOLUMES).limits.values()), n)
        for n in nodes if known.get(n) or n in limits
    ]  # fmt: skip
    return max(there)[-1] if there else template_node(pool)


def demand_of(
    state: ClusterState,
    gangs: Sequence[tuple[JobKey, GangRequest]],
    offers: Sequence[Offer],
    coming: Mapping[tuple[str, str], int],
) -> Demand:
    """Return what to buy for these gangs, which are in the order of the queue.

    `offers` are in order of preference. `coming` is how many nodes of each offer are on their way,
    or are there and marked for removal.
    """
    with state.transaction() as transaction:
        capacity = PresentCapacity(state, transaction)
        return _Buyer(state, capacity, offers).run(gangs, coming)


class _Added(Enum):
    """What an added node is: on its way, offered, or counted because a gang uses it."""

    COMING = "Coming"
    OFFERED = "Offered"
    COUNTED = "Counted"


#: Of a role: how many members a node of each offer holds, and how many have no room yet.
_Lacking: TypeAlias = tuple[Sequence[int], int]


class _Buyer:
    def __init__(
        self, state: ClusterState, capacity: PresentCapacity, offers: Sequence[Offer]
    ) -> None:
        self._state = state
        self._capacity = capacity
        self._offers = list(offers)
        #: How many more nodes each pool may have.
        self._left = {offer.pool: offer.pool_room for offer in offers}
        self._is_priced = any(offer.price_micros for offer in offers)
        self._demand = Demand(needed=state.ledger.nominated_nodes())
        self._probes: dict[MemberClass, list[int]] = {}
        #: By slot: what each added node is of, and what it is to us, until a gang uses it.
        self._added: dict[int, tuple[tuple[str, str], _Added]] = {}
        #: Gangs that could not be bought for, at a version of the capacity.
        self._failed: dict[GangRequest, tuple[Unbought, Mapping[str, Fact]]] = {}
        self._failed_at = -1
        #: Slots of each offer that no gang uses, which only a try with the offer may see.
        self._hidden: dict[tuple[str, str], list[int]] = {}
        self._barred: Bools = np.zeros(0, dtype=np.bool_)
        #: How many nodes of each offer were added the last time.
        self._portion: dict[tuple[str, str], int] = {}
        #: Slots of nodes that are coming to be free: gangs use them last.
        self._headroom: list[int] = []
        self._limits = RunningLimits(state)

    def run(
        self,
        gangs: Sequence[tuple[JobKey, GangRequest]],
        coming: Mapping[tuple[str, str], int],
    ) -> Demand:
        """Try all gangs."""
        self._probe(gangs[:GANGS_MAX])
        by_key = {offer.key: offer for offer in self._offers}
        headroom = {offer.pool: offer.headroom for offer in self._offers}
        for key, count in sorted(coming.items()):
            if key in by_key and count:
                slots = self._add(by_key[key], count, _Added.COMING)
                kept = min(count, headroom[key[0]])
                headroom[key[0]] -= kept
                self._headroom += slots[count - kept :]
        for job, gang in gangs[:GANGS_MAX]:
            self._try(job, gang)
        return self._demand

    def _probe(self, gangs: Sequence[tuple[JobKey, GangRequest]]) -> None:
        """Learn how many members of each class one empty node of each offer holds."""
        mark = self._capacity.mark()
        slots = [self._slots(offer, 1)[0] for offer in self._offers]
        for _, gang in gangs:
            for role in gang.roles:
                if role.member not in self._probes:
                    fits = self._capacity.fits(role.member)
                    self._probes[role.member] = [int(fits[slot]) for slot in slots]
        self._capacity.rollback_to(mark)

    def _slots(self, offer: Offer, count: int) -> list[int]:
        """Add nodes of an offer; return their slots."""
        added = self._capacity.with_nodes(offer.template, count, like=offer.like)
        slots = map(self._state.table.slot, added)
        return [slot for slot in slots if slot is not None]

    def _add(self, offer: Offer, count: int, kind: _Added) -> list[int]:
        slots = self._slots(offer, count)
        self._added.update(dict.fromkeys(slots, (offer.key, kind)))
        return slots

    def _try(self, job: JobKey, gang: GangRequest) -> None:
        use = self._state.uses.job(job)
        if use is not None and use.team and self._state.teams.has_job_limits:
            over = self._limits.verdict_of(job, gang, use.team, use.user)
            if over is not None:
                self._demand.unbought[job] = (Unbought.LIMIT, over.facts)
                return
        if self._failed_at == self._capacity.version and gang in self._failed:
            self._demand.unbought[job] = self._failed[gang]
            return
        plan = self._plan(gang)
        if plan is not None:
            self._serve(job, gang, plan)
            return
        why = self._buy(job, gang)
        if why is not None:
            self._demand.unbought[job] = why
            if self._failed_at != self._capacity.version:
                self._failed.clear()
                self._failed_at = self._capacity.version
            self._failed[gang] = why

    def _plan(self, gang: GangRequest) -> Plan | None:
        """Place a gang on what is there and coming, on headroom only where it must.

        Else a gang that one pool buys for would take what is coming as headroom of another, which
        would buy more to keep as much free, as long as the gang waits.
        """
        if self._headroom:
            self._bar(self._headroom)
            plan = plan_gang(self._capacity, self._state.table, gang)
            self._barred[self._headroom] = False
            if plan is not None:
                return plan
        return plan_gang(self._capacity, self._state.table, gang)

    def _serve(self, job: JobKey, gang: GangRequest, plan: Plan) -> None:
        """Note what a gang uses: nodes that are there, coming, or, for the first time, bought."""
        demand = self._demand
        demand.served[job] = None
        self._limits.take_job(job, gang)
        for slot in plan.distinct_slots.tolist():
            if slot not in self._added:
                demand.needed.add(self._state.table.names[slot])
                continue
            key, kind = self._added[slot]
            self._added[slot] = (key, _Added.COUNTED)
            if kind is _Added.COMING:
                demand.coming_used[key] = demand.coming_used.get(key, 0) + 1
            elif kind is _Added.OFFERED:
                purchase = demand.purchases.setdefault(key, Purchase())
                purchase.count += 1
                if purchase.jobs[-1:] != [job]:
                    purchase.jobs.append(job)

    def _buy(self, job: JobKey, gang: GangRequest) -> tuple[Unbought, Mapping[str, Fact]] | None:
        """Buy for a gang from the first offer that does, else from several; return why not."""
        reason, most = Unbought.NO_POOL_MATCHES, 0
        passed: dict[str, Unbought] = {}
        lacking = [
            (self._probes[role.member], role.count - self._free(gang, role)) for role in gang.roles
        ]
        for index, shares in self._preferred(lacking):
            offer = self._offers[index]
            if offer.is_unavailable:
                reason = passed[offer.name] = Unbought.UNAVAILABLE
                continue
            most = max(most, self._room(index, {}))
            possible = self._limited(shares)
            if possible != shares:
                if reason is not Unbought.UNAVAILABLE:
                    reason = Unbought.POOLS_FULL
                if gang.is_simple:
                    passed[offer.name] = Unbought.POOLS_FULL
                    continue
                # The most that it could need: what is free already in the domain may suffice.
                shares = possible
            if self._take(job, gang, shares):
                self._note_passed(shares, passed)
                return None
            passed[offer.name] = Unbought.TOPOLOGY
            if reason is Unbought.NO_POOL_MATCHES:
                reason = Unbought.TOPOLOGY
        several = self._several(lacking) if reason is not Unbought.NO_POOL_MATCHES else {}
        if len(several) > 1 and self._take(job, gang, several):
            self._note_passed(several, passed)
            return None
        members = gang.member_count
        return reason, {"members": members, **({"room": most} if most else {})}

    def _note_passed(self, shares: Mapping[int, int], passed: Mapping[str, Unbought]) -> None:
        for i in shares:
            purchase = self._demand.purchases.get(self._offers[i].key)
            if purchase is not None:
                purchase.passed.update(passed)

    def _preferred(self, lacking: Sequence[_Lacking]) -> Iterable[tuple[int, dict[int, int]]]:
        """Yield the offers that could hold a gang and their shares, in the order of preference.

        Those of one weight are in the order of what their nodes for the gang cost together.
        """
        every = ((i, self._shares(lacking, i)) for i in range(len(self._offers)))
        found = ((i, shares) for i, shares in every if shares is not None)
        return sorted(found, key=self._preference) if self._is_priced else found

    def _preference(self, found: tuple[int, Mapping[int, int]]) -> tuple[int, int]:
        index, shares = found
        price = sum(count * self._offers[i].price_micros for i, count in shares.items())
        return (-self._offers[index].weight, price)

    def _shares(self, lacking: Sequence[_Lacking], index: int) -> dict[int, int] | None:
        """Return how many nodes of which offers the gang needs at most, this offer preferred."""
        shares: dict[int, int] = {}
        is_used = False
        for holds, left in lacking:
            best = index if holds[index] else self._first(holds)
            if best is None:
                return None
            is_used = is_used or best == index
            if left > 0:
                shares[best] = shares.get(best, 0) + -(-left // holds[best])
        return shares if is_used and shares else None

    def _several(self, lacking: Sequence[_Lacking]) -> dict[int, int]:
        """Return nodes of one offer after the other that hold the gang; {} when all do not."""
        shares: dict[int, int] = {}
        for holds, of_role in lacking:
            left = of_role
            for i, offer in enumerate(self._offers):
                room = self._room(i, shares)
                if left > 0 and holds[i] and room > 0 and not offer.is_unavailable:
                    count = min(room, -(-left // holds[i]))
                    shares[i] = shares.get(i, 0) + count
                    left -= count * holds[i]
            if left > 0:
                return {}
        return shares

    def _room(self, index: int, shares: Mapping[int, int]) -> int:
        """Return how many more nodes of an offer there may be beside these shares."""
        offer = self._offers[index]
        of_pool = sum(n for i, n in shares.items() if self._offers[i].pool == offer.pool)
        return min(offer.room - shares.get(index, 0), self._left[offer.pool] - of_pool)

    def _limited(self, shares: Mapping[int, int]) -> dict[int, int]:
        """Return the shares as far as there is room for all of them."""
        limited: dict[int, int] = {}
        for i, count in shares.items():
            limited[i] = min(count, self._room(i, limited))
        return limited

    def _first(self, holds: Sequence[int]) -> int | None:
        for i, offer in enumerate(self._offers):
            if holds[i] and self._room(i, {}) > 0 and not offer.is_unavailable:
                return i
        return None

    def _free(self, gang: GangRequest, role: RoleRequest) -> int:
        """Return for how many members there is surely room already: of a gang of one role."""
        if not gang.is_simple:
            return 0
        return int(self._capacity.fits(role.member).sum())

    def _take(self, job: JobKey, gang: GangRequest, shares: Mapping[int, int]) -> bool:
        """Place the gang with nodes of these offers; False: it has no place with them either."""
        for i, count in shares.items():
            self._offer(self._offers[i], count)
            self._show(self._offers[i].key, count)
        plan = plan_gang(self._capacity, self._state.table, gang)
        if plan is not None:
            self._serve(job, gang, plan)
        for i in shares:
            offer = self._offers[i]
            kept = [slot for slot in self._hidden[offer.key] if self._is_offered(slot)]
            used = len(self._hidden[offer.key]) - len(kept)
            self._hidden[offer.key] = kept
            self._offers[i] = replace(offer, room=offer.room - used)
            self._left[offer.pool] -= used
            self._show(offer.key, 0)
        return plan is not None

    def _offer(self, offer: Offer, count: int) -> None:
        """Have at least so many nodes of an offer at hand, hidden from other gangs.

        Ever more are added at a time, since to add nodes costs a walk over all of them.
        """
        hidden = self._hidden.setdefault(offer.key, [])
        lacking = count - len(hidden)
        if lacking <= 0:
            return
        self._portion[offer.key] = 2 * self._portion.get(offer.key, _CHUNK // 2)
        more = min(offer.room - len(hidden), max(lacking, self._portion[offer.key]))
        hidden += self._add(offer, more, _Added.OFFERED)
        self._bar(hidden)

    def _bar(self, slots: Sequence[int]) -> None:
        """Hide these nodes, in an array that is as long as there are nodes by now."""
        barred = np.zeros(self._state.table.capacity, dtype=np.bool_)
        barred[: len(self._barred)] = self._barred
        barred[slots] = True
        self._barred = self._capacity.barred = barred

    def _show(self, key: tuple[str, str], count: int) -> None:
        """Let a gang see the first so many nodes of an offer, and no more of them."""
        hidden = np.array(self._hidden[key], dtype=np.int64)
        self._barred[hidden[:count]] = False
        self._barred[hidden[count:]] = True

    def _is_offered(self, slot: int) -> bool:
        return self._added[slot][1] is _Added.OFFERED
