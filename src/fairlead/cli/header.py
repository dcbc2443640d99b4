"""The `#FAIRLEAD` and `#SBATCH` lines at the head of a script (pure).

`#FAIRLEAD` lines carry the flags of `fairlead submit`. Of `#SBATCH` a documented subset is read;
what would change the result is refused with the nearest equivalent, what is harmless is noted. As
with sbatch (SchedMD, sbatch manual), only lines before the first command count.

`# FAIRLEAD --...` counts as well: formatters of Python put a space after each `#`, and a request
must not vanish by that. `##FAIRLEAD` is a comment.

One difference to Slurm stays and is noted: the script runs in every member, as srun would run it,
and not once on the first node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from fairlead.cli.flags import FLAGS, Flag, FlagValue, FlagValues
from fairlead.cli.text import parse_slurm_time
from fairlead.input.errors import Code, Problem
from fairlead.input.suggest import nearest

FAIRLEAD = "#FAIRLEAD"
_SPACED = re.compile(r"#\s+FAIRLEAD(?=\s+--)")
SBATCH = "#SBATCH"
HEADER_LINES_MAX = 500
OVERLOOKED_SHOWN_MAX = 3
_REQUEST = re.compile(r"#(\s*)([A-Za-z]{4,10})\s+--?[a-zA-Z]")
EVERY_MEMBER = "the script runs in every member, as srun would run it; sbatch runs it once"

SBATCH_SHORT: dict[str, str] = {
    "J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time",
    "d": "dependency", "D": "chdir", "H": "hold", "p": "partition", "q": "qos", "a": "array",
    "A": "account", "o": "output", "e": "error", "i": "input", "C": "constraint", "w": "nodelist",
    "x": "exclude", "b": "begin", "m": "distribution", "L": "licenses", "M": "clusters",
    "v": "verbose", "Q": "quiet",
}  # fmt: skip

SBATCH_HARMLESS: dict[str, str] = {
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    "comment": "comments are not kept",
    "output": "logs are kept by the cluster: fairlead logs JOB",
    "error": "logs are kept by the cluster: fairlead logs JOB",
    "open-mode": "logs are kept by the cluster: fairlead logs JOB",
    "account": "there is no accounting by account",
    "wckey": "there is no accounting by key",
    "verbose": "it only changes sbatch's own words",
    "quiet": "it only changes sbatch's own words",
    "parsable": "it only changes sbatch's own words",
    "requeue": "jobs restart after the failure of a node anyway; --retries N covers their own",
}

_SELECTOR_HELP = "choose nodes by their labels: --node-selector KEY=VALUE"
SBATCH_REFUSED: dict[str, str] = {
    "partition": _SELECTOR_HELP,
    "constraint": _SELECTOR_HELP,
    "nodelist": _SELECTOR_HELP,
    "exclude": _SELECTOR_HELP,
    "qos": "use --priority CLASS",
    "gpus": "Slurm's --gpus is the sum over the job: write --gpus-per-node=N",
    "mem-per-cpu": "write --mem=SIZE, the memory of one member",
    "mem-per-gpu": "write --mem=SIZE, the memory of one member",
    "exclusive": "ask for as much as a whole node has, such as --gpus-per-node=8",
    "begin": "submit it with --hold and let it start with: fairlead release JOB",
    "deadline": "use --time DURATION, the longest run time",
    "signal": "members get SIGTERM, and the grace period of the pod, before SIGKILL",
    "export": "name the variables: --env NAME",
    "licenses": "there are no licences to count",
    "clusters": "choose the cluster with --context",
    "distribution": "ranks follow the order of members; there is nothing to choose",
    "input": "redirect in the script: program < file",
    "tmp": "there is no request for local disk space",
    "switches": "use --topology LEVEL:preferred=TIME, such as --topology rack:preferred=10m",
    "wrap": "use fairlead run -- COMMAND",
    "uid": "jobs run as the owner of the cluster's process",
}


class Kind(Enum):
    """How an honoured #SBATCH option's value is read."""

    TEXT = "text"
    COUNT = "count"
    RANGE = "range"
    MEMORY = "memory"
    TIME = "time"
    GPUS = "gpus"
    SWITCH = "switch"


