"""Which nodes of a fleet are made, reported and removed when it is started in another size."""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.embedded.virtual.fleet import NodeFleet, ensure_fleet, shrink_fleet
from fairlead.embedded.virtual.profile import load_profile
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

SHAPE = load_profile("default").node


async def _node(client: FakeClient, name: str, **labels: str) -> None:
    metadata = {"name": name, "labels": {names.NODE_TYPE: "virtual", **labels}}
    await client.create(NODES, {"metadata": metadata})


async def _pod(client: FakeClient, name: str, node: str, phase: str) -> None:
    spec = {"nodeName": node, "containers": [{"name": "main"}]}
    body = {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}
    await client.create(PODS, body, namespace="default")


async def _job(client: FakeClient, name: str, node: str, **status: Any) -> None:
    role = {"name": "worker", "template": {"spec": {"containers": [{"name": "main"}]}}}
    place = {"attempt": 1, "roles": [{"role": "worker", "nodes": [node]}]}
    body = {
        "metadata": {"name": name}, "spec": {"roles": [role]},
        "status": {"placement": place, **status},
    }  # fmt: skip
    await client.create(JOBS, body, namespace="default")


def test_a_smaller_fleet_loses_the_nodes_that_nothing_unfinished_needs() -> None:
    async def main() -> None:
        client = FakeClient()
        await ensure_fleet(client, NodeFleet(7, SHAPE), LoopClock(0.0))
        for name in ("host", "x00006", "v6"):
            await _node(client, name)
        await _pod(client, "runs", "v00002", "Running")
        await _pod(client, "ended", "v00003", "Succeeded")
        await _job(client, "placed", "v00004")
        await _job(client, "over", "v00005", conditions=[{"type": "Failed", "status": "True"}])
        assert await shrink_fleet(client, NodeFleet(2, SHAPE)) == ("v00002", "v00004")
        left = {node.metadata.name for node in client.stored(NODES)}
        assert left == {"v00000", "v00001", "v00002", "v00004", "host", "x00006", "v6"}

    run(main())


def test_nodes_of_pools_are_no_leftovers_of_a_fleet() -> None:
    async def main() -> None:
        client = FakeClient()
        await _node(client, "left")
        await _node(client, "bought", **{names.POOL: "spot"})
        report = await ensure_fleet(client, NodeFleet(1, SHAPE), LoopClock(0.0))
        assert (report.created, report.kept, report.extra) == (1, 0, ("left",))
        assert [node.metadata.name for node in report.nodes] == ["bought", "left", "v00000"]

    run(main())
