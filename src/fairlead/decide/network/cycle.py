"""A round: which share of each team's budget each node is to have now (pure).

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
    EgressShare,
    NodeReport,
    ReportedTeamEgress,
)
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import parse_time
from fairlead.decide.network.divide import divide, safe_share


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """A round takes place every `round_seconds`, and writes `writes_max` nodes.

    Shares that stay the same are confirmed after `confirm_seconds`, which must be well within the
    time that a node keeps them (model/egress_lease.py). A node that works has taken its shares
    after `settle_seconds`.
    """

    round_seconds: float = 10.0
    confirm_seconds: float = 300.0
    settle_seconds: float = 60.0
    writes_max: int = 200


@dataclass(frozen=True, slots=True)
class TeamBudget:
    """A team's budget of a direction in bits per second, and the nodes that have pods of it."""

    name: str
    bits: int
    namespaces: tuple[str, ...]
    nodes: frozenset[str]
    direction: TrafficDirection = TrafficDirection.EGRESS


#: A team, a direction and a node.
_ShareKey = tuple[str, str, str]


@dataclass(slots=True)
class EgressMemory:
    """What nodes had before their share was lowered, until they confirm."""

    before: dict[_ShareKey, int] = field(default_factory=dict[_ShareKey, int])


@dataclass(frozen=True, slots=True)
class SetShares:
    """Write the shares of a node in both directions, and that they are confirmed."""

    report: NodeReport
    shares: tuple[EgressShare, ...]
    ingress: tuple[EgressShare, ...] = ()


def decide_shares(
    teams: Sequence[TeamBudget],
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
    wanted: dict[tuple[str, TrafficDirection], list[EgressShare]] = {}
    lowered: set[str] = set()
    known = {_key(team, node) for team in teams for node in team.nodes}
    memory.before = {key: bits for key, bits in memory.before.items() if key in known}
    for team in sorted(teams, key=lambda each: (each.name, each.direction.value)):
        names = sorted(team.nodes & reports.keys())
        safe = safe_share(team.bits, len(names)) if names else 0
        granted = [_granted(reports[name], team) for name in names]
        held = [
            _held(team, reports[name], memory, is_settled=_is_settled(reports[name], now, policy))
            for name in names
        ]
        demand = [min(team.bits, _reported(reports[name], team).demand) for name in names]
        shares = divide(
            team.bits, np.array(demand, dtype=np.int64), np.array(held, dtype=np.int64),
            np.ones(len(names), dtype=np.int64),
        )  # fmt: skip
        for name, bits, before in zip(names, shares.tolist(), granted, strict=True):
            share = EgressShare(team.name, team.namespaces, bits, safe)
            wanted.setdefault((name, team.direction), []).append(share)
            if bits < before:
                lowered.add(name)
    writes = [
        SetShares(
            report,
            *(
                tuple(wanted.get((name, direction), ())[:REPORTED_TEAMS_MAX])
                for direction in TrafficDirection
            ),
        )
        for name, report in sorted(reports.items())
    ]
    writes = [each for each in writes if _is_due(each, now, policy)]
    writes.sort(key=lambda each: each.report.metadata.name not in lowered)
    for each in writes[: policy.writes_max]:
        _remember(each, memory)
    return writes[: policy.writes_max]


def _key(team: TeamBudget, node: str) -> _ShareKey:
    return team.name, team.direction.value, node


def _granted(report: NodeReport, team: TeamBudget) -> int:
    shares = report.spec.shares(team.direction)
    return next((each.bits_per_second for each in shares if each.team == team.name), 0)


def _reported(report: NodeReport, team: TeamBudget) -> ReportedTeamEgress:
    shaping, name = report.status.shaping, team.name
    lines = shaping.lines(team.direction) if shaping else ()
    return next((each for each in lines if each.team == name), ReportedTeamEgress(name, 0))


def _held(team: TeamBudget, report: NodeReport, memory: EgressMemory, *, is_settled: bool) -> int:
    """Return the most that a node may enforce: more than it was given for as long as it is unsure.

    A report that names the latest shares confirms them, but for what it says to hold still. Where
    this process does not know what the node had before (it is new), its own word counts, but only
    until it should have taken what is written.
    """
    key, granted = _key(team, report.metadata.name), _granted(report, team)
    claimed = _reported(report, team).limit
    shaping = report.status.shaping
    if shaping is not None and shaping.shares_at == report.spec.egress_at:
        if claimed <= granted:
            memory.before.pop(key, None)
        return max(granted, min(claimed, memory.before.get(key, 0)))
    if key in memory.before or is_settled:
        return max(granted, memory.before.get(key, 0))
    return max(granted, min(claimed, team.bits))


def _remember(write: SetShares, memory: EgressMemory) -> None:
    """Note what the node may go on with, until it confirms what is written."""
    node = write.report.metadata.name
    for direction in TrafficDirection:
        for each in write.report.spec.shares(direction):
            key = each.team, direction.value, node
            memory.before[key] = max(each.bits_per_second, memory.before.get(key, 0))


def _is_settled(report: NodeReport, now: float, policy: EgressPolicy) -> bool:
    at = report.spec.egress_at
    return at is None or now - parse_time(at) > policy.settle_seconds


def _is_due(write: SetShares, now: float, policy: EgressPolicy) -> bool:
    spec = write.report.spec
    if (write.shares, write.ingress) != (spec.egress, spec.ingress):
        return True
    if not write.shares and not write.ingress:
        return False
    return spec.egress_at is None or now - parse_time(spec.egress_at) >= policy.confirm_seconds
