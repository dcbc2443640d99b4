"""A node that is emptied: what is evicted from it moves, and nothing new is made there."""

from __future__ import annotations

import pytest
from tests.unit.decide.jobs_world import World, new_job

from fairlead.api.jobs.job import Attempt, Cause, Restart, RestartPolicy
from fairlead.api.kubernetes.core import PodStatus
from fairlead.decide.pinning import Binding, node_of


def _running(count: int = 3, **kwargs: object) -> World:
    world = World(new_job(count=count, **kwargs))
    world.start()
    return world


def _ended(world: World) -> Attempt:
    """Return the record of the first attempt, which has ended."""
    world.settle()
    attempt = world.status.attempts[0]
    assert attempt.finished_at is not None
    return attempt


def _nodes(world: World) -> list[str]:
    return sorted(node_of(pod.spec) for pod in world.pods.values())


def test_a_member_that_is_evicted_from_a_cordoned_node_moves() -> None:
    world = _running()
    world.drain_node("n1")
    attempt = _ended(world)
    assert (attempt.cause, attempt.reason) == (Cause.INFRASTRUCTURE, "Drained")
    assert attempt.nodes_lost == ("n1",)
    assert attempt.message == ("member worker-1 (rank 1, node n1) was evicted from a cordoned node")
    assert world.status.user_failures == 0
    text = next(message for reason, message in world.events if reason == "MemberLost")
    assert "evicted from a cordoned node (cause: Infrastructure)" in text
    world.restart()
    assert _nodes(world) == ["n0", "n2", "n3"]


def test_the_end_of_an_evicted_member_is_no_fault_of_its_program() -> None:
    world = _running()
    world.drain_node("n1")
    pod = world.pods["train-1-worker-1"]
    failed = PodStatus(phase="Failed", conditions=pod.status.conditions)
    world.set_pod("train-1-worker-1", failed)
    attempt = _ended(world)
    assert (attempt.cause, attempt.reason) == (Cause.INFRASTRUCTURE, "Drained")
    assert attempt.message.endswith("was evicted from a cordoned node")


def test_a_gang_does_not_return_to_nodes_that_evict_its_members_under_pressure() -> None:
    world = _running()
    for rank in (1, 2):
        world.set_pod(f"train-1-worker-{rank}", PodStatus(phase="Failed", reason="Evicted"))
    attempt = _ended(world)
    assert (attempt.cause, attempt.reason) == (Cause.NODE, "Evicted")
    assert attempt.nodes_lost == ("n1", "n2")


def test_all_nodes_that_are_drained_at_once_are_given_up() -> None:
    world = _running()
    world.drain_node("n1")
    world.drain_node("n2")
    assert _ended(world).nodes_lost == ("n1", "n2")


@pytest.mark.parametrize("how", ["EvictionByEvictionAPI", "DeletionByTaintManager"])
def test_a_member_that_is_evicted_from_another_node_moves_too(how: str) -> None:
    world = _running()
    world.evict_pod("train-1-worker-1", how)
    attempt = _ended(world)
    assert (attempt.cause, attempt.reason) == (Cause.INFRASTRUCTURE, "Drained")
    assert attempt.message.endswith(f"was evicted: {how}")
    assert attempt.nodes_lost == ("n1",)


def test_a_pod_that_is_deleted_on_a_cordoned_node_is_told_with_its_node() -> None:
    world = _running()
    world.cordoned.add("n1")
    assert world.settle().actions == ()  # what runs may stay
    world.evict_pod("train-1-worker-1", how="")
    attempt = _ended(world)
    assert attempt.reason == "PodDeleted"
    assert attempt.message.endswith("deleted train-1-worker-1 from a cordoned node")
    world.restart()
    assert _nodes(world) == ["n0", "n2", "n3"]


def test_a_pod_that_vanishes_from_a_cordoned_node_is_not_made_there_again() -> None:
    world = _running()
    world.cordoned.add("n1")
    del world.pods["train-1-worker-1"]
    attempt = _ended(world)
    assert (attempt.reason, attempt.nodes_lost) == ("Drained", ("n1",))
    assert attempt.message == "member worker-1 (rank 1) has no pod, and its node n1 is cordoned"


def test_no_pod_is_made_on_a_node_that_is_cordoned_after_the_gang_got_its_place() -> None:
    world = World(new_job(count=3))
    world.settle()
    world.schedule()
    world.act()  # the attempt begins
    world.cordoned.add("n2")
    attempt = _ended(world)
    assert (attempt.reason, attempt.nodes_lost) == ("Drained", ("n2",))
    assert world.pods == {}
    world.restart()
    assert _nodes(world) == ["n0", "n1", "n3"]


@pytest.mark.parametrize("how", ["EvictionByEvictionAPI", ""])
def test_a_single_member_is_not_replaced_on_a_cordoned_node(how: str) -> None:
    world = _running(spec={"restart": Restart(policy=RestartPolicy.MEMBER, limit=1)})
    world.evict_pod("train-1-worker-1", how="")
    world.settle()
    assert len(world.status.attempts) == 1  # elsewhere it is replaced where it was
    assert world.status.attempts[0].finished_at is None
    world.reap_pods()
    world.run_to(world.now + 400)
    world.run_pods()
    world.settle()
    world.cordoned.add("n1")
    world.evict_pod("train-1-worker-1", how)
    assert _ended(world).message.endswith("from a cordoned node")


def test_a_lone_failure_on_a_cordoned_node_restarts_the_gang_elsewhere() -> None:
    world = _running(spec={"restart": Restart(policy=RestartPolicy.MEMBER, limit=1)})
    world.cordoned.add("n1")
    world.end_pod("train-1-worker-1", exit_code=1)
    world.run_to(world.now + 5)
    attempt = world.status.attempts[0]
    assert (attempt.reason, attempt.cause) == ("ExitCode", Cause.USER)
    world.restart()
    assert _nodes(world) == ["n0", "n2", "n3"]


def test_a_pinned_member_moves_as_well() -> None:
    world = World(new_job(count=3))
    world.policy = type(world.policy)(binding=Binding.PINNED)
    world.settle()
    world.schedule()
    world.settle()
    assert _nodes(world) == ["n0", "n1", "n2"]
    world.cordoned.add("n1")
    world.evict_pod("train-1-worker-1")
    attempt = _ended(world)
    assert (attempt.reason, attempt.nodes_lost) == ("Drained", ("n1",))


def test_a_member_waits_for_the_test_on_its_node_and_the_others_do_not() -> None:
    world = World(new_job(count=3))
    world.settle()
    world.schedule()
    world.act()  # the attempt begins
    world.yielding.add("n2")
    decision = world.settle()
    assert sorted(world.pods) == ["train-1-worker-0", "train-1-worker-1"]
    assert decision.wake_at == world.now + 0.5
    world.yielding.clear()
    world.settle()
    assert len(world.pods) == 3
    assert "train-1-worker-2" in world.pods, "the same attempt"
