"""The planner's promises, on generated clusters."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.api.core import Node, Pod, Taint, Toleration
from fairlead.api.job import Attempt, Job, Topology
from fairlead.decide.placement import PlacementPolicy, decide, fits_empty, would_fit
from fairlead.decide.placement.actions import Action, PlaceJob
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Decision
from fairlead.model.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_member_pod,
    make_node,
    make_pod,
    make_role,
)

BOUNDED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EAGER = PlacementPolicy(starvation_seconds=0.0)
PATIENT = PlacementPolicy()
TEAM = Taint(key="team", value="a", effect="NoSchedule")
SICK = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
FOR_TEAM = Toleration(key="team", operator="Exists")

node_names = st.sampled_from([f"n{i}" for i in range(7)])
policies = st.sampled_from([PATIENT, EAGER])


@st.composite
def a_node(draw: st.DrawFn, name: str | None = None) -> Node:
    return make_node(
        draw(node_names) if name is None else name,
        gpus=draw(st.sampled_from([0, 4, 8, 8])),
        cpu=draw(st.sampled_from([8, 32])),
        memory=draw(st.sampled_from(["16Gi", "64Gi"])),
        pods=draw(st.sampled_from([4, 110])),
        labels={"rack": draw(st.sampled_from(["r1", "r2", "r3"]))},
        taints=draw(st.sampled_from([(), (), (), (TEAM,), (SICK,)])),
        ready=draw(st.sampled_from([True, True, True, False])),
        unschedulable=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def a_role(draw: st.DrawFn, name: str):
    return make_role(
        name,
        count=draw(st.integers(1, 5)),
        gpus=draw(st.sampled_from([0, 1, 2, 3, 4, 8, 8, 16])),
        cpu=draw(st.sampled_from([0, 1, 4, "500m"])),
        memory=draw(st.sampled_from([0, "1Gi", "20Gi"])),
        node_selector=draw(st.sampled_from([{}, {}, {}, {"rack": "r1"}])),
        tolerations=draw(st.sampled_from([(), (FOR_TEAM,)])),
    )


@st.composite
def a_job(draw: st.DrawFn, name: str) -> Job:
    roles = [draw(a_role("worker"))]
    if draw(st.integers(0, 3)) == 0:
        roles.append(draw(a_role("server")))
    return make_job(
        name,
        roles=roles,
        priority=draw(st.sampled_from([None, 5, -1])),
        created=EPOCH + draw(st.integers(0, 3)),
        attempt=draw(st.sampled_from([1, 1, 1, 0])),
        suspend=draw(st.sampled_from([False, False, False, True])),
        topology=draw(
            st.sampled_from([None, None, Topology(key="rack", required=True), Topology(key="rack")])
        ),
    )


@st.composite
def a_cluster(draw: st.DrawFn) -> tuple[list[Node], list[Job], list[Pod]]:
    count = draw(st.integers(0, 7))
    nodes = [draw(a_node(name=f"n{i}")) for i in range(count)]
    jobs = [draw(a_job(name=f"j{i}")) for i in range(draw(st.integers(0, 7)))]
    pods = [
        make_pod(f"p{i}", node=draw(node_names), gpus=draw(st.integers(0, 3)), cpu=1)
        for i in range(draw(st.integers(0, 4)))
    ]
    return nodes, jobs, pods


def applied(jobs: Iterable[Job], decision: Decision[Action]) -> list[Job]:
    """The jobs after the decision's writes, as the API would show them."""
    out = {job.metadata.key: job for job in jobs}
    for action in decision.actions:
        key = action.job.metadata.key
        assert out[key].metadata.version == action.job.metadata.version
        out[key] = as_written(action)
    return list(out.values())


def used(state: PlacementState) -> dict[str, dict[str, int]]:
    """What is in use by node name and resource, zeros left out."""
    table = state.cluster.table
    out: dict[str, dict[str, int]] = {}
    for slot, name in enumerate(table.names):
        amounts = {r: int(table.used[table.row(r), slot]) for r in sorted(table.resources)}
        if name:
            out[name] = {r: a for r, a in amounts.items() if a}
    return dict(sorted(out.items()))


