"""A round: which share of each budget each node is to have now (pure).

What a node reports of its demand decides how much it gets, and nothing else: no more than a node of
equal weight with any demand. What it reports of its limit can only keep what it had before from
others, for as long as it claims to have it still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from fairlead.api.cluster.node_report import (
    DESTINATIONS_MAX,
    REPORTED_TEAMS_MAX,
    DestinationShare,
    EgressShare,
    NodeReport,
    NodeReportSpec,
    ReportedDestination,
    ReportedTeamEgress,
)
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import parse_time
from fairlead.decide.network.divide import (
    STARTS_PERMILLE,
    divide,
    rounded_up,
    safe_share,
    starting_share,
)
from fairlead.model.egress_lease import LEASE_TIMES


@dataclass(frozen=True, slots=True)
class DestinationLimit:
    """What the whole cluster may exchange with a class of addresses, in bits per second."""

    name: str
    direction: TrafficDirection
    bits: int


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """A round takes place every `round_seconds`, and writes `writes_max` nodes.

    Shares that stay the same are confirmed after `confirm_seconds`, which must be well within the
    time that a node keeps them (model/egress_lease.py), as must be the time in which `writes_max`
    reach all nodes. A node that works has taken its shares after `settle_seconds`. `destinations`
    are the budgets of the cluster, in order.
    """

    round_seconds: float = 10.0
    confirm_seconds: float = 300.0
    settle_seconds: float = 60.0
    writes_max: int = 500
    destinations: tuple[DestinationLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """A team's budget of a direction in bits per second, and the nodes that have pods of it.

    `idle` are those that limit traffic and have no such pod yet.
    """

    name: str
    bits: int
    namespaces: tuple[str, ...]
    nodes: frozenset[str]
    direction: TrafficDirection = TrafficDirection.EGRESS
    idle: frozenset[str] = frozenset()

    @property
    def key(self) -> _BudgetKey:
        """What tells it from other budgets."""
        return _team_key(self.name, self.direction)

    def granted(self, report: NodeReport) -> int:
        """Return the share that a node was given."""
        share = self.share(report)
        return share.bits_per_second if share else 0

    def made(self, bits: int, safe: int) -> EgressShare:
        """Return a share."""
        return EgressShare(self.name, self.namespaces, bits, safe)

    def share(self, report: NodeReport) -> EgressShare | None:
        """Return the share that a node has, None for none."""
        shares = report.spec.shares(self.direction)
        return next((each for each in shares if each.team == self.name), None)

    def reported(self, report: NodeReport) -> ReportedTeamEgress:
        """Return what a node says of its use."""
        shaping, name = report.status.shaping, self.name
        lines = shaping.lines(self.direction) if shaping else ()
        return next((each for each in lines if each.team == name), ReportedTeamEgress(name, 0))


@dataclass(frozen=True, slots=True)
class DestinationBudget:
    """The budget of a destination, and the nodes that have pods and know its addresses.

    `idle` know them and have no pod yet.
    """

    limit: DestinationLimit
    nodes: frozenset[str]
    idle: frozenset[str] = frozenset()

    @property
    def bits(self) -> int:
        """The budget in bits per second."""
        return self.limit.bits

    @property
    def key(self) -> _BudgetKey:
        """What tells it from other budgets."""
        return _destination_key(self.limit.name, self.limit.direction)

    def granted(self, report: NodeReport) -> int:
        """Return the share that a node was given."""
        share = self.share(report)
        return share.bits_per_second if share else 0

    def made(self, bits: int, safe: int) -> DestinationShare:
        """Return a share."""
        of = self.limit
        return DestinationShare(of.name, of.direction, bits, safe, of.bits)

    def share(self, report: NodeReport) -> DestinationShare | None:
        """Return the share that a node has, None for none."""
        of = self.limit.name, self.limit.direction
        shares = report.spec.destinations
        return next((each for each in shares if (each.destination, each.direction) == of), None)

    def reported(self, report: NodeReport) -> ReportedDestination:
        """Return what a node says of its use."""
        of, shaping = (self.limit.name, self.limit.direction), report.status.shaping
        lines = shaping.destinations if shaping else ()
        found = (each for each in lines if (each.destination, each.direction) == of)
        return next(found, ReportedDestination(*of, 0))


Budget = TeamBudget | DestinationBudget
#: Kind, name and direction.
_BudgetKey = tuple[str, str, str]


def _team_key(name: str, direction: TrafficDirection) -> _BudgetKey:
    return "team", name, direction.value


def _destination_key(name: str, direction: TrafficDirection) -> _BudgetKey:
    return "destination", name, direction.value


#: A budget and a node.
_ShareKey = tuple[_BudgetKey, str]
_Share = EgressShare | DestinationShare
#: By then a node's share has fallen, whatever it has heard.
_LOST_SECONDS = LEASE_TIMES.hold_seconds + LEASE_TIMES.fall_seconds


@dataclass(slots=True)
class EgressMemory:
    """What nodes had before their share was lowered, until they confirm.

    `divided` has the shares of each node that are no starts, read from its spec when that changes;
    `places` is the number of nodes that starts are for, which follows theirs by halves and doubles.
    """

    before: dict[_ShareKey, int] = field(default_factory=dict[_ShareKey, int])
    divided: dict[str, tuple[NodeReportSpec, frozenset[_BudgetKey]]] = field(
        default_factory=dict[str, tuple[NodeReportSpec, frozenset[_BudgetKey]]]
    )
    places: int = 0

    def look(self, budgets: Iterable[Budget], reports: Mapping[str, NodeReport]) -> None:
        """Take in what nodes have been given, and forget what is no longer there."""
        there = {each.key: each.nodes | each.idle for each in budgets}
        self.before = {
            key: bits for key, bits in self.before.items() if key[1] in there.get(key[0], ())
        }
        known, self.divided = self.divided, {}
        for name, report in reports.items():
            found, spec = known.get(name), report.spec
            if found is None or found[0] is not spec:
                found = spec, frozenset(key for key, each in _given(spec) if not is_starting(each))
            self.divided[name] = found
        if not len(reports) <= self.places <= 4 * len(reports):
            self.places = rounded_up(len(reports))

    def unsure(self) -> dict[_BudgetKey, set[str]]:
        """Return the nodes that have, or may still have, more than a start, by budget."""
        found: dict[_BudgetKey, set[str]] = {}
        for key, node in self.before:
            found.setdefault(key, set()).add(node)
        for node, (_, keys) in self.divided.items():
            for key in keys:
                found.setdefault(key, set()).add(node)
        return found


@dataclass(frozen=True, slots=True)
class SetShares:
    """Write the shares of a node in both directions, and that they are confirmed."""

    report: NodeReport
    shares: tuple[EgressShare, ...] = ()
    ingress: tuple[EgressShare, ...] = ()
    destinations: tuple[DestinationShare, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True where the node has no share any more."""
        return not (self.shares or self.ingress or self.destinations)


