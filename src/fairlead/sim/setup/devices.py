"""Devices in simulated worlds: the claims that jobs make, who allocates them, and their checker.

`devices` of the workload give jobs claims (DRA), made from templates for each member, or one that
their members, and other jobs, share. The checker knows the objects alone: no device is of two
claims at a time, none is given that its node has not, no parts of one device are given that exceed
it together, and no pod that a claim is reserved for is on another node than its devices.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.device_shapes import slices_of
from fairlead.api.kubernetes.devices import ResourceClaim, ResourceSlice
from fairlead.api.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from fairlead.api.values.quantity import GPU, parse
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.own_controllers.device_allocator import DeviceAllocator
from fairlead.embedded.own_controllers.device_search import DeviceId
from fairlead.embedded.own_controllers.node_devices import devices_of
from fairlead.embedded.storage.records import Record
from fairlead.embedded.virtual.profile import NodeShape, device_class_bodies
from fairlead.model.claimed.device_selectors import device_expression
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer

KINDS = (RESOURCE_CLAIMS.name, RESOURCE_SLICES.name, DEVICE_CLASSES.name)
#: Who allocates has seen a slice after so long.
_SEEN_SECONDS = 5.0
#: What a virtual node has by default.
_NODE_GPUS = 8


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """Devices that each member of some jobs asks for by a claim of its own, or that all its members
    share.
    """

    device_class: str
    count: int = 1
    #: Of all jobs, those that ask for them.
    share: float = 1.0
    #: Which devices of the class will do, in CEL; "": all.
    expression: str = ""
    #: How many claims there are that jobs share; 0: each member has its own.
    shared: int = 0


def draw_device_claims(
    spec: Mapping[str, Any], wishes: Sequence[DeviceWish], rng: random.Random
) -> None:
    """Let each member of a job have a claim for what a wish says, or for nothing.

    A gang whose members share one is on one node, so it is one that has room there by all else.
    """
    drawn = rng.random()
    for number, wish in enumerate(wishes):
        if 0 <= drawn < wish.share:
            chosen = rng.randrange(wish.shared) if wish.shared else None
            if chosen is None or _fits_together(spec):
                _add_claim(spec, number, chosen)
        drawn -= wish.share


def _fits_together(spec: Mapping[str, Any]) -> bool:
    """True for a job all of whose members have room on a node, and nothing keeps them apart."""
    [role] = spec["roles"]
    pod = role["template"]["spec"]
    [container] = pod["containers"]
    rules = ("topology" in spec, "minCount" in role, "affinity" in pod, "ports" in container)
    return (
        not any(rules) and role["count"] * int(container["resources"]["limits"][GPU]) <= _NODE_GPUS
    )


def _add_claim(spec: Mapping[str, Any], number: int, chosen: int | None) -> None:
    pod = spec["roles"][0]["template"]["spec"]
    name = (
        {"resourceClaimTemplateName": _name(number)}
        if chosen is None
        else {"resourceClaimName": _shared_name(number, chosen)}
    )
    pod["resourceClaims"] = [{"name": "devices", **name}]
    resources = pod["containers"][0].setdefault("resources", {})
    resources["claims"] = [{"name": "devices"}]


def members_per_node(pod: Mapping[str, Any], wishes: Sequence[DeviceWish], shape: NodeShape) -> int:
    """Return for how many members an empty node has devices; only of pods with claims."""
    [claim] = pod["resourceClaims"]
    is_shared = "resourceClaimName" in claim
    name = claim["resourceClaimName" if is_shared else "resourceClaimTemplateName"]
    wish = wishes[int(name.split("-")[1])]
    texts = [
        selector["cel"]["expression"]
        for body in device_class_bodies(shape)
        if body["metadata"]["name"] == wish.device_class
        for selector in body["spec"]["selectors"]
    ]
    chosen = [device_expression(text) for text in (*texts, wish.expression) if text]
    left: dict[tuple[str, str], Fraction] = {}
    count = 0
    for each in slices_of("node", shape.devices) if texts else ():
        for found in each.spec.shared_counters:
            for name, counter in found.counters.items():
                left[found.name, name] = parse(counter.value)
        for device in each.spec.devices:
            uses = device.consumed
            is_free = all(left[key] >= amount for key, amount in uses.items())
            if is_free and all(e.matches(each.spec.driver, device) for e in chosen):
                count += 1
                for key, amount in uses.items():
                    left[key] -= amount
    return _NODE_GPUS * (count >= wish.count) if is_shared else count // wish.count


def _name(number: int) -> str:
    return f"devices-{number}"


def _shared_name(number: int, chosen: int) -> str:
    return f"{_name(number)}-shared-{chosen}"


class DeviceWorld:
    """Makes the templates of claims, and keeps claims as the other controllers of a cluster do."""

    def __init__(
        self, client: Client, clock: Clock, rng: random.Random, *, allocates: bool
    ) -> None:
        """`allocates`: False where the world has a scheduler that does."""
        self._client, self._clock, self._rng = client, clock, rng
        self._allocates = allocates

    async def run(self, namespaces: Sequence[str], wishes: Sequence[DeviceWish]) -> None:
        """Make templates and shared claims, without teams in the default namespace; then work until
        cancelled.
        """
        client, clock, rng = self._client, self._clock, self._rng
        for namespace in namespaces or (names.DEFAULT_NAMESPACE,):
            for number, wish in enumerate(wishes):
                body = {"metadata": {"name": _name(number)}, "spec": {"spec": _spec(wish)}}
                await client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=namespace)
                for i in range(wish.shared):
                    body = {"metadata": {"name": _shared_name(number, i)}, "spec": _spec(wish)}
                    await client.create(RESOURCE_CLAIMS, body, namespace=namespace)
        pods = Mirror(client, PODS, clock=clock, rng=rng)
        nodes = Mirror(client, NODES, clock=clock, rng=rng)
        keeper = DeviceAllocator(
            client, pods, nodes, clock=clock, rng=rng, allocates=self._allocates
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(pods.run())
            group.create_task(nodes.run())
            group.create_task(keeper.run())


def _spec(wish: DeviceWish) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": wish.device_class, "count": wish.count}
    if wish.expression:
        exactly["selectors"] = [{"cel": {"expression": wish.expression}}]
    return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}


class DeviceChecker(Observer):
    """`checked` counts the devices that claims got, `near` how often they were found to be on the
    node of a pod.
    """

    def __init__(self) -> None:
        self.checked = self.near = 0
        #: By device: its node. By uid of a pod: where it is, and the claims reserved for it.
        self._node_of: dict[DeviceId, str] = {}
        self._pods: dict[str, str] = {}
        self._reserved: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._slices: dict[str, ResourceSlice] = {}
        #: When a device vanished that was there.
        self._gone: dict[DeviceId, float] = {}
        self._claims: dict[ObjectKey, frozenset[DeviceId]] = {}
        self._claim_of: dict[DeviceId, ObjectKey] = {}
        self._users: dict[ObjectKey, list[str]] = {}

    def stored(self, kind: str, record: Record | None, key: ObjectKey, now: float) -> None:
        """Take in a claim or a slice that was written, or removed."""
        if kind == RESOURCE_CLAIMS.name:
            self.claim(None if record is None else record.typed(ResourceClaim), key, now)
        elif kind == RESOURCE_SLICES.name:
            self.device_slice(None if record is None else record.typed(ResourceSlice), key[1], now)

    def device_slice(self, new: ResourceSlice | None, name: str, now: float) -> None:
        """Note which devices there are."""
        before = self._slices.pop(name, None)
        there = set(_ids(new))
        if new is not None:
            self._slices[name] = new
        for each in set(_ids(before)) - there:
            self._gone[each] = now
        for each in there:
            self._gone.pop(each, None)
            self._node_of[each] = new.spec.node_name if new is not None else ""

    def claim(self, new: ResourceClaim | None, key: ObjectKey, now: float) -> None:
        """Judge the devices that a claim gets."""
        before = self._claims.pop(key, frozenset[DeviceId]())
        for uid in self._users.pop(key, ()):
            self._reserved[uid].discard(key)
        has = frozenset(devices_of(new) if new is not None else ())
        for each in before - has:
            del self._claim_of[each]
        if has:
            self._claims[key] = has
        for each in sorted(has - before):
            self.checked += 1
            other = self._claim_of.setdefault(each, key)
            if other != key:
                raise PromiseBroken(
                    f"1: device {each[2]} of {each[1]} is of the claims {other[1]} and {key[1]}"
                )
            self._check_there(each, key, now)
        for driver, pool in sorted({each[:2] for each in has - before}):
            self._check_counters(driver, pool)
        self._users[key] = [each.uid for each in new.status.reserved_for] if new is not None else []
        for uid in self._users[key]:
            self._reserved[uid].add(key)
            self._check_near(uid)

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Judge where a pod is that has a claim."""
        if new is not None and new.spec.node_name and new.spec.resource_claims:
            self._pods[new.metadata.uid] = new.spec.node_name
            self._check_near(new.metadata.uid)

    def _check_near(self, uid: str) -> None:
        """The devices of a pod's claims are on its node, once it is on one."""
        node = self._pods.get(uid)
        for claim in sorted(self._reserved.get(uid, ())) if node is not None else ():
            self.near += 1
            for device in sorted(self._claims.get(claim, ())):
                if (home := self._node_of[device]) != node:
                    raise PromiseBroken(
                        f"1: claim {claim[1]} has {device[2]} of {home} for a pod on {node}"
                    )

    def _check_there(self, device: DeviceId, claim: ObjectKey, now: float) -> None:
        if any(device in _ids(each) for each in self._slices.values()):
            return
        gone = self._gone.get(device)
        if gone is None or now - gone > _SEEN_SECONDS:
            since = "never was there" if gone is None else f"vanished {now - gone:.0f} s ago"
            raise PromiseBroken(f"1: claim {claim[1]} gets {device[2]} of {device[1]}: it {since}")

    def _check_counters(self, driver: str, pool: str) -> None:
        """Parts of a device that is there are given to no more than it has."""
        left: dict[tuple[str, str], Fraction] = {}
        used = Counter[tuple[str, str]]()
        for each in self._slices.values():
            if (each.spec.driver, each.spec.pool.name) != (driver, pool):
                continue
            for found in each.spec.shared_counters:
                for name, counter in found.counters.items():
                    left[found.name, name] = parse(counter.value)
            for device in each.spec.devices:
                if (driver, pool, device.name) in self._claim_of:
                    used.update(device.consumed)  # type: ignore[arg-type] # Fractions count
        for key, amount in sorted(used.items()):
            if amount > left.get(key, 0):
                raise PromiseBroken(f"1: claims have {amount} of {key[1]} of {key[0]} on {pool}")


def _ids(found: ResourceSlice | None) -> Iterator[DeviceId]:
    if found is not None:
        spec = found.spec
        yield from ((spec.driver, spec.pool.name, device.name) for device in spec.devices)
