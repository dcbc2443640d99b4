"""What the endpoints under /fairlead/v1 send: the servers in `app` write it, the CLI reads it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.jobs.placement import Placement
from fairlead.api.jobs.run_facts import RunSummary
from fairlead.api.jobs.use import AttemptUse, JobTraffic, MemberUse
from fairlead.decide.answers.explanation import (
    Alternatives,
    Explanation,
    Forecast,
    PreemptionAhead,
    UnknownBound,
)
from fairlead.decide.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.runtime.kept.history import MemberLog

#: The Service of `fairlead install`, with scheme and port: a name of `services/proxy`.
PROXIED_NAME = "https:fairlead-webhook:https"
#: May read everything in the archive; for administrators whose kubeconfig has no token.
ACCOUNT = "fairlead-archive"
#: Of the scheduler's decisions; one of them is below it, by its number.
DECISIONS_PATH = "/fairlead/v1/decisions"
#: Questions to the scheduler's process, and the bodies that they take.
EXPLAIN_PATH = "/fairlead/v1/explain"
FIT_PATH = "/fairlead/v1/fit"
TEAMS_PATH = "/fairlead/v1/teams"
#: The API server keeps the Authorization header of what it proxies to itself.
TOKEN_HEADER = "X-Fairlead-Token"  # noqa: S105 - the name of a header
#: The ConfigMap of `fairlead install` with the controllers' settings, and its key.
SETTINGS_NAME = "fairlead-settings"
SETTINGS_FILE = "settings.yaml"
#: The reason of an answer that another replica has. A Service leads to any of at most ten.
NOT_LEADER = "NotLeader"


class Book(Enum):
    """What the archive has records of; the values are paths below /fairlead/v1."""

    JOBS = "history"
    FLEET = "fleet/history"
    USE = "use"
    RUNS = "runs"
    AUDIT = "audit"


class ArchivedLog(msgspec.Struct, frozen=True, rename="camel"):
    """The log of one member, as the archive's endpoint sends it: a JSON line."""

    task: str
    attempt: int
    is_cut: bool
    text: bytes  # base64 in JSON

    @staticmethod
    def of(log: MemberLog) -> ArchivedLog:
        """Return what is shown of a log."""
        return ArchivedLog(log.task, log.attempt, log.is_cut, log.text)


class CutLine(msgspec.Struct, frozen=True):
    """The last line of an answer that is not whole: why, and how to ask for less."""

    cut: str


#: What that line, and no other, begins with.
CUT_PREFIX = b'{"cut":'


class HistoryLine(msgspec.Struct, frozen=True, rename="camel"):
    """One job that has ended, as the history endpoint sends it: a JSON line."""

    uid: str
    namespace: str
    name: str
    state: str
    user: str = ""
    team: str = ""
    reason: str = ""
    message: str = ""
    priority: int = 0
    member_count: int = 0
    attempt_count: int = 0
    submitted_at_ms: int | None = None
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    document: dict[str, Any] = {}
    number: int | None = None
    array_number: int | None = None
    #: Of each attempt of which any is known.
    use: tuple[AttemptUse, ...] = ()
    #: Of members that ended on nodes that count traffic; None: of none.
    traffic: JobTraffic | None = None


class UseLine(msgspec.Struct, frozen=True, rename="camel"):
    """What one member used, as the use endpoint sends it: a JSON line."""

    job: str
    job_uid: str
    attempt: int
    task: str
    ended_at_ms: int
    use: MemberUse


class RunLine(msgspec.Struct, frozen=True, rename="camel"):
    """One run that has ended, as its endpoint sends it: a JSON line."""

    uid: str
    namespace: str
    name: str
    state: str
    user: str
    started_at_ms: int | None
    finished_at_ms: int | None
    run: RunSummary


class FleetLine(msgspec.Struct, frozen=True, rename="camel"):
    """One decision about the fleet, as its history endpoint sends it: a JSON line."""

    at_ms: int
    pool: str
    action: str
    reason: str
    message: str = ""
    facts: dict[str, Any] = {}


