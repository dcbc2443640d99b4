"""Domains, slices and ranks on generated clusters, against a search through all placements.

The search takes nothing from the planner: it goes through every way to choose a domain for every
slice.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED, PATIENT

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.repair import give_back, plan_repair, repair_scope
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.asks.topology import Level
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.sim.promises.placement_checkers import TopologyChecker
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node

LEVELS = tuple(Level(name, f"net/{name}") for name in ("block", "rack", "nvlink"))
LABELS = {level.name: level.key for level in LEVELS}


@st.composite
def a_tree(draw: st.DrawFn) -> list[Node]:
    """Nodes with 0 to 4 GPUs; NVLink domains need not be nested, and some nodes have none."""
    nodes = []
    for i in range(draw(st.integers(1, 9))):
        rack = draw(st.integers(0, 3))
        nvlink = draw(st.sampled_from(["", "0", "1", f"{rack}-0", f"{rack}-1"]))
        labels = {"net/block": f"b{rack // 2}", "net/rack": f"r{rack}"}
        if nvlink:
            labels["net/nvlink"] = nvlink
        nodes.append(make_node(f"n{i}", gpus=draw(st.integers(0, 4)), labels=labels))
    return nodes


@st.composite
def an_ask(draw: st.DrawFn) -> Topology:
    slices = draw(st.sampled_from([("", 0), ("nvlink", 2), ("nvlink", 3), ("rack", 4)]))
    kind = draw(st.sampled_from(["required", "both", "preferred", "none"]))
    if kind == "none":
        return Topology(slice_level="nvlink", slice_size=slices[1] or 2)
    if kind == "both":
        return Topology("block", True, draw(st.sampled_from(["rack", "nvlink"])), 0, *slices)
    return Topology(
        draw(st.sampled_from(["block", "rack", "net/rack"])), kind == "required", "", 0, *slices
    )


def is_possible(nodes: list[Node], asked: Topology, count: int) -> bool:
    """True when some way to choose a domain for every slice has room for all."""
    label = LABELS.get(asked.key, asked.key) if asked.required else ""
    homes = {node.metadata.labels.get(label, "") for node in nodes} - {""} if label else {""}
    return any(
        _fits([n for n in nodes if not label or n.metadata.labels.get(label) == home], asked, count)
        for home in homes
    )


def _fits(nodes: list[Node], asked: Topology, count: int) -> bool:
    if not asked.slice_size:
        return sum(map(_gpus, nodes)) >= count
    label = LABELS[asked.slice_level]
    rooms: Counter[str] = Counter()
    for node in nodes:
        if label in node.metadata.labels:
            rooms[node.metadata.labels[label]] += _gpus(node)
    sizes = [min(asked.slice_size, count - i) for i in range(0, count, asked.slice_size)]
    states = {tuple(sorted(rooms.values()))}
    for size in sizes:
        states = {
            tuple(sorted((*state[:i], room - size, *state[i + 1 :])))
            for state in states
            for i, room in enumerate(state)
            if room >= size
        }
    return bool(states)


def _gpus(node: Node) -> int:
    return int(node.status.allocatable["nvidia.com/gpu"]) if _has_gpus(node) else 0


def _has_gpus(node: Node) -> bool:
    return "nvidia.com/gpu" in node.status.allocatable


def state_of(nodes: list[Node], jobs: list[Job]) -> PlacementState:
    return PlacementState(ClusterState.of(nodes, jobs, levels=LEVELS))


def checker_of(nodes: list[Node]) -> TopologyChecker:
    checker = TopologyChecker(LABELS)
    for node in nodes:
        checker.node(node, node.metadata.name, EPOCH)
    return checker


@BOUNDED
@given(a_tree(), an_ask(), st.integers(1, 10))
def test_a_gang_of_equal_members_is_placed_if_and_only_if_there_is_a_place(nodes, asked, count):
    job = make_job("gang", count=count, gpus=1, topology=asked)
    actions = decide(state_of(nodes, [job]), PATIENT, EPOCH).actions
    placed = [action for action in actions if isinstance(action, PlaceJob)]
    assert bool(placed) == is_possible(nodes, asked, count)
    used: Counter[str] = Counter()
    for action in placed:
        checker = checker_of(nodes)
        checker.job(as_written(action), job.metadata.key, EPOCH)
        assert checker.checked == bool(asked.required or asked.slice_size)
        used.update(action.placement.roles[0].nodes)
    assert all(used[node.metadata.name] <= _gpus(node) for node in nodes)


@BOUNDED
@given(a_tree(), st.integers(1, 10))
def test_as_few_racks_as_possible_are_used_and_ranks_follow_them(nodes, count):
    job = make_job("gang", count=count, gpus=1, topology=Topology("rack"))
    [*actions] = decide(state_of(nodes, [job]), PATIENT, EPOCH).actions
    rooms: Counter[str] = Counter()
    rack_of = {node.metadata.name: node.metadata.labels["net/rack"] for node in nodes}
    block_of = {node.metadata.name: node.metadata.labels["net/block"] for node in nodes}
    for node in nodes:
        rooms[rack_of[node.metadata.name]] += _gpus(node)
    for action in actions:
        if not isinstance(action, PlaceJob):
            continue
        placed = action.placement.roles[0].nodes
        runs = [key for key, _ in groupby(placed, key=rack_of.__getitem__)]
        assert len(runs) == len(set(runs)), "consecutive ranks are in the same rack"
        blocks = [key for key, _ in groupby(placed, key=block_of.__getitem__)]
        assert len(blocks) == len(set(blocks))
        if len(set(blocks)) == 1:
            inside = sorted((rooms[r] for r in {rack_of[n] for n in rack_of
                             if block_of[n] == blocks[0]}), reverse=True)  # fmt: skip
            fewest = next(k for k in range(1, 9) if sum(inside[:k]) >= count)
            assert len(set(runs)) == fewest


@BOUNDED
@given(a_tree(), an_ask(), st.integers(2, 8), st.data())
def test_a_repaired_gang_is_still_in_its_domain_and_its_slices(nodes, asked, count, data):
    job = make_job("gang", count=count, gpus=1, topology=asked)
    [action, *_] = decide(state_of(nodes, [job]), PATIENT, EPOCH).actions
    if not isinstance(action, PlaceJob):
        return
    job = as_written(action)
    used = sorted(set(action.placement.roles[0].nodes))
    lost = data.draw(st.sets(st.sampled_from(used), min_size=1))
    left = [node for node in nodes if node.metadata.name not in lost]
    left.append(make_node("spare", gpus=4, labels=dict(nodes[0].metadata.labels)))
    state = state_of(left, [job])
    gang = state.cluster.gang_of(job)
    assert isinstance(gang, GangRequest)
    scope = repair_scope(state.cluster, job, gang)
    assert scope is not None
    if not scope.kept_count:
        return
    before, row = state.cluster.table.used.copy(), state.cluster.table.row("nvidia.com/gpu")
    with state.cluster.transaction() as transaction:
        capacity = PresentCapacity(state.cluster, transaction)
        plan = plan_repair(capacity, gang, scope)
        if plan is None:
            return
        booked = state.cluster.table.used[row] - before[row]
        give_back(capacity, gang, scope, kept=True)
    new = plan.slots[0]
    moves = (new != scope.slots[0]) | ~scope.kept[0]
    assert booked.tolist() == np.bincount(new[moves], minlength=len(booked)).tolist()
    names = tuple(state.cluster.table.names[slot] for slot in plan.slots[0].tolist())
    assert not set(names) & lost
    counts = Counter(names)
    assert all(counts[node.metadata.name] <= _gpus(node) for node in left)
    [role] = action.placement.roles
    replace = type(role)(role.role, names)
    moved = type(action.placement)(attempt=2, roles=(replace,))
    checker = checker_of(left)
    status = type(job.status)(attempt=2, placement=moved)
    checker.job(type(job)(job.metadata, job.spec, status), job.metadata.key, EPOCH)
    assert (state.cluster.table.used[: len(before)] == before).all()


@BOUNDED
@given(a_tree(), an_ask(), st.integers(1, 10), st.integers(1, 900), st.integers(0, 2))
def test_a_gang_waits_for_the_level_that_it_prefers_and_no_longer(
    nodes, asked, count, seconds, out
):
    """Some nodes are out, so that a level may hold it at another time."""
    if not (asked.preferred or (asked.key and not asked.required)):
        return
    here = nodes[out:]
    spec = {node.metadata.name: replace(node.spec, unschedulable=True) for node in nodes[:out]}
    nodes = [replace(node, spec=spec.get(node.metadata.name, node.spec)) for node in nodes]
    patient = Topology(
        asked.key, asked.required, asked.preferred, seconds, asked.slice_level, asked.slice_size
    )
    level = asked.preferred or asked.key
    one = Topology(level, True, "", 0, asked.slice_level, asked.slice_size)
    job = make_job("gang", count=count, gpus=1, topology=patient)
    state = state_of(nodes, [job])
    decision = decide(state, PATIENT, EPOCH)
    is_placed = any(isinstance(action, PlaceJob) for action in decision.actions)
    is_reachable = is_possible(nodes, one, count)
    if is_placed:
        assert is_possible(here, one if is_reachable else asked, count)
        return
    for action in decision.actions:
        state.cluster.job_changed(as_written(action))
    decide(state, PATIENT, EPOCH)
    verdict = decision.verdicts[job.metadata.key]
    if is_possible(here, asked, count):
        assert is_reachable
        assert verdict.reason is Reason.AWAITING_PREFERRED
        assert decide(state, PATIENT, EPOCH).wake_at == EPOCH + seconds
    else:
        assert verdict.reason is not Reason.AWAITING_PREFERRED
    for now, waits in ((EPOCH + seconds - 1, True), (EPOCH + seconds, False)):
        actions = decide(state, PATIENT, now).actions
        is_placed = any(isinstance(action, PlaceJob) for action in actions)
        assert is_placed == (not waits and is_possible(here, asked, count))
