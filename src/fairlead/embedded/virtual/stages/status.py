"""What a kubelet writes: pod and node status as wire values (pure; virtual and local nodes share
it).

Payloads are plain JSON values and not structs, because a merge patch has to carry defaults as well
(`phase: Pending`, `exitCode: 0`), and structs leave defaults out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import Container, Pod, PodSpec
from fairlead.api.meta import to_wire
from fairlead.api.pods.pod_asks import RESIZE_PENDING
from fairlead.api.values.times import format_time
from fairlead.model.asks.requests import RequestReader

#: Exit code of a process that a signal ended: 128 + signal (as shells and container runtimes
#: count).
SIGNAL_BASE = 128

REASON_COMPLETED = "Completed"
REASON_ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The container does not run yet, or not now."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """The container runs."""

    started_at: float


@dataclass(frozen=True, slots=True)
class Terminated:
    """The container has ended. `signal` is 0 unless a signal ended it."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None


ContainerStateNow = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerNow:
    """One container as it is now. `last` is how it ended before its latest restart."""

    name: str
    image: str
    state: ContainerStateNow
    restart_count: int = 0
    last: Terminated | None = None
    container_id: str = ""
    image_id: str = ""


#: Conditions of a pod that its node writes.
RESIZE_IN_PROGRESS = "PodResizeInProgress"
_NODE_CONDITIONS = (
    "PodScheduled", "Initialized", "ContainersReady", "Ready", RESIZE_PENDING, RESIZE_IN_PROGRESS,
)  # fmt: skip


