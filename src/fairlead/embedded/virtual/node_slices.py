"""The ResourceSlices of virtual nodes: what the DRA drivers of real machines publish.

A node owns its slices, so they go with it. `publish` brings those of one node to what they are to
be and is called until it succeeds; what is there already stays as it is. A changed pool gets a
higher generation, so that nobody takes old and new slices for one pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.device_shapes import (
    DeviceShape,
    DeviceUnit,
    slices_of,
    unit_of,
    units_of,
)
from fairlead.api.kubernetes.devices import ResourceSlice
from fairlead.api.meta import to_wire
from fairlead.api.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from fairlead.api.status import AlreadyExists, NotFound
from fairlead.embedded.own_controllers.node_devices import claims_of, devices_of
from fairlead.embedded.virtual.profile import NodeShape, device_class_bodies
from fairlead.runtime.client import Client


class NodeSlices:
    """The devices of all nodes that are driven here."""

    def __init__(self, client: Client, shape: NodeShape) -> None:
        """`shape` is that of nodes without a pool."""
        self._client = client
        self._shape = shape
        self._shapes: dict[str, tuple[DeviceShape, ...]] = {}
        self._uids: dict[str, str] = {}
        #: By node: its devices that have failed, in the order in which they did.
        self._lost: dict[str, list[DeviceUnit]] = {}
        #: By node: its slices, as far as they are known.
        self._present: dict[str, dict[str, ResourceSlice]] = {}

    async def start(self) -> None:
        """Create the classes that are missing, and note the slices that there are."""
        await self._ensure_classes(self._shape)
        with suppress(NotFound):  # a server before Kubernetes 1.34
            for found in (await self._client.list(RESOURCE_SLICES)).items:
                of_node = self._present.setdefault(found.spec.node_name, {})
                of_node[found.metadata.name] = found

    def add(self, node: Node, shapes: Sequence[DeviceShape] | None = None) -> bool:
        """Take in a node, and what it has, by default that of its kind; True: publish it.

        What the machine of a pool has was stated when it was launched. Not stated: its slices stay.
        """
        name = node.metadata.name
        if shapes is None and names.POOL in node.metadata.labels:
            return False
        self._shapes[name] = self._shape.devices if shapes is None else tuple(shapes)
        self._uids[name] = node.metadata.uid
        return bool(self._shapes[name] or self._present.get(name))

    def forget(self, name: str) -> None:
        """Note that a node is not driven any more."""
        for known in (self._shapes, self._uids, self._lost, self._present):
            known.pop(name, None)

    async def publish(self, name: str) -> None:
        """Write the slices of a node where they are not as they should be."""
        present = self._present.setdefault(name, {})
        shapes, lost = self._shapes.get(name, ()), self._lost.get(name, ())
        generation = max((each.spec.pool.generation for each in present.values()), default=1)
        wanted = _by_name(slices_of(name, shapes, lost, generation=generation))
        if _specs(wanted) == _specs(present):
            return
        if present:
            wanted = _by_name(slices_of(name, shapes, lost, generation=generation + 1))
        for key in [key for key in present if key not in wanted]:
            with suppress(NotFound):
                await self._client.delete(RESOURCE_SLICES, key)
            del present[key]
        for key, each in wanted.items():
            if key not in present or present[key].spec != each.spec:
                present[key] = await self._write(each, self._uids[name])

    async def _write(self, wanted: ResourceSlice, node_uid: str) -> ResourceSlice:
        name, spec, pool = wanted.metadata.name, to_wire(wanted.spec), wanted.spec.pool
        spec["pool"] = {
            "name": pool.name, "generation": pool.generation,
            "resourceSliceCount": pool.resource_slice_count,
        }  # fmt: skip
        owner = {"apiVersion": "v1", "kind": "Node", "name": wanted.spec.node_name,
                 "uid": node_uid, "controller": True}  # fmt: skip
        body: dict[str, Any] = {
            "metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec
        }  # fmt: skip
        try:
            return await self._client.create(RESOURCE_SLICES, body)
        except AlreadyExists:
            # Merged: what is left out must be named to go.
            body["spec"] = {"devices": None, "sharedCounters": None, **spec}
        try:
            return await self._client.patch(RESOURCE_SLICES, name, body)
        except NotFound:  # deleted in between
            return await self._write(wanted, node_uid)

    async def ensure_classes(self, shapes: Sequence[DeviceShape]) -> None:
        """Create the classes of the drivers of some devices, where they are missing."""
        await self._ensure_classes(NodeShape(devices=tuple(shapes)))

    async def _ensure_classes(self, shape: NodeShape) -> None:
        for body in device_class_bodies(shape):
            with suppress(AlreadyExists):
                await self._client.create(DEVICE_CLASSES, body)

    # Devices that fail

    def fail(self, name: str, draw: float) -> DeviceUnit | None:
        """Let a device of a node fail, chosen by `draw` in [0, 1); None where none is left."""
        lost = self._lost.setdefault(name, [])
        left = [unit for unit in units_of(self._shapes.get(name, ())) if unit not in lost]
        if not left:
            return None
        lost.append(left[int(draw * len(left))])
        return lost[-1]

    def mend(self, name: str) -> bool:
        """Mend the device of a node that failed first; False where none has."""
        lost = self._lost.get(name)
        if not lost:
            return False
        del lost[0]
        return True

    async def users_of(self, name: str, unit: DeviceUnit, pods: Iterable[Pod]) -> list[Pod]:
        """Return those of these pods of a node whose claims have a device, or a part of it."""
        shapes = self._shapes.get(name, ())
        found: list[Pod] = []
        for pod in pods:
            for (namespace, claim), _ in claims_of(pod):
                with suppress(NotFound):
                    has = await self._client.get(RESOURCE_CLAIMS, claim, namespace=namespace)
                    if any(
                        pool == name and unit_of(shapes, driver, device) == unit
                        for driver, pool, device in devices_of(has)
                    ):
                        found.append(pod)
                        break
        return found


def _by_name(slices: Iterable[ResourceSlice]) -> dict[str, ResourceSlice]:
    return {each.metadata.name: each for each in slices}


def _specs(slices: dict[str, ResourceSlice]) -> dict[str, Any]:
    return {name: each.spec for name, each in slices.items()}
