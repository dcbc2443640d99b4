"""The `#FAIRLEAD` and `#SBATCH` lines at the head of a script (pure).

`#FAIRLEAD` lines carry the flags of `fairlead submit`. Those of `#SBATCH` are read as sbatch reads
them (`sbatch_lines`), and become flags all together (`slurm_meaning`). As with sbatch, only lines
before the first command count.

`# FAIRLEAD --...` counts as well: formatters of Python put a space after each `#`, and a request
must not vanish by that. `##FAIRLEAD` is a comment.

A script with `#SBATCH` lines runs once, on the first node; any other one in every member. Lines
`#SBATCH hetjob` separate the components of a heterogeneous job (`het_components`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fairlead.cli.job_request.batch import Batch
from fairlead.cli.job_request.flag_groups.flags import (
    FLAGS,
    NAMED,
    Flag,
    FlagValue,
    FlagValues,
    merge,
)
from fairlead.cli.job_request.request import JobRequest, parse_request
from fairlead.cli.script.het_components import merged, refused_flags
from fairlead.cli.script.sbatch_lines import SBATCH, GivenOption, OptionReader, line_options
from fairlead.cli.script.slurm_meaning import Component, meaning
from fairlead.input.errors import Code, Problem
from fairlead.input.suggest import nearest

FAIRLEAD = "#FAIRLEAD"
_SPACED = re.compile(r"#\s+FAIRLEAD(?=\s+--)")
HEADER_LINES_MAX = 500
OVERLOOKED_SHOWN_MAX = 3
_REQUEST = re.compile(r"#(\s*)([A-Za-z]{4,10})\s+(?:--?[a-zA-Z]|(?:het|pack)job\b)")


@dataclass(frozen=True, slots=True)
class Header:
    """What the lines ask for, what was noted, and what is wrong."""

    givens: FlagValues
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    #: Of a script with lines of sbatch; None for any other.
    batch: Batch | None = None
    #: Of a heterogeneous job the components after the first one, with the flags of the whole job.
    further: tuple[Component, ...] = ()


@dataclass(frozen=True, slots=True)
class SubmissionContext:
    """What counts beside the lines of a script."""

    #: What would be refused is noted and left out.
    ignores_unknown: bool = False
    #: The command line gives the index of an array's task, so the script is submitted for that one.
    has_array_index: bool = False
    #: `--nodes` of the command line.
    nodes: str | None = None
    #: Of the shell: `SBATCH_...` beats the lines of a script.
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Of each component of the command line of sbatch, which every script that it is given is one
    #: of; None: of no sbatch.
    options: tuple[tuple[GivenOption, ...], ...] | None = None


@dataclass(slots=True)
class _Reading:
    """The state of one pass over the `#FAIRLEAD` lines of a script."""

    file: str
    givens: dict[Flag, tuple[FlagValue, ...]] = field(
        default_factory=dict[Flag, tuple[FlagValue, ...]]
    )
    problems: list[Problem] = field(default_factory=list[Problem])

    def give(self, flag: Flag, value: str, line: int) -> None:
        """Keep a value; a later line replaces an earlier one unless the flag is repeatable."""
        given = FlagValue(value, f"{self.file}:{line}")
        before = self.givens.get(flag, ()) if FLAGS[flag].is_repeatable else ()
        self.givens[flag] = (*before, given)

    def refuse(self, line: int, message: str, help_: str) -> None:
        """Collect a problem."""
        self.problems.append(
            Problem(Code.SCRIPT_HEADER, message, where=f"{self.file}:{line}:1", help=(help_,))
        )


def parse_header(
    text: str, *, file: str, beside: SubmissionContext = SubmissionContext()
) -> Header:
    """Return what the header lines of a script ask for, all problems collected.

    A flag of a `#FAIRLEAD` line beats what `#SBATCH` lines say of it.
    """
    reading, reader = _Reading(file), OptionReader()
    has_sbatch = beside.options is not None
    for number, line in enumerate(text.splitlines()[:HEADER_LINES_MAX], 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if (options := line_options(line)) is not None:
            has_sbatch = True
            reader.read_line(options, f"{file}:{number}")
            continue
        if stripped.startswith("# "):
            stripped = _SPACED.sub(FAIRLEAD, stripped, count=1)
        rest = stripped.removeprefix(FAIRLEAD)
        if rest != stripped and not rest[:1].strip():
            _read_fairlead(reading, rest, number)
    problems, notes = [*reading.problems], [*_overlooked(text, file)]
    givens, components = dict(reading.givens), tuple[Component, ...]()
    if has_sbatch:
        reader.read_variables(beside.environment)
        reader.read_command(beside.options or ())
        if beside.has_array_index:
            for options in (*reader.lines, reader.variables, *reader.command):
                options.pop("array", None)
        own = reading.givens.get(Flag.NODES)
        merged_ = merged(reader)
        is_het = len(merged_.options) > 1
        nodes = None if is_het else beside.nodes or (own[-1].value if own else None)
        found = meaning(merged_.options, nodes)
        problems += [*reader.problems, *merged_.problems, *found.problems]
        problems += refused_flags(reading.givens) if is_het else ()
        notes = [*reader.notes(file), *merged_.notes, *found.notes, *notes]
        whole = dict(merge(givens, found.givens))
        components = tuple(
            replace(each, givens=merge(whole, each.givens)) for each in found.components
        )
    if beside.ignores_unknown:
        notes = [*map(_ignored, problems), *notes]
        problems = []
    notes, problems = list(dict.fromkeys(notes)), list(dict.fromkeys(problems))
    if not components:
        return Header(givens, tuple(notes), tuple(problems))
    first, *further = components
    return Header(first.givens, tuple(notes), tuple(problems), first.batch, tuple(further))


def request_of(
    header: Header, givens: FlagValues, environment: Mapping[str, str], *, now: float
) -> tuple[JobRequest, tuple[Problem, ...]]:
    """Return the request of a script, whose flags `givens` win over those of its header, and all
    that is wrong with it; `environment` and `now` are as in `parse_request`.
    """
    problems = list(refused_flags(givens)) if header.further else []
    found: list[JobRequest] = []
    parts = [(header.givens, header.batch), *((x.givens, x.batch) for x in header.further)]
    for own, batch in parts:
        request, wrong = parse_request(merge(givens, own), environment, batch, now=now)
        found.append(request)
        problems += wrong
    return replace(found[0], further=tuple(found[1:])), tuple(dict.fromkeys(problems))


def _ignored(problem: Problem) -> str:
    place = problem.where.rpartition(":")[0]
    return f"{place}: ignored: {problem.message}" if place else f"ignored: {problem.message}"


def _overlooked(text: str, file: str) -> Iterator[str]:
    """Yield a note on lines that look like requests and are not read: late ones, misspelt ones."""
    is_head, found = True, 0
    for number, line in enumerate(text.splitlines()[:HEADER_LINES_MAX], 1):
        stripped = line.strip()
        is_head = is_head and (not stripped or stripped.startswith("#"))
        is_indented = stripped.startswith(SBATCH) and line_options(line) is None
        match = _REQUEST.match(stripped)
        if match is None or found == OVERLOOKED_SHOWN_MAX:
            continue
        is_spaced = bool(match[1]) and match[2] == FAIRLEAD[1:]
        is_exact = not match[1] and f"#{match[2]}" in (FAIRLEAD, SBATCH)
        near = nearest(match[2].upper(), (FAIRLEAD[1:], SBATCH[1:]))
        if near is None or (is_head and (is_exact or is_spaced) and not is_indented):
            continue
        found += 1
        if is_head and is_indented:
            yield f"{file}:{number}: {SBATCH} is read in the first column only"
        elif is_head:
            yield f"{file}:{number}: '#{match[1]}{match[2]}' is not read; write #{near}"
        elif is_exact or is_spaced:
            yield f"{file}:{number}: #{near} after the first command is not read"


def _read_fairlead(reading: _Reading, text: str, line: int) -> None:
    known = {f"--{name}": flag for name, flag in NAMED.items()}
    try:
        rest = shlex.split(text, comments=True)
    except ValueError as error:
        reading.refuse(line, f"the line cannot be read: {error}", "close the quotation")
        return
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
