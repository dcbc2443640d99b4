"""Nodes that are unplugged, of a cluster whose kubelets renew leases, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.simulation.embedded_world import EmbeddedWorld, embedded_world

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import UNREACHABLE
from fairlead.api.resources import EVENTS, NODES
from fairlead.app.configuration.policies import Policies
from fairlead.decide.health.policy import SilencePolicy
from fairlead.decide.health.unreachable_nodes import Contact
from fairlead.embedded.virtual.stages.records import NodeFault
from fairlead.model.health.unreachable import unreachable_since
from fairlead.sim.loop import run as run_loop

#: From the last packet of a node to its gang that runs elsewhere.
BOUND_SECONDS = 25.0
#: Kubernetes calls no node of these worlds not ready in the time that they last.
NEVER = 86_400.0


def run(
    scenario: Callable[[EmbeddedWorld], Awaitable[None]],
    *,
    nodes: int = 10,
    policies: Policies | None = None,
) -> None:
    async def main() -> None:
        async with embedded_world(nodes, policies, has_kubelets=True) as world:
            await world.submit("gang", 3)
            await world.runs("gang")
            await asyncio.sleep(20)  # leases have been renewed
            await scenario(world)

    run_loop(main())


def unplug(world: EmbeddedWorld, node: str, fault: NodeFault = NodeFault.UNREACHABLE) -> None:
    assert world.nodes is not None
    world.nodes.fail_node(node, fault, detect_seconds=NEVER)


def places(job: Job) -> tuple[str, ...]:
    assert job.status.placement is not None
    return tuple(nodes_of(job.status.placement))


async def node_of(world: EmbeddedWorld, name: str) -> Node:
    return await world.client.get(NODES, name)


async def events(world: EmbeddedWorld) -> list[str]:
    await asyncio.sleep(2)
    found = (await world.client.list(EVENTS)).items
    return sorted(each.reason for each in found if each.reason.startswith("Node"))


@pytest.mark.parametrize("fault", [NodeFault.UNREACHABLE, NodeFault.CRASHED])
@pytest.mark.parametrize("delay", [0.0, 2.5, 5.0, 7.5, 9.9])
def test_the_gang_of_a_node_that_is_unplugged_runs_elsewhere_within_the_bound(
    fault: NodeFault, delay: float
) -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        await asyncio.sleep(delay)  # any phase of the lease
        lost = places(await world.job("gang"))[0]
        began = world.clock.now()
        unplug(world, lost, fault)
        job = await world.until(
            "gang", lambda job: job.status.attempt == 2 and job.status.state == "Running", 60
        )
        assert world.clock.now() - began <= BOUND_SECONDS
        first = job.status.attempts[0]
        assert (first.cause.value if first.cause else "", first.reason) == ("Node", "NodeLost")
        assert first.nodes_lost == (lost,)
        assert f"(rank 0, node {lost}) was lost: its node was unreachable for" in first.message
        assert lost not in places(job)
        assert "NodeUnreachable" in await events(world)

    run(scenario)


def test_a_node_that_comes_back_takes_work_again_and_is_counted_for_an_hour() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        lost = places(await world.job("gang"))[0]
        unplug(world, lost)
        await world.until("gang", lambda job: job.status.attempt == 2, 60)
        assert not world.controllers.world.health.usable[lost]
        await world.submit("fills", 7)
        await asyncio.sleep(10)
        assert (await world.job("fills")).status.placement is None, "no pod may come to that node"
        world.mend(lost)
        await world.runs("fills")
        node = await node_of(world, lost)
        assert unreachable_since(node) is None
        assert UNREACHABLE in node.metadata.annotations
        assert "NodeReachable" in await events(world)
        assert (await world.job("gang")).status.attempt == 2
        await asyncio.sleep(3700)
        assert UNREACHABLE not in (await node_of(world, lost)).metadata.annotations

    run(scenario)


def test_a_node_whose_kubelet_alone_is_away_keeps_its_gang() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        silent = places(await world.job("gang"))[0]
        unplug(world, silent, NodeFault.NOT_READY)
        await asyncio.sleep(120)
        assert "NodeSilent" in await events(world)
        assert (await world.job("gang")).status.attempt == 1

    run(scenario)


def test_a_machine_that_answers_keeps_its_gang_though_its_lease_is_late() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        silent = places(await world.job("gang"))[0]
        world.renews = lambda name: name != silent  # type: ignore[method-assign] # a slow kubelet
        await asyncio.sleep(120)
        assert await events(world) == ["NodeSilent"], "one event for one silence"
        assert (await world.job("gang")).status.attempt == 1

    run(scenario)


def test_no_gang_is_restarted_while_no_kubelet_reaches_the_api_server() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        world.renews = lambda _: False  # type: ignore[method-assign] # an outage
        unplug(world, places(await world.job("gang"))[0])
        await asyncio.sleep(300)
        assert (await world.job("gang")).status.attempt == 1
        assert "NodeUnreachable" not in await events(world)

    run(scenario)


def test_no_gang_is_restarted_while_we_are_cut_off_from_all_machines() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        asked: list[str] = []

        async def connect(address: str, _port: int, seconds: float) -> Contact:
            asked.append(address)
            await asyncio.sleep(seconds)
            return Contact.SILENT

        world.contact.connect = connect  # type: ignore[method-assign] # our own network is cut
        unplug(world, places(await world.job("gang"))[0])
        await asyncio.sleep(120)
        assert asked, "the machine was tried"
        assert (await world.job("gang")).status.attempt == 1
        assert await events(world) == ["NodeSilent"]

    run(scenario)


def test_no_gang_is_restarted_while_half_of_the_nodes_are_silent() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        for index in range(5):
            unplug(world, f"v{index:05d}")
        await asyncio.sleep(120)
        assert "NodeUnreachable" not in await events(world)
        assert (await world.job("gang")).status.attempt == 1

    run(scenario)


def test_marks_of_an_hour_are_bounded() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        for index in range(3, 7):
            unplug(world, f"v{index:05d}")
            await asyncio.sleep(40)
            world.mend(f"v{index:05d}")
            await asyncio.sleep(20)
        nodes = (await world.client.list(NODES)).items
        marked = [n.metadata.name for n in nodes if UNREACHABLE in n.metadata.annotations]
        assert marked == ["v00003", "v00004", "v00005"], "three in an hour"

    run(scenario)


def test_where_it_is_off_marks_are_taken_off_and_no_lease_is_read() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        note = {"metadata": {"annotations": {UNREACHABLE: "2026-01-01T00:00:00Z"}}}
        await world.client.patch(NODES, "v00009", note)
        await asyncio.sleep(5)
        assert UNREACHABLE not in (await node_of(world, "v00009")).metadata.annotations
        unplug(world, places(await world.job("gang"))[0])
        await asyncio.sleep(120)
        assert (await world.job("gang")).status.attempt == 1

    run(scenario, policies=Policies(silence=SilencePolicy(enabled=False)))


@pytest.mark.parametrize(
    "forged",
    ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "2099-01-01T00:00:00Z/", "x" * 4000,
     "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
     "1999-01-01T00:00:00Z/2099-01-01T00:00:00Z", "2099-01-01T00:00:00Z/1999-01-01T00:00:00Z"],
)  # fmt: skip
def test_a_node_that_forges_its_mark_moves_no_gang_but_those_on_it(forged: str) -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        await world.submit("other", 3)
        await world.runs("other")
        own = places(await world.job("gang"))[0]
        note = {"metadata": {"annotations": {UNREACHABLE: forged}}}
        await world.client.patch(NODES, own, note)
        await asyncio.sleep(60)
        await world.runs("gang")
        assert unreachable_since(await node_of(world, own)) is None, "it renews its lease"
        assert (await world.job("other")).status.attempt == 1
        assert world.controllers.world.health.usable[own]

    run(scenario)


def test_a_node_that_comes_and_goes_spends_one_mark() -> None:
    async def scenario(world: EmbeddedWorld) -> None:
        for _ in range(5):
            unplug(world, "v00009")
            await asyncio.sleep(40)
            world.mend("v00009")
            await asyncio.sleep(20)
        lost = places(await world.job("gang"))[0]
        unplug(world, lost)
        await world.until("gang", lambda job: job.status.attempt == 2, 60)

    run(scenario)
