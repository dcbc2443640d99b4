"""What sbatch's options ask for together, as the flags of `fairlead submit` (pure).

Options are of components, one for most jobs (`het_components`): what each asks of nodes is read by
`slurm_amounts`, what they say of the whole job here. What contradicts another option is refused as
Slurm does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import Signals

from fairlead.api.jobs.notify import MAIL_ADDRESS, NoticeEvent, Notify
from fairlead.cli.formats.text import parse_slurm_limit
from fairlead.cli.job_request.batch import Batch
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues
from fairlead.cli.script.slurm_amounts import AmountsReader, ComponentTasks, FoundFlags, Options
from fairlead.input.errors import Problem

_DEPENDENCY = {
    "after": "started", "afterok": "ok", "afterany": "any", "afternotok": "failed",
    "aftercorr": "each",
}  # fmt: skip
_SIGNAL = re.compile(r"((?:[RB]+:)?)(?:@)?(\w+)(?:@(\d{1,6}))?")
#: An element of an array, as Slurm has it: `sweep_7`. Names have no underscore.
_ELEMENT = re.compile(r"([^_]+)_(\d+)")
#: Options whose value becomes that of a flag as it is.
_AS_IT_IS = {
    "job-name": Flag.NAME,
    "array": Flag.ARRAY,
    "reservation": Flag.RESERVATION,
    "begin": Flag.BEGIN,
    "deadline": Flag.DEADLINE,
}
#: Types of --mail-type as events; the others have no equal.
_MAIL_EVENTS: Mapping[str, tuple[NoticeEvent, ...]] = {
    "NONE": (),
    "BEGIN": (NoticeEvent.START,),
    "END": (NoticeEvent.END,),
    "FAIL": (NoticeEvent.FAIL,),
    "REQUEUE": (NoticeEvent.PREEMPT,),
    "ALL": tuple(NoticeEvent),
}
_SWITCHES = {"hold": Flag.HOLD, "no-requeue": Flag.NO_RESTART}


@dataclass(frozen=True, slots=True)
class Component:
    """What one component asks for beside the whole job: flags, and its tasks."""

    givens: FlagValues
    batch: Batch


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the options mean: the flags of the whole job and those of each component, what is noted,
    and what is wrong.
    """

    givens: FlagValues
    components: tuple[Component, ...]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]


def meaning(components: Sequence[Options], nodes: str | None = None) -> Meaning:
    """Return what the options of each component mean, one at least; `nodes` is --nodes of the
    command line of fairlead.
    """
    first, *others = components
    if nodes is not None:
        first = {**first, "nodes": FlagValue(nodes, "--nodes")}
    found, notes, problems = list[tuple[FoundFlags, ComponentTasks]](), list[str](), list[Problem]()
    for options in (first, *others):
        each = FoundFlags()
        found.append((each, AmountsReader(options, each).read()))
        notes += each.notes
        problems += each.problems
    whole = FoundFlags()
    batch = _Reader(first, whole).read()
    return Meaning(
        whole.givens,
        tuple(
            Component(each.givens, replace(
                batch, tasks_per_node=amounts.tasks_per_node, tasks=amounts.tasks,
                variables=amounts.variables,
            ))
            for each, amounts in found
        ),
        (*notes, *whole.notes),
        (*problems, *whole.problems),
    )  # fmt: skip


