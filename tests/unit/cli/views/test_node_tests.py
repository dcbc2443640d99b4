"""Tests of nodes as people see them: options, figures, and the fleet beside them."""

from __future__ import annotations

import pytest

from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome
from fairlead.api.cluster.node_suites import suites
from fairlead.api.cluster.node_test import NodeTest, NodeTestPhase, NodeTestSpec, NodeTestStatus
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.cli.formats.options_of_tests import options_of
from fairlead.cli.views.node_tests import (
    compared_rows,
    coverage_lines,
    figure_text,
    fleet_rows,
    rows_of_tests,
)
from fairlead.input.errors import CliError

QUICK = suites()["quick"]


def test_options_have_the_type_of_their_default() -> None:
    given = ["cpu.seconds=2", "clock.seconds=0.5", "names.names=a, b", "disk.directory=/a=b"]
    assert options_of(QUICK, given) == {
        "cpu": {"seconds": 2}, "clock": {"seconds": 0.5}, "names": {"names": ["a", "b"]},
        "disk": {"directory": "/a=b"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cpu", "no test of quick has 'cpu'"),
        ("cpu.second=1", "did you mean cpu.seconds?"),
        ("memory.bytes=1.5", "memory.bytes is a whole number, not '1.5'"),
        ("gpu-memory.share=all", "gpu-memory.share is a number, not 'all'"),
    ],
)
def test_an_option_that_is_none_is_refused_with_what_there_is(given: str, message: str) -> None:
    with pytest.raises(CliError, match="--set") as caught:
        options_of(QUICK, [given])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (16805900000.0, "B/s", "16.8 GB/s"), (999.0, "B", "999 B"), (205.4, "1/s", "205/s"),
        (1.5e15, "1/s", "1.5P/s"), (0.000178, "s", "178 µs"), (0.0, "s", "0 µs"),
        (2.5, "s", "2.5 s"), (2.0, "1", "2"), (0.6789, "ppm", "0.679 ppm"), (7.0, "", "7"),
    ],
)  # fmt: skip
def test_figures_have_three_digits_and_their_unit(value: float, unit: str, text: str) -> None:
    assert figure_text(value, unit) == text


def _test(node: str, value: float, *, number: int = 1, shape: str = "a") -> NodeTest:
    figure = Figure("copyBytesPerSecond", value, limit=9e9)
    measured = (MachineFinding("memory", MachineOutcome.PASSED, figures=(figure,)),
                MachineFinding("gpu-peers", MachineOutcome.SKIPPED, "no GPU"))  # fmt: skip
    status = NodeTestStatus(NodeTestPhase.ENDED, MachineOutcome.PASSED, shape=shape,
                            measured=measured, ended_at=format_time(100.0), attempts=1)  # fmt: skip
    meta = ObjectMeta(name=f"{node}-{number}")
    return NodeTest(meta, NodeTestSpec(node, "uid", "quick", number=number), status)


def test_a_figure_is_beside_the_median_of_the_latest_of_other_nodes_of_the_shape() -> None:
    own = _test("n1", 1e10)
    others = [own, _test("n2", 1.0), _test("n2", 1.2e10, number=2), _test("n3", 1.4e10),
              _test("n4", 5e9, shape="b")]  # fmt: skip
    assert compared_rows(own, others) == [
        ("memory", "Passed", "copyBytesPerSecond", "10 GB/s", "13 GB/s", "2", "9 GB/s", "-", ""),
        ("gpu-peers", "Skipped", "-", "-", "-", "-", "-", "-", "no GPU"),
    ]


def test_the_tests_of_a_node_are_a_row_each() -> None:
    assert rows_of_tests([_test("n1", 1e10)], 160.0) == [
        ("n1-1", "quick", "Person", "Passed", "1m ago", "1", ""),
    ]


def test_the_fleet_is_a_row_per_figure_and_shape_with_the_nodes_beyond_its_limit() -> None:
    tests = [
        *(_test(f"n{i}", 1e10) for i in range(8)), _test("slow", 1e10),
        _test("slow", 4e9, number=2), _test("worse", 3e9), _test("other", 1e9, shape="b"),
    ]  # fmt: skip
    assert fleet_rows(tests) == [
        ("a", "quick", "memory", "copyBytesPerSecond", "10", "3 GB/s", "10 GB/s", "10 GB/s",
         "9 GB/s", "worse, slow"),
        ("b", "quick", "memory", "copyBytesPerSecond", "1", "1 GB/s", "1 GB/s", "1 GB/s", "-", ""),
    ]  # fmt: skip
    assert fleet_rows([]) == []


def test_the_nodes_are_counted_by_their_latest_test() -> None:
    tests = [_test("n1", 1.0), _test("n1", 1.0, number=2), _test("n2", 1.0), _test("gone", 1.0)]
    nodes = {"n1": "uid", "n2": "another", "n3": "uid"}
    assert coverage_lines(tests, nodes, 160.0) == [
        "3 nodes: 1 tested in the last day, 0 before, 2 never", "latest tests: 1 Passed",
    ]  # fmt: skip
    assert coverage_lines(tests, nodes, 100_000.0)[0] == (
        "3 nodes: 0 tested in the last day, 1 before, 2 never"
    )
    assert coverage_lines([], nodes, 0.0) == [
        "3 nodes: 0 tested in the last day, 0 before, 3 never"
    ]
