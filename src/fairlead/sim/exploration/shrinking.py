"""Shrinks a world that breaks a promise: fewer jobs, faults, nodes and members, and a shorter time.

Each step leaves something out and runs the world again; it stays out if the same promise breaks in
the same words, but for names and numbers. Sets are shrunk by delta debugging (Zeller and
Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002). Streams of random numbers
belong to parts, so what is left out shifts few draws of what stays. Without a bound on the time the
result follows from the world alone.
"""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

import msgspec

from fairlead.sim.exploration.one_world import WorldRun, run_world
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, generate, job_spec
from fairlead.sim.setup.world_file import StatedWorld
from fairlead.sim.setup.world_options import WorldOptions

T = TypeVar("T")
Path = tuple[str, ...]
_seconds = time.monotonic
#: Nothing goes wrong, and policies are those of an installation.
_QUIET = WorldOptions(
    faults=PERFECT, calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0,
    node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0,
)  # fmt: skip
#: Parts with steps of their own; how pods are bound decides which parts a world has at all.
_OWN_STEPS = ("nodes", "workload", "pools", "team_changes", "binding")
_WORDS_WITH_NAMES = re.compile(r"""[^\s]*[\d'"/][^\s]*""")


def kind_of(broken: str) -> str:
    """Return a broken promise without the names and numbers of its world; its own number stays."""
    number, _, text = broken.partition(":")
    return f"{number}:{_WORDS_WITH_NAMES.sub('#', text)}"


def shrunk(
    world: StatedWorld,
    seconds_max: float = inf,
    run: Callable[..., WorldRun] = run_world,
) -> StatedWorld:
    """Return a smaller world that breaks the same promise, after so much real time at the latest.

    The world itself if it breaks none when it is run again, or nothing can be left out.
    """
    shrinking = _Shrinking(world, _seconds() + seconds_max, run)
    if not shrinking.tries(replace(world, arrivals=world.arrivals)):
        return world
    shrinking.state_jobs()
    while True:
        before = shrinking.best
        for step in (
            shrinking.fewer_jobs, shrinking.fewer_options, shrinking.fewer_teams,
            shrinking.fewer_pools, shrinking.fewer_nodes, shrinking.less_time,
            shrinking.fewer_members,
        ):  # fmt: skip
            step()
        if shrinking.best == before or shrinking.is_over:
            return shrinking.best


