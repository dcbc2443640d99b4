"""The kernel's log: what is read of it, what is lost, and what its lines mean."""

from __future__ import annotations

import errno
from collections import deque
from pathlib import Path

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, HostTree, Looks, changed, named

from fairlead.model.health.faults import Action, Ending, Recovery, Severity
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Absent
from fairlead.node.settings import AgentSettings, Architecture, CodeVerdict, GpuSettings
from fairlead.node.source import SourceState
from fairlead.node.sources import kernel_log
from fairlead.node.sources.kmsg import (
    READ_BYTES,
    RECORDS_MAX,
    KmsgReader,
    LogDevice,
    parse_record,
)
from fairlead.node.xids import XidTable

GPU = "0000:3b:00"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


@pytest.fixture
def looks(tree: HostTree) -> Looks:
    return Looks(tree, "kernel-log")


class Ring:
    """A device like the kernel's: it keeps the last records, and says EPIPE for the rest."""

    def __init__(self, capacity: int) -> None:
        self.records: deque[tuple[int, bytes]] = deque(maxlen=capacity)
        self.next = 0
        self.overruns = 0
        self.errors: list[int] = []

    def write(self, record: str) -> None:
        number = int(record.split(",")[1])
        self.records.append((number, record.encode()))

    def read(self) -> bytes:
        if self.errors:
            raise OSError(self.errors.pop(), "injected")
        left = [each for each in self.records if each[0] >= self.next]
        if not left:
            raise BlockingIOError(errno.EAGAIN, "nothing is there")
        number, data = left[0]
        if number > self.next:
            self.next = number
            self.overruns += 1
            raise BrokenPipeError(errno.EPIPE, "overwritten")
        assert len(data) <= READ_BYTES, "the kernel says EINVAL"
        self.next = number + 1
        return data

    def close(self) -> None:
        self.next = 0


def watched(tree: HostTree, ring: Ring) -> Looks:
    looks = Looks(tree, "kernel-log")
    host = tree.host()
    looks.sources = (kernel_log.source(host, AgentSettings(), lambda _: ring),)  # type: ignore[arg-type,return-value]
    looks.watch = MachineWatch(looks.sources, Kept(), boot_id=host.boot_id(), now=host.now())
    return looks


def test_of_50_000_lines_at_once_the_gap_is_counted_and_the_last_xid_found(tree: HostTree) -> None:
    ring = Ring(1000)
    looks = watched(tree, ring)
    ring.write(tree.record("booted"))
    assert looks.look() == ()
    assert looks.health().state is SourceState.OK
    for number in range(50_000):
        ring.write(tree.record(f"noise {number}"))
    ring.write(tree.record(f"NVRM: Xid (PCI:{GPU}): 48, pid=1"))
    assert named(looks.look(1)) == [("gpu-xid", GPU, ("48",))]
    assert ring.overruns == 1
    assert looks.health().state is SourceState.LOSSY
    assert looks.health().lost == 50_001 - 1000
    looks.look(1)
    assert looks.health().state is SourceState.OK
    assert looks.health().lost == 50_001 - 1000, "the count stays"


def test_a_device_that_fails_is_blind_and_opened_again_without_losing_or_doubling(
    tree: HostTree,
) -> None:
    ring = Ring(1000)
    looks = watched(tree, ring)
    ring.write(tree.record(f"NVRM: Xid (PCI:{GPU}): 48, a"))
    looks.look()
    ring.errors = [errno.EIO]
    looks.look(1)
    assert looks.health().state is SourceState.BLIND
    ring.write(tree.record(f"NVRM: Xid (PCI:{GPU}): 48, b"))
    (fault,) = looks.look(1)
    assert fault.count == 2
    assert looks.health().lost == 0


def test_of_80_000_equal_lines_there_is_one_fault_with_their_count(tree: HostTree) -> None:
    looks = Looks(tree, "kernel-log")
    source = looks.sources[0]
    line = parse_record(
        tree.record(f"NVRM: Xid (PCI:{GPU}): 95, uncontained").split("\n")[0].encode()
    )
    assert line
    from dataclasses import replace

    for start in range(0, 80_000, RECORDS_MAX):
        facts = tuple(replace(line, sequence=start + n) for n in range(RECORDS_MAX))
        looks.watch.read(source, facts, looks.host.now())
    (fault,) = looks.watch.faults
    assert fault.count == 80_000
    assert len(looks.watch.kept().memories["kernel-log"].document) < 200


