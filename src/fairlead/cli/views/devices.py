"""Devices that claims ask for (DRA), under the names that people know (pure).

A device is called after its product (`productName`, else `model`), a part of one after its profile,
too, and one that states neither after its driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from fairlead.api.kubernetes.device_shapes import DeviceShape, slices_of
from fairlead.api.kubernetes.devices import Device, ResourceClaim, ResourceSlice

_PRODUCT, _PROFILE = ("productName", "model"), ("profile",)
#: By node, then by name: how many devices there are, and how many of these claims have.
DeviceCounts: TypeAlias = Mapping[str, Mapping[str, tuple[int, int]]]

NO_DEVICES: DeviceCounts = {}


def device_name(driver: str, device: Device) -> str:
    """Return what a device is called."""
    product, profile = _text(driver, device, _PRODUCT), _text(driver, device, _PROFILE)
    return " ".join(filter(None, (product or driver, profile)))


def _text(driver: str, device: Device, names: Iterable[str]) -> str:
    """Return the first of these attributes that is a text, also with the driver as its domain."""
    for name in (full for each in names for full in (each, f"{driver}/{each}")):
        found = device.attributes.get(name)
        if found is not None and found.string:
            return found.string
    return ""


def device_counts(slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]) -> DeviceCounts:
    """Return which devices nodes offer. Parts that exclude each other count each."""
    had = {
        (each.driver, each.pool, each.device)
        for claim in claims
        if claim.status.allocation is not None
        for each in claim.status.allocation.devices.results
        if not each.admin_access
    }
    every = list(slices)
    generations: dict[tuple[str, str], int] = {}
    for found in every:
        key = found.pool_key
        generations[key] = max(generations.get(key, 0), found.spec.pool.generation)
    total: dict[str, Counter[str]] = {}
    used: dict[str, Counter[str]] = {}
    for found in every:
        spec = found.spec
        if not spec.node_name or spec.pool.generation < generations[found.pool_key]:
            continue
        for device in spec.devices:
            name = device_name(spec.driver, device)
            total.setdefault(spec.node_name, Counter())[name] += 1
            is_had = (*found.pool_key, device.name) in had
            used.setdefault(spec.node_name, Counter())[name] += is_had
    return {
        node: {name: (n, used[node][name]) for name, n in counts.items()}
        for node, counts in total.items()
    }


def device_shares(counts: DeviceCounts, nodes: Iterable[str]) -> str:
    """Return what is used of the devices of some nodes, such as "3/8 H100"; "" for none."""
    used, total = Counter[str](), Counter[str]()
    for node in nodes:
        for name, (there, had) in counts.get(node, {}).items():
            total[name] += there
            used[name] += had
    return ", ".join(f"{used[name]:,}/{total[name]:,} {name}" for name in sorted(total))


def shape_words(shapes: tuple[DeviceShape, ...]) -> str:
    """Return which devices a node has that is of a template, such as "8 H100"; "" for none."""
    found = Counter(
        device_name(each.spec.driver, device)
        for each in slices_of("node", shapes)
        for device in each.spec.devices
    )
    return " and ".join(f"{count} {name}" for name, count in sorted(found.items()))
