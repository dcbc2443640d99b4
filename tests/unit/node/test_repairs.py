"""Resets and reboots that are asked for: what the agent does, once, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.node.host_tree import BOOT, NEXT_BOOT, HostTree, Looks, named

from fairlead.api.cluster.node_report import Action, AgentAnswer
from fairlead.api.values.sections import DAY
from fairlead.api.values.times import format_time
from fairlead.input.errors import CliError
from fairlead.node.registry import load_settings
from fairlead.node.repairs import (
    REQUEST_VERSION,
    AfterStep,
    RepairRequest,
    Repairs,
    UnreadableRequest,
    decode_request,
    encode_request,
)
from fairlead.node.reports.state import KeptRepair, State, open_state
from fairlead.node.settings import RepairSettings

GPU = "0000:3b:00.0"
PodBody = dict[str, object]


def pod(name: str, *, owner: str = "", phase: str = "Running") -> PodBody:
    owners = [{"kind": owner}] if owner else []
    meta = {"name": name, "namespace": "ml", "uid": f"u-{name}", "ownerReferences": owners}
    return {"metadata": meta, "spec": {}, "status": {"phase": phase}}


@dataclass
class Machine:
    """A machine whose commands write a line each into `ran`, and its agent's repairs."""

    folder: Path
    settings: RepairSettings = field(init=False)
    tree: HostTree = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.tree = HostTree(self.folder / "host")
        self.tree.write(f"proc/driver/nvidia/gpus/{GPU}/information", "Device Minor: \t 0")
        self.tree.write("proc/1/comm", "systemd")
        (self.tree.root / "proc/1/fd").mkdir()
        self.pods(pod("agent", owner="DaemonSet"), pod("done", phase="Succeeded"))
        self.settings = RepairSettings(
            resets=True, reboots=True, requests=str(self.folder / "requests"),
            pods=str(self.folder / "pods"), reset_command=self.command("reset", "echo cleared"),
            reboot_command=self.command("reboot", "true"),
        )  # fmt: skip
        self.begin()

    def command(self, name: str, body: str) -> tuple[str, ...]:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/ran\n{body}\n')
        path.chmod(0o755)
        return (str(path),)

    def pods(self, *found: PodBody) -> None:
        (self.folder / "pods").write_text(json.dumps({"items": found}))

    def hold(self, name: str, pid: int, device: str = "/dev/nvidia0") -> None:
        self.tree.write(f"proc/{pid}/comm", name)
        (self.tree.root / f"proc/{pid}/fd").mkdir()
        (self.tree.root / f"proc/{pid}/fd/3").symlink_to(device)

    def begin(self) -> None:
        """Start the agent, for the first time or again."""
        self.state = open_state(self.folder / "state")
        self.repairs = Repairs(self.tree.host(), self.settings, self.state)

    def kill(self) -> None:
        self.state.close()

    def request(
        self, id_: str = "r1", action: Action = Action.RESET_GPU, *, boot: str = BOOT,
        seconds: float = 600, components: tuple[str, ...] = ("0000:3b:00", "ib0"),
    ) -> RepairRequest:  # fmt: skip
        ends = format_time(self.tree.now() + seconds)
        return RepairRequest(REQUEST_VERSION, id_, action, boot, ends, components)

    def ask(self, request: RepairRequest | bytes) -> AfterStep:
        data = request if isinstance(request, bytes) else encode_request(request)
        (self.folder / "requests").write_bytes(data)
        return self.step()

    def step(self) -> AfterStep:
        return asyncio.run(self.repairs.step())

    @property
    def ran(self) -> list[str]:
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def latest(self) -> KeptRepair:
        assert self.repairs.latest is not None
        return self.repairs.latest

    @property
    def answer(self) -> tuple[AgentAnswer, str]:
        return self.latest.answer, self.latest.message


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_gpu_that_nothing_holds_is_reset_once_and_its_fault_ends(machine: Machine) -> None:
    looks = Looks(machine.tree, "kernel-log")
    machine.tree.xid(48)
    machine.tree.xid(48, gpu="0000:5e:00")
    looks.look()
    after = machine.ask(machine.request())
    assert machine.ran == [f"reset -i {GPU}"]
    assert machine.answer == (AgentAnswer.DONE, f"{GPU} reset: cleared")
    looks.watch.gpus_reset(after.gpus_reset, machine.tree.now())
    assert named(looks.watch.faults) == [("gpu-xid", "0000:5e:00", ("48",))]
    assert looks.ended[-1].ending.value == "GPUReset"
    assert machine.step() == AfterStep()
    assert len(machine.ran) == 1, "a request is carried out once"


def test_a_reboot_is_done_when_the_machine_has_another_boot(machine: Machine) -> None:
    machine.ask(machine.request(action=Action.REBOOT))
    assert machine.ran == ["reboot "]
    assert machine.answer[0] is AgentAnswer.ACCEPTED
    machine.kill()
    machine.tree.boots(NEXT_BOOT)
    machine.begin()
    assert machine.answer == (AgentAnswer.DONE, "the machine has started again")
    machine.step()
    assert machine.ran == ["reboot "], "the file of before the boot asks for nothing"


