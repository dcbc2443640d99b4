"""Logs of members that are gone: one text per pod, beside the history.

The kubelet drops a log with its pod. Whoever keeps logs (`controllers.logs`) hands them to a
`LogStore`, which the CLI reads through the controller or directly. A store keeps the longest text
that it was given for a pod, so keeping again is harmless, and forgets the oldest beyond its bound.
Texts are kept compressed: logs shrink to about a tenth.
"""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast
from urllib.parse import urlsplit

from fairlead.api.core import Pod
from fairlead.api.meta import label_number
from fairlead.runtime.history import HistoryError, Runner

SCHEMA_VERSION = 1
#: Of the compressed texts of a file, together.
BYTES_MAX = 1 << 30
TASKS_MAX = 10_000
_BUSY_TIMEOUT_MS = 5_000
#: How often the oldest are dropped while as much is kept as the bound allows.
_PRUNES_PER_BOUND = 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemberLog:
    """What one member wrote. `is_cut`: there was more, and this is its end."""

    pod_uid: str
    namespace: str
    job: str
    job_uid: str
    attempt: int
    task: str
    is_cut: bool
    kept_at_ms: int
    text: bytes


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which logs: those of one attempt, by default the latest that has any."""

    namespace: str
    job: str
    attempt: int | None = None
    limit: int = TASKS_MAX

    def of_one_job(self, found: Sequence[MemberLog]) -> tuple[MemberLog, ...]:
        """Return those of the job that had this name last, by role and index.

        `found` begins with the latest.
        """
        mine = [log for log in found if log.job_uid == found[0].job_uid]
        return tuple(sorted(mine, key=lambda log: task_order(log.task)))


@dataclass(frozen=True, slots=True)
class LogText:
    """The end of a log; `is_cut` when there was more before it, or it could not be read whole."""

    text: bytes
    is_cut: bool


class LogReader(Protocol):
    """Reads the log of a container from the cluster."""

    async def read(self, pod: Pod, *, bytes_max: int, seconds_max: float) -> LogText:
        """Return the last `bytes_max`; ApiError. What came in time counts as the log."""
        ...


class LogStore(Protocol):
    """Where logs are kept. All calls may raise HistoryError."""

    async def keep(self, log: MemberLog) -> None:
        """Keep a log, in place of a shorter one of the same pod."""
        ...

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """Return which of these pods have a log here."""
        ...

    async def logs(self, query: LogQuery) -> tuple[MemberLog, ...]:
        """Return the logs of a job's attempt by role and index; () when there are none."""
        ...


def task_order(task: str) -> tuple[str, int]:
    """Order worker-2 before worker-10."""
    role, _, index = task.rpartition("-")
    return (role, label_number(index) or 0)


def check_text(text: str, url: str) -> str:
    """Return a message without the password of the URL, should it hold it."""
    password = urlsplit(url).password
    return text.replace(password, "***") if password else text


class MemoryLogs:
    """A store that ends with the process."""

    def __init__(self, *, logs_max: int = 1_000) -> None:
        self._logs: dict[str, MemberLog] = {}
        self._logs_max = logs_max

    async def keep(self, log: MemberLog) -> None:
        """See `LogStore`."""
        before = self._logs.pop(log.pod_uid, None)
        is_longer = before is not None and len(before.text) > len(log.text)
        self._logs[log.pod_uid] = before if before is not None and is_longer else log
        if len(self._logs) > self._logs_max:
            del self._logs[next(iter(self._logs))]

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """See `LogStore`."""
        return frozenset(uid for uid in pod_uids if uid in self._logs)

    async def logs(self, query: LogQuery) -> tuple[MemberLog, ...]:
        """See `LogStore`."""
        key = (query.namespace, query.job)
        mine = [log for log in self._logs.values() if (log.namespace, log.job) == key]
        attempt = query.attempt or max((log.attempt for log in mine), default=0)
        found = [log for log in mine if log.attempt == attempt]
        found.sort(key=lambda log: (-log.kept_at_ms, log.pod_uid))
        return query.of_one_job(found[: query.limit])


