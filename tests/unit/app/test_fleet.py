"""Node pools end to end on the in-process API: what is bought, joins, goes and stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_fleet_drill import fill
from tests.unit.runtime.test_metrics import samples

from fairlead.api import names
from fairlead.api.jobs.job import Attempt
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.jobs.topology import Topology
from fairlead.api.meta import Condition, find_condition, to_wire
from fairlead.api.names import RACK
from fairlead.api.resources import (
    FLEETS,
    JOBS,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TEAMS,
)
from fairlead.api.values.times import format_time
from fairlead.cli.views.fleet import fleet_note
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.history.memory import MemoryHistory
from fairlead.model.health.windows import read_window, window_text
from fairlead.runtime.kept.history import FleetRecord, HistoryError
from fairlead.sim.loop import run
from fairlead.sim.setup.workload import job_body
from fairlead.testing.builders import make_team


def test_the_first_pool_buys_for_what_has_waited_before_it() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(600)
            assert (await world.job("train")).status.placement is None
            await world.pool()

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            said = set[str]()
            while not await placed():
                await asyncio.sleep(1)
                fleets = (await world.client.list(FLEETS)).items
                said.update(fleet_note(fleet) for fleet in fleets)
            assert said == {""}, "nothing alarming while there is nothing to remove"
            (fleet,) = (await world.client.list(FLEETS)).items
            assert fleet.status.since is not None, "all is in sight since the first look"
            assert world.cloud.launched == 2

    run(main())


@pytest.mark.parametrize("is_killed", [False, True], ids=["one controller", "killed ones"])
def test_what_was_bought_for_a_gang_goes_within_an_hour_of_its_end(is_killed: bool) -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(scaleDown={"idleSeconds": 300})
            await world.submit("train", gpus=8, count=30, seconds=7200)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            seconds = await world.until(placed, 600)
            assert seconds < 200, "launch 60 to 120 s, and the rest at once"
            assert len(await world.nodes()) == 30, "exactly what the gang needs"
            assert world.cloud.launched == 30
            pool = (await world.get_pool()).status
            assert [d.action for d in pool.decisions] == ["Launch", "Launched"]
            assert "30 nodes for default/train" in pool.decisions[0].message

            async def ended() -> bool:
                return (await world.job("train")).is_finished

            await world.until(ended, 9000)
            assert len(await world.nodes()) == 30
            if is_killed:
                for _ in range(3):
                    await world.kill()
                    await asyncio.sleep(200)

            async def all_gone() -> bool:
                return not world.cloud.machines and not await world.nodes()

            await world.until(all_gone, 300 + 3600)
            fleet = (await world.fleet()).status
            fast = sum(each.count for each in fleet.removed if each.at > fleet.clock - 300)
            assert fast <= 3, "a tenth within five minutes"
            await asyncio.sleep(300)
            assert (await world.fleet()).status.grants == ()
            assert (await world.get_pool()).status.bought == ()

    run(main())


def test_of_machines_that_were_there_before_half_goes_in_a_day_however_many_were_bought() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await fill(world, 8)
            pool = {"max": 64, "hold": None, "scaleDown": {"idleSeconds": 300}}
            old = set(world.cloud.machines)
            await world.submit("train", gpus=8, count=20, seconds=1800)
            await world.client.patch(NODE_POOLS, "h100", {"spec": pool})
            await asyncio.sleep(6 * 3600)
            assert world.cloud.launched == 8 + 12
            assert len(world.cloud.machines) == 4, "what was bought is gone, and half of the others"
            assert world.cloud.machines.keys() < old
            assert (await world.fleet()).status.grants == ()

    run(main())


def test_idle_nodes_stay_for_a_gang_that_waits_for_the_rest_of_a_full_pool() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=4, scaleDown={"idleSeconds": 60})
            await world.submit("short", gpus=8, count=2, seconds=300)
            await world.submit("long", gpus=8, count=2, seconds=3600)
            await asyncio.sleep(300)
            assert len(await world.nodes()) == 4
            await world.submit("next", gpus=8, count=4, seconds=300)

            async def runs() -> bool:
                return (await world.job("next")).status.placement is not None

            await world.until(runs, 7200)
            assert world.cloud.launched == 4, "none went, to be bought again"
            await asyncio.sleep(3600)
            assert len(await world.nodes()) < 4, "after it they go, within the budgets"

    run(main())


def test_idle_nodes_go_while_only_gangs_wait_that_the_pool_can_never_hold() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=4, scaleDown={"idleSeconds": 60})
            await world.submit("short", gpus=8, count=4, seconds=300)
            await world.submit("huge", gpus=8, count=5, seconds=300)
            await asyncio.sleep(3600)
            assert len(await world.nodes()) < 4

    run(main())


def test_no_job_starts_that_could_run_into_maintenance_which_the_provider_announces() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(min=1, max=2)
            await asyncio.sleep(200)
            [first] = await world.nodes()
            start = world.clock.now() + 2 * 3600
            world.announce(first.spec.provider_id, window_text(start, start + 3600))

            async def written() -> bool:
                return names.MAINTENANCE in (await world.nodes())[0].metadata.annotations

            assert await world.until(written, 60) < 40, "the next list, and the next decision"
            await world.submit("short", gpus=8, seconds=600, time_limit_seconds=900)
            await world.submit("endless", gpus=8, seconds=600)
            await asyncio.sleep(300)
            jobs = [await world.job(name) for name in ("short", "endless")]
            where = [p.roles[0].nodes[0] for job in jobs if (p := job.status.placement)]
            assert where[0] == first.metadata.name
            assert len(set(where)) == 2, "a node was bought for the other one"
            world.announce(first.spec.provider_id, "")
            await asyncio.sleep(60)
            [again] = [n for n in await world.nodes() if n.metadata.name == first.metadata.name]
            assert not {names.MAINTENANCE, names.MAINTENANCE_ANNOUNCED} & set(
                again.metadata.annotations
            )
            records = await world.decisions()
            actions = [each.action for each in records if each.reason == "ProviderMaintenance"]
            assert actions == ["Announce", "Withdraw"]

    run(main())


def test_maintenance_of_idle_machines_begins_early_one_at_a_time_and_once() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(min=3, max=3, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(200)
            await world.submit("short", gpus=8, seconds=1800, time_limit_seconds=2400)
            await asyncio.sleep(60)
            [used] = (await world.job("short")).status.placement.roles[0].nodes  # type: ignore[union-attr]
            begun_at, start = world.clock.now(), world.clock.now() + 6 * 3600
            window = window_text(start, start + 3600)
            ids = {n.metadata.name: n.spec.provider_id for n in await world.nodes()}
            for id_ in ids.values():
                world.announce(id_, window, may_begin=True)

            async def windows() -> dict[str, str]:
                nodes = await world.nodes()
                return {
                    n.metadata.name: n.metadata.annotations.get(names.MAINTENANCE, "")
                    for n in nodes
                }

            await asyncio.sleep(900)
            [first] = [name for name, id_ in ids.items() if id_ in world.cloud.begun]
            assert world.cloud.begun.count(ids[first]) == 2, "again after ten minutes"
            assert first != used
            found = await windows()
            early = read_window(found.pop(first))
            assert begun_at <= early.start < start
            assert early.end == start + 3600
            assert set(found.values()) == {window}, "one at a time, and none that is used"
            world.announce(ids[first], "")
            await asyncio.sleep(300)
            assert (await windows())[first] == "", "it is over"
            assert len(set(world.cloud.begun)) == 2, "then the next"
            await asyncio.sleep(3600)
            [second] = set(world.cloud.begun) - {ids[first]}
            world.announce(second, "")
            await asyncio.sleep(300)
            assert set(world.cloud.begun) == set(ids.values()), "and that of the job once it ended"
            records = [r for r in await world.decisions() if r.action == "Begin"]
            assert len(records) == 3

    run(main())


def test_no_maintenance_begins_early_while_a_node_of_the_pool_is_cordoned() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(min=2, max=2, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(200)
            first, second = await world.nodes()
            for cordoned in (True, False):
                patch = {"spec": {"unschedulable": cordoned}}
                await world.client.patch(NODES, first.metadata.name, patch)
                start = world.clock.now() + 6 * 3600
                window = window_text(start, start + 3600)
                world.announce(second.spec.provider_id, window, may_begin=True)
                await asyncio.sleep(300)
                assert bool(world.cloud.begun) is not cordoned

    run(main())


def test_a_machine_that_is_used_after_all_gets_its_announced_window_back() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(min=1, max=1, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(200)
            [node] = await world.nodes()
            start = world.clock.now() + 6 * 3600
            window, early = (window_text(at, start + 3600) for at in (start, world.clock.now()))
            notes = dict.fromkeys((names.MAINTENANCE, names.MAINTENANCE_ANNOUNCED), early)
            container = {"name": "main", "image": "serve:1"}
            spec = {"nodeName": node.metadata.name, "containers": [container]}
            body = {"metadata": {"name": "other"}, "spec": spec}
            await world.client.create(PODS, body, namespace="default")
            await asyncio.sleep(60)
            world.announce(node.spec.provider_id, window, may_begin=True)
            await asyncio.sleep(60)  # the window is in a list
            await world.client.patch(
                NODES, node.metadata.name, {"metadata": {"annotations": notes}}
            )
            await asyncio.sleep(60)
            [node] = await world.nodes()
            assert node.metadata.annotations[names.MAINTENANCE] == window
            assert world.cloud.begun == []

    run(main())


def test_a_job_moves_to_a_node_that_is_bought_before_the_maintenance_of_its_own_begins() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=2)
            await world.submit("endless", gpus=8, seconds=6 * 3600)
            await asyncio.sleep(300)
            [first] = await world.nodes()
            start = world.clock.now() + 2 * 3600
            world.announce(first.spec.provider_id, window_text(start, start + 3600))

            async def has_moved() -> bool:
                job = await world.job("endless")
                nodes = (
                    {n for role in job.status.placement.roles for n in role.nodes}
                    if (job.status.placement)
                    else set[str]()
                )
                return job.status.state == "Running" and bool(nodes - {first.metadata.name})

            await world.until(has_moved, 2 * 3600)
            assert start - 300 < world.clock.now() < start
            ended = (await world.job("endless")).status.attempts[0]
            assert (ended.reason, ended.nodes_lost) == ("Drained", (first.metadata.name,))

    run(main())


def test_nothing_is_removed_or_bought_while_the_api_server_is_reported_as_degraded() -> None:
    """The doctor reads a page of metrics, the report says so, and the rails of the fleet act."""

    async def main() -> None:
        async with FleetWorld.running(doctor=DoctorPolicy()) as world:
            refused_per_second = 100.0

            def page() -> bytes:
                refused = int(refused_per_second * world.clock.now())
                return (
                    "process_start_time_seconds 1000\n"
                    'apiserver_request_total{verb="LIST",resource="pods",code="200"} 10\n'
                    f'apiserver_request_total{{verb="LIST",resource="pods",code="429"}} {refused}\n'
                ).encode()

            async def blind() -> tuple[str, ...]:
                return (await world.fleet()).status.blind

            await world.pool(scaleDown={"idleSeconds": 2400})
            await world.submit("train", gpus=8, count=4, seconds=300)
            await asyncio.sleep(400)
            assert len(world.cloud.machines) == 4
            world.client.pages["/metrics"] = page
            await asyncio.sleep(1500)
            assert await blind() == ("APIServerDegraded",)
            assert "API-01" in (await world.fleet()).status.message
            await world.submit("late", gpus=8, count=8, seconds=300)
            await asyncio.sleep(2 * 3600)
            assert len(world.cloud.machines) == 4, (
                "idle for three times idleSeconds, and nothing is removed"
            )
            assert world.cloud.launched == 4, "nor is anything bought"
            world.client.pages.clear()  # not seen any more: no evidence
            await asyncio.sleep(1200)
            assert await blind() == ()
            assert world.cloud.launched > 4

    run(main())


def test_a_gang_that_cannot_be_bought_for_completely_is_not_bought_for_at_all() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=4)
            await world.submit("large", gpus=8, count=5)
            await asyncio.sleep(600)
            assert world.cloud.launched == 0
            await world.submit("small", gpus=8, count=3)
            await asyncio.sleep(600)
            assert world.cloud.launched == 3
            assert (await world.job("small")).status.placement is not None

    run(main())


def test_a_gang_of_higher_priority_is_bought_for_first_though_it_came_later() -> None:
    """The pool has room for either gang; the one of lower priority asks for one node more."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            high = {"metadata": {"name": "high"}, "value": 10}
            await world.client.create(PRIORITY_CLASSES, high)
            await world.pool(max=2)
            await world.submit("low", count=2, gpus=8)
            spec = {"priority_class_name": "high"}
            await world.submit("high", count=1, gpus=8, spec=spec)
            await asyncio.sleep(300)
            assert (await world.job("high")).status.placement is not None
            assert len(await world.nodes()) == 1

    run(main())


