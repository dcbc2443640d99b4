"""Which nodes are unreachable: from a lease that is late, to a mark on the node, and back.

    a lease is late                  the node is silent: a doubt, which changes nothing
    the API server has no renewal either, its machine answers no connection, and others' do
                                     the node is marked: the members on it are lost
    a renewal is seen                the mark is closed, and stays for an hour, to be counted

A mark lets gangs restart elsewhere some 40 s before Kubernetes calls the node not ready. No machine
is removed for it. What could make good nodes look so (`SilenceHold`) holds all marks back; then the
grace of Kubernetes counts as it does without this. docs/design/health.md has the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import TypeAlias

from fairlead.api.kubernetes.core import Node
from fairlead.decide.health.policy import SilencePolicy
from fairlead.decide.verdict import Decision, earliest
from fairlead.model.health.lease_book import LeaseBook
from fairlead.model.health.unreachable import UnreachableMark, mark_of


class Contact(Enum):
    """How a connection to a machine ended."""

    CONNECTED = "connected"
    #: The machine is there, and its kubelet is not.
    REFUSED = "refused"
    #: Time out, or a router or our own network says that no machine has the address.
    SILENT = "no answer"
    #: It says nothing of the machine: we have no route, or no address.
    UNKNOWN = "not tried"

    @property
    def is_sign_of_life(self) -> bool:
        """True when a machine answered."""
        return self in (Contact.CONNECTED, Contact.REFUSED)


class Presence(Enum):
    """What was found out about a node that is silent."""

    ABSENT = "absent"
    #: Its lease is not renewed, and its machine answers: containers go on.
    ANSWERS = "answers"
    REFUSES = "refuses"
    #: The API server has a renewal that the watch has not shown.
    RENEWED = "renewed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PresenceAnswer:
    """What was found out, and when by the monotonic clock."""

    at: float
    presence: Presence


def presence_of(tries: Sequence[Contact], controls: Sequence[Contact]) -> Presence:
    """Judge a node by connections to it, and to others at the same time.

    No answer counts only where others answer the same question: else it is our own network, or a
    firewall before all kubelets. The node of this process may be among them, so one is not enough
    where two are to be had.
    """
    if Contact.CONNECTED in tries:
        return Presence.ANSWERS
    if Contact.REFUSED in tries:
        return Presence.REFUSES
    answered = sum(each.is_sign_of_life for each in controls)
    is_sighted = answered >= min(2, len(controls)) > 0
    if not is_sighted or not tries or any(each is not Contact.SILENT for each in tries):
        return Presence.UNKNOWN
    return Presence.ABSENT


def machine_address(node: Node) -> str:
    """Return the address at which a node's machine is tried; "" where it has none to be tried.

    The kubelet writes it, and may be in wrong hands: it is an IP address, of no machine's own.
    """
    for each in node.status.addresses:
        if each.type != "InternalIP":
            continue
        try:
            address = ip_address(each.address)
        except ValueError:
            continue
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        is_own = address.is_loopback or address.is_link_local or address.is_unspecified
        if not is_own and not address.is_multicast:
            return str(address)
    return ""


class SilenceHold(Enum):
    """Why no node is marked, in the order in which it is asked."""

    WATCH_SILENT = "WatchSilent"  # no lease of any node was renewed: we see none
    MANY_SILENT = "ManySilent"
    NO_OTHERS = "NoOthers"  # there is no other node to compare with
    MARKS_SPENT = "MarksSpent"  # as many were marked within an hour as may be


# Actions


@dataclass(frozen=True, slots=True)
class TryNodes:
    """Ask the API server for the leases of nodes, and their machines for a connection."""

    nodes: tuple[Node, ...]
    controls: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetMark:
    """Write the mark of a node, or take it off (None)."""

    node: Node
    mark: UnreachableMark | None


SilenceAction: TypeAlias = TryNodes | SetMark


@dataclass(frozen=True, slots=True)
class SilenceView:
    """What a decision sees. `instant` and all instants below are of the monotonic clock."""

    book: LeaseBook
    node: Callable[[str], Node | None]
    #: Nodes with a mark, and since when this process has seen the mark as it is.
    marked: Mapping[str, Node]
    marks_seen: Mapping[str, float]
    #: Nodes that are not ready, and since when by the wall clock.
    unready_since: Mapping[str, float]
    answers: Mapping[str, PresenceAnswer]
    now: float
    instant: float
    #: The leases were listed: a node without one has none.
    is_listed: bool = True


@dataclass(frozen=True, slots=True)
class SilenceReport:
    """What the latest decision found, for metrics."""

    leases: int = 0
    silent: int = 0
    unreachable: int = 0
    #: Silent nodes by what was found out about them.
    presence: Mapping[Presence, int] = field(default_factory=dict)
    hold: SilenceHold | None = None


def decide_silence(
    view: SilenceView, policy: SilencePolicy
) -> tuple[Decision[SilenceAction], SilenceReport]:
    """Return what to do about nodes that are silent, and about marks."""
    ends = tuple(_mark_changes(view, policy))
    if not policy.enabled:
        return Decision(ends), SilenceReport()
    book, open_ = view.book, _open(view)
    silent = list(book.silent(view.instant))
    at = earliest(book.next_at(view.instant), _window_end(view, policy))
    if not silent:
        return _until(view, ends, at), SilenceReport(len(book), 0, len(open_))
    lately = [name for name in silent if _is_recent(view, policy, name)]
    found = (view.node(name) for name in lately if name not in open_)
    doubted = [node for node in found if node is not None]
    presence = {node.metadata.name: _presence(view, policy, node) for node in doubted}
    absent = [
        node
        for node in doubted
        if presence[node.metadata.name] is Presence.ABSENT and _is_late(view, policy, node)
    ]
    most = int((len(book) - len(silent) + len(lately)) * policy.share_max)
    hold = _hold(view, policy, len(lately), most) if doubted else None
    left = max(0, max(policy.window_least, most) - _marks_counted(view, policy))
    acts: list[SilenceAction] = [*ends]
    if hold is None:
        acts += [_mark(view, node) for node in absent[:left]]
        acts += _tries(view, policy, [n for n in doubted if presence[n.metadata.name] is None])
        hold = SilenceHold.MARKS_SPENT if len(absent) > left else None
    counts = Counter(each for each in presence.values() if each is not None)
    report = SilenceReport(len(book), len(doubted), len(open_), counts, hold)
    if doubted:
        at = earliest(at, view.instant + policy.look_seconds, _late_at(view, policy, doubted))
    return _until(view, acts, at), report


def _until(
    view: SilenceView, actions: Sequence[SilenceAction], at: float | None
) -> Decision[SilenceAction]:
    wake_at = None if at is None else view.now + max(0.0, at - view.instant)
    return Decision(tuple(actions), wake_at=wake_at)


# Marks


def _open(view: SilenceView) -> Mapping[str, Node]:
    """Return the nodes that are marked as unreachable."""
    found = ((name, node, mark_of(node.metadata.annotations)) for name, node in view.marked.items())
    return {name: node for name, node, mark in found if mark is not None and mark.until is None}


def _mark_changes(view: SilenceView, policy: SilencePolicy) -> Iterator[SetMark]:
    """Yield which marks end, and which are forgotten. One that cannot be read is taken off."""
    for name, node in sorted(view.marked.items()):
        mark, seen_at = mark_of(node.metadata.annotations), view.marks_seen[name]
        if mark is None or not policy.enabled:
            yield SetMark(node, None)
        elif mark.until is not None:
            if view.instant >= seen_at + policy.window_seconds:
                yield SetMark(node, None)
        elif view.is_listed and _is_back(view.book, name, seen_at):
            yield SetMark(node, UnreachableMark(mark.since, max(view.now, mark.since)))


def _is_back(book: LeaseBook, name: str, marked_at: float) -> bool:
    """True once a node that was marked renews its lease, or has none by which it could be seen."""
    renewed_at = book.renewed_at(name)
    return name not in book or (renewed_at is not None and renewed_at > marked_at)


def _mark(view: SilenceView, node: Node) -> SetMark:
    age = view.instant - view.book.heard(node.metadata.name)
    return SetMark(node, UnreachableMark(view.now - age))


# Rails


def _is_late(view: SilenceView, policy: SilencePolicy, node: Node) -> bool:
    """True for a node that may be marked, not only tried."""
    name = node.metadata.name
    late = view.book.late_seconds(name) * policy.silent_seconds / policy.doubt_seconds
    return view.instant - view.book.heard(name) >= late


def _late_at(view: SilenceView, policy: SilencePolicy, doubted: Sequence[Node]) -> float | None:
    """Return when the next one of the nodes that are tried is late."""
    factor, book = policy.silent_seconds / policy.doubt_seconds, view.book
    names = (node.metadata.name for node in doubted)
    found = (book.heard(name) + book.late_seconds(name) * factor for name in names)
    return min((at for at in found if at > view.instant), default=None)


def _is_recent(view: SilenceView, policy: SilencePolicy, name: str) -> bool:
    """True for a node that is silent since a while ago at most.

    One that was not ready before, such as a machine that is switched off, is heard by a new process
    for the first time, so its condition counts as well.
    """
    unready_at = view.unready_since.get(name)
    is_old = unready_at is not None and unready_at <= view.now - policy.settle_seconds
    return not is_old and view.book.heard(name) > view.instant - policy.settle_seconds


def _hold(view: SilenceView, policy: SilencePolicy, lately: int, most: int) -> SilenceHold | None:
    """Return why no node is marked, with so many that are silent lately."""
    heard_at = view.book.heard_at
    if heard_at is None or view.instant - heard_at >= policy.silent_seconds:
        return SilenceHold.WATCH_SILENT
    if lately > max(1, most):
        return SilenceHold.MANY_SILENT
    return None if len(view.book) > lately else SilenceHold.NO_OTHERS


def _marks_counted(view: SilenceView, policy: SilencePolicy) -> int:
    """Return how many marks this process has seen as they are within the window only."""
    lasting = view.instant - policy.window_seconds
    open_ = _open(view)
    return sum(name not in open_ or view.marks_seen[name] > lasting for name in view.marked)


# Tries


def _presence(view: SilenceView, policy: SilencePolicy, node: Node) -> Presence | None:
    """Return what is known of a silent node; None: nothing, or nothing that still counts."""
    name = node.metadata.name
    answer = view.answers.get(name)
    if answer is None or answer.at < view.book.heard(name):
        return None
    is_old = view.instant >= answer.at + policy.answer_seconds
    return None if is_old else answer.presence


def _tries(view: SilenceView, policy: SilencePolicy, doubted: Sequence[Node]) -> Iterator[TryNodes]:
    asked = doubted[: policy.batch_max]
    controls = _controls(view, policy, asked) if asked else ()
    if controls:
        yield TryNodes(tuple(asked), controls)


def _controls(view: SilenceView, policy: SilencePolicy, asked: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes that were heard last, which are there for certain."""
    out: list[Node] = []
    tried = {node.metadata.name for node in asked}
    for name in view.book.latest():
        node = view.node(name)
        if view.instant - view.book.heard(name) >= view.book.late_seconds(name):
            break
        if node is not None and name not in tried and machine_address(node):
            out.append(node)
        if len(out) == policy.controls:
            break
    return tuple(out)


def _window_end(view: SilenceView, policy: SilencePolicy) -> float | None:
    """Return when the next closed mark has been counted for long enough."""
    ends = (at + policy.window_seconds for at in view.marks_seen.values())
    return min((at for at in ends if at > view.instant), default=None)
