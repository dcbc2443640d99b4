"""Jobs that wait for themselves by way of others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.after import ALL_ELEMENTS, After
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.decide.answers.explain import explain
from fairlead.decide.jobs.admitting.dependencies import VISITED_MAX, find_cycle
from fairlead.decide.jobs.admitting.gate import CYCLE_SHOWN_MAX, cycle_verdicts
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.testing.builders import EPOCH, make_job, make_nodes


def waiting(name: str, *after: str, **status: object) -> Job:
    job = make_job(name, attempt=0)
    spec = replace(job.spec, after=tuple(map(After, after)))
    return replace(job, spec=spec, status=replace(job.status, **status))  # type: ignore[arg-type]


def cycle_of(name: str, *jobs: Job) -> tuple[str, ...]:
    by_key = {job.metadata.key: job for job in jobs}
    return find_cycle(by_key["default", name], by_key.get)


RING = (waiting("a", "x", "b"), waiting("b", "c"), waiting("c", "gone", "a"))


@pytest.mark.parametrize(
    ("jobs", "path"),
    [
        (RING, ("a", "b", "c", "a")),
        ((waiting("a", "b"), waiting("b")), ()),
        ((waiting("a", "b"), waiting("b", "c"), waiting("c", "b")), ()),
        ((waiting("a", "b", "c"), waiting("b", "d"), waiting("c", "d"), waiting("d", "a")),
         ("a", "b", "d", "a")),
        ((waiting("a", "b"), waiting("b", "a", attempt=1)), ()),
        ((waiting("a", "b"), waiting("b", "a", conditions=(Condition("Failed", "True"),))), ()),
    ],
)  # fmt: skip
def test_a_ring_is_one_of_jobs_that_have_neither_begun_nor_ended(
    jobs: tuple[Job, ...], path: tuple[str, ...]
) -> None:
    assert cycle_of("a", *jobs) == path


def test_a_ring_by_way_of_one_of_several_alternatives_is_none() -> None:
    def either(name: str, *others: str) -> Job:
        job = waiting(name)
        after = tuple(After(other, alternative=True) for other in others)
        return replace(job, spec=replace(job.spec, after=after))

    assert cycle_of("a", either("a", "b", "c"), waiting("b", "a"), waiting("c")) == ()
    assert cycle_of("b", either("a", "b", "c"), waiting("b", "a"), waiting("c")) == ()
    assert cycle_of("a", either("a", "b"), waiting("b", "a")) == ("a", "b", "a")


def test_a_ring_that_is_longer_than_what_is_looked_at_is_not_found() -> None:
    for count, is_found in ((VISITED_MAX, True), (VISITED_MAX + 1, False)):
        jobs = [waiting(f"j{i}", f"j{(i + 1) % count}") for i in range(count)]
        assert bool(cycle_of("j0", *jobs)) is is_found


def test_a_long_path_is_shown_up_to_a_bound() -> None:
    [verdict] = cycle_verdicts([f"j{i}" for i in range(100)])
    assert str(verdict.facts["path"]).count("->") == CYCLE_SHOWN_MAX
    assert str(verdict.facts["path"]).endswith("j10 -> ... -> j99")


def test_the_planner_explains_a_ring_also_beside_arrays() -> None:
    first, *others = RING
    array = replace(first.spec.after[0], job="sweep", elements=ALL_ELEMENTS)
    mixed = replace(first, spec=replace(first.spec, after=(array, *first.spec.after[1:])))
    for job in (first, mixed):
        state = PlacementState.of(make_nodes(1), [job, *others])
        explanation = explain(state, ("default", "a"), EPOCH)
        assert explanation is not None
        assert explanation.verdict.reason is Reason.DEPENDENCY_CYCLE
        assert explanation.verdict.outcome is Outcome.BLOCKED
        assert explanation.verdict.facts["path"] == "a -> b -> c -> a"
