"""Which jobs may queue for a place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.after import After, AfterFailed, AfterState
from fairlead.api.jobs.job import Restart
from fairlead.api.values.times import format_time
from fairlead.cli.slurm_tools.states import SlurmState, slurm_state
from fairlead.decide.jobs.admitting.gate import admitted_verdict
from fairlead.decide.jobs.view import DependencyState
from fairlead.decide.reasons import Reason
from fairlead.testing.builders import EPOCH

from .jobs_world import World, new_job


def _dependent(
    state: AfterState = AfterState.SUCCEEDED, on_unmet: AfterFailed = AfterFailed.CANCEL
) -> World:
    return World(new_job(spec={"after": (After("prep", state, on_unmet),)}))


def test_a_new_job_gets_its_finalizer_first_and_is_then_admitted_as_attempt_1() -> None:
    world = World(new_job())
    world.act()
    assert world.done == ["AddFinalizer"]
    world.settle()
    assert world.condition("Admitted") == ("True", "Admitted")
    assert (world.status.attempt, world.status.state) == (1, "Waiting")
    assert world.status.submitted_at == "2026-01-01T00:00:00Z"
    assert world.status.observed_generation == 1
    assert not world.pods, "no pod before a place"


@pytest.mark.parametrize(
    ("wanted", "state", "admitted", "reason"),
    [
        (AfterState.SUCCEEDED, DependencyState.SUCCEEDED, "True", "Admitted"),
        (AfterState.SUCCEEDED, DependencyState.UNFINISHED, "False", "Dependency"),
        (AfterState.SUCCEEDED, DependencyState.MISSING, "False", "DependencyMissing"),
        (AfterState.SUCCEEDED, DependencyState.FAILED, "", ""),
        (AfterState.FAILED, DependencyState.FAILED, "True", "Admitted"),
        (AfterState.FAILED, DependencyState.SUCCEEDED, "", ""),
        (AfterState.FINISHED, DependencyState.SUCCEEDED, "True", "Admitted"),
        (AfterState.FINISHED, DependencyState.FAILED, "True", "Admitted"),
        (AfterState.FINISHED, DependencyState.UNFINISHED, "False", "Dependency"),
        (AfterState.FINISHED, DependencyState.STARTED, "False", "Dependency"),
        (AfterState.STARTED, DependencyState.STARTED, "True", "Admitted"),
        (AfterState.STARTED, DependencyState.FAILED, "True", "Admitted"),
        (AfterState.STARTED, DependencyState.UNFINISHED, "False", "Dependency"),
    ],
)
def test_a_dependency_admits_delays_or_cancels(
    wanted: AfterState, state: DependencyState, admitted: str, reason: str
) -> None:
    world = _dependent(wanted)
    world.dependencies = {"prep": state}
    world.settle()
    assert world.condition("Admitted") == (admitted, reason)
    if not admitted:
        assert world.condition("Failed") == ("True", "DependencyFailed")
        assert world.status.state == "Cancelled"
        assert world.events[-1][0] == "Cancelled"
        assert world.records


def test_a_job_in_the_queue_is_put_off_and_one_that_has_begun_is_not() -> None:
    world = World(new_job())
    world.settle()
    assert world.condition("Admitted") == ("True", "Admitted")
    later = format_time(EPOCH + 60)
    assert world.job is not None
    world.job = replace(world.job, spec=replace(world.job.spec, not_before=later))
    decision = world.settle()
    assert world.condition("Admitted") == ("False", "NotBefore")
    assert decision.wake_at == EPOCH + 60
    world.run_to(EPOCH + 60)
    assert world.condition("Admitted") == ("True", "Admitted")
    assert world.status.attempt == 1
    world.start()
    much_later = format_time(EPOCH + 9_000)
    world.job = replace(world.job, spec=replace(world.job.spec, not_before=much_later))
    world.lose_node("n1")
    world.run_to(EPOCH + 120)
    world.reap_pods()
    world.run_to(EPOCH + 240)
    assert (world.status.attempt, world.condition("Admitted")) == (2, ("True", "Admitted"))


def test_a_dependency_that_failed_holds_the_job_when_it_asks_for_that() -> None:
    world = _dependent(on_unmet=AfterFailed.HOLD)
    world.dependencies = {"prep": DependencyState.FAILED}
    decision = world.settle()
    assert world.condition("Admitted") == ("False", "DependencyFailed")
    assert world.status.state == "Held"
    [verdict] = decision.verdicts.values()
    assert verdict.message == "starts only after job prep is Succeeded, but it ended as Failed"
    assert verdict.blockers == (("default", "prep"),)


def test_of_several_unmet_dependencies_the_severest_is_told() -> None:
    after = (After(job="a"), After(job="b", on_unmet=AfterFailed.HOLD))
    world = World(new_job(spec={"after": after}))
    world.dependencies = {"a": DependencyState.UNFINISHED, "b": DependencyState.FAILED}
    [verdict] = world.settle().verdicts.values()
    assert verdict.reason is Reason.DEPENDENCY_FAILED


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_one_of_several_dependencies_that_can_hold_no_more_cancels(names: str) -> None:
    world = World(new_job(spec={"after": tuple(After(job=name) for name in names)}))
    world.dependencies = {"a": DependencyState.UNFINISHED, "b": DependencyState.FAILED}
    world.settle()
    assert world.condition("Failed") == ("True", "DependencyFailed")


def test_a_delay_counts_from_the_start_of_the_other_job_and_the_decision_wakes_at_its_end() -> None:
    after = After("prep", AfterState.STARTED, delay_seconds=60)
    world = World(new_job(spec={"after": (after,)}))
    world.dependencies, world.begun = {"prep": DependencyState.STARTED}, {"prep": EPOCH - 20}
    decision = world.settle()
    [verdict] = decision.verdicts.values()
    assert verdict.message == "waits for job prep to be Started for 60 s"
    assert decision.wake_at == EPOCH + 40
    world.run_to(EPOCH + 40)
    assert world.condition("Admitted") == ("True", "Admitted")


@pytest.mark.parametrize(
    ("first", "second", "admitted"),
    [
        (DependencyState.FAILED, DependencyState.SUCCEEDED, "True"),
        (DependencyState.UNFINISHED, DependencyState.SUCCEEDED, "True"),
        (DependencyState.FAILED, DependencyState.UNFINISHED, "False"),
        (DependencyState.FAILED, DependencyState.FAILED, ""),
    ],
)
def test_of_alternatives_one_is_enough_and_only_the_failure_of_all_cancels(
    first: DependencyState, second: DependencyState, admitted: str
) -> None:
    after = (After("a", alternative=True), After("b", alternative=True))
    world = World(new_job(spec={"after": after}))
    world.dependencies = {"a": first, "b": second}
    world.settle()
    assert world.condition("Admitted")[0] == admitted
    assert (world.status.state == "Cancelled") is not bool(admitted)


def test_alternatives_take_nothing_from_what_must_hold() -> None:
    after = (After("a", alternative=True), After("b", alternative=True), After("c"))
    world = World(new_job(spec={"after": after}))
    succeeded, unfinished = DependencyState.SUCCEEDED, DependencyState.UNFINISHED
    world.dependencies = {"a": succeeded, "b": unfinished, "c": unfinished}
    [verdict] = world.settle().verdicts.values()
    assert verdict.blockers == (("default", "c"),)


def test_once_admitted_a_job_no_longer_depends_on_the_other() -> None:
    world = _dependent()
    world.dependencies = {"prep": DependencyState.SUCCEEDED}
    world.settle()
    world.dependencies = {}
    world.start()


def test_a_suspended_job_is_held_and_released() -> None:
    world = World(new_job(suspend=True))
    world.settle()
    assert world.condition("Admitted") == ("False", "Held")
    assert (world.status.attempt, world.status.state) == (0, "Held")
    world.change_spec(suspend=False)
    world.settle()
    assert (world.status.attempt, world.status.state) == (1, "Waiting")
    assert [reason for reason, _ in world.events] == ["Held", "Released"]


def test_a_job_that_is_held_in_the_queue_keeps_its_attempt_number() -> None:
    world = World(new_job())
    world.settle()
    world.change_spec(suspend=True)
    world.settle()
    assert world.condition("Admitted") == ("False", "Held")
    world.change_spec(suspend=False)
    world.settle()
    assert (world.status.attempt, world.condition("Admitted")[0]) == (1, "True")


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_waiting_job_that_is_cancelled_ends_at_once_and_is_recorded(how: str) -> None:
    world = World(new_job())
    world.settle()
    if how == "cancel":
        world.change_spec(cancel=True)
        world.settle()
        assert world.condition("Failed") == ("True", "Cancelled")
        assert world.status.state == "Cancelled"
    else:
        world.delete()
        world.settle()
        assert world.job is None
    [record] = world.records.values()
    assert record.status.state == "Cancelled"


def test_a_deleted_job_without_our_finalizer_is_left_alone() -> None:
    job = new_job()
    others = replace(job.metadata, finalizers=("example.com/other",))
    world = World(replace(job, metadata=others))
    world.delete()
    assert world.decide().actions == ()


def test_a_job_that_may_not_start_yet_says_until_when_and_starts_by_itself() -> None:
    world = World(new_job(spec={"not_before": format_time(EPOCH + 600)}))
    world.settle()
    assert world.job is not None
    assert world.condition("Admitted") == ("False", "NotBefore")
    assert world.status.state == "Waiting"
    verdict = admitted_verdict(world.job)
    assert verdict is not None
    assert verdict.message == "may not start before 2026-01-01T00:10:00Z"
    world.run_to(EPOCH + 599)
    assert world.condition("Admitted") == ("False", "NotBefore")
    world.run_to(EPOCH + 600)
    assert world.condition("Admitted") == ("True", "Admitted")


def test_a_job_that_can_no_longer_end_by_its_deadline_is_cancelled_while_it_waits() -> None:
    job = new_job(spec={"deadline": format_time(EPOCH + 600)}, time_limit_seconds=120)
    world = World(job)
    world.run_to(EPOCH + 479)
    assert world.condition("Admitted") == ("True", "Admitted")
    world.run_to(EPOCH + 480)
    assert world.condition("Failed") == ("True", "DeadlineMissed")
    assert world.status.state == "Cancelled"
    assert world.job is not None
    assert slurm_state(world.job) is SlurmState.DEADLINE
    assert world.records


def test_an_attempt_that_has_begun_runs_past_the_latest_start_and_no_other_one_begins() -> None:
    spec = {"deadline": format_time(EPOCH + 600), "restart": Restart(limit=3)}
    world = World(new_job(spec=spec, time_limit_seconds=500))
    world.settle()
    world.start()
    world.run_to(EPOCH + 300)
    assert world.status.state == "Running"
    world.end_pod(next(iter(world.pods)), exit_code=1)
    world.run_to(EPOCH + 310)
    world.reap_pods()
    world.run_to(EPOCH + 400)
    assert world.condition("Failed") == ("True", "DeadlineMissed")
    assert world.status.attempt == 2
