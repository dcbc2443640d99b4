"""The API server's front: sockets, who may come in, how many at once, and which part answers.

It is aiohttp's low-level server with a router of our own (the framework's application layer costs
as much as the request itself). Every request passes the same few steps: path, token, admission by
number, answer, and one place where errors become a `Status`.

The token comes as `Authorization: Bearer` and in no other way: a browser never sends it by itself,
so no page of another site can act with it. A request that says it comes from one (`Origin`) is
refused anyway. kubectl and all of client-go send a token only over TLS; so `fairlead up` serves it.

A connection is settled once a request on it has shown the token (`runtime.connections`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from fairlead.api.status import (
    ApiError,
    Forbidden,
    InternalError,
    MethodNotAllowed,
    StatusDetails,
    TooManyRequests,
    Unauthorized,
)
from fairlead.embedded.http.answering.broadcast import Broadcaster, WatchLimits
from fairlead.embedded.http.answering.respond import error_answer, text_answer
from fairlead.embedded.http.answering.watching import Watching
from fairlead.embedded.http.documents import Documents
from fairlead.embedded.http.metrics import INFOS as METRICS
from fairlead.embedded.http.metrics import MetricsSource
from fairlead.embedded.http.request import (
    BodyLimits,
    PathNotFound,
    Query,
    ResourcePath,
    resource_path,
    split_path,
)
from fairlead.embedded.http.resources import STREAMS, Resources
from fairlead.embedded.http.streams.logs import LogSource
from fairlead.embedded.http.streams.pod_streams import StreamSource
from fairlead.embedded.http.streams.podlogs import PodLogs
from fairlead.embedded.http.streams.stream_answers import PodStreams
from fairlead.embedded.http.webhook_caller import calling_webhooks
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import Clock, SystemClock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.outside.connections import ConnectionLimits, Connections

#: Answers one request; raises ApiError for what goes wrong.
Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_LOGGER = logging.getLogger(__name__)
_OPEN_PATHS = frozenset(("/healthz", "/livez", "/readyz", "/version"))
_HEALTH_PATHS = frozenset(("healthz", "livez", "readyz"))
#: Addresses to listen on that are none to connect to, and what to connect to instead.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 # not to listen on


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the server. Watches and followed logs do not count as requests in flight."""

    body: BodyLimits = field(default_factory=BodyLimits)
    watch: WatchLimits = field(default_factory=WatchLimits)
    requests_in_flight_max: int = 1024
    streams_max: int = 12_000
    keepalive_seconds: float = 180.0
    linger_seconds: float = 2.0  # how long a refused body is still read, so that its 413 is seen
    stop_seconds_max: float = 5.0
    connections: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(16_384, 512, backlog_max=4096)
    )


