"""What the kernel is to count, as commands of nft's JSON (libnftables-json(5)); pure.

One table of our own. For each class and direction there is a map from an address to the counter of
its pod, so a packet costs the same for any number of pods: a look-up of the other end's class, and
one of the pod's counter. Counters are objects with names that say whose they are; what they count
outlives the elements that lead to them, so a value is final once nothing leads there.

All other objects have the number of their rules in their names, and rules of another number share
none of them: a packet that is between two look-ups when others take their place goes on through
those that it began with, which are deleted when no packet can be there, in a later transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from fairlead.node.traffic.classes import FAMILIES, INTERNET, Address, Interval, blocks

TABLE = "fairlead"
#: Changes when the shape of the rules does, so that an agent of another version sets them up.
SHAPE = 5
#: Addresses that a map can have; more are refused by the kernel.
ADDRESSES_MAX = 16_384
#: Behind filters (0), so that what a policy drops is not counted; before translation (100).
_PRIORITY = 10
_HOOKS = ("forward", "input", "output")
_ADDRESS_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
#: What the hooks do with packets of IPv6; those of IPv4 are not sent on, which is cheaper.
_IPV6 = "ipv6"
#: Begins the name of the counter that says which rules are in force.
MARKER = "ruleset/"
#: Where what ended is counted for namespaces that have no room of their own.
OTHERS = "-"
#: Where what ended is counted, by the kind of its counters: what host pods' devices carry is not
#: compared with what pods' devices carry.
ENDED = {"pod": "ended", "host": "host-ended"}
#: The hook that sees what a socket of the host sends or receives, by direction.
_HOST_HOOKS = {"out": "output", "in": "input"}

Direction = Literal["out", "in"]
DIRECTIONS: tuple[Direction, Direction] = ("out", "in")
Command = dict[str, Any]
Verb = Literal["add", "delete"]


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
    """Classes, and the intervals of each family that belong to one."""

    classes: tuple[str, ...]
    intervals: Mapping[int, tuple[Interval, ...]]
    _digest: str = field(init=False)

    def __post_init__(self) -> None:
        data = msgspec.json.encode([SHAPE, self.classes, [
            (str(each.first), str(each.last), each.traffic_class)
            for family in FAMILIES for each in self.intervals[family]
        ]])  # fmt: skip
        object.__setattr__(self, "_digest", hashlib.sha256(data).hexdigest()[:16])

    def marker(self, number: int) -> str:
        """Return the name of the counter that says that rules of a number are of this plan."""
        return numbered(f"{MARKER}{self._digest}", number)


class CountingRules(NamedTuple):
    """Rules that a packet meets: their number, and who is counted at which address.

    `hosts` are pods of the host's network by their cgroups.
    """

    number: int
    owners: Mapping[Address, AddressOwner]
    hosts: Mapping[str, AddressOwner] = MappingProxyType({})


_NO_RULES = CountingRules(0, {})


@dataclass(frozen=True, slots=True)
class KernelTable:
    """What the kernel has of our table: the rules in force, and names, also of other rules'."""

    rules: CountingRules = _NO_RULES
    chains: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def next_number(self) -> int:
        """Return a number that no object has."""
        return 1 + max(map(number_of, (*self.chains, *self.maps, *self.sets)), default=0)


def numbered(name: str, number: int) -> str:
    """Return the name of an object that is part of rules."""
    return f"{name}/{number}"


def number_of(name: str) -> int:
    """Return the number of the rules that an object is part of; 0 where its name has none.

    None have the hooks' chains, and objects of the first shape and of other programs.
    """
    _, slash, number = name.rpartition("/")
    return int(number) if slash and number.isdecimal() else 0


def counter_name(
    owner: AddressOwner, traffic_class: str, direction: str, *, is_host: bool = False
) -> str:
    """Return the name of a counter; of a pod of the host's network it begins otherwise."""
    kind = "host" if is_host else "pod"
    whose = f"{kind}/{owner.namespace}/{owner.uid}" if owner != NODE else "node"
    return f"{whose}/{traffic_class}/{direction}"


