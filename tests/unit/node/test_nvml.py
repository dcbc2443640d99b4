"""What NVIDIA's driver says of GPUs: of a library that the test plays, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.host_tree import HostTree, Looks, changed, named

from fairlead.model.health.faults import Action, Severity
from fairlead.node.running.program_run import ProgramOutcome
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState
from fairlead.node.sources import nvml

SETTINGS = AgentSettings()
#: `pynvml` as far as it is used; what a GPU of `said.json` lacks it does not support.
LIBRARY = """
import ctypes, json, pathlib, time
NVML_SUCCESS, NVML_ERROR_LIBRARY_NOT_FOUND = 0, 12
NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 15, 16
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

class NVMLError(Exception):
    def __init__(self, value): self.value = value
    def __str__(self): return {12: "NVML Shared Library Not Found", 15: "GPU is lost",
                               16: "GPU requires reset"}.get(self.value, f"error {self.value}")

class Value:
    def __init__(self, **fields): self.__dict__.update(fields)

def said():
    return json.loads((pathlib.Path(__file__).parent / "said.json").read_text())

def nvmlInit():
    if "init" in said(): raise NVMLError(said()["init"])
    if "hang" in said(): time.sleep(said()["hang"])

def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(said()["gpus"])
def nvmlDeviceGetHandleByIndex(index): return said()["gpus"][index]

def get(gpu, name):
    if "lost" in gpu: raise NVMLError(gpu["lost"])
    if name not in gpu: raise NVMLError(3)
    return gpu[name]

def nvmlDeviceGetPciInfo(gpu): return Value(busId=get(gpu, "bus").encode())
def nvmlDeviceGetFieldValues(gpu, fields):
    assert fields == [230]
    if "recovery" not in gpu: return [Value(nvmlReturn=3)]
    return [Value(nvmlReturn=0, value=Value(uiVal=gpu["recovery"]))]
def nvmlDeviceGetRemappedRows(gpu): return get(gpu, "rows")
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter):
    assert (kind, counter) == (1, 0)
    return get(gpu, "ecc")
def nvmlDeviceGetCurrentClocksEventReasons(gpu): return get(gpu, "clocks")
NVML_NVLINK_MAX_LINKS = 36
def nvmlDeviceGetNvLinkState(gpu, link):
    links = get(gpu, "links")
    if link >= len(links): raise NVMLError(2)
    return links[link]
class c_nvmlGpuFabricInfo_t(ctypes.Structure):
    _fields_ = [("state", ctypes.c_uint), ("status", ctypes.c_uint)]
def nvmlDeviceGetGpuFabricInfo(gpu, info): info._obj.state, info._obj.status = get(gpu, "fabric")
def nvmlDeviceGetPersistenceMode(gpu): return get(gpu, "persistence")
def nvmlDeviceGetEccMode(gpu): return get(gpu, "modes")
"""
GOOD: dict[str, Any] = {
    "bus": "00000000:3B:00.0", "recovery": 0, "rows": [0, 0, 0, 0], "ecc": 0, "clocks": 4,
    "links": [1] * 18, "fabric": [3, 0],
}  # fmt: skip
OTHER = {**GOOD, "bus": "00000000:86:00.0"}
GPU = "0000:3b:00"


class Machine:
    """A machine with two GPUs and a library that says what it is given."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = HostTree(path / "host")
        self.tree.write("proc/driver/nvidia/version", "NVRM version: 570.1")
        self._library = path / "library"
        self._library.mkdir()
        (self._library / "pynvml.py").write_text(LIBRARY)
        monkeypatch.setenv("PYTHONPATH", str(self._library))
        self.looks = Looks(
            self.tree, nvml.SOURCE, settings=changed(SETTINGS, "nvml", gpus=2, nvlinks=18)
        )
        self.says()

    def says(self, *gpus: dict[str, Any], **more: Any) -> None:
        said = {"gpus": gpus or (GOOD, OTHER), **more}
        (self._library / "said.json").write_text(json.dumps(said))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "host").mkdir()
    return Machine(tmp_path, monkeypatch)


def test_a_look_is_a_process_of_its_own_and_good_gpus_have_no_fault(machine: Machine) -> None:
    assert machine.looks.look() == ()
    assert machine.looks.health().state is SourceState.OK
    assert machine.looks.watch.skipped() == ()


def test_what_the_driver_recommends_is_the_fault_until_it_takes_it_back(machine: Machine) -> None:
    machine.says({**GOOD, "recovery": 1}, OTHER)
    (fault,) = machine.looks.look()
    assert named([fault]) == [(nvml.RECOVERY, GPU, ("1",))]
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.CRITICAL, Action.RESET_GPU)
    machine.says()
    machine.looks.look(60)
    assert machine.looks.look(60) == ()


