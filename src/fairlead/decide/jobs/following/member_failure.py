"""Why one member failed: the evidence of its pod and node, read as an `EndReason`.

The cause follows from the reason (`attempts.end_reason`, the table that docs/design/jobs.md
shows). Which failure of a gang brought the others down: module `failure_cause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairlead.api import names
from fairlead.api.jobs.job import Cause
from fairlead.api.kubernetes.core import ContainerStateTerminated, ContainerStatus, Pod
from fairlead.api.values.times import time_or
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.jobs.following.pods import (
    MemberPhase,
    MemberPod,
    container_statuses,
    start_error,
)
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import NodeOutage
from fairlead.decide.pinning import refusal_of

#: What `status.reason` of a failed pod means (kubelet and pod garbage collector).
_POD_REASONS = {
    "DeadlineExceeded": EndReason.DEADLINE_EXCEEDED,
    "Evicted": EndReason.EVICTED,
    "NodeAffinity": EndReason.NODE_REFUSED,
    "NodeLost": EndReason.NODE_LOST,
    "NodeShutdown": EndReason.NODE_SHUTDOWN,
    "Preempted": EndReason.POD_PREEMPTED,
    "Preempting": EndReason.POD_PREEMPTED,
    "Shutdown": EndReason.NODE_SHUTDOWN,
    "Terminated": EndReason.NODE_SHUTDOWN,
    "UnexpectedAdmissionError": EndReason.NODE_REFUSED,
}
#: Reasons of the pod condition DisruptionTarget (KEP-3329).
_DISRUPTIONS = {
    "DeletionByPodGC": EndReason.NODE_LOST,
    "DeletionByTaintManager": EndReason.DRAINED,
    "EvictionByEvictionAPI": EndReason.DRAINED,
    "PreemptionByScheduler": EndReason.POD_PREEMPTED,
    "TerminationByKubelet": EndReason.EVICTED,
}
#: Reasons of a terminated container that never ran.
_NEVER_RAN = frozenset(("ContainerCannotRun", "CreateContainerError", "StartError"))

_SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS",
    8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
#: What kube-scheduler says of a member that would fit (1.36, plugin GangScheduling).
_GANG_WAITS = "waiting for minCount pods"
#: Sent from outside, never raised by the program's own fault.
_OUTSIDE_SIGNALS = (9, 15)
#: Raised by a fault of the program itself, hence no consequence of another member's end.
_FAULT_SIGNALS = (4, 7, 8, 11)


class Weight(Enum):
    """How much a failure says about the cause; the lower counts when several are near in time."""

    NODE = 0
    OUTSIDE = 1
    FAULT = 2
    PERHAPS_CONSEQUENCE = 3
    CONSEQUENCE = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """One member's failure. `at` is when it happened; when that is not known it is not dated."""

    reason: EndReason
    message: str
    at: float
    weight: Weight
    rank: int = -1
    member: MemberPod | None = None
    is_dated: bool = True

    @property
    def cause(self) -> Cause:
        """Whose fault it was."""
        return self.reason.cause or Cause.INFRASTRUCTURE

    @property
    def exit_code(self) -> int | None:
        """The exit code behind it, 128 + N for signal N; None when no program's end was."""
        failed = first_failed_container(self.member.pod) if self.member is not None else None
        ended = failed.state.terminated if failed is not None else None
        if ended is None:
            return None
        return 128 + ended.signal if ended.signal else ended.exit_code

    @property
    def member_name(self) -> str:
        """The member's name, ROLE-INDEX; "" for a failure of no member."""
        return _name(self.member) if self.member is not None else ""


def _name(member: MemberPod) -> str:
    return f"{member.role}-{member.index}"


def describe(member: MemberPod) -> str:
    """Return e.g. "member worker-2 (rank 2, node n17)"."""
    return f"member {_name(member)} (rank {member.rank}, node {member.node or '?'})"


def _describe_container(member: MemberPod, status: ContainerStatus) -> str:
    """Return the member, with the container's name where its pod has several."""
    spec = member.pod.spec
    if len(spec.containers) + len(spec.init_containers) == 1:
        return describe(member)
    is_first = any(container.name == status.name for container in spec.init_containers)
    return f"{describe(member)}: {'init ' if is_first else ''}container {status.name}"


def judge_member(
    member: MemberPod,
    trouble: NodeOutage | None,
    policy: JobsPolicy,
    now: float,
    *,
    is_cordoned: bool = False,
) -> Failure | None:
    """Judge one member of a running attempt; None when nothing is wrong with it (yet).

    `trouble` and `is_cordoned` are of its node.

    What the pod itself says of its end comes first: a node that was lost later did not cause it.
    """
    if member.phase is MemberPhase.SUCCEEDED:
        return None
    if member.is_stopped_by_test and _named_reason(member.pod) is None:
        return None  # the gate's: `decide/jobs/rendering/preflight.py`
    if member.phase is MemberPhase.FAILED:
        return _judge_failed(member, policy, now, is_cordoned=is_cordoned)
    if trouble is not None and trouble.is_lost(policy, now):
        return node_lost(member, trouble, now)
    if member.is_terminating:
        return _judge_deleted(member, now, is_cordoned=is_cordoned)
    if member.is_refused:
        return _judge_refused(member, policy, now)
    if member.has_start_error:
        return _judge_start(member, policy, now)
    return None


