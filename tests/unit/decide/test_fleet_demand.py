"""What is bought: whole gangs, on the nodes that are there and coming first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.api.job import Job, Topology
from fairlead.api.meta import ObjectMeta
from fairlead.api.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolDomain,
    Provider,
    ProviderType,
)
from fairlead.decide.fleet.demand import Demand, Offer, Unbought, demand_of, template_of
from fairlead.decide.fleet.joins import JoinBucket, JoinLimits
from fairlead.model.cluster import ClusterState
from fairlead.model.gangs import GangRequest
from fairlead.testing.builders import make_job, make_node

RESOURCES = {"cpu": "128", "memory": "1Ti", "nvidia.com/gpu": "8"}


def offer(
    pool: str = "p", room: int = 100, *, domain: str = "", rack: str = "", **more: bool
) -> Offer:
    where = PoolDomain(domain, {"rack": rack} if rack else {}) if domain else None
    spec = NodePoolSpec(Provider(ProviderType.STATIC), NodeTemplate(dict(RESOURCES)), 1000)
    made = NodePool(ObjectMeta(pool), spec)
    return Offer(pool, domain, template_of(made, where), room, **more)


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


def test_what_is_coming_is_not_bought_twice() -> None:
    demand = ask([make_job("a", gpus=8, count=8)], [offer()], coming={("p", ""): 8})
    assert bought(demand) == {}
    assert demand.coming_used == {("p", ""): 8}


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
