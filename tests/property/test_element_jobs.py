"""The jobs of an array, sorted per change, are sorted as they are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.decide.arrays import ElementJobs
from fairlead.model.element_sets import set_of
from fairlead.testing.builders import make_job, make_placement

POSITIONS = st.integers(0, 200)


def element(*, has_place: bool, has_ended: bool, is_held: bool) -> Job:
    job = make_job("x", placement=make_placement(["n0"]) if has_place else None)
    conditions = (Condition("Succeeded", "True"),) if has_ended else ()
    annotations = {names.HELD_BY_ARRAY: "true"} if is_held else {}
    return replace(
        job,
        metadata=replace(job.metadata, annotations=annotations),
        status=replace(job.status, conditions=conditions),
    )


JOBS = st.builds(element, has_place=st.booleans(), has_ended=st.booleans(), is_held=st.booleans())


@settings(max_examples=60)
@given(st.lists(st.tuples(POSITIONS, st.none() | JOBS), max_size=30))
def test_after_any_changes_each_job_is_where_it_belongs(
    changes: list[tuple[int, Job | None]],
) -> None:
    found, expected = ElementJobs({}), dict[int, Job]()
    for position, job in changes:
        if job is None:
            found.remove(position)
            expected.pop(position, None)
        else:
            found.put(position, job)
            expected[position] = job
    assert found.all == set_of(expected)
    assert all(found[position] is job for position, job in expected.items())
    ended = {p for p, job in expected.items() if job.is_finished}
    placed = {p for p, job in expected.items() if job.status.placement is not None}
    assert found.ended == ended
    assert found.waiting == set(expected) - ended - placed
    assert found.running == placed - ended
    assert found.held == {p for p, job in expected.items() if job.metadata.annotations}