def test_a_gang_with_a_required_domain_is_bought_in_one_domain() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            domains = [{"name": d, "labels": {RACK: d}, "max": 4} for d in ("a", "b")]
            await world.pool(domains=domains)
            await world.submit("first", gpus=8, count=3, topology=Topology("rack", required=True))
            await asyncio.sleep(300)
            await world.submit("second", gpus=8, count=4, topology=Topology("rack", required=True))
            await asyncio.sleep(300)
            racks = [n.metadata.labels[RACK] for n in await world.nodes()]
            assert sorted(racks) == ["a"] * 3 + ["b"] * 4
            assert (await world.job("second")).status.placement is not None

    run(main())


def test_a_node_is_bought_for_a_job_that_may_not_borrow_the_idle_one_of_another_team() -> None:
    """After one end on a borrowed node it borrows at once, and nothing is bought."""
    bought: list[int] = []

    async def main(times: int) -> None:
        async with FleetWorld.running() as world:
            for each in (make_team("other", nodes=1), make_team("own", namespaces=("default",))):
                body = {"metadata": {"name": each.metadata.name}, "spec": to_wire(each.spec)}
                await world.client.create(TEAMS, body)
            await world.pool(min=1)

            async def is_lent() -> bool:
                nodes = await world.nodes()
                return len(nodes) == 1 and any(t.key == names.TEAM for t in nodes[0].spec.taints)

            await world.until(is_lent, 600)
            body = job_body("sweep", members=1, gpus=8, run_seconds=3600.0)
            body["spec"]["suspend"] = True
            job = await world.client.create(JOBS, body, namespace="default")
            gave_way = [
                Attempt(n + 1, finished_at=format_time(world.clock.now()), reason="Preempted",
                        held=(HeldNodes("h100", "other", 8),))
                for n in range(times)
            ]  # fmt: skip
            status = replace(job.status, attempts=tuple(gave_way), attempt=times + 1)
            patch = {"status": to_wire(status)}
            for change, sub in ((patch, "status"), ({"spec": {"suspend": False}}, "")):
                await world.client.patch(
                    JOBS, "sweep", change, namespace="default", subresource=sub
                )

            async def placed() -> bool:
                return (await world.job("sweep")).status.placement is not None

            await world.until(placed, 600)
            placement = (await world.job("sweep")).status.placement
            assert placement is not None
            assert bool(placement.held[0].lender) is (times == 1)
            bought.append(world.cloud.launched - 1)

    for times in (1, 6):
        run(main(times))
    assert bought == [0, 1]


