"""Hollow nodes: HTTP clients that do to an API server what kubelets do, and run nothing.

Each registers its node, reports its status and renews its lease. Once the node takes work, the pods
of DaemonSets come: each is created, reported as running, and described by an Event.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.kubernetes.controlplane import ControlPlane

from fairlead.api import names
from fairlead.api.values.times import format_time

RESOURCES = {"cpu": "16", "memory": "64Gi", "pods": "110"}
MERGE = {"Content-Type": "application/merge-patch+json"}
DAEMONS = 3
LEASE_SECONDS = 10.0
_NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_PODS, _EVENTS = "/api/v1/namespaces/kube-system/pods", "/api/v1/namespaces/kube-system/events"
_BUCKET = re.compile(r'^apiserver_request_duration_seconds_bucket\{(.*)le="([^"]+)"\} (\S+)$')
_REJECTED = re.compile(r"^apiserver_flowcontrol_rejected_requests_total\{.*\} (\S+)$")
_ANSWERED = re.compile(r'^apiserver_request_total\{code="429".*\} (\S+)$')


@dataclass
class HollowNodes:
    """All hollow nodes of a test. Refused requests are repeated after a second."""

    session: aiohttp.ClientSession
    url: str
    pool: str
    rng: random.Random
    taken_up: dict[str, asyncio.Event] = field(default_factory=dict)
    taken_up_at: dict[str, float] = field(default_factory=dict[str, float])
    #: Nodes whose DaemonSets' pods run.
    joined: list[str] = field(default_factory=list)

    async def node(self, number: int, *, boot_seconds: float, is_smoothed: bool) -> None:
        """Be a node, until cancelled."""
        name = f"hollow-{number:05}"
        work = self.taken_up[name] = asyncio.Event()
        await asyncio.sleep(self.rng.random() * boot_seconds)
        taint = {"key": names.TAINT_JOINING, "effect": "NoSchedule"}
        labels = {names.HOSTNAME: name, names.POOL: self.pool}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": f"hollow://{number}", "taints": [taint] if is_smoothed else []},
            "status": {"capacity": RESOURCES, "allocatable": RESOURCES},
        }
        await self.send("POST", "/api/v1/nodes", body)
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40}
        await self.send("POST", _NODE_LEASES, {"metadata": {"name": name}, "spec": lease})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await self.send("PATCH", f"/api/v1/nodes/{name}/status", ready)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew(name))
            if is_smoothed:
                await work.wait()
            await self._take_up(name)

    async def _take_up(self, name: str) -> None:
        self.taken_up_at[name] = time.monotonic()
        for number in range(DAEMONS):
            pod = f"{name}-{number}"
            container = {"name": "main", "image": "registry.example/daemon:1"}
            owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "none"}
            body = {
                "metadata": {"name": pod, "ownerReferences": [owner]},
                "spec": {"nodeName": name, "containers": [container]},
            }
            await self.send("POST", _PODS, body)
            await self.send("PATCH", f"{_PODS}/{pod}/status", {"status": {"phase": "Running"}})
            about = {"kind": "Pod", "namespace": "kube-system", "name": pod}
            event = {"metadata": {"name": pod}, "involvedObject": about, "reason": "Started"}
            await self.send("POST", _EVENTS, event)
        self.joined.append(name)

    async def _renew(self, name: str) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS * (0.9 + 0.2 * self.rng.random()))
            now = format_time(time.time())
            spec = {"spec": {"renewTime": now.replace("Z", ".000000Z")}}
            await self.send("PATCH", f"{_NODE_LEASES}/{name}", spec)

    async def send(self, method: str, path: str, body: dict[str, Any]) -> None:
        """Send a request until it is accepted."""
        headers = MERGE if method == "PATCH" else None
        while True:
            async with self.session.request(
                method, self.url + path, json=body, headers=headers
            ) as answer:
                text = await answer.text()
                if answer.status in (200, 201, 409):  # 409: an earlier round made it
                    return
                if answer.status not in (429, 500, 503, 504):
                    raise AssertionError(f"{method} {path}: {answer.status} {text}")
            await asyncio.sleep(1)

    async def text(self, path: str) -> str:
        """Return what a path answers."""
        async with self.session.get(self.url + path) as answer:
            return await answer.text()


@asynccontextmanager
async def hollow_nodes(plane: ControlPlane, pool: str) -> AsyncGenerator[HollowNodes]:
    """Make hollow nodes in the block; each has a connection of its own."""
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    headers = {"Authorization": f"Bearer {plane.token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield HollowNodes(session, plane.url, pool, random.Random(1))


@dataclass(frozen=True)
class Served:
    """What an API server has served, by its own metrics: long-lived requests aside."""

    buckets: dict[float, float]
    rejected: float

    def since(self, before: Served) -> Served:
        buckets = {le: n - before.buckets.get(le, 0.0) for le, n in self.buckets.items()}
        return Served(buckets, self.rejected - before.rejected)

    @property
    def count(self) -> float:
        return self.buckets[float("inf")]

    def quantile(self, share: float) -> float:
        """Return the upper end of the bucket that holds the quantile, in seconds."""
        return min(le for le, n in self.buckets.items() if n >= share * self.count)


async def served(nodes: HollowNodes) -> Served:
    """Read the metrics of the API server."""
    buckets, rejected = defaultdict[float, float](float), 0.0
    for line in (await nodes.text("/metrics")).splitlines():
        if found := _BUCKET.match(line):
            if 'verb="WATCH"' not in found[1] and 'verb="CONNECT"' not in found[1]:
                buckets[float(found[2])] += float(found[3])
        elif found := _REJECTED.match(line) or _ANSWERED.match(line):
            rejected += float(found[1])
    return Served(dict(buckets), rejected)
