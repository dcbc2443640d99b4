"""Tests of idle nodes, with the controllers, virtual nodes and a simulated cloud."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_node_tests import (
    GATE,
    fleet_with,
    forged,
    history_of,
    node_of,
    pods_of_tests,
    state_of,
    write_end,
)

from fairlead.api import names
from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_suites import Better, MachineTest, suites
from fairlead.api.cluster.node_test import NodeTestCause, NodeTestPhase
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import NODE_TESTS, PODS
from fairlead.cloud.simulated import CloudRates
from fairlead.embedded.virtual.hardware import Quality
from fairlead.embedded.virtual.stages.records import NodeFault
from fairlead.model.health.node_record import NodeState
from fairlead.sim.loop import run

IDLE = replace(GATE, test_suite="", idle_test_suite="quick")
HOUR = 3600.0


async def running_pod(fleet: FleetWorld) -> Pod:
    """Wait for a test that runs, and return its pod."""
    found: list[Pod] = []

    async def begun() -> bool:
        found[:] = [pod for pod in await pods_of_tests(fleet) if pod.status.phase == "Running"]
        return bool(found)

    await fleet.until(begun, 2 * HOUR)
    return found[0]


async def running_count(fleet: FleetWorld) -> int:
    return sum(not pod.is_terminal for pod in await pods_of_tests(fleet))


def test_every_idle_node_is_tested_within_a_day_a_few_at_a_time_and_nothing_is_left_behind() -> (
    None
):
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=IDLE) as fleet:
            await fleet.pool(hold=12, disruption={})
            await asyncio.sleep(1200)
            assert (await fleet.client.list(NODE_TESTS)).items == (), "not idle for long enough"
            most = 0
            for _ in range(240):
                await asyncio.sleep(60)
                most = max(most, await running_count(fleet))
            assert most == 1, "a share of the fleet, and at least one"
            before = (await fleet.client.list(NODE_TESTS)).items
            assert {each.spec.node for each in before} == {
                each.metadata.name for each in await fleet.nodes()
            }
            for each in before:
                assert each.spec.cause is NodeTestCause.IDLE
                assert each.status.outcome is MachineOutcome.PASSED
            await asyncio.sleep(24 * HOUR)
            after = (await fleet.client.list(NODE_TESTS)).items
            assert len(after) == 24, "once more each, and no more"
            assert await pods_of_tests(fleet) == []
            assert fleet.crashes() == []

    run(main())


def test_a_test_leaves_within_seconds_when_work_comes_and_the_job_does_not_notice() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=IDLE) as fleet:
            await fleet.pool(hold=2, disruption={})
            pod = await running_pod(fleet)
            gpus = pod.spec.containers[0].resources.limits["nvidia.com/gpu"]
            assert gpus == "8", "the test has what the job wants"
            at = fleet.clock.now()
            await fleet.submit("wide", gpus=8, count=2)

            async def runs() -> bool:
                return (await fleet.job("wide")).status.state == "Running"

            await fleet.until(runs, 60)
            job = await fleet.job("wide")
            assert pod.spec.node_name in nodes_of(job.status.placement)
            assert (job.status.attempt, job.status.infrastructure_failures) == (1, 0)
            assert fleet.clock.now() - at < 15
            assert await pods_of_tests(fleet) == []
            assert (await fleet.client.list(NODE_TESTS)).items == (), (
                "what was cut short is no test"
            )
            assert fleet.crashes() == []

    run(main())


def test_a_pod_that_looks_like_a_test_and_is_none_keeps_its_room() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=IDLE) as fleet:
            await fleet.pool(hold=1, disruption={})
            await asyncio.sleep(900)
            (node,) = await fleet.nodes()
            spec = {"node": node.metadata.name, "nodeUID": "another", "suite": "quick"}
            test = await fleet.client.create(
                NODE_TESTS, {"metadata": {"name": "any"}, "spec": spec}
            )
            body = forged("lie", "default", node.metadata.name, test)
            body["metadata"]["labels"] = {names.NODE_TEST_YIELDS: "true"}
            body["metadata"]["annotations"] = {"fairlead.dev/simulate-seconds": "3600"}
            gpus = {"nvidia.com/gpu": "8"}
            body["spec"]["containers"][0]["resources"] = {"requests": gpus, "limits": gpus}
            await fleet.client.create(PODS, body, namespace="default")
            await asyncio.sleep(10)
            await fleet.submit("wide", gpus=8, count=1)
            await asyncio.sleep(30)
            placed = (await fleet.job("wide")).status.placement
            assert placed is None or node.metadata.name not in nodes_of(placed)
            await fleet.client.delete(PODS, "lie", namespace="default")
            await asyncio.sleep(60)
            placed = (await fleet.job("wide")).status.placement
            assert node.metadata.name in nodes_of(placed), "it was the pod that kept the job away"

    run(main())


def test_a_machine_that_computes_wrong_is_found_while_it_is_idle_and_replaced() -> None:
    spec, bad = fleet_with(Quality.CORRUPT)

    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=IDLE, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})
            await asyncio.sleep(900)
            uid = (await node_of(fleet, bad)).metadata.uid

            async def replaced() -> bool:
                nodes = await fleet.nodes()
                return len(nodes) == 4 and all(each.metadata.uid != uid for each in nodes)

            await fleet.until(replaced, 6 * HOUR)

    run(main())


def test_a_machine_that_says_nothing_is_no_sick_one_and_is_reported_once_it_is_late() -> None:
    spec, bad = fleet_with(Quality.HANGING)

    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=IDLE, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})
            await asyncio.sleep(20 * HOUR)
            tests = await history_of(fleet, bad)
            assert tests
            assert MachineOutcome.ERROR in [each.status.outcome for each in tests]
            assert state_of(await node_of(fleet, bad)) is NodeState.READY
            assert "Untested" not in [each.action for each in await fleet.decisions()]
            await asyncio.sleep(6 * HOUR)
            (said,) = [each for each in await fleet.decisions() if each.action == "Untested"]
            assert bad in said.message
            assert "1 idle node should have been tested" in said.message

    run(main())


def test_a_node_that_worked_meanwhile_is_not_compared_with_idle_ones() -> None:
    """A tenant's short pod that slows the machine during the test takes no node out."""
    often = replace(IDLE, idle_test_after_seconds=60, idle_test_interval_seconds=3600)

    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=often) as fleet:
            await fleet.pool(hold=12, disruption={})
            await asyncio.sleep(3600)
            first = (await fleet.client.list(NODE_TESTS)).items
            assert len(first) == 12, "so that there is a fleet to compare with"
            for wants in (True, False):
                pod = await next_test(fleet)
                node = pod.spec.node_name
                if wants:
                    body = forged("short", "default", node, None)
                    body["metadata"]["labels"] = {}
                    made = await fleet.client.create(PODS, body, namespace="default")
                    await fleet.client.delete(PODS, made.metadata.name, namespace="default")
                await write_end(fleet, pod, slow_result())
                await asyncio.sleep(30)
                state = state_of(await node_of(fleet, node))
                assert (state is NodeState.READY) is wants, "only an idle machine is judged"

    async def next_test(fleet: FleetWorld) -> Pod:
        while True:
            await asyncio.sleep(5)
            for pod in await pods_of_tests(fleet):
                if pod.status.phase == "Running":
                    return pod

    run(main())