def bind_patience(member: MemberPod, policy: JobsPolicy) -> float:
    """Return for how many seconds the other scheduler may refuse a member."""
    return policy.native_patience_seconds if member.is_native else policy.bind_patience_seconds


def _refused_since(member: MemberPod, now: float) -> float:
    refusal = refusal_of(member.pod)
    text = refusal.last_transition_time if refusal is not None else None
    return time_or(text or member.pod.metadata.creation_timestamp, now)


def _judge_refused(member: MemberPod, policy: JobsPolicy, now: float) -> Failure | None:
    since = _refused_since(member, now)
    if now < since + bind_patience(member, policy):
        return None
    refusal = refusal_of(member.pod)
    message = refusal.message if refusal is not None else ""
    text = f"{describe(member)} could not be bound for {round(now - since)} s"
    text += f": {message}" if message else ""
    # Of a group all members are refused, and only some of them say why.
    weight = Weight.CONSEQUENCE if _GANG_WAITS in message else Weight.NODE
    return Failure(EndReason.NOT_BOUND, text, since, weight, member.rank, member)


def node_lost(member: MemberPod, trouble: NodeOutage, now: float) -> Failure:
    """Blame the node of a member that never ended."""
    seconds = max(0, round(now - trouble.since))
    how = "no longer exists" if trouble.is_gone else f"was not ready for {seconds} s"
    if trouble.is_unreachable:
        how = f"was unreachable for {seconds} s"
    return Failure(
        EndReason.NODE_LOST,
        f"{describe(member)} was lost: its node {how}",
        trouble.since,
        Weight.NODE,
        member.rank,
        member,
    )


def _judge_failed(
    member: MemberPod, policy: JobsPolicy, now: float, *, is_cordoned: bool
) -> Failure:
    pod = member.pod
    named = _named_reason(pod)
    failed = first_failed_container(pod)
    ended = failed.state.terminated if failed is not None else None
    ended_at = _ended_at(pod, ended)
    # The time of a clock that is far ahead of ours is not used.
    is_dated = ended_at is not None and ended_at <= now + policy.cause_window_seconds
    at = ended_at if ended_at is not None and is_dated else now
    if named is not None:
        reason, word = named
        text = f"{describe(member)} was stopped by its node: {word}"
        if reason is EndReason.DRAINED:
            text = _eviction_message(member, word, is_cordoned=is_cordoned)
        elif pod.status.message:
            text += f" ({pod.status.message})"
        weight = Weight.OUTSIDE
        if reason is EndReason.DRAINED or reason.cause is Cause.NODE:
            weight = Weight.NODE
        return Failure(reason, text, at, weight, member.rank, member, is_dated)
    if failed is None or ended is None:
        word = pod.status.reason or pod.status.message or "its pod gives no reason"
        text = f"{describe(member)} failed: {word}"
        return Failure(EndReason.UNKNOWN, text, at, Weight.OUTSIDE, member.rank, member, is_dated)
    reason, text, weight = _judge_container(ended, _memory_of(pod, failed.name))
    text = f"{_describe_container(member, failed)} {text}"
    return Failure(reason, text, at, weight, member.rank, member, is_dated)


def _named_reason(pod: Pod) -> tuple[EndReason, str] | None:
    """Return what the pod's reason or its disruption condition says, with the word for it."""
    word = pod.status.reason
    reason = _POD_REASONS.get(word)
    if reason is None and word.startswith("OutOf"):
        reason = EndReason.NODE_REFUSED
    if reason is not None:
        return reason, word
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return _DISRUPTIONS.get(condition.reason, EndReason.EVICTED), condition.reason
    return None


def signal_of(ended: ContainerStateTerminated) -> int:
    """Return the signal that ended the container, 0 when none did.

    Container runtimes report 128 + signal as the exit code; so do shells for their children.
    """
    if ended.signal:
        return ended.signal
    return ended.exit_code - 128 if ended.exit_code - 128 in _SIGNAL_NAMES else 0


