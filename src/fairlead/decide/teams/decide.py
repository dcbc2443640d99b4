"""Decides which nodes change hands, and what the status of each team says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from fairlead.api.cluster.team import ShareStatus, Team, TeamStatus, TeamUse
from fairlead.api.meta import Condition, set_condition
from fairlead.api.names import READY
from fairlead.api.validation.validate_team import selector_of, validate_team
from fairlead.api.values.quantity import is_gpu
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.teams.actions import PublishTeams, SetOwner, WriteTeamStatus
from fairlead.decide.teams.assign import NO_TEAM, OwnedNodes, ShareRequest, assign
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.words import plural
from fairlead.model.asks.requests import Constraints
from fairlead.model.asks.teams import TeamTable, owner_of, owners_of
from fairlead.model.cluster import ClusterState
from fairlead.model.holdings.team_use import Account
from fairlead.model.inventory.labels import is_condition_taint
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable

#: Numbers of owners that are no team with shares: one that is not valid, and one that is gone.
_FROZEN, _GONE = -2, -3
_MISTAKES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Sharing:
    """The shares as they should be: the nodes that change hands, in order, and each team's result.

    `held_back` says why nothing changes; "" where it may.
    """

    changes: tuple[SetOwner, ...]
    results: dict[str, tuple[ShareStatus, ...]]
    held_back: str = ""
    requests: Sequence[ShareRequest] = ()
    #: int64[N]: the number of the request that has each node, -1 for none; and its block.
    share: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    block: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    #: The teams by the number that the requests name.
    teams: Sequence[str] = ()
    _slots: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def slots_of(self, team: str) -> Sequence[int]:
        """Return the nodes in the shares of a team, in the order of their slots."""
        found = self._slots.get(team)
        if found is None:
            of_team = [self.teams[request.team] == team for request in self.requests]
            mine = np.array([*of_team, False])[self.share]
            found = self._slots[team] = np.flatnonzero(mine).tolist()
        return found

    def swappable(self, slot: int, others: Ints) -> Ints:
        """Return those of some slots that may change places with this one in the shares."""
        theirs = self.requests[self.share[slot]]
        others = others[(self.block[others] == self.block[slot]) & theirs.eligible[others]]
        others = others[theirs.units[others] == theirs.units[slot]]
        return others[[self._serves(slot, int(other)) for other in others]]

    def _serves(self, slot: int, other: int) -> bool:
        share = self.requests[self.share[other]]
        return bool(share.eligible[slot] and share.units[slot] == share.units[other])


def share_out(cluster: ClusterState, policy: TeamsPolicy, teams: Sequence[Team]) -> Sharing:
    """Return which nodes should belong to which team, as changes of the taints that they carry.

    A node that is not healthy keeps its taint and counts for no share. The nodes of a team that is
    not valid stay as they are; those of a team that is gone belong to nobody.
    """
    table = cluster.table
    valid = list(cluster.teams)
    owner = _owners(cluster, {team.metadata.name for team in teams})
    healthy = _healthy(table)
    gpus = sum(
        (table.owned(name) for name in table.resources if is_gpu(name)),
        np.zeros(table.capacity, dtype=np.int64),
    )
    shares, of_team = _requests(cluster, healthy & (owner != _FROZEN), gpus)
    fleet = OwnedNodes(owner, _blocks(table, policy.block_key), table.rank, _Burden(cluster).of)
    found = assign(fleet, shares)
    team_of_share = np.array([*(s.team for s in shares), NO_TEAM], dtype=np.int64)
    wanted = np.where(healthy, team_of_share[found.share], owner)
    wanted[owner == _FROZEN] = _FROZEN
    wanted[wanted == _GONE] = NO_TEAM
    names = [team.metadata.name for team in valid]
    results = {
        name: tuple(
            _result(shares[i], found.share == i, gpus, found.missing[i]) for i in of_team[number]
        )
        for number, name in enumerate(names)
    }
    count, healthy_count = int(table.exists.sum()), int(healthy.sum())
    if healthy_count < policy.healthy_part_min * count:
        held_back = f"only {healthy_count} of {plural(count, 'node')} are healthy"
        return Sharing((), results, held_back)
    changed = np.flatnonzero(table.exists & ((wanted != owner) | _has_several(table)))
    changed = changed[wanted[changed] != _FROZEN]
    order = changed[np.lexsort((table.rank[changed], wanted[changed] == NO_TEAM))]
    changes = (
        SetOwner(table.names[slot], names[wanted[slot]] if wanted[slot] >= 0 else "")
        for slot in order.tolist()
    )
    return Sharing(tuple(changes), results, "", shares, found.share, fleet.block, names)


def published(teams: TeamTable) -> PublishTeams:
    """Return the teams of each namespace in the form of `FleetStatus.teams`."""
    found: dict[str, list[str]] = {}
    for team in teams:
        spec = team.spec
        borrows = "" if spec.borrow_limit_nodes == 0 else str(spec.borrow_priority_max)
        for namespace in spec.namespaces:
            found.setdefault(namespace, []).append(f"{team.metadata.name}={borrows}")
    return PublishTeams(len(teams), {space: ",".join(each) for space, each in found.items()})


def team_status(
    cluster: ClusterState, team: Team, sharing: Sharing, now: float, *, intruders: int = 0
) -> TeamStatus:
    """Return the status of a team; `use` is as of now, `intruders` are known on its nodes."""
    name, status = team.metadata.name, team.status
    mistakes = () if cluster.teams.get(name) is not None else validate_team(team)
    results = sharing.results.get(name, ())
    nodes_missing = sum(result.nodes_missing for result in results)
    gpus_missing = sum(result.gpus_missing for result in results)
    if mistakes:
        shown = "; ".join(f"{m.field}: {m.message}" for m in mistakes[:_MISTAKES_SHOWN_MAX])
        ready = ("False", "Invalid", f"its nodes stay as they are: {shown}")
    elif sharing.held_back:
        ready = ("Unknown", "FleetUnhealthy", f"no node changes hands: {sharing.held_back}")
    elif nodes_missing or gpus_missing:
        lack = [plural(nodes_missing, "node")] if nodes_missing else []
        lack += [plural(gpus_missing, "GPU")] if gpus_missing else []
        text = f"no healthy node is left for {' and '.join(lack)} of its shares"
        ready = ("False", "SharesUnmet", text)
    else:
        ready = ("True", "SharesMet", "")
    at = format_time(now)
    condition = Condition(
        type=READY, status=ready[0], reason=ready[1], message=ready[2],
        observed_generation=team.metadata.generation or None, last_transition_time=at,
    )  # fmt: skip
    return replace(
        status,
        observed_generation=team.metadata.generation,
        conditions=set_condition(status.conditions, condition),
        nodes=sum(result.nodes for result in results),
        nodes_missing=nodes_missing,
        shares=results,
        use=replace(use_of(cluster, name, now), intruders=intruders),
    )


def changed_status(
    team: Team, status: TeamStatus, policy: TeamsPolicy, now: float
) -> tuple[WriteTeamStatus | None, float | None]:
    """Return the write of a status, None where it says nothing new; and when its use is due.

    What a team uses changes often, and its sums all the time: both are written rarely. None: its
    use says nothing new.
    """
    due_at = _use_due_at(team.status.use, status.use, policy)
    if due_at is None or now < due_at:
        status = replace(status, use=team.status.use)
    else:
        due_at = None
    return (None if status == team.status else WriteTeamStatus(team, status)), due_at


def _use_due_at(before: TeamUse, use: TeamUse, policy: TeamsPolicy) -> float | None:
    """Return from when on what a team uses is to be written; None where it says nothing new."""
    as_of = parse_time(before.as_of) if before.as_of is not None else float("-inf")
    counts = replace(
        use, as_of=before.as_of, gpu_hours=before.gpu_hours,
        dominant_share_seconds=before.dominant_share_seconds,
    )  # fmt: skip
    if counts != before:
        return as_of + policy.use_seconds
    sums = (
        (before.gpu_hours, use.gpu_hours),
        (before.dominant_share_seconds, use.dominant_share_seconds),
    )
    has_moved = any(abs(new - old) > policy.sums_part * max(new, old) for old, new in sums)
    return as_of + policy.sums_seconds if has_moved else None


def use_of(cluster: ClusterState, name: str, now: float) -> TeamUse:
    """Return what a team uses now, but for intruders."""
    uses = cluster.uses
    held = uses.amounts.get(name, {})
    return TeamUse(
        jobs_placed=uses.placed[name], jobs_waiting=uses.waiting[name],
        jobs_submitted=uses.submitted[Account(name)],
        gpus=sum(amount for resource, amount in held.items() if is_gpu(resource)),
        nodes_used=uses.used[name], nodes_borrowed=uses.borrowed[name], nodes_lent=uses.lent[name],
        nodes_lent_to_pods=uses.lent[name] - uses.lent_to_jobs[name],
        dominant_share_seconds=round(uses.shares.at(name, now), 1),
        gpu_hours=round(uses.gpu_seconds.at(name, now) / 3600.0, 4), as_of=format_time(now),
    )  # fmt: skip


def _owners(cluster: ClusterState, known: set[str]) -> Ints:
    """Return int64[N]: the number of the team that has each node."""
    numbers = {team.metadata.name: number for number, team in enumerate(cluster.teams)}

    def number(team: str) -> int:
        if not team:
            return NO_TEAM
        return numbers.get(team, _FROZEN if team in known else _GONE)

    return cluster.table.labels.by_taints(lambda taints: number(owner_of(taints)))


def _healthy(table: NodeTable) -> Bools:
    """Return bool[N]: it exists and can start pods; other taints say for whom, not whether."""
    passing = table.labels.by_taints(lambda taints: int(any(map(is_condition_taint, taints))))
    return table.exists & table.ready & ~table.cordoned & (passing == 0)


def _has_several(table: NodeTable) -> Bools:
    return table.labels.by_taints(lambda taints: int(len(owners_of(taints)) > 1)) > 0


def _blocks(table: NodeTable, key: str) -> Ints:
    return table.labels.domains(key)[0].astype(np.int64)


def _requests(
    cluster: ClusterState, usable: Bools, gpus: Ints
) -> tuple[list[ShareRequest], list[list[int]]]:
    """Return all shares, and the numbers of those of each team."""
    table = cluster.table
    slots, ones = np.arange(table.capacity), np.ones(table.capacity, dtype=np.int64)
    eligible: dict[tuple[tuple[str, str], ...], Bools] = {}
    shares: list[ShareRequest] = []
    of_team: list[list[int]] = []
    for number, team in enumerate(cluster.teams):
        of_team.append([])
        for share in team.spec.shares:
            selector = tuple(sorted(selector_of(share).items()))
            if selector not in eligible:
                constraints = Constraints(node_selector=selector)
                eligible[selector] = usable & table.labels.selected(constraints, slots)
            of_team[-1].append(len(shares))
            admitted = eligible[selector]
            if share.gpus is not None:
                shares.append(ShareRequest(number, share.gpus, admitted & (gpus > 0), gpus))
            else:
                shares.append(ShareRequest(number, share.nodes or 0, admitted, ones))
    return shares, of_team


def _result(share: ShareRequest, nodes: Bools, gpus: Ints, missing: int) -> ShareStatus:
    """Return what a team has of a share, and what it lacks."""
    in_gpus = share.units is gpus
    lack = (0, missing) if in_gpus else (missing, 0)
    return ShareStatus(int(nodes.sum()), int(gpus[nodes].sum()), *lack)


class _Burden:
    """Who is on a node, looked up for the nodes that are asked about."""

    def __init__(self, cluster: ClusterState) -> None:
        self._uses = cluster.uses
        self._nodes = cluster.table.names
        self._names = [team.metadata.name for team in cluster.teams]

    def of(self, team: int, slots: Ints) -> Ints:
        """Return int64[slots]: 1 where a job of another team than this one has a place."""
        own = self._names[team] if team >= 0 else None
        is_used, nodes = self._uses.is_used_but_by, self._nodes
        return np.array([is_used(nodes[slot], own) for slot in slots.tolist()], dtype=np.int64)
