"""Tickets of a node: which of its faults was reported where, as the annotation `TICKETS` has it.

The tickets controller alone writes it. A ticket is one message that a node needs repair, and one
more that it does not any longer. The annotation ends with the Node; what cannot be read there
counts as no ticket.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from fairlead.api.jobs.notify import NoticeState
from fairlead.api.meta import Instant, Wire
from fairlead.api.names import TICKETS
from fairlead.api.values.times import parse_time

#: Characters of the annotation that are read.
_TEXT_MAX = 8_192


class TicketEvent(Enum):
    """What the latest message of a ticket says."""

    OPENED = "Opened"
    RESOLVED = "Resolved"


class TicketRecord(Wire, frozen=True):
    """The latest message of a node's ticket to one target, and how far its delivery is.

    `to` names the target and is no address: the host of a URL, or Provider. `session`: since when
    the node is out of service. `at`: when the latest try began. The other fields are those of
    `NoticeRecord`.
    """

    to: str
    session: str
    event: TicketEvent
    opened_at: Instant
    tries: int = 0
    state: NoticeState = NoticeState.SENDING
    at: Instant | None = None
    reason: str = ""
    code: int | None = None
    next_try_at: Instant | None = None


def tickets_of(notes: Mapping[str, str]) -> tuple[TicketRecord, ...]:
    """Return the tickets in the annotations of a node; (): none that can be read."""
    text = notes.get(TICKETS)
    if text is None or len(text) > _TEXT_MAX:
        return ()
    try:
        tickets = msgspec.json.decode(text, type=tuple[TicketRecord, ...])
        for each in tickets:
            for instant in (each.opened_at, each.at, each.next_try_at):
                if instant is not None:
                    parse_time(instant)
    except ValueError:  # msgspec's are of it, too
        return ()
    return tickets


def tickets_text(tickets: tuple[TicketRecord, ...]) -> str:
    """Return tickets as they stand in the annotation."""
    return msgspec.json.encode(tickets).decode()
