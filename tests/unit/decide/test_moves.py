"""Defragmentation: running gangs go to other nodes, which are kept for them, to make room."""

from __future__ import annotations

from dataclasses import replace as with_
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_preemption import HOUR, Cluster, running

from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED, DEFRAGMENT
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import NominateJob, PreemptJob, WithdrawPreemption
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.evict.victims import Victims, find_victims
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_pod,
)

POLICY = PlacementPolicy(
    starvation_seconds=0.0, defragments=True, defragments_on_request=True, move_min_run_seconds=60.0
)


def cluster(*jobs: Job, policy: PlacementPolicy = POLICY) -> Cluster:
    """Three nodes of 8 GPUs."""
    return Cluster(PlacementState.of(make_nodes(3, gpus=8), jobs), policy)


NODES = [node.metadata.name for node in make_nodes(3)]


def scattered(**more: object) -> list[Job]:
    """Half of each of three nodes, and a job that wants two whole ones."""
    jobs = [
        running(f"r{i}", [node], gpus=4, since=EPOCH - (i + 1) * HOUR, **more)
        for i, node in enumerate(NODES)
    ]
    return [*jobs, make_job("wide", count=1, gpus=8)]


def test_the_gang_that_loses_least_moves_to_a_place_that_is_kept_for_it():
    world = cluster(*scattered())
    world.settle()
    assert world.asked == ["r0"]
    assert world.reason("wide") == "Defragmenting"
    kept = world.job("r0").status.nomination
    assert kept is not None
    (place,) = kept.roles
    assert set(place.nodes) <= set(NODES[1:])
    world.leave("r0")
    world.settle()
    assert world.nodes_of("wide") == {NODES[0]}
    assert world.nodes_of("r0") == set(place.nodes)
    assert world.job("r0").status.nomination is None


def test_no_other_job_takes_the_place_that_is_kept_for_a_gang_that_moves():
    world = cluster(*scattered())
    world.settle()
    world.put(make_job("thief", count=1, gpus=4, priority=100))
    world.settle()
    world.leave("r0")
    world.settle()
    assert world.nodes_of("r0") != set()
    assert world.nodes_of("wide") == {NODES[0]}


@pytest.mark.parametrize(
    "policy", [with_(POLICY, defragments=False), with_(POLICY, starvation_seconds=9999.0)]
)
def test_nothing_moves_unless_the_policy_says_so(policy):
    world = cluster(*scattered(), policy=policy)
    world.settle()
    assert world.asked == []


def test_gangs_move_for_a_job_that_asks_for_it_wherever_it_is_in_the_queue():
    policy = with_(POLICY, defragments=False, starvation_seconds=9999.0)
    *others, wide = scattered()
    first = make_job("first", count=1, gpus=8, created=EPOCH - 9)
    world = cluster(*others, wide, first, policy=policy)
    world.settle()
    assert world.asked == []
    meta = replace(wide.metadata, annotations={DEFRAGMENT: "true"})
    world.put(replace(world.job("wide"), metadata=meta))
    world.settle()
    assert world.asked == ["r0"]
    assert world.reason("wide") == "Defragmenting"


def test_a_gang_that_has_just_started_does_not_move_before_its_time():
    *_, wide = scattered()
    jobs = [running(f"r{i}", [node], gpus=4, since=EPOCH - i) for i, node in enumerate(NODES)]
    world = cluster(*jobs, wide)
    world.settle()
    assert world.asked == []
    world.now = EPOCH + 58.0
    world.settle()
    assert world.asked == ["r2"]


def test_a_gang_of_higher_priority_does_not_move():
    world = cluster(*scattered(priority=1))
    world.settle()
    assert world.asked == []


def test_gangs_that_have_no_other_place_stay():
    jobs = [running(f"r{i}", [node], gpus=5) for i, node in enumerate(NODES)]
    world = cluster(*jobs, make_job("wide", count=1, gpus=8))
    world.settle()
    assert world.asked == []


def test_no_gangs_are_sought_for_a_block_that_is_larger_than_all_that_is_free(monkeypatch):
    """What moves is put back, so each search would find gangs that have no other place."""
    sought: list[int] = []

    def find(*given: Any) -> Victims | None:
        sought.append(1)
        return find_victims(*given)

    monkeypatch.setattr("fairlead.decide.placement.evict.moves.find_victims", find)
    full = [running(f"r{i}", [node], gpus=6) for i, node in enumerate(NODES)]
    cluster(*full, make_job("wide", count=1, gpus=8)).settle()
    assert not sought
    cluster(*scattered()).settle()
    assert sought, "where enough is free"


