"""The Kubernetes API over HTTP, without I/O: what is sent, and what an answer means.

Two senders use it: `transport.py`, asynchronous, below the controllers' client, and `blocking.py`,
below the command line. Both send the same bytes for the same request, page through lists, decode
and raise alike, since all of it is written here.

`steps` turns a typed request into HTTP requests: a generator that yields them one by one, takes
each answer's body, and returns the answer to the typed request. Its driver is a loop of six lines
in either world.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from fairlead.api.meta import ObjectMeta, OnlyMetadata, to_wire
from fairlead.api.resources import Resource
from fairlead.api.status import (
    ApiError,
    BadRequest,
    Expired,
    InternalError,
    Status,
    StatusDetails,
    Timeout,
    Unauthorized,
    Unavailable,
    error_from_status,
)
from fairlead.kube.decoding import Decoders
from fairlead.kube.http1 import ConnectError, HttpRequestError, HttpResponse
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import ObjectList, Request, RequestVerb, Unreadable, WatchRequest

JSON = "application/json"
_ONLY_METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
_STATUS = msgspec.json.Decoder(Status)
#: Besides letters and digits (RFC 9110, section 5.6.2); "%" is missing, as it escapes the others.
_HEADER_NAME_CHARACTERS = "!#$&'*+-.^_`|~"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Limits of an HTTP client."""

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


class HttpRequest(msgspec.Struct, frozen=True):
    """A request to a server, by either sender. A struct, as it is made for every request."""

    method: str
    path: str
    params: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    #: Further headers.
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        """Method and path, for messages."""
        return f"{self.method} {self.path}"

    @property
    def target(self) -> str:
        """Path and query as they are sent."""
        if not self.params:
            return self.path
        return f"{self.path}{'&' if '?' in self.path else '?'}{urlencode(self.params)}"


def headers_of(
    request: HttpRequest, connection: Connection, token: str, user_agent: str
) -> list[tuple[str, str]]:
    """Return the headers of a request in the order in which they are sent.

    Host and Content-Length are added by the sender.
    """
    headers = [
        ("User-Agent", user_agent),
        ("Accept", request.accept),
        ("Accept-Encoding", _accepted_encoding(connection.server)),
    ]
    if request.body is not None:
        headers.append(("Content-Type", request.content_type))
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    if connection.impersonate_user:
        headers.append(("Impersonate-User", connection.impersonate_user))
        headers += [("Impersonate-Group", group) for group in connection.impersonate_groups]
        if connection.impersonate_uid:
            headers.append(("Impersonate-Uid", connection.impersonate_uid))
        for name, value in connection.impersonate_extra:
            key = quote(name.lower(), safe=_HEADER_NAME_CHARACTERS)
            headers.append((f"Impersonate-Extra-{key}", value))
    return [*headers, *request.headers]


@cache
def _accepted_encoding(server: str) -> str:
    """Return "identity" where there is no network: compressing costs more than it saves there."""
    return "identity" if urlsplit(server).hostname in _LOOPBACK else "gzip"


# Requests

#: Yields HTTP requests, takes the bodies of their answers, returns the answer to the typed request.
Steps = Generator[HttpRequest, bytes, Any]


def steps(request: Request[Any], decoders: Decoders[Any], page_size: int) -> Steps:
    """Carry out a request; an ApiError is thrown in where its HTTP request was yielded."""
    match request.verb:
        case RequestVerb.PATCH:
            return decoders.object((yield _patch(request)))
        case RequestVerb.CREATE:
            return decoders.object((yield _create(request)))
        case RequestVerb.GET:
            path = _named_path(request)
            body = yield HttpRequest("GET", path, accept=_accept(request.resource))
            return decoders.object(body)
        case RequestVerb.LIST:
            try:
                return (yield from _pages(request, decoders, page_size))
            except Expired:
                return (yield from _pages(request, decoders, page_size))
        case RequestVerb.READ:
            return (yield HttpRequest("GET", request.name, request.body))
        case RequestVerb.DELETE:
            yield _delete(request, _named_path(request))
        case RequestVerb.DELETE_COLLECTION:
            namespaces = [request.namespace]
            if request.resource.namespaced and not request.namespace:
                # The API has no such verb for all namespaces.
                found = yield from _pages(request, decoders, page_size)
                namespaces = sorted({_key(obj)[0] for obj in found.items})
            for namespace in namespaces:
                yield _delete(request, path_of(request.resource, namespace))
    return None


