"""Explore random worlds of many shapes: `python -m fairlead.sim.explore --minutes 10`.

A number names a world: from it follow its shape (nodes, gang sizes, kills, stalls, users, failures,
drains, how far watches lag) and its seed. Worlds are run on all cores until the time is up. Every
broken promise is printed with the one command that replays it, and its world is shrunk to a file
that replays it with few jobs and faults; the end says which faults met which calls, so that a fault
that never came to pass is seen. Exit code 1 when a promise broke.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from fairlead import terminal
from fairlead.api.values.times import format_time
from fairlead.decide.words import plural
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.outside.worker_process import end_with_parent
from fairlead.sim.exploration import kind_of, run_world, shrunk
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.setup.world_file import StatedWorld, world_text

#: When the time is up, the worlds under way get as much time again, and at least this.
_REST_SECONDS_MIN = 60.0
#: Different broken promises that are shrunk: a bug that breaks many worlds needs one small one.
_SHRUNK_MAX = 5


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


def explore_one(number: int, seconds_max: float = inf) -> WorldResult:
    """Run the world that a number names, for so much real time at most.

    Faults of our own code count as broken promises.
    """
    ran = run_world(options_of(number), number, seconds_max)
    if ran.is_cut_off:
        return WorldResult(number, is_cut_off=True)
    world = ran.world
    assert world is not None
    found = WorldResult(
        number, ran.broken, unfit=len(world.unfit), budgeted=world.budgets.judged,
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


class _Exploration:
    """One exploration: worlds and shrinks under way, and what was found."""

    def __init__(self, minutes: float, first: int, directory: Path) -> None:
        self.done: list[WorldResult] = []
        self._clock = SystemClock()
        self._until = self._clock.now() + 60 * minutes
        self._end = self._until + max(60 * minutes, _REST_SECONDS_MIN)
        self._number, self._directory = first, directory
        self._worlds: set[Future[WorldResult]] = set()
        self._shrinks: set[Future[StatedWorld]] = set()
        self._kinds: set[str] = set()

    def run(self, pool: Executor, processes: int) -> None:
        """Run worlds until the time is up, and then those that are under way."""
        while self._worlds or self._shrinks or self._clock.now() < self._until:
            while len(self._worlds) + len(self._shrinks) < processes and (
                self._clock.now() < self._until
            ):
                left = self._end - self._clock.now()
                self._worlds.add(pool.submit(explore_one, self._number, left))
                self._number += 1
            under_way: set[Future[Any]] = {*self._worlds, *self._shrinks}
            wait(under_way, return_when=FIRST_COMPLETED)
            for world in [each for each in self._worlds if each.done()]:
                self._worlds.remove(world)
                self._ended(pool, world.result())
            for shrink in [each for each in self._shrinks if each.done()]:
                self._shrinks.remove(shrink)
                terminal.say(shrunk_text(shrink.result(), self._directory))

    def _ended(self, pool: Executor, found: WorldResult) -> None:
        self.done.append(found)
        if not found.broken:
            return
        terminal.say(broken_text(found))
        kind, left = kind_of(found.broken), self._end - self._clock.now()
        if kind not in self._kinds and len(self._kinds) < _SHRUNK_MAX and left > 0:
            self._kinds.add(kind)
            day = format_time(self._clock.now())[:10]
            options = options_of(found.number)
            world = StatedWorld(options, found.number, broken=found.broken, found=day)
            self._shrinks.add(pool.submit(shrunk, world, left))


def explore(minutes: float, processes: int, first: int, directory: Path) -> list[WorldResult]:
    """Run worlds until the time is up; print those that break a promise at once. Return all.

    Shrunk worlds are written into the directory.
    """
    exploration = _Exploration(minutes, first, directory)
    with ProcessPoolExecutor(
        processes, initializer=end_with_parent, max_tasks_per_child=50
    ) as pool:
        exploration.run(pool, processes)
    return exploration.done


def shrunk_text(world: StatedWorld, directory: Path) -> str:
    """Write a shrunk world; return what people read of it: "" of one that broke nothing again.

    Its file is complete or not there, and named after its content: explorations may share it.
    """
    if world.arrivals is None:
        return ""
    text = world_text(world)
    name = f"{world.found}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    size = f"{plural(len(world.arrivals), 'job')} on {plural(world.options.nodes, 'node')}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=directory, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(part).replace(directory / name)
        except OSError:
            with suppress(OSError):
                Path(part).unlink()
            raise
    except OSError as error:
        return f"  shrunk to {size}, but {directory} cannot be written: {error.strerror}\n{text}"
    return (
        f"  shrunk to {size}: {world.broken}\n"
        f"  replay: python -m fairlead.sim --world {directory / name}\n"
    )


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


def default_directory() -> Path:
    """Return where shrunk worlds are written unless something else is asked for."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "fairlead" / "broken-worlds"


def main() -> int:
    """Explore, or replay one world."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.sim.explore", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=None, help="number of the first world")
    parser.add_argument("--world", type=int, default=None, help="replay this one and no other")
    parser.add_argument(
        "--broken", type=Path, metavar="DIR", default=default_directory(),
        help="where worlds that broke a promise are written, shrunk (default %(default)s)",
    )  # fmt: skip
    given = parser.parse_args()
    if given.world is not None:
        terminal.say(f"{options_of(given.world)}\n")
        done = [explore_one(given.world)]
        terminal.say(broken_text(done[0]) if done[0].broken else "")
    else:
        first = given.first if given.first is not None else int.from_bytes(os.urandom(4)) * 10_000
        done = explore(given.minutes, given.processes, first, given.broken)
    terminal.say(summary(done))
    return 1 if any(found.broken for found in done) else 0


if __name__ == "__main__":
    sys.exit(main())
