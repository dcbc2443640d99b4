"""Consolidation: gangs leave nodes that they use little for nodes that stay, so that those go."""

from __future__ import annotations

from dataclasses import replace as with_

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_preemption import HOUR, Cluster, running

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
    ScaleDown,
)
from fairlead.api.jobs.job import Job, Progress, Topology
from fairlead.api.jobs.placement import PreemptionKind
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import MIRROR_POD, POOL
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.status import preempted_verdict
from fairlead.decide.placement.actions import WithdrawPreemption
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.evict.consolidation import NodesInUseDoNotFall, check_nodes_fall
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_pod

POLICY = PlacementPolicy(move_min_run_seconds=60.0)


def pool(
    name: str = "p", *, kept: int | None = 0, consolidates: bool = True,
    mode: PoolMode = PoolMode.ACTIVE,
) -> NodePool:  # fmt: skip
    """A pool as the fleet controller has written it."""
    spec = NodePoolSpec(
        Provider(ProviderType.SIMULATED), NodeTemplate({}), max=100, mode=mode,
        scale_down=ScaleDown(consolidates=consolidates),
    )  # fmt: skip
    return NodePool(ObjectMeta(name=name), spec, NodePoolStatus(consolidates_to=kept))


def node(name: str, *, of: str = "p", **more: object) -> Node:
    return make_node(name, gpus=8, labels={POOL: of} if of else {}, **more)


def cluster(
    *jobs: Job, nodes: list[Node] | None = None, pools: tuple[NodePool, ...] = (pool(),),
    policy: PlacementPolicy = POLICY,
) -> Cluster:  # fmt: skip
    """Four nodes of 8 GPUs of a pool that may be consolidated."""
    state = PlacementState.of(nodes or [node(f"n{i}") for i in range(4)], jobs)
    for each in pools:
        state.cluster.pools.set_pool(each.metadata.name, each)
    return Cluster(state, policy)


def tail() -> list[Job]:
    """A small gang alone on a node, and one that leaves room on its own."""
    return [running("small", ["n0"], gpus=1), running("large", ["n1"], gpus=6)]


def lone(**more: object) -> list[Node]:
    """One node of the pool, where the small gang is, and one of none, with the large one."""
    return [node("n0", **more), node("n1", of="")]


def test_a_small_gang_moves_to_a_node_that_stays_and_its_node_empties():
    world = cluster(*tail())
    world.settle()
    assert world.asked == ["small"]
    assert world.nominated("small") == {"n1"}
    asked = world.job("small").status.preemption
    assert asked is not None
    assert (asked.uid, asked.kind, asked.empties) == ("", PreemptionKind.EMPTY, ("n0",))
    world.leave("small")
    world.settle()
    assert world.nodes_of("small") == {"n1"}
    assert world.job("small").status.nomination is None
    world.now += 2 * HOUR
    world.settle()
    assert world.asked == ["small"]


def test_the_job_says_why_it_moves():
    world = cluster(*tail())
    world.settle()
    verdict = preempted_verdict(world.job("small").status)
    assert verdict is not None
    assert verdict.message == (
        "moves to other nodes, which are kept for it, so that 1 node of its pool can be removed: n0"
    )


@pytest.mark.parametrize(
    "given", [pool(consolidates=False), pool(mode=PoolMode.DRY_RUN), pool(kept=None), pool(kept=2),
              pool("other")]
)  # fmt: skip
def test_nothing_moves_unless_the_pool_and_the_fleet_allow_it(given):
    world = cluster(*tail(), pools=(given,))
    world.settle()
    assert world.asked == []


def test_no_gang_moves_to_an_idle_node_of_a_pool_but_to_one_of_no_pool():
    jobs = [running("small", ["n0"], gpus=1), running("full", ["n1"], gpus=8)]
    world = cluster(*jobs)
    world.settle()
    assert world.asked == []
    beside = [node("n0"), node("n1"), node("n2", of="")]
    world = cluster(*jobs, nodes=beside)
    world.settle()
    assert world.asked == ["small"]
    assert world.nominated("small") == {"n2"}