def test_a_domain_without_capacity_is_avoided_and_the_next_pool_is_tried() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(refusal=0.5)) as world:
            await world.pool("first", weight=1)
            await world.pool("second")
            for number in range(6):
                await world.submit(f"train-{number}", gpus=8, count=2)

            async def placed() -> bool:
                jobs = [await world.job(f"train-{n}") for n in range(6)]
                return all(job.status.placement is not None for job in jobs)

            await world.until(placed, 4 * 3600)
            pools = [await world.get_pool(name) for name in ("first", "second")]
            assert any(d.action == "Refused" for p in pools for d in p.status.decisions)
            assert len(world.cloud.machines) == 12, "nothing is bought twice"

    run(main())


def test_a_pool_in_dry_run_says_what_it_would_buy_and_buys_nothing() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(mode="DryRun")
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(300)
            pool = await world.get_pool()
            assert world.cloud.launched == 0
            assert pool.status.message == "dry run: would buy 2"
            assert pool.status.wanted == 2

    run(main())


def test_machines_that_never_register_are_replaced() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(never_registers=0.3)) as world:
            await world.pool(scaleUp={"readySeconds": 300})
            await world.submit("train", gpus=8, count=8)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            await world.until(placed, 24 * 3600)
            assert world.cloud.launched > 8

    run(main())


