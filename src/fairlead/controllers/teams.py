"""The teams controller: keeps the nodes' taints in step with the teams' shares.

A decision is made when nodes or teams have changed, and writes only nodes that change hands, a
bounded number per second, each with the version of the node that the decision saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from fairlead.api.core import Node, Taint
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.names import TEAM
from fairlead.api.resources import NODES, TEAMS
from fairlead.api.status import ApiError
from fairlead.api.team import Team
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.teams.actions import Action, SetOwner, WriteTeamStatus
from fairlead.decide.teams.decide import Sharing, changed_status, share_out, team_status
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.teams import NO_SCHEDULE, is_team_taint
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.mirror import Change, Mirror
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.set_aside import Stage


class TeamsController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "teams"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        *,
        events: EventSink | None = None,
        policy: TeamsPolicy | None = None,
        reader: MirrorReader | None = None,
    ) -> None:
        """Read the world. `reader` is given where the mirrors are shared."""
        self._world = world
        self._policy = policy or TeamsPolicy()
        self._objects = ObjectWriter(client)
        self._events = events
        self._set_aside = set_aside_of(reader)
        self._sharing = Sharing((), {})
        #: Versions of nodes and teams that the sharing was decided on; None when a team changed.
        self._decided_on: tuple[object, ...] | None = None
        self._wake_at: float | None = None
        self._changes_at = self._use_at = 0.0
        #: Kind and name of objects whose writes are refused, until the loop retries them.
        self._blocked: set[ObjectKey] = set()
        self.close = follow(world.mirrors.teams, self._team_changed, reader)

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        return (seen.teams, seen.nodes, seen.jobs)

    def _team_changed(self, _change: Change[Team]) -> None:
        self._decided_on = None

    def _versions(self) -> tuple[object, ...]:
        cluster = self._world.state
        return (cluster, cluster.table.nodes_version, cluster.teams.version)

    def due_at(self) -> float | None:
        """Return when to decide again: at once when nodes or teams have changed."""
        if not len(self._world.mirrors.teams) and not self._world.state.uses.has_owners:
            return None
        return self._wake_at if self._decided_on == self._versions() else 0.0

    def decide(self, now: float) -> Decision[Action]:
        """Decide on the cluster as the mirrors have it."""
        teams = sorted(self._world.mirrors.teams.items(), key=lambda team: team.metadata.name)
        versions = self._versions()
        if self._decided_on != versions:
            self._sharing = share_out(self._world.state, self._policy, teams)
            self._decided_on = versions
        wakes: list[float] = []
        actions: list[Action] = []
        changes = [c for c in self._sharing.changes if self.key_of(c) not in self._blocked]
        if changes and now < self._changes_at:
            wakes.append(self._changes_at)
        elif changes:
            actions += changes[: self._policy.changes_max]
            self._changes_at = now + self._policy.interval_seconds
            wakes.append(self._changes_at)
        actions += self._statuses(teams, now)
        if teams:
            wakes.append(self._use_at)
        self._wake_at = min(wakes, default=None)
        return Decision(tuple(actions), wake_at=self._wake_at)

    def _statuses(self, teams: Sequence[Team], now: float) -> Iterator[WriteTeamStatus]:
        self._world.state.advance_shares(now)
        self._use_at = now + self._policy.use_seconds
        for team in teams:
            if ("team", team.metadata.name) not in self._blocked:
                status = team_status(self._world.state, team, self._sharing, now)
                write = changed_status(team, status, self._policy, now)
                if write is not None:
                    yield write

    def key_of(self, action: Action) -> ObjectKey:
        """Return the object of an action; names of nodes and teams do not collide."""
        match action:
            case SetOwner(node):
                return ("node", node)
            case WriteTeamStatus(team):
                return ("team", team.metadata.name)
            case _:
                assert_never(action)

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case SetOwner(name, team):
                node = self._world.mirrors.nodes.get("", name)
                if node is None:
                    return None
                return await self._set_owner(node, team)
            case WriteTeamStatus(team, status):
                diff = merge_diff(to_wire(team.status), to_wire(status))
                written = await self._objects.patch_status(TEAMS, team.metadata, diff)
                self._emit(action)
                return written
            case _:
                assert_never(action)

    async def _set_owner(self, node: Node, team: str) -> Written | None:
        """Write the taint; all other taints stay as they are."""
        kept = [taint for taint in node.spec.taints if not is_team_taint(taint)]
        new = [*kept, Taint(TEAM, NO_SCHEDULE, team)] if team else kept
        if tuple(new) == node.spec.taints:
            return None
        patch = {"spec": {"taints": to_wire(new) or None}}
        return await self._objects.patch(NODES, node.metadata, patch)

    def _emit(self, action: WriteTeamStatus) -> None:
        """Emit an event when a team's shares begin to be met, or cease to be."""
        before = {c.type: c.reason for c in action.team.status.conditions}
        for condition in action.status.conditions:
            if self._events is not None and before.get(condition.type) != condition.reason:
                is_good = condition.status == "True"
                self._events.record(
                    TEAMS, action.team.metadata,
                    EventKind.NORMAL if is_good else EventKind.WARNING,
                    reason=condition.reason,
                    message=condition.message or "all of its shares are met",
                )  # fmt: skip

    def changed(self, key: ObjectKey) -> None:
        """Look at an object again: decide on it as it is now."""
        self._blocked.discard(key)
        self._decided_on = None

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave the object alone until `changed` is called for it."""
        self._blocked.add(self.key_of(action))

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the team aside; a fault over a node is one of ours."""
        if isinstance(action, WriteTeamStatus):
            self._set_aside.note(TEAMS, action.team.metadata, Stage.ACT, error)
            self.failed(action, ApiError(str(error)))
        else:
            raise error
