"""Binds the claims of an embedded cluster, as the controllers and provisioners of a real one do.

A claim gets a volume that is there and will do, the smallest first; else one is made for it. Where
its class waits for the first pod, that is done once a pod that uses it has a node, and the volume
can then be reached from that node; not for a pod that does not reach its other volumes from there,
which kube-scheduler would not have bound. A volume here is a name: the local node keeps a directory
for each claim, and virtual nodes mount nothing.

    claim without a volume -> Bind(claim, volume, is_new)
    volume whose claim is gone -> Release(volume): deleted, or kept as Released

Every step of an action is found done when it is repeated. What kube-controller-manager does:
`pkg/controller/volume/persistentvolume/pv_controller.go`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.selectors import selector_of, selects_node
from fairlead.api.kubernetes.volumes import (
    BIND_COMPLETED,
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from fairlead.api.meta import Amount
from fairlead.api.resources import CLAIMS, STORAGE_CLASSES, VOLUMES
from fairlead.api.status import AlreadyExists
from fairlead.api.values.quantity import to_base
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.embedded.own_controllers.own_mirrors import OwnMirrorsController
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror

_ZONE = "topology.kubernetes.io/zone"
_BOUND, _RELEASED = "Bound", "Released"


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a claim to a volume; `is_new`: which is made first."""

    claim: PersistentVolumeClaim
    volume: dict[str, Any]
    is_new: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Delete a volume whose claim is gone, or keep it as Released."""

    volume: PersistentVolume


Action: TypeAlias = Bind | Release


class VolumeBinder(OwnMirrorsController[Action]):
    """A controller beside the API server, with mirrors of its own but for pods and nodes."""

    name = "volumes"

    def __init__(
        self, client: Client, pods: Mirror[Pod], nodes: Mirror[Node], *, clock: Clock,
        rng: random.Random,
    ) -> None:  # fmt: skip
        self._client = client
        self._objects = ObjectWriter(client)
        self._clock, self._rng = clock, rng
        self._pods, self._nodes = pods, nodes
        self._claims = Mirror(client, CLAIMS, clock=clock, rng=rng)
        self._volumes = Mirror(client, VOLUMES, clock=clock, rng=rng)
        self._classes = Mirror(client, STORAGE_CLASSES, clock=clock, rng=rng)
        #: By claim: the nodes of pods that use it, by pod.
        self._used_on: dict[ObjectKey, dict[ObjectKey, str]] = {}
        self.own = (self._claims, self._volumes, self._classes)
        self._others = (pods, nodes)
        self._unregister = (
            pods.on_change(self._pod_changed),
            *(mirror.on_change(self._changed) for mirror in self.own),
        )

    def key_of(self, action: Action) -> ObjectKey:
        """Return the claim or the volume of an action."""
        return (action.claim if isinstance(action, Bind) else action.volume).metadata.key

    def decide(self, now: float) -> Decision[Action]:
        """Return what is to be bound and released."""
        self._is_due = False
        volumes = {each.metadata.name: each for each in self._volumes.items()}
        owned = {
            (ref.namespace, ref.name, ref.uid): each.metadata.name
            for each in volumes.values()
            if (ref := each.spec.claim_ref) is not None and ref.uid
        }
        actions: list[Action] = []
        served: set[ObjectKey] = set()  # pods that get a volume now: their other claims come later
        for claim in sorted(self._claims.items(), key=self._order):
            key = (*claim.metadata.key, claim.metadata.uid)
            own = volumes.pop(owned[key], None) if key in owned else None
            if claim.is_bound or claim.metadata.deletion_timestamp is not None:
                continue
            bind = self._bind(claim, [own] if own is not None else list(volumes.values()))
            if bind is not None:
                volumes.pop(bind.volume["metadata"]["name"], None)
                users = self._used_on.get(claim.metadata.key, {}).keys()
                if served.isdisjoint(users):
                    actions.append(bind)
                served |= users
        claims = {(*each.metadata.key, each.metadata.uid) for each in self._claims.items()}
        gone = (owned[key] for key in sorted(owned.keys() - claims))
        found = (self._volumes.get("", name) for name in gone)
        actions += [Release(v) for v in found if v is not None and v.status.phase != _RELEASED]
        return Decision(tuple(actions))

    def _order(self, claim: PersistentVolumeClaim) -> tuple[int, ObjectKey]:
        """Sort claims that most pods share first: these have to be where all of them are."""
        return (-len(self._used_on.get(claim.metadata.key, ())), claim.metadata.key)

    def _bind(
        self, claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]
    ) -> Bind | None:
        found = self._classes.get("", claim.storage_class)
        node: Node | None = None
        if found is not None and found.waits_for_consumer:
            node = self._first_node(claim)
            if node is None:
                return None
        if name := claim.spec.volume_name:
            volumes = [each for each in volumes if each.metadata.name == name]
        fitting = [each for each in volumes if _will_do(each, claim, node)]
        if fitting:
            best = min(fitting, key=lambda each: (_size(each.spec.capacity), each.metadata.name))
            return Bind(claim, {"metadata": {"name": best.metadata.name}}, is_new=False)
        if name or (found is None and claim.storage_class):
            return None
        if found is not None and not found.makes_volumes:
            return None
        return Bind(claim, new_volume(claim, found, node), is_new=True)

    def _first_node(self, claim: PersistentVolumeClaim) -> Node | None:
        """Return the node that was selected for a claim, or the one of its first pod."""
        if selected := claim.metadata.annotations.get(SELECTED_NODE, ""):
            return self._nodes.get("", selected)
        for pod, name in sorted(self._used_on.get(claim.metadata.key, {}).items()):
            node = self._nodes.get("", name)
            if node is not None and all(_is_near(each, node) for each in self._volumes_of(pod)):
                return node
        return None

    def _volumes_of(self, key: ObjectKey) -> Iterator[PersistentVolume]:
        """Yield the volumes that the claims of a pod have."""
        pod = self._pods.get(*key)
        for each in _claims(pod) if pod is not None else ():
            claim = self._claims.get(*each)
            volume = self._volumes.get("", claim.spec.volume_name) if claim is not None else None
            if volume is not None:
                yield volume

    async def perform(self, action: Action) -> Written | None:
        """Bind both sides, the volume first; or release a volume."""
        if isinstance(action, Release):
            return await self._release(action.volume)
        claim, name = action.claim, action.volume["metadata"]["name"]
        if action.is_new:
            with suppress(AlreadyExists):  # by an earlier try: the name has the uid of the claim
                await self._client.create(VOLUMES, action.volume)
        own = {"spec": {"claimRef": claim_reference(claim)}}
        await self._client.patch(VOLUMES, name, own)
        volume = await self._client.patch(
            VOLUMES, name, {"status": {"phase": _BOUND}}, subresource="status"
        )
        bound = {
            "metadata": {"annotations": {BIND_COMPLETED: "yes"}},
            "spec": {"volumeName": name},
        }
        await self._objects.patch(CLAIMS, claim.metadata, bound)
        status = {
            "phase": _BOUND,
            "capacity": volume.spec.capacity,
            "accessModes": list(volume.spec.access_modes),
        }
        namespace, claim_name = claim.metadata.key
        written = await self._client.patch(
            CLAIMS, claim_name, {"status": status}, namespace=namespace, subresource="status"
        )
        return Written.of(CLAIMS, written)

    async def _release(self, volume: PersistentVolume) -> Written | None:
        meta = volume.metadata
        if volume.spec.persistent_volume_reclaim_policy == "Delete":
            await self._client.delete(VOLUMES, meta.name, uid=meta.uid)
            return Written.deletion(VOLUMES, meta.key, meta.uid)
        return await self._objects.patch_status(VOLUMES, meta, {"phase": _RELEASED})

    def _pod_changed(self, change: Change[Pod]) -> None:
        for pod, is_there in ((change.old, False), (change.new, True)):
            for claim in _claims(pod) if pod is not None else ():
                used_on = self._used_on.setdefault(claim, {})
                if pod is not None and is_there and pod.spec.node_name and not pod.is_terminal:
                    used_on[change.key] = pod.spec.node_name
                else:
                    used_on.pop(change.key, None)
                if not used_on:
                    del self._used_on[claim]
                self._is_due = True


def new_volume(
    claim: PersistentVolumeClaim, found: StorageClass | None, node: Node | None
) -> dict[str, Any]:
    """Return the volume that is made for a claim, on behalf of a pod on `node`.

    It can be reached from where the class allows it; where a pod waits for it, from the zone of its
    node only, or what the class tells apart.
    """
    allowed = found.allowed_topologies if found is not None else ()
    terms = [[(each.key, each.values) for each in t.match_label_expressions] for t in allowed]
    if node is not None:
        keys = dict.fromkeys(key for term in terms for key, _ in term) or {_ZONE: None}
        here = node.metadata.labels
        terms = [[(key, (here[key],)) for key in keys if key in here]]
    meta, asked = claim.metadata, claim.spec
    spec: dict[str, Any] = {
        "capacity": dict(asked.resources.requests),
        "accessModes": list(asked.access_modes),
        "volumeMode": asked.volume_mode,
        "storageClassName": claim.storage_class,
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": claim_reference(claim),
    }
    if found is not None:
        spec["csi"] = {"driver": found.provisioner, "volumeHandle": f"pvc-{meta.uid}"}
    if any(terms):
        selector = [
            {"matchExpressions": [{"key": k, "operator": "In", "values": [*v]} for k, v in term]}
            for term in terms
        ]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": selector}}
    return {"metadata": {"name": f"pvc-{meta.uid}"}, "spec": spec}


def claim_reference(claim: PersistentVolumeClaim) -> dict[str, str]:
    """Return what a volume says of its claim."""
    meta = claim.metadata
    return {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta.namespace,
            "name": meta.name, "uid": meta.uid}  # fmt: skip


def _claims(pod: Pod) -> Iterator[ObjectKey]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield (pod.metadata.namespace, volume.persistent_volume_claim.claim_name)


def _is_near(volume: PersistentVolume, node: Node) -> bool:
    affinity, meta = volume.spec.node_affinity, node.metadata
    required = affinity.required if affinity is not None else None
    return required is None or selects_node(required, meta.labels, meta.name)


def _will_do(volume: PersistentVolume, claim: PersistentVolumeClaim, node: Node | None) -> bool:
    """True for a volume that may be bound to a claim, for a pod on a node."""
    spec, asked, owner = volume.spec, claim.spec, volume.spec.claim_ref
    if owner is not None:
        is_own = (owner.namespace, owner.name) == claim.metadata.key
        return is_own and owner.uid in ("", claim.metadata.uid)
    if volume.status.phase != "Available" or volume.storage_class != claim.storage_class:
        return False
    if node is not None and not _is_near(volume, node):
        return False
    if asked.selector is not None and not selector_of(asked.selector).matches(
        volume.metadata.labels
    ):
        return False
    return (
        spec.volume_mode == asked.volume_mode
        and set(asked.access_modes) <= set(spec.access_modes)
        and _size(asked.resources.requests) <= _size(spec.capacity)
    )


def _size(amounts: Mapping[str, Amount]) -> int:
    return to_base("storage", amounts.get("storage", 0))
