"""`doctor metrics` on a real Prometheus that scrapes a real API server and an agent that explodes.

The agent exports a metric with a series for each path that it served. What the doctor predicts is
compared with what the server then does: the series that are left under its rules, the queries that
end with an error, the time and the memory of a restart.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.prometheus_server import prometheus, scrape_at, scrape_of

pytestmark = pytest.mark.kubernetes
PATHS, SESSIONS = 12_000, 2_000
QUERIES = ("sum by (session) (agent_session_bytes)", "rate(agent_requests_total[1m])")


class _Agent(BaseHTTPRequestHandler):
    page = (
        "agent_requests_total 7\n"
        + "".join(f'agent_path_seconds{{path="/user/{n}"}} 1\n' for n in range(PATHS))
        + "".join(f'agent_session_bytes{{session="{n}"}} 1\n' for n in range(SESSIONS))
    ).encode()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with few series, whatever other tests did."""
    yield from own_plane(tmp_path_factory)


@pytest.fixture
def agent() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Agent) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_an_explosion_of_series_is_found_and_the_predictions_come_true(
    fresh: ControlPlane, agent: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    uses = tmp_path / "uses"
    shell.run("doctor", "dashboards", str(uses))
    (uses / "rules.yaml").write_text(shell.run("doctor", "alerts").out)
    (uses / "queries.txt").write_text("\n".join(QUERIES))
    jobs = [scrape_of(fresh), scrape_at("agent", agent)]

    with prometheus(tmp_path / "before", jobs) as server:
        server.scraped(5)
        arguments = ("doctor", "metrics", server.url, "--uses", str(uses), "-o", "json")
        report = json.loads(shell.run(*arguments, code=1).out)
        metrics = set(server.get("/api/v1/label/__name__/values"))
        now = time.time()
        window = {"start": str(now - 5), "end": str(now), "step": "0.005"}
        outcomes = {each: server.query("query_range", query=each, **window) for each in QUERIES}

    large = report["large"]
    assert [each["subject"] for each in large[:2]] == ["agent_path_seconds", "path"]
    first = report["unused"][0]
    assert (first["metric"], first["jobs"]) == ("agent_path_seconds", {"agent": PATHS})
    assert report["replay"]["broken"] == []
    unfinished = {each["expression"] for each in report["unfinished"]}
    assert unfinished & set(QUERIES) == {QUERIES[0]}
    assert "too many samples" in outcomes[QUERIES[0]]
    assert outcomes[QUERIES[1]] == "success"

    with prometheus(tmp_path / "before", jobs) as server:
        seconds, peak = server.sample("process_cpu_seconds_total"), server.peak_bytes()
    assert report["wal"]["predicted_replay_seconds"] / 5 < seconds + 0.1
    assert seconds < 5 * report["wal"]["predicted_replay_seconds"] + 2, "the program starts, too"
    assert peak < 2 * report["wal"]["predicted_replay_memory_bytes"]

    for rule in report["rules"]:
        job = next(each for each in jobs if each["job_name"] == rule["job"])
        job.setdefault("metric_relabel_configs", []).extend(rule["metric_relabel_configs"])
    with prometheus(tmp_path / "after", jobs) as server:
        server.scraped(5)
        left = server.get("/api/v1/status/tsdb?limit=1")["headStats"]["numSeries"]
        kept = set(server.get("/api/v1/label/__name__/values"))
    assert left == pytest.approx(report["replay"]["left_series"], rel=0.05)
    unused = {each["metric"] for each in report["unused"]}
    assert metrics - kept <= unused, "what is used is still there"
    assert unused & kept == set()
