"""Levels, preferences with a time, and slices: how the planner chooses, and what it says."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import HOSTNAME
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.domains import in_rank_order
from fairlead.decide.placement.places.search import DOMAINS_TRIED_MAX, members_fit_domain
from fairlead.decide.placement.places.whatif import fits_empty, would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Decision
from fairlead.model.asks.topology import Level, TopologyRequest
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_placement,
    make_role,
)

POLICY = PlacementPolicy()
LEVELS = tuple(Level(name, f"net/{name}") for name in ("superpod", "block", "rack"))
J = ("default", "j")


def tree(*counts: int, racks: int = 2, blocks: int = 2) -> list[Node]:
    """Racks of so many nodes with 8 GPUs each; `racks` racks in a block, `blocks` in a superpod."""
    return [
        make_node(
            f"r{rack}-{i}",
            labels={
                "net/rack": f"r{rack}",
                "net/block": f"b{rack // racks}",
                "net/superpod": f"s{rack // (racks * blocks)}",
            },
        )
        for rack, count in enumerate(counts)
        for i in range(count)
    ]


def state_of(nodes: list[Node], *jobs: Job) -> PlacementState:
    return PlacementState(ClusterState.of(nodes, jobs, levels=LEVELS))


def racks(decision: Decision, name: str = "j") -> list[tuple[str, int]] | None:
    """The racks of the placed job in rank order, with how many members each has in a row."""
    for action in decision.actions:
        if isinstance(action, PlaceJob) and action.job.metadata.name == name:
            nodes = action.placement.roles[0].nodes
            runs = groupby(nodes, lambda node: node.partition("-")[0])
            return [(rack, len(list(run))) for rack, run in runs]
    return None


def place(nodes: list[Node], count: int, topology: Topology) -> list[tuple[str, int]] | None:
    return racks(decide(state_of(nodes, make_job("j", count=count, topology=topology)), POLICY,
                        EPOCH))  # fmt: skip


def test_a_level_is_named_or_its_label_is() -> None:
    nodes = tree(2, 3)
    assert place(nodes, 3, Topology("rack", required=True)) == [("r1", 3)]
    assert place(nodes, 3, Topology("net/rack", required=True)) == [("r1", 3)]


def test_the_narrowest_level_with_room_is_taken_on_the_way_to_the_required_one() -> None:
    nodes = tree(2, 2, 3, 1, 4, 4, 4, 4)
    both = Topology("superpod", True, "rack")
    assert place(nodes, 3, both) == [("r2", 3)], "the smallest rack with room"
    assert place(nodes, 8, both) == [("r4", 4), ("r5", 4)], "no rack, but one block"
    assert place(nodes, 14, both) == [("r4", 4), ("r5", 4), ("r6", 4), ("r7", 2)]
    assert place(nodes, 17, both) is None


def test_as_few_racks_as_possible_and_the_smallest_for_what_is_left_over() -> None:
    nodes = tree(3, 4, 2, 4, racks=4)
    assert place(nodes, 6, Topology("block", True, "rack")) == [("r1", 4), ("r2", 2)]
    assert place(nodes, 7, Topology("rack")) == [("r0", 3), ("r1", 4)]


def test_a_preferred_level_that_is_not_narrower_is_refused_with_the_levels() -> None:
    job = make_job("j", topology=Topology("rack", True, "superpod"))
    found = decide(state_of(tree(1), job), POLICY, EPOCH).verdicts[J]
    assert found.reason is Reason.INVALID_REQUEST
    assert found.message == (
        "invalid request: spec.topology.preferred: superpod is not narrower than rack; the levels "
        "are, widest first: superpod, block, rack"
    )


@pytest.mark.parametrize("seconds", [0, 600])
def test_a_preferred_domain_that_reaches_over_the_required_one_is_cut_there(seconds: int) -> None:
    nodes = [
        make_node(f"r{i}", labels={"net/block": f"b{i // 2}", "cable": "all" if i else "one"})
        for i in range(4)
    ]
    job = make_job("j", count=2, topology=Topology("block", True, "cable", seconds))
    [action] = decide(state_of(nodes, job), POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    assert action.placement.roles[0].nodes == ("r2", "r3")


# Time


def busy() -> list[Node]:
    """Two racks of 3 in one block; a node of each is out."""
    out = ("r0-2", "r1-2")
    kept = [node for node in tree(3, 3) if node.metadata.name not in out]
    nodes = [node for node in tree(3, 3) if node.metadata.name in out]
    return [*kept, *(replace(n, spec=replace(n.spec, unschedulable=True)) for n in nodes)]


def waiting() -> PlacementState:
    """A job of 3 that prefers one rack for 10 minutes, where a node is out in each of 3."""
    job = make_job("j", count=3, topology=Topology("block", True, "rack", 600))
    return state_of(busy(), job)


def test_a_job_does_not_wait_for_a_level_that_can_never_hold_it() -> None:
    job = make_job("j", count=3, topology=Topology("block", True, "rack", 600))
    assert racks(decide(state_of(tree(2, 2), job), POLICY, EPOCH)) == [("r0", 2), ("r1", 1)]
    holders = [make_job(f"h{n}", count=1, placement=make_placement([f"r{n}-0"])) for n in "01"]
    state = state_of(tree(2, 2), job, *holders)
    assert decide(state, POLICY, EPOCH).verdicts[J].reason is Reason.INSUFFICIENT_CAPACITY
    [small] = tree(0, 0, 1)
    state.cluster.node_changed(small)
    assert decide(state, POLICY, EPOCH).verdicts[J].reason is Reason.TOPOLOGY_UNAVAILABLE
    for node in tree(0, 0, 0, 0, 3):
        state.cluster.node_changed(replace(node, spec=replace(node.spec, unschedulable=True)))
    state.cluster.job_deleted(holders[0].metadata.key)
    assert decide(state, POLICY, EPOCH).verdicts[J].reason is Reason.AWAITING_PREFERRED
    for node in tree(0, 0, 0, 0, 3)[:1]:
        state.cluster.node_deleted(node.metadata.name)
    assert racks(decide(state, POLICY, EPOCH)) == [("r0", 2), ("r1", 1)]


def test_a_job_waits_for_the_level_that_it_prefers_and_then_takes_a_wider_one() -> None:
    state = waiting()
    decision = decide(state, POLICY, EPOCH)
    assert racks(decision) is None
    found = decision.verdicts[J]
    assert (found.reason, found.outcome) == (Reason.AWAITING_PREFERRED, Outcome.WAITING)
    assert found.message == (
        "waits for one rack until 2026-01-01T00:10:00Z, then takes one block; the best of 2 has "
        "room for 2 of 3 members"
    )
    gang = state.jobs[J].gang
    assert fits_empty(state.cluster, gang).reason is Reason.PLACED, "in the end"
    assert would_fit(state.cluster, gang).reason is Reason.AWAITING_PREFERRED
    for action in decision.actions:
        state.cluster.job_changed(as_written(action))
    again = decide(state, POLICY, EPOCH + 599.9)
    assert (again.actions, again.wake_at) == ((), EPOCH + 600)
    assert racks(decide(state, POLICY, EPOCH + 600)) == [("r0", 2), ("r1", 1)]


def test_the_wait_is_counted_from_when_the_job_began_to_wait_even_after_a_restart() -> None:
    state = waiting()
    [action] = decide(state, POLICY, EPOCH).actions
    fresh = state_of(busy(), as_written(action))
    assert decide(fresh, POLICY, EPOCH + 300).actions == ()
    fresh = state_of(busy(), as_written(action))
    assert racks(decide(fresh, POLICY, EPOCH + 700)) == [("r0", 2), ("r1", 1)]


def test_a_rack_that_becomes_free_in_time_is_taken() -> None:
    state = waiting()
    [action] = decide(state, POLICY, EPOCH).actions
    state.cluster.job_changed(as_written(action))
    for node in tree(0, 0, 3, 0):
        state.cluster.node_changed(node)
    assert racks(decide(state, POLICY, EPOCH + 60)) == [("r2", 3)]


def test_a_job_that_waits_by_choice_preempts_nothing_and_reserves_nothing() -> None:
    low = make_job("low", count=1, priority=0, placement=make_placement(["r0-0"]))
    job = make_job("j", count=3, priority=9, topology=Topology("block", True, "rack", 600))
    later = make_job("later", count=1, created=EPOCH + 1, priority=1)
    state = state_of(tree(3, 2), low, job, later)
    strict = PlacementPolicy(starvation_seconds=0.0, preemption_min_run_seconds=0.0)
    decision = decide(state, strict, EPOCH + 100)
    assert decision.verdicts[J].reason is Reason.AWAITING_PREFERRED
    assert racks(decision, "later") == [("r0", 1)]


def test_why_says_when_a_wider_level_is_accepted_and_leaves_the_queue_as_it_was() -> None:
    state = waiting()
    [action] = decide(state, POLICY, EPOCH).actions
    state.cluster.job_changed(as_written(action))
    for _ in range(2):
        found = explain(state, J, EPOCH + 60)
        assert found is not None
        assert found.verdict.facts["until"] == "2026-01-01T00:10:00Z"
        assert isinstance(found.forecast, Forecast)
        assert found.forecast.may_start_by == EPOCH + 600
    assert racks(decide(state, POLICY, EPOCH + 60)) is None
    assert racks(decide(state, POLICY, EPOCH + 600)) is not None


# Slices


def test_every_slice_is_in_one_domain_and_a_smaller_last_one_comes_last() -> None:
    nodes = tree(5, 3, 4, 2, racks=4)
    asked = Topology("block", True, "", 0, "rack", 2)
    assert place(nodes, 8, asked) == [("r0", 4), ("r2", 4)]
    assert place(nodes, 13, asked) == [("r1", 2), ("r2", 4), ("r3", 2), ("r0", 5)]
    assert place(nodes, 14, asked) is None


def test_of_racks_with_as_much_room_a_slice_takes_the_first_by_name() -> None:
    nodes, asked = tree(2, 2, 2), Topology(slice_level="rack", slice_size=2)
    assert place(nodes, 2, asked) == place(nodes[::-1], 2, asked) == [("r0", 2)]


@pytest.mark.parametrize(
    ("size", "before", "left", "after"),
    [
        pytest.param(
            2,
            ["r0-0", "r0-1", "r1-0", "r1-1"],
            ["r0-0", "r0-2", "r1-0", "r2-0", "r2-1"],
            ["r0-0", "r0-2", "r2-0", "r2-1"],
            id="the slice whose rack has room stays there",
        ),
        pytest.param(
            3,
            ["r1-0", "r1-1", "r1-2", "r0-0", "r0-1"],
            ["r0-0", "r1-0", "r1-3", "r2-0", "r2-1", "r2-2"],
            ["r2-0", "r2-1", "r2-2", "r1-0", "r1-3"],
            id="a slice goes where another one has left",
        ),
        pytest.param(
            2,
            ["-0", "-1"],
            ["-0", "-2", "r0-0", "r0-1"],
            ["r0-0", "r0-1"],
            id="nodes without a rack are no rack",
        ),
    ],
)
def test_a_slice_for_which_its_rack_has_no_room_moves_as_a_whole(
    size: int, before: list[str], left: list[str], after: list[str]
) -> None:
    nodes = [
        make_node(f"n{name}", labels={"net/rack": rack} if (rack := name[:-2]) else {})
        for name in left
    ]
    job = make_job(
        "j", count=len(before), topology=Topology(slice_level="rack", slice_size=size), attempt=2,
        placement=make_placement([f"n{name}" for name in before]),
    )  # fmt: skip
    [action] = decide(state_of(nodes, job), POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    assert [node[1:] for node in action.placement.roles[0].nodes] == after


@pytest.mark.parametrize(("key", "within"), [("", "the cluster"), ("block", "the best block")])
def test_what_has_no_room_for_the_slices_is_said_with_numbers(key: str, within: str) -> None:
    asked = Topology(key, bool(key), "", 0, "rack", 2)
    job = make_job("j", count=8, topology=asked)
    state = state_of(tree(3, 3, 3, racks=4), job)
    found = decide(state, POLICY, EPOCH).verdicts[J]
    assert found.reason is Reason.NO_SLICES_FIT
    assert found.message == (
        f"in slices of 2 members, each in one rack, {within}, empty, has room for 7 of 8 members"
    )
    busy = make_job("busy", placement=make_placement(["r0-0"]))
    state = state_of(tree(4, 2, 2, racks=4), job, busy)
    found = decide(state, POLICY, EPOCH).verdicts[J]
    assert found.reason is Reason.FRAGMENTED or found.reason is Reason.INSUFFICIENT_CAPACITY
    state = state_of(tree(4, 3, 2, racks=4), job, busy)
    found = decide(state, POLICY, EPOCH).verdicts[J]
    assert found.reason is Reason.SLICES_UNAVAILABLE
    assert found.message == (
        f"in slices of 2 members, each in one rack, {within} has room for 7 of 8 members"
    )
    assert found.blockers == (("default", "busy"),)


def test_a_job_of_higher_priority_preempts_for_its_slices() -> None:
    low = [
        make_job(f"low-{i}", priority=0, placement=make_placement([f"r{i}-0"])) for i in range(3)
    ]
    job = make_job("j", count=4, priority=9, topology=Topology("", False, "", 0, "rack", 2))
    state = state_of(tree(2, 2, 1, 1), *low, job)
    policy = PlacementPolicy(preemption_min_run_seconds=0.0)
    decision = decide(state, policy, EPOCH + 1000)
    assert decision.verdicts[J].reason is Reason.PREEMPTING
    assert set(decision.verdicts[J].blockers) == {("default", "low-0"), ("default", "low-1")}


# The shape of a real network: Alibaba's Lingjun topology (one core switch, pods of switches below,
# and access switches whose hosts are in one to three of those pods).


def lingjun(count: int = 96) -> list[Node]:
    return [
        make_node(
            f"h{i:02d}",
            labels={
                "net/superpod": "G6",
                "net/block": f"P{(i // 16 + i % 3) % 6}",
                "net/rack": f"S{i // 12}",
            },
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [2, 4, 6, 11, 16])
def test_racks_that_reach_over_several_blocks_keep_a_gang_in_one_block(count: int) -> None:
    nodes = lingjun()
    by_name = {node.metadata.name: node.metadata.labels for node in nodes}
    rooms = Counter((n["net/block"], n["net/rack"]) for n in by_name.values())
    job = make_job("j", count=count, topology=Topology("block", True, "rack"))
    [action] = decide(state_of(nodes, job), POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    placed = [by_name[node] for node in action.placement.roles[0].nodes]
    [block] = {labels["net/block"] for labels in placed}
    used = [rack for rack, _ in groupby(labels["net/rack"] for labels in placed)]
    inside = sorted((n for (each, _), n in rooms.items() if each == block), reverse=True)
    assert len(used) == next(k for k in range(1, 9) if sum(inside[:k]) >= count)
    assert len(used) == len(set(used)), "ranks follow the racks"


def test_roles_that_fit_only_side_by_side_stay_in_one_domain() -> None:
    """One by one the first role takes what the second one needs; the other rack has room, too."""
    nodes = [
        make_node(name, gpus=gpus, labels={"net/rack": rack})
        for name, gpus, rack in (("other", 2, "r1"), ("x", 4, "r0"), ("y", 5, "r0"))
    ]
    roles = [make_role("large", gpus=3), make_role("small", count=3, gpus=2)]
    job = make_job("j", roles=roles, topology=Topology("rack", True))
    [action] = decide(state_of(nodes, job), POLICY, EPOCH).actions
    assert isinstance(action, PlaceJob)
    large, small = (role.nodes for role in action.placement.roles)
    assert (large, sorted(small)) == (("y",), ["x", "x", "y"])


class Tried(PresentCapacity):
    """It knows how often members were placed to see how many there is room for."""

    times = 0

    def mark(self) -> int:
        self.times += 1
        return super().mark()


def test_the_best_domain_for_several_roles_is_found_without_a_look_into_each() -> None:
    """For a gang that has to be on one host these would be 7,500 looks in one decision."""
    nodes = [make_node(f"n{i:03}", gpus=8 if i == 150 else 1 + i % 7) for i in range(200)]
    roles = [make_role("large", count=4, gpus=2), make_role("small", count=9, gpus=1)]
    job = make_job("j", roles=roles, topology=Topology(HOSTNAME, required=True))
    state = state_of(nodes, job).cluster
    gang = state.jobs[J].gang
    assert isinstance(gang, GangRequest)
    with state.transaction() as transaction:
        capacity = Tried(state, transaction)
        assert members_fit_domain(capacity, state.table, gang) == 4
        assert 0 < capacity.times <= DOMAINS_TRIED_MAX


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_goes_while_it_waits_by_choice_leaves_nothing_for_later(
    *, is_cancelled: bool
) -> None:
    state = waiting()
    for action in decide(state, POLICY, EPOCH).actions:
        state.cluster.job_changed(as_written(action))
    assert decide(state, POLICY, EPOCH).wake_at == EPOCH + 600
    if is_cancelled:
        job = state.jobs[J].job
        state.cluster.job_changed(replace(job, spec=replace(job.spec, cancel=True)))
    else:
        state.cluster.job_deleted(J)
    assert decide(state, POLICY, EPOCH + 1).wake_at is None
    assert decide(state, POLICY, EPOCH + 600).actions == ()


def test_a_role_of_which_no_member_is_to_be_placed_has_no_order() -> None:
    none = np.zeros(0, dtype=np.int64)
    table = ClusterState.of(tree(1, 1), (), levels=LEVELS).table
    topology = TopologyRequest(path=("net/rack",))
    assert in_rank_order(table, topology, none, none).tolist() == []
