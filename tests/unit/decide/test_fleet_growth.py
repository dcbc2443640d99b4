"""Whether node pools could hold a gang that the present nodes never can."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolDomain,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.decide.fleet.buying.growth import pools_that_hold
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_job, make_node

TEMPLATE = NodeTemplate({"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"})


def pool(
    name: str = "h100", most: int = 64, *, is_active: bool = True, zones: int = 0, spares: int = 0
) -> NodePool:
    spec = NodePoolSpec(
        Provider(ProviderType.SIMULATED), TEMPLATE, most,
        mode=PoolMode.ACTIVE if is_active else PoolMode.DRY_RUN, spare_nodes=spares,
        domains=tuple(PoolDomain(f"z{i}") for i in range(zones)),
    )  # fmt: skip
    return NodePool(ObjectMeta(name), spec)


def holding(count: int, *pools: NodePool, gpus: int = 8) -> Mapping[str, int]:
    nodes = [make_node("n0", cpu=96, gpus=8), make_node("n1", cpu=96, gpus=8)]
    gang = ClusterState.of(nodes).gang_of(make_job("a", gpus=gpus, count=count))
    return pools_that_hold(nodes, gang, pools)


def test_a_gang_larger_than_the_cluster_is_held_by_the_nodes_and_a_pool() -> None:
    assert holding(10, pool()) == {"h100": 8}


@pytest.mark.parametrize("pools", [(), (pool(most=7),), (pool(most=7, zones=2),)])
def test_without_a_pool_that_is_large_enough_nothing_holds_it(pools: tuple[NodePool, ...]) -> None:
    assert holding(10, *pools) == {}


def test_the_spares_of_a_pool_hold_no_gang() -> None:
    assert holding(10, pool(most=10, spares=2)) == {"h100": 8}
    assert holding(10, pool(most=9, spares=2)) == {}


def test_a_gang_that_the_nodes_hold_needs_no_pool() -> None:
    assert holding(2, pool()) == {}


def test_no_pool_helps_where_a_member_is_larger_than_its_machines() -> None:
    assert holding(1, pool(), gpus=16) == {}


def test_a_pool_that_acts_goes_before_one_in_dry_run() -> None:
    assert holding(10, pool("a", is_active=False), pool("b")) == {"b": 8}
    assert holding(10, pool("a", is_active=False), pool("b", most=1)) == {"a": 8}


def test_the_nodes_that_a_pool_has_already_count_once() -> None:
    nodes = [make_node(f"h100-{i}", cpu=96, gpus=8, labels={"fairlead.dev/pool": "h100"})
             for i in range(3)]  # fmt: skip
    gang = ClusterState.of(nodes).gang_of(make_job("a", gpus=8, count=10))
    assert pools_that_hold(nodes, gang, [pool(most=10)]) == {"h100": 10}
    assert pools_that_hold(nodes, gang, [pool(most=9)]) == {}
