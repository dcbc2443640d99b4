"""Simulations that are asked for on the page: one at a time, each step a command of its own.

    sim record (for a load of this cluster), sim run, sim run, sim compare

Each is a process with limits of time and memory, at low priority, in a directory that lasts until
the next question; so a simulation that goes wrong ends by itself and takes nothing with it, and
what ran is what the page prints. A run that reaches its time ends as with Ctrl-C: with figures of
what had happened until then.
"""

from __future__ import annotations

import asyncio
import csv
import math
import os
import resource
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import Logger
from fairlead.sim.scenarios.figures import RunGroup

#: What a load is recorded over, as `--since` has it.
SPANS = ("1d", "7d", "30d")
#: A load that is drawn.
DRAWN = "drawn"
NODES_MAX, DAYS_MAX, JOBS_MAX, SEED_MAX = 500, 7, 10_000, 1_000_000
_RECORDED = "recorded"
_ERROR_BYTES_MAX, _ANSWER_BYTES_MAX = 2_000, 1 << 20


@dataclass(frozen=True, slots=True)
class SimulationLimits:
    """Bounds of one process. `grace_seconds` is what it gets to write its figures."""

    seconds_max: float = 300.0
    grace_seconds: float = 20.0
    memory_bytes_max: int = 2 << 30


@dataclass(frozen=True, slots=True)
class SimulationQuestion:
    """A load (one of SPANS, or DRAWN on `nodes` over `days`), at most `jobs` of it, under two
    policies.
    """

    load: str
    policies: tuple[str, str]
    nodes: int
    days: int
    jobs: int
    seed: int

    def commands(self, where: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the commands, without the program's name; `where` leads one to the cluster."""
        source: tuple[str, ...] = ("--nodes", str(self.nodes), "--days", str(self.days))
        if self.load != DRAWN:
            yield ("sim", "record", _RECORDED, "--since", self.load, *where)
            source = (f"{_RECORDED}/scenario.yaml",)
        for policy in self.policies:
            own = (
                "--jobs",
                str(self.jobs),
                "--policy",
                policy,
                "--seed",
                str(self.seed),
                "--out",
                policy,
            )
            yield ("sim", "run", *source, *own)
        yield ("sim", "compare", *self.policies)


@dataclass(frozen=True, slots=True)
class TeamFigures:
    """What a team got in a run; `wait_seconds` is the mean of its jobs that started, None: none
    has.
    """

    jobs: int
    gpu_seconds: float
    wait_seconds: float | None


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One of the two runs: waits of its jobs, samples as (instant, share of GPUs that run jobs),
    and its teams. `is_complete`: it was not stopped.
    """

    policy: str
    is_complete: bool
    waits: Sequence[float]
    busy: Sequence[tuple[float, float]]
    teams: Mapping[str, TeamFigures]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Figures side by side, and the runs that they are of."""

    groups: Sequence[RunGroup]
    runs: Sequence[PolicyRun]


class SimulationState(Enum):
    """How far a simulation is."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Simulation:
    """A question and what became of it; `command` is the one that runs, or failed."""

    question: SimulationQuestion
    state: SimulationState
    begun_at: float
    command: tuple[str, ...] = ()
    problem: str = ""
    result: SimulationResult | None = None


class SimulationFailed(Exception):
    """A command that did not end well; the message is what it said last."""


@dataclass
class Simulations:
    """Runs what is asked for. `where` are the flags that lead a command to the cluster."""

    where: Sequence[str]
    clock: Clock
    log: Logger
    limits: SimulationLimits = field(default_factory=SimulationLimits)
    #: Called whenever `latest` has changed.
    changed: Callable[[], None] = lambda: None
    #: What a command begins with.
    program: Sequence[str] = (sys.executable, "-m", "fairlead")
    latest: Simulation | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _process: asyncio.subprocess.Process | None = None
    _is_stopped: bool = False

    def start(self, question: SimulationQuestion) -> str:
        """Have a question answered; return why not, "" where it will be."""
        if self.latest is not None and self.latest.state is SimulationState.RUNNING:
            return "A simulation runs already, and one runs at a time: stop it, or wait for it."
        self._is_stopped = False
        self.latest = Simulation(question, SimulationState.RUNNING, self.clock.now())
        self._asked.set()
        self.changed()
        return ""

    def stop(self) -> None:
        """End what runs; harmless when nothing does."""
        self._is_stopped = True
        self._signal(signal.SIGKILL)

    async def run(self) -> None:
        """Answer questions until cancelled; then nothing of it is left."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            folder = Path(tempfile.mkdtemp(prefix="fairlead-simulation-"))
            try:
                await self._answer(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    async def _answer(self, folder: Path) -> None:
        assert self.latest is not None, "it was asked for"
        question = self.latest.question
        try:
            answer = b""
            for command in question.commands(self.where):
                if self._is_stopped:
                    break
                self._now(replace(self.latest, command=command))
                answer = await self._command(command, folder)
        except SimulationFailed as error:
            state = SimulationState.STOPPED if self._is_stopped else SimulationState.FAILED
            self._now(replace(self.latest, state=state, problem=str(error)))
            return
        if self._is_stopped:
            self._now(replace(self.latest, state=SimulationState.STOPPED))
            return
        try:
            result = await asyncio.get_running_loop().run_in_executor(
                None, _result_of, question, answer, folder
            )
        except (OSError, ValueError, KeyError) as error:
            self._now(replace(
                self.latest, state=SimulationState.FAILED,
                problem=f"its files cannot be read: {error}",
            ))  # fmt: skip
            return
        self._now(replace(self.latest, state=SimulationState.DONE, result=result))

    def _now(self, latest: Simulation) -> None:
        self.latest = latest
        self.log.info(
            "Simulation", state=latest.state.value, command=shlex.join(latest.command),
            problem=latest.problem,
        )  # fmt: skip
        self.changed()

    async def _command(self, command: tuple[str, ...], folder: Path) -> bytes:
        """Run one command to its end, or to its limit; return what it wrote, as JSON where it
        compares. SimulationFailed.
        """
        is_last = command[1] == "compare"
        form = ("-o", "json") if is_last else ()
        process = await asyncio.create_subprocess_exec(
            *self.program, *command, *form, cwd=folder, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if is_last else asyncio.subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"},
        )  # fmt: skip
        self._process = process
        if self._is_stopped:  # meanwhile
            self._signal(signal.SIGKILL)
        try:
            self._bound(process.pid)
            out, said = await self._watched(process)
        finally:
            self._signal(signal.SIGKILL)
            await process.wait()
            self._process = None
        # A run that was stopped early has figures all the same.
        has_figures = command[1] == "run" and (folder / command[-1] / "summary.json").exists()
        has_ended = process.returncode == 0 or has_figures
        if not has_ended:
            words = " ".join(said.decode("utf-8", "replace").split())
            raise SimulationFailed(words[-_ERROR_BYTES_MAX:] or f"it ended: {process.returncode}")
        return out

    async def _watched(self, process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
        """Return what a process writes; SIGINT at its limit, and SIGKILL after the grace."""
        reading = asyncio.gather(
            _head(process.stdout, _ANSWER_BYTES_MAX), _head(process.stderr, _ERROR_BYTES_MAX)
        )
        try:
            async with asyncio.timeout(self.limits.seconds_max):
                found = await asyncio.shield(reading)
        except TimeoutError:
            self._signal(signal.SIGINT)
            try:
                async with asyncio.timeout(self.limits.grace_seconds):
                    found = await asyncio.shield(reading)
            except TimeoutError:
                self._signal(signal.SIGKILL)
                found = await reading
        await process.wait()
        return found[0], found[1]

    def _bound(self, pid: int) -> None:
        """Limit a process, also for the time after an end of ours that nothing could announce."""
        seconds = math.ceil(self.limits.seconds_max * 2)  # of 0 the kernel kills at once
        with suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, pid, 10)
            memory = self.limits.memory_bytes_max
            resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))
            resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)


