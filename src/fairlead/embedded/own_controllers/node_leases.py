"""The nodes' leases in kube-node-lease: what monitors read to see when a node last answered.

The nodes of an embedded cluster run in the server's own process and report by events, so a lease
here is for readers alone. It is renewed seldom and says for how long it holds: thousands of virtual
nodes must not write every ten seconds, as kubelets do (`KUBELETS`, for simulated clusters).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import NODE_LEASES_NAMESPACE
from fairlead.api.resources import LEASES, NODES
from fairlead.api.status import AlreadyExists, ApiError, NotFound
from fairlead.api.values.times import format_micro_time
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Mirror

NAMESPACE = NODE_LEASES_NAMESPACE
_PAUSE_SECONDS = 0.01  # between two writes: a fleet's leases are no burst


@dataclass(frozen=True, slots=True)
class NodeLeaseTimes:
    """For how long a lease holds, when it is renewed, and how often that is looked at."""

    lease_seconds: int = 3600
    renew_seconds: float = 900.0  # a quarter, as kubelets do
    look_seconds: float = 5.0


KUBELETS = NodeLeaseTimes(lease_seconds=40, renew_seconds=10.0, look_seconds=0.4)


class NodeLeases:
    """Renews the leases of the nodes that this process runs, while they are ready."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        nodes: Mirror[Node],
        log: Logger = SILENT,
        *,
        renews: Callable[[str], bool] = lambda _: True,
        times: NodeLeaseTimes | None = None,
    ) -> None:
        """`renews` says of a node's name whether its kubelet works."""
        self._renews = renews
        self._times = times or NodeLeaseTimes()
        self._client = client
        self._clock = clock
        self._nodes = nodes
        self._log = log
        self._renewed_at: dict[str, float] = {}  # by uid of the node

    async def run(self) -> None:
        """Renew until cancelled."""
        await self._nodes.wait_synced()
        while True:
            now, nodes = self._clock.now(), self._nodes.items()
            present = {node.metadata.uid for node in nodes}
            self._renewed_at = {u: at for u, at in self._renewed_at.items() if u in present}
            for node in nodes:
                if self._is_due(node, now):
                    await self._renew(node)
                    await asyncio.sleep(_PAUSE_SECONDS)
            await asyncio.sleep(self._times.look_seconds)

    def _is_due(self, node: Node, now: float) -> bool:
        if now < self._renewed_at.get(node.metadata.uid, -math.inf) + self._times.renew_seconds:
            return False
        if not self._renews(node.metadata.name):
            return False
        is_ready = any(c.type == names.READY and c.status == "True" for c in node.status.conditions)
        return is_ready and names.NODE_TYPE in node.metadata.labels

    async def _renew(self, node: Node) -> None:
        name = node.metadata.name
        self._renewed_at[node.metadata.uid] = self._clock.now()
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": self._times.lease_seconds,
            "renewTime": format_micro_time(self._clock.now()),
        }
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, namespace=NAMESPACE)
        except NotFound:
            await self._create(node, spec)
        except ApiError as error:
            self._log.warning("Lease not renewed", node=name, error=error.message)

    async def _create(self, node: Node, spec: dict[str, Any]) -> None:
        owner = {
            "apiVersion": NODES.api_version, "kind": NODES.kind,
            "name": node.metadata.name, "uid": node.metadata.uid,
        }  # fmt: skip
        metadata = {"name": node.metadata.name, "ownerReferences": [owner]}
        try:
            body = {"metadata": metadata, "spec": spec}
            await self._client.create(LEASES, body, namespace=NAMESPACE)
        except AlreadyExists:
            return
        except ApiError as error:
            self._log.warning("Lease not made", node=node.metadata.name, error=error.message)
