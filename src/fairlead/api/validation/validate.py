"""What a Job must fulfil beyond its schema: rules that look at several fields at once.

The API's admission, the CLI and the tests all call `validate_job`; these rules are checked nowhere
else. All mistakes are collected, each with its path, in the words that the API server uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec

from fairlead.api.causes import LABEL, LABEL_RULE, cause, duplicate, from_msgspec, invalid, required
from fairlead.api.jobs.after import ALL_ELEMENTS, SAME_ELEMENT, AfterState
from fairlead.api.jobs.job import MEMBERS_MAX, Job, JobSpec, Role
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Container, PodSpec
from fairlead.api.kubernetes.selectors import is_qualified_name
from fairlead.api.meta import to_wire
from fairlead.api.names import PREFLIGHT_CONTAINER
from fairlead.api.pods.pod_fields import refused_causes
from fairlead.api.pods.pod_rules import pod_spec_causes
from fairlead.api.status import StatusCause
from fairlead.api.validation.claim_templates import claim_template_causes
from fairlead.api.validation.job_changes import CHANGES, ChangeRule
from fairlead.api.validation.notify_rules import notify_causes
from fairlead.api.values import quantity
from fairlead.api.values.bounds import (
    ANNOTATION_BYTES_MAX,
    CONSTRAINT_VALUES_MAX,
    RESOURCES_MAX,
    SPEC_BYTES_MAX,
    label_integer,
)
from fairlead.api.values.indices import IndicesError, parse_indices
from fairlead.api.values.times import parse_time

POD_NAME_MAX = 63
_ATTEMPT_DIGITS_MIN = 4


def validate_job(
    job: Job | JobSpec | Mapping[str, Any], path: str = "spec", *, name: str = ""
) -> list[StatusCause]:
    """Return every rule that the job breaks, in the order of its fields; [] when it is valid.

    A mapping is a spec as plain JSON, or a whole Job (then it has a `spec`). `path` is where the
    spec stands, for the causes. `name` is the job's name where only a spec is given; without a name
    the rules about it are left out. Only a mapping tells a restartPolicy that was written as
    Always from one that was not written. A mapping that is no Job at all gives one cause.
    """
    raw: Mapping[str, Any] = {}
    if isinstance(job, Job):
        spec, name = job.spec, name or job.metadata.name
    elif isinstance(job, JobSpec):
        spec = job
    else:
        raw = job
        inner, metadata = raw.get("spec"), raw.get("metadata")
        if "roles" not in raw and isinstance(inner, Mapping):
            raw = inner
            if not name and isinstance(metadata, Mapping):
                name = str(metadata.get("name") or "")
        try:
            spec = msgspec.convert(raw, JobSpec)
        except msgspec.ValidationError as error:
            return [from_msgspec(error, path)]
    return [
        *_name(spec, name),
        *_size(raw or spec, path),
        *_roles(spec, path),
        *_refused_fields(spec, raw, path),
        *_explicit_always(raw, path),
        *_others(spec, path, name),
    ]


_IMMUTABLE_FIELDS = tuple(field for field, when in CHANGES.items() if when is ChangeRule.NEVER)


def validate_job_update(
    old: Job | Mapping[str, Any], new: Job | Mapping[str, Any]
) -> list[StatusCause]:
    """Return every change of `new` against `old` that is not allowed; [] when all are.

    Mappings are whole Jobs as plain JSON, and then fields that no read model knows count as well;
    defaults must be filled in in both or in neither. `validate_job` checks `new` by itself.
    """
    before, after = _spec_of(old), _spec_of(new)
    why = "field is immutable: delete the job and submit it again, or submit it under another name"
    return [
        cause("Invalid", f"spec.{field}", f"Invalid value: {why}")
        for field in _IMMUTABLE_FIELDS
        if before.get(field) != after.get(field)
    ]


def _spec_of(job: Job | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(job, Job):
        return {field: getattr(job.spec, field) for field in _IMMUTABLE_FIELDS}
    spec = job.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def job_name_max(spec: JobSpec) -> int:
    """Return how many characters the name of a job with this spec may have.

    Pods are named `<job>-<attempt>-<role>-<index>` and their names are host names: 63 at most.
    """
    restart = spec.restart
    attempts = 1 + restart.limit + restart.infrastructure_limit
    digits = max(_ATTEMPT_DIGITS_MIN, len(str(attempts)))
    tails = [len(f"-{role.name}-{role.count - 1}") for role in spec.roles]
    return POD_NAME_MAX - 1 - digits - max([len("-peers"), *tails])


def _name(spec: JobSpec, name: str) -> Iterator[StatusCause]:
    if not name:
        return
    if not LABEL.fullmatch(name):
        yield invalid("metadata.name", name, LABEL_RULE)
    most = job_name_max(spec)
    if spec.adopts is None and 0 < most < len(name):
        why = (
            f"must be at most {most} characters, is {len(name)}: pods are named "
            f"<job>-<attempt>-<role>-<index>, and their names may have {POD_NAME_MAX}; shorten "
            "this name or those of the roles"
        )
        yield invalid("metadata.name", name, why)


def _size(spec: Mapping[str, Any] | JobSpec, path: str) -> Iterator[StatusCause]:
    size = len(msgspec.json.encode(spec))
    if size > SPEC_BYTES_MAX:
        why = f"Too long: may not be more than {SPEC_BYTES_MAX} bytes, is {size}"
        yield cause("TooLong", path, f"{why}; keep scripts and data in volumes or images")


def _roles(spec: JobSpec, path: str) -> Iterator[StatusCause]:
    if not spec.roles:
        yield required(f"{path}.roles", "at least one role")
    seen: set[str] = set()
    for i, role in enumerate(spec.roles):
        at = f"{path}.roles[{i}]"
        if not LABEL.fullmatch(role.name):
            yield invalid(f"{at}.name", role.name, LABEL_RULE)
        if role.name in seen:
            yield duplicate(f"{at}.name", role.name)
        seen.add(role.name)
        if role.count < 1:
            yield invalid(f"{at}.count", role.count, "must be at least 1")
        yield from _least(spec, role, f"{at}.minCount")
        yield from _annotations(role, f"{at}.template.metadata.annotations")
        yield from _template(role, f"{at}.template.spec")
        yield from claim_template_causes(spec, role, at)
    total = sum(role.count for role in spec.roles)
    if total > MEMBERS_MAX:
        why = f"all roles together may have {MEMBERS_MAX} members at most"
        yield invalid(f"{path}.roles", total, why)
    if spec.adopts is None and spec.roles and job_name_max(spec) < 1:
        yield invalid(
            f"{path}.roles",
            max((role.name for role in spec.roles), key=len),
            f"leaves no room for the job's name: pods are named <job>-<attempt>-<role>-<index>, "
            f"and their names may have {POD_NAME_MAX} characters",
        )


def _least(spec: JobSpec, role: Role, path: str) -> Iterator[StatusCause]:
    """What `gang_of` refuses of an elastic role, too."""
    least = role.min_count
    if least is None:
        return
    if not 1 <= least <= role.count:
        yield invalid(path, least, f"must be from 1 to count, which is {role.count}")
    elif least < role.count and spec.topology is not None and spec.topology.slice_size:
        why = "slices are of a fixed number of members: leave out minCount or topology.sliceSize"
        yield cause("Forbidden", path, f"Forbidden: {why}")
    elif least < role.count and spec.adopts is not None:
        why = "how many pods a group has is for the tool that makes them"
        yield cause("Forbidden", path, f"Forbidden: {why}")


def _template(role: Role, path: str) -> Iterator[StatusCause]:
    spec: PodSpec = role.template.spec
    if not spec.containers:
        yield required(f"{path}.containers", "at least one container")
    # "Always" is also what a missing value decodes to: see _explicit_always.
    if spec.restart_policy not in ("Never", "Always"):
        yield _restart_policy(path, spec.restart_policy)
    seen: set[str] = set()
    for field, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
    ):
        for i, container in enumerate(containers):
            at = f"{path}.{field}[{i}]"
            if not LABEL.fullmatch(container.name):
                yield invalid(f"{at}.name", container.name, LABEL_RULE)
            if container.name in seen:
                yield duplicate(f"{at}.name", container.name)
            seen.add(container.name)
            if container.name == PREFLIGHT_CONTAINER:
                yield invalid(f"{at}.name", container.name, "is the name of a container of ours")
            yield from _resources(container, f"{at}.resources")
    yield from _bounds(spec, path)
    yield from pod_spec_causes(spec, path)


def _annotations(role: Role, path: str) -> Iterator[StatusCause]:
    given = role.template.metadata.annotations.items()
    if sum(len(key) + len(value) for key, value in given) > ANNOTATION_BYTES_MAX:
        yield cause("TooLong", path, f"Too long: may not be more than {ANNOTATION_BYTES_MAX} bytes")


def _bounds(spec: PodSpec, path: str) -> Iterator[StatusCause]:
    """What the API server takes of a pod, and the scheduler would refuse to place."""
    containers = (*spec.init_containers, *spec.containers)
    given = [d for c in containers for d in (c.resources.limits, c.resources.requests)]
    names = len(set(spec.overhead).union(*given))
    if names > RESOURCES_MAX:
        why = f"a pod may ask for {RESOURCES_MAX} resources at most, all containers together"
        yield invalid(f"{path}.containers", f"{names} resources", why)
    values = len(spec.node_selector) + len(spec.tolerations)
    node = spec.affinity.node_affinity if spec.affinity is not None else None
    terms = node.required.node_selector_terms if node is not None and node.required else ()
    at = f"{path}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    for i, term in enumerate(terms):
        for requirement in (*term.match_expressions, *term.match_fields):
            values += 1 + len(requirement.values)
        for j, requirement in enumerate(term.match_expressions):
            if requirement.operator not in ("Gt", "Lt") or len(requirement.values) != 1:
                continue
            if label_integer(requirement.values[0]) is None:
                field = f"{at}.nodeSelectorTerms[{i}].matchExpressions[{j}].values[0]"
                yield invalid(field, requirement.values[0], "must be a 64-bit integer")
    if values > CONSTRAINT_VALUES_MAX:
        why = (
            f"nodeSelector, affinity and tolerations may name {CONSTRAINT_VALUES_MAX} values at "
            "most, all together"
        )
        yield invalid(f"{path}.affinity", f"{values} values", why)


def _restart_policy(path: str, value: str) -> StatusCause:
    message = (
        f'Unsupported value: "{value[:80]}": supported values: "Never" (members are restarted as '
        "a gang, see spec.restart)"
    )
    return cause("NotSupported", f"{path}.restartPolicy", message)


def _refused_fields(spec: JobSpec, raw: Mapping[str, Any], path: str) -> Iterator[StatusCause]:
    """Fields of templates that are refused, most of which no read model knows."""
    templates = [role.get("template", {}) for role in raw.get("roles") or ()]
    templates = templates or [{"spec": to_wire(role.template.spec)} for role in spec.roles]
    for i, template in enumerate(templates):
        yield from refused_causes(template.get("spec", {}), f"{path}.roles[{i}].template.spec")


def _explicit_always(spec: Mapping[str, Any], path: str) -> Iterator[StatusCause]:
    """A restartPolicy that was written down as Always; types were checked before."""
    for i, role in enumerate(spec.get("roles") or ()):
        pod = role.get("template", {}).get("spec", {})
        if pod.get("restartPolicy") == "Always":
            yield _restart_policy(f"{path}.roles[{i}].template.spec", "Always")


def _resources(container: Container, path: str) -> Iterator[StatusCause]:
    given = container.resources
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    for field, wire, amounts in (
        ("requests", given.requests, requests),
        ("limits", given.limits, limits),
    ):
        for resource, text in wire.items():
            at = f"{path}.{field}.{resource}"
            if not is_qualified_name(resource):
                yield invalid(at, resource, "must be a resource name such as nvidia.com/gpu")
            try:
                amount = quantity.parse(text)
            except quantity.QuantityError as error:
                yield invalid(at, text, str(error))
                continue
            amounts[resource] = amount
            if amount < 0:
                yield invalid(at, text, "must be greater than or equal to 0")
            elif _is_counted(resource) and amount.denominator != 1:
                yield invalid(at, text, "must be an integer: whole devices only")
    for resource, request in requests.items():
        limit = limits.get(resource)
        at = f"{path}.requests.{resource}"
        if limit is None:
            if _is_counted(resource) and request > 0 and request.denominator == 1:
                yield _limit_missing(f"{path}.limits.{resource}", given.requests[resource])
            continue
        if request > limit:
            why = f"must be less than or equal to {resource} limit of {given.limits[resource]}"
            yield invalid(at, given.requests[resource], why)
        elif request < limit and _is_counted(resource):
            why = f"must be equal to {resource} limit of {given.limits[resource]}"
            yield invalid(at, given.requests[resource], why)


def _limit_missing(path: str, request: object) -> StatusCause:
    """A pod that requests a device and does not limit it is refused; limits alone are enough."""
    why = f"devices are not shared: set it to {request}, what is requested, or set the limit alone"
    return required(path, why)


def _is_counted(resource: str) -> bool:
    """True for extended resources: devices, which can't be shared or promised twice."""
    prefix, slash, _ = resource.rpartition("/")
    return bool(slash) and not prefix.endswith("kubernetes.io")