def grown_beyond(before: PlacementState, after: PlacementState) -> list[tuple[str, str]]:
    """The nodes and resources whose use has grown and is more than there is."""
    old = used(before)
    out = []
    for name, amounts in used(after).items():
        slot = after.cluster.table.slot(name)
        for resource, amount in amounts.items():
            over = amount > after.cluster.table.owned(resource)[slot]
            if over and amount > old.get(name, {}).get(resource, 0):
                out.append((name, resource))
    return out


def room(state: PlacementState) -> dict[str, list[list[int]]]:
    """What the fit table says of each node for every waiting class, by node name."""
    slots = sorted((n, s) for s, n in enumerate(state.cluster.table.names) if n)
    out = {}
    for key in sorted(state.jobs):
        gang = state.jobs[key].gang
        assert isinstance(gang, GangRequest)
        rows = [state.cluster.fits.fits(role.member) for role in gang.roles]
        out["/".join(key)] = [[int(row[s]) for _, s in slots] for row in rows]
        assert [int(r.sum()) for r in rows] == [
            state.cluster.fits.total(r.member) for r in gang.roles
        ]
    return out


def packing(state: PlacementState) -> dict[str, int]:
    """The packing order by node name."""
    key = state.cluster.table.key
    return {name: int(key[slot]) for slot, name in enumerate(state.cluster.table.names) if name}


def summary(decision: Decision[Action]) -> list[tuple[object, ...]]:
    return [
        (type(a).__name__, a.job.metadata.name, a.verdict, getattr(a, "placement", None))
        for a in decision.actions
    ]


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
        shape = [(role.role, len(role.nodes)) for role in action.placement.roles]
        assert shape == [(role.name, role.count) for role in job.spec.roles]
        racks = set()
        for role, placed in zip(job.spec.roles, action.placement.roles, strict=True):
            for name in placed.nodes:
                node = by_name[name]
                racks.add(node.metadata.labels["rack"])
                assert node.status.conditions[0].status == "True"
                assert not node.spec.unschedulable
                assert SICK not in node.spec.taints
                assert TEAM not in node.spec.taints or role.template.spec.tolerations
                assert role.template.spec.node_selector.get("rack", "r1") in (
                    "r1" if role.template.spec.node_selector else node.metadata.labels["rack"],
                    "r1",
                )
                if role.template.spec.node_selector:
                    assert node.metadata.labels["rack"] == "r1"
        if job.spec.topology is not None and job.spec.topology.required:
            assert len(racks) == 1


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
                assert (now.reason, now.facts) == (verdict.reason, verdict.facts)


@BOUNDED
@given(a_cluster(), st.data())
def test_a_transaction_rolls_back_exactly(cluster, data):
    nodes, jobs, pods = cluster
    state = PlacementState.of(nodes, jobs, pods)
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


