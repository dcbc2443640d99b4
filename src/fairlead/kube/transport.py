"""HTTP to one API server: credentials, time limits, errors. Knows no kinds.

Everything that goes wrong comes out as an exception of `fairlead.api.status`: what the server says
in a Status, a connection that broke as `Unavailable`, a server that accepts and then says nothing
as `Timeout`; a peer that is gone without a word is found by keep-alive probes. Requests and streams
have separate bounded pools, so that open watches cannot starve requests. A token file is read again
every minute, and at once after a 401; a credential plugin is run again when what it answered has
expired, and after a 401. New client certificates need new connections: requests under way end on
the old ones.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import aiohttp
from yarl import URL

from fairlead.api.status import ApiError, Unauthorized, Unavailable
from fairlead.kube.exec_auth import Credential, PluginCredentials, PluginError
from fairlead.kube.http1 import ConnectError, HttpRequestError, HttpResponse
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.pool import Http1Pool
from fairlead.kube.protocol import (
    JSON,
    HttpOptions,
    HttpRequest,
    error_of,
    headers_of,
    naming_credentials,
    network_error,
)
from fairlead.kube.sockets import probe, read_token, tls_context
from fairlead.runtime.clock import SystemClock

R = TypeVar("R", HttpResponse, aiohttp.ClientResponse)

Headers: TypeAlias = list[tuple[str, str]]
#: What goes wrong between us and a server, as the libraries raise it.
_BROKEN = (TimeoutError, aiohttp.ClientError, OSError, HttpRequestError)
_GRACE_SECONDS = 30.0  # for a server to end a stream that it was asked to end


class Transport:
    """One server, one identity. Make it anywhere, use it in one event loop, close it there."""

    def __init__(self, connection: Connection, options: HttpOptions | None = None) -> None:
        """Check the certificates (KubeconfigError); connect only when there is something to ask."""
        self.connection = connection
        self.options = options or HttpOptions()
        self._pool: Http1Pool | None = None
        self._proxied: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        uses_tls = connection.server.startswith("https:")
        self._tls = tls_context(connection) if uses_tls else None
        self._token = connection.token.strip()
        self._token_read_at: float | None = None
        self._closed = False
        self._plugin: PluginCredentials | None = None
        if connection.exec_plugin is not None:
            self._plugin = PluginCredentials(connection, SystemClock().now)
        self._credential = Credential()
        #: Sessions of the certificate before this one, for requests under way.
        self._retired: tuple[aiohttp.ClientSession, ...] = ()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Send one request and return the whole body of a successful answer."""
        asked = HttpRequest(method, path, params, body, content_type, accept)
        send = self._send_by_proxy if self.connection.proxy_url else self._send
        answer = await self._respond(lambda headers: send(asked, headers), asked)
        return answer.body

    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        seconds: float | None = None,
        idle_seconds: float | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks of an answer as they come, until the server ends it.

        The server was asked to end it after `seconds`; if it does not, `Timeout` is raised a little
        later. The answer must begin within the time of a request. Silence for `idle_seconds`
        (default: the option; math.inf: any silence is fine, as in a quiet log) is a `Timeout`.
        """
        if idle_seconds is None:
            idle_seconds = self.options.stream_idle_seconds
        limits = aiohttp.ClientTimeout(
            total=None if seconds is None else seconds + _GRACE_SECONDS,
            sock_connect=self.options.connect_seconds,
            sock_read=idle_seconds if math.isfinite(idle_seconds) else None,
        )
        asked = HttpRequest(method, path, params, accept=accept)
        response = await self._respond(
            lambda headers: self._ask(self._stream_session(), asked, headers, limits), asked
        )
        try:
            async with response:
                async for chunk in response.content.iter_any():
                    yield chunk
        except _BROKEN as error:
            raise self._api_error(asked, error) from error

    async def close(self) -> None:
        """Close all connections; further calls raise `Unavailable`."""
        self._closed = True
        if self._pool is not None:
            self._pool.retire()
        for session in (self._proxied, self._streams, *self._retired):
            if session is not None:
                await session.close()

    # Inside

    async def _send(self, asked: HttpRequest, headers: Headers) -> HttpResponse:
        if self._pool is None:
            self._pool = Http1Pool(
                self.connection.server, self._tls, self.options, self._probe,
                server_name=self.connection.server_name,
            )  # fmt: skip
        return await self._pool.request(asked.method, asked.target, headers, asked.body)

    async def _send_by_proxy(self, asked: HttpRequest, headers: Headers) -> HttpResponse:
        if self._proxied is None:
            self._proxied = self._session(self.options.connections_max)
        limits = aiohttp.ClientTimeout(sock_connect=self.options.connect_seconds)
        return await self._whole(await self._ask(self._proxied, asked, headers, limits))

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        asked: HttpRequest,
        headers: Headers,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        return await session.request(
            asked.method,
            URL(self.connection.server + asked.target, encoded=True),
            data=asked.body,
            headers=headers,
            allow_redirects=False,
            proxy=self.connection.proxy_url or None,
            server_hostname=self.connection.server_name or None,
            timeout=limits,
        )

    async def _whole(self, response: aiohttp.ClientResponse) -> HttpResponse:
        """Read an answer to its end; ClientPayloadError when it is longer than one may be."""
        parts: list[bytes] = []
        bytes_left = self.options.answer_bytes_max
        async with response:
            async for part in response.content.iter_any():
                bytes_left -= len(part)
                if bytes_left < 0:
                    raise aiohttp.ClientPayloadError("the answer is too long")
                parts.append(part)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return HttpResponse(response.status, response.reason or "", headers, b"".join(parts))

    def _stream_session(self) -> aiohttp.ClientSession:
        if self._streams is None:
            self._streams = self._session(self.options.streams_max)
        return self._streams

    async def _use_plugin(self, plugin: PluginCredentials, *, refused: Credential | None) -> None:
        """Take on the plugin's credential; Unavailable when it has none for us now."""
        try:
            credential = await plugin.get(refused=refused)
        except PluginError as error:
            raise Unavailable(str(error)) from error
        if credential is self._credential:
            return
        old, self._credential = self._credential, credential
        self._token = credential.token
        is_same = (old.certificate, old.key) == (credential.certificate, credential.key)
        if is_same or self._tls is None:
            return
        connection = replace(
            self.connection,
            client_certificate=credential.certificate.encode(),
            client_key=credential.key.encode(),
        )
        try:
            self._tls = tls_context(connection)
        except KubeconfigError as error:
            raise Unavailable(f"credential plugin: {error}") from error
        outdated, self._retired = (
            self._retired,
            tuple(session for session in (self._proxied, self._streams) if session is not None),
        )
        if self._pool is not None:
            self._pool.retire()
        self._pool = self._proxied = self._streams = None
        for session in outdated:
            await session.close()

    async def _respond(self, send: Callable[[Headers], Awaitable[R]], asked: HttpRequest) -> R:
        """Return a successful answer; raise the ApiError of any other. One retry after a 401."""
        if self._closed:
            raise Unavailable("the client is closed")
        connection = self.connection
        is_retry = False
        used: Credential | None = None
        while True:
            if self._plugin is not None:
                await self._use_plugin(self._plugin, refused=used)
                used = self._credential
            token = self._current_token(is_refused=is_retry)
            headers = headers_of(asked, connection, token, self.options.user_agent)
            try:
                async with asyncio.timeout(self.options.request_seconds):
                    answer = await send(headers)
                    if answer.status < 300:
                        return answer
                    whole = (
                        answer if isinstance(answer, HttpResponse) else await self._whole(answer)
                    )
            except _BROKEN as error:
                raise self._api_error(asked, error) from error
            error = error_of(whole, asked.place, self.options)
            has_another = connection.token_file is not None or self._plugin is not None
            if is_retry or not (isinstance(error, Unauthorized) and has_another):
                raise naming_credentials(error, connection)
            is_retry = True

    def _session(self, connections_max: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=connections_max,
            ssl=self._tls or True,
            keepalive_timeout=self.options.keep_seconds,
            socket_factory=self._probing_socket,
        )
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    def _probing_socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(address[0], address[1], address[2])
        self._probe(made)
        return made

    def _probe(self, made: socket.socket) -> None:
        probe(made, dead_peer_seconds=self.options.dead_peer_seconds)

    def _current_token(self, *, is_refused: bool) -> str:
        """Return the token; one of a file is read again at its age, and when it is refused."""
        file = self.connection.token_file
        if file is not None:
            now = asyncio.get_running_loop().time()
            read_at = self._token_read_at
            if is_refused or read_at is None or now - read_at >= self.options.token_seconds:
                try:
                    self._token = read_token(file)
                except KubeconfigError as error:
                    raise Unauthorized(str(error)) from error
                self._token_read_at = now
        return self._token

    def _api_error(self, asked: HttpRequest, error: Exception) -> ApiError:
        """Return the ApiError for what the network or its libraries raised."""
        translated = error
        match error:
            case aiohttp.ConnectionTimeoutError():
                translated = ConnectError()
                translated.__cause__ = TimeoutError()
            case aiohttp.ClientConnectorCertificateError(certificate_error=cause):
                translated = ConnectError()
                translated.__cause__ = cause
            case aiohttp.ClientConnectorError(os_error=cause):
                translated = ConnectError()
                translated.__cause__ = cause
            case aiohttp.InvalidURL():
                translated = HttpRequestError(str(error))
            case _:
                pass
        return network_error(translated, asked.place, self.connection)
