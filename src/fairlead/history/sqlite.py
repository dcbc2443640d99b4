"""Records and logs in two SQLite files, side by side, so that either may be removed.

The files are in WAL mode. SQLite blocks, so its calls go through a runner that the caller supplies
(a thread, in production).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar, cast

from fairlead.history.sql import RECORDS_MAX, Dialect, Values, log_row, logs_of
from fairlead.runtime.history import (
    FleetQuery,
    FleetRecord,
    HistoryError,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
)

SCHEMA_VERSION = 1
#: Of the compressed texts of a file, together.
LOG_BYTES_MAX = 1 << 30
_BUSY_TIMEOUT_MS = 5_000
_PRUNE_EVERY = 1_000
#: How often the oldest are dropped while as much is kept as the bound allows.
_PRUNES_PER_BOUND = 64
_SQL = Dialect(
    jobs="jobs", logs="logs", fleet="fleet", mark="?",
    integer="INTEGER", boolean="INTEGER", blob="BLOB", jobs_suffix=" WITHOUT ROWID",
)  # fmt: skip
_JOBS_TABLE, _LOGS_TABLE = _SQL.create()[:4], _SQL.create()[4:]

T = TypeVar("T")
#: Runs a short blocking call somewhere and waits for its result, e.g. `asyncio.to_thread`.
Runner = Callable[[Callable[[], object]], Awaitable[object]]


class _File:
    """One connection to one file, used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, *, what: str, runner: Runner) -> None:
        self.connection = connection
        self._what = what
        self._runner = runner
        self._lock = asyncio.Lock()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        what: str,
        tables: tuple[str, ...],
        runner: Runner,
        later: tuple[str, ...] = (),
    ) -> _File:
        """Open the file, or make it with its tables; HistoryError. Blocks for a moment.

        `later` makes the tables that files of this version may lack.
        """
        connection: sqlite3.Connection | None = None
        try:
            # For the user alone; SQLite gives the files beside it the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise HistoryError(f"cannot open the {what} {path}: {error.strerror}") from error
        try:
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            version = _prepare(connection, tables, later)
        except sqlite3.Error as error:
            if connection is None:
                raise HistoryError(f"cannot open the {what} {path}: {error}") from error
            connection.close()
            raise HistoryError(
                f"cannot use the {what} {path}: {error}; move the file away to start with an "
                "empty one"
            ) from error
        if version != SCHEMA_VERSION:
            connection.close()
            raise HistoryError(
                f"the {what} {path} has schema version {version}, this Fairlead reads version "
                f"{SCHEMA_VERSION}; use the Fairlead that wrote it, or move the file away"
            )
        return cls(connection, what=what, runner=runner)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a blocking call; HistoryError."""
        async with self._lock:
            try:
                return cast("T", await self._runner(call))
            except (sqlite3.Error, zlib.error) as error:
                raise HistoryError(f"the {self._what} failed: {error}") from error

    async def select(self, statement: tuple[str, Values]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; HistoryError."""
        return await self.run(lambda: self.connection.execute(*statement).fetchall())


def _prepare(
    connection: sqlite3.Connection, tables: tuple[str, ...], later: tuple[str, ...]
) -> int:
    """Set the modes, make the tables when the file is new, and return the version of the schema."""
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        return version
    made = (*tables, f"PRAGMA user_version = {SCHEMA_VERSION}") if version == 0 else ()
    connection.execute("BEGIN IMMEDIATE")
    for statement in (*made, *later):
        connection.execute(statement)
    connection.execute("COMMIT")
    return SCHEMA_VERSION


class SqliteHistory:
    """Records in one file, on disk when `record` returns. Open it with `open`, then close it."""

    is_durable = True

    def __init__(self, file: _File, *, records_max: int) -> None:
        self._file = file
        self._records_max = records_max
        #: Rows that each statement has written.
        self._written: Counter[str] = Counter()

    @classmethod
    def open(cls, path: Path, *, runner: Runner, records_max: int = RECORDS_MAX) -> SqliteHistory:
        """Open the file, or make it; HistoryError when it is not usable. Blocks for a moment."""
        file = _File.open(
            path, what="history", tables=_JOBS_TABLE, later=_SQL.create_fleet(), runner=runner
        )
        return cls(file, records_max=records_max)

    async def record(self, record: JobRecord) -> None:
        """See `History`."""
        await self._write(_SQL.upsert_record(), [record], _SQL.prune_records())

    async def query(self, query: HistoryQuery) -> tuple[JobRecord, ...]:
        """See `History`."""
        return tuple(JobRecord(*row) for row in await self._file.select(_SQL.select_records(query)))

    async def close(self) -> None:
        """Close the file."""
        await self._file.run(self._file.connection.close)

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        """See `History`."""
        await self._write(_SQL.insert_fleet(), records, _SQL.prune_fleet())

    async def query_fleet(self, query: FleetQuery) -> tuple[FleetRecord, ...]:
        """See `History`."""
        return tuple(FleetRecord(*row) for row in await self._file.select(_SQL.select_fleet(query)))

    async def _write(
        self, statement: str, records: Sequence[JobRecord | FleetRecord], prune: str
    ) -> None:
        """Write all or none; with every `_PRUNE_EVERY`th record, drop the oldest."""

        def write() -> None:
            execute = self._file.connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                for each in records:
                    execute(statement, astuple(each))
                before = self._written[statement]
                self._written[statement] += len(records)
                if before // _PRUNE_EVERY != self._written[statement] // _PRUNE_EVERY:
                    execute(prune, (self._records_max,))
            except BaseException:
                execute("ROLLBACK")
                raise
            execute("COMMIT")

        await self._file.run(write)


class SqliteLogs:
    """Logs in one file. Open it with `open`, then close it."""

    def __init__(self, file: _File, *, bytes_max: int) -> None:
        self._file = file
        self._bytes_max = bytes_max
        self._bytes_kept = 0

    @classmethod
    def open(cls, path: Path, *, runner: Runner, bytes_max: int = LOG_BYTES_MAX) -> SqliteLogs:
        """Open the file, or make it; HistoryError when it is not usable. Blocks for a moment."""
        file = _File.open(path, what="log archive", tables=_LOGS_TABLE, runner=runner)
        return cls(file, bytes_max=bytes_max)

    async def keep(self, log: MemberLog) -> None:
        """See `LogStore`."""
        await self._file.run(lambda: self._keep(log))

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """See `LogStore`."""
        return await self._file.run(lambda: self._known(pod_uids))

    async def logs(self, query: LogQuery) -> tuple[MemberLog, ...]:
        """See `LogStore`."""
        statement = _SQL.select_logs(query)
        execute = self._file.connection.execute
        found = await self._file.run(lambda: logs_of(execute(*statement).fetchall()))
        return query.of_one_job(found)

    async def close(self) -> None:
        """Close the file."""
        await self._file.run(self._file.connection.close)

    def _keep(self, log: MemberLog) -> None:
        row = log_row(log)
        self._file.connection.execute(_SQL.upsert_log(), row)
        self._bytes_kept += len(cast("bytes", row[-1]))
        if self._bytes_kept * _PRUNES_PER_BOUND >= self._bytes_max:
            self._bytes_kept = 0
            self._file.connection.execute(_SQL.prune_logs(), (self._bytes_max,))

    def _known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        text = "SELECT 1 FROM logs WHERE pod_uid = ?"
        execute = self._file.connection.execute
        return frozenset(uid for uid in pod_uids if execute(text, (uid,)).fetchone() is not None)
