"""A gang leaves a node before the maintenance that its provider has announced."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace
from tests.unit.decide.jobs_world import World, new_job

from fairlead.api.jobs.job import Progress
from fairlead.api.values.times import format_time
from fairlead.model.health.windows import Window
from fairlead.testing.builders import EPOCH

START = EPOCH + 7200.0
DRAIN, SAVE = 300.0, 120.0


def started(**spec: object) -> World:
    world = World(new_job(**spec))
    world.start()
    world.closing = {"n2": Window(START, START + 3600)}
    return world


def reason(world: World) -> str:
    assert world.job is not None
    return world.job.status.attempts[-1].reason


def report(world: World, step: int) -> None:
    assert world.job is not None
    progress = Progress(step, step, checkpointed_at=format_time(world.now))
    world.job = replace(world.job, status=replace(world.job.status, progress=progress))


def test_the_attempt_ends_in_time_and_gives_the_node_up() -> None:
    world = started()
    assert world.settle().wake_at == START - DRAIN
    world.run_to(START - DRAIN - 1)
    assert reason(world) == ""
    world.run_to(START - DRAIN)
    assert world.job is not None
    attempt = world.job.status.attempts[-1]
    assert (attempt.reason, attempt.nodes_lost) == ("Drained", ("n2",))
    assert attempt.message == "node n2 has maintenance from 2026-01-01T02:00:00Z"
    assert world.job.status.user_failures == 0


def test_of_several_nodes_the_first_that_closes_counts_and_all_are_given_up() -> None:
    world = started()
    world.closing |= {"n1": Window(START + 600, START + 1200), "n0": Window(START + 60, START + 90)}
    world.run_to(START - DRAIN)
    assert world.job is not None
    attempt = world.job.status.attempts[-1]
    assert (attempt.reason, attempt.nodes_lost) == ("Drained", ("n0", "n1", "n2"))


def test_a_gang_that_saves_a_checkpoint_shortly_before_moves_as_soon_as_it_has() -> None:
    world = started()
    world.now = START - DRAIN - SAVE - 1
    report(world, 10)
    world.run_to(START - DRAIN - SAVE + 30)
    assert reason(world) == "", "that one was too early to be the answer"
    report(world, 20)
    world.settle()
    assert reason(world) == "Drained"


def test_a_gang_that_saves_none_is_not_waited_for_longer() -> None:
    world = started()
    report(world, 10)
    world.run_to(START - DRAIN - 1)
    assert reason(world) == ""
    world.run_to(START - DRAIN)
    assert reason(world) == "Drained"


def test_an_attempt_that_is_over_before_stays() -> None:
    limit = int(START - EPOCH) - 30 - 60
    for seconds, ended in ((limit, "TimeLimit"), (limit + 120, "Drained")):
        world = started(time_limit_seconds=seconds)
        world.run_to(START - 60)
        assert reason(world) == ended


def test_a_gang_that_has_no_member_there_stays() -> None:
    world = started()
    world.closing = {"n7": Window(START, START + 3600)}
    world.run_to(START + 60)
    assert reason(world) == ""


def test_a_gang_that_began_once_it_was_over_stays() -> None:
    world = World(new_job(), now=START + 3600)
    world.closing = {"n2": Window(START, START + 3600)}  # it is taken off a little later
    world.start()
    world.run_to(START + 3660)
    assert reason(world) == ""


def test_maintenance_that_is_taken_back_moves_no_gang() -> None:
    world = started()
    world.run_to(START - DRAIN - 10)
    world.closing = {}
    world.run_to(START + 60)
    assert reason(world) == ""


def drained(deadline: float) -> World:
    """Return a world one of whose nodes is drained from now on."""
    world = started()
    world.closing = {"n2": Window(deadline, inf, asked_at=world.now)}
    return world


def test_a_gang_leaves_a_node_that_is_drained_after_its_next_checkpoint() -> None:
    world = drained(START)
    world.run_to(EPOCH + 600)
    assert reason(world) == ""
    report(world, 10)
    world.settle()
    assert world.job is not None
    attempt = world.job.status.attempts[-1]
    assert (attempt.reason, attempt.nodes_lost) == ("Drained", ("n2",))
    assert attempt.message == "node n2 is to be empty by 2026-01-01T02:00:00Z"
    assert world.job.status.user_failures == 0


def test_a_gang_without_checkpoints_stays_until_shortly_before_the_deadline() -> None:
    world = drained(START)
    world.run_to(START - DRAIN - 1)
    assert reason(world) == ""
    world.run_to(START - DRAIN)
    assert reason(world) == "Drained"


def test_a_short_drain_leaves_the_time_for_one_checkpoint() -> None:
    world = drained(EPOCH + 240)
    asked = world.now
    world.run_to(asked + SAVE - 1)
    assert reason(world) == ""
    world.run_to(asked + SAVE)
    assert reason(world) == "Drained"


def test_a_closed_node_that_has_no_deadline_keeps_what_runs_there() -> None:
    world = started()
    world.closing = {"n2": Window(inf, inf, asked_at=world.now)}
    report(world, 10)
    world.run_to(START + 86_400)
    assert reason(world) == ""
