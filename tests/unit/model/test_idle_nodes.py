"""Which nodes are to be tested: kept by event, by a monotonic clock."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from fairlead.api.cluster.node_test import NodeTestCause
from fairlead.api.kubernetes.core import Node
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.idle_tests import idle_tests, said_overdue
from fairlead.model.health.idle_nodes import DueNode, IdleNodes, PastTests
from fairlead.testing.builders import EPOCH, make_node

HOUR = 3600.0
POLICY = HealthPolicy(idle_test_suite="quick")


class Seen:
    """An index, and a clock that only the test moves: the wall's is EPOCH beyond the instant."""

    def __init__(self) -> None:
        self.idle = IdleNodes(1800.0, 20 * HOUR)
        self.at = 0.0

    def put(self, name: str, past: PastTests | None = None, *, is_fit: bool = True) -> Node:
        node = make_node(name)
        self.idle.put(
            node, past or PastTests(), is_fit=is_fit, now=EPOCH + self.at, instant=self.at
        )
        return node

    def tested(self, name: str, *, ago: float, number: int = 1) -> None:
        at = EPOCH + self.at - ago
        self.put(name, PastTests(number, at, at))

    def due(self) -> list[str]:
        return names(self.idle.due(self.at))


def names(due: Iterable[DueNode]) -> list[str]:
    return sorted(each.node.metadata.name for each in due)


def test_a_node_is_due_once_it_has_been_idle_for_a_while() -> None:
    seen = Seen()
    seen.put("a")
    seen.at = 1799.0
    assert seen.due() == []
    seen.at = 1800.0
    assert seen.due() == ["a"]
    seen.put("a")
    assert seen.due() == ["a"], "a heartbeat changes nothing"


def test_use_begins_the_wait_again_and_ends_it() -> None:
    seen = Seen()
    seen.put("a")
    seen.at = 1000.0
    seen.idle.set_used("a", seen.at, is_used=True)
    seen.at = 50_000.0
    assert seen.due() == []
    assert seen.idle.idle_since("a") == float("inf")
    seen.idle.set_used("a", seen.at, is_used=False)
    seen.at += 1799.0
    assert seen.due() == []
    seen.at += 1.0
    assert seen.due() == ["a"]
    assert seen.at - seen.idle.idle_since("a") == 1800.0
    seen.idle.set_used("a", seen.at, is_used=True)
    assert seen.due() == [], "what was due is not, once it works"


def test_a_test_is_good_for_the_interval_and_an_error_for_an_hour() -> None:
    seen = Seen()
    seen.put("good")
    seen.put("error")
    seen.at = 2000.0
    assert seen.due() == ["error", "good"]
    seen.tested("good", ago=0.0)
    seen.put("error", PastTests(1, tried_at=EPOCH + seen.at))
    assert seen.due() == []
    seen.at += HOUR
    assert seen.due() == ["error"]
    seen.at += 19 * HOUR
    assert seen.due() == ["error", "good"]


def test_what_cannot_be_tested_or_is_gone_is_not_due() -> None:
    seen = Seen()
    seen.put("a", is_fit=False)
    seen.put("b")
    seen.at = 2000.0
    assert seen.due() == ["b"]
    seen.put("a")
    assert seen.due() == ["a", "b"], "it was idle all the time"
    seen.put("a", is_fit=False)
    seen.idle.remove("b")
    assert seen.due() == []
    seen.idle.set_used("b", seen.at, is_used=False)
    seen.at += 1e6
    assert seen.due() == []


def test_a_sign_of_trouble_that_is_younger_than_the_test_makes_a_node_due_at_once() -> None:
    seen = Seen()
    for name in ("a", "b", "c"):
        seen.tested(name, ago=HOUR)
    signs = {"a": EPOCH - 60.0, "b": EPOCH - 2 * HOUR, "gone": EPOCH}
    seen.idle.suspect(signs, EPOCH, 0.0)
    (due,) = seen.idle.due(0.0)
    assert (due.node.metadata.name, due.is_suspect) == ("a", True)
    seen.tested("a", ago=0.0, number=2)
    seen.idle.suspect(signs, EPOCH, 0.0)
    assert seen.due() == []


def test_a_jump_of_the_wall_clock_makes_no_node_wait_for_longer_than_the_interval() -> None:
    seen = Seen()
    seen.put("a", PastTests(1, EPOCH + 1e7, EPOCH + 1e7))
    seen.at = 20 * HOUR
    assert seen.due() == ["a"]


