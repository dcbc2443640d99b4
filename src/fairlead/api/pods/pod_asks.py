"""What a pod asks of a node: how containers, the pod level, overhead and a resize add up.

The one place that knows the rule. The planner reads amounts in base units
(`model/asks/requests.py`), the rules of pods exact fractions (`pod_level_rules.py`), the embedded
API server quantities that keep their form (`embedded/quota`). All follow
k8s.io/component-helpers `resource/helpers.go` 1.36
and the defaults of kubernetes `pkg/apis/core/v1/defaults.go` (docs/design/pod-asks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from msgspec.structs import force_setattr

from fairlead.api.kubernetes.core import Container, Pod, PodSpec, ResourceRequirements
from fairlead.api.meta import Amount
from fairlead.api.values import quantity

HUGE_PAGES = "hugepages-"
#: What a pod may ask for as a whole, with hugepages of any size.
POD_LEVEL = (quantity.CPU, quantity.MEMORY)
BEST_EFFORT, BURSTABLE, GUARANTEED = "BestEffort", "Burstable", "Guaranteed"

#: The condition of a pod whose resize the node has not begun, and its reason if it never will.
RESIZE_PENDING, INFEASIBLE = "PodResizePending", "Infeasible"


class Number(Protocol):
    """An amount of a resource."""

    def __add__(self, other: Self, /) -> Self:
        """Return the sum."""
        ...

    def __lt__(self, other: Self, /) -> bool:
        """Return True when it is less."""
        ...


AMOUNTS_CACHED_MAX = 4096

T = TypeVar("T", bound=Number)
#: Reads quantities; the text is their path below the pod's spec.
Read: TypeAlias = Callable[[Mapping[str, Amount], str], Mapping[str, T]]


def is_pod_level(resource: str) -> bool:
    """True for resources that a pod may ask for as a whole."""
    return resource in POD_LEVEL or resource.startswith(HUGE_PAGES)


def together(
    running: Iterable[Mapping[str, T]], starting: Iterable[tuple[bool, Mapping[str, T]]]
) -> dict[str, T]:
    """Return what the containers of a pod need (KEP-753): all that run at a time, or the largest
    init container with the sidecars before it.

    `starting` are the init containers in order, each with whether it is a sidecar.
    """
    sidecars: dict[str, T] = {}
    peak: dict[str, T] = {}
    for is_sidecar, own in starting:
        if is_sidecar:
            add(sidecars, own)
            raise_to(peak, sidecars)
        else:
            meanwhile = dict(sidecars)
            add(meanwhile, own)
            raise_to(peak, meanwhile)
    for own in running:
        add(sidecars, own)
    raise_to(sidecars, peak)
    return sidecars


def pod_level_requests(
    total: Mapping[str, T], requests: Mapping[str, T], limits: Mapping[str, T]
) -> dict[str, T]:
    """Return what a pod requests as a whole, with the API server's defaults.

    `total` is what its containers request. Without a request of its own, cpu and memory that are
    limited are what the containers request, or else the limit; hugepages are the limit.
    """
    own = {name: amount for name, amount in limits.items() if is_pod_level(name)}
    own.update((name, total[name]) for name in POD_LEVEL if limits and name in total)
    own.update((name, amount) for name, amount in requests.items() if is_pod_level(name))
    return own


def requests_of(spec: PodSpec, read: Read[T], pod: Pod | None = None) -> dict[str, T]:
    """Return what a pod requests, overhead included. `read` raises for what cannot be read.

    With `pod`, whose spec it must be, a resize counts: of the spec, of what the kubelet has
    allocated and of what the containers have, the largest.
    """
    states = _States(pod) if pod is not None else None

    def own(container: Container, path: str, *, is_resizable: bool) -> Mapping[str, T]:
        resources = container.resources
        asked = dict(read(resources.limits, f"{path}.resources.limits"))
        asked.update(read(resources.requests, f"{path}.resources.requests"))
        return states.of(container.name, asked, read) if states and is_resizable else asked

    starting = [
        (is_sidecar, own(each, f"initContainers[{i}]", is_resizable=is_sidecar))
        for i, each in enumerate(spec.init_containers)
        for is_sidecar in (each.restart_policy == "Always",)
    ]
    running = [
        own(each, f"containers[{i}]", is_resizable=True) for i, each in enumerate(spec.containers)
    ]
    total = together(running, starting)
    if spec.resources is not None:
        requests = read(spec.resources.requests, "resources.requests")
        limits = read(spec.resources.limits, "resources.limits")
        whole = pod_level_requests(total, requests, limits)
        total.update(states.of_pod(whole, read) if states else whole)
    add(total, read(spec.overhead, "overhead"))
    return total


def member_amounts(spec: PodSpec) -> dict[str, int]:
    """Return what a pod of a template requests, in base units, sorted; QuantityError."""
    if not _is_plain(spec):
        return _not_zero(requests_of(spec, _in_base_units))
    asked = spec.containers[0].resources
    return dict(_container_amounts(tuple(asked.limits.items()), tuple(asked.requests.items())))


def member_gpus(spec: PodSpec) -> int:
    """Return how many GPUs of any vendor a pod of a template requests; QuantityError."""
    if not _is_plain(spec):
        return _gpus_of(member_amounts(spec))
    asked = spec.containers[0].resources
    return _container_gpus(tuple(asked.limits.items()), tuple(asked.requests.items()))


def _is_plain(spec: PodSpec) -> bool:
    """True where what a pod requests is what its one container does."""
    is_alone = len(spec.containers) == 1 and not spec.init_containers
    return is_alone and spec.resources is None and not spec.overhead


def _gpus_of(amounts: Mapping[str, int]) -> int:
    return sum(amount for name, amount in amounts.items() if quantity.is_gpu(name))


@lru_cache(maxsize=AMOUNTS_CACHED_MAX)  # as of `_container_amounts`
def _container_gpus(
    limits: tuple[tuple[str, Amount], ...], requests: tuple[tuple[str, Amount], ...]
) -> int:
    return _gpus_of(_container_amounts(limits, requests))


@lru_cache(maxsize=AMOUNTS_CACHED_MAX)  # thousands of jobs ask for the same few
def _container_amounts(
    limits: tuple[tuple[str, Amount], ...], requests: tuple[tuple[str, Amount], ...]
) -> dict[str, int]:
    asked = _in_base_units(dict(limits), "")
    return _not_zero(asked | _in_base_units(dict(requests), ""))


def pod_amounts(pod: Pod) -> dict[str, int]:
    """Return what a pod takes of its node, in base units, sorted; QuantityError."""
    return _not_zero(requests_of(pod.spec, _in_base_units, pod))


def _in_base_units(quantities: Mapping[str, Amount], _: str) -> dict[str, int]:
    return {name: quantity.to_base(name, text) for name, text in quantities.items()}


def _not_zero(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in sorted(amounts.items()) if amount}


def is_resized(pod: Pod) -> bool:
    """True for a pod whose containers may have, or keep, other amounts than its spec says."""
    status, spec = pod.status, pod.spec
    whole = status.resources
    if whole is not None and spec.resources is not None:
        asked = spec.resources.requests
        if whole.requests != asked or status.allocated_resources not in (None, asked):
            return True
    for states, containers in (
        (status.container_statuses, spec.containers),
        (status.init_container_statuses, spec.init_containers),
    ):
        for state in states:
            if state.resources is None:
                continue
            asked = next((c.resources.requests for c in containers if c.name == state.name), None)
            if asked is None:
                continue
            if state.resources.requests != asked or state.allocated_resources not in (None, asked):
                return True
    return False


def drop_usual_amounts(pod: Pod) -> None:
    """Drop what a node reports of the amounts of a freshly decoded pod that is not resized.

    It does so for each container (kubelets from 1.33 on), some 1 kB for a pod, in the words of the
    spec.
    """
    status = pod.status
    states = (status, *status.container_statuses, *status.init_container_statuses)
    reported = [each for each in states if each.resources is not None]
    if reported and not is_resized(pod):
        for each in reported:
            force_setattr(each, "resources", None)
            force_setattr(each, "allocated_resources", None)


class _States:
    """What the kubelet reports of a pod's amounts."""

    def __init__(self, pod: Pod) -> None:
        status = pod.status
        self._states = {
            state.name: (state.resources.requests, state.allocated_resources or {})
            for state in (*status.container_statuses, *status.init_container_statuses)
            if state.resources is not None
        }
        whole = status.resources
        self._whole = None
        if whole is not None:
            self._whole = (whole.requests, status.allocated_resources or {})
        pending = next((c for c in status.conditions if c.type == RESIZE_PENDING), None)
        self._is_infeasible = pending is not None and pending.reason == INFEASIBLE

    def of(self, name: str, asked: Mapping[str, T], read: Read[T]) -> Mapping[str, T]:
        """Return what counts of a container."""
        state = self._states.get(name)
        return asked if state is None else self._largest(asked, state, read)

    def of_pod(self, asked: Mapping[str, T], read: Read[T]) -> Mapping[str, T]:
        """Return what counts of what the pod asks as a whole: of the same resources."""
        if self._whole is None:
            return asked
        found = self._largest(asked, self._whole, read)
        return {name: found[name] for name in asked if name in found}

    def _largest(
        self, asked: Mapping[str, T], state: tuple[Mapping[str, Amount], ...], read: Read[T]
    ) -> Mapping[str, T]:
        # A resize that the node can never carry out takes nothing.
        out: dict[str, T] = {} if self._is_infeasible else dict(asked)
        for amounts in state:
            raise_to(out, read(amounts, "status"))
        return out


