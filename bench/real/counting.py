"""A proxy between the controllers and the server that counts what goes over the wire.

The controllers speak plain HTTP to it, so it sees what they ask for as they ask it; what they are
made of has no part in the count. Bytes are those of bodies, uncompressed as on loopback. Who asked
is told by what was asked, since one process holds all: a write of a job's place or verdict is the
scheduler's, leases are the elector's, events the recorder's, lists and watches the mirrors' (but
discovery's where the kind is not served), and what is left is the jobs controller's.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from tests.kubernetes.controlplane import ControlPlane

from bench.real.ground import SECONDS_MAX

BODY_BYTES_MAX = 64 << 20
_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}
_PLACED = {"placement", "verdict"}


@dataclass(frozen=True, order=True)
class Asked:
    """What is counted together."""

    actor: str
    verb: str
    kind: str


@dataclass
class Tally:
    """How often, and how many bytes of bodies went each way."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def __sub__(self, other: Tally) -> Tally:
        return Tally(
            self.requests - other.requests,
            self.sent_bytes - other.sent_bytes,
            self.received_bytes - other.received_bytes,
        )

    @property
    def bytes(self) -> int:
        return self.sent_bytes + self.received_bytes


@dataclass
class Counting:
    """The counts so far, and the kubeconfig that leads through the proxy."""

    kubeconfig: Path
    tallies: dict[Asked, Tally] = field(default_factory=dict)

    def since(self, before: dict[Asked, Tally]) -> dict[Asked, Tally]:
        """Return what came on top of an earlier `snapshot`, without what did not change."""
        grown = {key: now - before.get(key, Tally()) for key, now in self.tallies.items()}
        return {key: each for key, each in sorted(grown.items()) if each.requests or each.bytes}

    def snapshot(self) -> dict[Asked, Tally]:
        """Return a copy of the counts."""
        return {
            key: Tally(each.requests, each.sent_bytes, each.received_bytes)
            for key, each in self.tallies.items()
        }


def asked_of(method: str, path: str, query: dict[str, str], body: bytes) -> Asked:
    """Read a request. Pages of one list after the first are verb "page"."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts and parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    kind = parts[0] if parts else "discovery"
    if len(parts) > 2:
        kind = f"{kind}/{parts[2]}"
    verb = method.lower()
    if method == "GET" and len(parts) == 1:
        verb = "page" if "continue" in query else "list"
        verb = "watch" if "watch" in query else verb
    return Asked(_actor(verb, kind, body), verb, kind)


def _actor(verb: str, kind: str, body: bytes) -> str:
    if kind == "leases":
        return "leader election"
    if kind == "events":
        return "events"
    if verb in ("list", "page", "watch"):
        return "mirrors"
    if kind == "jobs/status" and _PLACED & set(msgspec.json.decode(body).get("status", {})):
        return "scheduler"
    return "jobs controller"


@contextlib.asynccontextmanager
async def counting(plane: ControlPlane) -> AsyncGenerator[Counting]:
    """Run the proxy for the length of the block."""
    content = json.loads(plane.kubeconfig().read_text())
    path = plane.directory / "kubeconfig-counting"
    made = Counting(path)
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context), auto_decompress=False
    ) as session:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", lambda r: _forward(r, made, session, plane.url))
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
            path.write_text(json.dumps(content))
            path.chmod(0o600)
            yield made
        finally:
            await runner.cleanup()


async def _forward(
    request: web.Request, made: Counting, session: aiohttp.ClientSession, url: str
) -> web.StreamResponse:
    body = await request.read()
    asked = asked_of(request.method, request.path, dict(request.query), body)
    headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
    async with session.request(
        request.method, url + str(request.rel_url), data=body or None, headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=SECONDS_MAX),
    ) as answer:  # fmt: skip
        if asked.verb == "list" and answer.status == HTTPStatus.NOT_FOUND:
            asked = replace(asked, actor="discovery")
        tally = made.tallies.setdefault(asked, Tally())
        tally.requests += 1
        tally.sent_bytes += len(body)
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # either end may go
            async for chunk in answer.content.iter_any():
                tally.received_bytes += len(chunk)
                await response.write(chunk)
            await response.write_eof()
        return response
