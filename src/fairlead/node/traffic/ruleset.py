"""What the kernel is to count, as commands of nft's JSON (libnftables-json(5)); pure.

One table of our own. For each class and direction there is a map from an address to the counter of
its pod, so a packet costs the same for any number of pods: a look-up of the other end's class, and
one of the pod's counter. Counters are objects with names that say whose they are; what they count
outlives the elements that lead to them, so a value is final once nothing leads there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from fairlead.node.traffic.classes import FAMILIES, INTERNET, Address, Interval

TABLE = "fairlead"
#: Changes when the shape of the rules does, so that an agent of another version sets them up.
SHAPE = 1
#: Addresses that a map can have; more are refused by the kernel.
ADDRESSES_MAX = 16_384
#: Behind filters (0), so that what a policy drops is not counted; before translation (100).
_PRIORITY = 10
_HOOKS = ("forward", "input", "output")
#: What the hooks do with packets of IPv6; those of IPv4 are not sent on, which is cheaper.
_IPV6 = "ipv6"
#: Where what ended is counted for namespaces that have no room of their own.
OTHERS = "-"

Direction = Literal["out", "in"]
DIRECTIONS: tuple[Direction, Direction] = ("out", "in")
Command = dict[str, Any]


class AddressOwner(NamedTuple):
    """Whose an address is: a pod's, or the machine's, which is NODE."""

    namespace: str
    uid: str


NODE = AddressOwner("", "")


class CounterKey(NamedTuple):
    """What the name of a counter says. `uid` is empty for what has ended in a namespace."""

    namespace: str
    uid: str
    traffic_class: str
    direction: str


@dataclass(frozen=True, slots=True)
class CountingPlan:
    """Classes, and the intervals of each family that belong to one.

    `marker` is the name of the counter that says which plan the kernel has.
    """

    classes: tuple[str, ...]
    intervals: Mapping[int, tuple[Interval, ...]]
    marker: str = field(init=False)

    def __post_init__(self) -> None:
        data = msgspec.json.encode([SHAPE, self.classes, [
            (str(each.first), str(each.last), each.traffic_class)
            for family in FAMILIES for each in self.intervals[family]
        ]])  # fmt: skip
        marker = f"ruleset/{hashlib.sha256(data).hexdigest()[:16]}"
        object.__setattr__(self, "marker", marker)


@dataclass(frozen=True, slots=True)
class KernelTable:
    """What the kernel has of our table: names, and who is counted at which address."""

    chains: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    owners: Mapping[Address, AddressOwner] = field(default_factory=dict[Address, AddressOwner])


def counter_name(owner: AddressOwner, traffic_class: str, direction: str) -> str:
    """Return the name of a counter."""
    whose = f"pod/{owner.namespace}/{owner.uid}" if owner != NODE else "node"
    return f"{whose}/{traffic_class}/{direction}"


def ended_name(namespace: str, traffic_class: str, direction: str) -> str:
    """Return the name of the counter of a namespace's pods that are gone."""
    return f"ended/{namespace}/{traffic_class}/{direction}"


@lru_cache(maxsize=1 << 16)
def parse_name(name: str) -> CounterKey | None:
    """Return what a name says; None for another counter."""
    match name.split("/"):
        case ["pod", namespace, uid, traffic_class, direction]:
            return CounterKey(namespace, uid, traffic_class, direction)
        case ["ended", namespace, traffic_class, direction]:
            return CounterKey(namespace, "", traffic_class, direction)
        case ["node", traffic_class, direction]:
            return CounterKey("", "", traffic_class, direction)
        case _:
            return None


def owner_of(name: str) -> AddressOwner | None:
    """Return whose a counter is that an element leads to."""
    found = parse_name(name)
    return AddressOwner(found.namespace, found.uid) if found else None


def map_name(traffic_class: str, direction: str, family: int) -> str:
    """Return the name of the map of a class and a direction, which its chain has, too."""
    return f"{traffic_class}-{direction}{family}"


