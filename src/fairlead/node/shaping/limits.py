"""Which limits apply to the pods of a node: their own, and their teams' shares (pure).

A pod's team is one of those that have its namespace: the one that its label names, if that is one
of them, else the first. So no label leads out of all budgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fairlead.api.cluster.node_report import DESTINATIONS_MAX
from fairlead.api.names import (
    EGRESS_BANDWIDTH,
    INGRESS_BANDWIDTH,
    INTERNET_EGRESS,
    INTERNET_INGRESS,
    TEAM,
)
from fairlead.api.values.egress import POD_BITS_MIN, TrafficDirection, egress_bits
from fairlead.api.values.times import parse_time
from fairlead.model.egress_lease import LEASE_TIMES, EgressLeaseTimes, leased_rate
from fairlead.node.traffic.classes import CLASSES, INTERNET, Address
from fairlead.node.traffic.pods import CountedPod
from fairlead.node.traffic.ruleset import AddressOwner

#: Teams whose shares a node keeps; a file with more is refused.
TEAMS_MAX = 256
RATES_VERSION = 1
#: Before the name of a destination, where limits have a team's name: no team has such a name.
DESTINATION = "@"
#: All traffic of a pod, whatever is at the other end: no class of addresses has such a name.
ALL = "*"
#: The least that Kubernetes accepts in an annotation of a bandwidth (k8s.io/kubernetes,
#: pkg/util/bandwidth).
BANDWIDTH_BITS_MIN = 1_000


class TeamRate(msgspec.Struct, frozen=True, rename="camel"):
    """What this node may send of a team's budget, and what once nothing divides it."""

    team: str
    namespaces: tuple[str, ...]
    bits_per_second: int
    safe_bits_per_second: int


class DestinationRate(msgspec.Struct, frozen=True, rename="camel"):
    """What all pods of this node may exchange with a destination, a class of addresses."""

    destination: str
    direction: TrafficDirection
    bits_per_second: int
    safe_bits_per_second: int


class EgressRates(msgspec.Struct, frozen=True, rename="camel"):
    """The file of rates. `at` is when the divider confirmed them, by the clock of the node.

    `shares` names them to the divider: the time that it wrote itself; "" where nobody asks.
    """

    version: int
    at: str
    teams: tuple[TeamRate, ...]
    shares: str = ""
    ingress: tuple[TeamRate, ...] = ()
    destinations: tuple[DestinationRate, ...] = ()


class TrafficWay(NamedTuple):
    """Which traffic limits are of: with a class of addresses, in a direction as pods see it."""

    traffic_class: str
    direction: TrafficDirection

    @property
    def is_egress(self) -> bool:
        """True for what pods send."""
        return self.direction is TrafficDirection.EGRESS

    @property
    def can_wait(self) -> bool:
        """True where packets may wait in a class of the device; others are dropped."""
        return self.is_egress and self.traffic_class != ALL

    @property
    def prefix(self) -> str:
        """What is before the names of its objects in the table."""
        if self.traffic_class == ALL:
            return "all-" if self.is_egress else "in-all-"
        if self.traffic_class == INTERNET:
            return "" if self.is_egress else "in-"
        return f"{'to' if self.is_egress else 'from'}-{self.traffic_class}-"


EGRESS = TrafficWay(INTERNET, TrafficDirection.EGRESS)
INGRESS = TrafficWay(INTERNET, TrafficDirection.INGRESS)
#: The annotations that limit all of a pod's traffic.
_BANDWIDTH = {
    TrafficWay(ALL, TrafficDirection.EGRESS): EGRESS_BANDWIDTH,
    TrafficWay(ALL, TrafficDirection.INGRESS): INGRESS_BANDWIDTH,
}


class ShapedPod(NamedTuple):
    """A pod with a limit: its own (0: none), and its team ("": none with a budget).

    In limits of a destination all pods have the same team, which is the destination.
    """

    owner: AddressOwner
    name: str
    addresses: tuple[Address, ...]
    bits: int
    team: str


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """All limits of a node, in order. Rates are in bits per second."""

    pods: tuple[ShapedPod, ...] = ()
    teams: Mapping[str, int] = field(default_factory=dict[str, int])
    refused: tuple[str, ...] = ()


def decode_rates(data: bytes) -> EgressRates:
    """Return the rates in a file; ValueError."""
    try:
        found = msgspec.json.decode(data, type=EgressRates)
        parse_time(found.at)
        parse_time(found.shares or found.at)
    except ValueError as error:
        raise ValueError(f"it is no file of rates: {error}") from error
    if found.version != RATES_VERSION:
        raise ValueError(f"it has version {found.version}; accepted: {RATES_VERSION}")
    for each in (found.teams, found.ingress):
        if len(each) > TEAMS_MAX:
            raise ValueError(f"it has {len(each)} teams; accepted: {TEAMS_MAX}")
    if len(found.destinations) > DESTINATIONS_MAX:
        more = f"{len(found.destinations)} destinations; accepted: {DESTINATIONS_MAX}"
        raise ValueError(f"it has {more}")
    return found