class _ClientsFault(logging.Filter):
    """Drops what the protocol layer logs of clients' faults, each with a traceback of ours:

    requests that are no HTTP (they got their 400), and clients that have gone in mid-request.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        info: object = record.exc_info
        if not isinstance(info, tuple):
            return True
        error: BaseException | TracebackType | type[BaseException] | None = info[1]
        return not isinstance(error, (HttpProcessingError, ConnectionError))


class Server:
    """A running API server. `url` is what goes into a kubeconfig.

    `extensions` serve path prefixes, behind the same token: "/fairlead/v1" covers itself and all
    below it; "/metrics" is one of them. `not_ready` names the parts of the process that do not work
    now, for /readyz.
    """

    connections: Connections

    def __init__(
        self,
        service: ApiService,
        token: str,
        *,
        extensions: Mapping[str, Handler],
        logs: LogSource | None,
        streams: StreamSource | None,
        metrics: MetricsSource | None,
        not_ready: Callable[[], Sequence[str]],
        limits: ServerLimits,
        clock: Clock,
        log: Logger,
    ) -> None:
        self.host = ""
        self.port = 0
        self._scheme = "http"
        self.limits = limits
        self.broadcaster = Broadcaster(
            service.registry, lambda: service.store.version, limits.watch
        )
        self.in_flight = 0
        self._credentials = b"Bearer " + token.encode()
        self._extensions = extensions
        self._not_ready = not_ready
        self._streams = 0
        self._is_stopping = False
        self._resources = Resources(
            service,
            watching=Watching(service, self.broadcaster, clock),
            logs=PodLogs(logs, clock, lambda: self._is_stopping),
            streams=PodStreams(streams, logs, lambda: self._is_stopping, log=log),
            clock=clock,
            limits=limits.body,
            metrics=metrics,
        )
        self._also = METRICS if metrics is not None else ()
        self._registry = service.registry
        self._documents: Documents | None = None

    @property
    def url(self) -> str:
        """`https://127.0.0.1:6443`: where clients on this machine reach it."""
        return f"{self._scheme}://{self._address}"

    @property
    def _address(self) -> str:
        host = _WILDCARDS.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self.port}"

    def listens_on(self, host: str, port: int, *, scheme: str) -> None:
        """Tell the server its address, which some documents hold."""
        self.host, self.port, self._scheme = host, port, scheme
        self._documents = Documents(self._registry, self._address, self._also)

    def stop(self) -> None:
        """End streams, and answer no new ones."""
        self._is_stopping = True
        self.broadcaster.stop()

    async def handle(
        self, request: web.BaseRequest, settle: Callable[[], None]
    ) -> web.StreamResponse:
        """Answer one request, whatever it is: this is the server's top.

        `settle` is called when it has shown the token.
        """
        try:
            return await self._answer(request, settle)
        except ApiError as error:
            return error_answer(error)
        except ConnectionError:
            raise  # the client has gone; aiohttp ends the connection quietly
        except Exception:  # the top-level place: a fault of ours must not take the server along
            _LOGGER.exception("fault while answering %s %s", request.method, request.path)
            return error_answer(InternalError("an error on the server; its log says more"))

    async def _answer(
        self, request: web.BaseRequest, settle: Callable[[], None]
    ) -> web.StreamResponse:
        path, _, raw_query = request.raw_path.partition("?")
        if path not in _OPEN_PATHS:
            self._authenticate(request)
            settle()
        segments = split_path(path)
        target = resource_path(segments)
        query = Query(raw_query)
        query.check_timeout()
        if target is not None and _is_stream(target, query):
            return await self._stream(request, target, query)
        if self.in_flight >= self.limits.requests_in_flight_max:
            raise TooManyRequests(
                f"{self.limits.requests_in_flight_max} requests are in flight, the server's limit",
                details=StatusDetails(retry_after_seconds=1),
            )
        self.in_flight += 1
        try:
            if target is not None:
                return await self._resources.answer(request, target, query)
            return await self._other(request, segments)
        finally:
            self.in_flight -= 1

    async def _stream(
        self, request: web.BaseRequest, target: ResourcePath, query: Query
    ) -> web.StreamResponse:
        if self._streams >= self.limits.streams_max:
            raise TooManyRequests(
                f"{self.limits.streams_max} streams are open, the server's limit",
                details=StatusDetails(retry_after_seconds=5),
            )
        self._streams += 1
        try:
            return await self._resources.answer(request, target, query)
        finally:
            self._streams -= 1

    def _authenticate(self, request: web.BaseRequest) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._credentials):
            raise Unauthorized("Unauthorized")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
            raise Forbidden("requests from pages of other sites are not accepted")

    async def _other(self, request: web.BaseRequest, segments: list[str]) -> web.StreamResponse:
        if segments[0] in _HEALTH_PATHS and len(segments) == 1:
            return self._health(segments[0])
        handler = self._extension(segments)
        if handler is not None:
            return await handler(request)
        if self._documents is None:
            raise PathNotFound("404 page not found")
        if request.method not in ("GET", "HEAD"):
            self._documents.answer(request, segments)  # 404 comes before 405
            raise MethodNotAllowed(f"{request.method} is not supported here: only GET is")
        return self._documents.answer(request, segments)

    def _health(self, probe: str) -> web.Response:
        """Answer as kube-apiserver does: alive while it answers, ready while all parts work."""
        failing = self._not_ready() if probe == "readyz" else ()
        if not failing:
            return text_answer("ok")
        lines = "".join(f"[-]{name} failed: reason withheld\n" for name in failing)
        return text_answer(f"[+]ping ok\n{lines}{probe} check failed\n", 500)

    def _extension(self, segments: list[str]) -> Handler | None:
        for prefix, handler in self._extensions.items():
            wanted = prefix.strip("/").split("/")
            if segments[: len(wanted)] == wanted:
                return handler
        return None


def _is_stream(path: ResourcePath, query: Query) -> bool:
    """True when the answer to what is asked for may never end."""
    if path.subresource == "log":
        return query.flag("follow")
    if path.subresource in STREAMS:
        return True
    return not path.name and query.flag("watch")


def _protocol_logger() -> logging.Logger:
    quiet = logging.getLogger(f"{__name__}.protocol")
    if not quiet.filters:
        quiet.addFilter(_ClientsFault())
    return quiet


@asynccontextmanager
async def serve(
    service: ApiService,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    extensions: Mapping[str, Handler] | None = None,
    logs: LogSource | None = None,
    streams: StreamSource | None = None,
    metrics: MetricsSource | None = None,
    not_ready: Callable[[], Sequence[str]] = tuple,
    limits: ServerLimits | None = None,
    clock: Clock | None = None,
    tls: ssl.SSLContext | None = None,
    log: Logger = SILENT,
) -> AsyncGenerator[Server]:
    """Serve the API until the block is left; then end watches cleanly and close connections.

    `Server` says what `extensions` and `not_ready` are. Without `metrics` there is no group
    metrics.k8s.io. Port 0 takes a free one. `log` gets each session with a pod. OSError when
    the address cannot be had (in use, not ours).
    """
    limits = limits or ServerLimits()
    server = Server(
        service, token, extensions=extensions or {}, logs=logs, streams=streams, metrics=metrics,
        not_ready=not_ready, limits=limits, clock=clock or SystemClock(), log=log,
    )  # fmt: skip

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        with connections.answering(transport):
            return await server.handle(request, lambda: connections.settle(transport))

    protocol = web.Server(
        handle,
        access_log=None,
        keepalive_timeout=limits.keepalive_seconds,
        lingering_time=limits.linger_seconds,
        auto_decompress=False,
        max_line_size=32 * 1024,
        logger=_protocol_logger(),
    )
    server.connections = connections = Connections(protocol, limits.connections, tls)
    unsubscribe = service.store.subscribe(server.broadcaster.publish)
    try:
        async with connections.listening(host, port) as bound:
            server.listens_on(host, bound, scheme="http" if tls is None else "https")
            async with calling_webhooks(service), asyncio.TaskGroup() as group:
                sweeping = group.create_task(server.broadcaster.run())
                try:
                    yield server
                finally:
                    sweeping.cancel()
    finally:
        unsubscribe()
        server.stop()
        protocol.pre_shutdown()  # idle connections go now, others after their answer
        await protocol.shutdown(limits.stop_seconds_max)
