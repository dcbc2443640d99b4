"""What is to be done about the notices of one job (pure).

What is recorded of a try, and when the next one is due, has `tries.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NoticeEvent, NoticeRecord, NoticeState
from fairlead.decide.attempts.notices import DueNotice, due_notices
from fairlead.decide.notices.actions import Action, SendNotice, SettleNotice, TryOutcome
from fairlead.decide.notices.policy import NoticesPolicy
from fairlead.decide.notices.tries import begun, next_try_at, settled_record
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
            settled = settled_record(record, view.outcomes.get(key_of_try(record)), policy, now)
            if settled is not None:
                return Decision((SettleNotice(job, settled),))
        at = next_try_at(record)
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


def _send(view: NoticeView, due: DueNotice, policy: NoticesPolicy, now: float) -> SendNotice:
    before, occurrence = due.record, due.occurrence
    outcome = None if before is None else view.outcomes.get(key_of_try(before))
    first = NoticeRecord(due.index, occurrence.event, occurrence.attempt, 0, NoticeState.SENDING)
    return SendNotice(view.job, due.target, begun(before or first, outcome, policy, now))


def with_record(records: tuple[NoticeRecord, ...], new: NoticeRecord) -> tuple[NoticeRecord, ...]:
    """Return the records of a job with `new` in the place of the one of its target and event.

    In order of target and event: at most targets times events.
    """
    key = (new.target, new.event)
    kept = [each for each in records if (each.target, each.event) != key]
    order = list(NoticeEvent)
    return tuple(sorted((*kept, new), key=lambda each: (each.target, order.index(each.event))))
