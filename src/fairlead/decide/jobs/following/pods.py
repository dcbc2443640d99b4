"""The pods of one job, counted as they change.

A gang may have thousands of members, and every one of its pods changes several times. So the
counts that decisions ask for are kept per event, and only what is out of order (`troubled`) is ever
walked. Mirror handlers feed `JobPods`; decisions only read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Progress, owner_reference_of
from fairlead.api.jobs.run_facts import RunFacts
from fairlead.api.kubernetes.core import ContainerStateTerminated, ContainerStatus, Pod
from fairlead.api.meta import label_number
from fairlead.decide.attempts.record import newest_version
from fairlead.decide.attempts.run_facts import read_run
from fairlead.decide.jobs.following.own_work import WorkTimes
from fairlead.decide.jobs.following.progress import fold_progress, read_progress, read_work
from fairlead.decide.pinning import node_of, refusal_of

#: Reasons of a waiting container that do not heal by waiting alone (kubelet, container runtime).
START_ERRORS = frozenset(
    (
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    )
)


class MemberPhase(StrEnum):
    """The phase of a member's pod. A text, since it is hashed at each event of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


_PHASES = {
    "Running": MemberPhase.RUNNING,
    # Set by old node controllers for pods of silent nodes; the node's own state decides.
    "Unknown": MemberPhase.RUNNING,
    "Succeeded": MemberPhase.SUCCEEDED,
    "Failed": MemberPhase.FAILED,
}


class MemberPod(msgspec.Struct, frozen=True, gc=False):
    """One pod of a job, with what decisions ask of it."""

    pod: Pod
    attempt: int
    role: str
    index: int
    rank: int
    phase: MemberPhase
    is_terminating: bool
    has_start_error: bool
    #: Where it is, or is to be bound; "" until the other scheduler has found it a node.
    node: str
    #: The scheduler that was to bind it cannot.
    is_refused: bool = False
    #: How the test before its program ended; None: it goes on, or there is none.
    preflight: ContainerStateTerminated | None = None

    @property
    def is_native(self) -> bool:
        """True when the other scheduler places it with its gang."""
        return self.pod.spec.scheduling_group is not None

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.pod.metadata.name

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.metadata.uid

    @property
    def is_unchecked(self) -> bool:
        """True for one that has not started, and whose test has not ended."""
        return self.phase is MemberPhase.PENDING and self.preflight is None

    @property
    def is_stopped_by_test(self) -> bool:
        """True when the test before its program kept it from starting."""
        ended = self.preflight
        return self.phase is MemberPhase.FAILED and ended is not None and ended.exit_code != 0

    @property
    def is_terminal(self) -> bool:
        """True once the pod has ended for good."""
        return self.phase in (MemberPhase.SUCCEEDED, MemberPhase.FAILED)

    @property
    def is_troubled(self) -> bool:
        """True when it is to be judged: failed, deleted before its end, or unable to start."""
        if self.phase is MemberPhase.SUCCEEDED:
            return False
        if self.phase is MemberPhase.FAILED or self.is_terminating:
            return True
        return self.has_start_error or self.is_refused


def container_statuses(pod: Pod) -> Iterator[ContainerStatus]:
    """Yield the statuses of init containers, then of the others."""
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def preflight_end(pod: Pod) -> ContainerStateTerminated | None:
    """Return how the test before the program ended; None: it goes on, or there is none."""
    for status in pod.status.init_container_statuses:
        if status.name == names.PREFLIGHT_CONTAINER:
            return status.state.terminated
    return None


def start_error(pod: Pod) -> ContainerStatus | None:
    """Return the first container that waits with a start error, or None."""
    for statuses in (pod.status.init_container_statuses, pod.status.container_statuses):
        for status in statuses:  # asked at each event of a pod that waits: no generator
            if status.state.waiting is not None and status.state.waiting.reason in START_ERRORS:
                return status
    return None


