"""What is to be done about the tickets of one node: who is asked for its repair, and hears of its
end (pure).

A node that waits for a person has a ticket at each target; one whose machine is replaced has one at
its provider as well. It is one ticket for the whole time that the node is out: a fault that comes
and goes meanwhile opens no further one. It is resolved when the node takes work again, is retired,
or is gone. Tries are those of `tries.py`; nothing that a target says changes what is done about a
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.jobs.notify import NoticeState
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import RETIRE
from fairlead.api.values.times import format_time
from fairlead.decide.notices.actions import TryOutcome
from fairlead.decide.notices.policy import NoticesPolicy
from fairlead.decide.notices.tries import begun, next_try_at, settled_record
from fairlead.decide.verdict import Decision, earliest
from fairlead.model.health.node_record import NodeRecord, NodeState, record_of
from fairlead.model.health.ticket import TicketEvent, TicketRecord, tickets_of

#: The target that is the provider of the node's machine.
PROVIDER = "Provider"
#: The target whose URL a file has.
SECRET_URL = "Secret"  # noqa: S105 # a word of the settings
#: Messages of tickets that begin within a minute; a storm freezes long before.
TICKETS_PER_MINUTE = 30
#: One message of a ticket and which try of it: to, session, event, tries.
TicketKey: TypeAlias = tuple[str, str, TicketEvent, int]


@dataclass(frozen=True, slots=True)
class TicketTarget:
    """Where tickets go: a URL, that of the file where it is empty, or the provider."""

    name: str
    url: str = field(default="", repr=False)

    @property
    def is_provider(self) -> bool:
        """True for the provider of the node's machine."""
        return self.name == PROVIDER


@dataclass(frozen=True, slots=True)
class TicketsPolicy:
    """Where tickets go, and the bounds of sending them."""

    targets: tuple[TicketTarget, ...] = ()
    #: Nothing is sent: what would be is recorded.
    is_dry_run: bool = False
    sending: NoticesPolicy = field(
        default_factory=lambda: NoticesPolicy(
            namespace_per_minute=TICKETS_PER_MINUTE, per_minute=TICKETS_PER_MINUTE
        )
    )


@dataclass(frozen=True, slots=True)
class TicketView:
    """What a decision sees of one node."""

    node: Node
    #: How the tries of this process ended whose messages are not settled.
    outcomes: Mapping[TicketKey, TryOutcome] = field(default_factory=dict[TicketKey, TryOutcome])
    #: The books of the fleet have it as out of service, which no node can write.
    is_granted: bool = True
    #: The node was deleted; this is what it was.
    is_gone: bool = False
    #: A try is on its way: at most one of a node.
    is_sending: bool = False


@dataclass(frozen=True, slots=True)
class SendTicket:
    """Record that a try begins, and then make it: after a crash in between it counts."""

    node: Node
    target: TicketTarget
    record: TicketRecord


@dataclass(frozen=True, slots=True)
class SettleTicket:
    """Record that a message is delivered, refused, given up, or needed no longer."""

    node: Node
    record: TicketRecord


TicketAction: TypeAlias = SendTicket | SettleTicket


def key_of_ticket(record: TicketRecord) -> TicketKey:
    """Return what a record says of its latest try."""
    return record.to, record.session, record.event, record.tries


def is_ticket_past(key: TicketKey, records: Sequence[TicketRecord]) -> bool:
    """True for a try after which the records have a later one, or another message."""
    for each in records:
        if each.to == key[0]:
            is_same = (each.session, each.event) == key[1:3]
            return not is_same or each.state is not NoticeState.SENDING or each.tries > key[3]
    return False


def with_ticket(records: tuple[TicketRecord, ...], new: TicketRecord) -> tuple[TicketRecord, ...]:
    """Return the tickets of a node with `new` in the place of the one to its target, by target."""
    kept = [each for each in records if each.to != new.to]
    return tuple(sorted((*kept, new), key=lambda each: each.to))