def _add(kind: str, **fields: Any) -> Command:
    return {"add": {kind: {"family": "inet", "table": TABLE, **fields}}}


def _delete(kind: str, name: str) -> Command:
    return {"delete": {kind: {"family": "inet", "table": TABLE, "name": name}}}


def _flush(name: str) -> Command:
    return {"flush": {"chain": {"family": "inet", "table": TABLE, "name": name}}}


def _rule(chain: str, *expressions: Command) -> Command:
    return _add("rule", chain=chain, expr=list(expressions))


def _match(left: Command, right: str, operator: str = "==") -> Command:
    return {"match": {"op": operator, "left": left, "right": right}}


def _meta(key: str) -> Command:
    return {"meta": {"key": key}}


def _address(family: int, *, is_source: bool) -> Command:
    protocol, field = "ip" if family == 4 else "ip6", "saddr" if is_source else "daddr"
    return {"payload": {"protocol": protocol, "field": field}}


def remove() -> list[Command]:
    """Return what takes back all that is ours."""
    table = {"table": {"family": "inet", "name": TABLE}}
    return [{"add": table}, {"delete": table}]


def set_up(
    plan: CountingPlan,
    owners: Mapping[Address, AddressOwner],
    held: KernelTable = KernelTable(),
    *,
    counters: Iterable[str] = (),
) -> list[Command]:
    """Return one transaction that replaces all rules and keeps the counters that there are.

    `held` is what the kernel has of our table, `counters` are the names of its counters.
    """
    there = set(counters)
    commands: list[Command] = [{"add": {"table": {"family": "inet", "name": TABLE}}}]
    commands += [_flush(name) for name in held.chains]
    commands += [_delete("map", name) for name in held.maps]
    commands += [_delete("set", name) for name in held.sets]
    commands += [_delete("chain", name) for name in held.chains if name not in _HOOKS]
    commands += [_delete("counter", name) for name in sorted(there) if name.startswith("ruleset/")]
    commands += [_add("chain", name=hook, type="filter", hook=hook, prio=_PRIORITY, policy="accept")
                 for hook in _HOOKS]  # fmt: skip
    commands.append(_add("chain", name=_IPV6))
    commands += _new_counters(plan, set(owners.values()), there)
    commands += [each for family in FAMILIES for each in _family(plan, family)]
    commands += [_rule(hook, _match(_meta(key), "lo"), {"accept": None})
                 for hook, key in (("input", "iifname"), ("output", "oifname"))]  # fmt: skip
    commands += [_rule(hook, _match(_meta("nfproto"), "ipv6"), {"goto": {"target": _IPV6}})
                 for hook in _HOOKS]  # fmt: skip
    commands += [
        _rule(chain, _match(_address(family, is_source=direction == "out"), f"@own{family}"),
              {"jump": {"target": f"{direction}{family}"}})
        for chain, family in (*((hook, 4) for hook in _HOOKS), (_IPV6, 6))
        for direction in DIRECTIONS
    ]  # fmt: skip
    commands += _elements("add", plan.classes, owners)
    commands.append(_add("counter", name=plan.marker))
    return commands


def _family(plan: CountingPlan, family: int) -> list[Command]:
    """Return sets, maps and chains of one family, and the rules of the chains."""
    kind = "ipv4_addr" if family == 4 else "ipv6_addr"
    commands = [_add("set", name=f"own{family}", type=kind, size=ADDRESSES_MAX)]
    for direction in DIRECTIONS:
        is_source = direction == "out"
        counts: dict[str, Command] = {}
        for each in plan.classes:
            name = map_name(each, direction, family)
            commands.append(_add("map", name=name, type=kind, map="counter", size=ADDRESSES_MAX))
            key = {"key": _address(family, is_source=is_source), "data": f"@{name}"}
            counts[each] = {"counter": {"map": key}}
            if each != INTERNET:
                commands += [_add("chain", name=name), _rule(name, counts[each])]
        entries = [
            [_span(each), {"goto": {"target": map_name(each.traffic_class, direction, family)}}]
            for each in plan.intervals[family]
        ]
        # A chain is left by goto, so what no interval has comes to the rule behind.
        chain, classes = f"{direction}{family}", f"class-{direction}{family}"
        key = {"key": _address(family, is_source=not is_source), "data": f"@{classes}"}
        commands += [
            _add("map", name=classes, type=kind, map="verdict", flags=["interval"], elem=entries),
            _add("chain", name=chain),
            _rule(chain, {"vmap": key}),
            _rule(chain, counts[INTERNET]),
        ]  # fmt: skip
    return commands


