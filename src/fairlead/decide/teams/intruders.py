"""Pods that are on nodes of a team and may not be: what admission would have refused.

A webhook that was down, a policy that is missing, or a change of the Teams: whatever the cause, a
pod is an intruder while it is on a node of a team that is not open to it. It *entered* if it was
bound while the node was the team's. If the node came to the team later, the pod was in order when
it was bound, and *stayed*.

    report   an intruder that entered, after a moment; one that stayed, after a longer one
    evict    an intruder that entered, where the team asks for it, a few at a time

Pods of DaemonSets, of the system's namespaces and mirrors of static pods are none, and neither is a
pod in the place that Fairlead gave to its job. Nothing is evicted while what is known is in doubt:
soon after the Teams changed or the controller started, while a Team is not valid, or while too few
nodes are healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from fairlead.api.cluster.team import IntruderPolicy
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import MIRROR_POD
from fairlead.api.values.times import time_or
from fairlead.decide.admission.pod_teams import access_of
from fairlead.decide.teams.actions import EvictIntruder, ReportIntruder
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.teams import is_team_taint, owner_of
from fairlead.model.cluster import ClusterState
from fairlead.model.pools.grouping import controller_of


@dataclass(slots=True)
class _Ownership:
    """Whose a node is, and since when at the latest; None: since the next decision."""

    team: str
    since: float | None


@dataclass(slots=True)
class _Intruder:
    """A pod that may not be where it is, since when it is known, and what was done about it."""

    pod: Pod
    team: str
    found_at: float
    has_entered: bool
    is_reported: bool = False
    evict_at: float = 0.0


class Intruders:
    """The intruders of a cluster. After a restart they are found, and reported, again."""

    def __init__(self, cluster: ClusterState, policy: TeamsPolicy) -> None:
        self._cluster, self._policy = cluster, policy
        self._rules = policy.rules
        self._owners: dict[str, _Ownership] = {}
        self._found: dict[ObjectKey, _Intruder] = {}
        #: Pods to judge, since they or their nodes are new here.
        self._new: dict[ObjectKey, Pod] = {}
        #: Nodes that came to a team: pods that are on them are looked for.
        self._moved: set[str] = set()
        self._walk_at, self._walks_all = 0.0, False
        self._teams_version = -1
        self._has_changed = False
        self._evicts_at = 0.0
        #: When there is more to do; None: when something changes.
        self.wake_at: float | None = None

    def node_changed(self, name: str, node: Node | None) -> None:
        """Take in whose a node is, or that it is gone."""
        taints = node.spec.taints if node is not None else ()
        team = owner_of(taints)
        known = self._owners.get(name)
        if not team:
            self._owners.pop(name, None)
        elif known is None or known.team != team:
            added = next((t.time_added for t in taints if is_team_taint(t)), None)
            self._owners[name] = _Ownership(team, time_or(added, None))
            self._moved.add(name)

    def pod_changed(self, key: ObjectKey, old: Pod | None, new: Pod | None) -> None:
        """Take in a pod that came, changed or went."""
        if new is None or not self._owners.get(new.spec.node_name):
            self._has_changed |= self._found.pop(key, None) is not None
            self._new.pop(key, None)
        elif key in self._found:
            self._found[key].pod, self._has_changed = new, True
        elif key in self._new or old is None or not old.spec.node_name:
            self._new[key] = new

    @property
    def has_changed(self) -> bool:
        """True when there are pods to judge, or known intruders changed or went."""
        return bool(self._new) or self._has_changed

    def counts(self) -> Counter[str]:
        """Return how many intruders are reported, by the team whose nodes they are on."""
        return Counter(each.team for each in self._found.values() if each.is_reported)

    def decide(
        self, pods: Callable[[], Iterable[Pod]], now: float, *, may_evict: bool
    ) -> Iterator[ReportIntruder | EvictIntruder]:
        """Yield what is to be done; `pods` returns all there are. `may_evict`: nothing is in
        doubt.
        """
        wakes: list[float] = []
        self._has_changed = False
        self._look(pods, now, wakes)
        due: list[_Intruder] = []
        for key in sorted(self._found):
            found = self._found[key]
            if not self._intrudes(found.pod, found.team):
                del self._found[key]
                continue
            report_at = found.found_at + (
                self._policy.intruder_seconds
                if found.has_entered
                else self._policy.leftover_seconds
            )
            if now < report_at:
                wakes.append(report_at)
                continue
            if not found.is_reported:
                found.is_reported = True
                yield ReportIntruder(found.pod, found.team, found.has_entered)
            if found.has_entered and self._evicts(found.team):
                due.append(found)
        yield from self._evictions(due, now, wakes, may_evict=may_evict)
        self.wake_at = min(wakes, default=None)

    def _look(self, pods: Callable[[], Iterable[Pod]], now: float, wakes: list[float]) -> None:
        """Judge pods that are new, and now and then those on nodes that changed hands; after the
        Teams changed all of them.
        """
        for name in self._moved:
            ownership = self._owners.get(name)
            if ownership is not None and ownership.since is None:
                ownership.since = now
        if self._cluster.teams.version != self._teams_version:
            self._teams_version, self._walks_all = self._cluster.teams.version, True
            self._evicts_at = max(self._evicts_at, now + self._policy.doubt_seconds)
        if self._moved or self._walks_all:
            if now < self._walk_at <= now + self._policy.look_seconds:
                wakes.append(self._walk_at)
            else:
                where = self._owners.keys() if self._walks_all else self._moved
                self._new |= {p.metadata.key: p for p in pods() if p.spec.node_name in where}
                self._moved.clear()
                self._walks_all = False
                self._walk_at = now + self._policy.look_seconds
        for key, pod in self._new.items():
            self._judge(key, pod, now)
        self._new.clear()

    def _judge(self, key: ObjectKey, pod: Pod, now: float) -> None:
        held = self._owners.get(pod.spec.node_name)
        if held is None or held.since is None or not self._intrudes(pod, held.team):
            return
        known = self._found.get(key)
        if known is None or known.team != held.team:
            has_entered = _bound_at(pod) > held.since + self._policy.clock_seconds
            found_at = now if has_entered else held.since
            self._found[key] = _Intruder(pod, held.team, found_at, has_entered)

    def _intrudes(self, pod: Pod, team: str) -> bool:
        """True for a pod that may not be on a node of a team, where it is."""
        meta, spec, teams = pod.metadata, pod.spec, self._cluster.teams
        held = self._owners.get(spec.node_name)
        if held is None or held.team != team or self._cluster.ledger.is_seated(meta.key):
            return False
        if pod.is_terminal or meta.deletion_timestamp is not None or MIRROR_POD in meta.annotations:
            return False
        if self._rules.is_system(meta.namespace) or controller_of(pod, "apps/v1", "DaemonSet"):
            return False
        access = access_of(
            meta.labels, teams, priority=spec.priority or 0, namespace=meta.namespace
        )
        return teams.get(team) is not None and not access.admits(team)

    def _evicts(self, team: str) -> bool:
        found = self._cluster.teams.get(team)
        return found is not None and found.spec.intruders is IntruderPolicy.EVICT

    def _evictions(
        self, due: list[_Intruder], now: float, wakes: list[float], *, may_evict: bool
    ) -> Iterator[EvictIntruder]:
        """Yield the next evictions, a bounded number per interval; each is tried again later."""
        if not due:
            return
        if not may_evict or now < self._evicts_at:
            wakes.append(self._evicts_at if may_evict else now + self._policy.eviction_seconds)
            return
        ready = [each for each in due if each.evict_at <= now]
        for each in islice(ready, self._policy.evictions_max):
            each.evict_at = now + self._policy.retry_seconds
            self._evicts_at = now + self._policy.eviction_seconds
            yield EvictIntruder(each.pod, each.team)
        wakes.append(max(self._evicts_at, min(each.evict_at for each in due)))


def _bound_at(pod: Pod) -> float:
    """Return when a pod got its node: a binding says it; one that named its node had it always."""
    scheduled = (c for c in pod.status.conditions if c.type == "PodScheduled")
    bound = next((c.last_transition_time for c in scheduled if c.status == "True"), None)
    return time_or(bound or pod.metadata.creation_timestamp, float("-inf"))
