"""GPU-hours of jobs: held, busy, borrowed, and lost to failures and preemption.

An attempt holds its GPUs from its begin to its end. Lost is what an attempt did after its last
checkpoint, if a failure or a preemption ended it; all of it where the job reports none. What it
borrowed, and of which pools its nodes are, is as it was when the attempt was placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairlead.api.job import Job
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.placement import HeldNodes
from fairlead.api.pod_asks import member_amounts
from fairlead.api.quantity import is_gpu
from fairlead.api.times import parse_time
from fairlead.decide.attempts.end_reason import EndReason


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
            )


def _overlap(span: tuple[float, float], window: tuple[float, float]) -> float:
    return max(0.0, min(span[1], window[1]) - max(span[0], window[0]))


def gpu_count(job: Job, sizes: Mapping[str, int] | None = None) -> int:
    """Return the GPUs of any vendor of all members together, as many as `sizes` says by role, else
    the job.
    """
    counts, total = dict[str, int](), 0
    if sizes or job.is_elastic:  # most jobs are as large as they say
        counts = {**job.sizes, **(sizes or {})}
    for role in job.spec.roles:
        amounts = member_amounts(role.template.spec)
        gpus = sum(amount for name, amount in amounts.items() if is_gpu(name))
        total += counts.get(role.name, role.count) * gpus
    return total
