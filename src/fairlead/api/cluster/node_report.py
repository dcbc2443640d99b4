"""The NodeReport kind (fairlead.dev/v1alpha1, cluster scope): what the agent of a node last said.

One for each node that has an agent, of the node's name. A collector alone writes its status, when
something has changed and from time to time to confirm it. Its spec is what the controllers answer:
the node's shares of teams' budgets of traffic. Its size is bounded.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Self, TypeAlias

from fairlead.api.cluster.team import NAMESPACES_MAX
from fairlead.api.meta import Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import INT32_MAX, NAME_MAX, OBJECT_NAME_MAX, Name, doc
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.sketch import TEXT_MAX, TEXT_PATTERN

#: Faults of one report: the worst ones. The agent keeps more.
REPORTED_FAULTS_MAX = 100
#: There are 25 sources, and etcd takes no larger report than one with all that is bounded here.
REPORTED_SOURCES_MAX = 40
REPORTED_CHECKS_MAX = 16
#: Characters of the texts of a fault; longer ones of others are cut where they are found.
EVIDENCE_MAX = 240
COMPONENT_MAX = 160
#: The check of a fault that asks for a reboot for the settings of a tuning profile alone.
TUNING_RESTART = "tuning-restart"
#: The check of what the cloud announces: nothing is wrong, and nothing is to be repaired.
CLOUD_MAINTENANCE = "cloud-maintenance"
CODE_MAX = 64
CODES_MAX = 8
CHECK_MAX = 63
WHY_MAX = 200
ID_MAX = 128
REPORTED_SETTINGS_MAX = 64
REPORTED_DIFFERENCES_MAX = 32
VALUE_MAX = 64
FACTS_MAX = 32
#: Teams and pods of which the traffic to the internet is reported.
REPORTED_TEAMS_MAX = 64
REPORTED_PODS_MAX = 20
#: Destinations in both directions: classes of addresses with a budget of the whole cluster.
DESTINATIONS_MAX = 16
REPORTED_CLASSES_MAX = 8
#: Lines of traffic: of 32 groups of pods and 8 classes.
REPORTED_FLOWS_MAX = 192
#: Lines of pods that have ended: 64 pods, most of them of one class.
REPORTED_ENDED_MAX = 96
CLASS_NAME_MAX = 20
BLIND_SPOTS_MAX = 16
#: Metrics of exporters that are reported, and their sketches: a metric of a pod, or of the rest.
EXPORTED_METRICS_MAX = 8
SKETCHES_MAX = 64
#: Values of a metric that a node has in a window, so that none outweighs the others; its length.
EXPORTED_VALUES_MAX = 1024
EXPORTED_SECONDS_MAX = 600
METRIC_MAX = 128
METRIC_PATTERN = "^[A-Za-z_:][A-Za-z0-9_:]*$"
#: A character of other names may have six bytes in JSON, and a report has an end.
_PLAIN = "^[-A-Za-z0-9_.]*$"
PlainName: TypeAlias = Annotated[str, doc(maxLength=NAME_MAX, pattern=_PLAIN)]
PlainObjectName: TypeAlias = Annotated[str, doc(maxLength=OBJECT_NAME_MAX, pattern=_PLAIN)]


class Severity(Enum):
    """How bad a fault is; `rank` orders them."""

    _value_: str
    rank: int

    def __new__(cls, value: str, rank: int) -> Self:
        """Make a member."""
        severity = object.__new__(cls)
        severity._value_, severity.rank = value, rank
        return severity

    INFO = "Info", 0
    WARNING = "Warning", 1
    CRITICAL = "Critical", 2

    @property
    def is_sick(self) -> bool:
        """True when a machine with such a fault is not healthy."""
        return self.rank > 0


class Recovery(Enum):
    """What ends a fault."""

    BOOT = "Boot"  # the machine has started again
    COUNTER_RESET = "CounterReset"  # the hardware's counter began again, or the machine did
    STABLE_TIME = "StableTime"  # it was looked for, and not seen, for so long without a break
    PERSON = "Person"  # somebody says so


class Action(Enum):
    """What should be done about a fault, from least to most.

    `recovery` is what ends the fault of an event that asks for the action.
    """

    _value_: str
    rank: int
    recovery: Recovery

    def __new__(cls, value: str, rank: int, recovery: Recovery) -> Self:
        """Make a member."""
        action = object.__new__(cls)
        action._value_, action.rank, action.recovery = value, rank, recovery
        return action

    NONE = "None", 0, Recovery.STABLE_TIME
    WATCH = "Watch", 1, Recovery.STABLE_TIME
    RESET_GPU = "ResetGPU", 2, Recovery.BOOT
    REBOOT = "Reboot", 3, Recovery.BOOT
    REPLACE = "Replace", 4, Recovery.PERSON
    ASK_PERSON = "AskPerson", 5, Recovery.PERSON

    @property
    def asks(self) -> bool:
        """True when something is to be done beyond looking."""
        return self.rank > Action.WATCH.rank


class SourceState(Enum):
    """How a source of the agent does, which says nothing of the machine."""

    OK = "Ok"
    SKIPPED = "Skipped"  # the machine lacks it, or nothing is expected of it
    BLIND = "Blind"  # it should be there, and cannot be read
    LOSSY = "Lossy"  # something was lost before it was read
    HUNG = "Hung"  # a read did not return in time
    STALE = "Stale"  # it was not read for much longer than it should be


class TuningMode(Enum):
    """What an agent does about settings of its machine that are not as the profile says."""

    VERIFY = "verify"
    APPLY = "apply"


class SettingState(Enum):
    """How a setting of a machine does, `is_drift`: it is not as the profile says."""

    _value_: str
    is_drift: bool

    def __new__(cls, value: str, is_drift: bool) -> Self:  # noqa: FBT001
        """Make a member."""
        state = object.__new__(cls)
        state._value_, state.is_drift = value, is_drift
        return state

    AS_WANTED = "AsWanted", False
    DIFFERS = "Differs", True
    SET_BY_HAND = "SetByHand", True  # it differs, and a person set it
    REFUSED = "Refused", True  # the write failed, or the kernel made another value of it
    MISSING = "Missing", True  # the machine lacks what is required
    ABSENT = "Absent", False  # the machine lacks it, and need not have it
    NOT_JUDGED = "NotJudged", False  # a fact, or the value, is not known
    NOT_FOR_THIS = "NotForThisMachine", False  # `when` is 0
    UNREADABLE = "Unreadable", False


class ReportedFault(Wire, frozen=True):
    """A fault that is open."""

    check: Annotated[str, doc("The check that found it.", maxLength=CHECK_MAX)]
    component: Annotated[str, doc("The part of the machine.", maxLength=COMPONENT_MAX)]
    severity: Annotated[Severity, doc("How bad it is.")]
    action: Annotated[Action, doc("What should be done about it.")]
    recovery: Annotated[Recovery, doc("What ends it.")]
    first_seen: Annotated[Instant, doc("When it was first seen, by the clock of the node.")]
    last_seen: Annotated[Instant, doc("When it was last seen.")]
    codes: Annotated[
        tuple[Annotated[str, doc(maxLength=CODE_MAX)], ...],
        doc("Codes that tell it from others.", maxItems=CODES_MAX),
    ] = ()
    count: Annotated[int, doc("How often it was seen.", ge=0)] = 1
    evidence: Annotated[str, doc("What was seen last.", maxLength=EVIDENCE_MAX)] = ""
    due_time: Annotated[Instant | None, doc("When the machine stops for it, if that is known.")] = (
        None
    )

    @property
    def words(self) -> str:
        """Check, component and codes in one line."""
        return " ".join((self.check, self.component, *self.codes))


class ReportedSource(Wire, frozen=True):
    """A source of the agent that does not simply work."""

    source: Annotated[str, doc("Its name.", maxLength=CHECK_MAX)]
    state: Annotated[SourceState, doc("How it does.")]
    why: Annotated[str, doc("Why.", maxLength=WHY_MAX)] = ""
    checks: Annotated[
        tuple[Annotated[str, doc(maxLength=CHECK_MAX)], ...],
        doc("What it cannot see meanwhile.", maxItems=REPORTED_CHECKS_MAX),
    ] = ()
    lost: Annotated[int, doc("Records that were lost.", ge=0)] = 0


class ReportedSetting(Wire, frozen=True):
    """A setting that is not as the profile says."""

    name: Annotated[str, doc("The setting.", maxLength=COMPONENT_MAX)]
    state: Annotated[SettingState, doc("How it does.")]
    actual: Annotated[str, doc("Its value.", maxLength=VALUE_MAX)] = ""
    wanted: Annotated[str, doc("What the profile says.", maxLength=VALUE_MAX)] = ""
    why: Annotated[str, doc("Why it is so, or the formula.", maxLength=WHY_MAX)] = ""


class ReportedTuning(Wire, frozen=True):
    """What the last look at the settings of the machine found."""

    profile: Annotated[str, doc("The profile.", maxLength=CHECK_MAX)]
    mode: Annotated[TuningMode, doc("What is done about what differs.")]
    facts: Annotated[
        dict[str, int], doc("Facts of which values are formulas.", maxProperties=FACTS_MAX)
    ] = {}
    values: Annotated[
        dict[str, Annotated[str, doc(maxLength=VALUE_MAX)]],
        doc("Values of the settings of the profile.", maxProperties=REPORTED_SETTINGS_MAX),
    ] = {}
    differences: Annotated[
        tuple[ReportedSetting, ...],
        doc("What differs, in the order of the profile.", maxItems=REPORTED_DIFFERENCES_MAX),
    ] = ()
    left_out: Annotated[int, doc("Differences beyond those that are listed.", ge=0)] = 0
    not_judged: Annotated[int, doc("Settings that could not be judged.", ge=0)] = 0


class AgentAnswer(Enum):
    """How the agent answered a request."""

    ACCEPTED = "Accepted"
    DONE = "Done"
    FAILED = "Failed"  # it was tried
    REFUSED = "Refused"  # it cannot be, as the machine is: another action may help
    FORBIDDEN = "Forbidden"  # the agent may not; that says nothing of the machine


class RequestAnswer(Wire, frozen=True):
    """The answer of the agent to the latest request."""

    id: Annotated[str, doc("Id of the request.", maxLength=ID_MAX)]
    answer: Annotated[AgentAnswer, doc("The answer.")]
    message: Annotated[str, doc("Why it was refused, or how it went.", maxLength=WHY_MAX)] = ""


class EgressShare(Wire, frozen=True):
    """What the pods of a team on this node may send to the internet."""

    team: Annotated[Name, doc("The team.")]
    namespaces: Annotated[tuple[Name, ...], doc("Namespaces of the team.", maxItems=NAMESPACES_MAX)]
    bits_per_second: Annotated[int, doc("What they may send.", ge=0)]
    safe_bits_per_second: Annotated[
        int, doc("What they may send once nothing divides the team's budget.", ge=0)
    ]


class DestinationShare(Wire, frozen=True):
    """What all pods on this node together may exchange with a destination."""

    destination: Annotated[
        str, doc("The class of addresses.", maxLength=CLASS_NAME_MAX, pattern=_PLAIN)
    ]
    direction: Annotated[TrafficDirection, doc("egress: what they send; ingress: receive.")]
    bits_per_second: Annotated[int, doc("What they may send or receive.", ge=0)]
    safe_bits_per_second: Annotated[
        int, doc("The same once nothing divides the destination's budget.", ge=0)
    ]
    budget: Annotated[int, doc("What it is a part of, in bits per second.", ge=0)]


class NodeReportSpec(Wire, frozen=True):
    """What the controllers answer the agent, through its collector."""

    egress: Annotated[
        tuple[EgressShare, ...],
        doc("Shares of teams' budgets of traffic to the internet.", maxItems=REPORTED_TEAMS_MAX),
    ] = ()
    egress_at: Annotated[Instant | None, doc("When all shares were last confirmed.")] = None
    ingress: Annotated[
        tuple[EgressShare, ...],
        doc("The same of traffic from the internet.", maxItems=REPORTED_TEAMS_MAX),
    ] = ()
    destinations: Annotated[
        tuple[DestinationShare, ...],
        doc("Shares of the budgets of destinations.", maxItems=DESTINATIONS_MAX),
    ] = ()

    @property
    def has_shares(self) -> bool:
        """True where the node has a share of some budget."""
        return bool(self.egress or self.ingress or self.destinations)

    def shares(self, direction: TrafficDirection) -> tuple[EgressShare, ...]:
        """Return the shares of a direction."""
        return self.egress if direction is TrafficDirection.EGRESS else self.ingress


class ReportedTeamEgress(Wire, frozen=True):
    """What the pods of a team send to the internet, in bits per second."""

    team: Annotated[PlainName, doc("The team.")]
    limit: Annotated[int, doc("The share that is in force.", ge=0)]
    sent: Annotated[int, doc("What they send.", ge=0)] = 0
    demand: Annotated[int, doc("What they would send, as the agent takes it.", ge=0)] = 0
    dropped: Annotated[int, doc("Packets that were dropped since the look before.", ge=0)] = 0
    pods: Annotated[int, doc("Pods that share it.", ge=0)] = 0


class ReportedDestination(Wire, frozen=True):
    """What all pods of the node exchange with a destination, in bits per second."""

    destination: Annotated[
        str, doc("The class of addresses.", maxLength=CLASS_NAME_MAX, pattern=_PLAIN)
    ]
    direction: Annotated[TrafficDirection, doc("egress: what they send; ingress: receive.")]
    limit: Annotated[int, doc("The share that is in force.", ge=0)]
    sent: Annotated[int, doc("What they send, or receive.", ge=0)] = 0
    demand: Annotated[int, doc("What they would, as the agent takes it.", ge=0)] = 0
    dropped: Annotated[int, doc("Packets that were dropped since the look before.", ge=0)] = 0
    pods: Annotated[int, doc("Pods that share it.", ge=0)] = 0


class ReportedPodEgress(Wire, frozen=True):
    """What a pod sends to the internet, in bits per second."""

    namespace: Annotated[PlainName, doc("Its namespace.")]
    name: Annotated[PlainObjectName, doc("Its name.")]
    team: Annotated[PlainName, doc("The team whose share it uses; empty: none.")] = ""
    limit: Annotated[int, doc("Its own limit; 0: none.", ge=0)] = 0
    sent: Annotated[int, doc("What it sends.", ge=0)] = 0
    dropped: Annotated[int, doc("Packets that were dropped since the look before.", ge=0)] = 0
    held_back_seconds: Annotated[
        int, doc("For how long it has been held at its limit, without a break.", ge=0)
    ] = 0


class ReportedShaping(Wire, frozen=True):
    """How the agent limits traffic to the internet."""

    mechanism: Annotated[
        str, doc("htb or limit; empty while no pod has a limit.", maxLength=VALUE_MAX)
    ] = ""
    why: Annotated[str, doc("Why it is not the better one.", maxLength=WHY_MAX)] = ""
    shares_at: Annotated[
        Instant | None, doc("The spec.egressAt of the shares that are in force.")
    ] = None
    teams: Annotated[
        tuple[ReportedTeamEgress, ...],
        doc("Teams with a share of a budget.", maxItems=REPORTED_TEAMS_MAX),
    ] = ()
    pods: Annotated[
        tuple[ReportedPodEgress, ...],
        doc("Pods with a limit that send most.", maxItems=REPORTED_PODS_MAX),
    ] = ()
    left_out: Annotated[int, doc("Pods beyond those that are listed.", ge=0)] = 0
    ingress: Annotated[
        tuple[ReportedTeamEgress, ...],
        doc("The same of what they receive; dropped: beyond the share.",
            maxItems=REPORTED_TEAMS_MAX),
    ] = ()  # fmt: skip
    destinations: Annotated[
        tuple[ReportedDestination, ...],
        doc("Destinations with a share of a budget.", maxItems=DESTINATIONS_MAX),
    ] = ()
    classes: Annotated[
        tuple[Annotated[str, doc(maxLength=CLASS_NAME_MAX, pattern=_PLAIN)], ...],
        doc("Classes that can be destinations here.", maxItems=REPORTED_CLASSES_MAX),
    ] = ()

    def lines(self, direction: TrafficDirection) -> tuple[ReportedTeamEgress, ...]:
        """Return the teams' lines of a direction."""
        return self.teams if direction is TrafficDirection.EGRESS else self.ingress


