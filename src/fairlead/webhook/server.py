"""The webhook's HTTPS server: what it takes from strangers is bounded in size, number and time.

Any client that reaches the port can talk to it, since an API server does not say who it is. So
nothing is disclosed that the caller does not know, and nothing grows with what is sent:
connections, bodies being read and their bytes have limits, and so has the time that a body may
take. The work between a body and its answer is done at once, by `answers`. Reviews that a user has
an API server forward, by its service proxy, are refused: that way is for the questions of users.

A new certificate is loaded into the context that the listener uses: handshakes from then on show
it, connections that stand go on. So a rotation loses no request. What does not fit together is
refused before it gets there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry, Gauge, Histogram

from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.outside.connections import ConnectionLimits, Connections
from fairlead.webhook.answers import AdmissionAnswers, HttpAnswer, RequestOutcome, failed, path_of
from fairlead.webhook.certificates import Pair, validity_of
from fairlead.webhook.configuration import Path
from fairlead.webhook.tls import load_pair, server_context

#: An API server's proxy adds it to what it forwards; its own reviews have none.
FORWARDED = "X-Forwarded-For"
Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class WebhookServerLimits:
    """Bounds. An API server sends at most a few hundred requests at a time, of 3 MiB and a half."""

    body_bytes_max: int = 8 << 20
    #: Of all bodies that are being read, together.
    bodies_bytes_max: int = 128 << 20
    requests_max: int = 1024
    #: For a body to come in; below the shortest time that a configuration gives us.
    body_seconds_max: float = 1.5
    #: How long a refused body is still read, so that its answer is seen.
    linger_seconds: float = 1.0
    #: Longer than API servers keep an idle connection (90 s), so that they close it, not we.
    keepalive_seconds: float = 120.0
    stop_seconds_max: float = 2.0
    connections: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(2048, 1024, stranger_seconds_max=5.0)
    )


_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class WebhookMetrics:
    """Requests by path and outcome with their time, and until when the certificate is valid."""

    def __init__(self, registry: CollectorRegistry, ends_at: Callable[[], float]) -> None:
        """Register the series; `ends_at` is asked at each scrape, 0 for no certificate."""
        self._requests = Histogram(
            "fairlead_webhook_request_duration_seconds",
            "Time from the request's head to its answer.",
            ["path", "outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        expiry = Gauge(
            "fairlead_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends; 0 without one.",
            registry=registry,
        )
        expiry.set_function(ends_at)

    def answered(self, path: Path, outcome: RequestOutcome, seconds: float) -> None:
        """Note one answer."""
        self._requests.labels(path.name.lower(), outcome.value).observe(seconds)


class _NotRead(Exception):
    """A body that is not read to its end; carries the answer."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.outcome.value)
        self.answer = answer


