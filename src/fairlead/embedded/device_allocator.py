"""The embedded cluster's part in claims for devices: what elsewhere kube-controller-manager and
kube-scheduler do.

    a pod with a node, a claim without devices -> devices that no claim has, of its node
    a pod that names a template                -> a claim of its own, which goes with it
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
from fractions import Fraction
from typing import Any, TypeAlias

import msgspec

from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.devices import (
    Device,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.meta import to_wire
from fairlead.api.resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.api.values.quantity import QuantityError, parse
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.embedded.device_search import (
    Allocation,
    CounterKey,
    DeviceId,
    SharedUse,
    Tries,
    Way,
    allocations,
    find_devices,
)
from fairlead.embedded.own_mirrors import run_with_mirrors
from fairlead.model.claimed.device_asks import (
    ALL,
    ClaimName,
    ClaimPart,
    DeviceKind,
    DeviceOption,
    UnsupportedClaim,
    parts_of,
)
from fairlead.model.claimed.device_selectors import (
    ExpressionError,
    alike,
    device_expression,
    is_chosen,
    will_do,
)
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.mirror import Change, Mirror

#: Devices that are tried for the pods of a namespace in one decision; and after how long those go
#: on that came too late for it.
TRIES_MAX, RETRY_SECONDS = 10_000, 1.0


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
class DeleteClaim:
    """Delete the claim of a pod that is over."""

    claim: ResourceClaim


Action: TypeAlias = MakeClaim | SetStatus | DeleteClaim


class DeviceAllocator:
    """A controller beside the API server, with mirrors of its own but for pods."""

    name = "devices"

    def __init__(
        self, client: Client, pods: Mirror[Pod], *, clock: Clock, rng: random.Random
    ) -> None:
        self._client = client
        self._clock, self._rng = clock, rng
        self._pods = pods
        self._claims = Mirror(client, RESOURCE_CLAIMS, clock=clock, rng=rng)
        self._templates = Mirror(client, RESOURCE_CLAIM_TEMPLATES, clock=clock, rng=rng)
        self._classes = Mirror(client, DEVICE_CLASSES, clock=clock, rng=rng)
        self._slices = Mirror(client, RESOURCE_SLICES, clock=clock, rng=rng)
        #: The pods that name claims.
        self._users: dict[ObjectKey, Pod] = {}
        self._is_due = True
        #: Pods whose devices were not found in all tries: they come after others.
        self._costly: dict[ObjectKey, None] = {}
        self._retry_at: float | None = None
        self._unregister = (
            pods.on_change(self._pod_changed),
            *(mirror.on_change(self._changed) for mirror in self.own),
        )

    @property
    def own(self) -> tuple[Mirror[Any], ...]:
        """The mirrors that it runs itself."""
        return (self._claims, self._templates, self._classes, self._slices)

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (*self.own, self._pods)

    def close(self) -> None:
        """Take its handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    async def run(self) -> None:
        """Allocate until cancelled, with its own mirrors."""
        try:
            await run_with_mirrors(self, self.own, "devices", clock=self._clock, rng=self._rng)
        finally:
            self.close()

    def due_at(self) -> float | None:
        """Return when to decide again: at once after a change that may matter."""
        return 0.0 if self._is_due else self._retry_at

    def key_of(self, action: Action) -> ObjectKey:
        """Return the claim of an action."""
        return action.claim.metadata.key

    def changed(self, key: ObjectKey) -> None:
        """Look at everything again."""
        self._is_due = True

    def failed(self, action: Action, error: ApiError) -> None:
        """Do nothing: the loop calls `changed` later."""

    def faulted(self, action: Action, error: Exception) -> None:
        """Raise the error: it is no object's."""
        raise error

    def decide(self, now: float) -> Decision[Action]:
        """Return what claims are to be made, get devices, and go."""
        self._is_due = False
        users: dict[ObjectKey, list[Pod]] = {}
        actions: list[Action] = []
        for pod in (self._users[key] for key in sorted(self._users)):
            if pod.is_terminal:
                continue
            for key, template in _claims(pod):
                users.setdefault(key, []).append(pod)
                if template and self._claims.get(*key) is None:
                    actions += self._make(pod, key, template)
        given, is_complete = self._allocated(users)
        self._retry_at = None if is_complete else now + RETRY_SECONDS
        for claim in sorted(self._claims.items(), key=lambda each: each.metadata.key):
            key = claim.metadata.key
            if claim.metadata.deletion_timestamp is None:
                actions += self._follow(claim, users.get(key, []), given.get(key))
        return Decision(tuple(actions))

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
        taken = {id_ for claim in self._claims.items() for id_ in _devices_of(claim)}
        given: dict[ObjectKey, Allocation] = {}
        pods = {pod.metadata.key: pod for each in users.values() for pod in each}
        self._costly = {key: None for key in self._costly if key in pods}
        tries: dict[str, Tries] = {}
        is_complete = True
        for key in sorted(pods, key=lambda each: (each in self._costly, each)):
            keys = [claim for claim, _ in _claims(pods[key])]
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
            found = self._allocate(waiting, pods[key].spec.node_name, taken, left)
            if found is not None:
                self._costly.pop(key, None)
            elif left.left <= 0:
                self._costly[key] = None
            for each, allocation in zip(waiting, found or (), strict=False):
                given[each.metadata.key] = allocation
                taken.update(_id(result) for result in allocation["devices"]["results"])
        return given, is_complete

    def _follow(
        self, claim: ResourceClaim, users: Sequence[Pod], given: Allocation | None
    ) -> Iterator[Action]:
        """Yield what is to become of a claim, given the pods that use it and are not over."""
        if not users and claim.pod:
            yield DeleteClaim(claim)
            return
        placed = [pod for pod in users if pod.spec.node_name]
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

    def _allocate(
        self, claims: Sequence[ResourceClaim], node: str, taken: set[DeviceId], tries: Tries
    ) -> list[Allocation] | None:
        """Return devices of a node for each claim; None: too few, or not found in so many tries."""
        ways: list[list[list[tuple[int, Way]]]] = []
        for i, claim in enumerate(claims):
            name = ClaimName(claim.metadata.name, is_template=False)
            parts = parts_of(name, claim.spec.devices)
            if isinstance(parts, UnsupportedClaim):
                return None
            for part in parts:
                found = self._ways(part, node, taken, tries)
                ways.append([[(i, way) for way in each] for each in found])
        try:
            shared = self._shared(node, taken)
        except QuantityError:  # no admission has seen the slice
            return None
        found = find_devices(ways, shared, tries)
        return None if found is None else allocations(len(claims), *found, node)

    def _ways(
        self, part: ClaimPart, node: str, taken: set[DeviceId], tries: Tries
    ) -> Iterator[list[Way]]:
        """Yield the ways to serve a part of a claim: its options, or all of them by devices that
        are alike.
        """
        found = [self._way(option, node, taken, tries) for option in part.options]
        chosen = [way for way in found if way is not None]
        if not part.alike:
            yield from ([way] for way in chosen)
            return
        if len(chosen) < len(found):
            return
        kind = DeviceKind(alike=part.alike)
        devices = {(driver, pool, each.name): each for driver, pool, each in self._on(node)}
        values = {id_: alike(kind, id_[0], devices[id_]) for way in chosen for id_ in way.devices}
        for value in dict.fromkeys(each for each in values.values() if None not in each):
            ways = [
                Way(way.name, way.count, [id_ for id_ in way.devices if values[id_] == value])
                for way in chosen
            ]
            if all(len(way.devices) >= way.count for way in ways):
                yield ways

    def _way(
        self, option: DeviceOption, node: str, taken: set[DeviceId], tries: Tries
    ) -> Way | None:
        """Return what a node has for an option of a request; None for too few devices."""
        if not tries.take():
            return None
        kind, count = option.ask.kind, option.ask.count
        found = list(self._fitting(kind, node, is_for_all=count == ALL))
        tries.take(len(found))
        free = [id_ for id_ in found if id_ not in taken]
        if count == ALL:
            is_had = 0 < len(free) == len(found) <= option.ask.most
            return Way(option.name, len(free), free) if is_had else None
        return Way(option.name, count, free) if len(free) >= count else None

    def _shared(self, node: str, taken: set[DeviceId]) -> SharedUse:
        """Return what devices of a node consume of counters, and what is left of these."""
        left: dict[CounterKey, Fraction] = {}
        uses: dict[DeviceId, dict[CounterKey, Fraction]] = {}
        for driver, pool, each in self._slices_on(node):
            for found in each.spec.shared_counters:
                for name, counter in found.counters.items():
                    left[driver, pool, found.name, name] = parse(counter.value)
            for device in each.spec.devices:
                if device.consumes_counters:
                    consumed = device.consumed.items()
                    uses[driver, pool, device.name] = {
                        (driver, pool, *key): amount for key, amount in consumed
                    }
        shared = SharedUse(left, uses)
        for id_ in taken & uses.keys():
            shared.take(id_, 1)
        return shared

    def _fitting(self, kind: DeviceKind, node: str, *, is_for_all: bool) -> Iterator[DeviceId]:
        """Yield the devices of a node that are of a kind; none where an expression fails, where
        they are not alike in what they are to be, or where all are wanted and one cannot be had.
        """
        found = self._classes.get("", kind.device_class)
        of_class = found.spec.selectors if found is not None else ()
        expressions = [each.cel.expression for each in of_class if each.cel is not None]
        try:
            selectors = [device_expression(each) for each in (*expressions, *kind.selectors)]
            if found is None or len(expressions) < len(of_class):
                return
            every = [e for e in self._on(node) if is_chosen(selectors, e[0], e[2])]
            chosen = [e for e in every if e[2].is_plain and will_do(kind, selectors, e[0], e[2])]
            if is_for_all and len(chosen) < len(every):
                return
            if len({alike(kind, driver, device) for driver, _, device in chosen}) <= 1:
                yield from ((driver, pool, device.name) for driver, pool, device in chosen)
        except ExpressionError:
            return

    def _on(self, node: str) -> Iterator[tuple[str, str, Device]]:
        for driver, pool, each in self._slices_on(node):
            yield from ((driver, pool, device) for device in each.spec.devices)

    def _slices_on(self, node: str) -> Iterator[tuple[str, str, ResourceSlice]]:
        for each in sorted(self._slices.items(), key=lambda s: s.metadata.name):
            if each.spec.node_name == node and self._is_newest(each):
                yield each.spec.driver, each.spec.pool.name, each

    def _is_newest(self, given: ResourceSlice) -> bool:
        pool = given.spec.pool
        return not any(
            other.pool_key == given.pool_key and other.spec.pool.generation > pool.generation
            for other in self._slices.items()
        )

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
            case DeleteClaim():
                uid = claim.metadata.uid
                await self._client.delete(RESOURCE_CLAIMS, name, namespace=namespace, uid=uid)
                return Written.deletion(RESOURCE_CLAIMS, claim.metadata.key, uid)

    def _changed(self, change: Change[Any]) -> None:
        self._is_due = True

    def _pod_changed(self, change: Change[Pod]) -> None:
        before = self._users.pop(change.key, None)
        if change.new is not None and change.new.spec.resource_claims:
            self._users[change.key] = change.new
        if before is not None or change.key in self._users:
            self._is_due = True


def own_claim_name(pod: str, claim: str) -> str:
    """Return the name of the claim that a pod has of its own for one of its claims."""
    return f"{pod}-{claim}"


def _claims(pod: Pod) -> Iterator[tuple[ObjectKey, str]]:
    """Yield the claims of a pod, each with the template that it is made from, or ""."""
    namespace, pod_name = pod.metadata.key
    for each in pod.spec.resource_claims:
        template = each.resource_claim_template_name
        name = own_claim_name(pod_name, each.name) if template else each.resource_claim_name
        yield (namespace, name), template


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


def _devices_of(claim: ResourceClaim) -> Iterator[DeviceId]:
    allocation = claim.status.allocation
    for each in () if allocation is None else allocation.devices.results:
        yield (each.driver, each.pool, each.device)


def _id(result: dict[str, str]) -> DeviceId:
    return (result["driver"], result["pool"], result["device"])
