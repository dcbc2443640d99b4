"""The progress file: members append JSON lines, the node keeps what the latest says.

A line without its end yet is left for the next look. Lines that cannot be read are reported as
ignored: a training run does not fail over its progress report.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fairlead.api.jobs.job import Progress
from fairlead.api.values.times import format_time
from fairlead.decide.jobs.progress import after_ignored, after_line, decode_line

READ_BYTES_MAX = 256 * 1024


class ProgressFile:
    """Follows one file. After a restart of the node it reads the end of the file again."""

    def __init__(self, path: Path, known: Progress | None = None) -> None:
        """`known` is what was reported before, from the pod's annotation."""
        self.path = path
        self.latest = known
        self._offset: int | None = None

    def look(self, now: float) -> bool:
        """Read what is new; True when `latest` changed. A missing file is no news."""
        try:
            size = self.path.stat().st_size
            if self._offset is None:
                self._offset = max(size - READ_BYTES_MAX, 0)
            if size < self._offset:  # written again from its start
                self._offset = 0
            if size == self._offset:
                return False
            with self.path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(READ_BYTES_MAX)
        except OSError:
            return False
        whole, newline, _ = chunk.rpartition(b"\n")
        if not newline:
            if len(chunk) == READ_BYTES_MAX:  # no line is that long: skip it
                self._offset += READ_BYTES_MAX
            return False
        self._offset += len(whole) + 1
        before = self.latest
        for raw in whole.split(b"\n"):
            self._take(raw, now)
        return self.latest != before

    def _take(self, raw: bytes, now: float) -> None:
        if not raw.strip():
            return
        line = decode_line(raw)
        if line is None:
            self.latest = after_ignored(self.latest, raw)
            return
        self.latest = after_line(self.latest, line, format_time(now))


def encode_progress(progress: Progress) -> str:
    """Return the annotation's text."""
    return msgspec.json.encode(progress).decode()
