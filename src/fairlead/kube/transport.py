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
import os
import socket
import ssl
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from fairlead.api.status import (
    ApiError,
    BadRequest,
    Status,
    StatusDetails,
    Timeout,
    Unauthorized,
    Unavailable,
    error_from_status,
)
from fairlead.kube.exec_auth import Credential, PluginCredentials, PluginError
from fairlead.kube.http1 import Answer, ConnectError, RequestError
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.pool import Http1Options, Http1Pool
from fairlead.runtime.clock import SystemClock

R = TypeVar("R", Answer, aiohttp.ClientResponse)

JSON = "application/json"
_STATUS = msgspec.json.Decoder(Status)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: What goes wrong between us and a server, as the libraries raise it.
_BROKEN = (TimeoutError, aiohttp.ClientError, OSError, RequestError)
_GRACE_SECONDS = 30.0  # for a server to end a stream that it was asked to end


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Limits of the HTTP client."""

    connections_max: int = 64
    streams_max: int = 64
    connect_seconds: float = 10.0
    #: A request with its whole answer; for streams: until the answer begins.
    #: A server carries writes no further than 34 s (apiserver `endpoints/handlers/rest.go`).
    request_seconds: float = 30.0
    #: A stream that brought nothing for this long is given up. Watches get a bookmark about every
    #: minute (apiserver `storage/cacher`), so one that is silent for longer leads nowhere.
    stream_idle_seconds: float = 180.0
    #: A peer that acknowledges nothing for this long is gone, whatever we wait for.
    dead_peer_seconds: int = 30
    #: A connection that is not used for so long is closed; servers do so after 90 s (apiserver
    #: `server/secure_serving.go`), load balancers often after 60 s. A new one costs a handshake.
    keep_seconds: float = 50.0
    #: How long a token that was read from a file is good.
    token_seconds: float = 60.0
    #: Objects per page of a list.
    page_size: int = 500
    watch_line_bytes_max: int = 64 << 20
    #: Of one answer that is read whole, also when it comes compressed.
    answer_bytes_max: int = 256 << 20
    error_bytes_max: int = 1 << 20
    user_agent: str = "fairlead"


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
        self._is_near = urlsplit(connection.server).hostname in _LOOPBACK
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
        headers = self._headers(accept)
        if body is not None:
            headers["Content-Type"] = content_type
        target = self._target(path, params)
        send = self._send_by_proxy if self.connection.proxy_url else self._send
        answer = await self._respond(
            lambda: send(method, target, headers, body), headers, method, path
        )
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
        headers = self._headers(accept)
        url = URL(self.connection.server + self._target(path, params), encoded=True)
        response = await self._respond(
            lambda: self._ask(self._stream_session(), method, url, headers, limits=limits),
            headers, method, path,
        )  # fmt: skip
        try:
            async with response:
                async for chunk in response.content.iter_any():
                    yield chunk
        except _BROKEN as error:
            raise self._api_error(method, path, error) from error

    async def close(self) -> None:
        """Close all connections; further calls raise `Unavailable`."""
        self._closed = True
        if self._pool is not None:
            self._pool.retire()
        for session in (self._proxied, self._streams, *self._retired):
            if session is not None:
                await session.close()

    # Inside

    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        if self._pool is None:
            options = Http1Options(
                self.options.connections_max, self.options.connect_seconds,
                self.options.answer_bytes_max, self.options.keep_seconds, self._probe,
            )  # fmt: skip
            connection = self.connection
            self._pool = Http1Pool(connection.server, self._tls, options, connection.server_name)
        return await self._pool.request(method, target, headers.items(), body)

    async def _send_by_proxy(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        if self._proxied is None:
            self._proxied = self._session(self.options.connections_max)
        url = URL(self.connection.server + target, encoded=True)
        limits = aiohttp.ClientTimeout(sock_connect=self.options.connect_seconds)
        response = await self._ask(self._proxied, method, url, headers, body=body, limits=limits)
        return await self._whole(response)

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        *,
        body: bytes | None = None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        return await session.request(
            method,
            url,
            data=body,
            headers=headers,
            allow_redirects=False,
            proxy=self.connection.proxy_url or None,
            server_hostname=self.connection.server_name or None,
            timeout=limits,
        )

    async def _whole(self, response: aiohttp.ClientResponse) -> Answer:
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
        return Answer(response.status, response.reason or "", headers, b"".join(parts))

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

    async def _respond(
        self,
        send: Callable[[], Awaitable[R]],
        headers: CIMultiDict[str],
        method: str,
        path: str,
    ) -> R:
        """Return a successful answer; raise the ApiError of any other. One retry after a 401."""
        anew = False
        used: Credential | None = None
        while True:
            if self._plugin is not None:
                await self._use_plugin(self._plugin, refused=used)
                used = self._credential
            self._authorize(headers, anew=anew)
            try:
                async with asyncio.timeout(self.options.request_seconds):
                    answer = await send()
                    if answer.status < 300:
                        return answer
                    whole = answer if isinstance(answer, Answer) else await self._whole(answer)
            except _BROKEN as error:
                raise self._api_error(method, path, error) from error
            error = self._error(whole, f"{method} {path}")
            has_another = self.connection.token_file is not None or self._plugin is not None
            can_retry = isinstance(error, Unauthorized) and has_another
            if anew or not can_retry:
                raise self._naming_credentials(error)
            anew = True

    def _naming_credentials(self, error: ApiError) -> ApiError:
        """Say of a 401, which says nothing, whose credentials they were."""
        if not isinstance(error, Unauthorized):
            return error
        connection = self.connection
        if connection.token_file is not None:
            what = f"token file {connection.token_file}"
        elif connection.exec_plugin is not None:
            what = f"credential plugin {connection.exec_plugin.command}"
        else:
            what = connection.source
        text = f"{connection.server} does not accept the credentials of {what}: {error.message}"
        return Unauthorized(text, details=error.status.details)

    def _target(self, path: str, params: Mapping[str, str] | None) -> str:
        if self._closed:
            raise Unavailable("the client is closed")
        return f"{path}{'&' if '?' in path else '?'}{urlencode(params)}" if params else path

    def _headers(self, accept: str) -> CIMultiDict[str]:
        return CIMultiDict(
            {
                "User-Agent": self.options.user_agent,
                "Accept": accept,
                # Compressing costs more than it saves where there is no network.
                "Accept-Encoding": "identity" if self._is_near else "gzip",
            }
        )

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

    def _authorize(self, headers: CIMultiDict[str], *, anew: bool) -> None:
        file = self.connection.token_file
        if file is not None:
            now = asyncio.get_running_loop().time()
            read_at = self._token_read_at
            if anew or read_at is None or now - read_at >= self.options.token_seconds:
                self._token = self._read_token(file)
                self._token_read_at = now
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self.connection.impersonate_user:
            headers["Impersonate-User"] = self.connection.impersonate_user
            headers.popall("Impersonate-Group", [])
            for group in self.connection.impersonate_groups:
                headers.add("Impersonate-Group", group)

    def _read_token(self, file: Path) -> str:
        try:
            return file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unauthorized(f"token file {file} cannot be read: {error}") from error

    def _error(self, answer: Answer, place: str) -> ApiError:
        """Return the exception for an answer that is no success."""
        body = answer.body[: self.options.error_bytes_max]
        try:
            status = _STATUS.decode(body)
        except msgspec.MsgspecError:
            status = Status()
        if status.code == 0 or not status.message:
            status = _plain_status(answer, place, body)
        header = answer.headers.get("retry-after", "")
        details = status.details or StatusDetails()
        if header.isdigit() and not details.retry_after_seconds:
            details = msgspec.structs.replace(details, retry_after_seconds=int(header))
            status = msgspec.structs.replace(status, details=details)
        return error_from_status(status)

    def _api_error(self, method: str, path: str, error: Exception) -> ApiError:
        """Return the ApiError for what the network or its libraries raised."""
        server = self.connection.server
        match error:
            case aiohttp.ConnectionTimeoutError() | ConnectError(__cause__=TimeoutError()):
                return Unavailable(f"cannot reach {server}: no connection in time")
            case TimeoutError():
                return Timeout(f"{method} {path}: no answer from {server} in time")
            case aiohttp.InvalidURL() | RequestError():
                return BadRequest(f"{method} {path}: not to be sent: {error}")
            case (
                aiohttp.ClientConnectorCertificateError(certificate_error=cause)
                | ConnectError(__cause__=ssl.SSLCertVerificationError() as cause)
            ):
                return Unavailable(
                    f"{server}: its certificate is not trusted: {cause}; "
                    f"see {self.connection.source}"
                )
            case (
                aiohttp.ClientConnectorError(os_error=cause)
                | ConnectError(__cause__=OSError() as cause)
            ):
                return Unavailable(f"cannot reach {server}: {_reason(cause)}")
            case _:
                return Unavailable(f"{method} {path}: the connection to {server} broke: {error}")


def _reason(error: OSError) -> str:
    """Return the system's words, which libraries replace by their own."""
    number = 0 if isinstance(error, ssl.SSLError) else error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def probe(made: socket.socket, *, dead_peer_seconds: int) -> None:
    """Have a socket ask a silent peer for a sign of life (Linux tcp(7)).

    A machine that lost its power sends no word of it: without this a watch would wait for it until
    its own time is over.
    """
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    step = max(1, dead_peer_seconds // 6)
    values = {
        "TCP_KEEPIDLE": 3 * step, "TCP_KEEPINTVL": step, "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * dead_peer_seconds,
    }  # fmt: skip
    for name, value in values.items():
        option: int | None = getattr(socket, name, None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)


def _plain_status(answer: Answer, place: str, body: bytes) -> Status:
    """Return a Status for an answer without one (a proxy's, a load balancer's)."""
    text = " ".join(body[:200].decode(errors="replace").split())
    code = answer.status
    reason = {408: "Timeout", 502: "ServiceUnavailable"}.get(code, "")
    if not reason and code >= 500 and code not in (500, 503, 504):
        reason = "InternalError"
    if 300 <= code < 400:
        text = f"redirects are not followed (to {answer.headers.get('location', '?')})"
    return Status(message=f"{place}: {code} {answer.reason}: {text}", reason=reason, code=code)


def tls_context(connection: Connection) -> ssl.SSLContext:
    """Return the TLS settings of a connection; KubeconfigError when certificates are unusable."""
    try:
        authority = connection.certificate_authority.decode("ascii") or None
        context = ssl.create_default_context(cadata=authority)
        if connection.skip_server_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if connection.client_certificate:
            with tempfile.NamedTemporaryFile() as file:  # 0600; ssl reads files only
                file.write(connection.client_certificate + b"\n" + connection.client_key)
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise KubeconfigError(
            f"{connection.source}: a certificate or key is not usable PEM: {error}"
        ) from error
    return context
