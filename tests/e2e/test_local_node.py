"""The local node with real processes: life, environment, volumes, signals, crashes, orphans."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.local_world import OPTIONS, ROOT, Api, LocalWorld, local_world, pod_body, program
from tests.patience import PATIENCE_SECONDS

from fairlead.api import names
from fairlead.api.kubernetes.core import (
    ContainerStateTerminated,
    ContainerStateWaiting,
    Pod,
    PodCondition,
)
from fairlead.api.resources import CONFIG_MAPS, EVENTS, NODES, PODS, SECRETS, Resource
from fairlead.api.values.times import format_time
from fairlead.embedded.local.logfiles import LogLimits, parts
from fairlead.embedded.local.memory import MemoryGroups
from fairlead.embedded.local.processes.process import Run, start_ticks
from fairlead.runtime.client import Request

pytestmark = pytest.mark.e2e


def ended(pod: Pod) -> ContainerStateTerminated:
    state = pod.status.container_statuses[0].state.terminated
    assert state is not None, pod.status
    return state


def alive(pid: int) -> bool:
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False
    return raw.rpartition(b")")[2].split()[0] != b"Z"


async def until_dead(*pids: int) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < limit, f"still alive: {[p for p in pids if alive(p)]}"
        await asyncio.sleep(0.02)


def line(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def until_file(path: Path) -> str:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not line(path).endswith("\n"):
        assert time.monotonic() < limit, f"{path} did not come"
        await asyncio.sleep(0.02)
    return line(path)


async def test_exit_codes_signals_and_missing_programs_are_told_apart(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("good", "true")
        await world.pod("bad", "sh", "-c", "echo out; echo err >&2; exit 3")
        await world.pod("shot", "sh", "-c", "kill -9 $$$$")
        await world.pod("missing", "no-such-program")
        await world.pod("imageless", container={"image": "busybox"})
        await world.until_phase("good", "Succeeded")
        good = ended(await world.get("good"))
        assert (good.exit_code, good.reason) == (0, "Completed")
        bad = ended(await world.until_phase("bad", "Failed"))
        assert (bad.exit_code, bad.signal, bad.reason) == (3, 0, "Error")
        assert world.log("bad") == "out\nerr\n"
        shot = ended(await world.until_phase("shot", "Failed"))
        assert (shot.exit_code, shot.signal) == (137, 9)
        missing = ended(await world.until_phase("missing", "Failed"))
        assert (missing.exit_code, missing.reason) == (128, "StartError")
        assert "'no-such-program': executable file not found in $PATH" in missing.message
        imageless = await world.until_phase("imageless", "Failed")
        assert "names no command" in imageless.status.message
        await world.until("imageless", lambda _: len(world.api.stored(EVENTS)) >= 2)
        said = {event.reason: event.message for event in world.api.stored(EVENTS)}
        assert "busybox" in said["ImageIgnored"]


async def test_a_container_waits_for_the_config_that_its_variables_come_from(
    tmp_path: Path,
) -> None:
    async with local_world(tmp_path) as world:
        await world.pod(
            "p",
            container={
                "command": ["sh", "-c", 'echo "$MODE|$TOKEN|$K"'],
                "env": [
                    {"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
                ],
                "envFrom": [
                    {"configMapRef": {"name": "settings"}},
                    {"secretRef": {"name": "later", "optional": True}},
                    {"secretRef": {"name": "loud"}},
                ],
            },
        )

        def waits_for(what: str) -> Callable[[Pod], bool]:
            def test(pod: Pod) -> bool:
                statuses = pod.status.container_statuses
                waiting = statuses[0].state.waiting if statuses else None
                return waiting is not None and waiting == ContainerStateWaiting(
                    "CreateContainerConfigError", f"{what} not found"
                )

            return test

        async def make(resource: Resource[Any], name: str, **data: str) -> None:
            body = {"metadata": {"name": name}, "data": data}
            await world.api.create(resource, body, namespace="default")

        await world.until("p", waits_for('configmap "settings"'))
        await make(CONFIG_MAPS, "settings", MODE="fast")
        await world.until("p", waits_for('secret "loud"'))
        await make(SECRETS, "loud", TOKEN="aHVzaA==")
        await world.until("p", waits_for('secret "keys"'))
        await make(SECRETS, "keys", token="c2VjcmV0")
        await world.until_phase("p", "Succeeded")
        assert world.log("p") == "fast|hush|secret\n"


async def test_environment_fields_config_files_and_mount_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "of the server")
    async with local_world(tmp_path) as world:
        source = {"valueFrom": {"configMapKeyRef": {"name": "peers", "key": "master"}}}
        fields = {"NAME": "metadata.name", "ROLE": "metadata.labels['role']", "IP": "status.podIP"}
        env = [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$$(A)-$(UNKNOWN)"},
            {"name": "HOSTS", "value": "/etc/fairlead/hostfile"},
            {"name": "OWN", "value": "/own/note"},
            {"name": "MASTER", **source},
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in fields.items()
            ),
        ]
        script = (
            'echo "$B|$MASTER|$NAME|$ROLE|$IP|$SECRET_TOKEN|$1|$hostfile"; cat "$HOSTS" "$OWN"; pwd'
        )
        note = {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['x/note']"}}
        await world.pod(
            "p",
            container={
                "command": ["sh", "-c", script, "sh"],
                "args": ["$(A)$(NAME)"],
                "env": env,
                "envFrom": [{"configMapRef": {"name": "peers"}}],
                "workingDir": "/work/dir",
                "volumeMounts": [
                    {"name": "peers", "mountPath": "/etc/fairlead"},
                    {"name": "own", "mountPath": "/own"},
                    {"name": "scratch", "mountPath": "/work", "subPath": "deep"},
                ],
            },
            metadata={"labels": {"role": "worker"}, "annotations": {"x/note": "of mine\n"}},
            volumes=[
                {"name": "peers", "configMap": {"name": "peers"}},
                {"name": "own", "downwardAPI": {"items": [note]}},
                {"name": "scratch", "emptyDir": {}},
            ],
        )
        waiting = await world.until("p", lambda pod: pod.status.pod_ip != "")
        assert waiting.status.phase == "Pending"
        assert waiting.status.pod_ip.startswith("127.")
        uid = waiting.metadata.uid
        work = tmp_path / "local/pods" / uid / "volumes/scratch/deep/dir"
        work.mkdir(parents=True)
        files = {"hostfile": b64encode(b"a slots=1\n").decode()}
        peers = {"metadata": {"name": "peers"}, "data": {"master": "10.0.0.1"}, "binaryData": files}
        await world.api.create(CONFIG_MAPS, peers, namespace="default")
        await world.until_phase("p", "Succeeded")
        first, hosts, own, where = world.log("p").splitlines()
        assert first == f"1-$(A)-$(UNKNOWN)|10.0.0.1|p|worker|{waiting.status.pod_ip}||1p|"
        assert (hosts, own, where) == ("a slots=1", "of mine", str(work))
        assert stat.S_IMODE((tmp_path / "local/pods" / uid).stat().st_mode) == 0o700


async def test_what_a_pod_waits_for_may_come_while_it_says_so(tmp_path: Path) -> None:
    """No look may be missed: the next one by the clock is far away."""
    options = dataclasses.replace(OPTIONS, retry_seconds=60.0)
    async with local_world(tmp_path, options=options) as world:
        call, came = world.api.call, list[str]()

        async def slow(request: Request[Any]) -> Any:
            answer = await call(request)
            if 'configmap "peers" not found' in str(request.body) and not came:
                came.append("peers")
                peers = {"metadata": {"name": "peers"}, "data": {"master": "10.0.0.1"}}
                await world.api.create(CONFIG_MAPS, peers, namespace="default")
                await asyncio.sleep(0.2)  # the mirror has it, the answer is still on its way
            return answer

        world.api.call = slow
        mount = {"name": "peers", "mountPath": "/etc/fairlead"}
        await world.pod(
            "p", "true", container={"volumeMounts": [mount]},
            volumes=[{"name": "peers", "configMap": {"name": "peers"}}],
        )  # fmt: skip
        await world.until_phase("p", "Succeeded")
        assert came == ["peers"]


async def test_deletion_is_graceful_then_forceful_and_takes_the_whole_group(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        polite = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
        stubborn = "trap '' TERM; sleep 99 & A=$!; setsid sleep 99 & echo $A $!; wait"
        await world.pod("polite", "sh", "-c", polite)
        await world.pod("stubborn", "sh", "-c", stubborn)
        await until_file(tmp_path / "logs/default/pods/polite.log")
        pids = await until_file(tmp_path / "logs/default/pods/stubborn.log")
        grace = round(2 * PATIENCE_SECONDS)  # it is gone long before that
        await world.api.delete(PODS, "polite", namespace="default", grace_period_seconds=grace)
        await world.until_gone("polite")
        assert world.log("polite").endswith("asked\n")
        started = time.monotonic()
        await world.api.delete(PODS, "stubborn", namespace="default", grace_period_seconds=1)
        await world.until_gone("stubborn")
        assert time.monotonic() - started >= 1
        await until_dead(*(int(pid) for pid in pids.split()))
        assert list((tmp_path / "local/pods").iterdir()) == []


async def test_a_forced_deletion_kills_at_once(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("p", "sh", "-c", "trap '' TERM; echo $$$$; sleep 1000")
        pid = int(await until_file(tmp_path / "logs/default/pods/p.log"))
        await world.api.delete(PODS, "p", namespace="default", grace_period_seconds=0)
        await until_dead(pid)


async def test_restart_policy_restarts_with_back_off_and_keeps_the_previous_log(
    tmp_path: Path,
) -> None:
    async with local_world(tmp_path) as world:
        script = f"echo run >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 3 || exit 5"
        await world.pod("p", "sh", "-c", f"{script}; echo third", restartPolicy="OnFailure")
        pod = await world.until_phase("p", "Succeeded")
        status = pod.status.container_statuses[0]
        assert status.restart_count == 2
        assert status.last_state.terminated is not None
        assert status.last_state.terminated.exit_code == 5
        assert world.log("p") == "third\n"
        assert (tmp_path / "logs/default/pods/p+previous.log").exists()


async def test_a_deadline_ends_a_pod(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("first", "true")  # starts what starts programs
        await world.until_phase("first", "Succeeded")
        await world.pod("late", "sleep", "1000", activeDeadlineSeconds=3)
        late = await world.until_phase("late", "Failed")
        assert late.status.reason == "DeadlineExceeded"
        assert (ended(late).exit_code, ended(late).signal) == (143, 15)


async def test_devices_go_to_one_pod_at_a_time_and_over_commitment_is_refused(
    tmp_path: Path,
) -> None:
    async with local_world(tmp_path) as world:
        gpus = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
        show = "echo $CUDA_VISIBLE_DEVICES"
        await world.pod("holder", "sh", "-c", f"{show}; exec sleep 1000", container=gpus)
        await world.until_phase("holder", "Running")
        await world.pod("greedy", "true", container=gpus)
        greedy = (await world.until_phase("greedy", "Failed")).status
        assert greedy.reason == "OutOfnvidia.com/gpu"
        assert await until_file(tmp_path / "logs/default/pods/holder.log") == "GPU-0,GPU-1\n"
        call, came = world.api.call, list[Pod]()

        async def slow(request: Request[Any]) -> Any:
            """The next pod comes as soon as the API lacks the holder, and before the node knows."""
            answer = await call(request)
            if not any(pod.metadata.name == "holder" for pod in world.api.stored(PODS)):
                world.api.call = call
                await world.pod("next", "sh", "-c", show, container=gpus)
                came.append(await world.until("next", lambda pod: pod.is_terminal))
            return answer

        world.api.call = slow
        await world.api.delete(PODS, "holder", namespace="default", grace_period_seconds=30)
        await world.until_gone("holder")
        await world.until("next", lambda _: len(came) == 1)
        assert came[0].status.phase == "Succeeded", came[0].status
        assert world.log("next") == "GPU-0,GPU-1\n"


async def test_progress_lines_become_the_annotation(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        lines = '{"step": 5, "checkpoint": true}', "garbage", '{"step": 7}'
        script = "".join(f"echo '{line}' >> $FAIRLEAD_PROGRESS_FILE; " for line in lines)
        env = [{"name": names.ENV_PROGRESS_FILE, "value": "/dev/termination-log"}]
        await world.pod("p", "sh", "-c", script, container={"env": env})
        pod = await world.until_phase("p", "Succeeded")
        report = json.loads(pod.metadata.annotations[names.PROGRESS])
        assert (report["step"], report["checkpointStep"]) == (7, 5)


async def test_the_node_says_what_the_machine_has_and_keeps_foreign_pods_away(
    tmp_path: Path,
) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("p", "true")
        await world.until_phase("p", "Succeeded")
        node = await world.api.get(NODES, "here")
        assert node.metadata.labels[names.NODE_TYPE] == "local"
        assert [(t.key, t.effect) for t in node.spec.taints] == [(names.TAINT_LOCAL, "NoSchedule")]
        assert node.status.capacity["nvidia.com/gpu"] == "2"
        assert int(str(node.status.capacity["cpu"])[:1]) >= 1
        ready = next(c for c in node.status.conditions if c.type == "Ready")
        assert ready.status == "True"


async def test_an_unwritable_directory_is_said_on_pod_and_node_and_mends_itself(
    tmp_path: Path,
) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("warm-up", "true")
        await world.until_phase("warm-up", "Succeeded")
        logs = tmp_path / "logs/default"
        logs.rename(tmp_path / "aside")
        logs.write_text("a file where a directory belongs")
        await world.pod("p", "true")
        waiting = await world.until("p", lambda pod: len(pod.status.container_statuses) > 0)
        state = waiting.status.container_statuses[0].state.waiting
        assert state is not None
        assert state.reason == "CreateContainerError"
        assert str(logs) in state.message
        await until_condition(world, "DataDirectoryHealthy", "False")
        logs.unlink()
        await world.until_phase("p", "Succeeded")
        await until_condition(world, "DataDirectoryHealthy", "True")


async def until_condition(world: LocalWorld, kind: str, status: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        node = await world.api.get(NODES, "here")
        if any(c.type == kind and c.status == status for c in node.status.conditions):
            return
        assert time.monotonic() < limit, node.status.conditions
        await asyncio.sleep(0.02)


class Program:
    """The node in a process of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(program(self.data), cwd=ROOT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pods(self) -> dict[str, Any]:
        state = json.loads((self.data / "api.json").read_text())
        return {key[1]: pod for key, pod in state["objects"]["pods"]}

    def until(self, name: str, phase: str) -> dict[str, Any]:
        limit = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < limit:
            status = self.pods()[name].get("status", {})
            if status.get("phase") == phase:
                return status
            time.sleep(0.05)
        raise AssertionError(f"waited for {name} to be {phase}: {self.pods()[name]['status']}")


def test_kill_9_of_the_node_loses_no_process_no_exit_code_no_log_and_no_orphan(
    tmp_path: Path,
) -> None:
    def script(name: str, end: str) -> list[str]:
        gate = tmp_path / f"{name}.gate"
        return ["sh", "-c", f"echo $$$$; until test -e {gate}; do sleep 0.02; done; echo on; {end}"]

    wanted = {"stays": "exit 4", "ends": "exit 6", "deleted": "", "vanishes": "", "hit": ""}

    async def create() -> None:
        api = Api(tmp_path / "api.json")
        for name, end in wanted.items():
            await api.create(PODS, pod_body(name, *script(name, end)), namespace="default")

    def gate(name: str) -> None:
        (tmp_path / f"{name}.gate").touch()

    asyncio.run(create())
    program = Program(tmp_path)
    program.start()
    try:
        for name in wanted:
            program.until(name, "Running")
        log = {name: tmp_path / f"logs/default/pods/{name}.log" for name in wanted}
        pid = {name: int(asyncio.run(until_file(path))) for name, path in log.items()}
        address = {name: pod["status"]["podIP"] for name, pod in program.pods().items()}
        program.kill()
        assert all(alive(p) for p in pid.values())
        gate("ends")
        asyncio.run(until_dead(pid["ends"]))
        shim = int(Path(f"/proc/{pid['hit']}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(shim, signal.SIGKILL)  # the kernel takes the child along
        asyncio.run(until_dead(pid["hit"]))

        async def change() -> None:
            api = Api(tmp_path / "api.json")
            await api.delete(PODS, "vanishes", namespace="default", grace_period_seconds=0)
            await api.delete(PODS, "deleted", namespace="default", grace_period_seconds=1)

        asyncio.run(change())
        program.start()
        done = program.until("ends", "Failed")
        assert done["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 6
        lost = program.until("hit", "Failed")
        assert lost["reason"] == "NodeRestarted"
        asyncio.run(until_dead(pid["vanishes"], pid["deleted"]))
        assert alive(pid["stays"])
        limit = time.monotonic() + PATIENCE_SECONDS
        while "deleted" in program.pods():
            assert time.monotonic() < limit
            time.sleep(0.05)
        gate("stays")
        stays = program.until("stays", "Failed")
        assert stays["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
        assert stays["podIP"] == address["stays"]
        assert log["stays"].read_text() == f"{pid['stays']}\non\n"
        assert log["vanishes"].read_text() == f"{pid['vanishes']}\n"
    finally:
        program.kill()


async def test_a_deadline_counts_from_the_start_that_the_api_knows(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        body = pod_body("late", "sleep", "100", activeDeadlineSeconds=600)
        body["status"]["startTime"] = format_time(time.time() - 3_600)
        await world.api.create(PODS, body, namespace="default")
        late = await world.until_phase("late", "Failed")
        assert late.status.reason == "DeadlineExceeded"


async def test_a_shut_down_node_ends_its_processes_and_says_so_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("gang", "sh", "-c", "echo $$$$; sleep 1000")
        await world.pod("service", "sh", "-c", "echo $$$$; sleep 1000", restartPolicy="Always")
        await world.until_phase("gang", "Running")
        await world.until_phase("service", "Running")
        logs = tmp_path / "logs/default/pods"
        pids = [int(await until_file(logs / f"{name}.log")) for name in ("gang", "service")]
    await until_dead(*pids)
    again = world.new_node()
    task = asyncio.create_task(again.run())
    gang = (await world.until_phase("gang", "Failed")).status
    assert gang.reason == "NodeRestarted"
    assert any(c.type == "DisruptionTarget" for c in gang.conditions)
    service = await world.until(
        "service", lambda pod: pod.status.container_statuses[0].restart_count == 1
    )
    assert service.status.phase == "Running"
    task.cancel()
    await asyncio.wait([task])
    await again.shut_down(0.0)


async def test_a_shut_down_of_the_node_counts_for_the_next_start_alone(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        await world.pod("p", "sh", "-c", "echo $$$$; sleep 1000", restartPolicy="Always")
        await world.until_phase("p", "Running")
    node = None
    for _ in range(2):  # the second follows one that ended without a shut-down
        node = world.new_node()
        task = asyncio.create_task(node.run())
        await node.wait_synced()
        pod = await world.until(
            "p",
            lambda pod: (
                pod.status.container_statuses[0].restart_count >= 1
                and pod.status.container_statuses[0].state.running is not None
            ),
        )
        await asyncio.sleep(0.3)
        pod = await world.get("p")
        assert pod.status.container_statuses[0].restart_count == 1
        task.cancel()
        await asyncio.wait([task])
    assert node is not None
    await node.shut_down(0.0)


@pytest.mark.parametrize(("is_ours", "survives"), [(True, False), (False, True)])
def test_a_session_whose_number_another_program_has_by_now_is_left_alone(
    tmp_path: Path, *, is_ours: bool, survives: bool
) -> None:
    program = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        ticks = start_ticks(program.pid)
        assert ticks is not None
        shim = {"pid": 1, "ticks": 1, "boot": "this"}
        started = {"pid": program.pid, "ticks": ticks if is_ours else ticks - 1}
        (tmp_path / "shim.json").write_text(json.dumps(shim))
        (tmp_path / "started.json").write_text(json.dumps(started))
        Run(tmp_path, "this").kill_survivors()
        if survives:
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(0.2)
        else:
            assert program.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    finally:
        program.kill()
        program.wait()


EATER = """
import sys, time
keep = []
for _ in range(400):
    keep.append(bytearray(1 << 20))
    keep[-1][::4096] = b"x" * 256
    time.sleep(0.002)
time.sleep(30)
"""


class NoGroups(MemoryGroups):
    """A machine on which no control group can be made."""

    def make(self, name: str, limit_bytes: int) -> Path | None:
        return None


@pytest.mark.parametrize("groups", [MemoryGroups(), NoGroups()], ids=["group", "measured"])
async def test_memory_beyond_the_limit_is_killed_and_says_so(
    tmp_path: Path, groups: MemoryGroups
) -> None:
    is_measured = isinstance(groups, NoGroups)
    if not is_measured and groups.make("fairlead-probe", 1 << 30) is None:
        pytest.skip("no control group can be made here")
    limit = {"resources": {"limits": {"memory": "64Mi"}}}
    async with local_world(tmp_path, memory_groups=groups) as world:
        # through a shell and in the background: not only the first process counts
        script = f"{sys.executable} -c '{EATER}' & wait $!; exit $?"
        await world.pod("greedy", "sh", "-c", script, container=limit)
        await world.pod("modest", "sh", "-c", "sleep 4; exit 3", container=limit)
        await world.pod("free", "sh", "-c", "sleep 4; exit 4")
        greedy = await world.until("greedy", lambda pod: pod.is_terminal)
        assert ended(greedy).reason == "OOMKilled"
        assert ended(greedy).exit_code == 137
        assert "more memory than its limit of 64Mi" in ended(greedy).message
        assert (await world.until_phase("modest", "Failed")).status
        assert ended(await world.get("modest")).reason == "Error"
        assert ended(await world.until_phase("free", "Failed")).exit_code == 4
        launches = launch_groups(tmp_path)
        assert [group is not None for group in launches] == (
            [False] * 3 if is_measured else [False, True, True]
        )
        assert not any(group is not None and group.exists() for group in launches), "removed"


#: Takes 100 MiB when it is sent SIGUSR1, and gives them back for SIGUSR2. `print` in a handler
#: would raise where another one is under way: Python handles signals within its write.
TAKER = """
import os, signal
held = []
def take(*_): held.append(b"x" * (100 << 20)); os.write(1, b"took\\n")
def give(*_): held.clear(); os.write(1, b"gave\\n")
signal.signal(signal.SIGUSR1, take)
signal.signal(signal.SIGUSR2, give)
os.write(1, b"ready\\n")
while True: signal.pause()
"""


def resources(memory: str) -> dict[str, Any]:
    return {"requests": {"memory": "8Mi"}, "limits": {"memory": memory}}


def condition(pod: Pod, kind: str) -> PodCondition | None:
    return next((each for each in pod.status.conditions if each.type == kind), None)


@pytest.mark.parametrize("groups", [MemoryGroups(), NoGroups()], ids=["group", "measured"])
async def test_a_resize_moves_the_memory_limit_of_what_runs_and_never_below_its_use(
    tmp_path: Path, groups: MemoryGroups
) -> None:
    if not isinstance(groups, NoGroups) and groups.make("fairlead-probe", 1 << 30) is None:
        pytest.skip("no control group can be made here")
    async with local_world(tmp_path, memory_groups=groups) as world:
        await world.pod(
            "p", sys.executable, "-c", TAKER, container={"resources": resources("64Mi")}
        )

        async def resize(memory: str) -> None:
            # What the API server has judged; `tests/conformance` is about that.
            body = {"spec": {"containers": [{
                "name": "main", "command": [sys.executable, "-c", TAKER],
                "resources": resources(memory),
            }]}}  # fmt: skip
            await world.api.patch(PODS, "p", body, namespace="default")

        def signalled(number: int, answer: str) -> Any:
            os.kill(started_pid(tmp_path), number)
            return until_log(world, "p", answer)

        await world.until_phase("p", "Running")
        await until_log(world, "p", "ready")
        await resize("200Mi")
        await world.until("p", lambda pod: has_limit(pod, "200Mi"))
        await signalled(signal.SIGUSR1, "took")
        await asyncio.sleep(1.2)  # two looks of the node
        await resize("80Mi")
        pod = await world.until("p", lambda pod: bool(why_not(pod)))
        assert 'set container "main" memory limit (83886080) below current usage' in why_not(pod)
        assert has_limit(pod, "200Mi")
        assert pod.status.phase == "Running"
        await signalled(signal.SIGUSR2, "gave")
        pod = await world.until("p", lambda pod: has_limit(pod, "80Mi"))
        assert condition(pod, "PodResizeInProgress") is None
        await signalled(signal.SIGUSR1, "took")
        end = ended(await world.until_phase("p", "Failed"))
        assert (end.reason, end.exit_code) == ("OOMKilled", 137), world.log("p")
        assert "more memory than its limit of 80Mi" in end.message
        found = {event.reason for event in world.api.stored(EVENTS)}
        assert {"ResizeStarted", "ResizeError", "ResizeCompleted"} <= found


def why_not(pod: Pod) -> str:
    found = condition(pod, "PodResizeInProgress")
    return found.message if found is not None and found.reason == "Error" else ""


def has_limit(pod: Pod, memory: str) -> bool:
    found = pod.status.container_statuses[0].resources
    return found is not None and found.limits["memory"] == memory


def started_pid(data: Path) -> int:
    (path,) = data.rglob("started.json")
    return int(json.loads(path.read_text())["pid"])


async def until_log(world: LocalWorld, name: str, text: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while f"{text}\n" not in world.log(name):
        assert time.monotonic() < limit, f"{name} did not say {text}"
        await asyncio.sleep(0.02)


async def test_a_resize_waits_for_room_on_the_node(tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        free = world.node.machine.cpu_milli

        def asked(cpu: int) -> dict[str, Any]:
            return {"resources": {"requests": {"cpu": f"{cpu}m"}}}

        await world.pod("p", "sleep", "60", container=asked(100))
        await world.pod("other", "sleep", "60", container=asked(free - 100))
        await world.until_phase("p", "Running")
        await world.until_phase("other", "Running")
        body = {"spec": {"containers": [
            {"name": "main", "command": ["sleep", "60"], **asked(200)}
        ]}}  # fmt: skip
        await world.api.patch(PODS, "p", body, namespace="default")
        pod = await world.until("p", lambda pod: condition(pod, "PodResizePending") is not None)
        waits, state = condition(pod, "PodResizePending"), pod.status.container_statuses[0]
        assert waits is not None
        assert waits.reason == "Deferred"
        assert "requested: 200" in waits.message
        assert state.allocated_resources == {"cpu": "100m"}
        await world.api.delete(PODS, "other", namespace="default")
        pod = await world.until("p", lambda pod: condition(pod, "PodResizePending") is None)
        assert pod.status.container_statuses[0].allocated_resources == {"cpu": "200m"}


def launch_groups(data: Path) -> list[Path | None]:
    """Return the control group of each start, those without first."""
    found = [json.loads(path.read_text())["group"] for path in data.rglob("launch.json")]
    return [Path(group) if group else None for group in sorted(found)]


async def test_a_log_is_bounded_whatever_the_program_writes(tmp_path: Path) -> None:
    options = dataclasses.replace(
        OPTIONS, logs=LogLimits(file_bytes_max=20_000, files_max=3), prune_seconds=0.2
    )
    async with local_world(tmp_path, options=options) as world:
        script = "seq -f 'number %06g' 1 50000; (sleep 0.3; echo from behind) & exec >&-; wait"
        await world.pod("loud", "sh", "-c", script)
        pod = await world.until_phase("loud", "Succeeded")
        assert ended(pod).reason == "Completed"
        log = tmp_path / "logs/default/pods/loud.log"
        kept = [part.read_bytes() for part in parts(log)]
        assert len(kept) == 3
        assert all(len(part) <= 20_000 + 100 for part in kept)
        lines = b"".join(kept).decode().splitlines()
        assert lines[-1] == "from behind"
        numbers = [int(line.split()[1]) for line in lines[:-1]]
        assert numbers == list(range(numbers[0], 50_001))
