"""Who ended well where a seat was before it moved: recorded however late somebody looks."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.decide.adoption.test_lifecycle import NODES, NOW, gated, released, stand_in, view
from tests.unit.decide.adoption.test_lifecycle import written as written_status

from fairlead.api.jobs.job import Attempt, Job, VerdictStatus
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.seats import former_places
from fairlead.decide.placement.actions import Action, PlaceJob, RecordActualPlacement
from fairlead.decide.placement.outcome import release_job
from fairlead.testing.builders import as_written, make_placement

ALL = {("worker", 0), ("worker", 1)}


def repairing() -> Job:
    """A group of three, whose attempt has ended as n2 was lost; the place is still that of it."""
    lost = {"attempts": (Attempt(1, begun_at="x", finished_at="y", nodes_lost=("n2",)),)}
    job = stand_in(attempt=2, admitted=True, status=lost)
    return replace(job, status=replace(job.status, placement=make_placement(NODES, attempt=1)))


def placed(job: Job, *nodes: str) -> PlaceJob:
    """The write of a repair: member i has `nodes[i]`."""
    verdict = VerdictStatus("Placed", "Placed", {})
    return PlaceJob(job, make_placement(nodes, attempt=2), Condition("Placed", "True"), verdict)


def moves(job: Job) -> tuple[Action, ...]:
    """All writes that take the place n1 from the second member."""
    at, elsewhere = format_time(NOW), make_placement(("n0", "n7", "n2"), attempt=1)
    return (
        placed(job, "n0", "n7", "n8"),
        release_job(job, None, at),
        RecordActualPlacement(job, elsewhere),
    )


def test_a_member_that_ended_before_its_seat_moved_has_ended_in_its_seat() -> None:
    for move in moves(repairing()):
        job = as_written(move)
        ended = [released(job, index, f"n{index}", phase="Succeeded") for index in (0, 1)]
        status = written_status(view(*ended, gated(2), job=job))
        vacant_or_done = status.done | status.vacant
        assert vacant_or_done == ALL, type(move).__name__


def test_where_no_seat_was_nobody_has_ended_well() -> None:
    for move in moves(repairing()):
        job = as_written(move)
        ended = [
            released(job, 0, "n0", phase="Succeeded"),
            released(job, 1, "n5", phase="Succeeded"),
        ]
        swapped = [
            released(job, 1, "n0", phase="Succeeded"),
            released(job, 0, "n1", phase="Succeeded"),
        ]
        for pods, done in ((ended, {("worker", 0)}), (swapped, set[tuple[str, int]]())):
            status = written_status(view(*pods, gated(2), job=job))
            assert status.done == done, type(move).__name__


def test_a_former_place_is_kept_only_while_a_member_is_there() -> None:
    job = as_written(placed(repairing(), "n0", "n7", "n8"))
    assert set(former_places(job.status)) == {("worker", 1, "n1"), ("worker", 2, "n2")}
    pods = [released(job, 0, "n0"), released(job, 1, "n1"), gated(2)]
    opened = written_status(view(*pods, job=job))
    assert opened.attempts[-1].number == 2
    assert set(former_places(opened)) == {("worker", 1, "n1")}
    # It ends while the attempt goes on, and only then somebody looks.
    job = replace(job, status=opened)
    late = [
        released(job, 0, "n0"),
        released(job, 1, "n1", phase="Succeeded"),
        released(job, 2, "n8"),
    ]
    assert written_status(view(*late, job=job)).done == {("worker", 1)}


def test_a_place_without_members_or_of_a_job_of_ours_is_not_kept() -> None:
    waits = stand_in(attempt=1, admitted=True)
    unbegun = replace(waits, status=replace(waits.status, placement=make_placement(NODES)))
    ours = repairing()
    ours = replace(ours, spec=replace(ours.spec, adopts=None))
    for job in (unbegun, ours):
        for move in moves(job):
            assert as_written(move).status.former_places == ()


def test_a_place_that_was_given_back_is_not_kept() -> None:
    job = repairing()
    seats = written_status(
        view(*[released(job, i, f"n{i}", phase="Succeeded") for i in (0, 1)], gated(2), job=job)
    ).seats
    vacant = tuple(replace(each, vacant=each.done) for each in seats)
    job = replace(job, status=replace(job.status, seats=vacant))
    left = [{place[1] for place in former_places(as_written(each).status)} for each in moves(job)]
    assert left == [{2}, {2}, set()]
