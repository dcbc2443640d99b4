"""Which offer is bought, and for how long a launch is waited for: prices, headroom, deadlines."""

from __future__ import annotations

import random

from msgspec.structs import replace
from tests.unit.decide.test_fleet_demand import ask, bought

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolDomain,
    PoolMode,
    Provider,
    ProviderType,
    ScaleUp,
)
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Amount, ObjectMeta
from fairlead.decide.fleet.actions import CallLaunch, WritePool
from fairlead.decide.fleet.buying.demand import Offer, template_of
from fairlead.decide.fleet.cycle import decide_fleet
from fairlead.decide.fleet.pool_status import answered
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import EPOCH, make_job


def priced(name: str, price: float, *, gpus: int = 8, room: int = 100, weight: int = 0) -> Offer:
    resources: dict[str, Amount] = {"cpu": "128", "memory": "1Ti", "nvidia.com/gpu": gpus}
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate(resources), 1000)
    node = template_of(NodePool(ObjectMeta(name), spec), None)
    return Offer(name, "", node, room, room, weight, price_micros=int(price * 1e6))


def test_of_the_offers_with_the_most_weight_the_one_that_costs_least_for_the_gang_is_bought() -> (
    None
):
    small, large = priced("small", 6, gpus=4), priced("large", 10)
    assert bought(ask([make_job("a", gpus=4, count=1)], [large, small])) == {("small", ""): 1}
    assert bought(ask([make_job("a", gpus=4, count=2)], [small, large])) == {("large", ""): 1}
    dear = priced("dear", 90, weight=1)
    demand = ask([make_job("a", gpus=4, count=2)], [dear, small, large])
    assert bought(demand) == {("dear", ""): 1}
    full = priced("full", 1, room=1)
    demand = ask([make_job("a", gpus=8, count=2)], [large, full])
    assert bought(demand) == {("large", ""): 2}
    assert demand.purchases["large", ""].passed.keys() == {"full"}


