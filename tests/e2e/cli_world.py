"""Running the `fairlead` command as people do: in a process of its own."""

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
from tempfile import TemporaryFile
from typing import Any

from tests.e2e.command_server import Command, command_server
from tests.patience import PATIENCE_SECONDS
from tests.planted import PLANTED, VARIABLE, found_in, secrets_of

from fairlead.kube.kubeconfig import load_connection

_JOBS = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs"


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
            VARIABLE: PLANTED,
        }

    def run(
        self, *arguments: str, code: int | None = 0, environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Result:  # fmt: skip
        """Run a command to its end and check its exit code (None: any)."""
        command = self.forked(*arguments, **(environment or {}))
        with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            given.write(stdin)
            given.seek(0)
            streams = (given, out, err)
            done = command_server().run(command, streams, seconds_max=PATIENCE_SECONDS)
            out.seek(0)
            err.seek(0)
            result = Result(done, out.read(), err.read())
        if code is not None:
            assert result.code == code, result
        assert "Traceback" not in result.err, result
        assert not found_in(result.err, secrets_of(self.data)), result
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and do not wait for it."""
        return subprocess.Popen(
            self.command(*arguments), cwd=self.root, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def forked(self, *arguments: str, **environment: str) -> Command:
        """Return a fairlead command for the server of commands, with more in its environment."""
        return Command(list(arguments), str(self.root), {**self.environment, **environment})

    def command(self, *arguments: str) -> list[str]:
        """Return the argument vector of a fairlead command."""
        return [sys.executable, "-m", "fairlead", *arguments]

    def up(self, *arguments: str, code: int = 0) -> Result:
        """Start the cluster in the background."""
        return self.run("up", "--detach", "--data", str(self.data), *arguments, code=code)

    def until_up(self) -> None:
        """Return once a cluster that was started in the foreground answers."""
        eventually((self.data / "run.json").exists, expected=True)
        eventually(lambda: self.run("ps", code=None).code, 0)

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

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return the code and the body of the API's answer, without a process for each question."""
        return self._call("GET", path)

    def delete_job(self, name: str) -> None:
        """Delete a job of the default namespace."""
        self._call("DELETE", f"{_JOBS}/{name}")

    def patch_job(self, name: str, patch: dict[str, Any]) -> None:
        """Merge a patch into a job of the default namespace."""
        self.patch(f"{_JOBS}/{name}", patch)

    def patch(self, path: str, patch: dict[str, Any]) -> None:
        """Merge a patch into an object."""
        code, body = self._call("PATCH", path, patch)
        assert code == 200, body

    def create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object."""
        code, answer = self._call("POST", path, body)
        assert code == 201, answer

    def _call(
        self, method: str, path: str, patch: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        connection = self.https()
        token = (self.data / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        if patch is not None:
            headers["Content-Type"] = (
                "application/json" if method == "POST" else "application/merge-patch+json"
            )
        try:
            connection.request(
                method, path, body=None if patch is None else json.dumps(patch), headers=headers
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def job(self, name: str) -> dict[str, Any]:
        """Return a job of the default namespace as the API has it; {} when there is none."""
        code, body = self.get(f"{_JOBS}/{name}")
        assert code in (200, 404), body
        return body if code == 200 else {}

    def status(self, name: str) -> dict[str, Any]:
        """Return a job's status; {} when there is no such job, or it has none yet."""
        status: dict[str, Any] = self.job(name).get("status", {})
        return status

    def state(self, name: str) -> str:
        """Return a job's state; "" when there is no such job, or it has none yet."""
        return str(self.status(name).get("state", ""))


def eventually(
    question: Callable[[], Any], expected: Any, *, seconds: float = PATIENCE_SECONDS
) -> None:
    """Ask again and again until the answer is the expected one.

    A question that takes long, as a command does, is asked a third of the time at most.
    """
    asked = time.monotonic()
    deadline = asked + seconds
    while (answer := question()) != expected:
        answered = time.monotonic()
        assert answered < deadline, f"still {answer!r}, expected {expected!r}"
        time.sleep(max(0.1, 2 * (answered - asked)))
        asked = time.monotonic()
