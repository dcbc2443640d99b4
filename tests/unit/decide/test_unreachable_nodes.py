"""Which nodes count as unreachable: doubts, what confirms them, and the rails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.core import Node
from fairlead.api.names import UNREACHABLE
from fairlead.decide.health.policy import SilencePolicy
from fairlead.decide.health.unreachable_nodes import (
    Contact,
    Presence,
    PresenceAnswer,
    SetMark,
    SilenceAction,
    SilenceHold,
    SilenceReport,
    SilenceView,
    TryNodes,
    decide_silence,
    machine_address,
    presence_of,
)
from fairlead.model.health.lease_book import LeaseBook
from fairlead.model.health.unreachable import UnreachableMark, mark_of

POLICY = SilencePolicy()
EPOCH = 1_767_225_600.0
GONE, THERE, CLOSED, UNTRIED = Contact.SILENT, Contact.CONNECTED, Contact.REFUSED, Contact.UNKNOWN


def a_node(
    name: str, *, ready: str = "True", address: str = "10.0.0.1", mark: str | None = None
) -> Node:
    body: dict[str, Any] = {
        "metadata": {"name": name, "annotations": {UNREACHABLE: mark} if mark else {}},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "InternalIP", "address": address}],
        },
    }
    return msgspec.convert(body, Node)


@dataclass
class Cluster:
    """Nodes n0, n1 ... whose leases were renewed at `heard` seconds."""

    count: int = 10
    instant: float = 100.0
    heard: dict[str, float] = field(default_factory=dict[str, float])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    answers: dict[str, PresenceAnswer] = field(default_factory=dict[str, PresenceAnswer])
    marks_seen: dict[str, float] = field(default_factory=dict[str, float])
    unready_since: dict[str, float] = field(default_factory=dict[str, float])
    is_listed: bool = True

    def __post_init__(self) -> None:
        self.nodes = {f"n{i}": a_node(f"n{i}", address=f"10.0.0.{i + 1}")
                      for i in range(self.count)} | self.nodes  # fmt: skip

    def silence(self, *names: str, seconds: float = 16.0) -> None:
        self.heard |= dict.fromkeys(names, self.instant - seconds)

    def answer(self, name: str, presence: Presence, *, ago: float = 1.0) -> None:
        self.answers[name] = PresenceAnswer(self.instant - ago, presence)

    def mark(self, name: str, text: str, *, ago: float = 30.0) -> None:
        self.nodes[name] = a_node(name, mark=text)
        self.marks_seen[name] = self.instant - ago

    def decide(
        self, policy: SilencePolicy = POLICY
    ) -> tuple[tuple[SilenceAction, ...], SilenceReport]:
        book = LeaseBook(policy.doubt_seconds)
        at = {name: self.heard.get(name, self.instant - 3.0) for name in self.nodes}
        for name in sorted(at, key=lambda name: (at[name], name)):
            book.put(name, "before", 40, at[name] - 10.0)
            book.put(name, "renewed", 40, at[name])
        view = SilenceView(
            book, self.nodes.get,
            {n: node for n, node in self.nodes.items() if UNREACHABLE in node.metadata.annotations},
            self.marks_seen, self.unready_since, self.answers, EPOCH + self.instant, self.instant,
            is_listed=self.is_listed,
        )  # fmt: skip
        decision, report = decide_silence(view, policy)
        return decision.actions, report


def marks(actions: tuple[SilenceAction, ...]) -> dict[str, str | None]:
    return {
        each.node.metadata.name: each.mark.text if each.mark else None
        for each in actions if isinstance(each, SetMark)
    }  # fmt: skip


def tried(actions: tuple[SilenceAction, ...]) -> list[str]:
    found = [each for each in actions if isinstance(each, TryNodes)]
    return [node.metadata.name for each in found for node in each.nodes]


def test_a_late_lease_is_a_doubt_alone_and_the_machine_is_tried_beside_others() -> None:
    cluster = Cluster()
    cluster.silence("n4")
    actions, report = cluster.decide()
    (action,) = actions
    assert isinstance(action, TryNodes)
    assert tried(actions) == ["n4"]
    assert [node.metadata.name for node in action.controls] == ["n9", "n8", "n7"]
    assert (report.silent, report.unreachable, report.hold) == (1, 0, None)


def test_a_lease_that_is_not_late_yet_is_no_doubt() -> None:
    cluster = Cluster()
    cluster.silence("n4", seconds=12.9)
    actions, report = cluster.decide()
    assert actions == ()
    assert (report.leases, report.silent) == (10, 0)


def test_a_machine_is_tried_a_little_before_its_lease_is_late_and_marked_not_before() -> None:
    cluster = Cluster()
    cluster.silence("n4", seconds=13.0)
    assert tried(cluster.decide()[0]) == ["n4"]
    cluster.silence("n4", seconds=14.9)
    cluster.answer("n4", Presence.ABSENT)
    assert cluster.decide()[0] == ()
    cluster.silence("n4", seconds=15.0)
    assert list(marks(cluster.decide()[0])) == ["n4"]


def test_a_machine_that_is_absent_is_marked_since_it_was_heard_last() -> None:
    cluster = Cluster()
    cluster.silence("n4")
    cluster.answer("n4", Presence.ABSENT)
    actions, _ = cluster.decide()
    assert marks(actions) == {"n4": "2026-01-01T00:01:24Z"}
    assert tried(actions) == []


@pytest.mark.parametrize("presence", [each for each in Presence if each is not Presence.ABSENT])
def test_any_other_answer_marks_nothing_and_is_asked_for_again(presence: Presence) -> None:
    cluster = Cluster()
    cluster.silence("n4")
    cluster.answer("n4", presence)
    actions, report = cluster.decide()
    assert actions == ()
    assert report.presence == {presence: 1}
    cluster.answer("n4", presence, ago=10.0)
    assert tried(cluster.decide()[0]) == ["n4"]


def test_an_answer_of_an_earlier_silence_says_nothing_of_this_one() -> None:
    cluster = Cluster()
    cluster.silence("n4", seconds=16.0)
    cluster.answer("n4", Presence.ABSENT, ago=17.0)
    actions, _ = cluster.decide()
    assert marks(actions) == {}
    assert tried(actions) == ["n4"]


def test_a_node_that_kubernetes_already_calls_not_ready_is_marked_as_well() -> None:
    cluster = Cluster(nodes={"n4": a_node("n4", ready="Unknown")})
    cluster.silence("n4")
    cluster.unready_since["n4"] = EPOCH + cluster.instant - 10.0
    assert tried(cluster.decide()[0]) == ["n4"], "its gang waits for less than the grace then"
    cluster.unready_since["n4"] = EPOCH + cluster.instant - 600.0
    assert cluster.decide()[0] == (), "it has been off for long, and this process has just begun"


@pytest.mark.parametrize(("silent", "held"), [(2, False), (3, True), (10, True)])
def test_more_than_a_fifth_at_once_is_our_own_trouble(silent: int, held: bool) -> None:
    cluster = Cluster()
    names = [f"n{i}" for i in range(silent)]
    cluster.silence(*names)
    for name in names:
        cluster.answer(name, Presence.ABSENT)
    actions, report = cluster.decide()
    assert bool(marks(actions)) is not held
    assert (report.hold is not None) is held
    assert len(marks(actions)) == (0 if held else silent)


def test_one_of_three_nodes_and_one_of_two_is_believed_and_the_only_one_never() -> None:
    for count, wanted in ((3, 1), (2, 1), (1, 0)):
        cluster = Cluster(count=count)
        cluster.silence("n0")
        cluster.answer("n0", Presence.ABSENT)
        actions, _ = cluster.decide()
        assert len(marks(actions)) == wanted, count


def test_a_watch_that_shows_no_renewal_of_any_node_is_not_believed() -> None:
    cluster = Cluster()
    cluster.silence(*cluster.nodes, seconds=15.0)
    cluster.answer("n0", Presence.ABSENT)
    actions, report = cluster.decide()
    assert actions == ()
    assert report.hold is SilenceHold.WATCH_SILENT


def test_nodes_that_have_been_off_for_long_neither_hold_nor_count() -> None:
    cluster = Cluster(count=20)
    off = [f"n{i}" for i in range(10)]
    cluster.nodes |= {name: a_node(name, ready="Unknown") for name in off}
    cluster.silence(*off, seconds=90_000.0)
    cluster.silence("n11", "n12")
    for name in ("n11", "n12"):
        cluster.answer(name, Presence.ABSENT)
    actions, report = cluster.decide()
    assert (sorted(marks(actions)), report.hold) == (["n11", "n12"], None)
    cluster.silence("n13")
    actions, report = cluster.decide()
    assert (marks(actions), report.hold) == ({}, SilenceHold.MANY_SILENT), "a fifth of ten is two"


def test_marks_on_nodes_are_the_books_so_that_another_process_is_bound_by_them() -> None:
    cluster = Cluster()
    for name in ("n1", "n2", "n3"):
        cluster.mark(name, "2026-01-01T00:00:00Z/2026-01-01T00:01:00Z", ago=0.0)  # just seen
    cluster.silence("n4")
    cluster.answer("n4", Presence.ABSENT)
    actions, report = cluster.decide()
    assert actions == ()
    assert report.hold is SilenceHold.MARKS_SPENT
    cluster.marks_seen["n1"] = cluster.instant - 3600.0
    actions, _ = cluster.decide()
    assert marks(actions)["n1"] is None, "it is forgotten after an hour in this process's sight"


def test_a_mark_ends_with_a_renewal_and_stays_to_be_counted() -> None:
    cluster = Cluster()
    cluster.mark("n4", "2026-01-01T00:01:00Z", ago=30.0)  # heard 3 s ago
    actions, _ = cluster.decide()
    assert marks(actions) == {"n4": "2026-01-01T00:01:00Z/2026-01-01T00:01:40Z"}


def test_a_mark_does_not_end_with_what_was_seen_before_it_or_before_leases_are_listed() -> None:
    cluster = Cluster()
    cluster.mark("n4", "2026-01-01T00:01:00Z", ago=2.0)  # heard 3 s ago
    assert cluster.decide()[0] == ()
    cluster.mark("n4", "2026-01-01T00:01:00Z", ago=30.0)
    cluster.is_listed = False
    assert cluster.decide()[0] == ()


def test_a_mark_that_cannot_be_read_is_taken_off_and_counts_as_none() -> None:
    cluster = Cluster()
    cluster.mark("n4", "by hand")
    assert marks(cluster.decide()[0]) == {"n4": None}
    assert mark_of({UNREACHABLE: "2026-01-01T00:00:00Z/"}) is None
    assert mark_of({}) is None


def test_off_it_takes_all_marks_off_and_does_nothing_else() -> None:
    cluster = Cluster()
    cluster.mark("n4", "2026-01-01T00:01:00Z", ago=1.0)
    cluster.silence("n5")
    assert marks(cluster.decide(SilencePolicy(enabled=False))[0]) == {"n4": None}


def test_a_mark_is_read_as_it_is_written() -> None:
    for mark in (UnreachableMark(EPOCH), UnreachableMark(EPOCH, EPOCH + 60)):
        assert mark_of({UNREACHABLE: mark.text}) == mark


@pytest.mark.parametrize(
    ("tries", "controls", "wanted"),
    [
        ((GONE, GONE), (THERE, THERE, THERE), Presence.ABSENT),
        ((GONE, GONE), (THERE, CLOSED, GONE), Presence.ABSENT),
        ((GONE, GONE), (THERE,), Presence.ABSENT),
        ((GONE, GONE), (THERE, GONE), Presence.UNKNOWN),
        ((GONE, GONE), (THERE, GONE, GONE), Presence.UNKNOWN),  # it may be our own machine
        ((GONE, GONE), (GONE, GONE, GONE), Presence.UNKNOWN),
        ((GONE, GONE), (UNTRIED, UNTRIED, UNTRIED), Presence.UNKNOWN),
        ((GONE, GONE), (), Presence.UNKNOWN),
        ((GONE, UNTRIED), (THERE, THERE), Presence.UNKNOWN),
        ((), (THERE, THERE), Presence.UNKNOWN),
        ((GONE, THERE), (THERE, THERE), Presence.ANSWERS),
        ((CLOSED,), (THERE, THERE), Presence.REFUSES),
        ((CLOSED,), (GONE, GONE), Presence.REFUSES),
    ],
)  # fmt: skip
def test_no_answer_counts_only_where_others_answer(
    tries: tuple[Contact, ...], controls: tuple[Contact, ...], wanted: Presence
) -> None:
    assert presence_of(tries, controls) is wanted


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("10.1.2.3", "10.1.2.3"), ("fd00::1", "fd00::1"), ("192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", ""), ("169.254.169.254", ""), ("fe80::1", ""), ("::1", ""), ("0.0.0.0", ""),
        ("224.0.0.1", ""), ("kubernetes.default.svc", ""), ("10.1.2.3:22", ""), ("", ""),
        ("::ffff:127.0.0.1", ""), ("::ffff:169.254.169.254", ""),
    ],
)  # fmt: skip
def test_a_node_cannot_have_another_than_a_machines_address_tried(
    address: str, wanted: str
) -> None:
    assert machine_address(a_node("n", address=address)) == wanted


# The book


def test_leases_of_another_duration_are_late_in_proportion_and_never_sooner() -> None:
    book = LeaseBook(15.0)
    for name, duration in (("short", 1), ("kubelet", 40), ("long", 3600)):
        book.put(name, "x", duration, 0.0)
    assert list(book.silent(14.9)) == []
    assert list(book.silent(15.0)) == ["short", "kubelet"]
    assert book.next_at(15.0) == 1350.0
    assert list(book.silent(1350.0)) == ["short", "kubelet", "long"]


def test_only_a_change_is_a_renewal_whatever_time_stands_in_the_lease() -> None:
    book = LeaseBook(15.0)
    book.put("n", "2099-01-01T00:00:00Z", 40, 0.0)
    assert (book.renewed_at("n"), book.heard_at) == (None, None), "it may have been dead for days"
    book.put("n", "2099-01-01T00:00:00Z", 40, 5.0)  # listed again
    assert (book.heard("n"), book.renewed_at("n")) == (0.0, None)
    book.put("n", "1999-01-01T00:00:00Z", 40, 6.0)
    assert (book.heard("n"), book.renewed_at("n"), book.heard_at) == (6.0, 6.0, 6.0)


def test_the_book_has_no_more_than_the_nodes_that_are_there() -> None:
    book = LeaseBook(15.0)
    for round_ in range(50):
        for index in range(20):
            book.put(f"n{index}", str(round_), 40 + (round_ + index) % 7, float(round_))
    assert len(book) == 20
    for index in range(20):
        book.remove(f"n{index}")
        book.remove(f"n{index}")
    assert (len(book), list(book.silent(1e9)), book.next_at(0.0)) == (0, [], None)
