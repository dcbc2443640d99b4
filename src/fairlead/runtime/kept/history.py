"""What remains of a job when its objects are gone: a record of the job, and its members' logs.

The jobs controller records a job before it writes that the job has ended; a record replaces the
one with the same uid, so a crash between the two loses nothing and recording again is harmless.
`document` is the whole job as JSON, but for what makes it larger than `DOCUMENT_BYTES_MAX`
(`record_document.py`); the other fields are what people search by.

The kubelet drops a log with its pod. `controllers.logs` reads it before and hands it to a
`LogStore`, which keeps the longest text of each pod, so keeping again is harmless too.

Stores are bounded by bytes. In a full one, the namespace that holds most loses its oldest.

Values and protocols are here; what implements them (memory, SQLite, PostgreSQL) is in `history/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from fairlead.api import names
from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import array_number_of
from fairlead.api.jobs.run_facts import RunSummary
from fairlead.api.jobs.use import AttemptUse, JobTraffic, MemberUse, encode_use
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import ObjectMeta, find_condition, is_true, label_number
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.logged_members import LoggedMember
from fairlead.decide.attempts.run_facts import run_text
from fairlead.runtime.backoff import Backoff
from fairlead.runtime.kept.audit import Appended, AuditQuery, AuditRecord, Draft
from fairlead.runtime.kept.record_document import document_of, short_text
from fairlead.runtime.logs import Logger

T = TypeVar("T")

TASKS_MAX = 10_000
#: Bounds of what may be asked for: an attempt; any number, by its digits: Python refuses 4,300.
ATTEMPT_MAX = 1_000_000
NUMBER_DIGITS_MAX = 19
#: Of the texts that a record is searched by.
_USER_LENGTH_MAX = 1_024
_MESSAGE_LENGTH_MAX = 4_096


class HistoryError(Exception):
    """The history cannot be used; the message says which one, why, and what to do."""


class OtherSchema(HistoryError):
    """Another version of Fairlead wrote the history; nothing is wrong with it."""


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
    #: Of the job, and of the array that it is an element of; records of earlier versions have none.
    number: int | None = None
    array_number: int | None = None
    #: Of a run (`run_text`), for lists of many; None: nothing was recorded of one.
    run: str | None = None


class RunRow(NamedTuple):
    """What lists show of a job as a run; `run` is JSON of `RunSummary`."""

    uid: str
    namespace: str
    name: str
    user: str
    state: str
    started_at_ms: int | None
    finished_at_ms: int
    run: str


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs that have ended: empty fields match all; a run has the tag among its own."""

    namespace: str = ""
    tag: str = ""
    since: float | None = None
    limit: int = 1_000


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
    #: Of a job, or of an array for all of its elements. 0: any.
    number: int = 0


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """One decision about the fleet. `pool` is "" for the fleet as a whole.

    `document` is what it was decided on, as JSON.
    """

    id: str
    at_ms: int
    pool: str
    action: str
    reason: str
    message: str
    document: str


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """Which decisions: empty fields match all; `since` is in seconds since the epoch."""

    pool: str = ""
    action: str = ""
    since: float | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class UseRecord:
    """What one member used. Amounts that were not measured are None; `document` is the whole use,
    as JSON of `api.use.MemberUse`.
    """

    pod_uid: str
    namespace: str
    job: str
    job_uid: str
    attempt: int
    task: str
    ended_at_ms: int
    milliseconds: int
    cpu_milliseconds: int | None
    memory_peak_bytes: int | None
    memory_mean_bytes: int | None
    is_partial: int
    document: str


@dataclass(frozen=True, slots=True)
class UseQuery:
    """Which members' use: of the job with this uid, by default of the one that had the name last;
    of one attempt, or of all.
    """

    namespace: str = ""
    job: str = ""
    uid: str = ""
    attempt: int | None = None
    limit: int = TASKS_MAX


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """What one member had exchanged with one class of addresses when it ended, in bytes."""

    id: str
    pod_uid: str
    namespace: str
    job_uid: str
    traffic_class: str
    ended_at_ms: int
    sent: int
    received: int


