"""Mutants that a seed draws (`make mutants SEED=n`): what they are, and which count."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from tests.tidy.sources import ROOT
from tools.mutants.covering import Covering, TimedTest
from tools.mutants.sample import (
    Explained,
    Outcome,
    Results,
    diff_of,
    draw,
    explained,
    key_of,
    summary,
)

if TYPE_CHECKING:
    from tools.mutants.changes import Change


def changes_of(text: str) -> list[Change]:
    """Return the bugs of a text; each worker imports this module, and one of them asks."""
    from tools.mutants import changes

    return changes.changes_of(text)


@pytest.mark.parametrize("entry", explained().values(), ids=lambda entry: entry.file)
def test_a_change_that_is_explained_can_still_be_drawn(entry: Explained) -> None:
    """Its lines are there, and a drawn mutant makes this very change of them."""
    text = (ROOT / entry.file).read_text()
    changes = changes_of(text)
    going = [line[1:].strip() for line in entry.diff.strip().splitlines() if line.startswith("-")]
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() in going}
    near = [change for change in changes if lines & set(change.lines)]
    assert key_of(entry.diff) in {key_of(diff_of(text, change.apply())) for change in near}
    assert entry.why.endswith(".")


@pytest.mark.parametrize(
    ("sound", "planted"),
    [
        ("return a < b", ["return a <= b"]),
        ("return min(a, b)", ["return max(a, b)"]),
        ("return any(a)", ["return all(a)"]),
        ("wake(a)", ["pass"]),
        (
            "if a:\n        return b",
            ["if (True):\n        return b", "if (False):\n        return b"],
        ),
        ("return a and not b", ["return a or not b", "return a and b"]),
        ("return a[1]", ["return a[2]"]),
        ("return f(a, b)", ["return f(a, None)", "return f(b)"]),
    ],
)
def test_changes_are_bugs_that_people_write(sound: str, planted: list[str]) -> None:
    found = [
        change.apply() for change in changes_of(f"def f(a: int, b: int) -> int:\n    {sound}\n")
    ]
    assert {f"def f(a: int, b: int) -> int:\n    {text}\n" for text in planted} <= set(found)
    assert len(set(found)) == len(found)


def test_only_bodies_of_functions_change() -> None:
    text = """
        LIMIT: int = 3

        class A:
            size = 1 + 1

            @cache(4)
            def f(self, count: Literal[5] = 6) -> None:
                assert count < 7
                assert_never(count)
                self.keys[count] = None
                x: Annotated[int, 8] = cast("int", 9)
    """
    assert {change.line for change in changes_of(dedent(text))} == {12}


def test_a_change_knows_the_lines_of_its_statement() -> None:
    call, condition = "    g(\n        a,\n        1,\n    )\n", "    if (\n        a\n    ):\n"
    text = f"def f(a):\n{call}{condition}        g()\n"
    lines = {change.line: change.lines for change in changes_of(text)}
    assert lines[4] == range(2, 6)
    assert lines[6] == range(6, 9)


def test_a_seed_draws_the_same_mutants_and_a_larger_count_more() -> None:
    few, more = (
        draw(ROOT, 3, 2, ["model/holdings/suspects"]),
        draw(ROOT, 3, 4, ["model/holdings/suspects"]),
    )
    assert [mutant.text for mutant in few] == [mutant.text for mutant in more[:2]]
    assert len({mutant.text for mutant in more}) == 4
    assert [m.text for m in draw(ROOT, 4, 2, ["model/holdings/suspects"])] != [m.text for m in few]


def test_a_survivor_is_judged_again_once_other_tests_run_its_line(tmp_path: Path) -> None:
    (mutant,) = draw(ROOT, 3, 1, ["model/holdings/suspects"])
    tests = [TimedTest("a", 1.0)]
    for outcome in (Outcome.SURVIVED, Outcome.KILLED):
        Results(tmp_path / "outcomes").add(mutant, tests, outcome)
        results = Results(tmp_path / "outcomes")  # as the next run reads it
        assert results.known(mutant, tests) is outcome
        other = results.known(mutant, [*tests, TimedTest("b", 1.0)])
        assert other is (None if outcome is Outcome.SURVIVED else outcome)


def test_covering_tests_come_quickest_first() -> None:
    known = Covering()
    record = {
        "tests": [["slow", 2.0], ["quick", 0.1]],
        "lines": {"a.py": [[[0, 1], [3]], [[0], [4]]]},
    }
    known.add(json.dumps(record).encode())
    assert [test.id for test in known.of("a.py", range(3, 5))] == ["quick", "slow"]
    assert [test.id for test in known.of("a.py", [4])] == ["slow"]
    assert known.of("b.py", [3]) == []


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.KILLED] * 97 + [Outcome.SURVIVED] * 3, 0),
        ([Outcome.KILLED] * 96 + [Outcome.SURVIVED] * 3 + [Outcome.NOT_RUN], 1),
        ([Outcome.KILLED] * 90 + [Outcome.EXPLAINED] * 10, 0),
        ([Outcome.KILLED, Outcome.UNUSABLE], 2),
    ],
)
def test_a_run_fails_when_more_than_three_in_a_hundred_survive(
    outcomes: list[Outcome], code: int
) -> None:
    assert summary(outcomes)[1] == code
