"""History and logs in a real PostgreSQL: one that is killed, restarted, slow, or used by two."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.postgres_server import Server, postgres_server
from tests.patience import PATIENCE_SECONDS
from tests.unit.history.audit_contract import check_audit
from tests.unit.history.contract import (
    FAIR_BYTES_MAX,
    check_decisions,
    check_fair_decisions,
    check_fair_logs,
    check_fair_records,
    check_logs,
    check_queries,
    check_replacing,
    check_runs,
    check_traffic,
    check_use,
    log,
    logs_of,
    record,
    records_of,
)

from fairlead.history import postgres
from fairlead.history.postgres import PostgresOptions, PostgresStore
from fairlead.runtime.kept.history import HistoryError, HistoryQuery, LogQuery

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres_server() as running:
        yield running


def _store(server: Server, *, seed: int = 0, **options: float) -> PostgresStore:
    patient = {"statement_seconds_max": PATIENCE_SECONDS, "outage_seconds_max": PATIENCE_SECONDS}
    chosen = PostgresOptions(**(patient | options))  # type: ignore[arg-type] # passed on
    return PostgresStore(
        server.url, rng=random.Random(seed), options=chosen, runner=asyncio.to_thread
    )


@pytest.fixture
async def store(server: Server) -> AsyncIterator[PostgresStore]:
    await _drop(server)
    opened = _store(server)
    yield opened
    await opened.close()


async def _execute(server: Server, text: str) -> list[tuple[object, ...]]:
    import psycopg

    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        cursor = await connection.execute(text)  # type: ignore[arg-type] # no literal
        return await cursor.fetchall() if cursor.description else []


async def _drop(server: Server) -> None:
    await _execute(
        server,
        "DROP TABLE IF EXISTS fairlead_jobs, fairlead_logs, fairlead_fleet, "
        "fairlead_use, fairlead_audit, fairlead_audit_sent, fairlead_schema",
    )


async def test_decisions_are_kept_once_also_in_a_database_that_lacked_them(
    server: Server, store: PostgresStore
) -> None:
    await store.check()
    await _execute(server, "DROP TABLE fairlead_fleet")
    later = _store(server)
    await check_decisions(later)
    await later.close()


async def test_use_is_kept_once_also_in_a_database_that_lacked_it(
    server: Server, store: PostgresStore
) -> None:
    await store.check()
    await _execute(server, "DROP TABLE fairlead_use")
    later = _store(server)
    await check_use(later)
    await check_traffic(later)
    await later.close()


async def test_runs_are_listed(store: PostgresStore) -> None:
    await check_runs(store)


async def test_queries_select_and_give_the_latest_end_first(store: PostgresStore) -> None:
    await check_queries(store)


async def test_a_second_record_of_a_job_replaces_the_first(store: PostgresStore) -> None:
    await check_replacing(store)


async def test_logs_are_found_by_attempt_and_only_grow(store: PostgresStore) -> None:
    await check_logs(store)


async def test_replicas_that_start_at_once_make_one_schema_and_write_the_same(
    server: Server, store: PostgresStore
) -> None:
    others = [_store(server, seed=seed) for seed in range(1, 6)]

    async def write(one: PostgresStore) -> None:
        for number in range(20):
            await one.record(record(f"job-{number}", ended=number))
            await one.keep(log(f"worker-{number}"))

    async with asyncio.TaskGroup() as group:
        for one in (store, *others):
            group.create_task(write(one))
    assert len(await records_of(store, HistoryQuery())) == 20
    assert len(await logs_of(others[0], LogQuery("default", "train"))) == 20
    assert await _execute(server, "SELECT version FROM fairlead_schema") == [(1,)]
    for one in others:
        await one.close()


async def test_nothing_that_was_recorded_is_lost_when_the_server_is_killed(
    server: Server, store: PostgresStore
) -> None:
    acknowledged: list[str] = []
    is_down = asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(150):
            name = f"job-{writer}-{number}"
            await store.record(record(name, ended=number % 60))
            acknowledged.append(name)
            if len(acknowledged) == 100:
                is_down.set()

    async def break_it() -> None:
        await is_down.wait()
        server.kill()
        await asyncio.to_thread(server.start)

    async with asyncio.TaskGroup() as group:
        group.create_task(break_it())
        for writer in range(4):
            group.create_task(write(writer))
    kept = [r.name for r in await records_of(store, HistoryQuery(limit=1000))]
    assert sorted(kept) == sorted(acknowledged)
    assert len(kept) == len(set(kept)) == 600


async def test_an_outage_is_a_history_error_and_the_next_try_after_it_succeeds(
    server: Server, store: PostgresStore
) -> None:
    impatient = _store(server, outage_seconds_max=0.3)
    await impatient.record(record("before", ended=1))
    server.kill()
    with pytest.raises(HistoryError, match=r"the history postgresql:///postgres failed: "):
        await impatient.record(record("during", ended=2))
    await asyncio.to_thread(server.start)
    await impatient.record(record("during", ended=2))
    assert [r.name for r in await records_of(impatient, HistoryQuery())] == ["during", "before"]
    await impatient.close()


async def test_a_table_that_somebody_locks_costs_an_error_not_a_hang(
    server: Server, store: PostgresStore
) -> None:
    import psycopg

    brisk = _store(server, statement_seconds_max=3.0, outage_seconds_max=0.3)
    await brisk.check()
    async with (
        await psycopg.AsyncConnection.connect(server.url) as holder,
        holder.transaction(),
    ):
        await holder.execute("LOCK TABLE fairlead_jobs")
        with pytest.raises(HistoryError, match="statement timeout"):
            await brisk.record(record("a", ended=1))
    await brisk.record(record("a", ended=1))
    await brisk.close()


async def test_the_command_reads_history_and_logs_by_a_url_that_no_process_list_shows(
    server: Server, store: PostgresStore, tmp_path: Path
) -> None:
    await store.record(record("train", ended=1))
    await store.keep(log("worker-0"))
    config = tmp_path / "kubeconfig"
    cluster = {"server": "http://127.0.0.1:9"}
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }))  # fmt: skip
    shell = Shell(tmp_path)
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(config)
    shell.environment["FAIRLEAD_HISTORY_URL"] = server.url
    result = await asyncio.to_thread(shell.run, "history", "-o", "json")
    [found] = json.loads(result.out)["items"]
    assert found["metadata"]["name"] == "train"
    shell.environment["FAIRLEAD_HISTORY_URL"] = "postgresql://ana:hunter2@127.0.0.1:9/x"
    result = await asyncio.to_thread(shell.run, "history", code=None)
    assert result.code != 0
    assert "the history postgresql://127.0.0.1:9/x failed" in result.err
    assert "hunter2" not in result.err


async def test_only_so_many_connections_are_opened(server: Server, store: PostgresStore) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(store.record(record(f"job-{number}", ended=1)))
    text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fairlead'"
    assert await _execute(server, text) == [(2,)]


async def test_old_records_and_logs_beyond_the_bound_are_dropped(server: Server) -> None:
    await _drop(server)
    small = _store(server, records_max=10, log_bytes_max=3_000)
    for number in range(1000):
        await small.record(record(f"job-{number:04d}", ended=number % 60))
        await small.keep(log("worker-0", attempt=number + 1, text=os.urandom(80)))
    found = await records_of(small, HistoryQuery(limit=100))
    assert len(found) == 10
    assert {r.finished_at_ms for r in found} == {1_767_225_659_250}
    assert len(await logs_of(small, LogQuery("default", "train", attempt=1000))) == 1
    assert await logs_of(small, LogQuery("default", "train", attempt=900)) == ()
    await small.close()


async def test_a_namespace_that_records_without_end_drops_nothing_of_another(
    server: Server,
) -> None:
    await _drop(server)
    full = _store(
        server, record_bytes_max=FAIR_BYTES_MAX, fleet_bytes_max=FAIR_BYTES_MAX,
        log_bytes_max=FAIR_BYTES_MAX,
    )  # fmt: skip
    await check_fair_records(full)
    await check_fair_decisions(full)
    await check_fair_logs(full)
    await full.close()


async def test_a_schema_of_another_version_is_refused_with_its_remedy(
    server: Server, store: PostgresStore
) -> None:
    await store.check()
    await _execute(server, "UPDATE fairlead_schema SET version = 7")
    with pytest.raises(HistoryError, match=r"schema version 7, this Fairlead reads version 1; use"):
        await _store(server).check()


def _upgrade_and_die(server: Server, statements: int) -> bool:
    """Upgrade the schema in a process that is killed at a statement; False: it has not so many."""
    child = os.fork()
    if child == 0:
        import psycopg

        left, execute = [statements], psycopg.AsyncConnection.execute

        async def counted(connection: Any, *arguments: Any, **more: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return await execute(connection, *arguments, **more)

        psycopg.AsyncConnection.execute = counted  # type: ignore[method-assign] # in this process
        asyncio.run(_store(server).check())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def test_an_upgrade_of_the_schema_that_is_killed_at_any_statement_is_made_by_the_next_start(
    server: Server,
) -> None:
    """No event loop runs here: a process of each start is forked."""

    async def names() -> list[str]:
        store = _store(server)
        found = [each.name for each in await records_of(store, HistoryQuery())]
        await store.close()
        return found

    async def check() -> None:
        store = _store(server)
        await check_audit(store)
        await check_use(store)
        await store.close()

    async def begin() -> None:
        await _drop(server)
        store = _store(server)
        await store.record(record("kept", ended=9))
        await store.close()
        await _execute(
            server,
            "ALTER TABLE fairlead_jobs DROP COLUMN number, DROP COLUMN array_number;"
            "DROP TABLE fairlead_fleet, fairlead_use, fairlead_audit, fairlead_audit_sent",
        )

    columns = (
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 'fairlead_jobs'::regclass "
        "AND attname IN ('number', 'array_number')"
    )
    asyncio.run(begin())
    statements = 0
    while _upgrade_and_die(server, statements):
        assert asyncio.run(_execute(server, columns)) == [(0,)], statements
        statements += 1
    assert statements > 6
    assert asyncio.run(_execute(server, columns)) == [(2,)]
    assert asyncio.run(names()) == ["kept"]
    asyncio.run(check())


async def test_texts_that_postgresql_cannot_hold_are_kept_without_what_it_cannot_hold(
    store: PostgresStore,
) -> None:
    await store.record(record("a", ended=1, user="a\x00na"))
    [found] = await records_of(store, HistoryQuery())
    assert found.user == "ana"


def test_without_psycopg_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(HistoryError, match=r"pip install 'fairlead\[postgres\]'"):
        postgres.PostgresStore("postgresql://x/y", rng=random.Random(0), runner=asyncio.to_thread)
