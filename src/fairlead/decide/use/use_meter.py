"""Folds what was read of a member's processes into its use: totals, a peak, a mean, and series.

Readings are counters (processor time, bytes of disks) and a level (memory). The series have steps
of `STEP_SECONDS` at first; whenever there are `SERIES_MAX` of them, two become one, so that a
member of a month has as many as one of ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.api.jobs.use import SERIES_MAX, MemberUse

STEP_SECONDS = 10
#: Between two looks; longer, and the member counts as not looked at in between.
GAP_SECONDS_MAX = 120.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class UseReading:
    """What processes used from their start on, and the memory that they have now.

    None is what cannot be read.
    """

    cpu_milliseconds: int | None = None
    memory_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None

    def plus(self, other: UseReading) -> UseReading:
        """Return the sum; what is unknown of one is unknown of both."""
        return UseReading(
            _sum(self.cpu_milliseconds, other.cpu_milliseconds),
            _sum(self.memory_bytes, other.memory_bytes),
            _sum(self.read_bytes, other.read_bytes),
            _sum(self.written_bytes, other.written_bytes),
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


NOTHING = UseReading(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the GPUs of a member do at one instant: sums over `count` of them.

    `occupancy_permille` is that of the multiprocessors (SM). None is what cannot be read.
    """

    count: int
    busy_percent: int | None = None
    memory_bytes: int | None = None
    power_milliwatts: int | None = None
    occupancy_permille: int | None = None


@dataclass(slots=True)
class _GpuSums:
    """Sums over time of one figure of GPUs, beside the time over which it was known."""

    milliseconds: int = 0
    total: int = 0

    def add(self, amount: int | None, count: int, milliseconds: int) -> None:
        if amount is not None:
            self.milliseconds += count * milliseconds
            self.total += amount * milliseconds

    @property
    def mean(self) -> int | None:
        """Return the mean of one GPU; None where it is not known."""
        return self.total // self.milliseconds if self.milliseconds else None


def _sums_of(mean: int | None, milliseconds: int | None) -> _GpuSums:
    if mean is None or not milliseconds:
        return _GpuSums()
    return _GpuSums(milliseconds, mean * milliseconds)


@dataclass(slots=True)
class _Step:
    cpu_milliseconds: int = 0
    #: Milliseconds of the step between looks.
    milliseconds: int = 0
    memory_bytes: int | None = None
    gpu: _GpuSums = field(default_factory=_GpuSums)

    def take(self, other: _Step) -> None:
        self.cpu_milliseconds += other.cpu_milliseconds
        self.milliseconds += other.milliseconds
        self.gpu.milliseconds += other.gpu.milliseconds
        self.gpu.total += other.gpu.total
        self.memory_bytes = max(self.memory_bytes or 0, other.memory_bytes or 0) or None


