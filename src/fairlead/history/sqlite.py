"""Records and logs in two SQLite files, side by side, so that either may be removed.

The files are in WAL mode. SQLite blocks, so its calls go through a runner that the caller supplies
(a thread, in production).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from fairlead.api.jobs.use import AttemptUse, JobTraffic
from fairlead.history.audit import AuditTable, Rows, Statement, audit_pages
from fairlead.history.sql import (
    RECORDS_MAX,
    Bound,
    Dialect,
    Growth,
    Values,
    key_pages,
    log_pages,
    log_row,
    logs_of,
    run_pages,
    sums_of,
    use_pages,
)
from fairlead.history.traffic import TrafficTable, traffic_sums
from fairlead.runtime.kept.audit import Appended, AuditQuery, AuditRecord, Draft, Head
from fairlead.runtime.kept.history import (
    FleetQuery,
    FleetRecord,
    HistoryError,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
    OtherSchema,
    RunQuery,
    RunRow,
    TrafficRecord,
    UseQuery,
    UseRecord,
)

SCHEMA_VERSION = 1
#: Of records, decisions, members' use, their traffic, and compressed logs. Together they fit into
#: the volume that an installation has by default (1 GiB): on a full one no record is written, so no
#: job ends.
RECORD_BYTES_MAX = 256 << 20
FLEET_BYTES_MAX = 64 << 20
USE_BYTES_MAX = 96 << 20
TRAFFIC_BYTES_MAX = 32 << 20
LOG_BYTES_MAX = 512 << 20
_BUSY_TIMEOUT_MS = 5_000
_MODE_TRIES_MAX = 100
#: Records of one commit.
COMMIT_RECORDS_MAX = 256
_SQL = Dialect(
    jobs="jobs", logs="logs", fleet="fleet", use="use", mark="?",
    integer="INTEGER", boolean="INTEGER", blob="BLOB", text_bytes="length(CAST({} AS BLOB))",
    jobs_suffix=" WITHOUT ROWID", position="instr",
    runs="jobs INDEXED BY jobs_by_run",
    run_columns='finished_at_ms, uid, namespace, name, "user", state, started_at_ms, run',
)  # fmt: skip
_AUDIT = AuditTable("audit", "audit_sent", "?", "INTEGER")
_TRAFFIC = TrafficTable("traffic", "?", "INTEGER")
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
        later: Callable[[sqlite3.Connection], tuple[str, ...]] = lambda _: (),
    ) -> _File:
        """Open the file, or make it with its tables; HistoryError. Blocks for a moment.

        `later` returns the statements that make what files of this version may lack.
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
            raise OtherSchema(
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

    async def write(
        self, statement: str, rows: Sequence[Values], *, bounds: Sequence[Bound], growth: Growth
    ) -> None:
        """Write all rows or none, and now and then enforce the bounds with them; HistoryError."""

        def write() -> None:
            execute = self.connection.execute
            self.connection.executemany(statement, rows)
            for bound in bounds if growth.is_due(rows) else ():
                level = bound.level(execute(bound.select_held))
                if level is not None:
                    execute(bound.drop_oldest(_SQL.mark), (level,))

        await self.transact(write)

    async def transact(self, call: Callable[[], T]) -> T:
        """Run what writes, all of it or none, with no other writer beside it; HistoryError."""

        def write() -> T:
            execute = self.connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                result = call()
            except BaseException:
                execute("ROLLBACK")
                raise
            execute("COMMIT")
            return result

        return await self.run(write)

    def converse(self, steps: Generator[Statement, Rows, T]) -> T:
        """Return the result of a conversation of statements and their rows. Blocks."""
        try:
            statement = next(steps)
            while True:
                statement = steps.send(self.connection.execute(*statement).fetchall())
        except StopIteration as end:
            return cast("T", end.value)


def _prepare(
    connection: sqlite3.Connection,
    tables: tuple[str, ...],
    later: Callable[[sqlite3.Connection], tuple[str, ...]],
) -> int:
    """Set the modes, make the tables when the file is new, and return the version of the schema."""
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        return version
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()  # another may have made them
    made = (*tables, f"PRAGMA user_version = {SCHEMA_VERSION}") if version == 0 else ()
    for statement in made:
        connection.execute(statement)
    for statement in later(connection):
        connection.execute(statement)
    connection.execute("COMMIT")
    return SCHEMA_VERSION


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Set the mode of the journal. SQLite does not wait for another that sets it as well, but for
    the lock of a transaction it does.
    """
    for tries_left in range(_MODE_TRIES_MAX - 1, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not tries_left:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return


def _later_tables(connection: sqlite3.Connection) -> tuple[str, ...]:
    columns = connection.execute("SELECT name FROM pragma_table_info('jobs')")
    return (
        *_SQL.add_columns([name for (name,) in columns]),
        *_SQL.create_fleet(),
        *_SQL.create_use(),
        *_AUDIT.create(),
        *_TRAFFIC.create(),
    )


@dataclass(slots=True, eq=False)
class _Waiting:
    """A record that `record` has not returned for yet."""

    row: Values
    is_written: bool = False
    #: It was in a commit that failed, for whichever of its records.
    is_alone: bool = False


class SqliteHistory:
    """Records in one file, on disk when `record` returns. Open it with `open`, then close it.

    Records that come while others are written wait, and are then written with one commit: a commit
    costs a thread's turn and a synced write to the disk, and a record in it hardly anything.
    """

    is_durable = True

    def __init__(
        self, file: _File, *, records_max: int, bytes_max: int, use_bytes_max: int
    ) -> None:
        self._file = file
        self._bounds = _SQL.record_bounds(records_max, bytes_max)
        self._fleet_bounds = _SQL.fleet_bounds(records_max, FLEET_BYTES_MAX)
        self._use_bounds = _SQL.use_bounds(use_bytes_max)
        self._growth, self._fleet_growth = Growth(bytes_max), Growth(FLEET_BYTES_MAX)
        self._use_growth = Growth(use_bytes_max)
        self._traffic_bounds = _TRAFFIC.bounds(TRAFFIC_BYTES_MAX)
        self._traffic_growth = Growth(TRAFFIC_BYTES_MAX)
        self._audit_head = Head()
        self._turn = asyncio.Lock()
        #: A set that keeps the order in which they came.
        self._waiting: dict[_Waiting, None] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        runner: Runner,
        records_max: int = RECORDS_MAX,
        bytes_max: int = RECORD_BYTES_MAX,
        use_bytes_max: int = USE_BYTES_MAX,
    ) -> SqliteHistory:
        """Open the file, or make it; HistoryError when it is not usable. Blocks for a moment."""
        file = _File.open(
            path, what="history", tables=_JOBS_TABLE, later=_later_tables, runner=runner
        )
        return cls(file, records_max=records_max, bytes_max=bytes_max, use_bytes_max=use_bytes_max)

    async def record(self, record: JobRecord) -> None:
        """See `History`."""
        mine = _Waiting(astuple(record))
        self._waiting[mine] = None
        try:
            async with self._turn:
                if not mine.is_written:
                    await self._write_with_others(mine)
        finally:
            del self._waiting[mine]

    async def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        """See `History`."""
        for uids in await self._keys(_SQL.find_records(query)):
            rows = await self._file.select(_SQL.get_records(uids))
            by_uid = {record.uid: record for record in (JobRecord(*row) for row in rows)}
            yield tuple(by_uid[uid] for uid in uids if uid in by_uid)

    async def close(self) -> None:
        """Close the file."""
        await self._file.run(self._file.connection.close)

    async def query_runs(self, query: RunQuery) -> AsyncIterator[tuple[RunRow, ...]]:
        """See `History`."""
        async for page in run_pages(_SQL, query, self._file.select):
            yield page

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        """See `History`."""
        rows = list(map(astuple, records))
        await self._file.write(
            _SQL.insert_fleet(), rows, bounds=self._fleet_bounds, growth=self._fleet_growth
        )

    async def query_fleet(self, query: FleetQuery) -> AsyncIterator[tuple[FleetRecord, ...]]:
        """See `History`."""
        for ids in await self._keys(_SQL.find_fleet(query)):
            rows = await self._file.select(_SQL.get_fleet(ids))
            by_id = {record.id: record for record in (FleetRecord(*row) for row in rows)}
            yield tuple(by_id[id_] for id_ in ids if id_ in by_id)

    async def record_use(self, records: Sequence[UseRecord]) -> None:
        """See `History`."""
        rows = list(map(astuple, records))
        await self._file.write(
            _SQL.upsert_use(), rows, bounds=self._use_bounds, growth=self._use_growth
        )

    async def query_use(self, query: UseQuery) -> AsyncIterator[tuple[UseRecord, ...]]:
        """See `History`."""
        for uids in use_pages(await self._file.select(_SQL.find_use(query))):
            rows = await self._file.select(_SQL.get_use(uids))
            by_uid = {record.pod_uid: record for record in (UseRecord(*row) for row in rows)}
            yield tuple(by_uid[uid] for uid in uids if uid in by_uid)

    async def use_of(self, job_uids: Sequence[str]) -> Mapping[str, tuple[AttemptUse, ...]]:
        """See `History`."""
        return sums_of(await self._file.select(_SQL.sum_use(job_uids)))

    async def record_traffic(self, records: Sequence[TrafficRecord]) -> None:
        """See `History`."""
        rows = list(map(astuple, records))
        await self._file.write(
            _TRAFFIC.upsert(), rows, bounds=self._traffic_bounds, growth=self._traffic_growth
        )

    async def traffic_of(self, job_uids: Sequence[str]) -> Mapping[str, JobTraffic]:
        """See `History`."""
        return traffic_sums(await self._file.select(_TRAFFIC.sum(job_uids)))

    async def append_audit(self, drafts: Sequence[Draft]) -> Appended:
        """See `History`."""
        file, own = self._file, self._audit_head
        done = await file.transact(lambda: file.converse(_AUDIT.append(drafts, own)))
        self._audit_head = Head(done.records[-1].number, done.records[-1].digest)
        return done

    async def query_audit(self, query: AuditQuery) -> AsyncIterator[tuple[AuditRecord, ...]]:
        """See `History`."""
        async for page in audit_pages(_AUDIT, query, self._file.select):
            yield page

    async def audit_sent(self, target: str) -> int:
        """See `History`."""
        found = await self._file.select(_AUDIT.find_sent(target))
        return found[0][0] if found else 0

    async def note_audit_sent(self, target: str, number: int) -> None:
        """See `History`."""
        statement = _AUDIT.note_sent(target, number)
        await self._file.transact(lambda: self._file.connection.execute(*statement))

    async def _write_with_others(self, mine: _Waiting) -> None:
        """Write a record, and those that wait with it where all of them can be written."""
        batch = [mine]
        if not mine.is_alone:
            waiting = (w for w in self._waiting if not (w is mine or w.is_written or w.is_alone))
            batch += islice(waiting, COMMIT_RECORDS_MAX - 1)
        try:
            await self._write(batch)
        except Exception:  # over any of them: each gets an error of its own
            if len(batch) == 1:
                raise
            for each in batch:
                each.is_alone = True
            await self._write([mine])

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        rows = [each.row for each in batch]
        await self._file.write(_SQL.upsert_record(), rows, bounds=self._bounds, growth=self._growth)
        for each in batch:
            each.is_written = True

    async def _keys(self, statement: tuple[str, Values]) -> Iterator[list[str]]:
        return key_pages(await self._file.select(statement))


class SqliteLogs:
    """Logs in one file. Open it with `open`, then close it."""

    def __init__(self, file: _File, *, bytes_max: int) -> None:
        self._file = file
        self._bounds = _SQL.log_bounds(bytes_max)
        self._growth = Growth(bytes_max)

    @classmethod
    def open(cls, path: Path, *, runner: Runner, bytes_max: int = LOG_BYTES_MAX) -> SqliteLogs:
        """Open the file, or make it; HistoryError when it is not usable. Blocks for a moment."""
        file = _File.open(path, what="log archive", tables=_LOGS_TABLE, runner=runner)
        return cls(file, bytes_max=bytes_max)

    async def keep(self, log: MemberLog) -> None:
        """See `LogStore`."""
        row = await self._file.run(lambda: log_row(log))
        await self._file.write(_SQL.upsert_log(), [row], bounds=self._bounds, growth=self._growth)

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """See `LogStore`."""
        return await self._file.run(lambda: self._known(pod_uids))

    async def logs(self, query: LogQuery) -> AsyncIterator[MemberLog]:
        """See `LogStore`."""
        execute = self._file.connection.execute
        for pods in log_pages(await self._file.select(_SQL.find_logs(query))):
            statement = _SQL.get_logs(pods)
            found = await self._file.run(lambda each=statement: logs_of(execute(*each)))
            for pod_uid in pods:
                if pod_uid in found:
                    yield found.pop(pod_uid)

    async def close(self) -> None:
        """Close the file."""
        await self._file.run(self._file.connection.close)

    def _known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        text = "SELECT 1 FROM logs WHERE pod_uid = ?"
        execute = self._file.connection.execute
        return frozenset(uid for uid in pod_uids if execute(text, (uid,)).fetchone() is not None)
