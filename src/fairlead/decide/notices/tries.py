"""The tries of one message, of a job or of a node: when each is due, and which is the last (pure).

A try is recorded before it is made, with the instant before which no other one begins. So a process
that ends in between repeats it, at most as often as any failing one is repeated, and two processes
never make it at once: the second one waits until the first would have given up.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from fairlead.api.jobs.notify import NoticeRecord, NoticeState
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.notices.actions import TryOutcome
from fairlead.decide.notices.policy import NoticesPolicy
from fairlead.model.health.ticket import TicketRecord

R = TypeVar("R", NoticeRecord, TicketRecord)


def next_try_at(record: NoticeRecord | TicketRecord | None) -> float:
    """Return before when no further try begins; 0.0: it may begin at once."""
    return parse_time(record.next_try_at) if record is not None and record.next_try_at else 0.0


def settled_record(
    record: R, outcome: TryOutcome | None, policy: NoticesPolicy, now: float
) -> R | None:
    """Return the record of a message that needs no further try; None where it does."""
    if outcome is not None and outcome.reason.is_final:
        is_delivered = outcome.reason.value == NoticeState.DELIVERED.value
        state = NoticeState.DELIVERED if is_delivered else NoticeState.REFUSED
    elif record.tries >= policy.tries_max and (outcome is not None or now >= next_try_at(record)):
        state = NoticeState.GIVEN_UP
    else:
        return None
    return _with_outcome(replace(record, state=state, next_try_at=None), outcome)


def begun(record: R, outcome: TryOutcome | None, policy: NoticesPolicy, now: float) -> R:
    """Return the record of a message of which a try begins; `outcome`: of the try before."""
    tries = record.tries + 1
    next_at = now + policy.try_seconds_max + policy.pause_seconds(tries)
    record = replace(
        record, tries=tries, state=NoticeState.SENDING, next_try_at=format_time(next_at)
    )
    return _with_outcome(record, outcome)


def _with_outcome(record: R, outcome: TryOutcome | None) -> R:
    """Return the record with how its latest try ended."""
    if outcome is None:
        return record
    return replace(record, reason=outcome.reason.value, code=outcome.code)
