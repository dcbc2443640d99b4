"""The log file of a run, for the shim: see `shim.py`. It needs nothing of Fairlead."""

# Importing pathlib would make the shims' server larger for nothing, hence os.path here.
# ruff: noqa: PTH104, PTH108
from __future__ import annotations

import os
from typing import Any

CHUNK_BYTES = 65536
RESERVE_SHARE = 10


class RunLog:
    """The log file of a run: bounded, rotated, and never a reason to fail."""

    def __init__(self, launch: dict[str, Any]) -> None:
        """Open it; OSError."""
        self.path = launch["log"]
        self.bytes_max = launch["logBytes"]
        self.files_max = launch["logFiles"]
        self.reserve_bytes = launch["reserveBytes"]
        self.dropped = 0
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(self.path, flags, 0o600)
        self.size = os.fstat(self.descriptor).st_size

    def write(self, data: bytes) -> None:
        """Append, or count what the disk does not take."""
        try:
            self._check_space(len(data))
            if self.dropped:
                note = (
                    f"\n[fairlead: {self.dropped} bytes of output are missing: the disk was full]\n"
                )
                self._append(note.encode())
                self.dropped = 0
            while data:
                data = data[self._append(data) :]
        except OSError:
            self.dropped += len(data)

    def _append(self, data: bytes) -> int:
        if self.size >= self.bytes_max:
            self._rotate()
        # A line that begins before the bound is completed in the same file, if it is not too long.
        room = max(self.bytes_max - self.size, 1)
        end = data.find(b"\n", room - 1, room + CHUNK_BYTES) + 1 or room + CHUNK_BYTES
        written = os.write(self.descriptor, data[:end])
        self.size += written
        return written

    def _rotate(self) -> None:
        """Go on in a new file; OSError, and the old one is used further."""
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, self.files_max))]
        if os.access(self.path, os.F_OK):  # else an earlier attempt got so far
            for number in range(len(names) - 1, 0, -1):
                if os.access(names[number - 1], os.F_OK):
                    os.rename(names[number - 1], names[number])
            if self.files_max == 1:
                os.unlink(self.path)
        before = self.descriptor
        self._open()
        os.close(before)

    def _check_space(self, size: int) -> None:
        """Leave the reserve to others; OSError when there would be no more than that."""
        disk = os.fstatvfs(self.descriptor)
        reserve = min(self.reserve_bytes, disk.f_blocks * disk.f_frsize // RESERVE_SHARE)
        if disk.f_bavail * disk.f_frsize - size < reserve:
            raise OSError("the disk is almost full")
