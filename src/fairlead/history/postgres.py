"""History and members' logs in PostgreSQL, for several replicas that write the same database.

psycopg is an extra (`pip install fairlead[postgres]`), imported when a URL is given. A pool of
`connections_max` connections is opened on demand. A call takes one, has a time limit on both sides
(`statement_timeout` at the server, a timeout here for a server that is silent), and is tried again
on a new connection, with a growing delay, for as long as `outage_seconds_max`; then HistoryError,
and the jobs controller tries again later. Trying again is harmless: all writes are upserts by key.

The first process creates the schema, under an advisory lock; it carries a version.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import re
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from fairlead.api.jobs.use import AttemptUse, JobTraffic
from fairlead.history.audit import AuditTable, Rows, audit_pages
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
from fairlead.runtime.backoff import Backoff, BackoffOptions
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
#: Any number that other programs in the same database are unlikely to use.
LOCK_KEY = 32_475_323
SCHEMES = ("postgresql", "postgres")

T = TypeVar("T")


class Runner(Protocol):
    """Runs a function in a thread, as `asyncio.to_thread`."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Return what the function returns."""
        ...


Connection = Any  # psycopg.AsyncConnection; the package is optional
_SQL = Dialect(
    jobs="fairlead_jobs", logs="fairlead_logs", fleet="fairlead_fleet", use="fairlead_use",
    mark="%s",
    integer="BIGINT", boolean="BOOLEAN", blob="BYTEA", text_bytes="octet_length({})",
    run_columns="finished_at_ms, uid", position="strpos", runs="fairlead_jobs",
)  # fmt: skip
_AUDIT = AuditTable("fairlead_audit", "fairlead_audit_sent", "%s", "BIGINT", records_max=1_000_000)
_TRAFFIC = TrafficTable("fairlead_traffic", "%s", "BIGINT")
_CREATE = (
    *_SQL.create(),
    "CREATE TABLE fairlead_schema (version BIGINT NOT NULL)",
    f"INSERT INTO fairlead_schema VALUES ({SCHEMA_VERSION})",  # noqa: S608 - a number
)
_CREATES = re.compile(r"CREATE (?:TABLE|INDEX) IF NOT EXISTS (\w+)")


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """Limits. A statement of more than `statement_seconds_max` is ended by the server."""

    connections_max: int = 2
    connect_seconds: float = 5.0
    statement_seconds_max: float = 10.0
    #: How long one call tries again before it gives up with HistoryError.
    outage_seconds_max: float = 15.0
    records_max: int = RECORDS_MAX
    record_bytes_max: int = 20 << 30
    fleet_bytes_max: int = 1 << 30
    use_bytes_max: int = 10 << 30
    traffic_bytes_max: int = 4 << 30
    log_bytes_max: int = 20 << 30
    backoff: BackoffOptions = field(default_factory=lambda: BackoffOptions(0.1, 3.0))


def is_postgres_url(text: str) -> bool:
    """True for postgresql:// and postgres:// URLs."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def check_text(text: str, url: str) -> str:
    """Return a message without the password of the URL, should it hold it."""
    password = urlsplit(url).password
    return text.replace(password, "***") if password else text


def shown_url(url: str) -> str:
    """Return the URL without user, password and parameters, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def import_psycopg() -> Any:
    """Return the psycopg module; HistoryError with the remedy when it is not installed."""
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise HistoryError(
            f"a history in PostgreSQL needs psycopg, which cannot be imported ({error}); "
            "pip install 'fairlead[postgres]'"
        ) from error


