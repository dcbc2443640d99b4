"""Follows a log that grows: what is appended, across rotation and truncation, window by window."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fairlead.doctor.audit.files import (
    BLOCK_BYTES,
    LINE_BYTES_MAX,
    LineBatch,
    UnreadableLog,
)
from fairlead.doctor.audit.lines import LineReader
from fairlead.doctor.audit.tally import Tally

POLL_SECONDS = 0.25


class Follower:
    """Reads what is appended to the file of a name from now on; UnreadableLog when there is none.

    When another file takes the name, the rest of the old one is read first. A file that has become
    shorter is read from its start.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - kept open
        except OSError as error:
            raise UnreadableLog(f"'{path}' cannot be read: {error.strerror}") from error
        self._file.seek(0, os.SEEK_END)
        self._begun = b""
        self._drops = False

    def lines(self, tally: Tally) -> LineBatch | None:
        """Return whole lines that were appended; None when there are none at present.

        Lines over the bound are left out and counted.
        """
        while True:
            block = self._file.read(BLOCK_BYTES)
            if not block and not self._turn():
                return None
            data = self._begun + block
            head, feed, self._begun = data.rpartition(b"\n")
            if feed and self._drops:
                head, self._drops = head.partition(b"\n")[2], False
            if len(self._begun) > LINE_BYTES_MAX:
                if not self._drops:
                    tally.skipped[f"lines over {LINE_BYTES_MAX >> 20} MiB"] += 1
                self._begun, self._drops = b"", True
            if head:
                return LineBatch.of(head)

    def _turn(self) -> bool:
        """Go on with a new file of the name, or from the start of a shorter one; False for none."""
        here = os.fstat(self._file.fileno())
        if here.st_size < self._file.tell():
            self._file.seek(0)
            self._begun, self._drops = b"", False
            return True
        try:
            named = Path(self._path).stat()
            if (named.st_dev, named.st_ino) == (here.st_dev, here.st_ino):
                return False
            file = Path(self._path).open("rb", buffering=0)  # noqa: SIM115 - kept open
        except OSError:
            return False  # between two files
        self._file.close()
        self._file = file
        self._begun += b"\n" if self._begun or self._drops else b""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def windows(
    follower: Follower, seconds: float, *, now: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[Tally]:
    """Yield the tally of each window of so many seconds, without end.

    A window has a tally and look-up tables of its own, so memory does not grow with time.
    """
    end = now()
    while True:
        tally = Tally()
        reader = LineReader(tally)
        end = max(end, now() - seconds) + seconds
        while (left := end - now()) > 0:
            batch = follower.lines(tally)
            if batch is None:
                sleep(min(POLL_SECONDS, left))
            else:
                reader.read(batch)
        reader.flush()
        yield tally
