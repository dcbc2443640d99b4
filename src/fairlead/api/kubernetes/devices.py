"""The parts of claims for devices, classes and slices that Fairlead reads (DRA).

Source: resource.k8s.io/v1 `types.go`, 1.36. What a claim asks for is read as it is written
(`model/claimed/device_asks.py`): a field that is not known there must not be lost before it is
refused.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec

from fairlead.api.kubernetes.core import NodeSelector
from fairlead.api.meta import Amount, ObjectMeta, Wire
from fairlead.api.values.quantity import parse


class DeviceSpec(Wire, frozen=True):
    """What a claim asks for; `requests` and `constraints` as written."""

    requests: tuple[dict[str, Any], ...] = ()
    constraints: tuple[dict[str, Any], ...] = ()


class ResourceClaimSpec(Wire, frozen=True):
    """What devices are asked for."""

    devices: DeviceSpec = DeviceSpec()


class AllocatedDevice(Wire, frozen=True):
    """A device that a claim has."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    request: str = ""
    admin_access: bool = False

    @property
    def pool_key(self) -> tuple[str, str]:
        """Driver and pool."""
        return (self.driver, self.pool)


class AllocatedDevices(Wire, frozen=True):
    """The devices of a claim."""

    results: tuple[AllocatedDevice, ...] = ()


class DeviceAllocation(Wire, frozen=True):
    """The devices of a claim, and the nodes that reach them; None: all nodes."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class ClaimConsumer(Wire, frozen=True):
    """Who may use a claim, usually a pod."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = msgspec.field(name="apiGroup", default="")


class ResourceClaimStatus(Wire, frozen=True):
    """The devices that a claim has, and the pods that they are reserved for."""

    allocation: DeviceAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(Wire, frozen=True):
    """A wish for devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def pod(self) -> str:
        """The name of the pod for which it was made; "" for a claim that was made by itself."""
        owners = self.metadata.owner_references
        return next((each.name for each in owners if each.kind == "Pod"), "")


class ResourceClaimTemplateSpec(Wire, frozen=True):
    """What each claim is that is made from a template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Wire, frozen=True):
    """A claim for each pod that names the template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class CelSelector(Wire, frozen=True):
    """An expression that is true for the devices that will do."""

    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    """Which devices will do; None: a kind of selector that is not known."""

    cel: CelSelector | None = None


class DeviceClassSpec(Wire, frozen=True):
    """Which devices are of a class: those that all selectors choose."""

    selectors: tuple[DeviceSelector, ...] = ()
    #: The resource of containers that its devices serve where a node has none of it (KEP-5004).
    extended_resource_name: str = ""


class DeviceClass(Wire, frozen=True):
    """A class of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Wire, frozen=True):
    """A value that a device has; one is set, or it is of a kind that is not known."""

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None

    @property
    def value(self) -> tuple[str, str | int | bool] | None:
        """Its type and value; None for a kind that is not known."""
        if self.string is not None:
            return ("string", self.string)
        if self.int_ is not None:
            return ("int", self.int_)
        if self.bool_ is not None:
            return ("bool", self.bool_)
        return None if self.version is None else ("version", self.version)


class DeviceCapacity(Wire, frozen=True):
    """An amount of which a device has some."""

    value: Amount = 0


class DeviceCounter(Wire, frozen=True):
    """An amount of a counter, that there is or that a device consumes."""

    value: Amount = 0


class CounterSet(Wire, frozen=True):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, DeviceCounter] = {}


class CounterConsumption(Wire, frozen=True):
    """What a device consumes of a set of counters while a claim has it."""

    counter_set: str = ""
    counters: dict[str, DeviceCounter] = {}


class DeviceTaint(Wire, frozen=True):
    """Why a device is not to be used."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(Wire, frozen=True):
    """A device of a slice."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False
    node_allocatable_resources: dict[str, Any] = {}

    @property
    def is_plain(self) -> bool:
        """True for one that one claim has as a whole and at once: the others are not counted."""
        return not (
            self.binds_to_node
            or self.binding_conditions
            or self.allow_multiple_allocations
            or self.node_allocatable_resources
        )

    @property
    def consumed(self) -> dict[tuple[str, str], Fraction]:
        """What it consumes, by set and counter; QuantityError."""
        found: dict[tuple[str, str], Fraction] = {}
        for each in self.consumes_counters:
            for name, counter in each.counters.items():
                key = (each.counter_set, name)
                found[key] = found.get(key, Fraction()) + parse(counter.value)
        return found


class ResourcePool(Wire, frozen=True):
    """To which pool a slice belongs, and of how many slices that is."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Wire, frozen=True):
    """Devices of one driver, reached from one node, or from others in ways that are not read."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Wire, frozen=True):
    """Devices that a driver offers."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()

    @property
    def pool_key(self) -> tuple[str, str]:
        """Driver and pool."""
        return (self.spec.driver, self.spec.pool.name)
