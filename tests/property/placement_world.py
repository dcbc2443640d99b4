"""Generated clusters, and worlds in which events happen, for the planner's property tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node, Pod, Taint, Toleration
from fairlead.api.names import MAINTENANCE
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.placement.actions import Action
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import Decision
from fairlead.model.gang.gangs import GangRequest
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
#: Where each example goes through many events or decisions.
FEWER = settings(BOUNDED, max_examples=75)
EAGER = PlacementPolicy(starvation_seconds=0.0)
PATIENT = PlacementPolicy()
TEAM = Taint(key="team", value="a", effect="NoSchedule")
SICK = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
FOR_TEAM = Toleration(key="team", operator="Exists")

TOPOLOGIES = (
    Topology("rack", required=True),
    Topology("rack"),
    Topology("rack", True, "nvlink"),
    Topology("rack", preferred_seconds=5),
    Topology("rack", True, "nvlink", 3),
    Topology(slice_level="nvlink", slice_size=2),
    Topology("rack", True, "", 0, "nvlink", 2),
)


def _window(start: float, end: float) -> str:
    return f"{format_time(EPOCH + start)}/{format_time(EPOCH + end)}"


#: Jobs hold their nodes for 31 or 35 s, or for ever.
WINDOWS = (_window(2, 4), _window(33, 36), _window(-5, 1), _window(100, 101), "never")


def runs_into(job: Job, node: Node, now: float) -> bool:
    """True where an attempt that begins now may still run in the maintenance of the node."""
    text = node.metadata.annotations.get(MAINTENANCE, "")
    if text == "never":
        return True
    if not text:
        return False
    start, end = map(parse_time, text.split("/"))
    limit = job.spec.time_limit_seconds
    return now < end and (limit is None or now + limit + 30 > start)


node_names = st.sampled_from([f"n{i}" for i in range(7)])
policies = st.sampled_from([PATIENT, EAGER])


_NODE = {
    "gpus": st.sampled_from([0, 4, 8, 8]),
    "cpu": st.sampled_from([8, 32]),
    "memory": st.sampled_from(["16Gi", "64Gi"]),
    "pods": st.sampled_from([4, 110]),
    "labels": st.fixed_dictionaries({
        "rack": st.sampled_from(["r1", "r2", "r3"]),
        "nvlink": st.sampled_from(["l1", "l2", "l3", "l4"]),
    }),
    "taints": st.sampled_from([(), (), (), (TEAM,), (SICK,)]),
    "ready": st.sampled_from([True, True, True, False]),
    "unschedulable": st.sampled_from([False, False, False, True]),
    "annotations": st.sampled_from([{}, {}, {}, *({MAINTENANCE: text} for text in WINDOWS)]),
    "images": st.sampled_from([(), (), ("train:1",), ("train:1", "train:2"), ("train:2",)]),
}  # fmt: skip
_ROLE = {
    "count": st.integers(1, 5),
    "gpus": st.sampled_from([0, 1, 2, 3, 4, 8, 8, 16]),
    "cpu": st.sampled_from([0, 1, 4, "500m"]),
    "memory": st.sampled_from([0, "1Gi", "20Gi"]),
    "node_selector": st.sampled_from([{}, {}, {}, {"rack": "r1"}]),
    "tolerations": st.sampled_from([(), (FOR_TEAM,)]),
    "image": st.sampled_from(["train:1", "train:2"]),
}
_JOB = {
    "priority": st.sampled_from([None, 5, -1]),
    "created": st.integers(0, 3).map(lambda seconds: EPOCH + seconds),
    "attempt": st.sampled_from([1, 1, 1, 0]),
    "suspend": st.sampled_from([False, False, False, True]),
    "topology": st.sampled_from([None, None, None, *TOPOLOGIES]),
    "time_limit_seconds": st.sampled_from([None, None, 1, 5]),
}


def _drawn(draw: st.DrawFn, parts: Mapping[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Draw from strategies that are made once: each that is made is also checked."""
    return {name: draw(part) for name, part in parts.items()}


@cache
@st.composite
def a_node(draw: st.DrawFn, name: str | None = None) -> Node:
    return make_node(draw(node_names) if name is None else name, **_drawn(draw, _NODE))


@cache
@st.composite
def a_role(draw: st.DrawFn, name: str):
    return make_role(name, **_drawn(draw, _ROLE))


_HAS_SERVER = st.integers(0, 3)
#: The least members of each role, at most as many as it counts: 5 is all.
_LEAST = st.sampled_from([5, 5, 1, 2, 3])


