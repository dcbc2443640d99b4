"""A pool that is at fault, or whose provider is, holds up no other pool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api.resources import NODE_POOLS, PODS
from fairlead.api.status import Conflict, StatusCause
from fairlead.cloud.provider import CloudError, LaunchRequest
from fairlead.controllers.nodes import fleet as fleet_module
from fairlead.controllers.nodes.fleet import FleetController
from fairlead.decide.fleet.actions import Action, Terminate
from fairlead.decide.fleet.buying import purchases
from fairlead.decide.fleet.buying.demand import Offer
from fairlead.decide.fleet.census import PoolCensus
from fairlead.decide.fleet.view import FleetView
from fairlead.model.health.machines import Inventory
from fairlead.runtime.watching.barrier import Written
from fairlead.sim.loop import run


class BadProvider:
    """Raises, or never answers."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked = 0

    async def _fail(self) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def instances(self) -> Inventory:
        return await self._fail()

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        return await self._fail()

    async def terminate(self, ids: tuple[str, ...]) -> None:
        await self._fail()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RecursionError("planted"), "provider: RecursionError: planted"),
        (CloudError("x" * 100_000), f"provider: {'x' * 490}"),
        (None, ""),
    ],
)
def test_a_provider_that_raises_or_hangs_is_its_pools_fault(
    error: Exception | None, message: str
) -> None:
    provider = BadProvider(error)

    async def main() -> None:
        async with FleetWorld.running() as world:
            world.provider_makers["bad"] = lambda: provider
            await world.pool("bad", weight=-1)
            await world.pool("good")
            await world.submit("train", gpus=8, count=2)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            await world.until(placed, 600)
            assert provider.asked
            assert (await world.get_pool("bad")).status.message == message
            assert world.crashes() == []

    run(main())


class LateAnswer:
    """Refuses a launch in one life of the controllers, whose write that says so is still under way
    when the launch is sent in the next life."""

    def __init__(self, world: FleetWorld) -> None:
        self.world = world
        self.version = ""
        self.outcomes: list[str] = []

    async def instances(self) -> Inventory:
        return Inventory(())

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        if not self.version:
            self.version = (await self.world.get_pool("late")).metadata.resource_version
            self.world.group.create_task(self.world.kill())
            await asyncio.Event().wait()
        body = {"metadata": {"resourceVersion": self.version}, "status": {"launches": []}}
        try:
            await self.world.client.patch(NODE_POOLS, "late", body, subresource="status")
            self.outcomes.append("written")
        except Conflict:
            self.outcomes.append("conflict")
        return ("machine",)

    async def terminate(self, ids: tuple[str, ...]) -> None:
        raise AssertionError("nothing is ended here")


def test_a_launch_is_taken_over_before_it_is_sent_so_late_writes_about_it_conflict() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            provider = LateAnswer(world)
            world.provider_makers["late"] = lambda: provider
            await world.pool("late", min=1)

            async def answered() -> bool:
                launches = (await world.get_pool("late")).status.launches
                return [launch.instances for launch in launches] == [("machine",)]

            await world.until(answered, 600)
            assert provider.outcomes == ["conflict"]
            assert (await world.get_pool("late")).status.launches[0].takeovers == 1
            assert world.crashes() == []

    run(main())


def test_a_pool_that_code_of_ours_raises_over_is_left_alone_until_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = purchases._offers_of

    def broken(view: FleetView, census: PoolCensus, spares: int) -> list[Offer]:
        is_bad = census.view.name == "bad" and not census.view.pool.spec.headroom_nodes
        if is_bad and not census.view.mistakes:
            raise ValueError("planted")
        return plan(view, census, spares)

    monkeypatch.setattr(purchases, "_offers_of", broken)

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool("bad", weight=1)
            await world.pool("good")
            await world.submit("train", gpus=8, count=2)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            await world.until(placed, 600)
            assert "set aside: ValueError: planted" in (await world.get_pool("bad")).status.message
            assert (await world.get_pool("good")).status.nodes == 2
            await world.client.patch(NODE_POOLS, "bad", {"spec": {"headroomNodes": 1}})
            await world.until(lambda: _has_nodes(world, "bad", 1), 600)
            assert (await world.get_pool("bad")).status.message == ""
            assert world.crashes() == []

    run(main())


def test_a_pool_that_breaks_a_rule_is_left_alone_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API may have taken it before the rule was there."""

    def validate(pool: Mapping[str, Any]) -> list[StatusCause]:
        cause = StatusCause(field="spec.max", message="must be 2")
        return [] if pool["spec"]["max"] == 2 else [cause]

    monkeypatch.setattr(fleet_module, "validate_pool", validate)

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool("bad", min=1, max=1)
            await asyncio.sleep(300)
            assert "spec.max: must be 2" in (await world.get_pool("bad")).status.message
            assert not await world.nodes()
            await world.client.patch(NODE_POOLS, "bad", {"spec": {"max": 2}})
            await world.until(lambda: _has_nodes(world, "bad", 1), 600)
            assert (await world.get_pool("bad")).status.message == ""
            assert world.crashes() == []

    run(main())


def test_a_machine_is_not_ended_that_is_used_by_the_time_that_its_end_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    perform, asked = FleetController.perform, list[str]()

    async def main() -> None:
        async with FleetWorld.running() as world:

            async def late(controller: FleetController, action: Action) -> Written | None:
                for id_ in action.instances if isinstance(action, Terminate) else ():
                    asked.append(id_)
                    node = next(n for n in await world.nodes() if n.spec.provider_id == id_)
                    container = {"name": "main", "image": "serve:1"}
                    spec = {"nodeName": node.metadata.name, "containers": [container]}
                    body = {"metadata": {"name": node.metadata.name}, "spec": spec}
                    await world.client.create(PODS, body, namespace="default")
                    await asyncio.sleep(1)
                return await perform(controller, action)

            monkeypatch.setattr(FleetController, "perform", late)
            await world.pool(hold=2, scaleDown={"idleSeconds": 1})
            await world.until(lambda: _has_nodes(world, "h100", 2), 600)
            await world.resize(None)
            await asyncio.sleep(6 * 3600)
            assert asked
            assert len(world.cloud.machines) == 2
            assert world.crashes() == []

    run(main())


def test_a_fault_that_no_pool_explains_still_ends_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr("fairlead.decide.fleet.cycle.look", broken)

    async def main() -> None:
        async with FleetWorld.running() as world:
            await asyncio.sleep(60)
            assert world.crashes() == []
            await world.pool("good")
            await asyncio.sleep(60)
            assert world.crashes() == ["fleet: ValueError: planted"]

    run(main())


async def _has_nodes(world: FleetWorld, pool: str, count: int) -> bool:
    return (await world.get_pool(pool)).status.nodes >= count
