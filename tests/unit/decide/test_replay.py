"""A decision is made again from its snapshot where it did not look at all that waits."""

from __future__ import annotations

import pytest

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import Action, NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import PlanMemory, Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.snapshot import CarriedState, Snapshot, replay
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import Decision
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.cluster import ClusterState
from fairlead.model.inventory import fits
from fairlead.model.objects import Objects
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_placement,
    make_priority_class,
    make_role,
)

PROTECTED = 60.0


def decide_twice(
    state: PlacementState, policy: PlacementPolicy, now: float, objects: Objects
) -> Decision[Action]:
    """Return a decision, after it has been made again from its snapshot."""
    recall = Recall()
    decision = decide(state, policy, now, memory=PlanMemory(recall))
    again = replay(Snapshot(now, objects, policy, carried=CarriedState.of(state), recall=recall))
    assert again.actions == decision.actions
    return decision


def names_of(decision: Decision[Action], kind: type[Action]) -> list[str]:
    """Return the jobs of the actions of one kind, in order."""
    return [each.job.metadata.name for each in decision.actions if isinstance(each, kind)]


def test_gangs_that_rest_do_not_use_up_the_tries_of_a_replay() -> None:
    """Both have failed before. The second one finds victims once these are not protected."""
    policy = PlacementPolicy(evaluations_max=1, preemption_min_run_seconds=PROTECTED)
    high, at = make_priority_class("high", 10), format_time(EPOCH)
    status = {"attempts": (Attempt(number=1, begun_at=at, started_at=at),)}
    nodes, jobs = list[Node](), list[Job]()
    for pool, holder in (("a", "high"), ("b", "")):
        names, where = [f"{pool}-0", f"{pool}-1"], {"pool": pool}
        nodes += [make_node(name, gpus=8, labels=where) for name in names]
        roles = [
            make_role("x", count=2, gpus=4, node_selector=where),
            make_role("y", count=1, gpus=4, cpu=1, node_selector=where),
        ]
        jobs.append(make_job(
            f"holds-{pool}", count=2, gpus=4, placement=make_placement(names), status=status,
            spec={"priority_class_name": holder},
        ))  # fmt: skip
        waits = {"priority_class_name": "high"}
        jobs.append(make_job(f"waits-{pool}", roles=roles, spec=waits))
    cluster = ClusterState(PriorityTable([high]))
    for node in nodes:
        cluster.node_changed(node)
    for job in jobs:
        cluster.job_changed(job)
    state, objects = PlacementState(cluster), Objects(tuple(nodes), tuple(jobs), (), (high,))
    for second in range(3):
        decision = decide_twice(state, policy, EPOCH + second, objects)
        assert not names_of(decision, NominateJob)
    decision = decide_twice(state, policy, EPOCH + PROTECTED + 1, objects)
    assert names_of(decision, NominateJob) == ["waits-b"]


def test_a_class_whose_turn_is_next_is_looked_at_although_the_others_have_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The class that is looked at gets a row, so that all further ones would be looked at."""
    monkeypatch.setattr(fits, "ROWS_MAX", 8)
    monkeypatch.setattr(fits, "_UNCACHED_MAX", 1)
    node, policy = make_node("n", gpus=8), PlacementPolicy()
    full = make_job("full", gpus=8, placement=make_placement(["n"]))
    large = [make_job(f"large-{i}", count=100, gpus=1, cpu=1 + i) for i in range(9)]
    small = make_job("small", gpus=1)
    state = PlacementState.of([node], [full, *large, small])
    decide_twice(state, policy, EPOCH, Objects((node,), (full, *large, small)))
    state.cluster.job_deleted(large[0].metadata.key)
    state.cluster.job_deleted(full.metadata.key)
    objects = Objects((node,), (*large[1:], small))
    decision = decide_twice(state, policy, EPOCH + 100, objects)
    assert not names_of(decision, PlaceJob)  # it is the turn of large-8
    assert decision.wake_at == EPOCH + 101
    decision = decide_twice(state, policy, EPOCH + 101, objects)
    assert names_of(decision, PlaceJob) == ["small"]
