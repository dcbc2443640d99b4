"""Which devices there are, and which of them claims have.

    slices -> pools of devices, by node
    claims with devices -> which devices pods have, and which of them are taken

A device counts where one node reaches it and one claim has it as a whole (`Device.is_plain`). A
claim that was made for a pod counts as part of that pod, as long as it is on its node: then the
place of its member covers it. What any other claim has is not offered.

Of which kinds the devices are, and what of it follows for nodes and pods, is for those who `watch`
(`device_marks.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.api.kubernetes.device_shapes import DeviceShape, shape_mistakes, slices_of
from fairlead.api.kubernetes.devices import Device, ResourceClaim, ResourceSlice
from fairlead.api.values.quantity import QuantityError
from fairlead.model.claimed.shared_counters import CounterShape, shapes
from fairlead.model.claimed.work import Work
from fairlead.model.gang.gangs import JobKey

#: Before the name of a node pool: the node that has what its template states. No node is named so.
_TEMPLATE = "~"
#: Driver and name of a pool of devices.
PoolKey: TypeAlias = tuple[str, str]
#: Devices of a slice that are read in a unit of work.
_READ_PER_WORK = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of a pool that count; those that share counters.

    `node` is "" for a pool that is not of one node: nothing of it counts, on any node.
    """

    node: str
    devices: tuple[Device, ...]
    groups: tuple[tuple[tuple[str, ...], CounterShape], ...]
    #: The devices of these groups.
    shared: frozenset[str]
    #: Devices that do not count, though kube-scheduler may allocate them.
    uncounted: tuple[Device, ...] = ()
    #: False: kube-scheduler gives nothing to a request for all devices of a node that it reaches.
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Stale:
    """What has changed since one who watches has looked: pools, nodes and pods."""

    pools: dict[PoolKey, None] = field(default_factory=dict[PoolKey, None])
    nodes: dict[str, None] = field(default_factory=dict[str, None])
    pods: dict[JobKey, None] = field(default_factory=dict[JobKey, None])

    def __bool__(self) -> bool:
        return bool(self.pools or self.nodes or self.pods)


def template_node(node_pool: str) -> str:
    """Return the name under which the devices of a node pool's template are known."""
    return f"{_TEMPLATE}{node_pool}"


