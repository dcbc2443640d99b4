"""The nodes of pools, and which of them are idle since when. Kept per event, in O(change).

A node belongs to the pool that its label names. It is idle while no unfinished job has a place on
it and no pod is bound to it, pods of a DaemonSet and those that have ended aside. Instants are of a
monotonic clock, so a jump of the wall clock makes no node look idle for long. Balloons, and tests
that leave for work, use no node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import Amount
from fairlead.api.values.quantity import resources_to_base
from fairlead.model.asks.image_pulls import is_pull
from fairlead.model.gang.gangs import JobKey
from fairlead.model.health.node_health import is_ready
from fairlead.model.health.node_record import (
    Departure,
    ProviderRestart,
    departure_of,
    provider_restart_of,
)
from fairlead.model.health.windows import drain_of
from fairlead.model.inventory.spares import is_spare, is_spare_of_pool
from fairlead.model.pools.balloons import is_balloon
from fairlead.model.pools.yielding_tests import is_yielding

_LASTING = "DaemonSet"
#: In the place of a job's namespace: no namespace has a slash.
_POD = "/pod"


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of a pool, as far as the fleet is concerned."""

    node: Node
    pool: str
    #: The machine: `spec.providerID`.
    instance: str
    is_ready: bool
    #: It has the startup taint, which Fairlead lifts, or is to be tested before it takes work.
    is_joining: bool
    #: It has the taint that it got while it was not ready, and waits for its turn.
    is_returning: bool
    #: It has the taint of spares; and the fleet controller put it there.
    is_spare: bool
    is_spare_of_pool: bool
    #: Its devices, in base units: what device plugins have registered of it.
    devices: tuple[tuple[str, int], ...]
    #: Why the fleet controller will remove it; "": it is not marked.
    removal: str
    #: When maintenance is, and what of it we wrote since the provider announced it.
    maintenance: str
    announced: str
    #: A fault keeps work off it, or a person empties it.
    is_out: bool = False
    #: Why its machine is to go for good; None: it is not.
    goes: Departure | None = None
    #: A test that it has not passed yet keeps work off it.
    is_gated: bool = False
    #: Its machine is to be restarted, as its agent is silent; None: it is not.
    restart: ProviderRestart | None = None

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.metadata.name

    @property
    def facts(self) -> tuple[object, ...]:
        """What a decision looks at: all but the versions and heartbeats of the node."""
        ours = (
            self.pool, self.instance, self.is_ready, self.is_joining, self.devices, self.removal
        )  # fmt: skip
        out = (self.is_out, self.goes, self.restart)
        cordons = (self.is_cordoned, self.node.spec.taints)
        return (*ours, self.maintenance, self.announced, *out, *cordons)

    @property
    def is_cordoned(self) -> bool:
        """True when somebody cordoned it, we or a person."""
        return self.node.spec.unschedulable

    @property
    def is_usable(self) -> bool:
        """True when members can start on it."""
        return self.is_ready and not self.is_waiting and not self.is_cordoned and not self.is_out

    @property
    def is_waiting(self) -> bool:
        """True while it waits for its turn to take work, for the first time or again."""
        return self.is_joining or self.is_returning


