"""The table of the kernel that says what is shaped, as commands of nft's JSON; pure.

One table of our own, `inet fairlead-shaping`. A packet that a shaped pod sends to the internet gets
the class of its pod, as `skb->priority`, or meets the pod's and its team's `limit`. Marks are not
used: all 32 bits belong to somebody (docs/design/shaping.md). What limits there are is in
the names of the objects, so an agent that starts reads from the kernel what another has set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from fairlead.node.shaping.limits import EgressLimits
from fairlead.node.traffic.classes import FAMILIES, INTERNET, Address, Interval
from fairlead.node.traffic.ruleset import ADDRESSES_MAX, Command, CountingPlan

TABLE = "fairlead-shaping"
#: Changes when the shape of the rules does, so that an agent of another version sets them up.
SHAPE = 2
#: Behind filters (0) and before counting (10): what is dropped here is not counted as sent.
_PRIORITY = 5
_MARKER = "rules/"
_SHAPED, _RECEIVING = "shaped", "shaped-in"
#: More than the largest packet before it is segmented (64 KiB), which would else never pass. The
#: kernel adds a second of the rate to it (nft_limit_init), which a limit that is new has at once.
_BURST_BYTES = 1 << 17
#: Beyond 147 Gbit/s the kernel's nanoseconds times bytes no longer fit into 64 bits.
LIMIT_BITS_MAX = 10**11


class Mechanism(Enum):
    """How limits are kept."""

    HTB = "htb"  # packets wait in a class of the device
    LIMIT = "limit"  # packets beyond the rate are dropped


_LIMITS = {
    "pod": "limit", "pod-dropped": "counter", "team": "limit", "team-dropped": "counter",
}  # fmt: skip
#: Maps by mechanism, without the family: what an address leads to.
_MAPS: Mapping[Mechanism, Mapping[str, str]] = {
    Mechanism.HTB: {"class": "classid"},
    Mechanism.LIMIT: _LIMITS,
}
#: Before the names of maps, limits and counters of what pods receive.
INGRESS = "in-"
_INGRESS_MAPS = {f"{INGRESS}{name}": of for name, of in _LIMITS.items()}

_NONE = EgressLimits()
Elements = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ShapingTable:
    """What the table has: limits in bits per second, and what each address leads to.

    `elements` are those of maps and of the sets of shaped addresses ("" there), by name.
    """

    marker: str = ""
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    counters: frozenset[str] = frozenset()
    elements: Elements = field(default_factory=dict[str, dict[str, str]])


def marker(plan: CountingPlan, mechanism: Mechanism, *, has_ingress: bool = False) -> str:
    """Return the name of the counter that says which rules there are."""
    data = msgspec.json.encode([SHAPE, mechanism.value, plan.marker(0), has_ingress])
    return _MARKER + hashlib.sha256(data).hexdigest()[:16]


def wanted_table(
    plan: CountingPlan, mechanism: Mechanism, limits: EgressLimits, classes: Mapping[str, str],
    *, ingress: EgressLimits = _NONE,
) -> ShapingTable:  # fmt: skip
    """Return the table for limits; `classes` are the ids of pods' classes by uid.

    `ingress` are limits of what pods receive, by dropping; without one there are no rules for it,
    so packets cost nothing more.
    """
    has_ingress = bool(ingress.pods)
    names = [_SHAPED, *_MAPS[mechanism]]
    names += [_RECEIVING, *_INGRESS_MAPS] if has_ingress else []
    elements: dict[str, dict[str, str]] = {f"{n}{family}": {} for n in names for family in FAMILIES}
    found: dict[str, int] = {}
    counters: set[str] = set()

    def limit(kind: str, name: str, bits: int, of: Address) -> None:
        bits = min(bits, LIMIT_BITS_MAX)
        found[f"{name}/{bits}"] = bits
        counters.add(name)
        elements[f"{kind}{of.version}"][str(of)] = f"{name}/{bits}"
        elements[f"{kind}-dropped{of.version}"][str(of)] = name

    for pod in limits.pods:
        for each in pod.addresses:
            elements[f"{_SHAPED}{each.version}"][str(each)] = ""
            if mechanism is Mechanism.HTB:
                elements[f"class{each.version}"][str(each)] = classes[pod.owner.uid]
    droppers = [("", limits)] if mechanism is Mechanism.LIMIT else []
    for prefix, each_way in (*droppers, (INGRESS, ingress)):
        for pod in each_way.pods:
            for each in pod.addresses:
                if prefix:
                    elements[f"{_RECEIVING}{each.version}"][str(each)] = ""
                if pod.bits:
                    name = f"{prefix}pod/{pod.owner.namespace}/{pod.owner.uid}"
                    limit(f"{prefix}pod", name, pod.bits, each)
                if pod.team:
                    name = f"{prefix}team/{pod.team}"
                    limit(f"{prefix}team", name, each_way.teams[pod.team], each)
    rules = marker(plan, mechanism, has_ingress=has_ingress)
    return ShapingTable(rules, found, frozenset(counters), elements)


def parse_table(items: Iterable[Mapping[str, Any]]) -> ShapingTable:
    """Return the table of nft's list; KeyError, TypeError, ValueError for what is none of ours."""
    rules, limits, counters = "", dict[str, int](), set[str]()
    elements: dict[str, dict[str, str]] = {}
    for item in items:
        match item:
            case {"counter": {"name": str(name)}} if name.startswith(_MARKER):
                rules = name
            case {"counter": {"name": str(name)}}:
                counters.add(name)
            case {"limit": {"name": str(name)}}:
                limits[name] = int(name.rpartition("/")[2])
            case {"set": {"name": str(name), **rest}} if name.startswith(_SHAPED):
                elements[name] = dict.fromkeys(rest.get("elem", ()), "")
            case {"map": {"name": str(name), **rest}}:
                elements[name] = dict(rest.get("elem", ()))
            case _:
                pass
    return ShapingTable(rules, limits, frozenset(counters), elements)