class _Shrinking:
    """The smallest world so far that breaks the promise."""

    def __init__(self, world: StatedWorld, until: float, run: Callable[..., WorldRun]) -> None:
        self.best = world
        self._kind = kind_of(world.broken)
        self._until = until
        self._run = run

    @property
    def is_over(self) -> bool:
        """True once the time is up."""
        return _seconds() >= self._until

    def tries(self, world: StatedWorld) -> bool:
        """Take a world instead of the best one if it breaks the promise; True then."""
        if (left := self._until - _seconds()) <= 0:
            return False
        ran = self._run(world.options, world.seed, left, arrivals=world.arrivals)
        if ran.is_cut_off or kind_of(ran.broken) != self._kind:
            return False
        self.best = replace(world, broken=ran.broken)
        return True

    @property
    def _options(self) -> WorldOptions:
        return self.best.options

    @property
    def _arrivals(self) -> tuple[Arrival, ...]:
        return self.best.arrivals or ()

    def _tries_options(self, **changes: Any) -> bool:
        return self.tries(replace(self.best, options=replace(self._options, **changes)))

    def state_jobs(self) -> None:
        """State the jobs, which the seed drew so far, and drop what they were drawn by."""
        options, best = self._options.workload, self.best
        if best.arrivals is None:
            rng = random.Random(f"{best.seed}/workload")  # noqa: S311 # as in World
            self.best = replace(best, arrivals=tuple(generate(options, rng)))
        kept = WorkloadOptions(
            0, options.seconds, teams=options.teams,
            volume_limit=options.volume_limit, devices=options.devices,
        )  # fmt: skip
        self._tries_options(workload=kept)

    def fewer_jobs(self) -> None:
        """Leave jobs out."""
        minimal(self._arrivals, lambda kept: self.tries(replace(self.best, arrivals=tuple(kept))))

    def fewer_options(self) -> None:
        """Leave faults and policies out: all that differs from a quiet world."""
        options = self._options
        paths = [path for path in _differing(options, _QUIET) if path[0] not in _OWN_STEPS]

        def holds(kept: Sequence[Path]) -> bool:
            left_out = [path for path in paths if path not in kept]
            return self.tries(replace(self.best, options=_quieted(options, left_out)))

        minimal(paths, holds)

    def fewer_teams(self) -> None:
        """Leave teams out, then their changes; the last of each leaves its jobs able to run."""
        for name in dict.fromkeys(change.name for change in self._options.team_changes):
            rest = tuple(c for c in self._options.team_changes if c.name != name)
            self._tries_options(team_changes=rest)
        changes = self._options.team_changes
        last = {change.name: number for number, change in enumerate(changes)}
        first = [c for number, c in enumerate(changes) if number not in last.values()]
        ends = [changes[number] for number in sorted(last.values())]

        def holds(kept: Sequence[Any]) -> bool:
            rest = [change for change in changes if change in kept or change in ends]
            return self._tries_options(team_changes=tuple(rest))

        minimal(first, holds)

    def fewer_pools(self) -> None:
        """Leave node pools out; a world without nodes keeps one."""
        for pool in self._options.pools:
            rest = tuple(each for each in self._options.pools if each != pool)
            if rest or self._options.nodes:
                self._tries_options(pools=rest)

    def fewer_nodes(self) -> None:
        """Take the smallest number of nodes that does, of a few."""
        nodes = self._options.nodes
        for count in sorted({1, 2, 3, nodes // 2, nodes - 1}):
            if 0 < count < nodes and self._tries_options(nodes=count):
                return

    def less_time(self) -> None:
        """Let jobs come earlier, and the faults end so: half of the time, as often as that does."""
        while self._options.workload.seconds > 1.0:
            workload = self._options.workload
            sooner = tuple(replace(each, at=each.at / 2) for each in self._arrivals)
            options = replace(
                self._options, workload=replace(workload, seconds=workload.seconds / 2)
            )
            if not self.tries(replace(self.best, options=options, arrivals=sooner)) and (
                not self.tries(replace(self.best, options=options))
            ):
                return

    def fewer_members(self) -> None:
        """Give each job half of its members, as often as that does."""
        for number in range(len(self._arrivals)):
            while (smaller := _halved(self._arrivals[number])) is not None:
                arrivals = list(self._arrivals)
                arrivals[number] = smaller
                if not self.tries(replace(self.best, arrivals=tuple(arrivals))):
                    break


def minimal(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return items of which `holds` is True, as it is of all; none of them if it holds for none.

    Delta debugging: leave out ever smaller chunks, at last each single item.
    """
    kept = list(items)
    if not kept or holds([]):
        return []
    size = len(kept)
    while size > 1:
        size = (size + 1) // 2
        at = 0
        while at < len(kept) and len(kept) > 1:
            rest = kept[:at] + kept[at + size :]
            if rest and holds(rest):
                kept = rest
            else:
                at += size
    return kept


def _halved(arrival: Arrival) -> Arrival | None:
    """Return a job with half of the members; None for one with a single member."""
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(arrival.body))
    role: dict[str, Any] = job_spec(body)["roles"][0]
    if role["count"] <= 1:
        return None
    role["count"] //= 2
    if "minCount" in role:
        role["minCount"] = min(role["minCount"], role["count"])
    return replace(arrival, body=body)


def _differing(value: Any, quiet: Any) -> list[Path]:
    """Return where a record differs from another one of its type, part by part."""
    names = _names(value)
    if not names or type(value) is not type(quiet):
        return [] if value == quiet else [()]
    return [
        (name, *path)
        for name in names
        for path in _differing(getattr(value, name), getattr(quiet, name))
    ]


def _quieted(options: WorldOptions, paths: Sequence[Path]) -> WorldOptions:
    for path in paths:
        options = _put(options, _QUIET, path)
    return options


def _put(value: Any, quiet: Any, path: Path) -> Any:
    """Return a record with one part as in another record."""
    if not path:
        return quiet
    part = _put(getattr(value, path[0]), getattr(quiet, path[0]), path[1:])
    change: Callable[..., Any] = replace
    if isinstance(value, msgspec.Struct):
        change = msgspec.structs.replace
    return change(value, **{path[0]: part})


def _names(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return [field.name for field in msgspec.structs.fields(value)]
    return []
