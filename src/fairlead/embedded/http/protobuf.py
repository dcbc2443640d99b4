"""The protobuf bodies that kubectl, and leader election in Go, cannot be talked out of.

The typed clients of client-go (from v0.33 on) write protobuf and have no fallback when that is
refused: `kubectl create namespace`, `create configmap`, `drain`, `auth can-i` and some more would
fail. The messages that those send are described here as tables. Whatever is not in a table, a kind
or a single field, is refused with 415, so that nothing is read by halves. Answers are always JSON,
which those clients take.

Wire format: protobuf.dev/programming-guides/encoding; the envelope: apimachinery
`pkg/runtime/serializer/protobuf`; field numbers: `generated.proto` of each group.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fairlead.api.status import BadRequest, UnsupportedMediaType
from fairlead.api.times import format_time

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Field = tuple[int, int | bytes]


class _Malformed(ValueError):
    """The bytes are no message."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(data):
            raise _Malformed
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _Malformed


def _fields(data: bytes) -> Iterator[Field]:
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
            raise _Malformed
        if at + size > len(data):
            raise _Malformed
        yield number, data[at : at + size]
        at += size


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise _Malformed
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()


def _signed(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise _Malformed
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


class _Shape(Enum):
    """How often a field may come, and whether its zero means that it was not set."""

    SET = "set"  # kept even when zero: a pointer in Go, or a field that must be there
    PLAIN = "plain"  # Go writes it always; zero means not set
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One field of a message: its JSON name, how its value is read, and its shape."""

    name: str
    read: Callable[[int | bytes], Any]
    shape: _Shape = _Shape.PLAIN


class _UnknownField(Exception):
    """A field that no table names."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message as a table of its fields by number."""

    entries: Mapping[int, _Entry]

    def __call__(self, value: int | bytes) -> dict[str, Any]:
        """Return the JSON form."""
        out: dict[str, Any] = {}
        for number, raw in _fields(_bytes(value)):
            entry = self.entries.get(number)
            if entry is None:
                raise _UnknownField(str(number))
            item = entry.read(raw)
            if entry.shape is _Shape.LIST:
                out.setdefault(entry.name, []).append(item)
            elif entry.shape is _Shape.MAP:
                out.setdefault(entry.name, {})[item.get("key", "")] = item.get("value", "")
            elif item or entry.shape is _Shape.SET:
                out[entry.name] = item
        return out


def _boolean(value: int | bytes) -> bool:
    return bool(_signed(value))


def _base64(value: int | bytes) -> str:
    return b64encode(_bytes(value)).decode()


def _nothing(_value: int | bytes) -> None:
    """For what the server sets itself, whatever a client says (times, managed fields)."""


def _int_or_string(value: int | bytes) -> int | str:
    fields = dict(_fields(_bytes(value)))
    return _text(fields.get(3, b"")) if fields.get(1, 0) else _signed(fields.get(2, 0))


def _instant(value: int | bytes) -> tuple[int, int]:
    """Seconds and nanoseconds since the epoch."""
    fields = dict(_fields(_bytes(value)))
    return _signed(fields.get(1, 0)), _signed(fields.get(2, 0))


def _time(value: int | bytes) -> str | None:
    """A `Time`: RFC 3339 in whole seconds; none for the zero of Go, which is in the year 1."""
    seconds, _ = _instant(value)
    return format_time(seconds) if seconds > 0 else None


def _micro_time(value: int | bytes) -> str | None:
    """A `MicroTime`: RFC 3339 with six decimals."""
    seconds, nanos = _instant(value)
    if seconds <= 0:
        return None
    return f"{format_time(seconds).removesuffix('Z')}.{nanos // 1000:06d}Z"


_S = _Shape
_TEXTS = _Message({1: _Entry("key", _text), 2: _Entry("value", _text)})
_BLOBS = _Message({1: _Entry("key", _text), 2: _Entry("value", _base64)})
_OWNER = _Message({
    1: _Entry("kind", _text), 3: _Entry("name", _text), 4: _Entry("uid", _text),
    5: _Entry("apiVersion", _text), 6: _Entry("controller", _boolean, _S.SET),
    7: _Entry("blockOwnerDeletion", _boolean, _S.SET),
})  # fmt: skip
_META = _Entry("metadata", _Message({
    1: _Entry("name", _text), 2: _Entry("generateName", _text), 3: _Entry("namespace", _text),
    4: _Entry("selfLink", _nothing), 5: _Entry("uid", _text), 6: _Entry("resourceVersion", _text),
    7: _Entry("generation", _signed), 8: _Entry("creationTimestamp", _nothing),
    9: _Entry("deletionTimestamp", _nothing), 10: _Entry("deletionGracePeriodSeconds", _nothing),
    11: _Entry("labels", _TEXTS, _S.MAP), 12: _Entry("annotations", _TEXTS, _S.MAP),
    13: _Entry("ownerReferences", _OWNER, _S.LIST), 14: _Entry("finalizers", _text, _S.LIST),
    17: _Entry("managedFields", _nothing),
}))  # fmt: skip
_PRECONDITIONS = _Message(
    {1: _Entry("uid", _text, _S.SET), 2: _Entry("resourceVersion", _text, _S.SET)}
)
_DELETE_OPTIONS = _Message({
    1: _Entry("gracePeriodSeconds", _signed, _S.SET), 2: _Entry("preconditions", _PRECONDITIONS),
    3: _Entry("orphanDependents", _boolean, _S.SET), 4: _Entry("propagationPolicy", _text, _S.SET),
    5: _Entry("dryRun", _text, _S.LIST),
})  # fmt: skip
_SELECTOR = _Message({
    1: _Entry("matchLabels", _TEXTS, _S.MAP),
    2: _Entry("matchExpressions", _Message({
        1: _Entry("key", _text), 2: _Entry("operator", _text), 3: _Entry("values", _text, _S.LIST),
    }), _S.LIST),
})  # fmt: skip
_BUDGET_SPEC = _Message({
    1: _Entry("minAvailable", _int_or_string, _S.SET), 2: _Entry("selector", _SELECTOR, _S.SET),
    3: _Entry("maxUnavailable", _int_or_string, _S.SET),
    4: _Entry("unhealthyPodEvictionPolicy", _text),
})  # fmt: skip
_LEASE_SPEC = _Message({
    1: _Entry("holderIdentity", _text, _S.SET), 2: _Entry("leaseDurationSeconds", _signed, _S.SET),
    3: _Entry("acquireTime", _micro_time), 4: _Entry("renewTime", _micro_time),
    5: _Entry("leaseTransitions", _signed, _S.SET), 6: _Entry("strategy", _text, _S.SET),
    7: _Entry("preferredHolder", _text, _S.SET),
})  # fmt: skip
_REFERENCE = _Message({
    1: _Entry("kind", _text), 2: _Entry("namespace", _text), 3: _Entry("name", _text),
    4: _Entry("uid", _text), 5: _Entry("apiVersion", _text), 6: _Entry("resourceVersion", _text),
    7: _Entry("fieldPath", _text),
})  # fmt: skip
_EVENT = _Message({
    1: _META, 2: _Entry("involvedObject", _REFERENCE, _S.SET), 3: _Entry("reason", _text),
    4: _Entry("message", _text),
    5: _Entry("source", _Message({1: _Entry("component", _text), 2: _Entry("host", _text)})),
    6: _Entry("firstTimestamp", _time), 7: _Entry("lastTimestamp", _time),
    8: _Entry("count", _signed), 9: _Entry("type", _text), 10: _Entry("eventTime", _micro_time),
    11: _Entry("series", _Message({
        1: _Entry("count", _signed), 2: _Entry("lastObservedTime", _micro_time),
    })),
    12: _Entry("action", _text), 13: _Entry("related", _REFERENCE),
    14: _Entry("reportingComponent", _text), 15: _Entry("reportingInstance", _text),
})  # fmt: skip


def _review(_value: int | bytes) -> dict[str, Any]:
    """A review comes without its `spec`: the answer does not depend on it."""
    return {}


#: Readers by (apiVersion, kind); "" as apiVersion is any, for the options that every group has.
_READERS: Mapping[tuple[str, str], Callable[[int | bytes], dict[str, Any]]] = {
    ("", "DeleteOptions"): _DELETE_OPTIONS,
    ("policy/v1", "Eviction"): _Message({1: _META, 2: _Entry("deleteOptions", _DELETE_OPTIONS)}),
    ("v1", "Namespace"): _Message({
        1: _META, 2: _Entry("spec", _Message({1: _Entry("finalizers", _text, _S.LIST)})),
        3: _Entry("status", _Message({1: _Entry("phase", _text)})),
    }),
    ("v1", "ConfigMap"): _Message({
        1: _META, 2: _Entry("data", _TEXTS, _S.MAP), 3: _Entry("binaryData", _BLOBS, _S.MAP),
        4: _Entry("immutable", _boolean, _S.SET),
    }),
    ("v1", "Secret"): _Message({
        1: _META, 2: _Entry("data", _BLOBS, _S.MAP), 3: _Entry("type", _text),
        4: _Entry("stringData", _TEXTS, _S.MAP), 5: _Entry("immutable", _boolean, _S.SET),
    }),
    ("v1", "ServiceAccount"): _Message({
        1: _META, 4: _Entry("automountServiceAccountToken", _boolean, _S.SET),
    }),
    ("scheduling.k8s.io/v1", "PriorityClass"): _Message({
        1: _META, 2: _Entry("value", _signed, _S.SET), 3: _Entry("globalDefault", _boolean),
        4: _Entry("description", _text), 5: _Entry("preemptionPolicy", _text),
    }),
    ("coordination.k8s.io/v1", "Lease"): _Message({
        1: _META, 2: _Entry("spec", _LEASE_SPEC, _S.SET),
    }),
    ("v1", "Event"): _EVENT,
    ("v1", "Binding"): _Message({1: _META, 2: _Entry("target", _REFERENCE)}),
    ("policy/v1", "PodDisruptionBudget"): _Message({
        1: _META, 2: _Entry("spec", _BUDGET_SPEC), 3: _Entry("status", _nothing),
    }),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _review,
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): _review,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): _review,
}  # fmt: skip


def decode_protobuf(body: bytes) -> dict[str, Any]:
    """Return the JSON form of a protobuf body.

    UnsupportedMediaType for kinds and fields that no table names, BadRequest for bytes that are no
    message.
    """
    if not body.startswith(_MAGIC):
        raise BadRequest("the body is not protobuf as Kubernetes writes it")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        head = dict(_fields(_bytes(envelope.get(1, b""))))
        version, kind = _text(head.get(1, b"")), _text(head.get(2, b""))
        read = _READERS.get((version, kind)) or _READERS.get(("", kind))
        if read is None:
            raise _refused(kind, "")
        return {"apiVersion": version, "kind": kind} | read(envelope.get(2, b""))
    except _UnknownField as field:
        raise _refused("body", f" with its field {field}") from None
    except ValueError:
        raise BadRequest("the body is not a protobuf message") from None


def _refused(kind: str, why: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(
        f"a {kind[:80] or 'body'} in protobuf{why} is not accepted: send application/json"
    )
