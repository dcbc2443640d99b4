"""What the members of a job ask for by claims for devices: which claims, and what these ask for.

A claim is read as it is written. What is not planned exactly is an `UnsupportedClaim` with its
path: an alternative, a constraint or a mode that is not counted would be a place that is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.claim_usage import CLAIM_COUNT, CLASS_DEVICES, devices_by_class
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.kubernetes.devices import DeviceSpec, DeviceTaint
from fairlead.api.pods.served_resources import (
    IMPLICIT,
    ResourceClasses,
    ResourceNames,
    served_asks,
)
from fairlead.model.asks.requests import Reach, Request, request_of

#: Devices of one claim (`AllocationResultsMaxSize`).
DEVICES_PER_CLAIM_MAX = 32
#: Expressions of one request, a quarter of what the API server takes: each is compared with all
#: devices.
SELECTORS_MAX = 8
#: Subrequests of one request (`FirstAvailableDeviceRequestMaxSize`).
OPTIONS_MAX = 8


class ClaimName(Struct, frozen=True):
    """A claim that a pod names: a template, from which each member gets one, or a claim; or with a
    `count` so much of a resource of its containers that a class of devices serves.
    """

    name: str
    is_template: bool = False
    count: int = 0

    @property
    def is_shared(self) -> bool:
        """True for a claim that is there, for all members that name it."""
        return not (self.is_template or self.count)

    @property
    def words(self) -> str:
        """Its kind and name."""
        if self.count:
            return f"resource {self.name}"
        return f"{'ResourceClaimTemplate' if self.is_template else 'ResourceClaim'} {self.name}"


#: The claims for devices of each role; () for a job without any.
DeviceClaims = tuple[tuple[ClaimName, ...], ...]


class TaintToleration(Struct, frozen=True, order=True):
    """Taints of devices that do not matter; "" is any key, and any effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    #: False: a pod that has the device is evicted after some seconds. Of the effect NoExecute alone
    #: (`DeviceToleration`).
    is_for_good: bool = True

    def tolerates(self, taint: DeviceTaint) -> bool:
        """True for a taint that it is about (`resourceclaim.ToleratesTaint`)."""
        is_about = self.effect in ("", taint.effect) and self.key in ("", taint.key)
        return is_about and (self.operator == "Exists" or self.value == taint.value)

    @property
    def words(self) -> str:
        """What it is about."""
        value = f"={self.value}" if self.operator != "Exists" else ""
        effect = self.effect and f":{self.effect}"
        length = "" if self.is_for_good else " for some seconds"
        return f"{self.key or 'any taint'}{value}{effect}{length}"


class DeviceKind(Struct, frozen=True, order=True, cache_hash=True):
    """Devices of a class that some selectors choose; kinds may overlap.

    `alike` are attributes that these devices have, and in which all of a node are alike: whichever
    are had, they meet a constraint `matchAttribute`.

    A kind with `options` is no devices but what a request gets that depends on the node: the first
    option that the node can serve (`firstAvailable`), or all devices of a kind. One with `together`
    is devices of several requests, or several of one, that are alike in `alike`, or all `differ` in
    it. One with a `resource` is what serves a resource of containers: nodes that have it by
    themselves need no devices for it (`NodeTable.set_devices`). One with several `sharers` is the
    part of one member in what these have together, on one node.
    """

    device_class: str = ""
    selectors: tuple[str, ...] = ()
    tolerations: tuple[TaintToleration, ...] = ()
    alike: tuple[str, ...] = ()
    options: tuple[DeviceAsk, ...] = ()
    together: tuple[DeviceAsk, ...] = ()
    resource: str = ""
    differ: bool = False
    sharers: int = 1

    @property
    def parts(self) -> tuple[DeviceKind, ...]:
        """The kinds that it is made up of, and itself at the end."""
        return (*dict.fromkeys(each.kind for each in (*self.options, *self.together)), self)

    @property
    def is_made_up(self) -> bool:
        """True for one that is made up of others: it has no devices of its own."""
        return bool(self.options or self.together)

    def tolerates(self, taints: Iterable[DeviceTaint]) -> bool:
        """True where no taint keeps a device from being had."""
        return _tolerates(self.tolerations, taints)

    def tolerates_for_good(self, taints: Iterable[DeviceTaint]) -> bool:
        """True where a pod that has the device also keeps it."""
        return _tolerates([each for each in self.tolerations if each.is_for_good], taints)


def _tolerates(given: Iterable[TaintToleration], taints: Iterable[DeviceTaint]) -> bool:
    tolerations = tuple(given)
    return all(
        taint.effect == "None" or any(each.tolerates(taint) for each in tolerations)
        for taint in taints
    )


