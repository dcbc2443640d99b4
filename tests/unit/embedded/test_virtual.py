"""Virtual nodes under virtual time: fleets, pod lives, faults, restarts, determinism."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import is_true
from fairlead.api.names import RACK
from fairlead.api.resources import CONFIG_MAPS, EVENTS, NODES, PODS
from fairlead.api.status import InternalError, Unavailable
from fairlead.api.values.times import format_time
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import STALLED, VirtualNodes
from fairlead.embedded.virtual.profile import (
    load_profile,
    parse_profile,
    shipped_profiles,
)
from fairlead.embedded.virtual.stages.records import NodeFault
from fairlead.input.errors import CliError, Code
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

EPOCH = 1_767_225_600.0

STEADY = """
name: steady
stages:
- {name: start, match: {state: Bound}, delay: {seconds: 2}, next: {state: Running}}
- name: end
  match: {state: Running}
  delay: {seconds: 100, annotation: fairlead.dev/simulate-seconds}
  next: {state: Succeeded, exitCodeAnnotation: fairlead.dev/simulate-exit-code}
- {name: stop, match: {state: Terminating}, delay: {seconds: 5}, next: {state: Gone}}
"""


PROGRESS = STEADY + "progress: {stepSeconds: 1, checkpointEverySteps: 10, reportSecondsMin: 15}\n"


class World:
    """Two virtual nodes, a client and a clock."""

    def __init__(self, profile: str = STEADY, count: int = 2, seed: int = 1) -> None:
        self.clock = LoopClock(EPOCH)
        self.client = FakeClient(now=self.clock.now, is_graceful=True)
        self.profile, self.count, self.seed = parse_profile(profile), count, seed
        self.nodes = self.new_nodes()

    def new_nodes(self) -> VirtualNodes:
        fleet = NodeFleet(self.count, self.profile.node)
        rng = random.Random(self.seed)
        return VirtualNodes(self.client, fleet, self.profile, clock=self.clock, rng=rng)

    async def pod(self, name: str, node: str = "v00000", **parts: Any) -> None:
        container = {"name": "main", "image": "x", **parts.pop("container", {})}
        metadata = {"name": name, **parts.pop("metadata", {})}
        spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container], **parts}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        await self.client.create(PODS, body, namespace="default")

    async def get(self, name: str) -> Pod:
        return await self.client.get(PODS, name, namespace="default")

    async def phase(self, name: str) -> str:
        return (await self.get(name)).status.phase

    def names(self) -> list[str]:
        return [pod.metadata.name for pod in self.client.stored(PODS)]


def live(
    scenario: Callable[[World], Awaitable[None]], profile: str = STEADY, **options: Any
) -> None:
    """Run a scenario beside running virtual nodes."""

    async def main() -> None:
        world = World(profile, **options)
        task = asyncio.create_task(world.nodes.run())
        await asyncio.sleep(0.5)
        await scenario(world)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_fleet_is_created_once_and_what_exists_is_kept_with_its_cordon() -> None:
    async def main() -> None:
        world = World(count=20)
        report = await world.nodes.start()
        assert (report.created, report.kept, report.extra) == (20, 0, ())
        node = await world.client.get(NODES, "v00017")
        assert node.status.capacity["nvidia.com/gpu"] == "8"
        assert node.metadata.labels[RACK] == "rack-00002"
        assert is_true(node.status.conditions, "Ready")  # type: ignore[arg-type] # same shape
        await world.client.patch(NODES, "v00003", {"spec": {"unschedulable": True}})
        await world.client.delete(NODES, "v00004")
        world.count = 18
        again = await world.new_nodes().start()
        assert (again.created, again.kept, again.extra) == (1, 17, ("v00018", "v00019"))
        assert (await world.client.get(NODES, "v00003")).spec.unschedulable

    run(main())


def test_a_pod_runs_for_as_long_as_its_annotation_says_and_ends_with_its_exit_code() -> None:
    async def scenario(world: World) -> None:
        asked = {"fairlead.dev/simulate-seconds": "10", "fairlead.dev/simulate-exit-code": "7"}
        await world.pod("p", metadata={"annotations": asked})
        await asyncio.sleep(1.9)
        assert await world.phase("p") == "Pending"
        await asyncio.sleep(0.2)
        started = await world.get("p")
        assert started.status.phase == "Running"
        assert started.status.pod_ip.startswith("10.")
        assert started.status.host_ip == "100.64.0.1"
        assert is_true(started.status.conditions, "Ready")  # type: ignore[arg-type] # same shape
        await asyncio.sleep(10)
        ended = (await world.get("p")).status
        state = ended.container_statuses[0].state.terminated
        assert state is not None
        assert (ended.phase, state.exit_code, state.reason) == ("Failed", 7, "Error")
        assert state.finished_at == format_time(EPOCH + 12.5)
        assert world.client.count("patch", "pods") == 2

    live(scenario)


def test_a_pod_waits_for_its_config_map_but_shows_its_address_at_once() -> None:
    async def scenario(world: World) -> None:
        ref = {"configMapKeyRef": {"name": "peers", "key": "master"}}
        env = [{"name": "MASTER_ADDR", "valueFrom": ref}]
        await world.pod("p", container={"env": env})
        await world.pod("q", volumes=[{"name": "v", "configMap": {"name": "peers"}}])
        await asyncio.sleep(50)
        addresses = {(await world.get(name)).status.pod_ip for name in ("p", "q")}
        assert len(addresses) == 2
        assert "" not in addresses
        waiting = (await world.get("p")).status
        state = waiting.container_statuses[0].state.waiting
        assert state is not None
        assert (waiting.phase, state.reason) == ("Pending", "ContainerCreating")
        assert "peers" in state.message
        await world.client.create(
            CONFIG_MAPS, {"metadata": {"name": "peers"}, "data": {}}, namespace="default"
        )
        await asyncio.sleep(0.1)
        assert await world.phase("q") == "Running"
        assert await world.phase("p") == "Pending"  # the key is missing
        await world.client.patch(
            CONFIG_MAPS, "peers", {"data": {"master": "10.0.0.1"}}, namespace="default"
        )
        await asyncio.sleep(0.1)
        assert await world.phase("p") == "Running"

    live(scenario)


def test_a_deleted_pod_is_confirmed_after_the_terminating_delay_or_the_grace_if_shorter() -> None:
    async def scenario(world: World) -> None:
        for name in ("slow", "quick", "unstarted"):
            await world.pod(name)
            await asyncio.sleep(1)
        await asyncio.sleep(1.5)
        await world.pod("unstarted-2")
        await asyncio.sleep(0.1)
        await world.client.delete(PODS, "slow", namespace="default")
        await world.client.delete(PODS, "quick", namespace="default", grace_period_seconds=2)
        await world.client.delete(PODS, "unstarted-2", namespace="default")
        await asyncio.sleep(0.1)
        assert world.names() == ["quick", "slow", "unstarted"]
        await asyncio.sleep(2)
        assert world.names() == ["slow", "unstarted"]
        await asyncio.sleep(3)
        assert world.names() == ["unstarted"]

    live(scenario)


def test_a_deleted_pod_that_a_finalizer_keeps_has_ended() -> None:
    async def scenario(world: World) -> None:
        kept = {"finalizers": ["example.com/mine"]}
        await world.pod("runs", metadata=kept)
        await world.pod("waits", metadata=kept, volumes=[{"name": "v", "configMap": {"name": "c"}}])
        await asyncio.sleep(3)
        for name in ("runs", "waits"):
            await world.client.delete(PODS, name, namespace="default")
        await asyncio.sleep(6)
        assert [await world.phase(name) for name in ("runs", "waits")] == ["Failed", "Failed"]
        ended = (await world.get("runs")).status.container_statuses[0].state.terminated
        assert ended is not None
        assert (ended.exit_code, ended.signal) == (143, signal.SIGTERM)
        body = {"metadata": {"finalizers": None}}
        await world.client.patch(PODS, "runs", body, namespace="default")
        await asyncio.sleep(1)
        assert world.names() == ["waits"]

    live(scenario)


def test_a_node_refuses_pods_beyond_what_it_has_and_admits_again_after_ends() -> None:
    async def scenario(world: World) -> None:
        gpus = {"resources": {"limits": {"nvidia.com/gpu": 5}}}
        await world.pod("first", container=gpus)
        await world.pod("second", container=gpus)
        await asyncio.sleep(3)
        refused = (await world.get("second")).status
        assert (refused.phase, refused.reason) == ("Failed", "OutOfnvidia.com/gpu")
        assert "requested: 5, used: 5, capacity: 8" in refused.message
        world.nodes.fail_pod(("default", "first"), signal=9)
        await asyncio.sleep(0.1)
        state = (await world.get("first")).status.container_statuses[0].state.terminated
        assert state is not None
        assert (state.exit_code, state.signal) == (137, 9)
        await world.pod("third", container=gpus)
        await asyncio.sleep(3)
        assert await world.phase("third") == "Running"
        await world.client.delete(PODS, "first", namespace="default")
        await asyncio.sleep(1)
        await world.pod("fourth", container=gpus)
        await asyncio.sleep(3)
        assert await world.phase("fourth") == "Failed", "what it used was free before"

    live(scenario)


def test_a_restart_policy_restarts_in_place_with_a_growing_back_off() -> None:
    async def scenario(world: World) -> None:
        asked = {"fairlead.dev/simulate-seconds": "1", "fairlead.dev/simulate-exit-code": "1"}
        await world.pod("p", restartPolicy="OnFailure", metadata={"annotations": asked})
        await asyncio.sleep(3.5)
        status = (await world.get("p")).status.container_statuses[0]
        assert status.state.waiting is not None
        assert status.state.waiting.reason == "CrashLoopBackOff"
        await asyncio.sleep(10)
        assert (await world.get("p")).status.container_statuses[0].restart_count == 1
        await asyncio.sleep(15)
        assert (await world.get("p")).status.container_statuses[0].restart_count == 1
        await asyncio.sleep(7)
        assert (await world.get("p")).status.container_statuses[0].restart_count == 2
        assert await world.phase("p") == "Running"

    live(scenario)


def test_an_active_deadline_fails_the_pod() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p", activeDeadlineSeconds=20)
        await asyncio.sleep(20.5)
        status = (await world.get("p")).status
        assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")

    live(scenario)


def test_a_deadline_within_the_grace_of_a_deletion_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p", activeDeadlineSeconds=20)
        await asyncio.sleep(17.5)
        await world.client.delete(PODS, "p", namespace="default")
        await asyncio.sleep(3.5)
        assert await world.phase("p") == "Running"
        await asyncio.sleep(2)
        assert world.names() == []

    live(scenario)


def test_pods_of_a_crashed_node_stop_answering_and_are_reported_failed_on_recovery() -> None:
    async def scenario(world: World) -> None:
        await world.pod("runs", metadata={"annotations": {"fairlead.dev/simulate-seconds": "30"}})
        await world.pod("doomed")
        await asyncio.sleep(3)
        await world.pod("starts")
        world.nodes.fail_node("v00000", detect_seconds=40)
        await world.client.delete(PODS, "doomed", namespace="default")
        await asyncio.sleep(39)
        node = await world.client.get(NODES, "v00000")
        assert node.spec.taints == ()
        await asyncio.sleep(2)
        node = await world.client.get(NODES, "v00000")
        ready = next(c for c in node.status.conditions if c.type == "Ready")
        assert ready.status == "Unknown"
        assert {(t.key, t.effect) for t in node.spec.taints} == {
            (names.TAINT_UNREACHABLE, "NoSchedule"),
            (names.TAINT_UNREACHABLE, "NoExecute"),
        }
        assert world.names() == ["doomed", "runs", "starts"]
        assert await world.phase("runs") == "Running"
        world.nodes.recover_node("v00000")
        await asyncio.sleep(3)
        node = await world.client.get(NODES, "v00000")
        assert node.spec.taints == ()
        assert is_true(node.status.conditions, "Ready")  # type: ignore[arg-type] # same shape
        lost = (await world.get("runs")).status
        assert (lost.phase, lost.reason) == ("Failed", "NodeRestarted")
        assert any(c.type == "DisruptionTarget" for c in lost.conditions)
        assert world.names() == ["runs", "starts"]
        assert await world.phase("starts") == "Running"

    live(scenario)


def test_a_node_that_recovers_before_its_crash_was_noticed_stays_ready() -> None:
    async def scenario(world: World) -> None:
        world.nodes.fail_node("v00000", detect_seconds=40)
        await asyncio.sleep(10)
        world.nodes.recover_node("v00000")
        await asyncio.sleep(60)
        node = await world.client.get(NODES, "v00000")
        assert is_true(node.status.conditions, "Ready")  # type: ignore[arg-type] # same shape
        assert node.spec.taints == ()

    live(scenario)


def test_pods_of_an_unreachable_node_go_on_unseen_and_report_their_end_later() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p", metadata={"annotations": {"fairlead.dev/simulate-seconds": "10"}})
        await asyncio.sleep(3)
        world.nodes.fail_node("v00000", NodeFault.UNREACHABLE)
        await asyncio.sleep(60)
        assert await world.phase("p") == "Running"
        world.nodes.recover_node("v00000")
        await asyncio.sleep(0.1)
        status = (await world.get("p")).status
        state = status.container_statuses[0].state.terminated
        assert state is not None
        assert (status.phase, state.finished_at) == ("Succeeded", format_time(EPOCH + 12.5))

    live(scenario)


def test_programs_on_a_slow_node_end_later_and_gain_speed_when_it_is_over() -> None:
    async def scenario(world: World) -> None:
        for name, node in (("slow", "v00000"), ("other", "v00001")):
            await world.pod(name, node)
        await asyncio.sleep(2 + 20)
        world.nodes.set_speed("v00000", 0.25)
        await world.pod("late", metadata={"annotations": {"fairlead.dev/simulate-seconds": "10"}})
        await asyncio.sleep(2 + 39)
        assert await world.phase("late") == "Running"
        await asyncio.sleep(2)
        assert await world.phase("late") == "Succeeded"  # 10 seconds of work took 40
        await asyncio.sleep(17)  # the slow pod has done 20 + 60 / 4 of its 100 seconds
        world.nodes.set_speed("v00000", 1.0)
        assert await world.phase("other") == "Running"
        await asyncio.sleep(63)
        assert (await world.phase("other"), await world.phase("slow")) == ("Succeeded", "Running")
        await asyncio.sleep(3)
        assert await world.phase("slow") == "Succeeded"

    live(scenario)


def test_programs_that_stall_go_on_where_they_were() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p", metadata={"labels": {names.RANK: "0"}})
        await asyncio.sleep(2 + 25)
        world.nodes.set_speed("v00000", STALLED)
        await asyncio.sleep(1000)
        report = json.loads((await world.get("p")).metadata.annotations[names.PROGRESS])
        assert report["step"] == 20
        world.nodes.set_speed("v00000", 1.0)
        await asyncio.sleep(14)
        report = json.loads((await world.get("p")).metadata.annotations[names.PROGRESS])
        assert report["step"] == 20
        await asyncio.sleep(3)
        report = json.loads((await world.get("p")).metadata.annotations[names.PROGRESS])
        assert report["step"] == 40
        await asyncio.sleep(57)
        assert await world.phase("p") == "Running"
        await asyncio.sleep(2)
        assert await world.phase("p") == "Succeeded"

    live(scenario, PROGRESS)


async def gpus_offered(world: World) -> str | int | float:
    return (await world.client.get(NODES, "v00000")).status.allocatable["nvidia.com/gpu"]


def test_a_failed_gpu_ends_the_program_that_uses_it_and_is_not_offered_until_it_is_mended() -> None:
    async def scenario(world: World) -> None:
        for name, gpus in (("first", 5), ("second", 2)):
            limits = {"limits": {"nvidia.com/gpu": gpus}}
            await world.pod(name, container={"resources": limits})
        await asyncio.sleep(3)
        assert world.nodes.fail_gpu("v00000", 0.9)  # the eighth, which no pod uses
        assert world.nodes.fail_gpu("v00000", 0.8)  # the sixth of the other seven
        await asyncio.sleep(0.1)
        assert await gpus_offered(world) == "6"
        state = (await world.get("second")).status.container_statuses[0].state.terminated
        assert state is not None
        assert (state.exit_code, await world.phase("first")) == (1, "Running")
        world.nodes.mend_gpu("v00000")
        await asyncio.sleep(0.1)
        assert await gpus_offered(world) == "7"
        for _ in range(9):
            world.nodes.mend_gpu("v00000")
        await asyncio.sleep(0.1)
        assert await gpus_offered(world) == "8"

    live(scenario)


def test_a_new_start_knows_which_gpus_were_lost() -> None:
    async def main() -> None:
        world = World()
        await world.nodes.start()
        lost = {"status": {"allocatable": {"nvidia.com/gpu": "7"}}}
        await world.client.patch(NODES, "v00000", lost, subresource="status")
        again = world.new_nodes()
        task = asyncio.create_task(again.run())
        await asyncio.sleep(0.5)
        again.mend_gpu("v00000")
        await asyncio.sleep(0.5)
        assert await gpus_offered(world) == "8"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_node_that_says_it_is_not_ready_has_the_other_taint() -> None:
    async def scenario(world: World) -> None:
        world.nodes.fail_node("v00001", NodeFault.NOT_READY)
        await asyncio.sleep(0.1)
        node = await world.client.get(NODES, "v00001")
        assert {t.key for t in node.spec.taints} == {names.TAINT_NOT_READY}

    live(scenario)


def test_progress_is_reported_at_checkpoints_not_too_often_and_a_resumed_pod_ends_sooner() -> None:
    async def scenario(world: World) -> None:
        env = [{"name": "FAIRLEAD_RESUME_STEP", "value": "45"}]
        labels = {names.RANK: "0"}
        await world.pod("p", container={"env": env}, metadata={"labels": labels})
        await world.pod("other", metadata={"labels": {names.RANK: "1"}})
        await asyncio.sleep(2 + 16)
        report = json.loads((await world.get("p")).metadata.annotations[names.PROGRESS])
        assert (report["step"], report["checkpointStep"]) == (60, 60)  # 50 would be too soon
        await asyncio.sleep(38)
        assert await world.phase("p") == "Running"
        await asyncio.sleep(2)
        assert await world.phase("p") == "Succeeded"  # 100 steps in all, 55 of them now
        assert names.PROGRESS not in (await world.get("other")).metadata.annotations

    live(scenario, PROGRESS)


def test_writes_are_repeated_until_they_succeed() -> None:
    async def scenario(world: World) -> None:
        world.client.fail_next("patch", *[Unavailable("down"), InternalError("sick")] * 3)
        await world.pod("p")
        await asyncio.sleep(20)
        assert await world.phase("p") == "Running"

    live(scenario)


def test_a_new_start_goes_on_where_the_api_stands() -> None:
    async def main() -> None:
        world = World()
        task = asyncio.create_task(world.nodes.run())
        await asyncio.sleep(0.5)
        await world.pod("p", metadata={"annotations": {"fairlead.dev/simulate-seconds": "50"}})
        await asyncio.sleep(10)
        task.cancel()
        await asyncio.sleep(10)
        address = (await world.get("p")).status.pod_ip
        second = world.new_nodes()
        task = asyncio.create_task(second.run())
        await asyncio.sleep(1)
        await world.pod("q")
        await asyncio.sleep(30)
        assert await world.phase("p") == "Running"
        assert (await world.get("q")).status.pod_ip not in ("", address)
        await asyncio.sleep(2)
        assert await world.phase("p") == "Succeeded"
        task.cancel()

    run(main())


def test_a_new_start_counts_the_restarts_of_a_pod_on() -> None:
    async def main() -> None:
        world = World()
        asked = {"fairlead.dev/simulate-seconds": "20", "fairlead.dev/simulate-exit-code": "1"}
        for seconds, restarts in ((40, 1), (60, 2)):
            task = asyncio.create_task(world.new_nodes().run())
            await asyncio.sleep(0.5)
            if restarts == 1:
                await world.pod("p", restartPolicy="OnFailure", metadata={"annotations": asked})
            await asyncio.sleep(seconds)
            status = (await world.get("p")).status.container_statuses[0]
            assert status.restart_count == restarts
            task.cancel()

    run(main())


def test_equal_seeds_give_equal_worlds_and_other_seeds_do_not() -> None:
    profile = STEADY.replace("seconds: 2}", "seconds: 2, jitterSeconds: 60}")

    def history(seed: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []

        async def scenario(world: World) -> None:
            for i in range(40):
                await world.pod(f"p{i}", f"v0000{i % 2}")
            await asyncio.sleep(200)
            for pod in world.client.stored(PODS):
                state = pod.status.container_statuses[0].state.terminated
                assert state is not None
                found.append((pod.metadata.name, f"{state.started_at} {pod.status.pod_ip}"))

        live(scenario, profile, seed=seed)
        return found

    assert history(3) == history(3)
    assert history(3) != history(4)


def test_a_thousand_pods_cost_two_patches_each_and_all_run() -> None:
    async def scenario(world: World) -> None:
        volumes = [{"name": "v", "configMap": {"name": "peers"}}]
        for i in range(1000):
            await world.pod(f"p{i}", f"v{i % 20:05d}", volumes=volumes)
        await asyncio.sleep(5)
        await world.client.create(CONFIG_MAPS, {"metadata": {"name": "peers"}}, namespace="default")
        await asyncio.sleep(5)
        pods = world.client.stored(PODS)
        assert {pod.status.phase for pod in pods} == {"Running"}
        assert len({pod.status.pod_ip for pod in pods}) == 1000
        assert world.client.count("patch", "pods") == 2000

    live(scenario, count=20)


def test_every_shipped_profile_is_valid_and_others_report_all_mistakes_with_their_places() -> None:
    for name in shipped_profiles():
        assert load_profile(name).stages
    text = """name: x
