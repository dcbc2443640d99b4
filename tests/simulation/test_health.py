"""Faults of nodes in simulated worlds, and planted bugs that their checker reports."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.fleet import Fleet, FleetStatus, Repair
from fairlead.api.kubernetes.core import Taint
from fairlead.api.names import TAINT_UNHEALTHY
from fairlead.decide.health import cycle
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.ledger import RailsAccount
from fairlead.sim.actors.health_checker import HealthChecker
from fairlead.sim.explore import explore_one
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

from .test_teams import HOUR, run_world

HEALTH = HealthPolicy(
    enabled=True, act_on=("*",), critical_drain_seconds=120, degraded_drain_seconds=600,
    cosmetic_drain_seconds=1800, reset_seconds=120, reboot_seconds=300,
)  # fmt: skip


def sick(*, faults: float = 500.0, storms: float = 0.0) -> World:
    """60 nodes, a fault every three minutes for two hours, and 60 jobs."""
    workload = WorkloadOptions(60, 2 * HOUR, members_max=4)
    options = WorldOptions(
        60, workload, health=HEALTH, sick_nodes_per_day=faults, sick_storms_per_day=storms
    )
    return World(options, 5)


def stormy() -> World:
    """The same with few faults, and half a dozen storms in which every node looks sick."""
    return sick(faults=12.0, storms=150.0)


def test_nodes_are_taken_out_within_the_budgets_and_all_come_back() -> None:
    world = run_world(sick)
    assert len(world.checkers.finished) == 60
    assert world.agents.faults > 20
    assert world.health.booked >= 3
    assert world.health.judged >= 2 * world.health.booked
    assert world.health.out_since == {}


def test_no_node_is_taken_out_in_a_storm() -> None:
    world = run_world(stormy)
    assert world.agents.storms >= 2
    assert world.health.out_since == {}


def test_a_ledger_that_allows_everything_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RailsAccount, "excess", lambda *_: None)
    with pytest.raises(PromiseBroken, match=r"^6: \d+ nodes are taken out within "):
        run_world(sick)


def test_a_controller_that_believes_a_storm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    look: Any = cycle.look
    monkeypatch.setattr(cycle, "look", lambda *given, **named: (look(*given, **named)[0], ()))
    with pytest.raises(PromiseBroken, match=r"^6: a node is taken out while \d+ of 60 look sick"):
        run_world(stormy)


def test_an_attempt_on_a_node_that_is_out_is_reported() -> None:
    checker = HealthChecker(World(WorldOptions(1), 1).agents)
    status = FleetStatus(repairs=(Repair("n1", "node-n1"),))
    checker.fleet(Fleet(status=status), EPOCH)
    checker.node(make_node("n1"), "n1", EPOCH)
    taints = (Taint(TAINT_UNHEALTHY, "NoSchedule"),)
    checker.node(make_node("n1", taints=taints), "n1", EPOCH)
    job = make_job("train")
    placement = make_placement(["n1"])
    placed = replace(job, status=replace(job.status, placement=placement))
    checker.job(job, job.metadata.key, EPOCH + 10)
    checker.job(placed, job.metadata.key, EPOCH + 20)  # decided before it could be seen
    checker.job(job, job.metadata.key, EPOCH + 30)
    with pytest.raises(PromiseBroken, match=r"^7: attempt 1 of default/train begins on n1"):
        checker.job(placed, job.metadata.key, EPOCH + 300)


def test_a_node_that_is_out_and_in_no_book_is_reported() -> None:
    checker = HealthChecker(World(WorldOptions(1), 1).agents)
    checker.node(make_node("n1"), "n1", EPOCH)
    taints = (Taint(TAINT_UNHEALTHY, "NoSchedule"),)
    with pytest.raises(PromiseBroken, match=r"^6: n1 is taken out, and no book has it"):
        checker.node(make_node("n1", taints=taints), "n1", EPOCH)


def test_a_cordon_that_ends_with_a_fault_is_reported() -> None:
    checker = HealthChecker(World(WorldOptions(1), 1).agents)
    checker.fleet(Fleet(status=FleetStatus(repairs=(Repair("n1", "node-n1"),))), EPOCH)
    taints = (Taint(TAINT_UNHEALTHY, "NoSchedule"),)
    checker.node(make_node("n1", unschedulable=True, taints=taints), "n1", EPOCH)
    with pytest.raises(PromiseBroken, match=r"^7: the cordon of n1 changes with its health"):
        checker.node(make_node("n1"), "n1", EPOCH)


def test_explored_worlds_have_sick_nodes() -> None:
    number = next(
        n for n in range(400)
        if (o := options_of(n)).health.enabled and o.workload.jobs == 20 and o.nodes >= 16
    )  # fmt: skip
    found = explore_one(number)
    assert found.broken == ""