class DeviceAsk(Struct, frozen=True, order=True, cache_hash=True):
    """So many devices of a kind, for one pod; `ALL` of them, if these are `most` at most."""

    kind: DeviceKind
    count: int
    most: int = 0


#: The count of a request for all devices of a kind that a node has.
ALL = 0


@dataclass(frozen=True, slots=True)
class DeviceOption:
    """One of the ways to serve a request: the name that an allocation gives it, and what it is."""

    name: str
    ask: DeviceAsk


class _StrictToleration(TaintToleration, frozen=True, forbid_unknown_fields=True):
    """A toleration as it is written."""

    operator: Literal["Equal", "Exists"] = "Equal"
    effect: Literal["", "NoSchedule", "NoExecute"] = ""
    seconds: int | None = msgspec.field(name="tolerationSeconds", default=None)

    def read(self) -> TaintToleration:
        """Return it without its form."""
        is_for_good = self.seconds is None or self.effect != "NoExecute"
        return TaintToleration(self.key, self.operator, self.value, self.effect, is_for_good)


@dataclass(frozen=True, slots=True)
class UnsupportedClaim:
    """The claim asks for what is not planned: where, and why not."""

    claim: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class MissingDeviceClaim:
    """There is no such claim or template, or it is being deleted."""

    claim: str


@dataclass(frozen=True, slots=True)
class MissingDeviceClass:
    """There is no such class of devices."""

    claim: str
    device_class: str


@dataclass(frozen=True, slots=True)
class UnallocatedClaim:
    """A claim that several pods share has no devices yet: where they will be is not known, or a job
    of that name is the first to get them.
    """

    claim: str
    first: str = ""


@dataclass(frozen=True, slots=True)
class UnmatchedDevices:
    """It asks for a kind of devices that is being compared with those that there are."""

    claim: str
    device_class: str


UnusableDevices = (
    MissingDeviceClaim | MissingDeviceClass | UnallocatedClaim | UnsupportedClaim | UnmatchedDevices
)


class DeviceNeed(Struct, frozen=True):
    """What a member takes of the rows of devices, and from where it reaches what it shares."""

    request: Request = ()
    reach: Reach = ()
    #: What the claims that are made for it use of ResourceQuotas.
    quota: Request = ()
    #: Claims without devices, with the label of which all that share one are in one domain.
    domains: tuple[tuple[str, str], ...] = ()


#: By role.
DeviceNeeds: TypeAlias = tuple[DeviceNeed, ...]


def device_claims_of(job: Job, resources: ResourceNames = ()) -> DeviceClaims:
    """Return the claims for devices of each role, and what it asks of the resources of containers
    that devices serve. Asked at each new spec: most have none.
    """
    found = tuple(tuple(_names(role.template.spec, resources)) for role in job.spec.roles)
    return found if any(found) else ()


def _names(spec: PodSpec, resources: ResourceNames) -> Iterator[ClaimName]:
    for each in spec.resource_claims:
        template = each.resource_claim_template_name
        yield ClaimName(template or each.resource_claim_name, bool(template))
    for name, count in served_asks(spec, resources).items():
        yield ClaimName(name, count=count)


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """A part of a claim: one of its options, or where it is `alike` in attributes, or its devices
    `differ` in these, all of them.
    """

    options: tuple[DeviceOption, ...]
    alike: tuple[str, ...] = ()
    differ: bool = False

    @property
    def ask(self) -> DeviceAsk:
        """What a member asks for."""
        asks = tuple(option.ask for option in self.options)
        if self.alike:
            counts = Counter[DeviceKind]()
            for each in asks:
                counts[each.kind] += each.count
            together = tuple(DeviceAsk(kind, n) for kind, n in sorted(counts.items()))
            kind = DeviceKind(alike=self.alike, together=together, differ=self.differ)
            return DeviceAsk(kind, 1)
        if len(asks) == 1 and asks[0].count != ALL:
            return asks[0]
        return DeviceAsk(DeviceKind(options=asks), 1)


def crowded(names: Iterable[ClaimName]) -> UnsupportedClaim | None:
    """Return what is wrong where one claim is to serve more of a pod's resources than it can."""
    asked = [name for name in names if name.count]
    count = sum(name.count for name in asked)
    if count <= DEVICES_PER_CLAIM_MAX:
        return None
    why = f"devices serve it, and a pod has {DEVICES_PER_CLAIM_MAX} of these at most"
    return UnsupportedClaim(asked[0].words, "containers.resources.requests", why)


def quota_of(spec: DeviceSpec, resources: ResourceClasses) -> Request:
    """Return what a claim uses of ResourceQuotas, by the names in these."""
    found: dict[str, int] = {CLAIM_COUNT: 1}
    for name, count in devices_by_class(spec.requests).items():
        found[f"{name}{CLASS_DEVICES}"] = count
        for resource in filter(None, (f"{IMPLICIT}{name}", resources.named_by(name))):
            found[f"requests.{resource}"] = count
    return request_of(found.items())


