"""The teams controller: keeps the nodes' taints in step with the teams' shares.

A decision is made when nodes or teams have changed, and writes only nodes that change hands, a
bounded number per second, each with the version of the node that the decision saw. Pods that
Fairlead does not place get their team's tolerations where admission did not give them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.cluster.team import Team
from fairlead.api.kubernetes.core import Node, Pod, Taint
from fairlead.api.meta import ObjectMeta, merge_diff, to_wire
from fairlead.api.names import API_VERSION, TEAM
from fairlead.api.resources import FLEETS, NODES, PODS, TEAMS, Resource
from fairlead.api.status import ApiError, NotFound, TooManyRequests
from fairlead.api.values.times import format_time
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.admission.pod_teams import judge_team
from fairlead.decide.attempts.grace import bounded_grace
from fairlead.decide.takings import Taking
from fairlead.decide.teams.actions import (
    Action,
    AddTolerations,
    EvictIntruder,
    PublishTeams,
    ReportIntruder,
    SetOwner,
    WriteTeamStatus,
)
from fairlead.decide.teams.decide import (
    Sharing,
    changed_status,
    published,
    share_out,
    team_status,
)
from fairlead.decide.teams.exchange import Exchanges
from fairlead.decide.teams.intruders import Intruders
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.asks.teams import NO_SCHEDULE, is_team_taint, owners_of
from fairlead.model.pools.grouping import controller_of, is_concerned
from fairlead.runtime.client import Client
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage


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
        self._client = client
        self._objects = ObjectWriter(client)
        self._events = events
        self._set_aside = set_aside_of(reader)
        self._sharing = Sharing((), {})
        #: Versions of nodes and teams that the sharing was decided on; None when a team changed.
        self._decided_on: tuple[object, ...] | None = None
        self._wake_at: float | None = None
        self._decided_at = 0.0
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
        #: Which version of the teams was published, and until when that is enough.
        self._published, self._publish_at = -1, 0.0
        self._intruders = Intruders(world.state, self._policy)
        self._removers = (
            follow(world.mirrors.teams, self._team_changed, reader),
            follow(world.mirrors.nodes, self._node_changed, reader),
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

    def _node_changed(self, change: Change[Node]) -> None:
        self._intruders.node_changed(change.key[1], change.new)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._intruders.pod_changed(change.key, change.old, change.new)
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
        if teams.is_undefined:
            return None  # without the kind, the taints that there are stay
        is_published = self._published == self._world.state.teams.version
        if self._policy.publishes and not is_published:
            return 0.0
        if not (len(teams) or self._world.state.uses.has_owners):
            return None
        if self._decided_on != self._versions() or self._to_judge:
            return 0.0
        times = [] if self._wake_at is None else [self._wake_at]
        if times and self._uses_seen != self._world.state.uses.change_count:
            times.append(self._use_at)
        if self._intruders.has_changed:
            times.append(self._decided_at + self._policy.look_seconds)
        return min(times, default=None)

    def decide(self, now: float) -> Decision[Action]:
        """Decide on the cluster as the mirrors have it."""
        if self._world.mirrors.teams.is_undefined:
            return Decision()
        self._decided_at = now
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
        actions += self._of_intruders(teams, now, wakes)
        actions += self._publish(now, wakes)
        actions += self._statuses(teams, now, wakes)
        self._wake_at = min(wakes, default=None)
        return Decision(tuple(actions), wake_at=self._wake_at)

    def _of_intruders(
        self, teams: Sequence[Team], now: float, wakes: list[float]
    ) -> list[ReportIntruder | EvictIntruder]:
        """Return what is done about pods that may not be on nodes of teams."""
        is_in_doubt = bool(self._sharing.held_back) or len(teams) != len(self._world.state.teams)
        pods = self._world.mirrors.pods.items
        found = list(self._intruders.decide(pods, now, may_evict=not is_in_doubt))
        if self._intruders.wake_at is not None:
            wakes.append(self._intruders.wake_at)
        return found

    def _publish(self, now: float, wakes: list[float]) -> Iterator[PublishTeams]:
        table = self._world.state.teams
        if not self._policy.publishes:
            return
        if self._published != table.version or now >= self._publish_at:
            self._published, self._publish_at = table.version, now + self._policy.publish_seconds
            yield published(table)
        wakes.append(self._publish_at)

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
        intruders = self._intruders.counts()
        for team in teams:
            if ("team", team.metadata.name) in self._blocked:
                continue
            try:
                status = team_status(
                    self._world.state, team, self._sharing, now,
                    intruders=intruders[team.metadata.name],
                )  # fmt: skip
                write, due_at = changed_status(team, status, self._policy, now)
            except Exception as error:  # noqa: BLE001 - over one object, so it is that object's
                self._set_aside.note(TEAMS, team.metadata, AsideStage.DECIDE, error)
                continue
            self._set_aside.clear(TEAMS, team.metadata.key, AsideStage.DECIDE)
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
            case PublishTeams():
                return ("fleet", FLEET_NAME)
            case SetOwner(node):
                return ("node", node)
            case WriteTeamStatus(team):
                return ("team", team.metadata.name)
            case AddTolerations(pod) | ReportIntruder(pod) | EvictIntruder(pod):
                return ("pod", "/".join(pod.metadata.key))
            case _:
                assert_never(action)

    def takings(self, action: Action) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        return (takings.intruder(action),) if isinstance(action, EvictIntruder) else ()

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case PublishTeams():
                return await self._publish_now(action)
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
            case ReportIntruder():
                return self._report(action)
            case EvictIntruder():
                return await self._evict(action)
            case _:
                assert_never(action)

    async def _publish_now(self, action: PublishTeams) -> None:
        """Write the teams into the Fleet's status; a cluster without the kind has no policies."""
        try:
            fleet = await self._client.get(FLEETS, FLEET_NAME)
        except NotFound:
            try:
                body = {"metadata": {"name": FLEET_NAME}, "spec": {}}
                fleet = await self._client.create(FLEETS, body)
            except NotFound:
                return
        status = replace(fleet.status, teams_count=action.count, teams=dict(action.by_namespace))
        diff = merge_diff(to_wire(fleet.status), to_wire(status))
        if diff:
            await self._objects.patch_status(FLEETS, fleet.metadata, diff)

    def _report(self, action: ReportIntruder) -> None:
        """Emit events about an intruder, on the pod and on the team."""
        pod, node = action.pod.metadata, action.pod.spec.node_name
        since = "" if action.has_entered else ", and was there before the node came to it"
        self._warn(
            PODS, pod, "ForeignNode",
            f"Node {node} is team {action.team}'s, which is not open to namespace "
            f"{pod.namespace}{since}",
        )  # fmt: skip
        self._warn_team(
            action.team, "Intruder",
            f"Pod {pod.namespace}/{pod.name} is on node {node} and may not be{since}",
        )  # fmt: skip

    async def _evict(self, action: EvictIntruder) -> Written | None:
        pod, node = action.pod.metadata, action.pod.spec.node_name
        try:
            grace = bounded_grace(action.pod, self._policy.grace_period_seconds_max)
            written = await self._objects.evict(pod, grace)
        except TooManyRequests as error:  # a budget
            self._not_evicted(action, error)
            return None
        text = f"from node {node} of team {action.team}, which is not open to its namespace"
        self._warn(PODS, pod, "IntruderEvicted", f"Evicted {text}")
        what = f"Evicted pod {pod.namespace}/{pod.name} {text}"
        self._warn_team(action.team, "IntruderEvicted", what)
        return written

    def _not_evicted(self, action: EvictIntruder, error: ApiError) -> None:
        node = action.pod.spec.node_name
        why = f"Not evicted from node {node} of team {action.team} yet: {error.message}"
        self._warn(PODS, action.pod.metadata, "EvictionRefused", why)

    def _warn_team(self, name: str, reason: str, message: str) -> None:
        team = self._world.mirrors.teams.get("", name)
        if team is not None:
            self._warn(TEAMS, team.metadata, reason, message)

    def _warn(
        self, resource: Resource[Any], metadata: ObjectMeta, reason: str, message: str
    ) -> None:
        if self._events is not None:
            kind = EventKind.WARNING
            self._events.record(resource, metadata, kind, reason=reason, message=message)

    async def _set_owner(self, node: Node, team: str) -> Written | None:
        """Write the taint; all other taints stay as they are."""
        kept = [taint for taint in node.spec.taints if not is_team_taint(taint)]
        if team and owners_of(node.spec.taints) == [team]:
            return None
        if not team and len(kept) == len(node.spec.taints):
            return None
        # with since when: a pod that was bound before was in order then
        added = format_time(self._decided_at)
        new = [*kept, Taint(TEAM, NO_SCHEDULE, team, added)] if team else kept
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
        if key == ("fleet", FLEET_NAME):
            self._publish_at = 0.0
        self._decided_on = None

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave the object alone until `changed` is called for it."""
        if isinstance(action, EvictIntruder):
            self._not_evicted(action, error)
        self._blocked.add(self.key_of(action))

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the team aside; a fault over a node is one of ours."""
        if isinstance(action, WriteTeamStatus):
            self._set_aside.note(TEAMS, action.team.metadata, AsideStage.ACT, error)
            self.failed(action, ApiError(str(error)))
        else:
            raise error


def _may_be_judged(pod: Pod) -> bool:
    """True for a pod that is not ours to place, and that no scheduler has bound yet."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or pod.is_terminal:
        return False
    return not is_concerned(pod) and controller_of(pod, API_VERSION, "Job") is None
