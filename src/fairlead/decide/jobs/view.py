"""What one decision about a job sees: the job, its pods, and what it depends on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from fairlead.api.jobs.job import Job, MemberCounts, Progress
from fairlead.api.jobs.run_facts import RunFacts
from fairlead.api.pods.served_resources import ResourceNames
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.record import member_counts
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.jobs.following.own_work import WorkTimes
from fairlead.decide.jobs.following.pods import AttemptPods, JobPods, MemberPhase, MemberPod
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.pinning import Binding
from fairlead.decide.reasons import Reason
from fairlead.model.health.windows import Window


class DependencyState(Enum):
    """What is known of a job that another one waits for."""

    UNFINISHED = "Unfinished"
    STARTED = "Started"  # it has run, and has not ended
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    MISSING = "Missing"
    NO_ELEMENT = "NoElement"  # the array has not all of the elements


class ElementState(Enum):
    """What the array of a job says of it. NONE: it is no element of an array."""

    NONE = "None"
    MISSING = "Missing"  # there is no such array, or it is being deleted
    OPEN = "Open"
    ENDED = "Ended"  # the end of the element is recorded, or the array is over


@dataclass(frozen=True, slots=True)
class NodeOutage:
    """A node that is not ready, or does not exist, since an instant."""

    name: str
    since: float
    is_gone: bool = False
    #: Neither its lease nor a connection shows it: no patience helps.
    is_unreachable: bool = False

    def lost_at(self, policy: JobsPolicy) -> float:
        """Return when it counts as lost."""
        if self.is_unreachable:
            return self.since
        grace = policy.node_gone_grace_seconds if self.is_gone else policy.node_lost_grace_seconds
        return self.since + grace

    def is_lost(self, policy: JobsPolicy, now: float) -> bool:
        """True once it counts as lost."""
        return now >= self.lost_at(policy)


@dataclass(frozen=True, slots=True)
class OwnedObject:
    """A ConfigMap, Service or PodGroup of the job; `attempt` 0 when it belongs to all of them."""

    name: str
    uid: str
    attempt: int
    is_terminating: bool = False


class Refusal(Enum):
    """Why the API refused a pod: its name, itself, or something else that may change.

    The values are the ends of attempts that follow.
    """

    NAME_TAKEN = EndReason.NAME_TAKEN
    POD_REJECTED = EndReason.POD_REJECTED
    POD_HELD_BACK = EndReason.POD_HELD_BACK
    QUOTA_EXCEEDED = EndReason.QUOTA_EXCEEDED
    POLICY_REFUSED = EndReason.POLICY_REFUSED


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a dry run of the job's pods: for what they wait, or None."""

    at: float
    waits_for: Reason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodRefusal:
    """A pod of `attempt` that cannot be made; known to the shell only, which finds out again.

    One that is held back is tried again from `retry_at` on, and has been refused without a success
    in between since `since`.
    """

    attempt: int
    refusal: Refusal
    message: str
    since: float = 0.0
    retry_at: float = 0.0

    def ends_at(self, policy: JobsPolicy) -> float:
        """Return when the attempt ends for it: at once, but for what may change."""
        is_patient = self.refusal is Refusal.POD_HELD_BACK
        return self.since + (policy.held_back_patience_seconds if is_patient else 0.0)


class JobView(msgspec.Struct, frozen=True):
    """The input of `decide_job`. Nothing here is changed by a decision.

    `node_troubles` holds the troubled ones among the nodes of the job's placement and pods, in
    name order. `dependencies` holds the state of each job in `spec.after`; it may be left
    empty once the job is admitted. `counts_written_at` is when mere counts were last written.
    """

    job: Job
    policy: JobsPolicy
    now: float
    pods: JobPods = msgspec.field(default_factory=JobPods)
    config_maps: Mapping[str, OwnedObject] = msgspec.field(default_factory=dict)
    services: Mapping[str, OwnedObject] = msgspec.field(default_factory=dict)
    #: PodGroups of native attempts.
    pod_groups: Mapping[str, OwnedObject] = msgspec.field(default_factory=dict)
    dependencies: Mapping[str, DependencyState] = msgspec.field(default_factory=dict)
    #: When those that have run or ended first did.
    begun: Mapping[str, float] = msgspec.field(default_factory=dict)
    #: Names along a ring in which the job waits for itself.
    cycle: Sequence[str] = ()
    element: ElementState = ElementState.NONE
    #: The cluster's cordoned nodes: a member that runs there may stay, no pod is made there.
    cordoned: Collection[str] = ()
    #: Nodes with a test that leaves for members: no pod is made there before it has.
    yielding: Collection[str] = ()
    #: Nodes whose provider has announced maintenance, and when it is.
    closing: Mapping[str, Window] = msgspec.field(default_factory=dict)
    node_troubles: Mapping[str, NodeOutage] = msgspec.field(default_factory=dict)
    pod_refusal: PodRefusal | None = None
    probe: Probe | None = None
    #: How members are bound on the nodes that say it by their label.
    bindings: Mapping[str, Binding] = msgspec.field(default_factory=dict)
    #: Resources of containers that devices serve: kube-scheduler allocates them.
    served: ResourceNames = ()
    #: Nodes that are spares.
    spares: Collection[str] = ()
    #: More jobs of its namespace have ended after it than are kept; and some job waits for it.
    is_surplus: bool = False
    is_waited_for: bool = False
    counts_written_at: float = 0.0
    #: A pod that was asked for, without an answer, may come until then.
    late_until: float = 0.0

    @property
    def draft(self) -> StatusDraft:
        """The status to go on from."""
        return StatusDraft.of(self.job, self.now)

    def is_on_lost_node(self, member: MemberPod) -> bool:
        """True when the node of this member counts as lost."""
        trouble = self.node_troubles.get(member.node)
        return trouble is not None and trouble.is_lost(self.policy, self.now)

    @property
    def current(self) -> AttemptPods:
        """The pods of the current attempt."""
        return self.pods.attempt(self.job.status.attempt)

    @property
    def start_seen_at(self) -> float | None:
        """When the last member of the current attempt was seen to start; None: it is not known, or
        the clock was set back since.
        """
        seen_at = self.current.start_seen_at
        return None if seen_at is None or seen_at > self.now else seen_at

    @property
    def member_counts(self) -> MemberCounts:
        """The counts of the current attempt; members without a pod are pending."""
        counts = self.current.counts
        return member_counts(
            self.job.member_count,
            running=counts[MemberPhase.RUNNING],
            succeeded=counts[MemberPhase.SUCCEEDED],
            failed=counts[MemberPhase.FAILED],
        )

    @property
    def reported(self) -> Progress | None:
        """What members of the current attempt have reported, pods that are gone included."""
        pods = self.pods
        return pods.progress if pods.progress_attempt == self.job.status.attempt else None

    @property
    def run(self) -> RunFacts | None:
        """What a member of the current attempt reported of the run, also once its pod is gone."""
        pods = self.pods
        return pods.run if pods.run_of[0] == self.job.status.attempt else None

    @property
    def own_work(self) -> WorkTimes | None:
        """The own work of members of the current attempt; None where none reported any."""
        pods = self.pods
        return pods.work if pods.work_attempt == self.job.status.attempt else None

    @property
    def refused(self) -> PodRefusal | None:
        """What keeps the API from taking the current attempt's pods; None when nothing does."""
        refusal = self.pod_refusal
        return refusal if refusal and refusal.attempt == self.job.status.attempt else None

    @property
    def is_deleted(self) -> bool:
        """True when the job is being deleted: only our finalizer keeps it."""
        return self.job.metadata.deletion_timestamp is not None
