"""One copy of what many objects say alike, for the objects that a process holds decoded.

The members of a gang differ in a few words each, the nodes of a pool in little more than their
names and images; but each decoding makes every text, structure and mapping of an object again.
After decoding, a part that is equal to one seen before is replaced by that one. Parts are equal,
and immutable or never changed, so no reader can tell.
"""

from __future__ import annotations

import sys
from itertools import islice
from operator import is_
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import (
    Container,
    ContainerImage,
    ContainerStatus,
    Node,
    Pod,
    PodSpec,
)
from fairlead.api.meta import Amount, ObjectMeta
from fairlead.api.pods.pod_asks import drop_usual_amounts

PARTS_MAX, PARTS_FEW = 65_536, 1_024
#: Parts that are dropped at a time: each is hashed, which takes up to 3 us.
DROPPED_MAX = 2_048
#: To a part that is in the table alone: its key and value, a name in a loop, and an argument.
_OWN_REFERENCES = 4
#: Mappings, sets of images, and images that are remembered.
MAPPINGS_MAX, SETS_MAX, IMAGES_MAX = 4_096, 16_384, 65_536
_CONDITION_TEXTS = (
    "type", "status", "reason", "message", "last_heartbeat_time", "last_transition_time",
)  # fmt: skip
#: Of an object's metadata: what no other object has.
_OWN_TEXTS = frozenset(("name", "uid", "resource_version"))
_VERSIONS = (
    "kernel_version", "os_image", "container_runtime_version", "kubelet_version",
    "operating_system", "architecture",
)  # fmt: skip


class PodSharing:
    """One copy of what many pods say alike: the members of a gang differ in a few words each.

    A decoded pod is mostly small texts: environment, labels, tolerations, volumes, conditions. In a
    gang of a thousand nearly all of them are equal. Sharing them makes a quarter of what a pod
    takes. The table forgets what is in no pod any more whenever it has doubled, and everything when
    it is full.
    """

    def __init__(self, parts_max: int = PARTS_MAX, *, parts_few: int = PARTS_FEW) -> None:
        self._parts_max, self._parts_few = parts_max, min(parts_few, parts_max)
        self._sweep_at = self._parts_few
        self._parts: dict[Any, Any] = {}
        self._mappings = _Mappings()

    def __len__(self) -> int:
        return len(self._parts)

    def share(self, obj: object, *, has_shared_spec: bool = False) -> None:
        """Replace parts of a freshly decoded pod by equal ones; other kinds stay as they are.

        With `has_shared_spec` the spec is made of shared parts already, and the metadata is shared
        with other versions of the pod.
        """
        if type(obj) is not Pod:
            return
        if len(self._parts) >= self._sweep_at:
            self._sweep()
        drop_usual_amounts(obj)
        one, status = self._parts.setdefault, obj.status
        conditions = status.conditions
        if conditions:
            force_setattr(status, "conditions", one(conditions, conditions))
        if has_shared_spec:
            return
        force_setattr(status, "start_time", one(status.start_time, status.start_time))
        if status.host_ip:
            force_setattr(status, "host_ip", one(status.host_ip, status.host_ip))
        for state in status.container_statuses:
            self._share_state(state)
        self._share_metadata(obj.metadata)
        self._share_spec(obj.spec)

    def _sweep(self) -> None:
        parts = self._parts
        alone = (part for part in parts if sys.getrefcount(part) <= _OWN_REFERENCES)
        dropped = list(islice(alone, DROPPED_MAX))
        for part in dropped:
            del parts[part]
        if len(dropped) == DROPPED_MAX:
            self._sweep_at = len(parts) + self._parts_few
            return
        if 2 * len(parts) > self._parts_max:
            parts.clear()
        self._sweep_at = max(self._parts_few, 2 * len(parts))

    def _share_metadata(self, metadata: ObjectMeta) -> None:
        one, labels = self._parts.setdefault, metadata.labels
        for key, text in labels.items():
            labels[key] = one(text, text)
        owners, at = metadata.owner_references, metadata.creation_timestamp
        force_setattr(metadata, "owner_references", one(owners, owners))
        force_setattr(metadata, "creation_timestamp", one(at, at))
        force_setattr(metadata, "namespace", one(metadata.namespace, metadata.namespace))
        if metadata.annotations:
            force_setattr(metadata, "annotations", self._mappings.one(metadata.annotations))

    def _share_spec(self, spec: PodSpec) -> None:
        one = self._parts.setdefault
        tolerations, volumes = spec.tolerations, spec.volumes
        force_setattr(spec, "tolerations", one(tolerations, tolerations))
        force_setattr(spec, "volumes", one(volumes, volumes))
        if spec.hostname:
            force_setattr(spec, "hostname", one(spec.hostname, spec.hostname))
            force_setattr(spec, "subdomain", one(spec.subdomain, spec.subdomain))
        if spec.node_selector:
            force_setattr(spec, "node_selector", self._mappings.one(spec.node_selector))
        for container in (*spec.containers, *spec.init_containers):
            self._share_container(container)

    def _share_container(self, container: Container) -> None:
        put, one = force_setattr, self._parts.setdefault
        put(container, "env", tuple([one(variable, variable) for variable in container.env]))
        mounts, command, sources = container.volume_mounts, container.command, container.env_from
        put(container, "volume_mounts", one(mounts, mounts))
        put(container, "command", one(command, command))
        put(container, "image", one(container.image, container.image))
        if sources:
            put(container, "env_from", one(sources, sources))
        if container.args:
            put(container, "args", one(container.args, container.args))
        asked = container.resources
        if asked.limits or asked.requests:
            put(asked, "limits", self._mappings.one(asked.limits))
            put(asked, "requests", self._mappings.one(asked.requests))

    def _share_state(self, state: ContainerStatus) -> None:
        put, one = force_setattr, self._parts.setdefault
        put(state, "image", one(state.image, state.image))
        put(state, "state", one(state.state, state.state))
        if state.image_id:
            put(state, "image_id", one(state.image_id, state.image_id))