async def _head(stream: asyncio.StreamReader | None, bytes_max: int) -> bytes:
    """Return the first bytes of a stream, which is read to its end."""
    kept = b""
    while stream is not None and (piece := await stream.read(1 << 16)):
        kept += piece[: bytes_max - len(kept)]
    return kept


def _result_of(question: SimulationQuestion, answer: bytes, folder: Path) -> SimulationResult:
    """Return what the files of two runs and the answer of `sim compare` say."""
    groups = msgspec.json.decode(answer, type=list[RunGroup])
    recorded, own = [g for g in groups if not g.runs], [g for g in groups if g.runs]
    named = [
        replace(group, name=policy)
        for group, policy in zip(own, question.policies, strict=True)
    ]  # fmt: skip
    runs = [_run_of(policy, folder / policy) for policy in question.policies]
    return SimulationResult((*recorded, *named), runs)


def _run_of(policy: str, folder: Path) -> PolicyRun:
    summary: dict[str, Any] = msgspec.json.decode((folder / "summary.json").read_bytes())
    waits: list[float] = []
    by_team: dict[str, list[tuple[float, float | None]]] = {}
    for row in _rows(folder / "jobs.csv"):
        wait = float(row["started"]) - float(row["submitted"]) if row["started"] else None
        if wait is not None:
            waits.append(wait)
        by_team.setdefault(row["tenant"], []).append((float(row["busy_gpu_seconds"]), wait))
    busy = [
        (float(row["at"]), float(row["busy_gpus"]) / max(float(row["gpus"]), 1.0))
        for row in _rows(folder / "samples.csv")
    ]
    teams = {name: _team_of(jobs) for name, jobs in by_team.items()}
    return PolicyRun(policy, summary["is_complete"] is True, waits, busy, teams)


def _team_of(jobs: Sequence[tuple[float, float | None]]) -> TeamFigures:
    waits = [wait for _, wait in jobs if wait is not None]
    mean = sum(waits) / len(waits) if waits else None
    return TeamFigures(len(jobs), sum(seconds for seconds, _ in jobs), mean)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
