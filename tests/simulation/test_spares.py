"""Spares in simulated clusters: how soon a gang is back, that there are as many again, and the
checker of what they are for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.simulation.test_machines import BOUGHT
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_fleet_spares import has_spares, places, spares

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Taint
from fairlead.api.resources import NODES
from fairlead.cloud.simulated import CloudRates
from fairlead.model.asks.requests import Constraints
from fairlead.model.inventory.spares import is_spare
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.placement_checkers import SpareChecker
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import PoolShape
from fairlead.sim.world import simulate
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

SPARE = (Taint(names.TAINT_SPARE, "NoSchedule", "pool"),)
HOUR = 3600


async def lose(world: FleetWorld, name: str) -> None:
    """Have the machine of a node end by itself."""
    node = await world.client.get(NODES, name)
    del world.cloud.machines[node.spec.provider_id]
    world.virtual.fail_node(name)


def seconds_to_restart(spare_nodes: int) -> float:
    """Return for how long a gang that fills its pool does not run when it loses a machine, by
    virtual time, while jobs wait that would take whatever becomes free.
    """

    async def main() -> float:
        async with FleetWorld.running() as world:
            await world.pool(max=8 + spare_nodes, spareNodes=spare_nodes)
            await world.submit("train", gpus=8, count=8, seconds=30 * HOUR)
            await world.until(lambda: places(world, "train"), 900)
            await world.until(lambda: has_spares(world, spare_nodes), 900)
            for number in range(4):
                await world.submit(f"waits-{number}", gpus=8, count=1, seconds=30 * HOUR)
            await lose(world, min(await places(world, "train")))

            async def runs_again() -> bool:
                status = (await world.job("train")).status
                return status.attempt > 1 and status.members.running == 8

            return await world.until(runs_again, 24 * HOUR)

    return run(main())


def test_a_gang_that_fills_its_pool_is_back_sooner_with_a_spare() -> None:
    with_one, without = seconds_to_restart(1), seconds_to_restart(0)
    assert with_one < 90, "the grace of a lost node, and the restart"
    assert without > 3 * with_one


@pytest.mark.parametrize("seed", range(6))
def test_there_are_as_many_spares_again_after_failures_and_kills(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with FleetWorld.running() as world:
            count = rng.choice((1, 2, 3))
            await world.pool(max=20, spareNodes=count, scaleDown={"idleSeconds": 300})
            for number in range(rng.choice((2, 6))):
                await world.submit(f"gang-{number}", gpus=8, count=rng.choice((1, 3, 4)),
                                   seconds=rng.choice((HOUR, 90 * HOUR)))  # fmt: skip
            await world.until(lambda: has_spares(world, count), HOUR)
            for _ in range(8):
                await asyncio.sleep(rng.uniform(5, 900))
                alive = sorted(world.virtual.node_names())
                match rng.choice(("lose", "fail", "lose a spare", "kill", "recover")):
                    case "lose":
                        await lose_one(world, alive, rng)
                    case "lose a spare":
                        await lose_one(world, sorted(await spares(world)), rng)
                    case "fail":
                        world.virtual.fail_node(rng.choice(alive))
                    case "recover":
                        await recover(world)
                    case _:
                        await world.kill()
            await recover(world)

            async def made_again() -> bool:  # nodes whose machines are gone may have the taint, too
                return (await world.get_pool()).status.spares == count

            await world.until(made_again, 6 * HOUR)
            await asyncio.sleep(60)  # what a repair has taken a moment ago
            await world.until(made_again, 6 * HOUR)
            used = [await places(world, f"gang-{number}") for number in range(2)]
            assert not set().union(*used) & await spares(world)
            assert world.crashes() == []

    run(main())


async def with_machine(world: FleetWorld) -> list[str]:
    nodes, machines = await world.nodes(), world.cloud.machines
    return [node.metadata.name for node in nodes if node.spec.provider_id in machines]


async def recover(world: FleetWorld) -> None:
    for name in await with_machine(world):
        world.virtual.recover_node(name)


async def lose_one(world: FleetWorld, among: Sequence[str], rng: random.Random) -> None:
    if found := [name for name in await with_machine(world) if name in among]:
        await lose(world, rng.choice(found))


KEPT = replace(
    BOUGHT,
    workload=WorkloadOptions(
        8, HOUR, members_max=2, run_seconds_median=300.0, run_seconds_max=1200.0
    ),
    pools=(PoolShape("pool", 12, spares=2, idle_seconds=300),), cloud=CloudRates(),
    node_failures_per_day=600.0,
)  # fmt: skip


def test_repairs_take_spares_in_a_rough_world_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = simulate(KEPT, 1)
    assert outcome.jobs == outcome.succeeded + outcome.failed == 8

    def admits(_: Constraints, taint: Taint) -> bool:
        return is_spare((taint,))  # planted: any job may run on spares

    monkeypatch.setattr("fairlead.model.inventory.labels._admits", admits)
    with pytest.raises(PromiseBroken, match=r"^11: attempt 1 of .* is placed on spare"):
        simulate(KEPT, 1)


class History:
    """The checker of a world with two nodes and a spare, all known for long."""

    def __init__(self) -> None:
        self.checker = SpareChecker()
        for name in "ab":
            self.checker.node(make_node(name), name, EPOCH)
        self.checker.node(make_node("s", taints=SPARE), "s", EPOCH)

    def place(self, *nodes: str, at: float, attempt: int, lost: tuple[str, ...] = ()) -> None:
        attempts = (Attempt(number=1, nodes_lost=lost),)
        placement = make_placement(nodes, attempt=attempt)
        job: Job = make_job("a", count=len(nodes), placement=placement, attempt=attempt,
                            status={"attempts": attempts})  # fmt: skip
        self.checker.job(job, job.metadata.key, at)


def test_a_repair_that_takes_a_spare_is_not_reported() -> None:
    history = History()
    history.place("a", "b", at=EPOCH + HOUR, attempt=1)
    history.place("a", "s", at=EPOCH + 2 * HOUR, attempt=2, lost=("b",))
    other = History()
    other.place("a", "b", at=EPOCH + HOUR, attempt=1)
    other.checker.node(make_node("b", ready=False), "b", EPOCH + HOUR)
    other.place("a", "s", at=EPOCH + 2 * HOUR, attempt=2)
    assert history.checker.taken == other.checker.taken == 1


def test_a_node_that_has_just_become_a_spare_is_not_reported() -> None:
    history = History()
    history.checker.node(make_node("b", taints=SPARE), "b", EPOCH + HOUR)
    history.place("b", at=EPOCH + HOUR + 60, attempt=1)
    assert (history.checker.judged, history.checker.taken) == (1, 0)


def test_a_gang_that_begins_on_a_spare_is_reported() -> None:
    with pytest.raises(PromiseBroken, match="11: attempt 1 of default/a is placed on spare s, and"):
        History().place("a", "s", at=EPOCH + HOUR, attempt=1)


def test_a_gang_that_moves_to_a_spare_without_a_loss_is_reported() -> None:
    history = History()
    history.place("a", "b", at=EPOCH + HOUR, attempt=1)
    with pytest.raises(PromiseBroken, match="spare s, and has lost no node"):
        history.place("a", "s", at=EPOCH + 2 * HOUR, attempt=2)
