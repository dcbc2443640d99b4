"""Rules that objects must meet, as findings with field paths; all of an object's at once.

Metadata rules hold for every kind (apimachinery `pkg/api/validation/objectmeta.go`); pods,
config maps, priority classes and claims have the rules that controllers and kubectl notice
(kubernetes `pkg/apis/*/validation`). One rule is left out on purpose: a container needs no
image, because nodes of the embedded cluster run processes of this machine.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fairlead.api.kubernetes import core
from fairlead.api.kubernetes.selectors import is_label_value, is_qualified_name
from fairlead.api.meta import ObjectMeta
from fairlead.api.pods.pod_rules import pod_spec_causes
from fairlead.api.values import quantity
from fairlead.api.values.bounds import ANNOTATION_BYTES_MAX
from fairlead.embedded.resource_info import NameRule, ResourceInfo
from fairlead.embedded.verbs.errors import FieldProblem, Finding, ProblemType

_QUANTITIES_CACHED_MAX = 4096
_LABELS_CACHED_MAX = 16_384  # what pods carry repeats

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

_ALPHANUMERIC_ENDS = "and must start and end with an alphanumeric character"
_WORDS = {
    NameRule.SUBDOMAIN: "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
    f"characters, '-' or '.', {_ALPHANUMERIC_ENDS} (e.g. 'example.com')",
    NameRule.LABEL: "a lowercase RFC 1123 label must consist of lower case alphanumeric characters "
    f"or '-', {_ALPHANUMERIC_ENDS} (e.g. 'my-name', or '123-abc')",
    NameRule.DNS_1035: "a DNS-1035 label must consist of lower case alphanumeric characters or "
    "'-', start with an alphabetic character, and end with an alphanumeric character "
    "(e.g. 'my-name')",
    NameRule.PATH_SEGMENT: "may not be '.' or '..' and may not contain '/' or '%'",
}
_RESOURCES = (quantity.CPU, quantity.MEMORY, quantity.EPHEMERAL_STORAGE)
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_POD_UPDATE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.schedulingGates` (only removals)"
)


@lru_cache(maxsize=_LABELS_CACHED_MAX)
def name_problem(rule: NameRule, name: str) -> str:
    """Return what is wrong with a name, "" when nothing is."""
    if rule is NameRule.SUBDOMAIN:
        pattern, length_max = _SUBDOMAIN, 253
    elif rule is NameRule.PATH_SEGMENT:
        bad = name in (".", "..") or "/" in name or "%" in name
        return _WORDS[rule] if bad else ""
    else:
        pattern, length_max = (_LABEL if rule is NameRule.LABEL else _DNS_1035), 63
    if pattern.fullmatch(name) is None:
        return _WORDS[rule]
    return "" if len(name) <= length_max else f"must be no more than {length_max} bytes"


def metadata_problems(info: ResourceInfo, metadata: ObjectMeta) -> list[FieldProblem]:
    """Return what is wrong with an object's metadata."""
    found: list[FieldProblem] = []
    if why := name_problem(info.name_rule, metadata.name):
        found.append(FieldProblem("metadata.name", ProblemType.INVALID, why, metadata.name))
    labels = metadata.labels
    if labels and not (all(map(_is_key, labels)) and all(map(_is_value, labels.values()))):
        found += _label_problems(labels)
    if metadata.annotations:
        found += _annotation_problems(metadata.annotations)
    controllers = 0
    for i, owner in enumerate(metadata.owner_references):
        controllers += owner.controller
        if owner.api_version and owner.kind and owner.name and owner.uid:
            continue
        path = f"metadata.ownerReferences[{i}]"
        for key, value in (
            ("apiVersion", owner.api_version), ("kind", owner.kind),
            ("name", owner.name), ("uid", owner.uid),
        ):  # fmt: skip
            if not value:
                why = "must not be empty"
                found.append(FieldProblem(f"{path}.{key}", ProblemType.INVALID, why, value))
    if controllers > 1:
        why = "only one reference can have controller set to true"
        found.append(
            FieldProblem("metadata.ownerReferences", ProblemType.INVALID, why, controllers)
        )
    for i, finalizer in enumerate(metadata.finalizers):
        is_free = not info.is_builtin or info.plural == "customresourcedefinitions"
        if not is_free and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            path = f"metadata.finalizers[{i}]"
            found.append(FieldProblem(path, ProblemType.INVALID, why, finalizer))
        if not is_qualified_name(finalizer):
            why = "name part must consist of alphanumeric characters, '-', '_' or '.'"
            found.append(FieldProblem("metadata.finalizers", ProblemType.INVALID, why, finalizer))
    return found


_is_key = lru_cache(maxsize=_LABELS_CACHED_MAX)(is_qualified_name)
_is_value = lru_cache(maxsize=_LABELS_CACHED_MAX)(is_label_value)


