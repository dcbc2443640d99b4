"""An HTTP server on loopback that answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """A status, a body and headers; `length` overrides the Content-Length, -1 leaves it out."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    length: int | None = None


@dataclass
class Loopback:
    """A running server and the requests that it got: method, path, body, headers."""

    url: str
    seen: list[tuple[str, str, bytes, dict[str, str]]] = field(
        default_factory=list[tuple[str, str, bytes, dict[str, str]]]
    )


@contextmanager
def loopback(answer: Callable[[str, bytes], Answer]) -> Generator[Loopback]:
    """Run a server that answers a path and a body until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            made.seen.append((self.command, self.path, body, dict(self.headers)))
            given = answer(self.path, body)
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            length = len(given.body) if given.length is None else given.length
            if length >= 0:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            try:
                self.wfile.write(given.body)
            except OSError:
                return  # the client has enough

        do_POST = do_GET  # noqa: N815 # the name that http.server asks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        made = Loopback(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            http.shutdown()
            thread.join()
