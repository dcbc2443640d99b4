"""Judges the kernel's log: Xid and SXid lines of NVIDIA's drivers, GPUs that fell off the bus, and
the lines of other drivers that `kernel_lines.toml` has.

A line is known by its sequence number, which begins again at each boot. So lines that were read
before a restart are skipped, and lines that were lost are counted. A GPU that "has fallen off the
bus" is Xid 79 whether the driver says the number or not: one fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import inf
from pathlib import Path

import msgspec

from fairlead.model.health.faults import Identity, Moment, Observation, identity, observed
from fairlead.node.kernel_lines import KernelLines
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource
from fairlead.node.sources.kmsg import KmsgRecord, LogDevice
from fairlead.node.sources.syslog import KernelLogReader
from fairlead.node.sources.syslog import kernel_log as syslog
from fairlead.node.xids import FELL_OFF, RECOVERY_ACTION, XidCode, XidTable

XID, SXID = "gpu-xid", "nvswitch-sxid"
#: GPUs whose last code is remembered; a machine has 16 at most.
GPUS_MAX = 256
#: Addresses and identities that are kept: a storm repeats few lines hundreds of thousands of times.
_KEPT_MAX = 1024
_XID = re.compile(r"NVRM: Xid \(([^)]{1,80})\): (\d{1,6})\b")
_SXID = re.compile(r"SXid \(([^)]{1,80})\): (\d{1,6})\b")
_FELL_OFF = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(\S{1,80}).{0,80} has fallen off the bus"
)
_ADDRESS = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)
_NO_RECOVERY = "to 0x0 "


class KernelLogMemory(msgspec.Struct, frozen=True):
    """The last record that was judged, and when a code was last seen on each GPU (uptime).

    `is_by_call`: its number is one of syslog(2), and says nothing of those of the device.
    """

    sequence: int = -1
    is_by_call: bool = False
    led_at: dict[str, float] = {}


@dataclass(slots=True)
class _Lines:
    """Takes the lines of one read."""

    table: XidTable
    others: KernelLines
    burst_seconds: int
    led_at: dict[str, float]
    observations: list[Observation] = field(default_factory=list[Observation])
    recovered: set[Identity] = field(default_factory=set[Identity])

    def take(self, text: str, at: Moment) -> None:
        """Judge a line."""
        if "Xid" not in text and "fallen off" not in text:
            self._other(text, at)
        elif match := _XID.search(text):
            self._xid(_address(match[1]), int(match[2]), text, at)
        elif match := _SXID.search(text):
            found = self.table.sxid(int(match[2]), text)
            self._observe(_identity(SXID, _address(match[1]), match[2]), found, text, at)
        elif match := _FELL_OFF.search(text):
            self._xid(_address(match[1]), FELL_OFF, text, at)

    def _other(self, text: str, at: Moment) -> None:
        if found := self.others.line(text):
            of = identity(found.check, found.component)
            self.observations.append(observed(of, found.verdict, f"{found.meaning}: {text}", at))

    def _xid(self, gpu: str, code: int, text: str, at: Moment) -> None:
        of = _identity(XID, gpu, str(code))
        found = self.table.xid(code, text)
        if code == RECOVERY_ACTION and _NO_RECOVERY in text:
            self.observations = [each for each in self.observations if each.identity != of]
            self.recovered.add(of)
            return
        if not found.follows:
            self.led_at[gpu] = at.uptime_seconds
        elif at.uptime_seconds - self.led_at.get(gpu, -inf) <= self.burst_seconds:
            found = msgspec.structs.replace(found, verdict=self.table.consequence())
        self._observe(of, found, text, at)

    def _observe(self, of: Identity, found: XidCode, text: str, at: Moment) -> None:
        self.observations.append(observed(of, found.verdict, f"{found.meaning}: {text}", at))


def judge(
    records: Sequence[KmsgRecord], memory: KernelLogMemory, at: Moment, *, table: XidTable,
    others: KernelLines, burst_seconds: int,
) -> Judged[KernelLogMemory]:  # fmt: skip
    """Return the faults of the records that are new.

    Lost are records between two that follow each other, and before the first one of a log that does
    not begin with the boot.
    """
    lines = _Lines(table, others, burst_seconds, dict(memory.led_at))
    is_by_call = records[-1].is_after_gap is not None if records else memory.is_by_call
    last, lost = memory.sequence if is_by_call is memory.is_by_call else -1, 0
    for record in records:
        if record.sequence <= last:
            continue
        if record.is_after_gap is None:
            lost += record.sequence - last - 1
        elif record.is_after_gap and last >= 0:
            lost += 1  # how many there were, that log does not say
        last = record.sequence
        ago = max(0.0, at.uptime_seconds - record.uptime_seconds)
        lines.take(record.text, Moment(at.time - ago, record.uptime_seconds))
    led_at = {gpu: when for gpu, when in lines.led_at.items()
              if at.uptime_seconds - when <= burst_seconds}  # fmt: skip
    latest = dict(sorted(led_at.items(), key=lambda one: one[1])[-GPUS_MAX:])
    return Judged(
        KernelLogMemory(last, is_by_call, latest), tuple(lines.observations),
        recovered=frozenset(lines.recovered), lost=lost,
    )  # fmt: skip


@lru_cache(_KEPT_MAX)
def _identity(check: str, address: str, code: str) -> Identity:
    return identity(check, address, (code,))


@lru_cache(_KEPT_MAX)
def _address(text: str) -> str:
    """Return a PCI address as all lines write it; what has none stays as it is."""
    match = _ADDRESS.search(text)
    return match[1].lower() if match else text


def source(
    host: Host,
    settings: AgentSettings,
    opened: Callable[[Path], LogDevice] = LogDevice,
    called: Callable[[int], bytes] = syslog,
) -> SignalSource[tuple[KmsgRecord, ...], KernelLogMemory]:
    """Return the source of the kernel's log."""
    gpu = settings.gpu
    others = KernelLines(gpu.stable_seconds)
    judged = partial(judge, table=XidTable(gpu), others=others, burst_seconds=gpu.burst_seconds)
    reader = KernelLogReader(host, opened, called)
    return SignalSource("kernel-log", (XID, SXID, *others.checks), KernelLogMemory, reader.read,
                  judged, period_seconds=1, is_log=True, is_busy=reader.has_more)  # fmt: skip
