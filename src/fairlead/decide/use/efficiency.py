"""What an attempt used of what it asked for, and what to ask for next time.

A share is of those members alone for which both are known. Advice is given where every member was
measured for all of its time, and ran for long enough to show what it needs: the largest use of one
member and a fifth more, rounded up, where that is less than was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.values import quantity
from fairlead.api.values.quantity import QuantityError

#: A member that ran shorter says little of what a longer one needs.
ADVICE_MILLISECONDS_MIN = 60_000
_CPU_STEP_MILLI = 1_000
_MEMORY_STEP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The use of one attempt. None is what is not known; shares are fractions.

    `cpu_asked_milliseconds` is the processor time that was reserved for the members whose own is
    known.
    """

    members: int
    measured: int
    milliseconds: int = 0
    cpu_milliseconds: int | None = None
    cpu_asked_milliseconds: int | None = None
    memory_peak_bytes: int | None = None
    memory_peak_task: str = ""
    memory_asked_bytes: int | None = None
    memory_mean_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    #: Of the members whose GPUs were looked at, all together; power and occupancy of one GPU.
    gpu_milliseconds: int | None = None
    gpu_busy_milliseconds: int | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_power_milliwatts: int | None = None
    gpu_occupancy_permille: int | None = None
    is_partial: bool = False
    #: What a member could ask for, in base units by resource; empty: as now, or not known.
    advice: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def cpu_share(self) -> float | None:
        """Return the used part of the processor time that was reserved."""
        if self.cpu_milliseconds is None or not self.cpu_asked_milliseconds:
            return None
        return self.cpu_milliseconds / self.cpu_asked_milliseconds

    @property
    def memory_share(self) -> float | None:
        """Return the part of its memory that the largest member used at its peak."""
        if self.memory_peak_bytes is None or not self.memory_asked_bytes:
            return None
        return self.memory_peak_bytes / self.memory_asked_bytes

    @property
    def gpu_share(self) -> float | None:
        """Return the part of the time in which the GPUs that were looked at computed."""
        if self.gpu_busy_milliseconds is None or not self.gpu_milliseconds:
            return None
        return self.gpu_busy_milliseconds / self.gpu_milliseconds


def asks_of(job: Job) -> dict[str, dict[str, int]]:
    """Return what a member of each role asks for, in base units; {} for a role that says none."""
    out: dict[str, dict[str, int]] = {}
    for role in job.spec.roles:
        try:
            out[role.name] = member_amounts(role.template.spec)
        except QuantityError:
            out[role.name] = {}
    return out


def efficiency(job: Job, uses: Mapping[str, MemberUse]) -> Efficiency:
    """Return what the members, by task, used of what they asked for."""
    members = job.member_count
    if not uses:
        return Efficiency(members, 0)
    asks = asks_of(job)
    asked = {task: asks.get(task.rpartition("-")[0], {}) for task in uses}
    known = {task: use.cpu_milliseconds for task, use in uses.items()
             if use.cpu_milliseconds is not None}  # fmt: skip
    reserved = sum(
        asked[task].get(quantity.CPU, 0) * uses[task].milliseconds // 1000 for task in known
    )
    peaks = {task: use.memory_peak_bytes for task, use in uses.items()
             if use.memory_peak_bytes is not None}  # fmt: skip
    largest = max(peaks, key=lambda task: (peaks[task], task), default="")
    means = [use.memory_mean_bytes for use in uses.values() if use.memory_mean_bytes is not None]
    return Efficiency(
        members=members,
        measured=len(uses),
        milliseconds=max(use.milliseconds for use in uses.values()),
        cpu_milliseconds=sum(known.values()) if known else None,
        cpu_asked_milliseconds=reserved or None,
        memory_peak_bytes=peaks.get(largest),
        memory_peak_task=largest,
        memory_asked_bytes=asked[largest].get(quantity.MEMORY) if largest else None,
        memory_mean_bytes=sum(means) // len(means) if means else None,
        read_bytes=_total([use.read_bytes for use in uses.values()]),
        written_bytes=_total([use.written_bytes for use in uses.values()]),
        gpu_milliseconds=_known_sum(use.gpu_milliseconds for use in uses.values()),
        gpu_busy_milliseconds=_known_sum(use.gpu_busy_milliseconds for use in uses.values()),
        gpu_memory_peak_bytes=max(
            (use.gpu_memory_peak_bytes or 0 for use in uses.values()), default=0
        )
        or None,
        gpu_power_milliwatts=_gpu_mean(uses.values(), lambda use: use.gpu_power_milliwatts),
        gpu_occupancy_permille=_gpu_mean(uses.values(), lambda use: use.gpu_occupancy_permille),
        is_partial=any(use.is_partial for use in uses.values()) or len(uses) < members,
        advice=_advice(members, asked, uses),
    )


def _total(amounts: Sequence[int | None]) -> int | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if len(known) == len(amounts) else None


def _known_sum(amounts: Iterable[int | None]) -> int | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


def _gpu_mean(uses: Iterable[MemberUse], of: Callable[[MemberUse], int | None]) -> int | None:
    """Return the mean of one GPU, weighted with the time over which each member's were known."""
    known = [(mean, use.gpu_milliseconds) for use in uses
             if (mean := of(use)) is not None and use.gpu_milliseconds]  # fmt: skip
    whole = sum(weight for _, weight in known)
    return sum(mean * weight for mean, weight in known) // whole if whole else None


def needs_of(members: int, uses: Mapping[str, MemberUse]) -> dict[str, int]:
    """Return what a member needs, in base units by resource: the largest use of one and a fifth
    more, rounded up. {} where not every member was measured for all of its time, or one was short.
    """
    is_whole = len(uses) >= members and not any(use.is_partial for use in uses.values())
    is_long = all(use.milliseconds >= ADVICE_MILLISECONDS_MIN for use in uses.values())
    if not (is_whole and is_long and uses):
        return {}
    out: dict[str, int] = {}
    busiest = [max((each for each in use.cpu if each is not None), default=None)
               for use in uses.values()]  # fmt: skip
    peaks = [use.memory_peak_bytes for use in uses.values()]
    for resource, needs, step in (
        (quantity.CPU, busiest, _CPU_STEP_MILLI), (quantity.MEMORY, peaks, _MEMORY_STEP_BYTES),
    ):  # fmt: skip
        known = [each for each in needs if each is not None]
        if len(known) == len(needs):
            out[resource] = max(-(-max(known) * 6 // (5 * step)) * step, step)
    return out


def _advice(
    members: int, asked: Mapping[str, Mapping[str, int]], uses: Mapping[str, MemberUse]
) -> dict[str, int]:
    """Return of what a member needs that which is less than was asked for."""
    return {
        resource: need
        for resource, need in needs_of(members, uses).items()
        if need < min((each.get(resource, 0) for each in asked.values()), default=0)
    }