def read_member(pod: Pod) -> MemberPod:
    """Read a pod; labels that are missing or no numbers read as attempt 0, index -1, rank -1.

    A member has the name that follows from its job and labels. Names are unique in a namespace, so
    each member of an attempt has one pod. A pod that the job controls under another name was made
    by another client: it is of attempt 0, whose pods are deleted like those of any other attempt.
    """
    labels, owner = pod.metadata.labels, owner_reference_of(pod.metadata)
    attempt, index = _number(labels.get(names.ATTEMPT), 0), _number(labels.get(names.INDEX), -1)
    role = labels.get(names.ROLE, "")
    if owner is None or pod.metadata.name != f"{owner.name}-{attempt}-{role}-{index}":
        attempt = 0
    phase = _PHASES.get(pod.status.phase, MemberPhase.PENDING)
    return MemberPod(
        pod=pod,
        attempt=attempt,
        role=role,
        index=index,
        rank=_number(labels.get(names.RANK), -1),
        phase=phase,
        is_terminating=pod.metadata.deletion_timestamp is not None,
        has_start_error=phase is MemberPhase.PENDING and start_error(pod) is not None,
        node=node_of(pod.spec),
        is_refused=refusal_of(pod) is not None,
        preflight=preflight_end(pod),
    )


def _number(text: str | None, default: int) -> int:
    number = label_number(text)
    return default if number is None else number


#: To go through an Enum, for each attempt of each job, is a call of Python code for each member.
_NONE_IN_EACH = dict.fromkeys(MemberPhase, 0)


@dataclass(slots=True)
class AttemptPods:
    """The pods of one attempt. `add` and `discard` keep all the rest in step."""

    #: By pod name.
    members: dict[str, MemberPod] = field(default_factory=dict)
    #: How many of `members` are in each phase.
    counts: dict[MemberPhase, int] = field(default_factory=_NONE_IN_EACH.copy)
    #: Names of exactly those members that are troubled, in the order of their trouble.
    troubled: dict[str, None] = field(default_factory=dict)
    #: How many have an address.
    addressed_count: int = 0
    #: How many are on a node, not only meant for one.
    bound_count: int = 0
    #: How many have not started, and no result of the test before that.
    unchecked_count: int = 0
    #: When a member was last seen to start; None: not by this process.
    start_seen_at: float | None = field(default=None, compare=False)

    def add(self, member: MemberPod, now: float | None = None) -> None:
        """Put a member in, in place of the one of the same name; `now` is when it is seen."""
        old = self.members.get(member.name)
        if old is not None:
            self._uncount(old)
            if old.phase is MemberPhase.PENDING and member.phase is MemberPhase.RUNNING:
                self.start_seen_at = now
        self.members[member.name] = member
        self.counts[member.phase] += 1
        self.addressed_count += bool(member.pod.status.pod_ip)
        self.bound_count += bool(member.pod.spec.node_name)
        self.unchecked_count += member.is_unchecked
        if member.is_troubled:
            self.troubled[member.name] = None
        else:
            self.troubled.pop(member.name, None)

    def discard(self, name: str) -> None:
        """Take a member out, if it is there."""
        old = self.members.pop(name, None)
        if old is not None:
            self._uncount(old)
            self.troubled.pop(name, None)

    def _uncount(self, old: MemberPod) -> None:
        self.counts[old.phase] -= 1
        self.addressed_count -= bool(old.pod.status.pod_ip)
        self.bound_count -= bool(old.pod.spec.node_name)
        self.unchecked_count -= old.is_unchecked

    @property
    def live_count(self) -> int:
        """How many have not ended."""
        return self.counts[MemberPhase.PENDING] + self.counts[MemberPhase.RUNNING]

    @property
    def all_terminal(self) -> bool:
        """True when no member is alive (also when there is none)."""
        return self.live_count == 0


#: For an attempt without pods; never added to.
NO_PODS = AttemptPods()


