"""A real Prometheus server for tests: its process, what it scrapes, and its answers."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane, find_binaries, free_ports

SAMPLES_MAX = 1_000_000


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

    def scraped(self, times: int, jobs: int = 2) -> None:
        """Return once so many jobs were scraped so many times."""
        query = f"count(count_over_time(up[5m]) >= {times} and up == 1)"
        until(lambda: self.value(query) == jobs)

    def value(self, query: str) -> float | None:
        """Return the first value of a query as of now; None where it has no series."""
        found = self.get(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")["result"]
        return float(found[0]["value"][1]) if found else None


def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def prometheus(
    directory: Path, jobs: list[dict[str, Any]], *, interval: str = "2s"
) -> Generator[Server]:
    """Run Prometheus on the data of the directory; it is killed at the end of the block."""
    binary = find_binaries() / "prometheus"
    if not binary.exists():
        pytest.skip("Prometheus not built: make kubernetes")
    directory.mkdir(exist_ok=True)
    rule = {"record": "agent:requests:rate1m", "expr": "rate(agent_requests_total[1m])"}
    (directory / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "own", "interval": "2s", "rules": [rule]}]})
    )
    config = {"global": {"scrape_interval": interval}, "scrape_configs": jobs,
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
            until(is_ready)
            yield server
        finally:
            process.kill()
            process.wait()


def scrape_of(plane: ControlPlane) -> dict[str, Any]:
    """Return the scrape of an API server, as the tester."""
    return {
        "job_name": "apiserver", "scheme": "https", "authorization": {"credentials": plane.token},
        "tls_config": {"ca_file": str(plane.ca_file)},
        "static_configs": [{"targets": [plane.url.removeprefix("https://")]}],
    }  # fmt: skip


def scrape_at(name: str, url: str) -> dict[str, Any]:
    """Return the scrape of a page without authentication."""
    return {"job_name": name, "static_configs": [{"targets": [url.removeprefix("http://")]}]}
