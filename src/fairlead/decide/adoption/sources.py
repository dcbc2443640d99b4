"""What the object behind a group says: how many members of which role, and whether it has ended.

One GET per group where its pods do not say it; documents are plain JSON, since the kinds of others
need not be known here. What cannot be read so is no gang, and `problem` says why, and what would
make it one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, cast

from fairlead.model.pools.grouping import Tool, role_name

Document = Mapping[str, Any]


class Ended(Enum):
    """How an owner came to its end."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What was read. `roles` are exact counts; `total` is how many are enough, of any role."""

    exists: bool = True
    uid: str = ""
    roles: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    ended: Ended | None = None
    #: More members come when the first have ended well (completions above parallelism).
    has_more_rounds: bool = False
    #: It is suspended: its owner makes no pods.
    is_suspended: bool = False
    #: Why this cannot be a gang; "" when it can.
    problem: str = ""


MISSING = SourceFacts(exists=False)

#: Annotations by which pods are created only once a first one has its node.
_EXCLUSIVE_JOBS = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_EXCLUSIVE_GROUPS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
#: With this annotation, JobSet leaves exclusive places to labels of nodes, and starts all pods.
_NODES_CHOSEN = "alpha.jobset.sigs.k8s.io/node-selector"
#: Kinds whose objects end by themselves.
_ENDING = (Tool.JOB, Tool.JOB_SET, Tool.KUBEFLOW)


def ends_by_itself(tool: Tool) -> bool:
    """True where the object says that it has ended: its word counts, not that of its pods."""
    return tool in _ENDING


def read_source(tool: Tool, document: Document) -> SourceFacts:
    """Return what the source of a group of that tool says."""
    spec = _child(document, "spec")
    suspends = True in (spec.get("suspend"), _child(spec, "runPolicy").get("suspend"))
    return replace(_read(tool, document, spec), is_suspended=suspends)


def _read(tool: Tool, document: Document, spec: Document) -> SourceFacts:
    uid = _text(_child(document, "metadata").get("uid"))
    ended = _ended(_child(document, "status"))
    match tool:
        case Tool.JOB:
            return _job(spec, uid, ended)
        case Tool.STATEFUL_SET:
            return _stateful_set(spec, uid)
        case Tool.JOB_SET:
            return _job_set(spec, uid, ended, _notes(document))
        case Tool.LEADER_WORKER_SET:
            return _leader_worker_set(spec, uid, _notes(document))
        case Tool.KUBEFLOW:
            return _kubeflow(spec, uid, ended)
        case Tool.RAY:
            return _ray(spec, uid)
        case Tool.POD_GROUP | Tool.VOLCANO:
            return SourceFacts(uid=uid, total=_count(spec.get("minMember"), 1))
        case Tool.NAMED | Tool.OWNED | Tool.POD:
            return SourceFacts(uid=uid, ended=ended)


def _job(spec: Document, uid: str, ended: Ended | None) -> SourceFacts:
    parallelism = _count(spec.get("parallelism"), 1)
    completions = _count(spec.get("completions"), parallelism)
    count, more = min(parallelism, completions), completions > parallelism
    return SourceFacts(uid=uid, roles={"worker": count}, ended=ended, has_more_rounds=more)


def _stateful_set(spec: Document, uid: str) -> SourceFacts:
    problem = ""
    if spec.get("podManagementPolicy", "OrderedReady") != "Parallel":
        problem = (
            "podManagementPolicy OrderedReady starts its pods one after another, so they cannot "
            "start together: create it with podManagementPolicy: Parallel"
        )
    return SourceFacts(uid=uid, roles={"worker": _count(spec.get("replicas"), 1)}, problem=problem)


