"""The last lines of the member whose failure ended a job: what a person looks at first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.status import ApiError
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.program_output import TerminalFilter
from fairlead.cli.formats.text import cut_end
from fairlead.cli.records.ended_jobs import past_logs
from fairlead.cli.records.follow import stream
from fairlead.cli.views.jobs import latest_attempt
from fairlead.input.errors import CliError

LINES_MAX = 10
COLUMNS_MAX = 200
#: A program may write one line without an end.
_BYTES_MAX = 256 << 10
#: What `TerminalFilter` leaves.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*[mKCDG]")


@dataclass(frozen=True, slots=True)
class LastLines:
    """The last lines of a member, without colours and cut at the end; of a bar its last state."""

    member: str
    attempt: int
    lines: tuple[str, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """It as data."""
        return asdict(self)


def last_lines(common_: Common, source: Api | Path, job: Job) -> LastLines | None:
    """Return what the member wrote last whose program ended the job; None where no program did, it
    wrote nothing, or its log cannot be read.

    `source` is the cluster, or the data directory of a stopped one. One member's log is read,
    whatever the size of the job.
    """
    attempt = latest_attempt(job)
    if attempt is None or not attempt.member or not attempt.exit_code:
        return None
    try:
        text = _read(common_, source, job, attempt)
    except (ApiError, CliError):
        return None
    lines = shown_lines(text)
    return LastLines(attempt.member, attempt.number, lines) if lines else None


def shown_lines(text: bytes) -> tuple[str, ...]:
    """Return the last lines of a log that are not empty, as they are shown."""
    filtered = TerminalFilter().feed(text, is_last=True)
    return tuple(filter(None, map(_plain, filtered.split("\n"))))[-LINES_MAX:]


def _read(common_: Common, source: Api | Path, job: Job, attempt: Attempt) -> bytes:
    key = job.metadata.key
    query = LogPart(
        task=attempt.member, attempt=attempt.number, tail=LINES_MAX, uid=job.metadata.uid
    )
    if isinstance(source, Path):
        pieces: list[bytes] = []
        past_logs(source, key, query, write=pieces.append)
        return _end_of(pieces)
    return _end_of(stream(common_, source, key, query))


def _end_of(pieces: Iterable[bytes]) -> bytes:
    end = b""
    for piece in pieces:
        end = (end + piece)[-_BYTES_MAX:]
    return end


def _plain(line: str) -> str:
    text = _COLOURS.sub("", line.rstrip("\r").rpartition("\r")[2]).expandtabs(4)
    return cut_end("".join(filter(str.isprintable, text)).rstrip(), COLUMNS_MAX)
