"""Nodes that are bought for gangs that wait for devices by claims, end to end on the API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api import names
from fairlead.api.kubernetes.device_shapes import slices_of
from fairlead.api.meta import to_wire
from fairlead.api.resources import (
    DEVICE_CLASSES,
    JOBS,
    NODE_POOLS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from fairlead.api.status import Invalid
from fairlead.decide.reasons import Reason
from fairlead.embedded.own_controllers.device_allocator import DeviceAllocator
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run

NIC, GPU = "nic.example.com", "gpu.example.com"
RESOURCES = {"cpu": "96", "memory": "1Ti"}


def template(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"resources": RESOURCES, "devices": list(devices)}


async def claim_template(world: FleetWorld, name: str, device_class: str, count: int) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": device_class, "count": count}}
    body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await world.client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace="default")


async def submit(
    world: FleetWorld, name: str, count: int, claim: str, source: str = "resourceClaimTemplateName"
) -> None:
    pod = {
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "d"}]}}],
        "resourceClaims": [{"name": "d", source: claim}],
    }
    note = {"annotations": {"fairlead.dev/simulate-seconds": "3600"}}
    role = {"name": "worker", "count": count, "template": {"metadata": note, "spec": pod}}
    body = {"metadata": {"name": name}, "spec": {"roles": [role]}}
    await world.client.create(JOBS, body, namespace="default")


async def allocate(world: FleetWorld) -> None:
    """Do what the embedded cluster does with claims."""
    pods = Mirror(world.client, PODS, clock=world.clock, rng=world.rng)
    nodes = Mirror(world.client, NODES, clock=world.clock, rng=world.rng)
    async with asyncio.TaskGroup() as group:
        group.create_task(pods.run())
        group.create_task(nodes.run())
        keeper = DeviceAllocator(world.client, pods, nodes, clock=world.clock, rng=world.rng)
        group.create_task(keeper.run())


async def runs(world: FleetWorld, name: str) -> bool:
    return (await world.job(name)).status.state == "Running"


async def classes(world: FleetWorld) -> None:
    """Make what the chart of a driver has."""
    for name in (NIC, GPU):
        selector = {"cel": {"expression": f'device.driver == "{name}"'}}
        body = {"metadata": {"name": name}, "spec": {"selectors": [selector]}}
        await world.client.create(DEVICE_CLASSES, body)


def test_a_gang_that_waits_for_devices_gets_as_many_nodes_as_have_them() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            allocator = world.group.create_task(allocate(world))
            await classes(world)
            await world.pool("plain", template={"resources": RESOURCES}, weight=10)
            await world.pool("cards", template=template({"driver": NIC, "count": 4}))
            await claim_template(world, "three", NIC, 3)
            await submit(world, "gang", 5, "three")
            await world.until(lambda: runs(world, "gang"), 900)
            names = {node.metadata.name for node in await world.nodes()}
            assert len(names) == world.cloud.launched == 5, "3 of 4 each, and no plain node"
            slices = (await world.client.list(RESOURCE_SLICES)).items
            assert {each.spec.node_name for each in slices} == names

            await claim_template(world, "gpu", GPU, 1)
            await submit(world, "never", 2, "gpu")
            await asyncio.sleep(300)
            verdict = (await world.job("never")).status.verdict
            assert verdict is not None
            assert verdict.reason == Reason.NO_NODE_SHAPE_FITS.value
            assert world.cloud.launched == 5, "no pool has it, so nothing is bought"
            allocator.cancel()
            assert world.crashes() == []

    run(main())


def test_a_gang_that_shares_a_claim_gets_one_node_that_has_its_devices() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            allocator = world.group.create_task(allocate(world))
            await classes(world)
            await world.pool("few", template=template({"driver": NIC, "count": 2}), weight=10)
            await world.pool("cards", template=template({"driver": NIC, "count": 4}))
            requests = [{"name": "r", "exactly": {"deviceClassName": NIC, "count": 3}}]
            body = {"metadata": {"name": "s"}, "spec": {"devices": {"requests": requests}}}
            await world.client.create(RESOURCE_CLAIMS, body, namespace="default")
            await submit(world, "gang", 5, "s", "resourceClaimName")
            await world.until(lambda: runs(world, "gang"), 900)
            [node] = await world.nodes()
            assert node.metadata.name.startswith("cards"), "5 members, 3 of 4 devices"
            [claim] = (await world.client.list(RESOURCE_CLAIMS)).items
            assert len(claim.status.reserved_for) == 5
            allocator.cancel()
            assert world.crashes() == []

    run(main())


def test_the_devices_of_nodes_that_are_there_count_before_those_of_the_template() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            allocator = world.group.create_task(allocate(world))
            await classes(world)
            await claim_template(world, "one", NIC, 1)
            await world.pool("cards", template=template({"driver": NIC, "count": 4}), min=1)
            await submit(world, "first", 1, "one")
            await world.until(lambda: runs(world, "first"), 900)
            # From now on the template says nothing, and machines are as they were.
            shapes = (await world.get_pool("cards")).spec.template.devices
            register = world.virtual.register

            async def register_as_before(body: Any, _: Any = ()) -> None:
                await register(body, shapes)

            world.virtual.register = register_as_before  # type: ignore[method-assign]
            await world.client.patch(NODE_POOLS, "cards", {"spec": {"template": {"devices": None}}})
            await submit(world, "second", 7, "one")
            await world.until(lambda: runs(world, "second"), 900)
            assert world.cloud.launched == 2, "3 are free, and another node has 4"
            allocator.cancel()

    run(main())


def test_a_node_joins_once_its_drivers_offer_what_the_template_states() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            allocator = world.group.create_task(allocate(world))
            await classes(world)
            register, late = world.virtual.register, list[tuple[Any, Any]]()

            async def register_late(body: Any, devices: Any = ()) -> None:
                await register(body)
                late.append((body["metadata"]["name"], devices))

            world.virtual.register = register_late  # type: ignore[method-assign]
            await world.pool("cards", template=template({"driver": NIC, "count": 2}))
            await claim_template(world, "two", NIC, 2)
            await submit(world, "gang", 1, "two")
            await asyncio.sleep(600)
            [node] = await world.nodes()
            assert [taint.key for taint in node.spec.taints] == [names.TAINT_JOINING]
            pool = await world.get_pool("cards")
            assert (pool.status.ready, world.cloud.launched) == (0, 1), "no other is bought for it"
            for name, devices in late:
                for each in slices_of(name, devices):
                    body = {"metadata": {"name": each.metadata.name}, "spec": to_wire(each.spec)}
                    await world.client.create(RESOURCE_SLICES, body)
            await world.until(lambda: runs(world, "gang"), 60)
            assert world.cloud.launched == 1
            allocator.cancel()

    run(main())


@pytest.mark.parametrize(
    ("devices", "field", "message"),
    [
        ({"driver": "x_y", "count": 1}, "spec.template.devices[0].driver", "name of a driver"),
        ({"driver": NIC, "count": -1}, "spec.template.devices[0].count", "greater than or equal"),
        ({"driver": NIC, "count": 2000}, "spec.template.devices[0].count", "less than or equal"),
        ({"driver": NIC, "count": 1, "capacity": {"m": {"value": "-1"}}},
         "spec.template.devices[0].capacity.m", "greater than or equal to 0"),
        ({"driver": NIC, "count": 1, "attributes": {"model": {}}},
         "spec.template.devices[0].attributes.model", "must have one of"),
    ],
)  # fmt: skip
def test_devices_of_a_template_that_cannot_be_are_refused_with_their_path(
    devices: dict[str, Any], field: str, message: str
) -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            with pytest.raises(Invalid) as caught:
                await world.pool("cards", template=template(devices))
            details = caught.value.status.details
            assert details is not None
            assert {cause.field for cause in details.causes} == {field}
            assert any(message in cause.message for cause in details.causes)

    run(main())
