"""Records and logs that end with the process: for tests, simulations and trials."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TypeVar

from fairlead.api.jobs.use import AttemptUse, JobTraffic
from fairlead.history.audit import AuditMemory
from fairlead.history.fairness import FairStore
from fairlead.history.sql import PAGE_ROWS_MAX, RECORDS_MAX
from fairlead.history.traffic import sum_records
from fairlead.runtime.kept.audit import Appended, AuditQuery, AuditRecord, Draft
from fairlead.runtime.kept.history import (
    FleetQuery,
    FleetRecord,
    HistoryQuery,
    JobRecord,
    LogQuery,
    MemberLog,
    RunQuery,
    RunRow,
    TrafficRecord,
    UseQuery,
    UseRecord,
    has_tag,
    task_order,
)

T = TypeVar("T")
#: Of all records of jobs in memory, and of all logs: what the controllers' memory limit has room
#: for.
BYTES_MAX = 64 << 20
#: Of all decisions about the fleet, of all members' use, and of their traffic.
FLEET_BYTES_MAX = 16 << 20
USE_BYTES_MAX = 16 << 20
TRAFFIC_BYTES_MAX = 8 << 20


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
        use_bytes_max: int = USE_BYTES_MAX,
    ) -> None:
        self._records = FairStore[JobRecord](count_max=records_max, bytes_max=bytes_max)
        self._decisions = FairStore[FleetRecord](count_max=records_max, bytes_max=fleet_bytes_max)
        self._uses = FairStore[UseRecord](count_max=records_max, bytes_max=use_bytes_max)
        self._traffic = FairStore[TrafficRecord](count_max=records_max, bytes_max=TRAFFIC_BYTES_MAX)
        self._audit = AuditMemory()

    async def record(self, record: JobRecord) -> None:
        """See `History`."""
        self._records.put(record.uid, record, holder=record.namespace)

    async def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        """See `History`."""
        found = [r for r in self._records.values(query.namespace) if _matches(query, r)]
        found.sort(key=lambda r: (-(r.finished_at_ms or 0), r.uid))
        for page in _pages(found[: query.limit]):
            yield page

    async def query_runs(self, query: RunQuery) -> AsyncIterator[tuple[RunRow, ...]]:
        """See `History`."""
        found = [
            RunRow(each.uid, each.namespace, each.name, each.user, each.state,
                   each.started_at_ms, each.finished_at_ms, each.run)
            for each in self._records.values(query.namespace)
            if each.run is not None and each.finished_at_ms is not None
            and (query.since is None or each.finished_at_ms >= query.since * 1000)
            and has_tag(each.run, query.tag)
        ]  # fmt: skip
        found.sort(key=lambda each: (each.finished_at_ms, each.uid), reverse=True)
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

    async def record_use(self, records: Sequence[UseRecord]) -> None:
        """See `History`."""
        for each in records:
            self._uses.put(each.pod_uid, each, holder=each.namespace)

    async def query_use(self, query: UseQuery) -> AsyncIterator[tuple[UseRecord, ...]]:
        """See `History`."""
        mine = [each for each in self._uses.values(query.namespace)
                if (each.job_uid == query.uid if query.uid else each.job == query.job)]  # fmt: skip
        latest = max(mine, key=lambda each: (each.ended_at_ms, each.pod_uid), default=None)
        found = [
            each for each in mine
            if latest is not None and each.job_uid == latest.job_uid
            and query.attempt in (None, each.attempt)
        ]  # fmt: skip
        found.sort(key=lambda each: (-each.attempt, each.pod_uid))
        kept = found[: query.limit]
        kept.sort(key=lambda each: (each.attempt, task_order(each.task), each.pod_uid))
        for page in _pages(kept):
            yield page

    async def use_of(self, job_uids: Sequence[str]) -> Mapping[str, tuple[AttemptUse, ...]]:
        """See `History`."""
        by_attempt: dict[tuple[str, int], list[UseRecord]] = {}
        wanted = frozenset(job_uids)
        for each in self._uses.values():
            if each.job_uid in wanted:
                by_attempt.setdefault((each.job_uid, each.attempt), []).append(each)
        out: dict[str, tuple[AttemptUse, ...]] = {}
        for (uid, attempt), records in sorted(by_attempt.items()):
            out[uid] = (*out.get(uid, ()), _sum(attempt, records))
        return out

    async def record_traffic(self, records: Sequence[TrafficRecord]) -> None:
        """See `History`."""
        for each in records:
            self._traffic.put(each.id, each, holder=each.namespace)

    async def traffic_of(self, job_uids: Sequence[str]) -> Mapping[str, JobTraffic]:
        """See `History`."""
        wanted = frozenset(job_uids)
        return sum_records(each for each in self._traffic.values() if each.job_uid in wanted)

    async def append_audit(self, drafts: Sequence[Draft]) -> Appended:
        """See `History`."""
        return self._audit.append(drafts)

    async def query_audit(self, query: AuditQuery) -> AsyncIterator[tuple[AuditRecord, ...]]:
        """See `History`."""
        for page in _pages(self._audit.find(query)):
            yield page

    async def audit_sent(self, target: str) -> int:
        """See `History`."""
        return self._audit.sent.get(target, 0)

    async def note_audit_sent(self, target: str, number: int) -> None:
        """See `History`."""
        self._audit.sent[target] = number


def _sum(attempt: int, records: Sequence[UseRecord]) -> AttemptUse:
    cpu = [each.cpu_milliseconds for each in records if each.cpu_milliseconds is not None]
    peaks = [each.memory_peak_bytes for each in records if each.memory_peak_bytes is not None]
    means = [each.memory_mean_bytes for each in records if each.memory_mean_bytes is not None]
    return AttemptUse(
        attempt=attempt,
        members=len(records),
        milliseconds=sum(each.milliseconds for each in records),
        cpu_members=len(cpu),
        cpu_milliseconds=sum(cpu) if cpu else None,
        memory_members=len(peaks),
        memory_peak_bytes=max(peaks, default=None),
        memory_total_bytes=sum(peaks) if peaks else None,
        memory_mean_bytes=sum(means) // len(means) if means else None,
        is_partial=any(each.is_partial for each in records),
    )


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


_LOGS_MAX = 10_000


class MemoryLogs:
    """A store that ends with the process; beyond its limits the namespace that holds most loses
    what it kept first.
    """

    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self._logs = FairStore[MemberLog](count_max=_LOGS_MAX, bytes_max=bytes_max)

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