def ended_name(namespace: str, traffic_class: str, direction: str, *, kind: str = "pod") -> str:
    """Return the name of the counter of a namespace's pods that are gone."""
    return f"{ENDED[kind]}/{namespace}/{traffic_class}/{direction}"


@lru_cache(maxsize=1 << 16)
def parse_name(name: str) -> CounterKey | None:
    """Return what a name says; None for another counter."""
    match name.split("/"):
        case ["pod" | "host", namespace, uid, traffic_class, direction]:
            return CounterKey(namespace, uid, traffic_class, direction)
        case ["ended" | "host-ended", namespace, traffic_class, direction]:
            return CounterKey(namespace, "", traffic_class, direction)
        case ["node", traffic_class, direction]:
            return CounterKey("", "", traffic_class, direction)
        case _:
            return None


def owner_of(name: str) -> AddressOwner | None:
    """Return whose a counter is that an element leads to."""
    found = parse_name(name)
    return AddressOwner(found.namespace, found.uid) if found else None


def map_name(traffic_class: str, direction: str, family: int, number: int) -> str:
    """Return the name of the map of a class and a direction, which its chain has, too."""
    return numbered(f"{traffic_class}-{direction}{family}", number)


def host_map(traffic_class: str, direction: str, number: int) -> str:
    """Return the name of the map from cgroups to counters of a class and a direction."""
    return numbered(f"host-{traffic_class}-{direction}", number)


def host_chain(traffic_class: str, direction: str, family: int, number: int) -> str:
    """Return the name of the chain of a class where sockets of the host are told apart."""
    return numbered(f"host-{traffic_class}-{direction}{family}", number)


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


def prepare(
    plan: CountingPlan,
    rules: CountingRules,
    held: KernelTable = KernelTable(),
    *,
    counters: Iterable[str] = (),
) -> list[Command]:
    """Return one transaction that makes all that rules of a new number need; no packet meets it.

    `held` is what the kernel has of our table, `counters` are the names of its counters. What is
    not of the rules in force is deleted.
    """
    there = set(counters)
    commands: list[Command] = [{"add": {"table": {"family": "inet", "name": TABLE}}}]
    commands += delete_others(held, held.rules.number)
    commands += _new_counters(plan, set(rules.owners.values()), there)
    commands += [each for family in FAMILIES for each in _family(plan, family, rules.number)]
    if rules.hosts:
        commands += _new_host_counters(plan, set(rules.hosts.values()), there)
        commands += [
            each for family in FAMILIES for each in _host_family(plan, family, rules.number)
        ]
    return [*commands, *_own_elements("add", rules), *_elements("add", plan.classes, rules)]


def put_into_force(
    plan: CountingPlan, rules: CountingRules, *, counters: Iterable[str] = ()
) -> list[Command]:
    """Return one transaction that replaces the rules of the hooks by those that were prepared.

    It comes after that which prepared them: the kernel publishes intervals of a transaction a
    moment after its rules (nft_set_commit_update), and a packet in between finds none.
    """
    number = rules.number
    commands = [_delete("counter", each) for each in sorted(counters) if each.startswith(MARKER)]
    commands += [_add("chain", name=hook, type="filter", hook=hook, prio=_PRIORITY, policy="accept")
                 for hook in _HOOKS]  # fmt: skip
    commands += [_flush(hook) for hook in _HOOKS]
    ipv6 = numbered(_IPV6, number)
    commands.append(_add("chain", name=ipv6))
    commands += [_rule(hook, _match(_meta(key), "lo"), {"accept": None})
                 for hook, key in (("input", "iifname"), ("output", "oifname"))]  # fmt: skip
    sixes = dict.fromkeys(_HOOKS, ipv6)
    if rules.hosts:
        sixes |= {hook: numbered(f"{_IPV6}-{hook}", number) for hook in _HOST_HOOKS.values()}
        commands += [_add("chain", name=sixes[hook]) for hook in _HOST_HOOKS.values()]
    commands += [_rule(hook, _match(_meta("nfproto"), "ipv6"), {"goto": {"target": sixes[hook]}})
                 for hook in _HOOKS]  # fmt: skip
    firsts = {(hook, 4): hook for hook in _HOOKS} | {(six, 6): hook for hook, six in sixes.items()}
    commands += [
        _rule(chain,
              _match(_address(family, is_source=direction == "out"), f"@{_own(family, number)}"),
              {"jump": {"target": numbered(f"{host}{direction}{family}", number)}})
        for (chain, family), hook in firsts.items()
        for direction in DIRECTIONS
        for host in ["host-" if rules.hosts and _HOST_HOOKS[direction] == hook else ""]
    ]  # fmt: skip
    return [*commands, _add("counter", name=plan.marker(number))]


