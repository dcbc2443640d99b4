"""A job that gave way again and again on borrowed nodes, and when it may borrow again."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Attempt, Job, JobStatus, Progress
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.meta import Condition
from fairlead.api.names import ADMITTED, TEAM
from fairlead.api.values.bounds import ATTEMPTS_MAX
from fairlead.api.values.times import format_time
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.attempts.backoff import BorrowerBackOff, borrower_backoff
from fairlead.decide.placement.actions import NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_placement,
    make_team,
)

ENDED = EPOCH + 3600
LENT = (HeldNodes("", "b", 8),)
J = ("a", "j")
POLICY = PlacementPolicy()


def attempts(count: int, **more: Any) -> tuple[Attempt, ...]:
    """So many attempts that gave way on borrowed nodes, one after the other; the last at ENDED."""
    record: dict[str, Any] = {"reason": "Preempted", "held": LENT, **more}
    return tuple(
        Attempt(n + 1, finished_at=format_time(ENDED - (count - 1 - n) * 100), **record)
        for n in range(count)
    )


def backoff(*records: Attempt, step: int | None = None) -> BorrowerBackOff | None:
    return borrower_backoff(JobStatus(attempts=records, progress=Progress(checkpoint_step=step)))


@pytest.mark.parametrize(
    ("times", "seconds"), [(2, 60), (3, 120), (7, 1920), (12, 61_440), (13, 86_400)]
)
def test_the_back_off_begins_with_the_second_time_and_doubles_up_to_a_day(
    times: int, seconds: float
) -> None:
    assert backoff(*attempts(times)) == BorrowerBackOff(times, ENDED + seconds)


def test_a_gang_that_borrowed_a_part_of_its_nodes_backs_off() -> None:
    both = (*LENT, HeldNodes("", "", 8))
    assert backoff(*attempts(2, held=both)) == BorrowerBackOff(2, ENDED + 60)


@pytest.mark.parametrize("times", [0, 1])
def test_a_job_that_gave_way_once_borrows_at_once(times: int) -> None:
    assert backoff(*attempts(times)) is None


def test_the_records_that_a_status_keeps_are_enough_for_the_longest_back_off() -> None:
    found = backoff(*attempts(ATTEMPTS_MAX))
    assert found is not None
    assert found.until == ENDED + 86_400
    assert found == BorrowerBackOff(ATTEMPTS_MAX, ENDED + 86_400)


@pytest.mark.parametrize(
    "other",
    [{"reason": "NodeLost"}, {"held": (HeldNodes("pool", "", 8),)}, {"resumed_from_step": 10}],
    ids=["ended otherwise", "on nodes of its own", "saved a checkpoint"],
)
def test_an_attempt_that_got_on_or_ended_otherwise_sets_the_count_back(
    other: dict[str, Any],
) -> None:
    records = attempts(6, resumed_from_step=20)
    between = attempts(4, **{"resumed_from_step": 20, **other})[-1]
    assert backoff(*records[:3], between, *records[4:], step=20) == BorrowerBackOff(2, ENDED + 60)


def test_a_checkpoint_that_members_save_while_they_stop_counts() -> None:
    """It is reported after the record of the attempt was closed."""
    records = attempts(4, resumed_from_step=20)
    assert backoff(*records, step=20) is not None
    assert backoff(*records, step=21) is None


# In the planner


def node(name: str, team: str = "", **more: Any) -> Node:
    taints = [Taint(TEAM, "NoSchedule", team)] if team else []
    return make_node(name, taints=taints, **more)


def borrower(times: int, **more: Any) -> Job:
    """A job of team a that waits, and gave way so many times."""
    at = format_time(ENDED)
    conditions = (
        Condition(ADMITTED, "True"),
        Condition("Placed", "False", last_transition_time=at),
    )
    return make_job(
        "j", namespace="a", gpus=8, attempt=times + 1, conditions=conditions,
        status={"attempts": attempts(times)}, **more,
    )  # fmt: skip


def state_of(
    nodes: list[Node], *jobs: Job, teams: tuple[Team, ...] = (make_team("a"), make_team("b"))
) -> PlacementState:
    cluster = ClusterState.of(nodes)
    for team in teams:
        cluster.team_changed(team.metadata.name, team)
    for job in jobs:
        cluster.job_changed(job)
    return PlacementState(cluster)


def place_of(decision: Decision[Any], name: str = "j") -> tuple[str, ...] | None:
    for action in decision.actions:
        if isinstance(action, PlaceJob) and action.job.metadata.name == name:
            return action.placement.roles[0].nodes
    return None


def test_it_waits_beside_idle_nodes_of_another_team_until_its_back_off_ends() -> None:
    state = state_of([node("n0", "b")], borrower(4))
    found = decide(state, POLICY, ENDED + 1)
    assert place_of(found) is None
    assert found.wake_at == ENDED + 240
    verdict = found.verdicts[J]
    assert verdict.reason is Reason.BORROW_BACK_OFF
    assert verdict.message == (
        "would fit on idle nodes of other teams, but gave way 4 times in a row on such nodes "
        "without a new checkpoint; borrows again at 2026-01-01T01:04:00Z"
    )
    for action in found.actions:
        state.cluster.job_changed(as_written(action))
    again = decide(state, POLICY, ENDED + 239.9)
    assert (again.actions, again.wake_at) == ((), ENDED + 240)
    assert place_of(decide(state, POLICY, ENDED + 240)) == ("n0",)
    assert place_of(decide(state, POLICY, ENDED + 239)) is None  # a clock that is set back


@pytest.mark.parametrize("owner", ["a", ""])
def test_nodes_of_its_own_team_and_of_none_stay_open_to_it(owner: str) -> None:
    state = state_of([node("n0", "b"), node("n1", owner)], borrower(13))
    found = decide(state, POLICY, ENDED)
    assert place_of(found) == ("n1",)
    (action,) = (a for a in found.actions if isinstance(a, PlaceJob))
    assert not action.placement.may_borrow


def test_it_takes_back_nodes_that_its_own_team_has_lent() -> None:
    at = format_time(ENDED - 10)
    low = make_job(
        "low", namespace="b", gpus=8, placement=make_placement(["n1"]),
        conditions=[Condition(ADMITTED, "True")], status={"attempts": (Attempt(1, at, at),)},
    )  # fmt: skip
    state = state_of([node("n0", "b"), node("n1", "a")], borrower(5), low)
    (action,) = (a for a in decide(state, POLICY, ENDED).actions if isinstance(a, NominateJob))
    assert action.nomination.roles[0].nodes == ("n1",)


def test_a_job_that_never_may_borrow_has_nothing_to_wait_for() -> None:
    teams = (make_team("a", borrow_priority_max=-1), make_team("b"))
    state = state_of([node("n0", "b")], borrower(4), teams=teams)
    found = decide(state, POLICY, ENDED + 1)
    assert found.verdicts[J].reason is Reason.NO_MATCHING_NODE
    assert found.wake_at is None or found.wake_at != ENDED + 240


def test_a_job_without_room_on_borrowed_nodes_either_says_what_is_short() -> None:
    other = make_job("owner", namespace="b", gpus=8, placement=make_placement(["n0"]))
    state = state_of([node("n0", "b")], borrower(4), other)
    assert decide(state, POLICY, ENDED).verdicts[J].reason is Reason.INSUFFICIENT_CAPACITY


def test_a_node_that_frees_itself_meanwhile_changes_the_verdict() -> None:
    other = make_job("owner", namespace="b", gpus=8, placement=make_placement(["n0"]))
    state = state_of([node("n0", "b")], borrower(4), other)
    decide(state, POLICY, ENDED)
    state.cluster.job_deleted(other.metadata.key)
    later = decide(state, POLICY, ENDED + POLICY.refresh_seconds)
    assert later.verdicts[J].reason is Reason.BORROW_BACK_OFF


def test_nothing_is_reserved_for_a_job_that_needs_nodes_of_others() -> None:
    """Its team has one of the two nodes that it needs: later jobs of the team may use that one."""
    later = make_job("later", namespace="a", gpus=8, created=EPOCH + 1)
    state = state_of([node("n0", "b"), node("n1", "a")], borrower(4, count=2), later)
    strict = PlacementPolicy(starvation_seconds=0.0)
    assert place_of(decide(state, strict, ENDED + 100), "later") == ("n1",)


def test_nodes_of_its_own_team_are_reserved_for_a_job_that_starves() -> None:
    """Its gang needs both nodes of its team, one of which is used: no later job takes the other."""
    other = make_job("other", namespace="a", gpus=8, placement=make_placement(["n2"]))
    later = make_job("later", namespace="a", gpus=8, created=EPOCH + 1)
    nodes = [node("n0", "b"), node("n1", "a"), node("n2", "a")]
    strict = PlacementPolicy(starvation_seconds=0.0)
    state = state_of(nodes, borrower(4, count=2), other, later)
    assert place_of(decide(state, strict, ENDED + 100), "later") == ("n0",)


def test_a_member_without_gpus_borrows_as_well() -> None:
    gang = make_job("cpu", namespace="a", gpus=0, conditions=[Condition(ADMITTED, "True")])
    state = state_of([node("n0", "b")], gang)
    (action,) = (a for a in decide(state, POLICY, ENDED).actions if isinstance(a, PlaceJob))
    assert action.placement.held == (HeldNodes("", "b", 0),)


def test_why_says_when_it_borrows_again_and_by_when_it_starts() -> None:
    state = state_of([node("n0", "b")], borrower(4))
    found = explain(state, J, ENDED + 60)
    assert found is not None
    assert found.verdict.reason is Reason.BORROW_BACK_OFF
    assert found.verdict.facts == {"times": 4, "until": "2026-01-01T01:04:00Z"}
    assert isinstance(found.forecast, Forecast)
    assert found.forecast.may_start_by == ENDED + 240
