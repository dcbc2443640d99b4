"""A job whose place another one needs: it saves a checkpoint, ends and queues again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.decide.jobs_world import World, new_job

from fairlead.api.jobs.job import Progress
from fairlead.api.jobs.placement import Preemption
from fairlead.api.meta import find_condition, is_true
from fairlead.api.names import ADMITTED
from fairlead.api.values.times import format_time


def ask(world: World, **more: object) -> None:
    assert world.job is not None
    request = Preemption(
        namespace="default", name="urgent", uid="u", priority=9,
        requested_at=format_time(world.now), **more,  # type: ignore[arg-type] # passed on
    )  # fmt: skip
    world.job = replace(world.job, status=replace(world.job.status, preemption=request))


def test_a_gang_without_checkpoints_ends_at_once_and_queues_again() -> None:
    world = World(new_job())
    world.start()
    ask(world)
    world.settle()
    assert world.job is not None
    status = world.job.status
    assert status.attempts[-1].reason == "Preempted"
    assert status.attempts[-1].cause is None
    assert (status.user_failures, status.infrastructure_failures) == (0, 0)
    assert find_condition(status.conditions, ADMITTED).reason == "Preempted"
    world.reap_pods()
    world.settle()
    assert world.job.status.attempt == 1, "the place is not taken back yet"
    status = replace(world.job.status, placement=None, preemption=None)
    world.job = replace(world.job, status=status)
    world.settle()
    assert world.job.status.attempt == 2
    assert is_true(world.job.status.conditions, ADMITTED)


def asks_to_end_within(world: World, seconds: int | None) -> None:
    for name, pod in world.pods.items():
        spec = replace(pod.spec, termination_grace_period_seconds=seconds)
        world.pods[name] = replace(pod, spec=spec)


@pytest.mark.parametrize(
    ("own", "given"), [(None, 30), (0, 0), (300, 300), (301, 300), (9**9, 300)]
)
def test_a_member_has_the_time_to_end_that_it_asks_for_up_to_a_bound(own: int, given: int) -> None:
    world = World(new_job())
    world.start()
    asks_to_end_within(world, own)
    ask(world)
    world.settle()
    graces = {pod.metadata.deletion_grace_period_seconds for pod in world.pods.values()}
    assert graces == {given}
    assert len(world.pods) == 4


def test_a_member_that_its_user_gives_a_year_to_end_has_no_longer_than_others() -> None:
    """He has deleted it himself, before or after the job was asked to give way."""
    world = World(new_job())
    world.start()
    asks_to_end_within(world, 9**9)
    first, *_ = world.pods
    pod = world.pods[first]
    deleted = replace(
        pod.metadata, deletion_timestamp=format_time(world.now + 9**9),
        deletion_grace_period_seconds=9**9,
    )  # fmt: skip
    world.pods[first] = replace(pod, metadata=deleted)
    ask(world)
    world.settle()
    assert world.pods[first].metadata.deletion_grace_period_seconds == 300
    assert world.settle().actions == (), "and that is all"


def test_a_gang_that_reports_checkpoints_is_waited_for_until_it_has_saved_one_more() -> None:
    world = World(new_job())
    world.start()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.job.status, progress=Progress(12, 10)))
    ask(world, checkpoint_step=10)
    decision = world.settle()
    assert world.job.status.attempts[-1].finished_at is None
    assert decision.wake_at is not None
    assert decision.wake_at <= world.now + world.policy.checkpoint_wait_seconds
    world.job = replace(world.job, status=replace(world.job.status, progress=Progress(15, 15)))
    world.settle()
    assert world.job.status.attempts[-1].reason == "Preempted"


@pytest.mark.parametrize(
    ("saved", "seconds", "is_awaited"),
    [
        (300, 400, True),  # due in 100 s
        (300, 3600, False),
        (300, 250, True),  # late
        (300, 100, False),  # so late that it is not coming
        (300, None, False),  # the first one came 700 s after the start
        (450, None, True),  # 550 s after the start: the next is due in 100 s
        (1500, 1050, True),  # the attempt has saved none yet
        (1500, 150, False),
    ],
)
def test_only_a_checkpoint_that_can_be_expected_in_time_is_waited_for(
    saved: int, seconds: int | None, *, is_awaited: bool
) -> None:
    """The gang was asked 1,000 s after it had started; `saved` is how many seconds before."""
    world = World(new_job())
    world.start()
    world.now += 1000
    assert world.job is not None
    progress = Progress(
        12, 10, format_time(world.now), "", format_time(world.now - saved), seconds
    )  # fmt: skip
    world.job = replace(world.job, status=replace(world.job.status, progress=progress))
    ask(world, checkpoint_step=10)
    world.settle()
    assert (world.job.status.attempts[-1].finished_at is None) is is_awaited


def test_the_wait_for_a_checkpoint_is_bounded() -> None:
    world = World(new_job())
    world.start()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.job.status, progress=Progress(12, 10)))
    ask(world, checkpoint_step=10)
    world.settle()
    world.now += world.policy.checkpoint_wait_seconds
    world.settle()
    assert world.job.status.attempts[-1].reason == "Preempted"