class NodeSharing:
    """One copy of what many nodes say alike: their images, amounts, conditions and versions.

    A kubelet reports 50 images with several names each, some 15 kB. The nodes of a pool have most
    of them in common. A set that is equal to one seen before is replaced by that one; of a new set
    each image is. So a node costs no more than a reference for each image, and for images that did
    not change since its last report nothing. The tables forget everything when they are full.
    """

    def __init__(self, sets_max: int = SETS_MAX, images_max: int = IMAGES_MAX) -> None:
        self._sets_max, self._images_max = sets_max, images_max
        self._sets: dict[tuple[ContainerImage, ...], tuple[ContainerImage, ...]] = {}
        self._images: dict[ContainerImage, ContainerImage] = {}
        self._mappings = _Mappings()
        self._parts: dict[Any, Any] = {}

    def share(self, node: Node) -> None:
        """Replace parts of a freshly decoded node by equal ones."""
        status, put = node.status, force_setattr
        if status.images:
            put(status, "images", self._sets.get(status.images) or self._added(status.images))
        put(status, "capacity", self._mappings.one(status.capacity))
        put(status, "allocatable", self._mappings.one(status.allocatable))
        if len(self._parts) >= PARTS_MAX:
            self._parts.clear()
        one, metadata = self._parts.setdefault, node.metadata
        for condition in status.conditions:
            for name in _CONDITION_TEXTS:
                text = getattr(condition, name)
                put(condition, name, one(text, text))
        info, labels, at = status.node_info, metadata.labels, metadata.creation_timestamp
        own = metadata.name
        for name in _VERSIONS:
            text = getattr(info, name)
            put(info, name, one(text, text))
        for key, text in labels.items():
            labels[key] = own if text == own else one(text, text)
        put(metadata, "creation_timestamp", one(at, at))

    def _added(self, images: tuple[ContainerImage, ...]) -> tuple[ContainerImage, ...]:
        if len(self._sets) >= self._sets_max:
            self._sets.clear()
        if len(self._images) >= self._images_max:
            self._images.clear()
        shared = tuple([self._images.setdefault(image, image) for image in images])
        self._sets[shared] = shared
        return shared


class JobSharing:
    """One copy of what many ended jobs say alike: conditions, reasons, the instants of one second.

    They are kept by the thousand and change no more. What each says is mostly small texts, the same
    few of them; one that still runs is decoded again at its next change, so it stays as it is. The
    table forgets everything when it is full.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def share(self, job: Job) -> None:
        """Replace the texts of a freshly decoded job that has ended by equal ones."""
        if job.status.finished_at is None:
            return
        if len(self._texts) >= PARTS_MAX:
            self._texts.clear()
        self._share_texts(job.metadata)
        self._share_texts(job.status)

    def _share_texts(self, part: msgspec.Struct) -> None:
        for name in part.__struct_fields__:
            if name not in _OWN_TEXTS:
                before = getattr(part, name)
                after = self._shared(before)
                if after is not before:
                    force_setattr(part, name, after)

    def _shared(self, value: Any) -> Any:
        """Return a value with its texts replaced; structures and mappings are changed in place."""
        if type(value) is str:
            return self._texts.setdefault(value, value)
        if type(value) is tuple and value:
            shared = tuple([self._shared(each) for each in value])
            return value if all(map(is_, shared, value)) else shared
        if type(value) is dict:
            for key, each in value.items():
                value[key] = self._shared(each)
        elif isinstance(value, msgspec.Struct):
            self._share_texts(value)
        return value


class _Mappings:
    """One copy of equal small mappings, which are not hashable; forgets everything when full."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, Amount], ...], dict[str, Any]] = {}

    def one(self, mapping: dict[str, Any]) -> dict[str, Any]:
        """Return the first mapping seen with these items in this order."""
        if len(self._known) >= MAPPINGS_MAX:
            self._known.clear()
        return self._known.setdefault(tuple(mapping.items()), mapping)