def _span(interval: Interval) -> object:
    if interval.first == interval.last:
        return str(interval.first)
    return {"range": [str(interval.first), str(interval.last)]}


def _new_counters(
    plan: CountingPlan, owners: Iterable[AddressOwner], there: set[str]
) -> list[Command]:
    names = [
        counter_name(owner, each, direction)
        for owner in sorted(owners) for each in plan.classes for direction in DIRECTIONS
    ]  # fmt: skip
    return [_add("counter", name=name) for name in names if name not in there]


def _elements(
    verb: Literal["add", "delete"], classes: Sequence[str], owners: Mapping[Address, AddressOwner]
) -> list[Command]:
    commands: list[Command] = []
    for family in FAMILIES:
        mine = [(str(a), owners[a]) for a in sorted(a for a in owners if a.version == family)]
        if mine:
            own = [address for address, _ in mine]
            body = {"family": "inet", "table": TABLE, "name": f"own{family}", "elem": own}
            commands.append({verb: {"element": body}})
        for each in classes if mine else ():
            for direction in DIRECTIONS:
                elements = [
                    [address, counter_name(owner, each, direction)] if verb == "add" else address
                    for address, owner in mine
                ]
                name = map_name(each, direction, family)
                body = {"family": "inet", "table": TABLE, "name": name, "elem": elements}
                commands.append({verb: {"element": body}})
    return commands


def change(
    plan: CountingPlan, old: Mapping[Address, AddressOwner], new: Mapping[Address, AddressOwner],
    *, counters: Iterable[str],
) -> list[Command]:  # fmt: skip
    """Return one transaction that leads each address to its new owner's counters; empty for none.

    An address that has another owner is led there in the same transaction, so each packet is
    counted for one of both.
    """
    gone = {address: owner for address, owner in old.items() if new.get(address) != owner}
    come = {address: owner for address, owner in new.items() if old.get(address) != owner}
    return [
        *_elements("delete", plan.classes, gone),
        *_new_counters(plan, set(come.values()), set(counters)),
        *_elements("add", plan.classes, come),
    ]


def fold(
    finals: Mapping[str, tuple[int, int]], ended: Mapping[str, tuple[int, int]],
    *, namespaces_max: int,
) -> list[Command]:  # fmt: skip
    """Return one transaction that adds counters of pods that are gone to those of namespaces.

    Both are (packets, bytes) by name. The sum of all is the same before and after, so the ledger
    of what has ended is the kernel's, and an agent that ends at any line has lost nothing.
    """
    sums: dict[str, tuple[int, int]] = {}
    rooms = {found.namespace for name in ended if (found := parse_name(name))}
    commands = [_delete("counter", name) for name in sorted(finals)]
    for name, (packets, size) in sorted(finals.items()):
        of = parse_name(name)
        if of is None or not size:
            continue
        if of.namespace not in rooms and len(rooms) >= namespaces_max:
            of = of._replace(namespace=OTHERS)
        rooms.add(of.namespace)
        into = ended_name(of.namespace, of.traffic_class, of.direction)
        before = sums.get(into) or ended.get(into) or (0, 0)
        sums[into] = before[0] + packets, before[1] + size
    for name, (packets, size) in sorted(sums.items()):
        if name in ended:
            commands.append(_delete("counter", name))
        commands.append(_add("counter", name=name, packets=packets, bytes=size))
    return commands
