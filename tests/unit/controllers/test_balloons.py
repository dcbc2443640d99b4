"""The balloon controller on the in-process API: what it leaves behind, wherever it dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from fairlead.api import names
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import (
    CRDS,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
)
from fairlead.api.schema import crd
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.placing import balloons
from fairlead.controllers.placing.balloons import BalloonController
from fairlead.decide.fleet.balloons import Action, BalloonPolicy, plan_pool
from fairlead.decide.pinning import Binding
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.runtime.client import Client, ClientWrapper, Request
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

A = TypeVar("A")
SPACE = "fairlead-system"
POLICY = BalloonPolicy(namespace=SPACE, binding=Binding.PINNED)
RESOURCES = {"cpu": "128", "memory": "1Ti", "nvidia.com/gpu": "8"}


class Death(Exception):
    """The process dies."""


class Mortal(ClientWrapper):
    """Dies at a write, before or after its effect."""

    def __init__(self, inner: Client, lives: int, *, after: bool) -> None:
        super().__init__(inner)
        self._lives = lives
        self._after = after

    async def call(self, request: Request[A]) -> A:
        if not request.is_write:
            return await self.inner.call(request)
        self._lives -= 1
        if self._lives < 0:
            raise Death
        if self._lives == 0 and not self._after:
            raise Death
        answer = await self.inner.call(request)
        if self._lives == 0:
            raise Death
        return answer


class Cluster:
    def __init__(self) -> None:
        self.clock, self.rng = LoopClock(EPOCH), random.Random(1)
        self.service = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{self.rng.getrandbits(128):032x}", rng=self.rng,
        )  # fmt: skip
        self.client = InProcessClient(self.service)

    async def begin(self, nodes: int) -> None:
        await self.service.bootstrap()
        for manifest in crd.manifests():
            await self.client.create(CRDS, manifest)
        await self.client.create(NAMESPACES, {"metadata": {"name": SPACE}})
        name = {"name": names.BALLOON_PRIORITY_CLASS}
        await self.client.create(PRIORITY_CLASSES, {"metadata": name, "value": -10})
        spec = {
            "provider": {"type": "External"}, "template": {"resources": RESOURCES},
            "max": 50, "mode": "Active",
        }  # fmt: skip
        await self.client.create(NODE_POOLS, {"metadata": {"name": "gpu"}, "spec": spec})
        for i in range(nodes):
            made = make_node(f"n{i}", labels={names.POOL: "gpu"})
            meta = {"name": f"n{i}", "labels": made.metadata.labels}
            spec = {"providerID": f"other://n{i}"}
            await self.client.create(NODES, {"metadata": meta, "spec": spec})
            patch = {"status": to_wire(made.status)}
            await self.client.patch(NODES, f"n{i}", patch, subresource="status")

    async def want(self, count: int) -> NodePool:
        pool = await self.client.get(NODE_POOLS, "gpu")
        status = {
            "observedGeneration": pool.metadata.generation, "balloons": {"wanted": count},
            "conditions": [{"type": "Valid", "status": "True", "reason": "Valid", "message": "",
                            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }  # fmt: skip
        return await self.client.patch(NODE_POOLS, "gpu", {"status": status}, subresource="status")

    async def place(self, name: str, nodes: list[str]) -> None:
        job = make_job(name, count=len(nodes), placement=make_placement(nodes))
        await self.client.create(
            JOBS, {"metadata": {"name": name}, "spec": to_wire(job.spec)}, namespace="default"
        )
        status = {"status": to_wire(job.status)}
        await self.client.patch(JOBS, name, status, namespace="default", subresource="status")

    async def run(
        self, client: Client, seconds: float, *, reader: MirrorReader | None = None
    ) -> bool:
        """Run one life of the controller; return whether it died."""
        world = ClusterWorld.make(client, clock=self.clock, rng=self.rng)
        pools = Mirror(client, NODE_POOLS, clock=self.clock, rng=self.rng)
        nodes, seen = PoolNodes(SPACE), world.mirrors
        seen.nodes.on_change(lambda c: nodes.put(c.new, 0.0) if c.new else nodes.remove(c.key[1]))
        seen.jobs.on_change(lambda c: nodes.job_changed(c.key, c.new, 0.0))
        seen.pods.on_change(lambda c: nodes.pod_changed(c.key, c.new, 0.0))
        controller = BalloonController(
            client, world, pools, nodes, policy=POLICY, clock=self.clock, reader=reader
        )
        loop = ControllerLoop(controller, clock=self.clock, rng=self.rng)
        try:
            async with asyncio.timeout(seconds):
                await loop.run()
        except TimeoutError:
            return False
        except BaseExceptionGroup as group:
            if group.subgroup(Death) is None:
                raise
            return True
        raise AssertionError("the loop ended by itself")

    async def balloons(self) -> list[Pod]:
        pods = (await self.client.list(PODS, namespace=SPACE)).items
        return sorted(pods, key=lambda pod: pod.metadata.name)

    async def bind(self, names_to_nodes: dict[str, str]) -> None:
        for name, node in names_to_nodes.items():
            target = {"kind": "Node", "name": node}
            body = {"metadata": {"name": name}, "target": target}
            await self.service.bind((SPACE, name), body, WriteOptions())


def play(main: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    run(main(Cluster()))


@pytest.mark.parametrize("after", [False, True])
def test_wherever_it_dies_none_is_missing_or_doubled_in_the_end(*, after: bool) -> None:
    deaths = 0

    async def main(cluster: Cluster) -> None:
        nonlocal deaths
        await cluster.begin(nodes=6)
        for step, count in enumerate((4, 6, 2)):
            await cluster.want(count)
            for lives in (1, 2, 1, 1):
                deaths += await cluster.run(Mortal(cluster.client, lives, after=after), 5.0)
            await cluster.run(cluster.client, 10.0)
            found = await cluster.balloons()
            assert len(found) == count
            if step == 0:
                await cluster.bind({pod.metadata.name: f"n{i}" for i, pod in enumerate(found)})
                await cluster.place("train", ["n0", "n1"])
        nodes = {pod.spec.node_name for pod in await cluster.balloons()}
        assert not nodes & {"n0", "n1"}

    play(main)
    assert deaths >= 6


def test_no_more_balloons_are_made_in_a_second_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "POLICY", replace(POLICY, changes_max=2))

    async def main(cluster: Cluster) -> None:
        await cluster.begin(nodes=6)
        await cluster.want(6)
        await cluster.run(cluster.client, 1.5)
        assert len(await cluster.balloons()) == 4
        await cluster.run(cluster.client, 5.0)
        assert len(await cluster.balloons()) == 6

    play(main)


def test_a_pod_that_looks_like_a_balloon_is_left_alone_and_its_name_is_not_used() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(nodes=2)
        pool = await cluster.want(1)
        await cluster.run(cluster.client, 5.0)
        (real,) = await cluster.balloons()
        owner = {
            "apiVersion": names.API_VERSION, "kind": "NodePool", "name": "gpu",
            "uid": pool.metadata.uid, "controller": True,
        }  # fmt: skip
        containers = [{"name": "pause", "image": "pause"}]
        for space, owners in (("default", [owner]), (SPACE, [])):
            labels = dict(real.metadata.labels)
            meta = {"name": "balloon-gpu-1", "labels": labels, "ownerReferences": owners}
            spec = {"containers": containers, "nodeName": "n0"}
            await cluster.client.create(PODS, {"metadata": meta, "spec": spec}, namespace=space)
        await cluster.place("train", ["n0"])
        await cluster.want(2)
        await cluster.run(cluster.client, 5.0)
        assert [pod.metadata.name for pod in await cluster.balloons()] == [
            "balloon-gpu-0", "balloon-gpu-1", "balloon-gpu-2",
        ]  # fmt: skip
        await cluster.want(0)
        await cluster.run(cluster.client, 5.0)
        assert [pod.metadata.name for pod in await cluster.balloons()] == ["balloon-gpu-1"]
        (theirs,) = (await cluster.client.list(PODS, namespace="default")).items
        assert theirs.metadata.name == "balloon-gpu-1"

    play(main)


def test_a_pool_that_was_set_aside_has_balloons_once_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def plan(pool: NodePool, *args: Any, **kwargs: Any) -> list[Action]:
        assert pool.status.balloons is not None
        seen.append(pool.status.balloons.wanted)
        if pool.status.balloons.wanted == 1:
            raise ValueError("a defect")
        return plan_pool(pool, *args, **kwargs)

    monkeypatch.setattr(balloons, "plan_pool", plan)

    async def main(cluster: Cluster) -> None:
        await cluster.begin(nodes=2)
        await cluster.want(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.run(cluster.client, 20.0, reader=MirrorReader(SetAside())))
            await asyncio.sleep(10)
            assert seen == [1]
            assert await cluster.balloons() == []
            await cluster.want(2)
        assert len(await cluster.balloons()) == 2

    play(main)


def test_when_the_pool_is_gone_its_balloons_go() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(nodes=0)
        await cluster.want(3)
        await cluster.run(cluster.client, 5.0)
        assert len(await cluster.balloons()) == 3
        await cluster.client.delete(NODE_POOLS, "gpu")
        await cluster.run(cluster.client, 5.0)
        assert await cluster.balloons() == []

    play(main)


def test_when_the_machines_of_a_pool_become_ours_its_balloons_go() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.begin(nodes=0)
        await cluster.want(3)
        await cluster.run(cluster.client, 5.0)
        assert len(await cluster.balloons()) == 3
        ours = {"spec": {"provider": {"type": "Simulated"}}}
        await cluster.client.patch(NODE_POOLS, "gpu", ours)
        await cluster.want(0)
        await cluster.run(cluster.client, 5.0)
        assert await cluster.balloons() == []

    play(main)
