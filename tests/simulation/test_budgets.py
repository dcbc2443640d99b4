"""Budgets of teams in whole simulated worlds, the checker alone, and planted bugs for both."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import Budget, Team, TeamSpec, TeamStatus, TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, RolePlacement
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time, parse_time
from fairlead.model.holdings.team_use import DecayedSums
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.working_time import SCHEDULER, WorkingTime
from fairlead.sim.promises.budget_checker import BudgetChecker
from fairlead.sim.promises.team_model import TeamModel
from fairlead.sim.setup.team_changes import TeamChange, budget_seconds, draw_changes, with_budgets
from fairlead.sim.world import World
from fairlead.testing.builders import make_job, make_placement

from .test_teams import HOUR, arrival, run_world, team, world_of

DAY = 86_400.0


def spent(hours: int, *changes: TeamChange, **more: Any) -> World:
    """Red's first job holds 32 GPUs for 10 minutes; its second one comes 25 minutes later."""
    budget = {"gpuHours": hours, "halfLifeDays": 1}
    return world_of(
        arrival(400.0, "red", "first", 4, 600.0),
        arrival(2500.0, "red", "second", 1, 60.0),
        changes=(team("red", 4, budget=budget), *changes),
        **more,
    )


def raised() -> World:
    """Red's budget of 4 GPU-hours is raised 20 minutes after its second job came."""
    more = {"budget": {"gpuHours": 100, "halfLifeDays": 1}}
    return spent(4, TeamChange(3700.0, "red", team("red", 4, **more).spec))


def wait_seconds(world: World, name: str) -> float:
    """Return when a job first ran, in seconds after it was submitted."""
    status = world.checkers.finished["red", name].status
    assert status.started_at is not None
    assert status.submitted_at is not None
    return parse_time(status.started_at) - parse_time(status.submitted_at)


def test_a_job_of_a_team_over_its_budget_starts_once_that_is_raised() -> None:
    world = run_world(raised)
    assert world.budgets.judged == 1  # the second start came right after a change of the team
    assert 1190.0 <= wait_seconds(world, "second") <= 1300.0


def test_a_job_of_a_team_over_its_budget_starts_once_what_was_used_counts_less() -> None:
    world = run_world(lambda: spent(5))
    assert world.budgets.judged == 2
    # 32 GPUs for 10 minutes and a little are 5.4 GPU-hours, which count 5 after 0.12 days.
    assert 5000.0 <= wait_seconds(world, "second") <= 15_000.0


@pytest.mark.parametrize(
    "bounds", [{"budget": {"gpuHours": 0, "halfLifeDays": 1}}, {"limits": {"running": 0}}]
)
def test_a_team_that_may_start_nothing_leaves_its_nodes_to_others(bounds: dict[str, Any]) -> None:
    world = run_world(
        lambda: world_of(
            arrival(400.0, "blue", "borrower", 4, 3 * HOUR),
            arrival(900.0, "red", "owner", 2, 60.0),
            changes=(
                team("blue", 2), team("red", 2, **bounds),
                TeamChange(4000.0, "red", team("red", 2).spec),
            ),
        )
    )  # fmt: skip
    assert world.preemptions.reclaims == 1
    assert wait_seconds(world, "owner") > world.teams.reclaim_seconds_max


# Planted bugs in the code


def test_a_planner_without_budgets_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.decide.placement.stages.fit.budget_verdict", lambda *_: None)
    words = r"^4: .*'second'.* starts while team red has used 5\..* GPU-hours, its budget is 4"
    with pytest.raises(PromiseBroken, match=words):
        run_world(raised)


def test_a_sum_that_never_decays_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecayedSums, "half_life", lambda *_: 3650 * DAY)
    with pytest.raises(PromiseBroken, match=r"^3: 1 jobs never end, .*'second'"):
        run_world(lambda: spent(5, settle_seconds_max=5 * HOUR))


# The checker alone


class History:
    """A team with a budget of 10 GPU-hours, a status every 5 minutes, and jobs of 8 GPUs."""

    def __init__(self, hours: int | None = 10, *, clock_error_seconds: float = 0.0) -> None:
        self.model, self.working, self.now = TeamModel(), WorkingTime(), 1000.0
        self.checker = BudgetChecker(self.model, self.working, clock_error_seconds)
        spec = TeamSpec(namespaces=("red",), budget=Budget(hours, 1))
        self.team = Team(metadata=ObjectMeta(name="red"), spec=spec)
        self.working.works(SCHEDULER, self.now)
        self._write_team()
        self.now += 200.0

    def save(self) -> None:
        """Write the status of the team; a while later a process that begins knows it."""
        use = TeamUse(as_of=format_time(self.now))
        self.team = replace(self.team, status=TeamStatus(use=use))
        self._write_team()
        self.now += 200.0

    def hold(self, hours: float) -> None:
        """Let a job hold 8 GPUs and give them back."""
        job = self.start()
        self.now += hours * HOUR
        self.put(replace(job, status=replace(job.status, placement=None)))
        self.now += 200.0

    def start(self, name: str = "", **more: Any) -> Job:
        name = name or f"job-{self.now:g}"
        return self.put(make_job(name, namespace="red", placement=make_placement(["n1"]), **more))

    def nominate(self) -> Job:
        job = make_job("next", namespace="red")
        nomination = Nomination((RolePlacement(role="worker", nodes=("n1",)),), ())
        return self.put(replace(job, status=replace(job.status, nomination=nomination)))

    def put(self, job: Job) -> Job:
        self.checker.job(job, job.metadata.key, self.now)
        return job

    def restart(self) -> None:
        """Let another process take over."""
        self.working.ended("", self.now)
        self.now += 30.0
        self.working.works(SCHEDULER, self.now)

    def _write_team(self) -> None:
        self.model.team(self.team, "red", self.now)
        self.checker.team(self.team, "red", self.now)


