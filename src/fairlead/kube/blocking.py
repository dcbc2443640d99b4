"""HTTP to one API server, blocking: for the command line, which sends a request or two and ends.

What is sent and what an answer means is `protocol.py`, as for the asynchronous client; so a request
has the same bytes, and an answer the same limits and errors, from both senders. asyncio and aiohttp
are not imported: loading aiohttp alone takes longer than `fairlead ps` may.

One connection is kept for requests. A stream has a connection of its own.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec

from fairlead.api.resources import Resource
from fairlead.api.status import ApiError, InternalError, Unavailable
from fairlead.kube.decoding import DecodersByType
from fairlead.kube.http1 import (
    AnswerReader,
    ConnectError,
    HttpRequestError,
    HttpResponse,
    ServerOrigin,
    encode,
)
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.protocol import (
    JSON,
    HttpOptions,
    HttpRequest,
    LineSplitter,
    error_of,
    headers_of,
    naming_credentials,
    network_error,
    steps,
    watch_of,
)
from fairlead.kube.sockets import plain_host, probe, read_token, tls_context
from fairlead.runtime.client import (
    ObjectList,
    Propagation,
    Request,
    RequestVerb,
    WatchEvent,
    WatchRequest,
)

T = TypeVar("T")

RECEIVED_BYTES_MAX = 64 * 1024


class NoAnswer(Unavailable):
    """The server could not be reached, or did not answer; the cause says why."""


class BlockingClient:
    """One server, one identity, one thread. Raises `ApiError` and `KubeconfigError`."""

    def __init__(
        self,
        connection: Connection,
        options: HttpOptions | None = None,
        *,
        connect: Callable[[Connection, HttpOptions], socket.socket] | None = None,
    ) -> None:
        """`options.request_seconds` is how long the server may be silent during a request."""
        self.connection = connection
        self.options = options or HttpOptions()
        self._origin = ServerOrigin.of(connection.server)
        self._connect = connect or connect_to
        self._kept: _Line | None = None
        self._decoders = DecodersByType()

    def close(self) -> None:
        """Close the kept connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def token(self) -> str:
        """Return the bearer token of now, "" for none; KubeconfigError when it cannot be had."""
        if self.connection.exec_plugin is not None:
            self.connection = _with_plugin_credential(self.connection)
        if self.connection.token_file is not None:
            return read_token(self.connection.token_file)
        return self.connection.token.strip()

    # Requests as they are sent

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send one request with a JSON body and return its successful answer."""
        encoded = None if body is None else msgspec.json.encode(body)
        more = tuple((headers or {}).items())
        return self.send(
            HttpRequest(method, quote(path), query, encoded, content_type, headers=more)
        )

    def send(self, asked: HttpRequest) -> HttpResponse:
        """Send one request and return its successful answer."""
        data = self._encode(asked)
        try:
            answer = self._exchange(asked.method, data)
        except OSError as error:
            raise self._no_answer(asked, error) from error
        if answer.status >= 300:
            raise self.refusal(asked, answer)
        return answer

    def chunks(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of a successful answer as they come; see `stream`."""
        more = tuple((headers or {}).items())
        return self.stream(HttpRequest("GET", quote(path), query, headers=more))

    def lines(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        """Yield the lines of a successful answer without their ends; see `stream`."""
        return self._lines(self.chunks(path, query, headers=headers))

    def stream(
        self, asked: HttpRequest, *, timeout_seconds: float | None = None
    ) -> Iterator[bytes]:
        """Yield a streamed answer's bytes as they come, over a connection of its own.

        Ends when the server ends it; Unavailable when the stream broke; TimeoutError when nothing
        came for `timeout_seconds` (None: wait for ever).
        """
        data = self._encode(asked)
        line: _Line | None = None
        try:
            try:
                line = self._open()
                parts = line.parts(data)
                first = next(parts)
                if first.status >= 300:
                    raise self.refusal(asked, _joined(first, parts, self.options.error_bytes_max))
            except OSError as error:
                raise self._no_answer(asked, error) from error
            line.wait_at_most(timeout_seconds)
            yield first.body
            for part in parts:
                yield part.body
        except TimeoutError:
            raise
        except OSError as error:
            raise Unavailable(f"the stream broke: {error}") from error
        finally:
            if line is not None:
                line.close()

    # Typed requests

    def call(self, request: Request[T]) -> T:
        """Send a request, as several where the API has no such one."""
        asking = steps(request, self._decoders.of(request.resource), self.options.page_size)
        try:
            asked = next(asking)
            while True:
                try:
                    body = self.send(asked).body
                except ApiError as error:
                    asked = asking.throw(error)
                else:
                    asked = asking.send(body)
        except StopIteration as end:
            return end.value

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return one object; NotFound."""
        return self.call(Request(RequestVerb.GET, resource, namespace, name))

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[T, ...]:
        """Return all matching objects; InternalError when one of them cannot be decoded."""
        request: Request[ObjectList[T]] = Request(
            RequestVerb.LIST, resource, namespace,
            label_selector=label_selector, field_selector=field_selector,
        )  # fmt: skip
        found = self.call(request)
        for bad in found.unreadable:
            name = "/".join(filter(None, bad.metadata.key))
            raise InternalError(f"{resource.kind} {name} cannot be decoded: {bad.why}")
        return found.items

    def create(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
    ) -> T:
        """Create an object and return it as stored; AlreadyExists, Invalid, Forbidden."""
        return self.call(
            Request(RequestVerb.CREATE, resource, namespace, body=body, dry_run=dry_run)
        )

    def patch(
        self, resource: Resource[T], name: str, patch: Mapping[str, Any], *, namespace: str = ""
    ) -> T:
        """Merge-patch an object and return it; NotFound, Conflict, Invalid."""
        return self.call(Request(RequestVerb.PATCH, resource, namespace, name, body=patch))

    def delete(self, resource: Resource[Any], name: str, *, namespace: str = "") -> None:
        """Delete an object, dependents in the background; NotFound."""
        background = Propagation.BACKGROUND
        request: Request[None] = Request(
            RequestVerb.DELETE, resource, namespace, name, propagation=background
        )
        self.call(request)

    def watch_one(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str,
        resource_version: str,
        timeout_seconds: float | None = None,
    ) -> Iterator[WatchEvent[T]]:
        """Yield the changes of one object, and bookmarks, until the server ends the watch.

        Expired when the version is too old; Unavailable when the stream broke; TimeoutError when
        nothing, not even a bookmark, came for `timeout_seconds`.
        """
        selector = f"metadata.name={name}"
        request = WatchRequest(resource, resource_version, namespace, field_selector=selector)
        decoders = self._decoders.of(resource)
        chunks = self.stream(watch_of(request), timeout_seconds=timeout_seconds)
        for line in self._lines(chunks):
            yield decoders.event(line)

    # Inside

    def _lines(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        splitter = LineSplitter(self.options.watch_line_bytes_max)
        for chunk in chunks:
            yield from splitter.feed(chunk)
        rest = splitter.end()
        if rest:
            yield rest

    def _encode(self, asked: HttpRequest) -> bytes:
        token = self.token()
        headers = headers_of(asked, self.connection, token, self.options.user_agent)
        try:
            return encode(asked.method, asked.target, headers, origin=self._origin, body=asked.body)
        except HttpRequestError as error:
            raise network_error(error, asked.place, self.connection) from error

    def _open(self) -> _Line:
        made = self._connect(self.connection, self.options)
        return _Line(made, self.options.answer_bytes_max)

    def _exchange(self, method: str, data: bytes) -> HttpResponse:
        kept, self._kept = self._kept, None
        if kept is not None and kept.is_silent():
            try:
                return self._answer(kept, data)
            except OSError as error:
                # The server may have closed it while our request was on its way.
                if method != "GET" or kept.has_begun or isinstance(error, TimeoutError):
                    raise
        elif kept is not None:
            kept.close()
        return self._answer(self._open(), data)

    def _answer(self, line: _Line, data: bytes) -> HttpResponse:
        try:
            answer = line.exchange(data)
        except BaseException:
            line.close()
            raise
        if line.is_reusable:
            self._kept = line
        else:
            line.close()
        return answer

    def refusal(self, asked: HttpRequest, answer: HttpResponse) -> ApiError:
        """Return the error for an answer that is no success."""
        error = error_of(answer, asked.place, self.options)
        return naming_credentials(error, self.connection)

    def _no_answer(self, asked: HttpRequest, error: OSError) -> NoAnswer:
        return NoAnswer(network_error(error, asked.place, self.connection).message)


class _Line:
    """One connection. It carries one request at a time."""

    def __init__(self, made: socket.socket, body_bytes_max: int) -> None:
        #: True when something of the current answer has come.
        self.has_begun = False
        self._socket = made
        self._reader = AnswerReader(body_bytes_max)

    @property
    def is_reusable(self) -> bool:
        """False when the connection may carry no other request."""
        return self._reader.is_reusable

    def is_silent(self) -> bool:
        """True when nothing came that was not asked for, the end of the connection included."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        is_read = not isinstance(self._socket, ssl.SSLSocket) or self._socket.pending() == 0
        return is_read and not poll.poll(0)

    def exchange(self, data: bytes) -> HttpResponse:
        """Send a request and return its answer; OSError."""
        self._send(data)
        while True:
            answer = self._receive()
            if answer is not None:
                return answer

    def parts(self, data: bytes) -> Iterator[HttpResponse]:
        """Send a request and yield its answer in parts as they come, each with the head."""
        self._send(data)
        while True:
            end = self._receive()
            part = self._reader.take() if end is None else end
            if part is not None:
                yield part
            if end is not None:
                return

    def wait_at_most(self, seconds: float | None) -> None:
        """Wait so long for the next bytes; None: for ever."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        self.has_begun = False
        self._socket.sendall(data)

    def _receive(self) -> HttpResponse | None:
        received = self._socket.recv(RECEIVED_BYTES_MAX)
        if not received:
            return self._reader.end()
        self.has_begun = True
        return self._reader.feed(received)


def connect_to(connection: Connection, options: HttpOptions) -> socket.socket:
    """Return a new connection to the server; ConnectError with its cause, KubeconfigError."""
    if connection.proxy_url:
        raise KubeconfigError(
            f"{connection.source} uses proxy-url, which the command line does not support"
        )
    origin = ServerOrigin.of(connection.server)
    tls = tls_context(connection) if connection.server.startswith("https:") else None
    try:
        address = cast("str", plain_host(origin.host)), origin.port  # bytes may be given, too
        made = socket.create_connection(address, options.connect_seconds)
        probe(made, dead_peer_seconds=options.dead_peer_seconds)
        if tls is not None:
            name = connection.server_name or origin.host
            made = tls.wrap_socket(made, server_hostname=plain_host(name))
        made.settimeout(options.request_seconds)
    except OSError as error:  # TimeoutError is one
        raise ConnectError(str(error)) from error
    return made


def _with_plugin_credential(connection: Connection) -> Connection:
    from fairlead.kube.exec_auth import run_plugin  # needs asyncio

    credential = run_plugin(connection)
    return replace(
        connection,
        exec_plugin=None,
        token=credential.token,
        client_certificate=credential.certificate.encode(),
        client_key=credential.key.encode(),
    )


def _joined(first: HttpResponse, rest: Iterator[HttpResponse], bytes_max: int) -> HttpResponse:
    """Return an answer that comes in parts, with at most about `bytes_max` of its body."""
    body = first.body
    while len(body) < bytes_max and (part := next(rest, None)) is not None:
        body += part.body
    return replace(first, body=body)
