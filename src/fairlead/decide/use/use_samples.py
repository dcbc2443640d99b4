"""The use of a member whose node does not say it: folded from rates that somebody else measures.

metrics-server says a rate over a short window from time to time, never a total. Each rate stands
for the time since the one before, and the sum of these is the processor time. Short peaks between
two windows are not seen, and neither is what comes after the last one, so all of it is partial: a
lower bound, from which no advice follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.jobs.use import MemberUse
from fairlead.decide.use.use_meter import GAP_SECONDS_MAX, GpuReading, UseMeter, UseReading


@dataclass(frozen=True, slots=True)
class UsePolicy:
    """When members are sampled. The first is a setting: 0 where nodes say what members used."""

    sample_seconds: int = 0
    #: Between two requests of a round; there is one for each namespace with members that run.
    request_seconds: float = 0.2
    #: What was sampled so far is written to the history this often, for the next leader.
    keep_seconds: float = 900.0
    #: A cluster that does not answer such a request is asked again after this.
    missing_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class RateReading:
    """A rate in thousandths of a processor over a window of seconds, and memory at its end."""

    at: float
    window_seconds: float
    cpu_milli: int
    memory_bytes: int


class SampledUse:
    """What one member used as far as it was sampled."""

    def __init__(
        self, began_at: float, known: MemberUse | None = None, *, step_seconds: int
    ) -> None:  # fmt: skip
        """`known` is what an earlier process had sampled; `step_seconds` is between two samples."""
        self._meter = UseMeter(began_at, known, step_seconds=step_seconds)
        self._meter.is_partial_from_now_on()
        self._cpu_milliseconds = known.cpu_milliseconds or 0 if known is not None else 0
        self._rated_at = began_at + (known.milliseconds / 1000 if known is not None else 0.0)
        self._gpus_at: float | None = None
        self.is_empty = known is None  # nothing was read of it yet

    def take(self, reading: RateReading) -> None:
        """Take in a rate; one that is not later than the one before is the same."""
        seconds = reading.at - self._rated_at
        if seconds <= 0:
            return
        if seconds > GAP_SECONDS_MAX:  # of the time before its window nothing is known
            seconds = reading.window_seconds
        self._rated_at = reading.at
        self._cpu_milliseconds += round(reading.cpu_milli * seconds)
        self._meter.look(reading.at, UseReading(self._cpu_milliseconds, reading.memory_bytes))
        self.is_empty = False

    def take_gpus(self, at: float, reading: GpuReading) -> None:
        """Take in what its GPUs do."""
        self._meter.look_at_gpus(at, reading)
        if reading.busy_percent is not None:
            self._gpus_at = at
        self.is_empty = False

    @property
    def read_at(self) -> float:
        """Return when it was read for the last time: its GPUs, where they are known at all."""
        return self._rated_at if self._gpus_at is None else self._gpus_at

    def use(self, at: float) -> MemberUse:
        """Return the use up to an instant."""
        return self._meter.use(at)
