"""The Team kind (fairlead.dev/v1alpha1, cluster scope): who belongs to it, and its shares.

An administrator writes `spec`; the teams controller writes `status`. docs/design/teams.md has the
rules that follow from it.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

from msgspec import Meta

from fairlead.api.jobs.job_defaults import JobDefaults, JobMaxima
from fairlead.api.meta import Condition, Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import INT32_MAX, NAME_MAX, Name, doc
from fairlead.api.values.egress import TrafficDirection

SHARES_MAX = 64
NAMESPACES_MAX = 1_000
SUBJECTS_MAX = 10_000
RESERVATIONS_MAX = 64
NODE_NAMES_MAX = 1_000
WEIGHT_MAX = 1_000
HALF_LIFE_DAYS_MAX = 3_650

_Limit: TypeAlias = Annotated[int, doc(minimum=0, maximum=INT32_MAX)] | None
_Pool: TypeAlias = Annotated[
    Name, doc("Only nodes with the label fairlead.dev/pool of this value. Default: any pool.")
]
_Selector: TypeAlias = Annotated[
    dict[str, str], doc("Only nodes with all of these labels. Default: any.")
]


class Subjects(Wire, frozen=True):
    """People, by the names that the API server authenticates."""

    users: Annotated[
        tuple[str, ...], doc("Names of users. No default.", maxItems=SUBJECTS_MAX)
    ] = ()
    groups: Annotated[
        tuple[str, ...], doc("Names of groups of users. No default.", maxItems=SUBJECTS_MAX)
    ] = ()


class Share(Wire, frozen=True):
    """Nodes that are promised to the team: an amount of those that match."""

    pool: _Pool = ""
    node_selector: _Selector = {}
    nodes: Annotated[_Limit, doc("The amount in nodes. Set either nodes or gpus.")] = None
    gpus: Annotated[
        _Limit,
        doc("The amount in GPUs; rounded up to whole nodes. Set either nodes or gpus."),
    ] = None


class JobLimits(Wire, frozen=True):
    """How much of the cluster jobs may take at a time. No limit has a default."""

    running: Annotated[_Limit, doc("Jobs that hold nodes at a time.")] = None
    waiting: Annotated[
        _Limit,
        doc(
            "Jobs in the queue at a time: those of highest priority, and of these the oldest. "
            "Others join it as these leave it."
        ),
    ] = None
    submitted: Annotated[
        _Limit, doc("Jobs that have not ended. Further ones are refused when they are made.")
    ] = None
    gpus: Annotated[_Limit, doc("GPUs that jobs hold at a time.")] = None


class Budget(Wire, frozen=True):
    """How much the jobs of a team may use over time."""

    gpu_hours: Annotated[
        _Limit,
        doc(
            "GPU-hours that its jobs have held, the past halved every halfLifeDays. From then on "
            "none of its jobs that ask for GPUs starts; those that run go on. No default: no "
            "budget."
        ),
    ] = None
    half_life_days: Annotated[
        int,
        doc(
            "After so many days what was used counts half. Default 30.",
            minimum=1,
            maximum=HALF_LIFE_DAYS_MAX,
        ),
    ] = 30


class TeamNetwork(Wire, frozen=True):
    """What the team may use of the network, over all nodes together."""

    internet_egress: Annotated[
        str,
        doc(
            "What its pods may send to the internet, in bits per second such as 10G. It is divided "
            "over the nodes whose agents limit traffic. No default: no limit.",
            maxLength=NAME_MAX,
        ),
    ] = ""
    internet_ingress: Annotated[
        str,
        doc(
            "What its pods may receive from the internet, in the same way, as far as senders heed "
            "that packets are dropped. No default: no limit.",
            maxLength=NAME_MAX,
        ),
    ] = ""

    def internet(self, direction: TrafficDirection) -> str:
        """Return the budget of a direction, "" for none."""
        is_egress = direction is TrafficDirection.EGRESS
        return self.internet_egress if is_egress else self.internet_ingress


class Reservation(Wire, frozen=True):
    """Nodes that only the team's jobs which name the reservation may use, for some time."""

    name: Annotated[Name, doc("Name within the team; jobs name it in spec.reservation.")]
    start_time: Annotated[Instant, doc("When it begins.")]
    end_time: Annotated[Instant, doc("When it ends. What still runs then is left alone.")]
    pool: _Pool = ""
    node_selector: _Selector = {}
    node_names: Annotated[
        tuple[str, ...], doc("Only nodes of these names. Default: any.", maxItems=NODE_NAMES_MAX)
    ] = ()


class QueueingStrategy(Enum):
    """Whether a job of the team may start before an earlier one that waits for nodes."""

    BEST_EFFORT_FIFO = "BestEffortFIFO"
    STRICT_FIFO = "StrictFIFO"


class IntruderPolicy(Enum):
    """What happens to pods on the team's nodes that may not be there."""

    REPORT = "Report"
    EVICT = "Evict"


