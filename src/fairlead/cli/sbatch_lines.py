"""Reads options of sbatch by sbatch's own rules: of lines, of a command line, of variables (pure).

Of a line `#SBATCH ...`, which begins in the first column, a `#` outside of quotes ends the rest;
quotes and backslashes work as in a shell, nothing is expanded, and there may be several options.
Long options may be cut to a prefix that only one of them has. Of one option that is given twice the
last one counts. Source: `_opt_batch_script` in Slurm's `src/sbatch/opt.c`, and getopt_long(3).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.cli.flags import FlagValue
from fairlead.cli.slurm_options import LONG, OPTIONS, SHORT, Argument, Option, Treatment, find_long
from fairlead.input.errors import Code, Problem
from fairlead.input.suggest import nearest

SBATCH = "#SBATCH"


def line_options(line: str) -> str | None:
    """Return what follows #SBATCH in a line that counts; None for any other."""
    if not line.startswith(SBATCH):
        return None
    rest = line[len(SBATCH) :]
    return rest if not rest or rest[0] in " \t-" else None


@dataclass(slots=True)
class OptionReader:
    """Reads options one place after the other, and keeps the last value of each."""

    #: By name.
    options: dict[str, FlagValue] = field(default_factory=dict[str, FlagValue])
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
            word = words.pop(0)
            name, attached, value = _split(word)
            if not name:
                self._refuse(
                    origin, f"'{word}' is not an option, nor the value of one",
                    "there is no blank around '=', and a value with blanks is quoted",
                )  # fmt: skip
                return
            option = find_long(name) if word.startswith("--") else SHORT.get(name)
            if option is None:
                self._unknown(word.partition("=")[0] if len(name) > 1 else f"-{name}", origin)
                if not attached and words and not words[0].startswith("-"):
                    words.pop(0)
                continue
            if option.argument is Argument.NONE and word[:2] != "--" and value:
                words.insert(0, f"-{value}")  # -HQ is -H -Q
                value = ""
            if option.argument is Argument.REQUIRED and not attached and words:
                value = words.pop(0)
            self._take(option, value, origin)

    def read_variables(self, environment: Mapping[str, str]) -> None:
        """Read the variables that give options a value, over what was read before."""
        for option in OPTIONS:
            if option.variable and option.variable in environment:
                self._take(option, environment[option.variable], f"${option.variable}")

    def notes(self, file: str) -> Iterator[str]:
        """Yield a note for each reason why options have no effect."""
        for why, found in self._noted.items():
            lines = [origin.removeprefix(f"{file}:") for origin, _ in found if origin[0] != "$"]
            places = ", ".join(dict.fromkeys(lines))
            shown = ", ".join(dict.fromkeys(name for _, name in found))
            have = "has" if len(found) == 1 else "have"
            where = f"{file}:{places}: {SBATCH} " if lines else ""
            yield f"{where}{shown} {have} no effect: {why}"

    def _take(self, option: Option, value: str, origin: str) -> None:
        shown = f"{SBATCH} {option.shown}" if origin[0] != "$" else origin
        if option.treatment is Treatment.NOTED:
            name = option.shown if origin[0] != "$" else origin
            self._noted.setdefault(option.words, []).append((origin, name))
        elif option.treatment is Treatment.REFUSED:
            self._refuse(origin, f"{shown} cannot be honoured", option.words)
            return
        elif option.argument is Argument.REQUIRED and not value:
            self._refuse(origin, f"{shown} needs a value", "write one, or remove the line")
            return
        self.options[option.name] = FlagValue(value, origin)

    def _unknown(self, shown: str, origin: str) -> None:
        near = nearest(shown.lstrip("-"), LONG)
        help_ = f"did you mean --{near}?" if near else "remove it, or submit with --ignore-unknown"
        self._refuse(origin, f"{SBATCH} {shown} is not an option of sbatch", help_)

    def _refuse(self, origin: str, message: str, help_: str) -> None:
        where = "" if origin[0] == "$" else f"{origin}:1"
        self.problems.append(Problem(Code.SCRIPT_HEADER, message, where=where, help=(help_,)))


def _split(word: str) -> tuple[str, bool, str]:
    """Return the name of an option without dashes, and the value that is attached to it, if any.

    The name is empty for a word that is no option.
    """
    if word.startswith("--") and len(word) > 2:
        name, equals, value = word[2:].partition("=")
        return name, bool(equals), value
    if word.startswith("-") and len(word) > 1:
        value = word[2:].removeprefix("=")
        return word[1], bool(value), value
    return "", False, ""