class PodPhase(Enum):
    """Phases of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class PodNow:
    """A pod as it is now; `reason` and `message` say why a pod failed as a whole.

    `disrupted` adds the condition DisruptionTarget with that reason: the node, not the program, is
    to blame (Kubernetes pod failure policy, KEP-3329).
    """

    phase: PodPhase
    containers: tuple[ContainerNow, ...]
    pod_ip: str
    host_ip: str
    bound_at: float
    changed_at: float
    reason: str = ""
    message: str = ""
    disrupted: str = ""
    #: JSON of `api.use.MemberUse`, once it has ended.
    use: str = ""
    init_containers: tuple[ContainerNow, ...] = ()
    #: What its program reported of its run, as JSON of `api.run_facts.RunFacts`.
    run: str = ""
    #: What it has and what the node has allocated to it, as specs; None: as its spec says.
    actual: PodSpec | None = None
    allocated: PodSpec | None = None
    #: The conditions of a resize that is open.
    resizing: tuple[dict[str, Any], ...] = ()


def terminated(
    exit_code: int,
    signal: int = 0,
    *,
    reason: str = "",
    message: str = "",
    started_at: float | None = None,
    finished_at: float | None = None,
) -> Terminated:
    """Return an ending with the exit code of a signal and the usual reason filled in."""
    if signal:
        exit_code = SIGNAL_BASE + signal
    default = REASON_ERROR if exit_code else REASON_COMPLETED
    return Terminated(exit_code, signal, reason or default, message, started_at, finished_at)


def pod_patch(pod: Pod, now: PodNow) -> dict[str, Any]:
    """Return the merge patch for the `status` sub-resource.

    The conditions of others, such as that of an eviction, go with it: a merge patch replaces lists.
    It carries the uid, as a kubelet's does, so that it can never hit a later pod of the same name.
    """
    ready = now.phase is PodPhase.RUNNING and all(
        isinstance(c.state, Running) for c in now.containers
    )
    status: dict[str, Any] = {
        "phase": now.phase.value,
        "hostIP": now.host_ip,
        "startTime": format_time(now.bound_at),
        "conditions": [
            *_conditions(now, is_ready=ready), *now.resizing, *_kept_conditions(pod, now)
        ],
    }  # fmt: skip
    actual, allocated = now.actual or pod.spec, now.allocated or pod.spec
    amounts = _amounts(actual, allocated)
    status["containerStatuses"] = [_container(c, amounts) for c in now.containers]
    if now.init_containers:
        status["initContainerStatuses"] = [_container(c, amounts) for c in now.init_containers]
    if now.containers and actual.resources is not None and allocated.resources is not None:
        status["resources"] = to_wire(actual.resources)
        status["allocatedResources"] = dict(allocated.resources.requests)
    if now.pod_ip:
        status["podIP"] = now.pod_ip
        status["podIPs"] = [{"ip": now.pod_ip}]
    if now.reason or pod.status.reason:
        status["reason"] = now.reason or None
    if now.message or pod.status.message:
        status["message"] = now.message or None
    metadata: dict[str, Any] = {"uid": pod.metadata.uid}
    if kept := {key: text for key, text in ((names.USE, now.use), (names.RUN, now.run)) if text}:
        metadata["annotations"] = kept
    return {"metadata": metadata, "status": status}


def _conditions(now: PodNow, *, is_ready: bool) -> list[dict[str, Any]]:
    bound, changed = format_time(now.bound_at), format_time(now.changed_at)
    why_not = ""
    if now.phase is PodPhase.SUCCEEDED:
        why_not = "PodCompleted"
    elif now.phase is PodPhase.FAILED:
        why_not = "PodFailed"
    elif not is_ready:
        why_not = "ContainersNotReady"
    readiness = {"status": "True"} if is_ready else {"status": "False", "reason": why_not}
    is_done = all(
        isinstance(each.state, Terminated) and not each.state.exit_code
        for each in now.init_containers
    )
    initialized = {"status": "True", "lastTransitionTime": bound}
    if not is_done:
        why = "ContainersNotInitialized"
        initialized = {"status": "False", "reason": why, "lastTransitionTime": bound}
    conditions: list[dict[str, Any]] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound},
        {"type": "Initialized", **initialized},
        {"type": "ContainersReady", **readiness, "lastTransitionTime": changed},
        {"type": "Ready", **readiness, "lastTransitionTime": changed},
    ]
    if now.disrupted:
        conditions.append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": now.disrupted,
                "message": now.message,
                "lastTransitionTime": changed,
            }
        )
    return conditions


def _kept_conditions(pod: Pod, now: PodNow) -> list[dict[str, Any]]:
    """Return the conditions of the pod that are not for its node to write."""
    ours = (*_NODE_CONDITIONS, "DisruptionTarget") if now.disrupted else _NODE_CONDITIONS
    return [to_wire(c) for c in pod.status.conditions if c.type not in ours]


def _amounts(actual: PodSpec, allocated: PodSpec) -> dict[str, tuple[Container, Container]]:
    """Return each container as it is and as it is allocated, by name."""
    pairs = zip(
        (*actual.containers, *actual.init_containers),
        (*allocated.containers, *allocated.init_containers),
        strict=True,
    )
    return {one.name: (one, other) for one, other in pairs}


def _container(
    container: ContainerNow, amounts: Mapping[str, tuple[Container, Container]]
) -> dict[str, Any]:
    running = isinstance(container.state, Running)
    out: dict[str, Any] = {
        "name": container.name,
        "ready": running,
        "started": running,
        "restartCount": container.restart_count,
        "image": container.image,
        "imageID": container.image_id,
        "state": _state(container.state),
    }
    if container.name in amounts:
        actual, allocated = amounts[container.name]
        out["resources"] = to_wire(actual.resources)
        if allocated.resources.requests:
            out["allocatedResources"] = dict(allocated.resources.requests)
    if container.container_id:
        out["containerID"] = container.container_id
    if container.last is not None:
        out["lastState"] = _state(container.last)
    return out


def _state(state: ContainerStateNow) -> dict[str, Any]:
    if isinstance(state, Running):
        return {"running": {"startedAt": format_time(state.started_at)}}
    if isinstance(state, Waiting):
        waiting = {"reason": state.reason}
        return {"waiting": waiting | ({"message": state.message} if state.message else {})}
    out: dict[str, Any] = {"exitCode": state.exit_code, "reason": state.reason}
    if state.signal:
        out["signal"] = state.signal
    if state.message:
        out["message"] = state.message
    if state.started_at is not None:
        out["startedAt"] = format_time(state.started_at)
    if state.finished_at is not None:
        out["finishedAt"] = format_time(state.finished_at)
    return {"terminated": out}


class Readiness(Enum):
    """A node's Ready condition, with the taint that goes with it (well-known taints of
    Kubernetes).
    """

    READY = "True"
    NOT_READY = "False"
    UNKNOWN = "Unknown"


_READY_REASON = {
    Readiness.READY: ("KubeletReady", "the node is ready"),
    Readiness.NOT_READY: ("KubeletNotReady", "the node says that it is not ready"),
    Readiness.UNKNOWN: ("NodeStatusUnknown", "the node has stopped answering"),
}
_READY_TAINT = {
    Readiness.NOT_READY: names.TAINT_NOT_READY,
    Readiness.UNKNOWN: names.TAINT_UNREACHABLE,
}


def node_conditions(readiness: Readiness, now: float) -> list[dict[str, Any]]:
    """Return a node's standard conditions."""
    instant = format_time(now)
    reason, message = _READY_REASON[readiness]
    stamps = {"lastHeartbeatTime": instant, "lastTransitionTime": instant}
    pressures = [
        {"type": f"{kind}Pressure", "status": "False", "reason": f"NoPressure{kind}", **stamps}
        for kind in ("Memory", "Disk", "PID")
    ]
    ready = {
        "type": names.READY,
        "status": readiness.value,
        "reason": reason,
        "message": message,
        **stamps,
    }
    return [*pressures, ready]


