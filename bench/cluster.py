"""A real `fairlead up` in a temporary directory, and a plain client for it.

The cluster listens on a free port, gets a home of its own, and is stopped when the block is left,
whatever happened in it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

ANSWER_SECONDS_MAX = 120
JOBS = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


@dataclass
class Cluster:
    """A data directory, and the process that runs it once `up` was called."""

    root: Path
    pid: int = 0
    _address: tuple[str, int | None] = ("", None)
    _connection: http.client.HTTPSConnection = field(init=False, repr=False)

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its commands."""
        # An installed command has its modules compiled.
        left_out = ("FAIRLEAD", "KUBE", "PYTHONDONTWRITEBYTECODE")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        kubeconfig = str(self.data / "kubeconfig")
        return {**kept, "HOME": str(self.root), "FAIRLEAD_KUBECONFIG": kubeconfig}

    def command(self, *arguments: str) -> list[str]:
        """Return the argument vector of a command."""
        return [sys.executable, "-m", "fairlead", *arguments]

    def fairlead(self, *arguments: str) -> str:
        """Run a command to its end and return what it printed; it must succeed."""
        return self._run("fairlead", *arguments)

    def slurm(self, *arguments: str) -> str:
        """Run one of Slurm's commands in the same way, as `fairlead slurm install` has it run."""
        return self._run("fairlead.cli.slurm_tools", *arguments)

    def _run(self, module: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.root, env=self.environment, capture_output=True, text=True,
            timeout=ANSWER_SECONDS_MAX, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self, *arguments: str) -> float:
        """Start the cluster in the background; return the seconds until it was ready."""
        start = time.perf_counter()
        self.fairlead(
            "up", "--detach", "--data", str(self.data), "--listen", "127.0.0.1:0", *arguments
        )
        taken = time.perf_counter() - start
        running = json.loads((self.data / "run.json").read_text())
        self.pid = int(running["pid"])
        address = urlsplit(running["server"])
        assert address.hostname is not None
        self._address = (address.hostname, address.port)
        self._connection = self._connect()
        return taken

    def _connect(self) -> http.client.HTTPSConnection:
        """Return a connection that trusts the cluster's own authority."""
        config = yaml.safe_load((self.data / "kubeconfig").read_text())
        authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
        trust = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
        host, port = self._address
        return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS_MAX, context=trust)

    def down(self) -> None:
        """Stop it in order."""
        if self.pid:
            self._connection.close()
            self.fairlead("down", "--data", str(self.data))
            self.pid = 0

    @property
    def _headers(self) -> dict[str, str]:
        token = (self.data / "token").read_text().strip()
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: bytes = b"") -> Any:
        """Return the decoded answer; it must be a success."""
        return json.loads(self._ask(self._connection, method, path, body))

    def post_all(self, path: str, bodies: Sequence[bytes], *, at_once: int) -> None:
        """Create the objects over so many connections, one after another over each."""

        def post(part: Sequence[bytes]) -> None:
            connection = self._connect()
            for body in part:
                self._ask(connection, "POST", path, body)
            connection.close()

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(post, [bodies[i::at_once] for i in range(at_once)]))

    def _ask(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: bytes
    ) -> bytes:
        connection.request(method, path, body or None, self._headers)
        answer = connection.getresponse()
        raw = answer.read()
        assert answer.status < 300, raw[:500]
        return raw

    def count(self, path: str) -> int:
        """Return how many objects a list would have, without fetching them."""
        page = self.call("GET", f"{path}?limit=1")
        return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)

    def running_jobs(self) -> int:
        """Return how many jobs run."""
        items = self.call("GET", JOBS)["items"]
        return sum(item.get("status", {}).get("state") == "Running" for item in items)

    def watch(self, path: str, version: str) -> http.client.HTTPResponse:
        """Open a watch on a connection of its own; iterate it for lines."""
        connection = self._connect()
        query = f"?watch=1&resourceVersion={version}"
        connection.request("GET", path + query, headers=self._headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a cluster that is not up yet; stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
        made = Cluster(Path(directory))
        try:
            yield made
        finally:
            made.down()


def wait_until(reached: Callable[[], bool], *, seconds: float, look_seconds: float = 0.05) -> None:
    """Return once it is so; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(look_seconds)
