"""One audit event: the few fields that are decoded, and the caller with its names folded (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

EXTRA = "authentication.kubernetes.io/"
SERVICE_ACCOUNT = "system:serviceaccount:"
NODE = "system:node:"
#: Of a Deployment's pod (hash of the ReplicaSet and five characters), of a DaemonSet's, and of a
#: StatefulSet's.
_POD = re.compile(r"^(.+?)(?:-[a-z0-9]{6,10})?-[a-z0-9]{5}$|^(.+)-\d+$")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
TEXT_MAX = 200


class Extra(msgspec.Struct):
    """The node and the pod of a bound service account token."""

    node_name: list[str] = msgspec.field(default=[], name=f"{EXTRA}node-name")
    pod_name: list[str] = msgspec.field(default=[], name=f"{EXTRA}pod-name")


class AuditUser(msgspec.Struct):
    """Who sent the request."""

    username: str = ""
    extra: Extra | None = None


class ResponseStatus(msgspec.Struct):
    """How it was answered."""

    code: int = 0


class Annotations(msgspec.Struct):
    """What the API server adds about slow requests (over 500 ms)."""

    queue_wait: str = msgspec.field(default="", name="apiserver.latency.k8s.io/apf-queue-wait")


class AuditEvent(msgspec.Struct, rename="camel", gc=False):
    """An event of audit.k8s.io/v1; bodies are never decoded."""

    stage: str = ""
    audit_id: str = msgspec.field(default="", name="auditID")
    request_uri: str = msgspec.field(default="", name="requestURI")
    verb: str = ""
    user: AuditUser | None = None
    user_agent: str = ""
    source_ips: list[str] | None = msgspec.field(default=None, name="sourceIPs")
    response_status: ResponseStatus | None = None
    request_received_timestamp: str = ""
    stage_timestamp: str = ""
    annotations: Annotations | None = None


class AuditCaller(NamedTuple):
    """Who calls. `node` is the node, or the client's address where no node is known."""

    principal: str
    program: str
    workload: str
    node: str
    has_node: bool


DECODER = msgspec.json.Decoder(AuditEvent)


class CallerIdentity(NamedTuple):
    """What decides who a caller is, as it stands in the event."""

    username: str
    user_agent: str
    address: str
    node: str
    pod: str


def caller_of(identity: CallerIdentity) -> AuditCaller:
    """Return the caller, with the names of nodes and pods folded."""
    name, node, pod = identity.username, identity.node, identity.pod
    principal, workload = name, ""
    if name.startswith(NODE):
        node = node or name[len(NODE) :]
        principal = f"{NODE}*"
    elif name.startswith(SERVICE_ACCOUNT):
        namespace, _, account = name[len(SERVICE_ACCOUNT) :].partition(":")
        workload = f"{namespace}/{owner_of(pod) if pod else account}"
    return AuditCaller(
        principal[:TEXT_MAX], program_of(identity.user_agent), workload[:TEXT_MAX],
        (node or identity.address)[:TEXT_MAX], bool(node),
    )  # fmt: skip


def program_of(user_agent: str) -> str:
    """Return the program of a user agent, without its version."""
    return user_agent.partition(" ")[0].partition("/")[0][:TEXT_MAX]


def owner_of(pod: str) -> str:
    """Return the name of the workload that made a pod, from the pod's name."""
    found = _POD.match(pod)
    return (found[1] or found[2]) if found else pod


def seconds_of(duration: str) -> float:
    """Return the seconds of a Go duration such as `1m2.5s`; 0 for what is none."""
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(duration))
