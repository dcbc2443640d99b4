"""The scheduler skips a cycle only where it would have decided nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fairlead.controllers.scheduler import SchedulerController
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.verdict import Decision
from fairlead.sim.faults import ROUGH
from fairlead.sim.workload import WorkloadOptions
from fairlead.sim.world import simulate
from fairlead.sim.world_options import WorldOptions
from fairlead.testing.builders import make_team

BUSY = WorldOptions(
    nodes=4,
    workload=WorkloadOptions(
        40, 3600.0, members_max=4, run_seconds_median=120.0, run_seconds_max=600.0
    ),
    groups=3, faults=replace(ROUGH, stall=0.0), calls_between_kills_mean=300.0,
    steps_between_crashes_mean=0.0, node_failures_per_day=300.0, drains_per_day=100.0,
    user_acts_per_day=2000.0,
)  # fmt: skip


def test_while_it_says_that_it_is_settled_a_decision_has_no_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide, seen = SchedulerController.decide, Counter[bool]()

    def eager(scheduler: SchedulerController) -> float | None:
        is_current = scheduler._world.change_count == scheduler._decided_on
        return scheduler._wake_at if is_current else 0.0

    def checked(scheduler: SchedulerController, now: float) -> Decision[Any]:
        is_settled = scheduler.state.is_settled and not scheduler._uncertain
        decision = decide(scheduler, now)
        seen[is_settled] += 1
        assert not (is_settled and decision.actions), decision.actions
        return decision

    monkeypatch.setattr(SchedulerController, "due_at", eager)  # after every change, as it once was
    monkeypatch.setattr(SchedulerController, "decide", checked)
    for seed in range(2):
        simulate(BUSY, seed)
    assert min(seen[True], seen[False]) > 50, seen


def test_where_there_are_teams_every_change_is_decided_on() -> None:
    """Their use counts from decision to decision, so a skipped one would count the old use."""
    state = PlacementState()
    assert state.is_settled
    state.cluster.team_changed("research", make_team("research"))
    assert not state.is_settled
    state.cluster.team_changed("research", None)
    assert state.is_settled
