"""Audit records form one chain, and whatever is done to it by others is found."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from fairlead.decide.takings import Taking, TakingKind
from fairlead.history import sqlite
from fairlead.history.audit import AuditMemory
from fairlead.history.memory import MemoryHistory
from fairlead.history.sqlite import SqliteHistory
from fairlead.runtime.kept.audit import (
    AuditRecord,
    Draft,
    Head,
    audit_line,
    draft_of,
    linked,
    record_of_line,
)
from fairlead.runtime.kept.history import History


def chain(count: int) -> list[AuditRecord]:
    """A chain of so many records."""
    return linked(Head(), [draft(number) for number in range(1, count + 1)])


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[History]:
    """An empty history of each kind."""
    if request.param == "memory":
        yield MemoryHistory()
        return
    history = SqliteHistory.open(tmp_path / "h.db", runner=asyncio.to_thread)
    yield history
    asyncio.run(history.close())


def test_records_are_found_in_order_by_number_kind_time_and_from_the_end(opened: History) -> None:
    asyncio.run(check_audit(opened))


def test_a_stranger_computes_the_same_digest_from_a_line_with_nothing_but_json_and_sha256() -> None:
    line = audit_line(chain(2)[1])
    program = (
        "import hashlib, json, sys\n"
        "r = json.loads(sys.stdin.buffer.read())\n"
        "names = 'number atMs writer id kind object uid reason message facts previous'.split()\n"
        "text = json.dumps([r[n] for n in names], sort_keys=True, separators=(',', ':'),"
        " ensure_ascii=False)\n"
        "print(hashlib.sha256(text.encode()).hexdigest() == r['digest'])\n"
    )
    said = subprocess.run([sys.executable, "-c", program], input=line, capture_output=True)
    assert said.stdout == b"True\n", said.stderr
    assert record_of_line(line) == chain(2)[1]


def _removed(found: list[AuditRecord]) -> list[AuditRecord]:
    return [*found[:3], *found[4:]]


def _without_the_first(found: list[AuditRecord]) -> list[AuditRecord]:
    return found[2:]


def _changed(found: list[AuditRecord]) -> list[AuditRecord]:
    return [*found[:3], replace(found[3], message="nobody"), *found[4:]]


def _changed_with_its_digest(found: list[AuditRecord]) -> list[AuditRecord]:
    [forged] = linked(Head(3, found[2].digest), [draft(99)])
    return [*found[:3], forged, *found[4:]]


def _swapped(found: list[AuditRecord]) -> list[AuditRecord]:
    return [*found[:3], found[4], found[3], *found[5:]]


def _twice(found: list[AuditRecord]) -> list[AuditRecord]:
    return [*found[:4], *found[3:]]


def _facts_no_json(found: list[AuditRecord]) -> list[AuditRecord]:
    return [*found[:3], replace(found[3], facts="{"), *found[4:]]


@pytest.mark.parametrize(
    "attack",
    [_removed, _without_the_first, _changed, _changed_with_its_digest, _swapped, _twice,
     _facts_no_json],
    ids=lambda each: each.__name__.strip("_"),
)  # fmt: skip
def test_a_chain_that_was_tampered_with_is_found(
    attack: Callable[[list[AuditRecord]], list[AuditRecord]],
) -> None:
    assert faults(chain(8)) == []
    assert faults(attack(chain(8)))


@given(st.integers(0, 5), st.sampled_from(["at_ms", "number"]), st.integers(1, 2**40))
@settings(max_examples=50, deadline=None)
def test_no_number_of_a_record_can_be_moved(at: int, field: str, by: int) -> None:
    found = chain(6)
    found[at] = replace(found[at], **{field: getattr(found[at], field) + by})
    assert faults(found)


@given(
    st.text(), st.dictionaries(st.text(), st.integers() | st.text() | st.floats() | st.booleans())
)
@settings(max_examples=100, deadline=None)
def test_whatever_a_record_says_it_is_read_back_as_it_was(
    text: str, facts: dict[str, int | str | float | bool]
) -> None:
    taking = Taking(text, TakingKind.END, text, text, text, text, facts)
    [record] = linked(Head(), [draft_of(taking, writer=text, now=1.0)])
    assert record_of_line(audit_line(record)) == record
    assert faults([record]) == []
    assert len(audit_line(record)) < 1 << 19


def test_two_processes_that_write_at_a_time_make_one_chain(tmp_path: Path) -> None:
    file = tmp_path / "h.db"
    writers = [writer(str(file), name, 10) for name in ("a", "b")]
    acknowledged = [head for each in writers for head in heads(each)]
    assert [each.wait(PATIENCE_SECONDS) for each in writers] == [0, 0]
    found = asyncio.run(_stored(file))
    assert [each.number for each in found] == list(range(1, 41))
    assert {each.writer for each in found} == {"a", "b"}
    assert len(acknowledged) == 20
    check_has(found, acknowledged)


def test_all_that_open_a_new_file_at_once_have_it(tmp_path: Path) -> None:
    count = 4
    together = Barrier(count)

    def opened(file: Path) -> SqliteHistory:
        together.wait()
        return SqliteHistory.open(file, runner=asyncio.to_thread)

    async def close(histories: Iterable[SqliteHistory]) -> None:
        for each in histories:
            await each.close()

    with ThreadPoolExecutor(count) as pool:
        for number in range(10):
            files = [tmp_path / f"{number}.db"] * count
            asyncio.run(close(pool.map(opened, files)))


def test_a_process_that_is_killed_leaves_whole_records_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    file = tmp_path / "h.db"
    process = writer(str(file), "a", 1_000_000)
    acknowledged = heads(process, 5)
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += heads(process)
    process.wait()
    found = asyncio.run(_stored(file, draft(1)))
    check_has(found, acknowledged)
    assert found[-1].number > acknowledged[-1].number
    assert len(found) % 2 == 1, "both records of a commit, or none"


async def _stored(file: Path, *drafts: Draft) -> list[AuditRecord]:
    """All records of a file, with those that are added now."""
    history = SqliteHistory.open(file, runner=asyncio.to_thread)
    if drafts:
        await history.append_audit(drafts)
    found = await all_of(history)
    await history.close()
    return found


def test_what_is_cut_off_below_a_running_process_stays_visible_and_is_reported(
    tmp_path: Path,
) -> None:
    async def main() -> tuple[bool, list[AuditRecord]]:
        history = SqliteHistory.open(tmp_path / "h.db", runner=asyncio.to_thread)
        await history.append_audit([draft(n) for n in range(1, 6)])
        with sqlite3.connect(tmp_path / "h.db") as attacker:
            attacker.execute("DELETE FROM audit WHERE number > 2")
        attacker.close()
        done = await history.append_audit([draft(6)])
        found = await all_of(history)
        await history.close()
        return done.is_broken, found

    is_broken, found = asyncio.run(main())
    assert is_broken
    assert [each.number for each in found] == [1, 2, 6]
    assert faults(found)


def test_of_a_full_store_the_oldest_go_and_a_record_says_so() -> None:
    history = MemoryHistory()
    history._audit = AuditMemory(16)  # pyright: ignore[reportPrivateUsage] - a small one
    asyncio.run(check_full(history))


def test_a_full_file_drops_its_oldest_as_memory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(sqlite._AUDIT, records_max=16)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sqlite, "_AUDIT", small)

    async def main() -> None:
        history = SqliteHistory.open(tmp_path / "h.db", runner=asyncio.to_thread)
        await check_full(history)
        await history.close()

    asyncio.run(main())
