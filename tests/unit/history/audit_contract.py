"""What every chain of audit records promises, whatever keeps it; and a process that writes to one.

    python -m tests.unit.history.audit_contract WHERE NAME COMMITS

adds two records in each commit to a file or a database, as NAME, and prints the chain's head after
each. It exits with 1 when records of its own are gone.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence

from tests.tidy.sources import ROOT

from fairlead.app.queries.stores import open_stores
from fairlead.decide.takings import Taking, TakingKind
from fairlead.runtime.kept.audit import (
    NO_DIGEST,
    PRUNED,
    AuditQuery,
    AuditRecord,
    ChainCheck,
    Draft,
    Head,
    draft_of,
)
from fairlead.runtime.kept.history import History


def draft(number: int, *, kind: TakingKind = TakingKind.PREEMPT, writer: str = "a") -> Draft:
    """A record of a job that lost its nodes."""
    taking = Taking(f"id-{number}", kind, f"Job default/train-{number}", f"uid-{number}",
                    "Preempted", "for high, naïvely", {"share": 0.5, "nodes": number})  # fmt: skip
    return draft_of(taking, writer=writer, now=1_767_225_600.0 + number)


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


def writer(where: str, name: str, commits: int) -> subprocess.Popen[str]:
    """A process that writes to what `--history` names."""
    command = [sys.executable, "-m", __name__, where, name, str(commits)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def heads(process: subprocess.Popen[str], count: int | None = None) -> list[Head]:
    """The next heads that a writer printed, all of them to its end when there is no count."""
    assert process.stdout is not None
    out: list[Head] = []
    while count is None or len(out) < count:
        line = process.stdout.readline()
        if not line.endswith("\n"):  # of a process that was killed, a part
            break
        number, _, digest = line.strip().partition(":")
        out.append(Head(int(number), digest))
    if count is None:
        process.stdout.close()
    return out


def check_has(records: Sequence[AuditRecord], acknowledged: Sequence[Head]) -> None:
    """The chain is whole, and nothing that a writer was given an answer for is gone."""
    assert faults(records) == []
    assert set(acknowledged) <= {Head(each.number, each.digest) for each in records}


async def check_audit(opened: History) -> None:
    """Records are found in order, by number, kind and time, and from the end."""
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


async def check_full(history: History) -> None:
    """Of a store of 16 records the oldest go, and a record says so."""
    for number in range(1, 41):
        await history.append_audit([draft(number)])
    found = await all_of(history)
    assert len(found) <= 17
    assert found[0].number > 1
    assert faults(found) == []
    said = [each for each in found if each.kind == PRUNED]
    assert json.loads(said[-1].facts)["number"] == found[0].number - 1
    assert faults(found[1:]), "one more is missing"


async def _main(where: str, name: str, commits: str) -> None:
    async with open_stores(where) as stores:
        for number in range(int(commits)):
            drafts = [draft(number, writer=name), draft(number, kind=TakingKind.END, writer=name)]
            done = await stores.history.append_audit(drafts)
            if done.is_broken:
                sys.exit(1)
            print(Head(done.records[-1].number, done.records[-1].digest), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
