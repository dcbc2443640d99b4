"""The teams controller: keeps the nodes' taints in step with the teams' shares.

A decision is made when nodes or teams have changed, and writes only nodes that change hands, a
bounded number per second, each with the version of the node that the decision saw. Pods that
Fairlead does not place get their team's tolerations where admission did not give them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from fairlead.api.core import Node, Pod, Taint
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.names import API_VERSION, TEAM
from fairlead.api.resources import NODES, PODS, TEAMS
from fairlead.api.status import ApiError
from fairlead.api.team import Team
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.admission.pod_teams import judge_team
from fairlead.decide.teams.actions import Action, AddTolerations, SetOwner, WriteTeamStatus
from fairlead.decide.teams.decide import Sharing, changed_status, share_out, team_status
from fairlead.decide.teams.exchange import Exchanges
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.grouping import controller_of, is_concerned
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
        self._use_at = 0.0
        #: When nodes may change hands again, by the running loop's time: a wall clock that is set
        #: back would stop all changes for as long.
        self._changes_at = 0.0
        #: `TeamUses.change_count` that the statuses were decided on.
        self._uses_seen = -1
        #: Kind and name of objects whose writes are refused, until the loop retries them.
        self._blocked: set[ObjectKey] = set()
        #: Pods that Fairlead does not place and no scheduler has bound; those of them to look at.
        self._unbound: dict[ObjectKey, Pod] = {}
        self._to_judge: dict[ObjectKey, None] = {}
        self._removers = (
            follow(world.mirrors.teams, self._team_changed, reader),
            follow(world.mirrors.pods, self._pod_changed, reader),
        )

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        for remove in self._removers:
            remove()

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        return (seen.teams, seen.nodes, seen.jobs, seen.pods)

    def _team_changed(self, change: Change[Team]) -> None:
        if change.old is None or change.new is None or change.old.spec != change.new.spec:
            self._decided_on = None
            self._to_judge.update(dict.fromkeys(self._unbound))

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is None or not _may_be_judged(pod):
            self._unbound.pop(change.key, None)
            self._to_judge.pop(change.key, None)
        elif change.old is None or change.key not in self._unbound:
            self._unbound[change.key] = pod
            self._to_judge[change.key] = None
        else:
            self._unbound[change.key] = pod

    def _versions(self) -> tuple[object, ...]:
        cluster = self._world.state
        return (cluster, cluster.table.nodes_version, cluster.teams.version)

    def due_at(self) -> float | None:
        """Return when to decide again: at once when nodes or teams changed, or pods are left."""
        teams = self._world.mirrors.teams
        if teams.is_undefined or not (len(teams) or self._world.state.uses.has_owners):
            return None  # without the kind, the taints that there are stay
        if self._decided_on != self._versions() or self._to_judge:
            return 0.0
        if self._uses_seen == self._world.state.uses.change_count or self._wake_at is None:
            return self._wake_at
        return min(self._wake_at, self._use_at)

    def decide(self, now: float) -> Decision[Action]:
        """Decide on the cluster as the mirrors have it."""
        if self._world.mirrors.teams.is_undefined:
            return Decision()
        teams = sorted(self._world.mirrors.teams.items(), key=lambda team: team.metadata.name)
        versions = self._versions()
        if self._decided_on != versions:
            self._sharing = share_out(self._world.state, self._policy, teams)
            self._decided_on = versions
        wakes: list[float] = []
        actions: list[Action] = []
        changes = [c for c in self._sharing.changes if self.key_of(c) not in self._blocked]
        changes = changes or self._exchanges(now, wakes)
        instant = asyncio.get_running_loop().time()
        if changes and instant < self._changes_at:
            wakes.append(now + self._changes_at - instant)
        elif changes:
            actions += changes[: self._policy.changes_max]
            self._changes_at = instant + self._policy.interval_seconds
            wakes.append(now + self._policy.interval_seconds)
        actions += self._tolerations()
        actions += self._statuses(teams, now, wakes)
        self._wake_at = min(wakes, default=None)
        return Decision(tuple(actions), wake_at=self._wake_at)

    def _exchanges(self, now: float, wakes: list[float]) -> list[SetOwner]:
        """Return the changes of nodes that are exchanged, the two of a pair side by side."""
        found = Exchanges(self._world.state, self._sharing, self._policy)
        out = [
            change
            for pair in found.find(now)
            if not any(self.key_of(change) in self._blocked for change in pair)
            for change in pair
        ]
        if found.wake_at is not None:
            wakes.append(found.wake_at)
        return out

    def _statuses(
        self, teams: Sequence[Team], now: float, wakes: list[float]
    ) -> Iterator[WriteTeamStatus]:
        """Yield what the status of each team lacks; add to `wakes` when there may be more."""
        self._world.state.advance_shares(now)
        self._uses_seen = self._world.state.uses.change_count
        self._use_at = now + self._policy.use_seconds
        if teams:
            wakes.append(now + self._policy.sums_seconds)
        for team in teams:
            if ("team", team.metadata.name) in self._blocked:
                continue
            try:
                status = team_status(self._world.state, team, self._sharing, now)
                write, due_at = changed_status(team, status, self._policy, now)
            except Exception as error:  # noqa: BLE001 - over one object, so it is that object's
                self._set_aside.note(TEAMS, team.metadata, Stage.DECIDE, error)
                continue
            self._set_aside.clear(TEAMS, team.metadata.key, Stage.DECIDE)
            if write is not None:
                yield write
            if due_at is not None:
                wakes.append(due_at)

    def _tolerations(self) -> Iterator[AddTolerations]:
        """Yield the pods that lack what admission gives, a bounded number at a time."""
        table = self._world.state.teams
        count = 0
        for key in sorted(self._to_judge):
            if count >= self._policy.changes_max:
                return
            del self._to_judge[key]
            pod = self._unbound[key]
            spec, meta = pod.spec, pod.metadata
            judged = judge_team(
                spec.tolerations, meta.labels, table,
                priority=spec.priority or 0, namespace=meta.namespace,
            )  # fmt: skip
            if judged.added:
                count += 1
                yield AddTolerations(pod, judged.added)

    def key_of(self, action: Action) -> ObjectKey:
        """Return the object of an action; names of nodes and teams do not collide."""
        match action:
            case SetOwner(node):
                return ("node", node)
            case WriteTeamStatus(team):
                return ("team", team.metadata.name)
            case AddTolerations(pod):
                return ("pod", "/".join(pod.metadata.key))
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
            case AddTolerations(pod, new):
                tolerations = to_wire((*pod.spec.tolerations, *new))
                patch = {"spec": {"tolerations": tolerations}}
                return await self._objects.patch(PODS, pod.metadata, patch)
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
        namespace, _, name = key[1].partition("/")
        if key[0] == "pod" and (namespace, name) in self._unbound:
            self._to_judge[namespace, name] = None
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


def _may_be_judged(pod: Pod) -> bool:
    """True for a pod that is not ours to place, and that no scheduler has bound yet."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or pod.is_terminal:
        return False
    return not is_concerned(pod) and controller_of(pod, API_VERSION, "Job") is None
