"""Limits of jobs by team and by user in the planner: which start, which queue, what they say."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead.api.cluster.team import JobLimits, Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination, RolePlacement
from fairlead.api.jobs.topology import Topology
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.answers.explain import explain
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.answers.forecast import forecast
from fairlead.decide.placement.actions import NominateJob, PlaceJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_placement,
    make_team,
)

from .team_world import state_of

NOW = EPOCH + 3600.0


def job(name: str, user: str = "ana", *, team: str = "a", at: float = 0.0, **more: Any) -> Job:
    made = make_job(name, namespace=team, created=EPOCH + at, **more)
    annotations = {SUBMITTED_BY: user} if user else {}
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def running(name: str, user: str, node: str, **more: Any) -> Job:
    more.setdefault("conditions", [Condition("Admitted", "True"), Condition("Running", "True")])
    return job(name, user, placement=make_placement([node]), **more)


def ended(made: Job) -> Job:
    conditions = (Condition("Succeeded", "True"),)
    return replace(made, status=replace(made.status, conditions=conditions, placement=None))


def limited(limits: JobLimits | None = None, users: JobLimits | None = None) -> list[Team]:
    of_all, of_user = limits or JobLimits(), users or JobLimits()
    return [make_team("a", limits=of_all, user_limits=of_user), make_team("b")]


def settle(state: PlacementState) -> list[str]:
    """Decide and take in what was written until nothing is placed; return what was placed."""
    placed: list[str] = []
    for _ in range(20):
        decision = decide(state, PlacementPolicy(), NOW)
        if not decision.actions:
            break
        for action in decision.actions:
            if isinstance(action, PlaceJob):
                placed.append(action.job.metadata.name)
            state.cluster.job_changed(as_written(action))
    return placed


def verdict(state: PlacementState, name: str, team: str = "a") -> tuple[str, dict[str, object]]:
    written = state.jobs[(team, name)].job.status.verdict
    assert written is not None
    return written.reason, dict(written.facts)


def test_a_user_over_the_running_limit_waits_with_its_numbers_and_holds_up_nobody() -> None:
    jobs = [job(f"ana-{i}", at=i) for i in range(4)]
    jobs += [job("ben-0", "ben", at=9), job("other-0", "ana", team="b", at=10)]
    state = state_of(limited(users=JobLimits(running=2)), jobs)
    assert sorted(settle(state)) == ["ana-0", "ana-1", "ben-0", "other-0"]
    facts = {"account": "user ana of team a", "running": 2, "limit": 2}
    assert verdict(state, "ana-2") == (Reason.RUNNING_LIMIT.value, facts)
    state.cluster.job_changed(ended(state.jobs[("a", "ana-0")].job))
    assert settle(state) == ["ana-2"]


def test_a_team_over_its_running_limit_waits_whoever_submitted() -> None:
    jobs = [job(f"j{i}", user, at=i) for i, user in enumerate(("ana", "ben", "eve", ""))]
    state = state_of(limited(JobLimits(running=3)), jobs)
    assert settle(state) == ["j0", "j1", "j2"]
    assert verdict(state, "j3")[1]["account"] == "team a"


def test_jobs_that_do_not_say_whose_they_are_count_as_those_of_one_user() -> None:
    state = state_of(limited(users=JobLimits(running=1)), [job(f"j{i}", "") for i in range(3)])
    assert settle(state) == ["j0"]
    assert verdict(state, "j1")[1]["account"] == "user (unknown) of team a"


def test_gpus_are_limited_and_a_smaller_job_still_starts() -> None:
    jobs = [job("big", count=2, at=0), job("large", count=2, at=1), job("small", gpus=4, at=2)]
    state = state_of(limited(users=JobLimits(gpus=20)), jobs)
    assert sorted(settle(state)) == ["big", "small"]
    facts = {"account": "user ana of team a", "gpus": 16, "gpus_held": 20, "limit": 20}
    assert verdict(state, "large") == (Reason.GPU_LIMIT.value, facts)


def test_a_job_over_a_limit_reserves_nothing_and_preempts_nobody() -> None:
    waits = Condition("Placed", "False", last_transition_time=format_time(EPOCH))
    conditions = [Condition("Admitted", "True"), waits]
    head = job("head", count=2, priority=10, conditions=conditions)
    jobs = [running("one", "ana", "n-0000", priority=10), head, job("ben", "ben", team="b")]
    jobs.append(running("low", "eve", "n-0001"))
    state = state_of(limited(users=JobLimits(running=1)), jobs, nodes=3)
    actions = decide(state, PlacementPolicy(), NOW).actions
    assert not [a for a in actions if isinstance(a, NominateJob)]
    assert [a.job.metadata.name for a in actions if isinstance(a, PlaceJob)] == ["ben"]
    unlimited = state_of(limited(), jobs, nodes=3)
    actions = decide(unlimited, PlacementPolicy(), NOW).actions
    assert [a.job.metadata.name for a in actions if isinstance(a, NominateJob)] == ["head"]


def test_a_user_who_preempts_gets_no_more_places_than_its_limit() -> None:
    jobs = [running(f"low-{i}", "ben", f"n-000{i}", team="b") for i in range(2)]
    jobs += [job(f"high-{i}", priority=10) for i in range(2)]
    state = state_of(limited(users=JobLimits(running=1)), jobs, nodes=2)
    nominated = [a for a in decide(state, PlacementPolicy(), NOW).actions
                 if isinstance(a, NominateJob)]  # fmt: skip
    assert [a.job.metadata.name for a in nominated] == ["high-0"]
    state.cluster.job_changed(as_written(nominated[0]))
    state.cluster.team_changed("a", limited(users=JobLimits(running=0))[0])
    dropped: Decision[Any] = decide(state, PlacementPolicy(), NOW)
    kinds = [type(a).__name__ for a in dropped.actions if a.job.metadata.name == "high-0"]
    assert kinds == ["WithdrawNomination"]


def test_an_uncertain_placement_counts_against_the_limits() -> None:
    jobs = [job("one"), job("two")]
    state = state_of(limited(users=JobLimits(gpus=8)), jobs)
    state.book_uncertain(jobs[0], make_placement(["n-0000"]))
    assert settle(state) == []
    state.unbook_uncertain(jobs[0].metadata.key)
    assert len(settle(state)) == 1


def test_only_the_first_waiting_jobs_of_a_user_are_in_the_queue() -> None:
    jobs = [job(f"ana-{i}", count=9, at=i) for i in range(3)] + [job("small", at=9)]
    state = state_of(limited(users=JobLimits(waiting=3)), jobs)
    assert settle(state) == []  # the three large ones never fit; the fourth is not looked at
    facts = {"account": "user ana of team a", "limit": 3, "kind": "waiting", "event": "started"}
    assert verdict(state, "small") == (Reason.QUEUE_LIMIT.value, facts)
    state.cluster.job_changed(job("urgent", priority=5, at=99))
    assert len(state.queue) == 3
    assert settle(state) == ["urgent"]
    state.cluster.job_deleted(("a", "ana-1"))
    assert settle(state) == ["small"]


def test_a_job_that_others_make_room_for_stays_in_the_queue() -> None:
    kept = Nomination((RolePlacement("worker", ("n0000",)),))
    first = job("first", status={"nomination": kept})
    urgent = job("urgent", at=9, priority=5)
    state = state_of(limited(users=JobLimits(waiting=1)), [first, urgent])
    assert first.metadata.key not in state.queue_limits
    assert urgent.metadata.key in state.queue_limits


def test_who_floods_a_team_takes_the_places_of_nobody_else() -> None:
    jobs = [job(f"ana-{i}", at=i) for i in range(50)] + [job("ben-0", "ben", at=99)]
    teams = limited(JobLimits(submitted=5), JobLimits(submitted=4))
    state = state_of(teams, jobs, nodes=0)
    assert [o.age.name for o in state.queue.in_order()] == [
        *(f"ana-{i}" for i in range(4)),
        "ben-0",
    ]
    assert sum(key in state.queue_limits for key in state.jobs) == 46


def test_a_job_over_the_submitted_limit_waits_until_another_one_ends() -> None:
    jobs = [job(f"j{i}", at=i) for i in range(3)]
    state = state_of(limited(users=JobLimits(submitted=2)), jobs)
    assert settle(state) == ["j0", "j1"]
    facts = {"account": "user ana of team a", "limit": 2, "kind": "unfinished", "event": "ended"}
    assert verdict(state, "j2") == (Reason.QUEUE_LIMIT.value, facts)
    state.cluster.job_changed(ended(state.jobs[("a", "j1")].job))
    assert settle(state) == ["j2"]


def test_with_more_jobs_than_the_submitted_limit_on_nodes_none_passes() -> None:
    """The limit was lowered while they ran."""
    held = [running(f"r{i}", "ana", f"n{i}") for i in range(3)]
    jobs = [job(f"j{i}", at=i) for i in range(3)]
    state = state_of(limited(users=JobLimits(submitted=9)), [*held, *jobs])
    assert len(state.queue) == 3
    state.cluster.team_changed("a", limited(users=JobLimits(submitted=1))[0])
    assert len(state.queue) == 0
    assert settle(state) == []
    assert {verdict(state, f"j{i}")[0] for i in range(3)} == {Reason.QUEUE_LIMIT.value}


def test_a_job_that_waits_for_another_limit_than_before_says_so() -> None:
    jobs = [running("r0", "ana", "n0"), *(job(f"j{i}", at=i, count=9) for i in range(3))]
    state = state_of(limited(JobLimits(waiting=1, submitted=3)), jobs)
    settle(state)
    facts = {"account": "team a", "limit": 1, "kind": "waiting", "event": "started"}
    for name in ("j1", "j2"):
        assert verdict(state, name) == (Reason.QUEUE_LIMIT.value, facts)
    for i in (1, 2):
        state.cluster.job_changed(running(f"r{i}", "ana", f"n{i}"))
    settle(state)
    facts = {"account": "team a", "limit": 3, "kind": "unfinished", "event": "ended"}
    for name in ("j0", "j1", "j2"):
        assert verdict(state, name) == (Reason.QUEUE_LIMIT.value, facts)


def test_a_changed_limit_moves_jobs_into_the_queue_and_out_of_it() -> None:
    jobs = [job(f"j{i}", at=i, count=9) for i in range(6)]
    state = state_of(limited(JobLimits(waiting=2)), jobs)
    assert len(state.queue) == 2
    for waiting, expected in ((4, 4), (0, 0), (None, 6), (1, 1)):
        state.cluster.team_changed("a", limited(JobLimits(waiting=waiting))[0])
        assert len(state.queue) == expected
    state.cluster.team_changed("a", None)
    assert len(state.queue) == 6


def test_a_verdict_is_written_once_and_thousands_in_parts() -> None:
    jobs = [job(f"j{i:03d}", at=i, count=9) for i in range(300)]
    state = state_of(limited(JobLimits(waiting=0)), jobs)
    decision = decide(state, PlacementPolicy(), NOW)
    assert len([a for a in decision.actions if isinstance(a, WriteVerdict)]) == 256
    assert decision.wake_at == NOW
    settle(state)
    assert decide(state, PlacementPolicy(), NOW).actions == ()


def test_why_says_the_limit_and_by_when_a_job_of_the_account_ends() -> None:
    at = format_time(NOW - 600)
    first = running("one", "ana", "n-0000", time_limit_seconds=3600)
    first = replace(first, status=replace(first.status, started_at=at))
    state = state_of(limited(users=JobLimits(running=1)), [first, job("two")])
    settle(state)
    explanation = explain(state, ("a", "two"), NOW)
    assert explanation is not None
    assert explanation.verdict.reason is Reason.RUNNING_LIMIT
    assert explanation.verdict.message == (
        "user ana of team a has nodes for 1 job, of at most 1; it may start when one of them ends"
    )
    assert isinstance(explanation.forecast, Forecast)
    assert explanation.forecast.may_start_by > NOW


def test_a_job_that_accepts_any_domain_after_a_while_stays_out_of_the_queue() -> None:
    at = format_time(NOW)
    conditions = [
        Condition("Admitted", "True"),
        Condition("Placed", "False", last_transition_time=at),
    ]
    near = Topology("topology.kubernetes.io/zone", preferred_seconds=60)
    state = state_of(
        limited(JobLimits(waiting=0)), [job("j", topology=near, conditions=conditions)]
    )
    for now in (NOW, NOW + 120):
        actions = decide(state, PlacementPolicy(), now).actions
        assert [a for a in actions if isinstance(a, PlaceJob)] == []


def test_a_forecast_counts_the_gpus_of_a_job_until_it_ends() -> None:
    first = running("one", "ana", "n-0000", time_limit_seconds=3600)
    state = state_of(limited(users=JobLimits(gpus=8)), [first, job("two")])
    found = forecast(state, ("a", "two"), NOW, PlacementPolicy())
    assert isinstance(found, Forecast)
    assert found.may_start_by > NOW
