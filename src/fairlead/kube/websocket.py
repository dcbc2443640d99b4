"""WebSockets to an API server: the streams of a pod, for the command line.

aiohttp's client, which is there for watches through proxies anyway. Its import costs 0.12 s, so
this module is imported by what opens a session, and by nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from urllib.parse import urlencode

import aiohttp

from fairlead.api.status import Unavailable
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import (
    HttpOptions,
    HttpRequest,
    error_of,
    headers_of,
    naming_credentials,
)
from fairlead.kube.sockets import probe, tls_context

#: Load balancers cut what is silent for 20 s to an hour; kubectl's sessions ping as often.
PING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SocketServer:
    """Where sockets lead, and the credential of now; "" for none."""

    connection: Connection
    token: str


class PodSocket:
    """One WebSocket. Messages are a channel's number and bytes."""

    def __init__(self, response: aiohttp.ClientWebSocketResponse) -> None:
        self._response = response
        self.protocol = response.protocol or ""

    async def send(self, channel: int, data: bytes) -> None:
        """Send one message; waits while the server takes none. Unavailable."""
        try:
            await self._response.send_bytes(bytes((channel,)) + data)
        except (ConnectionError, aiohttp.ClientError) as error:
            raise Unavailable(f"the connection was lost: {error}") from error

    async def receive(self) -> bytes | None:
        """Return the next message; None at the end, in good order or not."""
        message = await self._response.receive()
        return message.data if message.type is aiohttp.WSMsgType.BINARY else None

    async def keep_alive(self) -> None:
        """Ping until cancelled."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            try:
                await self._response.ping()
            except (ConnectionError, aiohttp.ClientError):
                return


@asynccontextmanager
async def pod_socket(
    server: SocketServer,
    path: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> AsyncGenerator[PodSocket]:
    """Open a WebSocket to the sub-resource of a pod; ApiError, with the server's words."""
    options, connection = HttpOptions(), server.connection
    # A kubelet refuses any type by name (406), since what it answers here has none.
    place = HttpRequest("GET", path, accept="*/*")
    refused = list[HttpResponse]()

    async def keep_refusal(
        _session: aiohttp.ClientSession,
        _context: SimpleNamespace,
        end: aiohttp.TraceRequestEndParams,
    ) -> None:
        if end.response.status != 101:
            body = await end.response.content.read(options.error_bytes_max)
            headers = {name.lower(): value for name, value in end.response.headers.items()}
            answer = HttpResponse(end.response.status, end.response.reason or "", headers, body)
            refused.append(answer)

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(keep_refusal)
    tls = tls_context(connection) if connection.server.startswith("https:") else None
    async with aiohttp.ClientSession(
        trace_configs=[trace], cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        url = f"{connection.server.rstrip('/')}{path}?{urlencode(query)}"
        try:
            response = await session.ws_connect(
                url, protocols=protocols, max_msg_size=0, ssl=tls or True,
                headers=headers_of(place, connection, server.token, options.user_agent),
                server_hostname=connection.server_name or None,
                proxy=connection.proxy_url or None,
            )  # fmt: skip
        except aiohttp.WSServerHandshakeError as error:
            if not refused:
                raise Unavailable(f"{path}: {error}") from error
            answer = error_of(refused[-1], place.place, options)
            raise naming_credentials(answer, connection) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"no connection to {connection.server}: {error}") from error
        made = response.get_extra_info("socket")
        if made is not None:
            probe(made, dead_peer_seconds=options.dead_peer_seconds)
        try:
            yield PodSocket(response)
        finally:
            await response.close()
