"""Suspect nodes: those that failed lately take members after nodes that are as good otherwise."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node, NodeCondition
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.capacity import EmptyCapacity
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_pod

HOUR = 3600.0
NOW = EPOCH + 24 * HOUR
POLICY = PlacementPolicy()


def placed(state: PlacementState, now: float = NOW, policy: PlacementPolicy = POLICY) -> list[str]:
    """Return the nodes of the jobs that are placed."""
    return [
        node
        for action in decide(state, policy, now).actions
        if isinstance(action, PlaceJob)
        for role in action.placement.roles
        for node in role.nodes
    ]


def ready_at(name: str, at: float, *, created: float = EPOCH) -> Node:
    node = make_node(name)
    condition = NodeCondition("Ready", "True", last_transition_time=format_time(at))
    meta = replace(node.metadata, creation_timestamp=format_time(created))
    return replace(node, metadata=meta, status=replace(node.status, conditions=(condition,)))


def lost(*nodes: str, at: float, name: str = "ended") -> Job:
    """Return a job that waits again after its attempt lost nodes."""
    attempts = (
        Attempt(1, finished_at=format_time(at - 10 * HOUR)),
        Attempt(2, finished_at=format_time(at), nodes_lost=nodes),
    )
    return make_job(name, suspend=True, attempt=3, status={"attempts": attempts})


def test_a_node_that_an_attempt_lost_is_used_last_for_an_hour() -> None:
    nodes = [make_node(name) for name in "abc"]
    state = PlacementState.of(nodes, [lost("a", at=NOW - 10), make_job("j", count=2)])
    assert placed(state) == ["b", "c"]
    assert placed(state, NOW + HOUR) == ["a", "b"]
    assert placed(state) == ["b", "c"]
    assert placed(state, policy=PlacementPolicy(suspect_seconds=0.0)) == ["a", "b"]
    state.cluster.job_changed(make_job("j", count=3))
    assert sorted(placed(state)) == ["a", "b", "c"], "it is no reason to wait"


def test_so_is_one_that_was_not_ready_and_came_back_but_not_a_new_one() -> None:
    back, new = ready_at("a", NOW - 60), ready_at("b", NOW - 60, created=NOW - 120)
    state = PlacementState.of([back, new, make_node("c")], [make_job("j", count=2)])
    assert placed(state) == ["b", "c"]
    for other in (ready_at("a", NOW - 2 * HOUR), ready_at("a", NOW - 60, created=NOW - 120)):
        state.cluster.node_changed(other)
        assert placed(state) == ["a", "b"]
        state.cluster.node_changed(back)
        assert placed(state) == ["b", "c"]


def test_a_hole_that_fits_is_filled_before_a_whole_node_is_broken_up() -> None:
    nodes = [make_node(name) for name in "abc"]
    pods = [make_pod("p", node="b", gpus=6)]
    state = PlacementState.of(nodes, [lost("b", at=NOW), make_job("j", gpus=2)], pods)
    assert placed(state, NOW + 1) == ["b"]
    state.cluster.pod_changed(make_pod("q", node="a", gpus=6))
    assert placed(state, NOW + 1) == ["a"]


def test_the_latest_sign_counts_and_goes_with_the_object_that_shows_it() -> None:
    nodes = [make_node(name) for name in "ab"]
    jobs = [lost("a", at=NOW - 10), lost("a", at=NOW - 2 * HOUR, name="other"), make_job("j")]
    state = PlacementState.of(nodes, jobs)
    assert placed(state) == ["b"]
    state.cluster.job_deleted(("default", "ended"))
    assert placed(state) == ["a"]
    state.cluster.job_changed(lost("a", at=NOW - 20, name="other"))
    assert placed(state) == ["b"]
    state.cluster.node_deleted("a")
    state.cluster.node_changed(make_node("a"))
    assert placed(state) == ["b"], "the name is that of the node that was lost"


def test_the_order_of_empty_nodes_follows_and_what_failed_is_tried_again() -> None:
    nodes = [make_node(name) for name in "ab"]
    state = PlacementState.of(nodes, [lost("a", at=NOW - 10)])
    table, slots = state.cluster.table, {}
    for at, first in ((NOW, "b"), (NOW + HOUR, "a")):
        before = table.nodes_version
        decide(state, POLICY, at)
        assert table.nodes_version != before
        key = EmptyCapacity(state.cluster, available_only=True).key
        slots = {name: int(key[table.slot(name)]) for name in "ab"}
        assert min(slots, key=slots.__getitem__) == first
