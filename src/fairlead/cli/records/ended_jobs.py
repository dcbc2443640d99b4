"""Jobs that have ended: from a store, a cluster, or the data directory of one that is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.use import JobTraffic
from fairlead.api.meta import label_number
from fairlead.api.names import DEFAULT_NAMESPACE
from fairlead.api.values.indices import parse_indices
from fairlead.app.queries.messages import AuditLine, Book, FleetLine, HistoryLine, RunLine, UseLine
from fairlead.cli.cluster.archive import Archive, NoArchive, direct_store, no_archive, whole_lines
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.cluster.lookup import find_job
from fairlead.cli.cluster.numbers import name_of, parse_number
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.connect import Choice, stopped_data
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.job_names import clean_reference
from fairlead.history import HISTORY_FILE
from fairlead.input.errors import CliError, Code, fail

#: Failed elements of an array whose ends are read.
FAILURES_MAX = 1000
#: Audit records that are read at a time.
_AUDIT_PAGE = 5_000
L = TypeVar("L", HistoryLine, FleetLine, RunLine, UseLine, AuditLine)


def stopped(common_: Common) -> Path | None:
    """Return the data directory of the chosen cluster if it is one of `fairlead up` and stopped."""
    data = stopped_data(Choice(common_.kubeconfig, common_.context), os.environ)
    return data if data is not None and (data / HISTORY_FILE).is_file() else None


def past_lines(common_: Common, store: str, query: Mapping[str, str]) -> list[HistoryLine]:
    """Return the records that match, the latest end first; the namespace is added to the query."""
    source = _source(common_, store)
    return _read(source, Book.JOBS, _in_namespace(common_, source, query), HistoryLine)


def past_use(common_: Common, store: str, query: Mapping[str, str]) -> list[UseLine]:
    """Return what members used that match, by attempt and task; the namespace is added to the
    query.
    """
    source = _source(common_, store)
    return _read(source, Book.USE, _in_namespace(common_, source, query), UseLine)


def past_traffic(common_: Common, store: str, job: Job) -> JobTraffic | None:
    """Return what the members of a job that has ended had sent and received; None where no node
    counted it, or the job has not ended.
    """
    if not job.is_finished:
        return None
    lines = past_lines(common_, store, {"uid": job.metadata.uid, "limit": "1"})
    return lines[0].traffic if lines else None


def _in_namespace(common_: Common, source: _Source, query: Mapping[str, str]) -> dict[str, str]:
    default = source.api.connection.namespace if source.api is not None else DEFAULT_NAMESPACE
    namespace = "" if common_.all_namespaces else common_.space(default)
    return {**query, **({"namespace": namespace} if namespace else {})}


def past_runs(common_: Common, store: str, query: Mapping[str, str]) -> list[RunLine]:
    """Return the runs that match, the latest end first; the namespace is added to the query."""
    source = _source(common_, store)
    return _read(source, Book.RUNS, _in_namespace(common_, source, query), RunLine)


def past_jobs(common_: Common, store: str, uids: Iterable[str]) -> Iterator[Job]:
    """Yield the jobs of these uids that have ended, one request each; without those not kept."""
    source = _source(common_, store)
    for uid in uids:
        query = _in_namespace(common_, source, {"uid": uid, "limit": "1"})
        for line in _read(source, Book.JOBS, query, HistoryLine):
            yield msgspec.convert(line.document, Job)


def past_decisions(common_: Common, store: str, query: Mapping[str, str]) -> list[FleetLine]:
    """Return the decisions about the fleet that match, the latest first."""
    return _read(_source(common_, store), Book.FLEET, query, FleetLine)


def past_audit(common_: Common, store: str, query: Mapping[str, str]) -> list[AuditLine]:
    """Return the audit records that match, in the order of the chain."""
    return _read(_source(common_, store), Book.AUDIT, query, AuditLine)


def whole_audit(common_: Common, store: str, after: int = 0) -> Iterator[AuditLine]:
    """Yield all audit records behind a number, in the order of the chain, some at a time."""
    source = _source(common_, store)
    while True:
        query = {"limit": str(_AUDIT_PAGE), **({"after": str(after)} if after else {})}
        lines = _read(source, Book.AUDIT, query, AuditLine)
        yield from lines
        if len(lines) < _AUDIT_PAGE:
            return
        after = lines[-1].number


class _Source(NamedTuple):
    """Where records are: a store, the directory of a stopped cluster, or a cluster. One is set."""

    direct: str
    data: Path | None
    api: Api | None


def _source(common_: Common, store: str) -> _Source:
    direct = direct_store(store, os.environ)
    data = None if direct else stopped(common_)
    return _Source(direct, data, None if direct or data else common_.connect())


def _read(source: _Source, book: Book, query: Mapping[str, str], type_: type[L]) -> list[L]:
    raw = (
        _stopped_lines(source.data, book, query) if source.data
        else _raw_lines(source, book, query)
    )  # fmt: skip
    try:
        return [msgspec.json.decode(line, type=type_) for line in whole_lines(raw)]
    except ValueError as error:
        raise fail(Code.BAD_ANSWER, f"the history cannot be read: {error}") from error


def past_named(
    common_: Common, store: str, text: str, query: Mapping[str, str]
) -> list[HistoryLine]:
    """Return the records of a name, else of the number that was written; of an array's number
    those of its elements.
    """
    lines = past_lines(common_, store, {**query, "name": clean_reference(text)})
    numbered = parse_number(text)
    if lines or numbered is None:
        return lines
    lines = past_lines(common_, store, {**query, "number": str(numbered.number)})
    if numbered.indices is None:
        return lines
    wanted = parse_indices(numbered.indices)
    return [
        line
        for line in lines
        if (index := index_of(line)) is not None and wanted.position(index) is not None
    ]


def index_of(line: HistoryLine) -> int | None:
    """Return the index of a record's job in its array; None where it is of none."""
    return None if line.array_number is None else label_number(line.name.rpartition("-")[2])


