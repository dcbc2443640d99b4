"""The planner's promises, on generated clusters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.property.placement_world import (
    BOUNDED,
    FEWER,
    PATIENT,
    SICK,
    TEAM,
    a_cluster,
    applied,
    begun,
    grown_beyond,
    packing,
    policies,
    room,
    runs_into,
    step,
    summary,
    used,
)

from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.places.whatif import fits_empty, would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.model.gang.gangs import GangRequest
from fairlead.sim.promises.placement_checkers import TopologyChecker
from fairlead.testing.builders import EPOCH, as_written


@BOUNDED
@given(a_cluster(), policies)
def test_no_node_is_given_more_than_it_has(cluster, policy):
    nodes, jobs, pods = cluster
    before = PlacementState.of(nodes, jobs, pods)
    decision = decide(before, policy, EPOCH)
    after = PlacementState.of(nodes, applied(jobs, decision), pods)
    assert grown_beyond(before, after) == []


@BOUNDED
@given(a_cluster(), policies)
def test_a_gang_is_placed_whole_on_nodes_that_may_take_it_or_not_at_all(cluster, policy):
    nodes, jobs, pods = cluster
    by_name = {node.metadata.name: node for node in nodes}
    for action in decide(PlacementState.of(nodes, jobs, pods), policy, EPOCH).actions:
        if not isinstance(action, PlaceJob):
            continue
        job = action.job
        assert job.status.attempt == action.placement.attempt == 1
        assert not job.spec.suspend
        assert [role.role for role in action.placement.roles] == [r.name for r in job.spec.roles]
        for role, placed in zip(job.spec.roles, action.placement.roles, strict=True):
            assert role.least <= len(placed.nodes) <= role.count
            for name in placed.nodes:
                node = by_name[name]
                assert node.status.conditions[0].status == "True"
                assert not node.spec.unschedulable
                assert SICK not in node.spec.taints
                assert not runs_into(job, node, EPOCH)
                assert TEAM not in node.spec.taints or role.template.spec.tolerations
                assert role.template.spec.node_selector.get("rack", "r1") in (
                    "r1" if role.template.spec.node_selector else node.metadata.labels["rack"],
                    "r1",
                )
                if role.template.spec.node_selector:
                    assert node.metadata.labels["rack"] == "r1"
        checker = TopologyChecker({})
        for node in nodes:
            checker.node(node, node.metadata.name, EPOCH)
        checker.job(as_written(action), job.metadata.key, EPOCH)


@BOUNDED
@given(a_cluster(), policies, st.randoms(use_true_random=False))
def test_the_order_in_which_objects_arrive_does_not_matter(cluster, policy, random):
    nodes, jobs, pods = cluster
    expected = decide(PlacementState.of(nodes, jobs, pods), policy, EPOCH)
    state = PlacementState()
    events = [
        *((state.cluster.node_changed, n) for n in nodes),
        *((state.cluster.job_changed, j) for j in jobs),
        *((state.cluster.pod_changed, p) for p in pods),
    ]
    random.shuffle(events)
    for handler, obj in events:
        handler(obj)
    decision = decide(state, policy, EPOCH)
    assert summary(decision) == summary(expected)
    assert decision.verdicts == expected.verdicts
    assert decision.wake_at == expected.wake_at


@BOUNDED
@given(a_cluster(), policies)
def test_deciding_again_after_the_writes_changes_nothing(cluster, policy):
    nodes, jobs, pods = cluster
    state = PlacementState.of(nodes, jobs, pods)
    decision = decide(state, policy, EPOCH)
    jobs = applied(jobs, decision)
    for job in jobs:
        state.cluster.job_changed(job)
    assert summary(decide(state, policy, EPOCH)) == []
    assert summary(decide(PlacementState.of(nodes, jobs, pods), policy, EPOCH)) == []


@BOUNDED
@given(a_cluster(), policies)
def test_every_waiting_job_gets_a_verdict_whose_numbers_add_up(cluster, policy):
    nodes, jobs, pods = cluster
    state = PlacementState.of(nodes, jobs, pods)
    decision = decide(state, policy, EPOCH)
    waiting = {j.metadata.key for j in jobs if j.status.attempt and not j.spec.suspend}
    assert waiting <= decision.verdicts.keys()
    after = PlacementState.of(nodes, applied(jobs, decision), pods)
    after.advance(EPOCH)
    for key, verdict in decision.verdicts.items():
        facts, gang = verdict.facts, state.jobs[key].gang
        assert isinstance(gang, GangRequest)
        assert verdict.message
        assert len(verdict.blockers) <= 10
        if verdict.reason is Reason.INSUFFICIENT_CAPACITY:
            assert facts["short"] == facts["asked"] - facts["free"] > 0
            assert 0 <= facts["free"] <= facts["total"]
            assert facts["asked"] <= gang.total(facts["resource"])
        if verdict.reason is Reason.FRAGMENTED:
            assert facts["free"] >= facts["asked"] == gang.total(facts["resource"])
        if "members_fit" in facts and len(gang.roles) == 1:
            assert 0 <= facts["members_fit"] < facts["members"] == gang.member_count
        if verdict.reason is Reason.NO_NODE_SHAPE_FITS:
            assert facts["largest"] < facts["asked"]
        if verdict.outcome is Outcome.IMPOSSIBLE:
            assert fits_empty(after.cluster, gang).outcome is Outcome.IMPOSSIBLE
        elif verdict.outcome is Outcome.WAITING and len(gang.roles) == 1:
            assert fits_empty(after.cluster, gang).reason is Reason.PLACED
        if verdict.outcome is Outcome.WAITING:
            expected = Reason.PLACED if verdict.reason is Reason.BEHIND_EARLIER_JOB else None
            now = would_fit(after.cluster, gang)
            assert (now.reason is Reason.PLACED) == (expected is Reason.PLACED)
            if expected is None:
                facts = {name: fact for name, fact in verdict.facts.items() if name != "until"}
                assert (now.reason, now.facts) == (verdict.reason, facts)


@FEWER
@given(a_cluster(), st.data())
def test_a_transaction_rolls_back_exactly(cluster, data):
    nodes, jobs, pods = cluster
    state = PlacementState.of(nodes, jobs, pods)
    state.advance(EPOCH)
    before_used, before_room = state.cluster.table.used.copy(), room(state)
    before_key = state.cluster.table.key.copy()
    gangs = [e.gang for e in state.jobs.values()]
    with state.cluster.transaction() as transaction:
        for gang in gangs:
            assert isinstance(gang, GangRequest)
            slots = np.array(data.draw(st.sets(st.integers(0, 6), max_size=3).map(sorted)), int)
            transaction.take(slots, np.ones(len(slots), int), gang.roles[0].member)
            mark = transaction.mark()
            state.cluster.fits.fits(gang.roles[0].member)
            transaction.take(slots, np.ones(len(slots), int), gang.roles[-1].member)
            state.cluster.fits.fits(gang.roles[-1].member)
            transaction.rollback_to(mark)
    assert np.array_equal(state.cluster.table.used[: len(before_used)], before_used)
    assert np.array_equal(state.cluster.table.key, before_key)
    assert room(state) == before_room
    for gang in gangs:
        would_fit(state.cluster, gang)
        fits_empty(state.cluster, gang)
    decide(state, PATIENT, EPOCH)
    assert np.array_equal(state.cluster.table.used[: len(before_used)], before_used)
    assert np.array_equal(state.cluster.table.key, before_key)
    assert room(state) == before_room


@FEWER
@given(st.data())
def test_a_state_kept_by_events_equals_one_built_from_scratch(data):
    world = begun(data, PATIENT)
    for number in range(data.draw(st.integers(1, 15))):
        step(world, data, number)
        if data.draw(st.integers(0, 2)) == 0:
            world.decide(PATIENT, EPOCH + number)
    fresh = world.rebuilt()
    assert used(world.state) == used(fresh)
    assert room(world.state) == room(fresh)
    assert packing(world.state) == packing(fresh)
    for kept, made in zip(world.state.sets, fresh.sets, strict=True):
        assert sorted(kept) == sorted(made)
    assert world.state.queue.first(100) == fresh.queue.first(100)


@FEWER
@given(st.data(), policies)
def test_passing_over_equal_jobs_never_leaves_one_waiting_that_would_be_placed(data, policy):
    world = begun(data, policy)
    for number in range(data.draw(st.integers(1, 15))):
        step(world, data, number)
        if data.draw(st.booleans()):
            expected = decide(world.rebuilt(), policy, EPOCH + number)
            decision = world.decide(policy, EPOCH + number)
            assert [s for s in summary(decision) if s[0] != "WriteVerdict"] == [
                s for s in summary(expected) if s[0] != "WriteVerdict"
            ]


@FEWER
@given(st.data())
def test_no_pod_on_a_node_is_left_out_of_account_whatever_it_says_of_itself(data):
    world = begun(data, PATIENT)
    for number in range(data.draw(st.integers(1, 15))):
        step(world, data, number)
    bound: dict[str, int] = {}
    for pod in world.pods.values():
        if pod.spec.node_name and not pod.is_terminal:
            amounts = dict(world.state.cluster.reader.request(pod.spec))
            node = pod.spec.node_name
            bound[node] = bound.get(node, 0) + amounts.get("nvidia.com/gpu", 0)
    counted = used(world.state)
    is_offered = world.state.cluster.table.find_row("nvidia.com/gpu") is not None
    for node, amount in bound.items() if is_offered else ():
        assert counted.get(node, {}).get("nvidia.com/gpu", 0) >= amount


@FEWER
@given(st.data(), policies)
def test_claims_never_take_more_than_nodes_have_whatever_happens(data, policy):
    """Foreign pods and shrinking nodes may overfill a node; placing never adds to one."""
    world = begun(data, policy)
    for number in range(data.draw(st.integers(1, 15))):
        step(world, data, number)
        before = world.rebuilt()
        world.decide(policy, EPOCH + number)
        assert grown_beyond(before, world.state) == []
