"""What a pod may ask for as a whole (`spec.resources`).

Rules, words and paths as the API server has them (kubernetes `pkg/apis/core/validation`,
`validatePodResources`). They look at amounts with their defaults, so a template, which has none
yet, is judged as the pods that are made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairlead.api.causes import cause, invalid, not_supported, required
from fairlead.api.kubernetes.core import PodSpec, ResourceRequirements
from fairlead.api.pods.pod_asks import (
    HUGE_PAGES,
    POD_LEVEL,
    is_pod_level,
    pod_level_requests,
    together,
)
from fairlead.api.status import StatusCause
from fairlead.api.values import quantity
from fairlead.api.values.amounts import Amount, Amounts, read_all

_SUPPORTED = (quantity.CPU, HUGE_PAGES, quantity.MEMORY)


def pod_level_causes(spec: PodSpec, path: str) -> Iterator[StatusCause]:
    """Yield every rule that `spec.resources`, which stands at `path`, breaks.

    Amounts of containers that cannot be read are left to the rules of containers.
    """
    asked = spec.resources
    if asked is None:
        return
    if asked.claims:
        why = "claims may not be set for Resources at pod-level"
        yield cause("Forbidden", f"{path}.claims", f"Forbidden: {why}")
    yield from _names(asked, path)
    limits, of_containers = read_all(asked.limits), _together(spec, is_limit=False)
    requests = pod_level_requests(of_containers, read_all(asked.requests), limits)
    yield from _against_limits(requests, limits, path)
    names = [name for name in (*requests, *limits) if is_pod_level(name)]
    if names and not any(name in POD_LEVEL for name in names):
        yield cause("Forbidden", path, "Forbidden: HugePages require cpu or memory")
    yield from _at_least(of_containers, requests, f"{path}.requests", "requests")
    pages = {n: a for n, a in _together(spec, is_limit=True).items() if n.startswith(HUGE_PAGES)}
    yield from _at_least(pages, limits, f"{path}.limits", "limits")
    for i, container in enumerate(spec.containers):
        for name, limit in read_all(container.resources.limits).items():
            if name in limits and limits[name] < limit:
                why = f"must be less than or equal to pod limits of {limits[name]}"
                yield invalid(f"{path}.containers[{i}][{name}].limits", str(limit), why)


def _names(asked: ResourceRequirements, path: str) -> Iterator[StatusCause]:
    for field, amounts in (("limits", asked.limits), ("requests", asked.requests)):
        for name, text in amounts.items():
            at = f"{path}.{field}[{name}]"
            if not is_pod_level(name):
                yield not_supported(at, name, _SUPPORTED)
            try:
                if quantity.parse(text) < 0:
                    yield invalid(at, text, "must be greater than or equal to 0")
            except quantity.QuantityError as error:
                yield invalid(at, text, str(error))


def _against_limits(requests: Amounts, limits: Amounts, path: str) -> Iterator[StatusCause]:
    for name, request in requests.items():
        limit, is_shared = limits.get(name), not name.startswith(HUGE_PAGES)
        if limit is None:
            if not is_shared:
                why = "Limit must be set for non overcommitable resources"
                yield required(f"{path}.limits", why)
        elif request.value != limit.value and not is_shared:
            why = f"must be equal to {name} limit of {limit}"
            yield invalid(f"{path}.requests", str(request), why)
        elif limit < request:
            why = f"must be less than or equal to {name} limit of {limit}"
            yield invalid(f"{path}.requests", str(request), why)


def _at_least(
    needed: Mapping[str, Amount], given: Amounts, path: str, field: str
) -> Iterator[StatusCause]:
    for name, least in needed.items():
        if name in given and given[name] < least:
            why = f"must be greater than or equal to aggregate container {field} of {least}"
            yield invalid(f"{path}[{name}]", str(given[name]), why)


def _together(spec: PodSpec, *, is_limit: bool) -> Amounts:
    """Return what the containers request or are limited to."""

    def own(resources: ResourceRequirements) -> Amounts:
        limits = read_all(resources.limits)
        return limits if is_limit else limits | read_all(resources.requests)

    starting = ((c.restart_policy == "Always", own(c.resources)) for c in spec.init_containers)
    return together((own(container.resources) for container in spec.containers), starting)