def asks_of(claim: ClaimName, spec: DeviceSpec) -> tuple[DeviceAsk, ...] | UnsupportedClaim:
    """Return what a claim asks for, by request, or the first part that is not planned."""
    found = parts_of(claim, spec)
    return found if isinstance(found, UnsupportedClaim) else tuple(part.ask for part in found)


def parts_of(claim: ClaimName, spec: DeviceSpec) -> tuple[ClaimPart, ...] | UnsupportedClaim:
    """Return the parts of a claim in their order, or the first that is not planned."""
    root = "spec.spec.devices" if claim.is_template else "spec.devices"
    if not spec.requests:
        return UnsupportedClaim(claim.words, f"{root}.requests", "it asks for no device")
    options: list[list[DeviceOption]] = []
    for i, request in enumerate(spec.requests):
        found = _options(request)
        if isinstance(found, tuple):
            path, why = found
            return UnsupportedClaim(claim.words, f"{root}.requests[{i}].{path}", why)
        options.append(found)
    groups = _Groups.of(options)
    for i, constraint in enumerate(spec.constraints):
        wrong = _constrain(groups, constraint)
        if wrong is not None:
            return UnsupportedClaim(claim.words, f"{root}.constraints[{i}]{wrong[0]}", wrong[1])
    fixed = sum(max(option.ask.count for option in each) for each in options)
    variable = sum(any(option.ask.count == ALL for option in each) for each in options)
    if fixed + variable > DEVICES_PER_CLAIM_MAX:
        why = f"a claim has {DEVICES_PER_CLAIM_MAX} devices at most"
        return UnsupportedClaim(claim.words, f"{root}.requests", why)
    most = (DEVICES_PER_CLAIM_MAX - fixed) // variable if variable else 0
    parts: list[ClaimPart] = []
    for first in dict.fromkeys(groups.of_request):
        of = [each for i, each in enumerate(options) if groups.of_request[i] == first]
        flat = (_at_most(option, most) for each in of for option in each)
        parts.append(ClaimPart(tuple(flat), groups.alike[first], first in groups.differing))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The options of each request, and which requests a constraint is about together: those of one
    group, which is the index of the first. By group the attributes in which they are alike, or
    where it is among those `differing` unlike each other.
    """

    options: list[list[DeviceOption]]
    of_request: list[int]
    alike: list[tuple[str, ...]]
    differing: set[int]

    @classmethod
    def of(cls, options: list[list[DeviceOption]]) -> _Groups:
        """Return each request alone."""
        count = len(options)
        return cls(options, list(range(count)), [()] * count, set())

    def join(self, chosen: Iterable[int], attribute: str) -> int:
        """Make requests one group, which has an attribute; return it."""
        first = min(chosen)
        self.alike[first] = tuple(sorted({*self.alike[first], attribute}))
        for i in chosen:
            self.of_request[i] = first
        return first


def _at_most(option: DeviceOption, most: int) -> DeviceOption:
    """Limit a request for all devices to what a claim has room for."""
    if option.ask.count != ALL:
        return option
    return DeviceOption(option.name, replace(option.ask, most=most))


def _options(request: Mapping[str, Any]) -> list[DeviceOption] | tuple[str, str]:
    """Return the options of a request; else the path below it that is not planned, and why."""
    name, exactly = request.get("name"), request.get("exactly")
    given = request.get("firstAvailable")
    if not isinstance(name, str):
        return "name", "it has no name"
    if not given:
        if not isinstance(exactly, Mapping):
            return "exactly", "it asks for no device"
        found = _read_ask(exactly)
        if isinstance(found, tuple):
            return f"exactly{found[0]}", found[1]
        return [DeviceOption(name, found)]
    if exactly:
        return "exactly", "it is set beside firstAvailable; accepted: one of both"
    if not isinstance(given, Sequence) or len(given) > OPTIONS_MAX:
        return "firstAvailable", f"accepted: a list of {OPTIONS_MAX} subrequests at most"
    options: list[DeviceOption] = []
    for i, each in enumerate(given):
        if not isinstance(each, Mapping) or not isinstance(each.get("name"), str):
            return f"firstAvailable[{i}]", "it is no subrequest with a name"
        found = _read_ask({key: value for key, value in each.items() if key != "name"})
        if isinstance(found, tuple):
            return f"firstAvailable[{i}]{found[0]}", found[1]
        options.append(DeviceOption(f"{name}/{each['name']}", found))
    return options


def _read_ask(request: Mapping[str, Any]) -> DeviceAsk | tuple[str, str]:
    """Return what a request or a subrequest asks for; else the path below it that is not planned,
    and why.
    """
    asked = {key: value for key, value in request.items() if value not in (None, [], {}, False)}
    mode = asked.pop("allocationMode", "ExactCount")
    if mode not in ("ExactCount", "All"):
        return ".allocationMode", f"{mode} is not planned; accepted: ExactCount, All"
    device_class, count = asked.pop("deviceClassName", ""), asked.pop("count", 1)
    selectors: list[str] = []
    given = asked.pop("selectors", ())
    if len(given) > SELECTORS_MAX:
        return ".selectors", f"{len(given)} expressions; accepted: {SELECTORS_MAX} at most"
    for j, each in enumerate(given):
        match each:
            case {"cel": {"expression": str(expression)}} if len(each) == 1:
                selectors.append(expression)
            case _:
                return f".selectors[{j}]", "it is no expression of CEL"
    tolerations: list[TaintToleration] = []
    for j, each in enumerate(asked.pop("tolerations", ())):
        try:
            tolerations.append(msgspec.convert(each, _StrictToleration).read())
        except msgspec.ValidationError:
            why = (
                "accepted: key, operator, value, effect (NoSchedule or NoExecute) and "
                "tolerationSeconds"
            )
            return f".tolerations[{j}]", why
    for key in asked:
        return f".{key}", "it is not planned yet; leave it out"
    if not isinstance(count, int) or count < 1 or not isinstance(device_class, str):
        return "", "it cannot be read"
    kind = DeviceKind(device_class, tuple(sorted(set(selectors))), tuple(sorted(set(tolerations))))
    return DeviceAsk(kind, ALL if mode == "All" else count)


def _constrain(groups: _Groups, constraint: Mapping[str, Any]) -> tuple[str, str] | None:
    """Let some requests be alike in an attribute, or differ; or return what is not planned of the
    constraint, and why. It names requests, or single options of them.

    The options of a request are each alike in themselves.
    """
    options = groups.options
    match, requests = constraint.get("matchAttribute"), constraint.get("requests")
    attribute = match or constraint.get("distinctAttribute")
    for key, value in constraint.items():
        if key not in ("matchAttribute", "distinctAttribute", "requests") and value:
            return f".{key}", "it is not planned yet; leave it out"
    if not isinstance(attribute, str) or attribute.count("/") != 1:
        return "", "it is no matchAttribute or distinctAttribute with a domain and a name"
    of_request = [each[0].name.split("/")[0] for each in options]
    names = {*of_request, *(option.name for each in options for option in each)}
    if requests and not (isinstance(requests, list) and names.issuperset(requests)):
        return ".requests", "it names what is no request"
    chosen = {
        i: [o for o in each if not requests or of_request[i] in requests or o.name in requests]
        for i, each in enumerate(options)
    }
    chosen = {i: found for i, found in chosen.items() if found}
    if not match:
        return _tell_apart(groups, chosen, attribute)
    if constraint.get("distinctAttribute"):
        return ".distinctAttribute", "it is set beside matchAttribute; accepted: one of both"
    is_exact = all(len(options[i]) == 1 and options[i][0].ask.count != ALL for i in chosen)
    if is_exact:
        of = groups.of_request
        constrained = {of[i] for i in chosen if groups.alike[of[i]]}
        is_other = {i for i, group in enumerate(of) if group in constrained} != {*chosen}
        if constrained and (is_other or constrained & groups.differing):
            return ".requests", "another constraint is about some of these requests, and others"
        groups.join(chosen, attribute)
        return None
    if len(chosen) > 1:
        why = "alternatives, or requests for all devices, are not planned together with others yet"
        return ".requests", why
    [(i, found)] = chosen.items()
    for j, option in enumerate(options[i]):
        if option in found:
            kind = option.ask.kind
            kind = replace(kind, alike=tuple(sorted({*kind.alike, attribute})))
            options[i][j] = DeviceOption(option.name, replace(option.ask, kind=kind))
    return None


def _tell_apart(
    groups: _Groups, chosen: Mapping[int, Sequence[DeviceOption]], attribute: str
) -> tuple[str, str] | None:
    """Let devices differ in an attribute; or return what is not planned of it, and why.

    kube-scheduler 1.36 compares one device of each request with the next: of a request for several,
    two may be equal (`distinctAttributeConstraint.attributes`).
    """
    asks = [option.ask for i in chosen for option in groups.options[i]]
    if len(chosen) < 2 or len(asks) > len(chosen) or len({*asks}) > 1 or asks[0].count != 1:
        why = "accepted: two requests or more of one kind, each for one device and no alternatives"
        return ".distinctAttribute", why
    if any(groups.alike[groups.of_request[i]] for i in chosen):
        return ".distinctAttribute", "another constraint is about some of these requests"
    groups.differing.add(groups.join(chosen, attribute))
    return None