def _given(spec: NodeReportSpec) -> Iterator[tuple[_BudgetKey, _Share]]:
    for direction in TrafficDirection:
        for each in spec.shares(direction):
            yield _team_key(each.team, direction), each
    for each in spec.destinations:
        yield _destination_key(each.destination, each.direction), each


def is_starting(share: _Share) -> bool:
    """True for what a node without pods may begin with: it never changes by itself."""
    return share.bits_per_second == share.safe_bits_per_second


def decide_shares(
    budgets: Sequence[Budget],
    reports: Mapping[str, NodeReport],
    memory: EgressMemory,
    now: float,
    *,
    policy: EgressPolicy,
) -> list[SetShares]:
    """Return the writes of a round; `memory` is kept up to date.

    Those that lower a share come first, then nodes whose pods have no limit yet, then those that
    were written longest ago.

    `reports` are those of nodes whose agents limit traffic. Any part of the writes may be left out:
    the sum of shares is within the budget all the same.
    """
    memory.look(budgets, reports)
    ordered = sorted(budgets, key=lambda each: each.key)
    unsure = memory.unsure()
    given = {name: _NodeShares([], [], []) for name in reports}
    starts: list[tuple[Budget, _Division]] = []
    lowered: set[str] = set()
    unlimited: set[str] = set()
    for budget in ordered:
        of = _divided(budget, reports, memory, now,
                      unsure=unsure.get(budget.key, set()), policy=policy)  # fmt: skip
        starts.append((budget, of))
        lowered |= of.leaving
        for name, share in of.shares.items():
            given[name].add(share, budget)
            old = budget.share(reports[name])
            if old is None:
                unlimited.add(name)
            elif share.bits_per_second < old.bits_per_second:
                lowered.add(name)
    for budget, of in starts:  # behind the others: where there are too many, they are left out
        for name in of.idle if of.has_room else ():
            given[name].add(of.start, budget)
        for name in of.idle if not of.has_room else ():
            if old := budget.share(reports[name]):  # nothing is raised, and who has none waits
                bits = min(old.bits_per_second, of.start.bits_per_second)
                given[name].add(budget.made(bits, bits), budget)
    writes = [given[name].of(report) for name, report in sorted(reports.items())]
    writes = [each for each in writes if _is_due(each, memory, now, policy)]

    def order(write: SetShares) -> tuple[bool, bool, str]:
        name, at = write.report.metadata.name, write.report.spec.egress_at
        return name not in lowered, name not in unlimited, at or ""

    writes.sort(key=order)
    for each in writes[: policy.writes_max]:
        _remember(each, memory)
    return writes[: policy.writes_max]