def test_two_hundred_xid_45_after_an_abort_ask_for_nothing_on_the_node(
    tree: HostTree, looks: Looks
) -> None:
    tree.xid(45, times=200)
    (alone,) = looks.look()
    assert alone.count == 200
    assert not alone.is_sick
    assert alone.verdict.action is Action.WATCH, "alone it has a verdict of its own"


def test_xid_45_that_follows_another_code_says_nothing(tree: HostTree, looks: Looks) -> None:
    tree.xid(13)
    tree.passes(100)
    tree.xid(45)
    faults = {fault.identity.codes: fault for fault in looks.look()}
    assert faults["45",].verdict.action is Action.NONE
    tree.passes(400)
    tree.xid(45, gpu="0000:5e:00")
    by_gpu = {
        fault.identity.component: fault for fault in looks.look() if "45" in fault.identity.codes
    }
    assert by_gpu["0000:5e:00"].verdict.action is Action.WATCH


def test_the_same_xid_twice_in_a_row_is_two_events_of_one_fault(
    tree: HostTree, looks: Looks
) -> None:
    tree.xid(48)
    looks.look()
    tree.passes(5)
    tree.xid(48)
    (fault,) = looks.look()
    assert fault.count == 2
    assert fault.last_seen - fault.first_seen == 5


def test_xid_62_is_found_in_the_log_alone(tree: HostTree, looks: Looks) -> None:
    tree.xid(62)
    (fault,) = looks.look()
    assert (fault.identity.codes, fault.verdict.action) == (("62",), Action.RESET_GPU)


@pytest.mark.parametrize("with_xid", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2330) has fallen off the bus",
        "NVRM: GPU at PCI:0000:3b:00: GPU-1f2e has fallen off the bus and does not respond.",
    ],
)
def test_a_gpu_that_fell_off_the_bus_is_found_once(
    tree: HostTree, looks: Looks, *, with_xid: bool, line: str
) -> None:
    tree.log(line)
    if with_xid:
        tree.xid(79, "pid=0, GPU has fallen off the bus.")
    faults = looks.look()
    assert named(faults) == [("gpu-xid", GPU, ("79",))]
    assert faults[0].verdict.recovery is Recovery.PERSON


def test_the_recovery_action_of_xid_154_is_that_of_the_driver(tree: HostTree, looks: Looks) -> None:
    change = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    tree.xid(154, change)
    (fault,) = looks.look()
    assert fault.verdict.action is Action.REBOOT
    tree.xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")
    assert looks.look(1) == ()
    assert [each.ending for each in looks.ended] == [Ending.RECOVERED]


def test_what_nvlink_5_calls_nonfatal_is_not_fatal(tree: HostTree, looks: Looks) -> None:
    tree.xid(145, "RLW_REMAP Nonfatal XC0 i0 Link 08")
    assert not looks.look()[0].is_sick
    tree.xid(145, "RLW_REMAP Fatal XC0 i0 Link 08", gpu="0000:5e:00")
    assert looks.look(1)[0].verdict.action is Action.RESET_GPU


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            Severity.CRITICAL,
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 04 RX Short",
            Severity.INFO,
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Non-fatal, egress", Severity.CRITICAL),
    ],
)
def test_of_a_switch_the_list_counts_and_then_its_own_word(
    tree: HostTree, looks: Looks, line: str, severity: Severity
) -> None:
    tree.log(line)
    (fault,) = looks.look()
    assert fault.verdict.severity is severity
    assert fault.identity.component == "0000:c1:00"


def test_a_reboot_ends_what_a_reboot_cures_and_nothing_else(tree: HostTree, looks: Looks) -> None:
    tree.xid(95)
    tree.xid(79, gpu="0000:5e:00")
    tree.xid(31)
    looks.look()
    tree.boots(NEXT_BOOT)
    looks.restart()
    assert {code for _, _, codes in named(looks.look()) for code in codes} == {"79", "31"}
    assert [each.ending for each in looks.ended] == [Ending.BOOT]


def test_a_line_is_judged_once_over_restarts_and_every_line_of_the_next_boot(
    tree: HostTree, looks: Looks
) -> None:
    tree.xid(48)
    looks.look()
    looks.restart()
    (fault,) = looks.look(1)
    assert fault.count == 1
    tree.boots(NEXT_BOOT)
    looks.restart()
    assert looks.look() == ()
    tree.xid(48)
    looks.restart()
    assert len(looks.look(1)) == 1
    assert looks.health().lost == 0


