"""Teams with strict order in simulated worlds, and a planted bug that their checker reports."""

from __future__ import annotations

import random

import pytest

from fairlead.decide.placement.order import OrderKey
from fairlead.decide.placement.strict_order import StrictOrder
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.explore import explore_one, options_of
from fairlead.sim.team_changes import draw_changes, with_strict_order
from fairlead.sim.world import World

from .test_teams import HOUR, arrival, run_world, team, world_of


def _walk_nothing(_order: StrictOrder, _before: OrderKey) -> None:
    """A planted bug: no job holds up another."""


def passing() -> World:
    """Red's small job comes 400 s after a gang that has to wait for its first one."""
    return world_of(
        arrival(400.0, "red", "first", 3, HOUR),
        arrival(500.0, "red", "large", 4, 60.0),
        arrival(900.0, "red", "small", 1, 60.0),
        changes=(team("red", 4, queueingStrategy="StrictFIFO"),),
    )


def test_no_job_of_a_strict_team_passes_an_earlier_one() -> None:
    world = run_world(passing)
    large, small = (world.checkers.finished["red", name].status for name in ("large", "small"))
    assert str(large.started_at) < str(small.started_at)
    assert world.strict.judged == 3


def test_a_scheduler_without_strict_order_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrictOrder, "_walk", _walk_nothing)
    with pytest.raises(PromiseBroken, match=r"4: red/small of .* passes red/large"):
        run_world(passing)


def test_explored_worlds_have_teams_with_strict_order() -> None:
    drawn = with_strict_order(random.Random(1), draw_changes(random.Random(1), 8, HOUR))
    assert {(c.spec or {}).get("queueingStrategy") for c in drawn} == {None, "StrictFIFO"}
    number = next(
        n for n in range(100)
        if any("queueingStrategy" in (c.spec or {}) for c in options_of(n).team_changes)
        and options_of(n).workload.jobs == 5
    )  # fmt: skip
    assert explore_one(number).broken == ""