class ReportedFlow(Wire, frozen=True):
    """Traffic of a job, or of the other pods of a namespace, with a class of addresses."""

    traffic_class: Annotated[
        str, doc("The other end: internal, peered, storage, internet or an own class.",
                 maxLength=CLASS_NAME_MAX, pattern=_PLAIN),
    ]  # fmt: skip
    namespace: Annotated[
        PlainName,
        doc("The namespace; empty: the node itself; -: those without lines of their own."),
    ] = ""
    team: Annotated[PlainName, doc("The team that the pods' label names.")] = ""
    job: Annotated[PlainName, doc("The job of the pods; empty: all others.")] = ""
    sent: Annotated[int, doc("Bytes since the node began to count.", ge=0)] = 0
    received: Annotated[int, doc("The same, received.", ge=0)] = 0
    sent_rate: Annotated[int, doc("Bits per second, over about a minute.", ge=0)] = 0
    received_rate: Annotated[int, doc("The same, received.", ge=0)] = 0
    pod: Annotated[PlainName, doc("The uid of the pod that has ended; empty: not of one.")] = ""


class ReportedTraffic(Wire, frozen=True):
    """What the kernel of the node has counted of its pods' traffic."""

    coverage_permille: Annotated[
        int | None, doc("The counted part of the bytes of pods' devices; none: too few to say.")
    ] = None
    flows: Annotated[
        tuple[ReportedFlow, ...],
        doc("By namespace, job and class.", maxItems=REPORTED_FLOWS_MAX),
    ] = ()
    blind_spots: Annotated[
        tuple[Annotated[str, doc(maxLength=WHY_MAX)], ...],
        doc("What is never counted.", maxItems=BLIND_SPOTS_MAX),
    ] = ()
    ended: Annotated[
        tuple[ReportedFlow, ...],
        doc("Bytes of members of jobs that ended a while ago.", maxItems=REPORTED_ENDED_MAX),
    ] = ()