class PostgresStore:
    """Implements `History` and `LogStore` on one database. Close it in the end."""

    is_durable = True

    def __init__(
        self,
        url: str,
        *,
        rng: random.Random,
        runner: Runner,
        options: PostgresOptions | None = None,
    ) -> None:
        """HistoryError without psycopg; connects at the first call.

        `runner` runs a function in a thread: to compress a log takes a while.
        """
        self._psycopg = import_psycopg()
        self._url = url
        self._rng = rng
        self._runner = runner
        self._options = options or PostgresOptions()
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(self._options.connections_max)
        self._is_prepared, self._audit_head = False, Head()
        chosen = self._options
        self._record_bounds = _SQL.record_bounds(chosen.records_max, chosen.record_bytes_max)
        self._fleet_bounds = _SQL.fleet_bounds(chosen.records_max, chosen.fleet_bytes_max)
        self._use_bounds = _SQL.use_bounds(chosen.use_bytes_max)
        self._use_growth = Growth(chosen.use_bytes_max)
        self._traffic_bounds = _TRAFFIC.bounds(chosen.traffic_bytes_max)
        self._traffic_growth = Growth(chosen.traffic_bytes_max)
        self._log_bounds = _SQL.log_bounds(chosen.log_bytes_max)
        self._record_growth = Growth(chosen.record_bytes_max)
        self._fleet_growth = Growth(chosen.fleet_bytes_max)
        self._log_growth = Growth(chosen.log_bytes_max)

    async def check(self) -> None:
        """Connect and make the schema; HistoryError when it is not usable."""

        async def nothing(_connection: Connection) -> None:
            return None

        await self._call(nothing)

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            await self._idle.pop().close()

    # History

    async def record(self, record: JobRecord) -> None:
        """Keep the record; committed at the server when this returns."""
        await self._write(
            _SQL.upsert_record(), [_row(record)], bounds=self._record_bounds,
            growth=self._record_growth,
        )  # fmt: skip

    async def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        """See `History`."""
        for uids in key_pages(await self._select(_SQL.find_records(query))):
            rows = await self._select(_SQL.get_records(uids))
            by_uid = {record.uid: record for record in (JobRecord(*row) for row in rows)}
            yield tuple(by_uid[uid] for uid in uids if uid in by_uid)

    async def query_runs(self, query: RunQuery) -> AsyncIterator[tuple[RunRow, ...]]:
        """See `History`."""
        async for page in run_pages(_SQL, query, self._select):
            yield page

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        """Keep decisions; committed at the server when this returns."""
        await self._write(
            _SQL.insert_fleet(), list(map(_row, records)), bounds=self._fleet_bounds,
            growth=self._fleet_growth,
        )  # fmt: skip

    async def query_fleet(self, query: FleetQuery) -> AsyncIterator[tuple[FleetRecord, ...]]:
        """See `History`."""
        for ids in key_pages(await self._select(_SQL.find_fleet(query))):
            rows = await self._select(_SQL.get_fleet(ids))
            by_id = {record.id: record for record in (FleetRecord(*row) for row in rows)}
            yield tuple(by_id[id_] for id_ in ids if id_ in by_id)

    async def record_use(self, records: Sequence[UseRecord]) -> None:
        """Keep what members used; committed at the server when this returns."""
        await self._write(
            _SQL.upsert_use(), list(map(_row, records)), bounds=self._use_bounds,
            growth=self._use_growth,
        )  # fmt: skip

    async def query_use(self, query: UseQuery) -> AsyncIterator[tuple[UseRecord, ...]]:
        """See `History`."""
        for uids in use_pages(await self._select(_SQL.find_use(query))):
            rows = await self._select(_SQL.get_use(uids))
            by_uid = {record.pod_uid: record for record in (UseRecord(*row) for row in rows)}
            yield tuple(by_uid[uid] for uid in uids if uid in by_uid)

    async def use_of(self, job_uids: Sequence[str]) -> Mapping[str, tuple[AttemptUse, ...]]:
        """See `History`."""
        return sums_of(await self._select(_SQL.sum_use(job_uids)))

    async def record_traffic(self, records: Sequence[TrafficRecord]) -> None:
        """Keep traffic of members; committed at the server when this returns."""
        await self._write(
            _TRAFFIC.upsert(), list(map(_row, records)), bounds=self._traffic_bounds,
            growth=self._traffic_growth,
        )  # fmt: skip

    async def traffic_of(self, job_uids: Sequence[str]) -> Mapping[str, JobTraffic]:
        """See `History`."""
        return traffic_sums(await self._select(_TRAFFIC.sum(job_uids)))

    async def append_audit(self, drafts: Sequence[Draft]) -> Appended:
        """See `History`. Tried again, a record may be there twice, with the same id."""

        async def append(connection: Connection) -> Appended:
            await connection.execute(f"LOCK TABLE {_AUDIT.table} IN SHARE ROW EXCLUSIVE MODE")
            steps = _AUDIT.append(drafts, self._audit_head)
            try:
                statement = next(steps)
                while True:
                    cursor = await connection.execute(*statement)
                    rows: Rows = await cursor.fetchall() if cursor.description else []
                    statement = steps.send(rows)
            except StopIteration as end:
                return cast("Appended", end.value)

        done = await self._call(append)
        self._audit_head = Head(done.records[-1].number, done.records[-1].digest)
        return done

    async def query_audit(self, query: AuditQuery) -> AsyncIterator[tuple[AuditRecord, ...]]:
        """See `History`."""
        async for page in audit_pages(_AUDIT, query, self._select):
            yield page

    async def audit_sent(self, target: str) -> int:
        """See `History`."""
        found = await self._select(_AUDIT.find_sent(target))
        return found[0][0] if found else 0

    async def note_audit_sent(self, target: str, number: int) -> None:
        """See `History`."""
        await self._call(lambda connection: connection.execute(*_AUDIT.note_sent(target, number)))

    # Logs

    async def keep(self, log: MemberLog) -> None:
        """Keep a member's log, in place of a shorter one of the same pod."""
        row = await self._runner(partial(log_row, log))
        await self._write(
            _SQL.upsert_log(), [row], bounds=self._log_bounds, growth=self._log_growth
        )

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """Return which of these pods have a log here."""
        text = "SELECT pod_uid FROM fairlead_logs WHERE pod_uid = ANY(%s)"
        return frozenset(row[0] for row in await self._select((text, (list(pod_uids),))))

    async def logs(self, query: LogQuery) -> AsyncIterator[MemberLog]:
        """See `LogStore`."""
        for pods in log_pages(await self._select(_SQL.find_logs(query))):
            rows = await self._select(_SQL.get_logs(pods))
            try:
                found = await self._runner(partial(logs_of, rows))
            except zlib.error as error:
                raise HistoryError(self._sentence(error)) from error
            for pod_uid in pods:
                if pod_uid in found:
                    yield found.pop(pod_uid)

    # Connections

    async def _write(
        self, statement: str, rows: Sequence[Values], *, bounds: Sequence[Bound], growth: Growth
    ) -> None:
        """Execute a statement with each row, and now and then enforce the bounds with them."""
        enforced = bounds if growth.is_due(rows) else ()

        async def write(connection: Connection) -> None:
            for row in rows:
                await connection.execute(statement, row)
            for bound in enforced:
                held = await (await connection.execute(bound.select_held)).fetchall()
                level = bound.level(held)
                if level is not None:
                    await connection.execute(bound.drop_oldest(_SQL.mark), (level,))

        await self._call(write)

    async def _select(self, statement: tuple[str, Values]) -> list[tuple[Any, ...]]:
        async def read(connection: Connection) -> list[tuple[Any, ...]]:
            return await (await connection.execute(*statement)).fetchall()

        return await self._call(read)

    async def _call(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Run it in a transaction; try again while the server cannot be reached."""
        backoff = Backoff(self._rng, self._options.backoff)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.outage_seconds_max
        while True:
            try:
                async with self._slots:
                    return await self._once(call)
            except (self._psycopg.OperationalError, OSError, TimeoutError) as error:
                await self.close()  # the others are of the same server
                delay = backoff.next()
                if loop.time() + delay >= deadline:
                    raise HistoryError(self._sentence(error)) from error
                await asyncio.sleep(delay)
            except self._psycopg.Error as error:
                raise HistoryError(self._sentence(error)) from error

    async def _once(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        limit = self._options.statement_seconds_max + self._options.connect_seconds
        async with asyncio.timeout(limit):
            connection = self._idle.pop() if self._idle else await self._connect()
            is_done = False
            try:
                if not self._is_prepared:
                    await self._prepare(connection)
                async with connection.transaction():
                    result = await call(connection)
                is_done = True
            finally:
                if is_done and not connection.closed:
                    self._idle.append(connection)
                else:
                    await connection.close()
        return result

    async def _connect(self) -> Connection:
        milliseconds = round(self._options.statement_seconds_max * 1000)
        return await self._psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=max(round(self._options.connect_seconds), 1),
            application_name="fairlead",
            options=f"-c statement_timeout={milliseconds} -c client_encoding=UTF8",
        )

    async def _prepare(self, connection: Connection) -> None:
        """Make the schema, or see that it is of this version. One replica at a time."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
            found = await connection.execute("SELECT to_regclass('fairlead_schema')")
            if (await found.fetchone())[0] is None:
                for statement in _CREATE:
                    await connection.execute(statement)
            else:
                rows = await connection.execute("SELECT max(version) FROM fairlead_schema")
                version = cast("int | None", (await rows.fetchone())[0])
                if version != SCHEMA_VERSION:
                    raise OtherSchema(
                        f"the history {shown_url(self._url)} has schema version {version}, this "
                        f"Fairlead reads version {SCHEMA_VERSION}; use the Fairlead that wrote "
                        "it, or another database"
                    )
            columns = await connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)", (_SQL.jobs,)
            )
            there = [name for (name,) in await columns.fetchall()]
            made = await connection.execute(
                "SELECT relname FROM pg_class WHERE pg_table_is_visible(oid)"
                " AND starts_with(relname, 'fairlead_')"
            )
            names = {name for (name,) in await made.fetchall()}
            later = (*_SQL.create_fleet(), *_SQL.create_use(), *_AUDIT.create(), *_TRAFFIC.create())
            # Even where nothing is missing, to create takes a lock and the right of the owner.
            for statement in _missing((*_SQL.add_columns(there), *later), names):
                await connection.execute(statement)
        self._is_prepared = True

    def _sentence(self, error: Exception) -> str:
        text = " ".join(str(error).split()) or type(error).__name__
        return f"the history {shown_url(self._url)} failed: {check_text(text, self._url)}"


def _row(record: JobRecord | FleetRecord | UseRecord | TrafficRecord) -> Values:
    """Return the columns. PostgreSQL's text holds no NUL, and JSON writes it as an escape; a plain
    text may have it.
    """
    columns = astuple(record)
    return tuple(each.replace("\x00", "") if isinstance(each, str) else each for each in columns)


def _missing(statements: Iterable[str], there: Collection[str]) -> list[str]:
    """Return the statements without those that create a table or an index that is there."""
    found = ((each, _CREATES.match(each)) for each in statements)
    return [each for each, creates in found if creates is None or creates[1] not in there]
