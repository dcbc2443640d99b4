"""The table of planted bugs fits the code as it is: `make mutants` runs it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

import pytest
from tests.tidy.sources import ROOT
from tools.mutants.run import Mutant, load, main

MUTANTS = load()


@dataclass(frozen=True)
class Source:
    """The lines of a module, and the first and last line of each of its statements."""

    lines: list[str]
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, text: str) -> Source:
        spans = list[tuple[int, int]]()
        for each in ast.parse(text).body:
            first = min(line.lineno for line in (each, *getattr(each, "decorator_list", ())))
            spans.append((first, each.end_lineno or first))
        return cls(text.splitlines(), spans)

    def is_other_code(self, text: str) -> bool:
        """True when the text differs in more than in layout: equal lines are equal code.

        Only the statement is parsed in which the two differ, or all where it is not one.
        """
        lines = text.splitlines()
        fewer = min(len(self.lines), len(lines))
        begin = next((i for i in range(fewer) if self.lines[i] != lines[i]), fewer)
        rest = range(fewer - begin)
        end = next((i for i in rest if self.lines[-1 - i] != lines[-1 - i]), len(rest))
        more = len(lines) - len(self.lines)
        for first, last in self.spans:
            if first - 1 <= begin and len(self.lines) - end <= last:
                before, after = self.lines[first - 1 : last], lines[first - 1 : last + more]
                break
        else:
            before, after = self.lines, lines
        return _code_of(before) != _code_of(after)


def _code_of(lines: list[str]) -> str:
    return ast.dump(ast.parse("\n".join(lines)))


@cache
def sound(file: str) -> Source:
    return Source.of((ROOT / file).read_text())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_planted_bug_applies_to_its_file_at_one_place(mutant: Mutant) -> None:
    planted = mutant.planted(ROOT)  # once
    assert sound(mutant.file).is_other_code(planted)
    assert mutant.effect.endswith(".")
    assert [test for test in mutant.tests.split() if not (ROOT / test).exists()] == []


@pytest.mark.parametrize(("text", "are_other"), [
    ("@one\ndef f():\n    return (1)  # as before\n\nx = 1\n", False),
    ("@two\ndef f():\n    return 1\nx = 1\n", True),
    ("@one\ndef f():\n    return 2\nx = 1\n", True),
    ("@one\ndef f():\n    return 1\n", True),
    ("@one\ndef f():\n    return 1\nx = 1\ny = 2\n", True),
    ("@one\ndef f():\n    return 1\nx = 2\n", True),
    ("@one\ndef f():\n    return 1\nx = (1)\n", False),
])  # fmt: skip
def test_other_layout_is_no_other_code(text: str, are_other: bool) -> None:
    source = Source.of("@one\ndef f():\n    return 1\nx = 1\n")
    assert source.is_other_code(text) is are_other


def test_each_planted_bug_has_a_name_of_its_own() -> None:
    names = [mutant.id for mutant in MUTANTS]
    assert len(names) > 30
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("no-such-bug", 2)])
def test_help_and_an_unknown_id_plant_no_bug(argument: str, code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == code


def test_at_least_fifty_bugs_of_the_table_are_serious() -> None:
    assert sum(mutant.serious for mutant in MUTANTS) >= 50
