"""What `kubectl get` shows: the columns and cells of each kind, computed on the server.

A `Printer` is columns plus a function from one object (plain JSON values) to its cells. Built-in
kinds have the columns of the real server (pkg/printers/internalversion/printers.go), which
`printers.json` lists; custom kinds get theirs from `additionalPrinterColumns`
(`http/answering/columns.py`). Columns of priority 1 show only with `-o wide`. Pure: the instant
that ages are counted from is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import msgspec

from fairlead.api import names
from fairlead.api.values.times import parse_time
from fairlead.embedded.resource_info import PrinterColumn

Object: TypeAlias = Mapping[str, Any]
Cell: TypeAlias = str | int | float | bool | None
Cells: TypeAlias = list[Cell]

NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"
_SHOWN_MAX = 3
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 86_400 * 365


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns, and `cells(object, now)`, which gives one value per column."""

    columns: tuple[PrinterColumn, ...]
    cells: Callable[[Object, float], Cells]

    def definitions(self) -> list[dict[str, Any]]:
        """Return the `columnDefinitions` of a meta.k8s.io/v1 Table."""
        return [
            {"name": c.name, "type": c.type, "format": c.format, "description": c.description,
             "priority": c.priority}
            for c in self.columns
        ]  # fmt: skip


_NAME = PrinterColumn("Name", "Unique within its namespace.", format="name")
_AGE = PrinterColumn("Age", "Time since it was created.")


def human_duration(seconds: float) -> str:
    """Return "42s", "3m7s", "5h", "2d3h", "1y4d": two units at most, fewer the longer it is.

    Rounded down. The thresholds are those of apimachinery `pkg/util/duration`.
    """
    if seconds < -1:
        return "<invalid>"
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    for unit, big, small, two_until, until in (
        (_MINUTE, "m", "s", 10 * _MINUTE, 3 * _HOUR),
        (_HOUR, "h", "m", 8 * _HOUR, 48 * _HOUR),
        (_DAY, "d", "h", 8 * _DAY, 2 * _YEAR),
    ):
        if whole < until:
            rest = whole % unit // {"s": 1, "m": _MINUTE, "h": _HOUR}[small]
            return f"{whole // unit}{big}" + (
                f"{rest}{small}" if rest and whole < two_until else ""
            )
    years, rest = divmod(whole, _YEAR)
    return f"{years}y" + (f"{rest // _DAY}d" if rest >= _DAY and years < 8 else "")


def age(timestamp: object, now: float) -> str:
    """Return the time since `timestamp` (RFC 3339), "<unknown>" when there is none."""
    if not isinstance(timestamp, str) or not timestamp:
        return UNKNOWN
    try:
        return human_duration(now - parse_time(timestamp))
    except ValueError:
        return "<invalid>"


