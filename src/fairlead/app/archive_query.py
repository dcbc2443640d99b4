"""What can be asked of an archive, as URL parameters, and how a record is answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import assert_never

import msgspec

from fairlead.api.status import BadRequest
from fairlead.app.messages import Book, FleetLine, HistoryLine
from fairlead.runtime.history import (
    FleetQuery,
    FleetRecord,
    History,
    HistoryQuery,
    JobRecord,
    LogQuery,
)

HISTORY_LIMIT_DEFAULT = 100
HISTORY_LIMIT_MAX = 100_000
ATTEMPT_MAX = 1_000_000
#: The year 9999, in seconds.
INSTANT_MAX = 253_402_300_799.0
_SHOWN_MAX = 40
_DIGITS_MAX = 19


def history_query(parameters: Mapping[str, str]) -> HistoryQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    limit = whole(parameters, "limit", most=HISTORY_LIMIT_MAX)
    return HistoryQuery(
        namespace=parameters.get("namespace", ""), name=parameters.get("name", ""),
        uid=parameters.get("uid", ""), user=parameters.get("user", ""),
        state=parameters.get("state", ""), since=_instant(parameters),
        limit=limit or HISTORY_LIMIT_DEFAULT,
    )  # fmt: skip


def fleet_query(parameters: Mapping[str, str]) -> FleetQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    limit = whole(parameters, "limit", most=HISTORY_LIMIT_MAX)
    return FleetQuery(
        pool=parameters.get("pool", ""), action=parameters.get("action", ""),
        since=_instant(parameters), limit=limit or HISTORY_LIMIT_DEFAULT,
    )  # fmt: skip


async def record_lines(history: History, book: Book, parameters: Mapping[str, str]) -> list[bytes]:
    """Return the records that URL parameters ask for, as JSON lines; BadRequest, HistoryError."""
    match book:
        case Book.JOBS:
            jobs = await history.query(history_query(parameters))
            return [msgspec.json.encode(history_line(each)) + b"\n" for each in jobs]
        case Book.FLEET:
            decisions = await history.query_fleet(fleet_query(parameters))
            return [msgspec.json.encode(fleet_line(each)) + b"\n" for each in decisions]
        case _:
            assert_never(book)


def log_query(namespace: str, job: str, parameters: Mapping[str, str]) -> LogQuery:
    """Return the query for the logs of a job; BadRequest says which parameter is wrong."""
    attempt = whole(parameters, "attempt", most=ATTEMPT_MAX)
    return LogQuery(namespace, job, attempt, uid=parameters.get("uid", ""))


def history_line(record: JobRecord) -> HistoryLine:
    """Return a record as the endpoint sends it."""
    return HistoryLine(
        uid=record.uid, namespace=record.namespace, name=record.name, state=record.state,
        user=record.user, team=record.team, reason=record.reason, message=record.message,
        priority=record.priority, member_count=record.member_count,
        attempt_count=record.attempt_count, submitted_at_ms=record.submitted_at_ms,
        started_at_ms=record.started_at_ms, finished_at_ms=record.finished_at_ms,
        document=msgspec.json.decode(record.document),
    )  # fmt: skip


def fleet_line(record: FleetRecord) -> FleetLine:
    """Return a decision as the endpoint sends it."""
    return FleetLine(
        record.at_ms, record.pool, record.action, record.reason, record.message,
        msgspec.json.decode(record.document),
    )  # fmt: skip


def whole(parameters: Mapping[str, str], name: str, *, most: int) -> int | None:
    """Return the number, 1 to `most`, of a URL parameter, None without it; BadRequest."""
    text = parameters.get(name, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not (is_number and 1 <= int(text) <= most):
        raise _wrong(name, text, f"1 to {most}")
    return int(text)


def _instant(parameters: Mapping[str, str]) -> float | None:
    text = parameters.get("since", "")
    if not text:
        return None
    try:
        instant = float(text)
    except ValueError:
        instant = math.nan
    if not 0 <= instant <= INSTANT_MAX:  # nor what is no number
        raise _wrong("since", text, f"0 to {INSTANT_MAX:.0f}")
    return instant


def _wrong(name: str, text: str, accepted: str) -> BadRequest:
    return BadRequest(f"query parameter {name}: '{text[:_SHOWN_MAX]}', accepted: {accepted}")
