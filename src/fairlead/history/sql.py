"""The tables of records and logs, and the statements on them, for SQLite and PostgreSQL alike.

Statements hold this module's own table and column names only; all values are bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fairlead.runtime.history import (
    FleetQuery,
    FleetRecord,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
)

RECORDS_MAX = 1_000_000
_COLUMNS = tuple(f.name for f in fields(JobRecord))
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
_INTEGER_COLUMNS = frozenset(
    name
    for name in _COLUMNS
    if name.endswith("_ms") or name in ("priority", "member_count", "attempt_count")
)
_LOG_COLUMNS = (
    "pod_uid, namespace, job, job_uid, attempt, task, is_cut, kept_at_ms, text_size, text"
)
_LATEST_LOG_FIRST = "ORDER BY kept_at_ms DESC, pod_uid"
_FLEET_COLUMNS = tuple(f.name for f in fields(FleetRecord))
_FLEET_NAMES = ", ".join(f'"{name}"' for name in _FLEET_COLUMNS)
_ALL_ROWS = 2**63 - 1  # OFFSET needs a LIMIT in SQLite

Values = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Words in which the databases differ: the mark of a bound value, and types of columns."""

    jobs: str
    logs: str
    fleet: str
    mark: str
    integer: str
    boolean: str
    blob: str
    #: Behind the definition of the table of jobs.
    jobs_suffix: str = ""

    def create(self) -> tuple[str, ...]:
        """Return the statements that make both tables: three for logs, behind those for jobs."""
        columns = ", ".join(
            f'"{name}" {self.integer if name in _INTEGER_COLUMNS else "TEXT NOT NULL"}'
            + (" PRIMARY KEY" if name == "uid" else "")
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

    def insert_fleet(self) -> str:
        """Insert a row of all columns of `FleetRecord`, unless its id is there."""
        return (
            f"INSERT INTO {self.fleet} ({_FLEET_NAMES})"  # noqa: S608
            f" VALUES ({self._marks(len(_FLEET_COLUMNS))}) ON CONFLICT (id) DO NOTHING"
        )

    def prune_fleet(self) -> str:
        """Delete all decisions but the latest; binds how many stay."""
        return (
            f"DELETE FROM {self.fleet} WHERE id IN (SELECT id FROM {self.fleet}"  # noqa: S608
            f" ORDER BY at_ms DESC, id DESC LIMIT {_ALL_ROWS} OFFSET {self.mark})"
        )

    def select_fleet(self, query: FleetQuery) -> tuple[str, Values]:
        """Return the statement for a query, the latest first, and its values."""
        equal = (("pool", query.pool), ("action", query.action))
        where, values = self._where(equal, "at_ms", query.since)
        text = (
            f"SELECT {_FLEET_NAMES} FROM {self.fleet}{where}"  # noqa: S608
            f" ORDER BY at_ms DESC, id DESC LIMIT {self.mark}"
        )
        return text, (*values, query.limit)

    def upsert_record(self) -> str:
        """Insert or replace a row of all columns of `JobRecord`."""
        assignments = ", ".join(f'"{c}" = EXCLUDED."{c}"' for c in _COLUMNS if c != "uid")
        return (
            f"INSERT INTO {self.jobs} ({_NAMES}) VALUES ({self._marks(len(_COLUMNS))})"  # noqa: S608
            f" ON CONFLICT (uid) DO UPDATE SET {assignments}"
        )

    def prune_records(self) -> str:
        """Delete all records but the latest; binds how many stay."""
        return (
            f"DELETE FROM {self.jobs} WHERE uid IN (SELECT uid FROM {self.jobs}"  # noqa: S608
            f" ORDER BY finished_at_ms DESC NULLS LAST, uid LIMIT {_ALL_ROWS} OFFSET {self.mark})"
        )

    def select_records(self, query: HistoryQuery) -> tuple[str, Values]:
        """Return the statement for a query, the latest end first, and its values."""
        columns = ("namespace", "name", "uid", "user", "state")
        equal = [(column, getattr(query, column)) for column in columns]
        where, values = self._where(equal, "finished_at_ms", query.since)
        text = (
            f"SELECT {_NAMES} FROM {self.jobs}{where}"  # noqa: S608
            f" ORDER BY finished_at_ms DESC NULLS LAST, uid LIMIT {self.mark}"
        )
        return text, (*values, query.limit)

    def upsert_log(self) -> str:
        """Insert a row of `log_row`, or replace one whose text is not longer."""
        return (
            f"INSERT INTO {self.logs} ({_LOG_COLUMNS}) VALUES ({self._marks(10)})"  # noqa: S608
            " ON CONFLICT (pod_uid) DO UPDATE SET is_cut = EXCLUDED.is_cut,"
            " kept_at_ms = EXCLUDED.kept_at_ms, text_size = EXCLUDED.text_size,"
            f" text = EXCLUDED.text WHERE EXCLUDED.text_size >= {self.logs}.text_size"
        )

    def prune_logs(self) -> str:
        """Delete all but the latest logs; binds how many compressed bytes stay."""
        return (
            f"DELETE FROM {self.logs} WHERE pod_uid IN (SELECT pod_uid FROM (SELECT pod_uid,"  # noqa: S608
            " sum(length(text)) OVER (ORDER BY kept_at_ms DESC, pod_uid) AS total"
            f" FROM {self.logs}) AS sized WHERE total > {self.mark})"
        )

    def select_logs(self, query: LogQuery) -> tuple[str, Values]:
        """Return the statement for the logs of an attempt, the latest first, and its values."""
        mark = self.mark
        key: Values = (query.namespace, query.job)
        where = f"WHERE namespace = {mark} AND job = {mark}"
        if query.uid:
            key, where = (*key, query.uid), f"{where} AND job_uid = {mark}"
        attempt, values = mark, (*key, query.attempt)
        if query.attempt is None:
            last = f"(SELECT job_uid FROM {self.logs} {where} {_LATEST_LOG_FIRST} LIMIT 1)"  # noqa: S608
            attempt = f"(SELECT max(attempt) FROM {self.logs} {where} AND job_uid = {last})"  # noqa: S608
            values = (*key, *key, *key)
        text = (
            f"SELECT {_LOG_COLUMNS} FROM {self.logs}"  # noqa: S608
            f" {where} AND attempt = {attempt}"
            f" {_LATEST_LOG_FIRST} LIMIT {mark}"
        )
        return text, (*values, query.limit)

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


def log_row(log: MemberLog) -> Values:
    """Return the columns of a log; its text, the last one, compressed."""
    return (
        log.pod_uid, log.namespace, log.job, log.job_uid, log.attempt, log.task, log.is_cut,
        log.kept_at_ms, len(log.text), zlib.compress(log.text),
    )  # fmt: skip


def logs_of(rows: Sequence[Sequence[Any]]) -> list[MemberLog]:
    """Return the logs of rows of `select_logs`; zlib.error when one is damaged."""
    return [
        MemberLog(*row[:6], is_cut=bool(row[6]), kept_at_ms=row[7], text=zlib.decompress(row[9]))
        for row in rows
    ]
