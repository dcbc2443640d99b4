"""Balloons beside another autoscaler and the stock scheduler, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.node_pool import BalloonCounts
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import is_true
from fairlead.api.resources import JOBS, NODE_POOLS, NODES, PODS, PRIORITY_CLASSES
from fairlead.decide.pinning import Binding
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.profile import NodeShape, load_profile
from fairlead.sim.loop import run
from fairlead.sim.observers.observer import Observer
from fairlead.sim.setup.faults import PERFECT, FaultRates
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import EPOCH

RESOURCES = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8", "pods": "110"}
SHAPE = NodeShape(resources=RESOURCES)
FAULTS = FaultRates(
    conflict=0.02, refused=0.02, answer_lost=0.01, latency_seconds_mean=0.005,
    watch_life_seconds_mean=600.0, watch_expired=0.1, watch_lag_seconds_max=0.2,
)  # fmt: skip
#: Of the other autoscaler: until a node is there, and how long one may be idle.
BOOT_SECONDS, IDLE_SECONDS = 60.0, 120.0
SPACE = "fairlead-system"
CLASS = {
    "metadata": {"name": names.BALLOON_PRIORITY_CLASS}, "value": -10, "preemptionPolicy": "Never",
}  # fmt: skip


def pool_body(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "gpu"},
        "spec": {
            "provider": {"type": "External"}, "template": {"resources": RESOURCES}, "max": 20,
            "mode": "Active", "headroomNodes": 3, **spec,
        },
    }  # fmt: skip


def gang(name: str, count: int, *, seconds: int = 600) -> dict[str, Any]:
    return job_body(name, members=count, gpus=8, run_seconds=seconds)


class BalloonWorld(World, Observer):
    """One pool, and another autoscaler: it adds a node for each pod that waits, and removes those
    that nothing holds.
    """

    def __init__(self, seed: int, *, kills: float = 0.0, faults: FaultRates = PERFECT) -> None:
        options = WorldOptions(
            nodes=0, workload=WorkloadOptions(0, 0.0), faults=faults, lease_seconds=15.0,
            profile=replace(load_profile("instant"), node=SHAPE), binding=Binding.PINNED,
            calls_between_kills_mean=kills, steps_between_crashes_mean=kills and 20.0,
            down_seconds_max=10.0, balloons=True,
        )  # fmt: skip
        super().__init__(options, seed, observers=[self])
        self.jobs: dict[ObjectKey, Job] = {}
        self.pods: dict[ObjectKey, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.bought = 0

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        self.jobs.pop(key, None)
        if new is not None:
            self.jobs[key] = new

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        self.pods.pop(key, None)
        if new is not None:
            self.pods[key] = new

    def node(self, new: Node | None, name: str, now: float) -> None:
        self.nodes.pop(name, None)
        if new is not None:
            self.nodes[name] = new

    async def _story(self, arrivals: Sequence[Arrival]) -> None:
        await self._autoscale()

    async def _autoscale(self) -> None:
        coming: list[float] = []
        idle_since: dict[str, float] = {}
        while True:
            await asyncio.sleep(5.0)
            now = self.clock.now() - EPOCH
            for _ in [at for at in coming if at <= now]:
                await self.add_node()
            coming = [at for at in coming if at > now]
            waiting = sum(
                not pod.spec.node_name and any(c.reason == "Unschedulable"
                                               for c in pod.status.conditions)
                for pod in self.pods.values()
            )  # fmt: skip
            held = {pod.spec.node_name for pod in self.pods.values() if not pod.is_terminal}
            room = len(coming) + len(self.nodes.keys() - held)
            coming += [now + BOOT_SECONDS] * (waiting - room)
            for name in sorted(self.nodes):
                if name in held:
                    idle_since.pop(name, None)
                elif now - idle_since.setdefault(name, now) >= IDLE_SECONDS:
                    del idle_since[name]
                    await self.virtual.unregister(name)
                    await self.client.delete(NODES, name)

    async def add_node(self) -> None:
        self.bought += 1
        name = f"gpu-{self.bought:03d}"
        await self.virtual.register({
            "metadata": {"name": name, "labels": {names.POOL: "gpu", names.HOSTNAME: name}},
            "spec": {"providerID": f"other://{name}"},
            "status": {"capacity": RESOURCES, "allocatable": RESOURCES},
        })  # fmt: skip

    @property
    def balloons(self) -> list[Pod]:
        return [pod for (space, _), pod in self.pods.items() if space == SPACE]

    @property
    def held(self) -> list[str]:
        """The nodes of balloons."""
        return sorted(pod.spec.node_name for pod in self.balloons if pod.spec.node_name)

    def is_running(self, name: str) -> bool:
        job = self.jobs.get(("default", name))
        return job is not None and is_true(job.status.conditions, names.RUNNING)

    async def until(self, condition: Callable[[], bool], seconds_max: float, what: str) -> float:
        """Return after how many seconds the condition held."""
        begun_at = self.clock.now()
        while not condition():
            if self.clock.now() - begun_at > seconds_max:
                jobs = [(j.metadata.name, j.status.verdict) for j in self.jobs.values()]
                raise AssertionError(
                    f"{what}: balloons on {self.held} of {len(self.balloons)}, {len(self.nodes)} "
                    f"nodes, {jobs}"
                )
            await asyncio.sleep(0.5)
        return self.clock.now() - begun_at


async def play(world: BalloonWorld, story: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(world.run())
        await asyncio.sleep(3.0)
        await world.client.create(PRIORITY_CLASSES, CLASS)
        await story()
        world.stop()


def holds(world: BalloonWorld, count: int) -> Callable[[], bool]:
    return lambda: len(world.held) == len(set(world.held)) == len(world.balloons) == count


def test_gangs_take_the_nodes_of_balloons_and_the_headroom_is_filled_again() -> None:
    world = BalloonWorld(seed=1)

    async def story() -> None:
        await world.client.create(NODE_POOLS, pool_body(headroomNodes=8))
        await world.until(holds(world, 8), 300, "headroom")
        before = world.held
        await world.client.create(JOBS, gang("train", 5), namespace="default")
        seconds = await world.until(lambda: world.is_running("train"), 15, "start")
        assert seconds <= 15
        used = {
            p.spec.node_name for p in world.pods.values() if names.JOB_NAME in p.metadata.labels
        }
        assert used <= set(before), "the gang has nodes that balloons held"
        await world.until(holds(world, 8), 300, "headroom again")
        assert not used & set(world.held)
        (pool,) = (await world.client.list(NODE_POOLS)).items
        await asyncio.sleep(60)
        (pool,) = (await world.client.list(NODE_POOLS)).items
        assert (pool.status.nodes, pool.status.wanted) == (13, 13)
        assert pool.status.balloons == BalloonCounts(wanted=8, standing=8)

    run(play(world, story))


def test_a_gang_that_no_node_is_there_for_gets_its_nodes_from_the_other_autoscaler() -> None:
    world = BalloonWorld(seed=2)

    async def story() -> None:
        await world.client.create(NODE_POOLS, pool_body(headroomNodes=0))
        await world.client.create(JOBS, gang("train", 6, seconds=300), namespace="default")
        await world.until(lambda: world.is_running("train"), 300, "start")
        assert len(world.nodes) == 6
        await world.until(lambda: world.jobs["default", "train"].is_finished, 600, "end")
        await world.until(lambda: not world.nodes and not world.balloons, 400, "nodes go")

    run(play(world, story))


def test_without_its_pool_no_balloon_is_left_and_the_nodes_go() -> None:
    world = BalloonWorld(seed=3)

    async def story() -> None:
        await world.client.create(NODE_POOLS, pool_body())
        await world.until(holds(world, 3), 300, "headroom")
        await asyncio.sleep(2 * IDLE_SECONDS)
        assert len(world.nodes) == 3, "nodes with a balloon are not idle"
        await world.client.delete(NODE_POOLS, "gpu")
        await world.until(lambda: not world.balloons, 30, "balloons go")
        await world.until(lambda: not world.nodes, 2 * IDLE_SECONDS + 30, "nodes go")

    run(play(world, story))


@pytest.mark.parametrize("seed", range(2))
def test_the_headroom_is_kept_when_controllers_die_every_few_calls(seed: int) -> None:
    world = BalloonWorld(seed, kills=60.0, faults=FAULTS)

    async def story() -> None:
        await world.client.create(NODE_POOLS, pool_body(headroomNodes=4))
        await world.until(lambda: len(world.held) >= 4, 900, "headroom")
        for number in range(6):
            body = gang(f"train-{number}", 3, seconds=90)
            await world.client.create(JOBS, body, namespace="default")
            await asyncio.sleep(60)
        world.replicas.stop_faults()
        world.switch.stop()
        await world.until(lambda: all(j.is_finished for j in world.jobs.values()), 3600, "jobs")
        await world.until(holds(world, 4), 900, "headroom again")
        assert len(world.jobs) == 6
        assert world.replicas.kills
        assert world.replicas.crashes

    run(play(world, story))


def test_a_pod_of_a_tenant_that_looks_like_a_balloon_keeps_its_node() -> None:
    world = BalloonWorld(seed=5)

    async def story() -> None:
        await world.client.create(NODE_POOLS, pool_body(headroomNodes=2, max=2))
        await world.until(holds(world, 2), 300, "headroom")
        copied, _ = sorted(world.balloons, key=lambda pod: pod.metadata.name)
        raw = {
            "metadata": {
                "name": "mine", "labels": copied.metadata.labels,
                "ownerReferences": [
                    {"apiVersion": names.API_VERSION, "kind": "NodePool", "name": "gpu",
                     "uid": copied.metadata.owner_references[0].uid, "controller": True},
                ],
            },
            "spec": {
                "nodeName": world.held[0],
                "containers": [{"name": "pause", "image": "pause",
                                "resources": {"requests": {"cpu": "4"}}}],
            },
        }  # fmt: skip
        await world.client.create(PODS, raw, namespace="default")
        node = world.held[0]
        await world.until(lambda: node not in world.held, 60, "the balloon leaves")
        for _ in range(120):
            await asyncio.sleep(1.0)
            assert len(world.held) <= 2
        assert node not in world.held, "it comes back while it is missing elsewhere, and then goes"
        assert ("default", "mine") in world.pods

    run(play(world, story))
