"""The deletions that are due: pods, and what an attempt or the job owned beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.decide.attempts.grace import bounded_grace
from fairlead.decide.jobs.actions import (
    Action,
    DeletePod,
    DeleteShared,
    SharedPart,
)
from fairlead.decide.jobs.following.pods import MemberPod
from fairlead.decide.jobs.rendering.mpi import key_name, needs_key
from fairlead.decide.jobs.view import JobView


def delete_pods(view: JobView, pods: Iterable[MemberPod]) -> Iterator[DeletePod]:
    """Yield the deletions that are due: with bounded grace, and by force where the node is lost.

    No kubelet confirms the end of a pod on a lost node, so it would stay there. A pod that somebody
    has deleted with a longer grace period gets a shorter one.
    """
    most = view.policy.grace_period_seconds_max
    for member in pods:
        metadata = member.pod.metadata
        grace = bounded_grace(member.pod, most)
        if view.is_on_lost_node(member):
            grace = 0
        elif member.is_terminating and (metadata.deletion_grace_period_seconds or 0) <= most:
            continue
        elif member.is_terminating:
            grace = most
        yield DeletePod(metadata.namespace, member.name, member.uid, grace)


def force_at(view: JobView, pods: Iterable[MemberPod]) -> float | None:
    """Return when the next of these pods is to be deleted by force; None: no node is in doubt."""
    troubles = (view.node_troubles.get(member.node) for member in pods)
    times = (trouble.lost_at(view.policy) for trouble in troubles if trouble is not None)
    return min((at for at in times if at > view.now), default=None)


def delete_stale_objects(view: JobView, *, keep_attempt: int) -> Iterator[Action]:
    """Yield the deletions of the peers and groups of all attempts but one.

    0 deletes those of every attempt, and the service.
    """
    job, namespace = view.job, view.job.metadata.namespace
    has_keys = needs_key(job)
    for owned in view.config_maps.values():
        if owned.attempt != keep_attempt and not owned.is_terminating:
            key = key_name(job, owned.attempt) if has_keys else ""
            yield DeleteShared(SharedPart.CONFIG_MAP, namespace, owned.name, owned.uid, key)
    for owned in view.pod_groups.values():
        if owned.attempt != keep_attempt and not owned.is_terminating:
            yield DeleteShared(SharedPart.POD_GROUP, namespace, owned.name, owned.uid)
    if keep_attempt == 0:
        for owned in view.services.values():
            if not owned.is_terminating:
                yield DeleteShared(SharedPart.SERVICE, namespace, owned.name, owned.uid)
