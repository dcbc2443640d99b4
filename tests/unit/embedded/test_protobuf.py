"""Bodies in protobuf become what their JSON form is.

`definition.pb` is what Go's own encoder makes of `definition.json`, which has every field that a
CustomResourceDefinition can have.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.api.status import BadRequest, UnsupportedMediaType
from fairlead.embedded.http.protobuf import decode_protobuf

DATA = Path(__file__).parent / "data"


def field(number: int, body: bytes) -> bytes:
    """Return a field that has a length, as it is on the wire."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def envelope(body: bytes) -> bytes:
    kind = field(1, b"apiextensions.k8s.io/v1") + field(2, b"CustomResourceDefinition")
    return b"k8s\x00" + field(1, kind) + field(2, body)


def schema(body: bytes) -> bytes:
    """Return a definition with one version, of this schema."""
    version = field(1, b"v1") + field(4, field(1, body))
    return envelope(field(2, field(7, version)))


def test_a_definition_with_every_field_is_read_as_go_writes_it() -> None:
    found = decode_protobuf(envelope((DATA / "definition.pb").read_bytes()))
    assert found == json.loads((DATA / "definition.json").read_text())


def test_a_field_that_no_table_names_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match="field 99"):
        decode_protobuf(schema(field(99, b"x")))


@pytest.mark.parametrize(
    "body",
    [
        field(8, field(1, b"{")),  # a default that is no JSON
        field(8, field(1, b"NaN")),
        varint(9 << 3 | 1) + b"\0\0\0\0\0\0\xf0\x7f",  # a maximum that is infinite
        field(9, b"1"),
        varint(28 << 3) + b"\1",  # an integer as schema
    ],
)
def test_a_value_that_json_cannot_hold_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_protobuf(schema(body))


def test_a_schema_without_end_is_refused() -> None:
    body = b""
    for _ in range(5000):
        body = field(28, body)
    with pytest.raises(BadRequest, match="deep"):
        decode_protobuf(schema(body))
