"""How fast an audit log is analysed: over plain counts by other means in the same run.

The counts are by user, program and verb, with msgspec, json, and, where they are installed, with
one thread of DuckDB and of Polars and with jq. The ratios say what the whole analysis (folding of
callers and URIs, times, distinct nodes) costs beside a decode that only counts; they hold on a busy
machine as well. The memory is that of 10,000 keys, of a log and of one four times as long.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.audit_log import cluster_lines, key_lines
from bench.harness import Report
from fairlead.doctor.audit.cost import CostModel, summarise
from fairlead.doctor.audit.parallel import Engine, has_compiler, read_logs

LINES = 120_000
ROUNDS = 3
KEYS, KEY_LINES, LONGER = 10_000, 40_000, 4
#: Programs that are compared with where they are installed; no part of the product.
OTHERS = ("duckdb", "polars", "jq")
_JQ = 'reduce inputs as $e ({}; .[[$e.user.username, $e.userAgent, $e.verb] | join(" ")] += 1)'
#: A process that runs this begins with the peak of the one that started it, but for VmHWM.
_READS = """
import re, resource, sys
from pathlib import Path
from fairlead.doctor.audit.parallel import Engine, has_compiler, read_logs
engine = Engine.COMPILED if has_compiler() else Engine.PLAIN
tally = read_logs(sys.argv[1:], engine=engine)
own = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(len(tally.costs), max(own, children) / 1e3)
"""


class _User(msgspec.Struct):
    username: str = ""


class _Event(msgspec.Struct, rename="camel"):
    user: _User
    verb: str = ""
    user_agent: str = ""


def run(report: Report) -> None:
    """Measure the analysis of one file in one process, both engines, and the counts."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "audit.log"
        with path.open("wb") as file:
            file.writelines(cluster_lines(LINES))
        ways = _ways(path)
        taken = {name: list[float]() for name in ways}
        for _ in range(ROUNDS + 1):  # the first round compiles
            for name, way in ways.items():
                taken[name].append(_seconds(way))
        size = path.stat().st_size / 1e6
    seconds = {name: statistics.median(each[1:]) for name, each in taken.items()}
    report.add("doctor.audit_rate", size / seconds["plain"], "MB/s CPU")
    report.add("doctor.audit_over_msgspec", seconds["plain"] / seconds["msgspec"], "x")
    report.add("doctor.audit_over_json", seconds["plain"] / seconds["json"], "x")
    if "compiled" in seconds:
        report.add("doctor.compiled_rate", size / seconds["compiled"], "MB/s CPU")
        report.add("doctor.compiled_over_plain", seconds["compiled"] / seconds["plain"], "x")
        for name in OTHERS:
            if name in seconds:
                ratio = seconds["compiled"] / seconds[name]
                report.add(f"doctor.compiled_over_{name}", ratio, "x")
    for name in OTHERS:
        if name not in seconds:
            report.skip(f"doctor.compiled_over_{name}", f"{name} is not installed")
    _measure_memory(report)


def _measure_memory(report: Report) -> None:
    """Measure the largest process of a reading by all cores, at two lengths of a log."""
    peaks: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for lines in (KEY_LINES, KEY_LINES * LONGER):
            path = Path(directory) / f"{lines}.log"
            with path.open("wb") as file:
                file.writelines(key_lines(lines, KEYS))
            done = subprocess.run(
                [sys.executable, "-c", _READS, path], capture_output=True, text=True, check=True
            )
            keys, peak = done.stdout.split()
            assert int(keys) == KEYS
            peaks.append(float(peak))
    report.add("doctor.audit_memory", peaks[-1], "MB")
    report.add("doctor.audit_memory_ratio", peaks[-1] / peaks[0], "x")


def _ways(path: Path) -> dict[str, Callable[[], None]]:
    ways = {
        "plain": lambda: _analyse(path, Engine.PLAIN),
        "msgspec": lambda: _count_typed(path),
        "json": lambda: _count_plain(path),
    }
    if has_compiler():
        ways["compiled"] = lambda: _analyse(path, Engine.COMPILED)
    if importlib.util.find_spec("duckdb"):
        ways["duckdb"] = lambda: _count_duckdb(path)
    os.environ["POLARS_MAX_THREADS"] = "1"
    if importlib.util.find_spec("polars"):
        ways["polars"] = lambda: _count_polars(path)
    if shutil.which("jq"):
        ways["jq"] = lambda: _count_jq(path)
    return ways


def _seconds(action: Callable[[], None]) -> float:
    start = _cpu_seconds()
    action()
    return _cpu_seconds() - start


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that ended, as jq is one."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _analyse(path: Path, engine: Engine) -> None:
    summary = summarise(read_logs([str(path)], processes=1, engine=engine), CostModel())
    assert summary.events == LINES
    assert summary.callers[0].resource == "events"


def _count_duckdb(path: Path) -> None:
    connection: Any = importlib.import_module("duckdb").connect()
    connection.execute("set threads=1")
    columns = "{'user': 'STRUCT(username VARCHAR)', 'userAgent': 'VARCHAR', 'verb': 'VARCHAR'}"
    rows = connection.execute(
        "select user.username, userAgent, verb, count(*) from read_json(?, "
        f"format='newline_delimited', columns={columns}) group by all",
        [str(path)],
    ).fetchall()
    assert sum(row[3] for row in rows) == LINES


def _count_polars(path: Path) -> None:
    pl: Any = importlib.import_module("polars")
    schema = {"user": pl.Struct({"username": pl.String}), "userAgent": pl.String, "verb": pl.String}
    keys = [pl.col("user").struct.field("username"), "userAgent", "verb"]
    rows = pl.scan_ndjson(path, schema=schema).group_by(keys).len().collect(engine="streaming")
    assert rows["len"].sum() == LINES


def _count_jq(path: Path) -> None:
    done = subprocess.run(["jq", "-n", _JQ, path], capture_output=True, check=True)
    assert sum(json.loads(done.stdout).values()) == LINES


def _count_typed(path: Path) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    decode = msgspec.json.Decoder(_Event).decode
    with path.open("rb") as file:
        for line in file:
            event = decode(line)
            counts[event.user.username, event.user_agent, event.verb] += 1
    assert counts.total() == LINES


def _count_plain(path: Path) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    with path.open("rb") as file:
        for line in file:
            event = json.loads(line)
            counts[event["user"]["username"], event["userAgent"], event["verb"]] += 1
    assert counts.total() == LINES
