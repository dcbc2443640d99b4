"""How long jobs run, learned from those that have ended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.placement.waiting.run_times import (
    SAMPLES_MAX,
    SAMPLES_MIN,
    Likeness,
    RunTimes,
    run_seconds,
)
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_placement

NEW_YEAR = 365 * 86_400


def attempt(number: int, start: float, end: float | None, *, resumed: int | None = None) -> Attempt:
    finished_at = None if end is None else format_time(EPOCH + end)
    return Attempt(
        number, started_at=format_time(EPOCH + start), finished_at=finished_at,
        resumed_from_step=resumed, reason="" if end is None else "Succeeded",
    )  # fmt: skip


def of(user: str, job: Job) -> Job:
    return replace(job, metadata=replace(job.metadata, annotations={SUBMITTED_BY: user}))


def ended(name: str, seconds: float, *, at: float = 0.0, user: str = "ana", **more: Any) -> Job:
    conditions = (Condition(type="Succeeded", status="True"),)
    finished_at = format_time(EPOCH + at + seconds)
    status = {"attempts": (attempt(1, at, at + seconds),), "finished_at": finished_at}
    return of(user, make_job(name, conditions=conditions, status=status, **more))


def many(name: str, seconds: float, *, samples: int = SAMPLES_MIN, **more: Any) -> list[Job]:
    """Jobs that ran for so long, half of them a second less and half of them a second more."""
    return [ended(f"{name}-{seconds:g}-{n}", seconds + (-1) ** n, **more) for n in range(samples)]


def cancelled(job: Job) -> Job:
    [run] = job.status.attempts
    return replace(job, status=replace(job.status, attempts=(replace(run, reason="Cancelled"),)))


def asked(name: str, *, user: str = "ana", elapsed: float = 0.0, **more: Any) -> Likeness:
    job = of(user, make_job(name, **more))
    return Likeness.of(ClusterState.of(jobs=[job]).jobs[job.metadata.key], elapsed=elapsed)


def times(jobs: list[Job]) -> RunTimes:
    return RunTimes.of(ClusterState.of(jobs=jobs).jobs.values())


HOUR, TEN_MINUTES = {"time_limit_seconds": 3600}, {"time_limit_seconds": 600}


@pytest.mark.parametrize(
    ("likeness", "is_alike"),
    [
        (asked("train-99", **HOUR), True),
        (asked("train-99", time_limit_seconds=4000, gpus=12), True),  # up to a factor of two
        (asked("sweep-20", **HOUR), False),
        (asked("train-99", user="ben", **HOUR), False),
        (asked("train-99", gpus=1, **HOUR), False),
        (asked("train-99", gpus=0, **HOUR), False),
        (asked("train-99", count=8, gpus=1, **HOUR), False),
        (asked("train-99", **TEN_MINUTES), False),
        (asked("train-99"), False),  # without a limit
    ],
)
def test_only_past_jobs_of_like_user_name_size_and_limit_count(
    likeness: Likeness, *, is_alike: bool
) -> None:
    found = times(many("train", 100.0, **HOUR))
    assert found.is_enough
    assert found.remaining(likeness, 0.0, 0.5) == (pytest.approx(100.0) if is_alike else None)
    assert found.count(likeness) == (SAMPLES_MIN if is_alike else 0)
    assert (found.predicted(likeness) is not None) is is_alike


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("Succeeded", True), ("TimeLimit", True), ("Crashed", True), ("ExitCode", True),
        ("Cancelled", False), ("Suspended", False), ("Preempted", False), ("NodeLost", False),
        ("Drained", False), ("Killed", False), ("OfANewerVersion", False),
    ],
)  # fmt: skip
def test_past_jobs_that_others_ended_predict_nothing(reason: str, *, counts: bool) -> None:
    """They would have run for longer: for how long is not known."""
    jobs = [
        replace(job, status=replace(job.status, attempts=(replace(run, reason=reason),)))
        for job in many("train", 40.0)
        for run in job.status.attempts
    ]
    assert times(jobs).is_enough is counts


def test_what_a_cancelled_run_would_count_goes_to_those_that_ran_for_longer() -> None:
    """Of four runs the second one was cancelled: two and its part are beyond it."""
    lengths = ((10.0, True), (20.0, False), (30.0, True), (40.0, True))
    runs = [(seconds, is_whole) for seconds, is_whole in lengths for _ in range(SAMPLES_MIN)]
    jobs = [
        cancelled(ended(f"train-{n}", seconds)) if not is_whole else ended(f"train-{n}", seconds)
        for n, (seconds, is_whole) in enumerate(runs)
    ]
    found = times(jobs)
    assert found.count(asked("train-99")) == 3 * SAMPLES_MIN
    total = 4 * SAMPLES_MIN + 1
    beyond = (total - SAMPLES_MIN) / total
    share = SAMPLES_MIN * beyond / (2 * SAMPLES_MIN + 1)
    for quantile, seconds in (
        (SAMPLES_MIN / total, 10.0), (SAMPLES_MIN / total + share, 30.0),
        (SAMPLES_MIN / total + 2 * share, 40.0),
    ):  # fmt: skip
        assert found.remaining(asked("train-99"), 0.0, quantile) == pytest.approx(seconds)
    whole = [ended(f"train-{n}", seconds) for n, (seconds, _) in enumerate(runs)]
    early = SAMPLES_MIN / total + share / 2
    assert times(whole).remaining(asked("train-99"), 0.0, early) == pytest.approx(20.0)


def test_a_name_is_what_comes_before_its_number() -> None:
    past = [*many("train", 100.0), *many("train2-seed", 900.0, user="ben")]
    found = times(past)
    assert found.remaining(asked("train-7b-lr3"), 0.0, 0.5) == pytest.approx(100.0)
    assert found.remaining(asked("train", user="ben"), 0.0, 0.5) == pytest.approx(900.0)


def test_a_job_that_has_run_for_long_is_one_of_the_long_ones() -> None:
    found = times([*many("train", 100.0), *many("train", 1000.0, at=50.0)])
    assert found.remaining(asked("train-99"), 500.0, 0.5) == pytest.approx(500.0)


def test_beyond_all_past_jobs_the_run_doubles_with_a_chance_of_one_half() -> None:
    found = times(many("train", 100.0))
    assert found.remaining(asked("train-99"), 400.0, 0.5) == pytest.approx(400.0)
    assert found.remaining(asked("train-99"), 400.0, 0.75) == pytest.approx(1200.0)


def test_a_quantile_is_where_so_many_of_the_next_runs_are_expected_below() -> None:
    found = times([ended(f"train-{n}", 10.0 * (n + 1)) for n in range(SAMPLES_MIN)])
    spans = SAMPLES_MIN + 1
    quantiles = (0.5 / spans, 1 / spans, 0.5, SAMPLES_MIN / spans, (SAMPLES_MIN + 0.5) / spans)
    at = [found.remaining(asked("train-99"), 0.0, q) for q in quantiles]
    assert at == pytest.approx([5.0, 10.0, 5.0 * spans, 10.0 * SAMPLES_MIN, 20.0 * SAMPLES_MIN])


def test_the_latest_past_jobs_count() -> None:
    old = many("train", 5000.0, samples=SAMPLES_MAX)
    new = many("train", 100.0, samples=SAMPLES_MAX, at=NEW_YEAR)
    found = times([*new, *old])
    assert found.count(asked("train-99")) == SAMPLES_MAX
    assert found.remaining(asked("train-99"), 0.0, 0.5) == pytest.approx(100.0)


def test_jobs_of_which_the_latest_were_all_cancelled_are_not_predicted() -> None:
    late = [cancelled(job) for job in many("train", 40.0, samples=SAMPLES_MAX, at=NEW_YEAR)]
    assert times(many("train", 5000.0)).is_enough
    assert not times([*many("train", 5000.0), *late]).is_enough


def test_few_past_jobs_and_those_that_run_say_nothing() -> None:
    running = make_job("train-9", status={"attempts": (attempt(1, 0.0, None),)})
    never_ran = make_job("n", conditions=(Condition(type="Failed", status="True"),))
    jobs = [*many("train", 100.0, samples=SAMPLES_MIN - 1), running, never_ran]
    assert not times(jobs).is_enough
    assert times([*jobs, ended("train-77", 5.0)]).is_enough


def test_an_attempt_carries_the_time_of_those_whose_checkpoint_it_goes_on_with() -> None:
    first, second = attempt(1, 0.0, 100.0), attempt(2, 200.0, 250.0)
    third = attempt(3, 300.0, None, resumed=40)
    job = make_job("a", status={"attempts": (first, second, third)})
    assert run_seconds(job, EPOCH + 310) == 60.0  # the second began from the start
    assert run_seconds(job, None) == 50.0
    assert run_seconds(make_job("b"), EPOCH) == 0.0


def placed(name: str, *, start: float, user: str = "ana") -> Job:
    """A job that runs since an instant, as far as its objects say."""
    job = of(user, make_job(name, placement=make_placement(["a"])))
    return replace(job, status=replace(job.status, attempt=1, attempts=(attempt(1, start, None),)))


def test_an_exceeded_prediction_is_made_again_from_those_that_ran_for_longer() -> None:
    found = times(
        [*many("train", 100.0, samples=100), *many("train", 1000.0), placed("train-99", start=0.0)]
    )
    [(first, key)] = found.ends(EPOCH)
    assert (first, key) == (pytest.approx(EPOCH + 100, abs=1.1), ("default", "train-99"))
    assert found.ends(first - 2.0) == [(first, key)]
    instants = [EPOCH]
    while instants[-1] < EPOCH + 50_000:
        [(end, _)] = found.ends(instants[-1])
        assert end > instants[-1]
        instants.append(end)
    assert pytest.approx(EPOCH + 1000, abs=1.1) in instants
    assert len(instants) < 30


def test_the_end_of_an_attempt_that_goes_on_from_a_checkpoint_counts_what_it_ran_before() -> None:
    attempts = (attempt(1, 0.0, 60.0), attempt(2, 200.0, None, resumed=40))
    job = placed("train-99", start=0.0)
    job = replace(job, status=replace(job.status, attempt=2, attempts=attempts))
    [(end, _)] = times([*many("train", 100.0), job]).ends(EPOCH + 200)
    assert end == pytest.approx(EPOCH + 240, abs=1.1)


def test_a_job_that_has_a_limit_or_no_nodes_has_no_predicted_end() -> None:
    running = placed("train-99", start=0.0)
    limited = replace(running, spec=replace(running.spec, time_limit_seconds=60))
    waiting = of("ana", make_job("train-99"))
    over = ended("train-99", 100.0)
    past = many("train", 100.0)
    assert times([*past, running]).ends(EPOCH)
    for job in (limited, waiting, over):
        assert times([*past, job]).ends(EPOCH) == []
    assert times([*past[1:], running]).ends(EPOCH) == []  # too few tell something


def test_the_version_rises_with_each_change_of_what_runs_or_has_ended() -> None:
    cluster, found = ClusterState(), RunTimes()
    cluster.on_job_change(found.put)
    running = placed("train-9", start=0.0)
    later = placed("train-9", start=60.0)
    for job, rises in (
        (make_job("train-9"), False), (running, True), (running, False), (later, True),
        (ended("train-9", 100.0), True), (ended("train-9", 100.0), False),
    ):  # fmt: skip
        before = found.version
        cluster.job_changed(job)
        assert (found.version > before) is rises, job
    for job in (running, ended("train-9", 100.0)):
        cluster.job_changed(job)
        before = found.version
        cluster.job_deleted(job.metadata.key)
        assert found.version > before


def test_what_is_followed_is_what_is_learned_at_once() -> None:
    """Jobs come, end, change and go; predictions follow, as if all were read anew."""
    cluster, found = ClusterState(), RunTimes()
    cluster.on_job_change(found.put)
    jobs = [
        *many("train", 100.0),
        *many("train", 900.0, samples=30),
        *many("sweep", 50.0, user="b"),
    ]
    likenesses = asked("train"), asked("sweep", user="b", elapsed=70.0)
    for step, job in enumerate([*jobs, *jobs[::2]]):
        if job.metadata.key in cluster.jobs:
            cluster.job_deleted(job.metadata.key)
        else:
            cluster.job_changed(make_job(job.metadata.name, placement=make_placement(["a"])))
            cluster.job_changed(job)
        if step % 7 == 0:
            anew = RunTimes.of(cluster.jobs.values())
            for each in likenesses:
                assert found.predicted(each) == anew.predicted(each)
                assert found.count(each) == anew.count(each)
            assert found.ends(EPOCH) == anew.ends(EPOCH)
    assert found.predicted(likenesses[0]) is not None