def qos_class(owners: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the quality-of-service class, given requests and limits as quantities.

    `owners` are all containers, or the pod alone where it asks as a whole; requests must have their
    defaults. After kubernetes `pkg/apis/core/v1/helper/qos`.
    """
    any_set, guaranteed = False, True
    for requests, limits in owners:
        for name in POD_LEVEL:
            limit, request = _positive(limits.get(name)), _positive(requests.get(name))
            any_set = any_set or bool(limit or request)
            if not limit or limit != request:
                guaranteed = False
    if not any_set:
        return BEST_EFFORT
    return GUARANTEED if guaranteed else BURSTABLE


def is_best_effort(spec: PodSpec) -> bool:
    """True for a pod that neither requests nor limits CPU or memory."""
    containers = [c.resources for c in (*spec.containers, *spec.init_containers)]
    owners: list[ResourceRequirements] = containers if spec.resources is None else [spec.resources]
    return qos_class((each.requests, each.limits) for each in owners) == BEST_EFFORT


def _positive(text: Any) -> Any:
    """Return the value of a quantity; None for none, and for what is none and is refused later."""
    is_amount = isinstance(text, (str, int, float)) and quantity.is_quantity(str(text))
    return quantity.parse(text) if is_amount else None


def add(into: dict[str, T], amounts: Mapping[str, T]) -> None:
    """Add amounts, resource by resource."""
    for name, amount in amounts.items():
        into[name] = into[name] + amount if name in into else amount


def raise_to(into: dict[str, T], amounts: Mapping[str, T]) -> None:
    """Take the larger amount of each resource."""
    for name, amount in amounts.items():
        if name not in into or into[name] < amount:
            into[name] = amount
