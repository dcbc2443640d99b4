"""A scheduler as kube-scheduler is to Fairlead: it leaves gated pods alone, looks at the node that
a pod is pinned to, and binds it there or says Unschedulable.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from typing import TypeVar

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.devices import DeviceClass, ResourceClaim, ResourceSlice
from fairlead.api.meta import to_wire
from fairlead.api.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from fairlead.api.status import Conflict, NotFound
from fairlead.api.values.quantity import resources_to_base
from fairlead.decide.pinning import pinned_node
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.own_controllers.device_search import Allocation
from fairlead.embedded.own_controllers.node_devices import NodeDevices, claims_of, devices_of
from fairlead.embedded.own_controllers.served_pods import ServedPods
from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.stages.status import pod_requests
from fairlead.model.inventory.labels import tolerates
from fairlead.runtime.client import Client
from fairlead.sim.observers.observer import Observer

_BIND_SECONDS = 0.2
K = TypeVar("K")
V = TypeVar("V")


class StockScheduler(Observer):
    """Binds what is pending, soon after something has changed. An `Observer` of the world."""

    def __init__(self, service: ApiService, client: Client) -> None:
        self._service = service
        self._client = client
        self._nodes: dict[str, Node] = {}
        self._pending: dict[ObjectKey, Pod] = {}
        self._used: defaultdict[str, dict[ObjectKey, dict[str, int]]] = defaultdict(dict)
        self._node_of: dict[ObjectKey, str] = {}
        self._claims: dict[ObjectKey, ResourceClaim] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._devices = NodeDevices(self._classes.get, self._slices.values)
        self._served = ServedPods(self._nodes.get)
        self._refused: frozenset[str] = frozenset()
        self._woken = asyncio.Event()

    def refuse(self, nodes: Collection[str]) -> None:
        """Refuse these nodes, and no others, for a reason that our planner does not know."""
        self._refused = frozenset(nodes)
        self._woken.set()

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note who is pending, and what is used on each node."""
        if (node := self._node_of.pop(key, "")) and (new is None or new.is_terminal):
            self._used[node].pop(key, None)
            self._wake()
        self._pending.pop(key, None)
        if new is None or new.is_terminal:
            return
        if new.spec.node_name:
            self._node_of[key] = new.spec.node_name
            self._used[new.spec.node_name][key] = pod_requests(new)
        elif not new.spec.scheduling_gates and new.metadata.deletion_timestamp is None:
            self._pending[key] = new
            self._woken.set()

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note a node."""
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new
        self._wake()

    def stored(self, kind: str, record: Record | None, key: ObjectKey, now: float) -> None:
        """Note a claim, a class or a slice."""
        if kind == RESOURCE_CLAIMS.name:
            self.claim(record and record.typed(ResourceClaim), key)
        elif kind == DEVICE_CLASSES.name:
            self.device_class(record and record.typed(DeviceClass), key[1])
        elif kind == RESOURCE_SLICES.name:
            self.device_slice(record and record.typed(ResourceSlice), key[1])

    def claim(self, new: ResourceClaim | None, key: ObjectKey) -> None:
        """Note a claim for devices. Only a world that shows them has pods with claims bound."""
        _put(self._claims, key, new)
        self._wake()

    def device_class(self, new: DeviceClass | None, name: str) -> None:
        """Note a class of devices."""
        _put(self._classes, name, new)
        self._served.classes.put(name, new)
        self._wake()

    def device_slice(self, new: ResourceSlice | None, name: str) -> None:
        """Note devices of a node."""
        _put(self._slices, name, new)
        self._wake()

    def _wake(self) -> None:
        if self._pending:
            self._woken.set()

    async def run(self) -> None:
        """Bind until cancelled."""
        while True:
            await self._woken.wait()
            await asyncio.sleep(_BIND_SECONDS)
            self._woken.clear()
            for key in sorted(self._pending, key=self._order):
                pod = self._pending.get(key)
                if pod is not None:
                    await self._bind(key, pod)

    def _order(self, key: ObjectKey) -> tuple[int, ObjectKey]:
        return (-(self._pending[key].spec.priority or 0), key)

    async def _bind(self, key: ObjectKey, pod: Pod) -> None:
        wanted = pinned_node(pod.spec)
        tried = [wanted] if wanted else sorted(self._nodes)
        node = next((name for name in tried if self._fits(pod, name)), None)
        try:
            if node is not None:
                await self._allocate(pod, node)
                target = {"kind": "Node", "name": node}
                body = {"metadata": {"name": key[1]}, "target": target}
                await self._service.bind(key, body, WriteOptions())
            elif not any(c.reason == "Unschedulable" for c in pod.status.conditions):
                condition = {
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/1 nodes are available",
                    # As on a real server: the status was False already, for the gate's sake.
                    "lastTransitionTime": pod.metadata.creation_timestamp,
                }  # fmt: skip
                patch = {"status": {"conditions": [condition]}}
                await self._client.patch(
                    PODS, key[1], patch, namespace=key[0], subresource="status"
                )
        except (Conflict, NotFound):
            pass

    def _fits(self, pod: Pod, name: str) -> bool:
        node = self._nodes.get(name)
        if node is None or node.spec.unschedulable or name in self._refused:
            return False
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
            return False
        if not all(any(tolerates(t, x) for t in pod.spec.tolerations) for x in node.spec.taints):
            return False
        if self._allocations(pod, name) is None:
            return False
        own = resources_to_base(node.status.allocatable)
        left = dict(own)
        for requests in (pod_requests(pod), *self._used[name].values()):
            for resource, amount in requests.items():
                if resource in self._served.classes and not own.get(resource):
                    continue
                left[resource] = left.get(resource, 0) - amount
        return min(left.values()) >= 0

    def _allocations(
        self, pod: Pod, node: str
    ) -> list[tuple[ResourceClaim, Allocation | None]] | None:
        """Return what the claims of a pod get on a node, None for one that has devices there; or
        None where the pod cannot be there.
        """
        claims: list[ResourceClaim] = []
        for key, template in claims_of(pod):
            claim = self._claims.get(key)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                return None
            owners = [each.uid for each in claim.metadata.owner_references if each.controller]
            has_devices = claim.status.allocation is not None
            if (template and owners != [pod.metadata.uid]) or (
                has_devices and node not in _nodes_of(claim)
            ):
                return None
            claims.append(claim)
        served = self._served.claim_of(pod, node)
        if served is not None:
            if served.metadata.key in self._claims:
                return None
            claims.append(served)
        waiting = [claim for claim in claims if claim.status.allocation is None]
        taken = {id_ for claim in self._claims.values() for id_ in devices_of(claim)}
        found = self._devices.allocate(waiting, node, taken)
        if found is None:
            return None
        given = {id(claim): each for claim, each in zip(waiting, found, strict=True)}
        return [(claim, given.get(id(claim))) for claim in claims]

    async def _allocate(self, pod: Pod, node: str) -> None:
        """Give the claims of a pod devices, and reserve them for it; Conflict, NotFound."""
        for found, given in self._allocations(pod, node) or ():
            is_there = bool(found.metadata.resource_version)
            claim = found if is_there else await self._make_served(pod, found, node)
            consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
            reserved = [to_wire(each) for each in claim.status.reserved_for]
            if all(each["uid"] != pod.metadata.uid for each in reserved):
                reserved.append(consumer)
            status = {"reservedFor": reserved} | ({} if given is None else {"allocation": given})
            await self._client.patch(
                RESOURCE_CLAIMS, claim.metadata.name,
                {"metadata": {"resourceVersion": claim.metadata.resource_version},
                 "status": status},
                namespace=claim.metadata.namespace, subresource="status",
            )  # fmt: skip

    async def _make_served(self, pod: Pod, claim: ResourceClaim, node: str) -> ResourceClaim:
        """Make the claim for a pod's resources, and name it in the pod's status; Conflict."""
        namespace = claim.metadata.namespace
        made = await self._client.create(RESOURCE_CLAIMS, to_wire(claim), namespace=namespace)
        status = {"status": self._served.status_of(pod, made, node)}
        await self._client.patch(
            PODS, pod.metadata.name, status, namespace=namespace, subresource="status"
        )
        return made


def _put(known: dict[K, V], key: K, new: V | None) -> None:
    if new is None:
        known.pop(key, None)
    else:
        known[key] = new


def _nodes_of(claim: ResourceClaim) -> set[str]:
    """Return the nodes of the devices of a claim."""
    return {pool for _, pool, _ in devices_of(claim)}
