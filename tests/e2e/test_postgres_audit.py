"""The chain of audit records in a real PostgreSQL: several writers, kills, thieves, auditors."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.postgres_server import Server, postgres_server
from tests.earlier_version import earlier_source
from tests.patience import PATIENCE_SECONDS
from tests.unit.history.audit_contract import (
    all_of,
    check_audit,
    check_full,
    check_has,
    draft,
    faults,
    heads,
    writer,
)
from tests.unit.history.contract import check_numbers, records_of

from fairlead.history import postgres
from fairlead.history.postgres import PostgresOptions, PostgresStore
from fairlead.runtime.kept.audit import AuditRecord
from fairlead.runtime.kept.history import History, HistoryError, HistoryQuery

pytestmark = pytest.mark.e2e
#: Writes a record as the version that it is run with, and prints the names of all of them.
WRITE = """
import asyncio, random, sys
from fairlead.history.postgres import PostgresStore
from fairlead.runtime.history import HistoryQuery, record_of
from fairlead.testing.builders import make_job

async def main():
    store = PostgresStore(sys.argv[1], rng=random.Random(0), runner=asyncio.to_thread)
    await store.record(record_of(make_job(sys.argv[2])))
    print(*sorted([each.name async for page in store.query(HistoryQuery()) for each in page]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """A server whose database is empty."""
    running.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return running


def _store(url: str) -> PostgresStore:
    options = PostgresOptions(outage_seconds_max=PATIENCE_SECONDS)
    return PostgresStore(url, rng=random.Random(0), runner=asyncio.to_thread, options=options)


async def _stored(server: Server) -> list[AuditRecord]:
    store = _store(server.url)
    found = await all_of(store)
    await store.close()
    return found


async def test_records_are_found_as_in_every_store(server: Server) -> None:
    store = _store(server.url)
    await check_audit(store)
    await check_numbers(store)
    await store.close()


async def test_a_full_table_drops_its_oldest_as_memory_does(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(postgres._AUDIT, records_max=16)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(postgres, "_AUDIT", small)
    store = _store(server.url)
    await check_full(store)
    await store.close()


async def test_leaders_that_are_late_or_killed_and_a_killed_server_leave_one_whole_chain(
    server: Server,
) -> None:
    """Three processes write at a time from an empty database on; each answer is kept."""
    writers = [writer(server.url, name, commits) for name, commits in
               (("a", 60), ("b", 60), ("late", 1_000_000))]  # fmt: skip
    acknowledged = [head for each in writers for head in heads(each, 5)]
    server.kill()
    await asyncio.to_thread(server.start)
    acknowledged += heads(writers[2], 5)
    os.kill(writers[2].pid, signal.SIGKILL)
    acknowledged += [head for each in writers for head in heads(each)]
    assert [await asyncio.to_thread(each.wait) for each in writers] == [0, 0, -signal.SIGKILL]
    found = await _stored(server)
    assert len(acknowledged) >= 120 + 10
    check_has(found, acknowledged)
    assert {each.writer for each in found} == {"a", "b", "late"}
    assert len(found) % 2 == 0, "both records of a commit, or none"


async def test_what_is_cut_off_below_a_running_process_stays_visible_and_is_reported(
    server: Server,
) -> None:
    store = _store(server.url)
    await store.append_audit([draft(number) for number in range(1, 6)])
    server.sql("DELETE FROM fairlead_audit WHERE number > 2")
    done = await store.append_audit([draft(6)])
    await store.close()
    found = await _stored(server)
    assert done.is_broken
    assert [each.number for each in found] == [1, 2, 6]
    assert faults(found)


async def test_an_auditor_who_may_only_read_verifies_and_cannot_change(
    server: Server, tmp_path: Path
) -> None:
    owner = _store(server.url)
    await owner.append_audit([draft(1), draft(2)])
    await owner.close()
    server.sql(
        "DROP ROLE IF EXISTS auditor; CREATE ROLE auditor LOGIN;"
        "GRANT USAGE ON SCHEMA public TO auditor;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO auditor"
    )
    url = server.url.replace("user=fairlead", "user=auditor")
    assert url != server.url
    shell = Shell(tmp_path)
    shell.environment["FAIRLEAD_HISTORY_URL"] = url
    said = await asyncio.to_thread(shell.run, "audit", "verify")
    assert said.out.startswith("2 records, whole; the head is 2:")
    with pytest.raises(HistoryError, match="permission denied"):
        await _store(url).append_audit([draft(3)])
    server.sql("UPDATE fairlead_audit SET object = 'Job default/other' WHERE number = 2")
    refused = await asyncio.to_thread(shell.run, "audit", "verify", code=1)
    assert "record 2 was changed" in refused.err


async def test_replicas_of_an_earlier_version_and_of_this_one_share_a_database(
    server: Server, tmp_path: Path
) -> None:
    """Its tables are extended while it runs, and it goes on with them."""
    earlier = {**os.environ, "PYTHONPATH": str(earlier_source(tmp_path) / "src")}

    async def write_earlier(name: str) -> list[str]:
        command = [sys.executable, "-c", WRITE, server.url, name]
        done = await asyncio.to_thread(
            subprocess.run, command, env=earlier, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert await write_earlier("before") == ["before"]
    store = _store(server.url)
    await _names(store, ["before"])
    await check_audit(store)
    assert await write_earlier("after") == ["after", "before"]
    await _names(store, ["after", "before"])
    await store.close()
    assert faults(await _stored(server)) == []


async def _names(history: History, expected: list[str]) -> None:
    found = await records_of(history, HistoryQuery())
    assert sorted(each.name for each in found) == expected