node: {resources: {cpu: many, memory: 1Gi, pods: "9"}}
stages:
- name: start
  match: {state: Bund}
  next: {state: Running, exitcode: 3}
- {name: b, match: {state: Running}, delay: {seconds: soon}}
progres: {}
"""
    with pytest.raises(CliError) as caught:
        parse_profile(text, source="p.yaml")
    assert [(p.code, p.where, p.field, p.message, *p.help) for p in caught.value.problems] == [
        (
            Code.PROFILE,
            "p.yaml:5:18",
            "stages[0].match.state",
            "invalid enum value 'Bund'; got 'Bund'",
            "accepted: Bound, Running, BackOff, Succeeded, Failed, Terminating, Gone",
        ),
        (
            Code.PROFILE,
            "p.yaml:6:26",
            "stages[0].next.exitcode",
            "no field 'exitcode' in stages[0].next",
            "did you mean exitCode?",
        ),
        (Code.PROFILE, "p.yaml:7:3", "stages[1]", "the field next is missing"),
        (
            Code.PROFILE,
            "p.yaml:7:55",
            "stages[1].delay.seconds",
            "expected `float`, got `str`; got 'soon'",
        ),
        (Code.PROFILE, "p.yaml:8:1", "progres", "no field 'progres'", "did you mean progress?"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("next: {state: Running}", "next: {state: Succeeded}", "Bound cannot lead to Succeeded"),
        ("delay: {seconds: 2}", "delay: {seconds: -1}", "accepted: 0 or more, finite"),
        ("delay: {seconds: 2}", "delay: {seconds: .nan}", "expected `float`, got `str`"),
        ("name: end", "name: start", "'start' is stages[0] too"),
        ("match: {state: Bound}", "match: {state: Running}", "no pod would ever start"),
        ("state: Terminating", "state: Gone", "nothing follows on Gone"),
        ("name: steady", "name: [", "not YAML"),
        (
            "name: steady",
            "name: s\nprogress: {stepSeconds: 1, ownWorkSeconds: 1}",
            "got 1.0, accepted: 0 to progress.stepSeconds (1), with allMembers",
        ),
        ("name: steady", "name: s\nnode: {labels: {'a b': c}}", "'a b' is not a label key"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(CliError) as caught:
        parse_profile(STEADY.replace(old, new, 1))
    assert said in " ".join(problem.message for problem in caught.value.problems)


def test_an_annotation_that_cannot_be_read_is_told_on_the_pod() -> None:
    async def scenario(world: World) -> None:
        names = ("fairlead.dev/simulate-seconds", "fairlead.dev/simulate-exit-code")
        asked = {names[0]: "ten", names[1]: "256", "other": "x"}
        await world.pod("p", metadata={"annotations": asked})
        await world.pod("q", metadata={"annotations": {names[0]: "0.5", names[1]: "255"}})
        await asyncio.sleep(20)
        events = [e for e in world.client.stored(EVENTS) if e.reason == "UnreadableAnnotation"]
        assert {e.involved_object.name for e in events} == {"p"}
        told = sorted(e.message for e in events)
        assert told == [
            f"annotation {names[1]}: '256' is no exit code from 0 to 255; ignored",
            f"annotation {names[0]}: 'ten' is no number of seconds, such as 90 or 0.5; ignored",
        ]
        assert await world.phase("p") == "Running"  # for the profile's 100 s

    live(scenario)
