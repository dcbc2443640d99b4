"""The devices of the cluster in which a tenant works, and what others ask of them by claims (DRA).

Each node has four: two large ones, a small one, and one with a taint, which alone has a serial
number. So expressions choose some, all or none, or fail where an attribute is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DRIVER, BIG = "gpu.example.com", "big.example.com"
#: By template of others: the class that it asks for.
TEMPLATES = {"one": DRIVER, "big": BIG}
_MEMORY = f'device.attributes["{DRIVER}"].memory'
_DEVICES: tuple[dict[str, Any], ...] = (
    {"name": "gpu-0", "attributes": {"memory": {"int": 80}, "index": {"int": 0}}},
    {"name": "gpu-1", "attributes": {"memory": {"int": 80}, "index": {"int": 1}}},
    {"name": "gpu-2", "attributes": {"memory": {"int": 40}, "index": {"int": 2}}},
    {
        "name": "gpu-3",
        "attributes": {"memory": {"int": 40}, "index": {"int": 3}, "serial": {"string": "x"}},
        "taints": [{"key": "example.com/worn", "value": "", "effect": "NoSchedule"}],
    },
)
#: By class: the devices of a node that others may get.
DEVICES_OF = {DRIVER: frozenset({"gpu-0", "gpu-1", "gpu-2"}), BIG: frozenset({"gpu-0", "gpu-1"})}


def classes() -> Iterator[dict[str, Any]]:
    """Yield the classes of devices."""
    chosen = {DRIVER: f'device.driver == "{DRIVER}"', BIG: f"{_MEMORY} >= 80"}
    for name, expression in chosen.items():
        selectors = [{"cel": {"expression": expression}}]
        yield {"metadata": {"name": name}, "spec": {"selectors": selectors}}


def node_slice(node: str) -> dict[str, Any]:
    """Return the slice of a node: its pool has its name."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": list(_DEVICES)}
    return {"metadata": {"name": f"{node}-gpu"}, "spec": spec}


def request(device_class: str = DRIVER, *expressions: str, **more: Any) -> dict[str, Any]:
    """Return a request of a claim for a device."""
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"name": "r", "exactly": {"deviceClassName": device_class, "selectors": selectors,
                                     **more}}  # fmt: skip


def claim(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    """Return a claim for devices, by default for one."""
    asked = list(requests or (request(),))
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": asked}}}


def template(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    """Return a template of such claims."""
    return {"metadata": {"name": name}, "spec": {"spec": claim(name, *requests)["spec"]}}


def with_claim(spec: dict[str, Any], *sources: str, use: bool = True) -> None:
    """Let a pod of this spec have claims: `t/x` from template x, `c/x` the claim x."""
    names = [f"d{i}" for i in range(len(sources))]
    keys = {"t": "resourceClaimTemplateName", "c": "resourceClaimName"}
    spec["resourceClaims"] = [
        {"name": name, keys[source[0]]: source[2:]}
        for name, source in zip(names, sources, strict=True)
    ]
    if use:
        for container in spec["containers"]:
            container["resources"] = {
                **container["resources"], "claims": [{"name": name} for name in names]
            }  # fmt: skip
