"""The tables of records and logs, and the statements on them, for SQLite and PostgreSQL alike.

Statements hold this module's own table and column names only; all values are bound.

Rows are read in two steps, so that nothing of a long answer stays in memory and no connection is
held for a slow reader: first the keys that match, then the rows of a few keys at a time
(`key_pages`, `log_pages`).
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

from fairlead.api.jobs.use import AttemptUse
from fairlead.history.fairness import fair_level
from fairlead.runtime.kept.history import (
    FleetQuery,
    FleetRecord,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
    RunQuery,
    RunRow,
    UseQuery,
    UseRecord,
    has_tag,
    task_order,
)

RECORDS_MAX = 1_000_000
#: Rows, and bytes of logs, that are read at a time.
PAGE_ROWS_MAX = 16
PAGE_BYTES_MAX = 4 << 20
#: A text of one member that is longer has its end left out.
TEXT_BYTES_MAX = 16 << 20
#: How often the oldest are dropped: each time that so many rows, or so much of the bound, is new.
_PRUNE_EVERY = 1_000
_PRUNES_PER_BOUND = 16
#: What a row takes up beside its text.
_ROW_BYTES = 512
_COLUMNS = tuple(f.name for f in fields(JobRecord))
#: What tables of earlier versions lack; those versions still write to a table that has it.
_LATER_NUMBERS = ("number", "array_number")
_LATER_COLUMNS = (*_LATER_NUMBERS, "run")
_RUN_NAMES = ", ".join(f'"{name}"' for name in RunRow._fields)
#: Rows that one statement reads of a list of runs: some hundred bytes each.
RUNS_PAGE_MAX = 1_000
#: `RunRow._make` in C: of 100,000 rows a tenth of the time of their list.
_run_row: Callable[[Iterable[Any]], RunRow] = partial(tuple.__new__, RunRow)
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
_INTEGER_COLUMNS = frozenset(
    name
    for name in _COLUMNS
    if name.endswith("_ms")
    or name in ("priority", "member_count", "attempt_count", *_LATER_NUMBERS)
)
_LOG_COLUMNS = (
    "pod_uid, namespace, job, job_uid, attempt, task, is_cut, kept_at_ms, text_size, text"
)
_LATEST_LOG_FIRST = "ORDER BY kept_at_ms DESC, pod_uid"
_FLEET_COLUMNS = tuple(f.name for f in fields(FleetRecord))
_FLEET_NAMES = ", ".join(f'"{name}"' for name in _FLEET_COLUMNS)
_USE_COLUMNS = tuple(f.name for f in fields(UseRecord))
_USE_NAMES = ", ".join(_USE_COLUMNS)
#: Of `use`: what has always a number, and what is NULL where it was not measured.
_USE_INTEGERS = ("attempt", "ended_at_ms", "milliseconds", "is_partial")
_USE_AMOUNTS = ("cpu_milliseconds", "memory_peak_bytes", "memory_mean_bytes")
#: In the order of `AttemptUse`, behind the uid of the job; no sum of fractions is too large.
_USE_SUMS = (
    "attempt, count(*), sum(milliseconds * 1.0), count(cpu_milliseconds),"
    " sum(cpu_milliseconds * 1.0), count(memory_peak_bytes), max(memory_peak_bytes),"
    " sum(memory_peak_bytes * 1.0), avg(memory_mean_bytes), max(is_partial)"
)

Values = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """How much of a table may stay: in the unit of `size`, of which each `holder` has a part."""

    table: str
    key: str
    holder: str
    size: str
    latest_first: str
    total_max: int

    @property
    def select_held(self) -> str:
        """Select each holder and how much it has."""
        return f"SELECT {self.holder}, sum({self.size}) FROM {self.table} GROUP BY {self.holder}"  # noqa: S608

    def level(self, held: Iterable[tuple[str, Any]]) -> int | None:
        """Return what each holder may keep, of the rows of `select_held`; None: all of it."""
        return fair_level({name: int(size) for name, size in held}, self.total_max)

    def drop_oldest(self, mark: str) -> str:
        """Delete what holders have beyond a level, which is bound, from the oldest on."""
        return (
            f"DELETE FROM {self.table} WHERE {self.key} IN (SELECT {self.key} FROM"  # noqa: S608
            f" (SELECT {self.key}, sum({self.size}) OVER (PARTITION BY {self.holder}"
            f" ORDER BY {self.latest_first}) AS held FROM {self.table}) AS sized"
            f" WHERE held > {mark})"
        )


class Growth:
    """Counts what was written to a table, and says when the oldest have to be dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rows = self._bytes = 0

    def is_due(self, rows: Sequence[Values]) -> bool:
        """Count rows that are written now; True when the bounds are to be enforced with them."""
        self._rows += len(rows)
        self._bytes += sum(
            len(each) for row in rows for each in row if isinstance(each, str | bytes)
        )
        is_due = self._rows >= _PRUNE_EVERY or self._bytes * _PRUNES_PER_BOUND >= self._bytes_max
        if is_due:
            self._rows = self._bytes = 0
        return is_due


