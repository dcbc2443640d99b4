"""metrics.k8s.io/v1beta1, which `kubectl top` reads: what pods and nodes use now.

Nothing of it is stored. Nodes look at their pods from time to time (`embedded/local/use.py`); an
answer has the latest look and the time since the one before. What was looked at less than twice is
left out, as metrics-server does. Pods say besides what they have used so far, in the annotation
that says it once they have ended. Source: kubernetes/metrics `pkg/apis/metrics/v1beta1/types.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead.api import names
from fairlead.api.jobs.use import MemberUse, encode_use
from fairlead.api.kubernetes.selectors import SelectorError, parse_labels
from fairlead.api.resources import POD_METRICS
from fairlead.api.status import BadRequest, MethodNotAllowed, NotFound
from fairlead.api.values import quantity
from fairlead.api.values.times import format_time
from fairlead.embedded.http.request import PathNotFound, Query, ResourcePath
from fairlead.embedded.resource_info import ResourceInfo

GROUP, VERSION = POD_METRICS.group, POD_METRICS.version
INFOS = (
    ResourceInfo(GROUP, VERSION, "nodes", "NodeMetrics", namespaced=False, verbs=("get", "list")),
    ResourceInfo(GROUP, VERSION, "pods", "PodMetrics", namespaced=True, verbs=("get", "list")),
)
_BY_PLURAL = {info.plural: info for info in INFOS}


@dataclass(frozen=True, slots=True)
class Measure:
    """What something uses: thousandths of a processor over the window, and bytes at its end."""

    at: float
    window_seconds: float
    cpu_milli: int
    memory_bytes: int

    @property
    def wire(self) -> dict[str, str]:
        """Return the usage as quantities."""
        return {
            quantity.CPU: f"{self.cpu_milli}m",
            quantity.MEMORY: f"{-(-self.memory_bytes // 1024)}Ki",
        }


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """What a pod uses, by container, and has used so far; or a node, which has one part named ""
    and no namespace.
    """

    name: str
    namespace: str
    labels: Mapping[str, str]
    parts: Mapping[str, Measure]
    so_far: MemberUse | None = None


class MetricsSource(Protocol):
    """The nodes, as they measure."""

    def measured_pods(self) -> Iterable[MeasuredUse]:
        """Return the pods that were looked at twice."""
        ...

    def measured_nodes(self) -> Iterable[MeasuredUse]:
        """Return the nodes that were looked at twice."""
        ...


def answer_metrics(
    source: MetricsSource, method: str, path: ResourcePath, query: Query
) -> dict[str, Any]:
    """Return the answer to a request for metrics; NotFound, BadRequest, MethodNotAllowed."""
    info = _BY_PLURAL.get(path.plural)
    if path.version != VERSION or info is None or path.subresource:
        raise PathNotFound("404 page not found")
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{method} is not supported on {info.plural}.{GROUP}")
    if query.flag("watch"):
        raise MethodNotAllowed(f"watch is not supported on {info.plural}.{GROUP}")
    try:
        selector = parse_labels(query.text("labelSelector"))
    except SelectorError as error:
        raise BadRequest(f"labelSelector: {error}") from error
    is_pods = info.namespaced
    measured = source.measured_pods() if is_pods else source.measured_nodes()
    items = [
        _object(each, info.kind)
        for each in sorted(measured, key=lambda each: (each.namespace, each.name))
        if each.parts and path.namespace in ("", each.namespace) and path.name in ("", each.name)
        and (path.name or selector.matches(each.labels))
    ]  # fmt: skip
    head = {"apiVersion": f"{GROUP}/{VERSION}"}
    if not path.name:
        return {"kind": f"{info.kind}List", **head, "metadata": {}, "items": items}
    if not items:
        raise NotFound(f'{info.plural}.{GROUP} "{path.name}" not found: it was not measured yet')
    return {"kind": info.kind, **head, **items[0]}


def _object(each: MeasuredUse, kind: str) -> dict[str, Any]:
    latest = max(each.parts.values(), key=lambda part: part.at)
    metadata: dict[str, Any] = {
        "name": each.name, "creationTimestamp": format_time(latest.at), "labels": dict(each.labels),
    }  # fmt: skip
    if each.namespace:
        metadata["namespace"] = each.namespace
    if each.so_far is not None:
        metadata["annotations"] = {names.USE: encode_use(each.so_far)}
    out: dict[str, Any] = {
        "metadata": metadata, "timestamp": format_time(latest.at),
        "window": f"{latest.window_seconds:.3f}s",
    }  # fmt: skip
    if kind == "NodeMetrics":
        return {**out, "usage": latest.wire}
    parts = sorted(each.parts.items())
    return {**out, "containers": [{"name": name, "usage": part.wire} for name, part in parts]}
