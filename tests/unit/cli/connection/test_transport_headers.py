"""What the command line sends to say who it is."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from fairlead.cli.connection.transport import Api
from fairlead.kube.kubeconfig import Connection


def test_an_impersonated_user_comes_with_all_of_its_groups() -> None:
    seen: list[tuple[str | None, list[str] | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            groups = self.headers.get_all("Impersonate-Group")
            seen.append((self.headers.get("Impersonate-User"), groups))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = Connection(
            server=f"http://127.0.0.1:{server.server_port}", source="a test",
            impersonate_user="ana", impersonate_groups=("research", "vision"),
        )  # fmt: skip
        Api(target).request("GET", "/version")
        server.shutdown()
    assert seen == [("ana", ["research", "vision"])]