def _memory_of(pod: Pod, container: str) -> str:
    """Return the limit of a container's memory as it is written; "" where it has none."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    found = next((each for each in containers if each.name == container), None)
    return str(found.resources.limits.get("memory", "")) if found is not None else ""


def _judge_container(ended: ContainerStateTerminated, memory: str) -> tuple[EndReason, str, Weight]:
    if ended.reason == "OOMKilled":
        limit = f" ({memory})" if memory else ""
        text = f"ran out of memory{limit} and was killed; ask for more with --memory"
        return EndReason.OUT_OF_MEMORY, text, Weight.OUTSIDE
    if ended.reason in _NEVER_RAN:
        text = f"could not be started: {ended.message or ended.reason}"
        return EndReason.START_FAILED, text, Weight.FAULT
    signal = signal_of(ended)
    if ended.exit_code == names.EXIT_STOPPED:
        text = "was stopped because another member ended, and no member shows why"
        return EndReason.STOPPED, text, Weight.CONSEQUENCE
    if ended.exit_code == names.EXIT_UNAVAILABLE:
        text = "did not reach the other members in time"
        return EndReason.PEERS_UNREACHABLE, text, Weight.PERHAPS_CONSEQUENCE
    if not signal:
        text = f"exited with code {ended.exit_code}"
        return EndReason.EXIT_CODE, text, Weight.PERHAPS_CONSEQUENCE
    name = _SIGNAL_NAMES.get(signal, "")
    text = f"was killed by signal {signal}" + (f" ({name})" if name else "")
    if signal in _OUTSIDE_SIGNALS:
        return EndReason.KILLED, text, Weight.OUTSIDE
    weight = Weight.FAULT if signal in _FAULT_SIGNALS else Weight.PERHAPS_CONSEQUENCE
    return EndReason.CRASHED, text, weight


def first_failed_container(pod: Pod) -> ContainerStatus | None:
    """Return the container that failed first; those without an instant come last.

    One that was stopped because another one ended comes after all that were not.
    """

    def order(status: ContainerStatus) -> tuple[bool, float]:
        ended = status.state.terminated
        assert ended is not None
        is_stopped = ended.exit_code == names.EXIT_STOPPED
        return is_stopped, time_or(ended.finished_at, float("inf"))

    failed = [
        status
        for status in container_statuses(pod)
        if (ended := status.state.terminated) is not None and (ended.exit_code or ended.signal)
    ]
    return min(failed, key=order, default=None)


def _ended_at(pod: Pod, ended: ContainerStateTerminated | None) -> float | None:
    """Return when the pod failed by its node's clock, None when it does not say."""
    text = ended.finished_at if ended is not None else None
    if text is None:
        times = [c.last_transition_time for c in pod.status.conditions if c.type == "Ready"]
        text = next((t for t in times if t is not None), None)
    at = time_or(text, float("inf"))
    return at if at != float("inf") else None


def _eviction_message(member: MemberPod, word: str, *, is_cordoned: bool) -> str:
    """Return what happened to a member that an operator had evicted."""
    if is_cordoned:
        return f"{describe(member)} was evicted from a cordoned node"
    return f"{describe(member)} was evicted: {word}"


def is_evicted(member: MemberPod) -> bool:
    """Return True when a request, a taint or its node, which was under pressure, evicted it."""
    named = _named_reason(member.pod)
    return named is not None and named[0] in (EndReason.DRAINED, EndReason.EVICTED)


def _judge_deleted(member: MemberPod, now: float, *, is_cordoned: bool) -> Failure:
    """Judge a pod that another client deletes: Fairlead deletes none of an open attempt."""
    meta = member.pod.metadata
    # The timestamp is when the grace period ends (API conventions, metadata.deletionTimestamp).
    at = time_or(meta.deletion_timestamp, now) - (meta.deletion_grace_period_seconds or 0)
    named = _named_reason(member.pod)
    if named is not None:
        text = _eviction_message(member, named[1], is_cordoned=is_cordoned)
        return Failure(named[0], text, min(at, now), Weight.NODE, member.rank, member)
    text = f"{describe(member)} lost its pod: another client deleted {meta.name}"
    if is_cordoned:
        text += " from a cordoned node"
    return Failure(EndReason.POD_DELETED, text, min(at, now), Weight.OUTSIDE, member.rank, member)


def start_patience_ends_at(member: MemberPod, policy: JobsPolicy, now: float) -> float | None:
    """Return when a member that cannot start will count as failed; None when past or moot."""
    if member.is_refused:
        at = _refused_since(member, now) + bind_patience(member, policy)
        return at if at > now else None
    if not member.has_start_error:
        return None
    since = time_or(member.pod.metadata.creation_timestamp, now)
    at = since + policy.start_error_grace_seconds
    return at if at > now else None


def _judge_start(member: MemberPod, policy: JobsPolicy, now: float) -> Failure | None:
    since = time_or(member.pod.metadata.creation_timestamp, now)
    status = start_error(member.pod)
    if now < since + policy.start_error_grace_seconds or status is None:
        return None
    waiting = status.state.waiting
    assert waiting is not None
    text = (
        f"{describe(member)} could not be started for {round(now - since)} s: container "
        f"{status.name}: {waiting.reason}"
    )
    if waiting.message:
        text += f" ({waiting.message})"
    is_test = status.name == names.PREFLIGHT_CONTAINER
    reason = EndReason.PREFLIGHT_ERROR if is_test else EndReason.START_FAILED
    return Failure(reason, text, since, Weight.FAULT, member.rank, member)
