"""The boards as a page: every panel is there, and shows what the server answered."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.doctor.loopback import Answer, Loopback, loopback
from tests.unit.doctor.pictured import pictured

from fairlead.cli.main import guarded
from fairlead.doctor.check import Harm, Limit
from fairlead.doctor.monitoring.boards import Board, Panel, all_boards
from fairlead.doctor.output import snapshot as drawing
from fairlead.doctor.output.snapshot import SERIES_MAX, drawn, snapshot_page
from fairlead.doctor.prometheus import ranges
from fairlead.doctor.prometheus.api import BadPrometheusAnswer
from fairlead.doctor.prometheus.ranges import POINTS_MAX, QueryWindow, RangeSeries, matrix

WINDOW = QueryWindow(1_000, 1_080, 20)
Query = dict[str, str]


def asked(server: Loopback) -> list[Query]:
    paths = [path.partition("?")[2] for _, path, _, _ in server.seen]
    return [dict(urllib.parse.parse_qsl(each)) for each in paths]


def answer(*series: tuple[dict[str, str], list[tuple[float, str]]]) -> Answer:
    result = [{"metric": metric, "values": values} for metric, values in series]
    return Answer(json.dumps({"data": {"resultType": "matrix", "result": result}}).encode())


def rising(query: Query) -> list[tuple[float, str]]:
    """Return the values 0, 1, 2 ... at the instants that a query asks for."""
    instants = range(int(query["start"]), int(query["end"]) + 1, int(query["step"]))
    return [(at, str(number)) for number, at in enumerate(instants)]


def served(of_query: Callable[[Query], Answer]) -> Callable[[str, bytes], Answer]:
    def of_path(path: str, _: bytes) -> Answer:
        return of_query(dict(urllib.parse.parse_qsl(path.partition("?")[2])))

    return of_path


@pytest.mark.parametrize("seconds", [60, 3_600, 7 * 86_400, 400 * 86_400])
def test_a_window_covers_its_time_in_a_bounded_number_of_points(seconds: int) -> None:
    start = 1_764_000_123.5
    window = QueryWindow.of(start, start + seconds)
    instants = window.instants
    assert instants[0] <= start
    assert instants[-1] >= start + seconds
    assert len(instants) <= POINTS_MAX
    assert window.step < seconds / 30


def test_values_that_are_absent_or_no_numbers_are_gaps() -> None:
    values = [(1_000, "1"), (1_020.0, "NaN"), (1_060, "+Inf"), (1_080, "0.5")]
    data = {"resultType": "matrix", "result": [{"metric": {"a": "b"}, "values": values}]}
    assert matrix(data, WINDOW) == (RangeSeries({"a": "b"}, (1.0, None, None, None, 0.5)),)


@pytest.mark.parametrize(
    "result",
    [None, [1], [{"metric": {"a": 1}, "values": []}], [{"metric": {}, "values": [[1, "x"]]}],
     [{"metric": {}, "values": [[1e400, "1"]]}], [{"metric": {}}] * 120_000],
)  # fmt: skip
def test_an_answer_of_another_shape_is_refused(result: Any) -> None:
    with pytest.raises(BadPrometheusAnswer):
        matrix({"resultType": "matrix", "result": result}, WINDOW)


def test_every_panel_is_drawn_with_the_values_of_its_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with loopback(served(lambda query: answer(({"instance": "i"}, rising(query))))) as server:
        assert guarded(["doctor", "snapshot", server.url, "--since", "1h"]) == 0
    panels = list(pictured(capsys.readouterr().out))
    expected = [p.title for board in all_boards() for _, row in board.rows for p in row]
    assert [each.title for each in panels] == expected
    queries = asked(server)
    assert {each["query"] for each in queries} == {
        query.replace("$__rate_interval", "300s") for b in all_boards() for query, _ in b.lines
    }
    points = len(rising(queries[0]))
    read = 0
    for panel in panels:
        assert not panel.is_empty
        if not panel.pixel or panel.text.count('fill-opacity=".75"'):
            continue  # labels such as 3m20s, and stacks
        read += 1
        for line in panel.lines:
            assert line == pytest.approx(list(range(points)), abs=panel.pixel)
    assert read > 50


def test_a_panel_without_data_and_one_that_failed_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def of_query(query: Query) -> Answer:
        if "fairlead_team_gpus" in query["query"]:
            return Answer(b'{"error":"too many <samples>"}', 422)
        return answer()

    with loopback(served(of_query)) as server:
        assert guarded(["doctor", "snapshot", server.url, "--board", "teams"]) == 0
    out, err = capsys.readouterr()
    panels = {each.title: each for each in pictured(out)}
    assert panels["Nodes owned"].is_empty
    assert ">no data<" in panels["Nodes owned"].text
    assert ">not read<" in panels["GPUs held"].text
    assert "HTTP 422, too many &lt;samples&gt;" in panels["GPUs held"].text
    assert "2 of 24 queries failed" in err


def test_labels_and_origin_cannot_break_the_page() -> None:
    panel = Panel("<b>", (("up", "{{x}} {{y}}"),), "why <i>")
    found = ranges.RangeAnswer((RangeSeries({"x": "<script>\n"}, (1.0,) * 5),))
    page = snapshot_page([Board("u", "T<", (("R<", (panel,)),))], {"up": found}, WINDOW, "<at>")
    for each in ("<script>", "<b>", "<i>", "<at>", "T<<", "R<<"):
        assert each not in page
    assert "&lt;script&gt;" in page


def rows(count: int) -> ranges.RangeAnswer:
    return ranges.RangeAnswer(
        tuple(
            RangeSeries({"n": f"{i:03}"}, (float(i), None, float(i), 0.0, 0.0))
            for i in range(count)
        )
    )


def test_of_many_series_the_largest_are_drawn_and_a_stack_keeps_its_height() -> None:
    lines, stack = (Panel("p", (("q", "{{n}}"),), is_stacked=each) for each in (False, True))
    shown, more = drawn(lines, {"q": rows(50)}, WINDOW)
    assert [each.name for each in shown] == [f"{i:03}" for i in range(49, 49 - SERIES_MAX, -1)]
    assert more == 50 - SERIES_MAX
    stacked, more = drawn(stack, {"q": rows(50)}, WINDOW)
    assert (stacked[-1].name, more) == ("39 others", 0)
    assert sum(each.values[0] or 0.0 for each in stacked) == sum(range(50))
    few, more = drawn(lines, {"q": rows(3)}, WINDOW)
    assert ([each.name for each in few], more) == (["000", "001", "002"], 0)


def test_gaps_are_no_lines_and_a_single_value_is_a_dot() -> None:
    found = {"q": ranges.RangeAnswer((RangeSeries({}, (1.0, None, 3.0, 4.0, None)),))}
    panel = Panel("p", (("q", "v"),), levels=(Limit(Harm.WARNING, 2),))
    page = snapshot_page([Board("u", "t", (("r", (panel,)),))], found, WINDOW, "here")
    (read,) = pictured(page)
    assert read.text.count("M") == 2
    assert read.lines[0] == pytest.approx([1, 1, 3, 4], abs=read.pixel)
    assert 'class="limit" stroke="#c77700"' in page
    assert "warning above 2" in page


def test_a_rate_is_over_at_least_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with loopback(served(lambda _: answer())) as server:
        arguments = ["--board", "jobs", "--since", "8d", "--until", "1d"]
        assert guarded(["doctor", "snapshot", server.url, *arguments]) == 0
    query = next(each for each in asked(server) if "rate(" in each["query"])
    assert f"[{query['step']}s]" in query["query"]
    assert int(query["step"]) > 2_500
    assert "no data" in capsys.readouterr().out


def test_a_server_that_is_not_there_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    with loopback(served(lambda _: answer())) as server:
        pass
    assert guarded(["doctor", "snapshot", server.url]) == 3
    out, err = capsys.readouterr()
    assert (out, "could not be read" in err) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--board", "jbos"], "--board jobs"), (["--since", "1"], "has no unit"),
     (["--since", "9999999d"], "no metrics"),
     (["--since", "1h", "--until", "2h"], "longer ago"), (["--job", "x=y"], "SOURCE=REGEX")],
)  # fmt: skip
def test_wrong_flags_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["doctor", "snapshot", "http://127.0.0.1:1", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_slow_server_is_asked_for_a_bounded_time() -> None:
    with loopback(served(lambda _: answer())) as server:
        clock = iter(range(0, 10**6, 30)).__next__
        reader = ranges.BoardReader(server.url, ranges.Web(), clock)
        found = reader.read(all_boards(), WINDOW)
    assert len(server.seen) <= 4
    assert "the 120 s for all answers are over" in {each.failure for each in found.values()}


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [("s", 0.0123, "12.3 ms"), ("s", 2e-5, "20 µs"), ("s", 300, "5m"), ("s", -300, "-5m"),
     ("s", 0, "0 s"), ("bytes", 2.5e9, "2.5 GB"), ("Bps", 1500, "1.5 kB/s"), ("ops", 0.5, "0.5/s"),
     ("percentunit", 0.5, "50 %"), ("h", 72, "72 h")],
)  # fmt: skip
def test_values_have_the_unit_of_the_panel(unit: str, value: float, text: str) -> None:
    assert drawing.FORMS[unit](value) == text