@cache
@st.composite
def a_job(draw: st.DrawFn, name: str) -> Job:
    roles = [draw(a_role("worker"))]
    if draw(_HAS_SERVER) == 0:
        roles.append(draw(a_role("server")))
    more = _drawn(draw, _JOB)
    if more["topology"] is None or not more["topology"].slice_size:
        least = draw(_LEAST)
        roles = [msgspec.structs.replace(r, min_count=min(least, r.count)) for r in roles]
    return make_job(name, roles=roles, **more)


_UP_TO_7, _UP_TO_4, _UP_TO_3 = st.integers(0, 7), st.integers(0, 4), st.integers(0, 3)


@cache
@st.composite
def a_cluster(draw: st.DrawFn) -> tuple[list[Node], list[Job], list[Pod]]:
    count = draw(_UP_TO_7)
    nodes = [draw(a_node(f"n{i}")) for i in range(count)]
    jobs = [draw(a_job(f"j{i}")) for i in range(draw(_UP_TO_7))]
    pods = [
        make_pod(f"p{i}", node=draw(node_names), gpus=draw(_UP_TO_3), cpu=1)
        for i in range(draw(_UP_TO_4))
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


def kept(state: PlacementState) -> Counter[tuple[str, str]]:
    """What is kept for nominated jobs by node name and resource: others hold it and will leave."""
    out = Counter[tuple[str, str]]()
    for entry in state.jobs.values():
        nomination, gang = entry.job.status.nomination, entry.gang
        if nomination is None or not isinstance(gang, GangRequest):
            continue
        for place, role in zip(nomination.roles, gang.roles, strict=True):
            for name in place.nodes:
                out.update({(name, resource): n for resource, n in role.member.request})
    return out


def grown_beyond(before: PlacementState, after: PlacementState) -> list[tuple[str, str]]:
    """The nodes and resources whose use, less kept places, has grown and is more than there is."""
    old, kept_before, kept_after = used(before), kept(before), kept(after)
    out = []
    for name, amounts in used(after).items():
        slot = after.cluster.table.slot(name)
        for resource, amount in amounts.items():
            now = amount - kept_after[name, resource]
            then = old.get(name, {}).get(resource, 0) - kept_before[name, resource]
            if now > after.cluster.table.owned(resource)[slot] and now > then:
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
        (
            type(a).__name__,
            a.job.metadata.name,
            getattr(a, "verdict", None),
            getattr(a, "placement", None),
        )
        for a in decision.actions
    ]


class World:
    """The objects as the API has them, and a state that follows by events."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[tuple[str, str], Job] = {}
        self.pods: dict[tuple[str, str], Pod] = {}
        self.state = PlacementState()
        self.now = EPOCH

    def put_job(self, job: Job) -> None:
        self.jobs[job.metadata.key] = job
        self.state.cluster.job_changed(job)

    def put_pod(self, pod: Pod) -> None:
        self.pods[pod.metadata.key] = pod
        self.state.cluster.pod_changed(pod)

    def rebuilt(self) -> PlacementState:
        """Return a state of the same objects, at the time of the last decision."""
        fresh = PlacementState.of(self.nodes.values(), self.jobs.values(), self.pods.values())
        fresh.advance(self.now)
        return fresh

    def decide(self, policy: PlacementPolicy, now: float) -> Decision[Action]:
        self.now = now
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
            for i in range(job.sizes["worker"]):
                world.put_pod(make_member_pod(job, i))
    return world


_KINDS = st.sampled_from([
    "node", "node_gone", "job", "job_gone", "pod", "member", "pod_gone", "next", "end", "forged",
])  # fmt: skip


def step(world: World, data: st.DataObject, number: int) -> None:
    """One random event."""
    kind = data.draw(_KINDS)
    if kind == "node":
        node = data.draw(a_node())
        world.nodes[node.metadata.name] = node
        world.state.cluster.node_changed(node)
    elif kind == "node_gone" and world.nodes:
        name = data.draw(st.sampled_from(sorted(world.nodes)))
        del world.nodes[name]
        world.state.cluster.node_deleted(name)
    elif kind == "job":
        world.put_job(data.draw(a_job(f"k{number}")))
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
    index = data.draw(st.integers(0, job.sizes[role.name]))
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
        world.put_pod(make_member_pod(job, data.draw(st.integers(0, job.sizes["worker"] - 1))))
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
