"""Logs of members that are gone."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.unit.history.contract import check_logs, log

from fairlead.history.memory import MemoryLogs
from fairlead.history.postgres import check_text
from fairlead.history.sqlite import SqliteLogs
from fairlead.runtime.history import HistoryError, LogQuery, LogStore
from fairlead.sim.loop import run

T = TypeVar("T")


async def _at_once(call: Callable[[], T]) -> T:
    return call()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    if request.param == "memory":
        return MemoryLogs()
    return SqliteLogs.open(tmp_path / "logs.db", runner=_at_once)


def test_logs_are_found_by_attempt_and_only_grow(store: LogStore) -> None:
    run(check_logs(store))


def test_memory_drops_the_logs_that_it_kept_first_beyond_its_bytes() -> None:
    async def main() -> None:
        store = MemoryLogs(bytes_max=1_000)
        for attempt in (1, 2, 3):
            await store.keep(log("worker-0", attempt=attempt, text=b"x" * 400))
        assert await store.logs(LogQuery("default", "train", attempt=1)) == ()
        assert len(await store.logs(LogQuery("default", "train", attempt=2))) == 1
        await store.keep(log("worker-0", attempt=3, text=b"x" * 500))
        assert len(await store.logs(LogQuery("default", "train", attempt=2))) == 1
        await store.keep(log("worker-0", attempt=3, text=b"x" * 700))
        assert await store.logs(LogQuery("default", "train", attempt=2)) == ()
        assert len(await store.logs(LogQuery("default", "train", attempt=3))) == 1

    run(main())


def test_logs_are_there_after_a_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        first = SqliteLogs.open(tmp_path / "logs.db", runner=_at_once)
        await first.keep(log("worker-0"))
        await first.close()
        second = SqliteLogs.open(tmp_path / "logs.db", runner=_at_once)
        assert await second.logs(LogQuery("default", "train")) == (log("worker-0"),)
        await second.close()

    run(main())


def test_the_file_forgets_the_oldest_logs_beyond_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"

    async def main() -> None:
        store = SqliteLogs.open(path, runner=_at_once, bytes_max=100_000)
        noise = random.Random(1)
        for attempt in range(1, 1001):
            text = noise.randbytes(1_000)  # which does not shrink
            await store.keep(replace(log("worker-0", attempt=attempt), text=text))
        assert await store.logs(LogQuery("default", "train", attempt=850)) == ()
        assert len(await store.logs(LogQuery("default", "train", attempt=950))) == 1
        await store.close()

    run(main())
    assert path.stat().st_size < 200_000


def test_a_file_of_another_version_is_refused_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(HistoryError, match=r"schema version 7.*move the file away"):
        SqliteLogs.open(path, runner=_at_once)


def test_messages_never_hold_the_password() -> None:
    url = "postgresql://ana:hunter2@db/fairlead"
    assert check_text(f"cannot use {url}", url) == "cannot use postgresql://ana:***@db/fairlead"
