"""Logs of members that are gone."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.unit.history.contract import FAIR_BYTES_MAX, check_fair_logs, check_logs, log, logs_of

from fairlead.history.memory import MemoryLogs
from fairlead.history.postgres import check_text
from fairlead.history.sqlite import SqliteLogs
from fairlead.runtime.kept.history import HistoryError, LogQuery, LogStore
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
        store = MemoryLogs(bytes_max=100_000)
        for attempt in (1, 2, 3):
            await store.keep(log("worker-0", attempt=attempt, text=b"x" * 40_000))
        assert await logs_of(store, LogQuery("default", "train", attempt=1)) == ()
        assert len(await logs_of(store, LogQuery("default", "train", attempt=2))) == 1
        await store.keep(log("worker-0", attempt=3, text=b"x" * 50_000))
        assert len(await logs_of(store, LogQuery("default", "train", attempt=2))) == 1
        await store.keep(log("worker-0", attempt=3, text=b"x" * 70_000))
        assert await logs_of(store, LogQuery("default", "train", attempt=2)) == ()
        assert len(await logs_of(store, LogQuery("default", "train", attempt=3))) == 1

    run(main())


def test_a_namespace_that_logs_without_end_drops_no_log_of_another(tmp_path: Path) -> None:
    run(check_fair_logs(MemoryLogs(bytes_max=FAIR_BYTES_MAX)))
    path = tmp_path / "logs.db"
    run(check_fair_logs(SqliteLogs.open(path, runner=_at_once, bytes_max=FAIR_BYTES_MAX)))
    assert path.stat().st_size < 3 * FAIR_BYTES_MAX


def test_a_damaged_log_is_a_history_error_and_a_text_that_grew_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"

    async def main() -> None:
        store = SqliteLogs.open(path, runner=_at_once)
        await store.keep(log("worker-0", text=b"x" * 5_000))

        def store_as(text: bytes) -> None:
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE logs SET text = ?", (text,))

        store_as(zlib.compress(b"y" * 50_000_000))
        [found] = await logs_of(store, LogQuery("default", "train"))
        assert (found.text, found.is_cut) == (b"y" * 5_000, True)
        for damaged in (zlib.compress(b"x" * 5_000)[:-4], b"none", zlib.compress(b"x" * 5_000)[:5]):
            store_as(damaged)
            with pytest.raises(HistoryError, match="log archive failed"):
                await logs_of(store, LogQuery("default", "train"))
        await store.close()

    run(main())


def test_logs_are_there_after_a_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        first = SqliteLogs.open(tmp_path / "logs.db", runner=_at_once)
        await first.keep(log("worker-0"))
        await first.close()
        second = SqliteLogs.open(tmp_path / "logs.db", runner=_at_once)
        assert await logs_of(second, LogQuery("default", "train")) == (log("worker-0"),)
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
        assert await logs_of(store, LogQuery("default", "train", attempt=850)) == ()
        assert len(await logs_of(store, LogQuery("default", "train", attempt=950))) == 1
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
