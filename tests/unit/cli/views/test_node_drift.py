"""Tests of nodes by the version of their driver: rows, drift of the same nodes, the page."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.cli.views.test_node_tests import _test  # the same nodes

from fairlead.api.cluster.node_test import NodeTest
from fairlead.cli.views.node_drift import by_version, drift_page, drift_rows, histogram


def under(version: str, node: str, value: float, number: int = 1) -> NodeTest:
    test = _test(node, value, number=number)
    return replace(test, status=replace(test.status, versions={"driver": version}))


def fleet() -> list[NodeTest]:
    """Return nine nodes of which eight were upgraded, and are 5 % slower since; one is an outlier
    under both.
    """
    good = [f"n{i}" for i in range(7)]
    old = [*((n, 1e10) for n in good), ("bad", 5e9), ("late", 1e10)]
    new = [*((n, 0.95e10) for n in good), ("bad", 4.75e9)]
    return [
        *(under("550.127.5", n, value, 2) for n, value in new),
        *(under("550.54.15", n, value) for n, value in old),
        _test("unknown", 1.0),
    ]


def test_each_version_has_its_own_spread_and_the_drift_of_the_same_nodes() -> None:
    first, second = drift_rows(fleet(), "driver")
    assert first == (
        "a", "quick", "memory", "copyBytesPerSecond", "550.54.15", "9", "5 GB/s", "10 GB/s",
        "10 GB/s", "9 GB/s", "-", "▁        █", "bad",
    )  # fmt: skip
    assert second == (
        "a", "quick", "memory", "copyBytesPerSecond", "550.127.5", "8", "4.75 GB/s", "9.5 GB/s",
        "9.5 GB/s", "8.55 GB/s", "-5.0 % of 8", "▂        █", "bad",
    )  # fmt: skip
    assert drift_rows(fleet(), "kernel") == []


def test_nodes_that_nobody_measured_before_have_no_drift() -> None:
    _, new = drift_rows([under("1", "n1", 1e10), under("2", "n2", 5e9)], "driver")
    assert new[10] == "-"
    assert drift_rows([under("1", "n1", 0.0), under("2", "n1", 5e9, 2)], "driver")[1][10] == "-"


def test_the_bars_show_every_value_and_are_ten() -> None:
    assert histogram([1.0] * 100 + [10.0], 1.0, 10.0) == "█        ▁"
    assert histogram([2.0, 2.0], 2.0, 2.0) == "█         "
    assert histogram([], 0.0, 1.0) == " " * 10


def test_a_page_has_a_point_for_each_node_and_escapes_what_nodes_say() -> None:
    page = drift_page([*fleet(), under("<b>", "<script>", 1e10)], "driver")
    assert page.startswith("<!doctype html>")
    assert "<title>bad</title>" in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<b>" not in page
    assert "No test has measured" in drift_page([], "driver")


def test_a_chart_of_many_nodes_keeps_the_worst_ones() -> None:
    many = [under("1", f"n{i:04}", 1e9 + i) for i in range(5000)]
    (figure,) = by_version(many, "driver")
    assert len(figure.values["1"]) == 5000
    page = drift_page(many, "driver")
    assert all(f"<title>n{i:04}</title>" in page for i in range(50))
    assert page.count("<circle") < 500
