"""What an object uses of what quotas limit (kubernetes `pkg/quota/v1/evaluator/core`).

Every object counts as one of `count/<resource>.<group>`; some kinds have older names too. Pods use
what they request and may use, until they have ended
or are gone: one that outlives its grace still counts, unlike on a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from fairlead.api.kubernetes.claim_usage import CLASS_DEVICES, devices_by_class
from fairlead.api.pods.pod_asks import (
    HUGE_PAGES,
    INFEASIBLE,
    POD_LEVEL,
    RESIZE_PENDING,
    is_pod_level,
    together,
)
from fairlead.api.pods.served_resources import (
    IMPLICIT,
    SERVED_CLAIM,
    ResourceClasses,
    served_claim_name,
)
from fairlead.api.values.amounts import ONE, Amount, Amounts, added, largest, read_all, written
from fairlead.api.values.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from fairlead.embedded.schema.values import as_map

Obj = Mapping[str, Any]

REQUESTS, LIMITS = "requests.", "limits."
SERVICES, CLAIMS = "services", "persistentvolumeclaims"
DEVICE_CLAIMS = "resourceclaims.resource.k8s.io"
_NODE_PORTS, _BALANCERS = "services.nodeports", "services.loadbalancers"
_STORAGE = "requests.storage"
_CLASS = ".storageclass.storage.k8s.io/"
COMPUTE = (CPU, MEMORY, EPHEMERAL_STORAGE)
#: Kinds that a quota may name without `count/`.
_NAMED = (SERVICES, CLAIMS, "configmaps", "secrets", "resourcequotas", "replicationcontrollers")
_POD_RESOURCES = frozenset(
    (PODS, *COMPUTE, *(f"{kind}{name}" for kind in (REQUESTS, LIMITS) for name in COMPUTE))
)
_ENDED = ("Failed", "Succeeded")


def may_count(table: str) -> bool:
    """True for kinds of which more than the number counts: a changed object may use more."""
    return table in (PODS, SERVICES, CLAIMS, DEVICE_CLAIMS)


class Served:
    """What devices serve of the resources of pods, for the claims that count as these, too."""

    def __init__(
        self, classes: ResourceClasses, pod: Callable[[str, str], Obj | None] | None = None
    ) -> None:
        """`pod` returns a pod by namespace and name; None: there are none."""
        self.classes, self._pod = classes, pod

    def counts(self, name: str) -> bool:
        """True for a limit of a resource that claims use (`claimEvaluator.MatchingResources`)."""
        resource = name.removeprefix(REQUESTS)
        if resource == name:
            return False
        if resource.startswith(IMPLICIT):
            return bool(self.classes.named_by(resource.removeprefix(IMPLICIT)))
        return resource in self.classes

    def add(self, usage: Amounts, claim: Obj) -> None:
        """Add what a claim uses of resources of pods: what its devices serve, less what the pod
        uses for whose resources it was made (`addExtendedResourceQuota`).
        """
        by_pod = self._used_by_pod(claim)
        found: Amounts = {}
        for name, amount in usage.items():
            device_class = name.removesuffix(CLASS_DEVICES)
            if device_class == name:
                continue
            found[f"{REQUESTS}{IMPLICIT}{device_class}"] = amount
            if resource := self.classes.named_by(device_class):
                found[f"{REQUESTS}{resource}"] = amount
        rest = {name: amount.less(by_pod.get(name)) for name, amount in found.items()}
        usage |= {name: amount for name, amount in rest.items() if amount.value > 0}

    def _used_by_pod(self, claim: Obj) -> Amounts:
        """Return what the pod uses that has the claim for its resources: one claim, whatever others
        say of themselves.
        """
        metadata = as_map(claim.get("metadata"))
        if as_map(metadata.get("annotations")).get(SERVED_CLAIM) != "true":
            return {}
        owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), {})
        if self._pod is None or owner.get("kind") != "Pod":
            return {}
        pod = self._pod(str(metadata.get("namespace")), str(owner.get("name")))
        if pod is None or pod["metadata"]["uid"] != owner.get("uid"):
            return {}
        said = as_map(as_map(pod.get("status")).get("extendedResourceClaimStatus"))
        named = said.get("resourceClaimName") or served_claim_name(pod["metadata"]["name"])
        return usage_of(PODS, pod) if named == metadata.get("name") else {}


#: No class serves any.
NOTHING_SERVED = Served(ResourceClasses())


def names_of(table: str, hard: Iterable[str], served: Served = NOTHING_SERVED) -> list[str]:
    """Return which of the resources that a quota limits the objects of a table use."""
    of_served = table == DEVICE_CLAIMS
    return [n for n in hard if _is_of(table, n) or (of_served and served.counts(n))]


def _is_of(table: str, name: str) -> bool:
    if name == f"count/{table}" or (name == table and table in _NAMED):
        return True
    if table == PODS:
        return name in _POD_RESOURCES or _is_extended(name)
    if table == SERVICES:
        return name in (_NODE_PORTS, _BALANCERS)
    if table == DEVICE_CLAIMS:
        return name.endswith(CLASS_DEVICES)
    return table == CLAIMS and (name == _STORAGE or _CLASS in name)


def _is_extended(name: str) -> bool:
    rest = name.removeprefix(REQUESTS)
    if rest.startswith(HUGE_PAGES):
        return True
    is_foreign = "/" in rest and ("kubernetes.io/" not in rest or rest.startswith(IMPLICIT))
    return rest != name and is_foreign


def usage_of(table: str, obj: Obj, served: Served = NOTHING_SERVED) -> Amounts:
    """Return what an object uses."""
    out: Amounts = {f"count/{table}": ONE}
    if table in _NAMED:
        out[table] = ONE
    spec = as_map(obj.get("spec"))
    if table == PODS and as_map(obj.get("status")).get("phase") not in _ENDED:
        out |= _of_pod(spec, as_map(obj.get("status")))
    elif table == SERVICES:
        out |= _of_service(spec)
    elif table == CLAIMS:
        out |= _of_claim(spec)
    elif table == DEVICE_CLAIMS:
        out |= _of_device_claim(spec)
        served.add(out, obj)
    return out


def _of_device_claim(spec: Obj) -> Amounts:
    found = devices_by_class(as_map(spec.get("devices")).get("requests") or ())
    return {f"{name}{CLASS_DEVICES}": Amount(Fraction(count)) for name, count in found.items()}


def _of_service(spec: Obj) -> Amounts:
    kind, ports = spec.get("type"), len(spec.get("ports") or ())
    out: Amounts = {}
    if kind == "LoadBalancer":
        out[_BALANCERS] = ONE
    if ports and (kind in ("NodePort", "LoadBalancer")):
        out[_NODE_PORTS] = Amount(Fraction(ports))
    return out


def _of_claim(spec: Obj) -> Amounts:
    asked = read_all(as_map(spec.get("resources")).get("requests"))
    out: Amounts = {_STORAGE: asked["storage"]} if "storage" in asked else {}
    if name := spec.get("storageClassName"):
        out |= {f"{name}{_CLASS}{key}": amount for key, amount in out.items()}
        out[f"{name}{_CLASS}{CLAIMS}"] = ONE
    return out


# ---------------------------------------------------------------------- pods


def containers_of(spec: Obj) -> list[Obj]:
    """Return all containers that are checked one by one."""
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def container_total(spec: Obj, kind: str) -> Amounts:
    """Return the `requests` or `limits` of all containers of a pod together."""

    def own(container: Obj) -> Amounts:
        return read_all(as_map(container.get("resources")).get(kind))

    starting = spec.get("initContainers") or ()
    return together(
        map(own, spec.get("containers") or ()),
        ((each.get("restartPolicy") == "Always", own(each)) for each in starting),
    )


def pod_total(spec: Obj, kind: str, *, is_for_range: bool = False) -> Amounts:
    """Return the effective `requests` or `limits` of a pod whose spec has its defaults.

    A LimitRange looks at no overhead, and of what the pod asks as a whole at CPU and memory.
    """
    total = container_total(spec, kind)
    for name, amount in read_all(as_map(spec.get("resources")).get(kind)).items():
        if name in POD_LEVEL or (is_pod_level(name) and not is_for_range):
            total[name] = amount
    overhead = {} if is_for_range else read_all(spec.get("overhead"))
    if kind == "limits":
        overhead = {name: amount for name, amount in overhead.items() if name in total}
    return added((total, overhead))


def _of_pod(spec: Obj, status: Obj) -> Amounts:
    spec = _with_reported(spec, status)
    return of_compute(pod_total(spec, "requests"), pod_total(spec, "limits"))


def _with_reported(spec: Obj, status: Obj) -> Obj:
    """Return the spec with the amounts that count while its pod is resized: of what it says, of
    what the node has allocated and of what the containers have, the largest.
    """
    states = {
        state.get("name"): state
        for field in ("containerStatuses", "initContainerStatuses")
        for state in status.get(field) or ()
    }
    is_never = any(
        c.get("type") == RESIZE_PENDING and c.get("reason") == INFEASIBLE
        for c in status.get("conditions") or ()
    )
    out = {**spec}
    if spec.get("resources"):
        out["resources"] = _counted(spec["resources"], status, is_never=is_never)
    for field in ("containers", "initContainers"):
        out[field] = [
            {
                **each,
                "resources": _counted(
                    as_map(each.get("resources")), as_map(states.get(each.get("name"))),
                    is_never=is_never,
                ),
            }
            for each in spec.get(field) or ()
        ]  # fmt: skip
    return out


def _counted(asked: Obj, state: Obj, *, is_never: bool) -> Obj:
    has = state.get("resources")
    if has is None:
        return asked
    parts: dict[str, list[Any]] = {
        "requests": [state.get("allocatedResources"), as_map(has).get("requests")],
        "limits": [as_map(has).get("limits")],
    }
    if not is_never:
        parts = {kind: [asked.get(kind), *found] for kind, found in parts.items()}
    return {kind: written(largest(map(read_all, found))) for kind, found in parts.items()}


def of_compute(requests: Amounts, limits: Amounts) -> Amounts:
    """Return the resources that requests and limits use of."""
    out: Amounts = {PODS: ONE}
    for name, amount in requests.items():
        if name in COMPUTE or name.startswith(HUGE_PAGES):
            out[name] = out[f"{REQUESTS}{name}"] = amount
        elif _is_extended(f"{REQUESTS}{name}"):
            out[f"{REQUESTS}{name}"] = amount
    return out | {f"{LIMITS}{name}": limits[name] for name in COMPUTE if name in limits}


def is_terminating(pod: Obj) -> bool:
    """True for a pod that has a deadline."""
    return as_map(pod.get("spec")).get("activeDeadlineSeconds") is not None


def has_scope(pod: Obj, scope: Obj) -> bool:
    """True when a pod has the scope of a requirement; False for a scope that is not known."""
    spec = as_map(pod.get("spec"))
    name = scope.get("scopeName")
    if name in ("Terminating", "NotTerminating"):
        return is_terminating(pod) is (name == "Terminating")
    if name in ("BestEffort", "NotBestEffort"):
        is_best = as_map(pod.get("status")).get("qosClass") == "BestEffort"
        return is_best is (name == "BestEffort")
    if name == "CrossNamespacePodAffinity":
        return _reaches_out(spec)
    if name != "PriorityClass":
        return False
    given, values = spec.get("priorityClassName") or "", scope.get("values") or ()
    match scope.get("operator"):
        case "Exists":
            return bool(given)
        case "DoesNotExist":
            return not given
        case "In":
            return given in values
        case "NotIn":
            return given not in values
        case _:
            return False


def _reaches_out(spec: Obj) -> bool:
    affinity = as_map(spec.get("affinity"))
    for part in ("podAffinity", "podAntiAffinity"):
        rules = as_map(affinity.get(part))
        terms = [
            *(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()),
            *(
                as_map(each.get("podAffinityTerm"))
                for each in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
            ),
        ]
        if any(t.get("namespaces") or t.get("namespaceSelector") is not None for t in terms):
            return True
    return False