def delete_others(held: KernelTable, number: int) -> list[Command]:
    """Return one transaction that deletes all but what rules of a number have; empty for nothing.

    Those in force are to be kept, and those that these have just replaced: a packet may still be
    on its way through them.
    """
    gone = [name for name in held.chains if name not in _HOOKS and number_of(name) != number]
    return [
        *(_flush(name) for name in gone),
        *(_delete("map", name) for name in held.maps if number_of(name) != number),
        *(_delete("set", name) for name in held.sets if number_of(name) != number),
        *(_delete("chain", name) for name in gone),
    ]


def _own(family: int, number: int) -> str:
    return numbered(f"own{family}", number)


def _family(plan: CountingPlan, family: int, number: int) -> list[Command]:
    """Return sets, maps and chains of one family, and the rules of the chains."""
    kind = _ADDRESS_TYPES[family]
    lookups = _lookups(plan, family)
    commands = [_add("set", name=_own(family, number), type=kind, size=ADDRESSES_MAX)]
    for direction in DIRECTIONS:
        chains = {each: map_name(each, direction, family, number) for each in plan.classes}
        for name in chains.values():
            commands.append(_add("map", name=name, type=kind, map="counter", size=ADDRESSES_MAX))
            commands += _counting_chain(name, name, family, direction)
        name = numbered(f"{direction}{family}", number)
        commands += _by_class(name, lookups, chains, family=family, direction=direction)
    return commands


def _host_family(plan: CountingPlan, family: int, number: int) -> list[Command]:
    """Return the chains in which sockets of the host are told apart, by class of the other end.

    Each counts for the address, as the others do; `host_pods` puts the rules that ask for the
    cgroup before that.
    """
    commands: list[Command] = []
    lookups = _lookups(plan, family)
    for direction in DIRECTIONS:
        chains = {each: host_chain(each, direction, family, number) for each in plan.classes}
        for each, chain in chains.items():
            counted = map_name(each, direction, family, number)
            commands += _counting_chain(chain, counted, family, direction)
        name = numbered(f"host-{direction}{family}", number)
        commands += _by_class(name, lookups, chains, family=family, direction=direction)
    return commands


def _counting_chain(name: str, counted: str, family: int, direction: Direction) -> list[Command]:
    """Return a chain that counts a packet for the address that a map leads from."""
    key = {"key": _address(family, is_source=direction == "out"), "data": f"@{counted}"}
    return [_add("chain", name=name), _rule(name, {"counter": {"map": key}})]


class _ClassLookup(NamedTuple):
    """One look-up: the mask of the address ("": intervals), and each element's class.

    None is a class that the next look-up says.
    """

    mask: str
    classes: list[tuple[object, str | None]]


def _lookups(plan: CountingPlan, family: int) -> list[_ClassLookup]:
    """Return the look-ups of a class, in order: of blocks, then of intervals."""
    lengths, left = blocks(plan.intervals[4]) if family == 4 else ((), plan.intervals[6])
    by_block = [
        _ClassLookup(str(IPv4Network((0, each.bits)).netmask),
                     [(str(first), name) for first, name in each.classes.items()])
        for each in lengths
    ]  # fmt: skip
    return [*by_block, _ClassLookup("", [(_span(each), each.traffic_class) for each in left])]