SBATCH_HONOURED: dict[str, tuple[Flag, Kind]] = {
    "job-name": (Flag.NAME, Kind.TEXT),
    "nodes": (Flag.NODES, Kind.RANGE),
    "ntasks": (Flag.NODES, Kind.COUNT),
    "cpus-per-task": (Flag.CPUS, Kind.COUNT),
    "mem": (Flag.MEMORY, Kind.MEMORY),
    "gpus-per-node": (Flag.GPUS, Kind.GPUS),
    "gpus-per-task": (Flag.GPUS, Kind.GPUS),
    "gres": (Flag.GPUS, Kind.GPUS),
    "time": (Flag.TIME, Kind.TIME),
    "priority": (Flag.PRIORITY, Kind.COUNT),
    "dependency": (Flag.AFTER, Kind.TEXT),
    "array": (Flag.ARRAY, Kind.TEXT),
    "chdir": (Flag.CHDIR, Kind.TEXT),
    "reservation": (Flag.RESERVATION, Kind.TEXT),
    "hold": (Flag.HOLD, Kind.SWITCH),
    "no-requeue": (Flag.NO_RESTART, Kind.SWITCH),
}
SBATCH_SPECIAL = ("ntasks-per-node",)
_SWITCHES = {"hold", "no-requeue", "requeue", "exclusive", "verbose", "quiet", "parsable"}
_DEPENDENCY = {"afterok": "ok", "afterany": "any", "afternotok": "failed"}


@dataclass(frozen=True, slots=True)
class Header:
    """What the lines ask for, what was noted, and what is wrong."""

    givens: FlagValues
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    has_sbatch: bool = False


@dataclass(slots=True)
class _Reading:
    """The state of one pass over the lines of a script."""

    file: str
    ignore_unknown: bool
    #: True when the command line gives the index of an array's task.
    has_array_index: bool
    givens: dict[Flag, tuple[FlagValue, ...]] = field(
        default_factory=dict[Flag, tuple[FlagValue, ...]]
    )
    notes: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])
    origins: dict[Flag, str] = field(default_factory=dict[Flag, str])
    #: Options without effect, by the reason: their lines and names.
    without_effect: dict[str, list[tuple[int, str]]] = field(
        default_factory=dict[str, list[tuple[int, str]]]
    )

    def give(self, flag: Flag, value: str, line: int) -> None:
        """Keep a value; a later line replaces an earlier one unless the flag is repeatable."""
        given = FlagValue(value, f"{self.file}:{line}")
        before = self.givens.get(flag, ()) if FLAGS[flag].is_repeatable else ()
        self.givens[flag] = (*before, given)

    def refuse(self, line: int, message: str, help_: str) -> None:
        """Collect a problem, or a note when unknown options are to be ignored."""
        if self.ignore_unknown:
            self.notes.append(f"{self.file}:{line}: ignored: {message}")
            return
        self.problems.append(
            Problem(Code.SCRIPT_HEADER, message, where=f"{self.file}:{line}:1", help=(help_,))
        )


