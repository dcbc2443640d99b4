"""What a running job uses now of what it asked for, and whether it uses almost nothing (pure).

A job is idle when it ran for as long as is asked about, all members were measured, and over the
latest of that time its GPUs computed for at most a 20th of the time. Where they are not measured
for all members, its processors are judged: at most a 20th of what it asked for, and at most a tenth
of a processor for each GPU, since a process that feeds a GPU keeps a processor busy. A node that
keeps no series (metrics-server) says only the latest window; then that is what is judged, and
`judged_seconds` is as short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse
from fairlead.api.values import quantity
from fairlead.api.values.quantity import is_gpu
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.use.efficiency import asks_of

#: So long a job must have used almost nothing to be called idle, unless another time is asked for.
IDLE_SECONDS = 600.0
_IDLE_PER_GPU_MILLI = 100
_IDLE_PART = 20


@dataclass(frozen=True, slots=True)
class MemberNow:
    """What one member uses: thousandths of a processor over a window of seconds, and memory.

    `so_far` is its use from its start on, None where its node does not say it.
    """

    cpu_milli: int
    memory_bytes: int
    window_seconds: float
    so_far: MemberUse | None = None


@dataclass(frozen=True, slots=True)
class PresentUse:
    """What a job uses. None is what is not known; amounts are those of all members together, and
    what was asked for is that of all members, measured or not.
    """

    members: int
    measured: int
    gpus: int
    seconds: float
    cpu_asked_milli: int
    memory_asked_bytes: int
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    judged_seconds: float | None = None
    #: None: not known, since not all is measured or the job did not run for long enough.
    is_idle: bool | None = None
    #: Thousandths of GPUs that computed, as long as is judged; only where all are measured.
    gpu_milli: int | None = None


def present_use(
    job: Job, members: Mapping[str, MemberNow], seconds: float, idle_seconds: float = IDLE_SECONDS
) -> PresentUse:
    """Return what a job that has run for `seconds` uses, by what its members, by task, say."""
    sizes, asks = job.sizes, asks_of(job)
    count = sum(sizes.values())
    asked = {
        resource: sum(asks[role].get(resource, 0) * size for role, size in sizes.items())
        for resource in (quantity.CPU, quantity.MEMORY)
    }
    uses = {task: each.so_far for task, each in members.items() if each.so_far is not None}
    found = PresentUse(
        count, len(members), gpu_count(job), seconds, asked[quantity.CPU], asked[quantity.MEMORY],
    )  # fmt: skip
    if not members:
        return found
    peaks = [use.memory_peak_bytes for use in uses.values() if use.memory_peak_bytes is not None]
    judged = [_latest(each, idle_seconds) for each in members.values()]
    judged_milli = sum(milli for milli, _ in judged)
    judged_seconds = min(span for _, span in judged)
    is_judged = len(members) >= count and seconds >= idle_seconds
    limit = idle_milli(found.cpu_asked_milli, found.gpus)
    gpus = _gpus(job, members, idle_seconds) if len(members) >= count and found.gpus else None
    if gpus is not None:
        judged_milli, judged_seconds = gpus
        limit = found.gpus * 1_000 // _IDLE_PART
    return PresentUse(
        count, len(members), found.gpus, seconds, found.cpu_asked_milli, found.memory_asked_bytes,
        cpu_milli=sum(each.cpu_milli for each in members.values()),
        memory_bytes=sum(each.memory_bytes for each in members.values()),
        memory_peak_bytes=sum(peaks) if len(peaks) == len(members) else None,
        judged_seconds=judged_seconds,
        is_idle=judged_milli <= limit if is_judged else None,
        gpu_milli=None if gpus is None else gpus[0],
    )  # fmt: skip


def idle_milli(cpu_asked_milli: int, gpus: int) -> int:
    """Return the thousandths of a processor up to which a job is idle; one that asked for none is
    taken as one that asked for one.
    """
    limit = (cpu_asked_milli or 1_000) // _IDLE_PART
    return min(limit, gpus * _IDLE_PER_GPU_MILLI) if gpus else limit


def _gpus(
    job: Job, members: Mapping[str, MemberNow], seconds: float
) -> tuple[int, float] | None:  # fmt: skip
    """Return the thousandths of GPUs that computed over the latest `seconds`, and over how many
    they were known; None unless each member with GPUs says it.
    """
    counts = {
        role: sum(amount for name, amount in asks.items() if is_gpu(name))
        for role, asks in asks_of(job).items()
    }
    total, spans = 0, list[float]()
    for task, member in members.items():
        count, use = counts.get(task.rpartition("-")[0], 0), member.so_far
        if not count:
            continue
        if use is None or not use.gpu_milliseconds:
            return None
        steps = max(int(-(-seconds // use.step_seconds)), 1) if use.step_seconds else 0
        known = [each for each in use.gpu[-steps:] if each is not None] if steps else []
        if known:
            total += count * 10 * sum(known) // len(known)
            spans.append(float(len(known) * use.step_seconds))
        else:
            total += count * 1_000 * (use.gpu_busy_milliseconds or 0) // use.gpu_milliseconds
            spans.append(use.milliseconds / 1_000)
    return (total, min(spans)) if spans else None


def _latest(member: MemberNow, seconds: float) -> tuple[int, float]:
    """Return the mean thousandths of a processor over the latest `seconds`, and over how many they
    were known: steps of its series, else from its start on, else its window.
    """
    use = member.so_far
    if use is not None and use.step_seconds and use.cpu:
        count = max(int(-(-seconds // use.step_seconds)), 1)
        known = [each for each in use.cpu[-count:] if each is not None]
        if known:
            return sum(known) // len(known), float(len(known) * use.step_seconds)
    if use is not None and use.cpu_milliseconds is not None and use.milliseconds:
        return use.cpu_milliseconds * 1000 // use.milliseconds, use.milliseconds / 1000
    return member.cpu_milli, member.window_seconds