def test_hold_and_headroom_keep_nodes_without_demand() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool("held", hold=5)
            await world.pool("spare", headroomNodes=2, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(3600)
            held, spare = await world.get_pool("held"), await world.get_pool("spare")
            assert (held.status.ready, spare.status.ready) == (5, 2)
            await world.submit("train", gpus=8, count=2, node_selector={names.POOL: "spare"})
            await asyncio.sleep(600)
            assert (await world.get_pool("spare")).status.ready == 4

    run(main())


async def frozen(world: FleetWorld) -> Condition:
    """Return the condition Frozen of the fleet."""
    found = find_condition((await world.client.get(FLEETS, "fleet")).status.conditions, "Frozen")
    assert found is not None
    return found


def test_a_frozen_fleet_neither_buys_nor_removes() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(scaleDown={"idleSeconds": 60}, hold=4)
            await asyncio.sleep(600)
            before = await frozen(world)
            assert (before.status, before.reason) == ("False", "NotFrozen")
            freeze = {"spec": {"freeze": {"reason": "move of the data centre"}}}
            await world.client.patch(FLEETS, "fleet", freeze)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"hold": None}})
            await world.submit("train", gpus=8, count=9)
            await asyncio.sleep(1800)
            since = (await frozen(world)).last_transition_time
            await asyncio.sleep(1800)
            assert len(await world.nodes()) == 4
            fleet, said = await world.client.get(FLEETS, "fleet"), await frozen(world)
            assert (said.status, said.message) == ("True", "move of the data centre")
            assert said.observed_generation == fleet.metadata.generation
            assert before.last_transition_time != said.last_transition_time == since
            assert not any(n.spec.unschedulable for n in await world.nodes())
            assert "Frozen" in (await world.get_pool()).status.message
            await world.client.patch(FLEETS, "fleet", {"spec": {"freeze": None}})
            await asyncio.sleep(600)
            assert len(await world.nodes()) == 9
            assert (await frozen(world)).status == "False"

    run(main())


