"""The bare model of scheduling and autoscaling per pod: small cases that are worked out by hand."""

from __future__ import annotations

import pytest

from fairlead.sim.scenarios.pod_autoscaler import SCAN_SECONDS, PodPolicyResult, run_per_pod
from fairlead.sim.scenarios.scenario import CloudSpec, ClusterSpec, PoolSpec
from fairlead.sim.setup.workload import Arrival, job_body

HOUR = 3600.0


def arrival(at: float, *, members: int, gpus: int, seconds: float = HOUR) -> Arrival:
    name = f"job-{at:g}"
    body = job_body(name, members=members, gpus=gpus, run_seconds=seconds)
    return Arrival(at, name, body)


def ran(*arrivals: Arrival, nodes: int = 0, most: int = 4, lost: float = 0.0) -> PodPolicyResult:
    cloud = CloudSpec(60.0, 0.0, lost_share=lost)
    cluster = ClusterSpec(nodes=nodes, pools=(PoolSpec("a", most, idle_seconds=600),), cloud=cloud)
    result = run_per_pod(cluster, arrivals, seed=1)
    assert result is not None
    return result


def test_a_job_gets_its_machines_and_what_is_idle_goes() -> None:
    result = ran(arrival(0, members=3, gpus=8), arrival(2 * HOUR, members=1, gpus=4))
    start = SCAN_SECONDS + 60
    assert result.waits == [start, start]
    assert (result.use.launched, result.use.ended, result.use.most) == (4, 3, 3)
    assert result.use.seconds == 3 * (60 + HOUR + 600) + 60 + HOUR
    assert result.use.idle_seconds == 3 * (60 + 600) + 60


def test_members_share_machines_and_static_nodes_cost_nothing() -> None:
    result = ran(arrival(0, members=6, gpus=4), nodes=1)
    assert result.use.launched == 2
    assert result.use.seconds == 2 * (60 + HOUR)


def test_a_gang_that_cannot_be_held_takes_all_there_is_and_nothing_runs_any_more() -> None:
    result = ran(arrival(0, members=5, gpus=8), arrival(60, members=1, gpus=8))
    assert result.never_ran == 2
    assert result.use.launched == 4


def test_a_machine_that_is_no_node_in_time_is_bought_again() -> None:
    result = ran(arrival(0, members=4, gpus=8), lost=0.5)
    assert result.never_ran == 0
    assert result.waits[0] > 900
    assert result.use.launched > 4


@pytest.mark.parametrize("pools", [0, 2])
def test_other_clusters_are_not_modelled(pools: int) -> None:
    cluster = ClusterSpec(nodes=1, pools=tuple(PoolSpec(f"p{i}", 1) for i in range(pools)))
    assert run_per_pod(cluster, [arrival(0, members=1, gpus=1)], seed=1) is None
