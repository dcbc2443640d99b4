"""Node health with the controllers, virtual nodes and a simulated cloud, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace as replaced
from typing import Any

import msgspec
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.decide.health_world import fault
from tests.unit.history.contract import decisions_of

from fairlead.api import names
from fairlead.api.cluster.node_report import Action, NodeReportStatus, ReportedFault, Severity
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODE_REPORTS, NODES, PODS
from fairlead.api.status import AlreadyExists, NotFound
from fairlead.api.values.times import format_time
from fairlead.app.queries.archive_query import fleet_line
from fairlead.app.queries.health_replay import compared, facts_of
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.trust import SightLimits
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.model.health.windows import drain_of
from fairlead.runtime.kept.history import FleetQuery
from fairlead.sim.loop import run
from fairlead.testing.builders import make_pod

ACTING = HealthPolicy(
    enabled=True, act_on=("*",), sight=SightLimits(nodes_age_seconds_max=float("inf"))
)


class HealthWorld:
    """A fleet whose nodes have agents, which the test plays."""

    def __init__(self, fleet: FleetWorld) -> None:
        self.fleet = fleet
        self.client = fleet.client

    async def tell(
        self, name: str, *faults: ReportedFault, boot: str = "boot-1", ago: float = 0
    ) -> None:
        """Let the agent of a node report, as a collector writes it."""
        node = await self.node(name)
        status = NodeReportStatus(
            format_time(self.fleet.clock.now() - ago), node.metadata.uid, boot,
            critical=sum(each.severity is Severity.CRITICAL for each in faults), faults=faults,
        )  # fmt: skip
        with suppress(AlreadyExists):
            await self.client.create(NODE_REPORTS, {"metadata": {"name": name}})
        body: dict[str, Any] = {"faults": [], **to_wire(status)}
        await self.client.patch(NODE_REPORTS, name, {"status": body}, subresource="status")

    async def node(self, name: str) -> Node:
        return await self.client.get(NODES, name)

    async def state(self, name: str) -> NodeState:
        record = record_of((await self.node(name)).metadata.annotations)
        return record.state if record is not None else NodeState.READY

    def fault(self, **options: Any) -> ReportedFault:
        return fault(at=self.fleet.clock.now(), **options)


async def ready(fleet: FleetWorld, count: int) -> HealthWorld:
    """Wait for a pool of so many nodes that work."""
    await fleet.pool(hold=count, disruption={})
    await asyncio.sleep(1200)
    assert len(await fleet.nodes()) == count
    return HealthWorld(fleet)


def test_a_gang_leaves_a_sick_node_after_its_checkpoint_and_keeps_its_other_nodes() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING, profile="training") as fleet:
            world = await ready(fleet, 6)
            await fleet.submit("train", gpus=8, count=4, seconds=40_000)
            await asyncio.sleep(1800)
            job = await fleet.job("train")
            before = nodes_of(job.status.placement)
            assert job.status.progress is not None
            saved = job.status.progress.checkpoint_step
            sick = before[1]
            at = fleet.clock.now()
            await world.tell(sick, world.fault())

            async def moved() -> bool:
                job = await fleet.job("train")
                after = nodes_of(job.status.placement)
                return sick not in after and job.status.state == "Running"

            await fleet.until(moved, 900)
            assert fleet.clock.now() - at < 600
            job = await fleet.job("train")
            ended = job.status.attempts[-2]
            assert (ended.reason, ended.nodes_lost) == ("Drained", (sick,))
            assert "is to be empty by" in ended.message
            assert set(before) - {sick} < set(nodes_of(job.status.placement))
            assert job.status.attempts[-1].resumed_from_step is not None
            assert saved is not None
            assert job.status.attempts[-1].resumed_from_step >= saved
            assert job.status.user_failures == 0
            node = await world.node(sick)
            assert [t.key for t in node.spec.taints] == [names.TAINT_UNHEALTHY]
            assert not node.spec.unschedulable
            assert fleet.crashes() == []

    run(main())


def test_a_node_that_is_mended_comes_back_and_takes_work() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 2)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault())
            await asyncio.sleep(60)
            assert await world.state(name) is NodeState.RESETTING
            await fleet.submit("wide", gpus=8, count=2)
            await asyncio.sleep(120)
            assert (await fleet.job("wide")).status.placement is None
            await world.tell(name, boot="boot-2")
            await asyncio.sleep(120)
            assert await world.state(name) is NodeState.READY
            assert drain_of((await world.node(name)).metadata.annotations) is None
            assert name in nodes_of((await fleet.job("wide")).status.placement)
            wanted = ["Grant", "Cordon", "Validating", "Ready", "Over"]
            found = [each for each in await fleet.decisions() if each.action in wanted]
            # The last two may be of one second, and records have no finer time.
            found.sort(key=lambda each: (each.at_ms, wanted.index(each.action)))
            assert [each.action for each in found] == wanted

    run(main())


def test_a_condition_that_another_program_states_takes_a_node_out_and_its_end_brings_it_back() -> (
    None
):
    async def main() -> None:
        health = replaced(ACTING, act_on=("condition-kernel",))
        async with FleetWorld.running(health=health) as fleet:
            world = await ready(fleet, 6)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name)
            for status, reason, state in (
                ("True", "DockerHung", NodeState.REBOOTING),
                ("False", "KernelHasNoDeadlock", NodeState.READY),
            ):
                stated = {"type": "KernelDeadlock", "status": status, "reason": reason,
                          "lastTransitionTime": format_time(fleet.clock.now())}  # fmt: skip
                others = [to_wire(each) for each in (await world.node(name)).status.conditions
                          if each.type != stated["type"]]  # fmt: skip
                body = {"status": {"conditions": [*others, stated]}}
                await fleet.client.patch(NODES, name, body, subresource="status")
                await asyncio.sleep(180)
                assert await world.state(name) is state
            assert fleet.crashes() == []

    run(main())


def test_a_node_is_tainted_as_soon_as_its_fault_is_confirmed() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 6)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault())
            await asyncio.sleep(ACTING.confirm_seconds - 0.1)
            assert (await world.node(name)).spec.taints == ()
            await asyncio.sleep(0.5)
            assert [t.key for t in (await world.node(name)).spec.taints] == [names.TAINT_UNHEALTHY]
            await asyncio.sleep(60)
            await world.tell(name)
            await asyncio.sleep(120)
            lines = [fleet_line(each) for each in await decisions_of(fleet.history, FleetQuery())]
            facts = facts_of(msgspec.json.encode({"items": lines}))
            assert [len(row.faults) for row in facts.rows] == [1, 0]
            found = compared(facts, ACTING)
            assert [each.action for each in found.before] == [
                "Cordon", "Resetting", "Validating", "Ready",
            ]  # fmt: skip
            assert found.nodes == {}, "the replay does what the controllers did"
            assert compared(facts, HealthPolicy(enabled=True)).after == ()

    run(main())


def test_a_machine_whose_agent_is_silent_is_restarted_by_its_provider_once() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 3)
            sick = (await fleet.nodes())[0]
            await world.tell(sick.metadata.name, world.fault(action=Action.REBOOT), ago=7200)

            async def is_asked() -> bool:
                return await world.state(sick.metadata.name) is NodeState.REBOOTING

            await fleet.until(is_asked, 900)
            await asyncio.sleep(150)
            assert fleet.cloud.restarted == [sick.spec.provider_id]
            record = record_of((await world.node(sick.metadata.name)).metadata.annotations)
            assert record is not None
            assert "the agent is silent, so its provider restarts the machine" in record.reason
            await fleet.kill()
            await asyncio.sleep(300)
            assert fleet.cloud.restarted == [sick.spec.provider_id], "not while it starts"
            assert fleet.crashes() == []

    run(main())


def test_a_machine_to_be_replaced_is_removed_by_its_pool_and_charged_once() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 4)
            sick = (await fleet.nodes())[0]
            name = sick.metadata.name
            await world.tell(name, world.fault(action=Action.REPLACE))

            async def gone() -> bool:
                try:
                    return (await world.node(name)).metadata.uid != sick.metadata.uid
                except NotFound:
                    return True

            await fleet.until(gone, 1800)
            await asyncio.sleep(1200)
            assert len(await fleet.nodes()) == 4, "another machine has its place"
            status = (await fleet.fleet()).status
            assert sum(each.count for each in status.removed) == 1
            assert (status.repairs, status.grants) == ((), ())
            assert fleet.crashes() == []

    run(main())


def test_a_sick_node_is_not_removed_as_an_idle_one() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 4)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault(action=Action.ASK_PERSON))
            await asyncio.sleep(60)
            assert await world.state(name) is NodeState.ASKING
            await fleet.resize(0)
            await asyncio.sleep(6 * 3600)
            assert [each.metadata.name for each in await fleet.nodes()] == [name]

    run(main())


def test_a_node_that_a_person_retires_goes_within_the_budgets_and_is_charged() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            await ready(fleet, 4)
            node = (await fleet.nodes())[0]
            name = node.metadata.name
            now = fleet.clock.now()
            drain = f"{format_time(now)}/{format_time(now + 600)}"
            patch = {
                "metadata": {"annotations": {names.DRAIN: drain, names.RETIRE: "third repair"}},
                "spec": {"unschedulable": True},
            }
            await fleet.client.patch(NODES, name, patch)
            await asyncio.sleep(3600)
            found = await fleet.nodes()
            assert name not in {each.metadata.name for each in found} or all(
                each.metadata.uid != node.metadata.uid for each in found
            )
            removed = (await fleet.fleet()).status.removed
            assert [each.cause.value for each in removed] == ["Maintenance"]

    run(main())


def test_every_pod_of_a_gang_is_being_ended_within_five_seconds_of_a_drain_that_ends() -> None:
    """What the controllers add; `bench --only real_health` has it on a real API server."""

    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            await ready(fleet, 16)
            await fleet.submit("train", gpus=8, count=16, seconds=40_000)
            await asyncio.sleep(1800)
            job = await fleet.job("train")
            members = {p.metadata.uid for p in (await fleet.client.list(PODS)).items}
            assert len(members) == 16
            now = fleet.clock.now()
            note = {names.DRAIN: f"{format_time(now)}/{format_time(now + 1)}"}
            node = nodes_of(job.status.placement)[0]
            await fleet.client.patch(NODES, node, {"metadata": {"annotations": note}})
            await asyncio.sleep(5)
            pods = (await fleet.client.list(PODS)).items
            left = {p.metadata.uid for p in pods if p.metadata.deletion_timestamp is None}
            assert left & members == set()

    run(main())


def test_pods_of_others_leave_a_node_that_a_person_drains() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            await ready(fleet, 2)
            name = (await fleet.nodes())[0].metadata.name
            pod = make_pod("notebook", node=name, gpus=1)
            notes = {"fairlead.dev/simulate-seconds": "86400"}
            meta = {"name": "notebook", "annotations": notes}
            body = {"metadata": meta, "spec": to_wire(pod.spec)}
            await fleet.client.create(PODS, body, namespace="default")
            await asyncio.sleep(60)
            now = fleet.clock.now()
            drain = f"{format_time(now)}/{format_time(now + 3600)}"
            await fleet.client.patch(
                NODES, name, {"metadata": {"annotations": {names.DRAIN: drain}}}
            )
            await asyncio.sleep(120)
            pods = [p.metadata.name for p in (await fleet.client.list(PODS)).items]
            assert pods == []
            assert await HealthWorld(fleet).state(name) is NodeState.READY, "no fault, no record"

    run(main())


def test_without_health_nothing_follows_reports_and_a_drain_still_moves_gangs() -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            world = await ready(fleet, 3)
            await fleet.submit("train", gpus=8, count=2, seconds=40_000)
            await asyncio.sleep(1800)
            node = nodes_of((await fleet.job("train")).status.placement)[0]
            await world.tell(node, world.fault())
            await asyncio.sleep(600)
            assert await world.state(node) is NodeState.READY
            now = fleet.clock.now()
            drain = f"{format_time(now)}/{format_time(now + 3600)}"
            await fleet.client.patch(
                NODES, node, {"metadata": {"annotations": {names.DRAIN: drain}}}
            )
            await asyncio.sleep(3600)
            assert node not in nodes_of((await fleet.job("train")).status.placement)

    run(main())


def test_in_a_storm_no_node_is_taken_and_no_state_is_written() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 20)
            nodes = [each.metadata.name for each in await fleet.nodes()]
            for name in nodes:
                await world.tell(name, world.fault())
            await asyncio.sleep(6 * 3600)
            found = await fleet.nodes()
            assert not any(names.HEALTH in each.metadata.annotations for each in found)
            assert "NodesSick" in {each.reason for each in await fleet.decisions(action="Hold")}
            text = fleet.metrics.render().decode()
            assert 'fairlead_health_rail_holds{rail="NodesSick"} 1.0' in text
            for name in nodes:
                await world.tell(name)
            await asyncio.sleep(120)
            await world.tell(nodes[0], world.fault())
            await asyncio.sleep(60)
            assert await world.state(nodes[0]) is NodeState.RESETTING

    run(main())


def test_controllers_that_are_killed_again_and_again_lose_nothing_of_a_session() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 4)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault())
            for _ in range(12):
                await asyncio.sleep(17)
                await fleet.kill()
            assert await world.state(name) is NodeState.RESETTING
            await world.tell(name, boot="boot-2")
            for _ in range(12):
                await asyncio.sleep(29)
                await fleet.kill()
            assert await world.state(name) is NodeState.READY
            await asyncio.sleep(60)
            status = (await fleet.fleet()).status
            assert sum(each.count for each in status.removed) == 1
            assert status.repairs == ()

    run(main())


def test_the_report_of_a_node_that_is_gone_for_good_is_deleted_and_no_other() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            world = await ready(fleet, 3)
            gone, again, stays = sorted(each.metadata.name for each in await fleet.nodes())
            for name in (gone, again, stays):
                await world.tell(name)
            body = to_wire(await world.node(again))
            for name in (gone, again):
                await fleet.client.delete(NODES, name)
            await asyncio.sleep(ACTING.orphan_seconds / 2)
            body["metadata"] = {"name": again}
            await fleet.client.create(NODES, body)
            await asyncio.sleep(ACTING.orphan_seconds * 2)
            left = {each.metadata.name for each in (await fleet.client.list(NODE_REPORTS)).items}
            assert left == {again, stays}
            assert fleet.crashes() == []

    run(main())