def test_the_queue_does_not_grow_with_use() -> None:
    seen = Seen()
    for i in range(10):
        seen.put(f"n{i}")
    for _ in range(2000):
        seen.at += 10.0
        for i in range(10):
            seen.idle.set_used(f"n{i}", seen.at, is_used=True)
            seen.idle.set_used(f"n{i}", seen.at, is_used=False)
    assert len(vars(seen.idle)["_queue"]) < 2000
    seen.at += 1800.0
    assert len(seen.due()) == 10


# What follows


def chosen(seen: Seen, *, nodes: int, open_count: int = 0) -> list[str]:
    found = idle_tests(seen.idle.due(seen.at), POLICY, open_count=open_count, nodes=nodes)
    return [each.name for each in found]


@pytest.mark.parametrize(
    ("nodes", "open_count", "count"),
    [(10, 0, 1), (10, 1, 0), (1000, 0, 5), (1000, 3, 2), (1000, 9, 0)],
)
def test_a_share_of_the_fleet_is_under_test_at_a_time_and_at_least_one(
    nodes: int, open_count: int, count: int
) -> None:
    seen = Seen()
    for i in range(9):
        seen.put(f"n{i}")
    seen.at = 1800.0
    assert len(chosen(seen, nodes=nodes, open_count=open_count)) == count


def test_nodes_are_due_in_the_order_of_their_turns_whenever_they_came() -> None:
    seen, rng = Seen(), random.Random(1)
    for step in range(300):
        name = f"n{rng.randrange(30)}"
        seen.at += 600.0
        match step % 3:
            case 0:
                seen.tested(name, ago=rng.random() * 90 * HOUR, number=step)
            case 1:
                seen.idle.suspect({name: EPOCH + seen.at}, EPOCH + seen.at, seen.at)
            case _:
                is_used = rng.random() < 0.3
                if name in {*seen.idle.free(), *seen.due()} or not is_used:
                    seen.idle.set_used(name, seen.at, is_used=is_used)
        due = seen.idle.due(seen.at)
        assert [each.order for each in due] == sorted(each.order for each in due)
        late = [each for each in due if each.late_at <= seen.at]
        assert due.late(seen.at) == sorted(late, key=lambda each: (each.late_at, each.order[2]))
        assert sorted(due.names) == names(due)
    assert len(seen.due()) > 10


def test_suspects_come_first_and_then_the_longest_untested() -> None:
    seen = Seen()
    for name, ago in (("a", 21.0), ("b", 30.0), ("c", 25.0), ("d", 22.0)):
        seen.tested(name, ago=ago * HOUR, number=7)
    seen.put("new")
    seen.at = 1800.0
    seen.idle.suspect({"d": EPOCH}, EPOCH + seen.at, seen.at)
    assert chosen(seen, nodes=1000) == ["d-8", "new-1", "b-8", "c-8", "a-8"]
    seen.idle.suspect(dict.fromkeys("abc", EPOCH), EPOCH + seen.at, seen.at)
    assert chosen(seen, nodes=1000) == ["b-8", "c-8", "d-8", "a-8", "new-1"], "suspects, too"
    (first, *_) = idle_tests(seen.idle.due(seen.at), POLICY, open_count=0, nodes=10)
    assert (first.suite, first.cause) == ("quick", NodeTestCause.IDLE)


def test_a_node_is_late_a_day_after_it_was_idle_or_after_its_test_also_if_it_works_between() -> (
    None
):
    seen = Seen()
    seen.put("new")
    seen.tested("old", ago=0.0)
    seen.at = 1800.0
    assert seen.idle.due(seen.at).late(seen.at) == []
    seen.idle.set_used("new", seen.at, is_used=True)
    seen.at = 20 * HOUR
    seen.idle.set_used("new", seen.at, is_used=False)
    seen.at = 24 * HOUR - 1.0
    assert names(seen.idle.due(seen.at).late(seen.at)) == []
    seen.at = 24 * HOUR
    late = seen.idle.due(seen.at).late(seen.at)
    assert names(late) == ["new", "old"]
    said = said_overdue(late, seen.at + 90.0, EPOCH)
    assert said.message == "2 idle nodes should have been tested up to 1m30s ago: new, old"
    assert said_overdue((), seen.at, EPOCH).action == "Resume"
