"""A server on the loopback that answers what a test gives it, as monitors and clouds do."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.patience import PATIENCE_SECONDS


@dataclass
class Answers:
    """Pages by path (with its query), headers that a path takes, and what was asked."""

    pages: dict[str, bytes] = field(default_factory=dict[str, bytes])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    status: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append((method, path))
        if self.status:
            return self.status, b""
        if any(headers.get(name.lower()) != value for name, value in self.headers.items()):
            return 401, b""
        page = self.pages.get(path)
        return (404, b"none") if page is None else (200, page)


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Generator[tuple[Answers, str]]:
    """Yield what a server answers, and its URL; with `tls` it is one of https."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, page = answers.answer(self.command, self.path, headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            try:
                self.wfile.write(page)
            except OSError:  # the client has had enough
                return

        do_GET = do_PUT = _any  # noqa: N815 # as http.server names them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield answers, f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_SECONDS)
