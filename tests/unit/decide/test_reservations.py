"""Reservations: nodes that only jobs of a team which name them may use, for some time."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.cluster.team import Reservation, Team
from fairlead.api.jobs.job import Job
from fairlead.api.names import MAINTENANCE, POOL
from fairlead.api.values.times import format_time
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.placement.actions import Action, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Decision, Verdict
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team

HOUR = 3600.0
START, END = EPOCH + 10 * HOUR, EPOCH + 12 * HOUR
#: With the grace period of 30 s.
LIMIT = int(2 * HOUR) - 30
WORDS = f"from {format_time(START)} to {format_time(END)}"


def reservation(
    name: str = "talk", start: float = START, end: float = END, **of: Any
) -> Reservation:
    of = of or {"node_names": ("a",)}
    return Reservation(name, format_time(start), format_time(end), **of)


def team(*reservations: Reservation, name: str = "vision", **more: Any) -> Team:
    return make_team(name, reservations=reservations or (reservation(),), **more)


def job(name: str, reservation: str = "", limit: int | None = LIMIT, **more: Any) -> Job:
    more = {"namespace": "vision", "gpus": 8, **more}
    return make_job(name, time_limit_seconds=limit, spec={"reservation": reservation}, **more)


def cluster(*jobs: Job, nodes: str = "ab", teams: tuple[Team, ...] | None = None) -> PlacementState:
    found = ClusterState.of([make_node(name) for name in nodes], jobs)
    for each in (team(), make_team("speech")) if teams is None else teams:
        found.team_changed(each.metadata.name, each)
    return PlacementState(found)


def decided(state: PlacementState, now: float) -> Decision[Action]:
    return decide(state, PlacementPolicy(), now)


def placed(found: PlacementState, now: float) -> dict[str, list[str]]:
    return {
        action.job.metadata.name: [n for role in action.placement.roles for n in role.nodes]
        for action in decided(found, now).actions
        if isinstance(action, PlaceJob)
    }


def verdict(found: PlacementState, now: float, name: str = "j") -> Verdict:
    return decided(found, now).verdicts["vision", name]


def test_another_job_starts_on_a_reserved_node_only_if_it_is_over_in_time() -> None:
    assert placed(cluster(job("j"), nodes="a"), START - 2 * HOUR) == {"j": ["a"]}
    for now, limit in ((START - 2 * HOUR + 1, LIMIT), (EPOCH, None), (END - 1, 1)):
        found = cluster(job("j", limit=limit), nodes="a")
        assert placed(found, now) == {}
        assert verdict(found, now) == Verdict(
            Reason.RESERVED_FOR_OTHERS,
            {"nodes": 1, "reservation": "vision/talk", "window": WORDS},
        )
    assert placed(cluster(job("j", limit=None), nodes="a"), END) == {"j": ["a"]}
    assert placed(cluster(job("j", limit=None)), EPOCH) == {"j": ["b"]}


def test_a_job_of_the_team_that_names_it_starts_on_its_nodes_while_it_lasts() -> None:
    found = cluster(job("j", "talk", limit=None))
    assert placed(found, START - 1) == {}
    assert decided(found, START - 1).wake_at == START
    waits = verdict(found, START - 1)
    assert waits == Verdict(
        Reason.AWAITING_RESERVATION, {"reservation": "vision/talk", "nodes": 1, "window": WORDS}
    )
    assert placed(found, START) == placed(found, END - 1) == {"j": ["a"]}
    assert placed(found, END) == {}
    over = verdict(found, END)
    assert over == Verdict(
        Reason.RESERVATION_ENDED, {"reservation": "vision/talk", "window": WORDS}
    )
    assert over.outcome is Outcome.BLOCKED


def test_another_team_cannot_use_it_whatever_its_jobs_name() -> None:
    found = cluster(job("j", "talk", namespace="speech"))
    assert placed(found, START) == {}
    waits = decided(found, START).verdicts["speech", "j"]
    assert waits == Verdict(Reason.NO_SUCH_RESERVATION, {"reservation": "speech/talk"})
    assert "fairlead reservations" in waits.message


def suggested(found: PlacementState, now: float) -> list[tuple[str, int | str, str]]:
    explanation = explain(found, ("vision", "j"), now)
    assert explanation is not None
    return [(each.change, each.after, each.message) for each in explanation.suggestions]


def test_a_job_of_the_team_gets_its_reservation_or_a_shorter_limit_suggested() -> None:
    found = cluster(job("j", limit=None), nodes="a")
    assert suggested(found, START - HOUR) == [
        (
            "reservation",
            "talk",
            f"nodes that its team has reserved: starts at {format_time(START)}",
        ),
        ("time", 59 * 60, "a time limit of at most 59m: starts now"),
    ]
    assert verdict(found, START - HOUR).reason is Reason.RESERVED_FOR_OTHERS, "as it was"
    assert suggested(found, START) == [
        ("reservation", "talk", "nodes that its team has reserved: starts now")
    ]
    late = [job("j", limit=None), job("first", "talk", limit=None, placement=make_placement(["a"]))]
    assert suggested(cluster(*late, nodes="a"), START) == []
    foreign = cluster(
        job("j", limit=None), nodes="a", teams=(team(name="speech"), make_team("vision"))
    )
    assert suggested(foreign, START - HOUR) == [
        ("time", 59 * 60, "a time limit of at most 59m: starts now")
    ]


def test_of_several_windows_the_longest_limit_with_which_it_starts_is_suggested() -> None:
    early, late = (f"{format_time(at)}/{format_time(END)}" for at in (START, START + HOUR))
    found = cluster(job("j", limit=None), nodes="", teams=())
    for name, window in (("a", early), ("b", late)):
        found.cluster.node_changed(make_node(name, annotations={MAINTENANCE: window}))
    assert verdict(found, START - HOUR).reason is Reason.MAINTENANCE
    told = ("time", 119 * 60, "a time limit of at most 1h59m: starts now")
    assert suggested(found, START - HOUR) == [told]
    found.cluster.node_changed(make_node("b", unschedulable=True))
    assert [after for _, after, _ in suggested(found, START - HOUR)] == [59 * 60]


def test_it_is_no_way_onto_nodes_that_are_in_use_or_closed_otherwise() -> None:
    holder = job("holder", placement=make_placement(["a"]))
    assert placed(cluster(holder, job("j", "talk")), START) == {}
    assert verdict(cluster(holder, job("j", "talk")), START).reason is Reason.INSUFFICIENT_CAPACITY
    assert verdict(cluster(holder, job("j", "talk")), EPOCH).reason is Reason.AWAITING_RESERVATION
    found = cluster(job("j", "talk"), nodes="b")
    window = f"{format_time(START + HOUR)}/{format_time(END)}"
    found.cluster.node_changed(make_node("a", annotations={MAINTENANCE: window}))
    assert verdict(found, START).reason is Reason.MAINTENANCE
    twice = team(), team(reservation("next", START + HOUR), name="speech")
    found = cluster(job("j", "talk"), teams=twice)
    assert verdict(found, START).facts["reservation"] == "speech/next"
    assert placed(cluster(job("j", "talk", limit=60), teams=twice), START) == {"j": ["a"]}


def test_its_nodes_are_those_that_match_whenever_they_come_or_change() -> None:
    of_pool = team(reservation(pool="big", node_selector={"rack": "r1"}, node_names=("a", "b")))
    found = cluster(job("j", "talk"), nodes="", teams=(of_pool,))
    labels = {POOL: "big", "rack": "r1"}
    found.cluster.node_changed(make_node("c", labels=labels))
    found.cluster.node_changed(make_node("b", labels={**labels, "rack": "r2"}))
    assert verdict(found, START).reason is Reason.NO_MATCHING_NODE
    found.cluster.node_changed(make_node("b", labels=labels))
    assert placed(found, START) == {"j": ["b"]}
    found.cluster.node_deleted("b")
    assert placed(found, START) == {}
    found.cluster.node_changed(make_node("a", labels=labels))
    assert placed(found, START) == {"j": ["a"]}


def test_a_reservation_that_is_changed_or_gone_counts_as_it_is_now() -> None:
    found = cluster(job("other", limit=None), job("j", "talk"), nodes="a")
    assert placed(found, EPOCH) == {}
    later = team(reservation(start=EPOCH), resource_version=2)
    found.cluster.team_changed("vision", later)
    assert placed(found, EPOCH) == {"j": ["a"]}
    found.cluster.team_changed("vision", make_team("vision", resource_version=3))
    assert placed(found, EPOCH) == {"other": ["a"]}
    assert verdict(found, EPOCH).reason is Reason.NO_SUCH_RESERVATION
    found.cluster.team_changed("vision", later)
    found.cluster.team_changed("vision", None)
    assert placed(found, EPOCH) == {"other": ["a"]}


def test_what_runs_when_it_begins_is_left_alone() -> None:
    runs = job("runs", limit=None, placement=make_placement(["a"]))
    actions = decided(cluster(runs), START).actions
    assert [a for a in actions if a.job.metadata.name == "runs"] == []


@pytest.mark.parametrize(("name", "starts"), [("", END), ("talk", START)])
def test_why_says_when_it_starts(name: str, starts: float) -> None:
    found = explain(cluster(job("j", name), nodes="a"), ("vision", "j"), START - HOUR)
    assert found is not None
    assert found.forecast == Forecast(starts, ())
    assert [each.free for each in found.arithmetic if each.resource == "nvidia.com/gpu"] == [8]
