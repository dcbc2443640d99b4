"""Elements of a sweep that do worse than the others stop, and are no failures."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace
from tests.unit.decide.test_arrays import EPOCH, POLICY, array, element, kinds, written

from fairlead.api import names
from fairlead.api.jobs.early_stop import (
    SAMPLE_MAX,
    EarlyStop,
    EarlyStopRule,
    EarlyStopRung,
    MetricGoal,
)
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.run_facts import RunFacts, RunMetric
from fairlead.api.meta import Condition
from fairlead.api.validation.validate_array import validate_array_update
from fairlead.api.values.indices import parse_indices
from fairlead.decide.arrays import ArrayView, CancelElement, ElementJobs, decide_array
from fairlead.decide.arrays.early_stop import folded, rung_steps, worse_than_others
from fairlead.model.element_sets import decode_set

MEDIAN = EarlyStop("loss", first_step=10)
HALVING = EarlyStop("loss", EarlyStopRule.HALVING, first_step=10, factor=2)


def at(index: int, *course: tuple[int, float], state: str = "Running") -> Job:
    """An element with a course of (step, loss)."""
    steps, values = zip(*course, strict=True)
    metric = RunMetric(values[-1], steps[-1], len(steps), min(values), max(values), steps, values)
    job = element(index, state)
    return replace(job, status=replace(job.status, run=RunFacts(metrics={"loss": metric})))


def cancelled(job: Job) -> Job:
    ended = (Condition(names.FAILED, "True", "Cancelled"),)
    return replace(job, status=replace(job.status, state="Cancelled", conditions=ended))


def level(index: int, loss: float, step: int = 10, state: str = "Running") -> Job:
    return at(index, (step // 2, loss), (step, loss), state=state)


def test_the_median_rule_compares_the_best_value_with_the_means_of_the_others() -> None:
    jobs = {index: level(index, float(index)) for index in range(5)}
    assert worse_than_others(MEDIAN, (), jobs) == [3, 4]
    recovered = jobs | {4: at(4, (5, 9.0), (10, 0.5))}
    assert worse_than_others(MEDIAN, (), recovered) == [3], "its best value counts"
    assert worse_than_others(MEDIAN, (), {i: level(i, 1.0) for i in range(5)}) == []


def test_successive_halving_lets_the_best_part_go_on() -> None:
    jobs = {index: level(index, float(index)) for index in range(6)}
    assert worse_than_others(HALVING, (), jobs) == [3, 4, 5]
    assert worse_than_others(replace(HALVING, factor=3), (), jobs) == [2, 3, 4, 5]
    up = replace(HALVING, goal=MetricGoal.MAXIMIZE)
    assert worse_than_others(up, (), jobs) == [0, 1, 2]


def test_none_stops_before_the_first_step_without_a_course_or_among_too_few() -> None:
    early = {index: level(index, float(index), step=9) for index in range(9)}
    assert worse_than_others(MEDIAN, (), early) == []
    unknown = {**early, 8: element(8, "Running")}
    assert worse_than_others(MEDIAN, (), unknown) == []
    few = {index: level(index, float(index)) for index in range(3)}
    assert worse_than_others(MEDIAN, (), few) == []
    infinite = {index: level(index, 1e308 * 10) for index in range(5)}
    assert worse_than_others(MEDIAN, (), infinite) == []


def test_an_element_is_judged_at_the_last_step_that_it_has_reached() -> None:
    assert rung_steps(HALVING)[:4] == [10, 20, 40, 80]
    peers = {index: level(index, 1.0) for index in range(4)}
    ahead = at(9, (10, 5.0), (20, 0.1))
    assert worse_than_others(HALVING, (), {**peers, 9: ahead}) == [], "none has come so far"
    rung = EarlyStopRung(20, (5, 6, 7), (0.01, 0.02, 0.03))
    assert worse_than_others(HALVING, (rung,), {**peers, 9: ahead}) == [9]


def test_values_without_steps_are_counted() -> None:
    jobs = {index: level(index, float(index)) for index in range(5)}
    counted = {
        index: replace(job, status=replace(job.status, run=RunFacts(metrics={
            "loss": replace(job.status.run.metrics["loss"], step=None, count=10)
        }))) for index, job in jobs.items() if job.status.run is not None
    }  # fmt: skip
    assert worse_than_others(MEDIAN, (), counted) == [3, 4]


def test_samples_of_ended_elements_are_bounded_and_depend_on_no_order() -> None:
    jobs = {index: level(index, float(index), step=100) for index in range(500)}
    at_once = folded(MEDIAN, (), jobs)
    assert [(each.step, len(each.indices)) for each in at_once] == [(90, SAMPLE_MAX)]
    order, known = list(jobs), ()
    random.Random(1).shuffle(order)
    for start in range(0, 500, 7):
        known = folded(MEDIAN, known, {index: jobs[index] for index in order[start : start + 7]})
    assert known == at_once
    assert folded(MEDIAN, known, {order[-1]: jobs[order[-1]]}) == known


def view(found: JobArray, jobs: dict[int, Job], **more: Any) -> ArrayView:
    indices, status = parse_indices(found.spec.indices), found.status
    return ArrayView(
        found, indices, decode_set(status.finished, indices), decode_set(status.failed, indices),
        ElementJobs(jobs), POLICY, EPOCH, stopped=decode_set(status.stopped, indices), **more,
    )  # fmt: skip


def test_what_stops_is_written_first_then_cancelled_and_is_no_failure() -> None:
    jobs = {index: level(index, float(index)) for index in range(4)}
    first = decide_array(view(array("0-3", early_stop=MEDIAN), jobs))
    status = written(first)
    assert (status.stopped, status.elements.stopped) == ("2-3", 0)
    assert kinds(first) == ["WriteArrayStatus"]
    seen = array("0-3", early_stop=MEDIAN, status=status)
    then = decide_array(view(seen, jobs))
    stops = [each for each in then.actions if isinstance(each, CancelElement)]
    assert [each.job.metadata.name for each in stops] == ["sweep-2", "sweep-3"]
    assert stops[0].stopped_early == "stopped early (Median): loss = 2 is behind other elements"
    ended = {0: level(0, 0.0, state="Succeeded"), 1: level(1, 1.0, state="Succeeded"),
             2: cancelled(jobs[2])}  # fmt: skip
    last = written(decide_array(view(seen, ended)))  # the job of the fourth is gone
    counts = last.elements
    assert (counts.succeeded, counts.failed, counts.stopped) == (2, 0, 2)
    assert (last.finished, last.failed, last.stopped, last.state) == ("0-3", "", "2-3", "Succeeded")
    assert last.conditions[-1].message == "2 elements succeeded, 2 stopped early"
    assert last.rungs[0].indices == (0, 1, 2)


def test_an_element_that_ended_before_it_was_stopped_counts_as_it_ended() -> None:
    jobs = {index: level(index, float(index)) for index in range(4)}
    status = written(decide_array(view(array("0-3", early_stop=MEDIAN), jobs)))
    seen = array("0-3", early_stop=MEDIAN, status=status)
    ended = {0: level(0, 0.0, state="Succeeded"), 1: level(1, 1.0, state="Failed"),
             2: level(2, 2.0, state="Succeeded"), 3: level(3, 3.0, state="Failed")}  # fmt: skip
    last = written(decide_array(view(seen, ended)))
    assert (last.failed, last.stopped, last.elements.succeeded) == ("1,3", "", 2)


def test_nothing_stops_in_an_array_that_is_held_or_has_no_rule() -> None:
    jobs = {index: level(index, float(index)) for index in range(4)}
    assert written(decide_array(view(array("0-3"), jobs))).stopped == ""
    held = array("0-3", early_stop=MEDIAN, suspend=True)
    assert written(decide_array(view(held, jobs))).stopped == ""


def test_the_rule_of_an_array_does_not_change() -> None:
    before = {"spec": {"earlyStop": {"metric": "loss"}}}
    [found] = validate_array_update(before, {"spec": {"earlyStop": {"metric": "acc"}}})
    assert found.field == "spec.earlyStop"