def test_a_machine_that_does_not_start_again_in_time_has_failed(machine: Machine) -> None:
    machine.ask(machine.request(action=Action.REBOOT))
    machine.tree.passes(machine.settings.reboot_seconds - 1)
    machine.step()
    assert machine.answer[0] is AgentAnswer.ACCEPTED
    machine.tree.passes(1)
    machine.step()
    assert machine.answer == (
        AgentAnswer.FAILED, "the machine has not started again within 900 s"
    )  # fmt: skip


def _pods_run(machine: Machine) -> RepairRequest:
    machine.pods(pod("agent", owner="DaemonSet"), pod("train-0"))
    return machine.request(action=Action.REBOOT)


def _pods_unreadable(machine: Machine) -> RepairRequest:
    (machine.folder / "pods").write_text("{")
    return machine.request(action=Action.REBOOT)


def _no_pods_file(machine: Machine) -> RepairRequest:
    (machine.folder / "pods").unlink()
    return machine.request()


def _held(machine: Machine) -> RepairRequest:
    machine.hold("python", 77)
    return machine.request()


def _unreadable_holders(machine: Machine) -> RepairRequest:
    machine.tree.write("proc/78/comm", "python")
    machine.tree.write("proc/78/fd", "a file in the place of a directory")
    return machine.request()


def _other_gpu(machine: Machine) -> RepairRequest:
    return machine.request(components=("0000:99:00", "../../etc", "-x", GPU[:7]))


def _expired(machine: Machine) -> RepairRequest:
    request = machine.request(seconds=60)
    machine.tree.passes(60)
    return request


