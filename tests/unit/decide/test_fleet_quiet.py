"""What is recognised as "still nothing to do" is what counting everything again would find."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet, FleetSpec, Freeze
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
    ScaleDown,
)
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.decide.fleet.actions import (
    Action,
    Admit,
    CallLaunch,
    CreateFleet,
    DeleteNode,
    Mark,
    Terminate,
    Unmark,
    WriteFleet,
    WritePool,
)
from fairlead.decide.fleet.cycle import decide_fleet
from fairlead.decide.fleet.pool_status import answered
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView
from fairlead.decide.pinning import Binding
from fairlead.decide.verdict import Decision
from fairlead.model.cluster import ClusterState
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement

STEPS = 300
RESOURCES = {"cpu": "96", "memory": "1Ti"}


class Fleets:
    """Two pools, and what happens to them; whatever is decided is done."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.instant = 0.0
        self.fleet = Fleet(ObjectMeta(name="fleet", resource_version="1"))
        self.pools = {
            name: NodePool(
                ObjectMeta(name=name, uid=f"uid-{name}", finalizers=(names.POOL_FINALIZER,)),
                NodePoolSpec(
                    Provider(ProviderType.SIMULATED), NodeTemplate(dict(RESOURCES)), max=50,
                    min=size, mode=PoolMode.ACTIVE, scale_down=ScaleDown(idle_seconds=200),
                ),
            )
            for name, size in (("a", 30), ("b", 6))
        }  # fmt: skip
        self.machines: dict[str, Instance] = {}
        self.nodes: dict[str, Node] = {}
        self.state = ClusterState.of()
        self.tracked = PoolNodes()
        self.lists: dict[str, Inventory] = {}
        self.version = 1
        self.latency = 0.0
        for pool, count in (("a", 30), ("b", 8)):
            for _ in range(count):
                self.add_machine(pool)
        self.list_machines()

    def add_machine(self, pool: str) -> str:
        self.version += 1
        id_ = f"m{self.version}"
        self.machines[id_] = Instance(id_, pool, InstanceState.RUNNING)
        (made,) = make_nodes(1)
        labels = {names.POOL: pool}
        meta = replace(made.metadata, name=f"n-{id_}", labels=labels)
        self.put(replace(made, metadata=meta, spec=replace(made.spec, provider_id=id_)))
        return id_

    def put(self, node: Node) -> None:
        self.version += 1
        meta = replace(node.metadata, resource_version=str(self.version))
        self.nodes[meta.name] = node = replace(node, metadata=meta)
        self.state.node_changed(node)
        self.tracked.put(node, self.instant)

    def set_ready(self, name: str, *, ready: bool) -> None:
        node = self.nodes[name]
        condition = Condition("Ready", "True" if ready else "False")
        self.put(replace(node, status=replace(node.status, conditions=(condition,))))

    def list_machines(self, *, misses: int = 0) -> None:
        left = list(self.machines.values())[misses:]
        for pool in self.pools:
            found = Inventory(tuple(each for each in left if each.pool == pool))
            if found != self.lists.get(pool):
                self.lists[pool] = found

    def happen(self) -> None:
        """Let something happen, most often nothing; time passes."""
        self.instant += self.rng.choice((5.0, 30.0, 30.0, 30.0, 400.0))
        name = self.rng.choice(list(self.nodes))
        match self.rng.randrange(48):
            case 0:
                for each in self.rng.sample(list(self.nodes), self.rng.choice((2, 3, 5))):
                    self.set_ready(each, ready=False)
            case 1:
                self.set_ready(name, ready=False)
            case 2 | 3:
                for each in list(self.nodes):
                    self.set_ready(each, ready=True)
            case 4 | 5 | 6 | 7:
                used = [each.name for each in self.tracked.by_pool["b"].values()]
                job = make_job("used", placement=make_placement(used))
                self.tracked.job_changed(job.metadata.key, job, self.instant)
            case 8 | 9:
                self.tracked.job_changed(("default", "used"), None, self.instant)
            case 10:
                self.list_machines(misses=1)
            case 11 | 12:
                self.list_machines()
            case 13:
                self.latency = self.rng.choice((0.0, 0.5, 3.0))
            case 14:
                frozen = self.rng.choice((None, None, Freeze("a move")))
                self.fleet = replace(self.fleet, spec=FleetSpec(freeze=frozen))
            case 15:
                pool = self.pools["a"]
                spec = replace(pool.spec, min=self.rng.choice((30, 31)))
                self.pools["a"] = replace(pool, spec=spec)
            case _:
                self.put(self.nodes[name])  # a heartbeat

    def view(self) -> FleetView:
        pools = [PoolView(pool, (), self.lists[name], 1.0) for name, pool in self.pools.items()]
        return FleetView(
            self.fleet, pools, self.tracked, self.state, (), EPOCH + self.instant, self.instant,
            api_latency_seconds=self.latency,
        )  # fmt: skip

    def perform(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            self._perform(action)
        self.list_machines() if actions else None

    def _perform(self, action: Action) -> None:
        match action:
            case WritePool(pool, status):
                self.pools[pool.metadata.name] = replace(pool, status=status)
            case WriteFleet(fleet, status):
                self.version += 1
                meta = replace(fleet.metadata, resource_version=str(self.version))
                self.fleet = replace(fleet, metadata=meta, status=status)
            case CallLaunch(pool, launches):
                name, status = pool.metadata.name, pool.status
                for launch in launches:
                    ids = tuple(self.add_machine(name) for _ in range(launch.count))
                    status = answered(status, launch, ids, working=(), now=EPOCH + self.instant)
                self.pools[name] = replace(pool, status=status)
            case Terminate(instances=ids):
                for id_ in ids:
                    self.machines.pop(id_, None)
            case DeleteNode(node):
                self.nodes.pop(node.metadata.name)
                self.state.node_deleted(node.metadata.name)
                self.tracked.remove(node.metadata.name)
            case Mark(node, why):
                meta = replace(node.metadata, annotations={names.REMOVAL: why})
                spec = replace(node.spec, unschedulable=True)
                self.put(replace(self.nodes[node.metadata.name], metadata=meta, spec=spec))
            case Unmark(node):
                meta = replace(node.metadata, annotations={})
                spec = replace(node.spec, unschedulable=False)
                self.put(replace(self.nodes[node.metadata.name], metadata=meta, spec=spec))
            case Admit() | CreateFleet():
                raise AssertionError("no node joins in this test, and the fleet is there")


def decisions(seed: int) -> Iterator[tuple[Decision[Action], Decision[Action], bool]]:
    """Yield what is decided, what is decided on a full count, and whether it was quiet."""
    fleets, policy = Fleets(seed), FleetPolicy()
    ours, full = FleetMemory(), FleetMemory()
    for _ in range(STEPS):
        fleets.happen()
        view = fleets.view()
        full.quiet = None
        counted, _ = decide_fleet(view, policy, full)
        decided, report = decide_fleet(view, policy, ours)
        for part in ("sight", "bucket", "agree_seconds", "looked_at", "marked", "leaving"):
            assert getattr(ours, part) == getattr(full, part)
        yield decided, counted, report is None
        fleets.perform(decided.actions)
        for action in decided.actions:
            if isinstance(action, WritePool):
                for memory in (ours, full):
                    memory.wrote(action.pool.metadata.name, action.status)


#: Of twelve those that it takes to notice each bug of `quiet.py` that any of them notices.
@pytest.mark.parametrize("seed", [0, 1, 2, 8])
def test_a_quiet_decision_is_what_a_full_count_decides(seed: int) -> None:
    quiet, acted = 0, 0
    for decided, counted, is_quiet in decisions(seed):
        assert decided == counted
        quiet += is_quiet
        acted += bool(decided.actions)
    assert quiet > 3
    assert acted > 10


def test_a_pool_that_is_changed_ends_the_quiet() -> None:
    fleets, memory = Fleets(1), FleetMemory()
    for _ in range(100):
        fleets.instant += 30.0
        decision, report = decide_fleet(fleets.view(), FleetPolicy(), memory)
        if report is None:
            break
        fleets.perform(decision.actions)
    else:
        pytest.fail("it never was quiet")
    pool = fleets.pools["a"]
    fleets.pools["a"] = replace(pool, spec=replace(pool.spec, min=pool.spec.min + 1))
    decision, _ = decide_fleet(fleets.view(), FleetPolicy(), memory)
    assert [type(action) for action in decision.actions] == [WritePool]


def test_heartbeats_change_nothing_that_a_decision_sees() -> None:
    fleets = Fleets(1)
    before = fleets.tracked.version
    for node in list(fleets.nodes.values()):
        fleets.put(node)
    assert fleets.tracked.version == before
    fleets.set_ready(node.metadata.name, ready=False)
    assert fleets.tracked.version > before


def test_a_pool_of_another_autoscaler_is_counted_by_its_nodes_as_no_list_has_its_machines() -> None:
    fleets = Fleets(1)
    pool = fleets.pools["b"]
    external = replace(pool.spec, provider=Provider(ProviderType.EXTERNAL))
    fleets.pools["b"], fleets.lists["b"] = replace(pool, spec=external), Inventory(())
    nodes = [node.name for node in fleets.tracked.by_pool["b"].values()]
    fleets.set_ready(nodes[0], ready=False)
    policy = FleetPolicy(binding=Binding.PINNED)
    _, report = decide_fleet(fleets.view(), policy, FleetMemory())
    found = {plan.census.view.name: plan.census for plan in report.plans}
    assert {name: census.size for name, census in found.items()} == {"a": 30, "b": len(nodes)}
    assert sum(found["b"].coming.values()) == 1
