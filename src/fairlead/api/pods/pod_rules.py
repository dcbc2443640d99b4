"""Rules that every pod spec must meet, where a mistake would show only when a pod is made.

One set for two readers: the admission of pods, and that of jobs, whose pods come much later and on
which every attempt would be wasted. Rules and paths as the API server has them (kubernetes
`pkg/apis/core/validation/validation.go`). What names, counts or adds up (container names, volumes,
resources of containers) is left to the two readers, which differ there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from fairlead.api.causes import (
    LABEL,
    OBJECT_NAME_WHY,
    cause,
    is_object_name,
    not_supported,
    required,
)
from fairlead.api.kubernetes.core import (
    Container,
    EnvVar,
    EnvVarSource,
    NodeSelectorRequirement,
    PodSpec,
    Toleration,
    VolumeMount,
)
from fairlead.api.kubernetes.pod_parts import (
    ContainerPort,
    EnvFromSource,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from fairlead.api.kubernetes.selectors import OPERATORS, is_label_value, is_qualified_name
from fairlead.api.meta import LabelSelector
from fairlead.api.pods.device_claim_rules import device_claim_causes
from fairlead.api.pods.pod_level_rules import pod_level_causes
from fairlead.api.status import StatusCause

PORT_MAX = 65_535
WEIGHT_MAX = 100
DEADLINE_SECONDS_MAX = 2**31 - 1
PORT_NAME_MAX = 15
_ENV_NAMES_CACHED_MAX = 4096

_ENV_NAME = re.compile(r"[ -<>-~]+")
_CONFIG_KEY = re.compile(r"(?!\.\.?$)[-._a-zA-Z0-9]{1,253}")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_FIELD_PATH = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")

ENV_NAME_WHY = "a valid environment variable name must consist only of printable ASCII characters other than '='"  # noqa: E501
LABEL_KEY_WHY = "must be a label key: at most 63 letters, digits, '-', '_' or '.', after an optional DNS prefix and '/'"  # noqa: E501
LABEL_VALUE_WHY = "must be a label value: empty, or at most 63 letters, digits, '-', '_' or '.'"
_LABEL_WHY = "must be a lowercase RFC 1123 label: at most 63 letters a-z, digits and '-'"


def pod_spec_causes(spec: PodSpec, path: str = "spec") -> list[StatusCause]:
    """Return every rule of this module that the spec breaks, in the order of its fields."""
    found: list[StatusCause] = []
    uses_claims = bool(spec.resource_claims)
    for field, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    ):
        for i, container in enumerate(containers):
            found += _container(container, f"{path}.{field}[{i}]")
            uses_claims = uses_claims or bool(container.resources.claims)
    if uses_claims:
        found += device_claim_causes(spec, path)
    for i, volume in enumerate(spec.volumes):
        if volume.host_path is not None and ".." in volume.host_path.path.split("/"):
            at = f"{path}.volumes[{i}].hostPath.path"
            found.append(_invalid(at, volume.host_path.path, "must not contain '..'"))
    if spec.node_selector:
        found += _node_selector(spec, f"{path}.nodeSelector")
    if spec.affinity is not None:
        found += _affinity(spec, f"{path}.affinity")
    for i, spread in enumerate(spec.topology_spread_constraints):
        found += _spread(spread, f"{path}.topologySpreadConstraints[{i}]")
    for i, toleration in enumerate(spec.tolerations):
        found += _toleration(toleration, f"{path}.tolerations[{i}]")
    seconds = spec.active_deadline_seconds
    if seconds is not None and not 1 <= seconds <= DEADLINE_SECONDS_MAX:
        why = f"must be between 1 and {DEADLINE_SECONDS_MAX}, inclusive"
        found.append(_invalid(f"{path}.activeDeadlineSeconds", seconds, why))
    for field, name in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if name and not LABEL.fullmatch(name):
            found.append(_invalid(f"{path}.{field}", name, _LABEL_WHY))
    if spec.resources is not None:
        found += pod_level_causes(spec, f"{path}.resources")
    found += _gates([gate.name for gate in spec.scheduling_gates], f"{path}.schedulingGates")
    return found


def _invalid(field: str, value: object, why: str) -> StatusCause:
    shown = json.dumps(value, ensure_ascii=False)[:120]
    return cause("Invalid", field, f"Invalid value: {shown}: {why}")


def _duplicate(field: str, value: str) -> StatusCause:
    return cause("Duplicate", field, f"Duplicate value: {json.dumps(value)}")


# Containers


def _container(container: Container, path: str) -> Iterator[StatusCause]:
    if container.ports:
        yield from _ports(container.ports, f"{path}.ports")
    for i, source in enumerate(container.env_from):
        yield from _env_from(source, f"{path}.envFrom", i)
    for i, variable in enumerate(container.env):
        if not is_env_name(variable.name):
            at = f"{path}.env[{i}].name"
            yield _invalid(at, variable.name, ENV_NAME_WHY) if variable.name else required(at)
        if variable.value_from is not None:
            yield from _source(variable, variable.value_from, f"{path}.env[{i}].valueFrom")
    if container.volume_mounts:
        yield from _mounts(container.volume_mounts, f"{path}.volumeMounts")


@lru_cache(maxsize=_ENV_NAMES_CACHED_MAX)
def is_env_name(name: str) -> bool:
    """True for what a variable of a container may be called."""
    return _ENV_NAME.fullmatch(name) is not None


def _ports(ports: Sequence[ContainerPort], path: str) -> Iterator[StatusCause]:
    names: set[str] = set()
    for i, port in enumerate(ports):
        at = f"{path}[{i}]"
        if port.name:
            if len(port.name) > PORT_NAME_MAX:
                why = f"must be no more than {PORT_NAME_MAX} characters"
                yield _invalid(f"{at}.name", port.name, why)
            elif not _PORT_NAME.fullmatch(port.name):
                why = "must consist of a-z, 0-9 and single '-' within, with at least one letter"
                yield _invalid(f"{at}.name", port.name, why)
            elif port.name in names:
                yield _duplicate(f"{at}.name", port.name)
            names.add(port.name)
        within = f"must be between 1 and {PORT_MAX}, inclusive"
        if not port.container_port:
            yield required(f"{at}.containerPort")
        elif not 1 <= port.container_port <= PORT_MAX:
            yield _invalid(f"{at}.containerPort", port.container_port, within)
        if port.host_port and not 1 <= port.host_port <= PORT_MAX:
            yield _invalid(f"{at}.hostPort", port.host_port, within)
        if port.protocol not in _PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.protocol, _PROTOCOLS)


def _env_from(source: EnvFromSource, path: str, index: int) -> Iterator[StatusCause]:
    at = f"{path}[{index}]"
    if source.prefix and not is_env_name(source.prefix):
        yield _invalid(f"{at}.prefix", source.prefix, ENV_NAME_WHY)
    refs = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
    given = [(field, ref) for field, ref in refs if ref is not None]
    if len(given) != 1:
        why = "must specify one of: `configMapRef` or `secretRef`"
        if given:
            why = "may not have more than one field specified at a time"
        yield _invalid(path, "", why)
    for field, ref in given:
        yield from _reference(f"{at}.{field}.name", ref.name, is_required=True)


def _reference(path: str, name: str, *, is_required: bool) -> Iterator[StatusCause]:
    if not name and is_required:
        yield required(path)
    elif not is_object_name(name):
        yield _invalid(path, name, OBJECT_NAME_WHY)


def _source(variable: EnvVar, source: EnvVarSource, path: str) -> Iterator[StatusCause]:
    keyed = (
        ("configMapKeyRef", source.config_map_key_ref),
        ("secretKeyRef", source.secret_key_ref),
    )
    others = (source.field_ref, source.resource_field_ref, source.file_key_ref)
    count = sum(ref is not None for ref in (*others, *(ref for _, ref in keyed)))
    if count == 0:
        why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"  # noqa: E501
        yield _invalid(path, "", why)
    elif variable.value:
        yield _invalid(path, "", "may not be specified when `value` is not empty")
    elif count > 1:
        yield _invalid(path, "", "may not have more than one field specified at a time")
    if source.field_ref is not None:
        field_path = source.field_ref.field_path
        at = f"{path}.fieldRef.fieldPath"
        if not field_path:
            yield required(at)
        elif not _FIELD_PATH.fullmatch(field_path):
            yield _invalid(at, field_path, "is no field that a variable can be taken from")
    for field, ref in keyed:
        if ref is None:
            continue
        yield from _reference(f"{path}.{field}.name", ref.name, is_required=False)
        if not ref.key:
            yield required(f"{path}.{field}.key")
        elif not _CONFIG_KEY.fullmatch(ref.key):
            why = "must consist of alphanumeric characters, '-', '_' or '.'"
            yield _invalid(f"{path}.{field}.key", ref.key, why)


def _mounts(mounts: Iterable[VolumeMount], path: str) -> Iterator[StatusCause]:
    seen: set[str] = set()
    for i, mount in enumerate(mounts):
        at = f"{path}[{i}].mountPath"
        if not mount.mount_path:
            yield required(at)
        elif mount.mount_path in seen:
            yield _invalid(at, mount.mount_path, "must be unique")
        seen.add(mount.mount_path)
        if mount.sub_path.startswith("/"):
            yield _invalid(f"{path}.subPath", mount.sub_path, "must be a relative path")
        if ".." in mount.sub_path.split("/"):
            yield _invalid(f"{path}.subPath", mount.sub_path, "must not contain '..'")


# Where a pod may run


def _node_selector(spec: PodSpec, path: str) -> Iterator[StatusCause]:
    for key, value in spec.node_selector.items():
        if not is_qualified_name(key):
            yield _invalid(path, key, LABEL_KEY_WHY)
        if not is_label_value(value):
            yield _invalid(path, value, LABEL_VALUE_WHY)


def _affinity(spec: PodSpec, path: str) -> Iterator[StatusCause]:
    anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    at = f"{path}.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    for i, term in enumerate(anti.required if anti is not None else ()):
        yield from _term(term, f"{at}[{i}]")
    node = spec.affinity.node_affinity if spec.affinity is not None else None
    for i, preferred in enumerate(node.preferred if node is not None else ()):
        at = f"{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        if not 1 <= preferred.weight <= WEIGHT_MAX:
            yield _invalid(f"{at}.weight", preferred.weight, f"must be in the range 1-{WEIGHT_MAX}")
        for j, requirement in enumerate(preferred.preference.match_expressions):
            yield from _requirement(requirement, f"{at}.preference.matchExpressions[{j}]")
        for j, requirement in enumerate(preferred.preference.match_fields):
            yield from _field_requirement(requirement, f"{at}.preference.matchFields[{j}]")
    if node is None or node.required is None:
        return
    at = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = node.required.node_selector_terms
    if not terms:
        yield required(at, "must have at least one node selector term")
    for i, term in enumerate(terms):
        for j, requirement in enumerate(term.match_expressions):
            yield from _requirement(requirement, f"{at}[{i}].matchExpressions[{j}]")
        for j, requirement in enumerate(term.match_fields):
            yield from _field_requirement(requirement, f"{at}[{i}].matchFields[{j}]")


def _requirement(requirement: NodeSelectorRequirement, path: str) -> Iterator[StatusCause]:
    operator, values = requirement.operator, requirement.values
    for i, value in enumerate(values):
        if not is_label_value(value):
            yield _invalid(f"{path}.values[{i}]", value, LABEL_VALUE_WHY)
    if operator not in _OPERATORS:
        yield _invalid(f"{path}.operator", operator, "not a valid selector operator")
    elif operator in ("In", "NotIn") and not values:
        why = "must be specified when `operator` is 'In' or 'NotIn'"
        yield required(f"{path}.values", why)
    elif operator in ("Exists", "DoesNotExist") and values:
        why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        yield cause("Forbidden", f"{path}.values", f"Forbidden: {why}")
    elif operator in ("Gt", "Lt") and len(values) != 1:
        why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        yield required(f"{path}.values", why)
    if not is_qualified_name(requirement.key):
        yield _invalid(f"{path}.key", requirement.key, LABEL_KEY_WHY)


def _field_requirement(requirement: NodeSelectorRequirement, path: str) -> Iterator[StatusCause]:
    if requirement.operator not in ("In", "NotIn"):
        yield _invalid(f"{path}.operator", requirement.operator, "not a valid selector operator")
    elif len(requirement.values) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", why)
    if requirement.key != "metadata.name":
        yield _invalid(f"{path}.key", requirement.key, "not a valid field selector key")
        return
    for i, value in enumerate(requirement.values):
        if not is_object_name(value):
            yield _invalid(f"{path}.values[{i}]", value, OBJECT_NAME_WHY)


def _toleration(toleration: Toleration, path: str) -> Iterator[StatusCause]:
    key, operator, value = toleration.key, toleration.operator, toleration.value
    if key and not is_qualified_name(key):
        yield _invalid(f"{path}.key", key, LABEL_KEY_WHY)
    if not key and operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'  # noqa: E501
        yield _invalid(f"{path}.operator", operator, why)
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield _invalid(f"{path}.effect", toleration.effect, why)
    if operator in ("Equal", ""):
        if not is_label_value(value):
            yield _invalid(f"{path}.operator", value, LABEL_VALUE_WHY)
    elif operator == "Exists":
        if value:
            why = "value must be empty when `operator` is 'Exists'"
            yield _invalid(f"{path}.operator", value, why)
    else:
        yield not_supported(f"{path}.operator", operator, ("Equal", "Exists"))
    if toleration.effect and toleration.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", toleration.effect, _EFFECTS)


def _gates(gates: Iterable[str], path: str) -> Iterator[StatusCause]:
    seen: set[str] = set()
    for i, name in enumerate(gates):
        if not is_qualified_name(name):
            yield _invalid(f"{path}[{i}]", name, LABEL_KEY_WHY)
        if name in seen:
            yield _duplicate(f"{path}[{i}]", name)
        seen.add(name)


# What a pod says about other pods: as the API server has it (`validatePodAffinityTerm`,
# `validateTopologySpreadConstraints`, `ValidateLabelSelector`), and one rule of Fairlead's own:
# namespaces go by name


def _term(term: PodAffinityTerm, path: str) -> Iterator[StatusCause]:
    """Yield every rule that an anti-affinity term breaks."""
    yield from _key(term.topology_key, f"{path}.topologyKey")
    yield from _selector(term.label_selector, f"{path}.labelSelector")
    yield from _selector(term.namespace_selector, f"{path}.namespaceSelector")


def _spread(spread: TopologySpreadConstraint, path: str) -> Iterator[StatusCause]:
    """Yield every rule that a spread constraint breaks."""
    yield from _key(spread.topology_key, f"{path}.topologyKey")
    if spread.max_skew < 1:
        yield _invalid(f"{path}.maxSkew", spread.max_skew, "must be greater than zero")
    if spread.when_unsatisfiable not in _ACTIONS:
        at = f"{path}.whenUnsatisfiable"
        yield not_supported(at, spread.when_unsatisfiable, _ACTIONS)
    if spread.min_domains is not None and spread.min_domains < 1:
        yield _invalid(f"{path}.minDomains", spread.min_domains, "must be greater than 0")
    for field, value in (
        ("nodeAffinityPolicy", spread.node_affinity_policy),
        ("nodeTaintsPolicy", spread.node_taints_policy),
    ):
        if value not in ("", "Honor", "Ignore"):
            yield not_supported(f"{path}.{field}", value, ("Honor", "Ignore"))
    yield from _selector(spread.label_selector, f"{path}.labelSelector")


def _key(key: str, path: str) -> Iterator[StatusCause]:
    if not key:
        yield required(path, "can not be empty")
    elif not is_qualified_name(key):
        yield _invalid(path, key, "must be the key of a label")


def _selector(selector: LabelSelector | None, path: str) -> Iterator[StatusCause]:
    if selector is None:
        return
    for key, value in selector.match_labels.items():
        if not is_qualified_name(key) or not is_label_value(value):
            yield _invalid(f"{path}.matchLabels", f"{key}={value}", "must be a label")
    for i, term in enumerate(selector.match_expressions):
        at = f"{path}.matchExpressions[{i}]"
        if not is_qualified_name(term.key):
            yield _invalid(f"{at}.key", term.key, "must be the key of a label")
        if term.operator not in OPERATORS:
            yield _invalid(f"{at}.operator", term.operator, "not a valid selector operator")
        elif term.operator in ("In", "NotIn") and not term.values:
            why = "must be specified when `operator` is 'In' or 'NotIn'"
            yield required(f"{at}.values", why)
        elif term.operator not in ("In", "NotIn") and term.values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield cause("Forbidden", f"{at}.values", f"Forbidden: {why}")