def over_by_a_tenth(history: History) -> None:
    history.hold(11.0 / 8 + 0.03)
    history.start()


def over_while_it_runs(history: History) -> None:
    history.start("first")
    history.now += 2 * HOUR
    history.start()


def over_when_it_is_nominated(history: History) -> None:
    history.hold(2.0)
    history.nominate()


def over_as_the_status_said(history: History) -> None:
    history.hold(2.0)
    history.save()
    history.restart()
    history.start()


def over_with_what_still_runs(history: History) -> None:
    history.save()
    history.start("first")
    history.now += 2 * HOUR
    history.restart()
    history.start()


def over_again_after_a_restart(history: History) -> None:
    history.hold(2.0)
    history.restart()
    history.hold(2.0)
    history.start()


@pytest.mark.parametrize(
    "planted",
    [
        over_by_a_tenth, over_while_it_runs, over_when_it_is_nominated, over_as_the_status_said,
        over_with_what_still_runs, over_again_after_a_restart,
    ],
)  # fmt: skip
def test_a_start_over_the_budget_is_reported(planted: Callable[[History], None]) -> None:
    with pytest.raises(PromiseBroken, match=r"^4: .* starts while team red has used 1\d\..* is 10"):
        planted(History())


def below_it(history: History) -> None:
    history.hold(9.9 / 8)
    history.start()


def below_it_again(history: History) -> None:
    history.hold(1.5)
    history.now += 0.3 * DAY
    history.start()


def in_the_place_that_was_kept(history: History) -> None:
    history.hold(1.2)
    job = history.nominate()
    history.hold(1.0)
    history.put(make_job(job.metadata.name, namespace="red", placement=make_placement(["n1"])))


def the_next_attempt_in_the_same_place(history: History) -> None:
    job = history.start("first")
    history.now += 2 * HOUR
    history.put(replace(job, status=replace(job.status, placement=make_placement(["n1", "n2"]))))


def without_gpus(history: History) -> None:
    history.hold(2.0)
    history.start(gpus=0)


def decided_earlier(history: History) -> None:
    history.start("first")
    history.now += 10 / 8 * HOUR + 150.0
    history.start()


def not_known_after_a_restart(history: History) -> None:
    history.save()
    history.hold(2.0)
    history.restart()
    history.start()


def lost_with_the_team(history: History) -> None:
    history.hold(2.0)
    history.model.team(None, "red", history.now)
    history.checker.team(None, "red", history.now)
    history._write_team()
    history.now += 200.0
    history.start()


@pytest.mark.parametrize(
    "sound",
    [
        below_it, below_it_again, in_the_place_that_was_kept, the_next_attempt_in_the_same_place,
        without_gpus, decided_earlier, not_known_after_a_restart, lost_with_the_team,
    ],
)  # fmt: skip
def test_a_start_that_may_be_is_not_reported(sound: Callable[[History], None]) -> None:
    history = History()
    sound(history)
    assert history.checker.judged >= 1


def test_a_budget_of_nothing_admits_no_start_and_no_budget_admits_all() -> None:
    with pytest.raises(PromiseBroken, match=r"used 0\.00 GPU-hours, its budget is 0"):
        History(0).start()
    free = History(None)
    free.hold(100.0)
    free.start()
    assert free.checker.judged == 0


def test_where_clocks_are_wrong_a_part_of_each_place_may_not_have_been_counted() -> None:
    for hours, error, is_reported in ((1.4, 0.0, True), (1.4, 300.0, False), (1.5, 300.0, True)):
        history = History(clock_error_seconds=error)
        history.hold(hours)
        if is_reported:
            with pytest.raises(PromiseBroken, match=r"^4: "):
                history.start()
        else:
            history.start()


# What is drawn


def test_drawn_budgets_are_positive_and_decay_fast_in_the_end() -> None:
    seen: set[int] = set()
    for number in range(30):
        rng = random.Random(number)
        plain = draw_changes(rng, 10, HOUR)
        needed = {change.name: 40.0 for change in plain}
        changes = with_budgets(rng, plain, needed)
        assert [(c.at_seconds, c.name, c.spec is None) for c in changes] == [
            (c.at_seconds, c.name, c.spec is None) for c in plain
        ]
        count = len(needed)
        for position, change in enumerate(changes):
            budget = (change.spec or {}).get("budget")
            if budget is not None and position >= len(changes) - count:
                assert budget["gpuHours"] >= 28
                assert budget["halfLifeDays"] == 1
            elif budget is not None:
                seen.add(budget["gpuHours"])
        last = [c for c in changes[-count:] if c.spec is not None and "budget" in c.spec]
        assert bool(last) is (budget_seconds(changes, needed, 4) > 0)
    assert {0, 1} < seen