def test_a_fleet_without_pools_says_that_it_is_frozen() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            freeze = {"metadata": {"name": "fleet"}, "spec": {"freeze": {"reason": "a move"}}}
            await world.client.create(FLEETS, freeze)
            await asyncio.sleep(120)
            assert (await frozen(world)).status == "True"

    run(main())


def test_a_person_s_cordon_is_not_lifted_and_the_node_is_not_removed() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=4)
            await asyncio.sleep(600)
            cordoned = (await world.nodes())[0].metadata.name
            await world.client.patch(NODES, cordoned, {"spec": {"unschedulable": True}})
            patch: dict[str, Any] = {"spec": {"hold": None, "scaleDown": {"idleSeconds": 1}}}
            await world.client.patch(NODE_POOLS, "h100", patch)
            await asyncio.sleep(6 * 3600)
            (left,) = await world.nodes()
            assert left.metadata.name == cordoned
            assert left.spec.unschedulable

    run(main())


def test_all_nodes_not_ready_at_once_removes_nothing_and_work_goes_on_after() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=20, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(900)
            for name in world.virtual.node_names():
                world.virtual.fail_node(name)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"hold": 10}})
            await asyncio.sleep(30)
            fleet = await world.fleet()
            assert "NodesUnready" in fleet.status.blind, "said within 30 seconds"
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(7200)
            assert len(world.cloud.machines) == 20
            assert world.cloud.launched == 20
            for name in world.virtual.node_names():
                world.virtual.recover_node(name)
            await asyncio.sleep(3600)
            assert (await world.job("train")).status.placement is not None
            assert len(world.cloud.machines) < 20, "and removals resumed by themselves"

    run(main())