def _by_class(
    chain: str, lookups: Sequence[_ClassLookup], chains: Mapping[str, str], *,
    family: int, direction: Direction,
) -> list[Command]:  # fmt: skip
    """Return the chain that leads a packet to the chain of the other end's class.

    Each look-up has a chain and a map. What a map does not have is the internet's.
    """
    commands: list[Command] = []
    address = _address(family, is_source=direction == "in")
    name, _, number = chain.partition("/")
    there = ""
    for n, (mask, classes) in reversed([*enumerate(lookups)]):
        here = f"{name}-{n}/{number}" if n else chain
        elements = [
            [at, {"goto": {"target": chains[of] if of else there}}] for at, of in classes
        ]  # fmt: skip
        kind = {"size": max(len(elements), 1)} if mask else {"flags": ["interval"]}
        key = {"&": [address, mask]} if mask else address
        commands += [
            _add("map", name=here, type=_ADDRESS_TYPES[family], map="verdict",
                 elem=elements, **kind),
            _add("chain", name=here),
            _rule(here, {"vmap": {"key": key, "data": f"@{here}"}}),
            _rule(here, {"goto": {"target": chains[INTERNET]}}),
        ]  # fmt: skip
        there = here
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


def _new_host_counters(
    plan: CountingPlan, owners: Iterable[AddressOwner], there: set[str]
) -> list[Command]:
    names = [
        counter_name(owner, each, direction, is_host=True)
        for owner in sorted(owners) for each in plan.classes for direction in DIRECTIONS
    ]  # fmt: skip
    return [_add("counter", name=name) for name in names if name not in there]


def _element(verb: Verb, name: str, elements: Sequence[object]) -> Command:
    body = {"family": "inet", "table": TABLE, "name": name, "elem": elements}
    return {verb: {"element": body}}


def _by_family(addresses: Iterable[Address]) -> Iterator[tuple[int, list[Address]]]:
    """Yield each family that has addresses, with them in order."""
    there = set(addresses)
    for family in FAMILIES:
        if mine := sorted(each for each in there if each.version == family):
            yield family, mine


def _own_elements(verb: Verb, rules: CountingRules) -> list[Command]:
    return [
        _element(verb, _own(family, rules.number), [str(each) for each in mine])
        for family, mine in _by_family(rules.owners)
    ]


def _elements(verb: Verb, classes: Sequence[str], rules: CountingRules) -> list[Command]:
    return [
        _element(verb, map_name(each, direction, family, rules.number), [
            [str(a), counter_name(rules.owners[a], each, direction)] if verb == "add" else str(a)
            for a in mine
        ])
        for family, mine in _by_family(rules.owners)
        for each in classes
        for direction in DIRECTIONS
    ]  # fmt: skip


def change(
    plan: CountingPlan, old: CountingRules, new: CountingRules, *, counters: Iterable[str]
) -> list[Command]:
    """Return one transaction that leads each address to its new owner's counters; empty for none.

    Both have the number of the rules in force. An address that has another owner is led there in
    the same transaction, so each packet is counted for one of both; from Linux 6.17 on each, as the
    kernel asks again when a look-up fails while a transaction is made.
    """
    gone = {a: owner for a, owner in old.owners.items() if new.owners.get(a) != owner}
    come = {a: owner for a, owner in new.owners.items() if old.owners.get(a) != owner}
    left = {a: owner for a, owner in gone.items() if a not in new.owners}
    return [
        *_own_elements("delete", old._replace(owners=left)),
        *_elements("delete", plan.classes, old._replace(owners=gone)),
        *_new_counters(plan, set(come.values()), set(counters)),
        *_own_elements("add", new._replace(owners=come)),
        *_elements("add", plan.classes, new._replace(owners=come)),
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
        kind = name.partition("/")[0]
        into = ended_name(of.namespace, of.traffic_class, of.direction, kind=kind)
        before = sums.get(into) or ended.get(into) or (0, 0)
        sums[into] = before[0] + packets, before[1] + size
    for name, (packets, size) in sorted(sums.items()):
        if name in ended:
            commands.append(_delete("counter", name))
        commands.append(_add("counter", name=name, packets=packets, bytes=size))
    return commands