def decide_tickets(
    view: TicketView, policy: TicketsPolicy, now: float, *, has_turn: bool
) -> Decision[TicketAction]:
    """Return the next step; without a turn none that sends. `ticket_wants_turn`: one would."""
    if view.is_sending:
        return Decision()
    known = {each.to: each for each in tickets_of(view.node.metadata.annotations)}
    wake_at: float | None = None
    ready: list[tuple[TicketTarget, TicketRecord]] = []
    for target in policy.targets:
        due = _due(view, target, known.get(target.name), now)
        if due is None:
            continue
        if due.state is not NoticeState.SENDING:
            return Decision((SettleTicket(view.node, due),))
        if due.tries:
            outcome = view.outcomes.get(key_of_ticket(due))
            settled = settled_record(due, outcome, policy.sending, now)
            if settled is not None:
                return Decision((SettleTicket(view.node, settled),))
        if next_try_at(due) > now:
            wake_at = earliest(wake_at, next_try_at(due))
        else:
            ready.append((target, due))
    if not ready or not has_turn:
        return Decision(wake_at=wake_at)
    target, due = min(ready, key=lambda each: next_try_at(each[1]))
    record = begun(due, view.outcomes.get(key_of_ticket(due)), policy.sending, now)
    return Decision((SendTicket(view.node, target, replace(record, at=format_time(now))),))


def ticket_wants_turn(view: TicketView, policy: TicketsPolicy, now: float) -> bool:
    """True where the next step is to send."""
    actions = decide_tickets(view, policy, now, has_turn=True).actions
    return any(isinstance(each, SendTicket) for each in actions)


def _due(
    view: TicketView, target: TicketTarget, known: TicketRecord | None, now: float
) -> TicketRecord | None:
    """Return the record of the message that is owed to a target; None: none is.

    One that is not Sending needs no try: it is to be written as it is.
    """
    record = record_of(view.node.metadata.annotations)
    is_over = known is not None and _is_over(view, record, known)
    if known is not None and known.event is TicketEvent.OPENED and is_over:
        closed = replace(known, event=TicketEvent.RESOLVED, next_try_at=None)
        has_arrived = known.state in (NoticeState.SENDING, NoticeState.DELIVERED)
        if not has_arrived or (target.is_provider and view.is_gone):
            state = NoticeState.REFUSED if known.state is NoticeState.SENDING else known.state
            return replace(closed, state=state)
        return replace(closed, state=NoticeState.SENDING, tries=0, at=None, reason="", code=None)
    if known is not None and known.state is NoticeState.SENDING:
        return known
    is_open = known is not None and known.event is TicketEvent.OPENED
    if record is None or is_open or not _asks(view, record, target):
        return None
    return TicketRecord(target.name, _session(record), TicketEvent.OPENED, format_time(now))


def _asks(view: TicketView, record: NodeRecord, target: TicketTarget) -> bool:
    """True where a node needs the target: a person who mends it, or the owner of its hardware.

    The record is an annotation, which a node may write itself. That it is to be repaired says the
    status of the Fleet, which it may not: no provider takes a machine for the word of its node.
    """
    if view.is_gone or RETIRE in view.node.metadata.annotations:
        return False
    if not target.is_provider:
        return record.state is NodeState.ASKING
    is_due = record.state in (NodeState.ASKING, NodeState.REPLACING)
    return is_due and view.is_granted and bool(view.node.spec.provider_id)


def _is_over(view: TicketView, record: NodeRecord | None, ticket: TicketRecord) -> bool:
    if view.is_gone or RETIRE in view.node.metadata.annotations:
        return True
    return record is None or not record.is_out or _session(record) != ticket.session


def _session(record: NodeRecord) -> str:
    """Return since when a node is out, which tells this time from others."""
    return record.drain.partition("/")[0] or record.entered_at
