"""What-ifs with a job in the queue that is not there, or not so: the planner's own state, and as it
was afterwards.

A waiting job holds nothing, so it goes in and out as one that was submitted and deleted does. What
such a job would leave behind is taken back: the marks of its rules about pods, and what the planner
remembers of the group that it left for the time. Only a place that is kept for a nominated job is
given back meanwhile: the verdicts that depend on it are made again when they are due.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from msgspec import structs

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.values.times import format_time
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.asks.neighbours import job_terms
from fairlead.model.gang.gangs import InvalidGang
from fairlead.model.gang.phase import Phase

#: No job can have this name: one that is asked about may have the name of one that exists.
_NAME = "~asked"


def submitted(job: Job, now: float) -> Job:
    """Return a job as it is once it was submitted now and admitted to the queue.

    One that is held, or waits for other jobs, as if it were not and did not.
    """
    meta = structs.replace(
        job.metadata, name=_NAME, uid=job.metadata.uid or _NAME, resource_version="",
        creation_timestamp=format_time(now),
    )  # fmt: skip
    spec = structs.replace(job.spec, suspend=False, after=())
    return structs.replace(job, metadata=meta, spec=spec, status=JobStatus(attempt=1))


def changed(job: Job, wanted: Job) -> Job:
    """Return a waiting job as if it had been submitted like `wanted`, with nothing decided."""
    status = structs.replace(job.status, verdict=None, nomination=None)
    return structs.replace(job, spec=wanted.spec, status=status)


@contextmanager
def supposed(state: PlacementState, job: Job) -> Generator[None]:
    """Let a job wait as it says here, in place of the one of its name; outside a transaction.

    ValueError where the one of its name does not wait.
    """
    key, cluster = job.metadata.key, state.cluster
    before, known = cluster.jobs.get(key), state.jobs.get(key)
    if before is not None and before.phase is not Phase.QUEUED:
        raise ValueError(f"job {key[1]} does not wait for a place")
    group = None if known is None else known.group
    kept = () if known is None or isinstance(known.gang, InvalidGang) else known.gang.roles
    new = [term for term in job_terms(job) if not cluster.terms.has(term)]
    for role in kept:
        cluster.fits.pin(role.member)  # what is known of its nodes stays
    try:
        cluster.job_changed(job)
        yield
    finally:
        if before is None:
            cluster.job_deleted(key)
        else:
            cluster.job_changed(before.job)
        for term in new:
            cluster.ledger.mark_pods(term, is_known=False)
        if known is not None:
            state.recall(known, group)
        for role in kept:
            cluster.fits.unpin(role.member)
