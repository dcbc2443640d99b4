"""The terminal's way to the API: one request at a time over the standard library's HTTP.

Controllers use the asynchronous clients of `runtime.client`. A command makes one or two requests
and ends, and has to be quick about it: importing aiohttp alone takes longer than `fairlead ps`
may. This client also hands out what the server said, byte for byte, for `-o json`.

Every call raises `ApiError` subclasses for what the server refuses and `CliError` (E600) when it
does not answer.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import ssl
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from fairlead.api.resources import Resource
from fairlead.api.status import ApiError, Status, Unavailable, error_from_status
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.kubeconfig import Connection

T = TypeVar("T")
Headers: TypeAlias = list[tuple[str, str]]

TIMEOUT_SECONDS = 10.0
BODY_BYTES_MAX = 512 << 20
LIST_PAGE = 5_000
CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer, whole."""

    body: bytes
    content_type: str


class Api:
    """A connection to one cluster, opened at the first request and again when it broke."""

    def __init__(self, connection: Connection, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.target = _with_credentials(connection)
        self._timeout_seconds = timeout_seconds
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None  # of the latest request, also when it streams

    def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send one request and return the answer; ApiError for a refusal, CliError for silence."""
        payload = None if body is None else msgspec.json.encode(body)
        response = self._send(method, _target(path, query), payload, content_type)
        try:
            data = response.read(BODY_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._silent(error) from error
        if response.status >= 400:
            raise _refusal(response.status, data)
        return Answer(data, response.headers.get_content_type())

    def lines(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        timeout_seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[bytes]:
        """Yield the lines of a streamed answer as they come, without their ends.

        Ends when the server ends it; Unavailable when the stream broke; TimeoutError when nothing
        came for `timeout_seconds` (None: wait for ever).
        """
        chunks = self.chunks(path, query, timeout_seconds=timeout_seconds, headers=headers)
        for chunk_lines in _split_lines(chunks):
            yield from chunk_lines

    def chunks(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        timeout_seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[bytes]:
        """Yield a streamed answer's bytes as they come, over a connection of its own."""
        stream = Api(self.target, timeout_seconds=self._timeout_seconds)
        try:
            target = _target(path, query)
            response = stream._send("GET", target, None, "application/json", more=headers)
            if response.status >= 400:
                raise _refusal(response.status, response.read(BODY_BYTES_MAX))
            if stream._socket is not None:
                stream._socket.settimeout(timeout_seconds)
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the stream broke: {error}") from error
        finally:
            stream.close()

    def get_raw(self, resource: Resource[Any], name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return one object as it is; NotFound."""
        answer = self.request("GET", resource.path(namespace, name))
        return _decode(answer.body)

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return one object; NotFound."""
        answer = self.request("GET", resource.path(namespace, name))
        return _typed(answer.body, resource.type)

    def list_raw(
        self, resource: Resource[Any], *, namespace: str = "", label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[list[dict[str, Any]], str]:  # fmt: skip
        """Return all objects as they are, page by page, and the version of the list."""
        items: list[dict[str, Any]] = []
        query = {"limit": str(LIST_PAGE)}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        while True:
            answer = self.request("GET", resource.path(namespace), query=query)
            page = _decode(answer.body)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", "0"))
            query["continue"] = str(metadata["continue"])

    def list(
        self, resource: Resource[T], *, namespace: str = "", label_selector: str = ""
    ) -> tuple[tuple[T, ...], str]:
        """Return all objects and the version of the list."""
        raw, version = self.list_raw(resource, namespace=namespace, label_selector=label_selector)
        return tuple(_convert(item, resource.type) for item in raw), version

    def create(
        self, resource: Resource[Any], body: Mapping[str, Any], *, namespace: str = "",
        dry_run: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Create an object and return it as stored; AlreadyExists, Invalid, Forbidden."""
        query = {"dryRun": "All"} if dry_run else {}
        answer = self.request("POST", resource.path(namespace), query=query, body=body)
        return _decode(answer.body)

    def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
    ) -> T:
        """Merge-patch an object and return it; NotFound, Conflict, Invalid."""
        answer = self.request(
            "PATCH", resource.path(namespace, name), body=patch,
            content_type="application/merge-patch+json",
        )  # fmt: skip
        return _typed(answer.body, resource.type)

    def delete(self, resource: Resource[Any], name: str, *, namespace: str = "") -> None:
        """Delete an object, dependents in the background; NotFound."""
        self.request("DELETE", resource.path(namespace, name),
                     body={"propagationPolicy": "Background"})  # fmt: skip

    def watch(
        self,
        resource: Resource[T],
        *,
        namespace: str,
        name: str,
        resource_version: str,
        timeout_seconds: float | None = None,
    ) -> Iterator[tuple[str, T]]:
        """Yield (event type, object) of one object's changes until the server ends the watch.

        Expired when the version is too old; Unavailable when the stream broke; TimeoutError when
        nothing, not even a bookmark, came for `timeout_seconds`.
        """
        query = {"watch": "1", "resourceVersion": resource_version, "allowWatchBookmarks": "true",
                 "fieldSelector": f"metadata.name={name}"}  # fmt: skip
        path = resource.path(namespace)
        for line in self.lines(path, query, timeout_seconds=timeout_seconds):
            event = _decode(line)
            kind = str(event.get("type"))
            if kind == "ERROR":
                raise error_from_status(_convert(event.get("object") or {}, Status))
            if kind != "BOOKMARK":
                yield kind, _convert(event["object"], resource.type)

    def _send(
        self,
        method: str,
        target: str,
        payload: bytes | None,
        content_type: str,
        *,
        more: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        headers = [*_headers(self.target), *(more or {}).items()]
        if payload is not None:
            headers.append(("Content-Type", content_type))
            headers.append(("Content-Length", str(len(payload))))
        is_reused = self._http is not None
        try:
            return self._send_once(method, target, payload, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # A kept connection that the server has closed is opened again, for a read only.
            if not is_reused or method != "GET" or isinstance(error, TimeoutError):
                raise self._silent(error) from error
        try:
            return self._send_once(method, target, payload, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._silent(error) from error

    def _send_once(
        self, method: str, target: str, payload: bytes | None, headers: Headers
    ) -> http.client.HTTPResponse:
        if self._http is None:
            self._http = _connect(self.target, self._timeout_seconds)
        self._http.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:  # one name may come several times
            self._http.putheader(name, value)
        self._http.endheaders(payload)
        self._socket = self._http.sock
        return self._http.getresponse()

    def _silent(self, error: Exception) -> CliError:
        server = self.target.server
        if isinstance(error, TimeoutError):
            why = f"no answer from {server} after {self._timeout_seconds:g}s"
        elif isinstance(error, ConnectionRefusedError):
            why = f"no answer from {server}: nothing listens there"
        elif isinstance(error, ssl.SSLError):
            why = f"no safe connection to {server}: {error.reason or error}"
        else:
            why = f"no answer from {server}: {error or type(error).__name__}"
        return fail(
            Code.UNREACHABLE, why,
            detail=(f"the address comes from {self.target.source}",
                    "running jobs are not affected"),
            help=("fairlead up starts a cluster here, fairlead status tells what runs",),
        )  # fmt: skip


def _with_credentials(target: Connection) -> Connection:
    """Return the connection with what its credential plugin answers, if it has one."""
    if target.exec_plugin is None:
        return target
    from fairlead.kube.exec_auth import PluginError, run_plugin

    try:
        credential = run_plugin(target)
    except PluginError as error:
        raise fail(Code.KUBECONFIG, str(error)) from error
    return dataclasses.replace(
        target,
        exec_plugin=None,
        token=credential.token,
        client_certificate=credential.certificate.encode(),
        client_key=credential.key.encode(),
    )


def _connect(target: Connection, timeout_seconds: float) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(target.server)
    host = parts.hostname or ""
    if target.proxy_url or target.server_name:
        raise fail(
            Code.KUBECONFIG, f"{target.source} uses proxy-url or tls-server-name",
            detail=("the command line does not support these two",),
        )  # fmt: skip
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_seconds)
    authority = target.certificate_authority.decode("ascii", errors="replace")
    context = ssl.create_default_context(cadata=authority or None)
    if target.skip_server_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if target.client_certificate:
        _load_certificate(context, target)
    return http.client.HTTPSConnection(
        host, parts.port or 443, timeout=timeout_seconds, context=context
    )


def _load_certificate(context: ssl.SSLContext, target: Connection) -> None:
    """Hand the certificate to OpenSSL, which reads it from a file only; the file is ours alone."""
    with tempfile.NamedTemporaryFile(prefix="fairlead-") as file:
        file.write(target.client_certificate + b"\n" + target.client_key)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise fail(
                Code.KUBECONFIG,
                f"the client certificate of {target.source} cannot be used: {error}",
            ) from error


def bearer_token(target: Connection) -> str:
    """Return the token of a connection, "" when it has none; CliError when its file is missing."""
    token = target.token
    if not token and target.token_file is not None:
        try:
            token = target.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise fail(
                Code.KUBECONFIG, f"the tokenFile {target.token_file} cannot be read"
            ) from error
    return token


def _headers(target: Connection) -> Headers:
    headers = [("Accept", "application/json"), ("User-Agent", "fairlead")]
    token = bearer_token(target)
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    if target.impersonate_user:
        headers.append(("Impersonate-User", target.impersonate_user))
    headers += [("Impersonate-Group", group) for group in target.impersonate_groups]
    return headers


def _target(path: str, query: Mapping[str, str] | None) -> str:
    quoted = urllib.parse.quote(path)
    return f"{quoted}?{urllib.parse.urlencode(query)}" if query else quoted


def _refusal(code: int, body: bytes) -> ApiError:
    try:
        return error_from_status(msgspec.json.decode(body, type=Status))
    except msgspec.DecodeError:
        text = body[:200].decode(errors="replace").strip()
        return error_from_status(Status(message=text or f"HTTP status {code}", code=code))


def _decode(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise _odd(f"its answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _odd("its answer is not a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType] # JSON objects have text keys


def _typed(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise _odd(str(error)) from error


def _convert(value: Mapping[str, Any], type_: type[T]) -> T:
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise _odd(str(error)) from error


def _odd(what: str) -> CliError:
    return fail(
        Code.BAD_ANSWER, f"the server answered something unexpected: {what}",
        help=("check the server's address and version: fairlead status, fairlead version",),
    )  # fmt: skip


def _split_lines(chunks: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise _odd(f"a line of more than {LINE_BYTES_MAX} bytes")
        yield [line for line in whole if line.strip()]
    if rest.strip():
        yield [rest]
