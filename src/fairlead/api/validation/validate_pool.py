"""What a NodePool and the Fleet must fulfil beyond their schemas; all mistakes at once.

The API's admission calls these, and the fleet controller does not act on a pool that breaks a rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fairlead.api import names
from fairlead.api.causes import cause, duplicate, from_msgspec, invalid, required
from fairlead.api.cluster.ec2_fleet_options import (
    EC2_FLEET_LAUNCH_MAX,
    EC2_FLEET_OPTIONS,
    LAUNCH_TEMPLATE,
    ec2_fleet_mistakes,
    ec2_fleet_options,
)
from fairlead.api.cluster.fleet import FLEET_NAME, FleetSpec
from fairlead.api.cluster.node_pool import QUEUE_SECONDS, NodePoolSpec, ProviderType
from fairlead.api.cluster.node_suites import suites
from fairlead.api.kubernetes.device_shapes import shape_mistakes
from fairlead.api.kubernetes.selectors import is_qualified_name
from fairlead.api.status import StatusCause
from fairlead.api.values import quantity
from fairlead.api.values.bounds import NAME_MAX
from fairlead.api.values.node_limit import NodeLimitError, parse_limit
from fairlead.api.values.times import parse_time

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Written by Fairlead itself on the nodes of a pool.
_OWN_LABELS = (names.POOL, names.HOSTNAME)
_IS_PATH = (ProviderType.STATIC, ProviderType.EXEC)
_NEEDS_REFERENCE = (*_IS_PATH, ProviderType.AWS, ProviderType.AZURE, ProviderType.GCP)
#: Machines of one LaunchInstances request, and the options of an Auto Scaling group.
_AWS_LAUNCH_MAX, _AWS_OPTIONS = 100, ("region", LAUNCH_TEMPLATE)
#: Machines of one scale set, characters of its name, and the options of scale sets.
_AZURE_LAUNCH_MAX, _AZURE_NAME_MAX = 1_000, 64
_AZURE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_AZURE_OPTIONS = {
    "subscription": (
        re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        "the id of the subscription, such as 6f1c5a3e-0000-4000-8000-1c2d3e4f5a6b, in lower case",
    ),
    "resourceGroup": (
        re.compile(r"[A-Za-z0-9_().-]{0,89}[A-Za-z0-9_()-]"),
        "the name of the resource group that has the scale sets",
    ),
}
#: Options of managed instance groups; those that are seconds, with the fewest and the most.
_GCP_SECONDS = {QUEUE_SECONDS: (0, 604_800), "runSeconds": (600, 604_800)}
_GCP_OPTIONS = ("project", "resizeRequests", *_GCP_SECONDS)

S = TypeVar("S")


def validate_pool(pool: Mapping[str, Any]) -> list[StatusCause]:
    """Return every rule that a NodePool as plain JSON breaks, in the order of its fields."""
    spec = _spec(pool, NodePoolSpec)
    if isinstance(spec, StatusCause):
        return [spec]
    name = _name_of(pool)
    found = [
        *_sizes(spec), *_policies(spec), *_provider(spec), *_template(spec), *_domains(spec),
        *_suite(spec),
    ]  # fmt: skip
    if name and not _NAME.fullmatch(name):
        why = f"must be at most {NAME_MAX} letters a-z, digits, '-' and '.': it becomes a label"
        found.insert(0, invalid("metadata.name", name, why))
    return found


def validate_fleet(fleet: Mapping[str, Any]) -> list[StatusCause]:
    """Return every rule that the Fleet object as plain JSON breaks."""
    spec = _spec(fleet, FleetSpec)
    if isinstance(spec, StatusCause):
        return [spec]
    found: list[StatusCause] = []
    name = _name_of(fleet)
    if name and name != FLEET_NAME:
        found.append(invalid("metadata.name", name, f"there is one Fleet, named {FLEET_NAME}"))
    seen: set[str] = set()
    for i, override in enumerate(spec.overrides):
        at = f"spec.overrides[{i}]"
        if override.name in seen:
            found.append(duplicate(f"{at}.name", override.name))
        seen.add(override.name)
        try:
            parse_time(override.expires_at)
        except ValueError:
            why = "must be an instant such as 2026-01-31T12:00:00Z"
            found.append(invalid(f"{at}.expiresAt", override.expires_at, why))
    return found


def _name_of(obj: Mapping[str, Any]) -> str:
    metadata = obj.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""


def _spec(obj: Mapping[str, Any], type_: type[S]) -> S | StatusCause:
    try:
        return msgspec.convert(obj.get("spec") or {}, type_)
    except msgspec.ValidationError as error:
        return from_msgspec(error, "spec")


def _sizes(spec: NodePoolSpec) -> Iterator[StatusCause]:
    if spec.min > spec.max:
        yield invalid("spec.min", spec.min, f"must be at most spec.max, {spec.max}")
    if spec.hold is not None and not spec.min <= spec.hold <= spec.max:
        why = f"must be from spec.min, {spec.min}, to spec.max, {spec.max}"
        yield invalid("spec.hold", spec.hold, why)
    if spec.headroom_nodes > spec.max:
        why = f"must be at most spec.max, {spec.max}"
        yield invalid("spec.headroomNodes", spec.headroom_nodes, why)
    if spec.spare_nodes > spec.limit:
        field = "spec.max" if spec.hold is None else "spec.hold"
        yield invalid("spec.spareNodes", spec.spare_nodes, f"must be at most {field}, {spec.limit}")
    elif spec.spare_nodes and spec.provider.type is ProviderType.EXTERNAL:
        why = "must be 0: the other autoscaler would remove spares, which are idle nodes"
        yield invalid("spec.spareNodes", spec.spare_nodes, why)
    try:
        gpus = spec.max * spec.gpus_per_node if spec.headroom_gpus else 0
    except quantity.QuantityError:
        return  # reported with the template
    if spec.headroom_gpus > gpus:
        why = f"must be at most the GPUs of spec.max nodes of the template, {gpus}"
        yield invalid("spec.headroomGPUs", spec.headroom_gpus, why)


def _policies(spec: NodePoolSpec) -> Iterator[StatusCause]:
    """Yield mistakes in price, deadlines and disruption budgets."""
    try:
        if quantity.parse(spec.price_per_hour) < 0:
            why = "must be greater than or equal to 0"
            yield invalid("spec.pricePerHour", spec.price_per_hour, why)
    except quantity.QuantityError as error:
        yield invalid("spec.pricePerHour", spec.price_per_hour, str(error))
    launch_seconds, ready_seconds = spec.scale_up.launch_seconds, spec.scale_up.ready_seconds
    if launch_seconds is not None and launch_seconds > ready_seconds:
        why = f"must be at most spec.scaleUp.readySeconds, {ready_seconds}"
        yield invalid("spec.scaleUp.launchSeconds", launch_seconds, why)
    for field, limit in (
        ("nodesAtOnceMax", spec.disruption.nodes_at_once_max),
        ("nodesPerHourMax", spec.disruption.nodes_per_hour_max),
        ("nodesPerDayMax", spec.disruption.nodes_per_day_max),
    ):
        try:
            if limit is not None:
                parse_limit(limit)
        except NodeLimitError as error:
            yield invalid(f"spec.disruption.{field}", limit, str(error))


def _provider(spec: NodePoolSpec) -> Iterator[StatusCause]:
    kind, reference = spec.provider.type, spec.provider.reference
    has_template = kind is ProviderType.AWS and LAUNCH_TEMPLATE in spec.provider.options
    if kind in _NEEDS_REFERENCE and not reference and not has_template:
        why = f"a pool of provider {kind.value} names what it buys from"
        yield required("spec.provider.reference", why)
    if kind in _IS_PATH and reference[:1] not in ("", "/"):
        yield invalid("spec.provider.reference", reference, "must be an absolute path")
    if kind is ProviderType.AWS:
        yield from _aws(spec)
    if kind is ProviderType.AZURE:
        yield from _azure(spec)
    if kind is ProviderType.GCP:
        yield from _gcp(spec)
    if kind is ProviderType.EXTERNAL:
        yield from _external(spec)


def _external(spec: NodePoolSpec) -> Iterator[StatusCause]:
    """Yield what has no meaning where another autoscaler owns the machines."""
    if spec.provider.reference:
        why = "must be empty: another autoscaler owns the machines"
        yield invalid("spec.provider.reference", spec.provider.reference, why)
    yield from _unknown_options(spec, ())
    if spec.domains:
        why = "must be empty: the other autoscaler chooses; make a pool for each zone"
        yield invalid("spec.domains", len(spec.domains), why)
    if spec.scale_down.consolidates:
        why = "must be false: Fairlead removes none of the machines"
        yield invalid("spec.scaleDown.consolidates", "true", why)
    if not any(_is_some(*each) for each in spec.template.resources.items()):
        yield required("spec.template.resources", "what a balloon asks for, such as cpu and memory")


def _is_some(resource: str, amount: str | float) -> bool:
    """True for an amount that keeps two balloons from sharing a node, or that is no amount."""
    try:
        return resource != quantity.PODS and quantity.parse(amount) != 0
    except quantity.QuantityError:
        return True


def _aws(spec: NodePoolSpec) -> Iterator[StatusCause]:
    options, most = spec.provider.options, spec.scale_up.nodes_per_launch_max
    has_template = LAUNCH_TEMPLATE in options
    limit = EC2_FLEET_LAUNCH_MAX if has_template else _AWS_LAUNCH_MAX
    if most > limit:
        why = f"AWS launches {limit} machines at once at most"
        yield invalid("spec.scaleUp.nodesPerLaunchMax", most, why)
    yield from _unknown_options(spec, (*_AWS_OPTIONS, *EC2_FLEET_OPTIONS))
    if has_template:
        yield from _ec2_fleet(spec)
        return
    for option in EC2_FLEET_OPTIONS:
        if option in options:
            why = f"needs the option {LAUNCH_TEMPLATE}"
            yield invalid(f"spec.provider.options[{option}]", options[option], why)


def _ec2_fleet(spec: NodePoolSpec) -> Iterator[StatusCause]:
    options, reference = spec.provider.options, spec.provider.reference
    if reference:
        why = f"names an Auto Scaling group; leave it out with the option {LAUNCH_TEMPLATE}"
        yield invalid("spec.provider.reference", reference, why)
    mistakes = dict(ec2_fleet_mistakes(options))
    for option, why in mistakes.items():
        at, value = f"spec.provider.options[{option}]", options.get(option, "")
        if value:
            yield invalid(at, value, f"must be {why}")
        else:
            yield required(at, why)
    zones = ec2_fleet_options(options).subnets
    for i, domain in enumerate(spec.domains):
        if domain.name and domain.name not in zones and "subnets" not in mistakes:
            why = "must be a zone that the option subnets has a subnet of"
            yield invalid(f"spec.domains[{i}].name", domain.name, why)


def _azure(spec: NodePoolSpec) -> Iterator[StatusCause]:
    options, at = spec.provider.options, "spec.provider.options"
    reference, most = spec.provider.reference, spec.scale_up.nodes_per_launch_max
    for domain in [domain.name for domain in spec.domains] or [""]:
        name = f"{reference}-{domain}" if domain else reference
        if reference and not (len(name) <= _AZURE_NAME_MAX and _AZURE_NAME.fullmatch(name)):
            why = f"must make names of scale sets, REFERENCE-DOMAIN; {name[:80]!r} is none"
            yield invalid("spec.provider.reference", reference, why)
    yield from _unknown_options(spec, tuple(_AZURE_OPTIONS))
    for option, (pattern, what) in _AZURE_OPTIONS.items():
        value = options.get(option, "")
        if not value:
            yield required(f"{at}[{option}]", what)
        elif not pattern.fullmatch(value):
            yield invalid(f"{at}[{option}]", value, f"must be {what}")
    if most > _AZURE_LAUNCH_MAX:
        why = f"a scale set has {_AZURE_LAUNCH_MAX} machines at most"
        yield invalid("spec.scaleUp.nodesPerLaunchMax", most, why)


def _gcp(spec: NodePoolSpec) -> Iterator[StatusCause]:
    options, at = spec.provider.options, "spec.provider.options"
    yield from _unknown_options(spec, _GCP_OPTIONS)
    if not options.get("project"):
        yield required(f"{at}[project]", "the id of the project that has the groups")
    requests = options.get("resizeRequests", "false")
    if requests not in ("true", "false"):
        yield invalid(f"{at}[resizeRequests]", requests, 'must be "true" or "false"')
    for option, (least, most) in _GCP_SECONDS.items():
        value = options.get(option)
        if value is None:
            continue
        if not (value.isdecimal() and value.isascii() and least <= int(value[:9]) <= most):
            why = f"must be a number of seconds from {least} to {most}"
            yield invalid(f"{at}[{option}]", value, why)
        elif requests != "true":
            yield invalid(f"{at}[{option}]", value, 'needs the option resizeRequests: "true"')
    if not spec.domains:
        yield required("spec.domains", "the zones, each of which has a group of this name")


def _unknown_options(spec: NodePoolSpec, known: Sequence[str]) -> Iterator[StatusCause]:
    for option in sorted(set(spec.provider.options) - set(known)):
        why = f"unknown option; accepted: {', '.join(known) or 'none'}"
        yield invalid(f"spec.provider.options[{option}]", spec.provider.options[option], why)


def _template(spec: NodePoolSpec) -> Iterator[StatusCause]:
    at = "spec.template"
    if not spec.template.resources:
        yield required(f"{at}.resources", "what a node of the pool offers, such as cpu and memory")
    for resource, amount in spec.template.resources.items():
        field = f"{at}.resources.{resource}"
        if not is_qualified_name(resource):
            yield invalid(field, resource, "must be a resource name such as nvidia.com/gpu")
        try:
            if quantity.parse(amount) < 0:
                yield invalid(field, amount, "must be greater than or equal to 0")
        except quantity.QuantityError as error:
            yield invalid(field, amount, str(error))
    for path, value, why in shape_mistakes(spec.template.devices):
        yield invalid(f"{at}.devices{path}", value, why)
    yield from _labels(spec.template.labels, f"{at}.labels")
    for i, taint in enumerate(spec.template.taints):
        field = f"{at}.taints[{i}]"
        if not is_qualified_name(taint.key):
            yield invalid(f"{field}.key", taint.key, "must be the key of a taint")
        if taint.effect not in _EFFECTS:
            text = f'Unsupported value: "{taint.effect}": supported values: {", ".join(_EFFECTS)}'
            yield cause("NotSupported", f"{field}.effect", text)
        if taint.key in (names.TAINT_JOINING, names.TAINT_RETURNING, names.TAINT_SPARE,
                         names.TAINT_PREFLIGHT):  # fmt: skip
            why = "Fairlead adds and lifts this taint itself; leave it out"
            yield invalid(f"{field}.key", taint.key, why)


def _suite(spec: NodePoolSpec) -> Iterator[StatusCause]:
    if spec.test_suite and spec.test_suite not in suites():
        yield invalid("spec.testSuite", spec.test_suite, f"there are {', '.join(suites())}")


def _domains(spec: NodePoolSpec) -> Iterator[StatusCause]:
    seen: set[str] = set()
    for i, domain in enumerate(spec.domains):
        at = f"spec.domains[{i}]"
        if not domain.name:
            yield required(f"{at}.name", "a name")
        if domain.name in seen:
            yield duplicate(f"{at}.name", domain.name)
        seen.add(domain.name)
        yield from _labels(domain.labels, f"{at}.labels")


def _labels(labels: Mapping[str, str], at: str) -> Iterator[StatusCause]:
    for key, value in labels.items():
        if not is_qualified_name(key):
            yield invalid(f"{at}.{key}", key, "must be the key of a label")
        elif key in _OWN_LABELS:
            yield invalid(f"{at}.{key}", key, "Fairlead sets this label itself; leave it out")
        if not _VALUE.fullmatch(value):
            why = f"must be at most {NAME_MAX} letters, digits, '-', '_' and '.'"
            yield invalid(f"{at}.{key}", value, why)