class WebhookServer:
    """Serves once it has been given a certificate; until then handshakes fail."""

    def __init__(
        self,
        answers: AdmissionAnswers,
        *,
        limits: WebhookServerLimits | None = None,
        log: Logger = SILENT,
        others: Mapping[str, Handler] | None = None,
    ) -> None:
        """`others` answer the requests below a path; they say themselves what is wrong."""
        self._answers = answers
        self._others = dict(others or {})
        self._metrics: WebhookMetrics | None = None
        self._limits = limits or WebhookServerLimits()
        self._log = log
        self._context = server_context()
        self._ends_at = 0.0
        self._requests_count = 0
        self._held_bytes = 0
        self._is_leaving = False

    @property
    def ends_at(self) -> float:
        """When the served certificate ends; 0 without one."""
        return self._ends_at

    def measure(self, metrics: WebhookMetrics) -> None:
        """Report every answer from now on."""
        self._metrics = metrics

    def use(self, pair: Pair) -> None:
        """Show this certificate from now on; BadCertificate, and the old one stays."""
        load_pair(self._context, pair)
        life = validity_of(pair)
        self._ends_at = life.ends_at
        self._log.info("Serving certificate", ends_at=life.ends_at)

    @asynccontextmanager
    async def listening(
        self, host: str, port: int, *, linger_seconds: float = 0.0
    ) -> AsyncGenerator[int]:
        """Serve until the end of the block, then `linger_seconds` more; yields the port. OSError.

        Clients that still ask in that time get `Connection: close` and hence find another
        replica the next time.
        """
        limits = self._limits

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connections.settle(request.transport)  # its request's head has come
            with connections.answering(request.transport):
                return await self._handle(request)

        server = web.Server(
            handle, access_log=None, auto_decompress=False,
            keepalive_timeout=limits.keepalive_seconds, lingering_time=limits.linger_seconds,
        )  # fmt: skip
        connections = Connections(server, limits.connections, self._context)
        try:
            async with connections.listening(host, port) as bound:
                yield bound
                self._is_leaving = True
                await asyncio.sleep(linger_seconds)
        finally:
            server.pre_shutdown()
            await server.shutdown(limits.stop_seconds_max)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        for prefix, handler in self._others.items():
            if request.path.startswith(prefix):
                return await handler(request)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        path = path_of(request.path)
        try:
            answer = await self._answer(request, path)
        except Exception as error:  # noqa: BLE001 # the one place where faults of ours are caught
            self._log.error("Webhook fault", path=path.value, exc_info=error)
            answer = failed(RequestOutcome.FAULT, 500, "a fault of fairlead; its log says more")
        if self._metrics is not None:
            self._metrics.answered(path, answer.outcome, loop.time() - began_at)
        response = web.Response(
            body=answer.body, status=answer.status, content_type=answer.content_type
        )
        if self._is_leaving or answer.status != 200:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest, path: Path) -> HttpAnswer:
        limits = self._limits
        if path is not Path.OTHER and request.method != "POST":
            return failed(RequestOutcome.MALFORMED, 405, "accepted: POST")
        if path is not Path.OTHER and FORWARDED in request.headers:
            return failed(
                RequestOutcome.MALFORMED, 403, "accepted: reviews of API servers themselves"
            )
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return failed(
                RequestOutcome.MALFORMED, 415, "accepted: bodies without Content-Encoding"
            )
        if self._requests_count >= limits.requests_max:
            return failed(
                RequestOutcome.OVERLOADED, 503, f"{limits.requests_max} requests at a time"
            )
        self._requests_count += 1
        try:
            body = b"" if path is Path.OTHER else await self._read(request)
        except _NotRead as error:
            outcome = error.answer.outcome.value
            self._log.warning("Review not read", path=path.value, outcome=outcome)
            return error.answer
        finally:
            self._requests_count -= 1
        return self._answers.answer(path, body)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Return the body; _NotRead when it is too long, comes too slowly, or breaks off."""
        limits = self._limits
        most = limits.body_bytes_max
        too_large = failed(
            RequestOutcome.TOO_LARGE, 413, f"accepted: bodies of {most} bytes at most"
        )
        if (request.content_length or 0) > most:
            raise _NotRead(too_large)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_seconds_max):
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    self._held_bytes += len(chunk)
                    if size > most:
                        raise _NotRead(too_large)
                    if self._held_bytes > limits.bodies_bytes_max:
                        raise _NotRead(
                            failed(RequestOutcome.OVERLOADED, 503, "too many bodies at a time")
                        )
                    chunks.append(chunk)
        except TimeoutError as error:
            message = f"the body did not come within {limits.body_seconds_max:g} s"
            raise _NotRead(failed(RequestOutcome.TIMED_OUT, 408, message)) from error
        except (ConnectionError, ClientError, HttpProcessingError) as error:
            raise _NotRead(failed(RequestOutcome.MALFORMED, 400, "the body broke off")) from error
        finally:
            self._held_bytes -= size
        return b"".join(chunks)
