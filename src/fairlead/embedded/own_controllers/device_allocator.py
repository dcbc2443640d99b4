"""The embedded cluster's part in claims for devices: what elsewhere kube-controller-manager and
kube-scheduler do.

    a pod with a node, a claim without devices -> devices that no claim has, of its node
    a pod that names a template                -> a claim of its own, which goes with it
    a pod whose resources devices serve        -> a claim for these, named in the pod's status
    a pod that is over                         -> its own claim is deleted, others are free of it

A claim that finds no devices on the node of its pod waits; the pod runs without, as pods of virtual
nodes mount nothing. The planner counts devices, so that is for pods that people bind by themselves.

The options of a request are tried in their order, with those of the others, as kube-scheduler does.
A namespace has so many tries in a decision: one that asks for what is costly delays its own pods.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
)
from fairlead.api.meta import to_wire
from fairlead.api.resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from fairlead.api.status import AlreadyExists
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.embedded.own_controllers.device_search import Allocation, Tries
from fairlead.embedded.own_controllers.node_devices import (
    TRIES_MAX,
    NodeDevices,
    claims_of,
    devices_of,
    id_of,
)
from fairlead.embedded.own_controllers.own_mirrors import OwnMirrorsController
from fairlead.embedded.own_controllers.served_pods import (
    ServedPods,
    is_served_claim,
    may_be_served,
    served_claim_key,
)
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror

#: After how long the pods of a namespace go on that came too late for a decision's tries.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class MakeClaim:
    """Make the claim of a pod from a template."""

    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Give a claim devices, or let it go, and say for which pods it is reserved."""

    claim: ResourceClaim
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NameClaim:
    """Name the claim for a pod's resources, which has devices, in the pod's status."""

    claim: ResourceClaim
    pod: Pod


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete the claim of a pod that is over."""

    claim: ResourceClaim


Action: TypeAlias = MakeClaim | SetStatus | NameClaim | DeleteClaim


class DeviceAllocator(OwnMirrorsController[Action]):
    """A controller beside the API server, with mirrors of its own but for pods."""

    name = "devices"

    def __init__(
        self,
        client: Client,
        pods: Mirror[Pod],
        nodes: Mirror[Node],
        *,
        clock: Clock,
        rng: random.Random,
        allocates: bool = True,
    ) -> None:
        """`allocates`: False where a scheduler does, before it binds; the rest is as elsewhere."""
        self._client = client
        self._clock, self._rng = clock, rng
        self._pods = pods
        self._claims = Mirror(client, RESOURCE_CLAIMS, clock=clock, rng=rng)
        self._templates = Mirror(client, RESOURCE_CLAIM_TEMPLATES, clock=clock, rng=rng)
        self._classes = Mirror(client, DEVICE_CLASSES, clock=clock, rng=rng)
        self._slices = Mirror(client, RESOURCE_SLICES, clock=clock, rng=rng)
        self._nodes = nodes
        self._served = ServedPods(lambda name: nodes.get("", name))
        self._devices = NodeDevices(lambda name: self._classes.get("", name), self._slices.items)
        self._allocates = allocates
        #: The pods that name claims, and those that ask for resources that devices may serve.
        self._users: dict[ObjectKey, Pod] = {}
        #: Pods whose devices were not found in all tries: they come after others.
        self._costly: dict[ObjectKey, None] = {}
        self.own = (self._claims, self._templates, self._classes, self._slices)
        self._others = (pods, nodes)
        self._unregister = (
            pods.on_change(self._pod_changed),
            *(mirror.on_change(self._changed) for mirror in self.own),
            self._classes.on_change(self._class_changed),
            nodes.on_change(self._node_changed),
        )

    def key_of(self, action: Action) -> ObjectKey:
        """Return the claim of an action."""
        return action.claim.metadata.key

    def decide(self, now: float) -> Decision[Action]:
        """Return what claims are to be made, get devices, and go."""
        self._is_due = False
        users: dict[ObjectKey, list[Pod]] = {}
        actions: list[Action] = []
        for pod in (self._users[key] for key in sorted(self._users)):
            if pod.is_terminal:
                continue
            for key, template in self._claims_of(pod):
                users.setdefault(key, []).append(pod)
                if template and self._claims.get(*key) is None:
                    actions += self._make(pod, key, template)
            actions += self._serve(pod)
        given, is_complete = self._allocated(users) if self._allocates else ({}, True)
        self._retry_at = None if is_complete else now + RETRY_SECONDS
        for claim in sorted(self._claims.items(), key=lambda each: each.metadata.key):
            key = claim.metadata.key
            if claim.metadata.deletion_timestamp is None:
                actions += self._follow(claim, users.get(key, []), given.get(key))
        return Decision(tuple(actions))

    def _claims_of(self, pod: Pod) -> Iterator[tuple[ObjectKey, str]]:
        """Yield the claims of a pod, each with the template that it is made from, or ""; at the end
        the one for its resources, once it is there.
        """
        yield from claims_of(pod)
        key = served_claim_key(pod)
        found = self._claims.get(*key)
        if found is not None and is_served_claim(found, pod):
            yield key, ""

    def _serve(self, pod: Pod) -> Iterator[MakeClaim | NameClaim]:
        """Yield what makes the claim for a pod's resources and names it in the pod's status."""
        if not self._allocates or pod.metadata.deletion_timestamp is not None:
            return
        found = self._claims.get(*served_claim_key(pod))
        if found is None:
            claim = self._served.claim_of(pod)
            if claim is not None:
                yield MakeClaim(claim)
            return
        is_named = pod.status.extended_resource_claim_status is not None
        if not is_named and is_served_claim(found, pod) and found.status.allocation is not None:
            yield NameClaim(found, pod)

    def _make(self, pod: Pod, key: ObjectKey, name: str) -> Iterator[MakeClaim]:
        template = self._templates.get(key[0], name)
        if template is not None and pod.metadata.deletion_timestamp is None:
            yield MakeClaim(_claim_of(pod, key, template))

    def _allocated(
        self, users: Mapping[ObjectKey, Sequence[Pod]]
    ) -> tuple[dict[ObjectKey, Allocation], bool]:
        """Return what claims get that have no devices, the claims of a pod together, and whether
        all pods had their turn.
        """
        taken = {id_ for claim in self._claims.items() for id_ in devices_of(claim)}
        given: dict[ObjectKey, Allocation] = {}
        pods = {pod.metadata.key: pod for each in users.values() for pod in each}
        self._costly = {key: None for key in self._costly if key in pods}
        tries: dict[str, Tries] = {}
        is_complete = True
        for key in sorted(pods, key=lambda each: (each in self._costly, each)):
            keys = [claim for claim, _ in self._claims_of(pods[key])]
            claims = [claim for each in keys if (claim := self._claims.get(*each)) is not None]
            if not pods[key].spec.node_name or len(claims) < len(keys):
                continue
            waiting = [
                each
                for each in claims
                if each.status.allocation is None and each.metadata.key not in given
            ]
            if not waiting:
                continue
            left = tries.setdefault(key[0], Tries(TRIES_MAX))
            if left.left <= 0:
                is_complete &= key in self._costly
                continue
            found = self._devices.allocate(waiting, pods[key].spec.node_name, taken, left)
            if found is not None:
                self._costly.pop(key, None)
            elif left.left <= 0:
                self._costly[key] = None
            for each, allocation in zip(waiting, found or (), strict=False):
                given[each.metadata.key] = allocation
                taken.update(id_of(result) for result in allocation["devices"]["results"])
        return given, is_complete

    def _follow(
        self, claim: ResourceClaim, users: Sequence[Pod], given: Allocation | None
    ) -> Iterator[Action]:
        """Yield what is to become of a claim, given the pods that use it and are not over."""
        if not users and claim.pod:
            yield DeleteClaim(claim)
            return
        held = {(each.name, each.uid) for each in claim.status.reserved_for}
        placed = [
            pod
            for pod in users
            if pod.spec.node_name or (pod.metadata.name, pod.metadata.uid) in held
        ]
        status: dict[str, Any] = to_wire(claim.status)
        if given is not None:
            status["allocation"] = given
        if not placed:
            status.pop("allocation", None)
        has_devices = "allocation" in status
        reserved = [
            {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
            for pod in placed
            if has_devices
        ]
        before = [(each.name, each.uid) for each in claim.status.reserved_for]
        is_same = before == [(each["name"], each["uid"]) for each in reserved]
        if not is_same or has_devices != (claim.status.allocation is not None):
            yield SetStatus(claim, {"allocation": None, **status, "reservedFor": reserved})

    async def perform(self, action: Action) -> Written | None:
        """Make a claim, change its status, or delete it."""
        claim = action.claim
        namespace, name = claim.metadata.key
        match action:
            case MakeClaim():
                with suppress(AlreadyExists):
                    made = await self._client.create(RESOURCE_CLAIMS, to_wire(claim),
                                                     namespace=namespace)  # fmt: skip
                    return Written.of(RESOURCE_CLAIMS, made)
                return None
            case SetStatus():
                body = {
                    "metadata": {"resourceVersion": claim.metadata.resource_version},
                    "status": action.status,
                }
                written = await self._client.patch(
                    RESOURCE_CLAIMS, name, body, namespace=namespace, subresource="status"
                )
                return Written.of(RESOURCE_CLAIMS, written)
            case NameClaim(_, pod):
                body = {
                    "metadata": {"uid": pod.metadata.uid},
                    "status": self._served.status_of(pod, claim),
                }
                named = await self._client.patch(
                    PODS, pod.metadata.name, body, namespace=namespace, subresource="status"
                )
                return Written.of(PODS, named)
            case DeleteClaim():
                uid = claim.metadata.uid
                await self._client.delete(RESOURCE_CLAIMS, name, namespace=namespace, uid=uid)
                return Written.deletion(RESOURCE_CLAIMS, claim.metadata.key, uid)

    def _class_changed(self, change: Change[DeviceClass]) -> None:
        self._served.classes.put(change.key[1], change.new)

    def _node_changed(self, change: Change[Node]) -> None:
        before = change.old.status.allocatable if change.old is not None else {}
        after = change.new.status.allocatable if change.new is not None else {}
        self._is_due |= bool(self._served.classes) and before != after

    def _pod_changed(self, change: Change[Pod]) -> None:
        before, now = self._users.pop(change.key, None), change.new
        if now is not None and (now.spec.resource_claims or may_be_served(now)):
            self._users[change.key] = now
        each = before or now
        has_claims = each is not None and bool(each.spec.resource_claims)
        if has_claims or (self._served.classes and (before is not None or now is not None)):
            self._is_due = True


def _claim_of(pod: Pod, key: ObjectKey, template: ResourceClaimTemplate) -> ResourceClaim:
    given, owner = template.spec.metadata, pod.metadata
    wire: dict[str, Any] = {
        "metadata": {
            "name": key[1],
            "namespace": key[0],
            "labels": dict(given.labels),
            "annotations": dict(given.annotations),
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid,
                "controller": True, "blockOwnerDeletion": True,
            }],
        },
        "spec": to_wire(template.spec.spec),
    }  # fmt: skip
    return msgspec.convert(wire, ResourceClaim)
