"""Reading a request: its path, its query and its body, each strictly, each with a limit.

A path is taken apart into a `ResourcePath` without knowing which kinds exist; the router looks
those up. Every query parameter is parsed when it is asked for, and a wrong value is a 400 that
names it. Bodies are read up to a limit, decoded, and bounded in nesting, so that all behind may
recurse.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
import yaml
from aiohttp import StreamReader, web

from fairlead.api.status import BadRequest, NotFound, TooLarge, UnsupportedMediaType
from fairlead.embedded.http.protobuf import decode_protobuf

QUERY_FIELDS_MAX = 64
COMMAND_WORDS_MAX = 1024  # of exec, each in a field of its own
PATH_LENGTH_MAX = 4096
YAML_BYTES_MAX = 256 * 1024
DUPLICATES_MAX = 100
E = TypeVar("E", bound=Enum)

#: As Go writes a duration: 0, 1.5s, 1h30m.
_DURATION = re.compile(r"0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+")
JSON_TYPE = "application/json"
YAML_TYPE = "application/yaml"
PROTOBUF_TYPE = "application/vnd.kubernetes.protobuf"


class PathNotFound(NotFound):
    """No API lives at this path; answered as plain text, as the real server does."""


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """What a path names; "" for what it leaves out."""

    group: str
    version: str
    namespace: str
    plural: str
    name: str
    subresource: str


def split_path(raw: str) -> list[str]:
    """Return the decoded segments of a URL path.

    BadRequest for escapes that are no UTF-8 and for segments that could climb (`.`, `..`, a slash
    or NUL in an escape): no object has such a name.
    """
    if len(raw) > PATH_LENGTH_MAX:
        raise BadRequest(f"the path is longer than {PATH_LENGTH_MAX} characters")
    if "//" in raw:
        raise PathNotFound("404 page not found")
    segments = raw.strip("/").split("/")
    if "%" in raw:
        try:
            segments = [unquote(segment, errors="strict") for segment in segments]
        except UnicodeDecodeError:
            raise BadRequest("the path holds escapes that are no UTF-8") from None
    for segment in segments:
        if segment in (".", "..") or "/" in segment or "\0" in segment or "%" in segment:
            raise BadRequest(f"'{segment}' is not accepted in a path")
    return segments


def resource_path(segments: list[str]) -> ResourcePath | None:
    """Return what `/api/v1/...` or `/apis/group/version/...` names; None when no resource can."""
    if segments[0] == "api" and len(segments) > 2:
        group, version, rest = "", segments[1], segments[2:]
    elif segments[0] == "apis" and len(segments) > 3:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
        if not namespace:
            return None
    if len(rest) > 3 or "" in rest:
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return ResourcePath(group, version, namespace, plural, name, subresource)


class Query:
    """The query parameters of one request; each getter raises BadRequest for a wrong value."""

    __slots__ = ("_pairs", "_values")

    def __init__(self, raw: str) -> None:
        self._pairs: list[tuple[str, str]] = []
        self._values: dict[str, str] = {}
        if raw:
            try:
                pairs = parse_qsl(
                    raw, keep_blank_values=True, errors="strict",
                    max_num_fields=COMMAND_WORDS_MAX,
                )  # fmt: skip
            except UnicodeDecodeError:
                raise BadRequest("the query holds escapes that are no UTF-8") from None
            except ValueError:
                raise BadRequest(f"the query has more than {COMMAND_WORDS_MAX} fields") from None
            if sum(key != "command" for key, _ in pairs) > QUERY_FIELDS_MAX:
                raise BadRequest(f"the query has more than {QUERY_FIELDS_MAX} fields")
            self._pairs = pairs
            for key, value in pairs:
                self._values.setdefault(key, value)

    def text(self, key: str) -> str:
        """Return the value, "" when it is not given."""
        return self._values.get(key, "")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return all values of a parameter that may be given several times, in order."""
        return tuple(value for name, value in self._pairs if name == key)

    def flag(self, key: str) -> bool:
        """Return a boolean; false when not given. Given without a value it is true, as upstream."""
        value = self._values.get(key)
        if value is None or value in ("false", "False", "0", "f", "F", "FALSE"):
            return False
        if value in ("", "true", "True", "1", "t", "T", "TRUE"):
            return True
        raise BadRequest(f"query parameter {key}: '{value}' is not true or false")

    def is_given(self, key: str) -> bool:
        """True when the parameter is in the query at all, even without a value."""
        return key in self._values

    def integer(self, key: str, *, least: int = 0) -> int | None:
        """Return an integer of at least `least`; None when not given."""
        value = self._values.get(key)
        if value is None or value == "":
            return None
        if not (value.isascii() and value.removeprefix("-").isdigit() and len(value) < 19):
            raise BadRequest(f"query parameter {key}: '{value[:40]}' is not an integer")
        number = int(value)
        if number < least:
            raise BadRequest(f"query parameter {key}: {number} is less than {least}")
        return number

    def check_timeout(self) -> None:
        """Refuse a `timeout` that is no duration; requests here have no longer deadline anyway."""
        value = self._values.get("timeout")
        if value and _DURATION.fullmatch(value) is None:
            raise BadRequest(f"invalid timeout specified in the request URL: '{value[:40]}'")

    def choice(self, key: str, choices: type[E]) -> E | None:
        """Return the member with that value; None when not given."""
        value = self._values.get(key)
        if value is None or value == "":
            return None
        try:
            return choices(value)
        except ValueError:
            accepted = ", ".join(str(choice.value) for choice in choices)
            raise BadRequest(
                f"query parameter {key}: '{value[:40]}' is not one of {accepted}"
            ) from None


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a body may be."""

    bytes_max: int = 3 * 1024 * 1024
    depth_max: int = 100
    seconds_max: float = 30.0


def media_type(request: web.BaseRequest) -> str:
    """Return the body's media type in lower case, without parameters; "" when not given."""
    value = request.headers.get("Content-Type", "")
    return value.partition(";")[0].strip().lower()