@dataclass(frozen=True, slots=True)
class Dialect:
    """Words in which the databases differ: the mark of a bound value, and types of columns."""

    jobs: str
    logs: str
    fleet: str
    use: str
    mark: str
    integer: str
    boolean: str
    blob: str
    #: The number of bytes of the text in a column {}.
    text_bytes: str
    #: Of the index of runs; where it has all columns of `RunRow`, no row of a job is read.
    run_columns: str
    #: The table of jobs, read by that index.
    runs: str
    #: The function that returns where in a text another one is, from 1 on, or 0.
    position: str
    #: Behind the definition of the table of jobs.
    jobs_suffix: str = ""

    def create(self) -> tuple[str, ...]:
        """Return the statements that make both tables: three for logs, behind those for jobs."""
        columns = ", ".join(
            f'"{name}" {self._type(name)}' + (" PRIMARY KEY" if name == "uid" else "")
            for name in _COLUMNS
        )
        jobs, logs, integer = self.jobs, self.logs, self.integer
        return (
            f"CREATE TABLE {jobs} ({columns}){self.jobs_suffix}",
            f"CREATE INDEX {jobs}_by_end ON {jobs} (finished_at_ms)",
            f"CREATE INDEX {jobs}_by_name ON {jobs} (namespace, name, finished_at_ms)",
            f'CREATE INDEX {jobs}_by_user ON {jobs} ("user", finished_at_ms)',
            f"CREATE TABLE {logs} (pod_uid TEXT PRIMARY KEY, namespace TEXT NOT NULL,"
            f" job TEXT NOT NULL, job_uid TEXT NOT NULL, attempt {integer} NOT NULL,"
            f" task TEXT NOT NULL, is_cut {self.boolean} NOT NULL, kept_at_ms {integer} NOT NULL,"
            f" text_size {integer} NOT NULL, text {self.blob} NOT NULL)",
            f"CREATE INDEX {logs}_by_job ON {logs} (namespace, job, attempt)",
            f"CREATE INDEX {logs}_by_age ON {logs} (kept_at_ms)",
        )

    def add_columns(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the statements that add what a table of jobs with these columns lacks."""
        jobs, missing = self.jobs, [each for each in _LATER_COLUMNS if each not in there]
        return (
            *(f'ALTER TABLE {jobs} ADD COLUMN "{each}" {self._type(each)}' for each in missing),
            *(f"CREATE INDEX IF NOT EXISTS {jobs}_by_{c} ON {jobs} ({c})" for c in _LATER_NUMBERS),
            f"CREATE INDEX IF NOT EXISTS {jobs}_by_run ON {jobs} ({self.run_columns})"
            " WHERE run IS NOT NULL",
        )

    def _type(self, column: str) -> str:
        if column in _INTEGER_COLUMNS:
            return self.integer
        return "TEXT" if column in _LATER_COLUMNS else "TEXT NOT NULL"

    def create_fleet(self) -> tuple[str, ...]:
        """Return the statements that make the table of decisions where there is none.

        It came after the others, into databases that earlier versions still read.
        """
        columns = ", ".join(
            f'"{name}" ' + (f"{self.integer} NOT NULL" if name == "at_ms" else "TEXT NOT NULL")
            + (" PRIMARY KEY" if name == "id" else "")
            for name in _FLEET_COLUMNS
        )  # fmt: skip
        return (
            f"CREATE TABLE IF NOT EXISTS {self.fleet} ({columns})",
            f"CREATE INDEX IF NOT EXISTS {self.fleet}_by_age ON {self.fleet} (at_ms)",
        )

    def create_use(self) -> tuple[str, ...]:
        """Return the statements that make the table of members' use where there is none.

        It came after the others, into databases that earlier versions still read.
        """
        types = {
            **dict.fromkeys(_USE_INTEGERS, f"{self.integer} NOT NULL"),
            **dict.fromkeys(_USE_AMOUNTS, self.integer), "pod_uid": "TEXT PRIMARY KEY",
        }  # fmt: skip
        columns = ", ".join(f"{name} {types.get(name, 'TEXT NOT NULL')}" for name in _USE_COLUMNS)
        return (
            f"CREATE TABLE IF NOT EXISTS {self.use} ({columns})",
            f"CREATE INDEX IF NOT EXISTS {self.use}_by_job ON {self.use} (job_uid, attempt)",
            f"CREATE INDEX IF NOT EXISTS {self.use}_by_name ON {self.use}"
            " (namespace, job, ended_at_ms)",
        )

    def upsert_use(self) -> str:
        """Insert or replace a row of all columns of `UseRecord`."""
        assignments = ", ".join(f"{c} = EXCLUDED.{c}" for c in _USE_COLUMNS if c != "pod_uid")
        marks = self._marks(len(_USE_COLUMNS))
        return (
            f"INSERT INTO {self.use} ({_USE_NAMES}) VALUES ({marks})"  # noqa: S608
            f" ON CONFLICT (pod_uid) DO UPDATE SET {assignments}"
        )

    def use_bounds(self, bytes_max: int) -> tuple[Bound, ...]:
        """Return the bound of members' use; the namespace that has most loses its oldest."""
        size = f"{self.text_bytes.format('document')} + {_ROW_BYTES}"
        latest_first = "ended_at_ms DESC, pod_uid"
        return (Bound(self.use, "pod_uid", "namespace", size, latest_first, bytes_max),)

    def find_use(self, query: UseQuery) -> tuple[str, Values]:
        """Return the statement for pods, attempts and tasks of one job, and its values."""
        mark, values, where = self.mark, (query.uid,), f"job_uid = {self.mark}"
        if not query.uid:
            last = (
                f"(SELECT job_uid FROM {self.use} WHERE namespace = {mark} AND job = {mark}"  # noqa: S608
                " ORDER BY ended_at_ms DESC, pod_uid LIMIT 1)"
            )
            where, values = f"job_uid = {last}", (query.namespace, query.job)
        elif query.namespace:  # whose right it is to read was asked for this one
            where, values = f"{where} AND namespace = {mark}", (query.uid, query.namespace)
        bound: Values = values
        if query.attempt is not None:
            where, bound = f"{where} AND attempt = {mark}", (*bound, query.attempt)
        text = (
            f"SELECT pod_uid, attempt, task FROM {self.use} WHERE {where}"  # noqa: S608
            f" ORDER BY attempt DESC, pod_uid LIMIT {mark}"
        )
        return text, (*bound, query.limit)

    def get_use(self, pod_uids: Sequence[str]) -> tuple[str, Values]:
        """Return the statement for all columns of `UseRecord` of rows, and its values."""
        return self._get(_USE_NAMES, self.use, "pod_uid", pod_uids)

    def sum_use(self, job_uids: Sequence[str]) -> tuple[str, Values]:
        """Return the statement for the rows of `sums_of`, and its values."""
        text = (
            f"SELECT job_uid, {_USE_SUMS} FROM {self.use}"  # noqa: S608
            f" WHERE job_uid IN ({self._marks(len(job_uids))})"
            " GROUP BY job_uid, attempt ORDER BY job_uid, attempt"
        )
        return text, tuple(job_uids)

    def insert_fleet(self) -> str:
        """Insert a row of all columns of `FleetRecord`, unless its id is there."""
        return (
            f"INSERT INTO {self.fleet} ({_FLEET_NAMES})"  # noqa: S608
            f" VALUES ({self._marks(len(_FLEET_COLUMNS))}) ON CONFLICT (id) DO NOTHING"
        )

    def fleet_bounds(self, rows_max: int, bytes_max: int) -> tuple[Bound, ...]:
        """Return the bounds of decisions; the pool that has most loses its oldest."""
        bound = Bound(self.fleet, "id", "pool", "1", "at_ms DESC, id DESC", rows_max)
        size = f"{self.text_bytes.format('document')} + {_ROW_BYTES}"
        return bound, replace(bound, size=size, total_max=bytes_max)

    def find_fleet(self, query: FleetQuery) -> tuple[str, Values]:
        """Return the statement for the ids that match, the latest first, and its values."""
        equal = (("pool", query.pool), ("action", query.action))
        where, values = self._where(equal, "at_ms", query.since)
        text = (
            f"SELECT id FROM {self.fleet}{where}"  # noqa: S608
            f" ORDER BY at_ms DESC, id DESC LIMIT {self.mark}"
        )
        return text, (*values, query.limit)

    def get_fleet(self, ids: Sequence[str]) -> tuple[str, Values]:
        """Return the statement for all columns of `FleetRecord` of rows, and its values."""
        return self._get(_FLEET_NAMES, self.fleet, "id", ids)

    def upsert_record(self) -> str:
        """Insert or replace a row of all columns of `JobRecord`."""
        assignments = ", ".join(f'"{c}" = EXCLUDED."{c}"' for c in _COLUMNS if c != "uid")
        return (
            f"INSERT INTO {self.jobs} ({_NAMES}) VALUES ({self._marks(len(_COLUMNS))})"  # noqa: S608
            f" ON CONFLICT (uid) DO UPDATE SET {assignments}"
        )

    def record_bounds(self, rows_max: int, bytes_max: int) -> tuple[Bound, ...]:
        """Return the bounds of records; the namespace that has most loses its oldest."""
        latest_first = "finished_at_ms DESC NULLS LAST, uid"
        bound = Bound(self.jobs, "uid", "namespace", "1", latest_first, rows_max)
        run = "2 * coalesce(length(run), 0)"  # in the index as well
        size = f"{self.text_bytes.format('document')} + {run} + {_ROW_BYTES}"
        return bound, replace(bound, size=size, total_max=bytes_max)

    def find_records(self, query: HistoryQuery) -> tuple[str, Values]:
        """Return the statement for the uids that match, the latest end first, and its values."""
        columns = ("namespace", "name", "uid", "user", "state")
        equal = [(column, getattr(query, column)) for column in columns]
        where, values = self._where(equal, "finished_at_ms", query.since)
        if query.number:
            either = f'("number" = {self.mark} OR "array_number" = {self.mark})'
            where = f"{where} AND {either}" if where else f" WHERE {either}"
            values = (*values, query.number, query.number)
        text = (
            f"SELECT uid FROM {self.jobs}{where}"  # noqa: S608
            f" ORDER BY finished_at_ms DESC NULLS LAST, uid LIMIT {self.mark}"
        )
        return text, (*values, query.limit)

    def find_runs(self, query: RunQuery, after: RunRow | None) -> tuple[str, Values]:
        """Return the statement for the next rows of `RunRow` behind one, the latest end first, and
        its values.
        """
        equal = (("namespace", query.namespace),)
        where, values = self._where(equal, "finished_at_ms", query.since)
        terms = [where.removeprefix(" WHERE ")] if where else []
        terms += ["run IS NOT NULL", "finished_at_ms IS NOT NULL"]
        if query.tag:  # a tag needs no escapes in JSON; it is looked at once more by the caller
            terms.append(f"{self.position}(run, {self.mark}) > 0")
            values = (*values, f'"{query.tag}"')
        if after is not None:
            terms.append(f"(finished_at_ms, uid) < ({self.mark}, {self.mark})")
            values = (*values, after.finished_at_ms, after.uid)
        text = (
            f"SELECT {_RUN_NAMES} FROM {self.runs} WHERE {' AND '.join(terms)}"  # noqa: S608
            f" ORDER BY finished_at_ms DESC, uid DESC LIMIT {self.mark}"
        )
        return text, (*values, RUNS_PAGE_MAX)

    def get_records(self, uids: Sequence[str]) -> tuple[str, Values]:
        """Return the statement for all columns of `JobRecord` of rows, and its values."""
        return self._get(_NAMES, self.jobs, "uid", uids)

    def upsert_log(self) -> str:
        """Insert a row of `log_row`, or replace one whose text is not longer."""
        return (
            f"INSERT INTO {self.logs} ({_LOG_COLUMNS}) VALUES ({self._marks(10)})"  # noqa: S608
            " ON CONFLICT (pod_uid) DO UPDATE SET is_cut = EXCLUDED.is_cut,"
            " kept_at_ms = EXCLUDED.kept_at_ms, text_size = EXCLUDED.text_size,"
            f" text = EXCLUDED.text WHERE EXCLUDED.text_size >= {self.logs}.text_size"
        )

    def log_bounds(self, bytes_max: int) -> tuple[Bound, ...]:
        """Return the bound of compressed logs; the namespace that has most loses its oldest."""
        size = f"length(text) + {_ROW_BYTES}"
        latest_first = "kept_at_ms DESC, pod_uid"
        return (Bound(self.logs, "pod_uid", "namespace", size, latest_first, bytes_max),)

    def find_logs(self, query: LogQuery) -> tuple[str, Values]:
        """Return the statement for pods, tasks and sizes of one job's attempt, and its values."""
        mark = self.mark
        key: Values = (query.namespace, query.job)
        where = f"WHERE namespace = {mark} AND job = {mark}"
        if query.uid:
            key, where = (*key, query.uid), f"{where} AND job_uid = {mark}"
        if query.attempt is not None:
            key, where = (*key, query.attempt), f"{where} AND attempt = {mark}"
        last = f"(SELECT job_uid FROM {self.logs} {where} {_LATEST_LOG_FIRST} LIMIT 1)"  # noqa: S608
        where = f"{where} AND job_uid = {last}"
        values = (*key, *key)
        if query.attempt is None:
            attempt = f"(SELECT max(attempt) FROM {self.logs} {where})"  # noqa: S608
            where, values = f"{where} AND attempt = {attempt}", (*values, *values)
        text = (
            f"SELECT pod_uid, task, text_size FROM {self.logs} {where}"  # noqa: S608
            f" {_LATEST_LOG_FIRST} LIMIT {mark}"
        )
        return text, (*values, query.limit)

    def get_logs(self, pod_uids: Sequence[str]) -> tuple[str, Values]:
        """Return the statement for the rows of `log_row`, and its values."""
        return self._get(_LOG_COLUMNS, self.logs, "pod_uid", pod_uids)

    def _get(self, columns: str, table: str, key: str, keys: Sequence[str]) -> tuple[str, Values]:
        text = f"SELECT {columns} FROM {table} WHERE {key} IN ({self._marks(len(keys))})"  # noqa: S608
        return text, tuple(keys)

    def _where(
        self, equal: Iterable[tuple[str, str]], instant: str, since: float | None
    ) -> tuple[str, Values]:
        """Return the clause for columns that equal a value, "": any, and instants since then."""
        found = [(column, value) for column, value in equal if value]
        terms = [f'"{column}" = {self.mark}' for column, _ in found]
        values: list[object] = [value for _, value in found]
        if since is not None:
            terms.append(f"{instant} >= {self.mark}")
            values.append(since * 1000)
        return f" WHERE {' AND '.join(terms)}" if terms else "", tuple(values)

    def _marks(self, count: int) -> str:
        return ", ".join([self.mark] * count)


async def run_pages(
    dialect: Dialect,
    query: RunQuery,
    select: Callable[[tuple[str, Values]], Awaitable[list[tuple[Any, ...]]]],
) -> AsyncIterator[tuple[RunRow, ...]]:
    """Yield what a query of runs finds; `select` returns the rows of a statement."""
    left, after = query.limit, None
    while left > 0:
        rows = list(map(_run_row, await select(dialect.find_runs(query, after))))
        tagged = [row for row in rows if has_tag(row.run, query.tag)] if query.tag else rows
        found = tuple(tagged[:left])
        if found:
            yield found
        if len(rows) < RUNS_PAGE_MAX:
            return
        left, after = left - len(found), rows[-1]


def sums_of(rows: Iterable[Sequence[Any]]) -> dict[str, tuple[AttemptUse, ...]]:
    """Return what the attempts of jobs used, of rows of `sum_use`.

    PostgreSQL adds up to decimals.
    """
    out: dict[str, tuple[AttemptUse, ...]] = {}
    for uid, *row in rows:
        *amounts, is_partial = (None if each is None else int(each) for each in row)
        use = AttemptUse(*cast("Any", amounts), is_partial=bool(is_partial))
        out[uid] = (*out.get(uid, ()), use)
    return out


def use_pages(found: Iterable[tuple[str, int, str]]) -> Iterator[list[str]]:
    """Yield the pods of rows of `find_use` by attempt, role and index, as many as are read at a
    time.
    """
    ordered = sorted(found, key=lambda row: (row[1], task_order(row[2]), row[0]))
    return _pages((pod_uid, 0) for pod_uid, _, _ in ordered)


def log_row(log: MemberLog) -> Values:
    """Return the columns of a log; its text, the last one, compressed."""
    return (
        log.pod_uid, log.namespace, log.job, log.job_uid, log.attempt, log.task, log.is_cut,
        log.kept_at_ms, len(log.text), zlib.compress(log.text),
    )  # fmt: skip


def logs_of(rows: Iterable[Sequence[Any]]) -> dict[str, MemberLog]:
    """Return the logs of rows of `get_logs` by pod; zlib.error when one is damaged."""
    return {row[0]: _log_of(row) for row in rows}


def _log_of(row: Sequence[Any]) -> MemberLog:
    limit = min(row[8], TEXT_BYTES_MAX)
    inflater = zlib.decompressobj()
    text = inflater.decompress(row[9], limit + 1)  # one more: it ends with the check of the text
    if len(text) <= limit and not inflater.eof:
        raise zlib.error(f"the log of pod {row[0]} is cut off")
    is_cut = bool(row[6]) or len(text) > limit
    return MemberLog(*row[:6], is_cut=is_cut, kept_at_ms=row[7], text=text[:limit])


def key_pages(found: Iterable[tuple[str]]) -> Iterator[list[str]]:
    """Yield the keys that a statement found, in order, as many as are read at a time."""
    return _pages((key, 0) for (key,) in found)


def log_pages(found: Iterable[tuple[str, str, int]]) -> Iterator[list[str]]:
    """Yield the pods of rows of `find_logs` by role and index, as many as are read at a time."""
    ordered = sorted(found, key=lambda row: task_order(row[1]))
    return _pages((pod_uid, size) for pod_uid, _, size in ordered)


def _pages(keys: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    page: list[str] = []
    byte_count = 0
    for key, size in keys:
        if page and (len(page) >= PAGE_ROWS_MAX or byte_count + size > PAGE_BYTES_MAX):
            yield page
            page, byte_count = [], 0
        page.append(key)
        byte_count += size
    if page:
        yield page