class World:
    """The objects as the API has them, and a state that follows by events."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[tuple[str, str], Job] = {}
        self.pods: dict[tuple[str, str], Pod] = {}
        self.state = PlacementState()

    def put_job(self, job: Job) -> None:
        self.jobs[job.metadata.key] = job
        self.state.cluster.job_changed(job)

    def put_pod(self, pod: Pod) -> None:
        self.pods[pod.metadata.key] = pod
        self.state.cluster.pod_changed(pod)

    def rebuilt(self) -> PlacementState:
        return PlacementState.of(self.nodes.values(), self.jobs.values(), self.pods.values())

    def decide(self, policy: PlacementPolicy, now: float) -> Decision[Action]:
        decision = decide(self.state, policy, now)
        for job in applied(self.jobs.values(), decision):
            if job is not self.jobs[job.metadata.key]:
                self.put_job(job)
        return decision


def begun(data: st.DataObject, policy: PlacementPolicy) -> World:
    """A world in which something runs already."""
    world = World()
    nodes, jobs, pods = data.draw(a_cluster())
    for node in nodes:
        world.nodes[node.metadata.name] = node
        world.state.cluster.node_changed(node)
    for job in jobs:
        world.put_job(job)
    for pod in pods:
        world.put_pod(pod)
    world.decide(policy, EPOCH)
    for key in sorted(world.jobs):
        job = world.jobs[key]
        if job.status.placement is not None:
            for i in range(job.spec.roles[0].count):
                world.put_pod(make_member_pod(job, i))
    return world


def step(world: World, data: st.DataObject, number: int) -> None:
    """One random event."""
    kinds = ["node", "node_gone", "job", "job_gone", "pod", "member", "pod_gone", "next", "end"]
    kinds.append("forged")
    kind = data.draw(st.sampled_from(kinds))
    if kind == "node":
        node = data.draw(a_node())
        world.nodes[node.metadata.name] = node
        world.state.cluster.node_changed(node)
    elif kind == "node_gone" and world.nodes:
        name = data.draw(st.sampled_from(sorted(world.nodes)))
        del world.nodes[name]
        world.state.cluster.node_deleted(name)
    elif kind == "job":
        world.put_job(data.draw(a_job(name=f"k{number}")))
    elif kind == "pod":
        node = data.draw(node_names)
        world.put_pod(make_pod(f"q{number}", node=node, gpus=data.draw(st.integers(0, 2))))
    elif kind == "pod_gone" and world.pods:
        key = data.draw(st.sampled_from(sorted(world.pods)))
        pod = world.pods.pop(key)
        if data.draw(st.booleans()):
            world.state.cluster.pod_deleted(key)
        else:
            world.put_pod(
                msgspec.structs.replace(
                    pod, status=msgspec.structs.replace(pod.status, phase="Failed")
                )
            )
    elif world.jobs:
        job_step(world, data, kind)


def forged_pod(job: Job, data: st.DataObject) -> Pod:
    """A pod that looks like a member: of any size, on any node or none, here or elsewhere."""
    role = data.draw(st.sampled_from(job.spec.roles))
    index = data.draw(st.integers(0, role.count))
    node = data.draw(st.sampled_from(["", "n0", "n1", "n2"]))
    pod = make_member_pod(job, index, role=role.name, node=node or "n0")
    size = make_pod("size", gpus=data.draw(st.integers(0, 9)), cpu=1).spec.containers
    is_like = data.draw(st.booleans())
    meta = msgspec.structs.replace(
        pod.metadata,
        name=data.draw(st.sampled_from([pod.metadata.name, "forged"])),
        namespace=data.draw(st.sampled_from(["default", "default", "elsewhere"])),
        owner_references=data.draw(st.sampled_from([pod.metadata.owner_references, ()])),
    )
    containers = pod.spec.containers if is_like else size
    spec = msgspec.structs.replace(pod.spec, node_name=node, containers=containers)
    return msgspec.structs.replace(pod, metadata=meta, spec=spec)


def job_step(world: World, data: st.DataObject, kind: str) -> None:
    key = data.draw(st.sampled_from(sorted(world.jobs)))
    job = world.jobs[key]
    if kind == "job_gone":
        del world.jobs[key]
        world.state.cluster.job_deleted(key)
    elif kind == "member" and job.status.placement is not None:
        world.put_pod(make_member_pod(job, data.draw(st.integers(0, job.spec.roles[0].count - 1))))
    elif kind == "forged":
        world.put_pod(forged_pod(job, data))
    elif kind == "next":
        lost = data.draw(st.sampled_from([(), ("n1",)]))
        attempts = (*job.status.attempts, Attempt(number=job.status.attempt, nodes_lost=lost))
        status = msgspec.structs.replace(
            job.status, attempt=job.status.attempt + 1, attempts=attempts
        )
        world.put_job(msgspec.structs.replace(job, status=status))
    elif kind == "end":
        spec = msgspec.structs.replace(job.spec, suspend=data.draw(st.booleans()))
        world.put_job(msgspec.structs.replace(job, spec=spec))


@BOUNDED
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
    for name in ("releasable", "repairable", "held"):
        assert sorted(getattr(world.state, name)) == sorted(getattr(fresh, name))
    assert world.state.queue.first(100) == fresh.queue.first(100)


@BOUNDED
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


@BOUNDED
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


@BOUNDED
@given(st.data(), policies)
def test_claims_never_take_more_than_nodes_have_whatever_happens(data, policy):
    """Foreign pods and shrinking nodes may overfill a node; placing never adds to one."""
    world = begun(data, policy)
    for number in range(data.draw(st.integers(1, 15))):
        step(world, data, number)
        before = world.rebuilt()
        world.decide(policy, EPOCH + number)
        assert grown_beyond(before, world.state) == []