class _Reader:
    """Reads what the options of the first component say of the whole job."""

    def __init__(self, options: Options, found: FoundFlags) -> None:
        self._options = options
        self._found = found

    def read(self) -> Batch:
        """Give the flags, and return what is particular to a batch script but its tasks."""
        self._plain()
        self._time()
        self._dependency()
        directory = self._options.get("container-workdir") or self._options.get("chdir")
        if directory is not None:  # of the two, that of --chdir is outside of the container
            self._found.give(Flag.CHDIR, directory.value, directory.origin)
        exports_all, exports = self._exports()
        return Batch(
            exports_all=exports_all,
            exports=exports,
            signal=self._signal(),
            qos=self._text("qos"),
            mail=self._mail(),
            output=self._text("output"),
            error=self._text("error"),
            appends=self._text("open-mode") in ("a", "append"),
        )

    def _refuse(self, name: str, why: str, help_: str) -> None:
        self._found.refuse(self._options[name], f"--{name}{why}", help_)

    def _plain(self) -> None:
        for name, flag in _AS_IT_IS.items():
            if (given := self._options.get(name)) is not None:
                self._found.give(flag, given.value, given.origin)
        for name, flag in _SWITCHES.items():
            if (given := self._options.get(name)) is not None:
                self._found.give(flag, "true", given.origin)

    def _time(self) -> None:
        given = self._options.get("time")
        if given is None:
            return
        try:
            seconds = parse_slurm_limit(given.value)
        except ValueError as error:
            self._refuse("time", f": {error}", "--time=12:00:00, or --time=90 for minutes")
            return
        if seconds:
            self._found.give(Flag.TIME, f"{seconds}s", given.origin)

    def _dependency(self) -> None:
        given = self._options.get("dependency")
        if given is None:
            return
        alternative = "?" if "?" in given.value else ""
        if alternative and ("," in given.value or "singleton" in given.value):
            self._refuse("dependency", ": '?' (any) goes with no ',' (all) and no singleton",
                         "--dependency=afterok:JOB?afterany:JOB")  # fmt: skip
            return
        for part in given.value.split(alternative or ","):
            kind, colon, jobs = part.strip().partition(":")
            if kind == "singleton" and not colon:
                self._found.give(Flag.AFTER, "singleton", given.origin)
                continue
            if kind not in _DEPENDENCY or not jobs:
                known = ", ".join(f"{each}:JOB" for each in _DEPENDENCY) + " or singleton"
                why = f": '{part}' is not {known}"
                self._refuse("dependency", why, "--dependency=afterok:JOB")
                continue
            when = f"{_DEPENDENCY[kind]}{alternative}"
            for job in _with_elements(jobs.split(":"), has_delays=kind == "after"):
                self._found.give(Flag.AFTER, f"{when}:{job}", given.origin)

    def _mail(self) -> Notify | None:
        """Return where mail is asked for; one that is not sent changes no result: it is noted."""
        given, user = self._options.get("mail-type"), self._text("mail-user")
        types = [each.strip().upper() for each in given.value.split(",")] if given else []
        events = [event for each in types for event in _MAIL_EVENTS.get(each, ())]
        without = [each for each in types if each and each not in _MAIL_EVENTS]
        if given is not None and without:
            self._note(given, f"--mail-type={','.join(without)} has no effect")
        if given is None or not events:
            return None
        if "array" in self._options:
            self._note(given, "--mail-type has no effect: no mail is sent of an array")
        elif not MAIL_ADDRESS.fullmatch(user):
            self._note(given, "--mail-type has no effect without --mail-user=ada@example.com")
        else:
            return Notify(tuple(dict.fromkeys(events)), mail=user)
        return None

    def _note(self, given: FlagValue, text: str) -> None:
        self._found.notes.append(f"{given.origin}: {text}")

    def _exports(self) -> tuple[bool, frozenset[str]]:
        """Return whether all of the shell's variables come along, as they do without --export, and
        the names of single ones; the words for all and none are read in any case.
        """
        given = self._options.get("export")
        if given is None:
            return True, frozenset()
        parts = [part.strip() for part in given.value.split(",") if part.strip()]
        words = {part.upper() for part in parts} & {"ALL", "NONE", "NIL"}
        single = [part for part in parts if part.upper() not in words]
        for part in single:
            self._found.give(Flag.ENV, part, given.origin)
        return "ALL" in words, frozenset(part for part in single if "=" not in part)

    def _text(self, name: str) -> str:
        given = self._options.get(name)
        return given.value if given else ""

    def _signal(self) -> str:
        """Return the signal before the end as `fairlead.member.batch` takes it."""
        given = self._options.get("signal")
        if given is None:
            return ""
        match = _SIGNAL.fullmatch(given.value)
        name = match[2].upper().removeprefix("SIG") if match else ""
        if match is None or not (name.isdecimal() or f"SIG{name}" in Signals.__members__):
            why = f": '{given.value}' is not [B:]SIGNAL[@SECONDS]"
            self._refuse("signal", why, "--signal=B:USR1@60")
            return ""
        return f"{'B:' if 'B' in match[1] else ''}{name}@{match[3] or 60}"


def _with_elements(jobs: Iterable[str], *, has_delays: bool) -> Iterator[str]:
    """Yield jobs, the elements of one array together, sweep[4,7], and with a delay, in minutes,
    where delays count.
    """
    elements: dict[str, list[str]] = {}
    for job in jobs:
        name, plus, minutes = job.partition("+")
        if plus and has_delays:
            yield f"{name}+{minutes}m"
            continue
        match = _ELEMENT.fullmatch(name)
        listed = elements.setdefault(name if match is None else match[1], [])
        listed += [] if match is None else [match[2]]
    for name, listed in elements.items():
        yield f"{name}[{','.join(listed)}]" if listed else name
