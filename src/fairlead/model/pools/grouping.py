"""Which group a pod of another tool belongs to, read from what that tool writes on its pods.

A group is named by the key of the Job that represents it, which follows from the pod alone: no
look-up, so it is the same after every restart and for every replica. Conventions are tried from the
most explicit to the least: a group that a user named, then tools that make other controllers'
objects, then controllers, then the pod by itself. How large a group is, the pod may say, or the
object that it names (`GroupSource`) when it is read (`decide/adoption/sources.py`).

Labels say which group a pod means; its controller owner reference says whether it belongs. A pod
that its tool's controller does not control is no member of the tool's group, whatever it says. A
group that only a label names belongs to one owner: another owner's pods that use the name are
another group (`_owner_of`).

Keys: the tools' own documentation and sources; collected in docs/design/adoption.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import OwnerReference, label_number

#: A job's name is a host name's length at most; the rest is a digest.
_STEM_MAX = 50
_ROLE_MAX = 40


class Tool(Enum):
    """Whose convention a group follows."""

    NAMED = "named group"
    POD_GROUP = "scheduler-plugins PodGroup"
    VOLCANO = "Volcano PodGroup"
    JOB_SET = "JobSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    KUBEFLOW = "Kubeflow job"
    RAY = "RayCluster"
    JOB = "Job"
    STATEFUL_SET = "StatefulSet"
    OWNED = "owner"
    POD = "Pod"


@dataclass(frozen=True, slots=True)
class GroupSource:
    """The object that says how many belong to a group. `uid` is "" where the pod does not say."""

    api_version: str
    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A group: the key of its Job, whose it is, and which object tells its size, if any."""

    key: tuple[str, str]
    tool: Tool
    #: What people call it.
    name: str
    source: GroupSource | None = None

    @property
    def words(self) -> str:
        """What people call it, such as "StatefulSet web"."""
        return f"{self.source.kind if self.source else 'group'} {self.name}"


@dataclass(frozen=True, slots=True)
class Membership:
    """A pod's part in its group.

    `index` is the member's own number within its role where the tool gives it a lasting one. `size`
    is the number of all members, where the pod says it.
    """

    group: Group
    role: str = "worker"
    index: int | None = None
    size: int | None = None


def is_gated(pod: Pod) -> bool:
    """True while our gate keeps a pod from being scheduled."""
    return any(gate.name == names.GANG_GATE for gate in pod.spec.scheduling_gates)


def is_concerned(pod: Pod) -> bool:
    """True for pods of others that take part: gated, released, or let in without a gate."""
    if controller_of(pod, names.API_VERSION, "Job") is not None:
        return False
    labels = pod.metadata.labels
    return (
        is_gated(pod) or names.JOB_UID in labels or labels.get(names.GANG_SCHEDULING) == "enabled"
    )


def membership_of(pod: Pod) -> Membership:
    """Return which group a pod belongs to; by itself when no convention says otherwise."""
    for read in _CONVENTIONS:
        membership = read(pod)
        if membership is not None:
            return membership
    return alone(pod)


def alone(pod: Pod) -> Membership:
    """Return the membership of a pod that is a gang by itself."""
    meta = pod.metadata
    source = GroupSource("v1", "Pod", meta.name, meta.uid)
    return Membership(_group(pod, Tool.POD, source, meta.name), index=0, size=1)


def controller_of(
    pod: Pod, api_version: str = "", kind: str = "", name: str = ""
) -> OwnerReference | None:
    """Return the pod's controller, if it is of this group, kind and name ("" for any)."""
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        if api_version and _api_group(owner.api_version) != _api_group(api_version):
            continue
        if kind in ("", owner.kind) and name in ("", owner.name):
            return owner
    return None


def role_name(text: str) -> str:
    """Return a role's name as Fairlead takes it: a short DNS label."""
    return _label(text)[:_ROLE_MAX].strip("-") or "worker"


# Groups that a user named

#: Label or annotation that names the group, and the ones that say how many belong to it.
_NAMED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (names.GANG_NAME, ()),
    ("kueue.x-k8s.io/pod-group-name", ("kueue.x-k8s.io/pod-group-total-count",)),
    ("gang.scheduling.koordinator.sh/name", ("gang.scheduling.koordinator.sh/min-available",)),
    (
        "pod-group.scheduling.sigs.k8s.io/name",
        ("pod-group.scheduling.sigs.k8s.io/min-available",),
    ),
    ("armadaproject.io/gangId", ("armadaproject.io/gangCardinality",)),
)


