"""Node objects of a virtual fleet: names, labels, addresses; creation in bounded parallel.

Node i is named `v00000`-like and lies in rack i // nodes_per_rack, and so on up to the zone. What
exists already is kept as it is (a person's cordon or label survives a restart).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fairlead.api import names
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.status import AlreadyExists
from fairlead.api.values import quantity
from fairlead.embedded.virtual.profile import NodeShape
from fairlead.embedded.virtual.stages.status import Readiness, node_conditions
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock

T = TypeVar("T")

REGION = "topology.kubernetes.io/region"
VIRTUAL = "virtual"

FLEET_MAX = 100_000
CREATES_PARALLEL_MAX = 128


@dataclass(frozen=True, slots=True)
class NodeFleet:
    """How many nodes, and of which shape. `gpus` None takes the shape's own count."""

    count: int
    shape: NodeShape
    gpus: int | None = None
    prefix: str = "v"

    def __post_init__(self) -> None:
        if not 0 <= self.count <= FLEET_MAX:
            raise ValueError(f"{self.count} virtual nodes; accepted: 0 to {FLEET_MAX}")
        if self.gpus is not None and not 0 <= self.gpus <= 1024:
            raise ValueError(f"{self.gpus} GPUs per virtual node; accepted: 0 to 1024")

    def name(self, index: int) -> str:
        """Return the name of node `index`."""
        return f"{self.prefix}{index:05d}"

    def resources(self) -> dict[str, str]:
        """Return what each node has, with `gpus` put in."""
        out = dict(self.shape.resources)
        if self.gpus is not None:
            out[quantity.GPU] = str(self.gpus)
        return out


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What `ensure_fleet` found and did. `extra` are virtual nodes beyond the fleet, sorted."""

    created: int
    kept: int
    extra: tuple[str, ...]
    nodes: tuple[Node, ...]


def host_address(index: int) -> str:
    """Return the address of node `index`, from the shared range 100.64.0.0/10 (RFC 6598)."""
    number = index + 1
    return f"100.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def node_object(fleet: NodeFleet, index: int, now: float) -> dict[str, Any]:
    """Return the Node to create, status included (a kubelet registers with its status, too)."""
    shape, name = fleet.shape, fleet.name(index)
    rack = index // shape.nodes_per_rack
    block = rack // shape.racks_per_block
    zone = block // shape.blocks_per_zone
    resources = fleet.resources()
    spec: dict[str, Any] = {"providerID": f"fairlead-virtual://{name}"}
    if shape.preflight:
        spec["taints"] = [{"key": names.TAINT_PREFLIGHT, "effect": "NoSchedule"}]
    return {
        "metadata": {
            "name": name,
            "labels": {
                names.HOSTNAME: name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                names.NODE_TYPE: VIRTUAL,
                names.INSTANCE_TYPE: shape.instance_type,
                REGION: "virtual",
                names.ZONE: f"zone-{zone}",
                names.BLOCK: f"block-{block:04d}",
                names.RACK: f"rack-{rack:05d}",
                **shape.labels,
            },
        },
        "spec": spec,
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": node_conditions(Readiness.READY, now),
            "addresses": [
                {"type": "InternalIP", "address": host_address(index)},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "kubeletVersion": "fairlead-virtual",
                "containerRuntimeVersion": "simulated://1",
                "osImage": "none: a virtual node",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


async def shrink_fleet(client: Client, fleet: NodeFleet) -> tuple[str, ...]:
    """Remove nodes of an earlier, larger fleet; return those that stay since they are in use.

    A node is in use while a pod that has not ended is bound to it, or the place of a job that has
    not ended includes it. Call it before anything places jobs; raises what the client raises.
    """
    selector = f"{names.NODE_TYPE}={VIRTUAL}"
    present = (await client.list(NODES, label_selector=selector)).items
    wanted = {fleet.name(i) for i in range(fleet.count)}
    named = re.compile(rf"{re.escape(fleet.prefix)}\d{{5,}}")
    extra = [n.metadata.name for n in present if named.fullmatch(n.metadata.name)]
    extra = sorted(set(extra) - wanted)
    if not extra:
        return ()
    used = {p.spec.node_name for p in (await client.list(PODS)).items if not p.is_terminal}
    for job in (await client.list(JOBS)).items:
        if job.status.placement is not None and not job.is_finished:
            used.update(nodes_of(job.status.placement))

    async def remove(name: str) -> None:
        await client.delete(NODES, name)

    await _side_by_side(remove, [name for name in extra if name not in used])
    return tuple(name for name in extra if name in used)


async def ensure_fleet(client: Client, fleet: NodeFleet, clock: Clock) -> FleetReport:
    """Create the nodes that are missing; raises what the client raises.

    Reports virtual nodes that belong neither to the fleet nor to a node pool, and leaves them
    alone: pods may run there.
    """
    selector = f"{names.NODE_TYPE}={VIRTUAL}"
    present = {
        n.metadata.name: n for n in (await client.list(NODES, label_selector=selector)).items
    }
    wanted = {fleet.name(i): i for i in range(fleet.count)}
    missing = [index for name, index in wanted.items() if name not in present]
    created: dict[str, Node] = {}

    async def make(index: int) -> None:
        node = await create_node(client, node_object(fleet, index, clock.now()))
        created[node.metadata.name] = node

    await _side_by_side(make, missing)
    nodes = {**present, **created}
    return FleetReport(
        created=len(created),
        kept=sum(1 for name in wanted if name in present),
        extra=tuple(
            sorted(
                name
                for name, node in present.items()
                if name not in wanted and names.POOL not in node.metadata.labels
            )
        ),
        nodes=tuple(nodes[name] for name in sorted(nodes)),
    )


async def create_node(client: Client, body: Mapping[str, Any]) -> Node:
    """Create a node, and return it as stored; one that exists already is kept as it is."""
    try:
        return await client.create(NODES, body)
    except AlreadyExists:
        return await client.get(NODES, body["metadata"]["name"])


async def _side_by_side(act: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """Act on all items, on CREATES_PARALLEL_MAX at a time."""
    rest = iter(items)

    async def work() -> None:
        for item in rest:
            await act(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CREATES_PARALLEL_MAX, len(items))):
            group.create_task(work())
