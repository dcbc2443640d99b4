"""In-place resize on a node: what a pod's node has given it, and when that changes (KEP-1287).

A pod's spec says what is asked. Its node holds what it has allocated, by which its room is counted,
and what the containers have. A resize is taken once there is room; until then the pod has the
condition PodResizePending: Deferred, or Infeasible where even the empty node has too little. What
is deferred is tried again, in the kubelet's order, whenever room comes free on the node
(kubernetes `pkg/kubelet/allocation`). After a restart the node reads from the pod's status what
it had. Virtual and local nodes share this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec.structs import replace

from fairlead.api.kubernetes.core import Container, ContainerStatus, Pod, PodSpec
from fairlead.api.pods.pod_asks import GUARANTEED, RESIZE_PENDING, is_resized, qos_class
from fairlead.api.values.times import format_time
from fairlead.embedded.virtual.stages.status import (
    RESIZE_IN_PROGRESS,
    NodeClaims,
    pod_requests,
    spec_requests,
)

RESTART_CONTAINER = "RestartContainer"
_ERROR = "Error"


class ResizeReason(Enum):
    """Why a resize has not begun: reasons of the condition PodResizePending."""

    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


@dataclass(frozen=True, slots=True)
class ResizePending:
    """A resize that the node has not begun."""

    reason: ResizeReason
    message: str
    since: float
    generation: int


@dataclass(frozen=True, slots=True)
class ResizeProgress:
    """A resize that the node has begun; `error` says why it does not get on, or is empty."""

    error: str
    since: float
    generation: int


@dataclass(slots=True, eq=False)
class PodAmounts:
    """What the node has given one pod. `allocated` and `actual` are specs: their amounts count."""

    allocated: PodSpec
    actual: PodSpec
    requests: dict[str, int]
    pending: ResizePending | None = None
    progress: ResizeProgress | None = None

    @property
    def is_settled(self) -> bool:
        """True where the containers have what is allocated."""
        return self.actual is self.allocated

    def conditions(self) -> tuple[dict[str, Any], ...]:
        """Return the conditions that say what of a resize is open."""
        out: list[dict[str, Any]] = []
        if (pending := self.pending) is not None:
            out.append(_condition(RESIZE_PENDING, pending, pending.reason.value, pending.message))
        if (progress := self.progress) is not None:
            why = _ERROR if progress.error else ""
            out.append(_condition(RESIZE_IN_PROGRESS, progress, why, progress.error))
        return tuple(out)


def _condition(
    kind: str, each: ResizePending | ResizeProgress, reason: str, message: str
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": kind, "status": "True", "lastTransitionTime": format_time(each.since),
        "observedGeneration": each.generation,
    }  # fmt: skip
    return out | ({"reason": reason, "message": message} if reason else {})


def amounts_of(pod: Pod) -> PodAmounts:
    """Return what a pod has: as its status reports it, else as its spec says."""
    spec = pod.spec
    if not is_resized(pod):
        return PodAmounts(spec, spec, pod_requests(pod))
    status = pod.status
    known = {s.name: s for s in (*status.init_container_statuses, *status.container_statuses)}
    reported = replace(
        spec,
        containers=tuple(_reported(each, known) for each in spec.containers),
        init_containers=tuple(_reported(each, known) for each in spec.init_containers),
        resources=spec.resources and (status.resources or spec.resources),
    )
    return PodAmounts(reported, reported, spec_requests(reported))


def _reported(container: Container, known: Mapping[str, ContainerStatus]) -> Container:
    state = known.get(container.name)
    if state is None or state.resources is None:
        return container
    return replace(container, resources=state.resources)


def has_amounts_of(allocated: PodSpec, spec: PodSpec) -> bool:
    """True where two specs of one pod have the same amounts, word for word."""
    if allocated is spec:
        return True
    pairs = zip(
        (*allocated.containers, *allocated.init_containers),
        (*spec.containers, *spec.init_containers),
        strict=True,
    )
    return allocated.resources == spec.resources and all(
        one.resources == other.resources for one, other in pairs
    )


@dataclass(slots=True, eq=False)
class _Waiting:
    pod: Pod
    amounts: PodAmounts
    retry: Callable[[], None]

    @property
    def order(self) -> tuple[int, bool, float, str]:
        resources = [self.pod.spec.resources] if self.pod.spec.resources else [
            each.resources for each in (*self.pod.spec.containers, *self.pod.spec.init_containers)
        ]  # fmt: skip
        quality = qos_class((each.requests, each.limits) for each in resources)
        since = self.amounts.pending.since if self.amounts.pending is not None else 0.0
        uid = self.pod.metadata.uid
        return -(self.pod.spec.priority or 0), quality != GUARANTEED, since, uid


@dataclass(slots=True, eq=False)
class NodeResizes:
    """The resizes of the pods on one node."""

    use: NodeClaims
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def look(self, pod: Pod, amounts: PodAmounts, now: float, retry: Callable[[], None]) -> bool:
        """Take what the pod asks now, or note why it waits; True where its status changes.

        `retry` is called once there is room, and should look again.
        """
        uid = pod.metadata.uid
        before = amounts.pending
        if has_amounts_of(amounts.allocated, pod.spec):
            amounts.pending = None
            self._waiting.pop(uid, None)
            return before is not None
        asked = spec_requests(pod.spec)
        found = self._refusal(pod, amounts, asked)
        if found is None:
            self.use.remove(amounts.requests)
            is_less = any(asked.get(n, 0) < a for n, a in amounts.requests.items())
            self.use.add(asked)
            amounts.allocated, amounts.requests, amounts.pending = pod.spec, asked, None
            amounts.progress = ResizeProgress("", now, pod.metadata.generation)
            self._waiting.pop(uid, None)
            if is_less:
                self.room_came()
            return True
        reason, message = found
        is_same = before is not None and before.reason is reason
        since = before.since if before is not None and is_same else now
        amounts.pending = ResizePending(reason, message, since, pod.metadata.generation)
        if reason is ResizeReason.DEFERRED:
            self._waiting[uid] = _Waiting(pod, amounts, retry)
        else:
            self._waiting.pop(uid, None)
        return amounts.pending != before

    def _refusal(
        self, pod: Pod, amounts: PodAmounts, asked: Mapping[str, int]
    ) -> tuple[ResizeReason, str] | None:
        if name := _restarted(pod.spec, amounts.allocated):
            why = f"container {name} would have to be restarted (resizePolicy {RESTART_CONTAINER})"
            return ResizeReason.INFEASIBLE, f"{why}: this node resizes in place only"
        self.use.remove(amounts.requests)
        lacking = self.use.lacks(asked)
        message = self.use.message(lacking, asked) if lacking else ""
        self.use.add(amounts.requests)
        if not lacking:
            return None
        is_never = asked[lacking] > self.use.allocatable.get(lacking, 0)
        return (ResizeReason.INFEASIBLE if is_never else ResizeReason.DEFERRED), message

    def leave(self, uid: str) -> None:
        """Forget a pod that has ended, or is ending."""
        self._waiting.pop(uid, None)

    def room_came(self) -> None:
        """Try what is deferred again: room has come free on the node."""
        for each in sorted(self._waiting.values(), key=lambda each: each.order):
            each.retry()


def _restarted(spec: PodSpec, allocated: PodSpec) -> str:
    """Return the first container whose change of amounts asks for its restart; "" for none."""
    pairs = zip(
        (*spec.containers, *spec.init_containers),
        (*allocated.containers, *allocated.init_containers),
        strict=True,
    )
    for container, known in pairs:
        for policy in container.resize_policy:
            name = policy.resource_name
            now, before = container.resources, known.resources
            is_changed = (
                now.requests.get(name) != before.requests.get(name)
                or now.limits.get(name) != before.limits.get(name)
            )  # fmt: skip
            if policy.restart_policy == RESTART_CONTAINER and is_changed:
                return container.name
    return ""