def _named(pod: Pod) -> Membership | None:
    for key, sizes in _NAMED:
        name = _said(pod, key)
        if name:
            size = _size(pod, *sizes)
            group = _group(pod, Tool.NAMED, None, name, key, *_owner_of(pod))
            return Membership(group, _own_role(pod), size=size)
    return None


def _pod_group(pod: Pod) -> Membership | None:
    name = pod.metadata.labels.get("scheduling.x-k8s.io/pod-group", "")
    if not name:
        return None
    source = GroupSource("scheduling.x-k8s.io/v1alpha1", "PodGroup", name)
    group = _group(pod, Tool.POD_GROUP, source, name, *_owner_of(pod))
    return Membership(group, _own_role(pod), size=_size(pod))


def _volcano(pod: Pod) -> Membership | None:
    name = _said(pod, "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
    if not name:
        return None
    source = GroupSource("scheduling.volcano.sh/v1beta1", "PodGroup", name)
    return Membership(
        _group(pod, Tool.VOLCANO, source, name, *_owner_of(pod)),
        role_name(_said(pod, "volcano.sh/task-spec") or _own_role(pod)),
        label_number(_said(pod, "volcano.sh/task-index")),
        _size(pod, "scheduling.volcano.sh/group-min-member"),
    )


# Tools that make objects of other controllers


def _job_set(pod: Pod) -> Membership | None:
    """Its pods are those of jobs that it names `<set>-<replicated job>-<number>`."""
    name = _said(pod, "jobset.sigs.k8s.io/jobset-name")
    role = _said(pod, "jobset.sigs.k8s.io/replicatedjob-name")
    owner = controller_of(pod, "batch", "Job")
    if not name or owner is None:
        return None
    job, _, number = owner.name.rpartition("-")
    if job != f"{name}-{role}" or not number.isdecimal():
        return None
    uid = _said(pod, "jobset.sigs.k8s.io/jobset-uid")
    source = GroupSource("jobset.x-k8s.io/v1alpha2", "JobSet", name, uid)
    return Membership(_group(pod, Tool.JOB_SET, source, name), role_name(role), size=_size(pod))


def _leader_worker_set(pod: Pod) -> Membership | None:
    """Leaders are pods of a StatefulSet named as the set, workers of one named as their leader."""
    prefix = "leaderworkerset.sigs.k8s.io"
    name, number = _said(pod, f"{prefix}/name"), _said(pod, f"{prefix}/group-index")
    if not name or not number:
        return None
    index = label_number(_said(pod, f"{prefix}/worker-index"))
    is_leader = index == 0
    if not controller_of(pod, "apps", "StatefulSet", name if is_leader else f"{name}-{number}"):
        return None
    source = GroupSource("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name)
    return Membership(
        _group(pod, Tool.LEADER_WORKER_SET, source, f"{name}-{number}"),
        "leader" if is_leader else "worker",
        index if is_leader or index is None else index - 1,
        _size(pod, f"{prefix}/size"),
    )


def _kubeflow(pod: Pod) -> Membership | None:
    """The training operator's kinds, and the MPI operator's, whose launcher is a Job's pod."""
    prefix = "training.kubeflow.org"
    name = _said(pod, f"{prefix}/job-name")
    source = _kubeflow_source(pod, name) if name else None
    if source is None:
        return None
    role = _said(pod, f"{prefix}/replica-type") or _said(pod, f"{prefix}/job-role") or "worker"
    index = label_number(_said(pod, f"{prefix}/replica-index"))
    group = _group(pod, Tool.KUBEFLOW, source, name)
    return Membership(group, role_name(role), index, _size(pod))


def _kubeflow_source(pod: Pod, name: str) -> GroupSource | None:
    """Return the job of this name that controls a pod, itself or by the Job of its launcher.

    The MPI operator's job goes without its uid, which its launcher does not say.
    """
    if _said(pod, "training.kubeflow.org/operator-name") == "mpi-operator":
        is_member = controller_of(pod, "kubeflow.org", "MPIJob", name) or controller_of(
            pod, "batch", "Job", f"{name}-launcher"
        )
        return GroupSource("kubeflow.org/v2beta1", "MPIJob", name) if is_member else None
    owner = controller_of(pod, "kubeflow.org", name=name)
    return GroupSource(owner.api_version, owner.kind, owner.name, owner.uid) if owner else None


def _ray(pod: Pod) -> Membership | None:
    name = _said(pod, "ray.io/cluster")
    owner = controller_of(pod, "ray.io", "RayCluster", name)
    node_type = _said(pod, "ray.io/node-type")
    if not name or owner is None or node_type not in ("head", "worker"):
        return None
    source = GroupSource(owner.api_version, owner.kind, owner.name, owner.uid)
    role = "head" if node_type == "head" else _said(pod, "ray.io/group")
    return Membership(_group(pod, Tool.RAY, source, name), role_name(role), size=_size(pod))


# Controllers


def _job(pod: Pod) -> Membership | None:
    owner = controller_of(pod, "batch", "Job")
    if owner is None:
        return None
    source = GroupSource(owner.api_version, owner.kind, owner.name, owner.uid)
    index = label_number(_said(pod, "batch.kubernetes.io/job-completion-index"))
    return Membership(_group(pod, Tool.JOB, source, owner.name), "worker", index, _size(pod))


def _stateful_set(pod: Pod) -> Membership | None:
    owner = controller_of(pod, "apps", "StatefulSet")
    if owner is None:
        return None
    source = GroupSource(owner.api_version, owner.kind, owner.name, owner.uid)
    index = label_number(_said(pod, "apps.kubernetes.io/pod-index"))
    if index is None:
        index = label_number(pod.metadata.name.rpartition("-")[2])
    group = _group(pod, Tool.STATEFUL_SET, source, owner.name)
    return Membership(group, "worker", index, _size(pod))


def _owned(pod: Pod) -> Membership | None:
    """Any other controller's pods, where they say how many they are."""
    owner, size = controller_of(pod), _size(pod)
    if owner is None or size is None:
        return None
    source = GroupSource(owner.api_version, owner.kind, owner.name, owner.uid)
    return Membership(_group(pod, Tool.OWNED, source, owner.name), _own_role(pod), size=size)


#: Tools whose pods have controllers of several objects.
_TOOLS_OF_SEVERAL: tuple[Callable[[Pod], Membership | None], ...] = (
    _job_set, _leader_worker_set, _kubeflow,
)  # fmt: skip

_CONVENTIONS: tuple[Callable[[Pod], Membership | None], ...] = (
    _named, _pod_group, _volcano, *_TOOLS_OF_SEVERAL, _ray, _job, _stateful_set, _owned,
)  # fmt: skip


def _owner_of(pod: Pod) -> tuple[str, ...]:
    """Return who has a pod in a group that a label names: () for pods without a controller.

    Pods of one tool's object are one owner's, though several controllers make them; so are those
    of the ReplicaSets of a Deployment, which are named by it and the hash in their pods' labels.
    """
    for read in _TOOLS_OF_SEVERAL:
        membership = read(pod)
        if membership is not None and membership.group.source is not None:
            source = membership.group.source
            return (_api_group(source.api_version), source.kind, source.name, source.uid)
    owner = controller_of(pod)
    if owner is None:
        return ()
    revision = pod.metadata.labels.get("pod-template-hash", "")
    if revision and owner.kind == "ReplicaSet" and owner.name.endswith(f"-{revision}"):
        return ("apps", "Deployment", owner.name.removesuffix(f"-{revision}"))
    return (_api_group(owner.api_version), owner.kind, owner.name, owner.uid)


# Reading


def _said(pod: Pod, *keys: str) -> str:
    """Return what a label, or an annotation, says; "" when none of the keys is there."""
    for key in keys:
        text = pod.metadata.labels.get(key) or pod.metadata.annotations.get(key)
        if text:
            return text
    return ""


def _size(pod: Pod, *keys: str) -> int | None:
    """Return the group's size as the pod says it: our own key first, since a user wrote it."""
    return label_number(_said(pod, names.GROUP_SIZE, *keys)) or None


def _own_role(pod: Pod) -> str:
    return role_name(pod.metadata.labels.get(names.ROLE, "worker"))


def _group(pod: Pod, tool: Tool, source: GroupSource | None, name: str, *more: str) -> Group:
    space = pod.metadata.namespace
    kind = (_api_group(source.api_version), source.kind, source.uid) if source else ()
    text = "\0".join((tool.value, name, *kind, *more))
    digest = hashlib.blake2b(text.encode(), digest_size=3).hexdigest()
    return Group((space, f"{_label(name)[:_STEM_MAX].strip('-') or 'gang'}-{digest}"), tool, name,
                 source)  # fmt: skip


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")


@lru_cache(maxsize=256)  # asked several times at each event of a pod
def _api_group(api_version: str) -> str:
    return api_version.partition("/")[0]
