"""Teams with strict order: no job passes an earlier one that waits for the same nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.api.cluster.team import QueueingStrategy, Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, RolePlacement, Victim
from fairlead.api.kubernetes.core import Node
from fairlead.decide.placement.actions import Action, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team

STRICT = make_team("strict", queueing_strategy=QueueingStrategy.STRICT_FIFO)
LOOSE = make_team("loose")


def job(name: str, number: int, *, team: str = "strict", gpus: int = 1, **more: Any) -> Job:
    return make_job(name, namespace=team, created=EPOCH + number, gpus=gpus, **more)


def decided(
    jobs: Sequence[Job], teams: Sequence[Team] = (STRICT, LOOSE), nodes: Sequence[Node] = ()
) -> Decision[Action]:
    state = PlacementState.of(nodes or [make_node("a"), make_node("b")], jobs)
    for team in teams:
        state.cluster.team_changed(team.metadata.name, team)
    return decide(state, PlacementPolicy(), EPOCH + 60)


def placed(decision: Decision[Action]) -> list[str]:
    return [action.job.metadata.name for action in decision.actions if isinstance(action, PlaceJob)]


def test_a_small_job_of_a_strict_team_waits_behind_a_large_one_that_waits_for_room() -> None:
    first, large = job("first", 0, gpus=8), job("large", 1, gpus=8, count=2)
    small = [job(f"small{i}", 2 + i, gpus=i + 1) for i in range(2)]
    other = job("other", 9, team="loose")
    decision = decided([first, large, *small, other])
    assert placed(decision) == ["first", "other"]
    assert decision.verdicts["strict", "large"].reason is Reason.INSUFFICIENT_CAPACITY
    for each in small:
        verdict = decision.verdicts[each.metadata.key]
        assert (verdict.reason, verdict.facts) == (Reason.BEHIND_TEAM_JOB, {"job": "strict/large"})
        assert verdict.blockers == (("strict", "large"),)
    loose = decided([first, large, *small, other], [make_team("strict"), LOOSE])
    assert placed(loose) == ["first", "small0", "small1", "other"]


def test_equal_jobs_of_a_loose_team_are_tried_although_those_of_a_strict_one_wait() -> None:
    jobs = [job("first", 0, gpus=8), job("large", 1, gpus=8, count=2), job("small", 2)]
    assert placed(decided([*jobs, job("small", 3, team="loose")])) == ["first", "small"]
    decision = decided([*jobs, job("small", 3, team="loose")])
    assert decision.verdicts["loose", "small"].reason is Reason.PLACED
    assert decision.verdicts["strict", "small"].reason is Reason.BEHIND_TEAM_JOB


def test_a_job_of_another_pool_is_not_held_up() -> None:
    nodes = [make_node("a", labels={"pool": "a"}), make_node("b", labels={"pool": "b"})]
    held = job("held", 0, gpus=8, node_selector={"pool": "a"})
    large = job("large", 1, gpus=8, node_selector={"pool": "a"})
    elsewhere = job("elsewhere", 2, node_selector={"pool": "b"})
    anywhere = job("anywhere", 3)
    decision = decided([held, large, elsewhere, anywhere], nodes=nodes)
    assert placed(decision) == ["held", "elsewhere"]
    assert decision.verdicts["strict", "anywhere"].facts == {"job": "strict/large"}


def test_a_job_that_no_node_could_hold_or_a_limit_keeps_back_holds_up_nothing() -> None:
    huge = job("huge", 0, gpus=9)
    assert placed(decided([huge, job("small", 1)])) == ["small"]
    far = job("far", 0, gpus=8, count=2)
    out = [make_node("a"), make_node("b", unschedulable=True)]
    decision = decided([far, job("small", 1)], nodes=out)
    assert decision.verdicts["strict", "far"].reason is Reason.NODES_UNAVAILABLE
    assert placed(decision) == ["small"]


def test_jobs_of_a_strict_team_start_in_order_as_room_comes() -> None:
    jobs = [job(f"j{i}", i, gpus=8) for i in range(4)]
    assert placed(decided(jobs)) == ["j0", "j1"]
    urgent = job("urgent", 9, gpus=8, priority=5)
    decision = decided([*jobs, urgent])
    assert placed(decision) == ["urgent", "j0"]
    assert decision.verdicts["strict", "j1"].reason is Reason.INSUFFICIENT_CAPACITY
    assert decision.verdicts["strict", "j2"].facts == {"job": "strict/j1"}


def test_each_waiting_job_holds_up_others_on_the_nodes_that_it_could_use() -> None:
    nodes = [make_node(name, labels={"pool": name}) for name in ("a", "b")]
    jobs = [
        job("held", 0, gpus=8, node_selector={"pool": "a"}),
        job("large", 1, gpus=8, node_selector={"pool": "a"}),
        job("larger", 2, gpus=8, count=2),
        job("small", 3, node_selector={"pool": "b"}),
    ]
    decision = decided(jobs, nodes=nodes)
    assert placed(decision) == ["held"]
    assert decision.verdicts["strict", "small"].facts == {"job": "strict/larger"}


def test_a_job_whose_write_was_refused_still_holds_up_later_ones_of_its_team() -> None:
    jobs = [job("first", 0, gpus=8), job("large", 1, gpus=8, count=2), job("small", 2)]
    state = PlacementState.of([make_node("a"), make_node("b")], jobs)
    state.cluster.team_changed("strict", STRICT)
    state.write_blocked["strict", "large"] = None
    assert placed(decide(state, PlacementPolicy(), EPOCH + 60)) == ["first"]


def test_a_job_whose_place_is_kept_holds_up_nothing() -> None:
    nodes = [make_node(name, labels={"pool": name}) for name in ("a", "b")]
    victim = make_job("victim", namespace="loose", placement=make_placement(["a"]))
    named = Victim("loose", "victim", victim.metadata.uid)
    kept = Nomination((RolePlacement("worker", ("a",)),), (named,))
    status, selector = {"nomination": kept}, {"pool": "a"}
    nominee = job("nominee", 0, gpus=8, priority=5, node_selector=selector, status=status)
    assert placed(decided([victim, nominee, job("small", 1)], nodes=nodes)) == ["small"]
