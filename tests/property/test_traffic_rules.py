"""No transaction takes away what a packet may be on its way through, whatever happens in between.

The kernel is a table of objects that refuses what nf_tables refuses: names that are not there, and
the deletion of what is referred to. The agent looks at it, is killed, is refused, gets other lists
and other pods, and another program takes elements away.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.node.running.host import Host
from fairlead.node.traffic import Counting, PodSource, counting, netlink, nft, parse_lists
from fairlead.node.traffic.netlink import Counted
from fairlead.node.traffic.ruleset import TABLE, Command, delete_others, number_of, put_into_force

Key = tuple[str, str]
Event = Literal["quiet", "restarted", "killed", "killed late", "refused", "refused late", "robbed"]
#: The transaction of a look at which something happens.
AT: dict[str, int] = {"killed": 1, "killed late": 2, "refused": 1, "refused late": 2}
HOOKS = {("chain", each) for each in ("forward", "input", "output")}
LISTS = ((), (("peered", ("8.8.8.0/24",)),), (("class", ("203.0.113.0/24", "2001:db8::/32")),))
NODE_ADDRESS = "10.9.0.1"


class Killed(BaseException):
    """The agent ends."""


@dataclass
class Thing:
    """An object of the table; one that is deleted and made again is another one."""

    body: dict[str, Any]
    rules: list[Any] = field(default_factory=list[Any])
    elements: dict[str, Any] = field(default_factory=dict[str, Any])
    serial: int = 0

    def copy(self) -> Thing:
        return Thing(self.body, [*self.rules], {**self.elements}, self.serial)

    def refers(self) -> Iterator[Key]:
        yield from references([*self.rules, *self.elements.values()])


def references(found: Any) -> Iterator[Key]:
    """Yield the objects that an expression or the data of an element names."""
    match found:
        case {"target": name}:
            yield "chain", name
        case dict():
            yield from references(list(found.values()))
        case list():
            for each in found:
                yield from references(each)
        case str() if found.startswith("@"):
            yield "set", found[1:]
        case str() if found.startswith(("pod/", "node/")):
            yield "counter", found
        case _:
            pass


class Kernel:
    """One table. `run` is what the program nft does."""

    def __init__(self) -> None:
        self.things: dict[Key, Thing] = {}
        self.kept: set[Key] = set()
        self.serial = 0
        self.event: Event = "quiet"
        self.transactions = self.of_look = 0

    def in_force(self) -> dict[Key, Thing]:
        """Return the hooks' chains and all that a packet can come to from there."""
        found: dict[Key, Thing] = {}
        todo = [key for key in HOOKS if key in self.things]
        while todo:
            key = todo.pop()
            if key not in found:
                found[key] = self.things[key]
                todo += self.things[key].refers()
        return found

    def look_begins(self, event: Event) -> None:
        self.kept, self.event, self.of_look = set(), event, 0

    def run(self, arguments: Sequence[str], data: bytes = b"") -> bytes:
        if arguments[0] == "list":
            return json.dumps({"nftables": list(self.listed())}).encode()
        self.of_look += 1
        event = self.event if AT.get(self.event) == self.of_look else ""
        if event.startswith("refused"):
            raise OSError("nft refuses: busy")
        self.kept |= self.in_force().keys()
        before = {key: each.copy() for key, each in self.things.items()}
        try:
            for command in json.loads(data)["nftables"]:
                self.obey(command)
            if missing := {key for each in self.things.values() for key in each.refers()
                           if key not in self.things}:  # fmt: skip
                raise OSError(f"nft refuses: {missing} are referred to")
        except OSError:
            self.things = before
            raise
        self.transactions += 1
        for key in sorted(self.kept):
            assert key in self.things, f"{key} is deleted under packets"
            assert self.things[key].serial == before[key].serial, f"{key} is another one"
            assert key in HOOKS or self.things[key].rules == before[key].rules, f"rules of {key}"
        for key, thing in self.in_force().items():
            if "interval" in thing.body.get("flags", ()):
                was = before.get(key)
                assert was, f"{key} is published a moment after the rules that ask it"
                assert was.elements == thing.elements
        if event.startswith("killed"):
            raise Killed
        return b""

    def listed(self) -> Iterator[dict[str, Any]]:
        if not self.things:
            raise FileNotFoundError
        for (_, name), thing in self.things.items():
            kind = thing.body["kind"]
            elements = [[json.loads(at), data] for at, data in thing.elements.items()]
            yield {kind: {"name": name, "elem": elements}}

    def obey(self, command: Command) -> None:
        ((verb, of),) = command.items()
        ((kind, body),) = of.items()
        if kind == "table":
            return
        name = body.get("chain") if kind == "rule" else body["name"]
        key = {"rule": "chain", "map": "set", "element": "set"}.get(kind, kind), name
        if kind not in ("rule", "element") and verb == "add":
            self.serial += 1
            self.things.setdefault(key, Thing(body | {"kind": kind}, serial=self.serial))
        if key not in self.things:
            raise OSError(f"nft refuses: no {key}")
        thing = self.things[key]
        match verb, kind:
            case "add", "rule":
                thing.rules.append(body["expr"])
            case "add", _:
                self.add_elements(thing, body.get("elem", ()))
            case "delete", "element":
                for each in body["elem"]:
                    if thing.elements.pop(json.dumps(each), self) is self:
                        raise OSError(f"nft refuses: no {each} in {key}")
            case "delete", _:
                del self.things[key]
            case _:
                thing.rules.clear()

    def add_elements(self, thing: Thing, elements: Sequence[Any]) -> None:
        for each in elements:
            at, data = each if thing.body["kind"] == "map" else (each, None)
            if thing.elements.setdefault(json.dumps(at), data) != data:
                raise OSError(f"nft refuses: {at} leads elsewhere")

    def counters(self, table: str) -> dict[str, Counted]:
        assert table == TABLE
        uses = Counter(key for each in self.things.values() for key in each.refers())
        return {
            key[1]: Counted(thing.body.get("packets", 1), thing.body.get("bytes", 9), uses[key])
            for key, thing in self.things.items()
            if key[0] == "counter"
        }

    def numbers(self) -> set[int]:
        """Return the numbers of the rules that there is something of."""
        return {number_of(name) for kind, name in self.things if kind != "counter"} - {0}

    def owners(self) -> dict[str, str]:
        """Return the uid that an address is counted for by the rules in force."""
        return {
            json.loads(at): counter.split("/")[2] if counter.startswith("pod/") else ""
            for (kind, name), thing in self.in_force().items()
            if kind == "set" and name.startswith("internet-out")
            for at, counter in thing.elements.items()
        }


