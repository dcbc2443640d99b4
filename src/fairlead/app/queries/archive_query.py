"""What can be asked of an archive, as URL parameters, and how it is answered: as JSON lines.

Answers are streams. They are encoded in threads, since the loop that writes them also answers the
webhook, and end at a number of bytes: the last line of an answer that is not whole says so
(`messages.CutLine`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias, assert_never, cast

import msgspec

from fairlead.api.jobs.run_facts import TAG, RunSummary
from fairlead.api.jobs.use import AttemptUse, JobTraffic, MemberUse
from fairlead.api.status import BadRequest
from fairlead.app.queries.messages import (
    ArchivedLog,
    Book,
    CutLine,
    FleetLine,
    HistoryLine,
    RunLine,
    UseLine,
)
from fairlead.runtime.kept.audit import AuditQuery, AuditRecord, audit_line
from fairlead.runtime.kept.history import (
    ATTEMPT_MAX,
    NUMBER_DIGITS_MAX,
    TASKS_MAX,
    FleetQuery,
    FleetRecord,
    History,
    HistoryQuery,
    JobRecord,
    LogQuery,
    LogStore,
    MemberLog,
    RunQuery,
    RunRow,
    UseQuery,
    UseRecord,
)

HISTORY_LIMIT_DEFAULT = 100
HISTORY_LIMIT_MAX = 100_000
JOB_NUMBER_MAX = 999_999_999
NUMBER_MAX = 2**53
ANSWER_BYTES_MAX = 256 << 20
#: The year 9999, in seconds.
INSTANT_MAX = 253_402_300_799.0
#: Runs a function in a thread: the lines of one page may take a while.
Runner: TypeAlias = Callable[[Callable[[], bytes]], Awaitable[bytes]]
_SHOWN_MAX = 40


def history_query(parameters: Mapping[str, str]) -> HistoryQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    limit = whole(parameters, "limit", most=HISTORY_LIMIT_MAX)
    return HistoryQuery(
        namespace=parameters.get("namespace", ""), name=parameters.get("name", ""),
        uid=parameters.get("uid", ""), user=parameters.get("user", ""),
        state=parameters.get("state", ""), since=_instant(parameters),
        limit=limit or HISTORY_LIMIT_DEFAULT,
        number=whole(parameters, "number", most=JOB_NUMBER_MAX) or 0,
    )  # fmt: skip


def fleet_query(parameters: Mapping[str, str]) -> FleetQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    limit = whole(parameters, "limit", most=HISTORY_LIMIT_MAX)
    return FleetQuery(
        pool=parameters.get("pool", ""), action=parameters.get("action", ""),
        since=_instant(parameters), limit=limit or HISTORY_LIMIT_DEFAULT,
    )  # fmt: skip


def use_query(parameters: Mapping[str, str]) -> UseQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    job, uid = parameters.get("job", ""), parameters.get("uid", "")
    if not (job or uid):
        raise BadRequest("query parameter job: missing; the name of a job, or its uid")
    return UseQuery(
        namespace=parameters.get("namespace", ""), job=job, uid=uid,
        attempt=whole(parameters, "attempt", most=ATTEMPT_MAX),
        limit=whole(parameters, "limit", most=TASKS_MAX) or TASKS_MAX,
    )  # fmt: skip


def run_query(parameters: Mapping[str, str]) -> RunQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    tag = parameters.get("tag", "")
    if tag and not TAG.fullmatch(tag):
        raise _wrong("tag", tag, "letters, digits, dots, dashes, at most 63")
    return RunQuery(
        namespace=parameters.get("namespace", ""), tag=tag, since=_instant(parameters),
        limit=whole(parameters, "limit", most=HISTORY_LIMIT_MAX) or HISTORY_LIMIT_DEFAULT,
    )  # fmt: skip


def audit_query(parameters: Mapping[str, str]) -> AuditQuery:
    """Return the query of URL parameters; BadRequest says which is wrong."""
    order = parameters.get("order", "")
    if order not in ("", "latest"):
        raise _wrong("order", order, "latest")
    return AuditQuery(
        after=whole(parameters, "after", most=NUMBER_MAX) or 0, kind=parameters.get("kind", ""),
        since=_instant(parameters), last=order == "latest",
        limit=whole(parameters, "limit", most=HISTORY_LIMIT_MAX) or HISTORY_LIMIT_DEFAULT,
    )  # fmt: skip


async def record_lines(
    history: History,
    book: Book,
    parameters: Mapping[str, str],
    *,
    runner: Runner,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> AsyncIterator[bytes]:
    """Yield the records that URL parameters ask for as JSON lines, several at a time.

    BadRequest before the first; HistoryError.
    """
    match book:
        case Book.JOBS:
            pages = _encoded_jobs(history, history_query(parameters), runner)
        case Book.FLEET:
            pages = _encoded_decisions(history.query_fleet(fleet_query(parameters)), runner)
        case Book.USE:
            pages = _encoded_use(history.query_use(use_query(parameters)), runner)
        case Book.RUNS:
            pages = _encoded_runs(history.query_runs(run_query(parameters)), runner)
        case Book.AUDIT:
            pages = _encoded_audit(history.query_audit(audit_query(parameters)), runner)
        case _:
            assert_never(book)
    remedy = "ask for a shorter time, a user, a state or fewer records"
    async for page in _bounded(pages, bytes_max, remedy):
        yield page


async def log_lines(
    logs: LogStore, query: LogQuery, *, runner: Runner, bytes_max: int = ANSWER_BYTES_MAX
) -> AsyncIterator[bytes]:
    """Yield the logs that are asked for, each as a JSON line; HistoryError."""
    remedy = "the logs of later members are left out"
    async for line in _bounded(_encoded_logs(logs.logs(query), runner), bytes_max, remedy):
        yield line


async def _bounded(
    pieces: AsyncIterator[bytes], bytes_max: int, remedy: str
) -> AsyncIterator[bytes]:
    """Yield whole lines up to `bytes_max`, and the line that says so when there were more."""
    left = bytes_max
    async with aclosing(cast("Any", pieces)) as closing:
        async for piece in closing:
            left -= len(piece)
            if left < 0:
                cut = CutLine(f"an answer has at most {bytes_max} bytes: {remedy}")
                yield _lines((cut,))
                return
            yield piece


async def _encoded_jobs(
    history: History, query: HistoryQuery, runner: Runner
) -> AsyncIterator[bytes]:
    async for page in history.query(query):
        uids = [record.uid for record in page]
        uses, traffic = await history.use_of(uids), await history.traffic_of(uids)
        lines = (
            history_line(record, uses.get(record.uid, ()), traffic.get(record.uid))
            for record in page
        )
        yield await runner(partial(_lines, lines))


async def _encoded_use(
    pages: AsyncIterator[Sequence[UseRecord]], runner: Runner
) -> AsyncIterator[bytes]:
    async for page in pages:
        yield await runner(partial(_lines, map(use_line, page)))


async def _encoded_runs(
    pages: AsyncIterator[Sequence[RunRow]], runner: Runner
) -> AsyncIterator[bytes]:
    async for page in pages:
        yield await runner(partial(_lines, map(run_line, page)))


async def _encoded_decisions(
    pages: AsyncIterator[Sequence[FleetRecord]], runner: Runner
) -> AsyncIterator[bytes]:
    async for page in pages:
        yield await runner(partial(_lines, map(fleet_line, page)))


async def _encoded_audit(
    pages: AsyncIterator[Sequence[AuditRecord]], runner: Runner
) -> AsyncIterator[bytes]:
    async for page in pages:
        yield await runner(partial(_audit_lines, page))


def _audit_lines(records: Sequence[AuditRecord]) -> bytes:
    return b"".join(audit_line(each) + b"\n" for each in records)


async def _encoded_logs(logs: AsyncIterator[MemberLog], runner: Runner) -> AsyncIterator[bytes]:
    async for log in logs:
        yield await runner(partial(_lines, (ArchivedLog.of(log),)))


def _lines(values: Iterable[object]) -> bytes:
    return b"".join(msgspec.json.encode(value) + b"\n" for value in values)


def log_query(namespace: str, job: str, parameters: Mapping[str, str]) -> LogQuery:
    """Return the query for the logs of a job; BadRequest says which parameter is wrong."""
    attempt = whole(parameters, "attempt", most=ATTEMPT_MAX)
    return LogQuery(namespace, job, attempt, uid=parameters.get("uid", ""))


def use_line(record: UseRecord) -> UseLine:
    """Return a member's use as the endpoint sends it."""
    return UseLine(
        record.job, record.job_uid, record.attempt, record.task, record.ended_at_ms,
        cast("MemberUse", msgspec.Raw(record.document.encode())),
    )  # fmt: skip


