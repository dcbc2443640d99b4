"""What a new job asks for far beyond what past jobs of its name needed (pure).

The evidence are jobs of the same user and name, up to a number, that ended. One says what a member
needs where all members were measured and ran for a minute or longer, as in the advice of
`efficiency`; how long such a job takes, where it succeeded. One job may have been a trial, so it
takes two; where sizes differ, the largest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.use import MemberUse
from fairlead.api.values import quantity
from fairlead.api.values.times import parse_time
from fairlead.decide.use.efficiency import asks_of, efficiency, needs_of

RUNS_MIN = 2
#: The latest ones count.
RUNS_MAX = 3
#: What is asked for is this many times what is needed, and the fifth more that advice adds.
_FAR = 2
#: A limit keeps jobs behind it from filling gaps; a short one costs little.
_LIMIT_SECONDS_MIN = 4 * 3_600
_LIMIT_FAR = 4
#: GPUs that computed for less of their time, in all of the runs.
_GPU_SHARE_MAX = 0.2

#: What `OverAsk.resource` is beside resources of a pod.
TIME: Final = "time"
GPU_TIME: Final = "gpu-time"


@dataclass(frozen=True, slots=True)
class PastRun:
    """A job that has ended, and what the members of its latest attempt used, by task."""

    job: Job
    uses: Mapping[str, MemberUse]


@dataclass(frozen=True, slots=True)
class OverAsk:
    """One thing that is asked for: how much, what was needed at most, and by which jobs.

    Amounts are base units of a pod's resource for a member, seconds for TIME. For GPU_TIME `needed`
    is the percentage of the time in which the GPUs computed, and `asked` is 100.
    """

    resource: str
    asked: int
    needed: int
    jobs: tuple[str, ...]


def over_asks(job: Job, runs: Sequence[PastRun]) -> tuple[OverAsk, ...]:
    """Return what the job asks for in excess; `runs` are alike, the latest end first."""
    least = _least(job)
    found: list[OverAsk] = []
    for resource in (quantity.CPU, quantity.MEMORY):
        needs = _latest([
            (run.job.metadata.name, need)
            for run in runs
            if (need := needs_of(run.job.member_count, run.uses).get(resource)) is not None
        ])  # fmt: skip
        if needs and least.get(resource, 0) >= _FAR * max(needs.values()):
            found.append(OverAsk(resource, least[resource], max(needs.values()), tuple(needs)))
    return (*found, *_gpus(job, runs), *_time(job, runs))


def _least(job: Job) -> dict[str, int]:
    """Return what a member of every role asks for at least."""
    asks = list(asks_of(job).values())
    return {name: min(each.get(name, 0) for each in asks) for name in asks[0]} if asks else {}


def _latest(known: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return what is known of the latest runs; {} where those are too few."""
    return dict(known[:RUNS_MAX]) if len(known) >= RUNS_MIN else {}


def _gpus(job: Job, runs: Sequence[PastRun]) -> tuple[OverAsk, ...]:
    if not any(quantity.is_gpu(name) for asks in asks_of(job).values() for name in asks):
        return ()
    shares = _latest([
        (run.job.metadata.name, round(100 * share))
        for run in runs
        if (share := efficiency(run.job, run.uses).gpu_share) is not None
    ])  # fmt: skip
    if not shares or max(shares.values()) >= 100 * _GPU_SHARE_MAX:
        return ()
    return (OverAsk(GPU_TIME, 100, max(shares.values()), tuple(shares)),)


def _time(job: Job, runs: Sequence[PastRun]) -> tuple[OverAsk, ...]:
    limit = job.spec.time_limit_seconds or 0
    times = _latest([
        (run.job.metadata.name, seconds)
        for run in runs
        if run.job.status.state == JobState.SUCCEEDED.value
        and (seconds := _seconds(run.job)) is not None
    ])  # fmt: skip
    if limit < _LIMIT_SECONDS_MIN or not times or limit < _LIMIT_FAR * max(times.values()):
        return ()
    return (OverAsk(TIME, limit, max(times.values()), tuple(times)),)


def _seconds(job: Job) -> int | None:
    """Return how long the latest attempt took; None where it is not known."""
    record = job.status.current_attempt
    if record is None or not record.started_at or not record.finished_at:
        return None
    return max(1, round(parse_time(record.finished_at) - parse_time(record.started_at)))
