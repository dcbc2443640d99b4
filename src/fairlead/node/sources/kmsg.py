"""Reads the kernel's log from /dev/kmsg (Documentation/ABI/testing/dev-kmsg).

One read gives one record, and fails with EINVAL where the buffer is smaller than that, so it is
8192 bytes. When records were overwritten before they were read, a read fails with EPIPE, and the
next one gives the oldest record that is left; what was lost shows in the sequence numbers. The
device is opened once: a new descriptor would begin with the oldest record. In place of the device
there may be a file, which is read like a log that grows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairlead.node.running.host import Absent, Host, whole_number

READ_BYTES = 8192
#: One look takes at most so many records; the rest waits for the next one.
RECORDS_MAX = 20_000
#: Overwritten again and again: the look ends with what it has.
OVERRUNS_MAX = 1_000
LINE_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """A record of the kernel's log; `uptime_seconds` is when it was written.

    Numbers of records that follow each other do so, too, where `is_after_gap` is None; else it says
    whether something before this record may not have been read.
    """

    sequence: int
    uptime_seconds: float
    text: str
    is_after_gap: bool | None = None


class LogDevice:
    """An open /dev/kmsg, or a file in its place."""

    def __init__(self, path: Path) -> None:
        """Open it; OSError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Return what is next, b"" at the end of a file; OSError (EAGAIN: nothing is there)."""
        return os.read(self._descriptor, READ_BYTES)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


class KmsgReader:
    """Reads what was written since the last read."""

    def __init__(self, host: Host, opened: Callable[[Path], LogDevice] = LogDevice) -> None:
        self._path = host.path("dev/kmsg")
        self._opened = opened
        self._device: LogDevice | None = None
        self._rest = b""
        self._has_more = False

    def has_more(self) -> bool:
        """True when the last read left records behind."""
        return self._has_more

    def read(self) -> tuple[KmsgRecord, ...]:
        """Return the records in their order; Absent when there is no log, OSError."""
        device = self._device or self._open()
        self._has_more = False
        found: list[KmsgRecord] = []
        overruns = 0
        while len(found) < RECORDS_MAX and overruns < OVERRUNS_MAX:
            try:
                data = device.read()
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    break
                if error.errno == errno.EPIPE:
                    overruns += 1
                    continue
                self._device = None  # the next read opens it again; known records are skipped
                device.close()
                raise
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > READ_BYTES:
                self._rest = b""
            found.extend(record for line in lines if (record := parse_record(line)))
        self._has_more = len(found) >= RECORDS_MAX or overruns >= OVERRUNS_MAX
        return tuple(found)

    def _open(self) -> LogDevice:
        try:
            self._device = self._opened(self._path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Absent("no dev/kmsg") from error
        self._rest = b""
        return self._device


def parse_record(line: bytes) -> KmsgRecord | None:
    """Return the record that a line is; None for what is none, such as the keys below a record."""
    if not line or line[:1] == b" ":
        return None
    head, _, text = line.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3:
        return None
    sequence, microseconds = (whole_number(each.decode("ascii", "replace")) for each in fields[1:3])
    if sequence is None or microseconds is None:
        return None
    return KmsgRecord(
        sequence, microseconds / 1e6, text[:LINE_BYTES_MAX].decode("utf-8", "replace")
    )
