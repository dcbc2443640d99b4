"""What can be asked of the log of decisions, and how it is answered: as JSON lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial

import msgspec

from fairlead.api.status import BadRequest, Expired, Unavailable
from fairlead.app.queries.archive_query import Runner, whole
from fairlead.app.queries.decision_file import digest_of, write_lines, writes_of
from fairlead.app.queries.messages import NOT_LEADER, DecisionLine
from fairlead.controllers.placing.decision_log import CYCLES_MAX, Cycle, DecisionLog

LIMIT_DEFAULT = 20
#: What is made at a time, in a thread: the text of a decision may take a second.
PIECE_BYTES_MAX = 1 << 20
_DIGITS_MAX = 15


async def decision_lines(
    log: DecisionLog | None, parameters: Mapping[str, str], runner: Runner
) -> bytes:
    """Return the latest decisions as JSON lines, the latest first; ApiError.

    `log` is None where no scheduler runs.
    """
    limit = whole(parameters, "limit", most=CYCLES_MAX) or LIMIT_DEFAULT
    cycles = _running(log).cycles[:limit]
    return await runner(partial(_lines, cycles))


async def decision_file(
    log: DecisionLog | None, number: str, runner: Runner
) -> AsyncIterator[bytes]:
    """Yield the file of a decision; ApiError before the first piece."""
    if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX):
        raise BadRequest(f"'{number[:_DIGITS_MAX]}' is not the number of a decision")
    found = _running(log).snapshot(int(number))
    if found is None:
        raise Expired(f"decision {number} is not kept, or not any more")
    lines = write_lines(*found)
    while piece := await runner(partial(_next_piece, lines)):
        yield piece


def _next_piece(lines: Iterator[bytes]) -> bytes:
    """Return lines up to about PIECE_BYTES_MAX; b"" at the end."""
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= PIECE_BYTES_MAX:
            break
    return bytes(piece)


def _running(log: DecisionLog | None) -> DecisionLog:
    if log is None:
        raise Unavailable("no scheduler runs in this process", reason=NOT_LEADER)
    return log


def _lines(cycles: tuple[Cycle, ...]) -> bytes:
    lines = (
        DecisionLine(
            each.number, each.now, each.seconds, each.waiting_count, each.action_counts,
            digest_of(writes_of(each.actions)),
        )
        for each in cycles
    )  # fmt: skip
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