class TeamSpec(Wire, frozen=True):
    """Who belongs to the team, and what it is promised."""

    members: Annotated[
        Subjects,
        doc(
            "Who may submit for the team where its namespace belongs to several teams. Default: "
            "who may create jobs in the namespace."
        ),
    ] = Subjects()
    admins: Annotated[Subjects, doc("Who answers for the team; they count as members.")] = (
        Subjects()
    )
    namespaces: Annotated[
        tuple[str, ...],
        doc(
            "Namespaces whose jobs belong to the team. A namespace may belong to several teams; a "
            "job then names its own in spec.team.",
            maxItems=NAMESPACES_MAX,
        ),
    ] = ()
    shares: Annotated[
        tuple[Share, ...],
        doc("Nodes that are promised to the team. No default.", maxItems=SHARES_MAX),
    ] = ()
    reservations: Annotated[
        tuple[Reservation, ...],
        doc(
            "Nodes that are for jobs of the team for some time. No default.",
            maxItems=RESERVATIONS_MAX,
        ),
    ] = ()
    weight: Annotated[
        int,
        doc(
            "Weight in the fair share between teams of jobs of equal priority. Default 1.",
            minimum=1,
            maximum=WEIGHT_MAX,
        ),
    ] = 1
    borrow_priority_max: Annotated[
        int,
        Meta(
            ge=-(2**31),
            le=2**31 - 1,
            description="Jobs of at most this priority may run on idle nodes of other teams, and "
            "are preempted when their owner needs them. Default 0.",
        ),
    ] = 0
    borrow_limit_nodes: Annotated[
        _Limit,
        doc(
            "Nodes of other teams that the team may use at a time. No default: no limit. 0: it "
            "borrows none."
        ),
    ] = None
    lend_limit_nodes: Annotated[
        _Limit,
        doc(
            "Nodes of the team that others may use at a time. No default: no limit. 0: it lends "
            "none."
        ),
    ] = None
    queueing_strategy: Annotated[
        QueueingStrategy,
        doc(
            "BestEffortFIFO, the default: a job may start before an earlier one of the team that "
            "waits for nodes. StrictFIFO: it does not where it could use nodes that the earlier "
            "one could use."
        ),
    ] = QueueingStrategy.BEST_EFFORT_FIFO
    limits: Annotated[JobLimits, doc("Limits of all jobs of the team together.")] = JobLimits()
    user_limits: Annotated[JobLimits, doc("Limits of the jobs of each user in the team.")] = (
        JobLimits()
    )
    budget: Annotated[Budget, doc("GPU-hours that the team may use over time. No default.")] = (
        Budget()
    )
    network: Annotated[
        TeamNetwork, doc("What the team may use of the network. No default: no limit.")
    ] = TeamNetwork()
    job_defaults: Annotated[
        JobDefaults,
        doc(
            "What jobs of the team get where they say nothing themselves; before that of the "
            "cluster's settings. No default."
        ),
    ] = JobDefaults()
    job_maxima: Annotated[
        JobMaxima,
        doc("What jobs of the team may ask for at most, beside the cluster's settings."),
    ] = JobMaxima()
    intruders: Annotated[
        IntruderPolicy,
        doc(
            "What happens to pods on the team's nodes that may not be there. Report, the default: "
            "events and status.use.intruders say so. Evict: those that were bound while the node "
            "was the team's are evicted as well, within their disruption budgets."
        ),
    ] = IntruderPolicy.REPORT


class ShareStatus(Wire, frozen=True):
    """What the team has of one share; in the order of spec.shares."""

    nodes: Annotated[int, doc("Healthy nodes that carry the team's taint for it.")] = 0
    gpus: Annotated[int, doc("GPUs of these nodes.")] = 0
    nodes_missing: Annotated[
        int, doc("Nodes that the share asks for and no healthy node could be given.")
    ] = 0
    gpus_missing: Annotated[
        int, doc("GPUs that a share in GPUs asks for and no healthy node has.")
    ] = 0


class TeamUse(Wire, frozen=True):
    """What the team's jobs and pods hold, and who holds the team's nodes."""

    jobs_placed: Annotated[int, doc("Jobs that hold nodes.")] = 0
    jobs_waiting: Annotated[int, doc("Jobs that wait for nodes.")] = 0
    jobs_submitted: Annotated[int, doc("Jobs that have not ended.")] = 0
    gpus: Annotated[int, doc("GPUs that the team's jobs hold.")] = 0
    nodes_used: Annotated[int, doc("Nodes of the team that its own jobs and pods use.")] = 0
    nodes_borrowed: Annotated[
        int, doc("Nodes of other teams that the team's jobs and pods use.")
    ] = 0
    nodes_lent: Annotated[int, doc("Nodes of the team that jobs and pods of other teams use.")] = 0
    nodes_lent_to_pods: Annotated[
        int,
        doc(
            "Those of the lent nodes that no job holds, only pods that Fairlead does not place: "
            "no job of the team takes them back."
        ),
    ] = 0
    intruders: Annotated[
        int, doc("Pods on the team's nodes that may not be there; see spec.intruders.")
    ] = 0
    #: Of the fair share: `FairShareOrder` continues from it after a restart.
    dominant_share_seconds: Annotated[
        float,
        doc(
            "Use of the dominant resource as a part of the cluster, summed over time and halved "
            "every half-life: what the fair share compares."
        ),
    ] = 0.0
    gpu_hours: Annotated[
        float,
        doc("GPU-hours that the team's jobs have held, halved every half-life of its budget."),
    ] = 0.0
    as_of: Annotated[Instant | None, doc("When these numbers were taken.")] = None


class TeamStatus(Wire, frozen=True):
    """What is so, written by the teams controller."""

    observed_generation: Annotated[
        int, doc("The metadata.generation that this status is about.")
    ] = 0
    conditions: Annotated[
        tuple[Condition, ...], doc("Ready: the team is valid, and its shares are met.")
    ] = ()
    nodes: Annotated[int, doc("Healthy nodes that carry the team's taint.")] = 0
    nodes_missing: Annotated[
        int, doc("Nodes that the shares ask for and no healthy node could be given.")
    ] = 0
    shares: Annotated[tuple[ShareStatus, ...], doc("Each share, in the order of spec.shares.")] = ()
    use: Annotated[TeamUse, doc("What the team uses, borrows and lends.")] = TeamUse()


class Team(Wire, frozen=True):
    """A team of users with shares of the fleet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TeamSpec = TeamSpec()
    status: TeamStatus = TeamStatus()
