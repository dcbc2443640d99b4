"""What disks say of themselves: SMART of ATA and NVMe, by smartctl or nvme where there is one.

A controller that is failing says so before the kernel sees an error. The tools are the machine's
own, run as an administrator's checks are: killed with their group when they take too long, and not
started again for a disk while the last run hangs in the kernel. Without them the source is skipped.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from fairlead.model.health.faults import (
    Action,
    Identity,
    Moment,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.devices import read_each
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.program_run import ProgramOutcome, run
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, Nothing, SignalSource

SOURCE = "smart"
FAILING, ERRORS, WORN = "disk-failing", "disk-errors", "disk-worn"
_PERIOD_SECONDS = 600
_DISK_SECONDS = 10.0
_DISKS_MAX = 64
_OUTPUT_BYTES_MAX = 1 << 18
#: Namespaces of one NVMe controller share its log; disks of SATA, SAS and USB.
_NVME, _SCSI = re.compile(r"(nvme\d+)n\d+"), re.compile(r"sd[a-z]+")
#: smartctl(8): what it was asked is wrong, or the device cannot be opened.
_NOT_READ = 0b11
_ASK, _NOTE = (Severity.WARNING, Action.ASK_PERSON), (Severity.INFO, Action.WATCH)
_REPLACE, _WATCH = (Severity.CRITICAL, Action.REPLACE), (Severity.WARNING, Action.WATCH)
#: NVM Express base specification, SMART / Health Information: Critical Warning.
_WARNINGS = {
    0x01: ("the spare is below its threshold", _ASK),
    0x02: ("its temperature is beyond a threshold", _WATCH),
    0x04: ("it is degraded", _REPLACE),
    0x08: ("it is read-only", _REPLACE),
    0x10: ("the backup of its memory failed", _ASK),
    0x20: ("its persistent memory is read-only", _ASK),
}
#: ATA: sectors that wait to be written again, and those that cannot be read.
_UNREADABLE = (197, 198)


@dataclass(frozen=True, slots=True)
class DiskHealth:
    """What a disk says. `passed` is None, and a number 0, where it does not."""

    passed: bool | None = None
    warnings: int = 0
    errors: int = 0
    worn_percent: int = 0


Number: TypeAlias = int | float
T = TypeVar("T")


class _Status(msgspec.Struct):
    passed: bool | None = None


class _NvmeHealth(msgspec.Struct):
    critical_warning: Number = 0
    media_errors: Number = 0
    percentage_used: Number = 0
    #: As nvme calls it.
    percent_used: Number = 0

    def health(self, *, passed: bool | None = None) -> DiskHealth:
        worn = max(self.percentage_used, self.percent_used)
        counts = map(_count, (self.critical_warning, self.media_errors, worn))
        return DiskHealth(passed, *counts)


def _count(number: Number) -> int:
    """Return a count, of which some have 128 bits in the log of a disk."""
    return int(min(max(number, 0), 1 << 62))


class _Raw(msgspec.Struct):
    value: Number = 0


class _Attribute(msgspec.Struct):
    id: int
    raw: _Raw = msgspec.field(default_factory=_Raw)


class _Attributes(msgspec.Struct):
    table: list[_Attribute] = []


class _Message(msgspec.Struct):
    string: str = ""


class _Run(msgspec.Struct):
    exit_status: int = 0
    messages: list[_Message] = []


class _Smartctl(msgspec.Struct):
    smartctl: _Run = msgspec.field(default_factory=_Run)
    smart_status: _Status = msgspec.field(default_factory=_Status)
    nvme_smart_health_information_log: _NvmeHealth | None = None
    ata_smart_attributes: _Attributes | None = None


def parse_smartctl(text: str) -> DiskHealth:
    """Return what `smartctl --json -H -A DISK` says; OSError where that is nothing."""
    said = _decoded(text, _Smartctl, "smartctl")
    passed, ran = said.smart_status.passed, said.smartctl
    if ran.exit_status & _NOT_READ:
        why = ran.messages[0].string if ran.messages else f"exit code {ran.exit_status}"
        raise OSError(f"smartctl: {why[:80]}")
    if (nvme := said.nvme_smart_health_information_log) is not None:
        return nvme.health(passed=passed)
    attributes = said.ata_smart_attributes
    if attributes is None:
        if passed is None:
            raise OSError("smartctl: the disk says nothing")
        return DiskHealth(passed)
    counts = [_count(each.raw.value) for each in attributes.table if each.id in _UNREADABLE]
    return DiskHealth(passed, errors=max(counts, default=0))


def parse_nvme(text: str) -> DiskHealth:
    """Return what `nvme smart-log -o json DISK` says; OSError where that is nothing."""
    return _decoded(text, _NvmeHealth, "nvme").health()


def _decoded(text: str, type_: type[T], tool: str) -> T:
    try:
        return msgspec.json.decode(text, type=type_)
    except ValueError as error:
        raise OSError(f"{tool} wrote no JSON that is known: {str(error)[:80]}") from error


class SmartReader:
    """Asks each disk, one after another. Used by one thread."""

    def __init__(self, host: Host, run: Callable[..., ProgramOutcome] = run) -> None:
        self._host, self._run = host, run
        self._hanging: dict[str, subprocess.Popen[bytes]] = {}

    def read(self) -> tuple[dict[str, DiskHealth], tuple[str, ...]]:
        """Return what each disk says, and what of them could not be asked; Absent, OSError."""
        disks = self._disks()
        try:
            tool, arguments, parse = self._host.program("smartctl"), _SMARTCTL, parse_smartctl
        except Absent:
            tool, arguments, parse = self._host.program("nvme"), _NVME_LOG, parse_nvme
            disks = [each for each in disks if each.startswith("nvme")]
        if not disks:
            raise Absent("no disk that says how it does")
        return read_each(disks, lambda disk: parse(self._ask(tool, disk, arguments)))

    def _disks(self) -> list[str]:
        """Return the controllers of NVMe and the other disks; Absent."""
        found: dict[str, None] = {}
        for name in self._host.names("sys/block"):
            if (nvme := _NVME.fullmatch(name)) is not None:
                found[nvme[1]] = None
            elif _SCSI.fullmatch(name):
                found[name] = None
        return list(found)[:_DISKS_MAX]

    def _ask(self, tool: Path, disk: str, arguments: tuple[str, ...]) -> str:
        hanging = self._hanging.get(disk)
        if hanging is not None and hanging.poll() is None:
            raise OSError("its last look still hangs in the kernel")
        outcome = self._run(
            tool, _DISK_SECONDS, *arguments, f"/dev/{disk}", output_bytes_max=_OUTPUT_BYTES_MAX
        )
        self._hanging.pop(disk, None)
        if outcome.leftover is not None:
            self._hanging[disk] = outcome.leftover
        if outcome.code is None:
            raise OSError(f"{tool.name} {outcome.why}")
        return outcome.text


#: A disk that sleeps is not woken.
_SMARTCTL = ("--json", "--health", "--attributes", "--nocheck=standby")
_NVME_LOG = ("smart-log", "--output-format=json")


def judge(
    facts: tuple[dict[str, DiskHealth], tuple[str, ...]],
    memory: Nothing,
    at: Moment,
    *,
    settings: AgentSettings,
) -> Judged[Nothing]:
    """Give a fault for each warning of a disk, and for what its limits say of its counts."""
    disks, unreadable = facts
    limits, stable = settings.smart, settings.stable_seconds
    found: list[tuple[Identity, str, tuple[Severity, Action]]] = []
    for disk, health in disks.items():
        known = [bit for bit in _WARNINGS if health.warnings & bit]
        for bit in known:
            text, verdict = _WARNINGS[bit]
            found.append((identity(FAILING, disk, (f"{bit:#04x}",)), text, verdict))
        if health.passed is False and not known:
            found.append((identity(FAILING, disk), "it says that it fails", _REPLACE))
        if limits.errors_max and health.errors >= limits.errors_max:
            text = f"{health.errors:,} errors of its medium"
            found.append((identity(ERRORS, disk), text, _ASK))
        if limits.worn_percent_max and health.worn_percent >= limits.worn_percent_max:
            text = f"{health.worn_percent} % of its life is used"
            found.append((identity(WORN, disk), text, _NOTE))
    observations = tuple(
        observed(of, steady(*verdict, stable), text, at) for of, text, verdict in found
    )
    return Judged(memory, observations, frozenset(disks), unreadable=unreadable)


def source(
    host: Host, settings: AgentSettings
) -> SignalSource[tuple[dict[str, DiskHealth], tuple[str, ...]], Nothing]:
    """Return the source of what disks say of themselves."""
    return SignalSource(
        SOURCE, (FAILING, ERRORS, WORN), Nothing, SmartReader(host).read,
        partial(judge, settings=settings), period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
