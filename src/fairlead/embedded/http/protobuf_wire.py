"""Protobuf messages as tables: how their bytes become the JSON form of Kubernetes.

Wire format: protobuf.dev/programming-guides/encoding. What no table names is an UnknownField, so
that nothing is read by halves.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fairlead.api.values.times import format_time

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Field = tuple[int, int | bytes]


class Malformed(ValueError):
    """The bytes are no message."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(data):
            raise Malformed
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise Malformed


def fields(data: bytes) -> Iterator[Field]:
    """Yield (number, value) of each field: an integer, or bytes for all that has a length."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise Malformed
        if at + size > len(data):
            raise Malformed
        yield number, data[at : at + size]
        at += size


def as_bytes(value: int | bytes) -> bytes:
    """Return what has a length; Malformed for an integer."""
    if isinstance(value, int):
        raise Malformed
    return value


def text(value: int | bytes) -> str:
    """Return a string."""
    return as_bytes(value).decode()


def signed(value: int | bytes) -> int:
    """Return an integer, which may be negative."""
    if not isinstance(value, int):
        raise Malformed
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


class Shape(Enum):
    """How often a field may come, and whether its zero means that it was not set."""

    SET = "set"  # kept even when zero: a pointer in Go, or a field that must be there
    PLAIN = "plain"  # Go writes it always; zero means not set
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of a message: its JSON name, how its value is read, and its shape."""

    name: str
    read: Callable[[int | bytes], Any]
    shape: Shape = Shape.PLAIN


class UnknownField(Exception):
    """A field that no table names."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a table of its fields by number."""

    entries: Mapping[int, Entry]

    def __call__(self, value: int | bytes) -> dict[str, Any]:
        """Return the JSON form."""
        out: dict[str, Any] = {}
        for number, raw in fields(as_bytes(value)):
            entry = self.entries.get(number)
            if entry is None:
                raise UnknownField(str(number))
            item = entry.read(raw)
            if entry.shape is Shape.LIST:
                out.setdefault(entry.name, []).append(item)
            elif entry.shape is Shape.MAP:
                out.setdefault(entry.name, {})[item.get("key", "")] = item.get("value", "")
            elif item or entry.shape is Shape.SET:
                out[entry.name] = item
        return out


def boolean(value: int | bytes) -> bool:
    """Return a truth value."""
    return bool(signed(value))


def blob(value: int | bytes) -> str:
    """Return bytes as JSON has them."""
    return b64encode(as_bytes(value)).decode()


def nothing(_value: int | bytes) -> None:
    """For what the server sets itself, whatever a client says (times, managed fields)."""


def int_or_string(value: int | bytes) -> int | str:
    """Return the value of an IntOrString."""
    found = dict(fields(as_bytes(value)))
    return text(found.get(3, b"")) if found.get(1, 0) else signed(found.get(2, 0))


def _instant(value: int | bytes) -> tuple[int, int]:
    """Seconds and nanoseconds since the epoch."""
    found = dict(fields(as_bytes(value)))
    return signed(found.get(1, 0)), signed(found.get(2, 0))


def time(value: int | bytes) -> str | None:
    """A `Time`: RFC 3339 in whole seconds; none for the zero of Go, which is in the year 1."""
    seconds, _ = _instant(value)
    return format_time(seconds) if seconds > 0 else None


def micro_time(value: int | bytes) -> str | None:
    """A `MicroTime`: RFC 3339 with six decimals."""
    seconds, nanos = _instant(value)
    if seconds <= 0:
        return None
    return f"{format_time(seconds).removesuffix('Z')}.{nanos // 1000:06d}Z"


S = Shape
TEXTS = Message({1: Entry("key", text), 2: Entry("value", text)})
_OWNER = Message({
    1: Entry("kind", text), 3: Entry("name", text), 4: Entry("uid", text),
    5: Entry("apiVersion", text), 6: Entry("controller", boolean, S.SET),
    7: Entry("blockOwnerDeletion", boolean, S.SET),
})  # fmt: skip
META = Entry("metadata", Message({
    1: Entry("name", text), 2: Entry("generateName", text), 3: Entry("namespace", text),
    4: Entry("selfLink", nothing), 5: Entry("uid", text), 6: Entry("resourceVersion", text),
    7: Entry("generation", signed), 8: Entry("creationTimestamp", nothing),
    9: Entry("deletionTimestamp", nothing), 10: Entry("deletionGracePeriodSeconds", nothing),
    11: Entry("labels", TEXTS, S.MAP), 12: Entry("annotations", TEXTS, S.MAP),
    13: Entry("ownerReferences", _OWNER, S.LIST), 14: Entry("finalizers", text, S.LIST),
    17: Entry("managedFields", nothing),
}))  # fmt: skip
