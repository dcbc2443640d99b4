"""The Job kind (fairlead.dev/v1alpha1, short name fj): a gang of members that start together.

Two controllers write `status`, both by compare-and-swap on the resourceVersion that they read:

    scheduler         `placement`, `nomination`, `preemption`, `verdict` and the condition Placed.
                      Its placement of the first attempt also opens the attempt: record in
                      `attempts`, condition Running, `members` and `state`
    jobs controller   everything else

The hand-over between the two is `attempt`: the jobs controller raises `status.attempt` (1 when the
job is admitted, +1 after a failure and its back-off); the scheduler answers with a placement whose
`attempt` is equal; only then does the jobs controller create that attempt's pods.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.api.jobs.after import After
from fairlead.api.jobs.attempt import Attempt, Cause, MemberCounts, Progress
from fairlead.api.jobs.notify import NOTIFY_MAX, NoticeRecord, Notify
from fairlead.api.jobs.placement import EmptySeats, FormerPlaces, Nomination, Placement, Preemption
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.jobs.run_facts import RunFacts
from fairlead.api.jobs.topology import Topology
from fairlead.api.jobs.use import IdleRecord
from fairlead.api.kubernetes.core import PodTemplate
from fairlead.api.meta import Condition, Instant, ObjectMeta, OwnerReference, Wire
from fairlead.api.names import API_VERSION
from fairlead.api.values.bounds import (
    AFTER_MAX,
    BACKOFF_SECONDS_MAX,
    INSTANT_MAX,
    PATH_MAX,
    Count,
    LabelKey,
    Name,
    ObjectName,
    Positive,
    doc,
)

MEMBERS_MAX = 100_000
ROLES_MAX = 256
#: Of one role.
CLAIM_TEMPLATES_MAX = 8
#: What the API server takes as the kind of a definition, and as its group and version.
_KIND_PATTERN = "^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$"
_API_VERSION_PATTERN = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z]([-a-z0-9]*[a-z0-9])?$"


class RestartPolicy(Enum):
    """What happens when a member fails."""

    GANG = "Gang"
    MEMBER = "Member"
    NEVER = "Never"


class ClaimTemplate(Wire, frozen=True):
    """A claim that each member of a role has of its own, in all attempts, as in a StatefulSet."""

    metadata: Annotated[
        ObjectMeta,
        doc(
            "Its name is that of the volume in the pods; the claims are named "
            "<name>-<job>-<role>-<index>. Labels and annotations are those of the claims."
        ),
    ]
    spec: Annotated[
        dict[str, Any],
        doc(
            "Spec of a PersistentVolumeClaim: accessModes, resources.requests.storage, "
            "storageClassName ..."
        ),
    ]


class Role(Wire, frozen=True):
    """Members of a role are identical; rank order is role order, then index."""

    name: Annotated[Name, doc("Name of the role, a DNS label, unique in the job.")]
    template: Annotated[PodTemplate, doc("The pod that each member becomes.")]
    count: Annotated[
        int, Meta(ge=1, le=MEMBERS_MAX, description="Number of members. Defaults to 1.")
    ] = 1
    min_count: Annotated[
        Annotated[int, doc(ge=1, maximum=MEMBERS_MAX)] | None,
        doc(
            "Least number of members. Each attempt begins with as many as have room then, from "
            "this number to count, and keeps their number. Defaults to count."
        ),
    ] = None

    volume_claim_templates: Annotated[
        Annotated[tuple[ClaimTemplate, ...], Meta(max_length=CLAIM_TEMPLATES_MAX)],
        doc(
            "Claims that each member has of its own: made with its first pod, kept for all "
            "attempts, deleted with the job. A member comes back to where its volumes are."
        ),
    ] = ()

    @property
    def least(self) -> int:
        """The members without which no attempt begins."""
        return self.count if self.min_count is None else self.min_count


class Restart(Wire, frozen=True):
    """How the job restarts after a failure."""

    policy: Annotated[
        RestartPolicy,
        doc("Gang restarts all members together, Member only the lost one, Never none."),
    ] = RestartPolicy.GANG
    limit: Annotated[
        Count,
        doc(
            "Restarts allowed after failures of the user's own program. Default 0: such a failure "
            "ends the job."
        ),
    ] = 0
    infrastructure_limit: Annotated[
        Count, doc("Restarts allowed for failures that a node caused. Default 100.")
    ] = 100
    backoff_seconds: Annotated[
        int,
        doc(
            "Wait before the first restart; doubles each time. Default 1.",
            ge=0,
            maximum=BACKOFF_SECONDS_MAX,
        ),
    ] = 1
    backoff_seconds_max: Annotated[
        int,
        doc(
            "Longest wait between restarts, in seconds. Default 300.",
            ge=0,
            maximum=BACKOFF_SECONDS_MAX,
        ),
    ] = 300


class Checkpoint(Wire, frozen=True):
    """Where checkpoints are kept; the directory stays the same for all attempts.

    Members find it in FAIRLEAD_CHECKPOINT_DIR and report progress by appending JSON lines
    `{"step": 1200, "checkpoint": true}` to FAIRLEAD_PROGRESS_FILE.
    """

    claim_name: Annotated[
        ObjectName,
        doc(
            "PersistentVolumeClaim to keep checkpoints on. Default: a directory of the cluster's "
            "own."
        ),
    ] = ""
    path: Annotated[
        str,
        doc("Absolute directory to use instead, such as a shared file system.", maxLength=PATH_MAX),
    ] = ""


class Adopts(Wire, frozen=True):
    """The object of another tool whose pods a job represents."""

    kind: Annotated[
        ObjectName, doc("Kind of the object, such as StatefulSet.", pattern=_KIND_PATTERN)
    ]
    # No pattern: groups that pods name have names of any text. They are quoted where they are sent.
    name: Annotated[ObjectName, doc("Name of the object.")]
    api_version: Annotated[
        LabelKey,
        doc("Group and version of the object. Defaults to v1.", pattern=_API_VERSION_PATTERN),
    ] = "v1"
    uid: Annotated[ObjectName, doc("Its uid; empty where it is not known.")] = ""


class JobSpec(Wire, frozen=True):
    """What the user wants to run."""

    roles: Annotated[
        tuple[Role, ...],
        Meta(
            min_length=1,
            description="The roles of the gang. All members of all roles start together. Cannot "
            "be changed.",
            extra_json_schema={"maxItems": ROLES_MAX},
        ),
    ]
    team: Annotated[Name, doc("Team that the job belongs to. No default.")] = ""
    reservation: Annotated[
        Name,
        doc(
            "Reservation of the team that the job uses: it runs on the nodes of that one only, "
            "and starts while it lasts. No default."
        ),
    ] = ""
    priority_class_name: Annotated[
        ObjectName,
        doc(
            "PriorityClass of the job and of its pods, which gives the job its priority. Default: "
            "the cluster's default class, else priority 0."
        ),
    ] = ""
    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None,
        doc(
            "Higher goes first. Follows from the PriorityClass: leave it out. Any other number "
            "than the class's is refused, and has no effect."
        ),
    ] = None
    time_limit_seconds: Annotated[
        Positive | None,
        doc(
            "Longest run time of one attempt, in seconds; an attempt that exceeds it fails. No "
            "default: without limit."
        ),
    ] = None
    topology: Annotated[
        Topology | None,
        doc("Keep the gang within one domain of the cluster. No default. Cannot be changed."),
    ] = None
    restart: Annotated[Restart, doc("What happens after a failure, how often and how soon.")] = (
        Restart()
    )
    checkpoint: Annotated[
        Checkpoint | None,
        doc(
            "Where checkpoints are kept. Default: a directory of the cluster's own, the same for "
            "all attempts. Cannot be changed."
        ),
    ] = None
    after: Annotated[
        tuple[After, ...], doc("Jobs to wait for; all must hold. No default.", maxItems=AFTER_MAX)
    ] = ()
    not_before: Annotated[
        Instant | None,
        doc(
            "The first attempt does not begin before this instant. No default.",
            maxLength=INSTANT_MAX,
        ),
    ] = None
    deadline: Annotated[
        Instant | None,
        doc(
            "Cancel the job once an attempt that begins now could not end by this instant, going "
            "by its time limit, which it needs. An attempt that has begun goes on. No default.",
            maxLength=INSTANT_MAX,
        ),
    ] = None
    suspend: Annotated[
        bool, doc("True: give the nodes back, keep the job, start no pods. Default false.")
    ] = False
    cancel: Annotated[
        bool,
        doc(
            "True: stop for good. The job ends with the state Cancelled, by the condition Failed "
            "with the reason Cancelled. Default false."
        ),
    ] = False
    requeue_attempt: Annotated[
        Positive | None,
        doc(
            "End the attempt of this number, if it is the present one, and queue the job again; "
            "it counts against no limit. Also where the program ends by itself meanwhile. No "
            "default."
        ),
    ] = None
    ttl_seconds_after_finished: Annotated[
        Count | None, doc("Delete the object this many seconds after its end. Default: a setting.")
    ] = None
    notify: Annotated[
        tuple[Notify, ...],
        doc("Who is notified of its events. Cannot be changed.", maxItems=NOTIFY_MAX),
    ] = ()
    preflight: Annotated[
        PreflightSuite | None,
        doc(
            "Test the nodes before the program starts, for at most 30 s: Quick (CPU, memory and "
            "GPUs of each member), Network (and the connections between them), None. A node that "
            "fails is exchanged, which counts against no limit. Default: of the team or the "
            "cluster, else None. Cannot be changed."
        ),
    ] = None
    adopts: Annotated[
        Adopts | None,
        doc(
            "The object of another tool whose pods this job places: Fairlead makes such jobs and "
            "no pods for them. No default. Cannot be changed."
        ),
    ] = None


class VerdictStatus(Wire, frozen=True):
    """The scheduler's last word, as data: `facts` are the numbers behind the reason."""

    outcome: Annotated[
        str,
        doc(
            "Placed, Waiting (time may help), Blocked (a user must act) or Impossible (the "
            "request must change)."
        ),
    ]
    reason: Annotated[str, doc("One word for why, such as InsufficientCapacity or Held.")]
    facts: Annotated[
        dict[str, int | float | str | bool], doc("The numbers and names behind the reason.")
    ] = {}
    since: Annotated[Instant | None, doc("Since when this reason has held.")] = None


