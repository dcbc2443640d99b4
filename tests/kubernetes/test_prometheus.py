"""`doctor metrics` on a real Prometheus that scrapes a real API server and an agent that explodes.

The agent exports a metric with a series for each path that it served. What the doctor predicts is
compared with what the server then does: the series that are left under its rules, the queries that
end with an error, the time and the memory of a restart.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.cli_world import Shell
from tests.kubernetes.controlplane import (
    ControlPlane,
    NoControlPlane,
    find_binaries,
    free_ports,
)
from tests.kubernetes.own_plane import own_plane

pytestmark = pytest.mark.kubernetes
PATHS, SESSIONS, SAMPLES_MAX = 12_000, 2_000, 1_000_000
QUERIES = ("sum by (session) (agent_session_bytes)", "rate(agent_requests_total[1m])")
SECONDS_MAX = 90.0


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


@dataclass
class Server:
    """A running Prometheus."""

    url: str
    pid: int

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def sample(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(each.split()[1]) for each in lines if each.startswith(f"{name} "))

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(row.split()[1]) * 1024 for row in status.splitlines() if "VmHWM" in row)

    def query(self, path: str, **arguments: str) -> str:
        """Return "success", or the error of a query."""
        text = urllib.parse.urlencode(arguments)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{text}", timeout=30) as answer:
                return str(json.loads(answer.read())["status"])
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["error"])

    def scraped(self, times: int) -> None:
        """Return once both jobs were scraped so many times."""
        query = f"count(count_over_time(up[5m]) >= {times} and up == 1)"
        path = f"/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        _until(lambda: [each["value"][1] for each in self.get(path)["result"]] == ["2"])


def _until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def prometheus(directory: Path, jobs: list[dict[str, Any]]) -> Generator[Server]:
    """Run Prometheus on the data of the directory; it is killed at the end of the block."""
    try:
        binary = find_binaries() / "prometheus"
    except NoControlPlane as reason:
        pytest.skip(f"no Prometheus: {reason}")
    if not binary.exists():
        pytest.skip("Prometheus not built: make kubernetes")
    directory.mkdir(exist_ok=True)
    rule = {"record": "agent:requests:rate1m", "expr": "rate(agent_requests_total[1m])"}
    (directory / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "own", "interval": "2s", "rules": [rule]}]})
    )
    config = {"global": {"scrape_interval": "2s"}, "scrape_configs": jobs,
              "rule_files": ["rules.yaml"]}  # fmt: skip
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [binary, f"--config.file={directory / 'prometheus.yaml'}",
             f"--storage.tsdb.path={directory / 'data'}", f"--query.max-samples={SAMPLES_MAX}",
             f"--web.listen-address=127.0.0.1:{port}"], stderr=log,
        )  # fmt: skip
        server = Server(f"http://127.0.0.1:{port}", process.pid)

        def is_ready() -> bool:
            try:
                urllib.request.urlopen(f"{server.url}/-/ready", timeout=5).close()
            except OSError:
                return False
            return True

        try:
            _until(is_ready)
            yield server
        finally:
            process.kill()
            process.wait()


def jobs_of(plane: ControlPlane, agent: str) -> list[dict[str, Any]]:
    apiserver = plane.url.removeprefix("https://")
    return [
        {"job_name": "apiserver", "scheme": "https", "authorization": {"credentials": plane.token},
         "tls_config": {"ca_file": str(plane.ca_file)},
         "static_configs": [{"targets": [apiserver]}]},
        {"job_name": "agent", "static_configs": [{"targets": [agent]}]},
    ]  # fmt: skip


def test_an_explosion_of_series_is_found_and_the_predictions_come_true(
    fresh: ControlPlane, agent: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    uses = tmp_path / "uses"
    shell.run("doctor", "dashboards", str(uses))
    (uses / "rules.yaml").write_text(shell.run("doctor", "alerts").out)
    (uses / "queries.txt").write_text("\n".join(QUERIES))
    jobs = jobs_of(fresh, agent)

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
    print(
        "PRED",
        report["replay"],
        left,
        report["wal"],
        seconds,
        peak,
        report["series"],
        report["unfinished"],
    )
    assert left == pytest.approx(report["replay"]["left_series"], rel=0.05)
    unused = {each["metric"] for each in report["unused"]}
    assert metrics - kept <= unused, "what is used is still there"
    assert unused & kept == set()