def test_all_gangs_of_a_node_move_or_none():
    jobs = [running("a", ["n0"], gpus=1), running("b", ["n0"], gpus=2)]
    world = cluster(*jobs, running("large", ["n1"], gpus=6))
    world.settle()
    assert world.asked == []
    world = cluster(*jobs, running("large", ["n1"], gpus=5))
    world.settle()
    assert world.asked == ["a", "b"]
    assert world.nominated("a") | world.nominated("b") == {"n1"}


def test_a_gang_of_several_nodes_moves_as_a_whole_and_empties_them_all():
    wide = running("wide", ["n0", "n1"], gpus=1)
    world = cluster(wide, running("large", ["n2"], gpus=5), running("other", ["n3"], gpus=7))
    world.settle()
    assert world.asked == ["wide"]
    assert world.nominated("wide") <= {"n2", "n3"}
    asked = world.job("wide").status.preemption
    assert asked is not None
    assert asked.empties == ("n0", "n1")


def test_a_gang_of_several_nodes_may_keep_one_where_there_is_no_room_for_all():
    wide = running("wide", ["n0", "n1"], gpus=2)
    world = cluster(wide, running("large", ["n2"], gpus=8))
    world.settle()
    assert world.asked == ["wide"]
    assert len(world.nominated("wide")) == 1


def test_gangs_gather_on_the_fullest_node_and_none_moves_twice():
    jobs = [running(f"r{i}", [f"n{i}"], gpus=1 + i) for i in range(4)]
    world = cluster(*jobs)
    for _ in range(4):
        world.settle()
        for name in [each for each in world.asked if world.job(each).status.preemption]:
            world.leave(name)
        world.settle()
        world.now += 2 * HOUR
    assert len(world.asked) == len(set(world.asked))
    used = {n for i in range(4) for n in world.nodes_of(f"r{i}")}
    assert len(used) == 2


def test_a_topology_that_is_required_holds():
    topology = Topology(key="rack", required=True)
    nodes = [make_node(f"n{i}", gpus=8, labels={POOL: "p", "rack": f"r{i % 2}"}) for i in range(4)]
    wide = running("wide", ["n0", "n2"], gpus=2, topology=topology)
    room = [running("a", ["n1"], gpus=6), running("b", ["n3"], gpus=6)]
    world = cluster(wide, *room, nodes=nodes)
    world.settle()
    assert world.asked == ["wide"]
    assert world.nominated("wide") == {"n1", "n3"}
    room = [running("a", ["n1"], gpus=6), running("b", ["n3"], gpus=7)]
    world = cluster(running("x", ["n2"], gpus=6), wide, *room, nodes=nodes)
    world.settle()
    assert "wide" not in world.asked


@pytest.mark.parametrize(
    "waiting", [make_job("w", gpus=8, count=9), make_job("w", gpus=8, count=4)]
)
def test_nothing_moves_while_a_job_waits_that_could_use_room(waiting):
    world = cluster(*tail(), waiting)
    world.settle()
    assert world.asked == ([] if waiting.spec.roles[0].count == 4 else ["small"])


def test_a_gang_that_has_just_started_moves_when_its_time_has_come():
    jobs = [
        running("small", ["n0"], gpus=1, since=EPOCH),
        running("large", ["n1"], gpus=6, since=EPOCH),
    ]
    world = cluster(*jobs)
    world.settle()
    assert world.asked == []
    world.now += 70.0
    world.settle()
    assert world.asked == ["small"]


def test_what_is_lost_must_be_less_than_what_the_node_costs_within_the_horizon():
    few = with_(POLICY, consolidation_horizon_seconds=450.0)
    world = cluster(*tail(), nodes=lone(), policy=few)
    world.settle()
    assert world.asked == []  # 1 GPU for an hour, against 8 for seven and a half minutes
    saved = format_time(EPOCH - 60.0)
    job = world.job("small")
    progress = Progress(step=9, checkpoint_step=9, reported_at=saved)
    world.put(replace(job, status=replace(job.status, progress=progress)))
    world.now += 61.0
    world.settle()
    assert world.asked == ["small"]


