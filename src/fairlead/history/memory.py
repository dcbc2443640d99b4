"""Records and logs that end with the process: for tests, simulations and trials."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.history.sql import RECORDS_MAX
from fairlead.runtime.history import (
    FleetQuery,
    FleetRecord,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
)

#: Of all logs in memory together: what the controllers' memory limit has room for.
BYTES_MAX = 64 << 20


class MemoryHistory:
    """A history that ends with the process, for tests and simulations."""

    is_durable = False

    def __init__(self, *, records_max: int = RECORDS_MAX) -> None:
        self._records: dict[str, JobRecord] = {}
        self._decisions: dict[str, FleetRecord] = {}
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

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        """Keep decisions; beyond `records_max` those recorded first are dropped."""
        for each in records:
            self._decisions.setdefault(each.id, each)
        while len(self._decisions) > self._records_max:
            del self._decisions[next(iter(self._decisions))]

    async def query_fleet(self, query: FleetQuery) -> tuple[FleetRecord, ...]:
        """Return matching decisions, the latest first, at most `query.limit`."""
        found = [
            each for each in self._decisions.values()
            if query.pool in ("", each.pool) and query.action in ("", each.action)
            and (query.since is None or each.at_ms >= query.since * 1000)
        ]  # fmt: skip
        found.sort(key=lambda each: (each.at_ms, each.id), reverse=True)
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


class MemoryLogs:
    """A store that ends with the process; beyond its limits what was kept first is dropped."""

    def __init__(self, *, logs_max: int = 10_000, bytes_max: int = BYTES_MAX) -> None:
        self._logs: dict[str, MemberLog] = {}
        self._logs_max = logs_max
        self._bytes_max = bytes_max
        self._byte_count = 0

    async def keep(self, log: MemberLog) -> None:
        """See `LogStore`."""
        before = self._logs.pop(log.pod_uid, None)
        if before is not None:
            self._byte_count -= len(before.text)
            log = before if len(before.text) > len(log.text) else log
        self._logs[log.pod_uid] = log
        self._byte_count += len(log.text)
        while len(self._logs) > self._logs_max or self._byte_count > self._bytes_max:
            self._byte_count -= len(self._logs.pop(next(iter(self._logs))).text)

    async def known(self, pod_uids: Sequence[str]) -> frozenset[str]:
        """See `LogStore`."""
        return frozenset(uid for uid in pod_uids if uid in self._logs)

    async def logs(self, query: LogQuery) -> tuple[MemberLog, ...]:
        """See `LogStore`."""
        key = (query.namespace, query.job)
        mine = [
            log
            for log in self._logs.values()
            if (log.namespace, log.job) == key and query.uid in ("", log.job_uid)
        ]
        mine.sort(key=lambda log: (-log.kept_at_ms, log.pod_uid))
        attempt = query.attempt or max(
            (log.attempt for log in mine if log.job_uid == mine[0].job_uid), default=0
        )
        found = [log for log in mine if log.attempt == attempt]
        return query.of_one_job(found[: query.limit])