def changes(
    plan: CountingPlan, mechanism: Mechanism, old: ShapingTable, new: ShapingTable
) -> list[Command]:
    """Return one transaction from a table to another; empty for none.

    Rules of another plan or mechanism are replaced with all that is there.
    """
    commands: list[Command] = []
    if old.marker != new.marker:
        commands, old = _set_up(plan, mechanism, new), ShapingTable()
    for name, there in old.elements.items():
        wanted = new.elements.get(name, {})
        gone = [address for address, to in there.items() if wanted.get(address) != to]
        commands += _element("delete", name, gone)
    commands += [
        _add("limit", name=name, rate=bits // 8, per="second", rate_unit="bytes", inv=True,
             burst=_BURST_BYTES, burst_unit="bytes")
        for name, bits in sorted(new.limits.items()) if name not in old.limits
    ]  # fmt: skip
    commands += [_add("counter", name=name) for name in sorted(new.counters - old.counters)]
    for name, wanted in new.elements.items():
        there = old.elements.get(name, {})
        come = [[address, to] if to else address
                for address, to in wanted.items() if there.get(address) != to]  # fmt: skip
        commands += _element("add", name, come)
    commands += [_delete("limit", name) for name in sorted(old.limits.keys() - new.limits.keys())]
    commands += [_delete("counter", name) for name in sorted(old.counters - new.counters)]
    return commands


def remove() -> list[Command]:
    """Return what takes back all that is ours."""
    table = {"table": {"family": "inet", "name": TABLE}}
    return [{"add": table}, {"delete": table}]


def _set_up(plan: CountingPlan, mechanism: Mechanism, new: ShapingTable) -> list[Command]:
    """Return what sets up the rules, with empty sets and maps of addresses."""
    commands = [*remove(), {"add": {"table": {"family": "inet", "name": TABLE}}}]
    commands.append(_add("counter", name=new.marker))
    hook = {"type": "filter", "hook": "forward", "prio": _PRIORITY, "policy": "accept"}
    commands.append(_add("chain", name="forward", **hook))
    for family in FAMILIES:
        kind, protocol = ("ipv4_addr", "ip") if family == 4 else ("ipv6_addr", "ip6")
        source, destination = (
            {"payload": {"protocol": protocol, "field": f"{end}addr"}} for end in "sd"
        )
        free = [_span(each) for each in plan.intervals[family] if each.traffic_class != INTERNET]
        egress, ingress = f"egress{family}", f"ingress{family}"
        commands += [
            _add("set", name=f"{_SHAPED}{family}", type=kind, size=ADDRESSES_MAX),
            _add("set", name=f"free{family}", type=kind, flags=["interval"], elem=free),
            *(_add("map", name=f"{name}{family}", type=kind, map=of, size=ADDRESSES_MAX)
              for name, of in _MAPS[mechanism].items()),
            _add("chain", name=egress),
            _rule("forward", _match(source, f"@{_SHAPED}{family}"), {"jump": {"target": egress}}),
            _rule(egress, _match(destination, f"@free{family}"), {"return": None}),
        ]  # fmt: skip
        if mechanism is Mechanism.HTB:
            value = _of(source, f"class{family}")
            priority = {"meta": {"key": "priority"}}
            commands.append(_rule(egress, {"mangle": {"key": priority, "value": value}}))
        else:
            commands += _drops(egress, source, "", family)
        if f"{_RECEIVING}{family}" in new.elements:
            commands += [
                _add("set", name=f"{_RECEIVING}{family}", type=kind, size=ADDRESSES_MAX),
                *(_add("map", name=f"{name}{family}", type=kind, map=of, size=ADDRESSES_MAX)
                  for name, of in _INGRESS_MAPS.items()),
                _add("chain", name=ingress),
                _rule("forward", _match(destination, f"@{_RECEIVING}{family}"),
                      {"jump": {"target": ingress}}),
                _rule(ingress, _match(source, f"@free{family}"), {"return": None}),
                *_drops(ingress, destination, INGRESS, family),
            ]  # fmt: skip
    return commands


def _drops(chain: str, address: Command, prefix: str, family: int) -> list[Command]:
    """Return the rules that drop what is beyond the limits of an address."""
    return [
        _rule(chain, {"limit": _of(address, f"{prefix}{name}{family}")},
              {"counter": _of(address, f"{prefix}{name}-dropped{family}")}, {"drop": None})
        for name in ("pod", "team")
    ]  # fmt: skip


def _of(key: Command, map_name: str) -> Command:
    return {"map": {"key": key, "data": f"@{map_name}"}}


def _span(interval: Interval) -> object:
    if interval.first == interval.last:
        return str(interval.first)
    return {"range": [str(interval.first), str(interval.last)]}


def _add(what: str, **fields: Any) -> Command:
    return {"add": {what: {"family": "inet", "table": TABLE, **fields}}}


def _delete(what: str, name: str) -> Command:
    return {"delete": {what: {"family": "inet", "table": TABLE, "name": name}}}


def _rule(chain: str, *expressions: Command) -> Command:
    return _add("rule", chain=chain, expr=list(expressions))


def _match(left: Command, right: str) -> Command:
    return {"match": {"op": "==", "left": left, "right": right}}


def _element(verb: str, name: str, elements: list[Any]) -> list[Command]:
    if not elements:
        return []
    body = {"family": "inet", "table": TABLE, "name": name, "elem": elements}
    return [{verb: {"element": body}}]