def parse_header(
    text: str, *, file: str, ignore_unknown: bool = False, has_array_index: bool = False
) -> Header:
    """Return what the header lines of a script ask for, all problems collected.

    With `ignore_unknown` what would be refused is noted and left out. With `has_array_index` the
    script is submitted for one task of its array.
    """
    reading = _Reading(file, ignore_unknown, has_array_index)
    has_sbatch = False
    for number, line in enumerate(text.splitlines()[:HEADER_LINES_MAX], 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        stripped = (
            _SPACED.sub(FAIRLEAD, stripped, count=1) if stripped.startswith("# ") else stripped
        )
        for marker in (FAIRLEAD, SBATCH):
            if not stripped.startswith(marker) or stripped[len(marker) :][:1].strip():
                continue
            words = _words(reading, stripped[len(marker) :], number)
            if marker == SBATCH:
                has_sbatch = has_sbatch or bool(words)
                _read_sbatch(reading, words, number)
            else:
                _read_fairlead(reading, words, number)
    notes = [*reading.notes, *_without_effect(reading), *_overlooked(text, file)]
    return Header(reading.givens, tuple(dict.fromkeys(notes)), tuple(reading.problems), has_sbatch)


def _without_effect(reading: _Reading) -> Iterator[str]:
    """Yield a note for each reason why options have no effect."""
    for why, options in reading.without_effect.items():
        lines = ", ".join(dict.fromkeys(str(line) for line, _ in options))
        shown = ", ".join(dict.fromkeys(name for _, name in options))
        have = "has" if len(options) == 1 else "have"
        yield f"{reading.file}:{lines}: {SBATCH} {shown} {have} no effect: {why}"


def _overlooked(text: str, file: str) -> Iterator[str]:
    """Yield a note on lines that look like requests and are not read: late ones, misspelt ones."""
    is_head, found = True, 0
    for number, line in enumerate(text.splitlines()[:HEADER_LINES_MAX], 1):
        stripped = line.strip()
        is_head = is_head and (not stripped or stripped.startswith("#"))
        match = _REQUEST.match(stripped)
        if match is None or found == OVERLOOKED_SHOWN_MAX:
            continue
        is_spaced = bool(match[1]) and match[2] == FAIRLEAD[1:]
        is_exact = not match[1] and f"#{match[2]}" in (FAIRLEAD, SBATCH)
        near = nearest(match[2].upper(), (FAIRLEAD[1:], SBATCH[1:]))
        if near is None or (is_head and (is_exact or is_spaced)):
            continue
        found += 1
        if is_head:
            yield f"{file}:{number}: '{match[0].split(' -')[0]}' is not read; write #{near}"
        elif is_exact or is_spaced:
            yield f"{file}:{number}: #{near} after the first command is not read"


def _words(reading: _Reading, text: str, line: int) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        reading.refuse(line, f"the line cannot be read: {error}", "close the quotation")
        return []


def _read_fairlead(reading: _Reading, words: list[str], line: int) -> None:
    known = {f"--{flag.value}": flag for flag in Flag}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        flag = known.get(name)
        if flag is None:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"flags: {', '.join(known)}"
            reading.refuse(line, f"no flag '{name}' in a {FAIRLEAD} line", hint)
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)  # its value
            continue
        if not FLAGS[flag].metavar:
            reading.give(flag, "true", line)
            continue
        if not equals:
            if not rest:
                reading.refuse(line, f"flag '{name}' needs a value", f"{name} VALUE")
                return
            value = rest.pop(0)
        reading.give(flag, value, line)


def _read_sbatch(reading: _Reading, words: list[str], line: int) -> None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, value, is_given = _split_option(word)
        if not name:
            reading.refuse(line, f"'{word}' is not an option", "options begin with a dash")
            return
        takes_value = name not in _SWITCHES
        if takes_value and not is_given and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        _sbatch_option(reading, name, value, line)


