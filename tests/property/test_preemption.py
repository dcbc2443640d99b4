"""Preemption on generated clusters: whole gangs, of lower priority, for a gang that is placed."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED, applied, grown_beyond, summary

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import NominateJob, PlaceJob, PreemptJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.evict.victims import Candidate, cost_of, find_victims
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.search import plan_gang
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.gang.gangs import GangRequest
from fairlead.sim.promises.placement_checkers import TopologyChecker
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

POLICY = PlacementPolicy(preemption_min_run_seconds=0.0, nominations_max=1000)
NODES = 5
FEW = settings(BOUNDED, max_examples=50)


@st.composite
def a_busy_cluster(draw: st.DrawFn) -> tuple[list[Node], list[Job]]:
    """Nodes of 8 GPUs, gangs that run on them, and gangs that wait."""
    nodes = [make_node(f"n{i}", labels={"rack": f"r{i % 2}"}) for i in range(NODES)]
    free, jobs = [8] * NODES, list[Job]()
    for number in range(draw(st.integers(0, 6))):
        gpus = draw(st.sampled_from([1, 4, 8]))
        wanted = draw(st.permutations(range(NODES)))[: draw(st.integers(1, 3))]
        places = [i for i in wanted if free[i] >= gpus]
        if places:
            for i in places:
                free[i] -= gpus
            jobs.append(_running(draw, f"r{number}", [f"n{i}" for i in places], gpus))
    racks = st.sampled_from([
        None, None, Topology(key="rack", required=True), Topology(slice_level="rack", slice_size=2),
    ])  # fmt: skip
    for number in range(draw(st.integers(1, 3))):
        count, gpus = draw(st.integers(1, 5)), draw(st.sampled_from([1, 4, 8]))
        topology = draw(racks)
        is_sliced = topology is not None and topology.slice_size > 0
        jobs.append(
            make_job(
                f"w{number}", count=count, gpus=gpus, priority=draw(st.integers(0, 3)),
                created=EPOCH + draw(st.integers(0, 3)), topology=topology,
                min_count=None if is_sliced else draw(st.sampled_from([None, 1])),
            )
        )  # fmt: skip
    return nodes, jobs


def _running(draw: st.DrawFn, name: str, nodes: list[str], gpus: int) -> Job:
    at = format_time(EPOCH - draw(st.integers(0, 50)) * 100)
    return make_job(
        name, count=len(nodes), gpus=gpus, priority=draw(st.integers(0, 2)),
        placement=make_placement(nodes),
        status={"attempts": (Attempt(number=1, begun_at=at, started_at=at),)},
    )  # fmt: skip


def without_leaving(jobs: list[Job]) -> list[Job]:
    """The jobs once every job that was asked to has given its place back and queues again."""
    out: list[Job] = []
    for job in jobs:
        if job.status.preemption is not None:
            status = replace(
                job.status, preemption=None, placement=None, attempt=job.status.attempt + 1,
                attempts=tuple(
                        replace(each, finished_at=format_time(EPOCH))
                        for each in job.status.attempts[-1:]
                    ),
                conditions=(Condition(type=ADMITTED, status="True"),),
            )  # fmt: skip
            job = replace(job, status=status)
        out.append(job)
    return out


def settled(nodes: list[Node], jobs: list[Job]) -> tuple[list[Job], list[str]]:
    """Decide and let the victims leave until nothing happens; also who was asked, in order."""
    asked: list[str] = []
    for _ in range(60):
        decision = decide(PlacementState.of(nodes, jobs), POLICY, EPOCH)
        asked += [a.job.metadata.name for a in decision.actions if isinstance(a, PreemptJob)]
        after = without_leaving(applied(jobs, decision))
        if not decision.actions and after == jobs:
            return jobs, asked
        jobs = after
    raise AssertionError("preemption never ends")


@FEW
@given(a_busy_cluster())
def test_only_whole_gangs_of_lower_priority_leave_and_their_beneficiary_is_placed(cluster):
    nodes, jobs = cluster
    priorities = {job.metadata.name: job.spec.priority for job in jobs}
    before = PlacementState.of(nodes, jobs)
    decision = decide(before, POLICY, EPOCH)
    nominated = [a for a in decision.actions if isinstance(a, NominateJob)]
    for action in nominated:
        shape = [(role.role, len(role.nodes)) for role in action.nomination.roles]
        assert shape == [(role.name, role.least) for role in action.job.spec.roles]
        for victim in action.nomination.victims:
            assert priorities[victim.name] < priorities[action.job.metadata.name]
    after, _ = settled(nodes, jobs)
    placed = {job.metadata.name for job in after if job.status.placement is not None}
    checker = TopologyChecker({})
    for node in nodes:
        checker.node(node, node.metadata.name, EPOCH)
    for job in after:
        checker.job(job, job.metadata.key, EPOCH)
    assert {a.job.metadata.name for a in nominated} <= placed
    assert grown_beyond(before, PlacementState.of(nodes, after)) == []


@FEW
@given(a_busy_cluster())
def test_preemption_ends_and_what_was_preempted_takes_nothing_back(cluster):
    nodes, jobs = cluster
    after, asked = settled(nodes, jobs)
    assert len(asked) == len(set(asked)), "a job left twice though nothing else happened"
    again = decide(PlacementState.of(nodes, after), POLICY, EPOCH)
    assert not any(isinstance(a, NominateJob | PreemptJob | PlaceJob) for a in again.actions)


@FEW
@given(a_busy_cluster(), st.randoms(use_true_random=False))
def test_the_order_of_the_objects_changes_no_victim(cluster, random):
    nodes, jobs = cluster
    expected = decide(PlacementState.of(nodes, jobs), POLICY, EPOCH)
    mixed_nodes, mixed_jobs = nodes.copy(), jobs.copy()
    random.shuffle(mixed_nodes)
    random.shuffle(mixed_jobs)
    mixed = decide(PlacementState.of(mixed_nodes, mixed_jobs), POLICY, EPOCH)
    assert summary(mixed) == summary(expected)
    places = [a.nomination for a in expected.actions if isinstance(a, NominateJob)]
    assert places == [a.nomination for a in mixed.actions if isinstance(a, NominateJob)]


@FEW
@given(a_busy_cluster(), st.data())
def test_a_gang_that_runs_has_the_lower_priority_of_its_place_and_its_spec(cluster, data):
    nodes, jobs = cluster
    plain, changed = list[Job](), list[Job]()
    for job in jobs:
        placement = job.status.placement
        if placement is None:
            plain.append(job)
            changed.append(job)
            continue
        now = data.draw(st.integers(0, 4), job.metadata.name)
        recorded = replace(placement, priority=job.spec.priority)
        status = replace(job.status, placement=recorded)
        changed.append(replace(job, spec=replace(job.spec, priority=now), status=status))
        effective = min(job.spec.priority, now)
        plain.append(replace(job, spec=replace(job.spec, priority=effective)))
    expected = decide(PlacementState.of(nodes, plain), POLICY, EPOCH)
    decision = decide(PlacementState.of(nodes, changed), POLICY, EPOCH)
    assert summary(decision) == summary(expected)
    places = [a.nomination for a in expected.actions if isinstance(a, NominateJob)]
    assert places == [a.nomination for a in decision.actions if isinstance(a, NominateJob)]


@FEW
@given(a_busy_cluster())
def test_victims_are_found_if_there_are_any_and_cost_little_more_than_the_cheapest(cluster):
    """Compared with all subsets: an exact solver for clusters as small as these."""
    nodes, jobs = cluster
    state = PlacementState.of(nodes, jobs).cluster
    waiting = next(job for job in jobs if job.status.placement is None)
    gang = state.jobs[waiting.metadata.key].gang
    assert isinstance(gang, GangRequest)
    candidates = [_candidate(state, job) for job in jobs if job.status.placement is not None]
    room = FreedCapacity.of(state, ())
    if plan_gang(FreedCapacity.of(state, ()), state.table, gang) is not None:
        return
    found = find_victims(state, gang, candidates, room)
    sets = chain.from_iterable(combinations(candidates, n) for n in range(len(candidates) + 1))
    enough = [each for each in sets if _fits_without(state, gang, each)]
    assert (found is None) == (not enough)
    if found is None:
        return
    assert _fits_without(state, gang, found.victims)
    best = min(cost_of(each) for each in enough)
    assert found.cost[0][0] == best[0][0], "the highest priority among the victims is the lowest"


def _candidate(state, job: Job) -> Candidate:
    claim = state.ledger.claim(job.metadata.key)
    uses = tuple((s, n, state.table.vector(r)) for s, n, r in state.ledger.uses_of(claim.key))
    lost = float(np.sum([len(s) for s, _, _ in uses])) * (1 + len(job.metadata.name))
    return Candidate(claim.key, claim.uid, claim.priority, False, lost, uses)


def _fits_without(state, gang: GangRequest, victims) -> bool:
    uses = [use for victim in victims for use in state.ledger.uses_of(victim.key)]
    return plan_gang(FreedCapacity.of(state, uses), state.table, gang) is not None
