"""Sweeps: what is tried, the same each time, and what is refused."""

from __future__ import annotations

import pytest

from fairlead.api.jobs.early_stop import EarlyStop, EarlyStopRule, MetricGoal
from fairlead.cli.submitting.sweep_file import (
    ELEMENTS_MAX,
    SweepFile,
    sweep_conflicts,
    sweep_values,
)
from fairlead.input.errors import CliError
from fairlead.input.sections import parse


def values(text: str) -> dict[str, tuple[str, ...]]:
    return dict(sweep_values(parse(text, SweepFile, sweep_conflicts, source="s.yaml")))


def test_a_grid_has_all_combinations_the_last_parameter_fastest() -> None:
    assert values("parameters: {lr: [0.1, 1e-3], opt: [sgd, adam, true]}") == {
        "lr": ("0.1", "0.1", "0.1", "0.001", "0.001", "0.001"),
        "opt": ("sgd", "adam", "true", "sgd", "adam", "true"),
    }


def test_a_range_of_a_grid_has_steps_with_both_ends() -> None:
    text = "parameters: {a: {min: 1, max: 10, steps: 4}}"
    assert values(text) == {"a": ("1", "4", "7", "10")}
    text = "parameters: {a: {min: 0.001, max: 1, steps: 4, log: true}}"
    assert values(text) == {"a": ("0.001", "0.01", "0.1", "1")}
    assert values("parameters: {a: {min: 1, max: 3, steps: 9}}") == {"a": ("1", "2", "3")}


RANDOM = """
method: random
samples: {samples}
seed: {seed}
parameters:
  lr: {{min: 0.0001, max: 0.1, log: true}}
  n: {{min: 1, max: 3}}
  opt: [sgd, adam]
"""


def test_random_values_depend_on_the_seed_alone_and_more_samples_keep_the_first() -> None:
    few, many = (values(RANDOM.format(samples=n, seed=7)) for n in (5, 400))
    assert {name: column[:5] for name, column in many.items()} == few
    assert values(RANDOM.format(samples=5, seed=8)) != few
    assert all(0.0001 <= float(each) <= 0.1 for each in many["lr"])
    below = sum(float(each) < 0.00316 for each in many["lr"])
    assert 140 <= below <= 260, "half of the logarithm's range"
    assert set(many["n"]) == {"1", "2", "3"}
    assert set(many["opt"]) == {"sgd", "adam"}
    # Of `random.random()` alone, whose sequence is the same in each version of Python.
    assert few["n"] == ("3", "2", "2", "2", "3")


def test_a_rule_for_early_stops_becomes_the_field_of_the_array() -> None:
    text = "parameters: {a: [1]}\nearlyStop: {metric: acc, rule: halving, goal: max, firstStep: 9}"
    found = parse(text, SweepFile, sweep_conflicts, source="s.yaml")
    halving = EarlyStop("acc", EarlyStopRule.HALVING, MetricGoal.MAXIMIZE, first_step=9)
    assert found.early_stop.wire() == halving
    none = parse("parameters: {a: [1]}", SweepFile, sweep_conflicts, source="s.yaml")
    assert none.early_stop.wire() is None


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("parameters: {a: [1]}\nearlyStop: {rule: median}", "s.yaml:2:12", "metric is missing"),
        ("parameters: {a: [1]}\nearlyStop: {metric: a, rule: mean}", "s.yaml:2:30", "invalid"),
        ("parameters: {a: [1]}\nearlyStop: {metric: a, factor: 1}", "s.yaml:2:32", "2"),
        ("parameters: {}", "s.yaml:1:1", "there is none"),
        ("method: grid", "s.yaml:1:1", "the field parameters is missing"),
        ("parameters: {a: [1]}\nsamples: 3", "s.yaml:2:1", "a grid has all combinations"),
        ("parameters: {a: [1]}\nmethod: random", "s.yaml:2:1", "random takes samples"),
        ("parameters: {a-b: [1]}", "s.yaml:1:14", "a name has letters"),
        ("parameters: {a: []}", "s.yaml:1:14", "the list is empty"),
        ("parameters: {a: [[1]]}", "s.yaml:1:18", "must be a text, a number"),
        ("parameters: {a: {min: 1}}", "s.yaml:1:14", "a range has two numbers"),
        ("parameters: {a: {min: 1, max: 2}}", "s.yaml:1:14", "of a grid a range has steps"),
        ("parameters: {a: {min: 0, max: 2, log: true, steps: 3}}", "s.yaml:1:18", "larger than 0"),
        ("parameters: {a: {min: 3, max: 2, steps: 3}}", "s.yaml:1:26", "larger than min"),
        ("parameters: {a: {min: 1, max: 2, steps: 3, stp: 1}}", "s.yaml:1:44", "no such field"),
        ("parameters: {a: 5}", "s.yaml:1:14", "must be a list of values, or a range"),
        ("method: random\nsamples: 10001\nparameters: {a: [1]}", "s.yaml:2:10", "10000"),
        ("parameters: {a: {min: 1.0, max: 2, steps: 200}, b: {min: 1.0, max: 2, steps: 200}}",
         "s.yaml:1:1", f"40,000 combinations; at most {ELEMENTS_MAX:,}"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(CliError) as caught:
        values(text)
    problem = caught.value.problems[0]
    assert message in problem.message
    assert problem.where == place
