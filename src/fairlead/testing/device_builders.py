"""Short ways to make devices and claims for devices for tests; see `builders`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import (
    AllocatedDevice,
    AllocatedDevices,
    CelSelector,
    ClaimConsumer,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAllocation,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClass,
    DeviceClassSpec,
    DeviceCounter,
    DeviceSelector,
    DeviceSpec,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from fairlead.api.kubernetes.pod_parts import PodResourceClaim
from fairlead.api.meta import ObjectMeta, OwnerReference

DRIVER = "gpu.example.com"


def make_device(
    name: str,
    attributes: Mapping[str, str | int | bool] | None = None,
    capacity: Mapping[str, str] | None = None,
) -> Device:
    """Return a device."""
    given = {key: _attribute(value) for key, value in (attributes or {}).items()}
    amounts = {key: DeviceCapacity(value) for key, value in (capacity or {}).items()}
    return Device(name, given, amounts)


def _attribute(value: str | int | bool) -> DeviceAttribute:  # noqa: FBT001
    match value:
        case bool():
            return DeviceAttribute(bool_=value)
        case int():
            return DeviceAttribute(int_=value)
        case _:
            return DeviceAttribute(string=value)


def make_slice(
    node: str, devices: Sequence[Device] | int, *, driver: str = DRIVER
) -> ResourceSlice:
    """Return the slice of a node, a pool of its own; a number: of so many devices alike."""
    if isinstance(devices, int):
        devices = [make_device(f"gpu-{i}") for i in range(devices)]
    spec = ResourceSliceSpec(driver, ResourcePool(node), node, tuple(devices))
    metadata = ObjectMeta(name=f"{node}-{driver}", uid=f"slice-{node}", resource_version="1")
    return ResourceSlice(metadata, spec)


#: By profile: compute and memory slices, and the memory slices at which it may begin (NVIDIA MIG
#: user guide, H100 80 GB).
MIG = {
    "7g.80gb": (7, 8, (0,)),
    "4g.40gb": (4, 4, (0,)),
    "3g.40gb": (3, 4, (0, 4)),
    "2g.20gb": (2, 2, (0, 2, 4)),
    "1g.20gb": (1, 2, (0, 2, 4, 6)),
    "1g.10gb": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
}


def make_mig_slices(node: str, gpus: int = 1, *profiles: str) -> list[ResourceSlice]:
    """Return the slices of a node whose GPUs may be had in parts: counters, and devices by GPU,
    profile and place, with these profiles only where some are named.
    """
    sets: list[CounterSet] = []
    devices: list[Device] = []
    for gpu in range(gpus):
        slices = {f"memory-slice-{i}": DeviceCounter(1) for i in range(8)}
        sets.append(CounterSet(f"gpu-{gpu}", {"compute": DeviceCounter(7)} | slices))
        for profile in profiles or MIG:
            compute, memory, starts = MIG[profile]
            for start in starts:
                used = {f"memory-slice-{i}": DeviceCounter(1) for i in range(start, start + memory)}
                uses = CounterConsumption(f"gpu-{gpu}", {"compute": DeviceCounter(compute)} | used)
                made = make_device(f"gpu-{gpu}-{profile.replace('.', '-')}-{start}",
                                   {"profile": profile, "parent": gpu})  # fmt: skip
                devices.append(replace(made, consumes_counters=(uses,)))
    pool = ResourcePool(node, resource_slice_count=2)
    specs = {
        "counters": ResourceSliceSpec(DRIVER, pool, node, shared_counters=tuple(sets)),
        "devices": ResourceSliceSpec(DRIVER, pool, node, tuple(devices)),
    }
    return [
        ResourceSlice(
            ObjectMeta(name=f"{node}-{name}", uid=f"{node}-{name}", resource_version="1"), spec
        )
        for name, spec in specs.items()
    ]


def mig_template(profile: str, count: int = 1) -> ResourceClaimTemplate:
    """Return a template, named after a profile, for devices with it."""
    expression = f'device.attributes["{DRIVER}"].profile == "{profile}"'
    name = profile.replace(".", "-")
    return make_device_template(name, device_request(DRIVER, count, expression))


def make_device_class(name: str, *expressions: str) -> DeviceClass:
    """Return a class; without expressions, of the devices of the driver with its name."""
    given = expressions or (f'device.driver == "{name}"',)
    selectors = tuple(DeviceSelector(CelSelector(each)) for each in given)
    metadata = ObjectMeta(name=name, uid=f"class-{name}", resource_version="1")
    return DeviceClass(metadata, DeviceClassSpec(selectors))


def device_request(
    device_class: str = DRIVER, count: int = 1, *expressions: str, name: str = "r0"
) -> dict[str, Any]:
    """Return a request of a claim, as written."""
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in expressions]
    return {"name": name, "exactly": {"allocationMode": "ExactCount", **exactly}}


def all_devices_request(
    device_class: str = DRIVER, *expressions: str, name: str = "r0"
) -> dict[str, Any]:
    """Return a request for all devices of a node, as written."""
    exactly = device_request(device_class, 1, *expressions)["exactly"]
    return {"name": name, "exactly": {**exactly, "allocationMode": "All", "count": None}}


def first_of_request(*requests: Mapping[str, Any], name: str = "r0") -> dict[str, Any]:
    """Return a request with alternatives: those of requests as `device_request` makes them."""
    options = [{"name": f"o{i}", **each["exactly"]} for i, each in enumerate(requests)]
    return {"name": name, "firstAvailable": options}


def make_device_template(
    name: str, *requests: Mapping[str, Any], namespace: str = names.DEFAULT_NAMESPACE
) -> ResourceClaimTemplate:
    """Return a template; without requests, for one device of the class `DRIVER`."""
    metadata = ObjectMeta(name=name, namespace=namespace, uid=f"t-{name}", resource_version="1")
    return ResourceClaimTemplate(metadata, ResourceClaimTemplateSpec(spec=_spec(requests)))


def make_device_claim(
    name: str,
    *requests: Mapping[str, Any],
    namespace: str = names.DEFAULT_NAMESPACE,
    pod: str = "",
    has: Sequence[tuple[str, str]] = (),
    users: Sequence[str] = (),
) -> ResourceClaim:
    """Return a claim, made for a pod where one is named, that has these devices: pool and name;
    reserved for pods of these names.
    """
    owners = (OwnerReference("v1", "Pod", pod, f"uid-{pod}", controller=True),) if pod else ()
    metadata = ObjectMeta(
        name=name, namespace=namespace, uid=f"c-{name}", resource_version="1",
        owner_references=owners,
    )  # fmt: skip
    results = tuple(AllocatedDevice(DRIVER, pool, device, "r0") for pool, device in has)
    allocation = DeviceAllocation(AllocatedDevices(results)) if has else None
    reserved = tuple(ClaimConsumer("pods", each, f"uid-{each}") for each in users)
    return ResourceClaim(metadata, _spec(requests), ResourceClaimStatus(allocation, reserved))


def with_device_claims(job: Job, *templates: str, claims: Sequence[str] = ()) -> Job:
    """Return a job each of whose members has claims from these templates, and shares these."""
    given = (
        *(PodResourceClaim(f"t{i}", "", name) for i, name in enumerate(templates)),
        *(PodResourceClaim(f"c{i}", name) for i, name in enumerate(claims)),
    )
    roles = tuple(
        replace(role, template=replace(
            role.template, spec=replace(role.template.spec, resource_claims=given)
        ))
        for role in job.spec.roles
    )  # fmt: skip
    return replace(job, spec=replace(job.spec, roles=roles))


def _spec(requests: Sequence[Mapping[str, Any]]) -> ResourceClaimSpec:
    given = requests or (device_request(),)
    return ResourceClaimSpec(DeviceSpec(tuple(dict(request) for request in given)))
