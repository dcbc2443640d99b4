"""What the members of a job ask for by claims for devices: which claims, and what these ask for.

A claim is read as it is written. What is not planned exactly is an `UnsupportedClaim` with its
path: an alternative, a constraint or a mode that is not counted would be a place that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from fairlead.api.core import PodSpec
from fairlead.api.devices import DeviceSpec
from fairlead.api.job import Job

#: Devices of one claim (`AllocationResultsMaxSize`).
DEVICES_PER_CLAIM_MAX = 32


class ClaimName(Struct, frozen=True):
    """A claim that a pod names: a template, from which each member gets one, or a claim."""

    name: str
    is_template: bool

    @property
    def words(self) -> str:
        """Its kind and name."""
        return f"{'ResourceClaimTemplate' if self.is_template else 'ResourceClaim'} {self.name}"


#: The claims for devices of each role; () for a job without any.
DeviceClaims = tuple[tuple[ClaimName, ...], ...]


class DeviceKind(Struct, frozen=True, order=True, cache_hash=True):
    """Devices of a class that some selectors choose; kinds may overlap."""

    device_class: str
    selectors: tuple[str, ...] = ()


class DeviceAsk(Struct, frozen=True):
    """So many devices of a kind, for one pod."""

    kind: DeviceKind
    count: int


@dataclass(frozen=True, slots=True)
class UnsupportedClaim:
    """The claim asks for what is not planned: where, and why not."""

    claim: str
    path: str
    why: str


def device_claims_of(job: Job) -> DeviceClaims:
    """Return the claims for devices of each role. Asked at each new spec: most have none."""
    for role in job.spec.roles:
        if role.template.spec.resource_claims:
            break
    else:
        return ()
    return tuple(tuple(_names(role.template.spec)) for role in job.spec.roles)


def _names(spec: PodSpec) -> Iterator[ClaimName]:
    for each in spec.resource_claims:
        template = each.resource_claim_template_name
        yield ClaimName(template or each.resource_claim_name, bool(template))


def asks_of(claim: ClaimName, spec: DeviceSpec) -> tuple[DeviceAsk, ...] | UnsupportedClaim:
    """Return what a claim asks for, by request, or the first part that is not planned."""
    root = "spec.spec.devices" if claim.is_template else "spec.devices"
    if spec.constraints:
        why = "constraints between devices are not planned yet"
        return UnsupportedClaim(claim.words, f"{root}.constraints", why)
    if not spec.requests:
        return UnsupportedClaim(claim.words, f"{root}.requests", "it asks for no device")
    asks: list[DeviceAsk] = []
    for i, request in enumerate(spec.requests):
        found = _ask(request)
        if isinstance(found, tuple):
            path, why = found
            return UnsupportedClaim(claim.words, f"{root}.requests[{i}].{path}", why)
        asks.append(found)
    if sum(ask.count for ask in asks) > DEVICES_PER_CLAIM_MAX:
        why = f"a claim has {DEVICES_PER_CLAIM_MAX} devices at most"
        return UnsupportedClaim(claim.words, f"{root}.requests", why)
    return tuple(asks)


def _ask(request: Mapping[str, Any]) -> DeviceAsk | tuple[str, str]:
    """Return what a request asks for; else the path below it that is not planned, and why."""
    exactly = request.get("exactly")
    if request.get("firstAvailable"):
        return "firstAvailable", "alternatives are not planned yet; ask for one with exactly"
    if not isinstance(exactly, Mapping):
        return "exactly", "it asks for no device"
    asked = {key: value for key, value in exactly.items() if value not in (None, [], {}, False)}
    mode = asked.pop("allocationMode", "ExactCount")
    if mode != "ExactCount":
        return "exactly.allocationMode", f"{mode} is not planned yet; ask for a count"
    device_class, count = asked.pop("deviceClassName", ""), asked.pop("count", 1)
    selectors: list[str] = []
    for j, each in enumerate(asked.pop("selectors", ())):
        match each:
            case {"cel": {"expression": str(expression)}} if len(each) == 1:
                selectors.append(expression)
            case _:
                return f"exactly.selectors[{j}]", "it is no expression of CEL"
    for key in asked:
        return f"exactly.{key}", "it is not planned yet; leave it out"
    if not isinstance(count, int) or count < 1 or not isinstance(device_class, str):
        return "exactly", "it cannot be read"
    return DeviceAsk(DeviceKind(device_class, tuple(sorted(set(selectors)))), count)
