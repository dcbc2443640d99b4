"""How long jobs run, learned from those that have ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.times import format_time
from fairlead.decide.run_times import SAMPLES_MAX, SAMPLES_MIN, Likeness, RunTimes, run_seconds
from fairlead.model.cluster import ClusterState, JobEntry
from fairlead.testing.builders import EPOCH, make_job, make_placement

NEW_YEAR = 365 * 86_400


def attempt(number: int, start: float, end: float | None, *, resumed: int | None = None) -> Attempt:
    finished_at = None if end is None else format_time(EPOCH + end)
    return Attempt(
        number, started_at=format_time(EPOCH + start), finished_at=finished_at,
        resumed_from_step=resumed,
    )  # fmt: skip


def of(user: str, job: Job) -> Job:
    return replace(job, metadata=replace(job.metadata, annotations={SUBMITTED_BY: user}))


def ended(name: str, seconds: float, *, at: float = 0.0, user: str = "ana", gpus: int = 8) -> Job:
    conditions = (Condition(type="Succeeded", status="True"),)
    finished_at = format_time(EPOCH + at + seconds)
    status = {"attempts": (attempt(1, at, at + seconds),), "finished_at": finished_at}
    return of(user, make_job(name, gpus=gpus, conditions=conditions, status=status))


def many(name: str, seconds: float, *, count: int = SAMPLES_MIN, **more: object) -> list[Job]:
    """Jobs that ran for so long, half of them a second less and half of them a second more."""
    return [
        ended(f"{name}-{seconds:g}-{n}", seconds + (-1) ** n, **more)  # type: ignore[arg-type]
        for n in range(count)
    ]


def entry(name: str, *, user: str = "ana", gpus: int = 8) -> JobEntry:
    job = of(user, make_job(name, gpus=gpus))
    return ClusterState.of(jobs=[job]).jobs[job.metadata.key]


def times(jobs: list[Job]) -> RunTimes:
    return RunTimes.of(ClusterState.of(jobs=jobs).jobs.values())


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (entry("train-99"), 100.0),  # user, name and size
        (entry("train-99", gpus=4), 100.0),  # user and name
        (entry("other", gpus=2), 5000.0),  # user and size
        (entry("train-99", user="ben", gpus=2), 5000.0),  # size alone
    ],
)
def test_the_narrowest_class_with_enough_past_jobs_says_it(asked: JobEntry, seconds: float) -> None:
    past = [*many("train", 100.0), *many("sweep", 5000.0, gpus=2)]
    assert times(past).remaining(asked, 0.0, 0.5) == pytest.approx(seconds)


def test_a_name_is_what_comes_before_its_number() -> None:
    past = [*many("train", 100.0), *many("train2-seed", 900.0, user="ben")]
    found = times(past)
    assert found.remaining(entry("train-7b-lr3"), 0.0, 0.5) == pytest.approx(100.0)
    assert found.remaining(entry("train", user="ben"), 0.0, 0.5) == pytest.approx(900.0)


def test_a_job_that_has_run_for_long_is_one_of_the_long_ones() -> None:
    found = times([*many("train", 100.0), *many("train", 1000.0, at=50.0)])
    assert found.remaining(entry("train-99"), 500.0, 0.5) == pytest.approx(500.0)


def test_beyond_all_past_jobs_the_run_doubles_with_a_chance_of_one_half() -> None:
    found = times(many("train", 100.0))
    assert found.remaining(entry("train-99"), 400.0, 0.5) == pytest.approx(400.0)
    assert found.remaining(entry("train-99"), 400.0, 0.75) == pytest.approx(1200.0)


def test_a_quantile_is_where_so_many_of_the_next_runs_are_expected_below() -> None:
    found = times([ended(f"train-{n}", 10.0 * (n + 1)) for n in range(SAMPLES_MIN)])
    at = [found.remaining(entry("train-99"), 0.0, q) for q in (0.001, 1 / 21, 0.5, 20 / 21, 0.999)]
    assert at == pytest.approx([10.0, 10.0, 105.0, 200.0, 200.0])


def test_the_latest_past_jobs_count() -> None:
    old = many("train", 5000.0, count=SAMPLES_MAX)
    new = many("train", 100.0, count=SAMPLES_MAX, at=NEW_YEAR)
    found = times([*new, *old])
    assert found.count == 2 * SAMPLES_MAX
    assert found.remaining(entry("train-99"), 0.0, 0.5) == pytest.approx(100.0)


def test_few_past_jobs_and_those_that_run_say_nothing() -> None:
    running = make_job("train-9", status={"attempts": (attempt(1, 0.0, None),)})
    never_ran = make_job("n", conditions=(Condition(type="Failed", status="True"),))
    jobs = [*many("train", 100.0, count=SAMPLES_MIN - 1), running, never_ran]
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
        [*many("train", 100.0, count=100), *many("train", 1000.0), placed("train-99", start=0.0)]
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
    jobs = [*many("train", 100.0), *many("train", 900.0, count=30), *many("sweep", 50.0, user="b")]
    asked = Likeness("default", "ana", "train", 8), Likeness("default", "b", "sweep", 8, 70.0)
    for step, job in enumerate([*jobs, *jobs[::2]]):
        if job.metadata.key in cluster.jobs:
            cluster.job_deleted(job.metadata.key)
        else:
            cluster.job_changed(make_job(job.metadata.name, placement=make_placement(["a"])))
            cluster.job_changed(job)
        if step % 7 == 0:
            anew = RunTimes.of(cluster.jobs.values())
            assert [found.predicted(each) for each in asked] == [
                anew.predicted(each) for each in asked
            ]
            assert (found.count, found.ends(EPOCH)) == (anew.count, anew.ends(EPOCH))
    assert found.predicted(asked[0]) is not None


def test_a_prediction_follows_the_first_past_jobs_of_a_narrower_class() -> None:
    """They come after it was made from a wider class, which they do not belong to."""
    cluster, found = ClusterState(), RunTimes()
    cluster.on_job_change(found.put)
    for job in many("other", 900.0, user="b"):
        cluster.job_changed(job)
    asked = Likeness("default", "ana", "train", 8)
    assert found.predicted(asked) == pytest.approx(900.0, abs=2.0)
    for job in many("train", 100.0, gpus=4):
        cluster.job_changed(job)
    assert found.predicted(asked) == RunTimes.of(cluster.jobs.values()).predicted(asked)
    assert found.predicted(asked) == pytest.approx(100.0, abs=2.0)
