"""Node pools in simulated worlds: the promises hold, and each checker reports a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet, FleetStatus, Grant, RemovalCause, Removed
from fairlead.api.cluster.node_pool import DeletionPolicy, NodePool
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import Condition
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.fleet.buying.demand import Demand
from fairlead.embedded.virtual.profile import NodeShape
from fairlead.model.health.machines import Instance, InstanceState
from fairlead.sim.actors.machines import FleetChecker, pool_body
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import PoolShape, WorldOptions
from fairlead.sim.world import World, simulate
from fairlead.testing.builders import make_job, make_member_pod, make_node, make_placement

HOUR = 3600.0
JOINING = (Taint(names.TAINT_JOINING, effect="NoSchedule"),)
ROUGH_CLOUD = CloudRates(
    refusal=0.2, error=0.1, never_registers=0.05, latency_seconds_mean=2.0,
    list_lag_seconds_max=30.0, cut=0.05, short=0.05,
)  # fmt: skip
BOUGHT = WorldOptions(
    nodes=0,
    workload=WorkloadOptions(
        15, HOUR, members_max=8, run_seconds_median=300.0, run_seconds_max=1200.0
    ),
    pools=(
        PoolShape("first", 12, weight=1, domains=2, domain_max=6, idle_seconds=300),
        PoolShape("second", 30, headroom=1, per_launch_max=4),
    ),
    cloud=ROUGH_CLOUD,
    lease_seconds=15.0,
    calls_between_kills_mean=150.0,
    steps_between_crashes_mean=60.0,
    node_failures_per_day=60.0,
    drains_per_day=60.0,
)


@pytest.mark.parametrize("seed", range(2))
def test_every_gang_ends_in_a_cluster_that_is_bought_node_by_node(seed: int) -> None:
    outcome = simulate(BOUGHT, seed)
    assert outcome.jobs == outcome.succeeded + outcome.failed == 15
    assert outcome.kills > 10
    assert outcome.machines.launched > 5
    assert 0 < outcome.machines.idle_seconds < outcome.machines.seconds


def test_equal_seeds_buy_the_same() -> None:
    short = replace(BOUGHT, workload=WorkloadOptions(4, 900.0, members_max=4))
    assert simulate(short, 3) == simulate(short, 3)


def test_gangs_that_are_not_bought_for_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fairlead.decide.fleet.buying.purchases.demand_of", lambda *_: Demand()
    )  # planted: nothing is ever needed
    short = replace(
        BOUGHT, workload=WorkloadOptions(3, 600.0, members_max=8), pools=(PoolShape("pool", 30),),
        user_acts_per_day=0.0, settle_seconds_max=2 * HOUR,
    )  # fmt: skip
    with pytest.raises(PromiseBroken, match=r"^3: \d+ jobs never end"):
        simulate(short, 1)


class History:
    """The checker of a world with two pools, and a job whose eight members wait."""

    def __init__(self) -> None:
        self.now = 1000.0
        pools = (PoolShape("p", 8), PoolShape("q", 40))
        self.checker = FleetChecker(WorldOptions(pools=pools), lambda: self.now)
        self.count = 0
        self.put(make_job("a", count=8))

    def put(self, job: Job) -> None:
        self.checker.job(job, job.metadata.key, self.now)

    def members(self, job: Job, *phases: str) -> None:
        for index, phase in enumerate(phases):
            pod = make_member_pod(job, index, phase=phase)
            self.checker.pod(pod, pod.metadata.key, self.now)

    def launch(self, count: int, pool: str = "q") -> list[Instance]:
        made: list[Instance] = []
        for _ in range(count):
            self.count += 1
            made.append(Instance(f"{pool}-{self.count}", pool, InstanceState.STARTING))
            self.checker.launched(made[-1])
        return made

    def node(self, machine: Instance, **more: Any) -> None:
        node = make_node(machine.id, **more)
        node = msgspec.structs.replace(
            node, spec=msgspec.structs.replace(node.spec, provider_id=machine.id)
        )
        self.checker.node(node, machine.id, self.now)

    def working(self, count: int) -> list[Instance]:
        """Return machines that have become nodes."""
        machines: list[Instance] = []
        for _ in range(count):
            machines += self.launch(1)
            self.node(machines[-1])
        return machines

    def pool(self, *, is_deleted: bool, policy: DeletionPolicy = DeletionPolicy.KEEP) -> None:
        at = "2026-01-01T00:00:00Z" if is_deleted else None
        body = pool_body(PoolShape("q", 40), NodeShape(resources={}))
        body["metadata"]["deletionTimestamp"] = at
        body["spec"]["deletionPolicy"] = policy.value
        self.checker.pool(msgspec.convert(body, NodePool), "q", self.now)

    def end(self, *machines: Instance) -> None:
        for machine in machines:
            self.checker.ended(machine)


def sound(history: History) -> None:
    machines = history.launch(8)
    for machine in machines:
        history.node(machine, taints=JOINING)
        history.node(machine)
    used = [machine.id for machine in machines]
    history.put(make_job("a", count=8, placement=make_placement(used)))
    history.now += HOUR
    history.put(make_job("a", count=8, conditions=(Condition("Succeeded", "True"),)))
    history.end(*machines[:4])
    assert not history.checker.forgotten(None)
    assert history.checker.use.seconds == 8 * HOUR
    assert history.checker.use.idle_seconds == 0.0


def deleted_soundly(history: History) -> None:
    marked, *others = history.working(4)
    history.pool(is_deleted=True)
    history.now += 100.0
    history.node(marked, annotations={names.REMOVAL: "x"}, unschedulable=True)
    history.now += 900.0
    history.end(marked)  # it was leaving
    history.pool(is_deleted=True, policy=DeletionPolicy.DRAIN)
    history.end(others[0])
    history.checker.pool(None, "q", history.now)
    history.now += HOUR
    history.pool(is_deleted=False)
    history.launch(1)
    history.end(others[1])


def a_machine_is_bought_for_a_deleted_pool(history: History) -> None:
    history.pool(is_deleted=True, policy=DeletionPolicy.DRAIN)
    history.now += 100.0
    history.launch(1)  # it was decided on before
    history.now += 51.0
    history.launch(1)


def a_deleted_pool_loses_a_machine_that_it_keeps(history: History) -> None:
    machines = history.working(4)
    history.pool(is_deleted=True, policy=DeletionPolicy.DRAIN)
    history.now += 900.0
    history.pool(is_deleted=True)
    history.now += 149.0
    history.end(machines[0])
    history.now += 2.0
    history.node(machines[1], annotations={names.REMOVAL: "x"}, unschedulable=True)
    history.end(machines[1])


def a_pool_grows_beyond_its_limit(history: History) -> None:
    history.put(make_job("b", count=100))
    history.launch(9, "p")


def a_gang_is_bought_for_twice(history: History) -> None:
    history.launch(9)


def more_than_half_of_a_pool_is_ended_in_a_day(history: History) -> None:
    machines = history.working(8)
    history.now += 3 * 24 * HOUR
    history.end(*machines[:4])
    history.end(*history.working(2))  # what was bought just now may go
    history.now += 23 * HOUR
    history.end(machines[4])


def a_machine_is_ended_under_a_job(history: History) -> None:
    machines = history.working(2)
    history.put(make_job("a", count=1, placement=make_placement([machines[0].id])))
    history.now += 200.0
    history.end(machines[0])


def a_machine_is_ended_under_a_member_beside_one_that_ended_well(history: History) -> None:
    machines = history.working(2)
    job = make_job("a", count=2, placement=make_placement([machines[0].id] * 2))
    history.put(job)
    history.members(job, "Succeeded", "Running")
    history.now += 200.0
    history.end(machines[0])


def a_machine_is_ended_under_a_person_s_cordon(history: History) -> None:
    machines = history.working(2)
    history.node(machines[0], unschedulable=True)
    history.end(machines[0])


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (a_pool_grows_beyond_its_limit, "10: pool p has 9 machines, of 8 at most"),
        (a_gang_is_bought_for_twice, "10: 9 machines are coming for 8 at most"),
        (more_than_half_of_a_pool_is_ended_in_a_day, "6: 5 of 8 machines of the fleet are ended"),
        (a_machine_is_ended_under_a_job, "6: the machine of q-1 is ended under"),
        (
            a_machine_is_ended_under_a_member_beside_one_that_ended_well,
            "6: the machine of q-1 is ended under",
        ),
        (a_machine_is_ended_under_a_person_s_cordon, "7: the machine of q-1 is ended under a pers"),
        (a_machine_is_bought_for_a_deleted_pool, "10: a machine is bought for q, .* 151 s ago"),
        (a_deleted_pool_loses_a_machine_that_it_keeps, "6: a machine of q is ended 1 s after"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_of_the_fleet_is_reported(
    planted: Callable[[History], None], says: str
) -> None:
    with pytest.raises(PromiseBroken, match=f"^{says}"):
        planted(History())


def ended_under_members_that_ended_well(history: History) -> None:
    machines = history.working(2)
    job = make_job("a", count=2, placement=make_placement([machines[0].id] * 2))
    history.put(job)
    history.members(job, "Succeeded", "Succeeded")
    history.now += 200.0
    history.end(machines[0])


@pytest.mark.parametrize("history", [sound, deleted_soundly, ended_under_members_that_ended_well])
def test_a_sound_history_is_not_reported(history: Callable[[History], None]) -> None:
    history(History())


def test_pools_are_deleted_kept_and_drained_and_made_again() -> None:
    short = replace(
        BOUGHT, workload=WorkloadOptions(20, HOUR, members_max=4, run_seconds_max=1200.0),
        pool_deletions_per_day=400.0,
    )  # fmt: skip

    async def main() -> World:
        world = World(short, 1)
        await world.run()
        return world

    world = run(main())
    assert world.deleting.pools > 5
    assert world.deleting.left == []
    assert world.machine_use.launched > 5


def test_a_machine_without_a_node_is_forgotten_unless_it_is_going_or_a_budget_is_used() -> None:
    history = History()
    machine = history.launch(1)[0]
    history.now += 900.0
    assert history.checker.forgotten(None) == []
    history.now += 3601.0
    assert history.checker.forgotten(None) == [machine.id]
    assert history.checker.forgotten(Fleet()) == [machine.id]
    going = FleetStatus(grants=(Grant("q", machine.id),))
    assert history.checker.forgotten(Fleet(status=going)) == []
    removed = Removed(90_000.0, "q", "", RemovalCause.FAILED_LAUNCH, 1)
    assert history.checker.forgotten(Fleet(status=FleetStatus(95_000.0, (removed,)))) == []
    old = FleetStatus(200_000.0, (removed,))
    assert history.checker.forgotten(Fleet(status=old)) == [machine.id]
