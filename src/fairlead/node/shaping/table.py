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

from fairlead.node.shaping.classes import Key, pod_key
from fairlead.node.shaping.limits import ALL, DESTINATION, EGRESS, EgressLimits, TrafficWay
from fairlead.node.traffic.classes import FAMILIES, INTERNET, Address, Interval
from fairlead.node.traffic.ruleset import ADDRESSES_MAX, Command, CountingPlan

TABLE = "fairlead-shaping"
#: Changes when the shape of the rules does, so that an agent of another version sets them up.
SHAPE = 4
#: Behind filters (0) and before counting (10): what is dropped here is not counted as sent.
_PRIORITY = 5
_MARKER = "rules/"
_ADDRESS_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
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
#: By class of addresses. A destination has limits of all pods together alone.
_KINDS = {INTERNET: ("pod", "team"), ALL: ("pod",)}
_SHARED = ("team",)
#: Verdict maps from the other end's address to the chain of a destination, which never change.
_DISPATCH = {True: "destinations", False: "origins"}
_DISPATCHES = tuple(_DISPATCH.values())

Elements = Mapping[str, Mapping[str, str]]
Ways = Mapping[TrafficWay, EgressLimits]


@dataclass(frozen=True, slots=True)
class ShapingTable:
    """What the table has: limits in bits per second, and what each address leads to.

    `elements` are those of maps and of the sets of shaped addresses ("" there), by name. `ways` are
    those that have rules, which the kernel's list does not say.
    """

    marker: str = ""
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    counters: frozenset[str] = frozenset()
    elements: Elements = field(default_factory=dict[str, dict[str, str]])
    ways: tuple[TrafficWay, ...] = field(default=(), compare=False)


def marker(plan: CountingPlan, mechanism: Mechanism, ways: Iterable[TrafficWay]) -> str:
    """Return the name of the counter that says which rules there are."""
    prefixes = [each.prefix for each in ways]
    data = msgspec.json.encode([SHAPE, mechanism.value, plan.marker(0), prefixes])
    return _MARKER + hashlib.sha256(data).hexdigest()[:16]


def drops_in(way: TrafficWay, mechanism: Mechanism) -> bool:
    """True where limits of a way are kept by dropping: of what cannot wait always."""
    return mechanism is Mechanism.LIMIT or not way.can_wait


def _kinds(way: TrafficWay) -> tuple[str, ...]:
    return _KINDS.get(way.traffic_class, _SHARED)


def _maps(way: TrafficWay, mechanism: Mechanism) -> dict[str, str]:
    """Return the maps of a way, and what they lead to."""
    if not drops_in(way, mechanism):
        return {f"{way.prefix}class": "classid"}
    names = (each for kind in _kinds(way) for each in (kind, f"{kind}-dropped"))
    return {f"{way.prefix}{name}": _LIMITS[name] for name in names}


def wanted_table(
    plan: CountingPlan, mechanism: Mechanism, limits: Ways, classes: Mapping[Key, str]
) -> ShapingTable:
    """Return the table for limits; `classes` are the ids of pods' classes.

    There are rules for a way while some pod has a limit there, so that packets cost nothing more;
    for what pods send to the internet always.
    """
    ways = [way for way, each in limits.items() if each.pods or way == EGRESS]
    ways.sort(key=lambda each: each.prefix)
    receiving = [each for each in ways if not each.is_egress and each.traffic_class != ALL]
    names = [_SHAPED, *([_RECEIVING] if receiving else [])]
    names += [name for way in ways for name in _maps(way, mechanism)]
    elements: dict[str, dict[str, str]] = {f"{n}{family}": {} for n in names for family in FAMILIES}
    found: dict[str, int] = {}
    counters: set[str] = set()

    def limit(kind: str, name: str, bits: int, of: Address) -> None:
        bits = min(bits, LIMIT_BITS_MAX)
        found[f"{name}/{bits}"] = bits
        counters.add(name)
        elements[f"{kind}{of.version}"][str(of)] = f"{name}/{bits}"
        elements[f"{kind}-dropped{of.version}"][str(of)] = name

    for way in ways:
        prefix, limited = way.prefix, _SHAPED if way.is_egress else _RECEIVING
        for pod in limits[way].pods:
            for each in pod.addresses:
                if way.traffic_class != ALL:
                    elements[f"{limited}{each.version}"][str(each)] = ""
                if not drops_in(way, mechanism):
                    key = pod_key(pod.owner.uid, pod.team)
                    elements[f"{prefix}class{each.version}"][str(each)] = classes[key]
                    continue
                if pod.bits:
                    name = f"{prefix}pod/{pod.owner.namespace}/{pod.owner.uid}"
                    limit(f"{prefix}pod", name, pod.bits, each)
                if pod.team:
                    bits = limits[way].teams[pod.team]
                    limit(f"{prefix}team", team_name(way, pod.team), bits, each)
    rules = marker(plan, mechanism, ways)
    return ShapingTable(rules, found, frozenset(counters), elements, tuple(ways))


