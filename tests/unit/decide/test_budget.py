"""The budget of a team: GPU-hours that are used up, come back over time, and survive a restart."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import Budget, Team, TeamStatus, TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.teams.decide import Sharing, team_status
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_placement,
    make_team,
)

from .team_world import state_of

HOUR, DAY = 3600.0, 86_400.0


def budgeted(gpu_hours: int | None, used: float = 0.0, *, days: int = 1, name: str = "a") -> Team:
    """Return a team that has used so much at EPOCH."""
    team = make_team(name, shares=(), budget=Budget(gpu_hours, days))
    use = TeamUse(gpu_hours=used, as_of=format_time(EPOCH))
    return replace(team, status=TeamStatus(use=use))


def running(name: str, node: str, **more: Any) -> Job:
    conditions = [Condition("Admitted", "True"), Condition("Running", "True")]
    return job(name, placement=make_placement([node]), conditions=conditions, **more)


def job(name: str, *, team: str = "a", **more: Any) -> Job:
    return make_job(name, namespace=team, **more)


def step(state: PlacementState, now: float) -> tuple[list[str], float | None]:
    """Decide and write; return the jobs that were placed, and when to decide again."""
    state.cluster.advance_shares(now)
    decision = decide(state, PlacementPolicy(), now)
    for action in decision.actions:
        state.cluster.job_changed(as_written(action))
    placed = [a.job.metadata.name for a in decision.actions if isinstance(a, PlaceJob)]
    return placed, decision.wake_at


def reason(state: PlacementState, name: str) -> str:
    verdict = state.jobs["a", name].job.status.verdict
    return verdict.reason if verdict is not None else ""


def test_a_team_over_its_budget_waits_until_what_it_used_counts_less() -> None:
    jobs = [job("a1"), job("cpus", gpus=0), job("b1", team="b")]
    state = state_of([budgeted(100, used=150.0), budgeted(100, used=99.0, name="b")], jobs)
    placed, wake_at = step(state, EPOCH)
    assert sorted(placed) == ["b1", "cpus"]
    assert reason(state, "a1") == Reason.GPU_BUDGET.value
    verdict = state.jobs["a", "a1"].job.status.verdict
    assert verdict is not None
    assert verdict.facts == {"team": "a", "limit": 100, "days": 1}
    back_at = EPOCH + DAY * math.log2(1.5)
    assert wake_at is not None
    assert wake_at <= back_at
    assert step(state, back_at - 60)[0] == []
    assert step(state, back_at + 1)[0] == ["a1"]


def test_what_runs_uses_the_budget_up_and_goes_on() -> None:
    jobs = [running("first", "n-0000", gpus=8)]
    state = state_of([budgeted(16)], jobs)
    state.cluster.job_changed(job("second"))
    assert step(state, EPOCH + HOUR)[0] == ["second"]
    state.cluster.job_changed(job("third"))
    assert step(state, EPOCH + 3 * HOUR)[0] == []
    assert reason(state, "third") == Reason.GPU_BUDGET.value
    assert state.jobs["a", "first"].job.status.placement is not None


def test_the_past_counts_half_after_the_days_that_the_team_has_now() -> None:
    team = budgeted(100, used=64.0)
    state = state_of([team], [])
    for days in (1, 2, 1):
        spec = replace(team.spec, budget=Budget(100, days))
        state.cluster.team_changed("a", replace(team, spec=spec))
        hours = state.cluster.uses.gpu_seconds.at("a", EPOCH + 2 * DAY) / HOUR
        assert hours == pytest.approx(64.0 * 0.5 ** (2 / days))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_job_that_has_ended_uses_nothing_up(*, is_gone: bool) -> None:
    first = running("first", "n-0000", gpus=8)
    state = state_of([budgeted(100)], [first])
    uses = state.cluster.uses
    step(state, EPOCH)
    step(state, EPOCH + HOUR)
    used = uses.gpu_seconds.at("a", EPOCH + HOUR), uses.shares.at("a", EPOCH + HOUR)
    assert min(used) > 0.0
    if is_gone:
        state.cluster.job_deleted(first.metadata.key)
    else:
        ended = (Condition("Succeeded", "True"),)
        state.cluster.job_changed(replace(first, status=replace(first.status, conditions=ended)))
    for hours in (1.0, 2.0, 3.0):
        step(state, EPOCH + hours * HOUR)
    now = EPOCH + 3 * HOUR
    assert uses.gpu_seconds.at("a", now) < used[0]
    assert uses.shares.at("a", now) < used[1]


def test_a_decision_is_made_again_at_most_once_a_minute_at_the_edge_of_a_budget() -> None:
    state = state_of([budgeted(100, used=100.0)], [job("a1")])
    assert step(state, EPOCH) == ([], EPOCH + 60.0)


def test_a_budget_of_nothing_starts_nothing_and_no_budget_bounds_nothing() -> None:
    state = state_of(
        [budgeted(0), budgeted(None, used=1e9, name="b")], [job("a1"), job("b1", team="b")]
    )
    placed, wake_at = step(state, EPOCH)
    assert placed == ["b1"]
    assert wake_at is None or wake_at >= EPOCH + PlacementPolicy().refresh_seconds


def test_a_job_over_the_budget_preempts_nobody_and_reserves_nothing() -> None:
    low = running("low", "n-0000", team="b", priority=-1)
    waits = Condition("Placed", "False", last_transition_time=format_time(EPOCH - DAY))
    high = job("high", priority=1, count=2, conditions=[Condition("Admitted", "True"), waits])
    later = job("later", team="b")
    teams = [budgeted(10, used=20.0), budgeted(None, name="b")]
    state = state_of(teams, [low, high, later], nodes=2)
    actions = decide(state, PlacementPolicy(), EPOCH + HOUR).actions
    assert not any(isinstance(action, NominateJob) for action in actions)
    assert [a.job.metadata.name for a in actions if isinstance(a, PlaceJob)] == ["later"]


def test_the_sum_survives_a_restart_and_what_still_runs_has_run_meanwhile() -> None:
    before = state_of([budgeted(100)], [running("first", "n-0000", gpus=8)])
    before.cluster.advance_shares(EPOCH + 2 * HOUR)
    team = next(iter(before.cluster.teams))
    status = team_status(before.cluster, team, Sharing((), {}), EPOCH + 2 * HOUR)
    assert status.use.gpu_hours == pytest.approx(15.55, abs=0.01)
    after = state_of([], [])
    after.cluster.team_changed("a", replace(team, status=status))
    after.cluster.job_changed(running("first", "n-0000", gpus=8))
    after.cluster.advance_shares(EPOCH + 3 * HOUR)
    hours = after.cluster.uses.gpu_seconds.at("a", EPOCH + 3 * HOUR) / HOUR
    before.cluster.advance_shares(EPOCH + 3 * HOUR)
    assert hours == pytest.approx(
        before.cluster.uses.gpu_seconds.at("a", EPOCH + 3 * HOUR) / HOUR, rel=1e-3
    )


@pytest.mark.parametrize("hours", [(1.0,), (1.0, 0.5), (0.5, 1.0)])
def test_a_restart_charges_no_team_for_the_time_before_its_first_place(
    hours: tuple[float, ...],
) -> None:
    """Nothing is written down while a team uses nothing, for days if need be."""
    idle = budgeted(100, used=1.0)
    idle = replace(idle, status=replace(idle.status, use=replace(
        idle.status.use, as_of=format_time(EPOCH - 3 * DAY))))  # fmt: skip
    after = state_of([], [])
    after.cluster.team_changed("a", idle)
    for i, ago in enumerate(hours):
        late = running(f"late-{i}", f"n-000{i}", gpus=8)
        placement = late.status.placement
        assert placement is not None
        at = format_time(EPOCH - ago * HOUR)
        status = replace(late.status, placement=replace(placement, placed_at=at))
        after.cluster.job_changed(replace(late, status=status))
    after.cluster.advance_shares(EPOCH)
    kept = math.exp2(-3 / idle.spec.budget.half_life_days)
    used = after.cluster.uses.gpu_seconds.at("a", EPOCH) / HOUR
    assert used == pytest.approx(kept + 8.0 * len(hours), rel=0.02)
