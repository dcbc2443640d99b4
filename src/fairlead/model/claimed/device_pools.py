"""Which devices there are, of which kinds each is, and which of them claims have.

    slices -> pools -> masks of devices by node -> what a node offers of each row
    claims with devices ---^                    -> what a pod has of each row

A device counts where one node reaches it and one claim has it as a whole (`Device.is_plain`). A
claim that was made for a pod counts as part of that pod, as long as it is on its node: then the
place of its member covers it. What any other claim has is not offered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from fairlead.api.kubernetes.devices import Device, ResourceClaim, ResourceSlice
from fairlead.api.values.quantity import QuantityError
from fairlead.model.asks.requests import Request
from fairlead.model.claimed.device_asks import DeviceKind
from fairlead.model.claimed.device_rows import DeviceGroup, DeviceRows
from fairlead.model.claimed.device_selectors import (
    DeviceExpression,
    ExpressionError,
    alike,
    will_do,
)
from fairlead.model.claimed.shared_counters import GROUP_MAX, CounterShape, Layout, shapes
from fairlead.model.gang.gangs import JobKey

#: Driver and name of a pool of devices.
PoolKey: TypeAlias = tuple[str, str]
#: Ways in which devices share counters that rows are made for.
LAYOUTS_MAX = 32
#: Returns the expressions that choose a kind; ExpressionError.
SelectorsOf: TypeAlias = Callable[[DeviceKind], Sequence[DeviceExpression]]


@dataclass(frozen=True, slots=True)
class Booked:
    """What has changed: what nodes offer of the rows of devices and what of it is stranded, what
    pods have, and the rows.
    """

    nodes: Mapping[str, Mapping[str, int]]
    stranded: Mapping[str, Request]
    pods: Mapping[JobKey, Request]
    has_new_rows: bool = False


@dataclass(slots=True)
class _Pool:
    """The devices of a pool that count, and the mask of each; those that share counters."""

    node: str
    devices: tuple[Device, ...]
    masks: dict[str, int]
    groups: tuple[tuple[tuple[str, ...], CounterShape], ...]
    #: The devices of these groups.
    shared: frozenset[str]


class DevicePools:
    """Pools of devices by driver and name, and the claims that have devices of them."""

    def __init__(self) -> None:
        self.rows = DeviceRows((), ())
        self._slices: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._pool_of_slice: dict[str, PoolKey] = {}
        self._pools: dict[PoolKey, _Pool] = {}
        self._pools_of_node: dict[str, dict[PoolKey, None]] = {}
        #: By kind, then by pool: how an expression failed.
        self._faults: dict[DeviceKind, dict[PoolKey, str]] = {}
        #: By kind whose devices are to be alike, then by pool: in what they are.
        self._alike: dict[DeviceKind, dict[PoolKey, frozenset[Hashable]]] = {}
        #: How many devices of a node have each mask, whoever has them.
        self._masks: dict[str, Counter[int]] = {}
        #: The devices of a node that share counters, by how they do.
        self._layouts: dict[str, frozenset[Layout]] = {}
        #: By claim: what it has; and how many claims that are of no pod have a device of a pool.
        self._devices_of: dict[JobKey, tuple[tuple[PoolKey, str], ...]] = {}
        self._taken: dict[PoolKey, Counter[str]] = {}
        self._claims_of_pool: dict[PoolKey, dict[JobKey, None]] = {}
        #: Claims whose devices are taken; those that are of a pod, by the pod; pods on their nodes.
        self._takers: dict[JobKey, None] = {}
        self._pod_of: dict[JobKey, JobKey] = {}
        self._claims_of_pod: dict[JobKey, dict[JobKey, None]] = {}
        self.pods: dict[JobKey, None] = {}
        self._kinds: dict[DeviceKind, int] = {}
        self._seen: tuple[frozenset[int], frozenset[Layout]] = (frozenset(), frozenset())
        self._stale_pools: dict[PoolKey, None] = {}
        self._stale_nodes: dict[str, None] = {}
        self._stale_pods: dict[JobKey, None] = {}
        self._offered: dict[str, dict[str, int]] = {}
        self._stranded: dict[str, Request] = {}
        self._booked: dict[JobKey, Request] = {}

    def fault(self, kind: DeviceKind) -> str:
        """Return how the selectors of a kind failed for some device; "" where they did not."""
        return next(iter(self._faults.get(kind, {}).values()), "")

    def forget(self, kind: DeviceKind) -> None:
        """Find again which devices are of a kind, with the next `follow`."""
        self._kinds.pop(kind, None)

    def put_slice(self, name: str, found: ResourceSlice | None) -> None:
        """Take in a slice, or that it is gone."""
        before = self._pool_of_slice.pop(name, None)
        if before is not None:
            slices = self._slices[before]
            del slices[name]
            if not slices:
                del self._slices[before]
            self._stale_pools[before] = None
        if found is not None:
            key = self._pool_of_slice[name] = found.pool_key
            self._slices.setdefault(key, {})[name] = found
            self._stale_pools[key] = None

    def put_claim(self, key: JobKey, found: ResourceClaim | None) -> bool:
        """Take in a claim, or that it is gone; False where it has the devices that it had."""
        allocation = found.status.allocation if found is not None else None
        results = allocation.devices.results if allocation is not None else ()
        devices = tuple((each.pool_key, each.device) for each in results if not each.admin_access)
        pod = (key[0], found.pod) if found is not None and found.pod else None
        if devices == self._devices_of.get(key, ()) and pod == self._pod_of.get(key):
            return False
        self._take(key, is_taken=False)
        before = self._pod_of.pop(key, None)
        if before is not None:
            claims = self._claims_of_pod[before]
            del claims[key]
            if not claims:
                del self._claims_of_pod[before]
            self._stale_pods[before] = None
        self._set_devices(key, devices)
        if pod is not None:
            self._pod_of[key] = pod
            self._claims_of_pod.setdefault(pod, {})[key] = None
            self._stale_pods[pod] = None
        self._take(key, is_taken=pod not in self.pods)
        return True

    def _set_devices(self, claim: JobKey, devices: tuple[tuple[PoolKey, str], ...]) -> None:
        for pool, _ in dict.fromkeys(self._devices_of.pop(claim, ())):
            claims = self._claims_of_pool.get(pool, {})
            claims.pop(claim, None)
            if not claims:
                self._claims_of_pool.pop(pool, None)
            self._mark_shared(pool)
        for pool, _ in devices:
            self._claims_of_pool.setdefault(pool, {})[claim] = None
            self._mark_shared(pool)
        if devices:
            self._devices_of[claim] = devices

    def _mark_shared(self, pool: PoolKey) -> None:
        """Look at a node again whose devices share counters: what it offers is no sum."""
        found = self._pools.get(pool)
        if found is not None and found.groups:
            self._stale_nodes[found.node] = None

    def put_pod(self, key: JobKey, *, is_there: bool) -> bool:
        """Take in that a pod is on its node, or that it is over or gone; False: it has nothing."""
        if is_there == (key in self.pods):
            return False
        if is_there:
            self.pods[key] = None
        else:
            del self.pods[key]
        claims = self._claims_of_pod.get(key, ())
        for claim in claims:
            self._take(claim, is_taken=not is_there)
        if claims:
            self._stale_pods[key] = None
        return bool(claims)

    def _take(self, claim: JobKey, *, is_taken: bool) -> None:
        """Let the devices of a claim count as taken, or no more."""
        if is_taken == (claim in self._takers):
            return
        if is_taken:
            self._takers[claim] = None
        else:
            del self._takers[claim]
        for key, device in self._devices_of.get(claim, ()):
            taken = self._taken.setdefault(key, Counter())
            taken[device] += 1 if is_taken else -1
            if not taken[device]:
                del taken[device]
            if not taken:
                del self._taken[key]
            if key in self._pools:
                self._stale_nodes[self._pools[key].node] = None

    def follow(self, kinds: Mapping[DeviceKind, int], selectors_of: SelectorsOf) -> Booked:
        """Take in what has changed, with the kinds that are told apart now, by bit."""
        has_new_kinds = self._follow_kinds(kinds, selectors_of)
        for key in list(self._stale_pools):
            self._read_pool(key, selectors_of)
        self._stale_pools.clear()
        for node in self._stale_nodes:
            self._masks[node] = self._masks_of(node)
            if not self._masks[node]:
                del self._masks[node]
            self._layouts[node] = frozenset(
                group.layout for group in self._groups(node) if any(group.layout.masks)
            )
            if not self._layouts[node]:
                del self._layouts[node]
        seen = self._seen
        if self._stale_nodes or has_new_kinds:
            self._stale_nodes.update(dict.fromkeys(self._offered.keys() - self._pools_of_node))
            seen = (
                frozenset(mask for masks in self._masks.values() for mask in masks),
                frozenset(chain.from_iterable(self._layouts.values())),
            )
        has_new_rows = False
        if has_new_kinds or seen != self._seen:
            self._seen = seen
            layouts = sorted(seen[1], key=repr)[:LAYOUTS_MAX]
            rows = DeviceRows(list(kinds.items()), seen[0], layouts)
            has_new_rows = rows.rows != self.rows.rows
            self.rows = rows
        if has_new_rows:
            self._stale_nodes.update(dict.fromkeys(self._pools_of_node))
            self._stale_pods.update(dict.fromkeys(self._claims_of_pod))
        return Booked(*self._changed_nodes(), self._changed_pods(), has_new_rows)

    def _changed_nodes(self) -> tuple[dict[str, dict[str, int]], dict[str, Request]]:
        changed: dict[str, dict[str, int]] = {}
        stranded: dict[str, Request] = {}
        for node in self._stale_nodes:
            groups = self._groups(node)
            amounts = self.rows.offered(self._free_masks(node), groups)
            lost = self.rows.stranded(groups)
            if lost != self._stranded.pop(node, ()):
                stranded[node] = lost
            if lost:
                self._stranded[node] = lost
            if amounts != self._offered.pop(node, {}):
                changed[node] = amounts
            if amounts:
                self._offered[node] = amounts
        self._stale_nodes.clear()
        return changed, stranded

    def _changed_pods(self) -> dict[JobKey, Request]:
        changed: dict[JobKey, Request] = {}
        for pod in self._stale_pods:
            request = self._request_of(pod) if pod in self.pods else ()
            if request != self._booked.pop(pod, ()):
                changed[pod] = request
            if request:
                self._booked[pod] = request
        self._stale_pods.clear()
        return changed

    def _follow_kinds(self, kinds: Mapping[DeviceKind, int], selectors_of: SelectorsOf) -> bool:
        """Tell new kinds apart, and others no more; False where they are those from before."""
        if list(kinds.items()) == list(self._kinds.items()):
            return False
        new = {kind: bit for kind, bit in kinds.items() if self._kinds.get(kind) != bit}
        gone = sum(bit for kind, bit in self._kinds.items() if kinds.get(kind) != bit)
        self._kinds = dict(kinds)
        for found in (self._faults, self._alike):
            for kind in [kind for kind in found if kind not in kinds or kind in new]:
                del found[kind]
        if new or gone:
            for key in self._pools:
                self._mark(key, new, gone, selectors_of)
        return True

    def _read_pool(self, key: PoolKey, selectors_of: SelectorsOf) -> None:
        """Take in a pool whose slices have changed."""
        before = self._pools.pop(key, None)
        if before is not None:
            pools = self._pools_of_node[before.node]
            del pools[key]
            if not pools:
                del self._pools_of_node[before.node]
            self._stale_nodes[before.node] = None
        for found in (*self._faults.values(), *self._alike.values()):
            found.pop(key, None)
        devices = tuple(self._devices(key))
        if not devices:
            return
        node = self._newest(key)[0].spec.node_name
        groups = self._groups_of_pool(key)
        if groups is None:
            return
        shared = frozenset(name for group in groups for name in group[0])
        masks = {device.name: 0 for device in devices}
        self._pools[key] = _Pool(node, devices, masks, tuple(groups), shared)
        self._pools_of_node.setdefault(node, {})[key] = None
        self._mark(key, self._kinds, 0, selectors_of)

    def _newest(self, key: PoolKey) -> list[ResourceSlice]:
        slices = list(self._slices.get(key, {}).values())
        newest = max((each.spec.pool.generation for each in slices), default=0)
        return [each for each in slices if each.spec.pool.generation == newest]

    def _groups_of_pool(self, key: PoolKey) -> list[tuple[tuple[str, ...], CounterShape]] | None:
        """Return the devices of a pool that share counters; None for a pool that says of them what
        cannot be.
        """
        slices = self._newest(key)
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

    def _devices(self, key: PoolKey) -> Iterator[Device]:
        """Yield the devices of a pool that count: none where slices are missing, devices have one
        name, or not one node reaches all (`GatherPools`).
        """
        slices = self._newest(key)
        if not slices or len(slices) != slices[0].spec.pool.resource_slice_count:
            return
        devices = [device for each in slices for device in each.spec.devices]
        has_node = {each.spec.node_name for each in slices} == {slices[0].spec.node_name} != {""}
        if has_node and len({device.name for device in devices}) == len(devices):
            yield from (device for device in devices if device.is_plain)

    def _mark(
        self, key: PoolKey, kinds: Mapping[DeviceKind, int], gone: int, selectors_of: SelectorsOf
    ) -> None:
        """Find which devices of a pool are of some kinds, and forget the bits of others."""
        pool, driver = self._pools[key], key[0]
        gone |= sum(kinds.values())
        masks = {name: mask & ~gone for name, mask in pool.masks.items()} if gone else pool.masks
        for kind, bit in kinds.items():
            try:
                selectors = selectors_of(kind)
                chosen = [each for each in pool.devices if will_do(kind, selectors, driver, each)]
                for device in chosen:
                    masks[device.name] |= bit
                if kind.alike:
                    values = frozenset(alike(kind, driver, each) for each in chosen)
                    self._alike.setdefault(kind, {})[key] = values
            except ExpressionError as error:
                self._faults.setdefault(kind, {})[key] = str(error)
        pool.masks = masks
        self._stale_nodes[pool.node] = None

    def _masks_of(self, node: str) -> Counter[int]:
        """Return how many devices of a node have each mask.

        Where an expression fails for one device, kube-scheduler places nothing of that kind on the
        node (`selectorsMatch`).
        """
        pools = self._pools_of_node.get(node, {})
        failed = self._failed(pools)
        found = Counter[int]()
        for pool in map(self._pools.__getitem__, pools):
            names = pool.masks.keys() - pool.shared if pool.groups else pool.masks
            found.update(pool.masks[name] & ~failed for name in names)
        return found

    def _groups(self, node: str) -> list[DeviceGroup]:
        """Return the devices of a node that share counters, and who has them.

        None of a pool that has given more than it has, nor of two pools of one name, of which
        kube-scheduler counts together what they share (`checkAvailableCounters`).
        """
        pools = {k: p for k in self._pools_of_node.get(node, {}) if (p := self._pools[k]).groups}
        if not pools:
            return []
        failed = self._failed(self._pools_of_node[node])
        names = Counter(name for _, name in pools)
        found: list[DeviceGroup] = []
        for key, pool in pools.items():
            claims = self._claims_of_pool.get(key, {})
            had = {d: c for c in claims for k, d in self._devices_of[c] if k == key}
            groups = [self._group(group, pool, had, failed) for group in pool.groups]
            is_over = any(each.layout.shape.left(each.taken) is None for each in groups)
            if names[key[1]] == 1 and not is_over:
                found += [each for each in groups if len(each.layout.masks) <= GROUP_MAX]
        return found

    def _group(
        self, group: tuple[tuple[str, ...], CounterShape], pool: _Pool, had: Mapping[str, JobKey],
        failed: int,
    ) -> DeviceGroup:  # fmt: skip
        devices, shape = group
        layout = Layout(shape, tuple(pool.masks.get(name, 0) & ~failed for name in devices))
        taken = of_pods = 0
        for i, name in enumerate(devices):
            if name in had:
                taken |= 1 << i
                of_pods |= (had[name] not in self._takers) << i
        return DeviceGroup(layout, taken, of_pods)

    def _failed(self, pools: Mapping[PoolKey, None]) -> int:
        """Return the kinds (bits) of which a node with these pools offers nothing: an expression
        fails, or devices are not alike.
        """
        failed = 0
        for kind, at in self._faults.items():
            if not pools.keys().isdisjoint(at):
                failed |= self._kinds[kind]
        for kind, values in self._alike.items():
            if len(frozenset[Hashable]().union(*(values.get(key, ()) for key in pools))) > 1:
                failed |= self._kinds[kind]
        return failed

    def _free_masks(self, node: str) -> Counter[int]:
        masks = Counter(self._masks.get(node, {}))
        pools = self._pools_of_node.get(node, {})
        failed = self._failed(pools)
        for key in pools:
            known = self._pools[key].masks
            for device in self._taken.get(key, ()):
                if device in known and device not in self._pools[key].shared:
                    masks[known[device] & ~failed] -= 1
        return masks

    def _request_of(self, pod: JobKey) -> Request:
        """Return what the devices of a pod are of each row."""
        masks = Counter[int]()
        for claim in self._claims_of_pod.get(pod, ()):
            for key, device in self._devices_of.get(claim, ()):
                pool = self._pools.get(key)
                if pool is not None and device in pool.masks:
                    failed = self._failed(self._pools_of_node[pool.node])
                    masks[pool.masks[device] & ~failed] += 1
        return self.rows.had(masks)
