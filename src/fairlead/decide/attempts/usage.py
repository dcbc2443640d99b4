"""GPU-hours of jobs: held, busy, borrowed, and lost to failures and preemption; and their cost.

An attempt holds its GPUs from its begin to its end. Lost is what an attempt did after its last
checkpoint, if a failure or a preemption ended it; all of it where the job reports none. What it
borrowed, and of which pools its nodes are, is as it was when the attempt was placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.pods.pod_asks import member_gpus
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.attempts.end_reason import EndReason

_WEEK, _FIRST_MONDAY = 7 * 86_400.0, 4 * 86_400.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What part of one attempt used in a span of time. Amounts are GPU-seconds."""

    team: str
    user: str
    namespace: str
    job: str
    pool: str
    held: float
    #: While all members ran.
    busy: float
    borrowed: float
    lost_to_failures: float
    lost_to_preemption: float
    #: What that cost, by the price of its pool when the attempt was placed; 0.0 for no known price.
    cost: float
    #: What was held without a known price.
    unpriced: float
    #: The begin of the span, in seconds since the epoch.
    since: float = 0.0

    @property
    def week(self) -> str:
        """The Monday, in UTC, of the week in which the span begins, such as 2026-11-23."""
        return format_time(_monday(self.since))[:10]


class JobAccount(NamedTuple):
    """GPU-hours, and what they cost in the currency of the pools."""

    gpu_hours: float
    cost: float | None


def weeks_of(since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a span that lie in one week each, Monday to Sunday in UTC."""
    while since < until:
        end = min(_monday(since) + _WEEK, until)
        yield since, end
        since = end


def _monday(at: float) -> float:
    """Return the begin of the week; the epoch was a Thursday."""
    return (at - _FIRST_MONDAY) // _WEEK * _WEEK + _FIRST_MONDAY


def usage_of(job: Job, since: float, until: float) -> Iterator[Usage]:
    """Yield what each attempt used between two instants, one value per pool that it was on."""
    for attempt in job.status.attempts:
        if attempt.begun_at is None:
            continue
        begun = parse_time(attempt.begun_at)
        ended = parse_time(attempt.finished_at) if attempt.finished_at else until
        seconds = _overlap((begun, ended), (since, until))
        if seconds <= 0:
            continue
        saved = parse_time(attempt.saved_at) if attempt.saved_at else begun
        lost = _overlap((saved, ended), (since, until)) if attempt.finished_at else 0.0
        started = parse_time(attempt.started_at) if attempt.started_at else ended
        ran = _overlap((started, ended), (since, until))
        is_preempted = attempt.reason == EndReason.PREEMPTED.value
        is_failed = attempt.cause is not None and not is_preempted
        for held in attempt.held or (HeldNodes(gpus=gpu_count(job, attempt.sizes)),):
            yield Usage(
                attempt.team or job.spec.team,
                job.metadata.annotations.get(SUBMITTED_BY, ""),
                job.metadata.namespace,
                job.metadata.name,
                held.pool,
                held=held.gpus * seconds,
                busy=held.gpus * ran,
                borrowed=held.gpus * seconds if held.lender else 0.0,
                lost_to_failures=held.gpus * lost if is_failed else 0.0,
                lost_to_preemption=held.gpus * lost if is_preempted else 0.0,
                cost=held.gpus * seconds / 3600 * held.gpu_hour_micros / 1e6,
                unpriced=0.0 if held.gpu_hour_micros else held.gpus * seconds,
                since=since,
            )


def account_of(job: Job, until: float) -> JobAccount:
    """Return what a job's attempts held until an instant; the cost is None where a part of it has
    no known price.
    """
    parts = list(usage_of(job, 0.0, until))
    is_priced = any(each.cost for each in parts) and not any(each.unpriced for each in parts)
    cost = sum(each.cost for each in parts) if is_priced else None
    return JobAccount(sum(each.held for each in parts) / 3600, cost)


def _overlap(span: tuple[float, float], window: tuple[float, float]) -> float:
    return max(0.0, min(span[1], window[1]) - max(span[0], window[0]))


def gpu_count(job: Job, sizes: Mapping[str, int] | None = None) -> int:
    """Return the GPUs of any vendor of all members together, as many as `sizes` says by role, else
    the job.
    """
    counts = dict[str, int]()
    if sizes or job.is_elastic:  # most jobs are as large as they say
        counts = {**job.sizes, **(sizes or {})}
    total = 0
    for role in job.spec.roles:  # asked for each job of a table: no generator
        count = counts.get(role.name, role.count) if counts else role.count
        total += count * member_gpus(role.template.spec)
    return total
