"""What was counted, added up by namespace, class and direction, with what was not seen (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from fairlead.node.traffic.ended import EndedTrafficLine
from fairlead.node.traffic.flows import FlowLine
from fairlead.node.traffic.netlink import Counted, NetworkDevice
from fairlead.node.traffic.pods import CountedPod
from fairlead.node.traffic.ruleset import AddressOwner, parse_name

#: Kinds of devices whose other end is a pod's, and whose bytes netfilter should see.
_POD_LINKS = ("veth", "netkit")
#: Kinds of devices that lead around the host's netfilter.
_BYPASSES = ("ipvlan", "macvlan")
_ETHERNET_BYTES = 14


class UsageLine(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of a namespace; of the node itself and its host-network pods where that is empty.

    Bytes are those of IP packets as the kernel carries them: a segment that the device cuts into
    packets has one header.
    """

    namespace: str
    traffic_class: str
    direction: str
    packets: int
    bytes: int


class PodLine(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of one pod; its name is empty where only its uid is known."""

    namespace: str
    name: str
    uid: str
    traffic_class: str
    direction: str
    bytes: int


class TrafficUsage(msgspec.Struct, frozen=True, rename="camel"):
    """All that was counted since the machine started, or since the table was set up.

    `coverage_permille` is the part of the bytes on pods' devices that was counted, between the
    last two looks; None when there were too few. `blind_spots` names what is never counted. `flows`
    are the same bytes by job, with rates; `ended` are those of members that ended a while ago.
    """

    lines: tuple[UsageLine, ...] = ()
    coverage_permille: int | None = None
    blind_spots: tuple[str, ...] = ()
    flows: tuple[FlowLine, ...] = ()
    ended: tuple[EndedTrafficLine, ...] = ()


class SeenBytes(NamedTuple):
    """Bytes that pods' devices carried, and that were counted for pods."""

    wire: int
    counted: int


def usage_lines(counters: Mapping[str, Counted]) -> tuple[UsageLine, ...]:
    """Return a line for each namespace, class and direction that has bytes, in this order."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for name, counted in counters.items():
        found = parse_name(name)
        if found is None or not counted.size:
            continue
        key = found.namespace, found.traffic_class, found.direction
        packets, size = sums.get(key, (0, 0))
        sums[key] = packets + counted.packets, size + counted.size
    return tuple(UsageLine(*key, *sums[key]) for key in sorted(sums))


def top_pods(
    counters: Mapping[str, Counted], pods: Iterable[CountedPod], count: int
) -> tuple[PodLine, ...]:
    """Return the lines of pods with the most bytes, also of members that ended a while ago."""
    names = {each.owner: each.metadata.name for each in pods}
    found = [
        PodLine(of.namespace, names.get(AddressOwner(of.namespace, of.uid), ""), of.uid,
                of.traffic_class, of.direction, counted.size)
        for name, counted in counters.items()
        if (of := parse_name(name)) and of.uid and counted.size
    ]  # fmt: skip
    order = sorted(found, key=lambda each: (-each.bytes, each.uid, each.traffic_class))
    return tuple(order[:count])


def seen(counters: Mapping[str, Counted], links: Iterable[NetworkDevice]) -> SeenBytes:
    """Return what pods' devices carried, without Ethernet headers, and what was counted."""
    wire = sum(
        each.size - _ETHERNET_BYTES * each.packets for each in links if each.kind in _POD_LINKS
    )
    counted = sum(
        each.size for name, each in counters.items() if name.startswith(("pod/", "ended/"))
    )
    return SeenBytes(wire, counted)


def coverage(before: SeenBytes, now: SeenBytes, *, bytes_min: int) -> int | None:
    """Return the counted part in 1/1000; None where too little passed, or a device went away."""
    wire = now.wire - before.wire
    if wire < bytes_min:
        return None
    return max(0, min(1000, 1000 * (now.counted - before.counted) // wire))


def blind_spots(
    links: Iterable[NetworkDevice], *, has_rdma: bool, hosts: str = ""
) -> tuple[str, ...]:
    """Return what is never counted on this machine, or not apart.

    `hosts` says why pods of the host's network are not, "" where they are.
    """
    found = [
        f"{each.name}: traffic of {each.kind} devices passes the host's netfilter by"
        for each in links
        if each.kind in _BYPASSES
    ]
    if has_rdma:
        found.append(
            "RDMA: it passes the kernel by; the ports' counters are in the infiniband checks"
        )
    if hosts:
        found.append(f"pods of the host's network are counted with the node: {hosts}")
    return tuple(sorted(found))