class DevicePools:
    """Pools of devices by driver and name, and the claims that have devices of them."""

    def __init__(self) -> None:
        #: Read these only; `pools` by driver and name.
        self.pools: dict[PoolKey, Pool] = {}
        self.of_node: dict[str, dict[PoolKey, None]] = {}
        #: By claim: what it has; and how many claims that are of no pod have a device of a pool.
        self.devices_of: dict[JobKey, tuple[tuple[PoolKey, str], ...]] = {}
        self.taken: dict[PoolKey, Counter[str]] = {}
        self.claims_of_pool: dict[PoolKey, dict[JobKey, None]] = {}
        #: Claims whose devices are taken; those that are of a pod, by the pod; pods on their nodes.
        self.takers: dict[JobKey, None] = {}
        self.claims_of_pod: dict[JobKey, dict[JobKey, None]] = {}
        self.pod_of: dict[JobKey, JobKey] = {}
        self.pods: dict[JobKey, None] = {}
        #: Rises with each claim that is made for a pod, or goes.
        self.made_version = 0
        self._slices: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._pool_of_slice: dict[str, PoolKey] = {}
        #: Pools whose slices have changed.
        self._unread: dict[PoolKey, None] = {}
        self._watchers: list[Stale] = []
        #: By node pool: the devices of its template.
        self._templates: dict[str, tuple[DeviceShape, ...]] = {}

    @property
    def is_unread(self) -> bool:
        """True while slices have changed that `read` is to take in."""
        return bool(self._unread)

    def watch(self) -> Stale:
        """Return what is told of each change from now on; all there is counts as changed."""
        stale = Stale(dict.fromkeys(self.pools), {}, dict.fromkeys(self.claims_of_pod))
        self._watchers.append(stale)
        return stale

    def unwatch(self, stale: Stale) -> None:
        """End what `watch` began."""
        self._watchers = [each for each in self._watchers if each is not stale]

    def read(self) -> Work[None]:
        """Take in the pools whose slices have changed."""
        while self._unread:
            key = next(iter(self._unread))
            del self._unread[key]
            self._read_pool(key)
            yield 1 + sum(len(e.spec.devices) for e in self._newest(key)) // _READ_PER_WORK

    def put_slice(self, name: str, found: ResourceSlice | None) -> None:
        """Take in a slice, or that it is gone."""
        before = self._pool_of_slice.pop(name, None)
        if before is not None:
            slices = self._slices[before]
            del slices[name]
            if not slices:
                del self._slices[before]
            self._unread[before] = None
        if found is not None:
            key = self._pool_of_slice[name] = found.pool_key
            self._slices.setdefault(key, {})[name] = found
            self._unread[key] = None

    def put_template(self, node_pool: str, shapes: tuple[DeviceShape, ...]) -> None:
        """Take in what each node of a pool has that is bought; () for none, or a pool that is gone.

        It counts as the devices of `template_node`. Shapes that cannot be are ignored: admission
        says what is wrong with them, and nothing is bought.
        """
        before = self._templates.get(node_pool, ())
        if any(shape_mistakes(shapes)):
            shapes = ()
        if shapes == before:
            return
        node = template_node(node_pool)
        for each in slices_of(node, before):
            self.put_slice(each.metadata.name, None)
        for each in slices_of(node, shapes):
            self.put_slice(each.metadata.name, each)
        self._templates[node_pool] = shapes
        if not shapes:
            del self._templates[node_pool]

    def counts_on(self, node: str) -> Counter[str]:
        """Return how many devices each driver offers on a node, used or not, as far as known."""
        found = Counter[str]()
        for key in self.of_node.get(node, ()):
            found[key[0]] += len(self.pools[key].devices) + len(self.pools[key].uncounted)
        return found

    def put_claim(self, key: JobKey, found: ResourceClaim | None) -> bool:
        """Take in a claim, or that it is gone; False where it has the devices that it had."""
        allocation = found.status.allocation if found is not None else None
        results = allocation.devices.results if allocation is not None else ()
        devices = tuple((each.pool_key, each.device) for each in results if not each.admin_access)
        pod = (key[0], found.pod) if found is not None and found.pod else None
        if devices == self.devices_of.get(key, ()) and pod == self.pod_of.get(key):
            return False
        self._take(key, is_taken=False)
        before = self.pod_of.pop(key, None)
        self.made_version += before != pod
        if before is not None:
            claims = self.claims_of_pod[before]
            del claims[key]
            if not claims:
                del self.claims_of_pod[before]
            self._mark_pod(before)
        self._set_devices(key, devices)
        if pod is not None:
            self.pod_of[key] = pod
            self.claims_of_pod.setdefault(pod, {})[key] = None
            self._mark_pod(pod)
        self._take(key, is_taken=pod not in self.pods)
        return True

    def _set_devices(self, claim: JobKey, devices: tuple[tuple[PoolKey, str], ...]) -> None:
        for pool, _ in dict.fromkeys(self.devices_of.pop(claim, ())):
            claims = self.claims_of_pool.get(pool, {})
            claims.pop(claim, None)
            if not claims:
                self.claims_of_pool.pop(pool, None)
            self._mark_shared(pool)
        for pool, _ in devices:
            self.claims_of_pool.setdefault(pool, {})[claim] = None
            self._mark_shared(pool)
        if devices:
            self.devices_of[claim] = devices

    def _mark_shared(self, pool: PoolKey) -> None:
        """Look at a node again whose devices share counters: what it offers is no sum."""
        found = self.pools.get(pool)
        if found is not None and found.groups:
            self._mark_node(found.node)

    def _mark_node(self, node: str) -> None:
        for stale in self._watchers:
            stale.nodes[node] = None

    def _mark_pod(self, pod: JobKey) -> None:
        for stale in self._watchers:
            stale.pods[pod] = None

    def put_pod(self, key: JobKey, *, is_there: bool) -> bool:
        """Take in that a pod is on its node, or that it is over or gone; False: it has nothing."""
        if is_there == (key in self.pods):
            return False
        if is_there:
            self.pods[key] = None
        else:
            del self.pods[key]
        claims = self.claims_of_pod.get(key, ())
        for claim in claims:
            self._take(claim, is_taken=not is_there)
        if claims:
            self._mark_pod(key)
        return bool(claims)

    def _take(self, claim: JobKey, *, is_taken: bool) -> None:
        """Let the devices of a claim count as taken, or no more."""
        devices = self.devices_of.get(claim, ())
        is_taken = is_taken and bool(devices)
        if is_taken == (claim in self.takers):
            return
        if is_taken:
            self.takers[claim] = None
        else:
            del self.takers[claim]
        for key, device in devices:
            taken = self.taken.setdefault(key, Counter())
            taken[device] += 1 if is_taken else -1
            if not taken[device]:
                del taken[device]
            if not taken:
                del self.taken[key]
            if key in self.pools:
                self._mark_node(self.pools[key].node)

    def _read_pool(self, key: PoolKey) -> None:
        before = self.pools.pop(key, None)
        if before is not None:
            pools = self.of_node[before.node]
            del pools[key]
            if not pools:
                del self.of_node[before.node]
            self._mark_node(before.node)
        for stale in self._watchers:
            stale.pools[key] = None
        if slices := self._newest(key):
            pool = self.pools[key] = self._pool(slices)
            self.of_node.setdefault(pool.node, {})[key] = None

    def _pool(self, slices: list[ResourceSlice]) -> Pool:
        """Return what counts of a pool: nothing where slices are missing, devices have one name,
        not one node reaches all, or counters are what cannot be (`GatherPools`).
        """
        nodes = {each.spec.node_name for each in slices}
        devices = tuple(device for each in slices for device in each.spec.devices)
        is_whole = len(slices) == slices[0].spec.pool.resource_slice_count
        is_whole &= len({device.name for device in devices}) == len(devices)
        if len(nodes) > 1 or "" in nodes:
            return Pool("", (), (), frozenset(), devices, is_whole)
        (node,) = nodes
        if not is_whole:  # the counters of such a slice matter to all nodes
            is_shared = any(each.spec.shared_counters for each in slices)
            return Pool("" if is_shared else node, (), (), frozenset(), is_whole=False)
        groups = self._groups_of_pool(slices)
        if groups is None:
            return Pool("", (), (), frozenset(), devices, is_whole=False)
        shared = frozenset(name for group in groups for name in group[0])
        plain = tuple(device for device in devices if device.is_plain)
        others = tuple(device for device in devices if not device.is_plain)
        return Pool(node, plain, tuple(groups), shared, others)

    def _newest(self, key: PoolKey) -> list[ResourceSlice]:
        slices = list(self._slices.get(key, {}).values())
        newest = max((each.spec.pool.generation for each in slices), default=0)
        return [each for each in slices if each.spec.pool.generation == newest]

    def _groups_of_pool(
        self, slices: list[ResourceSlice]
    ) -> list[tuple[tuple[str, ...], CounterShape]] | None:
        """Return the devices of a pool that share counters; None for a pool that says of them what
        cannot be.
        """
        devices = [device for each in slices for device in each.spec.devices]
        if not any(device.consumes_counters for device in devices):
            return []
        sets = [each for found in slices for each in found.spec.shared_counters]
        if len({each.name for each in sets}) < len(sets):
            return None
        try:
            found = shapes(devices, sets)
        except QuantityError:
            return None
        if found is None:
            return None
        return [(tuple(devices[i].name for i in members), shape) for members, shape in found]