def taints_for(
    readiness: Readiness, taints: Sequence[Mapping[str, Any]], now: float
) -> list[dict[str, Any]]:
    """Return `taints` with those of readiness replaced by what goes with `readiness`."""
    ours = (names.TAINT_NOT_READY, names.TAINT_UNREACHABLE)
    kept = [dict(t) for t in taints if t.get("key") not in ours]
    key = _READY_TAINT.get(readiness)
    if key is None:
        return kept
    added = [
        {"key": key, "effect": effect, "timeAdded": format_time(now)}
        for effect in ("NoSchedule", "NoExecute")
    ]
    return kept + added


def pod_requests(pod: Pod) -> dict[str, int]:
    """Return what the pod claims of a node, in base units, one of `pods` included."""
    return dict(_reader().pod_request(pod))


def spec_requests(spec: PodSpec) -> dict[str, int]:
    """Return what a pod with this spec claims of a node while nothing of it is resized."""
    return dict(_reader().request(spec))


@cache
def _reader() -> RequestReader:
    return RequestReader()


class NodeClaims:
    """What the pods on one node claim, against what it has: a kubelet's admission."""

    __slots__ = ("_used", "allocatable")

    def __init__(self, allocatable: Mapping[str, int]) -> None:
        self.allocatable = dict(allocatable)
        self._used: dict[str, int] = {}

    def lacks(self, requests: Mapping[str, int]) -> str:
        """Return the first resource (by name) of which too little is left; "" when all fit.

        As a kubelet, it looks at no device of which the node has none: another one may serve it
        (`removeMissingExtendedResources`).
        """
        for name in sorted(requests):
            if "/" in name and name not in self.allocatable:
                continue
            if self._used.get(name, 0) + requests[name] > self.allocatable.get(name, 0):
                return name
        return ""

    def message(self, resource: str, requests: Mapping[str, int]) -> str:
        """Return the words that a kubelet uses for a pod that it must refuse."""
        return (
            f"Node didn't have enough resource: {resource}, requested: {requests[resource]}, "
            f"used: {self._used.get(resource, 0)}, capacity: {self.allocatable.get(resource, 0)}"
        )

    def add(self, requests: Mapping[str, int]) -> None:
        """Take the claims of an admitted pod."""
        for name, amount in requests.items():
            self._used[name] = self._used.get(name, 0) + amount

    def remove(self, requests: Mapping[str, int]) -> None:
        """Give them back."""
        for name, amount in requests.items():
            self._used[name] = self._used.get(name, 0) - amount


@dataclass(frozen=True, slots=True)
class ConfigNeeds:
    """ConfigMaps of the pod's namespace that must exist before it can start.

    `maps` are names; `keys` are (name, key) pairs. Optional references are left out. Sorted.
    """

    maps: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]


def config_needs(pod: Pod) -> ConfigNeeds:
    """Return what the pod's volumes and variables ask of ConfigMaps."""
    maps: dict[str, None] = {}
    keys: dict[tuple[str, str], None] = {}
    for volume in pod.spec.volumes:
        if volume.config_map is not None and not volume.config_map.optional:
            maps[volume.config_map.name] = None
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for source in container.env_from:
            if source.config_map_ref is not None and not source.config_map_ref.optional:
                maps[source.config_map_ref.name] = None
        for variable in container.env:
            ref = variable.value_from.config_map_key_ref if variable.value_from else None
            if ref is not None and not ref.optional:
                maps[ref.name] = None
                keys[ref.name, ref.key] = None
    return ConfigNeeds(tuple(sorted(maps)), tuple(sorted(keys)))
