"""Groups and lanes never change who is placed: only what it costs to find out."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace as with_changes
from functools import partial
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED, a_cluster, a_job

from fairlead.api.jobs.job import Job
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.search import plan_gang
from fairlead.decide.placement.places.size import largest_plan
from fairlead.decide.placement.waiting.order import LaneKey, OrderKey, Rank
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_nodes,
    make_role,
)

NEVER_RESERVES = PlacementPolicy(starvation_seconds=inf)
TEAMS = ("", "red", "blue", "green")


class Turns:
    """An order in which, within a priority, teams stand where time has put them."""

    def __init__(self) -> None:
        self.asked = 0

    def rank(self, lane: LaneKey, now: float) -> Rank:
        self.asked += 1
        turn = (TEAMS.index(lane.team) + int(now - EPOCH)) % len(TEAMS)
        return (-lane.priority, turn // 2)


def of_team(job: Job, team: str) -> Job:
    return replace(job, spec=replace(job.spec, team=team))


@st.composite
def teams_jobs(draw: st.DrawFn) -> tuple[ClusterState, list[Job]]:
    nodes, _, pods = draw(a_cluster())
    jobs: list[Job] = []
    for i in range(draw(st.integers(1, 4))):
        shape = draw(a_job(name=f"s{i}"))
        for j in range(draw(st.integers(1, 5))):
            name = f"s{i}-{j}"
            meta = replace(shape.metadata, name=name, uid=name, creation_timestamp=draw(created))
            spec = replace(shape.spec, priority=draw(st.sampled_from([None, 5])))
            jobs.append(replace(shape, metadata=meta, spec=spec))
    jobs = [of_team(job, draw(st.sampled_from(TEAMS))) for job in jobs]
    return ClusterState.of(nodes, jobs, pods), jobs


created = st.sampled_from([f"2026-01-01T00:00:0{i}Z" for i in range(4)])


def one_by_one(state: PlacementState, now: float) -> list[tuple[str, list[list[str]]]]:
    """Who is placed where if every waiting job is tried, in order, until no more fits."""
    cluster, order = state.cluster, Turns()
    state.advance(now)
    waiting = [
        (order.rank(entry.lane, now), entry.age, entry.gang)
        for entry in state.jobs.values()
        if entry.group is not None
    ]
    out: list[tuple[str, list[list[str]]]] = []
    with cluster.transaction() as transaction:
        capacity = PresentCapacity(cluster, transaction)
        count = -1
        while count != len(out):
            count = len(out)
            for _, age, gang in sorted(waiting, key=lambda item: item[:2]):
                if age.name in dict(out) or not isinstance(gang, GangRequest):
                    continue
                at_size = partial(plan_gang, capacity, cluster.table)
                plan = largest_plan(capacity, gang, at_size, lambda _: True)
                if plan is not None:
                    names = cluster.table.names
                    out.append((age.name, [[names[s] for s in r.tolist()] for r in plan.slots]))
    return out


@BOUNDED
@given(teams_jobs(), st.integers(0, 3))
def test_who_is_placed_is_as_if_every_job_were_tried_by_itself(world, seconds) -> None:
    """So when the first of a group does not fit, none of it does, whatever the teams."""
    cluster, _ = world
    state = PlacementState(cluster, order=Turns())
    for now in (EPOCH, EPOCH + seconds):
        expected = one_by_one(state, now)
        actions = decide(state, NEVER_RESERVES, now).actions
        placed = [
            (a.job.metadata.name, [list(role.nodes) for role in a.placement.roles])
            for a in actions
            if isinstance(a, PlaceJob)
        ]
        assert placed == expected


@BOUNDED
@given(teams_jobs(), st.data())
def test_the_queue_is_in_order_after_every_change_of_jobs_and_of_the_order(world, data) -> None:
    cluster, jobs = world
    state, order = PlacementState(cluster, order=Turns()), Turns()
    for second in range(data.draw(st.integers(1, 6))):
        job = data.draw(st.sampled_from(jobs))
        match data.draw(st.sampled_from(["gone", "team", "none"])):
            case "gone":
                cluster.job_deleted(job.metadata.key)
            case "team":
                cluster.job_changed(of_team(job, data.draw(st.sampled_from(TEAMS))))
        now = EPOCH + second
        state.queue.reorder(now)
        waiting = [entry for entry in state.jobs.values() if entry.group is not None]
        expected = sorted(OrderKey(order.rank(e.lane, now), e.age) for e in waiting)
        assert list(state.queue.in_order()) == expected
        assert state.queue.first(3) == expected[:3]
        assert [state.queue.position(key) for key in expected] == list(range(len(expected)))
        assert state.queue.unwritten(100) == expected
        assert len(state.queue) == state.queue.unwritten_count == len(expected)
        for entry in waiting:
            assert state.queue.order_of(entry) in expected


def test_classes_without_a_row_are_in_reach_as_those_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = Counter[int]()
    for seed in range(100):
        rng = random.Random(seed)
        nodes = [make_node(f"n{i}", gpus=rng.randrange(5), cpu=4) for i in range(3)]
        jobs = [
            make_job(f"j{i}", count=rng.randrange(1, 7), gpus=rng.randrange(1, 4), cpu=i + 1)
            for i in range(6)
        ]
        with monkeypatch.context() as limits:
            known = set(PlacementState.of(nodes, jobs).cluster.fits.within_reach())
            limits.setattr("fairlead.model.inventory.fits.ROWS_MAX", 1)
            assert set(PlacementState.of(nodes, jobs).cluster.fits.within_reach()) == known
        met[len(known)] += 1
    assert min(met[count] for count in range(1, 4)) > 9, met


@pytest.mark.parametrize("rows_max", [1, 1024])
def test_which_gangs_may_fit_follows_every_change_of_the_queue_and_of_the_room(
    monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr("fairlead.model.inventory.fits.ROWS_MAX", rows_max)
    rng, state = random.Random(1), PlacementState.of()
    met = Counter[bool]()
    for _ in range(500):
        name = rng.choice("abcdef")
        match rng.choice(["node", "gone", "job", "job"]):
            case "node":
                state.cluster.node_changed(make_node(rng.choice("mn"), gpus=rng.randrange(5)))
            case "gone":
                state.cluster.job_deleted(("default", name))
            case _:
                roles = [
                    make_role(role, count=rng.randrange(1, 6), gpus=rng.randrange(1, 3))
                    for role in rng.choice(["w", "w", "wv"])
                ]
                state.cluster.job_changed(make_job(name, roles=roles))
        total = state.cluster.fits.total
        gangs = [entry.gang for entry in state.jobs.values() if isinstance(entry.gang, GangRequest)]
        expected = [all(total(r.member) >= r.count for r in gang.roles) for gang in gangs]
        assert {shape.gang for shape in state.queue.candidates()} == {
            gang for gang, may_fit in zip(gangs, expected, strict=True) if may_fit
        }
        met.update(expected)
    assert min(met[True], met[False]) > 500, met


def test_an_order_that_changes_with_time_changes_who_is_next_at_the_cost_of_the_lanes() -> None:
    order = Turns()
    jobs = [of_team(make_job(f"{t}-{i}"), t) for t in ("red", "green") for i in range(50)]
    cluster = ClusterState.of(make_nodes(1), jobs)
    state = PlacementState(cluster, order=order)
    policy = with_changes(NEVER_RESERVES, fresh_jobs_max=0)
    next_in_turn = []
    for second in range(4):
        before = order.asked
        [placed] = [
            action
            for action in decide(state, policy, EPOCH + second).actions
            if isinstance(action, PlaceJob)
        ]
        assert order.asked - before == 2, "it is asked about the two teams, not about each job"
        next_in_turn.append(placed.job.spec.team)
    assert next_in_turn == ["red", "green", "green", "red"]


def test_a_job_of_a_team_is_placed_as_one_of_another_would_be() -> None:
    state = PlacementState.of(make_nodes(2), [of_team(make_job("a"), "red"), make_job("b")])
    actions = decide(state, NEVER_RESERVES, EPOCH).actions
    assert [as_written(action).metadata.name for action in actions] == ["a", "b"]
