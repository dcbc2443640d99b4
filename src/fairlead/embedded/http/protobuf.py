"""The protobuf bodies that kubectl, and leader election in Go, cannot be talked out of.

The typed clients of client-go (from v0.33 on) write protobuf and have no fallback when that is
refused: `kubectl create namespace`, `create configmap`, `drain`, `auth can-i` and some more would
fail. The messages that those send are described here as tables. Whatever is not in a table, a kind
or a single field, is refused with 415, so that nothing is read by halves. Answers are always JSON,
which those clients take.

The envelope: apimachinery `pkg/runtime/serializer/protobuf`; field numbers: `generated.proto` of
each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.status import BadRequest, UnsupportedMediaType
from fairlead.embedded.http.protobuf_definition import DEFINITION
from fairlead.embedded.http.protobuf_wire import (
    META,
    TEXTS,
    Entry,
    Message,
    S,
    UnknownField,
    as_bytes,
    blob,
    boolean,
    fields,
    int_or_string,
    micro_time,
    nothing,
    signed,
    text,
    time,
)

_MAGIC = b"k8s\x00"
_BLOBS = Message({1: Entry("key", text), 2: Entry("value", blob)})
_PRECONDITIONS = Message({1: Entry("uid", text, S.SET), 2: Entry("resourceVersion", text, S.SET)})
_DELETE_OPTIONS = Message({
    1: Entry("gracePeriodSeconds", signed, S.SET), 2: Entry("preconditions", _PRECONDITIONS),
    3: Entry("orphanDependents", boolean, S.SET), 4: Entry("propagationPolicy", text, S.SET),
    5: Entry("dryRun", text, S.LIST),
})  # fmt: skip
_SELECTOR = Message({
    1: Entry("matchLabels", TEXTS, S.MAP),
    2: Entry("matchExpressions", Message({
        1: Entry("key", text), 2: Entry("operator", text), 3: Entry("values", text, S.LIST),
    }), S.LIST),
})  # fmt: skip
_BUDGET_SPEC = Message({
    1: Entry("minAvailable", int_or_string, S.SET), 2: Entry("selector", _SELECTOR, S.SET),
    3: Entry("maxUnavailable", int_or_string, S.SET),
    4: Entry("unhealthyPodEvictionPolicy", text),
})  # fmt: skip
_LEASE_SPEC = Message({
    1: Entry("holderIdentity", text, S.SET), 2: Entry("leaseDurationSeconds", signed, S.SET),
    3: Entry("acquireTime", micro_time), 4: Entry("renewTime", micro_time),
    5: Entry("leaseTransitions", signed, S.SET), 6: Entry("strategy", text, S.SET),
    7: Entry("preferredHolder", text, S.SET),
})  # fmt: skip
_REFERENCE = Message({
    1: Entry("kind", text), 2: Entry("namespace", text), 3: Entry("name", text),
    4: Entry("uid", text), 5: Entry("apiVersion", text), 6: Entry("resourceVersion", text),
    7: Entry("fieldPath", text),
})  # fmt: skip
_EVENT = Message({
    1: META, 2: Entry("involvedObject", _REFERENCE, S.SET), 3: Entry("reason", text),
    4: Entry("message", text),
    5: Entry("source", Message({1: Entry("component", text), 2: Entry("host", text)})),
    6: Entry("firstTimestamp", time), 7: Entry("lastTimestamp", time),
    8: Entry("count", signed), 9: Entry("type", text), 10: Entry("eventTime", micro_time),
    11: Entry("series", Message({
        1: Entry("count", signed), 2: Entry("lastObservedTime", micro_time),
    })),
    12: Entry("action", text), 13: Entry("related", _REFERENCE),
    14: Entry("reportingComponent", text), 15: Entry("reportingInstance", text),
})  # fmt: skip


def _review(_value: int | bytes) -> dict[str, Any]:
    """A review comes without its `spec`: the answer does not depend on it."""
    return {}


#: Readers by (apiVersion, kind); "" as apiVersion is any, for the options that every group has.
_READERS: Mapping[tuple[str, str], Callable[[int | bytes], dict[str, Any]]] = {
    ("", "DeleteOptions"): _DELETE_OPTIONS,
    ("policy/v1", "Eviction"): Message({1: META, 2: Entry("deleteOptions", _DELETE_OPTIONS)}),
    ("v1", "Namespace"): Message({
        1: META, 2: Entry("spec", Message({1: Entry("finalizers", text, S.LIST)})),
        3: Entry("status", Message({1: Entry("phase", text)})),
    }),
    ("v1", "ConfigMap"): Message({
        1: META, 2: Entry("data", TEXTS, S.MAP), 3: Entry("binaryData", _BLOBS, S.MAP),
        4: Entry("immutable", boolean, S.SET),
    }),
    ("v1", "Secret"): Message({
        1: META, 2: Entry("data", _BLOBS, S.MAP), 3: Entry("type", text),
        4: Entry("stringData", TEXTS, S.MAP), 5: Entry("immutable", boolean, S.SET),
    }),
    ("v1", "ServiceAccount"): Message({
        1: META, 4: Entry("automountServiceAccountToken", boolean, S.SET),
    }),
    ("scheduling.k8s.io/v1", "PriorityClass"): Message({
        1: META, 2: Entry("value", signed, S.SET), 3: Entry("globalDefault", boolean),
        4: Entry("description", text), 5: Entry("preemptionPolicy", text),
    }),
    ("coordination.k8s.io/v1", "Lease"): Message({
        1: META, 2: Entry("spec", _LEASE_SPEC, S.SET),
    }),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): DEFINITION,
    ("v1", "Event"): _EVENT,
    ("v1", "Binding"): Message({1: META, 2: Entry("target", _REFERENCE)}),
    ("policy/v1", "PodDisruptionBudget"): Message({
        1: META, 2: Entry("spec", _BUDGET_SPEC), 3: Entry("status", nothing),
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
        envelope = dict(fields(body[len(_MAGIC) :]))
        head = dict(fields(as_bytes(envelope.get(1, b""))))
        version, kind = text(head.get(1, b"")), text(head.get(2, b""))
        read = _READERS.get((version, kind)) or _READERS.get(("", kind))
        if read is None:
            raise _refused(kind, "")
        return {"apiVersion": version, "kind": kind} | read(envelope.get(2, b""))
    except UnknownField as field:
        raise _refused("body", f" with its field {field}") from None
    except ValueError:
        raise BadRequest("the body is not a protobuf message") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _refused(kind: str, why: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(
        f"a {kind[:80] or 'body'} in protobuf{why} is not accepted: send application/json"
    )
