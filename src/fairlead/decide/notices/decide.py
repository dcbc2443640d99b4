"""What is to be done about the notices of one job (pure).

A try is recorded before it is made, with the instant before which no other one begins. So a process
that ends in between repeats it, at most as often as any failing one is repeated, and two processes
never make it at once: the second one waits until the first would have given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NoticeEvent, NoticeRecord, NoticeState
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.attempts.notices import DueNotice, due_notices
from fairlead.decide.notices.actions import Action, SendNotice, SettleNotice, TryOutcome
from fairlead.decide.notices.policy import NoticesPolicy
from fairlead.decide.verdict import NOTHING, Decision, earliest

#: One try: the target's index, the event, the attempt, and which try of it.
TryKey: TypeAlias = tuple[int, NoticeEvent, int, int]


@dataclass(frozen=True, slots=True)
class NoticeView:
    """What a decision sees of one job."""

    job: Job
    #: How the tries of this process ended whose notices are not settled.
    outcomes: Mapping[TryKey, TryOutcome]
    #: A try is on its way: at most one of a job.
    is_sending: bool = False


def key_of_try(record: NoticeRecord) -> TryKey:
    """Return what a record says of its latest try."""
    return record.target, record.event, record.attempt, record.tries


def is_past(key: TryKey, records: Sequence[NoticeRecord]) -> bool:
    """True for a try after which the records have a later one, or the end of its notice.

    One that they do not have at all is not past: they may be older than it.
    """
    target, event, attempt, tries = key
    for each in records:
        if (each.target, each.event) == (target, event):
            is_settled = each.attempt == attempt and each.state is not NoticeState.SENDING
            return is_settled or (each.attempt, each.tries) > (attempt, tries)
    return False


def decide_notices(
    view: NoticeView, policy: NoticesPolicy, now: float, *, has_turn: bool
) -> Decision[Action]:
    """Return the next step; without a turn none that sends. `wants_turn` says whether one would."""
    job = view.job
    if not job.spec.notify or job.metadata.deletion_timestamp is not None:
        return NOTHING  # who deletes a job withdraws what it owes
    if view.is_sending:
        return NOTHING
    wake_at: float | None = None
    ready: list[tuple[float, DueNotice]] = []
    for due in due_notices(job):
        record = due.record
        if record is not None:
            settled = _settled(record, view.outcomes.get(key_of_try(record)), policy, now)
            if settled is not None:
                return Decision((SettleNotice(job, settled),))
        at = _next_try_at(record)
        if at > now:
            wake_at = earliest(wake_at, at)
        else:
            ready.append((at, due))
    if not ready or not has_turn:
        return Decision(wake_at=wake_at)
    _, first = min(ready, key=lambda each: (each[0], each[1].index))
    return Decision((_send(view, first, policy, now),))


def wants_turn(view: NoticeView, policy: NoticesPolicy, now: float) -> bool:
    """True where the next step is to send."""
    actions = decide_notices(view, policy, now, has_turn=True).actions
    return any(isinstance(each, SendNotice) for each in actions)


def _next_try_at(record: NoticeRecord | None) -> float:
    return parse_time(record.next_try_at) if record is not None and record.next_try_at else 0.0


def _settled(
    record: NoticeRecord, outcome: TryOutcome | None, policy: NoticesPolicy, now: float
) -> NoticeRecord | None:
    """Return the record of a notice that needs no further try; None where it does."""
    if outcome is not None and outcome.reason.is_final:
        is_delivered = outcome.reason.value == NoticeState.DELIVERED.value
        state = NoticeState.DELIVERED if is_delivered else NoticeState.REFUSED
    elif record.tries >= policy.tries_max and (outcome is not None or now >= _next_try_at(record)):
        state = NoticeState.GIVEN_UP
    else:
        return None
    return _with_outcome(replace(record, state=state, next_try_at=None), outcome)


def _send(view: NoticeView, due: DueNotice, policy: NoticesPolicy, now: float) -> SendNotice:
    before, occurrence = due.record, due.occurrence
    tries = 1 if before is None else before.tries + 1
    next_at = now + policy.try_seconds_max + policy.pause_seconds(tries)
    record = NoticeRecord(
        due.index, occurrence.event, occurrence.attempt, tries, NoticeState.SENDING,
        next_try_at=format_time(next_at),
    )  # fmt: skip
    if before is not None:
        record = replace(record, reason=before.reason, code=before.code)
        record = _with_outcome(record, view.outcomes.get(key_of_try(before)))
    return SendNotice(view.job, due.target, record)


def _with_outcome(record: NoticeRecord, outcome: TryOutcome | None) -> NoticeRecord:
    """Return the record with how its latest try ended."""
    if outcome is None:
        return record
    return replace(record, reason=outcome.reason.value, code=outcome.code)


def with_record(records: tuple[NoticeRecord, ...], new: NoticeRecord) -> tuple[NoticeRecord, ...]:
    """Return the records of a job with `new` in the place of the one of its target and event.

    In order of target and event: at most targets times events.
    """
    key = (new.target, new.event)
    kept = [each for each in records if (each.target, each.event) != key]
    order = list(NoticeEvent)
    return tuple(sorted((*kept, new), key=lambda each: (each.target, order.index(each.event))))