class PoolNodes:
    """All nodes that carry the label of a pool."""

    def __init__(self, balloon_namespace: str = "", *, test_namespace: str = "") -> None:
        """`balloon_namespace`: see `model/pools/balloons.py`; `test_namespace`: where tests of
        nodes are, see `model/pools/yielding_tests.py`.
        """
        #: Pods that hold idle nodes of pools whose machines another autoscaler owns.
        self.balloons: dict[JobKey, Pod] = {}
        #: Balloons that a scheduler put beside what used their node already, since they fit there.
        #: They hold nothing; but one that leaves would be put there again.
        self.late_balloons: dict[JobKey, None] = {}
        self._balloon_namespace = balloon_namespace
        self._test_namespace = test_namespace
        self.by_name: dict[str, PoolNode] = {}
        self.by_instance: dict[str, PoolNode] = {}
        self.by_pool: dict[str, dict[str, PoolNode]] = {}
        #: Nodes of pools that nothing uses, and the instant since when.
        self.idle_since: dict[str, float] = {}
        #: Nodes that are not ready, and the instant since when.
        self.unready: dict[str, float] = {}
        #: Rises with each change that a decision could see; not with heartbeats.
        self.version = 0
        self._users: dict[str, dict[JobKey, None]] = {}
        self._nodes_of_job: dict[JobKey, frozenset[str]] = {}
        self._node_of_pod: dict[JobKey, str] = {}

    def put(self, node: Node, instant: float) -> None:
        """Take in a node, new or changed."""
        name, pool = node.metadata.name, node.metadata.labels.get(names.POOL, "")
        before = self.by_name.get(name)
        unready_since = self.unready.get(name, instant)
        if before is not None:
            self._unindex(before)
        if not pool or not node.spec.provider_id:
            self.idle_since.pop(name, None)
            self.version += before is not None
            return
        notes, taints = node.metadata.annotations, {taint.key for taint in node.spec.taints}
        # One that failed its test is out of service, as after any fault, and no longer joining.
        is_gated = names.TAINT_PREFLIGHT in taints and names.TAINT_UNHEALTHY not in taints
        found = PoolNode(
            node, pool, node.spec.provider_id, is_ready(node),
            names.TAINT_JOINING in taints or is_gated, names.TAINT_RETURNING in taints,
            is_spare(node.spec.taints), is_spare_of_pool(node.spec.taints),
            devices_of(node.status.allocatable),
            notes.get(names.REMOVAL, ""), notes.get(names.MAINTENANCE, ""),
            notes.get(names.MAINTENANCE_ANNOUNCED, ""), drain_of(notes) is not None,
            departure_of(notes), is_gated, provider_restart_of(notes),
        )  # fmt: skip
        self.version += before is None or before.facts != found.facts
        self.by_name[name] = self.by_instance[found.instance] = found
        self.by_pool.setdefault(pool, {})[name] = found
        if not found.is_ready:
            self.unready[name] = unready_since
        was_usable = before is not None and before.is_ready and not before.is_waiting
        is_usable = found.is_ready and not found.is_waiting
        if not self.is_used(name) and (name not in self.idle_since or is_usable > was_usable):
            self.idle_since[name] = instant

    def remove(self, name: str) -> None:
        """Take in that a node is gone."""
        before = self.by_name.get(name)
        if before is not None:
            self._unindex(before)
        self.idle_since.pop(name, None)
        self.version += 1

    def is_used(self, name: str) -> bool:
        """True while a job has a place on the node, or a pod of others is bound to it."""
        return bool(self._users.get(name))

    def pods_on(self, name: str) -> list[JobKey]:
        """Return the pods that use a node, sorted; those of jobs' members among them."""
        found = (user[1].split("/", 1) for user in self._users.get(name, ()) if user[0] == _POD)
        return sorted((namespace, pod) for namespace, pod in found)

    def job_changed(self, key: JobKey, job: Job | None, instant: float) -> frozenset[str]:
        """Take in a job; None: it is gone. Return the nodes that it left or came to."""
        placement = job.status.placement if job is not None and not job.is_finished else None
        vacant = job.status.vacant if job is not None else frozenset[tuple[str, int]]()
        after = frozenset(
            name
            for role in (placement.roles if placement else ())
            for i, name in enumerate(role.nodes)
            if (role.role, i) not in vacant
        )
        before = self._nodes_of_job.pop(key, frozenset())
        if after:
            self._nodes_of_job[key] = after
        for name in before - after:
            self._leave(name, key, instant)
        for name in after - before:
            self._use(name, key)
        return before ^ after

    def pod_changed(self, key: JobKey, pod: Pod | None, instant: float) -> frozenset[str]:
        """Take in a pod; None: it is gone. Return the nodes that it left or came to.

        A balloon does not use its node, nor does a test that leaves for work.
        """
        if pod is not None and is_balloon(pod, self._balloon_namespace):
            self._put_balloon(key, pod)
            pod = None
        elif self.balloons.pop(key, None) is not None:
            self.late_balloons.pop(key, None)
            self.version += 1
        user = (_POD, "/".join(key))
        before = self._node_of_pod.pop(key, "")
        is_used = pod is not None and uses_node(pod) and not is_yielding(pod, self._test_namespace)
        after = pod.spec.node_name if pod is not None and is_used else ""
        if after:
            self._node_of_pod[key] = after
        if before and before != after:
            self._leave(before, user, instant)
        if after and after != before:
            self._use(after, user)
        return frozenset(name for name in (before, after) if name and before != after)

    def _put_balloon(self, key: JobKey, pod: Pod) -> None:
        before, self.balloons[key] = self.balloons.get(key), pod
        if before is None or before.metadata.uid != pod.metadata.uid:
            self.late_balloons.pop(key, None)
        elif self.is_used(pod.spec.node_name) and not before.spec.node_name:
            self.late_balloons[key] = None
        self.version += before is None or _facts(before) != _facts(pod)

    def _use(self, name: str, user: JobKey) -> None:
        self.version += 1
        for key in [k for k in self.late_balloons if self.balloons[k].spec.node_name == name]:
            del self.late_balloons[key]
        self._users.setdefault(name, {})[user] = None
        self.idle_since.pop(name, None)

    def _leave(self, name: str, user: JobKey, instant: float) -> None:
        self.version += 1
        users = self._users.get(name, {})
        users.pop(user, None)
        if not users:
            self._users.pop(name, None)
            if name in self.by_name:
                self.idle_since[name] = instant

    def _unindex(self, before: PoolNode) -> None:
        del self.by_name[before.name]
        if self.by_instance.get(before.instance) is before:
            del self.by_instance[before.instance]
        del self.by_pool[before.pool][before.name]
        if not self.by_pool[before.pool]:
            del self.by_pool[before.pool]
        self.unready.pop(before.name, None)


def is_static(pod: Pod) -> bool:
    """True for the mirror of a pod that a kubelet runs by itself."""
    return names.MIRROR_POD in pod.metadata.annotations


def devices_of(resources: Mapping[str, Amount]) -> tuple[tuple[str, int], ...]:
    """Return the devices among resources, those that have a vendor's name, sorted by it."""
    found = resources_to_base({name: text for name, text in resources.items() if "/" in name})
    return tuple(found.items())


def _facts(balloon: Pod) -> tuple[object, ...]:
    """Return what a decision looks at in a balloon."""
    meta = balloon.metadata
    is_leaving = meta.deletion_timestamp is not None
    return (meta.uid, meta.labels, balloon.spec.node_name, balloon.is_terminal, is_leaving)


def uses_node(pod: Pod) -> bool:
    """True for a pod that has not ended and that would leave a node which is emptied."""
    if pod.is_terminal or is_static(pod) or is_pull(pod):
        return False
    return not any(owner.kind == _LASTING for owner in pod.metadata.owner_references)
