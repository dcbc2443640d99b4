"""An administrator's own checks: the executables of a directory.

Exit code 0 is good, 1 is a fault, anything else is unknown; the first line of the output says what
it is: the convention of node-problem-detector's custom plugins. A line that is a JSON object may
also say `component`, `codes`, `severity`, `action` and `message`. A check whose result is unknown
keeps the fault that it had. A read never waits for a program: it starts what is due, and takes the
results that are there.
"""

from __future__ import annotations

import stat
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from fairlead.model.health.faults import (
    Action,
    Identity,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.program_run import ProgramOutcome, adopt_orphans, run
from fairlead.node.settings import AgentSettings, ProgramSettings
from fairlead.node.source import Judged, SignalSource

CHECK = "own-check"
PROGRAMS_MAX = 256
#: As node-problem-detector has it: 1 is a fault, and what is more than that says nothing.
_GOOD, _BAD = 0, 1


class Said(msgspec.Struct, frozen=True):
    """What a program may say as JSON; other keys are ignored."""

    component: str = ""
    codes: tuple[str, ...] = ()
    severity: Severity | None = None
    action: Action = Action.WATCH
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The last result of each program that has one, and all programs that there are."""

    outcomes: dict[str, ProgramOutcome]
    names: frozenset[str]
    refused: tuple[str, ...] = ()


class ProgramMemory(msgspec.Struct, frozen=True):
    """The fault that each program has found."""

    found: dict[str, Identity] = {}


@dataclass(slots=True)
class _Program:
    """A program: when it was begun last, whether it runs, and what it said."""

    begun_at: float = -1e9
    is_running: bool = False
    outcome: ProgramOutcome | None = None
    #: No read has returned what it said last.
    is_unread: bool = False
    leftover: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class ProgramReader:
    """Starts programs, each in a thread, and keeps their last results."""

    host: Host
    settings: ProgramSettings
    run: Callable[[Path, float], ProgramOutcome] = run
    _programs: dict[str, _Program] = field(default_factory=dict[str, _Program])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> ProgramFacts:
        """Start what is due, and return the results; Absent without a directory, OSError."""
        paths, refused = self._listed()
        now = self.host.now().uptime_seconds
        with self._lock:
            for name in self._programs.keys() - paths.keys():
                if not self._programs[name].is_running:
                    del self._programs[name]
            running = sum(each.is_running for each in self._programs.values())
            due = sorted(paths, key=lambda name: (self._of(name).begun_at, name))
            for name in due:
                program = self._of(name)
                is_due = now - program.begun_at >= self.settings.period_seconds
                if running < self.settings.concurrency and is_due and self._is_free(program):
                    running += 1
                    program.begun_at, program.is_running = now, True
                    self._start(name, paths[name])
            outcomes = {name: each.outcome for name, each in sorted(self._programs.items())
                        if name in paths and each.outcome}  # fmt: skip
            for each in self._programs.values():
                each.is_unread = False
        return ProgramFacts(outcomes, frozenset(paths), refused)

    def is_busy(self) -> bool:
        """True while a program runs, has never run, or said what was not read."""
        with self._lock:
            return any(
                each.is_running or each.outcome is None or each.is_unread
                for each in self._programs.values()
            )

    def _of(self, name: str) -> _Program:
        return self._programs.setdefault(name, _Program())

    def _is_free(self, program: _Program) -> bool:
        """A program is not started while its last run hangs in the kernel."""
        if program.leftover and program.leftover.poll() is not None:
            program.leftover = None
        return not program.is_running and program.leftover is None

    def _start(self, name: str, path: Path) -> None:
        threading.Thread(
            target=self._finish, args=(name, path), name=f"program-{name}", daemon=True
        ).start()

    def _finish(self, name: str, path: Path) -> None:
        try:
            outcome = self.run(path, self.settings.timeout_seconds)
        except OSError as error:
            outcome = ProgramOutcome(None, why=f"cannot be watched: {error.strerror or error}")
        with self._lock:
            program = self._of(name)
            program.outcome, program.leftover = outcome, outcome.leftover
            program.is_running, program.is_unread = False, True

    def _listed(self) -> tuple[dict[str, Path], tuple[str, ...]]:
        """Return the executables by name, and what is not run, with the reason."""
        directory = Path(self.settings.directory)
        found: dict[str, Path] = {}
        refused: list[str] = []
        try:
            entries = sorted(directory.iterdir())
        except FileNotFoundError as error:
            raise Absent(f"no {directory}") from error
        for path in entries:
            try:
                mode = path.stat().st_mode
            except OSError as error:  # a link to nothing
                refused.append(f"{path.name}: {error.strerror or error}")
                continue
            if not stat.S_ISREG(mode) or not mode & 0o111:
                continue
            if mode & 0o022:
                refused.append(f"{path.name}: others than its owner can write to it")
            elif len(found) == PROGRAMS_MAX:
                refused.append(f"{path.name}: only {PROGRAMS_MAX} programs are run")
            else:
                found[path.name] = path
        return found, tuple(refused)


def judge(
    facts: ProgramFacts, memory: ProgramMemory, at: Moment, *, settings: ProgramSettings
) -> Judged[ProgramMemory]:
    """Return the faults that programs report; one that is gone has none."""
    found: dict[str, Identity] = {}
    observations: list[Observation] = []
    unknown = list(facts.refused)
    looked: set[str] = set()
    for name, outcome in facts.outcomes.items():
        before = memory.found.get(name)
        try:
            seen = _observation(name, outcome, at, settings.severity)
        except ValueError as error:
            unknown.append(f"{name}: {error}")
            if before:
                found[name] = before
            continue
        looked.add(name)
        if seen:
            found[name] = seen.identity
            observations.append(seen)
            looked.add(seen.identity.component)
    waits = facts.names - facts.outcomes.keys()
    found.update({name: of for name, of in memory.found.items() if name in waits})
    over = set(memory.found.values()) - set(found.values())
    return Judged(
        ProgramMemory(found), tuple(observations), frozenset(looked), recovered=frozenset(over),
        unreadable=tuple(unknown),
    )  # fmt: skip


def _observation(
    name: str, outcome: ProgramOutcome, at: Moment, severity: Severity
) -> Observation | None:
    """Return the fault that a result is, None for a good one; ValueError for an unknown one."""
    if outcome.code is None:
        raise ValueError(outcome.why)
    if outcome.code == _GOOD:
        return None
    if outcome.code != _BAD:
        raise ValueError(
            f"exit code {outcome.code}" + (f": {outcome.line}" if outcome.line else "")
        )
    said = Said(message=outcome.line)
    if outcome.line.startswith("{"):
        try:
            said = msgspec.json.decode(outcome.line, type=Said)
        except ValueError as error:
            raise ValueError(f"the line is no result: {error}") from error
    component = f"{name}: {said.component}" if said.component else name
    verdict = steady(said.severity or severity, said.action, 0)
    return observed(identity(CHECK, component, said.codes), verdict, said.message, at)


def source(host: Host, settings: AgentSettings) -> SignalSource[ProgramFacts, ProgramMemory] | None:
    """Return the source of an administrator's own checks; None without a directory."""
    if not settings.programs.directory:
        return None
    adopt_orphans()
    reader = ProgramReader(host, settings.programs)
    return SignalSource("programs", (CHECK,), ProgramMemory, reader.read,
                  partial(judge, settings=settings.programs), period_seconds=1,
                  is_busy=reader.is_busy)  # fmt: skip
