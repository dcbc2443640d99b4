"""What other shares would change: the nodes that change hands, and what becomes of jobs there.

The teams controller's own assignment says which nodes change hands, and the planner's own decision,
on a state in which they have, which jobs are preempted for others and which start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from fairlead.api.cluster.team import ShareStatus, Team
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.names import TEAM
from fairlead.decide.placement.actions import NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.teams.decide import share_out
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.teams import NO_SCHEDULE, is_team_taint, owner_of
from fairlead.model.asks.topology import Level
from fairlead.model.cluster import ClusterState
from fairlead.model.objects import Objects


@dataclass(frozen=True, slots=True)
class NodeMove:
    """A node that changes hands; "" is no team."""

    node: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A job that would be preempted, and the job that gets its nodes."""

    victim: ObjectKey
    beneficiary: ObjectKey


@dataclass(frozen=True, slots=True)
class SharesPlan:
    """What would follow. `held_back` says why no node would change hands; "" where some may."""

    moves: tuple[NodeMove, ...]
    #: By team: each of its shares, in the order of the spec.
    results: dict[str, tuple[ShareStatus, ...]]
    #: Jobs that run on a node that changes hands, as borrowers from then on.
    borrowers: tuple[ObjectKey, ...] = ()
    reclaimed: tuple[Reclaim, ...] = ()
    started: tuple[ObjectKey, ...] = ()
    #: Jobs that could not have the team that they name any more, and would wait.
    teamless: tuple[ObjectKey, ...] = ()
    held_back: str = ""


def plan_shares(
    objects: Objects, teams: Sequence[Team], now: float, *, shares: TeamsPolicy,
    planner: PlacementPolicy, levels: Sequence[Level] = (),
) -> SharesPlan:  # fmt: skip
    """Return what would follow if `teams` were all teams there are; nothing is changed.

    `levels` are those of the topology, widest first. One decision of the planner is made: what it
    leaves to the next one is not in the answer.
    """
    wanted = replace(objects, teams=tuple(teams))
    sharing = share_out(wanted.state(levels), shares, teams)
    after = {change.node: change.team for change in sharing.changes}
    before = {node.metadata.name: owner_of(node.spec.taints) for node in objects.nodes}
    moves = tuple(
        NodeMove(node, before[node], team) for node, team in after.items() if before[node] != team
    )
    nodes = tuple(_given(node, after) for node in objects.nodes)
    state = replace(wanted, nodes=nodes).state(levels)
    jobs = PlacementState(state)
    actions = decide(jobs, planner, now).actions
    unchanged = objects.state(levels)
    return SharesPlan(
        moves,
        sharing.results,
        tuple(sorted(set(_borrowers(state)) - set(_borrowers(unchanged)))),
        tuple(_reclaims(actions)),
        tuple(a.job.metadata.key for a in actions if isinstance(a, PlaceJob)),
        tuple(sorted(set(_teamless(state)) - set(_teamless(unchanged)))),
        sharing.held_back,
    )


def _given(node: Node, after: dict[str, str]) -> Node:
    """Return a node with the taint of the team that it will have."""
    team = after.get(node.metadata.name)
    if team is None:
        return node
    kept = tuple(taint for taint in node.spec.taints if not is_team_taint(taint))
    taints = (*kept, Taint(TEAM, NO_SCHEDULE, team)) if team else kept
    return structs.replace(node, spec=structs.replace(node.spec, taints=taints))


def _borrowers(state: ClusterState) -> Iterator[ObjectKey]:
    for key, entry in state.jobs.items():
        claim = state.ledger.claim(key)
        nodes = (node for _, _, nodes in (claim.roles if claim else ()) for node in nodes)
        if any(state.uses.owner(node) not in ("", entry.team_name) for node in nodes):
            yield key


def _teamless(state: ClusterState) -> Iterator[ObjectKey]:
    for key, entry in state.jobs.items():
        if not entry.job.is_finished and not isinstance(entry.team, str):
            yield key


def _reclaims(actions: Iterable[object]) -> Iterator[Reclaim]:
    for action in actions:
        if isinstance(action, NominateJob):
            for victim in action.nomination.victims:
                yield Reclaim((victim.namespace, victim.name), action.job.metadata.key)
