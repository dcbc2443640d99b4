"""What remains of a job when its object is gone: one record per job, kept in one SQLite file.

The jobs controller records a job before it writes that the job has ended, and again is harmless: a
record replaces the one with the same uid. So a crash between the two loses nothing. The columns
are what people search by; `document` is the whole job as JSON. The file is in WAL mode and every
record is on disk before `record` returns, so it survives the loss of the process and of power.

SQLite blocks, so its calls go through a runner that the shell supplies (a thread, in production);
tests and simulations use `MemoryHistory`, which answers alike.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec

from fairlead.api import names
from fairlead.api.job import Job
from fairlead.api.meta import find_condition, is_true, to_wire
from fairlead.api.times import parse_time

SCHEMA_VERSION = 1
RECORDS_MAX = 1_000_000
_PRUNE_EVERY = 1_000
_BUSY_TIMEOUT_MS = 5_000

T = TypeVar("T")
#: Runs a short blocking call somewhere and waits for its result, e.g. `asyncio.to_thread`.
Runner = Callable[[Callable[[], object]], Awaitable[object]]


class HistoryError(Exception):
    """The history file cannot be used; the message says which one, why, and what to do."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job that has ended. Instants are milliseconds since the epoch."""

    uid: str
    namespace: str
    name: str
    user: str
    team: str
    state: str
    reason: str
    message: str
    priority: int
    member_count: int
    attempt_count: int
    submitted_at_ms: int | None
    started_at_ms: int | None
    finished_at_ms: int | None
    document: str


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which records: empty fields match all; `since` is in seconds since the epoch.

    A record matches `since` when it ended at that instant or later.
    """

    namespace: str = ""
    name: str = ""
    uid: str = ""
    user: str = ""
    state: str = ""
    since: float | None = None
    limit: int = 100


class History(Protocol):
    """Where records are kept."""

    async def record(self, record: JobRecord) -> None:
        """Keep the record, in place of an earlier one of the same uid; HistoryError."""
        ...

    async def query(self, query: HistoryQuery) -> tuple[JobRecord, ...]:
        """Return matching records, the latest end first, at most `query.limit`."""
        ...


def record_of(job: Job) -> JobRecord:
    """Return the record of a job as its status stands."""
    status = job.status
    succeeded = is_true(status.conditions, names.SUCCEEDED)
    end = find_condition(status.conditions, names.SUCCEEDED if succeeded else names.FAILED)
    document = {"apiVersion": names.API_VERSION, "kind": "Job", **to_wire(job)}
    return JobRecord(
        uid=job.metadata.uid,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        user=job.metadata.annotations.get(names.SUBMITTED_BY, ""),
        team=job.spec.team,
        state=status.state,
        reason=end.reason if end else "",
        message=end.message if end else "",
        priority=job.spec.priority or 0,
        member_count=job.member_count,
        attempt_count=status.attempt,
        submitted_at_ms=_milliseconds(status.submitted_at or job.metadata.creation_timestamp),
        started_at_ms=_milliseconds(status.started_at),
        finished_at_ms=_milliseconds(status.finished_at),
        document=msgspec.json.encode(document).decode(),
    )


def _milliseconds(text: str | None) -> int | None:
    return None if text is None else round(parse_time(text) * 1000)


class MemoryHistory:
    """A history that ends with the process, for tests and simulations."""

    def __init__(self, *, records_max: int = RECORDS_MAX) -> None:
        self._records: dict[str, JobRecord] = {}
        self._records_max = records_max

    async def record(self, record: JobRecord) -> None:
        """Keep the record; beyond `records_max` the one recorded first is dropped."""
        self._records.pop(record.uid, None)
        self._records[record.uid] = record
        if len(self._records) > self._records_max:
            del self._records[next(iter(self._records))]

    async def query(self, query: HistoryQuery) -> tuple[JobRecord, ...]:
        """Return matching records, the latest end first, at most `query.limit`."""
        found = [r for r in self._records.values() if _matches(query, r)]
        found.sort(key=lambda r: (-(r.finished_at_ms or 0), r.uid))
        return tuple(found[: query.limit])


def _matches(query: HistoryQuery, record: JobRecord) -> bool:
    wanted = (
        (query.namespace, record.namespace),
        (query.name, record.name),
        (query.uid, record.uid),
        (query.user, record.user),
        (query.state, record.state),
    )
    if any(want and want != got for want, got in wanted):
        return False
    return query.since is None or (record.finished_at_ms or 0) >= query.since * 1000


_COLUMNS = tuple(f.name for f in fields(JobRecord))
INTEGER_COLUMNS = frozenset(
    name
    for name in _COLUMNS
    if name.endswith("_ms") or name in ("priority", "member_count", "attempt_count")
)
_CREATE = (
    "CREATE TABLE jobs ("
    + ", ".join(
        f"{name} {'INTEGER' if name in INTEGER_COLUMNS else 'TEXT NOT NULL'}"
        + (" PRIMARY KEY" if name == "uid" else "")
        for name in _COLUMNS
    )
    + ") WITHOUT ROWID",
    "CREATE INDEX jobs_by_end ON jobs (finished_at_ms)",
    "CREATE INDEX jobs_by_name ON jobs (namespace, name, finished_at_ms)",
    "CREATE INDEX jobs_by_user ON jobs (user, finished_at_ms)",
)
_UPSERT = "INSERT OR REPLACE INTO jobs VALUES ({})".format(", ".join("?" * len(_COLUMNS)))  # noqa: S608 - no input in it
_PRUNE = (
    "DELETE FROM jobs WHERE uid IN (SELECT uid FROM jobs"
    " ORDER BY finished_at_ms DESC, uid LIMIT -1 OFFSET ?)"
)


class SqliteHistory:
    """A history in one file. Open it with `open`, close it in the end."""

    def __init__(
        self, connection: sqlite3.Connection, *, runner: Runner, records_max: int = RECORDS_MAX
    ) -> None:
        self._connection = connection
        self._runner = runner
        self._records_max = records_max
        self._recorded_count = 0
        # One connection, used by one thread at a time.
        self._lock = asyncio.Lock()

    @classmethod
    def open(cls, path: Path, *, runner: Runner, records_max: int = RECORDS_MAX) -> SqliteHistory:
        """Open the file, or make it; HistoryError when it is not usable. Blocks for a moment."""
        try:
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise HistoryError(f"cannot open the job history {path}: {error}") from error
        try:
            _prepare(connection, path)
        except sqlite3.Error as error:
            connection.close()
            raise HistoryError(
                f"cannot use the job history {path}: {error}; move the file away to start anew"
            ) from error
        except HistoryError:
            connection.close()
            raise
        return cls(connection, runner=runner, records_max=records_max)

    async def record(self, record: JobRecord) -> None:
        """Keep the record; on disk when this returns."""
        await self._run(lambda: self._record(record))

    async def query(self, query: HistoryQuery) -> tuple[JobRecord, ...]:
        """Return matching records, the latest end first, at most `query.limit`."""
        return await self._run(lambda: self._query(query))

    async def close(self) -> None:
        """Close the file."""
        await self._run(self._connection.close)

    async def _run(self, call: Callable[[], T]) -> T:
        async with self._lock:
            try:
                return cast("T", await self._runner(call))
            except sqlite3.Error as error:
                raise HistoryError(f"the job history failed: {error}") from error

    def _record(self, record: JobRecord) -> None:
        self._connection.execute(_UPSERT, astuple(record))
        self._recorded_count += 1
        if self._recorded_count % _PRUNE_EVERY == 0:
            self._connection.execute(_PRUNE, (self._records_max,))

    def _query(self, query: HistoryQuery) -> tuple[JobRecord, ...]:
        terms: list[str] = []
        values: list[str | float] = []
        for column in ("namespace", "name", "uid", "user", "state"):
            value: str = getattr(query, column)
            if value:
                terms.append(f"{column} = ?")
                values.append(value)
        if query.since is not None:
            terms.append("finished_at_ms >= ?")
            values.append(query.since * 1000)
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        rows = self._connection.execute(
            # The text is made of this module's own column names only.
            f"SELECT {', '.join(_COLUMNS)} FROM jobs{where}"  # noqa: S608
            " ORDER BY finished_at_ms DESC, uid LIMIT ?",
            (*values, query.limit),
        )
        return tuple(JobRecord(*row) for row in rows)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set the modes of the connection and make the schema when the file is new."""
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    if version != 0:
        raise HistoryError(
            f"the job history {path} has schema version {version}, this Fairlead reads version "
            f"{SCHEMA_VERSION}; use the Fairlead that wrote it, or move the file away"
        )
    connection.execute("BEGIN IMMEDIATE")
    for statement in _CREATE:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