def _job_set(spec: Document, uid: str, ended: Ended | None, notes: Document) -> SourceFacts:
    roles: dict[str, int] = {}
    problem = ""
    for each in _documents(spec.get("replicatedJobs")):
        members = _job(_child(each, "template", "spec"), "", None).roles["worker"]
        name = _text(each.get("name"))
        roles[role_name(name)] = members * _count(each.get("replicas"), 1)
        own_notes = {**notes, **_notes(_child(each, "template"))}
        follows = _EXCLUSIVE_JOBS in own_notes and _NODES_CHOSEN not in own_notes
        if follows and members > 1:
            problem = f"its job {name} starts its pods after the first of them ({_EXCLUSIVE_JOBS})"
        if each.get("dependsOn"):
            problem = f"its job {name} waits for another (dependsOn)"
    if _child(spec, "startupPolicy").get("startupPolicyOrder") == "InOrder":
        problem = "startupPolicyOrder InOrder starts its jobs one after another"
    if problem:
        problem += ", so they cannot start together: take this out"
    return SourceFacts(uid=uid, roles=roles, ended=ended, problem=problem)


def _leader_worker_set(spec: Document, uid: str, notes: Document) -> SourceFacts:
    size = _count(_child(spec, "leaderWorkerTemplate").get("size"), 1)
    roles = {"leader": 1, **({"worker": size - 1} if size > 1 else {})}
    problem = ""
    if spec.get("startupPolicy") == "LeaderReady":
        problem = (
            "startupPolicy LeaderReady starts workers after their leader, so they cannot start "
            "together: use LeaderCreated"
        )
    elif size > 1 and _EXCLUSIVE_GROUPS in notes:
        problem = (
            f"{_EXCLUSIVE_GROUPS} starts workers once their leader has its node, so they cannot "
            "start together: take this out"
        )
    return SourceFacts(uid=uid, roles=roles, problem=problem)


def _kubeflow(spec: Document, uid: str, ended: Ended | None) -> SourceFacts:
    """`pytorchReplicaSpecs` and its like: replicas by type, as all these kinds have it."""
    roles: dict[str, int] = {}
    for name in sorted(spec):
        if name.endswith("ReplicaSpecs"):
            replicas = _child(spec, name)
            for role in sorted(replicas):
                roles[role_name(role)] = _count(_child(replicas, role).get("replicas"), 1)
    if spec.get("launcherCreationPolicy") == "WaitForWorkersReady":
        roles.pop("launcher", None)
    return SourceFacts(uid=uid, roles={r: n for r, n in roles.items() if n}, ended=ended)


def _ray(spec: Document, uid: str) -> SourceFacts:
    """Under an autoscaler what must be there is the minimum; the rest comes as it is needed.

    Bounds come before `replicas`: KubeRay v1.6, `GetWorkerGroupDesiredReplicas`.
    """
    scales = bool(spec.get("enableInTreeAutoscaling"))
    roles = {"head": 1}
    for each in _documents(spec.get("workerGroupSpecs")):
        least = _count(each.get("minReplicas"), 0)
        wanted = max(least, _count(each.get("replicas"), 0))
        most = _count(each.get("maxReplicas"), wanted)
        count = least if scales else min(wanted, most)
        if count and each.get("suspend") is not True:
            name = role_name(_text(each.get("groupName")))
            roles[name] = count * _count(each.get("numOfHosts"), 1)
    return SourceFacts(uid=uid, roles=roles)


def _ended(status: Document) -> Ended | None:
    for condition in _documents(status.get("conditions")):
        if condition.get("status") == "True":
            if condition.get("type") in ("Complete", "Completed", "Succeeded"):
                return Ended.SUCCEEDED
            if condition.get("type") == "Failed":
                return Ended.FAILED
    return None


# Documents of kinds whose schema is not ours: a part of the wrong type counts as missing.


def _child(document: Document, *path: str) -> Document:
    for name in path:
        value = document.get(name)
        document = cast("Document", value) if isinstance(value, Mapping) else {}
    return document


def _notes(document: Document) -> Document:
    return _child(document, "metadata", "annotations")


def _documents(value: object) -> list[Document]:
    items = cast("list[object]", value) if isinstance(value, list | tuple) else []
    return [cast("Document", item) for item in items if isinstance(item, Mapping)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object, default: int) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return cast("int", value) if is_count else default
