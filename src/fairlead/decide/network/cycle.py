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
    REPORTED_TEAMS_MAX,
    DestinationShare,
    EgressShare,
    NodeReport,
    ReportedDestination,
    ReportedTeamEgress,
)
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import parse_time
from fairlead.decide.network.divide import divide, safe_share


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
    time that a node keeps them (model/egress_lease.py). A node that works has taken its shares
    after `settle_seconds`. `destinations` are the budgets of the cluster, in order.
    """

    round_seconds: float = 10.0
    confirm_seconds: float = 300.0
    settle_seconds: float = 60.0
    writes_max: int = 200
    destinations: tuple[DestinationLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """A team's budget of a direction in bits per second, and the nodes that have pods of it."""

    name: str
    bits: int
    namespaces: tuple[str, ...]
    nodes: frozenset[str]
    direction: TrafficDirection = TrafficDirection.EGRESS

    @property
    def key(self) -> _BudgetKey:
        """What tells it from other budgets."""
        return _team_key(self.name, self.direction)

    def granted(self, report: NodeReport) -> int:
        """Return the share that a node was given."""
        shares = report.spec.shares(self.direction)
        return next((each.bits_per_second for each in shares if each.team == self.name), 0)

    def reported(self, report: NodeReport) -> ReportedTeamEgress:
        """Return what a node says of its use."""
        shaping, name = report.status.shaping, self.name
        lines = shaping.lines(self.direction) if shaping else ()
        return next((each for each in lines if each.team == name), ReportedTeamEgress(name, 0))


@dataclass(frozen=True, slots=True)
class DestinationBudget:
    """The budget of a destination, and the nodes that have pods and know its addresses."""

    limit: DestinationLimit
    nodes: frozenset[str]

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
        of = self.limit.name, self.limit.direction
        shares = report.spec.destinations
        return next(
            (each.bits_per_second for each in shares if (each.destination, each.direction) == of), 0
        )

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


def decide_shares(
    budgets: Sequence[Budget],
    reports: Mapping[str, NodeReport],
    memory: EgressMemory,
    now: float,
    *,
    policy: EgressPolicy,
) -> list[SetShares]:
    """Return the writes of a round, those that lower a share first; `memory` is kept up to date.

    `reports` are those of nodes whose agents limit traffic. Any part of the writes may be left out:
    the sum of shares is within the budget all the same.
    """
    teams: dict[tuple[str, TrafficDirection], list[EgressShare]] = {}
    destinations: dict[str, list[DestinationShare]] = {}
    lowered: set[str] = set()
    known = {(budget.key, node) for budget in budgets for node in budget.nodes}
    memory.before = {key: bits for key, bits in memory.before.items() if key in known}
    for budget in sorted(budgets, key=lambda each: each.key):
        names = sorted(budget.nodes & reports.keys())
        safe = safe_share(budget.bits, len(names)) if names else 0
        shares = _divided(budget, [reports[name] for name in names], memory, now, policy=policy)
        for name, bits in zip(names, shares, strict=True):
            if isinstance(budget, TeamBudget):
                share = EgressShare(budget.name, budget.namespaces, bits, safe)
                teams.setdefault((name, budget.direction), []).append(share)
            else:
                of = budget.limit
                destinations.setdefault(name, []).append(
                    DestinationShare(of.name, of.direction, bits, safe, of.bits)
                )
            if bits < budget.granted(reports[name]):
                lowered.add(name)
    writes = [
        SetShares(
            report,
            tuple(teams.get((name, TrafficDirection.EGRESS), ())[:REPORTED_TEAMS_MAX]),
            tuple(teams.get((name, TrafficDirection.INGRESS), ())[:REPORTED_TEAMS_MAX]),
            tuple(destinations.get(name, ())),
        )
        for name, report in sorted(reports.items())
    ]
    writes = [each for each in writes if _is_due(each, now, policy)]
    writes.sort(key=lambda each: each.report.metadata.name not in lowered)
    for each in writes[: policy.writes_max]:
        _remember(each, memory)
    return writes[: policy.writes_max]


def _divided(
    budget: Budget, reports: Sequence[NodeReport], memory: EgressMemory, now: float,
    *, policy: EgressPolicy,
) -> list[int]:  # fmt: skip
    """Return the share of each node."""
    held = [_held(budget, each, memory, is_settled=_is_settled(each, now, policy))
            for each in reports]  # fmt: skip
    demand = [min(budget.bits, budget.reported(each).demand) for each in reports]
    return divide(
        budget.bits, np.array(demand, dtype=np.int64), np.array(held, dtype=np.int64),
        np.ones(len(reports), dtype=np.int64),
    ).tolist()  # fmt: skip


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
    if (write.shares, write.ingress, write.destinations) != (
        spec.egress, spec.ingress, spec.destinations
    ):  # fmt: skip
        return True
    if write.is_empty:
        return False
    return spec.egress_at is None or now - parse_time(spec.egress_at) >= policy.confirm_seconds
