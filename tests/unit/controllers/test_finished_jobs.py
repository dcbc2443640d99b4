"""Which ended jobs are surplus."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition, OwnerReference
from fairlead.api.names import SUCCEEDED
from fairlead.api.values.times import format_micro_time
from fairlead.controllers.gangs.finished_jobs import FinishedJobs
from fairlead.testing.builders import EPOCH, make_job


def ended(name: str, at: float, namespace: str = "default") -> Job:
    job = make_job(name, namespace=namespace)
    status = replace(
        job.status, finished_at=format_micro_time(EPOCH + at),
        conditions=(Condition(SUCCEEDED, "True", "x"),),
    )  # fmt: skip
    return replace(job, status=status)


def put(jobs: FinishedJobs, job: Job) -> list[str]:
    return [name for _, name in jobs.put(job.metadata.key, None, job)]


def test_the_oldest_of_the_same_namespace_are_surplus() -> None:
    jobs = FinishedJobs(2)
    a, b, c = ended("a", 1.5), ended("b", 10.0), ended("c", 2.0)
    other = ended("other", 0.0, "elsewhere")
    assert (put(jobs, a), put(jobs, b), put(jobs, other)) == ([], [], [])
    assert put(jobs, c) == ["a"]
    assert [jobs.is_surplus(job) for job in (a, b, c, other)] == [True, False, False, False]
    assert list(jobs.put(a.metadata.key, a, None)) == []
    assert not jobs.is_surplus(c)
    assert put(jobs, ended("d", 3.0)) == ["c"]


def test_a_job_that_has_not_ended_is_none_of_them() -> None:
    jobs = FinishedJobs(1)
    running = make_job("running")
    assert put(jobs, running) == []
    assert not jobs.is_surplus(running)
    assert put(jobs, ended("a", 1.0)) == []


def test_jobs_that_go_by_themselves_are_not_counted() -> None:
    jobs = FinishedJobs(1)
    job = ended("a", 1.0)
    own = replace(job, spec=replace(job.spec, ttl_seconds_after_finished=60))
    owner = OwnerReference("example.com/v1", "Sweep", "s", "u")
    owned = replace(job, metadata=replace(job.metadata, owner_references=(owner,)))
    assert (put(jobs, own), put(jobs, owned)) == ([], [])
    assert put(jobs, ended("b", 2.0)) == []
    assert not jobs.is_surplus(own)


def test_without_a_count_all_stay() -> None:
    jobs = FinishedJobs(None)
    job = ended("a", 1.0)
    assert put(jobs, job) == []
    assert not jobs.is_surplus(job)
