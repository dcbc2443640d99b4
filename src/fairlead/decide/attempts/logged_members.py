"""Whose logs are archived: those of members of jobs that exist, and of no other pod.

Labels and owner references are what a pod's maker writes, so they only say which job to look at.
The job says whether it has such a member: an attempt that has begun, a role, an index within it,
and, for pods of another tool, the group that the pod is of and the node of that member's place.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job, owner_reference_of
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import label_number
from fairlead.decide.pinning import node_of
from fairlead.model.holdings.pod_owner import adopted_owner, owner_of_pod

_STARTED = ("Running", "Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class LoggedMember:
    """A member that may have written something."""

    namespace: str
    job: str
    job_uid: str
    attempt: int
    task: str


def claimed_job(pod: Pod) -> tuple[str, str]:
    """Return namespace and name of the job that a pod says it is of; the name "" for none."""
    owner = owner_reference_of(pod.metadata)
    name = owner.name if owner is not None else pod.metadata.labels.get(names.JOB_NAME, "")
    return (pod.metadata.namespace, name)


def logged_member(pod: Pod, job: Job | None) -> LoggedMember | None:
    """Return which member of the job a pod is; None when it is none, or has not started.

    `job` is the one with the key `claimed_job`, None when there is none.
    """
    labels, meta = pod.metadata.labels, pod.metadata
    attempt = label_number(labels.get(names.ATTEMPT))
    role, index = labels.get(names.ROLE, ""), label_number(labels.get(names.INDEX))
    if job is None or attempt is None or index is None or pod.status.phase not in _STARTED:
        return None
    key, uid = job.metadata.key, job.metadata.uid
    if job.spec.adopts is not None:
        is_of_job = owner_of_pod(pod) == adopted_owner(key, uid)
        placement = job.status.placement
        if placement is not None and placement.attempt == attempt:
            is_of_job = is_of_job and _is_in_its_place(pod, placement, (role, index))
    else:
        is_named = meta.name == f"{key[1]}-{attempt}-{role}-{index}"
        is_of_job = is_named and owner_of_pod(pod) == (key[0], uid, False)
    counts = {each.name: each.count for each in job.spec.roles}
    has_seat = 1 <= attempt <= job.status.attempt and index < counts.get(role, 0)
    if not (is_of_job and has_seat):
        return None
    return LoggedMember(*key, uid, attempt, f"{role}-{index}")


def _is_in_its_place(pod: Pod, placement: Placement, seat: tuple[str, int]) -> bool:
    nodes = {place.role: place.nodes for place in placement.roles}.get(seat[0], ())
    return seat[1] < len(nodes) and node_of(pod.spec) == nodes[seat[1]]
