"""Reads the kernel's log by syslog(2), where the device may not be opened.

The control group of a container that is not privileged refuses /dev/kmsg whatever its capabilities
are; the call takes CAP_SYSLOG and no device. It gives the end of the log as text, without sequence
numbers: what is new follows the last line of the read before. So that something was overwritten
unread is known, and not how much of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.node.running.host import Host
from fairlead.node.sources.kmsg import LINE_BYTES_MAX, KmsgReader, KmsgRecord, LogDevice

_READ_ALL, _SIZE_BUFFER = 3, 10
#: What one look reads, unless more was written since the last one.
_TAIL_BYTES = 16 << 10
#: The call adds the time to each line: its text is longer than the kernel's buffer.
_BYTES_MAX = 64 << 20
#: Lines that were written in one microsecond.
_AT_ONCE_MAX = 1024
_LINE = re.compile(rb"<\d+>\[ *(\d{1,12})\.(\d{6})\](?:\[ *[TC]\d+\])? ?(.*)")


def kernel_log(size: int) -> bytes:
    """Return the last lines of the kernel's log, at most `size` bytes, 0: all; OSError."""
    call = ctypes.CDLL(None, use_errno=True).klogctl
    if not size:
        size = min(2 * _checked(call(_SIZE_BUFFER, None, 0)), _BYTES_MAX)
    buffer = ctypes.create_string_buffer(size)
    length = _checked(call(_READ_ALL, buffer, size))
    return buffer.raw[:length]


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syslog(2), which takes CAP_SYSLOG: {os.strerror(number)}")
    return result


class SyslogReader:
    """Reads what was written since the last read; at first all of the log."""

    def __init__(self, called: Callable[[int], bytes] = kernel_log) -> None:
        self._called = called
        self._last = b""
        self._sequence = -1

    def read(self) -> tuple[KmsgRecord, ...]:
        """Return the records in their order; OSError."""
        lines = self._called(_TAIL_BYTES if self._last else 0).splitlines()
        new = _after(lines, self._last)
        if new is None and self._last:
            lines = self._called(0).splitlines()
            new = _after(lines, self._last)
        is_gap = new is None
        found: list[KmsgRecord] = []
        for line in lines if new is None else new:
            record = self._record(line, is_after_gap=is_gap and not found)
            if record is not None:
                found.append(record)
                self._last = line
        if lines and not self._last:
            raise OSError("lines of the kernel's log have no time: printk.time is off")
        return tuple(found)

    def _record(self, line: bytes, *, is_after_gap: bool) -> KmsgRecord | None:
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        microseconds = int(match[1]) * 1_000_000 + int(match[2])
        # The same number in the next process: the time, and the place among lines of that time.
        self._sequence = max(self._sequence + 1, microseconds * _AT_ONCE_MAX)
        text = match[3][:LINE_BYTES_MAX].decode("utf-8", "replace")
        return KmsgRecord(self._sequence, microseconds / 1e6, text, is_after_gap=is_after_gap)


def _after(lines: Sequence[bytes], last: bytes) -> Sequence[bytes] | None:
    """Return the lines that follow the last one that was read; None where it is not among them."""
    for index in range(len(lines) - 1, -1, -1):
        if last and lines[index] == last:
            return lines[index + 1 :]
    return None


class KernelLogReader:
    """Reads the device, and by the call where there is one that may not be opened."""

    def __init__(
        self,
        host: Host,
        opened: Callable[[Path], LogDevice] = LogDevice,
        called: Callable[[int], bytes] = kernel_log,
    ) -> None:
        self._path = host.path("dev/kmsg")
        self._device = KmsgReader(host, opened)
        self._syslog = SyslogReader(called)
        self._is_by_call = False

    def has_more(self) -> bool:
        """True when the last read left records behind."""
        return self._device.has_more()

    def read(self) -> tuple[KmsgRecord, ...]:
        """Return the records in their order; Absent when there is no log, OSError."""
        if not self._is_by_call:
            try:
                return self._device.read()
            except PermissionError:
                if not stat.S_ISCHR(self._path.stat().st_mode):
                    raise
            self._is_by_call = True
        return self._syslog.read()