class Played:
    """Looks that the test plays, without a process."""

    def __init__(self, tree: HostTree, **settings: int) -> None:
        tree.write("proc/driver/nvidia/version", "NVRM version: 570.1")
        self.said: dict[str, Any] = {}
        given = changed(SETTINGS, "nvml", **settings)
        self.looks = Looks(tree, nvml.SOURCE, settings=given)
        (made,) = self.looks.sources
        reader = nvml.NvmlReader(tree.host(), self._run)  # type: ignore[arg-type]
        object.__setattr__(made, "read", reader.read)

    def _run(self, *_: object, **__: object) -> ProgramOutcome:
        return ProgramOutcome(0, text=json.dumps(self.said))

    def look(self, *gpus: dict[str, Any], after: float = 60, **more: Any) -> list[Any]:
        good = {"address": "00000000:3B:00.0", "recoveryAction": 0, "rows": [0, 0, 0, 0],
                "uncorrected": 0, "slowdown": 4, "links": 18, "fabric": [3, 0]}  # fmt: skip
        self.said = {"gpus": [{"index": i, **good, **each} for i, each in enumerate(gpus)], **more}
        return named(self.looks.look(after))


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(HostTree(tmp_path))


@pytest.mark.parametrize(
    ("value", "action"),
    [(2, Action.REBOOT), (3, Action.WATCH), (4, Action.RESET_GPU), (5, Action.ASK_PERSON),
     (6, Action.REBOOT), (7, Action.REBOOT)],
)  # fmt: skip
def test_each_recommendation_has_its_action(played: Played, value: int, action: Action) -> None:
    assert played.look({"recoveryAction": value}) == [(nvml.RECOVERY, GPU, (str(value),))]
    assert played.looks.watch.faults[0].verdict.action is action
    played.look({})
    assert played.look({}) == []
    assert played.look({"recoveryAction": 99}) == [], "of a later driver"


@pytest.mark.parametrize(
    ("said", "found", "action"),
    [
        ({"rows": [3, 1, 0, 0]}, None, None),
        ({"rows": [3, 1, 1, 0]}, (nvml.ROWS, GPU, ("pending",)), Action.RESET_GPU),
        ({"rows": [3, 1, 1, 1]}, (nvml.ROWS, GPU, ("failed",)), Action.REPLACE),
        ({"uncorrected": 1}, (nvml.ECC, GPU, ()), Action.RESET_GPU),
    ],
    ids=str,
)  # fmt: skip
def test_counts_of_a_gpu(
    played: Played, said: dict[str, Any], found: object, action: Action | None
) -> None:
    assert played.look({}) == []
    assert played.look(said) == ([found] if found else [])
    assert [each.verdict.action for each in played.looks.watch.faults] == [action] * bool(found)
    played.look({})
    assert played.look({}) == []


def test_clocks_that_are_held_down_count_after_three_looks_and_a_power_cap_never(
    played: Played,
) -> None:
    for _ in range(3):
        assert played.look({"slowdown": 0x4 | 0x1}) == []
    for _ in range(2):
        assert played.look({"slowdown": 0x40}) == []
    assert played.look({"slowdown": 0x40}) == [(nvml.SLOWDOWN, GPU, ())]
    played.look({})
    assert played.look({}) == []


def test_links_of_nvlink_are_missing_only_where_so_many_are_expected(tmp_path: Path) -> None:
    assert Played(HostTree(tmp_path)).look({"links": 0}) == []
    expecting = Played(HostTree(tmp_path), nvlinks=18)
    assert expecting.look({"links": 18}) == []
    assert expecting.look({"links": 17}) == [(nvml.LINKS, GPU, ())]
    assert expecting.look({"links": None}) == [(nvml.LINKS, GPU, ())], "not known is not mended"
    expecting.look({})
    assert expecting.look({}) == []


def test_a_gpu_whose_registration_with_the_fabric_fails_or_lasts_is_a_fault(
    played: Played,
) -> None:
    for fabric in ([0, 0], [0, 3], [3, 0], None):
        assert played.look({"fabric": fabric}) == []
    for fabric in ([2, 0], [1, 0], [3, 999]):  # in progress, not started, failed
        assert [played.look({"fabric": fabric}) for _ in range(2)] == [[], []]
        assert played.look({"fabric": fabric}) == [(nvml.FABRIC, GPU, ())]
        assert played.looks.watch.faults[0].verdict.action is Action.REBOOT
        played.look({})
        assert played.look({}) == []