def team_name(way: TrafficWay, team: str) -> str:
    """Return the name of the counter of what a team's limit drops, which begins its limit's."""
    return f"{way.prefix}team/{team.removeprefix(DESTINATION)}"


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
            case {"map": {"name": str(name), **rest}} if not name.startswith(_DISPATCHES):
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
    of_all = [each for each in new.ways if each.traffic_class == ALL]
    egress = tuple(each for each in new.ways if each.is_egress and each not in of_all)
    ingress = tuple(each for each in new.ways if not each.is_egress and each not in of_all)
    for family in FAMILIES:
        kind = _ADDRESS_TYPES[family]
        free = [_span(each) for each in plan.intervals[family] if each.traffic_class != INTERNET]
        commands.append(_add("set", name=f"free{family}", type=kind, flags=["interval"], elem=free))
        for way in of_all:
            commands += _table_maps(way, mechanism, family)
            commands += _limiting("forward", _ends(way, family)[0], way, mechanism, family=family)
        commands += _direction(plan, mechanism, egress, family)
        if ingress:
            commands += _direction(plan, mechanism, ingress, family)
    return commands


def _direction(
    plan: CountingPlan, mechanism: Mechanism, ways: tuple[TrafficWay, ...], family: int
) -> list[Command]:
    """Return sets, maps and rules of one direction and family: of a destination, else internet."""
    is_egress = ways[0].is_egress
    kind = _ADDRESS_TYPES[family]
    own, other = _ends(ways[0], family)
    limited = f"{_SHAPED if is_egress else _RECEIVING}{family}"
    chain = f"{'egress' if is_egress else 'ingress'}{family}"
    commands = [
        _add("set", name=limited, type=kind, size=ADDRESSES_MAX),
        *(each for way in ways for each in _table_maps(way, mechanism, family)),
        _add("chain", name=chain),
        _rule("forward", _match(own, f"@{limited}"), {"jump": {"target": chain}}),
    ]  # fmt: skip
    dispatch: list[object] = []
    for way in ways:
        if way.traffic_class == INTERNET:
            continue
        of = f"{way.prefix}rules{family}"
        commands += [_add("chain", name=of), *_limiting(of, own, way, mechanism, family=family)]
        dispatch += [
            [_span(each), {"goto": {"target": of}}]
            for each in plan.intervals[family]
            if each.traffic_class == way.traffic_class
        ]
    if dispatch:
        name = f"{_DISPATCH[is_egress]}{family}"
        commands += [
            _add("map", name=name, type=kind, map="verdict", flags=["interval"], elem=dispatch),
            _rule(chain, {"vmap": {"key": other, "data": f"@{name}"}}),
        ]
    commands.append(_rule(chain, _match(other, f"@free{family}"), {"return": None}))
    for way in ways:
        if way.traffic_class == INTERNET:
            commands += _limiting(chain, own, way, mechanism, family=family)
    return commands


def _ends(way: TrafficWay, family: int) -> list[Command]:
    """Return the expressions of the pod's address in a packet and of the other end's."""
    protocol = "ip" if family == 4 else "ip6"
    return [
        {"payload": {"protocol": protocol, "field": f"{end}addr"}}
        for end in ("sd" if way.is_egress else "ds")
    ]


def _table_maps(way: TrafficWay, mechanism: Mechanism, family: int) -> list[Command]:
    return [
        _add("map", name=f"{name}{family}", type=_ADDRESS_TYPES[family], map=of, size=ADDRESSES_MAX)
        for name, of in _maps(way, mechanism).items()
    ]


def _limiting(
    chain: str, address: Command, way: TrafficWay, mechanism: Mechanism, *, family: int
) -> list[Command]:
    """Return the rules of a way: a class for the packet, or a drop beyond the limits."""
    prefix = way.prefix
    if not drops_in(way, mechanism):
        value = _of(address, f"{prefix}class{family}")
        return [_rule(chain, {"mangle": {"key": {"meta": {"key": "priority"}}, "value": value}})]
    return [
        _rule(chain, {"limit": _of(address, f"{prefix}{name}{family}")},
              {"counter": _of(address, f"{prefix}{name}-dropped{family}")}, {"drop": None})
        for name in _kinds(way)
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