def _get(value: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _rows(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list field; [] for anything else, so that odd objects still print."""
    if not isinstance(value, list):
        return []
    return [row for row in value if isinstance(row, Mapping)]


def _text(value: Any, default: str = "") -> str:
    return default if value is None or value == "" else str(value)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _name(obj: Object) -> str:
    return _text(_get(obj, "metadata", "name"))


def _created(obj: Object, now: float) -> str:
    return age(_get(obj, "metadata", "creationTimestamp"), now)


def _ended(state: Mapping[str, Any]) -> str:
    reason = _text(state.get("reason"))
    if reason:
        return reason
    if _count(state.get("signal")):
        return f"Signal:{state['signal']}"
    return f"ExitCode:{_count(state.get('exitCode'))}"


def _init_status(pod: Object) -> str | None:
    """Say "Init:..." while init containers run or when one failed; None when they are all done."""
    specs = {_text(c.get("name")): c for c in _rows(_get(pod, "spec", "initContainers"))}
    for index, status in enumerate(_rows(_get(pod, "status", "initContainerStatuses"))):
        terminated = _get(status, "state", "terminated")
        if isinstance(terminated, Mapping) and _count(terminated.get("exitCode")) == 0:
            continue
        sidecar = _get(specs.get(_text(status.get("name"))), "restartPolicy") == "Always"
        if sidecar and status.get("started"):
            continue
        if isinstance(terminated, Mapping):
            return "Init:" + _ended(terminated)
        waiting = _text(_get(status, "state", "waiting", "reason"))
        if waiting and waiting != "PodInitializing":
            return "Init:" + waiting
        return f"Init:{index}/{len(specs)}"
    return None


def _true_conditions(pod: Object) -> list[str]:
    conditions = _rows(_get(pod, "status", "conditions"))
    return [_text(c.get("type")) for c in conditions if c.get("status") == "True"]


def _container_status(pod: Object, start: str) -> str:
    """The reason of the first container that says more than the phase does."""
    statuses = _rows(_get(pod, "status", "containerStatuses"))
    reason, running = start, False
    for status in reversed(statuses):
        waiting = _text(_get(status, "state", "waiting", "reason"))
        terminated = _get(status, "state", "terminated")
        if waiting:
            reason = waiting
        elif isinstance(terminated, Mapping):
            reason = _ended(terminated)
        elif status.get("ready") and isinstance(_get(status, "state", "running"), Mapping):
            running = True
    if reason == "Completed" and running:
        return "Running" if "Ready" in _true_conditions(pod) else "NotReady"
    return reason


def pod_status(pod: Object) -> str:
    """Return the STATUS column of a pod, as `printPod` of the real server does."""
    phase = _text(_get(pod, "status", "phase"), "Unknown")
    reason = _text(_get(pod, "status", "reason"), phase)
    for condition in _rows(_get(pod, "status", "conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    reason = _init_status(pod) or _container_status(pod, reason)
    if _get(pod, "metadata", "deletionTimestamp"):
        if _get(pod, "status", "reason") == "NodeLost":
            return "Unknown"
        if phase not in ("Succeeded", "Failed"):
            return "Terminating"
    return reason


def _restarts(statuses: Sequence[Mapping[str, Any]], now: float) -> str:
    total = sum(_count(s.get("restartCount")) for s in statuses)
    ends = [_get(s, "lastState", "terminated", "finishedAt") for s in statuses]
    last = max((end for end in ends if isinstance(end, str)), default="")
    return f"{total} ({age(last, now)} ago)" if total and last else str(total)


def _pod(pod: Object, now: float) -> Cells:
    containers = _rows(_get(pod, "spec", "containers"))
    statuses = _rows(_get(pod, "status", "containerStatuses"))
    ready = sum(bool(s.get("ready") and _get(s, "state", "running") is not None) for s in statuses)
    gates = [_text(g.get("conditionType")) for g in _rows(_get(pod, "spec", "readinessGates"))]
    true = _true_conditions(pod)
    return [
        _name(pod),
        f"{ready}/{len(containers)}",
        pod_status(pod),
        _restarts(statuses, now),
        _created(pod, now),
        _text(_get(pod, "status", "podIP"), NONE),
        _text(_get(pod, "spec", "nodeName"), NONE),
        _text(_get(pod, "status", "nominatedNodeName"), NONE),
        f"{sum(g in true for g in gates)}/{len(gates)}" if gates else NONE,
    ]


def _node_status(node: Object) -> str:
    conditions = _rows(_get(node, "status", "conditions"))
    ready = [c.get("status") for c in conditions if c.get("type") == "Ready"]
    words = ["Unknown" if not ready else "Ready" if ready[0] == "True" else "NotReady"]
    if _get(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object) -> str:
    labels = _get(node, "metadata", "labels")
    roles: set[str] = set()
    for key, value in (labels if isinstance(labels, Mapping) else {}).items():
        if key.startswith(names.ROLE_LABEL_PREFIX) and key != names.ROLE_LABEL_PREFIX:
            roles.add(key.removeprefix(names.ROLE_LABEL_PREFIX))
        elif key == "kubernetes.io/role" and value:
            roles.add(str(value))
    return ",".join(sorted(roles)) or NONE


def _node_address(node: Object, kind: str) -> str:
    for address in _rows(_get(node, "status", "addresses")):
        if address.get("type") == kind:
            return _text(address.get("address"), NONE)
    return NONE


def _node(node: Object, now: float) -> Cells:
    info = _get(node, "status", "nodeInfo")
    return [
        _name(node),
        _node_status(node),
        _node_roles(node),
        _created(node, now),
        _text(_get(info, "kubeletVersion")),
        _node_address(node, "InternalIP"),
        _node_address(node, "ExternalIP"),
        _text(_get(info, "osImage"), UNKNOWN),
        _text(_get(info, "kernelVersion"), UNKNOWN),
        _text(_get(info, "containerRuntimeVersion"), UNKNOWN),
    ]


def _source(event: Object) -> str:
    component = _get(event, "source", "component") or event.get("reportingComponent")
    host = _get(event, "source", "host") or event.get("reportingInstance")
    return ", ".join(str(part) for part in (component, host) if part)


def _event(event: Object, now: float) -> Cells:
    series = event.get("series")
    first = _text(event.get("firstTimestamp") or event.get("eventTime"))
    last = _text(event.get("lastTimestamp")) or first
    count = max(1, _count(event.get("count")))
    if isinstance(series, Mapping):
        last = _text(series.get("lastObservedTime"), last)
        count = max(1, _count(series.get("count")))
    target = event.get("involvedObject") or event.get("regarding")
    kind, name = _text(_get(target, "kind")).lower(), _text(_get(target, "name"))
    return [
        age(last, now),
        _text(event.get("type")),
        _text(event.get("reason")),
        f"{kind}/{name}" if name else kind,
        _text(_get(target, "fieldPath")),
        _source(event),
        _text(event.get("message") or event.get("note")).strip(),
        age(first, now),
        count,
        _name(event),
    ]


def _ports(ports: Any) -> str:
    out: list[str] = []
    for port in _rows(ports):
        node_port = f":{port['nodePort']}" if _count(port.get("nodePort")) else ""
        out.append(f"{_text(port.get('port'))}{node_port}/{_text(port.get('protocol'), 'TCP')}")
    return ",".join(out) or NONE


def _service(service: Object, now: float) -> Cells:
    spec = service.get("spec")
    selector = _get(spec, "selector")
    ingress = _rows(_get(service, "status", "loadBalancer", "ingress"))
    external = [_text(i.get("ip") or i.get("hostname")) for i in ingress]
    own = _get(spec, "externalIPs")
    external += [str(ip) for ip in own] if isinstance(own, list) else []
    return [
        _name(service),
        _text(_get(spec, "type"), "ClusterIP"),
        _text(_get(spec, "clusterIP"), NONE),
        _text(_get(spec, "externalName")) or ",".join(external) or NONE,
        _ports(_get(spec, "ports")),
        _created(service, now),
        ",".join(f"{k}={selector[k]}" for k in sorted(selector))
        if isinstance(selector, Mapping) and selector
        else NONE,
    ]


_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_ACCESS_MODES = {
    "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}  # fmt: skip


def _modes(given: Any) -> str:
    modes = _get(given, "accessModes")
    shown = modes if isinstance(modes, list) else []
    return ",".join(_ACCESS_MODES.get(str(mode), str(mode)) for mode in shown)


def _phase(obj: Object) -> str:
    is_leaving = _get(obj, "metadata", "deletionTimestamp")
    return "Terminating" if is_leaving else _text(_get(obj, "status", "phase"))


def _volume(volume: Object, now: float) -> Cells:
    spec, status = volume.get("spec"), volume.get("status")
    owner = _get(spec, "claimRef")
    return [
        _name(volume),
        _text(_get(spec, "capacity", "storage")),
        _modes(spec),
        _text(_get(spec, "persistentVolumeReclaimPolicy")),
        _phase(volume),
        f"{_text(_get(owner, 'namespace'))}/{_text(_get(owner, 'name'))}" if owner else "",
        _text(_get(spec, "storageClassName")),
        _text(_get(spec, "volumeAttributesClassName"), UNSET),
        _text(_get(status, "reason")),
        _created(volume, now),
        _text(_get(spec, "volumeMode"), UNSET),
    ]


def _storage_class(obj: Object, now: float) -> Cells:
    is_default = _get(obj, "metadata", "annotations", _DEFAULT_CLASS) == "true"
    return [
        f"{_name(obj)} (default)" if is_default else _name(obj),
        _text(obj.get("provisioner")),
        _text(obj.get("reclaimPolicy"), "Delete"),
        _text(obj.get("volumeBindingMode"), "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        _created(obj, now),
    ]


def _claim(claim: Object, now: float) -> Cells:
    spec, status = claim.get("spec"), claim.get("status")
    bound = bool(_get(spec, "volumeName"))
    return [
        _name(claim),
        _phase(claim),
        _text(_get(spec, "volumeName")),
        _text(_get(status, "capacity", "storage")) if bound else "",
        _modes(status) if bound else "",
        _text(_get(spec, "storageClassName")),
        _text(_get(spec, "volumeAttributesClassName"), UNSET),
        _created(claim, now),
        _text(_get(spec, "volumeMode"), UNSET),
    ]


def _budget(budget: Object, now: float) -> Cells:
    spec = budget.get("spec")
    return [
        _name(budget),
        _text(_get(spec, "minAvailable"), "N/A"),
        _text(_get(spec, "maxUnavailable"), "N/A"),
        _count(_get(budget, "status", "disruptionsAllowed")),
        _created(budget, now),
    ]


def _quota(quota: Object, now: float) -> Cells:
    hard, used = (_get(quota, "status", part) or {} for part in ("hard", "used"))
    shown = {name: f"{name}: {_text(used.get(name), '0')}/{_text(hard[name])}" for name in hard}
    limits = [name for name in sorted(hard) if name.startswith("limits.")]
    requests = [name for name in sorted(hard) if name not in limits]
    columns = (", ".join(shown[name] for name in names) for names in (requests, limits))
    return [_name(quota), *columns, _created(quota, now)]


def _priority_class(obj: Object, now: float) -> Cells:
    return [
        _name(obj),
        _count(obj.get("value")),
        bool(obj.get("globalDefault")),
        _created(obj, now),
        _text(obj.get("preemptionPolicy"), "PreemptLowerPriority"),
    ]


def _entries(obj: Object) -> int:
    return sum(len(obj.get(f) or {}) for f in ("data", "binaryData", "stringData"))


def _webhooks(obj: Object, now: float) -> Cells:
    return [_name(obj), len(obj.get("webhooks") or ()), _created(obj, now)]


def _endpoint_slice(obj: Object, now: float) -> Cells:
    ports = [str(port.get("port", "*")) for port in obj.get("ports") or ()]
    addresses = [a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]
    kind = obj.get("addressType") or ""
    return [_name(obj), kind, _few(ports), _few(addresses), _created(obj, now)]


def _few(texts: list[str]) -> str:
    """Return the first texts and how many there are beyond them."""
    shown = ",".join(texts[:_SHOWN_MAX]) or UNSET
    more = len(texts) - _SHOWN_MAX
    return f"{shown} + {more} more..." if more > 0 else shown


def _made(obj: Object, _: float) -> Cells:
    return [_name(obj), _text(_get(obj, "metadata", "creationTimestamp"), UNKNOWN)]


GENERIC = Printer((_NAME, _AGE), lambda o, now: [_name(o), _created(o, now)])

_CELLS: Mapping[str, Callable[[Object, float], Cells]] = {
    "pods": _pod,
    "nodes": _node,
    "events": _event,
    "namespaces": lambda o, now: [_name(o), _text(_get(o, "status", "phase")), _created(o, now)],
    "configmaps": lambda o, now: [_name(o), _entries(o), _created(o, now)],
    "secrets": lambda o, now: [_name(o), _text(o.get("type")), _entries(o), _created(o, now)],
    "services": _service,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume,
    "storageclasses.storage.k8s.io": _storage_class,
    "resourcequotas": _quota,
    "leases.coordination.k8s.io": lambda o, now: [
        _name(o), _text(_get(o, "spec", "holderIdentity")), _created(o, now),
    ],
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "poddisruptionbudgets.policy": _budget,
    "customresourcedefinitions.apiextensions.k8s.io": _made,
    "limitranges": _made,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "endpointslices.discovery.k8s.io": _endpoint_slice,
}  # fmt: skip


def _columns_of(rows: Sequence[Sequence[str]]) -> tuple[PrinterColumn, ...]:
    """Return the columns of rows of `printers.json`: name, description, and what sets it apart."""
    columns: list[PrinterColumn] = []
    for name, *rest in rows:
        if not rest:
            columns.append({"Name": _NAME, "Age": _AGE}[name])
            continue
        description, *marks = rest
        kind = next((mark for mark in marks if mark not in ("wide", "name")), "string")
        format_ = "name" if "name" in marks else ""
        columns.append(PrinterColumn(name, description, kind, format_, int("wide" in marks)))
    return tuple(columns)


@cache
def printers() -> Mapping[str, Printer]:
    """Return the printers of built-in kinds, by the name of the resource: `plural.group`."""
    data = resources.files("fairlead.embedded").joinpath("printers.json").read_bytes()
    found = msgspec.json.decode(data, type=dict[str, list[list[str]]])
    return {name: Printer(_columns_of(rows), _CELLS[name]) for name, rows in found.items()}
