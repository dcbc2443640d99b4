"""The devices that each node of some kind has (DRA), and the ResourceSlices that offer them.

Profiles of virtual nodes, scenarios of the simulator and NodePools state devices in this form. A
driver on a real machine finds its devices by itself; nothing here is sent to it.

Devices that are stated alike are one shape. A device that may be had in parts (MIG) has counters,
and each part consumes some of them: the parts stand in its place, so a whole device is a part, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, TypeAlias, TypeVar

from fairlead.api.causes import LABEL, LABEL_RULE
from fairlead.api.kubernetes.devices import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounter,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from fairlead.api.meta import Amount, ObjectMeta, Wire
from fairlead.api.values.bounds import Name, doc
from fairlead.api.values.quantity import QuantityError, parse

T = TypeVar("T")

#: Devices of a node, and of them shapes.
DEVICES_MAX, SHAPES_MAX = 1_024, 64
#: Of a slice (resource.k8s.io/v1, `types.go`): devices, those that consume counters, sets.
_SLICE_MAX, _SHARING_MAX, _SETS_MAX = 128, 64, 8
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"([a-z0-9][-.a-z0-9]*/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_TEXT_MAX, _DRIVER_MAX = 64, 63

#: A device as it is built in: driver and name. All its parts fail with it.
DeviceUnit: TypeAlias = tuple[str, str]


class DevicePart(Wire, frozen=True, forbid_unknown_fields=True):
    """Parts of a device that are alike, such as those of one MIG profile at one place."""

    name: Annotated[Name, doc("Name of the part; its device's name comes before it.")]
    count: Annotated[int, doc("How many a device has. Default 1.", ge=1, maximum=DEVICES_MAX)] = 1
    attributes: Annotated[
        dict[str, DeviceAttribute], doc("Attributes, beside those of the device.")
    ] = {}
    capacity: Annotated[dict[str, DeviceCapacity], doc("Capacity, in place of the device's.")] = {}
    counters: Annotated[
        dict[str, Amount], doc("What a part consumes of the counters of its device.")
    ] = {}


class DeviceShape(Wire, frozen=True, forbid_unknown_fields=True):
    """Devices of a node that are alike."""

    driver: Annotated[
        str, doc("The DRA driver that offers them, such as gpu.nvidia.com.", maxLength=_DRIVER_MAX)
    ]
    count: Annotated[int, doc("How many a node has.", ge=1, maximum=DEVICES_MAX)]
    name: Annotated[
        Name, doc("Name of the devices, which are numbered: gpu makes gpu-0, gpu-1. Default gpu.")
    ] = "gpu"
    attributes: Annotated[
        dict[str, DeviceAttribute],
        doc("Attributes as in a ResourceSlice, such as productName: {string: NVIDIA H100}."),
    ] = {}
    capacity: Annotated[
        dict[str, DeviceCapacity],
        doc("Capacity as in a ResourceSlice, such as memory: {value: 80Gi}."),
    ] = {}
    counters: Annotated[
        dict[str, Amount], doc("What each device has that its parts consume; with parts.")
    ] = {}
    parts: Annotated[
        tuple[DevicePart, ...],
        doc("Parts that are offered in place of the device (MIG). Default: the device.",
            maxItems=SHAPES_MAX),
    ] = ()  # fmt: skip

    @property
    def device_count(self) -> int:
        """How many devices of a node it makes."""
        return self.count * (sum(part.count for part in self.parts) if self.parts else 1)


def drivers_of(shapes: Sequence[DeviceShape]) -> tuple[str, ...]:
    """Return the drivers of some shapes, in their order."""
    return tuple(dict.fromkeys(shape.driver for shape in shapes))


def units_of(shapes: Sequence[DeviceShape]) -> tuple[DeviceUnit, ...]:
    """Return the devices of a node as they are built in, in their order."""
    return tuple((shape.driver, name) for shape, name in _units(shapes))


def unit_of(shapes: Sequence[DeviceShape], driver: str, device: str) -> DeviceUnit | None:
    """Return the device that a device or a part of one is; None where there is none."""
    for shape, name in _units(shapes):
        if shape.driver == driver and device in {d.name for d in _devices(shape, name)}:
            return (driver, name)
    return None


def slices_of(
    node: str,
    shapes: Sequence[DeviceShape],
    lost: Collection[DeviceUnit] = (),
    *,
    generation: int = 1,
) -> tuple[ResourceSlice, ...]:
    """Return the slices of a node: for each driver a pool with the name of the node.

    Devices that are `lost` are in none. A driver without any has an empty slice.
    """
    found: list[ResourceSlice] = []
    for driver in drivers_of(shapes):
        units = [(shape, name) for shape, name in _units(shapes)
                 if shape.driver == driver and (driver, name) not in lost]  # fmt: skip
        devices = [device for shape, name in units for device in _devices(shape, name)]
        sets = [_counters(name, shape.counters) for shape, name in units if shape.parts]
        contents = [
            ResourceSliceSpec(driver, shared_counters=each) for each in _parted(sets, _SETS_MAX)
        ]
        most = _SHARING_MAX if sets else _SLICE_MAX
        contents += [ResourceSliceSpec(driver, devices=each) for each in _parted(devices, most)]
        contents = contents or [ResourceSliceSpec(driver)]
        pool = ResourcePool(node, generation, len(contents))
        found += (
            ResourceSlice(
                ObjectMeta(name=f"{node}-{driver}-{i}"),
                ResourceSliceSpec(driver, pool, node, each.devices, each.shared_counters),
            )
            for i, each in enumerate(contents)
        )
    return tuple(found)


def _units(shapes: Sequence[DeviceShape]) -> Iterator[tuple[DeviceShape, str]]:
    numbers: dict[DeviceUnit, int] = {}
    for shape in shapes:
        key = (shape.driver, shape.name)
        for _ in range(shape.count):
            number = numbers.get(key, 0)
            numbers[key] = number + 1
            yield shape, f"{shape.name}-{number}"


def _devices(shape: DeviceShape, name: str) -> Iterator[Device]:
    if not shape.parts:
        yield Device(name, dict(shape.attributes), dict(shape.capacity))
    for part in shape.parts:
        uses = CounterConsumption(name, _amounts(part.counters))
        for i in range(part.count):
            number = f"-{i}" if part.count > 1 else ""
            yield Device(
                f"{name}-{part.name}{number}", {**shape.attributes, **part.attributes},
                dict(part.capacity or shape.capacity), (uses,),
            )  # fmt: skip


def _parted(items: Sequence[T], most: int) -> list[tuple[T, ...]]:
    return [tuple(items[i : i + most]) for i in range(0, len(items), most)]


def _counters(name: str, counters: Mapping[str, Amount]) -> CounterSet:
    return CounterSet(name, _amounts(counters))


def _amounts(counters: Mapping[str, Amount]) -> dict[str, DeviceCounter]:
    return {name: DeviceCounter(amount) for name, amount in counters.items()}


# What is wrong with shapes


def shape_mistakes(shapes: Sequence[DeviceShape]) -> Iterator[tuple[str, str, str]]:
    """Yield path, value and fault of each mistake; a path begins with the index of its shape."""
    if len(shapes) > SHAPES_MAX:
        yield "", str(len(shapes)), f"must have at most {SHAPES_MAX} items"
        return
    found = [(f"[{i}].{path}", *rest) for i, each in enumerate(shapes)
             for path, *rest in _of_shape(each)]  # fmt: skip
    if found:  # whatever they make together, it may be without end
        yield from ((path, value, why) for path, value, why in found)
        return
    total = sum(shape.device_count for shape in shapes)
    if total > DEVICES_MAX:
        yield "", f"{total} devices", f"a node has at most {DEVICES_MAX}, parts counted"
        return
    made = Counter((s.driver, d.name) for s, name in _units(shapes) for d in _devices(s, name))
    for driver, name in sorted(each for each, count in made.items() if count > 1)[:1]:
        yield "", name, f"is the name of two devices of {driver}"


def _of_shape(shape: DeviceShape) -> Iterator[tuple[str, str, str]]:
    if not (len(shape.driver) <= _DRIVER_MAX and _SUBDOMAIN.fullmatch(shape.driver)):
        yield "driver", shape.driver, "must be the name of a driver, such as gpu.nvidia.com"
    yield from _of_device(shape, "")
    if shape.counters and not shape.parts:
        yield "counters", ", ".join(shape.counters), "need parts, which consume them"
    yield from _amount_mistakes(shape.counters, "counters")
    for i, part in enumerate(shape.parts):
        yield from _of_device(part, f"parts[{i}].")
        at = f"parts[{i}].counters"
        yield from _amount_mistakes(part.counters, at)
        if not part.counters:
            yield at, "", "must say what the part consumes, so that it excludes others"
        for name, amount in part.counters.items():
            have = _parsed(shape.counters.get(name))
            wants = _parsed(amount)
            if name not in shape.counters:
                accepted = ", ".join(shape.counters) or "none"
                yield f"{at}.{name}", name, f"is no counter of the device; it has {accepted}"
            elif have is not None and wants is not None and wants > have:
                yield f"{at}.{name}", str(amount), f"is more than the {have} of the device"


def _of_device(shape: DeviceShape | DevicePart, at: str) -> Iterator[tuple[str, str, str]]:
    if not LABEL.fullmatch(shape.name) or len(shape.name) > _TEXT_MAX // 2:
        yield f"{at}name", shape.name, f"{LABEL_RULE}, at most {_TEXT_MAX // 2} characters"
    if not 1 <= shape.count <= DEVICES_MAX:
        yield f"{at}count", str(shape.count), f"must be 1 to {DEVICES_MAX}"
    for key, attribute in shape.attributes.items():
        path = f"{at}attributes.{key}"
        if not _KEY.fullmatch(key):
            yield path, key, "must be the name of an attribute, such as productName"
        if attribute.value is None:
            yield path, "", "must have one of string, int, bool and version"
        elif len(str(attribute.value[1])) > _TEXT_MAX:
            yield path, str(attribute.value[1]), f"must have at most {_TEXT_MAX} characters"
    for key, capacity in shape.capacity.items():
        if not _KEY.fullmatch(key):
            yield f"{at}capacity.{key}", key, "must be the name of a capacity, such as memory"
        yield from _amount_mistakes({key: capacity.value}, f"{at}capacity")


def _amount_mistakes(amounts: Mapping[str, Amount], at: str) -> Iterator[tuple[str, str, str]]:
    for name, amount in amounts.items():
        try:
            if parse(amount) < 0:
                yield f"{at}.{name}", str(amount), "must be greater than or equal to 0"
        except QuantityError as error:
            yield f"{at}.{name}", str(amount), str(error)


def _parsed(amount: Amount | None) -> Fraction | None:
    try:
        return None if amount is None else parse(amount)
    except QuantityError:
        return None
