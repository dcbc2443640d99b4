"""Elastic gangs in simulated worlds whose nodes fail, and planted bugs that the checkers report."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fairlead.decide.placement.desk import context, repair
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.repair import RepairScope
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World

from .test_teams import HOUR, run_world


def busy() -> World:
    """Eight nodes, of which one fails each minute, and 40 jobs in an hour that all are elastic."""
    workload = WorkloadOptions(
        40, HOUR, members_max=8, failing_share=0.0, elastic_share=1.0,
        run_seconds_median=900.0, run_seconds_max=HOUR,
    )  # fmt: skip
    options = WorldOptions(8, workload, node_failures_per_day=1500.0, node_repair_seconds=300.0)
    return World(options, 7)


def test_gangs_begin_small_shrink_and_grow_and_all_end() -> None:
    world = run_world(busy)
    assert len(world.checkers.finished) == 40
    begun = shrunk = grown = 0
    for job in world.checkers.finished.values():
        sizes = [attempt.sizes["worker"] for attempt in job.status.attempts if attempt.sizes]
        begun += bool(sizes) and sizes[0] < job.spec.roles[0].count
        shrunk += any(a > b for a, b in pairwise(sizes))
        grown += any(a < b for a, b in pairwise(sizes))
    assert min(begun, shrunk, grown) > 0


def test_a_planner_that_takes_less_than_the_least_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_less(capacity, gang, plan_of, admits):
        return plan_of(gang.sized([max(role.count - 1, 1) for role in gang.roles]))

    monkeypatch.setattr(context, "largest_plan", one_less)
    with pytest.raises(PromiseBroken, match=r"^2: role worker of .* places in attempt "):
        run_world(busy)


def test_a_repair_that_waits_for_all_lost_members_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_or_none(capacity, gang, scope: RepairScope) -> None:
        del capacity, gang, scope

    monkeypatch.setattr(PlanningContext, "growth", lambda *_: None)
    monkeypatch.setattr(repair, "plan_repair", all_or_none)
    with pytest.raises(PromiseBroken, match=r"^3: .* waits in repair with \d members"):
        run_world(busy)


def test_explored_worlds_have_elastic_gangs_and_others() -> None:
    shares = {options_of(number).workload.elastic_share for number in range(40)}
    assert shares == {0.0, 0.3, 1.0}
