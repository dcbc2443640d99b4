"""Maintenance windows: no attempt begins on a node that it may still hold in the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.jobs.placement import Nomination, RolePlacement, Victim
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.api.names import MAINTENANCE
from fairlead.api.values.times import format_time
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.answers.forecast import forecast
from fairlead.decide.placement.actions import Action, PlaceJob, WithdrawNomination
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

HOUR = 3600.0
START, END = EPOCH + 10 * HOUR, EPOCH + 12 * HOUR
WINDOW = f"{format_time(START)}/{format_time(END)}"
#: With the grace period of 30 s.
LIMIT = int(2 * HOUR) - 30
POLICY = PlacementPolicy()


def closing(name: str, window: str = WINDOW) -> Node:
    return make_node(name, annotations={MAINTENANCE: window})


def job(name: str, limit: int | None = LIMIT, **more: Any) -> Job:
    return make_job(name, gpus=8, time_limit_seconds=limit, **more)


def decided(state: PlacementState, now: float) -> Decision[Action]:
    return decide(state, POLICY, now)


def placed(decision: Decision[Action]) -> dict[str, list[str]]:
    return {
        action.job.metadata.name: [n for role in action.placement.roles for n in role.nodes]
        for action in decision.actions
        if isinstance(action, PlaceJob)
    }


def test_a_job_that_ends_before_the_window_starts_on_the_node() -> None:
    nodes = [closing("a"), make_node("b", gpus=4)]
    assert placed(decided(PlacementState.of(nodes, [job("j")]), START - 2 * HOUR)) == {"j": ["a"]}
    assert placed(decided(PlacementState.of(nodes, [job("j")]), START - 2 * HOUR + 1)) == {}
    assert placed(decided(PlacementState.of(nodes, [job("j", None)]), EPOCH)) == {}


def test_one_that_could_run_into_it_takes_another_node_or_says_what_it_waits_for() -> None:
    nodes = [closing("a"), closing("b"), make_node("c")]
    assert placed(decided(PlacementState.of(nodes, [job("j", None)]), EPOCH)) == {"j": ["c"]}
    decision = decided(PlacementState.of(nodes, [job("j", None, count=2)]), EPOCH)
    verdict = decision.verdicts["default", "j"]
    assert verdict.reason is Reason.MAINTENANCE
    assert verdict.facts == {
        "nodes": 2, "window": f"from {format_time(START)} to {format_time(END)}"
    }  # fmt: skip
    assert decision.wake_at == END


def test_a_job_that_lacks_room_for_another_reason_says_that_one() -> None:
    nodes = [closing("a"), make_node("b")]
    decision = decided(PlacementState.of(nodes, [job("j", None, count=3)]), EPOCH)
    assert decision.verdicts["default", "j"].reason is Reason.EXCEEDS_CLUSTER
    holder = make_job("holder", placement=make_placement(["a"]), status={"attempts": (Attempt(1),)})
    decision = decided(PlacementState.of(nodes, [holder, job("j", None, count=2)]), EPOCH)
    assert decision.verdicts["default", "j"].reason is Reason.MAINTENANCE  # on empty nodes, too
    assert decision.verdicts["default", "j"].facts["nodes"] == 1


def test_time_closes_and_opens_nodes_of_the_same_state() -> None:
    state = PlacementState.of([closing("a"), make_node("b", gpus=4)], [job("j")])
    for now, is_placed in (
        (START - 3 * HOUR, True), (START - HOUR, False), (END - 1, False), (END, True),
        (START - 3 * HOUR, True),
    ):  # fmt: skip
        assert bool(placed(decided(state, now))) is is_placed, now


def test_a_window_that_is_announced_or_taken_back_counts_at_once() -> None:
    state = PlacementState.of([make_node("a")], [job("j", None)])
    assert placed(decided(state, EPOCH)) == {"j": ["a"]}
    state.cluster.node_changed(closing("a"))
    assert placed(decided(state, EPOCH)) == {}
    state.cluster.node_changed(closing("a", "next week"))
    verdict = decided(state, EPOCH).verdicts["default", "j"]
    assert "is 'next week', which cannot be read; accepted: START/END" in verdict.message
    state.cluster.node_changed(make_node("a"))
    assert placed(decided(state, EPOCH)) == {"j": ["a"]}
    state.cluster.node_changed(closing("a"))
    state.cluster.node_deleted("a")
    state.cluster.node_changed(make_node("a"))
    assert placed(decided(state, EPOCH)) == {"j": ["a"]}


def again(*nodes: str, adopts: Adopts | None = None) -> Job:
    gang = job("gang", count=len(nodes), attempt=2, placement=make_placement(nodes),
               status={"attempts": (Attempt(number=1),)})  # fmt: skip
    admitted = Condition("Admitted", "True", "Admitted")
    return replace(
        gang, spec=replace(gang.spec, adopts=adopts),
        status=replace(gang.status, conditions=(admitted,)),
    )  # fmt: skip


def test_the_next_attempt_leaves_a_node_that_it_could_hold_into_a_window() -> None:
    nodes = [closing("a"), make_node("b"), make_node("c")]
    state = PlacementState.of(nodes, [again("a", "b")])
    assert placed(decided(state, START - 3 * HOUR)) == {"gang": ["a", "b"]}
    assert placed(decided(state, START - HOUR)) == {"gang": ["c", "b"]}


def test_pods_of_another_tool_stay_where_they_are() -> None:
    nodes = [closing("a"), make_node("b", ready=False), make_node("c")]
    gang = again("a", "b", adopts=Adopts("StatefulSet", "web", "apps/v1"))
    assert placed(decided(PlacementState.of(nodes, [gang]), START)) == {"gang": ["a", "c"]}


def test_a_place_that_is_kept_on_a_node_that_closes_is_given_up() -> None:
    low = make_job("low", gpus=8, priority=0, placement=make_placement(["a"]),
                   status={"attempts": (Attempt(1),)})  # fmt: skip
    victims = (Victim(namespace="default", name="low", uid=low.metadata.uid),)
    kept = Nomination((RolePlacement(role="worker", nodes=("a",)),), victims)
    high = job("high", priority=10, status={"nomination": kept})
    state = PlacementState.of([closing("a")], [low, high])
    actions = decided(state, START - 3 * HOUR).actions
    assert not any(isinstance(action, WithdrawNomination) for action in actions)
    actions = decided(state, START - HOUR).actions
    assert [a.job.metadata.name for a in actions if isinstance(a, WithdrawNomination)] == ["high"]


def test_a_job_that_waits_for_a_window_holds_up_nobody() -> None:
    nodes = [closing("a"), make_node("b"), make_node("c")]
    head = job("head", None, count=3, created=EPOCH - 10 * POLICY.starvation_seconds)
    small = job("small", created=EPOCH)
    decision = decided(PlacementState.of(nodes, [head, small]), EPOCH)
    assert list(placed(decision)) == ["small"]
    assert decision.verdicts["default", "head"].reason is Reason.MAINTENANCE


def forecast_of(nodes: Sequence[Node], *jobs: Job, now: float = EPOCH) -> object:
    state = PlacementState.of(nodes, jobs)
    found = forecast(state, jobs[-1].metadata.key, now, POLICY)
    assert placed(decided(state, now)) == placed(decided(PlacementState.of(nodes, jobs), now))
    return found


def test_the_forecast_knows_that_the_node_opens_again() -> None:
    assert forecast_of([closing("a")], job("j", None)) == Forecast(END, ())
    assert forecast_of([closing("a"), make_node("b")], job("j", None)) == Forecast(EPOCH, ())


def test_the_forecast_lets_a_job_start_before_the_window_only_if_it_ends_in_time() -> None:
    started = format_time(EPOCH)
    placement = replace(make_placement(["a"]), placed_at=started)
    for ends_in, starts in ((7 * HOUR, 7 * HOUR), (9 * HOUR, 12 * HOUR)):
        holder = job("holder", int(ends_in) - 30, placement=placement,
                     status={"attempts": (Attempt(1, started_at=started),)})  # fmt: skip
        found = forecast_of([closing("a")], holder, job("j"))
        assert isinstance(found, Forecast)
        assert found.may_start_by == EPOCH + starts


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_why_explains_the_window(limit: int | None) -> None:
    state = PlacementState.of([closing("a")], [job("j", limit)])
    found = explain(state, ("default", "j"), START - HOUR)
    assert found is not None
    assert found.forecast == Forecast(END, ())
    gpus = next(each for each in found.arithmetic if each.resource == "nvidia.com/gpu")
    assert (gpus.free, gpus.total) == (8, 8)
    assert found.verdict.message == (
        "it cannot start on 1 node, in whose maintenance it could still run; the first one is from "
        f"{format_time(START)} to {format_time(END)}"
    )