def test_lists_that_miss_machines_buy_nothing_beyond_the_limit_and_delete_no_node() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=4, scaleUp={"readySeconds": 300})
            await world.submit("first", gpus=8, count=4)
            await asyncio.sleep(600)
            assert len(await world.nodes()) == 4
            await world.submit("second", gpus=8, count=2)
            for _ in range(5):
                world.cloud.rates = CloudRates(short=1.0)
                await asyncio.sleep(60)
                world.cloud.rates = CloudRates()
                await asyncio.sleep(60)
            assert world.cloud.launched == 4, "what a list misses for a moment counts"
            assert len(await world.nodes()) == 4

    run(main())


def test_what_is_ended_late_and_launched_late_counts_against_the_limit() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=4, scaleDown={"idleSeconds": 60})
            await world.submit("first", gpus=8, count=4, seconds=60)
            await asyncio.sleep(300)
            world.cloud.rates = CloudRates(error=1.0)  # nothing ends, nothing is listed

            async def is_granted() -> bool:
                return bool((await world.fleet()).status.grants)

            await world.until(is_granted, 3600)
            await world.submit("second", gpus=8, count=4, seconds=60)
            await asyncio.sleep(600)
            world.cloud.rates = CloudRates()
            for _ in range(600):
                assert len(world.cloud.machines) <= 4
                await asyncio.sleep(1)

    run(main())


def test_controllers_that_are_killed_again_and_again_buy_nothing_twice_and_forget_nothing() -> None:
    async def main() -> None:
        rates = CloudRates(refusal=0.1, error=0.1, never_registers=0.05)
        async with FleetWorld.running(rates) as world:
            await world.pool(max=200, scaleUp={"readySeconds": 600, "nodesPerLaunchMax": 4})
            for number in range(12):
                await world.submit(f"train-{number}", gpus=8, count=1 + number % 5, seconds=900)
                await asyncio.sleep(world.rng.random() * 240)
                await world.kill()

            async def ended() -> bool:
                jobs = [await world.job(f"train-{n}") for n in range(12)]
                return all(job.is_finished for job in jobs)

            await world.until(ended, 24 * 3600)
            pool = await world.get_pool()
            by_token = {m.instance.token for m in world.cloud.machines.values()}
            assert len(world.cloud.tokens) <= pool.status.launch_number
            assert by_token <= world.cloud.tokens.keys()
            assert pool.status.launches == () or pool.status.launching
            leaving = {grant.instance for grant in (await world.fleet()).status.grants}
            nodes = {node.spec.provider_id for node in await world.nodes()}
            assert world.cloud.machines.keys() | leaving >= nodes, "no machine is forgotten"
            await asyncio.sleep(600)
            nodes = {node.spec.provider_id for node in await world.nodes()}
            assert not leaving & nodes, "what was leaving is gone"

    run(main())


