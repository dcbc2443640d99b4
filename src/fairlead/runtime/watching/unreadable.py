"""What can be said of an object that cannot be decoded: its metadata, and why.

One bad object must not hide all others of its kind, so clients report it beside them. Its metadata
are read by themselves, from JSON that is cut at a depth: a decoder works down a nested value by
recursion, also where it only skips it, and gives up on a few thousand levels.
"""

from __future__ import annotations

import re

import msgspec

from fairlead.api.meta import ObjectMeta
from fairlead.runtime.client import Unreadable

#: Levels of an object that are looked at; the types that we read have fewer than 20.
DEPTH_MAX = 64
#: What a decoder raises over what it is given: wrong types, no JSON, no UTF-8, nested too deep.
UNDECODABLE = (ValueError, RecursionError)
_WHY_LENGTH_MAX = 300

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"


class _Object(msgspec.Struct):
    metadata: ObjectMeta


class _Identity(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class _Identified(msgspec.Struct):
    metadata: _Identity


_OBJECT = msgspec.json.Decoder(_Object)
_IDENTIFIED = msgspec.json.Decoder(_Identified)


def unreadable_of(data: bytes, error: Exception) -> Unreadable | None:
    """Return what is known of an object whose decoding raised `error`; None: not even its name."""
    data = cut(data, DEPTH_MAX)
    why = f"{type(error).__name__}: {error}"[:_WHY_LENGTH_MAX]
    try:
        metadata = _OBJECT.decode(data).metadata
    except ValueError:
        pass
    else:
        return Unreadable(metadata, why) if metadata.name else None
    try:
        found = _IDENTIFIED.decode(data).metadata
    except ValueError:
        return None
    metadata = ObjectMeta(
        name=found.name,
        namespace=found.namespace,
        uid=found.uid,
        resource_version=found.resource_version,
    )
    return Unreadable(metadata, why)


def cut(data: bytes, depth_max: int) -> bytes:
    """Return JSON with null in place of every array and object that is nested deeper than this.

    Takes time in proportion to its length, whatever the depth.
    """
    parts: list[bytes] = []
    depth = start = 0
    for match in _TOKEN.finditer(data):
        token = match[0]
        if token in _OPENING:
            depth += 1
            if depth == depth_max + 1:
                parts += (data[start : match.start()], b"null")
        elif token in _CLOSING:
            if depth == depth_max + 1:
                start = match.end()
            depth -= 1
    if depth <= depth_max:
        parts.append(data[start:])
    return b"".join(parts)


def items_of(data: bytes, depth: int) -> list[bytes]:
    """Return the objects of a JSON text that stand at this depth (1: the text's own), as text."""
    found: list[bytes] = []
    level = start = 0
    for match in _TOKEN.finditer(data):
        token = match[0]
        if token in _OPENING:
            level += 1
            if level == depth:
                start = match.start()
        elif token in _CLOSING:
            if level == depth and token == b"}":
                found.append(data[start : match.end()])
            level -= 1
    return found
