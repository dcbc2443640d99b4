"""Clock: the time of day against the clock that only counts, and what the kernel knows of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.program import Broken, number
from fairlead.node.running.host import Host, kernel_clock

#: Looks in a run. A step between two of them is a jump.
_LOOKS = 20
_JUMP_SECONDS = 0.1


class ClockOptions(msgspec.Struct, frozen=True):
    """`seconds` of looking; what is more than a maximum is a fault."""

    seconds: float = 2.0
    offset_seconds_max: float = 1.0
    drift_ppm_max: float = 1000.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of the machine, in seconds."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    sleep: Callable[[float], None] = time.sleep


def measure(
    options: ClockOptions, clocks: Clocks | None = None, host: Host | None = None
) -> Iterable[Figure]:
    """Return drift and offset; Broken for a clock that jumps, drifts or is far off."""
    clocks, state = clocks or Clocks(), (host.clock_state if host is not None else kernel_clock)()
    gaps, instants = list[float](), list[float]()
    for _ in range(_LOOKS + 1):
        before, wall, after = clocks.steady(), clocks.wall(), clocks.steady()
        instants.append((before + after) / 2)
        gaps.append(wall - instants[-1])
        clocks.sleep(options.seconds / _LOOKS)
    drift = (gaps[-1] - gaps[0]) / (instants[-1] - instants[0]) * 1e6
    figures = [number("driftPpm", drift)]
    if state.is_synchronized:
        figures.append(number("offsetSeconds", state.offset_seconds))
    jump = max(abs(b - a) for a, b in pairwise(gaps))
    if jump > _JUMP_SECONDS:
        raise Broken(f"the clock jumped by {jump:.3f} s", figures)
    if abs(drift) > options.drift_ppm_max:
        raise Broken(f"the clock drifts by {drift:.0f} ppm", figures)
    if state.is_synchronized and abs(state.offset_seconds) > options.offset_seconds_max:
        raise Broken(f"the clock is off by {state.offset_seconds:.3f} s", figures)
    return figures
