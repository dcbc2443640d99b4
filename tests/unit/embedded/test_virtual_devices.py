"""Devices of virtual nodes: which slices are published, and what a profile may say of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.api.kubernetes.device_shapes import DeviceShape, slices_of, units_of
from fairlead.api.kubernetes.devices import ResourceSlice
from fairlead.api.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import Profile, parse_profile
from fairlead.input.errors import CliError
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH
from fairlead.testing.fake_client import FakeClient

STAGES = """
name: test
stages:
- {name: start, match: {state: Bound}, next: {state: Running}}
"""
GPUS = """
node:
  devices:
  - driver: gpu.example.com
    count: 2
    attributes: {model: {string: h100}}
    capacity: {memory: {value: 80Gi}}
"""
MIG = """
node:
  devices:
  - driver: gpu.example.com
    count: 2
    counters: {memory: 8}
    parts:
    - {name: half, count: 2, counters: {memory: 4}}
    - {name: whole, counters: {memory: 8}}
"""


def profile(text: str) -> Profile:
    return parse_profile(STAGES + text)


class Cluster:
    """A client and two virtual nodes of a profile, which may be started again with another one."""

    def __init__(self) -> None:
        self.clock = LoopClock(EPOCH)
        self.client = FakeClient(now=self.clock.now, is_graceful=True)

    def nodes(self, text: str) -> VirtualNodes:
        given = profile(text)
        fleet, rng = NodeFleet(2, given.node), random.Random(1)
        return VirtualNodes(self.client, fleet, given, clock=self.clock, rng=rng)

    async def runs(self, text: str, act: Callable[[VirtualNodes], Awaitable[None]]) -> None:
        nodes = self.nodes(text)
        task = asyncio.create_task(nodes.run())
        await asyncio.sleep(1)
        await act(nodes)
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def devices(self, node: str) -> dict[str, list[str]]:
        """Return the devices of the newest generation by slice."""
        found = [s for s in self.client.stored(RESOURCE_SLICES) if s.spec.node_name == node]
        assert len({each.spec.pool.generation for each in found}) <= 1
        for each in found:
            assert each.spec.pool.resource_slice_count == len(found)
        return {s.metadata.name: [d.name for d in s.spec.devices] for s in found}


async def nothing(_: VirtualNodes) -> None:
    pass


def test_nodes_publish_their_devices_once_and_a_start_with_others_replaces_them() -> None:
    async def main() -> None:
        cluster = Cluster()
        await cluster.runs(GPUS, nothing)
        assert cluster.devices("v00001") == {"v00001-gpu.example.com-0": ["gpu-0", "gpu-1"]}
        [first, _] = cluster.client.stored(RESOURCE_SLICES)
        node = await cluster.client.get(NODES, first.spec.node_name)
        assert [each.uid for each in first.metadata.owner_references] == [node.metadata.uid]
        assert first.spec.devices[0].attributes["model"].string == "h100"
        [found] = cluster.client.stored(DEVICE_CLASSES)
        assert found.metadata.name == "gpu.example.com"
        versions = [s.metadata.resource_version for s in cluster.client.stored(RESOURCE_SLICES)]
        await cluster.runs(GPUS, nothing)
        again = [s.metadata.resource_version for s in cluster.client.stored(RESOURCE_SLICES)]
        assert again == versions
        await cluster.runs(MIG, nothing)
        assert cluster.devices("v00000") == {
            "v00000-gpu.example.com-0": [],
            "v00000-gpu.example.com-1": [
                "gpu-0-half-0", "gpu-0-half-1", "gpu-0-whole",
                "gpu-1-half-0", "gpu-1-half-1", "gpu-1-whole",
            ],
        }  # fmt: skip
        await cluster.runs("", nothing)
        assert cluster.client.stored(RESOURCE_SLICES) == ()

    run(main())


def test_a_device_that_fails_vanishes_with_its_parts_and_ends_the_program_that_has_one() -> None:
    async def main() -> None:
        cluster = Cluster()
        created = cluster.client.create
        for name, device in (("a", "gpu-0-half-1"), ("b", "gpu-1-whole")):
            claims = [{"name": "gpu", "resourceClaimName": name}]
            spec = {"nodeName": "v00000", "restartPolicy": "Never", "resourceClaims": claims,
                    "containers": [{"name": "main"}]}  # fmt: skip
            await created(PODS, {"metadata": {"name": name}, "spec": spec,
                                 "status": {"phase": "Pending"}}, namespace="default")  # fmt: skip
            result = {"request": "r", "driver": "gpu.example.com", "pool": "v00000",
                      "device": device}  # fmt: skip
            body = {"metadata": {"name": name}, "spec": {},
                    "status": {"allocation": {"devices": {"results": [result]}}}}  # fmt: skip
            await created(RESOURCE_CLAIMS, body, namespace="default")

        async def act(nodes: VirtualNodes) -> None:
            assert await nodes.fail_device("v00000", 0.0)
            await asyncio.sleep(1)
            left = cluster.devices("v00000")["v00000-gpu.example.com-1"]
            assert left == ["gpu-1-half-0", "gpu-1-half-1", "gpu-1-whole"]
            phases = {p.metadata.name: p.status.phase for p in cluster.client.stored(PODS)}
            assert phases == {"a": "Failed", "b": "Running"}
            assert await nodes.fail_device("v00000", 0.0)
            assert not await nodes.fail_device("v00000", 0.0)
            await asyncio.sleep(1)
            assert cluster.devices("v00000") == {"v00000-gpu.example.com-0": []}
            nodes.mend_device("v00000")
            await asyncio.sleep(1)
            assert len(cluster.devices("v00000")["v00000-gpu.example.com-1"]) == 3
            nodes.mend_device("v00000")
            nodes.mend_device("v00000")

        await cluster.runs(MIG, act)
        assert len(cluster.devices("v00000")["v00000-gpu.example.com-1"]) == 6

    run(main())


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("{driver: x_y, count: 1}", "node.devices[0].driver", "'x_y' must be the name of a driver"),
        ("{driver: x.y, count: -1}", "node.devices", "expected `int` >= 1 at [0].count"),
        ("{driver: x.y, count: 1, colour: red}", "node.devices", "unknown field `colour` at [0]"),
        ("{driver: x.y, count: 1, attributes: {a: {text: b}}}", "node.devices[0].attributes.a",
         "must have one of string, int, bool and version"),
        ("{driver: x.y, count: 1, capacity: {memory: {value: many}}}",
         "node.devices[0].capacity.memory", "'many' "),
        ("{driver: x.y, count: 1, counters: {memory: 8}}", "node.devices[0].counters",
         "need parts"),
        ("{driver: x.y, count: 1, counters: {memory: 8},"
         " parts: [{name: a, counters: {memory: 9}}]}",
         "node.devices[0].parts[0].counters.memory", "'9' is more than the 8 of the device"),
        ("{driver: x.y, count: 1, counters: {memory: 8}, parts: [{name: a, counters: {me: 9}}]}",
         "node.devices[0].parts[0].counters.me", "is no counter of the device; it has memory"),
        ("{driver: x.y, count: 1, counters: {memory: 8}, parts: [{name: a}]}",
         "node.devices[0].parts[0].counters", "must say what the part consumes"),
        ("{driver: x.y, count: 1024}\n  - {driver: z.y, count: 1}", "node.devices",
         "a node has at most 1024"),
        ("{driver: x.y, count: 1, counters: {m: 2},"
         " parts: [{name: a, counters: {m: 1}}, {name: a, counters: {m: 1}}]}",
         "node.devices", "'gpu-0-a' is the name of two devices of x.y"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_devices_is_said_with_its_path(
    text: str, field: str, message: str
) -> None:
    with pytest.raises(CliError) as caught:
        profile(f"node:\n  devices:\n  - {text}\n")
    [problem] = caught.value.problems
    assert problem.field == field
    assert message in problem.message


def test_a_class_whose_expression_does_not_compile_is_refused() -> None:
    with pytest.raises(CliError) as caught:
        profile("node:\n  deviceClasses: {a.b: 'device.driver ==', C: 'true'}\n")
    assert [each.field for each in caught.value.problems] == [
        "node.deviceClasses.a.b", "node.deviceClasses.C",
    ]  # fmt: skip


def test_a_pool_of_many_devices_is_in_slices_that_the_server_takes() -> None:
    def parts(found: tuple[ResourceSlice, ...]) -> list[tuple[int, int]]:
        return [(len(each.spec.shared_counters), len(each.spec.devices)) for each in found]

    plain = DeviceShape("a.b", 300)
    assert parts(slices_of("n", (plain,))) == [(0, 128), (0, 128), (0, 44)]
    assert len(units_of((plain, DeviceShape("a.b", 2)))) == 302
    mig: Any = profile(MIG).node.devices[0]
    many = (DeviceShape("g", 12, counters=mig.counters, parts=mig.parts),)
    assert parts(slices_of("n", many)) == [(8, 0), (4, 0), (0, 36)]
    assert parts(slices_of("n", many, units_of(many)[:11])) == [(1, 0), (0, 3)]