class _NodeShares(NamedTuple):
    """The shares of a node, in order of what is left out last."""

    egress: list[EgressShare]
    ingress: list[EgressShare]
    destinations: list[DestinationShare]

    def add(self, share: _Share, budget: Budget) -> None:
        """Add a share of a budget."""
        if isinstance(share, DestinationShare):
            self.destinations.append(share)
        elif isinstance(budget, TeamBudget) and budget.direction is TrafficDirection.INGRESS:
            self.ingress.append(share)
        else:
            self.egress.append(share)

    def of(self, report: NodeReport) -> SetShares:
        """Return the write of what has room."""
        return SetShares(
            report, tuple(self.egress[:REPORTED_TEAMS_MAX]),
            tuple(self.ingress[:REPORTED_TEAMS_MAX]), tuple(self.destinations[:DESTINATIONS_MAX]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Division:
    """A budget over its nodes: the shares of those that send, and the start of those that are idle.

    Without room none is raised to it. `leaving` may still have more than that.
    """

    shares: Mapping[str, _Share]
    idle: AbstractSet[str]
    start: _Share
    has_room: bool
    leaving: AbstractSet[str]


def _divided(
    budget: Budget, reports: Mapping[str, NodeReport], memory: EgressMemory, now: float,
    *, unsure: AbstractSet[str], policy: EgressPolicy,
) -> _Division:  # fmt: skip
    """Divide a budget; `unsure` are the nodes that may have more of it than a start."""
    names = sorted(budget.nodes & reports.keys())
    idle = (budget.idle & reports.keys()) - budget.nodes
    start = starting_share(budget.bits, memory.places)
    held = [_held(budget, reports[name], memory, now, policy=policy) for name in names]
    leaving = unsure & idle
    more = sum(
        max(0, _held(budget, reports[name], memory, now, policy=policy) - start)
        for name in leaving
    )  # fmt: skip
    starts = budget.bits * STARTS_PERMILLE // 1000 if idle else 0
    has_room = sum(held) + starts + more <= budget.bits
    demand = [min(budget.bits, budget.reported(reports[name]).demand) for name in names]
    shares = divide(
        budget.bits - starts, np.array(demand, dtype=np.int64), np.array(held, dtype=np.int64),
        np.ones(len(names), dtype=np.int64), held_elsewhere=more,
    ).tolist()  # fmt: skip
    safe = safe_share(budget.bits - starts, len(names))
    return _Division(
        {name: budget.made(bits, safe) for name, bits in zip(names, shares, strict=True)},
        idle, budget.made(start, start), has_room, leaving,
    )  # fmt: skip


def _held(
    budget: Budget, report: NodeReport, memory: EgressMemory, now: float, *, policy: EgressPolicy
) -> int:
    """Return the most that a node may enforce: more than it was given for as long as it is unsure.

    A report that names the latest shares confirms them, but for what it says to hold still. Where
    this process does not know what the node had before (it is new), its own word counts, but only
    until it should have taken what is written. A node without pods that is silent for longer than
    it may keep a share has none.
    """
    key, granted = (budget.key, report.metadata.name), budget.granted(report)
    claimed = budget.reported(report).limit
    shaping = report.status.shaping
    if shaping is not None and shaping.shares_at == report.spec.egress_at:
        if claimed <= granted:
            memory.before.pop(key, None)
        return max(granted, min(claimed, memory.before.get(key, 0)))
    silent = now - parse_time(report.spec.egress_at) if report.spec.egress_at else inf
    if silent > _LOST_SECONDS and report.metadata.name in budget.idle:
        memory.before.pop(key, None)
    if key in memory.before or silent > policy.settle_seconds:
        return max(granted, memory.before.get(key, 0))
    return max(granted, min(claimed, budget.bits))


def _remember(write: SetShares, memory: EgressMemory) -> None:
    """Note what the node may go on with, until it confirms what is written."""
    node, spec = write.report.metadata.name, write.report.spec
    after = NodeReportSpec(write.shares, None, write.ingress, write.destinations)
    new = {key: each.bits_per_second for key, each in _given(after)}
    for key, each in _given(spec):
        if not is_starting(each) or new.get(key) != each.bits_per_second:
            old = memory.before.get((key, node), 0)
            memory.before[key, node] = max(each.bits_per_second, old)


def _is_due(write: SetShares, memory: EgressMemory, now: float, policy: EgressPolicy) -> bool:
    spec = write.report.spec
    if (write.shares, write.ingress, write.destinations) != (
        spec.egress, spec.ingress, spec.destinations
    ):  # fmt: skip
        return True
    if not memory.divided[write.report.metadata.name][1]:
        return False  # what a node may begin with holds for as long as it is there
    return spec.egress_at is None or now - parse_time(spec.egress_at) >= policy.confirm_seconds
