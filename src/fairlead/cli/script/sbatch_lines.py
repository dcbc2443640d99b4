"""Reads options of sbatch by sbatch's own rules: of lines, of a command line, of variables (pure).

Of a line `#SBATCH ...`, which begins in the first column, a `#` outside of quotes ends the rest;
quotes and backslashes work as in a shell, nothing is expanded, and there may be several options.
Long options may be cut to a prefix that only one of them has. Of one option that is given twice the
last one counts. A word `hetjob`, or `packjob`, begins the next component of a heterogeneous job, as
`:` does on a command line. Source: `_opt_batch_script` in Slurm's `src/sbatch/opt.c`,
getopt_long(3), and Slurm's page "Heterogeneous Job Support".
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.cli.job_request.flag_groups.flags import FlagValue
from fairlead.cli.script.slurm_options import (
    LONG,
    OPTIONS,
    SHORT,
    Argument,
    Option,
    OptionTreatment,
    find_long,
)
from fairlead.input.errors import Code, Problem
from fairlead.input.suggest import nearest

SBATCH = "#SBATCH"
#: Words that begin the next component: in a script, and on a command line.
HETJOB = ("hetjob", "packjob")
COLON = ":"


def line_options(line: str) -> str | None:
    """Return what follows #SBATCH in a line that counts; None for any other."""
    if not line.startswith(SBATCH):
        return None
    rest = line[len(SBATCH) :]
    return rest if not rest or rest[0] in " \t-" else None


@dataclass(frozen=True, slots=True)
class GivenOption:
    """One option as it is written; `option` is None where sbatch has none such."""

    option: Option | None
    shown: str
    value: str = ""


@dataclass(slots=True)
class OptionReader:
    """Reads options one place after the other, and keeps the last value of each."""

    #: Of each component, by name: those of lines, and of a command line.
    lines: list[dict[str, FlagValue]] = field(default_factory=lambda: [{}])
    command: list[dict[str, FlagValue]] = field(default_factory=lambda: [{}])
    #: Of every component, over those of lines.
    variables: dict[str, FlagValue] = field(default_factory=dict[str, FlagValue])
    problems: list[Problem] = field(default_factory=list[Problem])
    #: Options without effect, by the reason: their places and names.
    _noted: dict[str, list[tuple[str, str]]] = field(
        default_factory=dict[str, list[tuple[str, str]]]
    )

    def read_line(self, text: str, origin: str) -> None:
        """Read what follows #SBATCH in the line at `origin`, which is FILE:LINE."""
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            self._refuse(origin, "the line has a quotation without an end", "close the quotation")
            return
        while words:
            word = words[0]
            if word in HETJOB:
                words.pop(0)
                self.lines.append({})
                continue
            given = take_option(words)
            if given is None:
                self._refuse(
                    origin, f"'{word}' is not an option, nor the value of one",
                    "there is no blank around '=', and a value with blanks is quoted",
                )  # fmt: skip
                return
            if given.option is None:
                self._unknown(given.shown, origin)
                if not given.value and words and not words[0].startswith("-"):
                    words.pop(0)
                continue
            self._take(self.lines[-1], given.option, FlagValue(given.value, origin))

    def read_variables(self, environment: Mapping[str, str]) -> None:
        """Read the variables that give options a value, over what was read before."""
        for option in OPTIONS:
            if option.variable and option.variable in environment:
                given = FlagValue(environment[option.variable], f"${option.variable}")
                self._take(self.variables, option, given)

    def read_command(self, components: Sequence[Sequence[GivenOption]]) -> None:
        """Read the options of sbatch's command line, by component, over what was read before."""
        self.command = [{} for _ in components] or [{}]
        for options, given in zip(self.command, components, strict=False):
            for each in given:
                if each.option is None:
                    self._unknown(each.shown, each.shown)
                else:
                    self._take(options, each.option, FlagValue(each.value, each.option.shown))

    def notes(self, file: str) -> Iterator[str]:
        """Yield a note for each reason why options have no effect."""
        for why, found in self._noted.items():
            lines = [origin.removeprefix(f"{file}:") for origin, _ in found if _is_line(origin)]
            places = ", ".join(dict.fromkeys(lines))
            shown = ", ".join(dict.fromkeys(name for _, name in found))
            have = "has" if len(found) == 1 else "have"
            where = f"{file}:{places}: {SBATCH} " if lines else ""
            yield f"{where}{shown} {have} no effect: {why}"

    def _take(self, options: dict[str, FlagValue], option: Option, given: FlagValue) -> None:
        value, origin = given.value, given.origin
        shown = f"{SBATCH} {option.shown}" if _is_line(origin) else origin
        if option.treatment is OptionTreatment.NOTED:
            name = option.shown if _is_line(origin) else origin
            self._noted.setdefault(option.words, []).append((origin, name))
        elif option.treatment is OptionTreatment.REFUSED:
            self._refuse(origin, f"{shown} cannot be honoured", option.words)
            return
        elif option.argument is Argument.REQUIRED and not value and not option.may_be_empty:
            self._refuse(origin, f"{shown} needs a value", "write one, or remove the line")
            return
        options[option.name] = given

    def _unknown(self, shown: str, origin: str) -> None:
        near = nearest(shown.lstrip("-"), LONG)
        help_ = f"did you mean --{near}?" if near else "remove it, or submit with --ignore-unknown"
        where = f"{SBATCH} " if _is_line(origin) else ""
        self._refuse(origin, f"{where}{shown} is not an option of sbatch", help_)

    def _refuse(self, origin: str, message: str, help_: str) -> None:
        where = f"{origin}:1" if _is_line(origin) else ""
        self.problems.append(Problem(Code.SCRIPT_HEADER, message, where=where, help=(help_,)))


def take_option(words: list[str]) -> GivenOption | None:
    """Take an option and its value off the front of some words; None where none is there."""
    name, attached, value = _split(words[0])
    if not name:
        return None
    word = words.pop(0)
    option = find_long(name) if word.startswith("--") else SHORT.get(name)
    if option is None:
        return GivenOption(None, word.partition("=")[0] if len(name) > 1 else f"-{name}", value)
    if option.argument is Argument.NONE and word[:2] != "--" and value:
        words.insert(0, f"-{value}")  # -HQ is -H -Q
        value = ""
    if option.argument is Argument.REQUIRED and not attached and words:
        value = words.pop(0)
    return GivenOption(option, option.shown, value)


def _is_line(origin: str) -> bool:
    """True where an option is from a line: a variable begins with `$`, one of a command `-`."""
    return origin[0] not in "$-"


def _split(word: str) -> tuple[str, bool, str]:
    """Return the name of an option without dashes, and the value that is attached to it, if any.

    The name is empty for a word that is no option.
    """
    if word.startswith("--") and len(word) > 2:
        name, equals, value = word[2:].partition("=")
        return name, bool(equals), value
    if word.startswith("-") and len(word) > 1 and word != "--":
        value = word[2:].removeprefix("=")
        return word[1], bool(value), value
    return "", False, ""