async def read_body(request: web.BaseRequest, limits: BodyLimits) -> bytes:
    """Return the whole body; TooLarge as soon as it is known to be over the limit."""
    declared = request.content_length
    if declared is not None and declared > limits.bytes_max:
        raise _too_large(limits)
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding '{encoding[:40]}' is not accepted: send plain"
        )
    if not request.can_read_body:
        return b""
    if request.headers.get("Expect", "").lower() == "100-continue":
        transport = request.transport
        if transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if request.content.is_eof():  # it came along with the head: the common case
        body = request.content.read_nowait()
        if len(body) > limits.bytes_max:
            raise _too_large(limits)
        return body
    try:
        async with asyncio.timeout(limits.seconds_max):
            body = await read_at_most(request.content, limits.bytes_max)
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {limits.seconds_max:g} s") from None
    if body is None:
        raise _too_large(limits)
    return body


async def read_at_most(content: StreamReader, bytes_max: int) -> bytes | None:
    """Return all that comes; None as soon as it is more."""
    pieces: list[bytes] = []
    size = 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > bytes_max:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(limits: BodyLimits) -> TooLarge:
    return TooLarge(f"the request body is larger than the limit of {limits.bytes_max} bytes")


def decode_json(body: bytes, limits: BodyLimits) -> Any:
    """Return the value of a JSON text; BadRequest when it is none, or nested too deeply."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep(limits) from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: {error.reason}") from None
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    # A text cannot nest deeper than it has opening brackets, and counting those is cheap.
    if body.count(b"{") + body.count(b"[") > limits.depth_max and _is_deeper(
        value, limits.depth_max
    ):
        raise _too_deep(limits)
    return value


def _too_deep(limits: BodyLimits) -> BadRequest:
    return BadRequest(f"the body nests deeper than {limits.depth_max} levels")


def _is_deeper(value: Any, depth_max: int) -> bool:
    level: list[Any] = [value]
    for _ in range(depth_max + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return True


class _Object(dict[str, Any]):
    """An object that remembers which of its keys came twice."""

    twice: tuple[str, ...] = ()


def _keep(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice: list[str] = []
        for key, _ in pairs:
            if key in seen and key not in twice:
                twice.append(key)
            seen.add(key)
        made.twice = tuple(twice)
    return made


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Object):
        for key in value.twice:
            yield f"{path}.{key}" if path else key
        for key, inner in value.items():
            yield from _paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _paths(inner, f"{path}[{i}]")


def duplicate_fields(body: bytes) -> list[str]:
    """Return the paths of keys that a JSON text, which must be valid, gives twice.

    `decode_json` keeps the last of two equal keys and says nothing. Looking for them takes a slower
    second reading, for bodies alone whose senders asked for a validation, as kubectl does; the
    paths come out as the real server words them (KEP-2885).
    """
    value = json.loads(body, object_pairs_hook=_keep)
    return [path for path, _ in zip(_paths(value, ""), range(DUPLICATES_MAX), strict=False)]


class _PlainLoader(yaml.CSafeLoader):
    """YAML as JSON knows it: no dates, no sets, no binary; text keys only."""


# Dates stay the text that was written, as JSON has none. Copied first: the table is the parent's.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _check_yaml(text: str, limits: BodyLimits) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_PlainLoader):
        if isinstance(event, yaml.AliasEvent):
            raise BadRequest("the body uses YAML aliases; write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > limits.depth_max:
                raise _too_deep(limits)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def decode_yaml(body: bytes, limits: BodyLimits) -> Any:
    """Return the value of one YAML document, limited to what JSON can say; BadRequest otherwise."""
    if len(body) > YAML_BYTES_MAX:
        raise TooLarge(f"a YAML body may have {YAML_BYTES_MAX} bytes; send JSON instead")
    try:
        text = body.decode()
        _check_yaml(text, limits)
        value = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 -- derives from CSafeLoader
        return msgspec.json.decode(msgspec.json.encode(value))
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: {error.reason}") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"the body is not YAML: {' '.join(str(error).split())}") from None


def decode_config(body: bytes, limits: BodyLimits) -> Any:
    """Return the value of a configuration to apply: YAML, for which clients also send JSON."""
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return decode_json(body, limits)
        except BadRequest:
            pass  # YAML may begin so too
    try:
        return decode_yaml(body, limits)
    except BadRequest as error:
        raise BadRequest(f"error decoding YAML: {error.message}") from None


def keys_given_twice(body: bytes) -> list[str]:
    """Return what is to be said of keys that a valid configuration, JSON or YAML, gives twice."""
    try:
        return [f'key "{path}" already set in map' for path in duplicate_fields(body)]
    except ValueError:
        root = yaml.compose(body.decode(), Loader=_PlainLoader)
    return [text for text, _ in zip(_keys_twice(root), range(DUPLICATES_MAX), strict=False)]


def _keys_twice(node: yaml.Node | None) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield f'line {key.start_mark.line + 1}: key "{key.value}" already set in map'
            seen.add(key.value)
            yield from _keys_twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _keys_twice(item)


def decode_body(body: bytes, content_type: str, limits: BodyLimits) -> Any:
    """Return the value of a JSON or YAML body, or of one of the protobuf messages that we know.

    UnsupportedMediaType for anything else.
    """
    if content_type in ("", JSON_TYPE):
        return decode_json(body, limits)
    if content_type == YAML_TYPE:
        return decode_yaml(body, limits)
    if content_type == PROTOBUF_TYPE:
        return decode_protobuf(body)
    raise unsupported(content_type, (JSON_TYPE, YAML_TYPE))


def unsupported(content_type: str, accepted: tuple[str, ...]) -> UnsupportedMediaType:
    """Return the 415 for a body of this type; the wording is what clients look for."""
    return UnsupportedMediaType(
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(accepted)}; got '{content_type[:80]}'"
    )


def as_object(value: Any) -> Mapping[str, Any]:
    """Return the value as an object; BadRequest for anything else."""
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    return value
