"""Runs one world, for so much real time at most, and says what it came to.

Whatever ends a world is what was looked for: a broken promise, a fault of our own code, or that it
does not end. That is judged by the time of the processor, since others use the machine as well.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from math import inf
from types import FrameType

from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.outcome import SimulationOutcome
from fairlead.sim.setup.workload import Arrival
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World

#: A world that takes longer than this, on the processor, counts as one that does not end.
WORLD_SECONDS_MAX = 900.0
#: Between two alarms after the time of a world is up.
_ALARM_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WorldRun:
    """What became of a world: `broken` is "" when every promise held.

    One that `is_cut_off` had no time to end. There is an outcome of worlds that ended well, and no
    world where the time was up before it began.
    """

    world: World | None
    broken: str
    is_cut_off: bool
    outcome: SimulationOutcome | None = None


class _CutOff(KeyboardInterrupt):
    """The time of a world is up. asyncio lets no exception but interrupts pass from a callback."""


class _Endless(_CutOff):
    """It is one that does not end."""


def run_world(
    options: WorldOptions,
    seed: int,
    seconds_max: float = inf,
    *,
    arrivals: Sequence[Arrival] | None = None,
) -> WorldRun:
    """Run a world with the jobs of its options, or with others, for so much real time at most.

    Faults of our own code count as broken promises.
    """
    world: World | None = None

    async def main() -> SimulationOutcome:
        nonlocal world
        world = World(options, seed, arrivals=arrivals)
        return await world.run()

    broken, is_cut_off, outcome = "", False, None
    signal.signal(signal.SIGALRM, partial(_ask_to_end, _CutOff))
    signal.signal(signal.SIGPROF, partial(_ask_to_end, _Endless))
    begun = main()
    try:
        signal.setitimer(signal.ITIMER_PROF, WORLD_SECONDS_MAX, _ALARM_SECONDS)
        if seconds_max < inf:
            signal.setitimer(signal.ITIMER_REAL, seconds_max, _ALARM_SECONDS)
        outcome = run(begun)
    except BaseException as error:  # whatever it is, it is what was looked for
        if _has(error, _Endless):
            broken = f"3: the world has not ended after {WORLD_SECONDS_MAX:g} s of the processor"
        elif _has(error, _CutOff):
            is_cut_off = True
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        else:
            broken = _first(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if getcoroutinestate(begun) == CORO_CREATED:  # the time was up before it ran
            begun.close()
    return WorldRun(world, broken, is_cut_off, outcome)


def _ask_to_end(why: type[_CutOff], number: int, _frame: FrameType | None) -> None:
    """End the world between two callbacks; at the next alarm wherever it is."""
    end = partial(_end, why)
    signal.signal(number, end)
    try:
        asyncio.get_running_loop().call_soon(end)
    except RuntimeError:  # it has not begun
        end()


def _end(why: type[_CutOff], *_: object) -> None:
    raise why


def _has(error: BaseException, kind: type[_CutOff]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kind) is not None
    return isinstance(error, kind)


def _first(error: BaseException) -> str:
    """Return the first broken promise in a group of errors, else the first error, in words."""
    if isinstance(error, BaseExceptionGroup):
        found = error.subgroup(PromiseBroken) or error
        return _first(found.exceptions[0])
    text = str(error)
    return text if isinstance(error, PromiseBroken) else f"{type(error).__name__}: {text}"
