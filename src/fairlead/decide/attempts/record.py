"""The record of an attempt, as `status.attempts` holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from fairlead.api.jobs.attempt import Straggler
from fairlead.api.jobs.job import Attempt, Cause, Job, JobStatus, MemberCounts, Progress
from fairlead.api.jobs.placement import Placement
from fairlead.api.jobs.preflight import PreflightRecord, PreflightSuite
from fairlead.api.kubernetes.core import Pod
from fairlead.api.values.bounds import ATTEMPTS_MAX
from fairlead.api.values.times import format_micro_time, parse_time
from fairlead.decide.attempts.backoff import last_attempts
from fairlead.decide.attempts.end_reason import EndReason, end_of
from fairlead.decide.attempts.seats import seats
from fairlead.decide.words import plural


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ends. `nodes_lost` is sorted; `pods_version` is the newest resourceVersion
    among the job's pods.
    """

    reason: EndReason
    message: str = ""
    cause: Cause | None = None
    exit_code: int | None = None
    #: ROLE-INDEX.
    member: str = ""
    nodes_lost: tuple[str, ...] = ()
    pods_version: str = ""


#: Raise it when pods of a new version and what is left of an attempt of an older one do not fit.
MEMBERS_FORM = 3


def template_digest(job: Job) -> str:
    """Return a digest of what pods are made from, as far as the read model knows it."""
    parts = (MEMBERS_FORM, job.spec.roles, job.spec.checkpoint)
    data = msgspec.json.encode(parts, order="sorted")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


#: So many attempts in a row end because nodes fail the test before the program; then it starts.
PREFLIGHT_FAILURES_MAX = 3
_OF_PREFLIGHT = (EndReason.PREFLIGHT_FAILED, EndReason.PREFLIGHT_ERROR)


def preflight_of(job: Job) -> PreflightRecord | None:
    """Return the test before the program of the next attempt; None: there is none.

    Of attempts that all ended by it, there are `PREFLIGHT_FAILURES_MAX`, and none after one in
    which the test did not work: it must not keep a job from running.
    """
    suite = job.spec.preflight
    if suite is None or suite is PreflightSuite.NONE or job.spec.adopts is not None:
        return None
    ended = last_attempts(job.status.attempts, _OF_PREFLIGHT.__contains__)
    is_broken = any(end_of(each) is EndReason.PREFLIGHT_ERROR for each in ended)
    if is_broken or len(ended) >= PREFLIGHT_FAILURES_MAX:
        return None
    return PreflightRecord(suite)


def new_record(job: Job, now: float, placement: Placement | None = None) -> Attempt:
    """Return the open record with which the job's current attempt begins.

    `placement` is the one that it begins with, by default that of the status. The digest is of jobs
    of ours only: pods of other tools are not made from the template.
    """
    progress, place = job.status.progress, placement or job.status.placement
    return Attempt(
        number=job.status.attempt,
        begun_at=format_micro_time(now),
        resumed_from_step=progress.checkpoint_step if progress else None,
        template_digest=template_digest(job) if job.spec.adopts is None else "",
        team=place.team if place is not None else "",
        held=place.held if place is not None else (),
        sizes=place.sizes if place is not None and job.is_elastic else {},
        preflight=preflight_of(job),
    )


def closed_record(
    record: Attempt, end: End, now: float, progress: Progress | None = None
) -> Attempt:
    """Return the record, closed now.

    `progress` is the job's: a checkpoint of an earlier attempt is none of this one.
    """
    saved = None
    if progress is not None and record.begun_at:
        at = progress.saved_at
        saved = at if at and parse_time(at) > parse_time(record.begun_at) else None
    return replace(
        record,
        saved_at=saved,
        finished_at=format_micro_time(now),
        cause=end.cause,
        reason=end.reason.value,
        message=end.message,
        exit_code=end.exit_code,
        member=end.member,
        nodes_lost=end.nodes_lost,
        pods_version=end.pods_version,
    )


def with_attempt(status: JobStatus, attempt: Attempt) -> JobStatus:
    """Return the status with this record in the place of its number, or appended."""
    kept = tuple(a for a in status.attempts if a.number != attempt.number)
    return replace(status, attempts=(*kept, attempt)[-ATTEMPTS_MAX:])


def newest_version(pods: Iterable[Pod]) -> str:
    """Return the newest resourceVersion among these pods; "" without any."""
    newest = max((pod.metadata.version for pod in pods), default=0)
    return str(newest) if newest else ""


def member_counts(total: int, *, running: int, succeeded: int, failed: int) -> MemberCounts:
    """Return the counts of an attempt's members; those in no other state are pending."""
    pending = max(0, total - running - succeeded - failed)
    return MemberCounts(total, pending, running, succeeded, failed)


def is_in_test(attempt: Attempt) -> bool:
    """True while the gate of an attempt has no outcome."""
    return attempt.preflight is not None and attempt.preflight.outcome is None


def checking_words(job: Job) -> str:
    """Return that the nodes of a job are being tested; "" where they are not."""
    record, placement = job.status.current_attempt, job.status.placement
    if record is None or placement is None or record.finished_at or record.started_at:
        return ""
    if not is_in_test(record):
        return ""
    nodes = len({seat.node for seat in seats(job, placement)})
    how = "and the network between them " if _is_network(record) and nodes > 1 else ""
    return f"checking {plural(nodes, 'node')} {how}before the start"


def tested_words(record: Attempt) -> str:
    """Return what the test before the program of an attempt found; "" for none."""
    found = record.preflight
    if found is None or found.outcome is None:
        return ""
    text = f"{found.outcome.value} before the start ({found.suite.value.lower()})"
    return f"{text}: {found.message}" if found.message else text


def straggler_words(found: Straggler) -> str:
    """Return by how much a straggler slows its gang."""
    own, middle = (
        f"{each / 1e6:.3g} s" for each in (found.microseconds, found.median_microseconds)
    )
    where = f" on {found.node}" if found.node else ""
    text = (
        f"{found.member}{where} needs {own} for its own part of a step, the median of "
        f"{found.compared} is {middle}: it slows the gang by up to {found.percent}%"
    )
    return f"{text}; its node is suspected until it is tested" if found.is_suspected else text


def _is_network(record: Attempt) -> bool:
    return record.preflight is not None and record.preflight.suite is PreflightSuite.NETWORK
