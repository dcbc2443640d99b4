"""A registry with faults, in front of the one of a cluster: which, says the name of the image.

`throttled/...` answers 429 to the first requests and `throttling/...` to all, `broken/...` 500,
`wrong/...` gives other bytes than the digest says, `slow/...` sends them slowly, and `private/...`
wants a name and a password. Each start of a pull (the first request for a manifest by a node) is
written down, with its time.

Run by itself it needs Python alone: `faulty_registry.py ADDRESS PORT UPSTREAM LOG`.
"""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.cluster.cluster import Cluster

#: The name by which nodes know it, and its port beside that of the registry.
HOST, PORT = "faulty.example", 5999
USER, PASSWORD = "reader", "of-this-test"
THROTTLED_FIRST = 4
SLOW_BYTES_PER_SECOND = 1 << 20
_CHUNK = 1 << 16
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream, log = "", Path()
    throttled: dict[str, int] = {}
    lock = threading.Lock()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Be quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        fault = self.path.removeprefix("/v2/").partition("/")[0]
        is_blob = "/blobs/" in self.path
        if "/manifests/" in self.path:
            self._note()
        if fault == "throttling" or (fault == "throttled" and self._is_early()):
            self._refuse(429, "TOOMANYREQUESTS", {"Retry-After": "1"})
        elif fault == "broken":
            self._refuse(500, "UNKNOWN", {})
        elif fault == "private" and not self._is_known():
            self._refuse(401, "UNAUTHORIZED", {"WWW-Authenticate": 'Basic realm="private"'})
        else:
            self._forward(
                is_wrong=fault == "wrong" and is_blob, is_slow=fault == "slow" and is_blob
            )

    def _note(self) -> None:
        row = {"at": time.time(), "from": self.client_address[0], "path": self.path}
        with self.lock, self.log.open("a") as log:
            log.write(json.dumps(row) + "\n")

    def _is_early(self) -> bool:
        with self.lock:
            count = self.throttled[self.path] = self.throttled.get(self.path, 0) + 1
        return count <= THROTTLED_FIRST

    def _is_known(self) -> bool:
        wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return self.headers.get("Authorization") == f"Basic {wanted}"

    def _refuse(self, code: int, word: str, headers: dict[str, str]) -> None:
        body = json.dumps({"errors": [{"code": word, "message": "as the test wants"}]}).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self, *, is_wrong: bool, is_slow: bool) -> None:
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            given = {n: v for n, v in self.headers.items() if n.lower() in ("accept", "range")}
            upstream.request(self.command, self.path, headers=given)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", answer.getheader("Content-Length") or "0")
            self.end_headers()
            while self.command != "HEAD" and (data := answer.read(_CHUNK)):
                self.wfile.write(bytes(len(data)) if is_wrong else data)
                if is_slow:
                    time.sleep(len(data) / SLOW_BYTES_PER_SECOND)
        finally:
            upstream.close()


@contextmanager
def faulty_registry(cluster: Cluster, directory: Path) -> Generator[Path]:
    """Run one for the nodes of a cluster; yield the file of what was asked for."""
    from tools.cluster.cluster import ENDS_WITH_US
    from tools.cluster.layout import CONTROL_PLANE

    address, log = cluster.layout.address(CONTROL_PLANE), directory / "faulty.jsonl"
    url = f"http://{address}:{PORT}"
    for node in cluster.layout.nodes:
        folder = cluster.layout.home(node) / "registries" / HOST
        folder.mkdir(exist_ok=True)
        (folder / "hosts.toml").write_text(
            f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
        )
    enter = ["nsenter", f"--target={cluster.init(CONTROL_PLANE)}", "--net", "--"]
    given = [address, str(PORT), cluster.layout.registry, str(log)]
    with subprocess.Popen(
        [*ENDS_WITH_US, *enter, sys.executable, __file__, *given], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield log
        finally:
            process.kill()


def starts(log: Path) -> list[tuple[float, str, str]]:
    """Return (time, node's address, path) of the first request of each node for an image."""
    first: dict[tuple[str, str], float] = {}
    for row in map(json.loads, log.read_text().splitlines() if log.exists() else ()):
        name = row["path"].partition("/manifests/")[0]
        first.setdefault((row["from"], name), row["at"])
    return sorted((at, *key) for key, at in first.items())


def main() -> None:
    """Serve until killed."""
    address, port, _Handler.upstream, log = sys.argv[1:]
    _Handler.log = Path(log)
    with ThreadingHTTPServer((address, int(port)), _Handler) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
