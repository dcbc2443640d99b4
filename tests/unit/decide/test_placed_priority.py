"""While a gang holds nodes it has at most the priority that it was placed with."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_preemption import Cluster, running

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.asks.priorities import MissingClass, PriorityTable
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_placement,
    make_priority_class,
    make_team,
)

CLASSES = {"low": -10, "middle": 500, "high": 1000}


def cluster(*jobs: Job, nodes: int = 1) -> Cluster:
    classes = [make_priority_class(name, value) for name, value in CLASSES.items()]
    state = ClusterState(PriorityTable(classes))
    for i in range(nodes):
        state.node_changed(make_node(f"n{i}"))
    for job in jobs:
        state.job_changed(job)
    return Cluster(PlacementState(state))


def of_class(job: Job, name: str) -> Job:
    return replace(job, spec=replace(job.spec, priority_class_name=name))


def placed_by_the_scheduler(class_name: str = "", **spec: object) -> Cluster:
    """A gang that has run for an hour on the one node, of this class."""
    world = cluster(make_job("job", spec={"priority_class_name": class_name, **spec}))
    world.settle()
    job, at = world.job("job"), format_time(EPOCH - 3600.0)
    assert job.status.placement is not None
    placement = replace(job.status.placement, placed_at=at)
    attempts = (Attempt(number=1, begun_at=at, started_at=at),)
    world.put(replace(job, status=replace(job.status, placement=placement, attempts=attempts)))
    return world


def priority(world: Cluster) -> object:
    return world.state.cluster.jobs["default", "job"].priority


def test_a_job_that_raises_its_class_while_it_runs_gives_way_as_before() -> None:
    world = placed_by_the_scheduler()
    world.put(of_class(world.job("job"), "high"))
    world.put(make_job("other", spec={"priority_class_name": "middle"}))
    world.settle()
    assert world.asked == ["job"]


def test_a_victim_that_raises_its_class_is_a_victim_all_the_same() -> None:
    world = placed_by_the_scheduler()
    world.put(make_job("other", spec={"priority_class_name": "middle"}))
    world.step()
    world.put(of_class(world.job("job"), "high"))
    world.settle()
    assert world.asked == ["job"]
    assert world.nominated("other") == {"n0"}


def test_a_job_that_lowers_its_class_is_a_victim_at_once_and_may_go_back_to_where_it_was() -> None:
    world = placed_by_the_scheduler("middle")
    world.put(make_job("other", spec={"priority_class_name": "middle"}))
    world.settle()
    assert world.asked == []
    world.put(of_class(world.job("job"), "high"))
    world.put(of_class(world.job("job"), "low"))
    assert priority(world) == CLASSES["low"]
    world.put(of_class(world.job("job"), "high"))
    assert priority(world) == CLASSES["middle"]
    world.put(of_class(world.job("job"), "low"))
    world.settle()
    assert world.asked == ["job"]


def test_a_waiting_job_that_raises_its_class_is_placed_with_it_and_keeps_it() -> None:
    world = cluster(make_job("job", count=2, spec={"priority_class_name": "low"}))
    world.settle()
    world.put(of_class(world.job("job"), "high"))
    world.state.cluster.node_changed(make_node("n1"))
    world.settle()
    placement = world.job("job").status.placement
    assert placement is not None
    assert placement.priority == CLASSES["high"]
    world.put(make_job("other", spec={"priority_class_name": "middle"}))
    world.settle()
    assert world.asked == []


def test_a_job_that_gave_way_queues_with_the_class_of_its_spec() -> None:
    world = placed_by_the_scheduler()
    world.put(of_class(world.job("job"), "high"))
    world.put(make_job("other", spec={"priority_class_name": "middle"}))
    world.settle()
    world.leave("job")
    assert priority(world) == CLASSES["high"]


def test_the_next_attempt_on_the_same_nodes_has_the_class_of_the_spec() -> None:
    world = placed_by_the_scheduler()
    job = of_class(world.job("job"), "high")
    ended = replace(job.status.attempts[0], finished_at=format_time(EPOCH))
    world.put(replace(job, status=replace(job.status, attempts=(ended,))))
    assert priority(world) == 0, "between two attempts"
    job = world.job("job")
    world.put(replace(job, status=replace(job.status, attempt=2)))
    assert priority(world) == CLASSES["high"], "its next pods have that class"
    [action] = world.step()
    assert isinstance(action, PlaceJob)
    assert (action.placement.attempt, action.placement.priority) == (2, CLASSES["high"])
    assert world.nodes_of("job") == {"n0"}


def test_a_job_of_an_earlier_version_has_the_priority_of_its_class() -> None:
    world = cluster(running("job", ["n0"], priority=None, spec={"priority_class_name": "high"}))
    assert priority(world) == CLASSES["high"]
    world.put(of_class(world.job("job"), "middle"))
    assert priority(world) == CLASSES["middle"]


@pytest.mark.parametrize(("value", "expected"), [(2000, 500), (100, 100)])
def test_a_class_whose_value_changes_raises_no_job_that_runs(value: int, expected: int) -> None:
    world = placed_by_the_scheduler("middle")
    changed = make_priority_class("middle", value)
    world.state.cluster.priority_class_changed("middle", changed)
    assert priority(world) == expected


@pytest.mark.parametrize("name", ["low", "middle"])
def test_a_class_that_is_deleted_leaves_a_job_that_runs_its_priority(name: str) -> None:
    world = placed_by_the_scheduler(name)
    world.state.cluster.priority_class_changed(name, None)
    assert priority(world) == CLASSES[name]
    job = world.job("job")
    world.put(replace(job, status=replace(job.status, placement=None, attempt=2)))
    assert priority(world) == MissingClass(name)


def test_a_job_that_borrows_and_raises_its_class_borrows_until_its_attempt_ends() -> None:
    world = cluster()
    world.state.cluster.team_changed("ml", make_team("ml", namespaces=["default"], nodes=1))
    at = make_placement(["n0"], priority=0)
    world.put(make_job("job", placement=at, status={"attempts": (Attempt(1),)}))
    assert may_borrow(world)
    world.put(of_class(world.job("job"), "high"))
    assert may_borrow(world)
    status = replace(world.job("job").status, placement=None, attempt=2)
    world.put(replace(world.job("job"), status=status))
    assert not may_borrow(world)


def may_borrow(world: Cluster) -> bool:
    gang = world.state.cluster.jobs["default", "job"].gang
    assert isinstance(gang, GangRequest)
    return gang.may_borrow


def test_a_client_that_reads_no_classes_says_the_same() -> None:
    job = make_job("job", priority=1000, placement=make_placement(["n0"], priority=0))
    assert ClusterState.of([make_node("n0")], [job]).jobs["default", "job"].priority == 0
