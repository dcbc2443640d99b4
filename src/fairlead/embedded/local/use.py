"""What pods use: looks at their processes, and what is left of it when they have ended.

A look reads `/proc` once for all pods: resident memory and processor time of all descendants of
each run's shim, and, since the shim reaps them, of those that have ended. What a run used in all
the kernel tells its shim, which writes it into exit.json; so totals are exact whatever happened to
the node meanwhile. Peak, mean and series come from looks; they are kept in `use.json` of the pod's
directory from time to time, and a time without looks is said to be one.

Looks take one part in `_USE_SHARE` of a core at most, by their own measure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead.api.jobs.use import MemberUse, encode_use
from fairlead.decide.use.use_meter import NOTHING, UseMeter, UseReading
from fairlead.embedded.http.metrics import Measure
from fairlead.embedded.local.memory import TICKS_PER_SECOND, ProcessTreeUse, measure
from fairlead.embedded.local.poddir import read_struct, write_file
from fairlead.embedded.local.processes.process import ExitUse, Run

_USE_SHARE = 200
#: Between two writes of a pod's file.
_KEEP_SECONDS = 60.0
#: Columns of the first line of /proc/stat, behind its name.
_IDLE, _WAITS = 3, 4


@dataclass(frozen=True, slots=True)
class UseLook:
    """One look at one container: when, and what it had used by then."""

    at: float
    cpu_milliseconds: int
    resident_bytes: int


class UseFile(msgspec.Struct, frozen=True, rename="camel"):
    """use.json: what was used so far, and by runs that have ended, by container and number."""

    began_at: float
    use: MemberUse
    ended: dict[str, tuple[int | None, ...]] = {}


class PodLooks:
    """The use of one pod, all containers and starts together."""

    def __init__(self, path: Path, problem: Callable[[OSError], None]) -> None:
        """`path` is its file, which may hold what an earlier process of the node knew.

        Where the file can't be used, `problem` is told why, and no more is lost than what it is
        for.
        """
        self._path = path
        self._problem = problem
        self._meter: UseMeter | None = None
        self._began_at = 0.0
        self._kept_at = 0.0
        self._ended_at = 0.0
        self._ended: dict[str, UseReading] = {}
        #: The latest two looks at each container that runs, the older one first.
        self.looks: dict[str, tuple[UseLook, ...]] = {}

    def begin(self, at: float) -> None:
        """Note that a container runs, or ran already when the node came back."""
        if self._meter is not None:
            return
        try:
            found = read_struct(self._path, UseFile)
        except OSError as error:
            self._problem(error)
            found = None
        self._began_at = self._kept_at = at
        if found is None:
            self._meter = UseMeter(at)
            return
        self._began_at = found.began_at
        self._ended = {key: UseReading(*values) for key, values in found.ended.items()}
        self._meter = UseMeter(found.began_at, found.use)

    def look(self, at: float, found: dict[str, ProcessTreeUse]) -> None:
        """Take in one look at containers that run."""
        if self._meter is None or not found:
            return
        self.looks = {
            name: (*self.looks.get(name, ())[-1:],
                   UseLook(at, each.cpu_milliseconds, each.resident_bytes))
            for name, each in found.items()
        }  # fmt: skip
        total = self._total()
        for each in found.values():
            total = total.plus(UseReading(each.cpu_milliseconds, each.resident_bytes))
        self._meter.look(at, total)
        if at - self._kept_at >= _KEEP_SECONDS:
            self._keep(at)

    def ended(self, container: str, run: Run, at: float) -> None:
        """Take in the end of a run."""
        key = f"{container}/{run.path.name}"
        try:
            started, ended, killed_for = run.started(), run.exit(), run.memory_used()
        except OSError as error:
            self._problem(error)
            return
        if started is None or key in self._ended:
            return
        self.begin(started.started_at)
        assert self._meter is not None
        use = ended.use if ended is not None else None
        last = self.looks.pop(container, ())[-1:]
        if use is None:  # its shim was killed: what was looked at is the least
            self._meter.is_partial_from_now_on()
            use = ExitUse(last[0].cpu_milliseconds if last else None)
        self._ended[key] = UseReading(use.cpu_milliseconds, 0, use.read_bytes, use.written_bytes)
        self._meter.peak(use.memory_bytes)
        self._meter.peak(killed_for)
        self._ended_at = at
        self._keep(at)

    def text(self) -> str:
        """Return for the pod what it used, once all has ended; "" when nothing has run."""
        use = self.use(self._ended_at)
        return encode_use(use) if use is not None else ""

    def use(self, at: float) -> MemberUse | None:
        """Return the use up to an instant; None when nothing has run."""
        if self._meter is None:
            return None
        return self._meter.use(at, None if self.looks or not self._ended else self._total())

    def _total(self) -> UseReading:
        total = NOTHING
        for each in self._ended.values():
            total = total.plus(each)
        return total

    def _keep(self, at: float) -> None:
        use = self.use(at)
        if use is None:
            return
        self._kept_at = at
        ended = {key: (each.cpu_milliseconds, 0, each.read_bytes, each.written_bytes)
                 for key, each in self._ended.items()}  # fmt: skip
        try:
            write_file(self._path, msgspec.json.encode(UseFile(self._began_at, use, ended)))
        except OSError as error:
            self._problem(error)


@dataclass(slots=True, eq=False)
class MachineLooks:
    """The latest two looks at the whole machine, the older one first."""

    looks: tuple[UseLook, ...] = ()

    def look(self, at: float, proc: Path = Path("/proc")) -> None:
        """Look at it; OSError."""
        ticks = [int(each) for each in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = sum(ticks) - ticks[_IDLE] - ticks[_WAITS]
        lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
        memory = {words[0]: int(words[1]) * 1024 for words in lines}
        used = memory["MemTotal:"] - memory["MemAvailable:"]
        self.looks = (*self.looks[-1:], UseLook(at, busy * 1000 // TICKS_PER_SECOND, used))


def measure_of(looks: tuple[UseLook, ...]) -> Measure | None:
    """Return what was used between two looks, None without them."""
    if len(looks) < 2 or looks[-1].at <= looks[-2].at:
        return None
    before, last = looks[-2:]
    seconds = last.at - before.at
    used = max(last.cpu_milliseconds - before.cpu_milliseconds, 0)
    return Measure(last.at, seconds, round(used / seconds), last.resident_bytes)


class Used(Protocol):
    """A pod whose use is looked at."""

    @property
    def running(self) -> dict[str, Run]:
        """The runs that are alive, by container."""
        ...

    @property
    def use(self) -> PodLooks:
        """What it used so far."""
        ...


async def look_at(pods: Iterable[Used], now: Callable[[], float]) -> float:
    """Look at all pods once and return the processor seconds that it took; OSError.

    The files of all processes are read in a thread. What has ended meanwhile is left out: its end
    says more.
    """
    looked = [
        (pod, name, run, pid)
        for pod in pods
        for name, run in pod.running.items()
        if (pid := run.shim_pid()) is not None
    ]
    if not looked:
        return 0.0
    measured, seconds = await asyncio.to_thread(_timed_measure, [pid for *_, pid in looked])
    began = time.thread_time()
    by_pod: dict[PodLooks, dict[str, ProcessTreeUse]] = {}
    for pod, name, run, pid in looked:
        if pid in measured and run.has_shim:
            by_pod.setdefault(pod.use, {})[name] = measured[pid]
    for use, found in by_pod.items():
        use.look(now(), found)
    return seconds + time.thread_time() - began


def _timed_measure(shims: Sequence[int]) -> tuple[dict[int, ProcessTreeUse], float]:
    began = time.thread_time()
    return measure(shims), time.thread_time() - began


async def keep_looking(
    pods: Callable[[], Iterable[Used]],
    now: Callable[[], float],
    *,
    machine: MachineLooks,
    seconds: float,
    problem: Callable[[OSError], None],
) -> None:
    """Look at the machine and at pods until cancelled, each time after `seconds`, or later where a
    look is dear.
    """
    while True:
        taken = 0.0
        try:
            machine.look(now())
            taken = await look_at(tuple(pods()), now)
        except OSError as error:
            problem(error)
        await asyncio.sleep(max(seconds, _USE_SHARE * taken))
