"""People delete what a simulated world runs: what that promises, and a planted bug per promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import Condition
from fairlead.api.resources import TEAMS
from fairlead.api.values.times import format_time, parse_time
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.working_time import WorkingTime
from fairlead.sim.promises.jobs_checker import JobsChecker
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.team_changes import TeamChange
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import EPOCH, WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import make_job, make_member_pod, make_placement

replace = msgspec.structs.replace
AT = "2026-01-01T00:00:00Z"


def deleted(job: Job) -> Job:
    return replace(job, metadata=replace(job.metadata, deletion_timestamp=AT))


def ended(job: Job) -> Job:
    done = (Condition(type="Failed", status="True"),)
    return replace(job, status=replace(job.status, conditions=done))


class History:
    """A gang of two that runs; time passes."""

    def __init__(self) -> None:
        self.working = WorkingTime()
        self.checker = JobsChecker(self.working)
        self.now = 0.0
        self.job = make_job("a", count=2)
        self.key = self.job.metadata.key
        self.put(self.job)
        for index in (0, 1):
            self.pod(index)

    def put(self, job: Job | None) -> None:
        self.checker.job(job, self.key, self.now)

    def pod(self, index: int, **more: Any) -> None:
        pod = make_member_pod(self.job, index, **more)
        self.checker.pod(pod, pod.metadata.key, self.now)

    def leaves(self, index: int) -> None:
        pod: Pod = make_member_pod(self.job, index)
        pod = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=AT))
        self.checker.pod(pod, pod.metadata.key, self.now)

    def gone(self, index: int) -> None:
        self.checker.pod(None, make_member_pod(self.job, index).metadata.key, self.now)

    def passes(self, seconds: float) -> None:
        self.checker.check_by_clock(self.now)
        self.now += seconds
        self.checker.check_by_clock(self.now)


def test_a_job_that_is_deleted_goes_after_its_pods_however_long_a_node_keeps_them() -> None:
    history = History()
    history.checker.asked(history.key)
    history.put(deleted(history.job))
    history.passes(500.0)
    for index in (0, 1):
        history.leaves(index)
    history.passes(10_000.0)
    for index in (0, 1):
        history.gone(index)
    history.passes(600.0)
    assert history.checker.left == [history.key]
    history.put(ended(deleted(history.job)))
    history.put(None)
    assert (history.checker.left, history.checker.gone) == ([], 1)
    history.put(make_job("a", uid="second"))
    assert history.checker.ended == []


def test_the_time_in_which_no_jobs_controller_works_does_not_count() -> None:
    history = History()
    history.checker.asked(history.key)
    history.put(deleted(history.job))
    history.working.ended("jobs", history.now)
    history.passes(10_000.0)
    history.working.works("jobs", history.now)
    history.passes(600.0)
    with pytest.raises(PromiseBroken, match="still there 601 s later, with 2 pods"):
        history.passes(1.0)


def a_job_vanishes(history: History) -> None:
    history.put(None)


def a_job_is_deleted_by_nobody(history: History) -> None:
    history.put(deleted(history.job))


def a_job_is_replaced_by_another_one(history: History) -> None:
    history.put(make_job("a", uid="second"))


def a_job_goes_before_its_pods(history: History) -> None:
    history.checker.asked(history.key)
    history.put(ended(deleted(history.job)))
    history.gone(0)
    history.leaves(1)
    history.put(None)


def a_job_goes_before_a_pod_that_has_ended(history: History) -> None:
    history.gone(0)
    history.pod(1, phase="Succeeded")
    history.put(ended(history.job))
    history.put(None)


def a_job_stays_that_was_deleted(history: History) -> None:
    history.checker.asked(history.key)
    for index in (0, 1):
        history.gone(index)
    history.put(ended(deleted(history.job)))
    history.passes(601.0)


def pods_stay_whose_job_was_deleted(history: History) -> None:
    history.checker.asked(history.key)
    history.put(deleted(history.job))
    history.leaves(0)
    history.passes(601.0)


def backing_off(history: History) -> Job:
    status = replace(history.job.status, restart_at=format_time(history.now + 60.0))
    for index in (0, 1):
        history.gone(index)
    return replace(history.job, status=status)


def a_job_backs_off_for_ever(history: History) -> None:
    history.put(backing_off(history))
    history.passes(661.0)
    history.passes(601.0)


def test_a_back_off_ends_when_it_is_admitted_held_or_waits_for_the_scheduler() -> None:
    history = History()
    job = backing_off(history)
    history.put(job)
    history.passes(661.0)
    history.passes(600.0)
    history.put(replace(job, spec=replace(job.spec, suspend=True)))
    history.passes(10_000.0)
    given = (Condition(type="Admitted", status="False"),)
    placed = replace(job.status, conditions=given, placement=make_placement(["n1", "n2"]))
    history.put(replace(job, status=placed))
    history.passes(10_000.0)
    history.put(history.job)
    history.passes(10_000.0)


@pytest.mark.parametrize(
    ("promise", "planted"),
    [
        (3, a_job_vanishes),
        (3, a_job_is_deleted_by_nobody),
        (3, a_job_is_replaced_by_another_one),
        (2, a_job_goes_before_its_pods),
        (2, a_job_goes_before_a_pod_that_has_ended),
        (3, a_job_stays_that_was_deleted),
        (3, pods_stay_whose_job_was_deleted),
        (3, a_job_backs_off_for_ever),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_planted_bug_is_reported(promise: int, planted: Callable[[History], None]) -> None:
    history = History()
    with pytest.raises(PromiseBroken, match=rf"^{promise}: "):
        planted(history)


def test_jobs_are_deleted_while_they_wait_run_and_have_ended_and_come_back() -> None:
    options = WorldOptions(
        nodes=3, workload=WorkloadOptions(40, 3600.0, run_seconds_median=120.0, members_max=2),
        faults=PERFECT, calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0,
        deletions_per_day=1000.0,
    )  # fmt: skip
    world = World(options, 3)
    outcome = run(world.run())
    assert world.job_checker.gone > 15
    assert world.submission.returned > 10
    assert outcome.jobs == outcome.succeeded + outcome.failed > 25


def test_a_team_is_replaced_by_a_new_one_of_its_name() -> None:
    spec = {"namespaces": ["red"], "shares": [{"nodes": 1}]}
    changes = (TeamChange(0.0, "red", spec), TeamChange(60.0, "red", spec, replaced=True))
    options = WorldOptions(
        nodes=2, workload=WorkloadOptions(4, 300.0, members_max=1, teams=("red",)),
        faults=PERFECT, calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0,
        team_changes=changes,
    )  # fmt: skip
    world = World(options, 3)

    async def main() -> Team:
        await world.run()
        return await world.client.get(TEAMS, "red")

    team = run(main())
    assert parse_time(team.metadata.creation_timestamp or "") >= EPOCH + 60.0


def test_half_of_the_explored_worlds_delete_jobs() -> None:
    deleting = sum(options_of(number).deletions_per_day > 0 for number in range(200))
    assert 70 < deleting < 130