def _topology(asked: Topology, path: str) -> Iterable[StatusCause]:
    levels = {
        "key": asked.key, "preferred": asked.preferred, "sliceLevel": asked.slice_level
    }  # fmt: skip
    for field, level in levels.items():
        if level and not is_qualified_name(level):
            why = "must be a level or the key of a node label, such as topology.kubernetes.io/zone"
            yield invalid(f"{path}.{field}", level, why)
    if not asked.key and (asked.required or not asked.slice_level):
        yield required(f"{path}.key", "a level or the key of a node label")
    if asked.preferred and not (asked.key and asked.required):
        why = "needs a key that is required; a key that is not required is preferred itself"
        yield invalid(f"{path}.preferred", asked.preferred, why)
    elif asked.preferred and asked.preferred == asked.key:
        yield invalid(f"{path}.preferred", asked.preferred, "must be narrower than key")
    if asked.preferred_seconds and (asked.required or not asked.key) and not asked.preferred:
        why = "needs a level that is preferred"
        yield invalid(f"{path}.preferredSeconds", asked.preferred_seconds, why)
    if asked.slice_level and asked.slice_size < 2:
        why = "must be 2 or more where sliceLevel is given"
        yield invalid(f"{path}.sliceSize", asked.slice_size, why)
    if asked.slice_size and not asked.slice_level:
        yield required(f"{path}.sliceLevel", "the level of the slices")


