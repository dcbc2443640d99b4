"""The options of each component of a heterogeneous job (pure).

What a script and a command line say is merged component by component: an option of the command line
beats a variable, and that a line. A component has what the one before it carries over
(`Reach`), unless it says so itself. Source: Slurm's page "Heterogeneous Job Support".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.cli.formats.text import parse_slurm_limit
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues
from fairlead.cli.script.sbatch_lines import COLON, GivenOption, OptionReader, take_option
from fairlead.cli.script.slurm_amounts import MEMORY, Options
from fairlead.cli.script.slurm_options import LONG, Reach
from fairlead.input.errors import Code, Problem

#: Slurm's own limit (MAX_HET_JOB_COMPS).
COMPONENTS_MAX = 128
_ARRAY = "an array of heterogeneous jobs has no equal, in Slurm neither"
#: Flags that say nothing of which component they mean.
_OF_ONE_COMPONENT = (Flag.NODES, Flag.ONE_PER_NODE, Flag.GPUS, Flag.CPUS, Flag.MEMORY)


@dataclass(frozen=True, slots=True)
class Components:
    """The options of each component, one at least, what was noted, and what is wrong."""

    options: tuple[Options, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def merged(reader: OptionReader) -> Components:
    """Return the options of each component."""
    count = max(len(reader.lines), len(reader.command))
    found: list[dict[str, FlagValue]] = []
    notes: list[str] = []
    problems: list[Problem] = []
    for place in range(min(count, COMPONENTS_MAX)):
        own = {**_at(reader.lines, place), **reader.variables, **_at(reader.command, place)}
        if count > 1 and (given := own.pop("array", None)) is not None:
            problems.append(problem(given, f"--array: {_ARRAY}", "submit one job for each"))
        if found:
            for name, given in _others_of_the_job(found[0], own):
                if LONG[name].reach is Reach.JOB:
                    problems.append(_refused(name, given, found[0]))
                else:
                    notes.append(f"{given.origin}: --{name} has no effect in a later component: "
                                 "the job has that of the first one")  # fmt: skip
                del own[name]
            own = {**_carried(found[-1], own), **own}
        found.append(own)
    if count > COMPONENTS_MAX:
        why = f"there are {count} components; a job may have {COMPONENTS_MAX}"
        problems.append(Problem(Code.SCRIPT_HEADER, why))
    return Components(tuple(found), tuple(notes), tuple(problems))


def _at(components: Sequence[Options], place: int) -> Options:
    return components[place] if place < len(components) else {}


def _others_of_the_job(first: Options, own: Options) -> list[tuple[str, FlagValue]]:
    """Return the options of which the job has one, and a later component another one."""
    of_job = (Reach.JOB, Reach.FIRST)
    return [
        (name, given) for name, given in own.items()
        if LONG[name].reach in of_job
        and (name not in first or not _is_same(name, first[name].value, given.value))
    ]  # fmt: skip


def _is_same(name: str, first: str, other: str) -> bool:
    """True where two values of an option mean the same: times are compared as amounts."""
    if name != "time":
        return first == other
    try:
        return parse_slurm_limit(first) == parse_slurm_limit(other)
    except ValueError:
        return first == other  # the reader of the first one says what is wrong with it


def _carried(before: Options, own: Options) -> dict[str, FlagValue]:
    """Return what a component has from the one before it; of sizes of memory one alone."""
    has_memory = any(name in own for name in MEMORY)
    return {
        name: given for name, given in before.items()
        if LONG[name].reach is not Reach.COMPONENT and not (has_memory and name in MEMORY)
    }  # fmt: skip


def _refused(name: str, given: FlagValue, first: Options) -> Problem:
    has = f"={first[name].value}" if name in first else ""
    why = f"--{name}={given.value}" if given.value else f"--{name}"
    message = f"{why} is not that of the first component{f', {has[1:]}' if has else ''}"
    help_ = f"all components start and end together: write --{name} in the first one"
    return problem(given, message, help_)


def problem(given: FlagValue, message: str, help_: str) -> Problem:
    """Return a problem at the place of an option or a flag."""
    where = f"{given.origin}:1" if given.is_in_file else ""
    is_named = given.is_in_file or message.startswith(given.origin)
    text = message if is_named else f"{given.origin}: {message}"
    return Problem(Code.SCRIPT_HEADER, text, where=where, help=(help_,))


def refused_flags(givens: FlagValues) -> Iterator[Problem]:
    """Yield what flags of Fairlead ask of a heterogeneous job that has no meaning there."""
    for flag in _OF_ONE_COMPONENT:
        for given in givens.get(flag, ()):
            message = f"--{flag.value} does not say which component of the script it is for"
            yield problem(given, message, "write it in the #SBATCH lines of that component")
    for given in givens.get(Flag.ARRAY, ()):
        yield problem(given, f"--array: {_ARRAY}", "submit one job for each")


def separated(words: list[str]) -> list[tuple[GivenOption, ...]]:
    """Take the options of each component off the front of some words: those between `:`."""
    found: list[list[GivenOption]] = [[]]
    while words:
        if words[0] == COLON:
            words.pop(0)
            found.append([])
            continue
        given = take_option(words)
        if given is None:
            break
        found[-1].append(given)
    return [tuple(each) for each in found]