def test_what_links_and_the_fabric_are_is_read_of_the_library(machine: Machine) -> None:
    machine.says({**GOOD, "links": [1] * 17 + [0], "fabric": [3, 15]}, OTHER)
    assert named(machine.looks.looks(3, 60)) == [
        (nvml.FABRIC, GPU, ()), (nvml.LINKS, GPU, ()),
    ]  # fmt: skip


def test_a_value_that_is_blank_is_not_known_and_ends_no_fault(played: Played) -> None:
    assert played.look({"uncorrected": 2})
    for _ in range(5):
        assert played.look({"uncorrected": None}) == [(nvml.ECC, GPU, ())]
    assert [each.check for each in played.looks.watch.skipped()] == [
        nvml.COUNT, nvml.LINKS, nvml.ECC,
    ]  # fmt: skip
    played.look({})
    assert played.look({}) == []


def test_a_gpu_that_is_lost_leaves_the_other_one_judged(machine: Machine) -> None:
    machine.says({"lost": 15}, {**OTHER, "ecc": 3})
    faults = machine.looks.look()
    assert sorted(named(faults)) == [(nvml.ECC, "0000:86:00", ()), (nvml.LOST, "gpu0", ())]
    assert machine.looks.health().unreadable == ("gpu0: GPU is lost",)
    assert next(f for f in faults if f.identity.check == nvml.LOST).verdict.action is Action.REBOOT
    machine.says()
    machine.looks.look(60)
    assert machine.looks.look(60) == ()


def test_gpus_are_missing_only_where_so_many_are_expected(tmp_path: Path) -> None:
    unset = Played(HostTree(tmp_path))
    assert unset.look({}) == []
    assert [each.check for each in unset.looks.watch.skipped()] == [nvml.COUNT, nvml.LINKS]
    assert Played(HostTree(tmp_path), gpus=2).look({}) == [(nvml.COUNT, "machine", ())]


def test_nvml_that_cannot_be_begun_is_a_fault_after_three_looks_and_ends_no_other(
    machine: Machine,
) -> None:
    machine.says({**GOOD, "rows": [0, 0, 0, 1]}, OTHER)
    rows = (nvml.ROWS, GPU, ("failed",))
    assert named(machine.looks.look()) == [rows]
    machine.says(init=18)
    assert named(machine.looks.looks(2, 60)) == [rows], "a driver may be being replaced"
    assert set(named(machine.looks.look(60))) == {rows, (nvml.DRIVER, "machine", ())}
    machine.says()
    machine.looks.look(60)
    assert machine.looks.look(60) == ()


def test_without_driver_or_library_it_is_skipped(machine: Machine) -> None:
    machine.says(init=12)
    assert machine.looks.look() == ()
    assert machine.looks.health().state is SourceState.SKIPPED
    machine.tree.remove("proc/driver/nvidia/version")
    assert machine.looks.look() == ()
    assert machine.looks.health().state is SourceState.SKIPPED


def test_a_look_that_hangs_is_killed_and_says_nothing_of_the_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.says({**GOOD, "ecc": 1}, OTHER)
    assert machine.looks.look()
    monkeypatch.setattr(nvml, "_LOOK_SECONDS", 0.2)
    machine.says(hang=60)
    assert named(machine.looks.look(60)) == [(nvml.ECC, GPU, ())]
    assert machine.looks.health().state is SourceState.BLIND
    assert "killed after 0.2 s" in machine.looks.health().why


def test_no_second_look_is_begun_while_one_hangs_in_the_kernel(played: Played) -> None:
    begun: list[int] = []

    class Hanging:
        def poll(self) -> int | None:
            return None if len(begun) < 2 else -9

    def run(*_: object, **__: object) -> ProgramOutcome:
        begun.append(1)
        return ProgramOutcome(None, why="hangs", leftover=Hanging())  # type: ignore[arg-type]

    reader = nvml.NvmlReader(played.looks.host, run)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(OSError, match="hangs"):
            reader.read()
    assert len(begun) == 1


def test_the_library_has_what_the_look_uses() -> None:
    """So that the one that the tests play is not another one."""
    pynvml = pytest.importorskip("pynvml")
    for name in (
        "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetPciInfo", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetNvLinkState", "nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t",
    ):  # fmt: skip
        assert callable(getattr(pynvml, name))
    assert (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, pynvml.NVML_ERROR_GPU_IS_LOST) == (230, 15)
