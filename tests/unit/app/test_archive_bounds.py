"""Answers of the archive are streams that end at a number of bytes, and say so."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.unit.app.test_archive import Reviewer
from tests.unit.history.contract import decision, log, record

from fairlead.app.queries.archive_api import ArchiveApi
from fairlead.app.queries.messages import CUT_PREFIX, TOKEN_HEADER, Book
from fairlead.cli.cluster import archive
from fairlead.cli.cluster.archive import Archive, whole_lines
from fairlead.cli.connection.transport import Api
from fairlead.history.memory import MemoryHistory, MemoryLogs
from fairlead.history.sqlite import SqliteHistory, SqliteLogs
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.kept.history import (
    History,
    HistoryError,
    HistoryQuery,
    JobRecord,
    LogStore,
    MemberLog,
)

MEBI = 1 << 20
HISTORY = "/fairlead/v1/history?limit=100000"
LOGS = "/fairlead/v1/namespaces/a/jobs/train/logs"


@asynccontextmanager
async def served(
    history: History | None = None, logs: LogStore | None = None, **options: Any
) -> AsyncIterator[str]:
    """Serve an archive as the controllers do; yields the address."""
    api = ArchiveApi(
        Reviewer().client(), history or MemoryHistory(), logs, clock=SystemClock(), **options
    )

    runner = web.ServerRunner(web.Server(api.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def lines_of(address: str, path: str) -> list[bytes]:
    headers = {TOKEN_HEADER: "token-root"}
    async with aiohttp.ClientSession() as session, session.get(
        address + path, headers=headers
    ) as answer:  # fmt: skip
        assert answer.status == 200, await answer.read()
        return (await answer.read()).splitlines()


def connection(address: str) -> Connection:
    return Connection(address, "a kubeconfig", token="token-root")


def in_namespace(each: MemberLog) -> MemberLog:
    return replace(each, namespace="a")


@pytest.fixture(params=["memory", "sqlite"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[History, LogStore]]:
    if request.param == "memory":
        yield MemoryHistory(), MemoryLogs()
        return
    history = SqliteHistory.open(tmp_path / "h.db", runner=asyncio.to_thread)
    logs = SqliteLogs.open(tmp_path / "l.db", runner=asyncio.to_thread)
    yield history, logs
    await history.close()
    await logs.close()


async def test_an_answer_that_is_too_large_ends_with_a_line_that_the_command_shows(
    stores: tuple[History, LogStore],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive, "proxy_path", lambda _: "")
    history, logs = stores
    for number in range(50):
        await history.record(record(f"job-{number}", ended=number))
        await history.record_fleet([decision(number)])
        await logs.keep(in_namespace(log(f"worker-{number}", text=b"x" * 1_000)))

    async with served(history, logs, answer_bytes_max=20_000) as address:

        def read(book: Book) -> list[bytes]:
            return list(
                whole_lines(Archive(Api(connection(address))).record_lines(book, {"limit": "50"}))
            )

        def read_logs() -> list[str]:
            found = Archive(Api(connection(address))).logs(("a", "train"), None)
            return [each.task for each in found]

        lines = await lines_of(address, HISTORY)
        assert lines[-1].startswith(CUT_PREFIX)
        assert sum(map(len, lines[:-1])) <= 20_000
        jobs = await asyncio.to_thread(read, Book.JOBS)
        assert 5 < len(jobs) < 50
        assert msgspec.json.decode(jobs[0])["name"] == "job-49"
        assert "warning: this is not all: an answer has at most 20000" in capsys.readouterr().err
        assert await asyncio.to_thread(read_logs) == [f"worker-{i}" for i in range(14)]
        assert "warning: this is not all" in capsys.readouterr().err
        assert len(await asyncio.to_thread(read, Book.FLEET)) == 50, "which fit"
        assert capsys.readouterr().err == ""


@dataclass
class Failing(MemoryHistory):
    """Fails after some pages, and notes in which threads its records are encoded."""

    pages: int
    threads: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        super().__init__()

    async def query(self, query: HistoryQuery) -> AsyncIterator[tuple[JobRecord, ...]]:
        for _ in range(self.pages):
            yield (cast("JobRecord", Noted(self.threads)),)
        raise HistoryError("the disk is gone")


class Noted:
    """A record that notes who reads it, but for its uid, by which its use is found."""

    def __init__(self, threads: set[int]) -> None:
        self._threads = threads
        self._record = record("a", ended=1)
        self.uid = self._record.uid

    def __getattr__(self, name: str) -> object:
        self._threads.add(threading.get_ident())
        return getattr(self._record, name)


async def test_a_failure_in_the_middle_of_an_answer_is_no_end_of_it() -> None:
    history = Failing(pages=3)
    async with served(history) as address:
        with pytest.raises(aiohttp.ClientError):
            await lines_of(address, HISTORY)
        history.pages = 0
        with pytest.raises(AssertionError, match="the disk is gone"):
            await lines_of(address, HISTORY)
    assert history.threads, "records were encoded"
    assert threading.get_ident() not in history.threads, "by the loop that answers the webhook"


# What a tenant may do, on a small scale; tests/e2e/test_archive_memory.py does it in full


@asynccontextmanager
async def at_most(bytes_max: int) -> AsyncIterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


async def read_away(address: str, path: str) -> int:
    """Read an answer and keep nothing of it; returns its size."""
    headers = {TOKEN_HEADER: "token-root"}
    size = 0
    async with aiohttp.ClientSession() as session, session.get(
        address + path, headers=headers
    ) as answer:  # fmt: skip
        assert answer.status == 200
        async for chunk in answer.content.iter_any():
            size += len(chunk)
    return size


def as_an_earlier_version_wrote(number: int, size: int) -> JobRecord:
    return replace(record(f"job-{number}", ended=1), document=f'{{"x":"{"y" * size}"}}')


async def test_a_long_answer_of_large_records_is_never_in_memory(tmp_path: Path) -> None:
    history = SqliteHistory.open(tmp_path / "h.db", runner=asyncio.to_thread)
    for number in range(200):
        await history.record(as_an_earlier_version_wrote(number, MEBI // 4))
    async with served(history) as address, at_most(24 * MEBI):
        assert await read_away(address, HISTORY) > 50 * MEBI
    await history.close()


async def test_logs_of_other_jobs_of_a_name_are_not_decompressed(tmp_path: Path) -> None:
    logs = SqliteLogs.open(tmp_path / "l.db", runner=asyncio.to_thread)
    for number in range(50):
        bomb = log("worker-0", job_uid=f"job-{number}", text=bytes(2 * MEBI))
        await logs.keep(in_namespace(replace(bomb, kept_at_ms=number)))
    async with served(logs=logs) as address, at_most(24 * MEBI):
        assert len(await lines_of(address, f"{LOGS}?attempt=1")) == 1
        assert len(await lines_of(address, LOGS)) == 1
    await logs.close()


async def test_logs_of_one_attempt_are_decompressed_one_after_the_other(tmp_path: Path) -> None:
    logs = SqliteLogs.open(tmp_path / "l.db", runner=asyncio.to_thread)
    for number in range(50):
        await logs.keep(in_namespace(log(f"worker-{number}", text=bytes(2 * MEBI))))
    async with served(logs=logs, answer_bytes_max=60 * MEBI) as address, at_most(40 * MEBI):
        assert 55 * MEBI < await read_away(address, LOGS) < 61 * MEBI
    with sqlite3.connect(tmp_path / "l.db") as connection_:  # what the file says may be wrong
        connection_.execute("UPDATE logs SET text_size = 1")
    async with served(logs=logs) as address, at_most(40 * MEBI):
        assert await read_away(address, LOGS) < MEBI
    await logs.close()


async def test_jobs_that_are_made_and_deleted_without_end_fill_no_memory() -> None:
    history = MemoryHistory(bytes_max=8 * MEBI)
    documents: Sequence[JobRecord] = [replace(record("mine", ended=0), namespace="quiet")]
    await history.record(documents[0])
    async with served(history) as address, at_most(24 * MEBI):
        for number in range(200):
            await history.record(as_an_earlier_version_wrote(number, MEBI // 4))
        assert 6 * MEBI < await read_away(address, HISTORY) < 9 * MEBI
        [mine] = await lines_of(address, HISTORY + "&name=mine")
        assert msgspec.json.decode(mine)["namespace"] == "quiet"