def test_a_code_of_an_application_is_over_when_it_was_not_seen_for_a_day(
    tree: HostTree, looks: Looks
) -> None:
    tree.xid(31)
    looks.look()
    assert len(looks.looks(23, 3600)) == 1
    tree.xid(31)
    assert len(looks.looks(23, 3600)) == 1, "the clock began again"
    assert looks.look(3700) == ()
    assert looks.ended[-1].ending is Ending.STABLE_TIME


def test_lost_lines_begin_that_day_again(tree: HostTree, looks: Looks) -> None:
    tree.xid(31)
    looks.look()
    tree.passes(23 * 3600)
    tree.lines += 10
    tree.log("after a gap")
    looks.look()
    assert looks.health().lost == 10
    assert len(looks.looks(23, 3600)) == 1
    assert looks.look(3700) == ()


def test_codes_of_the_catalogue_have_their_verdicts() -> None:
    table = XidTable(GpuSettings())
    assert table.xids == tuple(sorted({
        8, 11, 13, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 46, 48, 54, 60, 62, 63, 64, 66, 67,
        68, 69, 70, 71, 72, 74, 75, 76, 77, 78, 79, 80, 82, 83, 84, 85, 86, 88, 89, 92, 93, 94, 95,
        *range(96, 106), 109, 110, 119, 120, 121, *range(126, 136), 136, 137, 139, 140, 141, 142,
        143, *range(144, 152), 154, 155, 156, 157, 158, 159, *range(160, 166), 167, 168, 169, 171,
        172,
    }))  # fmt: skip
    by_action: dict[Action, set[int]] = {}
    for code in table.xids:
        by_action.setdefault(table.xid(code, "").verdict.action, set()).add(code)
    assert by_action[Action.RESET_GPU] == {
        46, 48, 62, 74, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 158, 169,
        171, 172,
    }  # fmt: skip
    assert by_action[Action.REBOOT] == {151, 167}
    assert by_action[Action.REPLACE] == {64, 79, 142}
    assert by_action[Action.ASK_PERSON] == {54, 168}
    assert by_action[Action.WATCH] == {45, 63, 92, 94, 154, 156, 157, 159, 164, 165}
    assert all(
        table.xid(code, "").verdict.severity is Severity.CRITICAL
        for action in (Action.REBOOT, Action.REPLACE, Action.ASK_PERSON)
        for code in by_action[action]
    )


def test_what_the_table_does_not_list_is_noted(tree: HostTree, looks: Looks) -> None:
    tree.xid(999)
    (fault,) = looks.look()
    assert (fault.is_sick, fault.verdict.action) == (False, Action.WATCH)


def test_a_code_of_another_generation_is_unlisted_where_the_generation_is_set() -> None:
    assert XidTable(GpuSettings()).xid(74, "").verdict.action is Action.RESET_GPU
    hopper = XidTable(GpuSettings(architecture=Architecture.HOPPER))
    blackwell = XidTable(GpuSettings(architecture=Architecture.BLACKWELL))
    assert hopper.xid(74, "").verdict.action is Action.RESET_GPU
    assert blackwell.xid(74, "").verdict.action is Action.WATCH


def test_the_cluster_s_own_verdict_replaces_that_of_the_table(tree: HostTree) -> None:
    verdicts = {"63": CodeVerdict(severity=Severity.CRITICAL, action=Action.REPLACE)}
    looks = Looks(tree, "kernel-log", settings=changed(AgentSettings(), "gpu", xid=verdicts))
    tree.xid(63)
    (fault,) = looks.look()
    assert (fault.verdict.action, fault.verdict.recovery) == (Action.REPLACE, Recovery.PERSON)


def test_a_machine_without_a_log_is_skipped(tree: HostTree) -> None:
    tree.remove("dev/kmsg")
    with pytest.raises(Absent):
        KmsgReader(tree.host()).read()


@pytest.mark.parametrize("line", [b"", b" SUBSYSTEM=pci", b"text", b"4,x,1,-;a", b"4;a", b"\xff;"])
def test_what_is_no_record_is_left_out(line: bytes) -> None:
    assert parse_record(line) is None