def _instants(spec: JobSpec, path: str) -> Iterable[StatusCause]:
    found: dict[str, float] = {}
    for field, text in (("notBefore", spec.not_before), ("deadline", spec.deadline)):
        try:
            if text is not None:
                found[field] = parse_time(text)
        except ValueError:
            yield invalid(f"{path}.{field}", text, "must be a time such as 2026-11-20T08:15:30Z")
    if "deadline" not in found:
        return
    if spec.time_limit_seconds is None:
        why = "whether the job can end by its deadline follows from it"
        yield required(f"{path}.timeLimitSeconds", why)
    elif found.get("notBefore", 0.0) + spec.time_limit_seconds > found["deadline"]:
        why = f"is less than the time limit of {spec.time_limit_seconds}s after notBefore"
        yield invalid(f"{path}.deadline", spec.deadline, why)


def _others(spec: JobSpec, path: str, name: str) -> Iterable[StatusCause]:
    yield from _instants(spec, path)
    yield from notify_causes(spec.notify, f"{path}.notify")
    if spec.topology is not None:
        yield from _topology(spec.topology, f"{path}.topology")
    if spec.checkpoint is not None and spec.checkpoint.path:
        text = spec.checkpoint.path
        if not text.startswith("/"):
            yield invalid(f"{path}.checkpoint.path", text, "must be an absolute path")
        if ".." in text.split("/"):
            yield invalid(f"{path}.checkpoint.path", text, "must not contain '..'")
        if "\0" in text:
            yield invalid(f"{path}.checkpoint.path", text, "must not contain a NUL character")
    seen: set[str] = set()
    for i, after in enumerate(spec.after):
        at = f"{path}.after[{i}].job"
        if not after.job:
            yield required(at, "the name of a job")
        elif after.job == name:
            yield invalid(at, after.job, "a job can't wait for itself")
        if after.job in seen:
            yield duplicate(at, after.job)
        seen.add(after.job)
        if after.delay_seconds and (after.elements or after.state is not AfterState.STARTED):
            why = "is for the state Started of a job that is no array"
            yield invalid(f"{path}.after[{i}].delaySeconds", str(after.delay_seconds), why)
        if after.elements not in ("", ALL_ELEMENTS, SAME_ELEMENT):
            try:
                parse_indices(after.elements)
            except IndicesError as error:
                yield invalid(f"{path}.after[{i}].elements", after.elements, str(error))
