"""What it costs to list 100,000 runs, beside reading as many rows from a table of their own."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import astuple, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from bench.harness import Report
from fairlead.api.jobs.run_facts import ListedMetric, RunSummary
from fairlead.history.sqlite import SqliteHistory
from fairlead.runtime.kept.history import JobRecord, RunQuery

RUNS = 100_000
TRIES = 5
#: A document of a small job; those of gangs are larger.
_DOCUMENT = "x" * 2_000


def run(report: Report) -> None:
    """Measure the time in which all runs are read, and how many times that of a plain table."""
    with TemporaryDirectory() as directory:
        listed, bare = asyncio.run(_measure(Path(directory)))
    report.add("runs.list_100k_ms", listed * 1_000, "ms")
    report.add("runs.list_beside_bare_table", listed / bare, "x")


async def _at_once(call: Callable[[], Any]) -> Any:
    return call()


async def _measure(directory: Path) -> tuple[float, float]:
    path = directory / "history.db"
    rng = random.Random(1)
    records = [_record(number, rng) for number in range(RUNS)]
    await SqliteHistory.open(path, runner=_at_once).close()
    with sqlite3.connect(path) as filled:  # at once: how records are written is no question here
        columns = ", ".join(f'"{each.name}"' for each in fields(JobRecord))
        marks = ", ".join("?" * len(fields(JobRecord)))
        filled.executemany(f"INSERT INTO jobs ({columns}) VALUES ({marks})", map(astuple, records))
    filled.close()
    history = SqliteHistory.open(path, runner=_at_once)
    rows = [(r.finished_at_ms, r.uid, r.namespace, r.name, r.user, r.state, r.started_at_ms, r.run)
            for r in records]  # fmt: skip
    bare = sqlite3.connect(directory / "bare.db", isolation_level=None)
    bare.execute(
        "CREATE TABLE runs (ended INTEGER, uid TEXT, namespace TEXT, name TEXT, user TEXT,"
        " state TEXT, began INTEGER, run TEXT, PRIMARY KEY (ended, uid)) WITHOUT ROWID"
    )
    bare.execute("BEGIN")
    bare.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    bare.execute("COMMIT")
    found = min([await _timed(lambda: _listed(history)) for _ in range(TRIES)])
    plain = min([await _timed(lambda: _all(bare)) for _ in range(TRIES)])
    bare.close()
    await history.close()
    return found, plain


async def _timed(read: Callable[[], Awaitable[int]]) -> float:
    began = time.process_time()
    count = await read()
    seconds = time.process_time() - began
    assert count == RUNS, count
    return seconds


async def _listed(history: SqliteHistory) -> int:
    query = RunQuery(namespace="team", limit=RUNS)
    return sum([len(page) async for page in history.query_runs(query)])


async def _all(bare: sqlite3.Connection) -> int:
    text = "SELECT * FROM runs WHERE namespace = 'team' ORDER BY ended DESC, uid DESC"
    return len(bare.execute(text).fetchall())


def _record(number: int, rng: random.Random) -> JobRecord:
    summary = RunSummary(
        ("sweep1",), {"lr": str(rng.random()), "batch": "32"},
        {name: ListedMetric(rng.random(), 0.0, 1.0) for name in ("loss", "acc")},
        commit="c0ffee" * 6,
    )  # fmt: skip
    return JobRecord(
        uid=f"{rng.getrandbits(128):032x}", namespace="team", name=f"train-{number}", user="ana",
        team="", state="Succeeded", reason="", message="", priority=0, member_count=1,
        attempt_count=1, submitted_at_ms=0, started_at_ms=number, finished_at_ms=number,
        document=_DOCUMENT, run=msgspec.json.encode(summary).decode(),
    )  # fmt: skip
