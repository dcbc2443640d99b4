"""A gang's next attempt: the same nodes, new ones for the lost, a wait, or none."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Attempt, Job, VerdictStatus
from fairlead.api.jobs.placement import EmptySeats, Nomination
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob, ReleaseJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_placement,
    make_pod,
    make_role,
)

POLICY = PlacementPolicy(repair_hold_seconds=300)


def wounded(*nodes: str, lost: tuple[str, ...] = (), **kwargs: object) -> Job:
    """A gang on these nodes, whose first attempt is over."""
    attempts = (Attempt(number=1, nodes_lost=lost),)
    return make_job(
        "gang",
        count=len(nodes),
        attempt=2,
        placement=make_placement(nodes),
        status={"attempts": attempts},
        **kwargs,
    )


def outcome(nodes: list[Node], *jobs: Job, now: float = EPOCH, pods: tuple[object, ...] = ()):
    decision = decide(PlacementState.of(nodes, jobs, pods), POLICY, now)
    return next(a for a in decision.actions if a.job.metadata.name == "gang"), decision


def placed(action: object) -> list[str]:
    assert isinstance(action, PlaceJob)
    assert action.placement.attempt == 2
    return [node for role in action.placement.roles for node in role.nodes]


def test_with_all_nodes_well_the_places_are_confirmed() -> None:
    action, _ = outcome([make_node("a"), make_node("b"), make_node("c")], wounded("b", "a"))
    assert placed(action) == ["b", "a"]


def test_a_member_on_a_cordoned_node_moves_with_the_next_attempt() -> None:
    nodes = [make_node("a", unschedulable=True), make_node("b"), make_node("c")]
    action, _ = outcome(nodes, wounded("a", "b"))
    assert placed(action) == ["c", "b"]
    action, _ = outcome(nodes, wounded("a", "b", lost=("a",)))
    assert placed(action) == ["c", "b"]


def test_members_leave_a_node_that_no_longer_offers_what_they_ask() -> None:
    nodes = [make_node("a", gpus=7), make_node("b", gpus=8), make_node("c", gpus=8)]
    action, _ = outcome(nodes, wounded("a", "b", gpus=8))
    assert placed(action) == ["c", "b"]
    action, _ = outcome(nodes, wounded("a", "a", "a", "b", gpus=3))  # 9 of 7: the last one leaves
    assert placed(action) == ["a", "a", "c", "b"]
    action, _ = outcome(nodes, wounded("a", "a", "b", gpus=3))
    assert placed(action) == ["a", "a", "b"]


def test_members_stay_beside_places_that_are_kept_for_others_and_pods_that_leave() -> None:
    nodes = [make_node("a", gpus=8), make_node("b", gpus=8)]
    kept = Nomination(make_placement(["a"]).roles, format_time(EPOCH))
    nominee = make_job("nominee", gpus=8, priority=9, status={"nomination": kept})
    action, _ = outcome(nodes, wounded("a", gpus=8), nominee)
    assert placed(action) == ["a"]
    leaving = make_pod("old", node="a", gpus=4, uid="x")
    action, _ = outcome(nodes, wounded("a", gpus=8), pods=(leaving,))
    assert placed(action) == ["a"]


def test_pods_of_another_tool_stay_on_a_cordoned_node() -> None:
    nodes = [make_node("a", unschedulable=True), make_node("b"), make_node("c")]
    adopts = Adopts("StatefulSet", "web", "apps/v1")
    job = wounded("a", "b", lost=("b",))
    admitted = Condition("Admitted", "True", "Admitted")
    job = replace(
        job,
        spec=replace(job.spec, adopts=adopts),
        status=replace(job.status, conditions=(admitted,)),
    )
    action, _ = outcome(nodes, job)
    assert placed(action) == ["a", "c"]


def test_a_seat_that_is_given_back_needs_no_node_and_gives_none() -> None:
    """Another job has had it since; in the repair it is neither lost nor free."""
    adopts, admitted = Adopts("StatefulSet", "web", "apps/v1"), Condition("Admitted", "True", "x")
    job = wounded("a", "b", "c", lost=("c",))
    seats = (EmptySeats("worker", vacant=(1,)),)
    job = replace(
        job,
        spec=replace(job.spec, adopts=adopts),
        status=replace(job.status, conditions=(admitted,), seats=seats),
    )
    other = make_job("other", placement=make_placement(["b"]))
    well = [make_node(name) for name in ("a", "b", "c", "d")]
    for nodes in (well, [well[0], *well[2:]]):  # with its node, and after that is gone
        action, _ = outcome(nodes, job, *([other] if nodes is well else []))
        assert placed(action) == ["a", "b", "d"]
    kept, decision = outcome(well[:2], job, other)
    assert isinstance(kept, WriteVerdict)
    assert decision.verdicts["default", "gang"].facts["nodes_lost"] == 1


def test_a_gang_waits_for_a_place_for_what_was_on_a_cordoned_node() -> None:
    nodes = [make_node("a", unschedulable=True), make_node("b")]
    action, decision = outcome(nodes, wounded("a", "b"))
    assert isinstance(action, WriteVerdict)
    assert action.verdict.facts == {"members_kept": 1, "members": 2, "nodes_lost": 1}
    verdict = decision.verdicts["default", "gang"]
    assert verdict.reason is Reason.REPAIRING
    assert verdict.message == (
        "keeps the nodes of 1 of 2 members; no replacement yet for 1 node, lost or cordoned"
    )


def test_a_gang_whose_nodes_are_all_cordoned_waits_in_the_queue_with_the_reason() -> None:
    cordoned = [make_node("a", unschedulable=True), make_node("b", unschedulable=True)]
    action, decision = outcome(cordoned, wounded("a", "b"))
    assert isinstance(action, ReleaseJob)
    assert decision.verdicts["default", "gang"].reason is Reason.NODES_UNAVAILABLE
    assert decision.verdicts["default", "gang"].facts["nodes_unavailable"] == 2


@pytest.mark.parametrize(
    "sick",
    [
        [],
        [make_node("b", ready=False)],
        [make_node("b", taints=[Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")])],
    ],
)
def test_only_members_on_lost_nodes_move(sick: list[Node]) -> None:
    nodes = [make_node("a"), *sick, make_node("c"), make_node("d")]
    action, _ = outcome(nodes, wounded("a", "b", "c"))
    assert placed(action) == ["a", "d", "c"]


def test_a_node_that_the_last_attempt_lost_is_shunned_while_there_is_another() -> None:
    nodes = [make_node("a"), make_node("b")]
    action, _ = outcome([*nodes, make_node("c")], wounded("a", "b", lost=("b",)))
    assert placed(action) == ["a", "c"]
    action, _ = outcome(nodes, wounded("a", "b", lost=("b",)))
    assert placed(action) == ["a", "b"]


def test_nodes_outside_the_gang_are_taken_before_its_own() -> None:
    nodes = [make_node("a"), make_node("z")]
    action, _ = outcome(nodes, wounded("a", "gone", gpus=2))
    assert placed(action) == ["a", "z"]
    action, _ = outcome(nodes[:1], wounded("a", "gone", gpus=2))
    assert placed(action) == ["a", "a"]


def test_a_wounded_gang_keeps_its_healthy_nodes_against_everybody() -> None:
    other = make_job("other", priority=100)
    action, decision = outcome([make_node("a")], wounded("a", "gone"), other)
    assert isinstance(action, WriteVerdict)
    assert action.verdict.facts == {"members_kept": 1, "members": 2, "nodes_lost": 1}
    assert decision.verdicts["default", "gang"].reason is Reason.REPAIRING
    assert decision.verdicts["default", "other"].reason is Reason.INSUFFICIENT_CAPACITY
    assert decision.wake_at == EPOCH + 300


def repairing(since: float) -> VerdictStatus:
    return VerdictStatus(
        outcome="Waiting",
        reason="Repairing",
        facts={"members_kept": 1, "members": 2, "nodes_lost": 1},
        since=format_time(since),
    )


def test_a_gang_that_finds_no_replacement_in_time_gives_everything_back() -> None:
    nodes = [make_node("a")]
    job = wounded("a", "gone", verdict=repairing(EPOCH))
    assert decide(PlacementState.of(nodes, [job]), POLICY, EPOCH + 299).actions[1:] == ()
    action, decision = outcome(nodes, job, now=EPOCH + 300)
    assert isinstance(action, ReleaseJob)
    assert action.verdict is not None
    assert action.verdict.reason == "ExceedsCluster"
    assert action.placed.status == "False"
    assert decision.verdicts["default", "gang"].facts == {"members": 2, "members_fit": 1}


def test_what_a_repair_gives_up_goes_to_nobody_in_the_same_decision() -> None:
    """The write of the repair may still fail, and then the old places count again."""
    nodes = [make_node("a"), make_node("b"), make_node("c")]
    waiting = make_job("other", created=EPOCH + 9)
    action, decision = outcome(nodes, wounded("a", "b", lost=("b",)), waiting)
    assert placed(action) == ["a", "c"]
    assert [a.job.metadata.name for a in decision.actions if isinstance(a, PlaceJob)] == ["gang"]


def test_what_a_whole_move_gives_up_goes_to_nobody_in_the_same_decision() -> None:
    waiting = make_job("other", created=EPOCH + 9)
    nodes = [make_node("a"), make_node("z")]
    action, decision = outcome(nodes, wounded("z", lost=("z",)), waiting)
    assert placed(action) == ["a"]
    assert [a.job.metadata.name for a in decision.actions if isinstance(a, PlaceJob)] == ["gang"]


def test_a_whole_move_that_fails_leaves_the_old_places_to_the_gang_in_the_same_decision() -> None:
    gang = wounded("a", "gone", verdict=repairing(EPOCH))
    waiting = make_job("other", created=EPOCH + 9)
    state = PlacementState.of([make_node("a")], [gang, waiting])
    decision = decide(state, POLICY, EPOCH + 300)
    [release] = [a for a in decision.actions if a.job.metadata.name == "gang"]
    assert isinstance(release, ReleaseJob)
    assert [a for a in decision.actions if isinstance(a, PlaceJob)] == []
    assert decision.verdicts["default", "other"].reason is Reason.INSUFFICIENT_CAPACITY
    state.cluster.job_changed(as_written(release))
    [place] = [a for a in decide(state, POLICY, EPOCH + 301).actions if isinstance(a, PlaceJob)]
    assert place.job.metadata.name == "other", "once the release is written, the node is free"


def test_a_required_domain_holds_for_the_replacement_too() -> None:
    topology = Topology(key="rack", required=True)
    nodes = [make_node("a", labels={"rack": "1"}), make_node("z", labels={"rack": "2"})]
    job = wounded("a", "gone", topology=topology)
    action, _ = outcome(nodes, job)
    assert isinstance(action, WriteVerdict)
    action, _ = outcome([*nodes, make_node("b", labels={"rack": "1"})], job)
    assert placed(action) == ["a", "b"]
    # A whole move to another domain comes only when the hold is over.
    job = wounded("a", "gone", topology=topology, verdict=repairing(EPOCH))
    nodes.append(make_node("y", labels={"rack": "2"}))
    action, _ = outcome(nodes, job, now=EPOCH + 300)
    assert placed(action) == ["y", "z"]


def test_a_gang_that_lost_every_node_is_placed_anew() -> None:
    action, _ = outcome([make_node("x"), make_node("y")], wounded("gone1", "gone2"))
    assert placed(action) == ["x", "y"]


def test_a_placement_of_another_shape_is_given_back() -> None:
    job = make_job("gang", roles=[make_role(count=3)], attempt=2, placement=make_placement(["a"]))
    action, _ = outcome([make_node("a")], job)
    assert isinstance(action, ReleaseJob)
    assert action.placed.reason == "PlacementOutdated"


def test_pods_of_the_old_attempt_on_kept_nodes_do_not_stand_in_the_way() -> None:
    job = wounded("a", "gone")
    leftover = make_pod("foreign", node="b", gpus=8)
    action, _ = outcome([make_node("a"), make_node("b"), make_node("c")], job, pods=(leftover,))
    assert placed(action) == ["a", "c"]


def test_gangs_that_wait_for_a_replacement_do_not_keep_others_from_their_turn() -> None:
    nodes = [make_node(f"n{i}", gpus=8) for i in range(4)]
    wide = {
        f"wide-{i}": make_job(
            f"wide-{i}", count=2, gpus=8, attempt=2, created=EPOCH + i,
            placement=make_placement([f"n{i}", f"gone-{i}"]),
            status={"attempts": (Attempt(number=1, nodes_lost=(f"gone-{i}",)),)},
        )
        for i in range(3)
    }  # fmt: skip
    small = make_job("small", count=1, gpus=1, created=EPOCH + 9)
    state = PlacementState.of([*nodes[:3], make_node("n3", gpus=4)], [*wide.values(), small])
    policy = replaced(POLICY, evaluations_max=1)
    decisions = []
    while not decisions or decisions[-1].wake_at == EPOCH:
        decisions.append(decide(state, policy, EPOCH))
        for action in decisions[-1].actions:
            state.cluster.job_changed(as_written(action))
        assert len(decisions) < 10
    assert state.jobs["default", "small"].job.status.placement is not None
    assert all(
        state.jobs["default", name].job.status.verdict.reason == "Repairing" for name in wide
    )
    state.cluster.node_changed(make_node("n4", gpus=8))
    (action,) = decide(state, policy, EPOCH + 1).actions
    assert isinstance(action, PlaceJob)
    assert action.placement.roles[0].nodes == ("n0", "n4")
