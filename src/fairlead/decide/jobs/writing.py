"""Putting a decision together: status writes with what always goes with them, events, deletions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import (
    ATTEMPTS_MAX,
    Attempt,
    Job,
    JobState,
    JobStatus,
    MemberCounts,
)
from fairlead.api.meta import Condition, set_condition
from fairlead.api.times import format_micro_time, format_time
from fairlead.decide.actions import (
    Action,
    DeleteConfigMap,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    RecordHistory,
    WriteJobStatus,
)
from fairlead.decide.jobs.pods import MemberPhase, MemberPod
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import JobView


class EventReason(Enum):
    """What people are told; the `reason` of events."""

    ADMITTED = "Admitted"
    HELD = "Held"
    RELEASED = "Released"
    STARTED = "Started"
    MEMBER_LOST = "MemberLost"
    MEMBER_RESTARTED = "MemberRestarted"
    CAUSE_REVISED = "CauseRevised"
    STOPPING = "Stopping"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


_WARNINGS = frozenset((EventReason.MEMBER_LOST, EventReason.FAILED, EventReason.MEMBER_RESTARTED))


@dataclass(frozen=True, slots=True)
class Note:
    """An event to be: past tense, with the facts."""

    reason: EventReason
    message: str


def current_attempt(status: JobStatus) -> Attempt | None:
    """Return the record of the current attempt; None while it has not begun."""
    last = status.attempts[-1] if status.attempts else None
    return last if last is not None and last.number == status.attempt else None


def with_attempt(status: JobStatus, attempt: Attempt) -> JobStatus:
    """Return the status with this record in the place of its number, or appended."""
    kept = tuple(a for a in status.attempts if a.number != attempt.number)
    return replace(status, attempts=(*kept, attempt)[-ATTEMPTS_MAX:])


def with_condition(view: JobView, status: JobStatus, now: float, condition: Condition) -> JobStatus:
    """Return the status with the condition set, its instant and generation filled in."""
    new = replace(
        condition,
        observed_generation=view.job.metadata.generation or None,
        last_transition_time=format_time(now),
    )
    return replace(status, conditions=set_condition(status.conditions, new))


def with_running(view: JobView, status: JobStatus, now: float, reason: str) -> JobStatus:
    """Return the status with Running False (if there is such a condition, or an attempt)."""
    return with_condition(view, status, now, Condition(names.RUNNING, "False", reason))


def with_state(status: JobStatus, state: JobState) -> JobStatus:
    """Return the status with the STATE column set."""
    return replace(status, state=state.value)


def counts_of(view: JobView) -> MemberCounts:
    """Return the counts of the current attempt; members without a pod are pending."""
    counts, total = view.current.counts, view.job.member_count
    running = counts[MemberPhase.RUNNING]
    succeeded, failed = counts[MemberPhase.SUCCEEDED], counts[MemberPhase.FAILED]
    return MemberCounts(
        total=total,
        pending=max(0, total - running - succeeded - failed),
        running=running,
        succeeded=succeeded,
        failed=failed,
    )


def write(
    view: JobView, status: JobStatus, *notes: Note, record: bool = False
) -> tuple[Action, ...]:
    """Return the actions that write the status and then tell people; () when nothing is new.

    With `record`, the history comes first: once the status says that the job has ended, nothing
    looks at it again.
    """
    job = view.job
    status = replace(
        status,
        observed_generation=job.metadata.generation,
        submitted_at=status.submitted_at or job.metadata.creation_timestamp,
    )
    if status == job.status:
        return ()
    actions: list[Action] = []
    if record:
        actions.append(RecordHistory(replace(job, status=status)))
    actions.append(WriteJobStatus(job, status))
    actions.extend(emit(job, notes))
    return tuple(actions)


def emit(job: Job, notes: Iterable[Note]) -> Iterator[EmitEvent]:
    """Yield the events of these notes."""
    for note in notes:
        kind = "Warning" if note.reason in _WARNINGS else "Normal"
        yield EmitEvent(job, kind, note.reason.value, note.message)


def delete_pods(
    view: JobView, pods: Iterable[MemberPod], policy: JobsPolicy, now: float
) -> Iterator[DeletePod]:
    """Yield the deletions that are due: with grace, and by force where the node is lost.

    A pod that is being deleted on a lost node would stay for ever: nobody there confirms its end.
    """
    for member in pods:
        trouble = view.node_troubles.get(member.node)
        force = trouble is not None and trouble.is_lost(policy, now)
        if member.is_terminating and not force:
            continue
        namespace = member.pod.metadata.namespace
        yield DeletePod(namespace, member.name, member.uid, 0 if force else None)


def force_at(
    view: JobView, pods: Iterable[MemberPod], policy: JobsPolicy, now: float
) -> float | None:
    """Return when the next of these pods is to be deleted by force; None: no node is in doubt."""
    troubles = (view.node_troubles.get(member.node) for member in pods)
    times = [t.lost_at(policy) for t in troubles if t is not None and not t.is_lost(policy, now)]
    return min(times, default=None)


def sweep(view: JobView, *, keep_attempt: int) -> Iterator[Action]:
    """Yield the deletions of the peers and groups of all attempts but one.

    0 is of all, and of the service.
    """
    namespace = view.job.metadata.namespace
    for owned in view.config_maps.values():
        if owned.attempt != keep_attempt and not owned.is_terminating:
            yield DeleteConfigMap(namespace, owned.name, owned.uid)
    for owned in view.pod_groups.values():
        if owned.attempt != keep_attempt and not owned.is_terminating:
            yield DeletePodGroup(namespace, owned.name, owned.uid)
    if keep_attempt == 0:
        for owned in view.services.values():
            if not owned.is_terminating:
                yield DeleteService(namespace, owned.name, owned.uid)


def earliest(*instants: float | None) -> float | None:
    """Return the earliest instant that there is."""
    return min((at for at in instants if at is not None), default=None)


def stamp(now: float) -> str:
    """Return an instant as Fairlead's own fields hold it, to the microsecond."""
    return format_micro_time(now)


def duration(seconds: float) -> str:
    """Return e.g. "4.2 s", "3m12s", "2h05m", "3d4h"."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"


def plural(count: int, word: str) -> str:
    """Return e.g. "1 member", "4 members"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
