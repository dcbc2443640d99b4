"""The health of nodes: ready, cordoned, not ready since when, and who hears of a change."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.kubernetes.core import Node, NodeCondition
from fairlead.api.names import MAINTENANCE, MAINTENANCE_ANNOUNCED, UNREACHABLE
from fairlead.api.values.times import format_time
from fairlead.model.health.node_health import NodeHealth, is_answering, is_ready
from fairlead.model.health.windows import Window, read_window, window_text
from fairlead.testing.builders import EPOCH, make_node

WINDOW = window_text(EPOCH + 3600, EPOCH + 7200)


def with_ready(node: Node, status: str, since: float | None = None) -> Node:
    at = format_time(since) if since is not None else None
    condition = NodeCondition(type="Ready", status=status, last_transition_time=at)
    return replace(node, status=replace(node.status, conditions=(condition,)))


def silent(node: Node, created: str | None) -> Node:
    return replace(
        node,
        metadata=replace(node.metadata, creation_timestamp=created),
        status=replace(node.status, conditions=()),
    )


class Watched:
    """A health whose reports are kept."""

    def __init__(self) -> None:
        self.health = NodeHealth()
        self.reports: list[str] = []
        self.end = self.health.on_change(self.reports.append)


def test_a_ready_node_is_usable_and_one_that_is_cordoned_or_leaving_is_not() -> None:
    health = NodeHealth()
    node = make_node("a")
    health.put(node, EPOCH)
    assert health.usable == {"a": True}
    health.put(replace(node, spec=replace(node.spec, unschedulable=True)), EPOCH)
    assert (health.usable, list(health.cordoned)) == ({"a": False}, ["a"])
    leaving = replace(node.metadata, deletion_timestamp=format_time(EPOCH))
    health.put(replace(node, metadata=leaving), EPOCH)
    assert (health.usable, list(health.cordoned)) == ({"a": False}, [])
    assert health.unready_since == {}


@pytest.mark.parametrize(
    ("notes", "closing"),
    [
        ({MAINTENANCE: WINDOW, MAINTENANCE_ANNOUNCED: WINDOW}, {"a": read_window(WINDOW)}),
        ({MAINTENANCE: WINDOW}, {}),  # a person's
        ({MAINTENANCE: WINDOW, MAINTENANCE_ANNOUNCED: "other"}, {}),  # which a person has changed
        ({MAINTENANCE_ANNOUNCED: WINDOW}, {}),  # which a person has taken off
        ({MAINTENANCE: "soon", MAINTENANCE_ANNOUNCED: "soon"}, {}),
    ],
)
def test_a_node_closes_when_its_provider_said_so(
    notes: dict[str, str], closing: dict[str, Window]
) -> None:
    watched = Watched()
    watched.health.put(make_node("a"), EPOCH)
    watched.health.put(make_node("a", annotations=notes), EPOCH)
    assert watched.health.closing == closing
    assert watched.reports == ["a"] * (1 + len(closing))
    watched.health.put(make_node("a"), EPOCH)
    assert watched.health.closing == {}
    watched.health.put(make_node("a", annotations=notes), EPOCH)
    watched.health.remove("a")
    assert watched.health.closing == {}


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_is_not_ready_since_the_instant_that_its_condition_names(status: str) -> None:
    health = NodeHealth()
    node = with_ready(make_node("a"), status, EPOCH - 60)
    health.put(node, EPOCH)
    assert not is_ready(node)
    assert health.unready_since == {"a": EPOCH - 60}
    assert health.usable == {"a": False}
    health.put(with_ready(node, "True"), EPOCH)
    assert (health.unready_since, health.usable) == ({}, {"a": True})


def test_a_node_that_never_reported_counts_from_its_creation() -> None:
    health = NodeHealth()
    health.put(silent(make_node("a"), format_time(EPOCH - 5)), EPOCH)
    assert health.unready_since == {"a": EPOCH - 5}


def test_without_an_instant_that_can_be_read_the_first_sight_counts() -> None:
    health = NodeHealth()
    health.put(silent(make_node("a"), None), EPOCH)
    health.put(silent(make_node("a"), "yesterday"), EPOCH + 60)
    assert health.unready_since == {"a": EPOCH}


def test_observers_hear_of_changes_only() -> None:
    world = Watched()
    for _ in range(3):
        world.health.put(make_node("a"), EPOCH)
    assert world.reports == ["a"]
    world.health.put(with_ready(make_node("a"), "False", EPOCH), EPOCH)
    world.health.put(with_ready(make_node("a"), "False", EPOCH + 9), EPOCH)
    world.health.remove("a")
    world.health.remove("a")
    assert world.reports == ["a"] * 4
    assert "a" not in world.health
    assert world.health.unready_since == {}
    world.end()
    world.health.put(make_node("a"), EPOCH)
    assert world.reports == ["a"] * 4


def test_a_node_that_was_found_unreachable_is_not_usable_though_its_condition_is_old() -> None:
    watched = Watched()
    health, node = watched.health, make_node("a")
    health.put(node, EPOCH)
    mark = make_node("a", annotations={UNREACHABLE: format_time(EPOCH - 16)})
    health.put(mark, EPOCH)
    assert (health.usable, health.unready_since) == ({"a": False}, {"a": EPOCH - 16})
    assert health.unreachable == {"a": EPOCH - 16}
    assert (is_ready(mark), is_answering(mark)) == (True, False), "pools do not read the mark"
    health.put(with_ready(mark, "Unknown", EPOCH + 30), EPOCH + 30)
    assert health.unready_since == {"a": EPOCH - 16}
    for text in (f"{format_time(EPOCH - 16)}/{format_time(EPOCH)}", "", "yesterday"):
        health.put(make_node("a", annotations={UNREACHABLE: text}), EPOCH)
        assert (health.usable, health.unreachable) == ({"a": True}, {}), text
    health.put(mark, EPOCH)
    health.remove("a")
    assert (health.unreachable, health.unready_since) == ({}, {})
    assert len(watched.reports) == 5, "one for each change"


@pytest.mark.parametrize("seconds", [-5, 0, 0.5, 1, 1.9, 2, 3600])
def test_a_window_that_is_written_is_read_as_it_was_and_lasts_a_second_at_least(
    seconds: float,
) -> None:
    found = read_window(window_text(EPOCH, EPOCH + seconds))
    assert (found.start, found.end) == (EPOCH, EPOCH + max(1, int(seconds)))
