"""Lines of drivers other than NVIDIA's: as kernels print them, and what looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, HostTree, Looks

from fairlead.model.health.faults import Action, Ending, Severity
from fairlead.node.kernel_lines import KernelLines

NIC = "0000:12:00.0"
BAD = [
    (f"mlx5_core {NIC}: wait_func:1137:(pid 9): CREATE_MKEY(0x200) timeout. Will cause a leak of a"
     " command resource", "nic-driver", NIC, Action.REBOOT),
    (f"mlx5_core {NIC}: poll_health:955:(pid 0): device's health compromised - reached miss count",
     "nic-driver", NIC, Action.REBOOT),
    (f"mlx5_core {NIC}: print_health_info:413:(pid 0): synd 0x8: unrecoverable hardware error",
     "nic-driver", NIC, Action.REPLACE),
    (f"mlx5_core {NIC}: mlx5_pcie_event:299:(pid 10): Detected insufficient power on the PCIe slot"
     " (27W).", "nic-power", NIC, Action.WATCH),
    (f"mlx5_core {NIC}: Port module event[error]: module 0, Cable error, High Temperature",
     "nic-temperature", NIC, Action.WATCH),
    ("nvme nvme1: Disabling device after reset failure: -5", "disk-driver", "nvme1",
     Action.REBOOT),
    ("nvme nvme0: Removing after probe failure status: -19", "disk-driver", "nvme0",
     Action.REBOOT),
    ("nvme nvme1: I/O 22 QID 0 timeout, disable controller", "disk-timeout", "nvme1",
     Action.WATCH),
    ("block nvme6n1: no usable path - requeuing I/O", "disk-timeout", "nvme6n1", Action.WATCH),
    ("Buffer I/O error on dev sda1, logical block 0, lost sync page write", "disk-io", "sda1",
     Action.WATCH),
    ("md/raid1:md0: Disk failure on sdb1, disabling device.", "raid-member", "md0",
     Action.ASK_PERSON),
    ("EXT4-fs (nvme0n1p1): I/O error while writing superblock", "filesystem", "nvme0n1p1",
     Action.REBOOT),
    ("XFS (dm-0): Log I/O Error (0x2) detected at xlog_ioend_work. Shutting down filesystem.",
     "filesystem", "dm-0", Action.REBOOT),
    ("{1}[Hardware Error]: event severity: fatal", "machine-check", "machine", Action.REPLACE),
    ("Out of memory: Killed process 4242 (python), UID 0, total-vm:1kB", "out-of-memory",
     "machine", Action.NONE),
]  # fmt: skip
GOOD = [
    f"mlx5_core {NIC}: mlx5_cmd_out_err:832:(pid 3): ACCESS_REG(0x805) op_mod(0x1) failed, status"
    " bad operation(0x2)",
    f"mlx5_core {NIC}: Port module event: module 0, Cable plugged",
    f"mlx5_core {NIC}: wait_func_handle_exec_timeout:1108:(pid 7): cmd[0]: QUERY_VPORT(0x750)"
    " recovered after timeout",
    "nvme nvme0: 16/0/0 default/read/poll queues",
    "md/raid1:md0: active with 2 out of 2 mirrors",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "XFS (dm-0): Ending clean mount",
    "{1}[Hardware Error]: event severity: corrected",
    "Memory cgroup out of memory: Killed process 7 (python)",
    # Programs choose their names.
    "traps: nvme nvme1: Disabling device after reset failure[7] trap",
    "audit: comm=\"Out of memory: Killed process 1\"",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "check", "component", "action"), BAD, ids=[b[0][:40] for b in BAD]
)
def test_a_line_of_a_driver_that_gives_up_is_a_fault(
    tmp_path: Path, text: str, check: str, component: str, action: Action
) -> None:
    tree = HostTree(tmp_path)
    looks = Looks(tree, "kernel-log")
    tree.log(*[text] * 5)
    (fault,) = looks.look(1)
    assert (fault.identity.check, fault.identity.component) == (check, component)
    assert (fault.verdict.action, fault.count) == (action, 5)
    assert text[:60] in fault.evidence


def test_each_row_of_the_table_has_its_line() -> None:
    lines = KernelLines(86_400)
    assert {check for _, check, _, _ in BAD} == set(lines.checks)
    assert all(lines.line(text) for text, *_ in BAD)


def test_lines_of_drivers_that_do_well_or_only_look_alike_are_none(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    looks = Looks(tree, "kernel-log")
    tree.log(*GOOD)
    assert looks.look(1) == ()


def test_what_asks_for_a_reboot_ends_with_one_and_what_is_watched_after_a_day(
    tmp_path: Path,
) -> None:
    tree = HostTree(tmp_path)
    looks = Looks(tree, "kernel-log")
    tree.log("nvme nvme1: Disabling device after reset failure: -5", GOOD[0])
    tree.log("block nvme6n1: no usable path - requeuing I/O")
    assert {fault.verdict.severity for fault in looks.look(1)} == {
        Severity.CRITICAL, Severity.WARNING,
    }  # fmt: skip
    looks.look(86_400)
    looks.look(10)
    assert [each.ending for each in looks.ended] == [Ending.STABLE_TIME]
    tree.boots(NEXT_BOOT)
    looks.restart()
    assert looks.look(1) == ()
    assert looks.ended[-1].ending is Ending.BOOT
