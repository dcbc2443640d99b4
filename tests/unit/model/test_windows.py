"""Maintenance windows of nodes: how they are read, and whom they close a node to."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Role
from fairlead.api.names import DRAIN, HEALTH_DRAIN, MAINTENANCE
from fairlead.api.values.times import parse_time
from fairlead.model.health.windows import Window, closed_of, drain_of, hold_seconds, read_window
from fairlead.model.inventory.window_table import WindowTable
from fairlead.testing.builders import make_job, make_role

TEXT = "2026-12-01T08:00:00Z/2026-12-01T12:00:00Z"
HOUR = 3600.0
START, END = parse_time("2026-12-01T08:00:00Z"), parse_time("2026-12-01T12:00:00Z")


def test_a_window_is_read_in_any_time_zone() -> None:
    assert read_window(TEXT) == Window(START, END)
    assert read_window(" 2026-12-01T09:00:00+01:00 / 2026-12-01T12:00:00z ") == Window(START, END)
    assert read_window(TEXT).words == "from 2026-12-01T08:00:00Z to 2026-12-01T12:00:00Z"


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "tomorrow", "2026-12-01T08:00:00Z", "2026-12-01/2026-12-02", TEXT + "/" + TEXT,
        "2026-12-01T12:00:00Z/2026-12-01T08:00:00Z", "2026-12-01T08:00:00Z/2026-12-01T08:00:00Z",
        "x" * 100_000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_closes_the_node_and_says_so(text: str) -> None:
    window = read_window(text)
    assert window.is_closed(1.0, 0.0)
    assert window.is_closed(inf, END + 1e9)
    assert "accepted: START/END" in window.words
    assert len(window.words) < 300


def test_only_what_may_still_run_then_is_kept_off() -> None:
    window = Window(START, END)
    assert not window.is_closed(3600.0, START - 3600.0)  # it ends as the window begins
    assert window.is_closed(3600.0, START - 3599.0)
    assert window.is_closed(1.0, END - 0.5)
    assert not window.is_closed(inf, END)
    assert window.is_closed(inf, 0.0)


def with_grace(role: Role, seconds: int | None) -> Role:
    spec = replace(role.template.spec, termination_grace_period_seconds=seconds)
    return replace(role, template=replace(role.template, spec=spec))


@pytest.mark.parametrize(
    ("graces", "longest"), [([None], 30), ([0], 0), ([0, 90, None], 90), ([10, None], 30)]
)
def test_a_job_holds_its_nodes_for_its_limit_and_its_longest_grace_period(
    graces: list[int | None], longest: int
) -> None:
    roles = [with_grace(make_role(f"r{i}"), grace) for i, grace in enumerate(graces)]
    assert hold_seconds(make_job("a", roles=roles, time_limit_seconds=600)) == 600.0 + longest
    assert hold_seconds(make_job("a", roles=roles)) == inf


def test_the_table_answers_as_each_window_does() -> None:
    table = WindowTable(4)
    assert not table
    assert table.set(1, read_window(TEXT))
    assert table.set(2, read_window("never"))
    assert not table.set(1, read_window(TEXT))
    slots = np.arange(4)
    for hold in (0.0, 3600.0, inf):
        for now in (-inf, 0.0, START - 1800.0, START, END - 1.0, END):
            windows = (None, read_window(TEXT), read_window("never"), None)
            expected = [w is not None and w.is_closed(hold, now) for w in windows]
            assert table.closed((hold, ""), slots, now).tolist() == expected, (hold, now)
    assert table.next_opening(0.0) == END
    assert table.next_opening(END) is None
    assert table.first([0, 1, 2]) == Window(START, END)
    assert table.first([0, 3]) is None


def test_time_matters_only_where_it_closes_or_opens_a_node() -> None:
    table = WindowTable(1)
    table.set(0, read_window(TEXT))
    for before, now, differs in (
        (0.0, START - 3600.0, False),
        (START - 3600.0, START - 3599.0, True),
        (START, END - 1.0, False),
        (END - 1.0, END, True),
        (END, START, True),
        (END, END + 1e6, False),
    ):
        assert table.turned([(3600.0, "")], before, now) == [0] * differs, (before, now)
    assert table.steady([(3600.0, ""), (inf, "")], START - HOUR / 2) == (START - HOUR, END)
    assert table.steady([(inf, "")], START - HOUR / 2) == (-inf, END)
    assert table.steady([(3600.0, "")], START - HOUR) == (START - HOUR, START - HOUR)
    assert table.steady([(3600.0, "")], END + 1) == (END, inf)
    assert table.set(0, None)
    assert not table
    assert not table.closed((inf, ""), np.arange(1), START).any()


def test_a_table_that_grows_keeps_its_windows() -> None:
    table = WindowTable(1)
    table.set(0, read_window(TEXT))
    table.resize(3)
    assert table.closed((inf, ""), np.arange(3), START).tolist() == [True, False, False]


def test_a_drain_closes_its_node_until_it_is_ended_and_has_a_deadline() -> None:
    drain = drain_of({DRAIN: TEXT})
    assert drain == Window(END, inf, asked_at=START)
    assert closed_of({DRAIN: TEXT, MAINTENANCE: TEXT}) == Window(START, inf)
    assert closed_of({MAINTENANCE: TEXT}) == Window(START, END)
    assert closed_of({}) is None
    words = "from 2026-12-01T08:00:00Z until it is ended"
    assert Window(START, inf).words == words


def test_of_two_drains_the_earlier_deadline_counts() -> None:
    later = "2026-12-01T07:00:00Z/2026-12-02T12:00:00Z"
    for notes in ({DRAIN: TEXT, HEALTH_DRAIN: later}, {DRAIN: later, HEALTH_DRAIN: TEXT}):
        drain = drain_of(notes)
        assert drain is not None
        assert (drain.start, drain.asked_at) == (END, START)


def test_a_drain_without_a_deadline_closes_its_node_and_asks_nobody_to_leave() -> None:
    drain = drain_of({HEALTH_DRAIN: "2026-12-01T08:00:00Z/"})
    assert drain == Window(inf, inf, asked_at=START)
    assert closed_of({HEALTH_DRAIN: "2026-12-01T08:00:00Z/"}) == Window(START, inf)


@pytest.mark.parametrize("text", ["", "/", "soon", f"{TEXT}/{TEXT}", "2026-12-01T08:00:00Z/soon"])
def test_a_drain_that_cannot_be_read_closes_its_node_and_moves_nobody(text: str) -> None:
    drain = drain_of({DRAIN: text})
    assert drain is not None
    assert (drain.start, drain.asked_at) == (inf, -inf)
    closed = closed_of({DRAIN: text})
    assert closed is not None
    assert (closed.start, closed.end) == (-inf, inf)
    assert "cannot be read" in closed.words
