"""Resources of containers that devices serve: by which class, and what the claim asks for.

A pod that asks for such a resource gets devices on a node that has none of it by itself: from a
claim that kube-scheduler makes for the pod (KEP-5004, "extended resources backed by DRA").

A class serves the resource that it names, and always `deviceclass.resource.kubernetes.io/NAME`. Of
several that name one resource the newest does, of several as new the first by name, as in
kube-scheduler 1.36 (`extendedresourcecache.updateResourceName2class`). Which one serves the
implicit names of the others depends there on the order in which it has heard of them, so here they
are served by no class.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fairlead.api.kubernetes.core import Container, PodSpec
from fairlead.api.kubernetes.devices import DeviceClass
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.values.quantity import QuantityError, to_base
from fairlead.api.values.times import parse_time

#: Before the name of a class: the resource that it serves without naming it
#: (`ResourceDeviceClassPrefix`).
IMPLICIT = "deviceclass.resource.kubernetes.io/"
#: Marks the claim for a pod's resources (`ExtendedResourceClaimAnnotation`).
SERVED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
_NAME_MAX = 253

ResourceNames: TypeAlias = abc.Container[str]


class ResourceClasses:
    """The classes, by the resource that each serves."""

    def __init__(self) -> None:
        self._classes: dict[str, DeviceClass] = {}
        self._served: dict[str, str] = {}
        #: Rises with each change of which class serves which resource.
        self.version = 0
        self._popped = 0

    @classmethod
    def of(cls, classes: Iterable[DeviceClass]) -> ResourceClasses:
        """Build them from a list."""
        found = cls()
        for each in classes:
            found.put(each.metadata.name, each)
        return found

    def __contains__(self, resource: str) -> bool:
        """True for a resource that some class serves."""
        return resource in self._served

    def __bool__(self) -> bool:
        return bool(self._served)

    def get(self, resource: str) -> str | None:
        """Return the class that serves a resource."""
        return self._served.get(resource)

    def named_by(self, name: str) -> str:
        """Return the resource that a class names; "" where it names none."""
        found = self._classes.get(name)
        return "" if found is None else found.spec.extended_resource_name

    def pop_changed(self) -> bool:
        """Return whether the version has risen since this was asked."""
        before, self._popped = self._popped, self.version
        return before != self.version

    def put(self, name: str, found: DeviceClass | None) -> bool:
        """Take in a class, or that it is gone; False when the same classes serve the same."""
        old, version = self._classes.pop(name, None), self.version
        if found is not None:
            self._classes[name] = found
        if old is None or found is None or _key(old) != _key(found):
            before, self._served = self._served, self._find()
            self.version += before != self._served
        return version != self.version

    def _find(self) -> dict[str, str]:
        first: dict[str, str] = {}
        for name, each in sorted(self._classes.items(), key=lambda item: _key(item[1])):
            resource = each.spec.extended_resource_name
            if not resource or first.setdefault(resource, name) == name:
                first[IMPLICIT + name] = name
        return first


def _key(found: DeviceClass) -> tuple[float, str, str]:
    """Return the order in which classes serve a resource, and what it is."""
    created = found.metadata.creation_timestamp
    since = parse_time(created) if created else 0.0
    return (-since, found.metadata.name, found.spec.extended_resource_name)


def served_claim_name(pod: str) -> str:
    """Return the name of the claim for a pod's resources on an embedded cluster."""
    suffix = "-extended-resources"
    return f"{pod[: _NAME_MAX - len(suffix)]}{suffix}"


def served_asks(spec: PodSpec, resources: ResourceNames) -> dict[str, int]:
    """Return what a pod asks for of some resources; nothing where that cannot be read."""
    if not resources:
        return {}
    try:
        return {name: n for name, n in member_amounts(spec).items() if name in resources}
    except QuantityError:
        return {}


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """What the claim for a pod's resources asks for, and which container has what; as written."""

    requests: list[dict[str, Any]]
    mappings: list[dict[str, str]]


def served_requests(spec: PodSpec, classes: Mapping[str, str]) -> ServedRequests:
    """Return what the claim of a pod asks for, given the class of each resource that it serves.

    An init container that has ended gives its devices to those after it, so of these there is one
    request, for what the largest needs beyond the later containers (`createRequestsAndMappings`).
    QuantityError.
    """
    containers = (*spec.init_containers, *spec.containers)
    requests: list[dict[str, Any]] = []
    mappings: list[dict[str, str]] = []
    for resource in sorted(classes):
        lasting: dict[int, tuple[str, int]] = {}
        most = ("", 0)
        brief: list[dict[str, str]] = []
        own: set[str] = set()
        for i, each in enumerate(containers):
            if not _is_brief(spec, i) and (count := _asked(each, resource)):
                lasting[i] = (_request_name(i, each, resource), count)
                mappings.append(_mapping(each, resource, lasting[i][0]))
        for i, each in enumerate(spec.init_containers):
            left = _asked(each, resource) if _is_brief(spec, i) else 0
            for name, count in [lasting[j] for j in sorted(lasting) if j > i]:
                if left > 0:
                    brief.append(_mapping(each, resource, name))
                    left -= count
            if left > 0:
                found = (_request_name(i, each, resource), left)
                most = found if left > most[1] else most
                own.add(found[0])
                brief.append(_mapping(each, resource, found[0]))
        for each in brief:
            if each["requestName"] in own:
                each["requestName"] = most[0]
        mappings += brief
        asked = [most, *lasting.values()] if most[1] else [*lasting.values()]
        requests += [_request(name, classes[resource], count) for name, count in asked]
    return ServedRequests(sorted(requests, key=lambda each: str(each["name"])), mappings)


def _is_brief(spec: PodSpec, index: int) -> bool:
    """True for an init container that ends before others start."""
    inits = spec.init_containers
    return index < len(inits) and inits[index].restart_policy != "Always"


def _asked(container: Container, resource: str) -> int:
    amounts = container.resources.limits | container.resources.requests
    return to_base(resource, amounts[resource]) if resource in amounts else 0


def _request_name(index: int, container: Container, resource: str) -> str:
    names = sorted(container.resources.limits | container.resources.requests)
    return f"container-{index}-request-{names.index(resource)}"


def _request(name: str, device_class: str, count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": exactly}


def _mapping(container: Container, resource: str, request: str) -> dict[str, str]:
    return {
        "containerName": container.name, "resourceName": resource, "requestName": request,
    }  # fmt: skip
