"""Putting a decision together: counts of members, and the deletions that are due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.api import names
from fairlead.api.job import JobStatus, MemberCounts
from fairlead.api.meta import Condition
from fairlead.decide.attempts.job_status import with_condition
from fairlead.decide.jobs.actions import (
    Action,
    DeleteConfigMap,
    DeletePod,
    DeletePodGroup,
    DeleteService,
)
from fairlead.decide.jobs.pods import MemberPhase, MemberPod
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import JobView


def with_running(view: JobView, status: JobStatus, now: float, reason: str) -> JobStatus:
    """Return the status with Running False (if there is such a condition, or an attempt)."""
    return with_condition(view.job, status, now, Condition(names.RUNNING, "False", reason))


def counts_of(view: JobView) -> MemberCounts:
    """Return the counts of the current attempt; members without a pod are pending."""
    counts, total = view.current.counts, view.job.member_count
    running = counts[MemberPhase.RUNNING]
    succeeded, failed = counts[MemberPhase.SUCCEEDED], counts[MemberPhase.FAILED]
    return MemberCounts(
        total=total,
        pending=max(0, total - running - succeeded - failed),
        running=running,
        succeeded=succeeded,
        failed=failed,
    )


def delete_pods(
    view: JobView, pods: Iterable[MemberPod], policy: JobsPolicy, now: float
) -> Iterator[DeletePod]:
    """Yield the deletions that are due: with grace, and by force where the node is lost.

    A pod that is being deleted on a lost node would stay for ever: nobody there confirms its end.
    """
    for member in pods:
        trouble = view.node_troubles.get(member.node)
        force = trouble is not None and trouble.is_lost(policy, now)
        if member.is_terminating and not force:
            continue
        namespace = member.pod.metadata.namespace
        yield DeletePod(namespace, member.name, member.uid, 0 if force else None)


def force_at(
    view: JobView, pods: Iterable[MemberPod], policy: JobsPolicy, now: float
) -> float | None:
    """Return when the next of these pods is to be deleted by force; None: no node is in doubt."""
    troubles = (view.node_troubles.get(member.node) for member in pods)
    times = [t.lost_at(policy) for t in troubles if t is not None and not t.is_lost(policy, now)]
    return min(times, default=None)


def sweep(view: JobView, *, keep_attempt: int) -> Iterator[Action]:
    """Yield the deletions of the peers and groups of all attempts but one.

    0 is of all, and of the service.
    """
    namespace = view.job.metadata.namespace
    for owned in view.config_maps.values():
        if owned.attempt != keep_attempt and not owned.is_terminating:
            yield DeleteConfigMap(namespace, owned.name, owned.uid)
    for owned in view.pod_groups.values():
        if owned.attempt != keep_attempt and not owned.is_terminating:
            yield DeletePodGroup(namespace, owned.name, owned.uid)
    if keep_attempt == 0:
        for owned in view.services.values():
            if not owned.is_terminating:
                yield DeleteService(namespace, owned.name, owned.uid)


def duration(seconds: float) -> str:
    """Return e.g. "4.2 s", "3m12s", "2h05m", "3d4h"."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"