def _split_option(word: str) -> tuple[str, str, bool]:
    """Return (long name, value, whether a value was attached); an empty name for no option."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value, bool(equals)
    if word.startswith("-") and len(word) > 1:
        value = word[2:].removeprefix("=")
        return SBATCH_SHORT.get(word[1], word[:2]), value, bool(value)
    return "", "", False


def _sbatch_option(reading: _Reading, name: str, value: str, line: int) -> None:
    shown = f"#SBATCH --{name}" if not name.startswith("-") else f"#SBATCH {name}"
    if name in SBATCH_HARMLESS:
        reading.without_effect.setdefault(SBATCH_HARMLESS[name], []).append(
            (line, shown.removeprefix(f"{SBATCH} "))
        )
    elif name == "export" and value not in ("ALL", "NONE", "") and "ALL," not in value:
        for part in value.split(","):
            reading.give(Flag.ENV, part, line)
    elif name == "ntasks-per-node":
        if value != "1":
            reading.refuse(line, f"{shown}={value} cannot be honoured",
                           "a member is one task: write --nodes=TASKS")  # fmt: skip
    elif name == "array" and reading.has_array_index:
        pass  # this is one task of it
    elif name in SBATCH_REFUSED:
        reading.refuse(line, f"{shown} cannot be honoured", SBATCH_REFUSED[name])
    elif name in SBATCH_HONOURED:
        _honour(reading, name, value, line)
    else:
        known = [*SBATCH_HONOURED, *SBATCH_HARMLESS, *SBATCH_REFUSED, *SBATCH_SPECIAL]
        near = nearest(name.lstrip("-"), known)
        reading.refuse(line, f"{shown} is not an option that is read here",
                       f"did you mean --{near}?" if near
                       else "remove it, or submit with --ignore-unknown")  # fmt: skip


def _honour(reading: _Reading, name: str, value: str, line: int) -> None:
    flag, kind = SBATCH_HONOURED[name]
    try:
        text = _translate(name, value, kind)
    except ValueError as error:
        help_ = f"see --{flag.value} of fairlead submit"
        if kind is Kind.TIME:
            help_ = f"#SBATCH --{name}=12:00:00, or --{name}=90 for minutes"
        reading.refuse(line, f"#SBATCH --{name}: {error}", help_)
        return
    if flag is Flag.AFTER:
        for part in text.split(","):
            reading.give(flag, part, line)
        return
    before = reading.givens.get(flag)
    other = reading.origins.get(flag)
    if before and other not in (None, name) and before[0].value != text:
        reading.refuse(
            line, f"#SBATCH --{name}={value} contradicts --{other}={before[0].value}",
            "a member is one task: give one of the two, or both alike",
        )  # fmt: skip
        return
    reading.origins[flag] = name
    reading.give(flag, text, line)


def _translate(name: str, value: str, kind: Kind) -> str:
    """Return the value as `fairlead submit`'s flag would have it; ValueError when it has none."""
    if kind is Kind.SWITCH:
        return "true"
    if not value:
        raise ValueError("needs a value")
    if kind is Kind.TEXT:
        return _dependency(value) if name == "dependency" else value
    if kind is Kind.COUNT:
        if not value.isdigit():
            raise ValueError(f"'{value}' is not a whole number")
        return value
    if kind is Kind.RANGE:
        if not re.fullmatch(r"\d+(-\d+)?", value):
            raise ValueError(f"'{value}' is neither a whole number nor a range such as 2-4")
        return value
    if kind is Kind.TIME:
        return f"{int(parse_slurm_time(value))}s"
    if kind is Kind.MEMORY:
        match = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE)
        if match is None or match[1] == "0":
            raise ValueError(
                f"'{value}' is not a size such as 64G (0, all of a node, has no equal)"
            )
        return f"{match[1]}{(match[2] or 'M').upper()}i"  # Slurm counts in units of 1024
    match = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)", value)
    if match is None or (name == "gres" and not value.startswith("gpu")):
        raise ValueError(f"'{value}' is not a number of GPUs such as gpu:8")
    return match[1]


def _dependency(value: str) -> str:
    out: list[str] = []
    if "?" in value:
        raise ValueError("'?' (any of several) has no equal; all must hold")
    for part in value.split(","):
        kind, colon, jobs = part.partition(":")
        if kind not in _DEPENDENCY or not colon or not jobs:
            raise ValueError(f"'{part}' is not afterok:JOB, afterany:JOB or afternotok:JOB")
        out += [f"{_DEPENDENCY[kind]}:{job.partition('+')[0]}" for job in jobs.split(":")]
    return ",".join(out)