class History(Protocol):
    """Where records are kept. One that is durable outlives this process."""

    @property
    def is_durable(self) -> bool:
        """True where records outlive the process."""
        ...

    async def record(self, record: JobRecord) -> None:
        """Keep the record, in place of an earlier one of the same uid; HistoryError."""
        ...

    def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        """Yield matching records in small groups, the latest end first, at most `query.limit`.

        HistoryError. A record that is dropped meanwhile may be missing.
        """
        ...

    def query_runs(self, query: RunQuery) -> AsyncIterator[tuple[RunRow, ...]]:
        """Yield matching runs in groups, the latest end first, at most `query.limit`."""
        ...

    async def record_fleet(self, records: Sequence[FleetRecord]) -> None:
        """Keep decisions, but for those whose id is kept; HistoryError."""
        ...

    def query_fleet(self, query: FleetQuery) -> AsyncIterator[tuple[FleetRecord, ...]]:
        """Yield matching decisions in small groups, the latest first, at most `query.limit`."""
        ...

    async def record_use(self, records: Sequence[UseRecord]) -> None:
        """Keep what members used, in place of earlier records of the same pods; HistoryError."""
        ...

    def query_use(self, query: UseQuery) -> AsyncIterator[tuple[UseRecord, ...]]:
        """Yield matching records in small groups, by attempt, role and index; HistoryError."""
        ...

    async def use_of(self, job_uids: Sequence[str]) -> Mapping[str, tuple[AttemptUse, ...]]:
        """Return what the attempts of jobs used, by uid; jobs of which nothing is known are left
        out. HistoryError.
        """
        ...

    async def record_traffic(self, records: Sequence[TrafficRecord]) -> None:
        """Keep traffic of members, in place of earlier records of the same ids; HistoryError."""
        ...

    async def traffic_of(self, job_uids: Sequence[str]) -> Mapping[str, JobTraffic]:
        """Return the sums of jobs, by uid; jobs of which none is known are left out.

        HistoryError.
        """
        ...

    async def append_audit(self, drafts: Sequence[Draft]) -> Appended:
        """Add records to the end of the chain, all or none; other processes may add, too.

        HistoryError.
        """
        ...

    def query_audit(self, query: AuditQuery) -> AsyncIterator[tuple[AuditRecord, ...]]:
        """Yield matching records in small groups, in the order of the chain; HistoryError."""
        ...

    async def audit_sent(self, target: str) -> int:
        """Return the number of the last record that a target of the export has; HistoryError."""
        ...

    async def note_audit_sent(self, target: str, number: int) -> None:
        """Keep the number of the last record that a target has; HistoryError."""
        ...


async def answered(
    call: Callable[[], Awaitable[T]], backoff: Backoff, log: Logger, trouble: str
) -> T:
    """Return the answer of the history to a call, which is repeated for as long as it takes.

    `trouble` is the text of the warning for each HistoryError.
    """
    while True:
        try:
            answer = await call()
        except HistoryError as error:
            log.warning(trouble, error=str(error))
            await asyncio.sleep(backoff.next())
        else:
            backoff.reset()
            return answer


def use_record(pod: Pod, member: LoggedMember, use: MemberUse, now: float) -> UseRecord:
    """Return the record of what a member used."""
    return UseRecord(
        pod_uid=pod.metadata.uid,
        namespace=member.namespace,
        job=member.job,
        job_uid=member.job_uid,
        attempt=member.attempt,
        task=member.task,
        ended_at_ms=round(now * 1000),
        milliseconds=use.milliseconds,
        cpu_milliseconds=use.cpu_milliseconds,
        memory_peak_bytes=use.memory_peak_bytes,
        memory_mean_bytes=use.memory_mean_bytes,
        is_partial=int(use.is_partial),
        document=encode_use(use),
    )


def record_of(job: Job) -> JobRecord:
    """Return the record of a job as its status stands."""
    status = job.status
    succeeded = is_true(status.conditions, names.SUCCEEDED)
    end = find_condition(status.conditions, names.SUCCEEDED if succeeded else names.FAILED)
    user = job.metadata.annotations.get(names.SUBMITTED_BY, "")
    return JobRecord(
        uid=job.metadata.uid,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        user=short_text(user, _USER_LENGTH_MAX),
        team=job.spec.team,
        state=status.state,
        reason=end.reason if end else "",
        message=short_text(end.message, _MESSAGE_LENGTH_MAX) if end else "",
        priority=job.spec.priority or 0,
        member_count=job.member_count,
        attempt_count=status.attempt,
        submitted_at_ms=_milliseconds(status.submitted_at or job.metadata.creation_timestamp),
        started_at_ms=_milliseconds(status.started_at),
        finished_at_ms=_milliseconds(status.finished_at),
        document=document_of(job),
        number=status.number or None,
        array_number=array_number_of(job),
        run=run_text(job),
    )


def fleet_record_of(metadata: ObjectMeta, decision: PoolDecision, *, pool: str) -> FleetRecord:
    """Return the record of a decision in the status of an object; `pool` "" for the fleet."""
    return FleetRecord(
        id=f"{metadata.uid}/{decision.number:09}/{decision.action}/{decision.at}",
        at_ms=round(parse_time(decision.at) * 1000),
        pool=pool,
        action=decision.action,
        reason=decision.reason,
        message=decision.message,
        document=msgspec.json.encode(decision.facts).decode(),
    )


def _milliseconds(text: str | None) -> int | None:
    return None if text is None else round(parse_time(text) * 1000)


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
    """Which logs: those of one attempt, by default the latest that has any.

    Of the job with this uid, by default of the one that had the name last (and that attempt, if
    one is given).
    """

    namespace: str
    job: str
    attempt: int | None = None
    limit: int = TASKS_MAX
    uid: str = ""


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

    def logs(self, query: LogQuery) -> AsyncIterator[MemberLog]:
        """Yield the logs of a job's attempt by role and index, read one after the other."""
        ...


def has_tag(run: str, tag: str) -> bool:
    """True where a run, as JSON of `RunSummary`, has a tag; "" is on every run."""
    return not tag or tag in msgspec.json.decode(run, type=RunSummary).tags


def task_order(task: str) -> tuple[str, int]:
    """Order worker-2 before worker-10."""
    role, _, index = task.rpartition("-")
    return (role, label_number(index) or 0)