def slow_result() -> str:
    """Return what a machine says that passes the quick suite, at a crawl."""
    measured = tuple(
        MachineFinding(test.name, MachineOutcome.PASSED, figures=tuple(_figures(test)))
        for test in suites()["quick"].kinds()
    )
    return encode_result(SuiteResult("quick", measured)).decode()


def _figures(test: MachineTest) -> list[Figure]:
    return [Figure(kind.name, 1.0) for kind in test.figure if kind.better is Better.HIGHER]


def test_a_node_that_came_back_is_tested_again_at_once() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=IDLE) as fleet:
            await fleet.pool(hold=4, disruption={})
            await asyncio.sleep(2 * HOUR)
            name = (await fleet.nodes())[0].metadata.name
            assert len(await history_of(fleet, name)) == 1
            fleet.virtual.fail_node(name, NodeFault.CRASHED)
            await asyncio.sleep(300)
            fleet.virtual.recover_node(name)

            async def tested() -> bool:
                tests = await history_of(fleet, name)
                return len(tests) == 2 and not tests[1].is_open

            await fleet.until(tested, 300)
            await asyncio.sleep(HOUR)
            assert len((await fleet.client.list(NODE_TESTS)).items) == 5, "no other one, and once"

    run(main())


def test_without_a_suite_no_idle_node_is_tested() -> None:
    async def main() -> None:
        off = replace(IDLE, idle_test_suite="")
        async with FleetWorld.running(CloudRates(), health=off) as fleet:
            await fleet.pool(hold=2, disruption={})
            await asyncio.sleep(26 * HOUR)
            assert (await fleet.client.list(NODE_TESTS)).items == ()
            assert "Untested" not in [each.action for each in await fleet.decisions()]

    run(main())


def test_whatever_instant_the_controllers_die_at_idle_nodes_are_tested_and_work_starts() -> None:
    quick = replace(IDLE, idle_test_after_seconds=60, idle_test_interval_seconds=3600)

    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=quick) as fleet:
            await fleet.pool(hold=4, disruption={})
            for i in range(40):
                await asyncio.sleep(fleet.rng.uniform(60.0, 400.0))
                if i % 4 == 0:
                    await fleet.submit(f"job-{i}", gpus=8, count=3, seconds=60)
                await asyncio.sleep(fleet.rng.uniform(0.0, 3.0))
                fleet.controller.cancel()
                fleet.controller = fleet.group.create_task(fleet.control())
            await asyncio.sleep(2 * HOUR)
            for i in range(0, 40, 4):
                assert (await fleet.job(f"job-{i}")).status.state == "Succeeded"
            tests = (await fleet.client.list(NODE_TESTS)).items
            assert len({each.spec.node for each in tests}) == 4
            assert all(each.status.phase is NodeTestPhase.ENDED for each in tests)
            assert await pods_of_tests(fleet) == []

    run(main())