class Calls:
    """The kernel's log as the call gives it: the last lines of a buffer of a bounded size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lines: list[bytes] = []
        self.error = 0

    def write(self, text: str, at: float) -> None:
        self.lines.append(f"<4>[{at:12.6f}] {text}\n".encode())

    def __call__(self, size: int) -> bytes:
        if self.error:
            raise OSError(self.error, "injected")
        kept, room = [], min(size or self.size, self.size)
        for line in reversed(self.lines):
            room -= len(line)
            if room < 0:
                break
            kept.append(line)
        return b"".join(reversed(kept))


def read_by_call(looks: Looks, calls: Calls) -> Looks:
    """Have the log read as in a container, in which opening the device is refused."""

    def refuse(_: Path) -> LogDevice:
        raise PermissionError(errno.EPERM, "not permitted")

    made = kernel_log.source(looks.host, AgentSettings(), refuse, calls)
    looks.sources = (made,)
    kept = looks.watch.kept()
    looks.watch = MachineWatch(
        looks.sources, kept, boot_id=looks.host.boot_id(), now=looks.host.now()
    )
    return looks


@pytest.fixture
def refused(tree: HostTree) -> HostTree:
    """A machine whose kernel log is a device."""
    kmsg = tree.root / "dev/kmsg"
    kmsg.unlink()
    kmsg.symlink_to("/dev/null")
    return tree


def test_where_the_device_may_not_be_opened_the_log_is_read_by_the_call(refused: HostTree) -> None:
    calls = Calls(1 << 20)
    calls.write("booted", 0.5)
    looks = read_by_call(Looks(refused, "kernel-log"), calls)
    assert looks.look() == ()
    assert looks.health().state is SourceState.OK
    for _ in range(3):  # equal lines at one time are one line
        calls.write(f"NVRM: Xid (PCI:{GPU}): 79, GPU has fallen off the bus.", 3600.25)
    (fault,) = looks.look(1)
    assert (fault.identity.component, fault.identity.codes) == (GPU, ("79",))
    assert fault.first_seen == refused.now() - 0.75
    before = fault.count
    assert [each.count for each in looks.look(1)] == [before], "nothing is new"
    read_by_call(looks, calls)  # another process reads all of the log again
    assert [each.count for each in looks.look(1)] == [before]
    assert looks.health().lost == 0


def test_of_a_log_read_by_the_call_what_was_overwritten_is_known_and_the_last_xid_found(
    refused: HostTree,
) -> None:
    calls = Calls(100_000)
    calls.write("booted", 0.5)
    looks = read_by_call(Looks(refused, "kernel-log"), calls)
    looks.look()
    for number in range(1000):  # more than the tail that a look reads, less than the log has
        calls.write(f"noise {number} " + "x" * 30, 3600 + number / 1e6)
    looks.look(1)
    assert (looks.health().state, looks.health().lost) == (SourceState.OK, 0)
    for number in range(50_000):
        calls.write(f"noise {number}", 3602 + number / 1e6)
    calls.write(f"NVRM: Xid (PCI:{GPU}): 48, pid=1", 3603)
    assert named(looks.look(1)) == [("gpu-xid", GPU, ("48",))]
    assert (looks.health().state, looks.health().lost) == (SourceState.LOSSY, 1)
    for number in range(50_000):
        calls.write(f"noise {number}", 3604 + number / 1e6)
    read_by_call(looks, calls).look(1)
    assert looks.health().lost == 2, "also what was lost while no agent ran"


def test_a_log_read_by_the_call_that_may_not_be_made_or_has_no_time_is_blind(
    refused: HostTree,
) -> None:
    calls = Calls(1 << 20)
    looks = read_by_call(Looks(refused, "kernel-log"), calls)
    calls.error = errno.EPERM
    looks.look()
    assert looks.health().state is SourceState.BLIND
    calls.error = 0
    calls.lines.append(b"<4>no time\n")
    looks.look(1)
    assert looks.health().state is SourceState.BLIND
    assert "printk.time" in looks.health().why
    calls.write("a line with a time", 3700)
    looks.look(1)
    assert looks.health().state is SourceState.OK


def test_numbers_of_the_device_begin_again_after_the_call(refused: HostTree) -> None:
    calls = Calls(1 << 20)
    calls.write("booted", 0.5)
    looks = read_by_call(Looks(refused, "kernel-log"), calls)
    looks.look()
    (refused.root / "dev/kmsg").unlink()
    refused.log(f"NVRM: Xid (PCI:{GPU}): 48, pid=1")
    looks.restart()
    assert named(looks.look(1)) == [("gpu-xid", GPU, ("48",))]


def test_a_file_that_may_not_be_read_is_no_reason_to_read_the_log_of_another_machine(
    tree: HostTree,
) -> None:
    looks = read_by_call(Looks(tree, "kernel-log"), Calls(0))
    looks.look()
    assert looks.health().state is SourceState.BLIND
