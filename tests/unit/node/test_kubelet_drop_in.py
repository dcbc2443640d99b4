"""The kubelet's drop-in: written before a reboot alone, taken back from a kubelet that is down."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.unit.node.host_tree import BOOT, NEXT_BOOT, HostTree, Looks, changed, named

from fairlead.api.cluster.node_report import Action, AgentAnswer, TuningMode
from fairlead.api.values.times import format_time
from fairlead.cli.app import run
from fairlead.decide.health.need import urgency_of
from fairlead.decide.health.policy import HealthPolicy
from fairlead.input.errors import CliError
from fairlead.node.node_report import report_status
from fairlead.node.registry import load_settings
from fairlead.node.repairs import REQUEST_VERSION, RepairRequest, Repairs, encode_request
from fairlead.node.report import report_of
from fairlead.node.settings import AgentSettings
from fairlead.node.sources.tuning import restart_setter
from fairlead.node.state import open_state
from fairlead.node.tuning.kubelet_drop_in import FIELDS, NAME, REFUSED

DIRECTORY = "/etc/kubelet.d"
CONFIG = "serializeImagePulls: false\nmaxParallelImagePulls: 5\nauthentication: {x: 1}\n"


def line(name: str, value: str, **more: str) -> str:
    rows = {
        "kind": "KubeletConfig",
        "name": name,
        "value": f"'{value}'",
        "reason": "r",
        "source": "s",
    }
    return "- " + ", ".join(f"{key}: {text}" for key, text in (rows | more).items()).join("{}")


PROFILE = "\n".join(
    ("name: tested", "lines:", line("registryPullQPS", "0"), line("imageMaximumGCAge", "48h"),
     line("maxParallelImagePulls", "9"), line("serializeImagePulls", "false"),
     line("readOnlyPort", "10255"))
)  # fmt: skip
WANTED = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "imageMaximumGCAge": "48h", "registryPullQPS": 0,
}  # fmt: skip


@dataclass
class Node:
    """A machine with a kubelet, an agent that applies a profile, and its repairs."""

    folder: Path
    settings: AgentSettings = field(init=False)
    tree: HostTree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = HostTree(self.folder / "host")
        self.profile.write_text(PROFILE)
        (self.tree.root / "etc/kubelet.d").mkdir(parents=True, exist_ok=True)
        (self.folder / "pods").write_text('{"items": []}')
        reboot = self.folder / "reboot"
        reboot.write_text(f"#!/bin/sh\ncat {self.file} > {self.folder}/at-reboot 2>&1\n")
        reboot.chmod(0o755)
        settings = changed(
            AgentSettings(), "tuning", profile=str(self.profile), mode=TuningMode.APPLY,
            record=str(self.folder / "record"), kubelet_directory=DIRECTORY,
        )  # fmt: skip
        self.settings = changed(
            settings, "repairs", reboots=True, requests=str(self.folder / "requests"),
            pods=str(self.folder / "pods"), reboot_command=(str(reboot),),
        )  # fmt: skip
        self.kubelet()

    @property
    def profile(self) -> Path:
        return self.folder / "profile.yaml"

    @property
    def file(self) -> Path:
        return self.tree.root / "etc/kubelet.d" / NAME

    def kubelet(self, *flags: str, began: float = 10.0, config: str = CONFIG) -> None:
        """Start the kubelet, so long after the machine."""
        group = "sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs"
        self.tree.write(group, "77")
        flags = ("--config=/k.yaml", *(flags or (f"--config-dir={DIRECTORY}",)))
        self.tree.write("proc/77/cmdline", "\0".join(("/usr/bin/kubelet", *flags, "")))
        self.tree.write("proc/77/stat", f"77 (ku ) let) S {'0 ' * 18}{began * 100:.0f} 0")
        self.tree.write("k.yaml", config)

    def no_kubelet(self) -> None:
        self.tree.write("sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs", "")

    def looks(self) -> Looks:
        return Looks(self.tree, "tuning", settings=self.settings)

    def faults(self) -> list[str]:
        return [check for check, *_ in named(self.looks().look())]

    def set(self) -> None:
        restart_setter(self.tree.host(), self.settings)()

    @property
    def body(self) -> dict[str, Any]:
        head, body = self.file.read_text().split("\n", 1)
        assert head.startswith("# ")
        return json.loads(body)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_counts_from_a_start_asks_for_a_reboot_and_changes_nothing_before(node: Node) -> None:
    looks = node.looks()
    restart, drift = looks.look()
    assert named([drift, restart]) == [
        ("tuning-drift", "tested", ()), ("tuning-restart", "kubelet", ()),
    ]  # fmt: skip
    assert restart.evidence == (
        "counts from the kubelet's next start: imageMaximumGCAge, registryPullQPS"
    )
    assert not node.file.exists()
    status = report_status(
        report_of(looks.watch, looks.host.now()), node_uid="u", now=looks.host.now().time
    )
    (fault,) = (each for each in status.faults if each.check == "tuning-restart")
    urgency = urgency_of(fault)
    assert (fault.action, urgency is not None) == (Action.REBOOT, True)
    assert not HealthPolicy(enabled=True).acts_on(fault.check), "by default it is only recorded"


def test_a_reboot_that_health_asks_for_writes_it_first_and_ends_the_fault(node: Node) -> None:
    request = RepairRequest(
        REQUEST_VERSION, "r1", Action.REBOOT, BOOT, format_time(node.tree.now() + 600)
    )
    Path(node.settings.repairs.requests).write_bytes(encode_request(request))
    state = open_state(node.folder / "state")
    host = node.tree.host()
    repairs = Repairs(
        host, node.settings.repairs, state, before_reboot=restart_setter(host, node.settings)
    )
    asyncio.run(repairs.step())
    assert repairs.latest is not None
    assert repairs.latest.answer is AgentAnswer.ACCEPTED
    state.close()
    assert (node.folder / "at-reboot").read_text() == node.file.read_text()
    assert node.body == WANTED, "neither what a person set, nor what opens the kubelet"
    assert "tuning-restart" in node.faults(), "the machine has not started again"
    node.tree.boots(NEXT_BOOT, 900)
    assert node.faults() == ["tuning-drift"]
    node.set()
    assert node.body == WANTED


def test_a_reboot_goes_on_where_the_profile_is_wrong_and_leaves_the_drop_in(node: Node) -> None:
    node.set()
    before = node.file.read_text()
    node.profile.write_text("name: [")
    with pytest.raises(CliError):
        restart_setter(node.tree.host(), node.settings)
    node.profile.write_text(PROFILE)
    setter = restart_setter(node.tree.host(), node.settings)
    node.profile.write_text("name: [")
    with pytest.raises(OSError, match="the profile: "):
        setter()
    assert node.file.read_text() == before


def test_what_a_person_set_is_overwritten_only_where_the_line_says_so(node: Node) -> None:
    node.profile.write_text(
        "name: tested\nlines:\n" + line("maxParallelImagePulls", "9", overwrite="true")
    )
    node.set()
    assert node.body["maxParallelImagePulls"] == 9
    node.tree.boots(NEXT_BOOT, 900)
    assert node.faults() == []
    node.profile.write_text("name: tested\nlines: []")
    assert node.faults() == ["tuning-restart"], "it goes as it came"
    assert node.file.exists()
    node.set()
    assert not node.file.exists()
    assert node.faults() == []


def test_a_profile_that_is_removed_takes_the_drop_in_away_by_a_reboot_or_at_once_by_hand(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 900)
    node.settings = changed(node.settings, "tuning", profile="")
    assert node.faults() == ["tuning-restart"]
    config = node.folder / "agent.yaml"
    config.write_text(
        f"tuning: {{kubeletDirectory: {DIRECTORY}, record: {node.folder}/record}}\n"
        "repairs: {reboots: true, requests: r, pods: p}\n"
    )
    flags = ["--restore", "--root", str(node.tree.root), "--config", str(config)]
    assert run(["agent", "tune", *flags]) == 0
    assert "the kubelet's drop-in is removed" in capsys.readouterr().err
    assert not node.file.exists()
    assert node.faults() == []


@pytest.mark.parametrize("how", ["down", "again and again"])
def test_a_kubelet_that_does_not_run_with_it_has_it_taken_back_and_it_stays_so(
    how: str, node: Node
) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 900)
    looks = node.looks()
    for _ in range(2):
        looks.look(300)
        assert node.file.exists()
        if how == "down":
            node.no_kubelet()
        else:
            node.kubelet(began=node.tree.uptime + 290)
    looks.look(300)
    refused = node.file.with_name(REFUSED)
    assert (node.file.exists(), refused.exists()) == (False, True)
    node.kubelet(began=node.tree.uptime - 100)
    (drift,) = node.looks().look()
    assert "the kubelet did not run with its drop-in" in drift.evidence
    node.set()
    assert not node.file.exists(), "the same is not tried again"
    node.profile.write_text(PROFILE.replace("48h", "72h"))
    assert "tuning-restart" in node.faults()
    node.set()
    assert node.body["imageMaximumGCAge"] == "72h", "another content is"


def test_a_kubelet_that_starts_with_the_machine_is_not_down(node: Node) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 20)
    node.no_kubelet()
    looks = node.looks()
    looks.looks(3, 60)
    assert node.file.exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--config-dir=/other",), "reads /other, and not /etc/kubelet.d"),
        (("-v=2",), "reads no directory, and not /etc/kubelet.d"),
    ],
)
def test_a_kubelet_that_reads_another_directory_gets_nothing(
    flags: tuple[str, ...], why: str, node: Node
) -> None:
    node.kubelet(*flags)
    assert "tuning-restart" not in node.faults()
    with pytest.raises(OSError, match=why):
        node.set()
    assert not node.file.exists()


@pytest.mark.parametrize("odd", ["link", "directory", "binary", "huge"])
def test_odd_files_in_its_place_are_replaced_or_said(odd: str, node: Node) -> None:
    target = node.folder / "secret"
    target.write_text("kept")
    match odd:
        case "link":
            node.file.symlink_to(target)
        case "directory":
            node.file.mkdir()
        case "binary":
            node.file.write_bytes(bytes(range(256)))
        case _:
            node.file.write_bytes(b"x" * 100_000)
    if odd == "binary":
        node.set()
        assert node.body == WANTED
    else:
        with pytest.raises(OSError, match=r"."):
            node.set()
        assert "tuning-restart" not in node.faults()
    assert target.read_text() == "kept"


def test_verify_and_a_profile_without_the_directory_write_nothing(node: Node) -> None:
    for fields in ({"mode": TuningMode.VERIFY}, {"kubelet_directory": ""}):
        node.settings = changed(node.settings, "tuning", **fields)
        node.set()
        assert (node.file.exists(), "tuning-restart" in node.faults()) == (False, False)


def test_settings_that_could_not_be_carried_out_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"tuning: {{kubeletDirectory: {DIRECTORY}}}")
    with pytest.raises(CliError, match=r"it takes repairs\.reboots"):
        load_settings(str(file))


def test_no_field_opens_the_kubelet_or_names_what_it_runs() -> None:
    opens = (
        "auth",
        "tls",
        "port",
        "path",
        "url",
        "endpoint",
        "dir",
        "cgroup",
        "cluster",
        "address",
    )
    assert not [name for name in FIELDS for each in opens if each in name.lower()]


def test_killed_at_any_line_the_kubelet_finds_the_old_file_or_the_new_one(node: Node) -> None:
    folder, lines = node.file.parent, 0
    left: set[tuple[str, ...]] = set()

    def texts() -> tuple[str, ...]:
        return tuple(path.read_text() for path in sorted(folder.glob("*.conf")))

    def killed(call: Callable[[], object]) -> None:
        nonlocal lines

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if not frame.f_code.co_filename.endswith(("kubelet_drop_in.py", "node/files.py")):
                return None
            lines += event == "line"
            left.add(texts())
            return trace

        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(None)
        left.add(texts())

    killed(node.set)
    first = texts()
    node.profile.write_text(PROFILE.replace("48h", "72h"))
    killed(node.set)
    second = texts()
    node.profile.write_text("name: tested")
    killed(node.set)
    assert lines > 100
    assert left == {(), first, second}
    assert len({first, second, ()}) == 3
