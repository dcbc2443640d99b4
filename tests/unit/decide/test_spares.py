"""Spares in the planner: repairs take them, and nothing else does."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node, Taint, Toleration
from fairlead.decide.placement.actions import ReleaseJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_role

from .test_placement_repair import outcome, placed, wounded

SPARE = Taint(names.TAINT_SPARE, "NoSchedule", "pool")
EVERYTHING = (Toleration(operator="Exists"), Toleration(names.TAINT_SPARE, "Exists"))


def spare(name: str, rack: str = "") -> Node:
    return make_node(name, taints=[SPARE], labels={"rack": rack} if rack else {})


def test_a_job_gets_no_spare_whatever_it_tolerates() -> None:
    job = make_job("gang", count=1, gpus=8, tolerations=EVERYTHING)
    decision = decide(PlacementState.of([spare("a")], [job]), PlacementPolicy(), EPOCH)
    assert [type(action) for action in decision.actions] == [WriteVerdict]
    verdict = decision.verdicts["default", "gang"]
    assert verdict.reason is Reason.NO_MATCHING_NODE
    assert verdict.message.endswith("; 1 node is a spare, kept for repairs")


def test_why_says_that_only_spares_have_room() -> None:
    nodes = [make_node("a"), make_node("b"), spare("c"), spare("d")]
    runs = make_job("runs", count=1, gpus=8, attempt=1, placement=make_placement(["a"]))
    waits = make_job("waits", count=2, gpus=8)
    decision = decide(PlacementState.of(nodes, [runs, waits]), PlacementPolicy(), EPOCH)
    verdict = decision.verdicts["default", "waits"]
    assert verdict.reason is Reason.INSUFFICIENT_CAPACITY
    assert verdict.message.endswith("; 2 nodes are spares, kept for repairs")
    large = make_job("waits", count=8, gpus=8)
    decision = decide(PlacementState.of(nodes, [runs, large]), PlacementPolicy(), EPOCH)
    assert "spare" not in decision.verdicts["default", "waits"].message


def test_a_lost_node_is_replaced_by_a_spare_before_an_idle_node() -> None:
    nodes = [make_node("a"), make_node("b"), spare("s")]
    action, _ = outcome(nodes, wounded("a", "lost", gpus=8))
    assert placed(action) == ["a", "s"]


def test_a_small_member_fills_a_hole_before_it_breaks_up_a_spare() -> None:
    beside = make_job("beside", count=1, gpus=4, attempt=1, placement=make_placement(["b"]))
    nodes = [make_node("a"), make_node("b"), spare("s")]
    action, _ = outcome(nodes, wounded("a", "lost", gpus=4), beside)
    assert placed(action) == ["a", "b"]


def test_spares_and_idle_nodes_together_replace_several_lost_nodes() -> None:
    nodes = [make_node("a"), make_node("b"), spare("s")]
    action, _ = outcome(nodes, wounded("a", "x", "y", gpus=8))
    assert placed(action) == ["a", "s", "b"] or placed(action) == ["a", "b", "s"]


def test_a_gang_that_lost_all_nodes_starts_again_on_spares() -> None:
    action, _ = outcome([spare("s")], wounded("lost", gpus=8))
    assert placed(action) == ["s"]


def test_a_spare_of_the_required_domain_is_taken_and_no_other() -> None:
    topology = Topology(key="rack", required=True)
    gang = wounded("a", "lost", gpus=8, topology=topology)
    nodes = [make_node("a", labels={"rack": "r1"}), spare("f", rack="r2"), spare("n", rack="r1")]
    action, _ = outcome(nodes, gang)
    assert placed(action) == ["a", "n"]
    action, decision = outcome(nodes[:2], gang)
    assert isinstance(action, WriteVerdict)
    assert decision.verdicts["default", "gang"].reason is Reason.REPAIRING


def test_slices_take_spares_of_their_domain() -> None:
    topology = Topology(slice_level="rack", slice_size=2)
    gang = wounded("a", "lost", "c", "d", gpus=8, topology=topology)
    first, second = {"rack": "r1"}, {"rack": "r2"}
    nodes = [make_node("a", labels=first), spare("s", rack="r1"),
             make_node("c", labels=second), make_node("d", labels=second)]  # fmt: skip
    action, _ = outcome(nodes, gang)
    assert placed(action) == ["a", "s", "c", "d"]


def test_an_elastic_gang_replaces_lost_members_by_spares_and_grows_by_none() -> None:
    role = make_role(count=4, min_count=1, gpus=8)
    gang = wounded("a", "lost", roles=[role])
    action, _ = outcome([make_node("a"), spare("s"), spare("t")], gang)
    assert placed(action) == ["a", "s"]


def test_a_gang_that_gives_up_healthy_nodes_gets_no_spares() -> None:
    topology = Topology(key="rack", required=True)
    gang = wounded("a", "lost", gpus=8, topology=topology)
    nodes = [make_node("a", labels={"rack": "r1"}), spare("s", rack="r2"), spare("t", rack="r2")]
    state = PlacementState.of(nodes, [gang])
    policy = PlacementPolicy(repair_hold_seconds=0)
    (action,) = decide(state, policy, EPOCH + 1).actions
    assert isinstance(action, ReleaseJob)


def test_an_attempt_that_lost_no_node_keeps_its_nodes_and_takes_no_spare() -> None:
    action, _ = outcome([make_node("a"), spare("s")], wounded("a", gpus=8))
    assert placed(action) == ["a"]


def test_a_member_stays_on_the_spare_that_it_was_given() -> None:
    action, _ = outcome([make_node("a"), spare("s"), spare("t")], wounded("a", "s", gpus=8))
    assert placed(action) == ["a", "s"]
