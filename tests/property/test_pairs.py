"""Tests of nodes in pairs: coverage with few runs, and where bad pairs lead."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import MachineOutcome, PairMeasure
from fairlead.api.cluster.node_test import (
    NodeTest,
    NodeTestCause,
    NodeTestPeer,
    NodeTestPhase,
    NodeTestSpec,
    NodeTestStatus,
)
from fairlead.api.kubernetes.core import Node, NodeSystemInfo
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.decide.health.proving.pair_plan import PairPlan
from fairlead.decide.health.proving.pair_step import (
    blamed,
    blamed_at,
    is_blamed,
    joined,
    judged_pair,
    past_pairs_of,
    records_of,
    said_links,
)
from fairlead.decide.health.proving.testing import CreateTest, outdated
from fairlead.model.health.pair_book import PairBook, distance
from fairlead.testing.builders import EPOCH, make_node

LEVELS = (names.BLOCK, names.RACK)
DAY, RATE = 86_400.0, 1e10
#: Whether a pair of two nodes is slow.
Slow = Callable[[str, str], bool]


class Fleet:
    """Nodes that are idle, their tests, and pairs that are measured as soon as they are planned."""

    def __init__(self, leaves: Iterable[tuple[str, str, int]]) -> None:
        """`leaves`: block, rack, nodes."""
        self.now = EPOCH
        self.book = PairBook(LEVELS, 1800.0, 72_000.0)
        self.nodes: dict[str, Node] = {}
        self.tests: dict[str, list[NodeTest]] = {}
        self.slow: Slow = lambda _a, _b: False
        #: Of these nodes no pod leaves a result.
        self.silent: set[str] = set()
        self.lies: set[str] = set()
        self.runs: list[tuple[str, str]] = []
        for block, rack, count in leaves:
            for i in range(count):
                node = make_node(f"{rack}-{i:02}", labels={names.BLOCK: block, names.RACK: rack})
                info = NodeSystemInfo(boot_id="boot-1")
                self.nodes[node.metadata.name] = replace(
                    node, status=replace(node.status, node_info=info)
                )
                self.put(node.metadata.name)

    def put(self, name: str) -> None:
        node, tests = self.nodes[name], self.tests.setdefault(name, [])
        self.book.put(
            node, past_pairs_of(tests), records_of(node, tests), blamed_at=blamed_at(tests),
            is_fit=not is_blamed(node, tests), now=self.now, instant=self.now,
        )  # fmt: skip

    def step(self, room: int = 1000, *, rotates: bool = True) -> int:
        """Plan, measure at once, and judge; return how many pairs there were."""
        self.now += 10.0
        chosen: dict[str, None] = {}
        plan = PairPlan(self.book, self.now, chosen)
        found = list(plan.opinions(room))
        if rotates:
            found += plan.rotation(self.book.idle.due(self.now), room - len(found))
        assert len(found) <= room
        busy = [each.node.metadata.name for each in found]
        assert len(set(busy)) == len(busy), "no node is in two pairs at once"
        assert list(chosen) == busy
        for one, two in zip(found[::2], found[1::2], strict=True):
            self.measure(one, two)
        for action in blamed(self.book):
            (mine,) = [t for t in self.tests[action.test.spec.node] if t == action.test]
            own = self.tests[mine.spec.node]
            own[own.index(mine)] = replace(mine, status=action.status)
            self.put(mine.spec.node)
        return len(found) // 2

    def settle(self, steps: int = 30) -> None:
        """Let opinions come until there are none that are wanted."""
        for _ in range(steps):
            if not self.step(rotates=False):
                return

    def measure(self, one: CreateTest, two: CreateTest) -> None:
        a, b = one.node.metadata.name, two.node.metadata.name
        assert (one.peer, two.peer) != (None, None)
        self.runs.append((a, b))
        rate = RATE * (0.2 if self.slow(a, b) else 1.0)
        sides = [PairMeasure(1, 0.0 if name in self.lies else rate, 5e-5) for name in (a, b)]
        finding = judged_pair(joined(*sides), self.book.alike(a, b))
        if {a, b} & self.silent:
            finding = None
        for each in (one, two):
            name = each.node.metadata.name
            outcome, measured = MachineOutcome.ERROR, ()
            if finding is not None:
                measured = (finding,)
                is_good = finding.outcome is MachineOutcome.PASSED
                outcome = MachineOutcome.PASSED if is_good else MachineOutcome.ERROR
            status = NodeTestStatus(
                NodeTestPhase.ENDED, outcome, ended_at=format_time(self.now), boot_id="boot-1",
                measured=measured,
            )  # fmt: skip
            meta = ObjectMeta(name=each.name, uid=f"uid-{each.name}")
            uid = self.nodes[name].metadata.uid
            spec = NodeTestSpec(name, uid, each.suite, each.cause, each.number, peer=each.peer)
            self.tests[name].append(NodeTest(meta, spec, status))
            for old in outdated(self.tests[name]):
                self.tests[name].remove(old)
        self.put(a)
        self.put(b)

    def round(self) -> int:
        """Have a day go by, and return how many pairs there are until no node is due."""
        self.now += DAY
        for name in self.nodes:
            self.put(name)
        count = 0
        while done := self.step():
            count += done
        return count

    @property
    def failed(self) -> list[str]:
        return [
            name for name, tests in sorted(self.tests.items())
            if any(each.status.outcome is MachineOutcome.FAILED for each in tests)
        ]  # fmt: skip

    def distances(self, runs: Iterable[tuple[str, str]]) -> set[tuple[tuple[str, ...], int]]:
        out: set[tuple[tuple[str, ...], int]] = set()
        for a, b in runs:
            one, two = self.book.nodes[a].leaf, self.book.nodes[b].leaf
            out |= {(one, distance(one, two)), (two, distance(one, two))}
        return out


def of(*counts: int, per_block: int = 2) -> Fleet:
    return Fleet((f"b{i // per_block}", f"r{i:02}", count) for i, count in enumerate(counts))


fleets = st.one_of(
    st.lists(st.integers(1, 6), min_size=1, max_size=7),
    st.lists(st.integers(4, 7), min_size=1, max_size=5),
)


@settings(deadline=None, max_examples=25)
@given(fleets)
def test_each_round_covers_every_node_with_few_pairs_and_a_few_rounds_every_link(
    counts: list[int],
) -> None:
    fleet = of(*counts)
    size = sum(counts)
    for _ in range(6):
        before = len(fleet.runs)
        assert fleet.round() <= (size + 1) // 2
        met = {name for pair in fleet.runs[before:] for name in pair}
        assert met == (set(fleet.nodes) if size > 1 else set())
    every = {
        (one.leaf, distance(one.leaf, two.leaf))
        for a, one in fleet.book.nodes.items() for b, two in fleet.book.nodes.items() if a != b
    }  # fmt: skip
    assert fleet.distances(fleet.runs) == every
    assert fleet.failed == []


@settings(deadline=None, max_examples=30)
@given(fleets, st.randoms(use_true_random=False), st.booleans())
def test_a_bad_interface_is_found_and_no_partner_is_blamed_for_it(
    counts: list[int], rng: random.Random, lies: bool
) -> None:
    fleet = of(*counts)
    for _ in range(3):
        fleet.round()  # so that there are pairs of each distance to compare with
    bad = rng.choice(sorted(fleet.nodes))
    if lies:
        fleet.lies = {bad}
    else:
        fleet.slow = lambda a, b: bad in (a, b)
    before = len(fleet.runs)
    fleet.round()
    fleet.settle()
    assert set(fleet.failed) <= {bad}
    if min(counts) < 4:
        return  # of some distance there may be too few pairs to compare
    assert fleet.failed == [bad]
    assert len(fleet.runs) - before <= (sum(counts) + 1) // 2 + 4
    assert fleet.book.verdict.suspects == ()
    assert said_links(fleet.book) == ""
    others = [t for name, tests in fleet.tests.items() if name != bad for t in tests]
    assert MachineOutcome.FAILED not in [each.status.outcome for each in others]


def test_one_bad_pair_leads_to_two_more_with_good_partners() -> None:
    fleet = of(6, 6)
    fleet.round()
    fleet.slow = lambda a, b: "r00-03" in (a, b)
    fleet.now += DAY
    for name in fleet.nodes:
        fleet.put(name)
    fleet.step()
    [pair] = [each for each in fleet.runs[-6:] if "r00-03" in each]
    assert fleet.step(rotates=False) == 2
    assert [len({*pair} & {*each}) for each in fleet.runs[-2:]] == [1, 1]
    assert all(fleet.book.nodes[a].leaf == fleet.book.nodes[b].leaf for a, b in fleet.runs[-2:])
    assert fleet.failed == ["r00-03"]
    fleet.settle()
    assert fleet.step(rotates=False) == 0


def test_a_partner_that_says_nothing_is_no_fault_of_either_and_is_not_asked_again_and_again() -> (
    None
):
    fleet = of(4, 4)
    fleet.round()
    fleet.silent = {"r00-00"}
    assert fleet.round() == 4
    assert fleet.failed == []
    assert fleet.book.verdict.suspects == ()
    tests = fleet.tests["r00-00"]
    assert tests[-1].status.outcome is MachineOutcome.ERROR
    assert not is_blamed(fleet.nodes["r00-00"], tests)


@pytest.mark.parametrize("bad_rack", ["r00", "r02"])
def test_links_above_a_leaf_are_found_by_good_nodes_and_no_node_is_blamed(bad_rack: str) -> None:
    fleet = of(5, 5, 5, 5)
    for _ in range(3):
        fleet.round()
    fleet.slow = lambda a, b: (a[:3] == bad_rack) is not (b[:3] == bad_rack)
    for _ in range(3):
        fleet.round()
        fleet.settle()
    assert fleet.failed == []
    assert [leaf[-1] for leaf in fleet.book.verdict.leaves] == [bad_rack]
    assert said_links(fleet.book).startswith(f"the links of leaf b{int(bad_rack[1:]) // 2}/r")
    fleet.slow = lambda _a, _b: False
    for _ in range(4):
        fleet.round()
        fleet.settle()
    assert said_links(fleet.book) == ""


def test_a_switch_that_slows_all_its_nodes_is_no_fault_of_theirs() -> None:
    fleet = of(4, 6, 6, 6, per_block=4)
    for _ in range(3):
        fleet.round()
    fleet.slow = lambda a, b: "r00" in (a[:3], b[:3])
    for _ in range(3):
        fleet.round()
        fleet.settle()
    assert fleet.failed == []
    assert [leaf[-1] for leaf in fleet.book.verdict.leaves] == ["r00"]


def test_one_slow_path_between_good_nodes_is_said_and_blames_none() -> None:
    fleet = of(6, 6)
    fleet.round()
    for a, b in pairwise(sorted(fleet.nodes)):
        fleet.slow = lambda x, y, a=a, b=b: {x, y} == {a, b}
        fleet.round()
        fleet.settle()
    assert fleet.failed == []
    assert fleet.book.verdict.nodes == {}


def test_a_dip_that_does_not_come_again_is_nothing() -> None:
    fleet = of(6)
    fleet.round()
    fleet.slow = lambda a, b: "r00-02" in (a, b)
    fleet.now += DAY
    for name in fleet.nodes:
        fleet.put(name)
    fleet.step()
    assert "r00-02" in fleet.book.verdict.suspects
    fleet.slow = lambda _a, _b: False
    fleet.settle()
    assert (fleet.failed, fleet.book.verdict.suspects) == ([], ())


def test_so_many_bad_nodes_at_once_are_rather_the_test() -> None:
    fleet = of(12)
    fleet.round()
    bad = {f"r00-{i:02}" for i in range(5)}
    fleet.slow = lambda a, b: bool({a, b} & bad)
    for _ in range(3):
        fleet.round()
        fleet.settle()
    assert len(fleet.failed) <= 3
    assert set(fleet.failed) <= bad


def test_nodes_of_another_shape_or_alone_meet_none() -> None:
    fleet = of(1)
    fleet.nodes["big"] = make_node("big", gpus=4)
    fleet.put("big")
    assert fleet.round() == 0


def test_work_and_room_bound_the_pairs() -> None:
    fleet = of(4, 4)
    fleet.now += DAY
    for name in sorted(fleet.nodes)[:3]:
        fleet.book.idle.set_used(name, fleet.now, is_used=True)
    assert [fleet.step(room=room) for room in (0, 1, 2, 3)] == [0, 0, 1, 1]
    used = set(sorted(fleet.nodes)[:3])
    assert not used & {name for pair in fleet.runs for name in pair}


def test_a_pair_is_tested_for_idleness_and_each_side_names_the_other() -> None:
    fleet = of(2)
    fleet.now += DAY
    chosen: dict[str, None] = {}
    one, two = PairPlan(fleet.book, fleet.now, chosen).rotation(fleet.book.idle.due(fleet.now), 2)
    assert (one.cause, one.suite, one.number) == (NodeTestCause.IDLE, "pair", 1)
    assert one.peer == NodeTestPeer("r00-01", "node-r00-01", "r00-01-1", listens=False)
    assert two.peer == NodeTestPeer("r00-00", "node-r00-00", "r00-00-1", listens=True)
