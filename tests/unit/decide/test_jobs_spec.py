"""A spec whose immutable part was changed all the same, on an API server that allows it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Checkpoint, Restart, RestartPolicy
from fairlead.decide.attempts import record
from fairlead.testing.builders import make_role

from .jobs_world import World, new_job


def _begun() -> World:
    """A job whose attempt has begun and has no pods yet."""
    world = World(new_job(count=2))
    world.settle()
    world.schedule()
    world.act()
    assert world.status.attempts
    assert not world.pods
    return world


def test_a_gang_that_is_not_complete_gets_no_pods_of_another_template() -> None:
    world = _begun()
    world.act(1)
    assert len(world.pods) == 1
    world.change_spec(roles=(make_role(count=2, image="other:2"),))
    world.settle()
    [attempt] = world.status.attempts
    assert (attempt.reason, attempt.cause) == ("SpecChanged", None)
    assert len(world.pods) == 1
    world.reap_pods()
    world.settle()
    assert (world.status.attempt, world.status.user_failures) == (2, 0)
    world.start()
    images = {p.spec.containers[0].image for p in world.pods.values()}
    assert images == {"other:2"}


def test_a_gang_without_its_config_map_gets_none_of_another_template() -> None:
    world = _begun()
    world.act()
    assert len(world.pods) == 2
    world.change_spec(checkpoint=Checkpoint(path="/else"))
    world.run_pods()
    world.settle()
    assert not world.config_maps
    assert world.status.attempts[0].reason == "SpecChanged"


@pytest.mark.parametrize("count", [1, 2])
def test_after_an_upgrade_running_gangs_go_on_and_others_start_with_pods_of_one_version(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, starting = World(new_job(count=count)), World(new_job(count=count))
    running.start()
    for act in (starting.settle, starting.schedule, starting.settle):
        act()
    assert len(starting.pods) == count
    monkeypatch.setattr(record, "MEMBERS_FORM", record.MEMBERS_FORM + 1)
    starting.settle()
    assert starting.status.attempts[0].reason == "SpecChanged"
    starting.reap_pods()
    starting.start()
    assert starting.status.user_failures == 0
    running.settle()
    assert running.status.state == "Running"


def test_another_checkpoint_is_another_template_and_other_fields_are_not() -> None:
    world = _begun()
    world.change_spec(checkpoint=Checkpoint(path="/else"))
    world.settle()
    assert world.status.attempts[0].reason == "SpecChanged"
    world = _begun()
    world.change_spec(priority=5, time_limit_seconds=60)
    world.settle()
    assert len(world.pods) == 2


def test_a_complete_gang_goes_on_as_it_began_and_the_next_attempt_is_of_the_new_spec() -> None:
    world = World(new_job(count=2))
    world.start()
    world.change_spec(roles=(make_role(count=2, image="other:2"),))
    world.settle()
    assert world.status.state == "Running"
    world.end_pod("train-1-worker-0", signal=9)
    world.restart()
    assert world.status.attempts[0].reason == "Killed"
    assert {p.spec.containers[0].image for p in world.pods.values()} == {"other:2"}


@pytest.mark.parametrize("count", [1, 3])
def test_a_running_gang_whose_size_was_changed_starts_anew_and_is_never_done_early(
    count: int,
) -> None:
    world = World(new_job(count=2))
    world.start()
    world.end_pod("train-1-worker-0")
    world.change_spec(roles=(make_role(count=count),))
    world.settle()
    [attempt] = world.status.attempts
    assert attempt.reason == "SpecChanged"
    assert attempt.message == (
        "spec.roles, spec.checkpoint or the version of Fairlead was changed while attempt 1 ran; "
        "the next one is of the new spec"
    )
    world.restart()
    assert len(world.pods) == count


def test_an_attempt_is_queued_again_once_and_counts_against_no_limit() -> None:
    world = World(new_job(count=2))
    world.start()
    world.change_spec(requeue_attempt=1)
    world.settle()
    [attempt] = world.status.attempts
    assert (attempt.reason, attempt.cause) == ("Requeued", None)
    assert world.status.placement is not None, "its pods are there"
    world.reap_pods()
    world.settle()
    assert world.condition("Admitted") == ("False", "Requeued"), "its nodes are for who is next"
    world.schedule()
    assert world.status.placement is None
    world.start()
    assert (world.status.attempt, world.status.user_failures) == (2, 0)
    assert world.status.infrastructure_failures == 0
    world.run_to(world.now + 60)
    assert (world.status.state, len(world.status.attempts)) == ("Running", 2)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_program_that_asks_to_be_queued_again_may_end_meanwhile(exit_code: int) -> None:
    world = World(new_job(count=1))
    world.start()
    world.change_spec(requeue_attempt=1)
    world.end_pod("train-1-worker-0", exit_code=exit_code)
    world.settle()
    assert world.status.attempts[0].reason == "Requeued"
    world.reap_pods()
    world.settle()
    world.schedule()
    world.start()
    assert (world.status.attempt, world.status.user_failures) == (2, 0)


def test_a_job_that_is_queued_again_and_cancelled_ends_and_one_that_is_held_waits() -> None:
    cancelled, held = World(new_job(count=1)), World(new_job(count=1))
    for world, change in ((cancelled, {"cancel": True}), (held, {"suspend": True})):
        world.start()
        world.change_spec(requeue_attempt=1, **change)
        world.settle()
        world.reap_pods()
        world.settle()
    assert (cancelled.status.state, held.status.state) == ("Cancelled", "Held")


def test_a_number_of_another_attempt_ends_nothing() -> None:
    world = World(new_job(count=1))
    world.start()
    world.change_spec(requeue_attempt=2)
    world.run_to(world.now + 60)
    assert (world.status.state, len(world.status.attempts)) == ("Running", 1)


def test_a_role_of_another_name_does_not_stop_the_controller() -> None:
    world = World(new_job(count=2))
    world.start()
    world.change_spec(roles=(make_role("other", count=2),))
    world.settle()
    assert world.status.attempts[0].reason == "SpecChanged"


def test_a_member_that_is_replaced_is_never_made_of_another_template() -> None:
    job = new_job(count=2)
    restart = Restart(policy=RestartPolicy.MEMBER, limit=1)
    world = World(replace(job, spec=replace(job.spec, restart=restart)))
    world.start()
    world.change_spec(roles=(make_role(count=2, image="other:2"),))
    world.end_pod("train-1-worker-0", exit_code=1)
    world.run_to(world.now + 5)
    world.reap_pods()
    world.run_to(world.now + 5)
    assert world.status.attempts[0].reason == "SpecChanged"


def test_a_changed_job_that_is_cancelled_ends_as_cancelled() -> None:
    world = World(new_job(count=2))
    world.start()
    world.end_pod("train-1-worker-0")
    world.change_spec(roles=(make_role(count=1),), cancel=True)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.status.state == "Cancelled"
