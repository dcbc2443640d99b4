"""How fast an audit log is analysed: over plain counts by other means in the same run.

The counts are by user, program and verb, with msgspec, json, and, where they are installed, with
one thread of DuckDB and of Polars. The ratios say what the whole analysis (folding of callers and
URIs, times, distinct nodes) costs beside a decode that only counts; they hold on a busy machine as
well.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import Report
from fairlead.doctor.audit.cost import Model, summarise
from fairlead.doctor.audit.parallel import Engine, has_compiler, read_logs

LINES = 60_000
ROUNDS = 3
NODES = 1_000


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
        path.write_bytes(b"".join(_lines()))
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
        for name in ("duckdb", "polars"):
            if name in seconds:
                ratio = seconds["compiled"] / seconds[name]
                report.add(f"doctor.compiled_over_{name}", ratio, "x")


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
    return ways


def _seconds(action: Callable[[], None]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def _analyse(path: Path, engine: Engine) -> None:
    summary = summarise(read_logs([str(path)], processes=1, engine=engine), Model())
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


def _lines():  # type: ignore[no-untyped-def]
    """Yield events: half heartbeats, a quarter pod writes of 5,000 pods, a quarter an agent."""
    for number in range(LINES):
        node = f"node-{number * 7_919 % NODES:04d}"
        kind = number % 4
        user, agent = f"system:node:{node}", "kubelet/v1.36.3 (linux/amd64) kubernetes/b8dbe55"
        extra: dict[str, list[str]] = {}
        if kind < 2:
            verb = "update"
            uri = (
                f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}?timeout=10s"
            )
        elif kind == 2:
            verb = "patch"
            uri = f"/api/v1/namespaces/team-{number % 50}/pods/train-{number % 5_000}/status"
        else:
            verb, uri = "list", "/api/v1/events"
            user, agent = "system:serviceaccount:monitoring:agent", "agent/2.3.1 (linux/amd64)"
            name = "authentication.kubernetes.io"
            extra = {f"{name}/node-name": [node], f"{name}/pod-name": [f"agent-{node[-4:]}x"],
                     f"{name}/credential-id": [f"JTI={number:036d}"]}  # fmt: skip
        yield _line(number, uri, verb, {"username": user, "groups": ["system:nodes"],
                                        "extra": extra}, agent)  # fmt: skip


def _line(number: int, uri: str, verb: str, user: dict[str, object], agent: str) -> bytes:
    second, fraction = divmod(number, 1_000)
    started = f"2026-11-21T10:{second // 60:02d}:{second % 60:02d}.{fraction:03d}000Z"
    latency = 900 if verb == "list" else 300
    event = {
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
        "auditID": f"{number:08x}-0000-4000-8000-000000000000", "stage": "ResponseComplete",
        "requestURI": uri, "verb": verb, "user": user,
        "sourceIPs": [f"10.0.{number % 4}.{number % 250}"], "userAgent": agent,
        "objectRef": {"resource": "x", "namespace": "team", "name": "y", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 200}, "requestReceivedTimestamp": started,
        "stageTimestamp": started.replace("000Z", f"{latency:03d}Z"),
        "annotations": {
            "authorization.k8s.io/decision": "allow",
            "authorization.k8s.io/reason": 'RBAC: allowed by ClusterRoleBinding "agents" of '
            'ClusterRole "view" to ServiceAccount "agent/monitoring"',
        },
    }  # fmt: skip
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
