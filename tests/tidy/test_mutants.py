"""The table of planted bugs fits the code as it is: `make mutants` runs it."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from tests.tidy.sources import ROOT
from tools.mutants.run import Mutant, load, main

MUTANTS = load()


@cache
def sound_code(file: str) -> str:
    return ast.dump(ast.parse((ROOT / file).read_text()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_planted_bug_applies_to_its_file_at_one_place(mutant: Mutant) -> None:
    planted = mutant.planted(ROOT)  # once
    assert ast.dump(ast.parse(planted)) != sound_code(mutant.file)
    assert mutant.effect.endswith(".")
    assert [test for test in mutant.tests.split() if not (ROOT / test).exists()] == []


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
