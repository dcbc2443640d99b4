"""Processes that hang in the kernel, and how many files and tasks the machine can still have.

A process in state D that was not scheduled since the look before, by its count of context
switches, has slept all the time between (the kernel's own rule, kernel/hung_task.c). Only main
threads are looked at. One that also has a signal pending that kills it will not end: as a rule its
driver hangs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import msgspec

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.forecast import Trend, followed, forecast
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource

HUNG, FILES, TASKS = "hung-task", "open-files", "task-count"
#: So many processes in state D are followed; more are one storm.
FOLLOWED_MAX = 256
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)
_PENDING = re.compile(r"^(?:Sig|Shd)Pnd:\s+([0-9a-f]+)$", re.MULTILINE)
_FATAL_SIGNALS = 1 << 8 | 1 << 14  # SIGKILL, SIGTERM


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A process in state D. `key` tells it from a later one of its number."""

    key: str
    name: str
    switches: int
    must_die: bool


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Processes in state D, and (in use, most) of files and tasks."""

    sleepers: tuple[Sleeper, ...]
    files: tuple[int, int]
    tasks: tuple[int, int]


class Asleep(msgspec.Struct, frozen=True):
    """Since which uptime a process sleeps, with so many switches."""

    since: float
    switches: int


class TaskMemory(msgspec.Struct, frozen=True):
    """Processes that slept at the look before, and how files and tasks grow."""

    asleep: dict[str, Asleep] = {}
    trends: dict[str, Trend] = {}


def read(host: Host) -> TaskFacts:
    """Return the processes in state D, and the counts; OSError."""
    sleepers: list[Sleeper] = []
    for name in host.names("proc"):
        if name.isdecimal() and len(sleepers) < FOLLOWED_MAX and (found := _sleeper(host, name)):
            sleepers.append(found)
    try:
        used, _, most = map(int, host.text("proc/sys/fs/file-nr").split()[:3])
        tasks = int(host.text("proc/loadavg").split()[3].partition("/")[2])
    except (ValueError, IndexError) as error:
        raise OSError("proc/sys/fs/file-nr or proc/loadavg is not what it should be") from error
    limits = [host.number("proc/sys/kernel", name) for name in ("pid_max", "threads-max")]
    return TaskFacts(tuple(sleepers), (used, most), (tasks, min(limits)))


def _sleeper(host: Host, number: str) -> Sleeper | None:
    """Return a process in state D; None for another one, or one that has ended meanwhile."""
    try:
        stat = host.text("proc", number, "stat")
        name, _, rest = stat.partition("(")[2].rpartition(") ")
        fields = rest.split()
        if not fields or fields[0] != "D":
            return None
        status = host.text("proc", number, "status")
    except OSError:  # it has ended
        return None
    switches = sum(int(count[:18]) for count in _SWITCHES.findall(status))
    pending = any(int(mask, 16) & _FATAL_SIGNALS for mask in _PENDING.findall(status))
    return Sleeper(f"{number}@{fields[19] if len(fields) > 19 else ''}", name, switches, pending)


def judge(
    facts: TaskFacts, memory: TaskMemory, at: Moment, *, settings: AgentSettings
) -> Judged[TaskMemory]:
    """A fault for each name of a hung process, and for what is nearly used up."""
    limits, stable = settings.tasks, settings.stable_seconds
    asleep: dict[str, Asleep] = {}
    hung: dict[str, list[tuple[float, Sleeper]]] = {}
    for each in facts.sleepers:
        before = memory.asleep.get(each.key)
        slept_on = before is not None and before.switches == each.switches
        since = before.since if before and slept_on else at.uptime_seconds
        asleep[each.key] = Asleep(since, each.switches)
        if at.uptime_seconds - since >= limits.hung_seconds:
            hung.setdefault(each.name, []).append((at.uptime_seconds - since, each))
    observations: list[Observation] = []
    for name, found in sorted(hung.items()):
        must_die = any(each.must_die for _, each in found)
        verdict = steady(Severity.WARNING, Action.WATCH, stable)
        if must_die:
            verdict = steady(Severity.CRITICAL, Action.REBOOT, stable)
        longest = max(seconds for seconds, _ in found)
        text = f"{len(found)} uninterruptible for {longest:.0f} s" + ", killed" * must_die
        observations.append(observed(identity(HUNG, name), verdict, text, at))
    warning = steady(Severity.WARNING, Action.WATCH, stable)
    used_now = {FILES: facts.files[0], TASKS: facts.tasks[0]}
    trends = followed(memory.trends, used_now, at.uptime_seconds)
    for check, (used, most), percent in (
        (FILES, facts.files, limits.files_percent_max),
        (TASKS, facts.tasks, limits.tasks_percent_max),
    ):
        if most and 100 * used >= percent * most:
            text = f"{used:,} of {most:,} in use"
            observations.append(observed(identity(check, "machine"), warning, text, at))
        if said := forecast(trends[check], used, most, settings.forecast_seconds):
            of = identity(check, "machine", ("forecast",))
            observations.append(observed(of, warning, f"{said}; {used:,} of {most:,}", at))
    return Judged(TaskMemory(asleep, trends), tuple(observations))


def source(host: Host, settings: AgentSettings) -> SignalSource[TaskFacts, TaskMemory]:
    """Return the source of processes."""
    return SignalSource("tasks", (HUNG, FILES, TASKS), TaskMemory, partial(read, host),
                  partial(judge, settings=settings), period_seconds=30)  # fmt: skip