class ReportedSketch(Wire, frozen=True):
    """The values of one metric within a window, those of a pod or all others."""

    metric: Annotated[
        str, doc("The metric.", maxLength=METRIC_MAX, pattern=METRIC_PATTERN)
    ]  # fmt: skip
    sketch: Annotated[
        str, doc("How many values of each size, as bin:count.", maxLength=TEXT_MAX,
                 pattern=TEXT_PATTERN),
    ]  # fmt: skip
    namespace: Annotated[PlainName, doc("Namespace of the pod; empty: of no pod.")] = ""
    pod: Annotated[PlainObjectName, doc("Name of the pod.")] = ""


class ReportedExports(Wire, frozen=True):
    """What the node's exporters said within the latest window that is complete."""

    at: Annotated[Instant, doc("When the window ended.")]
    seconds: Annotated[int, doc("Its length.", ge=0, maximum=INT32_MAX)]
    sketches: Annotated[
        tuple[ReportedSketch, ...], doc("Values by metric and pod.", maxItems=SKETCHES_MAX)
    ] = ()
    left_out: Annotated[int, doc("Values beyond what has room.", ge=0)] = 0
    refused: Annotated[int, doc("Values that are negative, no numbers or too large.", ge=0)] = 0


class NodeReportStatus(Wire, frozen=True):
    """What the agent of the node last said, written by a collector."""

    observed_at: Annotated[Instant | None, doc("When the collector last heard it.")] = None
    node_uid: Annotated[
        str, doc("The Node that it is about. Others of its name have nothing to do with it.",
                 maxLength=ID_MAX),
    ] = ""  # fmt: skip
    boot_id: Annotated[str, doc("The boot of the machine.", maxLength=ID_MAX)] = ""
    machine_id: Annotated[
        str, doc("The machine by its hardware, whatever its name; empty: not known.",
                 maxLength=ID_MAX),
    ] = ""  # fmt: skip
    hardware: Annotated[
        dict[str, Annotated[str, doc(maxLength=VALUE_MAX)]],
        doc("Firmware, drivers and GPUs of the machine, by name.", maxProperties=FACTS_MAX),
    ] = {}
    critical: Annotated[int, doc("Critical faults.", ge=0, maximum=INT32_MAX)] = 0
    warning: Annotated[int, doc("Warnings.", ge=0, maximum=INT32_MAX)] = 0
    faults: Annotated[
        tuple[ReportedFault, ...],
        doc("The open faults, the worst first.", maxItems=REPORTED_FAULTS_MAX),
    ] = ()
    left_out: Annotated[int, doc("Faults beyond those that are listed.", ge=0)] = 0
    sources: Annotated[
        tuple[ReportedSource, ...],
        doc("Sources that do not work, or have lost something.", maxItems=REPORTED_SOURCES_MAX),
    ] = ()
    tuning: Annotated[
        ReportedTuning | None, doc("Settings of the machine; none without a tuning profile.")
    ] = None
    shaping: Annotated[
        ReportedShaping | None,
        doc("Limits of traffic to the internet; none where the agent keeps none."),
    ] = None
    traffic: Annotated[
        ReportedTraffic | None, doc("Traffic of the pods; none where the agent counts none.")
    ] = None
    answered: Annotated[RequestAnswer | None, doc("The answer to the latest request.")] = None
    exports: Annotated[
        ReportedExports | None,
        doc("Values of the node's exporters; none where the agent reads none."),
    ] = None


class NodeReport(Wire, frozen=True):
    """What the agent of a node last said of the health of its machine."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeReportSpec = NodeReportSpec()
    status: NodeReportStatus = NodeReportStatus()