_CREATE = (
    "CREATE TABLE logs (pod_uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, job TEXT NOT NULL,"
    " job_uid TEXT NOT NULL, attempt INTEGER NOT NULL, task TEXT NOT NULL,"
    " is_cut INTEGER NOT NULL, kept_at_ms INTEGER NOT NULL, text_size INTEGER NOT NULL,"
    " text BLOB NOT NULL)",
    "CREATE INDEX logs_by_job ON logs (namespace, job, attempt)",
    "CREATE INDEX logs_by_age ON logs (kept_at_ms)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_UPSERT = (
    "INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (pod_uid) DO UPDATE SET"
    " is_cut = excluded.is_cut, kept_at_ms = excluded.kept_at_ms,"
    " text_size = excluded.text_size, text = excluded.text"
    " WHERE excluded.text_size >= logs.text_size"
)
_PRUNE = (
    "DELETE FROM logs WHERE pod_uid IN (SELECT pod_uid FROM (SELECT pod_uid, sum(length(text))"
    " OVER (ORDER BY kept_at_ms DESC, pod_uid) AS total FROM logs) WHERE total > ?)"
)


class SqliteLogs:
    """A store in a file of its own beside the history's, so that either may be thrown away."""

    def __init__(
        self, connection: sqlite3.Connection, *, runner: Runner, bytes_max: int = BYTES_MAX
    ) -> None:
        self._connection = connection
        self._runner = runner
        self._bytes_max = bytes_max
        self._bytes_kept = 0
        self._lock = asyncio.Lock()

    @classmethod
    def open(cls, path: Path, *, runner: Runner, bytes_max: int = BYTES_MAX) -> SqliteLogs:
        """Open the file, or make it; HistoryError when it is not usable. Blocks for a moment."""
        try:
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA journal_mode = WAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                connection.execute("BEGIN IMMEDIATE")
                for statement in _CREATE:
                    connection.execute(statement)
                connection.execute("COMMIT")
            elif version != SCHEMA_VERSION:
                raise HistoryError(
                    f"the logs {path} have schema version {version}, this Fairlead reads "
                    f"version {SCHEMA_VERSION}; move the file away"
                )
        except sqlite3.Error as error:
            raise HistoryError(
                f"cannot use the logs {path}: {error}; move the file away to start anew"
            ) from error
        return cls(connection, runner=runner, bytes_max=bytes_max)

    async def keep(self, log: MemberLog) -> None:
        """See `LogStore`."""
        await self._run(lambda: self._keep(log))

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """See `LogStore`."""
        return await self._run(lambda: self._known(pod_uids))

    async def logs(self, query: LogQuery) -> tuple[MemberLog, ...]:
        """See `LogStore`."""
        return await self._run(lambda: self._logs(query))

    async def close(self) -> None:
        """Close the file."""
        await self._run(self._connection.close)

    async def _run(self, call: Callable[[], T]) -> T:
        async with self._lock:
            try:
                return cast("T", await self._runner(call))
            except (sqlite3.Error, zlib.error) as error:
                raise HistoryError(f"the log archive failed: {error}") from error

    def _keep(self, log: MemberLog) -> None:
        packed = zlib.compress(log.text)
        row = (
            log.pod_uid, log.namespace, log.job, log.job_uid, log.attempt, log.task, log.is_cut,
            log.kept_at_ms, len(log.text), packed,
        )  # fmt: skip
        self._connection.execute(_UPSERT, row)
        self._bytes_kept += len(packed)
        if self._bytes_kept * _PRUNES_PER_BOUND >= self._bytes_max:
            self._bytes_kept = 0
            self._connection.execute(_PRUNE, (self._bytes_max,))

    def _known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        found: list[str] = []
        for uid in pod_uids:
            row = self._connection.execute("SELECT 1 FROM logs WHERE pod_uid = ?", (uid,))
            if row.fetchone() is not None:
                found.append(uid)
        return frozenset(found)

    def _logs(self, query: LogQuery) -> tuple[MemberLog, ...]:
        key = (query.namespace, query.job)
        attempt = query.attempt
        if attempt is None:
            row = self._connection.execute(
                "SELECT max(attempt) FROM logs WHERE namespace = ? AND job = ?", key
            ).fetchone()
            attempt = row[0] or 0
        rows = self._connection.execute(
            "SELECT pod_uid, namespace, job, job_uid, attempt, task, is_cut, kept_at_ms, text"
            " FROM logs WHERE namespace = ? AND job = ? AND attempt = ?"
            " ORDER BY kept_at_ms DESC, pod_uid LIMIT ?",
            (*key, attempt, query.limit),
        )
        found = [
            MemberLog(
                pod_uid=row[0], namespace=row[1], job=row[2], job_uid=row[3], attempt=row[4],
                task=row[5], is_cut=bool(row[6]), kept_at_ms=row[7], text=zlib.decompress(row[8]),
            )
            for row in rows
        ]  # fmt: skip
        return query.of_one_job(found)
