"""Runs a suite on this machine: each test as a process of its own, one after another.

A test that crashes or does not end in time says nothing, so its outcome is that of the suite's
data. Two suites at a time would measure each other: a lock keeps the second one away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import msgspec

from fairlead.api.cluster.machine_result import (
    FIGURES_MAX,
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
)
from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.api.cluster.node_suites import MachineTest, Option, Suite
from fairlead.node.machine_tests.installed.tool import INHERITED
from fairlead.node.machine_tests.programs import PROGRAMS
from fairlead.node.running import program_run
from fairlead.node.running.host import Host

_DEVICES = Path("/usr/bin/nvidia-smi")
_DEVICE_SECONDS = 30.0
_LOCK = "fairlead-machine-tests.lock"


class OwnFinding(msgspec.Struct, frozen=True):
    """What a test of the administrator's may say as JSON; other keys are ignored."""

    message: str = ""
    figures: tuple[Figure, ...] = ()
    outcome: MachineOutcome | None = None


class AlreadyRunning(Exception):
    """Another suite runs on this machine."""


class UnknownTest(ValueError):
    """A test that the suite does not have; the message names it and those that there are."""


def run_suite(
    suite: Suite,
    *,
    only: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Option]] | None = None,
    lock: Path | None = None,
    began: Callable[[str], None] = lambda _: None,
) -> SuiteResult:
    """Run the tests of a suite, or `only` some; `options` replace those of the suite.

    `began` is called with the name of each test; without a `lock` it is `lock_path`.
    AlreadyRunning, UnknownTest, OSError for the lock.
    """
    chosen = [each for each in suite.kinds() if not only or each.name in only]
    for name in (*only, *(options or {})):
        if name not in suite.tests:
            there = ", ".join(suite.tests)
            raise UnknownTest(f"suite {suite.name} has no test '{name}'; it has {there}")
    host, given = Host(), options or {}
    found = list[MachineFinding]()
    with _alone(lock or lock_path(os.environ, user_id=os.geteuid())):
        deadline = perf_counter() + suite.seconds
        for test in chosen:
            began(test.name)
            own = msgspec.structs.replace(
                test, options={**test.options, **given.get(test.name, {})}
            )
            found.append(run_test(own, seconds_max=deadline - perf_counter()))
        devices, driver = _devices()
    versions = {"kernel": platform.release(), "python": platform.python_version(), **driver}
    return SuiteResult(
        suite.name, tuple(found), host.boot_id(), host.machine_id(), devices, versions
    )


def run_test(test: MachineTest, *, seconds_max: float) -> MachineFinding:
    """Run one test to its end; at most `seconds_max`, after which it is an Error."""
    if seconds_max <= 0:
        return MachineFinding(test.name, MachineOutcome.ERROR, "the time of the suite is over")
    if test.command:
        return run_own(test, seconds_max=seconds_max)
    if test.name not in PROGRAMS:
        return MachineFinding(test.name, MachineOutcome.SKIPPED, "this version has no such test")
    options = msgspec.json.encode(test.options).decode()
    arguments = ("-m", "fairlead.node.machine_tests", test.name, options)
    started, limit = perf_counter(), min(test.timeout_seconds, seconds_max)
    ended = program_run.run(Path(sys.executable), limit, *arguments, inherit=INHERITED)
    seconds = round(perf_counter() - started, 3)
    if ended.is_late:
        return _late(test, ended, seconds, limit)
    try:
        said = msgspec.json.decode(ended.line, type=MachineFinding)
    except ValueError:
        why = ended.why or f"exit code {ended.code} without a result"
        return MachineFinding(test.name, MachineOutcome.ERROR, why[:WHY_MAX], seconds)
    return said


def run_own(test: MachineTest, *, seconds_max: float) -> MachineFinding:
    """Run a test of the administrator's: exit code 0 has passed, 1 has failed, and anything else
    says nothing of the machine.

    The first line of the output says why; one that is a JSON object has `message`, `figures`, and
    with exit code 0 perhaps another `outcome`.
    """
    started, limit = perf_counter(), min(test.timeout_seconds, seconds_max)
    path = Path(test.command[0])
    ended = program_run.run(path, limit, *test.command[1:], inherit=INHERITED)
    seconds = round(perf_counter() - started, 3)
    if ended.is_late:
        return _late(test, ended, seconds, limit)
    outcome = _outcome(ended.code)
    said = OwnFinding(message=ended.line)
    if ended.line.startswith("{"):
        try:
            said = msgspec.json.decode(ended.line, type=OwnFinding)
        except (ValueError, RecursionError) as error:
            why = f"its line of JSON cannot be read: {error}"
            return MachineFinding(test.name, MachineOutcome.ERROR, why[:WHY_MAX], seconds)
    if said.outcome is not None and outcome is MachineOutcome.PASSED:
        outcome = said.outcome
    passed = outcome is MachineOutcome.PASSED
    why = "" if passed else said.message or ended.why or f"exit code {ended.code}"
    return MachineFinding(test.name, outcome, why[:WHY_MAX], seconds, said.figures[:FIGURES_MAX])


def _outcome(code: int | None) -> MachineOutcome:
    """Return what an exit code says, as it does of an administrator's checks of the agent."""
    if code == 0:
        return MachineOutcome.PASSED
    return MachineOutcome.FAILED if code == 1 else MachineOutcome.ERROR


def _late(
    test: MachineTest, ended: program_run.ProgramOutcome, seconds: float, limit: float
) -> MachineFinding:
    outcome = test.late if limit == test.timeout_seconds else MachineOutcome.ERROR
    return MachineFinding(test.name, outcome, ended.why[:WHY_MAX], seconds)


def lock_path(environment: Mapping[str, str], *, user_id: int, run: Path = Path("/run")) -> Path:
    """Return the lock of this user's suites, in a directory that no other user writes to where
    there is one.
    """
    private = run if user_id == 0 else Path(environment.get("XDG_RUNTIME_DIR") or "/none")
    is_there = os.access(private, os.W_OK)
    return (private if is_there else Path(tempfile.gettempdir())) / _LOCK


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Hold the lock. No other user can, nor choose by a link which file is opened."""
    descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "is another user's", str(lock))
        os.fchmod(descriptor, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning("another suite runs on this machine") from error
        yield


def _devices() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the kinds of GPUs, and the version of their driver; () without any."""
    if not _DEVICES.exists():
        return (), {}
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    ended = program_run.run(_DEVICES, _DEVICE_SECONDS, *query, inherit=INHERITED)
    name, _, driver = ended.line.partition(", ")
    return ((name,), {"driver": driver}) if ended.code == 0 and name else ((), {})
