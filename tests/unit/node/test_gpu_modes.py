"""Persistence mode and ECC of GPUs in a profile: read by the probe, set by nvidia-smi."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, Looks, changed
from tests.unit.node.test_nvml import GOOD, GPU, OTHER, Machine
from tests.unit.node.tuned_node import line, profile_of

from fairlead.api.cluster.node_report import Action, SettingState, TuningMode
from fairlead.api.values.times import format_time
from fairlead.input.errors import CliError
from fairlead.node.repairs import REQUEST_VERSION, RepairRequest
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.sources.tuning import TuningMemory, restart_setter
from fairlead.node.tuning import TuningFinding, parse_profile

SMI = """#!PYTHON
import json, pathlib, sys
_, flag, device, mode, value = sys.argv
said = pathlib.Path("SAID")
now = json.loads(said.read_text())
assert flag == "-i", sys.argv
for gpu in now["gpus"]:
    if gpu["bus"][4:].lower() == device:
        if mode == "-pm": gpu["persistence"] = int(value)
        else: gpu["modes"][1] = int(value)
        break
else: sys.exit("No devices were found")
if now.get("refuses") == mode:
    print("Insufficient Permissions"); sys.exit(4)
said.write_text(json.dumps(now))
"""
PERSISTENCE = line("persistence", "on", kind="Gpu")
ECC = line("ecc", "on", kind="Gpu")


class Gpus:
    """A machine with two GPUs whose agent applies a profile."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.machine, self.tree, self.folder = machine, machine.tree, folder
        self.tree.write("var/lib/fairlead/x", "")
        (folder / "bin").mkdir()
        program = folder / "bin" / "nvidia-smi"
        program.write_text(
            SMI.replace("PYTHON", sys.executable).replace("SAID", str(self.said_file))
        )
        program.chmod(0o755)
        self.profile(PERSISTENCE, ECC)
        self.settings = changed(
            AgentSettings(), "tuning", profile=str(folder / "profile.yaml"), mode=TuningMode.APPLY,
            record=str(folder / "record"), ecc_file="/var/lib/fairlead/ecc.json",
        )  # fmt: skip
        self.says(0, [0, 0])

    @property
    def said_file(self) -> Path:
        return self.folder / "library" / "said.json"

    def says(self, persistence: int, modes: list[int], **more: Any) -> None:
        modes_of = {"persistence": persistence, "modes": modes}
        self.machine.says(GOOD | modes_of, OTHER | modes_of, **more)

    def said(self, name: str) -> list[Any]:
        return [gpu[name] for gpu in json.loads(self.said_file.read_text())["gpus"]]

    def profile(self, *lines: str) -> None:
        (self.folder / "profile.yaml").write_text(profile_of(*lines))

    def host(self) -> Host:
        return replace(self.tree.host(), programs=self.folder / "bin")

    def looks(self) -> Looks:
        return Looks(self.tree, "tuning", settings=self.settings, host=self.host())

    def checks(self) -> list[str]:
        return [f"{each.identity.check} {each.identity.component}" for each in self.looks().look()]

    def differences(self) -> list[TuningFinding]:
        looks = self.looks()
        looks.look()
        memory = looks.watch.memory("tuning")
        assert isinstance(memory, TuningMemory)
        return list(memory.differences)

    def before_reboot(self, *, takes_back: bool = False) -> tuple[str, str]:
        until = format_time(self.tree.now() + 600)
        request = RepairRequest(
            REQUEST_VERSION, "r", Action.REBOOT, self.tree.boot_id, until, ("gpu",), takes_back
        )
        return restart_setter(self.host(), self.settings)(request)

    def reboots(self) -> None:
        """Start again: persistence is lost, and ECC is what was pending."""
        pending = self.said("modes")[0][1]
        self.says(0, [pending, pending])
        self.tree.boots(NEXT_BOOT, 900)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    (tmp_path / "host").mkdir()
    return Gpus(tmp_path, Machine(tmp_path, monkeypatch))


def test_verify_finds_both_as_drift_of_each_gpu_and_sets_nothing(gpus: Gpus) -> None:
    gpus.settings = changed(gpus.settings, "tuning", mode=TuningMode.VERIFY)
    found = gpus.differences()
    assert [(each.setting, each.actual, each.wanted) for each in found] == [
        ("Gpu persistence", "off", "on"), ("Gpu persistence", "off", "on"),
        ("Gpu ecc", "off", "on"), ("Gpu ecc", "off", "on"),
    ]  # fmt: skip
    assert found[2].target == f"gpu/{GPU}/ecc"
    assert "reset its GPUs or reboot" in found[2].why
    assert (gpus.said("persistence"), gpus.said("modes")) == ([0, 0], [[0, 0], [0, 0]])


def test_persistence_is_set_at_once_and_restored_without_its_line(gpus: Gpus) -> None:
    gpus.profile(PERSISTENCE)
    assert gpus.checks() == []
    assert gpus.said("persistence") == [1, 1]
    gpus.profile()
    assert gpus.checks() == []
    assert gpus.said("persistence") == [0, 0]


def test_ecc_is_set_before_a_reboot_that_health_asks_for_and_goes_as_it_came(gpus: Gpus) -> None:
    gpus.profile(ECC)
    assert gpus.checks() == ["tuning-restart gpu", "tuning-drift tested"]
    assert gpus.said("modes") == [[0, 0], [0, 0]]
    assert gpus.before_reboot() == ("", "")
    assert gpus.said("modes") == [[0, 1], [0, 1]]
    gpus.reboots()
    assert gpus.checks() == []
    gpus.profile()
    assert gpus.checks() == ["tuning-restart gpu"]
    assert gpus.before_reboot() == ("", "")
    gpus.reboots()
    assert gpus.said("modes") == [[0, 0], [0, 0]]
    assert gpus.checks() == []
    gpus.says(0, [1, 1])
    assert gpus.checks() == [], "what a person sets afterwards is theirs"


def test_ecc_with_which_a_node_fails_is_taken_back_and_not_set_again(gpus: Gpus) -> None:
    gpus.profile(ECC)
    gpus.before_reboot()
    gpus.reboots()
    assert gpus.before_reboot(takes_back=True) == ("", "")
    assert gpus.said("modes") == [[1, 0], [1, 0]]
    gpus.reboots()
    assert gpus.checks() == ["tuning-drift tested"]
    (found, _) = gpus.differences()
    assert (found.state, found.why.endswith("the node was not healthy with it")) == (
        SettingState.REFUSED, True,
    )  # fmt: skip
    gpus.before_reboot()
    assert gpus.said("modes") == [[0, 0], [0, 0]]


def test_a_gpu_that_lacks_a_mode_one_that_refuses_and_a_driver_that_fails_are_said(
    gpus: Gpus,
) -> None:
    gpus.machine.says(GOOD, OTHER)
    assert gpus.differences() == [], "a mode that no GPU has is absent"
    gpus.says(0, [1, 1], refuses="-pm")
    (found, _) = gpus.differences()
    assert "on cannot be written: nvidia-smi: Insufficient Permissions" in found.why
    gpus.says(0, [1, 1], init=9)
    looks = gpus.looks()
    looks.look()
    assert "NVML: error 9" in "; ".join(looks.health().unreadable) + looks.health().why


def test_a_mode_is_on_or_off_and_mig_is_none(gpus: Gpus) -> None:
    del gpus
    for text in (line("ecc", "1", kind="Gpu"), line("mig", "on", kind="Gpu")):
        with pytest.raises(CliError):
            parse_profile(profile_of(text), "p")
