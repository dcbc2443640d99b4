"""How figures are judged, summed up over runs, and set beside those of another commit."""

from __future__ import annotations

import pytest
from bench.harness import BoundsError, Figure, Report, compare, judge, spread_of


def figure(name: str, value: float) -> Figure:
    return Figure(name, value, "s", None, None)


@pytest.mark.parametrize(
    ("value", "entry", "kept"),
    [
        (4.9, {"at_most": 5.0}, True),
        (5.0, {"at_most": 5.0}, True),
        (5.1, {"at_most": 5.0}, False),
        (8000.0, {"at_least": 8000}, True),
        (7999.0, {"at_least": 8000}, False),
        (0.0, {"at_most": 0}, True),
    ],
)
def test_a_figure_is_kept_up_to_and_including_its_bound(
    value: float, entry: dict[str, float], kept: bool
) -> None:
    assert judge(value, entry)[1] is kept


def test_a_figure_without_a_bound_is_neither_kept_nor_missed() -> None:
    assert judge(1.0, {}) == (None, None)


@pytest.mark.parametrize("entry", [{"mean": 1.0}, {"at_most": 1, "at_least": 1}])
def test_a_table_with_no_bound_or_two_is_refused(entry: dict[str, float]) -> None:
    with pytest.raises(BoundsError):
        judge(1.0, entry)


def test_a_report_says_which_bounds_are_missed(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report({"a": {"at_most": 1}, "b": {"at_least": 10}})
    for name, value in (("a", 2.0), ("b", 11.0), ("c", 3.0)):
        report.add(name, value, "s")
    assert [f.ok for f in report.figures] == [False, True, None]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["MISSED", "ok", "bound"]


def test_the_spread_is_that_of_the_runs_that_have_the_figure() -> None:
    runs = [[figure("a", 1.0), figure("b", 7.0)], [figure("a", 3.0)]]
    spreads = {s.name: (s.mean, round(s.spread, 3)) for s in spread_of(runs)}
    assert spreads == {"a": (2.0, 1.414), "b": (7.0, 0.0)}


def test_a_comparison_leaves_out_what_only_one_side_has() -> None:
    earlier = [{"name": "a", "value": 2.0}, {"name": "gone", "value": 1.0}]
    assert compare(earlier, [figure("a", 4.0), figure("new", 1.0)]) == [("a", 2.0, 4.0)]


def test_every_table_of_the_bounds_file_can_be_judged() -> None:
    report = Report()
    for name in report.bounds:
        assert judge(1.0, report.bounds[name])[1] is not None