@dataclass
class Machine:
    """A kernel, the list of pods, and the agent of the moment."""

    kernel: Kernel
    file: Path
    lists: int = 0
    agent: Counting | None = None

    def look(self, event: Event, lists: int, pods: dict[str, str]) -> None:
        """Look once with an agent that has these lists: another one after a change of them."""
        self.file.write_text(json.dumps({"items": [
            {"metadata": {"name": uid, "namespace": "team-a", "uid": uid}, "spec": {},
             "status": {"phase": "Running", "podIPs": [{"ip": address}]}}
            for address, uid in pods.items()
        ]}))  # fmt: skip
        if self.agent is None or lists != self.lists or event == "restarted":
            self.lists = lists
            own, wrong = parse_lists(LISTS[lists])
            assert not wrong
            self.agent = Counting(Host(), PodSource(str(self.file)), own)
        if event == "robbed":
            for _, thing in sorted(self.kernel.in_force().items()):
                if thing.body["kind"] == "map" and thing.body["map"] == "counter":
                    thing.elements.popitem()
                    break
        self.kernel.look_begins(event)
        try:
            self.agent.read()
        except Killed:
            self.agent = None
        except OSError:
            assert event.startswith("refused")


@pytest.fixture(scope="module")
def machine_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("pods") / "pods.json"

    def machine() -> Machine:
        kernel = Kernel()
        patch.setattr(nft, "_run", kernel.run)
        patch.setattr(netlink, "counters", kernel.counters)
        return Machine(kernel, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(netlink, "links", list)
        patch.setattr(netlink, "addresses", lambda: {ipaddress.ip_address(NODE_ADDRESS)})
        yield machine


EVENTS: tuple[Event, ...] = (
    "quiet", "restarted", "killed", "killed late", "refused", "refused late", "robbed",
)  # fmt: skip
PODS = st.dictionaries(
    st.sampled_from(("10.1.0.2", "10.1.0.3", "fd01::2")), st.sampled_from(("a", "b", "c"))
)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from((0, 0, 0, 1, 2)), PODS),
                min_size=1, max_size=10))  # fmt: skip
def test_what_a_packet_may_be_on_its_way_through_stays_until_a_later_look(
    machine_of: Any, looks: list[tuple[Event, int, dict[str, str]]]
) -> None:
    machine: Machine = machine_of()
    for event, lists, pods in looks:
        machine.look(event, lists, pods)
        assert len(machine.kernel.numbers()) <= 2, "what is left of older rules is bounded"
    _, lists, pods = looks[-1]
    for _ in range(3):
        machine.look("quiet", lists, pods)
    assert machine.kernel.owners() == {NODE_ADDRESS: ""} | pods
    assert len(machine.kernel.numbers()) == 1
    done = machine.kernel.transactions
    machine.look("quiet", lists, pods)
    assert machine.kernel.transactions == done, "nothing is left to do"


def test_rules_that_are_replaced_and_deleted_in_one_transaction_are_found(
    machine_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(plan: Any, rules: Any, **fields: Any) -> list[Command]:
        return put_into_force(plan, rules, **fields) + delete_others(nft.held(), rules.number)

    machine: Machine = machine_of()
    machine.look("quiet", 0, {})
    monkeypatch.setattr(counting, "put_into_force", planted)
    with pytest.raises(AssertionError, match="deleted under packets"):
        machine.look("quiet", 1, {})


def test_rules_that_come_with_their_intervals_in_one_transaction_are_found(
    machine_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Command] = []
    ahead = counting.prepare

    def planted(*arguments: Any, **fields: Any) -> list[Command]:
        held[:] = ahead(*arguments, **fields)
        return []

    def both(*arguments: Any, **fields: Any) -> list[Command]:
        return held + put_into_force(*arguments, **fields)

    machine: Machine = machine_of()
    monkeypatch.setattr(counting, "prepare", planted)
    monkeypatch.setattr(counting, "put_into_force", both)
    with pytest.raises(AssertionError, match="published a moment after"):
        machine.look("quiet", 0, {})
