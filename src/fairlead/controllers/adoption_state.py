"""What the adoption controller remembers between events, and the one write that releases a pod.

All of it follows from the mirrors, or can be found out again, and is built anew after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.core import Node, Pod
from fairlead.api.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.resources import Resource
from fairlead.decide.adoption.actions import ReleaseMember
from fairlead.decide.adoption.grouping import Group, Membership, alone, is_gated, membership_of
from fairlead.decide.adoption.members import Member
from fairlead.decide.adoption.view import Reading
from fairlead.decide.pinning import pinned_affinity
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.mirror import Mirror

#: Groups up to this size are looked at with every event.
_EAGER_MEMBERS_MAX = 64
_LOOK_SECONDS_PER_MEMBER = 0.0002
_LOOK_SECONDS_MAX = 1.0


@dataclass(slots=True)
class GroupBook:
    """What belongs to one group besides its job, kept from its first sign to its last."""

    group: Group | None = None
    #: By name of the pod.
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    reading: Reading | None = None
    idle_since: float | None = None
    counts_written_at: float = 0.0

    def note_idle(self, now: float) -> None:
        """Take note whether anybody of the group is alive."""
        if any(not member.pod.is_terminal for member in self.members.values()):
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now


def home_of(pod: Pod, jobs: Mirror[Job]) -> Membership:
    """Return the group that a pod stands with now.

    Its labels say it once it is released. Before that it may have a job of its own, because its
    group had no room for it.
    """
    membership, single = membership_of(pod), alone(pod)
    if single.group.key == membership.group.key:
        return membership
    key: ObjectKey = single.group.key
    if is_gated(pod):
        return single if jobs.get(*key) is not None else membership
    is_single = pod.metadata.labels.get(names.JOB_NAME) == key[1]
    return single if is_single else membership


def is_usable(node: Node) -> bool:
    """True when a pod that is pinned to a node would be bound there, as far as the node says."""
    if node.spec.unschedulable or node.metadata.deletion_timestamp is not None:
        return False
    return any(c.type == names.READY and c.status == "True" for c in node.status.conditions)


def look_delay_seconds(members: int) -> float:
    """Return how long changes of a group's pods are collected before it is looked at."""
    if members <= _EAGER_MEMBERS_MAX:
        return 0.0
    return min(members * _LOOK_SECONDS_PER_MEMBER, _LOOK_SECONDS_MAX)


def resource_of(api_version: str, kind: str) -> Resource[dict[str, Any]]:
    """Return where a kind is served; the plurals of all that are read are regular."""
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, f"{kind.lower()}s", kind, dict)


def release_patch(action: ReleaseMember) -> dict[str, Any]:
    """Return the one write that releases a pod: labels, pin and gate, on the version decided on.

    Of the affinity only the terms that choose nodes are sent: all else in it stays. KEP-3838: the
    scheduling directives of a pod may be tightened while it is gated, also by the write that takes
    the last gate off.
    """
    job, pod = action.job, action.pod
    labels = {
        names.JOB_NAME: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ROLE: action.role,
        names.INDEX: str(action.index),
        names.RANK: str(action.rank),
        names.ATTEMPT: str(job.status.attempt),
    }
    gates = [to_wire(g) for g in pod.spec.scheduling_gates if g.name != names.GANG_GATE]
    pinned = to_wire(pinned_affinity(pod.spec.affinity, action.node))
    required = pinned["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {
        "metadata": {
            "resourceVersion": pod.metadata.resource_version,
            "labels": labels,
        },
        "spec": {"schedulingGates": gates or None, "affinity": affinity},
    }