class AuditLine(msgspec.Struct, frozen=True, rename="camel"):
    """One audit record, as its endpoint and every export has it: a JSON line."""

    number: int
    at: str
    at_ms: int
    writer: str
    id: str
    kind: str
    object: str
    uid: str
    reason: str
    message: str
    facts: dict[str, Any]
    previous: str
    digest: str


class DecisionLine(msgspec.Struct, frozen=True, rename="camel"):
    """One decision of the scheduler, as its endpoint lists it: a JSON line."""

    cycle: int
    #: Seconds since the epoch, and how long it took.
    at: float
    seconds: float
    #: Waiting jobs.
    waiting: int
    #: By kind.
    actions: dict[str, int]
    digest: str


class ExplainQuestion(msgspec.Struct, frozen=True, rename="camel"):
    """Why is this job where it is? The answer is an `Explained`."""

    namespace: str
    name: str
    #: As it goes over the wire: what would a decision do with the job had it been submitted so?
    job: dict[str, Any] | None = None


class Explained(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of a job beside its object."""

    #: None for a job that is not known, or has ended.
    explanation: Explanation | None = None
    #: Nodes of the job that are not ready, and since when.
    unready: dict[str, float] = {}
    #: Those of them that no connection reaches either: it waits for none of these.
    unreachable: list[str] = []
    #: How long the job waits for the others.
    node_lost_grace_seconds: float = 0.0
    #: The pools, with what they do for this job and nothing of others.
    pools: list[NodePool] = []
    #: How many nodes of which pools would hold a job that the present nodes never can.
    holding: dict[str, int] = {}
    #: The team of each node of the job that has one.
    owners: dict[str, str] = {}
    #: Jobs of other namespaces are left out.
    is_partial: bool = False
    #: It is about the job of the question, where that has one.
    is_changed: bool = False


class FitQuestion(msgspec.Struct, frozen=True, rename="camel"):
    """What would a decision do with this Job, as it goes over the wire, were it submitted now?

    It counts as one of its namespace. The answer is a `Fitted`.
    """

    job: dict[str, Any]


class TeamsQuestion(msgspec.Struct, frozen=True, rename="camel"):
    """What does each team use? The answer is a `TeamUse` by the name of each team."""


class Fitted(msgspec.Struct, frozen=True, rename="camel"):
    """What a decision would do with a job that is submitted now."""

    verdict: Verdict
    #: What the largest node has, in base units; empty: the cluster has no node.
    shape: dict[str, int] = {}
    #: The pools that would hold a job that the present nodes never can, and with how many nodes.
    pools: list[NodePool] = []
    holding: dict[str, int] = {}
    #: When it starts, or for which jobs it does, where it waits.
    forecast: Forecast | PreemptionAhead | UnknownBound | None = None
    #: Why the level of the topology that it prefers can never hold it.
    unreachable: Verdict | None = None
    #: Where it starts, where that is now.
    place: Placement | None = None
    #: What could be asked instead of what can never start.
    alternatives: Alternatives = Alternatives()


class PartHealth(msgspec.Struct, frozen=True, rename="camel"):
    """One part of the cluster's process; the states are those of `runtime.supervisor`."""

    name: str
    state: str
    ready: bool = True
    crash_count: int = 0
    last_error: str = ""

    @property
    def is_well(self) -> bool:
        """True while it does its work, or has done it."""
        return self.ready and self.state in ("running", "ended")


class NodeCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes by type."""

    local: int = 0
    virtual: int = 0
    other: int = 0


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What the cluster's process says of itself. Instants are seconds since the epoch."""

    version: str
    pid: int
    started_at: float
    data: str
    nodes: NodeCounts
    jobs: dict[str, int]  # by state
    pods: int
    services: tuple[PartHealth, ...]
    #: Of the controllers, as they stand in a settings file.
    settings: dict[str, Any] = {}
