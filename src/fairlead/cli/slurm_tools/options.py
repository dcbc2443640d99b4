"""Options as getopt_long reads them: glued values, clusters, unique prefixes, operands anywhere.

A command's options are written as words: `n/noheader` a switch, `o/format=` one with a value,
`/autocomplete?` one with a value after `=` only. One that begins with `~` is accepted and changes
nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.input.suggest import nearest


class ToolError(Exception):
    """A command that cannot be carried out: the lines of its message, and its exit code."""

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


@dataclass(frozen=True, slots=True)
class ToolOption:
    """One option: its long name, whether it takes a value, and whether it changes anything."""

    name: str
    takes_value: bool = False
    needs_equals: bool = False
    is_ignored: bool = False


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """What a command line has: values by the long names of options, and the operands."""

    options: dict[str, list[str]] = field(default_factory=dict)
    operands: list[str] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """True where one of these options is given."""
        return any(name in self.options for name in names)

    def last(self, *names: str, default: str = "") -> str:
        """Return the last value of the first of these options that is given."""
        return next((self.options[name][-1] for name in names if name in self.options), default)

    def listed(self, *names: str) -> list[str]:
        """Return the values of comma-separated lists, those of a repeated option together."""
        values = (value for name in names for value in self.options.get(name, ()))
        return [part for value in values for part in split_list(value)]

    def names(self, *names: str) -> list[str]:
        """Return the names of comma-separated lists, which may have blanks in them."""
        values = (value for name in names for value in self.options.get(name, ()))
        return [part.strip() for value in values for part in (value, *value.split(","))]


def split_list(text: str) -> list[str]:
    """Return the parts of a list between commas and blanks, those in brackets kept whole."""
    parts, depth, part = list[str](), 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if depth == 0 and char in ", \t\n":
            parts.append(part)
            part = ""
        else:
            part += char
    return [each for each in (*parts, part) if each]


class ToolOptions:
    """The options of one command."""

    def __init__(self, words: str, refused: Mapping[str, str] | None = None) -> None:
        """`refused`: what to do instead of what an option asks for."""
        self._long: dict[str, ToolOption] = {}
        self._short: dict[str, ToolOption] = {}
        self._refused = refused or {}
        for word in words.split():
            self._add(word)

    def described(self) -> Iterator[tuple[str, ToolOption, str]]:
        """Yield how each option is written, the option, and what to do instead of a refused one."""
        letters = {option.name: f"-{letter}" for letter, option in self._short.items()}
        for name, option in self._long.items():
            long = f"--{name}" if len(name) > 1 else ""
            shown = ", ".join(filter(None, (letters.get(name, ""), long)))
            yield shown, option, self._refused.get(name, "")

    def _add(self, word: str) -> None:
        short, _, long = word.removeprefix("~").partition("/")
        name = long.rstrip("=?") or short.rstrip("=?")
        option = ToolOption(
            name, word.endswith(("=", "?")), word.endswith("?"), word.startswith("~")
        )
        self._long[name] = option
        if short.rstrip("=?"):
            self._short[short[0]] = option

    def parse(self, arguments: Sequence[str]) -> GivenOptions:
        """Return what is given; ToolError for what is no option, or is refused."""
        given, rest = GivenOptions(), list(arguments)
        while rest:
            word = rest.pop(0)
            if word == "--":
                given.operands.extend(rest)
                break
            if word.startswith("--"):
                self._read_long(given, word[2:], rest)
            elif word.startswith("-") and len(word) > 1:
                self._read_short(given, word[1:], rest)
            else:
                given.operands.append(word)
        return given

    def _read_long(self, given: GivenOptions, word: str, rest: list[str]) -> None:
        name, equals, value = word.partition("=")
        option = self._long.get(name) or self._of_prefix(name)
        if option.takes_value and not equals and not option.needs_equals:
            value = self._value(f"--{option.name}", rest)
        elif equals and not option.takes_value:
            raise ToolError(f"option '--{option.name}' doesn't allow an argument")
        self._give(given, option, value)

    def _read_short(self, given: GivenOptions, word: str, rest: list[str]) -> None:
        while word:
            letter, word = word[0], word[1:]
            option = self._short.get(letter)
            if option is None:
                raise ToolError(f"invalid option -- '{letter}'")
            if not option.takes_value:
                self._give(given, option, "")
                continue
            if not word and not option.needs_equals:
                word = self._value(f"-{letter}", rest)
            self._give(given, option, word.removeprefix("="))
            return

    def _of_prefix(self, name: str) -> ToolOption:
        """Return the one option that begins with this, as getopt_long does."""
        found = [option for long, option in self._long.items() if long.startswith(name)]
        if name and len(found) == 1:
            return found[0]
        if found and name:
            shown = " ".join(f"'--{each.name}'" for each in found)
            raise ToolError(f"option '--{name}' is ambiguous; possibilities: {shown}")
        near = nearest(name, self._long)
        hint = f"; did you mean --{near}?" if near else ""
        raise ToolError(f"unrecognized option '--{name}'{hint}")

    @staticmethod
    def _value(shown: str, rest: list[str]) -> str:
        if not rest:
            raise ToolError(f"option '{shown}' requires an argument")
        return rest.pop(0)

    def _give(self, given: GivenOptions, option: ToolOption, value: str) -> None:
        if option.name in self._refused:
            raise ToolError(f"--{option.name} cannot be honoured: {self._refused[option.name]}")
        if not option.is_ignored:
            given.options.setdefault(option.name, []).append(value)
