"""Host ports, anti-affinity and spread on generated clusters, against checks of their own."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.property.placement_world import BOUNDED, PATIENT

from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.pod_parts import ContainerPort
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.places.whatif import fits_empty, would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.sim.promises.placement_checkers import NeighbourChecker
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_anti_affinity,
    make_job,
    make_node,
    make_pod,
    make_spread,
)

apps = st.sampled_from(["x", "y"])
keys = st.sampled_from(["kubernetes.io/hostname", "rack"])


@st.composite
def a_rule(draw: st.DrawFn, **more):
    """One rule, or none, and a label that those of others may be about."""
    kind = draw(st.sampled_from(["none", "port", "anti", "anti", "spread"]))
    if kind == "port":
        address = draw(st.sampled_from(["", "10.0.0.1", "10.0.0.2"]))
        number = draw(st.integers(80, 81))
        more["ports"] = [ContainerPort(container_port=80, host_port=number, host_ip=address)]
    elif kind == "anti":
        more["affinity"] = make_anti_affinity(draw(keys), app=draw(apps))
    elif kind == "spread":
        more["spreads"] = [make_spread(draw(keys), draw(st.integers(1, 2)), app=draw(apps))]
    return more


@st.composite
def a_ruled_cluster(draw: st.DrawFn, jobs_max: int = 6):
    racks = draw(st.lists(st.sampled_from(["r0", "r1", "r2"]), min_size=1, max_size=6))
    nodes = [
        make_node(f"n{i}", gpus=draw(st.sampled_from([1, 2, 4])), labels={"rack": rack})
        for i, rack in enumerate(racks)
    ]
    jobs = [
        make_job(
            f"j{i}", count=draw(st.integers(1, 4)), gpus=draw(st.integers(0, 2)),
            pod_labels={"app": draw(apps)}, **draw(a_rule()),
        )
        for i in range(draw(st.integers(1, jobs_max)))
    ]  # fmt: skip
    pods = [
        make_pod(f"p{i}", node=f"n{draw(st.integers(0, len(racks) - 1))}",
                 labels={"app": draw(apps)}, **draw(a_rule()))
        for i in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    return nodes, jobs, pods


@BOUNDED
@given(a_ruled_cluster())
def test_no_member_is_placed_against_a_rule(cluster):
    nodes, jobs, pods = cluster
    checker = NeighbourChecker()
    for node in nodes:
        checker.node(node, node.metadata.name, EPOCH)
    for pod in pods:
        checker.pod(pod, pod.metadata.key, EPOCH)
    state = PlacementState.of(nodes, jobs, pods)
    before = state.cluster.table.marks.copy()
    decision = decide(state, PATIENT, EPOCH)
    assert state.cluster.table.marks == before
    for action in decision.actions:
        if isinstance(action, PlaceJob):
            job = as_written(action)
            checker.job(job, job.metadata.key, EPOCH)
            state.cluster.job_changed(job)
    fresh = PlacementState.of(nodes, [e.job for e in state.cluster.jobs.values()], pods)
    assert fresh.cluster.table.marks == state.cluster.table.marks


@BOUNDED
@given(a_ruled_cluster(), st.randoms(use_true_random=False))
def test_marks_do_not_depend_on_the_order_of_events(cluster, random):
    nodes, jobs, pods = cluster
    expected = PlacementState.of(nodes, jobs, pods)
    state = PlacementState()
    events = [
        *((state.cluster.node_changed, n) for n in nodes),
        *((state.cluster.job_changed, j) for j in jobs),
        *((state.cluster.pod_changed, p) for p in pods),
    ]
    random.shuffle(events)
    for handler, obj in events:
        handler(obj)
    names, others = state.cluster.table.names, expected.cluster.table.names
    assert by_name(state, names) == by_name(expected, others)
    assert {key: e.gang for key, e in state.jobs.items()} == {
        key: e.gang for key, e in expected.jobs.items()
    }
    for pod in pods:
        state.cluster.pod_deleted(pod.metadata.key)
    assert by_name(state, names) == {}


def by_name(state: PlacementState, names: list[str]) -> dict[str, dict[str, int]]:
    """The marks by node name."""
    marks, out = state.cluster.table.marks, dict[str, dict[str, int]]()
    for mark in marks.names():
        slots, counts = marks.counts(mark)
        out[mark] = {names[s]: n for s, n in zip(slots.tolist(), counts.tolist(), strict=True)}
    return out


def is_possible(nodes, job, pods) -> bool:
    """Try every way to place a gang of one role: with pods that run, rules of any kind, in one rack
    where the gang asks for that.
    """
    role = job.spec.roles[0]
    spec, labels = role.template.spec, role.template.metadata.labels
    racks = {node.metadata.name: node.metadata.labels["rack"] for node in nodes}
    free = {n.metadata.name: int(n.status.allocatable["nvidia.com/gpu"]) for n in nodes}
    need = int(spec.containers[0].resources.limits.get("nvidia.com/gpu", 0))
    for chosen in product(racks, repeat=role.count):
        if list(chosen) != sorted(chosen) or any(
            chosen.count(node) * need > free[node] for node in chosen
        ):
            continue
        if job.spec.topology and len({racks[node] for node in chosen}) > 1:
            continue
        placed = [(node, spec, labels) for node in chosen]
        others = [(pod.spec.node_name, pod.spec, pod.metadata.labels) for pod in pods]
        pairs = [(a, b) for i, a in enumerate(placed) for b in (*placed[:i], *others)]
        if not any(in_conflict(a, b, racks) for a, b in pairs) and is_even(
            placed, others, racks, spec
        ):
            return True
    return False


def domain(node: str, key: str, racks) -> str:
    return racks[node] if key == "rack" else node


def in_conflict(a, b, racks) -> bool:
    for one, two in ((a, b), (b, a)):
        affinity = one[1].affinity
        for term in affinity.pod_anti_affinity.required if affinity else ():
            near = domain(one[0], term.topology_key, racks) == domain(
                two[0], term.topology_key, racks
            )
            if near and term.label_selector.match_labels.items() <= two[2].items():
                return True
    return a[0] == b[0] and any(
        p.host_port == q.host_port and (p.host_ip == q.host_ip or "" in (p.host_ip, q.host_ip))
        for p in a[1].containers[0].ports
        for q in b[1].containers[0].ports
    )


def is_even(placed, others, racks, spec) -> bool:
    for rule in spec.topology_spread_constraints:
        counts = dict.fromkeys((domain(n, rule.topology_key, racks) for n in racks), 0)
        for node, _, labels in (*placed, *others):
            if rule.label_selector.match_labels.items() <= labels.items():
                counts[domain(node, rule.topology_key, racks)] += 1
        least = min(counts.values())
        used = {domain(node, rule.topology_key, racks) for node, _, _ in placed}
        if any(counts[d] - least > rule.max_skew for d in used):
            return False
    return True


@BOUNDED
@given(a_ruled_cluster(jobs_max=1), st.sampled_from([None, Topology("rack", required=True)]))
def test_of_one_role_with_one_rule_a_place_is_found_if_there_is_one(cluster, topology):
    nodes, [job], pods = cluster
    job = structs.replace(job, spec=structs.replace(job.spec, topology=topology))
    state = PlacementState.of(nodes, [job], pods)
    gang = state.jobs[job.metadata.key].gang
    found = would_fit(state.cluster, gang)
    assert (found.reason is Reason.PLACED) == is_possible(nodes, job, pods)
    empty = PlacementState.of(nodes, [job]).cluster
    alone = empty.jobs[job.metadata.key].gang
    assert (fits_empty(empty, alone).reason is Reason.PLACED) == is_possible(nodes, job, [])