def run_line(row: RunRow) -> RunLine:
    """Return a run as the endpoint sends it."""
    return RunLine(
        row.uid, row.namespace, row.name, row.state, row.user, row.started_at_ms,
        row.finished_at_ms, cast("RunSummary", msgspec.Raw(row.run.encode())),
    )  # fmt: skip


def history_line(
    record: JobRecord, use: Sequence[AttemptUse] = (), traffic: JobTraffic | None = None
) -> HistoryLine:
    """Return a record as the endpoint sends it, with what its attempts used and sent."""
    return HistoryLine(
        uid=record.uid, namespace=record.namespace, name=record.name, state=record.state,
        user=record.user, team=record.team, reason=record.reason, message=record.message,
        priority=record.priority, member_count=record.member_count,
        attempt_count=record.attempt_count, submitted_at_ms=record.submitted_at_ms,
        started_at_ms=record.started_at_ms, finished_at_ms=record.finished_at_ms,
        document=_as_stored(record.document), number=record.number,
        array_number=record.array_number, use=tuple(use), traffic=traffic,
    )  # fmt: skip


def fleet_line(record: FleetRecord) -> FleetLine:
    """Return a decision as the endpoint sends it."""
    return FleetLine(
        record.at_ms, record.pool, record.action, record.reason, record.message,
        _as_stored(record.document),
    )  # fmt: skip


def _as_stored(document: str) -> dict[str, Any]:
    """Return what is sent as the document is: to decode it would take longer than all else."""
    return cast("dict[str, Any]", msgspec.Raw(document.encode()))


def whole(parameters: Mapping[str, str], name: str, *, most: int) -> int | None:
    """Return the number, 1 to `most`, of a URL parameter, None without it; BadRequest."""
    text = parameters.get(name, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
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