def _label_problems(labels: Mapping[str, str]) -> Iterable[FieldProblem]:
    for key, value in labels.items():
        if not _is_key(key):
            why = "a qualified name has at most 63 characters after an optional DNS prefix and '/'"
            yield FieldProblem("metadata.labels", ProblemType.INVALID, why, key)
        if not _is_value(value):
            why = (
                "a valid label must be an empty string or consist of at most 63 alphanumeric "
                f"characters, '-', '_' or '.', {_ALPHANUMERIC_ENDS}"
            )
            yield FieldProblem("metadata.labels", ProblemType.INVALID, why, value)


def _annotation_problems(annotations: Mapping[str, str]) -> Iterable[FieldProblem]:
    size = 0
    for key, value in annotations.items():
        size += len(key) + len(value)
        if not _is_key(key.lower()):
            why = "a qualified name has at most 63 characters after an optional DNS prefix and '/'"
            yield FieldProblem("metadata.annotations", ProblemType.INVALID, why, key)
    if size > ANNOTATION_BYTES_MAX:
        why = f"may not be more than {ANNOTATION_BYTES_MAX} bytes"
        yield FieldProblem("metadata.annotations", ProblemType.TOO_LONG, why)


def metadata_update_problems(old: ObjectMeta, new: ObjectMeta) -> list[FieldProblem]:
    """Return which changes of metadata are not allowed."""
    found: list[FieldProblem] = []
    for field, before, after in (
        ("name", old.name, new.name),
        ("namespace", old.namespace, new.namespace),
    ):
        if before != after:
            why = "field is immutable"
            found.append(FieldProblem(f"metadata.{field}", ProblemType.INVALID, why, after))
    if old.deletion_timestamp is not None and new.finalizers != old.finalizers:
        added = [f for f in new.finalizers if f not in old.finalizers]
        if added:
            why = (
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers {added}"
            )
            found.append(FieldProblem("metadata.finalizers", ProblemType.FORBIDDEN, why))
    return found


@lru_cache(maxsize=_QUANTITIES_CACHED_MAX)
def _quantity_problem(text: str | float) -> str:
    try:
        return "must be greater than or equal to 0" if quantity.parse(text) < 0 else ""
    except quantity.QuantityError as error:
        return str(error)


@lru_cache(maxsize=_LABELS_CACHED_MAX)
def _is_extended(resource: str) -> bool:
    """True for devices and the like: whole pieces, of which none is promised twice."""
    return "/" in resource and "kubernetes.io/" not in resource


@lru_cache(maxsize=_QUANTITIES_CACHED_MAX)
def _resource_problem(resource: str, amount: str | float) -> str:
    if not _is_extended(resource):
        known = resource in _RESOURCES or "/" in resource or resource.startswith("hugepages-")
        return "" if known else "must be a standard resource type or fully qualified"
    if not is_qualified_name(resource):
        return "must be a resource name such as nvidia.com/gpu"
    return "" if quantity.parse(amount).denominator == 1 else "must be an integer"


def node_name_problem(name: str) -> str:
    """Return what is wrong with the name of the node that a pod is bound to; "" when nothing."""
    return name_problem(NameRule.SUBDOMAIN, name)


def pod_problems(pod: core.Pod) -> list[Finding]:
    """Return what is wrong with a pod's spec."""
    spec, found = pod.spec, list[Finding]()
    if not spec.containers:
        found.append(FieldProblem("spec.containers", ProblemType.REQUIRED))
    volumes: set[str] = set()
    for i, volume in enumerate(spec.volumes):
        path = f"spec.volumes[{i}].name"
        if volume.name in volumes:
            found.append(FieldProblem(path, ProblemType.DUPLICATE, value=volume.name))
        elif why := name_problem(NameRule.LABEL, volume.name):
            found.append(FieldProblem(path, ProblemType.INVALID, why, volume.name))
        volumes.add(volume.name)
    seen: set[str] = set()
    for field, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    ):
        for i, container in enumerate(containers):
            path = f"spec.{field}[{i}]"
            if container.name in seen:
                found.append(
                    FieldProblem(f"{path}.name", ProblemType.DUPLICATE, value=container.name)
                )
            seen.add(container.name)
            found += _container_problems(path, container, volumes)
    if spec.restart_policy not in ("Always", "OnFailure", "Never"):
        why = 'supported values: "Always", "OnFailure", "Never"'
        value = spec.restart_policy
        found.append(FieldProblem("spec.restartPolicy", ProblemType.NOT_SUPPORTED, why, value))
    grace = spec.termination_grace_period_seconds
    if grace is not None and grace < 0:
        why = "must be greater than or equal to 0"
        path = "spec.terminationGracePeriodSeconds"
        found.append(FieldProblem(path, ProblemType.INVALID, why, grace))
    if spec.node_name and (why := node_name_problem(spec.node_name)):
        found.append(FieldProblem("spec.nodeName", ProblemType.INVALID, why, spec.node_name))
    if spec.node_name and spec.scheduling_gates:
        why = "cannot be set until all schedulingGates have been cleared"
        found.append(FieldProblem("spec.nodeName", ProblemType.FORBIDDEN, why))
    found += pod_spec_causes(spec)
    return found


