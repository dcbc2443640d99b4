"""The gate before work, with the controllers, virtual nodes and a simulated cloud."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_health import HealthWorld

from fairlead.api import names
from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.cluster.machine_result import (
    MachineFinding,
    MachineOutcome,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_report import Action
from fairlead.api.cluster.node_suites import OWN_TEST, MachineTest, proofs_of, suite_of, suites
from fairlead.api.cluster.node_test import NodeTest, NodeTestCause, NodeTestPhase
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import is_true
from fairlead.api.resources import NODE_POOLS, NODE_TESTS, NODES, PODS
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.ledger import Budgets, CauseBudget, Shares
from fairlead.decide.removal.trust import SightLimits
from fairlead.embedded.virtual.hardware import Hardware, Quality
from fairlead.embedded.virtual.profile import HardwareSpec
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.sim.loop import run

GATE = HealthPolicy(
    enabled=True, act_on=("*",), test_suite="quick",
    sight=SightLimits(nodes_age_seconds_max=float("inf")),
)  # fmt: skip
GATED = CloudRates(preflight=True)
NAMES = [f"h100-{i:06}" for i in range(1, 5)]
NAMES_8 = [f"h100-{i:06}" for i in range(1, 9)]
HALF = {"corrupt": {"corrupt": 0.3}, "hanging": {"hanging": 0.3}, "flaky": {"flaky": 0.3}}


def fleet_with(quality: Quality, count: int = 4) -> tuple[HardwareSpec, str]:
    """Return the hardware of a fleet of which one node has a quality, and the name of that node."""
    for seed in range(10_000):
        spec = HardwareSpec(seed=seed, **HALF[quality.value])
        bad = [name for name in NAMES[:count] if Hardware(spec).quality(name) is quality]
        if len(bad) == 1:
            return spec, bad[0]
    raise AssertionError("no such seed")


def good_result() -> str:
    """Return what a machine says that passes the quick suite."""
    measured = tuple(
        MachineFinding(name, MachineOutcome.PASSED) for name in suites()["quick"].tests
    )
    return encode_result(SuiteResult("quick", measured)).decode()


async def history_of(fleet: FleetWorld, node: str) -> list[NodeTest]:
    found = (await fleet.client.list(NODE_TESTS)).items
    return sorted((t for t in found if t.spec.node == node), key=lambda t: t.spec.number)


async def node_of(fleet: FleetWorld, name: str) -> Node:
    return await fleet.client.get(NODES, name)


async def pods_of_tests(fleet: FleetWorld, node: str = "") -> list[Pod]:
    found = (await fleet.client.list(PODS)).items
    return [
        pod for pod in found
        if names.NODE_TEST in pod.metadata.labels and node in ("", pod.spec.node_name)
    ]  # fmt: skip


def is_closed(node: Node) -> bool:
    return any(taint.key == names.TAINT_PREFLIGHT for taint in node.spec.taints)


def state_of(node: Node) -> NodeState:
    record = record_of(node.metadata.annotations)
    return record.state if record is not None else NodeState.READY


async def write_end(fleet: FleetWorld, pod: Pod, message: str) -> None:
    """Write into the status of a pod that its container has ended with a message."""
    ended = {"exitCode": 0, "message": message}
    status = {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "test", "state": {"terminated": ended}}],
    }
    await fleet.client.patch(
        PODS, pod.metadata.name, {"status": status}, namespace=pod.metadata.namespace,
        subresource="status",
    )  # fmt: skip


def forged(name: str, namespace: str, node: str, test: NodeTest | None) -> dict[str, Any]:
    """Return a pod that looks like that of a test."""
    owners = [] if test is None else [
        {"apiVersion": names.API_VERSION, "kind": "NodeTest", "name": test.metadata.name,
         "uid": test.metadata.uid, "controller": True},
    ]  # fmt: skip
    return {
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners,
                     "labels": {names.NODE_TEST: "quick"}},
        "spec": {"nodeName": node, "containers": [{"name": "test", "image": "any"}],
                 "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}]},
    }  # fmt: skip


def test_new_nodes_are_tested_and_no_machine_is_bought_twice_meanwhile() -> None:
    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE) as fleet:
            await fleet.pool()
            await fleet.submit("wide", gpus=8, count=3)

            seen = set[str]()

            async def placed() -> bool:
                nodes = {each.metadata.name: each for each in await fleet.nodes()}
                closed = {name for name, node in nodes.items() if is_closed(node)}
                seen.update(closed)
                placement = (await fleet.job("wide")).status.placement
                assert not closed & set(nodes_of(placement)), "no work before the test"
                return placement is not None

            await fleet.until(placed, 1200)
            assert len(seen) == 3
            nodes = await fleet.nodes()
            assert len(nodes) == 3, "the demand was met by those that were tested"
            assert not any(map(is_closed, nodes))
            for node in nodes:
                (test,) = await history_of(fleet, node.metadata.name)
                assert (test.spec.cause, test.status.outcome) == (
                    NodeTestCause.GATE,
                    MachineOutcome.PASSED,
                )
                assert test.status.attempts == 1
                assert all(is_true(test.status.conditions, each) for each in ("Complete", "Passed"))
                assert [each.test for each in test.status.measured] == list(suites()["quick"].tests)
            assert await pods_of_tests(fleet) == []
            said = [each.action for each in await fleet.decisions()]
            assert said.count("Passed") == 3
            assert fleet.crashes() == []

    run(main())


def test_the_gate_has_the_administrators_tests_of_its_suite() -> None:
    own = MachineTest(
        "site-ib", "", Action.REBOOT, MachineOutcome.ERROR, 30.0, command=("/opt/ib", "-q"),
        suites=("quick",),
    )  # fmt: skip

    async def main() -> None:
        longer = msgspec.structs.replace(own, name="b", suites=("full",))
        gate = replace(GATE, own_tests=(own, longer))
        async with FleetWorld.running(GATED, health=gate) as fleet:
            await fleet.pool()
            await fleet.submit("one", gpus=8, count=1)
            commands = set[tuple[str, ...]]()

            async def tested() -> bool:
                for pod in await pods_of_tests(fleet):
                    commands.add(tuple(pod.spec.containers[0].command))
                found = (await fleet.client.list(NODE_TESTS)).items
                return any(each.status.outcome is MachineOutcome.PASSED for each in found)

            await fleet.until(tested, 3600.0)
            (test, *_) = (await fleet.client.list(NODE_TESTS)).items
            assert [each.test for each in test.status.measured][-1] == "site-ib"
            for command in commands:
                (given,) = (b for a, b in pairwise(command) if a == OWN_TEST)
                assert msgspec.json.decode(given, type=MachineTest) == own

    run(main())


def test_a_node_that_computes_wrong_never_takes_work_and_its_pool_replaces_it() -> None:
    spec, bad = fleet_with(Quality.CORRUPT)

    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})

            async def failed() -> bool:
                tests = await history_of(fleet, bad)
                return bool(tests) and tests[0].status.outcome is MachineOutcome.FAILED

            await fleet.until(failed, 900)
            (test,) = await history_of(fleet, bad)
            assert test.status.message == "cpu: wrong results on 1 CPU"
            uid = (await node_of(fleet, bad)).metadata.uid

            async def replaced() -> bool:
                nodes = await fleet.nodes()
                assert all(is_closed(n) for n in nodes if n.metadata.uid == uid)
                return len(nodes) == 4 and all(n.metadata.uid != uid for n in nodes)

            await fleet.until(replaced, 3600)
            removed = (await fleet.fleet()).status.removed
            assert sum(each.count for each in removed) == 1, "one removal, charged once"
            assert fleet.crashes() == []

    run(main())


def test_a_rule_in_shadow_leaves_a_node_that_failed_behind_its_taint() -> None:
    spec, bad = fleet_with(Quality.CORRUPT)
    shadow = replace(GATE, act_on=("gpu-xid",))

    async def main() -> None:
        async with FleetWorld.running(GATED, health=shadow, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})
            await asyncio.sleep(3600)
            node = await node_of(fleet, bad)
            assert (is_closed(node), state_of(node)) == (True, NodeState.READY)
            assert len(await history_of(fleet, bad)) == 1, "it is not tested again and again"
            others = [n for n in await fleet.nodes() if n.metadata.name != bad]
            assert len(others) >= 3
            assert not any(map(is_closed, others))
            assert "WouldCordon" in [each.action for each in await fleet.decisions()]

    run(main())


def test_a_node_that_says_nothing_until_the_deadline_is_out_of_service() -> None:
    spec, bad = fleet_with(Quality.HANGING)

    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})

            async def out() -> bool:
                nodes = {each.metadata.name: each for each in await fleet.nodes()}
                return bad in nodes and state_of(nodes[bad]) is NodeState.REBOOTING

            await fleet.until(out, 7200)
            (test,) = await history_of(fleet, bad)
            assert (test.status.outcome, test.status.reason) == (MachineOutcome.ERROR, "Silent")
            assert test.status.attempts >= 2
            assert is_closed(await node_of(fleet, bad))

    run(main())


def test_a_test_that_leaves_nothing_is_tried_again_and_an_evicted_one_too() -> None:
    spec, bad = fleet_with(Quality.FLAKY)

    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})
            evicted = set[str]()

            async def passed() -> bool:
                for pod in await pods_of_tests(fleet):
                    if pod.spec.node_name not in (*evicted, bad) and pod.status.phase == "Running":
                        evicted.add(pod.spec.node_name)
                        await fleet.client.delete(PODS, pod.metadata.name, namespace="kube-system")
                nodes = await fleet.nodes()
                return len(nodes) == 4 and not any(map(is_closed, nodes))

            await fleet.until(passed, 3600)
            assert len(evicted) == 3
            for name in evicted:
                assert (await history_of(fleet, name))[0].status.attempts == 2
            (test,) = await history_of(fleet, bad)
            assert test.status.outcome is MachineOutcome.PASSED

    run(main())


def test_nothing_that_others_write_lifts_a_taint() -> None:
    """A lying pod: of a tenant, of the derived name, and one that is there before the true one."""
    spec, bad = fleet_with(Quality.HANGING)

    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE, hardware=spec) as fleet:
            name = f"{bad}-1"
            early = await fleet.client.create(
                PODS, forged(name, "kube-system", bad, None), namespace="kube-system"
            )
            await write_end(fleet, early, good_result())
            await fleet.pool(hold=4, disruption={})

            async def begun() -> bool:
                tests = await history_of(fleet, bad)
                return bool(tests) and tests[0].status.phase is NodeTestPhase.RUNNING

            await fleet.until(begun, 900)
            (test,) = await history_of(fleet, bad)
            assert test.status.pod_uid not in ("", early.metadata.uid)
            tenant = await fleet.client.create(
                PODS, forged(name, "default", bad, test), namespace="default"
            )
            await write_end(fleet, tenant, good_result())
            other = await fleet.client.create(
                PODS, forged("another", "kube-system", bad, test), namespace="kube-system"
            )
            await write_end(fleet, other, good_result())
            lies = {"phase": "Ended", "outcome": "Passed", "podUID": tenant.metadata.uid}
            wrong_uid = {
                "metadata": {"name": "lie"}, "status": lies,
                "spec": {"node": bad, "nodeUID": "another", "suite": "quick", "number": 9},
            }  # fmt: skip
            await fleet.client.create(NODE_TESTS, wrong_uid)
            await asyncio.sleep(1200)
            assert is_closed(await node_of(fleet, bad))
            assert (await history_of(fleet, bad))[0].status.outcome is None
            assert sum(map(is_closed, await fleet.nodes())) == 1, "the others were let in"

    run(main())


@pytest.mark.parametrize(
    "message",
    [
        "", "all good", good_result().replace('"quick"', '"full"', 1),
        '{"suite":"quick","measured":[]}',
        '{"suite":"quick","measured":[{"test":"cpu","outcome":"Passed"}]}',
    ],
)  # fmt: skip
def test_a_result_that_is_none_of_the_suite_lifts_no_taint(message: str) -> None:
    spec, bad = fleet_with(Quality.HANGING)

    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE, hardware=spec) as fleet:
            await fleet.pool(hold=4, disruption={})
            seen = set[str]()

            async def answered() -> bool:
                for pod in await pods_of_tests(fleet, bad):
                    if pod.status.phase == "Running" and pod.metadata.uid not in seen:
                        seen.add(pod.metadata.uid)
                        await write_end(fleet, pod, message)
                return len(seen) == 2

            await fleet.until(answered, 1200)
            assert is_closed(await node_of(fleet, bad))
            (test,) = await history_of(fleet, bad)
            assert test.status.outcome is None
            assert test.status.attempts == 2

    run(main())


def test_whatever_instant_the_controllers_die_at_each_node_is_tested_and_let_in() -> None:
    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE) as fleet:
            await fleet.pool(hold=4, disruption={})
            for _ in range(60):
                await asyncio.sleep(fleet.rng.uniform(0.3, 9.0))
                fleet.controller.cancel()
                fleet.controller = fleet.group.create_task(fleet.control())
            await asyncio.sleep(900)
            nodes = await fleet.nodes()
            assert len(nodes) == 4
            assert not any(map(is_closed, nodes))
            for node in nodes:
                tests = await history_of(fleet, node.metadata.name)
                assert [t.status.outcome for t in tests] == [MachineOutcome.PASSED]
            assert await pods_of_tests(fleet) == []

    run(main())


def test_200_nodes_that_join_at_once_are_tested_with_at_most_6_writes_each() -> None:
    async def main() -> None:
        writes = Counter[str]()
        async with FleetWorld.running(GATED, health=GATE) as fleet:
            call = fleet.client.call

            async def counted(request: Any) -> Any:
                if request.is_write and request.resource.plural in ("nodetests", "pods"):
                    writes[f"{request.verb.value} {request.resource.plural}"] += 1
                return await call(request)

            fleet.client.call = counted  # type: ignore[method-assign] # counts, and passes on
            await fleet.pool(hold=200, max=200, disruption={})

            async def joined() -> bool:
                nodes = await fleet.nodes()
                return len(nodes) == 200 and not any(map(is_closed, nodes))

            await fleet.until(joined, 1200)
            await asyncio.sleep(60)
            tests = (await fleet.client.list(NODE_TESTS)).items
            assert Counter(t.status.attempts for t in tests) == {1: 200}
            # And one of the node, which lifts the taint: pods are patched by their kubelets.
            del writes["patch pods"]
            assert sum(writes.values()) <= 5 * 200, writes
            assert await pods_of_tests(fleet) == []
            assert fleet.crashes() == []

    run(main())


def test_a_node_that_was_repaired_passes_the_same_gate() -> None:
    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE) as fleet:
            await fleet.pool(hold=4, disruption={})
            await asyncio.sleep(900)
            world = HealthWorld(fleet)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault())
            await asyncio.sleep(60)
            assert await world.state(name) is NodeState.RESETTING
            await world.tell(name, boot="boot-2")

            async def back() -> bool:
                return await world.state(name) is NodeState.READY

            await fleet.until(back, 900)
            tests = await history_of(fleet, name)
            assert [each.status.outcome for each in tests] == [MachineOutcome.PASSED] * 2

    run(main())


def test_a_returned_node_is_tested_for_the_kind_of_fault_that_it_had() -> None:
    async def main() -> None:
        async with FleetWorld.running(GATED, health=GATE) as fleet:
            await fleet.pool(hold=2, disruption={})
            await asyncio.sleep(900)
            world = HealthWorld(fleet)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault(check="memory-ecc", component="mc0"))
            await asyncio.sleep(60)
            await world.tell(name, boot="boot-2")

            async def back() -> bool:
                return await world.state(name) is NodeState.READY

            await fleet.until(back, 1800)
            first, second = await history_of(fleet, name)
            assert (first.spec.retests, second.spec.retests) == ((), ("memory",))
            assert second.status.outcome is MachineOutcome.PASSED
            assert fleet.crashes() == []

    run(main())


DRIVER = "nvidia.com/cuda.driver-version.full"


async def upgrade(fleet: FleetWorld, version: str, *nodes: str) -> None:
    """Let nodes say that they have another driver."""
    for name in nodes:
        await fleet.client.patch(NODES, name, {"metadata": {"labels": {DRIVER: version}}})


def test_nodes_with_another_driver_pass_the_gate_again_within_the_budget_and_without_harm() -> None:
    async def main() -> None:
        all_ = Shares(1.0, 1.0, 1.0)
        wide = dict.fromkeys(RemovalCause, CauseBudget(all_, all_, None))
        slow = replace(
            GATE, cosmetic_drain_seconds=86_400, budgets=Budgets(wide, ceiling_share=1.0)
        )
        async with FleetWorld.running(GATED, health=slow) as fleet:
            await fleet.pool(hold=8, max=8, disruption={"nodesAtOnceMax": 2})
            names_ = sorted(NAMES_8)

            async def joined() -> bool:
                await upgrade(fleet, "550", *[n.metadata.name for n in await fleet.nodes()])
                nodes = await fleet.nodes()
                return len(nodes) == 8 and not any(map(is_closed, nodes))

            await fleet.until(joined, 1200)
            await fleet.submit("train", gpus=8, count=1, seconds=7200)
            await asyncio.sleep(120)
            (used,) = nodes_of((await fleet.job("train")).status.placement)
            world = HealthWorld(fleet)
            await upgrade(fleet, "560", *names_)
            seen, most = set[str](), 0

            async def tested() -> bool:
                nonlocal most
                states = {name: await world.state(name) for name in names_}
                out = {name for name, state in states.items() if state is not NodeState.READY}
                seen.update(out)
                most = max(most, len(out))
                counts = [len(await history_of(fleet, name)) for name in names_ if name != used]
                return min(counts) == 2 and not out - {used}

            await fleet.until(tested, 6 * 3600)
            assert 1 <= most <= 2, "never more than the budget says"
            job = await fleet.job("train")
            assert (job.status.state, len(job.status.attempts)) == ("Running", 1), "it runs on"
            for name in names_:
                if name != used:
                    assert (await history_of(fleet, name))[-1].status.hardware["driver"] == "560"

            async def all_tested() -> bool:
                last = (await history_of(fleet, used))[-1].status
                return last.hardware.get("driver") == "560" and (
                    await world.state(used) is NodeState.READY
                )

            await fleet.until(all_tested, 4 * 3600)
            assert (await fleet.job("train")).status.state == "Succeeded"
            said = {each.action for each in await fleet.decisions()}
            assert "Validating" in said
            assert fleet.crashes() == []

    run(main())


def test_a_change_of_which_the_rule_is_in_shadow_takes_no_node_and_is_said_once() -> None:
    async def main() -> None:
        shadow = replace(GATE, act_on=("node-test",))
        async with FleetWorld.running(GATED, health=shadow) as fleet:
            await fleet.pool(hold=1, disruption={})
            await asyncio.sleep(30)
            (name,) = NAMES[:1]

            async def joined() -> bool:
                nodes = await fleet.nodes()
                await upgrade(fleet, "550", *[n.metadata.name for n in nodes])
                return bool(nodes) and not any(map(is_closed, nodes))

            await fleet.until(joined, 1200)
            await upgrade(fleet, "560", name)
            await asyncio.sleep(900)
            assert state_of(await node_of(fleet, name)) is NodeState.READY
            assert len(await history_of(fleet, name)) == 1
            would = [e for e in await fleet.decisions() if e.action == "WouldCordon"]
            assert [each.reason for each in would] == ["node-changed"]

    run(main())


def test_a_repair_that_did_not_help_is_found_by_the_gate() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(), health=GATE) as fleet:
            await fleet.pool(hold=4, disruption={})
            await asyncio.sleep(900)
            world = HealthWorld(fleet)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault(action=Action.ASK_PERSON))
            await asyncio.sleep(60)
            await world.tell(name)
            lies = (MachineOutcome.PASSED, MachineOutcome.FAILED)
            again = suite_of("quick", proofs_of("gpu-xid", ""))
            assert again is not None
            bad = encode_result(SuiteResult("quick", tuple(
                MachineFinding(test, lies[test == "disk"], "it lies")
                for test in again.tests
            ))).decode()  # fmt: skip

            async def judged() -> bool:
                for pod in await pods_of_tests(fleet, name):
                    if pod.status.phase == "Running":
                        await write_end(fleet, pod, bad)
                return await world.state(name) is NodeState.REPLACING

            await fleet.until(judged, 900)
            assert "node-test disk" in (record_of((await world.node(name)).metadata.annotations)
                                        or pytest.fail("no record")).reason  # fmt: skip

    run(main())


def test_a_pool_names_its_own_suite_and_without_any_the_taint_is_not_ours() -> None:
    async def main() -> None:
        async with FleetWorld.running(GATED, health=replace(GATE, test_suite="")) as fleet:
            await fleet.pool(hold=2, disruption={})
            await asyncio.sleep(900)
            assert all(map(is_closed, await fleet.nodes()))
            assert (await fleet.client.list(NODE_TESTS)).items == ()
            await fleet.client.patch(NODE_POOLS, "h100", {"spec": {"testSuite": "full"}})
            await asyncio.sleep(900)
            nodes = await fleet.nodes()
            assert not any(map(is_closed, nodes))
            (test,) = await history_of(fleet, nodes[0].metadata.name)
            assert test.spec.suite == "full"

    run(main())


def test_without_health_no_test_is_followed() -> None:
    async def main() -> None:
        off = replace(GATE, enabled=False)
        async with FleetWorld.running(GATED, health=off) as fleet:
            await fleet.pool(hold=2, disruption={})
            await asyncio.sleep(900)
            assert all(map(is_closed, await fleet.nodes()))
            assert (await fleet.client.list(NODE_TESTS)).items == ()

    run(main())