class MemberRestart(Wire, frozen=True):
    """A member that failed and is being replaced while the others run (policy Member)."""

    role: Annotated[str, doc("Role of the member.")]
    index: Annotated[int, doc("Index of the member in its role.")]
    pod_uid: Annotated[str, doc("The pod that failed; it was counted once.")]
    cause: Annotated[Cause, doc("Whose fault it was.")]
    reason: Annotated[str, doc("One word for how it ended.")] = ""
    restart_at: Annotated[Instant | None, doc("When the back-off of the member ends.")] = None


class JobStatus(Wire, frozen=True):
    """What is so, written by Fairlead's controllers."""

    observed_generation: Annotated[
        int, doc("The metadata.generation that this status is about.")
    ] = 0
    number: Annotated[
        int,
        doc("Number of the job in the cluster, never used twice, as the job id of Slurm. 0: none."),
    ] = 0
    # Summary for people and columns, see JobState; never the source of truth.
    state: Annotated[
        str,
        doc(
            "Summary for people: Held, Waiting, Starting, Running, Restarting, Stopping, "
            "Succeeded, Failed or Cancelled."
        ),
    ] = ""
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "The facts behind the state: Admitted, Placed, Running, FailureTarget (it fails once "
            "its pods are gone), Succeeded, Failed."
        ),
    ] = ()
    attempt: Annotated[int, doc("Number of the current attempt; 0 before the job is admitted.")] = 0
    placement: Annotated[
        Placement | None, doc("The nodes that are reserved for the members. Absent: none are.")
    ] = None
    seats: Annotated[
        tuple[EmptySeats, ...],
        doc("Seats without a member, of a job that represents pods of another tool."),
    ] = ()
    former_places: Annotated[
        tuple[FormerPlaces, ...],
        doc(
            "Where members of another tool may still be, or have ended, after the placement moved "
            "or was released."
        ),
    ] = ()
    nomination: Annotated[
        Nomination | None,
        doc("The place that is kept for the job until others have given it back."),
    ] = None
    preemption: Annotated[
        Preemption | None, doc("The job that this one gives its nodes back to. Absent: to none.")
    ] = None
    verdict: Annotated[VerdictStatus | None, doc("Why the job waits, or that it is placed.")] = None
    attempts: Annotated[
        tuple[Attempt, ...], doc("The latest 20 attempts, oldest first.")
    ] = ()  # at most bounds.ATTEMPTS_MAX
    user_failures: Annotated[int, doc("Failures that count against restart.limit.")] = 0
    infrastructure_failures: Annotated[
        int, doc("Failures that count against restart.infrastructureLimit.")
    ] = 0
    restart_at: Annotated[
        Instant | None, doc("When the back-off ends and the next attempt starts.")
    ] = None
    member_restarts: Annotated[
        tuple[MemberRestart, ...], doc("Members that are being replaced, at most 100 at a time.")
    ] = ()  # at most bounds.MEMBER_RESTARTS_MAX
    members: Annotated[MemberCounts, doc("Members of the current attempt, counted by state.")] = (
        MemberCounts()
    )
    progress: Annotated[Progress | None, doc("Latest progress that was reported.")] = None
    run: Annotated[
        RunFacts | None,
        doc("What the program reported of its run: of several members the one of lowest rank."),
    ] = None
    notices: Annotated[
        tuple[NoticeRecord, ...], doc("How far the delivery of its notices is.")
    ] = ()
    idle: Annotated[
        IdleRecord | None, doc("What the idle policy warned of. Absent: of nothing.")
    ] = None
    submitted_at: Annotated[Instant | None, doc("When the job was first seen.")] = None
    started_at: Annotated[Instant | None, doc("When the gang ran for the first time.")] = None
    finished_at: Annotated[Instant | None, doc("When the job ended for good.")] = None

    @property
    def done(self) -> frozenset[tuple[str, int]]:
        """The seats (role, index) whose members are recorded to have ended well."""
        return frozenset((each.role, index) for each in self.seats for index in each.done)

    @property
    def vacant(self) -> frozenset[tuple[str, int]]:
        """The seats (role, index) whose nodes the placement no longer holds."""
        return frozenset((each.role, index) for each in self.seats for index in each.vacant)

    @property
    def current_attempt(self) -> Attempt | None:
        """The record of the current attempt; None before it is opened."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.number == self.attempt else None


class JobState(Enum):
    """The STATE column, computed from conditions."""

    HELD = "Held"
    WAITING = "Waiting"  # not placed: see verdict
    STARTING = "Starting"  # placed, not all members running
    RUNNING = "Running"
    RESTARTING = "Restarting"
    STOPPING = "Stopping"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class Job(Wire, frozen=True):
    """A gang job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = msgspec.field(default_factory=lambda: JobSpec(roles=()))
    status: JobStatus = JobStatus()

    @property
    def is_finished(self) -> bool:
        """True once the job has ended for good."""
        for condition in self.status.conditions:
            if condition.type in ("Succeeded", "Failed") and condition.status == "True":
                return True
        return False

    @property
    def is_elastic(self) -> bool:
        """True for a job whose attempts may have fewer members than its roles count."""
        for role in self.spec.roles:  # asked tens of times for each decision: no generator
            if role.min_count is not None and role.min_count < role.count:
                return True
        return False

    @property
    def sizes(self) -> dict[str, int]:
        """Members by role: of the placement, else of an attempt that goes on or was the last, else
        the most.
        """
        sizes = {role.name: role.count for role in self.spec.roles}
        placement, record = self.status.placement, self.status.current_attempt
        if not self.is_elastic:
            return sizes
        if placement is not None:
            return sizes | placement.sizes
        is_over = record is None or (record.finished_at is not None and not self.is_finished)
        return sizes if record is None or is_over else sizes | record.sizes

    @property
    def least_count(self) -> int:
        """The members without which no attempt begins."""
        return sum(role.least for role in self.spec.roles)

    @property
    def member_count(self) -> int:
        """All members of all roles, as in `sizes`."""
        if self.is_elastic:
            return sum(self.sizes.values())
        count = 0
        for role in self.spec.roles:
            count += role.count
        return count


def owner_reference_of(metadata: ObjectMeta) -> OwnerReference | None:
    """Return the reference to the Fairlead job that controls the object, or None."""
    for owner in metadata.owner_references:
        if owner.controller and owner.kind == "Job" and owner.api_version == API_VERSION:
            return owner
    return None
