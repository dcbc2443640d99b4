"""Tests of nodes in pairs, with the controllers, virtual nodes and a simulated cloud."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_idle_tests import IDLE
from tests.unit.app.test_node_tests import pods_of_tests, state_of, write_end

from fairlead.api.cluster.machine_result import MachineOutcome, PairMeasure, SuiteResult
from fairlead.api.cluster.machine_result import encode_result as encoded
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import NODE_TESTS, NODES, PODS, SECRETS
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.health.proving.pair_step import BAD_PAIR
from fairlead.embedded.virtual.hardware import Quality
from fairlead.model.health.node_record import NodeState
from fairlead.sim.loop import run

PAIRS = replace(IDLE, idle_test_suite="", pair_tests=True, idle_test_share=0.5)
HOUR = 3600.0


async def pairs_of(fleet: FleetWorld) -> list[NodeTest]:
    return list((await fleet.client.list(NODE_TESTS)).items)


async def pair_that_runs(fleet: FleetWorld) -> list[Pod]:
    """Wait until both pods of a pair run, and return them: first the one that listens."""
    found: list[Pod] = []

    for _ in range(20_000):
        await asyncio.sleep(0.5)
        pods = [pod for pod in await pods_of_tests(fleet) if pod.status.phase == "Running"]
        found[:] = sorted(pods, key=lambda pod: "--connect" in pod.spec.containers[0].command)
        if len(found) == 2:
            return found
    raise AssertionError("no pair runs")


async def bad_from_now_on(fleet: FleetWorld, kind: Quality = Quality.LINK) -> str:
    name = sorted(each.metadata.name for each in await fleet.nodes())[1]
    fleet.virtual.set_quality(name, kind)
    return name


def test_all_idle_nodes_meet_in_pairs_once_a_day_and_nothing_is_left_behind() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=PAIRS) as fleet:
            await fleet.pool(hold=6, disruption={})
            await asyncio.sleep(HOUR)
            tests = {each.metadata.name: each for each in await pairs_of(fleet)}
            assert len(tests) == 6
            for name, test in tests.items():
                assert test.status.outcome is MachineOutcome.PASSED, test.status
                assert test.spec.peer is not None
                other = tests[test.spec.peer.test]
                assert other.spec.peer is not None
                assert (other.spec.peer.test, other.spec.node) == (name, test.spec.peer.node)
                assert other.spec.peer.listens is not test.spec.peer.listens
                [found] = test.status.measured
                assert (found.test, [each.name for each in found.figures]) == (
                    "network", ["bytesPerSecond", "roundTripSeconds"],
                )  # fmt: skip
            assert await pods_of_tests(fleet) == []
            assert (await fleet.client.list(SECRETS, namespace="kube-system")).items == ()
            await asyncio.sleep(22 * HOUR)
            assert len(await pairs_of(fleet)) == 12, "once more each, and no more"
            assert fleet.crashes() == []

    run(main())


def test_a_slow_interface_is_found_by_three_pairs_and_its_partners_stay() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=PAIRS) as fleet:
            await fleet.pool(hold=8, disruption={})
            await asyncio.sleep(2 * HOUR)
            bad = await bad_from_now_on(fleet)
            uid = (await fleet.client.get(NODES, bad)).metadata.uid

            failed: list[NodeTest] = []
            for _ in range(20_000):
                await asyncio.sleep(5)
                tests = await pairs_of(fleet)
                failed += [t for t in tests if t.status.outcome is MachineOutcome.FAILED]
                if failed:
                    break
            # A pair that began before both tests of the one before were seen may fail as well.
            assert {each.spec.node for each in failed} == {bad}
            assert all(each.status.message.startswith("network: 1.9") for each in failed)
            partners = [t for t in tests if t.status.reason == BAD_PAIR and t.spec.node != bad]
            assert 2 <= len(partners) <= 3
            assert all(t.status.outcome is MachineOutcome.ERROR for t in partners)

            async def replaced() -> bool:
                nodes = await fleet.nodes()
                return len(nodes) == 8 and all(each.metadata.uid != uid for each in nodes)

            await fleet.until(replaced, 6 * HOUR)
            others = [each for each in await fleet.nodes() if each.metadata.name != bad]
            assert all(state_of(each) is NodeState.READY for each in others)
            assert fleet.crashes() == []

    run(main())


def test_both_sides_leave_when_work_comes_to_either() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=PAIRS) as fleet:
            await fleet.pool(hold=2, disruption={})
            await asyncio.sleep(1200)
            for each in await fleet.nodes():  # so that the pair goes on until it is stopped
                fleet.virtual.set_quality(each.metadata.name, Quality.HANGING)
            pods = await pair_that_runs(fleet)
            at = fleet.clock.now()
            await fleet.submit("one", gpus=8, count=1)

            async def runs() -> bool:
                return (await fleet.job("one")).status.state == "Running"

            await fleet.until(runs, 60)
            [used] = nodes_of((await fleet.job("one")).status.placement)
            assert used in [pod.spec.node_name for pod in pods]
            assert fleet.clock.now() - at < 15
            await asyncio.sleep(5)
            assert await pods_of_tests(fleet) == []
            await asyncio.sleep(15)
            assert await pairs_of(fleet) == [], "what was cut short is no test of either"
            assert fleet.crashes() == []

    run(main())


def test_a_partner_that_hangs_or_vanishes_is_an_error_of_both_and_a_fault_of_none() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=PAIRS) as fleet:
            await fleet.pool(hold=2, disruption={})
            pods = await pair_that_runs(fleet)
            await fleet.client.delete(PODS, pods[0].metadata.name, namespace="kube-system")
            await asyncio.sleep(60)
            tests = await pairs_of(fleet)
            assert [each.status.outcome for each in tests] == [MachineOutcome.ERROR] * 2
            assert {each.status.reason for each in tests} <= {"PodGone", "HarnessError"}
            bad = await bad_from_now_on(fleet, Quality.HANGING)
            await asyncio.sleep(2 * HOUR)
            tests = await pairs_of(fleet)
            assert len(tests) > 2, "it is tried again"
            assert {each.status.outcome for each in tests if not each.is_open} == {
                MachineOutcome.ERROR
            }
            assert bad in [each.spec.node for each in tests]
            assert all(state_of(each) is NodeState.READY for each in await fleet.nodes())
            assert fleet.crashes() == []

    run(main())


def test_a_lying_node_convicts_no_healthy_partner_and_in_the_end_itself() -> None:
    """What its pods leave says that data of every partner arrives changed."""
    lie = PairMeasure(0, 1e10, 5e-5, is_wrong=True)
    said = encoded(SuiteResult("pair", (), pairs=(lie,))).decode()

    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=PAIRS) as fleet:
            await fleet.pool(hold=8, disruption={})
            await asyncio.sleep(20 * HOUR)
            liar = sorted(each.metadata.name for each in await fleet.nodes())[3]
            failed: set[str] = set()
            for _ in range(6000):
                await asyncio.sleep(1)
                for pod in await pods_of_tests(fleet, liar):
                    if pod.status.phase == "Running":
                        await write_end(fleet, pod, said)
                failed |= {
                    each.spec.node for each in await pairs_of(fleet)
                    if each.status.outcome is MachineOutcome.FAILED
                }  # fmt: skip
                if failed:
                    break
                if fleet.clock.now() % 1800 < 1:
                    for each in await fleet.nodes():
                        assert state_of(each) is NodeState.READY
            assert failed == {liar}

    run(main())


def test_whatever_instant_the_controllers_die_at_pairs_end_and_leave_nothing() -> None:
    async def main(dies_after: float) -> None:
        async with FleetWorld.running(CloudRates(), health=PAIRS) as fleet:
            await fleet.pool(hold=2, disruption={})

            async def begun() -> bool:
                return bool(await pairs_of(fleet))

            await fleet.until(begun, 2 * HOUR)
            await asyncio.sleep(dies_after)
            await fleet.kill()
            await asyncio.sleep(1.5 * HOUR)
            tests = await pairs_of(fleet)
            assert {each.status.outcome for each in tests} <= {
                MachineOutcome.PASSED, MachineOutcome.ERROR,
            }  # fmt: skip
            assert MachineOutcome.PASSED in {each.status.outcome for each in tests}
            assert await pods_of_tests(fleet) == []
            assert (await fleet.client.list(SECRETS, namespace="kube-system")).items == ()

    for dies_after in (0.01, 0.6, 1.3, 3.0, 5.0, 6.0):
        run(main(dies_after))