def _container_problems(
    path: str, container: core.Container, volumes: set[str]
) -> Iterable[FieldProblem]:
    if not container.name:
        yield FieldProblem(f"{path}.name", ProblemType.REQUIRED)
    elif why := name_problem(NameRule.LABEL, container.name):
        yield FieldProblem(f"{path}.name", ProblemType.INVALID, why, container.name)
    resources = container.resources
    for field, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        for name, amount in amounts.items():
            if why := _quantity_problem(amount):
                field_path = f"{path}.resources.{field}[{name}]"
                yield FieldProblem(field_path, ProblemType.INVALID, why, amount)
                return
            if why := _resource_problem(name, amount):
                field_path = f"{path}.resources.{field}[{name}]"
                value = amount if _is_extended(name) else name
                yield FieldProblem(field_path, ProblemType.INVALID, why, value)
    for name, amount in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is None or limit == amount:
            continue
        difference = quantity.parse(amount) - quantity.parse(limit)
        why = f"must be equal to {name} limit of {limit}"
        if not _is_extended(name):
            why = f"must be less than or equal to {name} limit of {limit}"
        if difference > 0 or (difference and _is_extended(name)):
            yield FieldProblem(f"{path}.resources.requests", ProblemType.INVALID, why, amount)
    for name in resources.requests:
        if _is_extended(name) and name not in resources.limits:
            why = "Limit must be set for non overcommitable resources"
            yield FieldProblem(f"{path}.resources.limits", ProblemType.REQUIRED, why)
    for i, mount in enumerate(container.volume_mounts):
        if mount.name not in volumes:
            yield FieldProblem(
                f"{path}.volumeMounts[{i}].name", ProblemType.NOT_FOUND, value=mount.name
            )


def pod_update_problems(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[FieldProblem]:
    """Return whether a pod's spec changed where it may not; both are plain specs with defaults."""
    if old == new:
        return []
    gates_before, gates_after = _items(old, "schedulingGates"), _items(new, "schedulingGates")
    found: list[FieldProblem] = []
    if any(gate not in gates_before for gate in gates_after):
        why = "only deletion is allowed, but found new scheduling gates"
        found.append(FieldProblem("spec.schedulingGates", ProblemType.FORBIDDEN, why))
    tolerations = _items(new, "tolerations")
    if any(t not in tolerations for t in _items(old, "tolerations")):
        why = "existing toleration can not be modified except its tolerationSeconds"
        found.append(FieldProblem("spec.tolerations", ProblemType.FORBIDDEN, why))
    free = {"schedulingGates", "tolerations", "containers", "initContainers"}
    free.add("activeDeadlineSeconds")
    if gates_before and _selector_items(old) <= _selector_items(new):
        free.add("nodeSelector")
    if gates_before and _is_narrowed(new.get("affinity") or {}, old.get("affinity") or {}):
        free.add("affinity")
    same = all(
        _without_image(_items(old, field)) == _without_image(_items(new, field))
        for field in ("containers", "initContainers")
    )
    keys = old.keys() | new.keys()
    if not same or any(old.get(key) != new.get(key) for key in keys - free):
        found.append(FieldProblem("spec", ProblemType.FORBIDDEN, _POD_UPDATE))
    return found


def _items(spec: Mapping[str, Any], field: str) -> Sequence[Any]:
    return spec.get(field) or ()


def _selector_items(spec: Mapping[str, Any]) -> ItemsView[str, str]:
    return (spec.get("nodeSelector") or {}).items()


def _is_narrowed(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """True when an affinity differs at most by choosing fewer nodes.

    While a pod is gated, required terms may be added where there were none, and requirements to
    terms that are there (KEP-3838).
    """
    field = "requiredDuringSchedulingIgnoredDuringExecution"

    def split(affinity: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[Any]]:
        nodes = dict(affinity.get("nodeAffinity") or {})
        required = nodes.pop(field, None) or {}
        return {**affinity, "nodeAffinity": nodes}, required.get("nodeSelectorTerms") or ()

    (rest, terms), (rest_before, terms_before) = split(new), split(old)
    if rest != rest_before or (terms_before and len(terms) != len(terms_before)):
        return False
    return all(
        requirement in _items(term, kind)
        for term, before in zip(terms, terms_before, strict=False)
        for kind in ("matchExpressions", "matchFields")
        for requirement in _items(before, kind)
    )


def _without_image(containers: Sequence[Any]) -> list[Any]:
    return [{**container, "image": None} for container in containers]
