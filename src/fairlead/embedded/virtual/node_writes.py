"""Writes what a virtual node has to say of itself: taints, conditions, devices lost, images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES
from fairlead.api.values import quantity
from fairlead.embedded.virtual.stages.records import VirtualNodeRecord
from fairlead.embedded.virtual.stages.status import node_conditions, taints_for
from fairlead.runtime.client import Client


async def write_node(
    client: Client, record: VirtualNodeRecord, *, images: Sequence[Any] | None, now: float
) -> None:
    """Write readiness: taints (compare-and-swap, the list is shared), then conditions.

    `images` are those to report, None for no change. Raises what the client raises.
    """
    readiness, gpus_lost, *_ = record.state
    node = await client.get(NODES, record.name)
    old_taints = to_wire(node.spec.taints)
    taints = taints_for(readiness, old_taints, now)
    if taints != old_taints:
        body = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": taints or None},
        }
        node = await client.patch(NODES, record.name, body)
    ours = node_conditions(readiness, now)
    kinds = [condition["type"] for condition in ours]
    foreign = [to_wire(c) for c in node.status.conditions if c.type not in kinds]
    status: dict[str, Any] = {"conditions": foreign + ours}
    if gpus_lost != record.written[1]:
        capacity = quantity.resources_to_base(node.status.capacity)
        status["allocatable"] = {quantity.GPU: str(capacity[quantity.GPU] - gpus_lost)}
    if images is not None:
        status["images"] = images
    body = {"metadata": {"resourceVersion": node.metadata.resource_version}, "status": status}
    await client.patch(NODES, record.name, body, subresource="status")
