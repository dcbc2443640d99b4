"""The scheduler skips a cycle only where it would have decided nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.nodes.fleet import FleetController
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.placement.actions import WriteVerdict
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import Decision
from fairlead.runtime.watching.mirror import Change
from fairlead.sim.setup.faults import PERFECT, ROUGH
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import simulate
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

#: Where writes fail, any decision may send them again.
CALM = replace(BUSY, faults=PERFECT, calls_between_kills_mean=0.0)


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
    simulate(BUSY, 0)
    assert min(seen[True], seen[False]) > 20, seen


def test_where_there_are_teams_every_change_is_decided_on() -> None:
    """Their use counts from decision to decision, so a skipped one would count the old use."""
    state = PlacementState()
    assert state.is_settled
    state.cluster.team_changed("research", make_team("research"))
    assert not state.is_settled
    state.cluster.team_changed("research", None)
    assert state.is_settled


def are_due(decision: Decision[Any], due_at: float | None) -> bool:
    """True for verdicts for whose sake another decision was due: their budget fills with time."""
    return due_at is not None and all(isinstance(each, WriteVerdict) for each in decision.actions)


def test_changes_that_do_not_count_give_a_decision_no_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = SchedulerController.decide
    uncounted, decided_on, seen = Counter[int](), dict[int, int](), Counter[str]()

    def noting(what: str) -> None:
        take_in = getattr(ClusterWorld, what)

        def noted(world: ClusterWorld, change: Change[Any]) -> None:
            before = world.change_count
            take_in(world, change)
            is_counted = world.change_count == before  # `_follow` has counted it
            uncounted[id(world)] += not is_counted
            seen[f"{what} {is_counted}"] += 1

        monkeypatch.setattr(ClusterWorld, what, noted)

    def eager(scheduler: SchedulerController) -> float | None:
        world = scheduler._world
        is_current = uncounted[id(world)] == decided_on.get(id(scheduler))
        is_current = is_current and world.change_count == scheduler._decided_on
        return scheduler._wake_at if is_current else 0.0

    def checked(scheduler: SchedulerController, now: float) -> Decision[Any]:
        world, due_at = scheduler._world, scheduler._wake_at
        is_due = due_at is not None and due_at <= now
        is_same = world.change_count == scheduler._decided_on and not is_due
        decision = decide(scheduler, now)
        is_more = uncounted[id(world)] != decided_on.get(id(scheduler))
        decided_on[id(scheduler)] = uncounted[id(world)]
        if is_same and is_more and not scheduler._uncertain:
            seen["decided on nothing"] += 1
            assert not decision.actions or are_due(decision, due_at), decision.actions
        return decision

    noting("_pod_changed")
    noting("_job_changed")
    monkeypatch.setattr(SchedulerController, "due_at", eager)
    monkeypatch.setattr(SchedulerController, "decide", checked)
    for seed in range(2):
        simulate(CALM, seed)
    assert len(seen) == 5, seen
    assert min(seen.values()) > 50, seen


def test_without_pools_the_fleet_is_not_decided_on_when_jobs_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide, seen = FleetController.decide, Counter[str]()

    def counted(fleet: FleetController, now: float) -> Decision[Any]:
        decision = decide(fleet, now)
        seen["decisions" if len(fleet._fleets) else "before there is a Fleet"] += 1
        return decision

    monkeypatch.setattr(FleetController, "decide", counted)
    world = replace(
        CALM, groups=0, node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0,
        health=HealthPolicy(enabled=True, act_on=("*",)), sick_nodes_per_day=200.0,
    )  # fmt: skip
    outcome = simulate(world, 0)
    assert outcome.jobs == 40
    assert 0 < seen["decisions"] < outcome.writes / 20, (seen, outcome.writes)
