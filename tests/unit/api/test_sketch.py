"""Sketches: accurate to one percent, added and taken away exactly, and bounded as texts."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.values.sketch import (
    ACCURACY,
    LEAST,
    MOST,
    TEXT_BINS_MAX,
    TEXT_MAX,
    TEXT_PATTERN,
    BadSketch,
    Sketch,
    parse_sketch,
)

VALUES = st.lists(st.floats(LEAST, MOST) | st.just(0.0), min_size=1, max_size=60)


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        assert sketch.add(value)
    return sketch


@given(VALUES, st.lists(st.floats(0, 1), max_size=5))
def test_figures_are_within_one_percent_of_the_exact_ones(
    values: list[float], wanted: list[float]
) -> None:
    sketch, exact = sketch_of(values), sorted(values)
    asked = sorted([0.0, *wanted, 1.0])
    for q, found in zip(asked, sketch.quantiles(asked), strict=True):
        true = exact[math.floor(q * (len(exact) - 1))]
        assert found == pytest.approx(true, rel=ACCURACY * 1.0001, abs=LEAST)
    assert sketch.count == len(values)
    assert sketch.total == pytest.approx(sum(values), rel=ACCURACY * 1.0001, abs=1e-4)


@given(VALUES, VALUES)
def test_what_was_added_is_taken_away_without_a_rest(one: list[float], two: list[float]) -> None:
    both, other = sketch_of(one), sketch_of(two)
    both.merge(other)
    assert both == sketch_of(one + two)
    both.merge(other, -1)
    assert both == sketch_of(one)


@given(VALUES)
def test_a_text_is_the_sketch_within_its_bounds(values: list[float]) -> None:
    sketch = sketch_of(values)
    text = sketch.text()
    assert len(text) <= TEXT_MAX
    assert re.search(TEXT_PATTERN, text)
    assert parse_sketch(text) == sketch


def test_of_too_many_bins_the_lowest_are_added_up() -> None:
    values = [1.05**number for number in range(500)]
    sketch = parse_sketch(sketch_of(values).text())
    assert len(sketch.counts) == TEXT_BINS_MAX
    assert sketch.count == 500
    assert list(sketch.quantiles([0.9, 0.99, 1])) == pytest.approx(
        [values[449], values[494], values[499]], rel=ACCURACY
    )


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf, MOST * 2, -1e-9])
def test_what_is_no_amount_is_refused(value: float) -> None:
    sketch = Sketch()
    assert not sketch.add(value)
    assert sketch == Sketch()
    assert list(sketch.quantiles([0.5])) == []


@pytest.mark.parametrize(
    "text",
    ["1", "1:", ":1", "1:0", "1:1 1:2", "z:1 z:1", "99999:1", "9000:1", "-9000:1", "1:99999", "a:1",
     "1:1  2:1", " 1:1", "1:1\n", "1:-1", "1:1,2:1", "\u0661:1", "1:1 " * 200,
     " ".join(f"{number}:1" for number in range(TEXT_BINS_MAX + 1))],
)  # fmt: skip
def test_a_text_that_is_no_sketch_is_refused(text: str) -> None:
    with pytest.raises(BadSketch):
        parse_sketch(text)


@given(st.text(st.sampled_from("z-0123456789: "), max_size=TEXT_MAX))
def test_any_text_is_a_sketch_or_refused(text: str) -> None:
    try:
        sketch = parse_sketch(text)
    except BadSketch:
        return
    assert len(sketch.counts) <= TEXT_BINS_MAX
    assert all(0 <= each <= MOST * 1.1 for each in sketch.quantiles([0, 0.5, 1]))