def test_no_offer_that_holds_a_gang_costs_less_than_what_is_bought() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        offers = [
            priced(
                f"p{i}", rng.randint(1, 40), gpus=rng.choice((1, 2, 4, 8)),
                room=rng.choice((1, 3, 30)), weight=rng.randrange(2),
            )
            for i in range(rng.randint(1, 6))
        ]  # fmt: skip
        offers.sort(key=lambda offer: -offer.weight)
        members, gpus = rng.randint(1, 12), rng.choice((1, 2, 4, 8))
        costs: dict[str, tuple[int, int]] = {}
        for each in offers:
            per_node = int(str(each.template.status.allocatable["nvidia.com/gpu"])) // gpus
            if per_node and (nodes := -(-members // per_node)) <= each.room:
                costs[each.pool] = (-each.weight, nodes * each.price_micros)
        found = bought(ask([make_job("a", gpus=gpus, count=members)], offers))
        if costs:
            [(pool, _)] = found
            assert costs[pool] == min(costs.values()), seed


class Scene:
    """A pool, its machines, and decisions whose writes are seen at once."""

    def __init__(self, *, gpus: int = 8, **spec: object) -> None:
        template = NodeTemplate({"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": str(gpus)})
        made = NodePoolSpec(Provider(ProviderType.SIMULATED), template, 10, mode=PoolMode.ACTIVE)
        self.pool = NodePool(
            ObjectMeta("p", uid="uid", finalizers=(names.POOL_FINALIZER,)), replace(made, **spec)
        )
        self.machines: list[Instance] = []
        self.memory, self.nodes = FleetMemory(), PoolNodes()
        self.jobs: list[Job] = []

    def decide(self, seconds: float) -> list[CallLaunch]:
        """Decide at an instant, and apply what is written; return the calls."""
        state = ClusterState.of([], self.jobs)
        gangs = ((key, entry.gang) for key, entry in state.jobs.items())
        waiting = tuple((key, gang) for key, gang in gangs if isinstance(gang, GangRequest))
        view = FleetView(
            Fleet(), [PoolView(self.pool, (), Inventory(tuple(self.machines)), 0.0)], self.nodes,
            state, waiting, EPOCH + seconds, seconds,
        )  # fmt: skip
        decision, _ = decide_fleet(view, FleetPolicy(), self.memory)
        for action in decision.actions:
            if isinstance(action, WritePool):
                self.write(action.status)
        return [action for action in decision.actions if isinstance(action, CallLaunch)]

    def write(self, status: NodePoolStatus) -> None:
        self.pool = replace(self.pool, status=status)
        self.memory.wrote("p", status)

    @property
    def status(self) -> NodePoolStatus:
        return self.pool.status


def test_headroom_in_gpus_is_bought_as_whole_nodes() -> None:
    for headroom, gpus, nodes in ((0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2), (9, 4, 3)):
        scene = Scene(gpus=gpus, headroom_gpus=headroom)
        scene.decide(0.0)
        assert scene.status.wanted == nodes, (headroom, gpus)
    scene = Scene(headroom_gpus=16, headroom_nodes=3)
    scene.decide(0.0)
    assert scene.status.wanted == 3, "the larger of the two"


def test_a_launch_without_an_answer_is_given_up_but_neither_forgotten_nor_bought_again() -> None:
    scene = Scene(min=2, scale_up=ScaleUp(launch_seconds=300))
    scene.decide(0.0)
    [launch] = scene.status.launches
    assert scene.decide(5.0), "it is sent"
    scene.decide(299.0)
    assert scene.status.launches == (launch,)
    scene.decide(301.0)
    assert scene.status.launches[0].given_up_at is not None
    assert scene.status.decisions[-1].action == "GiveUp"
    assert [mark.reason for mark in scene.status.unavailable] == ["no answer in time"]
    for seconds in range(305, 7200, 60):
        [call] = scene.decide(float(seconds))
        assert [each.token for each in call.launches] == [launch.token], "sent on, and no other"
    scene.write(
        answered(scene.status, scene.status.launches[0], ("m", "n"), working=(), now=EPOCH + 7300)
    )
    scene.machines = [Instance(id_, "p", InstanceState.RUNNING) for id_ in ("m", "n")]
    assert scene.decide(7305.0) == []
    assert (scene.status.launching, scene.status.launch_number) == (2, 1), "late, and not twice"
    assert scene.status.unavailable == ()


def test_a_domain_is_avoided_no_longer_once_it_has_launched() -> None:
    scene = Scene(min=2, scale_up=ScaleUp(launch_seconds=300))
    for seconds in (0.0, 5.0, 301.0):
        scene.decide(seconds)
    assert [mark.domain for mark in scene.status.unavailable] == [""]
    scene.write(
        answered(scene.status, scene.status.launches[0], ("m", "n"), working=(), now=EPOCH + 302)
    )
    assert scene.status.unavailable == ()


def test_no_domain_gets_more_than_it_has_room_for() -> None:
    """What a gang needs in it is bought before what the pool is to have anyway."""
    domains = (PoolDomain("a", max=2), PoolDomain("b", max=5))
    scene = Scene(min=6, domains=domains)
    scene.jobs = [make_job("gang", gpus=8)]
    scene.decide(0.0)
    assert [(launch.domain, launch.count) for launch in scene.status.launches] == [
        ("a", 2), ("b", 4)
    ]  # fmt: skip


def test_other_domains_are_bought_in_while_a_launch_that_is_given_up_has_no_answer() -> None:
    domains = (PoolDomain("a"), PoolDomain("b"))
    scene = Scene(min=2, scale_up=ScaleUp(launch_seconds=300), domains=domains)
    for seconds in (0.0, 5.0, 301.0, 306.0):
        scene.decide(seconds)
    assert [(launch.domain, launch.count) for launch in scene.status.launches] == [
        ("a", 2), ("b", 2)
    ]  # fmt: skip
    [call] = scene.decide(311.0)
    assert [launch.domain for launch in call.launches] == ["b", "a"], "the one given up goes last"


def test_a_launch_that_is_given_up_counts_against_the_limit_of_its_pool() -> None:
    domains = (PoolDomain("a"), PoolDomain("b"))
    scene = Scene(min=2, max=3, scale_up=ScaleUp(launch_seconds=300), domains=domains)
    for seconds in (0.0, 5.0, 301.0, 306.0):
        scene.decide(seconds)
    assert [(launch.domain, launch.count) for launch in scene.status.launches] == [
        ("a", 2), ("b", 1)
    ]  # fmt: skip


def test_a_machine_without_a_node_fails_by_its_deadline_and_its_domain_is_avoided() -> None:
    scene = Scene(min=1, scale_up=ScaleUp(launch_seconds=300, ready_seconds=1800))
    scene.decide(0.0)
    [launch] = scene.status.launches
    scene.write(answered(scene.status, launch, ("m",), working=(), now=EPOCH + 10))
    scene.machines = [Instance("m", "p", InstanceState.RUNNING)]
    scene.decide(305.0)
    assert scene.status.unavailable == ()
    scene.decide(311.0)
    assert [mark.reason for mark in scene.status.unavailable] == ["no machine was up in time"]
    scene.decide(316.0)
    assert scene.status.unavailable[0].refusals == 1, "once for each launch"