_REFUSED: dict[str, tuple[Callable[[Machine], RepairRequest], AgentAnswer, str]] = {
    "pods run": (_pods_run, AgentAnswer.FORBIDDEN, "pods run here: ml/train-0"),
    "pods are unreadable": (_pods_unreadable, AgentAnswer.FORBIDDEN, "pods of the node cannot"),
    "pods are missing": (_no_pods_file, AgentAnswer.FORBIDDEN, "pods of the node cannot be read"),
    "a process holds the GPU": (_held, AgentAnswer.REFUSED, "hold the GPU: python (77)"),
    "holders are unreadable": (_unreadable_holders, AgentAnswer.REFUSED, "cannot be read: "),
    "no such GPU": (_other_gpu, AgentAnswer.REFUSED, "no such GPU is here: 0000:99:00, ../../etc"),
    "another boot": (
        lambda machine: machine.request(boot=NEXT_BOOT), AgentAnswer.FORBIDDEN, "another boot"
    ),
    "expired": (_expired, AgentAnswer.FORBIDDEN, "has expired"),
    "no action of agents": (
        lambda machine: machine.request(action=Action.REPLACE), AgentAnswer.FORBIDDEN,
        "no agent does that: Replace",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _REFUSED)
def test_a_request_is_refused_with_the_reason_and_nothing_is_run(
    machine: Machine, case: str
) -> None:
    make, answer, said = _REFUSED[case]
    machine.ask(make(machine))
    assert machine.latest.answer is answer
    assert said in machine.latest.message
    assert machine.ran == []
    # The same machine does what is asked for where that is not so.
    machine.pods()
    for each in (machine.tree.root / "proc").glob("7[78]"):
        each.rename(machine.folder / each.name)
    machine.ask(machine.request("r2"))
    assert machine.ran == [f"reset -i {GPU}"]


@pytest.mark.parametrize("action", [Action.RESET_GPU, Action.REBOOT])
def test_what_the_settings_do_not_name_is_not_done(machine: Machine, action: Action) -> None:
    machine.settings = replace(machine.settings, resets=False, reboots=False)
    machine.begin()
    machine.ask(machine.request(action=action))
    reset = action is Action.RESET_GPU
    assert machine.answer[0] is (AgentAnswer.REFUSED if reset else AgentAnswer.FORBIDDEN)
    assert machine.ran == []


def test_a_daemon_that_the_command_ends_may_hold_the_gpu(machine: Machine) -> None:
    machine.hold("nvidia-persiste", 80)
    machine.hold("dcgm", 81, "/dev/nvidia1")
    machine.settings = replace(machine.settings, gpu_daemons=("nvidia-persiste",))
    machine.begin()
    machine.ask(machine.request())
    assert machine.answer[0] is AgentAnswer.DONE


def test_whoever_writes_requests_restarts_a_machine_twice_a_day_and_no_more(
    machine: Machine,
) -> None:
    boots = 0
    for number in range(6):
        machine.tree.passes(60)
        machine.ask(machine.request(f"forged-{number}", Action.REBOOT, boot=machine.tree.boot_id))
        if machine.latest.answer is AgentAnswer.ACCEPTED:
            boots += 1
            machine.kill()
            machine.tree.boots(f"boot-{boots}", machine.tree.uptime)
            machine.begin()
    assert len(machine.ran) == boots == 2
    assert machine.answer == (
        AgentAnswer.FORBIDDEN, "it was done as often as the settings allow in a day: 2 of 2"
    )  # fmt: skip
    machine.tree.passes(DAY)
    machine.ask(machine.request("next day", Action.REBOOT, boot=machine.tree.boot_id))
    assert len(machine.ran) == 3


def test_a_clock_that_is_set_back_opens_no_window(machine: Machine) -> None:
    machine.settings = replace(machine.settings, resets_per_day_max=1)
    machine.begin()
    machine.ask(machine.request("r1"))
    machine.tree.uptime -= 3000
    machine.ask(machine.request("r2"))
    assert machine.latest.answer is AgentAnswer.FORBIDDEN
    assert len(machine.ran) == 1


def test_a_state_that_was_lost_allows_nothing_for_a_day(machine: Machine) -> None:
    machine.kill()
    (machine.folder / "state").write_text("no database" * 1000)
    for suffix in ("-wal", "-shm"):
        (machine.folder / f"state{suffix}").unlink(missing_ok=True)
    machine.begin()
    machine.kill()
    machine.begin()  # it is known also to the agent after that one
    machine.ask(machine.request("r1"))
    assert machine.answer[0] is AgentAnswer.FORBIDDEN
    assert "what was done within a day is not known" in machine.latest.message
    machine.tree.passes(DAY + 1)
    machine.ask(machine.request("r2"))
    assert machine.ran == [f"reset -i {GPU}"]


def test_an_agent_that_died_in_a_reset_says_that_it_failed_and_does_not_repeat_it(
    machine: Machine,
) -> None:
    now = machine.tree.host().now()
    begun = KeptRepair("r1", Action.RESET_GPU, AgentAnswer.ACCEPTED, now.time, BOOT)
    machine.state.keep_repair(begun)  # as it is before the command is run
    machine.kill()
    machine.begin()
    assert machine.answer == (AgentAnswer.FAILED, "the agent ended before the result was known")
    machine.ask(machine.request("r1"))
    assert machine.ran == []


def test_a_command_that_fails_or_hangs_is_reported(machine: Machine) -> None:
    bad = machine.command("bad", "echo in use; exit 3")
    machine.settings = replace(machine.settings, reset_command=bad)
    machine.begin()
    after = machine.ask(machine.request("r1"))
    assert after == AfterStep()
    assert machine.answer == (AgentAnswer.FAILED, "it failed: exit code 3; in use")
    slow = machine.command("slow", "sleep 60")
    machine.settings = replace(machine.settings, reset_command=slow, reset_seconds=1)
    machine.begin()
    began = time.monotonic()
    machine.ask(machine.request("r2"))
    assert machine.answer == (AgentAnswer.FAILED, "it failed: killed after 1 s")
    assert time.monotonic() - began < 30


_BAD = (
    b"{", b"[]", b'{"version": 1}', b"\xff\xfe", b"[" * 100_000, b"x" * (1 << 20),
    b'{"version": 2, "id": "a", "action": "Reboot", "bootId": "b", "expiresAt": '
    b'"2026-01-01T00:00:00Z"}',
    b'{"version": 1, "id": "", "action": "Reboot", "bootId": "b", "expiresAt": '
    b'"2026-01-01T00:00:00Z"}',
    b'{"version": 1, "id": "a", "action": "rm -rf", "bootId": "b", "expiresAt": '
    b'"2026-01-01T00:00:00Z"}',
    b'{"version": 1, "id": "a", "action": "Reboot", "bootId": "b", "expiresAt": "never"}',
)  # fmt: skip


@pytest.mark.parametrize("data", _BAD, ids=range(len(_BAD)))
def test_what_is_no_request_asks_for_nothing(machine: Machine, data: bytes) -> None:
    with pytest.raises(UnreadableRequest):
        decode_request(data)
    machine.ask(data)
    assert (machine.repairs.latest, machine.ran) == (None, [])
    machine.ask(machine.request())
    assert len(machine.ran) == 1


def test_a_link_in_the_place_of_the_file_is_not_followed(machine: Machine) -> None:
    (machine.folder / "elsewhere").write_bytes(encode_request(machine.request()))
    (machine.folder / "requests").symlink_to(machine.folder / "elsewhere")
    machine.step()
    assert (machine.repairs.latest, machine.ran) == (None, [])


def test_a_flood_of_requests_keeps_little(machine: Machine) -> None:
    machine.pods(pod("train-0"))
    for number in range(40):
        machine.ask(machine.request(f"r{number}"))
    assert machine.latest.id == "r39"
    assert len(machine.state.repairs()) == 16
    assert machine.ran == []


def test_a_request_is_read_as_it_was_written(machine: Machine) -> None:
    request = machine.request()
    assert decode_request(encode_request(request)) == request
    assert decode_request(encode_request(None)) is None
    assert msgspec.json.decode(encode_request(request))["bootId"] == BOOT


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("repairs:\n  reboots: true\n")
    with pytest.raises(CliError) as caught:
        load_settings(str(path))
    said = repr(vars(caught.value))
    assert "repairs.requests" in said
    assert "repairs.pods" in said