def limits_of(
    pods: Iterable[CountedPod],
    owners: Mapping[Address, AddressOwner],
    rates: EgressRates | None,
    now: float,
    *,
    direction: TrafficDirection = TrafficDirection.EGRESS,
    pod_bits_max: int = 0,
    times: EgressLeaseTimes = LEASE_TIMES,
) -> EgressLimits:
    """Return the limits in a direction of the pods that have an address here.

    `owners` says whose each address is; `pod_bits_max` is what no pod may exceed, 0 for no such
    limit. An annotation that is no rate counts for nothing, and is listed.
    """
    addresses = _addresses(owners)
    is_egress = direction is TrafficDirection.EGRESS
    shares = (rates.teams if is_egress else rates.ingress) if rates else ()
    given = sorted(shares, key=lambda each: each.team)
    annotation = INTERNET_EGRESS if is_egress else INTERNET_INGRESS
    shaped: list[ShapedPod] = []
    refused: list[str] = []
    for pod in sorted(pods, key=lambda each: each.owner):
        if pod.owner not in addresses:
            continue
        own = _own_limit(pod, annotation, refused)
        bits = min((each for each in (own, pod_bits_max) if each), default=0)
        team = _team(pod, given)
        if bits or team:
            where = addresses[pod.owner]
            shaped.append(ShapedPod(pod.owner, pod.metadata.name, where, bits, team))
    there = {each.team for each in shaped}
    used = {each.team: each for each in given if each.team in there}
    silent = max(0.0, now - parse_time(rates.at)) if rates else 0.0
    return EgressLimits(
        tuple(shaped),
        {
            name: leased_rate(each.bits_per_second, each.safe_bits_per_second, silent, times=times)
            for name, each in used.items()
        },
        tuple(refused),
    )


def destination_limits(
    pods: Iterable[CountedPod],
    owners: Mapping[Address, AddressOwner],
    rates: EgressRates,
    now: float,
    *,
    classes: Iterable[str],
    times: EgressLeaseTimes = LEASE_TIMES,
) -> tuple[dict[TrafficWay, EgressLimits], tuple[str, ...]]:
    """Return the limits of each destination, which all pods share, and which are none here.

    `classes` are those that this node knows. What is inside and the rest of the internet are no
    destinations.
    """
    addresses, known = _addresses(owners), limited_classes(classes)
    silent = max(0.0, now - parse_time(rates.at))
    found: dict[TrafficWay, EgressLimits] = {}
    refused: list[str] = []
    here = sorted((each for each in pods if each.owner in addresses), key=lambda each: each.owner)
    for each in rates.destinations:
        if each.destination not in known:
            named = f"destination {each.destination[:40]!r}"
            refused.append(f"{named} is no class that is limited here (traffic.lists)")
            continue
        name = DESTINATION + each.destination
        shaped = tuple(
            ShapedPod(pod.owner, pod.metadata.name, addresses[pod.owner], 0, name) for pod in here
        )
        bits = leased_rate(each.bits_per_second, each.safe_bits_per_second, silent, times=times)
        way = TrafficWay(each.destination, each.direction)
        found[way] = EgressLimits(shaped, {name: bits} if shaped else {})
    return found, tuple(refused)


def bandwidth_limits(
    pods: Iterable[CountedPod], owners: Mapping[Address, AddressOwner]
) -> dict[TrafficWay, EgressLimits]:
    """Return the limits of all that pods send and receive, by the annotations of Kubernetes."""
    addresses = _addresses(owners)
    here = sorted((each for each in pods if each.owner in addresses), key=lambda each: each.owner)
    found: dict[TrafficWay, EgressLimits] = {}
    for way, annotation in _BANDWIDTH.items():
        refused: list[str] = []
        asked = [
            (pod, _own_limit(pod, annotation, refused, least=BANDWIDTH_BITS_MIN)) for pod in here
        ]
        shaped = tuple(
            ShapedPod(pod.owner, pod.metadata.name, addresses[pod.owner], bits, "")
            for pod, bits in asked if bits
        )  # fmt: skip
        found[way] = EgressLimits(shaped, refused=tuple(refused))
    return found


def limited_classes(classes: Iterable[str]) -> tuple[str, ...]:
    """Return the classes that can have a limit of their own: not the inside, nor the internet."""
    return tuple(each for each in classes if each not in (CLASSES[0], INTERNET))


def _addresses(
    owners: Mapping[Address, AddressOwner],
) -> dict[AddressOwner, tuple[Address, ...]]:
    """Return the addresses of each owner, in order."""
    found: dict[AddressOwner, list[Address]] = {}
    for address, owner in owners.items():
        found.setdefault(owner, []).append(address)
    return {
        owner: tuple(sorted(there, key=lambda each: (each.version, each)))
        for owner, there in found.items()
    }


def _own_limit(
    pod: CountedPod, annotation: str, refused: list[str], *, least: int = POD_BITS_MIN
) -> int:
    """Return the limit that the pod asks for itself, 0 for none."""
    text = (pod.metadata.annotations or {}).get(annotation)
    if text is None:
        return 0
    try:
        return egress_bits(text, least=least)
    except ValueError as error:
        meta = pod.metadata
        refused.append(f"{meta.namespace}/{meta.name}: {annotation}: {error}")
        return 0


def _team(pod: CountedPod, given: Sequence[TeamRate]) -> str:
    names = [each.team for each in given if pod.metadata.namespace in each.namespaces]
    label = (pod.metadata.labels or {}).get(TEAM, "")
    return label if label in names else next(iter(names), "")
