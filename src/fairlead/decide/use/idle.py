"""Jobs that hold GPUs and use almost nothing: for how long, and what the idle policy does (pure).

Evidence is what nodes and samplers say of members: counters, beside the instant at which they were
read. The time of a job is cut into steps of some minutes. A step is idle when the GPUs of all
members computed for at most a few percent of it; where no node knows its GPUs, when the processors
did almost nothing. A streak is a row of idle steps up to now: one busy step, a member that was not
looked at, another attempt or another pod begins it again. So the window slides, and a job that is
used again is idle no more, whatever its mean.

A streak is kept in memory alone. Nothing that a tenant may write is read for it, and after a
restart of the controller it begins again: an end never rests on time that was not watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import TypeAlias

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.use import IdleRecord, MemberUse
from fairlead.api.values import quantity
from fairlead.api.values.quantity import is_gpu
from fairlead.api.values.times import format_micro_time
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.use.efficiency import asks_of
from fairlead.decide.use.present_use import idle_milli
from fairlead.decide.use.use_meter import GAP_SECONDS_MAX
from fairlead.decide.verdict import ObjectKey
from fairlead.decide.words import duration

_STEP_SECONDS_MAX = 300.0
_ROUND_SECONDS_MAX = 60.0
#: Of the time before the first warning, so that a short policy has steps, too.
_STEPS_MIN = 12
_ENDED_BY = "ended by the idle policy"
_PARTIAL = "as its use was sampled and not counted by its node"
_HOUR = 3600.0


class IdleMode(Enum):
    """What the idle policy does: nothing, only report what it would do, or act."""

    NONE = "None"
    SHADOW = "Shadow"
    ENFORCE = "Enforce"


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When owners are warned and idle jobs end; all but the last two lines are settings."""

    mode: IdleMode = IdleMode.NONE
    first_warning_seconds: int = 3_600
    second_warning_seconds: int = 6_300
    end_seconds: int = 7_200
    gpu_percent_max: int = 5
    gpus_min: int = 1
    ends_per_hour_max: int = 20
    except_users: tuple[str, ...] = ()
    except_teams: tuple[str, ...] = ()
    except_names: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Return how long a step is at least."""
        return min(_STEP_SECONDS_MAX, self.first_warning_seconds / _STEPS_MIN)

    @property
    def last_seconds(self) -> int:
        """Return the time between the second warning and the end."""
        return self.end_seconds - self.second_warning_seconds

    @property
    def round_seconds(self) -> float:
        """Return the time between two looks at all jobs."""
        return min(_ROUND_SECONDS_MAX, self.step_seconds)

    def excepts(self, job: Job) -> bool:
        """True for a job that the policy leaves alone; names are patterns, of NAMESPACE/NAME where
        they have a slash.
        """
        meta = job.metadata
        user = meta.annotations.get(names.SUBMITTED_BY, "")
        if (user and user in self.except_users) or job.spec.team in self.except_teams:
            return True
        both = f"{meta.namespace}/{meta.name}"
        return any(
            fnmatchcase(both if "/" in each else meta.name, each) for each in self.except_names
        )


@dataclass(frozen=True, slots=True)
class MemberLook:
    """What a pod has used from its start to an instant, as its node or a sampler says."""

    pod: ObjectKey
    at: float
    use: MemberUse


#: Of one job, by the uid of the pod.
Looks: TypeAlias = Mapping[str, MemberLook]


@dataclass(frozen=True, slots=True)
class IdleStreak:
    """A job that is watched. `since` and `until` are instants of looks: the idle steps so far.

    `peak` is the highest step, in percent of the GPUs where `is_by_gpus`, else in thousandths of a
    processor. `warned_until` is `until` at the latest warning, `is_settled`: nothing follows it.
    """

    attempt: int
    since: float
    until: float
    looks: Looks
    is_by_gpus: bool = False
    peak: int = 0
    is_partial: bool = False
    warnings: int = 0
    warned_until: float = 0.0
    is_settled: bool = False

    @property
    def seconds(self) -> float:
        """Return for how long the job has been idle."""
        return self.until - self.since

    @property
    def ordinal(self) -> str:
        """Return which warning the latest one is."""
        return "first" if self.warnings <= 1 else "second"

    def noted(self, after: IdleStreak) -> IdleStreak:
        """Return this streak with the steps that `after` has taken, where both are the same one."""
        if (self.attempt, self.since) != (after.attempt, after.since):
            return self
        return replace(
            self, warnings=after.warnings, warned_until=after.warned_until,
            is_settled=after.is_settled,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WarnIdle:
    """Warn the owner: an Event, and a record from which notices follow."""

    job: Job
    record: IdleRecord
    after: IdleStreak


@dataclass(frozen=True, slots=True)
class EndIdle:
    """Cancel the job, with the evidence in its message."""

    job: Job
    message: str


@dataclass(frozen=True, slots=True)
class ReportIdle:
    """Report what is not done: the policy is in shadow, or the evidence is partial."""

    job: Job
    message: str
    after: IdleStreak


@dataclass(frozen=True, slots=True)
class ClearIdle:
    """Remove the record of a job that is used again."""

    job: Job


IdleAction: TypeAlias = WarnIdle | EndIdle | ReportIdle | ClearIdle


def is_watched(job: Job, policy: IdlePolicy) -> bool:
    """True for a job that runs and holds enough GPUs; not one that represents pods of others."""
    record, spec = job.status.current_attempt, job.spec
    if record is None or not record.started_at or record.finished_at is not None:
        return False
    is_running = job.status.state == JobState.RUNNING.value and not (spec.cancel or spec.suspend)
    is_ours = spec.adopts is None and job.metadata.deletion_timestamp is None
    return is_running and is_ours and gpu_count(job) >= policy.gpus_min


def follow(
    job: Job, looks: Looks, before: IdleStreak | None, *, policy: IdlePolicy, now: float
) -> IdleStreak | None:
    """Return the streak of a watched job after a round of looks; None when not all is known."""
    stale = GAP_SECONDS_MAX + policy.round_seconds
    if not looks or len(looks) < job.member_count:
        return None
    if any(now - look.at > stale for look in looks.values()):
        return None
    at = min(look.at for look in looks.values())
    first = IdleStreak(job.status.attempt, at, at, looks)
    if before is None or before.attempt != first.attempt or before.looks.keys() != looks.keys():
        return first
    seconds = at - before.until
    if seconds < policy.step_seconds:
        return before
    step = _step(job, before.looks, looks)
    if step is None or seconds > policy.step_seconds + stale:
        return first
    is_by_gpus, amount = step
    if amount > _limit(job, policy, is_by_gpus=is_by_gpus):
        return first
    if before.seconds and is_by_gpus != before.is_by_gpus:
        return first  # two kinds of evidence are not added up
    is_partial = before.is_partial or any(look.use.is_partial for look in looks.values())
    return replace(
        before, until=at, looks=looks, is_by_gpus=is_by_gpus, peak=max(before.peak, amount),
        is_partial=is_partial,
    )  # fmt: skip


def _step(job: Job, before: Looks, after: Looks) -> tuple[bool, int] | None:
    """Return whether GPUs are measured, and the use between two rounds, rounded up; None where it
    is not known of each member that has some. A counter that goes back is not known.
    """
    pairs = [(before[uid], after[uid]) for uid in after]
    measured = [(a, b) for a, b in pairs if b.use.gpu_milliseconds is not None]
    if measured:
        spans = [_grown(a.use.gpu_milliseconds, b.use.gpu_milliseconds) for a, b in measured]
        busy = [
            _grown(a.use.gpu_busy_milliseconds, b.use.gpu_busy_milliseconds, least=0)
            for a, b in measured
        ]
        span, used = _sum(spans), _sum(busy)
        if span is None or used is None or len(measured) < _gpu_members(job):
            return None
        return True, -(-used * 100 // span)
    milli = 0
    for a, b in pairs:
        used = _grown(a.use.cpu_milliseconds, b.use.cpu_milliseconds, least=0)
        milliseconds = round((b.at - a.at) * 1000)
        if used is None or milliseconds <= 0:
            return None
        milli += -(-used * 1000 // milliseconds)
    return False, milli


def _gpu_members(job: Job) -> int:
    asks = asks_of(job)
    return sum(size for role, size in job.sizes.items() if any(map(is_gpu, asks[role])))


def _grown(before: int | None, after: int | None, *, least: int = 1) -> int | None:
    """Return by how much a counter has grown; None where it is not known or did not."""
    if before is None or after is None or after - before < least:
        return None
    return after - before


def _sum(amounts: list[int | None]) -> int | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if len(known) == len(amounts) else None


def _limit(job: Job, policy: IdlePolicy, *, is_by_gpus: bool) -> int:
    if is_by_gpus:
        return policy.gpu_percent_max
    return idle_milli(_cpu_asked_milli(job), gpu_count(job))


def _cpu_asked_milli(job: Job) -> int:
    asks = asks_of(job)
    return sum(asks[role].get(quantity.CPU, 0) * size for role, size in job.sizes.items())


def evidence(job: Job, streak: IdleStreak) -> str:
    """Return what is known of an idle job, such as "GPU use at most 3% over 2h"."""
    over = f"over {duration(streak.seconds)}"
    if streak.is_by_gpus:
        return f"GPU use at most {streak.peak}% {over}"
    asked, used = _cpu_asked_milli(job) / 1000, streak.peak / 1000
    of = f" of {asked:g}" if asked else ""
    cpus = f"{used:g}{of} {'CPU' if asked == 1 else 'CPUs'}"
    unmeasured = " (GPUs not measured)" if gpu_count(job) else ""
    return f"use of processors at most {cpus} {over}{unmeasured}"


def decide_idle(
    job: Job, streak: IdleStreak | None, policy: IdlePolicy, *, ends_left: int = 1
) -> tuple[IdleAction, ...]:
    """Return what is done about a watched job; what an action leaves behind is its `after`.

    An end follows two warnings, each the policy's whole time before, on complete evidence.
    `ends_left` is how many jobs may end within this hour.
    """
    if policy.mode is IdleMode.NONE or policy.excepts(job):
        return _cleared(job)
    if streak is None or not streak.warnings:
        if streak is None or streak.seconds < policy.first_warning_seconds:
            return _cleared(job)
        return (_warn(job, streak, policy),)
    waited = streak.until - streak.warned_until
    if streak.warnings == 1:
        between = policy.second_warning_seconds - policy.first_warning_seconds
        is_due = streak.seconds >= policy.second_warning_seconds and waited >= between
        return (_warn(job, streak, policy),) if is_due else ()
    if streak.is_settled or streak.seconds < policy.end_seconds or waited < policy.last_seconds:
        return ()
    text, settled = evidence(job, streak), replace(streak, is_settled=True)
    if streak.is_partial:
        return (ReportIdle(job, f"not ended by the idle policy, {_PARTIAL}: {text}", settled),)
    if policy.mode is IdleMode.SHADOW:
        return (ReportIdle(job, f"in shadow, would be {_ENDED_BY}: {text}", settled),)
    return (EndIdle(job, f"{_ENDED_BY}: {text}"),) if ends_left > 0 else ()


def _cleared(job: Job) -> tuple[IdleAction, ...]:
    """Remove the record of a job that runs and is not idle; that of one that has ended stays."""
    return () if job.status.idle is None else (ClearIdle(job),)


def _warn(job: Job, streak: IdleStreak, policy: IdlePolicy) -> IdleAction:
    after = replace(streak, warnings=streak.warnings + 1, warned_until=streak.until)
    text, ends_at = evidence(job, streak), None
    if policy.mode is IdleMode.SHADOW:
        return ReportIdle(job, f"in shadow, would warn for the {after.ordinal} time: {text}", after)
    if streak.is_partial:
        text = f"{text}; the idle policy does not end it, {_PARTIAL}"
    else:
        seconds = policy.last_seconds
        if after.warnings == 1:
            seconds += policy.second_warning_seconds - policy.first_warning_seconds
        ends_at = format_micro_time(streak.until + seconds)
        text = f"{text}; the idle policy ends it in {duration(seconds)} unless it is used"
    since = format_micro_time(streak.since)
    return WarnIdle(job, IdleRecord(streak.attempt, since, after.warnings, text, ends_at), after)


def ends_in_hour(ends: list[float], now: float) -> list[float]:
    """Return the instants of the ends that count against the bound of an hour."""
    return [at for at in ends if now - _HOUR < at <= now]