def watch_of(request: WatchRequest[Any]) -> HttpRequest:
    """Return the request that opens a watch."""
    params = {"watch": "true", "resourceVersion": request.resource_version}
    if request.allow_bookmarks:
        params["allowWatchBookmarks"] = "true"
    params |= _selectors(request)
    if request.timeout_seconds is not None:
        params["timeoutSeconds"] = str(request.timeout_seconds)
    return HttpRequest("GET", path_of(request.resource, request.namespace), params)


def path_of(resource: Resource[Any], namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the request's path, each part quoted; BadRequest for what can be no such part."""
    kind = tuple(map(_segment, (resource.group, resource.version, resource.plural)))
    if kind != (resource.group, resource.version, resource.plural):
        group, version, plural = kind
        resource = replace(resource, group=group, version=version, plural=plural)
    return resource.path(_segment(namespace), _segment(name), _segment(subresource))


@lru_cache(maxsize=1024)
def _segment(text: str) -> str:
    """Return one part of a path, quoted; BadRequest for what could be read as more or less."""
    if text in (".", "..") or "/" in text or "%" in text:
        raise BadRequest(f"'{text}' is not a name: it may not be . or .. or contain / or %")
    return quote(text, safe="")


def _named_path(request: Request[Any]) -> str:
    """Return the path of one object; BadRequest without a name, which would mean all of them."""
    if not request.name:
        raise BadRequest(f"a {request.verb.value} of a {request.resource.kind} needs a name")
    return path_of(request.resource, request.namespace, request.name, request.subresource)


def _pages(
    request: Request[Any], decoders: Decoders[Any], page_size: int
) -> Generator[HttpRequest, bytes, ObjectList[Any]]:
    path = path_of(request.resource, request.namespace)
    params = {"limit": str(page_size), **_selectors(request)}
    items: list[Any] = []
    unreadable: list[Unreadable] = []
    token = version = ""
    while True:
        more = {**params, "continue": token} if token else params
        good, bad, metadata = decoders.page((yield HttpRequest("GET", path, more)))
        items += good
        unreadable += bad
        version = version or metadata.resource_version
        token = metadata.continue_
        if not token:
            break
    if request.resource.type is not msgspec.Raw:  # texts stay in the server's order
        items.sort(key=_key)
    return ObjectList(tuple(items), version, tuple(unreadable))


def _create(request: Request[Any]) -> HttpRequest:
    resource, obj, namespace = request.resource, request.body, request.namespace
    parts = cast("Mapping[str, Any]", obj if isinstance(obj, Mapping) else to_wire(obj))
    body = {"kind": resource.kind, "apiVersion": resource.api_version, **parts}
    if resource.namespaced and not namespace:
        namespace = to_wire(parts.get("metadata", {})).get("namespace", "")
    if resource.namespaced and not namespace:
        raise BadRequest(f"creating a {resource.kind} needs a namespace")
    return HttpRequest(
        "POST",
        path_of(resource, namespace, request.name, request.subresource),
        _dry_run(request),
        msgspec.json.encode(body),
        accept=_accept(resource),
    )


def _patch(request: Request[Any]) -> HttpRequest:
    resource = request.resource
    return HttpRequest(
        "PATCH",
        _named_path(request),
        _dry_run(request),
        msgspec.json.encode(request.body),
        request.patch_type.value,
        _accept(resource),
    )


def _delete(request: Request[Any], path: str) -> HttpRequest:
    body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if request.grace_period_seconds is not None:
        body["gracePeriodSeconds"] = request.grace_period_seconds
    if request.propagation is not None:
        body["propagationPolicy"] = request.propagation.value
    preconditions = {"uid": request.uid, "resourceVersion": request.resource_version}
    preconditions = {key: value for key, value in preconditions.items() if value is not None}
    if preconditions:
        body["preconditions"] = preconditions
    return HttpRequest("DELETE", path, _selectors(request), msgspec.json.encode(body))


def _selectors(request: Request[Any] | WatchRequest[Any]) -> dict[str, str]:
    params: dict[str, str] = {}
    if request.label_selector:
        params["labelSelector"] = request.label_selector
    if request.field_selector:
        params["fieldSelector"] = request.field_selector
    return params


def _accept(resource: Resource[Any]) -> str:
    return _ONLY_METADATA if resource.type is OnlyMetadata else JSON


def _dry_run(request: Request[Any]) -> dict[str, str] | None:
    return {"dryRun": "All"} if request.dry_run else None


def _key(obj: Any) -> tuple[str, str]:
    if isinstance(obj, dict):
        metadata: dict[str, str] = obj["metadata"]
        return metadata.get("namespace", ""), metadata["name"]
    typed: ObjectMeta = obj.metadata
    return typed.key


# Answers


class LineSplitter:
    """Splits a stream into lines, at line feeds only; libraries' readers split elsewhere too."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are whole now, without their ends and without empty ones.

        InternalError for a line that is too long.
        """
        head, *rest = chunk.split(b"\n")
        self._parts.append(head)
        self._size += len(head)
        if self._size > self._bytes_max:
            raise InternalError(f"a line is longer than {self._bytes_max} bytes")
        if not rest:
            return []
        first = b"".join(self._parts)
        *lines, last = rest
        self._parts, self._size = [last], len(last)
        return [line for line in (first, *lines) if line]

    def end(self) -> bytes:
        """Return what follows the last line's end."""
        return b"".join(self._parts)


def error_of(answer: HttpResponse, place: str, options: HttpOptions) -> ApiError:
    """Return the exception for an answer that is no success; `place` is method and path."""
    body = answer.body[: options.error_bytes_max]
    try:
        status = _STATUS.decode(body)
    except ValueError:
        status = Status()
    if status.code == 0 or not status.message:
        status = _plain_status(answer, place, body)
    header = answer.headers.get("retry-after", "")
    details = status.details or StatusDetails()
    if header.isdigit() and not details.retry_after_seconds:
        details = msgspec.structs.replace(details, retry_after_seconds=int(header))
        status = msgspec.structs.replace(status, details=details)
    return error_from_status(status)


def naming_credentials(error: ApiError, connection: Connection) -> ApiError:
    """Add to a 401, which says nothing else, whose credentials were refused."""
    if not isinstance(error, Unauthorized):
        return error
    if connection.token_file is not None:
        what = f"token file {connection.token_file}"
    elif connection.exec_plugin is not None:
        what = f"credential plugin {connection.exec_plugin.command}"
    else:
        what = connection.source
    text = f"{connection.server} does not accept the credentials of {what}: {error.message}"
    return Unauthorized(text, details=error.status.details)


def network_error(error: Exception, place: str, connection: Connection) -> ApiError:
    """Return the ApiError for what a connection raised."""
    server = connection.server
    match error:
        case ConnectError(__cause__=TimeoutError()):
            return Unavailable(f"cannot reach {server}: no connection in time")
        case TimeoutError():
            return Timeout(f"{place}: no answer from {server} in time")
        case HttpRequestError():
            return BadRequest(f"{place}: not to be sent: {error}")
        case ConnectError(__cause__=ssl.SSLCertVerificationError() as cause):
            return Unavailable(
                f"{server}: its certificate is not trusted: {cause}; see {connection.source}"
            )
        case ConnectError(__cause__=OSError() as cause):
            return Unavailable(f"cannot reach {server}: {_reason(cause)}")
        case _:
            return Unavailable(f"{place}: the connection to {server} broke: {error}")


def _reason(error: OSError) -> str:
    """Return the system's words, which libraries replace by their own."""
    number = 0 if isinstance(error, ssl.SSLError) else error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def _plain_status(answer: HttpResponse, place: str, body: bytes) -> Status:
    """Return a Status for an answer without one (a proxy's, a load balancer's)."""
    text = " ".join(body[:200].decode(errors="replace").split())
    code = answer.status
    reason = {408: "Timeout", 502: "ServiceUnavailable"}.get(code, "")
    if not reason and code >= 500 and code not in (500, 503, 504):
        reason = "InternalError"
    if 300 <= code < 400:
        text = f"redirects are not followed (to {answer.headers.get('location', '?')})"
    return Status(message=f"{place}: {code} {answer.reason}: {text}", reason=reason, code=code)
