"""Running the `fairlead` command as people do: as a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.kube.kubeconfig import load_connection

ANSWER_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


class Shell:
    """Runs commands against one data directory, with a home of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD", "KUBE"))},
            "HOME": str(root),
            "FAIRLEAD_KUBECONFIG": str(self.data / "kubeconfig"),
            "NO_COLOR": "1",
        }

    def run(
        self, *arguments: str, code: int | None = 0, environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Result:  # fmt: skip
        """Run a command to its end and check its exit code (None: any)."""
        done = subprocess.run(
            self.command(*arguments), cwd=self.root,
            env={**self.environment, **(environment or {})},
            capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX, check=False, input=stdin,
        )  # fmt: skip
        result = Result(done.returncode, done.stdout, done.stderr)
        if code is not None:
            assert result.code == code, result
        assert "Traceback" not in result.err, result
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and do not wait for it."""
        return subprocess.Popen(
            self.command(*arguments), cwd=self.root, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def command(self, *arguments: str) -> list[str]:
        """Return the argument vector of a fairlead command."""
        return [sys.executable, "-m", "fairlead", *arguments]

    def up(self, *arguments: str, code: int = 0) -> Result:
        """Start the cluster in the background."""
        return self.run("up", "--detach", "--data", str(self.data), *arguments, code=code)

    def down(self) -> None:
        """Stop the cluster; harmless when none runs."""
        self.run("down", "--data", str(self.data))

    def pid(self) -> int:
        """Return the process of the cluster."""
        return int(json.loads((self.data / "run.json").read_text())["pid"])

    def https(self, timeout: float = 30.0) -> http.client.HTTPSConnection:
        """Return a connection of a client that trusts the cluster's authority, and only that."""
        connection = load_connection(path=self.data / "kubeconfig")
        context = ssl.create_default_context(cadata=connection.certificate_authority.decode())
        address = connection.server.removeprefix("https://")
        return http.client.HTTPSConnection(address, timeout=timeout, context=context)

    def job(self, name: str) -> dict[str, Any]:
        """Return a job as the API has it."""
        items = json.loads(self.run("ps", "-a", "-o", "json").out)["items"]
        return next(item for item in items if item["metadata"]["name"] == name)

    def state(self, name: str) -> str:
        """Return a job's state."""
        return str(self.job(name).get("status", {}).get("state", ""))


def eventually(question: Callable[[], Any], expected: Any, *, seconds: float = 20.0) -> None:
    """Ask again and again until the answer is the expected one."""
    deadline = time.monotonic() + seconds
    while (answer := question()) != expected:
        assert time.monotonic() < deadline, f"still {answer!r}, expected {expected!r}"
        time.sleep(0.1)
