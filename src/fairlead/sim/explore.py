"""Explore random worlds of many shapes: `python -m fairlead.sim.explore --minutes 10`.

A number names a world: from it follow its shape (nodes, gang sizes, kills, stalls, users, failures,
drains, how far watches lag) and its seed. Worlds are run on all cores until the time is up. Every
broken promise is printed with the one command that replays it, and the end says which faults met
which calls, so that a fault that never came to pass is seen. Exit code 1 when a promise broke.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from inspect import CORO_CREATED, getcoroutinestate
from types import FrameType

from fairlead import terminal
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.worker_process import end_with_parent
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.outcome import SimulationOutcome
from fairlead.sim.world import World

#: A world that takes longer than this, in real time, counts as one that does not end.
_WORLD_SECONDS_MAX = 900.0
#: When the time is up, the worlds under way get as much time again, and at least this.
_REST_SECONDS_MIN = 60.0
#: Between two alarms after the time of a world is up.
_ALARM_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WorldResult:
    """What one world came to: `broken` is "" when every promise held.

    `unfit` counts the jobs that no empty cluster of its size could hold; `budgeted` the starts of
    jobs whose team has a budget, `bound` the placements that a topology binds, `dated` the attempts
    that began while nodes had maintenance windows, `moved` the requests to move for others,
    `emptied` those to empty nodes, `spares` the spares that repairs took. A world that `is_cut_off`
    had no time to end.
    """

    number: int
    broken: str = ""
    is_cut_off: bool = False
    unfit: int = 0
    budgeted: int = 0
    bound: int = 0
    dated: int = 0
    moved: int = 0
    spares: int = 0
    emptied: int = 0
    writes: int = 0
    machines: int = 0
    machine_hours: float = 0.0
    idle_hours: float = 0.0
    met: Counter[str] = field(default_factory=Counter)


class _CutOff(KeyboardInterrupt):
    """The time of a world is up. asyncio lets no exception but interrupts pass from a callback."""


def explore_one(number: int, seconds_max: float = _WORLD_SECONDS_MAX) -> WorldResult:
    """Run the world that a number names, for so much real time at most.

    Faults of our own code count as broken promises.
    """
    options = options_of(number)
    world: World | None = None

    async def main() -> SimulationOutcome:
        nonlocal world
        world = World(options, number)
        return await world.run()

    broken = ""
    signal.signal(signal.SIGALRM, _ask_to_end)
    begun = main()
    try:
        limit = min(seconds_max, _WORLD_SECONDS_MAX)
        signal.setitimer(signal.ITIMER_REAL, limit, _ALARM_SECONDS)
        run(begun)
    except BaseException as error:  # whatever it is, it is what was looked for
        if _is_cut_off(error):
            if seconds_max < _WORLD_SECONDS_MAX:
                return WorldResult(number, is_cut_off=True)
            broken = f"3: the world has not ended after {_WORLD_SECONDS_MAX:g} s of real time"
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        else:
            broken = _first(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if getcoroutinestate(begun) == CORO_CREATED:  # the time was up before it ran
            begun.close()
    assert world is not None
    found = WorldResult(
        number, broken, unfit=len(world.unfit), budgeted=world.budgets.judged,
        bound=world.topology.checked, dated=world.maintenance.judged, moved=world.preemptions.moves,
        emptied=world.preemptions.consolidation.requests,
        writes=world.writes, met=world.faults_met + world.disturbances.hardware,
    )  # fmt: skip
    if (fleet := world.fleet) is None:
        return found
    hours = (fleet.use.seconds / 3600, fleet.use.idle_seconds / 3600)
    return replace(
        found, machines=fleet.use.launched, machine_hours=hours[0], idle_hours=hours[1],
        spares=fleet.spares.taken,
    )  # fmt: skip


def _ask_to_end(_signal: int, _frame: FrameType | None) -> None:
    """End the world between two callbacks; at the next alarm wherever it is."""
    signal.signal(signal.SIGALRM, _cut_off)
    try:
        asyncio.get_running_loop().call_soon(_cut_off)
    except RuntimeError:  # it has not begun
        _cut_off()


def _cut_off(*_: object) -> None:
    raise _CutOff


def _is_cut_off(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(_CutOff) is not None
    return isinstance(error, _CutOff)


def _first(error: BaseException) -> str:
    """Return the first broken promise in a group of errors, else the first error, in words."""
    if isinstance(error, BaseExceptionGroup):
        found = error.subgroup(PromiseBroken) or error
        return _first(found.exceptions[0])
    text = str(error)
    return text if isinstance(error, PromiseBroken) else f"{type(error).__name__}: {text}"


def explore(minutes: float, processes: int, first: int) -> list[WorldResult]:
    """Run worlds until the time is up; print those that break a promise at once. Return all."""
    clock = SystemClock()
    until = clock.now() + 60 * minutes
    done: list[WorldResult] = []
    number = first
    with ProcessPoolExecutor(
        processes, initializer=end_with_parent, max_tasks_per_child=50
    ) as pool:
        under_way = set[Future[WorldResult]]()
        while under_way or clock.now() < until:
            while len(under_way) < processes and clock.now() < until:
                left = until - clock.now() + max(60 * minutes, _REST_SECONDS_MIN)
                under_way.add(pool.submit(explore_one, number, left))
                number += 1
            ready, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in ready:
                done.append(future.result())
                if done[-1].broken:
                    terminal.say(broken_text(done[-1]))
    return done


def broken_text(found: WorldResult) -> str:
    """Return what people read of a broken promise: which, and how to see it again."""
    return (
        f"A PROMISE IS BROKEN: {found.broken}\n"
        f"  replay: python -m fairlead.sim.explore --world {found.number}\n"
    )


def summary(done: list[WorldResult]) -> str:
    """Return the counts: worlds, writes, and how often each fault met each kind of call."""
    met = sum((found.met for found in done), Counter[str]())
    lines = [f"{met[what]:>9}  {what}" for what in sorted(met)]
    broken = sum(bool(found.broken) for found in done)
    unfit = sum(bool(found.unfit) for found in done)
    lines.append(
        f"{len(done)} worlds, {sum(found.writes for found in done)} writes, {met.total()} faults: "
        f"{broken} broke a promise; {unfit} had jobs that can never fit, and waited saying so"
    )
    lines.append(
        f"{sum(found.budgeted for found in done)} starts were judged by a budget, "
        f"{sum(found.bound for found in done)} placements by a topology, "
        f"{sum(found.dated for found in done)} by maintenance windows, "
        f"{sum(found.moved for found in done)} requests to move for others and "
        f"{sum(found.emptied for found in done)} to empty nodes, "
        f"{sum(found.spares for found in done)} spares taken"
    )
    if cut_off := sum(found.is_cut_off for found in done):
        lines.append(f"{cut_off} of them had not ended when the time was up, and show nothing")
    pooled = [found for found in done if found.machines]
    if pooled:
        hours, idle = (sum(found.machine_hours for found in pooled),
                       sum(found.idle_hours for found in pooled))  # fmt: skip
        lines.append(
            f"{len(pooled)} worlds bought {sum(found.machines for found in pooled)} machines for "
            f"{hours:.0f} hours, {idle / hours:.0%} of them idle"
        )
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Explore, or replay one world."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.sim.explore", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=None, help="number of the first world")
    parser.add_argument("--world", type=int, default=None, help="replay this one and no other")
    given = parser.parse_args()
    if given.world is not None:
        terminal.say(f"{options_of(given.world)}\n")
        done = [explore_one(given.world)]
        terminal.say(broken_text(done[0]) if done[0].broken else "")
    else:
        first = given.first if given.first is not None else int.from_bytes(os.urandom(4)) * 10_000
        done = explore(given.minutes, given.processes, first)
    terminal.say(summary(done))
    return 1 if any(found.broken for found in done) else 0


if __name__ == "__main__":
    sys.exit(main())
