"""What disks say of themselves: good, bad, borderline, recovered, and tools that do not work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.host_tree import HostTree, Looks, changed, named

from fairlead.model.health.faults import Action, Severity
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState
from fairlead.node.sources import smart
from fairlead.node.sources.smart import DiskHealth, parse_nvme, parse_smartctl

SETTINGS = AgentSettings()
#: As smartctl 7.4 writes it, without what is not read.
NVME: dict[str, Any] = {
    "smartctl": {"version": [7, 4], "exit_status": 0},
    "smart_status": {"passed": True, "nvme": {"value": 0}},
    "nvme_smart_health_information_log": {
        "critical_warning": 0, "available_spare": 100, "percentage_used": 3, "media_errors": 0,
        "temperature": 41,
    },
}  # fmt: skip
ATA: dict[str, Any] = {
    "smartctl": {"exit_status": 0},
    "smart_status": {"passed": True},
    "ata_smart_attributes": {"table": [
        {"id": 5, "name": "Reallocated_Sector_Ct", "raw": {"value": 4000, "string": "4000"}},
        {"id": 197, "name": "Current_Pending_Sector", "raw": {"value": 0, "string": "0"}},
    ]},
}  # fmt: skip


class Machine:
    """A machine whose tool writes what a file says for each disk."""

    def __init__(self, tree: HostTree, tool: str = "smartctl") -> None:
        self.tree = tree
        for disk in ("nvme0n1", "nvme0n2", "sda", "loop0", "dm-1", "vda"):
            tree.write(f"sys/block/{disk}/size", 1)
        programs = tree.root / "bin"
        programs.mkdir()
        path = programs / tool
        path.write_text(f'#!/bin/sh\nfor disk; do :; done\n. "{tree.root}/run/${{disk##*/}}"\n')
        path.chmod(0o755)
        host = tree.host()
        host = Host(host.root, host.clock, host.usage, host.clock_state, host.own_mounts,
                    programs=programs)  # fmt: skip
        self.says("nvme0", NVME)
        self.says("sda", ATA)
        self.looks = Looks(tree, smart.SOURCE, host=host)

    def says(self, disk: str, said: dict[str, Any]) -> None:
        self.tree.write(f"run/{disk}", f"cat <<'END'\n{json.dumps(said)}\nEND")

    def nvme(self, **values: int) -> None:
        log = {**NVME["nvme_smart_health_information_log"], **values}
        self.says("nvme0", {**NVME, "nvme_smart_health_information_log": log})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(HostTree(tmp_path))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, []),
        ({"critical_warning": 0x04}, [("disk-failing", "nvme0", ("0x04",))]),
        ({"critical_warning": 0x0A}, [("disk-failing", "nvme0", ("0x08",)),
                                      ("disk-failing", "nvme0", ("0x02",))]),
        ({"critical_warning": 0x80}, []),
        ({"media_errors": 99}, []),
        ({"media_errors": 100}, [("disk-errors", "nvme0", ())]),
        ({"percentage_used": 99}, []),
        ({"percentage_used": 100}, [("disk-worn", "nvme0", ())]),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_disk_of_nvme_says(
    machine: Machine, values: dict[str, int], found: list[object]
) -> None:
    assert machine.looks.look() == ()
    machine.nvme(**values)
    assert named(machine.looks.look(600)) == found
    machine.nvme()
    machine.looks.look(600)
    assert machine.looks.look(600) == (), "it was replaced"


def test_a_disk_that_is_read_only_asks_to_be_replaced_and_a_warm_one_for_nothing(
    machine: Machine,
) -> None:
    machine.nvme(critical_warning=0x08 | 0x02)
    worst, mild = machine.looks.look()
    assert (worst.verdict.severity, worst.verdict.action) == (Severity.CRITICAL, Action.REPLACE)
    assert (mild.verdict.severity, mild.verdict.action) == (Severity.WARNING, Action.WATCH)


def test_a_disk_of_ata_that_fails_or_has_sectors_that_cannot_be_read(machine: Machine) -> None:
    machine.says("sda", {**ATA, "smart_status": {"passed": False}})
    assert named(machine.looks.look()) == [("disk-failing", "sda", ())]
    table = [{"id": 197, "raw": {"value": 100}}]
    machine.says("sda", {**ATA, "ata_smart_attributes": {"table": table}})
    assert ("disk-errors", "sda", ()) in named(machine.looks.look(600))


def test_a_disk_that_cannot_be_asked_leaves_the_others_judged(machine: Machine) -> None:
    said = {"smartctl": {"exit_status": 2, "messages": [{"string": "Permission denied"}]}}
    machine.says("sda", said)
    machine.nvme(critical_warning=4)
    assert len(machine.looks.look()) == 1
    assert machine.looks.health().unreadable == ("sda: smartctl: Permission denied",)
    machine.says("nvme0", said)
    assert len(machine.looks.look(600)) == 1, "what is not seen is not over"
    assert machine.looks.health().state is SourceState.BLIND


def test_limits_can_be_switched_off(machine: Machine) -> None:
    given = changed(SETTINGS, "smart", errors_max=0, worn_percent_max=0)
    looks = Looks(machine.tree, smart.SOURCE, settings=given, host=machine.looks.host)
    machine.nvme(media_errors=9999, percentage_used=200)
    assert looks.look() == ()


def test_nvme_is_asked_where_there_is_no_smartctl(tmp_path: Path) -> None:
    machine = Machine(HostTree(tmp_path), "nvme")
    machine.says("nvme0", {"critical_warning": 4, "media_errors": 0, "percent_used": 101})
    assert {fault.identity.check for fault in machine.looks.look()} == {
        "disk-failing", "disk-worn",
    }  # fmt: skip
    assert machine.looks.health().unreadable == (), "disks of ATA are not asked"


def test_without_either_tool_and_without_disks_it_is_skipped(tmp_path: Path) -> None:
    machine = Machine(HostTree(tmp_path), "other")
    assert machine.looks.look() == ()
    assert machine.looks.health().state is SourceState.SKIPPED
    bare = Looks(machine.tree, smart.SOURCE)
    assert bare.look() == ()
    assert "container" in bare.health().why


def test_a_run_that_hangs_is_given_up_and_its_disk_is_not_asked_meanwhile(
    machine: Machine,
) -> None:
    asked: list[str] = []

    class Hanging:
        def poll(self) -> int | None:
            return None if len(asked) < 2 else 0

    def run(_tool: Path, _seconds: float, *arguments: str, **_: object) -> object:
        asked.append(arguments[-1])
        return smart.ProgramOutcome(None, why="hangs", leftover=Hanging())  # type: ignore[arg-type]

    machine.tree.remove("sys/block/sda/size")
    (machine.tree.root / "sys/block/sda").rmdir()
    reader = smart.SmartReader(machine.looks.host, run)  # type: ignore[arg-type]
    for expected in (1, 1, 1):
        disks, unreadable = reader.read()
        assert disks == {}
        assert unreadable[0].startswith("nvme0: ")
        assert len(asked) == expected


def test_words_of_the_tools_are_read() -> None:
    assert parse_smartctl(json.dumps(NVME)) == DiskHealth(True, 0, 0, 3)
    assert parse_smartctl(json.dumps(ATA)) == DiskHealth(True)
    assert parse_nvme('{"critical_warning":0,"percent_used":7}') == DiskHealth(worn_percent=7)
    for text in ("", "[]", '{"smartctl":{"exit_status":1}}', "{}"):
        with pytest.raises(OSError, match="smartctl"):
            parse_smartctl(text)
