"""Jobs that have ended: from a store, a cluster, or the data directory of one that is stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from fairlead.api.job import Job
from fairlead.api.status import Forbidden, NotFound
from fairlead.app.messages import HistoryLine
from fairlead.cli.archive import Archive, NoArchive, direct_store, no_archive
from fairlead.cli.common import Common
from fairlead.cli.connect import Choice, stopped_data
from fairlead.cli.embedded import HISTORY_PATH
from fairlead.cli.logstream import LogQuery
from fairlead.cli.transport import Api
from fairlead.input.errors import Code, fail

HISTORY_FILE = "history.db"
DEFAULT_NAMESPACE = "default"


def stopped(common_: Common) -> Path | None:
    """Return the data directory of the chosen cluster if it is one of `fairlead up` and stopped."""
    data = stopped_data(Choice(common_.kubeconfig, common_.context), os.environ)
    return data if data is not None and (data / HISTORY_FILE).is_file() else None


def past_lines(common_: Common, store: str, query: Mapping[str, str]) -> list[HistoryLine]:
    """Return the records that match, the latest end first; the namespace is added to the query."""
    direct = direct_store(store, os.environ)
    data = None if direct else stopped(common_)
    api = None if direct or data else common_.connect()
    default = api.connection.namespace if api is not None else DEFAULT_NAMESPACE
    namespace = "" if common_.all_namespaces else common_.space(default)
    wanted = {**query, **({"namespace": namespace} if namespace else {})}
    raw = _stopped_lines(data, wanted) if data else _raw_lines(api, direct, wanted)
    try:
        return [msgspec.json.decode(line, type=HistoryLine) for line in raw]
    except msgspec.DecodeError as error:
        raise fail(Code.BAD_ANSWER, f"the history cannot be read: {error}") from error


def past_job(common_: Common, name: str) -> Job | None:
    """Return the latest job of this name that has ended, None when the history has none."""
    lines = past_lines(common_, "", {"name": name, "limit": "1"})
    return msgspec.convert(lines[0].document, Job) if lines else None


def past_logs(
    data: Path, key: tuple[str, str], query: LogQuery, *, write: Callable[[bytes], object]
) -> bool:
    """Write a job's logs from the data directory of a stopped cluster; ApiError.

    Returns whether there was anything to write.
    """
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


def _stopped_lines(data: Path, query: Mapping[str, str]) -> list[bytes]:
    from fairlead.app.archive_api import history_query
    from fairlead.app.extensions import history_line
    from fairlead.history.sqlite import SqliteHistory
    from fairlead.runtime.history import HistoryError

    async def read() -> list[bytes]:
        history = SqliteHistory.open(data / HISTORY_FILE, runner=asyncio.to_thread)
        try:
            records = await history.query(history_query(query))
        finally:
            await history.close()
        return [msgspec.json.encode(history_line(record)) for record in records]

    try:
        return asyncio.run(read())
    except HistoryError as error:
        raise fail(Code.DATA_UNWRITABLE, str(error)) from error


def _raw_lines(api: Api | None, direct: str, query: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the records as JSON lines: from the store named, the cluster, or its controller."""
    if api is not None:
        try:
            yield from api.lines(HISTORY_PATH, query)
        except (NotFound, Forbidden):
            pass  # not a cluster of fairlead up
        else:
            return
    try:
        yield from Archive(api, direct).history_lines(query)
    except NoArchive as error:
        raise no_archive("the history", error) from error