@dataclass(slots=True)
class JobPods:
    """All pods of one job, by attempt; an attempt without pods is not kept."""

    attempts: dict[int, AttemptPods] = field(default_factory=dict)
    #: The furthest that any member of attempt `progress_attempt`, the latest that reported, got;
    #: pods that are gone included.
    progress: Progress | None = None
    progress_attempt: int = 0
    #: What the member of the lowest rank among those that reported any says of the run, and its
    #: attempt, the latest, and rank; pods that are gone included.
    run: RunFacts | None = None
    run_of: tuple[int, int] = (0, 0)

    #: The own work of members of attempt `work_attempt`, the latest that reported any; None: none
    #: did.
    work: WorkTimes | None = field(default=None, compare=False)
    work_attempt: int = field(default=0, compare=False)

    #: How many pods there are on each node.
    nodes: dict[str, int] = field(default_factory=dict)
    #: The attempt under which each pod is kept, by name.
    _kept_under: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> JobPods:
        """Count these pods."""
        out = cls()
        for pod in pods:
            out.put(pod)
        return out

    def put(self, pod: Pod, now: float | None = None) -> None:
        """Record a pod as it is now. Its labels, and so its attempt, may have changed: a pod that
        is a member no more must not count as the member that it was.
        """
        member = read_member(pod)
        if self._kept_under.setdefault(member.name, member.attempt) != member.attempt:
            self.drop(pod)
            self._kept_under[member.name] = member.attempt
        attempt = self.attempts.get(member.attempt)
        if attempt is None:
            attempt = self.attempts[member.attempt] = AttemptPods()
        old = attempt.members.get(member.name)
        before = old.node if old is not None else ""
        if member.node and member.node != before:
            self._leave(before)
            self.nodes[member.node] = self.nodes.get(member.node, 0) + 1
        attempt.add(member, now)
        reported = read_progress(pod) if member.attempt >= self.progress_attempt else None
        if reported is not None:
            if member.attempt > self.progress_attempt:
                self.progress, self.progress_attempt = None, member.attempt
            self.progress = fold_progress(self.progress, reported)
        attempt_before, rank_before = self.run_of
        is_first = member.attempt == attempt_before and member.rank <= rank_before
        counts = is_first or member.attempt > attempt_before
        if counts and (run := read_run(pod)) is not None:
            self.run, self.run_of = run, (member.attempt, member.rank)
        self._take_work(member)

    def _take_work(self, member: MemberPod) -> None:
        if member.attempt < max(self.work_attempt, 1) or member.index < 0:
            return
        work = read_work(member.pod)
        if work is None:
            return
        if self.work is None or member.attempt > self.work_attempt:
            self.work, self.work_attempt = WorkTimes(), member.attempt
        self.work.take(member.role, member.index, work)

    def drop(self, pod: Pod) -> None:
        """Record that a pod is gone."""
        name = pod.metadata.name
        number = self._kept_under.pop(name, None)
        if number is None:
            return
        attempt = self.attempts[number]
        self._leave(attempt.members[name].node)
        attempt.discard(name)
        if not attempt.members:
            del self.attempts[number]

    def _leave(self, node: str) -> None:
        """Count one pod less on a node; "" is none."""
        if node:
            self.nodes[node] -= 1
            if not self.nodes[node]:
                del self.nodes[node]

    def attempt(self, number: int) -> AttemptPods:
        """Return the pods of an attempt; an empty, shared one when it has none."""
        return self.attempts.get(number, NO_PODS)

    def others(self, number: int) -> Iterator[MemberPod]:
        """Yield the pods of all attempts but this one."""
        for attempt in sorted(self.attempts):
            if attempt != number:
                yield from self.attempts[attempt].members.values()

    def all(self) -> Iterator[MemberPod]:
        """Yield all pods, attempt by attempt."""
        yield from self.others(-1)

    @property
    def live_count(self) -> int:
        """How many pods of any attempt have not ended."""
        return sum(attempt.live_count for attempt in self.attempts.values())

    @property
    def newest_version(self) -> str:
        """The newest resourceVersion among all pods; "" without any."""
        return newest_version(member.pod for member in self.all())

    @property
    def count(self) -> int:
        """How many pods of any attempt there are."""
        return sum(len(attempt.members) for attempt in self.attempts.values())