def past_job(common_: Common, name: str, *, uid: str = "") -> Job | None:
    """Return the latest job of this name or number, and of this uid, that has ended; None where the
    history has none.
    """
    lines = past_named(common_, "", name, {"limit": "1", **({"uid": uid} if uid else {})})
    return msgspec.convert(lines[0].document, Job) if lines else None


def present_or_past_job(common_: Common, store: str, text: str) -> Job:
    """Return the job of a name or number, or the latest such that has ended; CliError for none."""
    if not (direct_store(store, os.environ) or stopped(common_)):
        api = common_.connect()
        space = common_.space(api.connection.namespace)
        try:
            return find_job(api, space, name_of(api, space, text))
        except CliError as error:
            if error.problems[0].code is not Code.NO_SUCH_JOB:
                raise
    lines = past_named(common_, store, text, {"limit": "1"})
    if not lines:
        raise fail(Code.NO_SUCH_JOB, f"no job '{text}' is there or has ended",
                   help=("fairlead ps -a and fairlead history list them",))  # fmt: skip
    return msgspec.convert(lines[0].document, Job)


def past_failures(common_: Common, array: JobArray) -> list[Job]:
    """Return the elements of an array that ended other than well, as the history has them: at most
    FAILURES_MAX of each state, the latest; none where no history can be read.
    """
    found: list[HistoryLine] = []
    for state in (JobState.FAILED, JobState.CANCELLED):
        query = {"number": str(array.status.number), "state": state.value,
                 "limit": str(FAILURES_MAX)}  # fmt: skip
        try:
            found += past_lines(common_, "", query)
        except CliError:
            return []
    return [msgspec.convert(line.document, Job) for line in found]


def past_logs(
    data: Path, key: tuple[str, str], query: LogPart, *, write: Callable[[bytes], object]
) -> bool:
    """Write a job's logs from the data directory of a stopped cluster; ApiError.

    Returns whether there was anything to write.
    """
    import asyncio

    from fairlead.embedded.logs.archive import JobLogQuery, LogArchive

    async def copy() -> bool:
        wanted = JobLogQuery(
            attempt=query.attempt, task=query.task, tail_lines=query.tail,
            previous=query.previous, uid=query.uid,
        )  # fmt: skip
        is_written = False
        async for piece in await LogArchive(data, None).read_job(*key, wanted):
            write(piece)
            is_written = True
        return is_written

    return asyncio.run(copy())


def _stopped_lines(data: Path, book: Book, query: Mapping[str, str]) -> list[bytes]:
    import asyncio

    from fairlead.app.queries.archive_query import record_lines
    from fairlead.history.sqlite import SqliteHistory
    from fairlead.runtime.kept.history import HistoryError

    async def read() -> list[bytes]:
        history = SqliteHistory.open(data / HISTORY_FILE, runner=asyncio.to_thread)
        try:
            pieces = record_lines(history, book, query, runner=asyncio.to_thread)
            return [piece async for piece in pieces]
        finally:
            await history.close()

    try:
        found = asyncio.run(read())
    except HistoryError as error:
        raise fail(Code.DATA_UNWRITABLE, str(error)) from error
    return b"".join(found).splitlines()


def _raw_lines(source: _Source, book: Book, query: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the records as JSON lines: from the store named, the cluster, or its controller."""
    archive = Archive(source.api, source.direct)
    try:
        if source.api is not None:
            yield from archive.cluster_lines(f"/fairlead/v1/{book.value}", query)
        else:
            yield from archive.record_lines(book, query)
    except NoArchive as error:
        raise no_archive("the history", error) from error
