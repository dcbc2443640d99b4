"""The file of reports: members append JSON lines, the node keeps what they say.

Lines of progress count by the latest, facts of a run (`fairlead.run`) all together. A line without
its end yet is left for the next look. Lines that cannot be read are reported as ignored: a training
run does not fail over its reports.

A node that was restarted reads the file again from its start. It is read in pieces, since the loop
does other things as well; of a file that grows faster, the middle is passed over, and the facts are
then called partial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Progress
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.run_facts import encode_run
from fairlead.decide.jobs.following.own_work import OwnWork, encode_work, work_of
from fairlead.decide.jobs.following.progress import after_ignored, after_line, decode_line, is_fact
from fairlead.run import RunFold

READ_BYTES_MAX = 128 * 1024
#: What is not read yet; of more, the latest piece alone is.
BEHIND_BYTES_MAX = 128 << 20
#: Seconds between two writes of a run's facts while its program runs.
_RUN_SECONDS = 5.0
#: The same of how long it works on a step.
_WORK_SECONDS = 30.0


class ProgressFile:
    """Follows one file."""

    def __init__(self, path: Path, known: Progress | None = None) -> None:
        """`known` is what was reported before, from the pod's annotation."""
        self.path = path
        self.latest = known
        self.run = RunFold()
        self.work: OwnWork | None = None
        #: The end of the file is further on.
        self.is_behind = False
        self._offset = 0

    def look(self, now: float) -> bool:
        """Read the next piece; True when `latest` changed. A missing file is no news."""
        self.is_behind = False
        try:
            size = self.path.stat().st_size
            if size < self._offset:  # written again from its start
                self._offset = 0
            is_cut = size - self._offset > BEHIND_BYTES_MAX
            if is_cut:
                self._offset = size - READ_BYTES_MAX
                self.run.is_partial = True
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
                self.is_behind = True
            return False
        self._offset += len(whole) + 1
        self.is_behind = len(chunk) == READ_BYTES_MAX
        before = self.latest
        for raw in whole.split(b"\n")[is_cut:]:
            self._take(raw, now)
        return self.latest != before

    def _take(self, raw: bytes, now: float) -> None:
        if not raw.strip() or is_fact(self.run.take(raw)):
            return
        line = decode_line(raw)
        if line is None:
            self.latest = after_ignored(self.latest, raw)
            return
        self.work = work_of(line.work) or self.work
        self.latest = after_line(self.latest, line, format_time(now))


class MemberReports:
    """What the program of one pod reports, from its first look at the file on."""

    def __init__(
        self, write: Callable[[Mapping[str, str]], Awaitable[None]], now: Callable[[], float]
    ) -> None:
        """`write` stores annotations of the pod."""
        self._write = write
        self._now = now
        self._file: ProgressFile | None = None
        self._run_written_at = self._work_written_at = 0.0
        self._written: dict[str, str] = {}

    def begin(self, path: str | None, known: Progress | None) -> None:
        """Follow a file from now on, unless one is followed already, or there is none."""
        if path and self._file is None:
            self._file = ProgressFile(Path(path), known)

    async def follow(self, seconds: float) -> None:
        """Look at the file again and again, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

    async def look(self, *, is_last: bool = False) -> None:
        """Read what is new and write progress, and now and then facts of the run.

        In the last look all is read; the facts are then written with the end of the pod.
        """
        file, now = self._file, self._now()
        if file is None:
            return
        pieces = BEHIND_BYTES_MAX // READ_BYTES_MAX
        for _ in range(pieces if is_last else pieces // 16):
            file.look(now)
            if not file.is_behind:
                break
            await asyncio.sleep(0)
        found = {names.PROGRESS: encode_progress(file.latest)} if file.latest is not None else {}
        if not is_last and now - self._run_written_at >= _RUN_SECONDS and (text := self.run_text()):
            found[names.RUN] = text
        if file.work is not None and (is_last or now - self._work_written_at >= _WORK_SECONDS):
            found[names.WORK] = encode_work(file.work)
        new = {key: text for key, text in found.items() if self._written.get(key) != text}
        if not new:
            return
        if names.RUN in new:
            self._run_written_at = now
        if names.WORK in new:
            self._work_written_at = now
        self._written |= new
        await self._write(new)

    def run_text(self) -> str:
        """Return what is known of the run, as the pod's annotation has it; "" for nothing."""
        return encode_run(self._file.run) if self._file is not None else ""


def encode_progress(progress: Progress) -> str:
    """Return the annotation's text."""
    return msgspec.json.encode(progress).decode()
