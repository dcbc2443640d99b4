"""Audit records form one chain, and whatever is done to it by others is found."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tidy.sources import ROOT

from fairlead.decide.takings import Taking, TakingKind
from fairlead.history.memory import MemoryHistory
from fairlead.history.sqlite import SqliteHistory
from fairlead.runtime.audit import (
    NO_DIGEST,
    PRUNED,
    AuditQuery,
    AuditRecord,
    ChainCheck,
    Draft,
    Head,
    audit_line,
    draft_of,
    linked,
    record_of_line,
)
from fairlead.runtime.history import History


def draft(number: int, *, kind: TakingKind = TakingKind.PREEMPT, writer: str = "a") -> Draft:
    """A record of a job that lost its nodes."""
    taking = Taking(f"id-{number}", kind, f"Job default/train-{number}", f"uid-{number}",
                    "Preempted", "for high, naïvely", {"share": 0.5, "nodes": number})  # fmt: skip
    return draft_of(taking, writer=writer, now=1_767_225_600.0 + number)


def chain(count: int) -> list[AuditRecord]:
    """A chain of so many records."""
    return linked(Head(), [draft(number) for number in range(1, count + 1)])


def faults(records: Sequence[AuditRecord]) -> list[str]:
    """What a check finds."""
    check = ChainCheck()
    for each in records:
        check.add(each)
    return check.end()


async def all_of(history: History, query: AuditQuery | None = None) -> list[AuditRecord]:
    """All records that a query yields."""
    wanted = query or AuditQuery(limit=1_000_000)
    return [each async for page in history.query_audit(wanted) for each in page]


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
    async def main() -> None:
        first = await opened.append_audit([draft(1), draft(2, kind=TakingKind.END)])
        assert not first.is_broken
        await opened.append_audit([draft(3)])
        found = await all_of(opened)
        assert [each.number for each in found] == [1, 2, 3]
        assert (found[0].previous, found[1].previous) == (NO_DIGEST, found[0].digest)
        assert faults(found) == []
        assert [e.number for e in await all_of(opened, AuditQuery(after=1, limit=1))] == [2]
        assert [e.number for e in await all_of(opened, AuditQuery(kind="End"))] == [2]
        latest = AuditQuery(limit=2, last=True)
        assert [e.number for e in await all_of(opened, latest)] == [2, 3]
        late = AuditQuery(since=1_767_225_602.5)
        assert [e.number for e in await all_of(opened, late)] == [3]
        assert await opened.audit_sent("x") == 0
        await opened.note_audit_sent("x", 2)
        await opened.note_audit_sent("x", 3)
        assert await opened.audit_sent("x") == 3

    asyncio.run(main())


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
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.history.test_audit import draft\n"
        "from fairlead.history.sqlite import SqliteHistory\n"
        "async def main():\n"
        "    history = SqliteHistory.open(Path(sys.argv[1]), runner=asyncio.to_thread)\n"
        "    for n in range(1, 21):\n"
        "        await history.append_audit([draft(n, writer=sys.argv[2])])\n"
        "asyncio.run(main())\n"
    )
    file = tmp_path / "h.db"
    asyncio.run(SqliteHistory.open(file, runner=asyncio.to_thread).close())
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(file), name], cwd=ROOT)
        for name in ("a", "b")
    ]
    assert [each.wait(60) for each in writers] == [0, 0]
    history = SqliteHistory.open(file, runner=asyncio.to_thread)

    async def main() -> list[AuditRecord]:
        found = await all_of(history)
        await history.close()
        return found

    found = asyncio.run(main())
    assert [each.number for each in found] == list(range(1, 41))
    assert {each.writer for each in found} == {"a", "b"}
    assert faults(found) == []


def test_a_process_that_is_killed_leaves_whole_records_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.history.test_audit import draft\n"
        "from fairlead.history.sqlite import SqliteHistory\n"
        "async def main():\n"
        "    history = SqliteHistory.open(Path(sys.argv[1]), runner=asyncio.to_thread)\n"
        "    n = 0\n"
        "    while True:\n"
        "        n += 2\n"
        "        done = await history.append_audit([draft(n), draft(n + 1)])\n"
        "        print(done.records[-1].number, flush=True)\n"
        "asyncio.run(main())\n"
    )
    file = tmp_path / "h.db"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(5)]
    os.kill(process.pid, signal.SIGKILL)
    said += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait()
    process.stdout.close()

    async def main() -> list[AuditRecord]:
        history = SqliteHistory.open(file, runner=asyncio.to_thread)
        await history.append_audit([draft(1)])
        found = await all_of(history)
        await history.close()
        return found

    found = asyncio.run(main())
    assert faults(found) == []
    assert len(found) >= said[-1] + 1, "what was acknowledged is there"
    assert len(found) % 2 == 1, "both records of a commit, or none"


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

    async def main(history: History) -> list[AuditRecord]:
        for number in range(1, 41):
            await history.append_audit([draft(number)])
        return await all_of(history)

    from fairlead.history.audit import AuditMemory

    history = MemoryHistory()
    history._audit = AuditMemory(16)  # pyright: ignore[reportPrivateUsage] - a small one
    found = asyncio.run(main(history))
    assert len(found) <= 17
    assert found[0].number > 1
    assert faults(found) == []
    said = [each for each in found if each.kind == PRUNED]
    assert json.loads(said[-1].facts)["number"] == found[0].number - 1
    assert faults(found[1:]), "one more is missing"


def test_a_full_file_drops_its_oldest_as_memory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.history import sqlite

    small = replace(sqlite._AUDIT, records_max=16)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sqlite, "_AUDIT", small)

    async def main() -> list[AuditRecord]:
        history = SqliteHistory.open(tmp_path / "h.db", runner=asyncio.to_thread)
        for number in range(1, 41):
            await history.append_audit([draft(number)])
        found = await all_of(history)
        await history.close()
        return found

    found = asyncio.run(main())
    assert len(found) <= 17
    assert found[0].number > 1
    assert faults(found) == []
