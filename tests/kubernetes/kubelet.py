"""A kubelet that serves logs and nothing else, over HTTPS on loopback.

kube-apiserver asks it as it asks any: GET /containerLogs/NAMESPACE/POD/CONTAINER (kubelet's
server.go). The server's own certificate will do: without --kubelet-certificate-authority the
kubelet's is not verified.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.kubernetes.controlplane import ControlPlane

from fairlead.api.resources import NODES
from fairlead.kube.client import HttpClient


@dataclass
class Kubelet:
    """What was written, by pod, and what was asked."""

    port: int
    logs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    #: Set: followers are let go.
    is_over: threading.Event = field(default_factory=threading.Event)

    async def serve_nodes(self, client: HttpClient) -> None:
        """Let the API server find this kubelet on every node."""
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }
        for node in (await client.list(NODES)).items:
            await client.patch(NODES, node.metadata.name, {"status": status}, subresource="status")


@contextmanager
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    """Serve until the end of the block."""
    served = Kubelet(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def _piece(self, piece: bytes) -> None:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            pod = parts.path.split("/")[3]
            text = served.logs.get(pod)
            if text is None:
                self.send_error(404)
                return
            if "tailLines" in query:
                wanted = int(query["tailLines"][0])
                text = b"".join(text.splitlines(keepends=True)[-wanted:]) if wanted else b""
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if text:
                self._piece(text)
            if query.get("follow") == ["true"]:
                served.is_over.wait(30)
                self._piece(b"the end\n")
            self._piece(b"")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(plane.directory / "apiserver.crt", plane.directory / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.is_over.set()
        server.shutdown()
        server.server_close()
