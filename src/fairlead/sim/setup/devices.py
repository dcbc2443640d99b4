"""Devices in simulated worlds: the claims that jobs make, who allocates them, and their checker.

`devices` of the workload give jobs claims (DRA), made from templates for each member. The checker
knows the objects alone: no device is of two claims at a time, none is given that its node has not,
and no parts of one device are given that exceed it together.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fairlead.api import names
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
from fairlead.api.values.quantity import parse
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


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """Devices that each member of some jobs asks for by a claim of its own."""

    device_class: str
    count: int = 1
    #: Of all jobs, those that ask for them.
    share: float = 1.0
    #: Which devices of the class will do, in CEL; "": all.
    expression: str = ""


def draw_device_claims(
    spec: Mapping[str, Any], wishes: Sequence[DeviceWish], rng: random.Random
) -> None:
    """Let each member of a job have a claim for what a wish says, or for nothing."""
    drawn = rng.random()
    for number, wish in enumerate(wishes):
        if 0 <= drawn < wish.share:
            _add_claim(spec, number)
        drawn -= wish.share


def _add_claim(spec: Mapping[str, Any], number: int) -> None:
    pod = spec["roles"][0]["template"]["spec"]
    pod["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": _name(number)}]
    resources = pod["containers"][0].setdefault("resources", {})
    resources["claims"] = [{"name": "devices"}]


def members_per_node(pod: Mapping[str, Any], wishes: Sequence[DeviceWish], shape: NodeShape) -> int:
    """Return for how many members an empty node has devices; only of pods with claims."""
    [claim] = pod["resourceClaims"]
    wish = wishes[int(claim["resourceClaimTemplateName"].rpartition("-")[2])]
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
    return count // wish.count


def _name(number: int) -> str:
    return f"devices-{number}"


class DeviceWorld:
    """Makes the templates of claims, and keeps claims as the other controllers of a cluster do."""

    def __init__(
        self, client: Client, clock: Clock, rng: random.Random, *, allocates: bool
    ) -> None:
        """`allocates`: False where the world has a scheduler that does."""
        self._client, self._clock, self._rng = client, clock, rng
        self._allocates = allocates

    async def run(self, namespaces: Sequence[str], wishes: Sequence[DeviceWish]) -> None:
        """Make the templates, without teams in the default namespace; then work until cancelled."""
        client, clock, rng = self._client, self._clock, self._rng
        for namespace in namespaces or (names.DEFAULT_NAMESPACE,):
            for number, wish in enumerate(wishes):
                body = {"metadata": {"name": _name(number)}, "spec": {"spec": _spec(wish)}}
                await client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=namespace)
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
    """`checked` counts the devices that claims got."""

    def __init__(self) -> None:
        self.checked = 0
        self._slices: dict[str, ResourceSlice] = {}
        #: When a device vanished that was there.
        self._gone: dict[DeviceId, float] = {}
        self._claims: dict[ObjectKey, frozenset[DeviceId]] = {}
        self._claim_of: dict[DeviceId, ObjectKey] = {}

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

    def claim(self, new: ResourceClaim | None, key: ObjectKey, now: float) -> None:
        """Judge the devices that a claim gets."""
        before = self._claims.pop(key, frozenset[DeviceId]())
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