def test_what_the_fleet_does_is_measured() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(refusal=0.5)) as world:
            await world.pool(scaleDown={"idleSeconds": 60}, disruption={"nodesPerDayMax": 4})
            await asyncio.sleep(60)
            await world.submit("train", gpus=8, count=8, seconds=600)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            await world.until(placed, 7200)
            await asyncio.sleep(60)
            seen = samples(world.metrics)
            assert seen["fairlead_pool_nodes{ready,h100}"] == 8
            assert seen["fairlead_pool_wanted_nodes{Active,h100}"] == 8
            assert seen["fairlead_pool_limit_nodes{h100}"] == 64
            refused = seen["fairlead_pool_launches_refused_total{h100,out-of-capacity}"]
            calls = "fairlead_fleet_cloud_call_duration_seconds_count{launch,"
            assert refused >= 1
            assert seen[f"{calls}out-of-capacity,Simulated}}"] == refused
            assert seen[f"{calls}done,Simulated}}"] == 1
            assert seen["fairlead_fleet_demand_to_launch_seconds_count{}"] == 1
            assert seen["fairlead_fleet_demand_to_launch_seconds_bucket{5.0}"] == 1
            assert seen["fairlead_fleet_frozen{}"] == 0
            await asyncio.sleep(6 * 3600)
            seen = samples(world.metrics)
            assert seen["fairlead_pool_nodes{ready,h100}"] == 4
            assert seen["fairlead_pool_removals_held{pool 24h,h100,PoolBudget}"] == 4
            freeze = {"spec": {"freeze": {"reason": "move of the data centre"}}}
            await world.client.patch(FLEETS, "fleet", freeze)
            await asyncio.sleep(60)
            seen = samples(world.metrics)
            assert seen["fairlead_fleet_frozen{}"] == 1
            assert seen["fairlead_fleet_rail_holds{Frozen}"] == 1
            assert seen["fairlead_pool_removals_held{,h100,Blind}"] == 4

    run(main())


def test_each_decision_is_recorded_with_its_rule_its_numbers_and_how_it_ended() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool("small", weight=1, max=4, scaleDown={"idleSeconds": 60})
            await world.pool("h100", scaleDown={"idleSeconds": 60})
            await asyncio.sleep(60)
            await world.submit("train", gpus=8, count=8, seconds=600)
            await asyncio.sleep(6 * 3600)
            found = await world.decisions(pool="h100")
            facts = {each.id: msgspec.json.decode(each.document) for each in found}
            steps = ["Launch", "Launched", "Admit", "Mark", "Remove", "Removed"]
            firsts = [next(each for each in found if each.action == step) for step in steps]
            assert firsts == sorted(firsts, key=lambda each: each.at_ms)
            launch, launched, admit, _, remove, removed = (facts[each.id] for each in firsts)
            assert launch == {
                "token": launched["token"], "jobs": 1, "size": 0, "wanted": 8, "limit": 64,
                "passedOver": "small PoolsFull",
            }  # fmt: skip
            assert (launched["count"], launched["machines"]) == (8, 8)
            assert admit["tokensBefore"] - admit["tokensAfter"] >= 1
            assert remove["rule"] == "Allowed"
            assert remove["budget_before"] == remove["budget_after"] + 1
            assert removed["node"] == remove["node"]
            ended = [facts[each.id]["node"] for each in found if each.action == "Removed"]
            assert len(ended) == 8 - len(await world.nodes()) == 8
            for freeze in ({"reason": "a move"}, None):
                await world.client.patch(FLEETS, "fleet", {"spec": {"freeze": freeze}})
                await asyncio.sleep(60)
            sight = [each.action for each in await world.decisions() if not each.pool]
            assert sight == ["Hold", "Resume"], "none before, while there was nothing to remove"

    run(main())


def test_a_decision_is_recorded_once_when_the_history_fails_and_the_controller_is_killed() -> None:
    class Failing(MemoryHistory):
        fails = True

        async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
            if self.fails:
                raise HistoryError("the disk is full")
            await super().record_fleet(records)

    async def main() -> None:
        async with FleetWorld.running() as world:
            history = world.history = Failing()
            await world.kill()
            await world.pool()
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(300)
            decided = [each.action for each in (await world.get_pool()).status.decisions]
            assert decided == ["Launch", "Launched"], "decisions do not wait for the history"
            assert await world.decisions() == []
            await world.kill()
            history.fails = False
            await asyncio.sleep(60)
            await world.kill()
            await asyncio.sleep(60)
            found = [each.action for each in await world.decisions(pool="h100")]
            assert [each for each in found if each != "Admit"] == decided

    run(main())
