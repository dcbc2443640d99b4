"""Fakes of REST APIs: over HTTP on loopback, or within the process for SDKs that use requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, Protocol

import requests
from requests.adapters import BaseAdapter


@dataclass(slots=True)
class Answer:
    """What a fake answers."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


class RestServer(Protocol):
    """A fake."""

    def handle(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Answer one request."""
        ...


class InProcess(BaseAdapter):
    """Answers within the process, without sockets."""

    def __init__(self, server: RestServer) -> None:
        super().__init__()
        self._server = server

    def send(  # pyright: ignore[reportIncompatibleMethodOverride] # as sessions call it
        self, request: requests.PreparedRequest, **_: Any
    ) -> requests.Response:
        assert isinstance(request.body, str | bytes | None), "the SDK sends no streams"
        body = request.body.encode() if isinstance(request.body, str) else request.body
        answer = self._server.handle(request.method or "", request.url or "", request.headers, body)
        response = requests.Response()
        response.status_code = answer.status
        response.raw = BytesIO(json.dumps(answer.body).encode())
        response.request, response.url = request, request.url or ""
        response.headers.update({"content-type": "application/json", **answer.headers})
        return response

    def close(self) -> None:
        """Nothing to close."""


@contextmanager
def on_loopback(server: RestServer) -> Generator[str]:
    """Run a fake on loopback; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            answer = server.handle(self.command, self.path, dict(self.headers), body)
            data = json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # its name there
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
