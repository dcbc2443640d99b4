"""What a request URI asks for: resource, scope and shape, with names and values folded (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

CONNECTING = frozenset(("exec", "attach", "portforward", "proxy", "log"))


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """A request without its names. `scope` is resource, namespace, cluster or nonresource.

    `shape` names what decides the cost of a list: `limit=500 rv=0 field=spec.nodeName`.
    """

    resource: str
    scope: str
    shape: str

    @property
    def is_connection(self) -> bool:
        """True for what stays open as long as its user likes."""
        return self.resource.rpartition("/")[2] in CONNECTING


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request with the namespace and the name that it is about; empty texts where none."""

    request: AuditRequest
    namespace: str
    name: str


def resource_name(group: str, plural: str) -> str:
    """Return the name of a resource: its plural, with the group where that is not Kubernetes'."""
    return f"{plural}.{group}" if "." in group and not group.endswith(".k8s.io") else plural


def parse_uri(uri: str) -> RequestTarget:
    """Return what a URI asks for; anything that is no resource path is of scope nonresource."""
    path, _, query = uri.partition("?")
    parts = path.split("/")
    base = {"api": 3, "apis": 4}.get(parts[1], 0) if len(parts) > 1 and not parts[0] else 0
    if not base or len(parts) <= base or not parts[base]:
        return RequestTarget(
            AuditRequest("/".join(parts[:3])[:100] or "/", "nonresource", ""), "", ""
        )
    group = parts[2] if base == 4 else ""
    namespace = ""
    rest = parts[base:]
    if rest[0] == "watch" and len(rest) > 1:  # the deprecated form
        rest = rest[1:]
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
        if rest[0] in ("status", "finalize"):
            rest = ["namespaces", namespace, *rest]
            namespace = ""
    name = unquote(rest[1]) if len(rest) > 1 else ""
    resource = resource_name(group, rest[0])
    if len(rest) > 2 and rest[2]:
        resource = f"{resource}/{rest[2]}"
    scope = "resource" if name else "namespace" if namespace else "cluster"
    return RequestTarget(
        AuditRequest(resource[:200], scope, shape_of(query)), unquote(namespace), name
    )


def shape_of(query: str) -> str:
    """Return the parts of a query that decide the cost of a list or a watch, values folded."""
    if not query:
        return ""
    limit = version = ""
    marks: list[str] = []
    for key, value in parse_qsl(query[:4096], keep_blank_values=True):
        if key == "limit" and value not in ("", "0"):
            limit = f"limit={value[:8]}"
        elif key == "continue" and value:
            version = "continue"
        elif key == "resourceVersion" and value and version != "continue":
            version = "rv=0" if value == "0" else "rv=exact"
        elif key == "fieldSelector" and value:
            fields = sorted({each.partition("=")[0].rstrip("!") for each in value.split(",")})
            marks.append(f"field={','.join(fields)[:60]}")
        elif key == "labelSelector" and value:
            marks.append("label")
        elif key == "sendInitialEvents" and value == "true":
            marks.append("initial-events")
    return " ".join(each for each in (limit, version, *sorted(marks)) if each)
