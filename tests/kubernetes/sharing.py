"""Pods of others on the same nodes, and a watch that finds every over-commitment of a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.operating import until

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import Timeout, Unavailable
from fairlead.runtime.client import Client, EventType

GPU = "nvidia.com/gpu"
GPUS_PER_NODE = 8


@dataclass
class Bound:
    """What pods that are bound hold of each node, after every event."""

    gpus: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    #: The most that one node, and all nodes together, ever had.
    most: int = 0
    most_together: int = 0
    _together: int = 0

    def note(self, kind: EventType, pod: Pod) -> None:
        node = self.gpus.setdefault(pod.spec.node_name, {})
        self._together -= sum(node.values())
        if kind is EventType.DELETED or pod.is_terminal:
            node.pop(pod.metadata.uid, None)
        elif pod.spec.node_name:
            amounts = [c.resources.limits.get(GPU, 0) for c in pod.spec.containers]
            node[pod.metadata.uid] = sum(int(amount) for amount in amounts)
            self.most = max(self.most, sum(node.values()))
        self._together += sum(node.values())
        self.most_together = max(self.most_together, self._together)
        if pod.status.reason.startswith("OutOf"):
            self.refused.append(pod.metadata.name)


@asynccontextmanager
async def watched(client: Client) -> AsyncIterator[Bound]:
    """Judge every change of a pod; nothing may be over-committed in between either."""
    bound = Bound()
    version = (await client.list(PODS)).resource_version

    async def watch() -> None:
        nonlocal version
        while True:
            with suppress(Unavailable, Timeout):  # a busy server; goes on where it was
                async for event in client.watch(PODS, resource_version=version):
                    version = event.resource_version
                    if event.object is not None:
                        bound.note(event.type, event.object)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        yield bound
        task.cancel()
    assert bound.most <= GPUS_PER_NODE
    assert bound.refused == []


def other_pod(name: str, *, gpus: int = 1, seconds: float | None = None, **spec: Any) -> Any:
    """A pod of somebody else, for kube-scheduler."""
    notes = {} if seconds is None else {"fairlead.dev/simulate-seconds": str(seconds)}
    amounts = {"cpu": "100m", **({GPU: str(gpus)} if gpus else {})}
    container = {"name": "main", "image": "other", "resources": {"limits": amounts}}
    metadata = {"name": name, "annotations": notes, "labels": {"app": "other"}}
    return {
        "metadata": metadata,
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


#: What our planner does not read: a member must be on a node that has one of these pods.
FRIEND = {"friend": "yes"}
NEEDS_FRIEND = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": FRIEND}, "topologyKey": names.HOSTNAME}
        ]
    }
}


def friend(node: str) -> dict[str, Any]:
    """A pod that kube-scheduler wants beside a member with `NEEDS_FRIEND`."""
    pod = other_pod(f"friend-{node}", gpus=0, nodeName=node)
    pod["metadata"]["labels"] = FRIEND
    return pod


async def befriend(client: Client, nodes: Sequence[str], *, but: str) -> None:
    """Put a friend on all nodes but one, which gets two other pods: the fullest is the best fit."""
    pods = [friend(node) for node in nodes if node != but]
    pods += [other_pod(f"filler-{i}", gpus=0, nodeName=but) for i in range(2)]
    for pod in pods:
        await client.create(PODS, pod, namespace="default")

    async def all_run() -> bool:
        found = (await client.list(PODS, namespace="default")).items
        made = {pod["metadata"]["name"] for pod in pods}
        return made <= {p.metadata.name for p in found if p.status.phase == "Running"}

    await until(all_run)