@pytest.mark.parametrize(("more", "asked"), [(4, ["r0"]), (0, [])])
def test_what_a_gang_uses_and_does_not_ask_for_again_is_room_for_the_block(more, asked):
    """A pod that was resized uses 4 GPUs more than its place; or a pod of another tool does."""
    low, high = running("r0", [NODES[0]], gpus=4), running("r1", [NODES[1]], gpus=4, priority=9)
    other = running("r2", [NODES[2]], gpus=8, priority=9)
    world = cluster(low, high, other, make_job("wide", count=1, gpus=8))
    pod, resized = make_member_pod(low), make_pod("resized", gpus=4 + more)
    pod = replace(pod, spec=replace(pod.spec, containers=resized.spec.containers))
    world.state.cluster.pod_changed(pod)
    if not more:
        world.state.cluster.pod_changed(make_pod("beside", node=NODES[0], gpus=4))
    world.settle()
    assert world.asked == asked


def test_no_more_gangs_move_than_the_budget_says_and_for_one_job_at_a_time():
    nodes = make_nodes(4, gpus=8)
    names = [node.metadata.name for node in nodes]
    jobs = [running(f"r{i}", [node], gpus=2) for i, node in enumerate(names)]
    wide = make_job("wide", count=2, gpus=8)
    few = Cluster(PlacementState.of(nodes, [*jobs, wide]), with_(POLICY, moves_max=1))
    few.settle()
    assert few.asked == []
    later = make_job("wider", count=1, gpus=8, created=EPOCH + 1)
    enough = Cluster(PlacementState.of(nodes, [*jobs, wide, later]), POLICY)
    enough.settle()
    assert len(enough.asked) == 2
    assert enough.reason("wider") != "Defragmenting"
    exactly = Cluster(PlacementState.of(nodes, [*jobs, wide]), with_(POLICY, moves_max=2))
    exactly.settle()
    assert len(exactly.asked) == 2


def test_a_victim_is_asked_only_once_a_place_is_kept_for_it():
    world = cluster(*scattered())
    first = world.step()
    assert [type(action) for action in first] == [NominateJob]
    taken = make_job("taken", count=1, gpus=4, priority=9)
    two = [replace(taken, metadata=replace(taken.metadata, name=name)) for name in ("t1", "t2")]
    for job, node in zip(two, NODES[1:], strict=True):  # another scheduler was faster
        world.put(running(job.metadata.name, [node], gpus=4))
    second = world.step()
    assert not any(isinstance(action, PreemptJob) for action in second)
    world.settle()
    assert world.asked == []
    assert world.job("wide").status.nomination is None


def test_a_victim_that_no_longer_has_the_size_of_its_job_is_not_asked():
    """It cannot be planned elsewhere, so no place would be kept for it."""
    world = cluster(*scattered())
    [action] = world.step()
    assert isinstance(action, NominateJob)
    victim = world.job("r0")
    [role] = victim.spec.roles
    larger = replace(victim.spec, roles=(replace(role, count=2),))
    world.put(replace(victim, spec=larger))
    world.settle()
    assert "r0" not in world.asked


def test_a_gang_that_was_asked_stays_when_the_block_is_lost():
    world = cluster(*scattered())
    world.settle()
    assert world.asked == ["r0"]
    world.state.cluster.node_changed(make_node(NODES[0], gpus=8, ready=False))
    actions = world.step()
    assert any(isinstance(action, WithdrawPreemption) for action in actions)
    world.settle()
    status = world.job("r0").status
    assert status.preemption is None
    assert status.placement is not None


def test_a_gang_that_is_held_as_it_moves_gives_both_places_back_at_once():
    world = cluster(*scattered())
    world.settle()
    assert world.asked == ["r0"]
    job = world.job("r0")
    record = replace(job.status.attempts[-1], finished_at=format_time(EPOCH))
    held = (Condition(ADMITTED, "False", Reason.HELD.value),)
    status = replace(job.status, attempts=(record,), conditions=held)
    world.put(replace(job, spec=replace(job.spec, suspend=True), status=status))
    world.step()
    status = world.job("r0").status
    assert (status.placement, status.nomination, status.preemption) == (None, None, None)


def test_a_gang_that_has_left_goes_to_its_place_though_the_job_it_left_for_is_gone():
    world = cluster(*scattered())
    world.settle()
    world.state.cluster.job_deleted(("default", "wide"))
    world.leave("r0")
    world.settle()
    assert world.nodes_of("r0") <= set(NODES[1:])
    assert world.nodes_of("r0") != set()
