"""What a pod's spec leaves open and the API server fills in (kubernetes
`pkg/apis/core/v1/defaults.go`, `plugin/pkg/admission/defaulttolerationseconds`).

Only the top level of a spec is changed in place. The structure is not checked yet; a spec of
another one raises AttributeError, KeyError, TypeError or ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.api.pods import pod_asks
from fairlead.api.values.amounts import read_all, written
from fairlead.embedded.quota.usage import container_total

TOLERATION_SECONDS = 300
_DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CONTAINERS = ("containers", "initContainers")

_SPEC_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "enableServiceLinks": True,
}


def spec_of(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec; TypeError when it is something else, even something empty."""
    spec = obj.get("spec")
    if spec is not None and not isinstance(spec, dict):
        raise TypeError("spec must be an object")
    return spec or {}


def default_pod_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with what it leaves open filled in."""
    out = dict(spec)
    for field, value in _SPEC_DEFAULTS.items():
        if out.get(field) in (None, ""):
            out[field] = value
    grace = out["terminationGracePeriodSeconds"]
    if isinstance(grace, int) and grace < 0:  # `pkg/apis/core/v1/defaults.go`
        out["terminationGracePeriodSeconds"] = 1
    for field in _CONTAINERS:
        if out.get(field):
            out[field] = [_default_container(container) for container in out[field]]
    if out.get("resources"):
        out["resources"] = _default_resources(out)
    return out


def _default_resources(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a pod asks for as a whole (`defaultHugePagePodLimits`, `defaultPodRequests`)."""
    out: dict[str, Any] = dict(spec["resources"])
    requests, limits = out.get("requests") or {}, out.get("limits") or {}
    if not (requests or limits):
        return out
    pages = {
        name: amount
        for name, amount in container_total(spec, "limits").items()
        if name.startswith(pod_asks.HUGE_PAGES) and name not in requests
    }
    limits = {**written(pages), **limits}
    if not limits:
        return out
    total = container_total(spec, "requests")
    asked = pod_asks.pod_level_requests(total, read_all(requests), read_all(limits))
    return {**out, "limits": limits, "requests": {**written(asked), **requests}}


def _default_container(container: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(container)
    put = out.setdefault
    image = out.get("image")
    if image:
        _, _, tag = image.rpartition("/")[2].partition(":")
        latest = tag in ("", "latest") and "@" not in image
        put("imagePullPolicy", "Always" if latest else "IfNotPresent")
    put("terminationMessagePath", "/dev/termination-log")
    put("terminationMessagePolicy", "File")
    resources = out.get("resources") or {}
    limits = resources.get("limits")
    if limits:
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    out["resources"] = resources
    if out.get("ports"):
        out["ports"] = [{"protocol": "TCP", **port} for port in out["ports"]]
    return out


def add_tolerations(spec: dict[str, Any]) -> None:
    """Add the tolerations that every pod has for five minutes (DefaultTolerationSeconds)."""
    tolerations: list[dict[str, Any]] = list(spec.get("tolerations") or ())
    for key in _DEFAULT_TOLERATIONS:
        if not any(
            t.get("key", "") in ("", key) and t.get("effect", "") in ("", "NoExecute")
            for t in tolerations
        ):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION_SECONDS,
                }
            )
    spec["tolerations"] = tolerations


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return the quality-of-service class of a defaulted pod spec."""
    owners = [spec]
    if spec.get("resources") is None:
        owners = [c for field in _CONTAINERS for c in spec.get(field) or ()]
    resources = [owner.get("resources") or {} for owner in owners]
    return pod_asks.qos_class(
        (each.get("requests") or {}, each.get("limits") or {}) for each in resources
    )
