"""Records and logs that end with the process: for tests, simulations and trials."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeVar

from fairlead.history.fairness import FairStore
from fairlead.history.sql import PAGE_ROWS_MAX, RECORDS_MAX
from fairlead.runtime.history import (
    FleetQuery,
    FleetRecord,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
    task_order,
)

T = TypeVar("T")
#: Of all records of jobs in memory, and of all logs: what the controllers' memory limit has room
#: for.
BYTES_MAX = 64 << 20
#: Of all decisions about the fleet.
FLEET_BYTES_MAX = 16 << 20


class MemoryHistory:
    """A history that ends with the process, for tests and simulations.

    Beyond its limits the namespace that holds most loses what it recorded first; of decisions about
    the fleet, the pool.
    """

    is_durable = False

    def __init__(
        self,
        *,
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
        fleet_bytes_max: int = FLEET_BYTES_MAX,
    ) -> None:
        self._records = FairStore[JobRecord](count_max=records_max, bytes_max=bytes_max)
        self._decisions = FairStore[FleetRecord](count_max=records_max, bytes_max=fleet_bytes_max)

    async def record(self, record: JobRecord) -> None:
        """See `History`."""
        self._records.put(record.uid, record, holder=record.namespace)

    async def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        """See `History`."""
        found = [r for r in self._records.values(query.namespace) if _matches(query, r)]
        found.sort(key=lambda r: (-(r.finished_at_ms or 0), r.uid))
        for page in _pages(found[: query.limit]):
            yield page

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        """See `History`."""
        for each in records:
            if self._decisions.get(each.id) is None:
                self._decisions.put(each.id, each, holder=each.pool)

    async def query_fleet(self, query: FleetQuery) -> AsyncIterator[tuple[FleetRecord, ...]]:
        """See `History`."""
        found = [
            each for each in self._decisions.values(query.pool)
            if query.action in ("", each.action)
            and (query.since is None or each.at_ms >= query.since * 1000)
        ]  # fmt: skip
        found.sort(key=lambda each: (each.at_ms, each.id), reverse=True)
        for page in _pages(found[: query.limit]):
            yield page


def _pages(found: list[T]) -> Iterator[tuple[T, ...]]:
    return (tuple(found[at : at + PAGE_ROWS_MAX]) for at in range(0, len(found), PAGE_ROWS_MAX))


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
    if query.number not in (0, record.number, record.array_number):
        return False
    return query.since is None or (record.finished_at_ms or 0) >= query.since * 1000


class MemoryLogs:
    """A store that ends with the process; beyond its limits the namespace that holds most loses
    what it kept first.
    """

    def __init__(self, *, logs_max: int = 10_000, bytes_max: int = BYTES_MAX) -> None:
        self._logs = FairStore[MemberLog](count_max=logs_max, bytes_max=bytes_max)

    async def keep(self, log: MemberLog) -> None:
        """See `LogStore`."""
        before = self._logs.get(log.pod_uid)
        if before is not None and len(before.text) > len(log.text):
            log = before
        self._logs.put(log.pod_uid, log, holder=log.namespace)

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """See `LogStore`."""
        return frozenset(uid for uid in pod_uids if self._logs.get(uid) is not None)

    async def logs(self, query: LogQuery) -> AsyncIterator[MemberLog]:
        """See `LogStore`."""
        mine = [
            log
            for log in self._logs.values(query.namespace)
            if log.job == query.job
            and query.uid in ("", log.job_uid)
            and query.attempt in (None, log.attempt)
        ]
        mine.sort(key=lambda log: (-log.kept_at_ms, log.pod_uid))
        of_job = [log for log in mine if log.job_uid == mine[0].job_uid]
        attempt = max((log.attempt for log in of_job), default=0)
        found = [log for log in of_job if log.attempt == attempt][: query.limit]
        for log in sorted(found, key=lambda log: task_order(log.task)):
            yield log
