"""A round: which share of each budget each node is to have now (pure).

What a node reports of its demand decides how much it gets, and nothing else: no more than a node of
equal weight with any demand. What it reports of its limit can only keep what it had before from
others, for as long as it claims to have it still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.api.cluster.node_report import (
    DESTINATIONS_MAX,
    REPORTED_TEAMS_MAX,
    DestinationShare,
    EgressShare,
    NodeReport,
    ReportedDestination,
    ReportedTeamEgress,
)
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import parse_time
from fairlead.decide.network.divide import (
    STARTS_PERMILLE_MAX,
    divide,
    safe_share,
    starting_share,
)


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


#: A budget, a node's share of it, and what that is once nothing divides the budget.
_Given = tuple[Budget, int, int]
#: A budget and a node.
_ShareKey = tuple[_BudgetKey, str]


@dataclass(slots=True)
class EgressMemory:
    """What nodes had before their share was lowered, until they confirm."""

    before: dict[_ShareKey, int] = field(default_factory=dict[_ShareKey, int])


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


def is_starting(share: EgressShare | DestinationShare) -> bool:
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
    given: dict[str, list[_Given]] = {}
    lowered: set[str] = set()
    unlimited: set[str] = set()
    there = {each.key: each.nodes | each.idle for each in budgets}
    memory.before = {
        key: bits for key, bits in memory.before.items() if key[1] in there.get(key[0], ())
    }
    for budget in sorted(budgets, key=lambda each: each.key):
        for name, bits, safe in _divided(budget, reports, memory, now, policy=policy):
            given.setdefault(name, []).append((budget, bits, safe))
            if bits < budget.granted(reports[name]):
                lowered.add(name)
            if name in budget.nodes and budget.share(reports[name]) is None:
                unlimited.add(name)
    writes = [_shares_of(report, given.get(name, ())) for name, report in sorted(reports.items())]
    writes = [each for each in writes if _is_due(each, now, policy)]

    def order(write: SetShares) -> tuple[bool, bool, str]:
        name, at = write.report.metadata.name, write.report.spec.egress_at
        return name not in lowered, name not in unlimited, at or ""

    writes.sort(key=order)
    for each in writes[: policy.writes_max]:
        _remember(each, memory)
    return writes[: policy.writes_max]


def _shares_of(report: NodeReport, given: Sequence[_Given]) -> SetShares:
    """Return the write of a node's shares; where there are too many, those in use are kept."""
    teams: dict[TrafficDirection, list[EgressShare]] = {each: [] for each in TrafficDirection}
    destinations: list[DestinationShare] = []
    for budget, bits, safe in sorted(given, key=lambda each: each[1] == each[2]):
        if isinstance(budget, TeamBudget):
            share = EgressShare(budget.name, budget.namespaces, bits, safe)
            teams[budget.direction].append(share)
        else:
            of = budget.limit
            destinations.append(DestinationShare(of.name, of.direction, bits, safe, of.bits))
    out, into = (tuple(teams[each][:REPORTED_TEAMS_MAX]) for each in TrafficDirection)
    return SetShares(report, out, into, tuple(destinations[:DESTINATIONS_MAX]))


def _divided(
    budget: Budget, reports: Mapping[str, NodeReport], memory: EgressMemory, now: float,
    *, policy: EgressPolicy,
) -> list[tuple[str, int, int]]:  # fmt: skip
    """Return the share and the safe share of each node, by name.

    Those that are idle have what they may begin with, as soon as there is room for it.
    """
    names, idle = (sorted(each & reports.keys()) for each in (budget.nodes, budget.idle))

    def held_by(of: Sequence[str]) -> list[int]:
        return [_held(budget, each, memory, is_settled=_is_settled(each, now, policy))
                for each in (reports[name] for name in of)]  # fmt: skip

    held, elsewhere = held_by(names), held_by(idle)
    starts = [
        starting_share(
            budget.bits, len(names) + len(idle),
            share.bits_per_second if share is not None and is_starting(share) else 0,
        )
        for share in (budget.share(reports[name]) for name in idle)
    ]  # fmt: skip
    kept = list(map(max, starts, elsewhere))
    has_room = sum(held) + sum(kept) <= budget.bits
    found = [
        (name, bits, bits)
        for name, bits, old in zip(idle, starts, elsewhere, strict=True)
        if has_room or bits <= old
    ]
    if not names:
        return found
    demand = [min(budget.bits, budget.reported(reports[name]).demand) for name in names]
    shares = divide(
        budget.bits - sum(starts), np.array(demand, dtype=np.int64),
        np.array(held, dtype=np.int64), np.ones(len(names), dtype=np.int64),
        held_elsewhere=sum(kept) - sum(starts),
    ).tolist()  # fmt: skip
    shared = budget.bits - (budget.bits * STARTS_PERMILLE_MAX // 1000 if idle else 0)
    safe = safe_share(shared, len(names))
    return [*((name, bits, safe) for name, bits in zip(names, shares, strict=True)), *found]


def _held(budget: Budget, report: NodeReport, memory: EgressMemory, *, is_settled: bool) -> int:
    """Return the most that a node may enforce: more than it was given for as long as it is unsure.

    A report that names the latest shares confirms them, but for what it says to hold still. Where
    this process does not know what the node had before (it is new), its own word counts, but only
    until it should have taken what is written.
    """
    key, granted = (budget.key, report.metadata.name), budget.granted(report)
    claimed = budget.reported(report).limit
    shaping = report.status.shaping
    if shaping is not None and shaping.shares_at == report.spec.egress_at:
        if claimed <= granted:
            memory.before.pop(key, None)
        return max(granted, min(claimed, memory.before.get(key, 0)))
    if key in memory.before or is_settled:
        return max(granted, memory.before.get(key, 0))
    return max(granted, min(claimed, budget.bits))


def _remember(write: SetShares, memory: EgressMemory) -> None:
    """Note what the node may go on with, until it confirms what is written."""
    node, spec = write.report.metadata.name, write.report.spec
    given = [
        (_team_key(each.team, direction), each.bits_per_second)
        for direction in TrafficDirection
        for each in spec.shares(direction)
    ]
    given += [
        (_destination_key(each.destination, each.direction), each.bits_per_second)
        for each in spec.destinations
    ]
    for of, bits in given:
        memory.before[of, node] = max(bits, memory.before.get((of, node), 0))


def _is_settled(report: NodeReport, now: float, policy: EgressPolicy) -> bool:
    at = report.spec.egress_at
    return at is None or now - parse_time(at) > policy.settle_seconds


def _is_due(write: SetShares, now: float, policy: EgressPolicy) -> bool:
    spec = write.report.spec
    now_given = write.shares, write.ingress, write.destinations
    if now_given != (spec.egress, spec.ingress, spec.destinations):
        return True
    if all(is_starting(each) for of in now_given for each in of):
        return False  # what a node may begin with holds for as long as it is there
    return spec.egress_at is None or now - parse_time(spec.egress_at) >= policy.confirm_seconds
