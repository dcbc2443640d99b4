"""The table of planted bugs fits the code as it is: `make mutants` runs it."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from tests.tidy.sources import ROOT
from tools.mutants.run import Mutant, load, main

MUTANTS = load()


def statements(text: str) -> dict[str, ast.stmt]:
    """Return the statements of a module by their text, decorators included."""
    lines, found = text.splitlines(), dict[str, ast.stmt]()
    for each in ast.parse(text).body:
        first = min(line.lineno for line in (each, *getattr(each, "decorator_list", ())))
        found["\n".join(lines[first - 1 : each.end_lineno])] = each
    return found


@cache
def sound_statements(file: str) -> dict[str, ast.stmt]:
    return statements((ROOT / file).read_text())


def are_other_code(sound: dict[str, ast.stmt], planted: dict[str, ast.stmt]) -> bool:
    """True when modules differ in more than in layout: equal text is equal code."""
    before = [ast.dump(each) for text, each in sound.items() if text not in planted]
    after = [ast.dump(each) for text, each in planted.items() if text not in sound]
    return before != after


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_planted_bug_applies_to_its_file_at_one_place(mutant: Mutant) -> None:
    planted = mutant.planted(ROOT)  # once
    assert are_other_code(sound_statements(mutant.file), statements(planted))
    assert mutant.effect.endswith(".")
    assert [test for test in mutant.tests.split() if not (ROOT / test).exists()] == []


@pytest.mark.parametrize(("text", "are_other"), [
    ("@one\ndef f():\n    return (1)  # as before\n\nx = 1\n", False),
    ("@two\ndef f():\n    return 1\nx = 1\n", True),
    ("@one\ndef f():\n    return 2\nx = 1\n", True),
    ("@one\ndef f():\n    return 1\n", True),
])  # fmt: skip
def test_other_layout_is_no_other_code(text: str, are_other: bool) -> None:
    sound = statements("@one\ndef f():\n    return 1\nx = 1\n")
    assert are_other_code(sound, statements(text)) is are_other


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
