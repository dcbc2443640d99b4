"""What is bought: whole gangs, on the nodes that are there and coming first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    Launch,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolDomain,
    Provider,
    ProviderType,
)
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, RolePlacement
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Taint, Toleration
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.decide.fleet.buying.demand import Demand, Offer, Unbought, demand_of, template_of
from fairlead.decide.fleet.buying.purchases import plan_purchases
from fairlead.decide.fleet.census import is_gone, take_census
from fairlead.decide.fleet.joins import JoinBucket, JoinLimits
from fairlead.decide.fleet.leaving.surplus import removals_of
from fairlead.decide.fleet.view import FleetMemory, FleetView, PoolView
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import (
    EPOCH,
    make_anti_affinity,
    make_job,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_role,
)

RESOURCES = {"cpu": "128", "memory": "1Ti", "nvidia.com/gpu": "8"}


def offer(
    pool: str = "p", room: int = 100, *, domain: str = "", rack: str = "",
    pool_room: int | None = None, is_unavailable: bool = False, headroom: int = 0,
) -> Offer:  # fmt: skip
    where = PoolDomain(domain, {"rack": rack} if rack else {}) if domain else None
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate(dict(RESOURCES)), 1000)
    made = NodePool(ObjectMeta(pool), spec)
    of_pool = room if pool_room is None else pool_room
    return Offer(
        pool, domain, template_of(made, where), room, of_pool,
        is_unavailable=is_unavailable, headroom=headroom,
    )  # fmt: skip


def ask(
    jobs: Sequence[Job],
    offers: Sequence[Offer],
    nodes: int = 0,
    coming: Mapping[tuple[str, str], int] | None = None,
) -> Demand:
    state = ClusterState.of([make_node(f"n{i}", cpu=128) for i in range(nodes)], jobs)
    gangs = [
        (job.metadata.key, gang)
        for job in jobs
        if isinstance(gang := state.jobs[job.metadata.key].gang, GangRequest)
    ]
    before = (state.table.node_count, state.table.allocatable.tobytes())
    found = demand_of(state, gangs, offers, coming or {})
    assert before == (state.table.node_count, state.table.allocatable.tobytes())
    return found


def bought(demand: Demand) -> dict[tuple[str, str], int]:
    return {key: purchase.count for key, purchase in demand.purchases.items()}


def test_a_gang_is_bought_for_beyond_what_is_free() -> None:
    demand = ask([make_job("a", gpus=8, count=8)], [offer()], nodes=3)
    assert bought(demand) == {("p", ""): 5}
    assert demand.needed == {"n0", "n1", "n2"}
    assert demand.purchases["p", ""].jobs == [("default", "a")]


def test_of_an_elastic_gang_what_its_least_lacks_is_bought() -> None:
    gang = make_job("a", gpus=8, count=8, min_count=3)
    assert bought(ask([gang], [offer()], nodes=1)) == {("p", ""): 2}
    assert bought(ask([gang], [offer()], nodes=4)) == {}


def test_what_is_coming_is_not_bought_twice() -> None:
    demand = ask([make_job("a", gpus=8, count=8)], [offer()], coming={("p", ""): 8})
    assert bought(demand) == {}
    assert demand.coming_used == {("p", ""): 8}


def test_headroom_that_is_coming_is_used_last_so_no_pool_buys_it_again_and_again() -> None:
    offers = [offer("buys"), offer("ample", headroom=2)]
    gangs = [make_job("a", gpus=8, count=3), make_job("b", gpus=8, count=2)]
    coming = {("buys", ""): 3, ("ample", ""): 4}
    demand = ask(gangs, offers, coming=coming)
    assert (bought(demand), demand.coming_used) == ({}, {("buys", ""): 3, ("ample", ""): 2})
    demand = ask([*gangs, make_job("c", gpus=8, count=2)], offers, coming=coming)
    assert (bought(demand), demand.coming_used) == ({}, {("buys", ""): 3, ("ample", ""): 4})


def test_a_gang_that_no_offer_holds_completely_is_not_bought_for() -> None:
    demand = ask([make_job("a", gpus=8, count=8)], [offer(room=7)])
    assert bought(demand) == {}
    assert demand.unbought["default", "a"][0] is Unbought.POOLS_FULL


def test_small_gangs_share_the_nodes_that_are_bought() -> None:
    jobs = [make_job(f"j{i}", gpus=2, count=1) for i in range(8)]
    assert bought(ask(jobs, [offer()])) == {("p", ""): 2}


def test_offers_are_taken_in_order_and_unavailable_ones_passed_over() -> None:
    offers = [offer("first", is_unavailable=True), offer("second"), offer("third")]
    assert bought(ask([make_job("a", gpus=8, count=2)], offers)) == {("second", ""): 2}
    only = [offer("first", is_unavailable=True)]
    demand = ask([make_job("a", gpus=8, count=2)], only)
    assert demand.unbought["default", "a"][0] is Unbought.UNAVAILABLE


def test_a_member_that_no_template_holds_is_not_bought_for() -> None:
    demand = ask([make_job("a", gpus=16, count=1)], [offer()])
    assert demand.unbought["default", "a"][0] is Unbought.NO_POOL_MATCHES


def test_a_required_domain_is_bought_in_one_domain_also_where_part_of_it_exists() -> None:
    offers = [offer(domain="a", rack="a", room=3), offer(domain="b", rack="b", room=8)]
    job = make_job("a", gpus=8, count=8, topology=Topology("rack", required=True))
    assert bought(ask([job], offers)) == {("p", "b"): 8}
    four = make_job("b", gpus=8, count=4, topology=Topology("rack", required=True))
    assert bought(ask([four], offers, coming={("p", "a"): 1})) == {("p", "a"): 3}
    nowhere = make_job("c", gpus=8, count=2, topology=Topology("block", required=True))
    demand = ask([nowhere], offers)
    assert demand.unbought["default", "c"][0] is Unbought.TOPOLOGY


def test_a_gang_is_bought_from_several_offers_where_no_single_one_holds_it() -> None:
    offers = [
        offer("p", 5, domain="a", rack="a", pool_room=7),
        offer("p", 2, domain="b", rack="b", pool_room=7),
        offer("q"),
    ]
    demand = ask([make_job("a", gpus=8, count=6)], offers[:2])
    assert bought(demand) == {("p", "a"): 5, ("p", "b"): 1}
    demand = ask([make_job("a", gpus=8, count=8)], offers[:2])
    assert bought(demand) == {}, "all or nothing"
    close = make_job("a", gpus=8, count=6, topology=Topology("rack", required=True))
    assert bought(ask([close], offers[:2])) == {}, "a required domain is never split"
    assert bought(ask([make_job("a", gpus=8, count=6)], offers)) == {("q", ""): 6}


def test_the_domains_of_a_pool_share_its_limit() -> None:
    offers = [offer(domain=each, room=4, pool_room=5) for each in ("a", "b")]
    gangs = [make_job(name, gpus=8, count=4) for name in ("one", "two")]
    demand = ask(gangs, offers)
    assert bought(demand) == {("p", "a"): 4}
    assert demand.unbought["default", "two"] == (Unbought.POOLS_FULL, {"members": 4, "room": 1})

    small = ask([gangs[0], make_job("three", gpus=8)], offers)
    assert bought(small) == {("p", "a"): 4, ("p", "b"): 1}

    assert bought(ask([make_job("six", gpus=8, count=6)], offers)) == {}
    assert bought(ask([make_job("five", gpus=8, count=5)], offers)) == {
        ("p", "a"): 4,
        ("p", "b"): 1,
    }


def test_a_new_process_counts_a_launch_whose_machine_its_first_list_misses() -> None:
    launch = Launch("t", "", 1, format_time(EPOCH), instances=("m",))
    status = NodePoolStatus(launches=(launch,))
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate(dict(RESOURCES)), 4)
    pool = PoolView(NodePool(ObjectMeta("p"), spec, status), (), Inventory(()), 0.0)
    memory = FleetMemory()

    def size(seconds: float) -> int:
        state = ClusterState.of([], [])
        view = FleetView(Fleet(), [pool], PoolNodes(), state, (), EPOCH + 300 + seconds, seconds)
        census = take_census(view, pool, memory)
        return 0 if is_gone(view, census, launch, "m") else census.size

    assert [size(0.0), size(60.0), size(121.0)] == [1, 1, 0]


def test_a_new_process_buys_nothing_before_a_complete_list_says_what_there_is() -> None:
    """Of a pool that was made again, no record names the machines that have no node yet."""
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate(dict(RESOURCES)), 2, min=2)
    made, memory = NodePool(ObjectMeta("p"), spec, NodePoolStatus(launch_number=1)), FleetMemory()
    machine = Instance("m", "p", InstanceState.STARTING)

    def buys(inventory: Inventory | None) -> int:
        pool, state = PoolView(made, (), inventory, 0.0), ClusterState.of([], [])
        view = FleetView(Fleet(), [pool], PoolNodes(), state, (), EPOCH, 0.0)
        census = take_census(view, pool, memory)
        (plan,) = plan_purchases(view, [census], is_buying=True).plans
        return sum(buy.count for buy in plan.buys)

    torn = Inventory((), is_complete=False)
    assert [buys(None), buys(torn)] == [0, 0]
    assert [buys(Inventory((machine,))), buys(torn)] == [1, 1]


def test_a_machine_keeps_its_node_when_that_registers_under_another_name() -> None:
    nodes = PoolNodes()
    for name in ("before", "after"):
        node = make_node(name, labels={names.POOL: "p"})
        nodes.put(replace(node, spec=replace(node.spec, provider_id="m")), 0.0)
    nodes.remove("before")
    assert nodes.by_instance["m"].name == "after"


def test_a_node_is_not_ready_since_it_ceased_to_be_whatever_changes_on_it_meanwhile() -> None:
    nodes = PoolNodes()
    for ready, instant in ((True, 0.0), (False, 10.0), (False, 20.0)):
        node = make_node("n", labels={names.POOL: "p"}, ready=ready)
        nodes.put(replace(node, spec=replace(node.spec, provider_id="m")), instant)
    assert nodes.unready == {"n": 10.0}


def test_machines_that_lists_lack_are_counted_for_a_while_and_beside_incomplete_lists() -> None:
    """The while begins with the first list that lacks them, however long nothing was decided."""
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate(dict(RESOURCES)), 4)
    made, memory = NodePool(ObjectMeta("p"), spec), FleetMemory()
    machine = Instance("m", "p", InstanceState.RUNNING)

    def size(seconds: float, inventory: Inventory) -> int:
        pool, state = PoolView(made, (), inventory, 0.0), ClusterState.of([], [])
        view = FleetView(Fleet(), [pool], PoolNodes(), state, (), EPOCH + seconds, seconds)
        return take_census(view, pool, memory).size

    assert size(0.0, Inventory((machine,))) == 1
    torn, empty = Inventory((), is_complete=False), Inventory(())
    assert [size(at, torn) for at in (100.0, 200.0, 300.0)] == [1, 1, 1]
    assert [size(at, empty) for at in (900.0, 1020.0, 1021.0)] == [1, 1, 0]
    assert size(1022.0, Inventory((machine,))) == 1
    assert [size(at, empty) for at in (2000.0, 2060.0)] == [1, 1]
    assert size(2061.0, Inventory((machine,))) == 1
    assert [size(at, empty) for at in (2062.0, 2182.0, 2183.0)] == [1, 1, 0]


def test_ages_of_more_than_a_day_are_not_taken_modulo_a_day() -> None:
    """The ancestor used the seconds of a time difference: ages wrapped every 24 hours."""
    day, minutes_5 = 86_400.0, 300.0
    launch = Launch("t", "", 1, format_time(EPOCH), instances=("late",))
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate({}), 4)
    made = NodePool(ObjectMeta("p"), spec, NodePoolStatus(launches=(launch,)))
    machines = tuple(Instance(id_, "p", InstanceState.RUNNING) for id_ in ("late", "idle"))
    pool, nodes = PoolView(made, (), Inventory(machines), 0.0), PoolNodes()
    node = make_node("n", labels={names.POOL: "p"})
    nodes.put(replace(node, spec=replace(node.spec, provider_id="idle")), 0.0)

    def due(seconds: float) -> list[str]:
        state = ClusterState.of([], [])
        view = FleetView(Fleet(), [pool], nodes, state, (), EPOCH + seconds, seconds)
        memory = FleetMemory()
        census = take_census(view, pool, memory)
        return [
            r.instance for r in removals_of(view, census, memory, surplus=1, needed=(), bought={})
        ]

    assert due(minutes_5) == [], "neither the deadline of a launch nor of an idle node has passed"
    assert due(day + minutes_5) == ["late", "idle"]


def test_whole_idle_domains_go_first() -> None:
    ids, nodes = ("a1", "a2", "b1", "b2"), PoolNodes()
    for id_ in ids:
        node = make_node(id_, labels={names.POOL: "p"})
        nodes.put(replace(node, spec=replace(node.spec, provider_id=id_)), 0.0)
    nodes.job_changed(("x", "j"), make_job("j", placement=make_placement(["a1"])), 0.0)
    machines = tuple(Instance(id_, "p", InstanceState.RUNNING, domain=id_[0]) for id_ in ids)
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate({}), 4)
    pool = PoolView(NodePool(ObjectMeta("p"), spec), (), Inventory(machines), 0.0)
    memory, state = FleetMemory(), ClusterState.of([], [])
    view = FleetView(Fleet(), [pool], nodes, state, (), EPOCH + 9e4, 9e4)
    found = removals_of(
        view, take_census(view, pool, memory), memory, surplus=2, needed=(), bought={}
    )
    assert [each.instance for each in found] == ["b1", "b2"]


def test_what_was_bought_within_a_day_goes_before_whole_idle_domains() -> None:
    nodes = PoolNodes()
    for id_ in ("a1", "b1", "b2"):
        node = make_node(id_, labels={names.POOL: "p"})
        nodes.put(replace(node, spec=replace(node.spec, provider_id=id_)), 0.0)
    machines = tuple(
        Instance(id_, "p", InstanceState.RUNNING, domain=id_[0]) for id_ in ("a1", "b1", "b2")
    )
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate({}), 4)
    pool = PoolView(NodePool(ObjectMeta("p"), spec), (), Inventory(machines), 0.0)
    memory, state = FleetMemory(), ClusterState.of([], [])
    view = FleetView(Fleet(), [pool], nodes, state, (), EPOCH + 9e4, 9e4)
    census = take_census(view, pool, memory)
    found = list(removals_of(view, census, memory, surplus=2, needed=(), bought={"b2": 5.0}))
    assert [(each.instance, each.charge.bought) for each in found] == [("b2", 5.0), ("a1", None)]


def test_a_node_that_is_marked_goes_before_others_that_are_as_idle() -> None:
    nodes = PoolNodes()
    for id_ in ("m1", "m2", "m3"):
        node = make_node(id_, labels={names.POOL: "p"}, unschedulable=id_ == "m2",
                         annotations={names.REMOVAL: "Idle"} if id_ == "m2" else {})  # fmt: skip
        nodes.put(replace(node, spec=replace(node.spec, provider_id=id_)), 0.0)
    machines = tuple(Instance(id_, "p", InstanceState.RUNNING) for id_ in ("m1", "m2", "m3"))
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate({}), 4)
    pool = PoolView(NodePool(ObjectMeta("p"), spec), (), Inventory(machines), 0.0)
    memory, state = FleetMemory(), ClusterState.of([], [])
    view = FleetView(Fleet(), [pool], nodes, state, (), EPOCH + 9e4, 9e4)
    found = removals_of(
        view, take_census(view, pool, memory), memory, surplus=2, needed=(), bought={}
    )
    assert [each.instance for each in found] == ["m2", "m1"]


def test_taints_tolerations_and_rules_between_pods_are_those_of_the_planner() -> None:
    """The ancestor knew no toleration of a value and no anti-affinity but by hostname."""
    taint = Taint("dedicated", "NoSchedule", "train")
    template = NodeTemplate(dict(RESOURCES), taints=(taint,))
    spec = NodePoolSpec(Provider(ProviderType.STATIC), template, 1000)
    zones = [PoolDomain(z, {names.ZONE: z}) for z in ("a", "b")]
    made = NodePool(ObjectMeta("p"), spec)
    offers = [Offer("p", zone.name, template_of(made, zone), 100, 100) for zone in zones]
    fits = (Toleration("dedicated", "Equal", "train", "NoSchedule"),)
    other = (Toleration("dedicated", "Equal", "serve", "NoSchedule"),)
    assert bought(ask([make_job("fits", tolerations=fits)], offers)) == {("p", "a"): 1}
    assert bought(ask([make_job("other", tolerations=other)], offers)) == {}
    apart = make_anti_affinity(names.ZONE, app="other")
    role = make_role(gpus=1, tolerations=fits, affinity=apart)
    state = ClusterState.of([make_node("n", labels={names.ZONE: "a"}, gpus=0)], [])
    state.pod_changed(make_pod("other", labels={"app": "other"}, node="n"))
    job = make_job("apart", roles=[role])
    state.job_changed(job)
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest)
    demand = demand_of(state, [(job.metadata.key, gang)], offers, {})
    assert bought(demand) == {("p", "b"): 1}, "not in the zone of the other pod"


def test_joins_follow_the_api_server() -> None:
    limits, bucket = JoinLimits(), JoinBucket()
    joined = 0
    for _ in range(12):  # one minute of loops, while the server answers well
        bucket = bucket.after(5.0, 1000, limits, latency=0.05, errors=0.0)
        count, bucket = bucket.take(10_000)
        joined += count
    assert 100 <= joined <= 250
    for _ in range(120):
        bucket = bucket.after(5.0, 1000, limits, latency=0.05, errors=0.0)
    assert bucket.per_minute == 500
    assert bucket.tokens == 100, "a tenth of the cluster at most"
    for _ in range(60):
        bucket = bucket.after(5.0, 1000, limits, latency=3.0, errors=0.0)
    assert bucket.per_minute == limits.per_minute_min


def test_nodes_on_which_a_place_is_kept_for_a_job_are_needed() -> None:
    """Idle until the victims on the others have gone, they must neither go nor be spares."""
    nodes = make_nodes(3, gpus=8)
    kept = tuple(node.metadata.name for node in nodes[:2])
    status = {"nomination": Nomination((RolePlacement("worker", kept),))}
    job = make_job("high", count=2, gpus=8, status=status)
    state = ClusterState.of(nodes, [job])
    assert demand_of(state, [], [], {}).needed == set(kept)
    view = FleetView(Fleet(), [], PoolNodes(), state, (), EPOCH, 0.0)  # no other job waits
    assert plan_purchases(view, [], is_buying=True).demand.needed == set(kept)
    state.job_deleted(job.metadata.key)
    assert demand_of(state, [], [], {}).needed == set()
