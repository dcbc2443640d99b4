"""Lines of slurm.conf, by Slurm's own grammar (pure, but for the reader that is handed in).

A `#` that no backslash precedes ends a line, a backslash at the end joins it with the next one,
keys are of any case, a value is one word or quoted, and `Include FILE` is the file's lines.

Source: slurm.conf(5); `src/common/parse_config.c`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from fairlead.input.errors import CliError, Code, Problem

INCLUDES_MAX = 64
#: Lines that describe one thing by several keys; the first one names it.
_RECORDS = frozenset((
    "nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname",
))  # fmt: skip
_COMMENT = re.compile(r"(?<!\\)#.*")
_PAIR = re.compile(r"\s*([A-Za-z_.0-9]+)\s*[-*+/]?=\s*(?:\"([^\"]*)\"|(\S+))(?=\s|$)")
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConfLine:
    """A record, or one setting: `values` by lower-case key, the first of which is `key`."""

    file: str
    line: int
    key: str
    values: Mapping[str, str]
    #: Keys as they are written, by lower-case key.
    written: Mapping[str, str]

    @property
    def where(self) -> str:
        """The place in the file."""
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """The value of the first key."""
        return self.values[self.key]


@dataclass(slots=True)
class Findings:
    """What is wrong with files of Slurm, and what has no counterpart, in the order of reading."""

    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[str] = field(default_factory=list[str])

    def wrong(self, where: str, message: str, *help_: str) -> None:
        """Record a mistake."""
        self.problems.append(Problem(Code.SLURM_FILE, message, where=where, help=help_))

    def note(self, where: str, text: str) -> None:
        """Record what a line has that is not carried over."""
        self.notes.append(f"{where}: {text}")

    def check(self) -> None:
        """Raise CliError with all that is wrong."""
        if self.problems:
            raise CliError(self.problems)


def read_conf(file: str, read: Callable[[str], str], found: Findings) -> list[ConfLine]:
    """Return the lines of a file and of those that it includes.

    `read` returns the text of a file, or raises CliError. Paths of includes are relative to the
    file's directory; `%c` in them is ClusterName.
    """
    reader = _Reader(read, found)
    reader.take(file, read(file), ())
    return reader.lines


class _Reader:
    def __init__(self, read: Callable[[str], str], found: Findings) -> None:
        self._read = read
        self._found = found
        self._includes = 0
        self.lines: list[ConfLine] = []

    def take(self, file: str, text: str, above: tuple[str, ...]) -> None:
        for number, line in _joined(text):
            match = _INCLUDE.fullmatch(line)
            if match is not None:
                self._include(file, number, match[1], above)
                continue
            pairs = self._pairs(file, number, line)
            is_record = bool(pairs) and pairs[0][0].lower() in _RECORDS
            for group in [pairs] if is_record else [[pair] for pair in pairs]:
                values: dict[str, str] = {}
                for key, value in group:
                    values.setdefault(key.lower(), value)
                written = {key.lower(): key for key, _ in group}
                self.lines.append(ConfLine(file, number, group[0][0].lower(), values, written))

    def _pairs(self, file: str, number: int, line: str) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        at = 0
        while line[at:].strip():
            match = _PAIR.match(line, at)
            if match is None:
                message = f"'{line[at:].strip()[:60]}' is not KEY=VALUE"
                self._found.wrong(f"{file}:{number}", message, 'quote a value with blanks: "..."')
                return []
            pairs.append((match[1], match[3] if match[2] is None else match[2]))
            at = match.end()
        return pairs

    def _include(self, file: str, number: int, path: str, above: tuple[str, ...]) -> None:
        named = [line.name for line in self.lines if line.key == "clustername"]
        path = path.replace("%c", named[-1] if named else "")
        target = str(PurePath(file).parent / path)
        self._includes += 1
        if target in (*above, file) or self._includes > INCLUDES_MAX:
            why = "includes itself" if target in (*above, file) else "is one include too many"
            self._found.wrong(f"{file}:{number}", f"'{path}' {why}")
            return
        try:
            text = self._read(target)
        except CliError as error:
            self._found.wrong(f"{file}:{number}", error.problems[0].message)
            return
        self.take(target, text, (*above, file))


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, line) without comments, continued lines as one."""
    begun, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).replace("\\#", "#").rstrip()
        start = start or number
        if line.endswith("\\"):
            begun += line[:-1]
            continue
        yield start, begun + line
        begun, start = "", 0
    if begun:
        yield start, begun