class UseMeter:
    """The use of one member so far. Instants are seconds since the epoch, and never go back."""

    def __init__(
        self, began_at: float, known: MemberUse | None = None, *, step_seconds: int = STEP_SECONDS
    ) -> None:  # fmt: skip
        """`known` is what a meter of an earlier process had; steps are as long as its steps."""
        known = known or MemberUse(0)
        self._began_at = began_at
        self._step_seconds = known.step_seconds or step_seconds
        self._steps = [
            _Step((cpu or 0) * self._step_seconds, 0 if cpu is None else self._step_seconds * 1000,
                  None if memory is None else memory * _MIB)
            for cpu, memory in zip(known.cpu, known.memory, strict=False)
        ]  # fmt: skip
        for step, percent in zip(self._steps, known.gpu, strict=False):
            step.gpu = _sums_of(percent, self._step_seconds * 1000)
        self._looked_at = began_at + known.milliseconds / 1000
        self._latest = UseReading(
            known.cpu_milliseconds, None, known.read_bytes, known.written_bytes
        )
        self._peak_bytes = known.memory_peak_bytes
        self._looked_milliseconds = known.milliseconds if known.memory_mean_bytes else 0
        self._byte_milliseconds = (known.memory_mean_bytes or 0) * self._looked_milliseconds
        self._is_partial = known.is_partial
        self._gpus_looked_at = self._looked_at
        gpu_time, busy = known.gpu_milliseconds, known.gpu_busy_milliseconds
        self._gpu_busy = _GpuSums(gpu_time or 0, (busy or 0) * 100)
        self._gpu_power = _sums_of(known.gpu_power_milliwatts, gpu_time)
        self._gpu_occupancy = _sums_of(known.gpu_occupancy_permille, gpu_time)
        self._gpu_peak_bytes = known.gpu_memory_peak_bytes

    def look(self, at: float, reading: UseReading) -> None:
        """Take a look at what runs, with what had ended before counted in."""
        milliseconds = round((at - self._looked_at) * 1000)
        if milliseconds <= 0:
            return
        is_gap = milliseconds > GAP_SECONDS_MAX * 1000
        self._is_partial = self._is_partial or is_gap
        memory = reading.memory_bytes
        if memory is not None:
            self._peak_bytes = max(self._peak_bytes or 0, memory)
            if not is_gap:
                self._looked_milliseconds += milliseconds
                self._byte_milliseconds += memory * milliseconds
        cpu = reading.cpu_milliseconds
        since = self._latest.cpu_milliseconds or 0
        one = _Step(0, 0, memory)
        if cpu is not None and not is_gap:
            one = _Step(max(cpu - since, 0), milliseconds, memory)
        self._step_at(at).take(one)
        self._latest, self._looked_at = reading, at

    def look_at_gpus(self, at: float, reading: GpuReading) -> None:
        """Take a look at the GPUs, which stands for the time since the one before."""
        milliseconds = round((at - self._gpus_looked_at) * 1000)
        if milliseconds <= 0:
            return
        self._gpus_looked_at = at
        if reading.memory_bytes is not None:
            self._gpu_peak_bytes = max(self._gpu_peak_bytes or 0, reading.memory_bytes)
        if milliseconds > GAP_SECONDS_MAX * 1000:
            self._is_partial = True
            return
        self._gpu_busy.add(reading.busy_percent, reading.count, milliseconds)
        self._gpu_power.add(reading.power_milliwatts, reading.count, milliseconds)
        self._gpu_occupancy.add(reading.occupancy_permille, reading.count, milliseconds)
        self._step_at(at).gpu.add(reading.busy_percent, reading.count, milliseconds)

    def _step_at(self, at: float) -> _Step:
        """Return the step of an instant, made if it is new."""
        place = max(int((at - self._began_at) // self._step_seconds), 0)
        while place >= SERIES_MAX:
            pairs = [self._steps[n : n + 2] for n in range(0, len(self._steps), 2)]
            for pair in pairs:
                for other in pair[1:]:
                    pair[0].take(other)
            self._steps = [pair[0] for pair in pairs]
            self._step_seconds *= 2
            place = int((at - self._began_at) // self._step_seconds)
        self._steps += [_Step() for _ in range(place + 1 - len(self._steps))]
        return self._steps[place]

    def peak(self, memory_bytes: int | None) -> None:
        """Note memory that was in use at some time since the last look."""
        if memory_bytes is not None:
            self._peak_bytes = max(self._peak_bytes or 0, memory_bytes)

    def is_partial_from_now_on(self) -> None:
        """Note that counters of processes that ended are not known."""
        self._is_partial = True

    def use(self, at: float, ended: UseReading | None = None) -> MemberUse:
        """Return the use up to an instant; `ended` has the counters, exact, where all has ended."""
        latest = ended or self._latest
        mean = None
        if self._looked_milliseconds:
            mean = self._byte_milliseconds // self._looked_milliseconds
        return MemberUse(
            milliseconds=max(round((at - self._began_at) * 1000), 0),
            cpu_milliseconds=latest.cpu_milliseconds,
            memory_peak_bytes=self._peak_bytes,
            memory_mean_bytes=mean,
            read_bytes=latest.read_bytes,
            written_bytes=latest.written_bytes,
            is_partial=self._is_partial,
            step_seconds=self._step_seconds if self._steps else 0,
            cpu=tuple(
                each.cpu_milliseconds * 1000 // each.milliseconds if each.milliseconds else None
                for each in self._steps
            ),
            memory=tuple(
                None if each.memory_bytes is None else -(-each.memory_bytes // _MIB)
                for each in self._steps
            ),
            gpu_milliseconds=self._gpu_busy.milliseconds or None,
            gpu_busy_milliseconds=(
                self._gpu_busy.total // 100 if self._gpu_busy.milliseconds else None
            ),
            gpu_memory_peak_bytes=self._gpu_peak_bytes,
            gpu_power_milliwatts=self._gpu_power.mean,
            gpu_occupancy_permille=self._gpu_occupancy.mean,
            gpu=(
                tuple(each.gpu.mean for each in self._steps)
                if self._gpu_busy.milliseconds else ()
            ),
        )  # fmt: skip