def test_a_gang_that_ends_soon_by_its_time_limit_stays():
    ends = running("small", ["n0"], gpus=1, time_limit_seconds=int(HOUR) + 400)
    world = cluster(ends, tail()[1], nodes=lone())
    world.settle()
    assert world.asked == []


def test_a_node_is_kept_until_its_last_gang_ends():
    jobs = [running("brief", ["n0"], gpus=1, time_limit_seconds=3700), *tail()]
    world = cluster(*jobs, nodes=lone())
    world.settle()
    assert world.asked == ["brief", "small"]


def test_no_more_gangs_move_at_a_time_than_the_budget_says():
    nodes = [node(f"n{i}") for i in range(5)]
    jobs = [running(f"r{i}", [f"n{i}"], gpus=1) for i in range(4)]
    large = running("large", ["n4"], gpus=4)
    world = cluster(*jobs, large, nodes=nodes, policy=with_(POLICY, moves_max=2))
    world.settle()
    assert len(world.asked) == 2
    for name in list(world.asked):
        world.leave(name)
    world.settle()
    world.now += 70.0
    world.settle()
    assert len(world.asked) == 4


def a_pod(**annotations: str) -> Pod:
    pod = make_pod("stray", node="n0", cpu=1)
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def with_phase(pod: Pod, phase: str) -> Pod:
    return replace(pod, status=replace(pod.status, phase=phase))


def test_a_node_with_a_pod_of_others_is_left_alone_and_one_with_a_static_pod_is_not():
    world = cluster(*tail(), nodes=lone())
    static = a_pod(**{MIRROR_POD: "x"})
    other = make_pod("other", node="n0", cpu=1)
    for pods in ([a_pod()], [static, other], [with_phase(static, "Succeeded")]):
        for pod in pods:
            world.state.cluster.pod_changed(pod)
        world.settle()
        assert world.asked == []
        world.now += 70.0
    world.state.cluster.pod_deleted(other.metadata.key)
    world.state.cluster.pod_changed(static)
    world.settle()
    assert world.asked == ["small"]


def test_a_node_that_a_person_has_cordoned_is_left_alone():
    world = cluster(*tail(), nodes=lone(unschedulable=True))
    world.settle()
    assert world.asked == []


@pytest.mark.parametrize("lost", [{"ready": False}, {"unschedulable": True}])
def test_a_gang_that_was_asked_stays_when_its_next_node_is_lost(lost):
    world = cluster(*tail(), nodes=lone())
    world.settle()
    assert world.asked == ["small"]
    world.state.cluster.node_changed(node("n1", of="", **lost))
    actions = world.step()
    assert any(isinstance(action, WithdrawPreemption) for action in actions)
    world.settle()
    status = world.job("small").status
    assert (status.preemption, status.nomination) == (None, None)
    assert status.placement is not None


def test_a_gang_that_borrows_nodes_of_another_team_does_not_move():
    world = cluster(*tail(), nodes=lone())
    world.state.cluster.uses.set_owner("n0", "other")
    world.settle()
    assert world.asked == []


def test_a_search_that_found_nothing_is_not_repeated_while_nothing_changes(monkeypatch):
    searches = []
    from fairlead.decide.placement.evict import consolidation

    real = consolidation.Consolidation._search_nodes
    monkeypatch.setattr(
        consolidation.Consolidation, "_search_nodes",
        lambda self, tried: (searches.append(dict(tried)), real(self, tried))[1],
    )  # fmt: skip
    world = cluster(running("a", ["n0"], gpus=5), running("b", ["n1"], gpus=5))
    for _ in range(5):
        world.settle()
        world.now += 61.0
    assert len(searches) == 1
    world.put(running("c", ["n2"], gpus=1))
    world.settle()
    assert len(searches) == 2


def test_moves_that_would_not_lower_the_number_of_nodes_in_use_are_an_error():
    check_nodes_fall(3, 2)
    with pytest.raises(NodesInUseDoNotFall):
        check_nodes_fall(3, 3)
