"""Hundreds of nodes join a real API server, with and without the pace of the fleet controller.

`FAIRLEAD_HOLLOW_NODES=3000` joins that many and asks for a p99 of at most 1 s: for a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.hollow_nodes import HollowNodes, Served, hollow_nodes, served
from tests.kubernetes.operating import http_client, install_kinds, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import leader, replicas

from fairlead.api import names
from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import NAMESPACES, NODE_POOLS, NODES, PODS, Resource
from fairlead.api.status import AlreadyExists, Timeout, Unavailable
from fairlead.decide.fleet.joins import JoinLimits
from fairlead.kube.client import HttpClient
from fairlead.runtime.client import EventType

pytestmark = pytest.mark.kubernetes
ASKED = os.environ.get("FAIRLEAD_HOLLOW_NODES", "")
COUNT = int(ASKED or "60")
BOOT_SECONDS = 30.0
LIMITS = JoinLimits()
#: At the lowest rate that the answers of a busy machine may lead to.
SECONDS_MAX = 600 + COUNT * 1.5
ARGUMENTS = ("-n", "default", "--lease-seconds", "15", "--binding", "direct")


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


async def make_pool(client: HttpClient, directory: Path) -> None:
    command, listed = directory / "machines", directory / "list.json"
    ids = [{"id": f"hollow://{number}"} for number in range(COUNT)]
    listed.write_text(json.dumps({"instances": ids}))
    command.write_text(f"#!/bin/sh\n[ $1 = list ] && exec cat {listed}\nexit 69\n")
    command.chmod(0o755)
    spec: dict[str, Any] = {
        "provider": {"type": "Exec", "reference": str(command)}, "mode": "Active",
        "template": {"resources": {"cpu": "16"}}, "max": COUNT, "hold": COUNT,
        "joinsPerMinute": 500,
    }  # fmt: skip
    await client.create(NODE_POOLS, {"metadata": {"name": "hollow"}, "spec": spec})


async def follow_taints(client: HttpClient, nodes: HollowNodes) -> None:
    """Have each node take up work once its startup taint is lifted, until cancelled."""
    while True:
        found = await client.list(NODES)
        for node in found.items:
            _look(node, nodes)
        version = found.resource_version
        async for event in client.watch(NODES, resource_version=version, timeout_seconds=300):
            if event.type is not EventType.DELETED and event.object is not None:
                _look(event.object, nodes)


def _look(node: Node, nodes: HollowNodes) -> None:
    if not any(taint.key == names.TAINT_JOINING for taint in node.spec.taints):
        nodes.taken_up[node.metadata.name].set()


@dataclass(frozen=True)
class Joined:
    """What the API server served while all nodes joined, and when each took up work."""

    served: Served
    instants: list[float]

    def most_within(self, seconds: float) -> int:
        """Return how many nodes took up work within such a time at most."""
        ends = self.instants
        return max(sum(at <= each < at + seconds for each in ends) for at in ends)


async def delete_all(client: HttpClient, resource: Resource[Any]) -> None:
    """Delete all objects; thousands take longer than one request may."""
    while (await client.list(resource)).items:
        with suppress(Timeout, Unavailable):
            await client.delete_collection(resource, grace_period_seconds=0)


async def join(client: HttpClient, plane: ControlPlane, *, is_smoothed: bool) -> Joined:
    """Have all nodes join."""
    async with hollow_nodes(plane, "hollow") as nodes:
        before, began = await served(nodes), time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    nodes.node(number, boot_seconds=BOOT_SECONDS, is_smoothed=is_smoothed)
                )
                for number in range(COUNT)
            ]
            if is_smoothed:
                tasks.append(group.create_task(follow_taints(client, nodes)))

            async def have_joined() -> bool:
                return len(nodes.joined) == COUNT

            await until(have_joined, SECONDS_MAX)
            found = (await served(nodes)).since(before)
            for task in tasks:
                task.cancel()
    print(
        f"{'smoothed' if is_smoothed else 'at once'}: {COUNT} nodes in "
        f"{time.monotonic() - began:.0f} s, {found.count:.0f} requests, p50 at most "
        f"{found.quantile(0.5):g} s, p99 at most {found.quantile(0.99):g} s, "
        f"{found.rejected:.0f} rejected"
    )
    await delete_all(client, PODS)
    await delete_all(client, NODES)
    for lease in range(COUNT):
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        await client.request("DELETE", f"{path}/hollow-{lease:05}")
    return Joined(found, list(nodes.taken_up_at.values()))


async def test_joins_at_the_pace_of_the_controller_leave_the_api_server_quick(
    plane: ControlPlane, tmp_path: Path
) -> None:
    client = http_client(plane)
    await install_kinds(client)
    for name in ("kube-node-lease", "kube-system"):
        try:
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        except AlreadyExists:
            continue
    await make_pool(client, tmp_path)
    async with replicas(plane, arguments=ARGUMENTS) as world:
        await world.start()
        await leader(client, world)
        at_once = await join(client, plane, is_smoothed=False)
        smoothed = await join(client, plane, is_smoothed=True)
    assert at_once.served.count > COUNT * 10
    share = max(LIMITS.least, COUNT * LIMITS.share_max)
    assert smoothed.most_within(10) <= share + 11 * LIMITS.per_minute_max / 60
    assert smoothed.served.rejected <= at_once.served.rejected
    if ASKED:
        assert smoothed.served.quantile(0.99) <= 1.0
    await client.close()
