"""A full cluster as its web page sees it: 10,000 jobs, 7,500 nodes and 50 teams, in any state.

`objects()` are what the API server would list, `FullAnswers` what the scheduler, the history and
the nodes would say. The benchmark of the page and the tool that photographs it use both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.cluster_report import (
    REPORT_NAME,
    ClusterReport,
    ClusterReportStatus,
    FindingSeverity,
    ReportFinding,
)
from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
    UnavailableDomain,
)
from fairlead.api.cluster.node_report import (
    Action,
    NodeReport,
    NodeReportStatus,
    Recovery,
    ReportedFault,
    ReportedPodEgress,
    ReportedShaping,
    ReportedTeamEgress,
    Severity,
)
from fairlead.api.cluster.node_test import NodeTest, NodeTestPhase, NodeTestSpec, NodeTestStatus
from fairlead.api.cluster.team import Subjects, TeamStatus, TeamUse
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, VerdictStatus
from fairlead.api.jobs.job_array import ElementCounts, JobArray, JobArraySpec, JobArrayStatus
from fairlead.api.jobs.run_facts import ListedMetric, RunFacts, RunMetric, RunSummary
from fairlead.api.kubernetes.core import Node, PriorityClass
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.resources import (
    CLUSTER_REPORTS,
    JOB_ARRAYS,
    JOBS,
    NODE_POOLS,
    NODE_REPORTS,
    NODES,
    TEAMS,
    Resource,
)
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import DecisionLine, FleetLine, RunLine
from fairlead.cli.views.top import TopLine
from fairlead.model.health.node_record import NodeRecord, NodeState, record_text
from fairlead.runtime.clock import SystemClock
from fairlead.testing.builders import make_job, make_node, make_placement, make_team
from fairlead.web.sources.history_reads import (
    ClusterUse,
    JobUseAnswer,
    LatestDecisions,
    NodePast,
    OpenedDecision,
    PastJob,
    PastRuns,
    UsageSums,
)
from fairlead.web.sources.questions import Answered

JOBS_COUNT, NODES_COUNT, TEAMS_COUNT = 10_000, 7_500, 50
GPUS = 8
#: Of the jobs: so many hold two nodes each, so many have ended; the others wait.
HOLDING, ENDED = 3_400, 1_600
#: Nodes that are out: each so many-th.
_CORDONED, _NOT_READY, _SICK = 149, 331, 487
_ARRAYS, _POOLS, _RUNS_PAST = 120, 12, 10_000
_STEPS = tuple(range(0, 3_200, 100))
#: Who looks, and at what.
RESEARCHER = "user-7"
RUNNING_JOB, WAITING_JOB, SICK_NODE = "train-00057", "train-05007", "node-0487"
#: Every page, by the name of its picture.
PAGES = {
    "home": "/", "jobs": "/jobs", "jobs-search": "/jobs?q=train-09",
    "jobs-reason": "/jobs?reason=InsufficientCapacity",
    "job-waits": f"/jobs/team-07/{WAITING_JOB}", "job-runs": f"/jobs/team-07/{RUNNING_JOB}",
    "arrays": "/arrays", "array": "/arrays/team-03/sweep-003", "cluster": "/cluster",
    "node": f"/nodes/{SICK_NODE}", "teams": "/teams", "team": "/teams/team-07", "fleet": "/fleet",
    "network": "/network", "doctor": "/doctor?nodes=10000", "decisions": "/decisions",
    "decision": "/decisions/9000", "usage": "/usage?by=team", "use": "/use",
    "runs": "/runs", "run": "/runs/show?run=team-07/train-08657&run=team-07/train-08707",
    "submit": "/submit", "cancel": f"/change/cancel/team-07/{RUNNING_JOB}",
    "drain": f"/change/drain/{SICK_NODE}",
}  # fmt: skip

Objects = Iterator[tuple[Resource[Any], Any]]


def _ago(seconds: float) -> str:
    return format_time(SystemClock().now() - seconds)


def objects(*, every: int = 1) -> Objects:
    """Yield all objects, or of each kind only each `every`-th and those that PAGES names."""
    uids: dict[int, str] = {}  # as `FakeClient` gives them
    for number in _numbers(NODES_COUNT, every, _SICK, 2 * 57, 2 * 57 + 1):
        uids[number] = f"uid-{len(uids) + 1}"
        yield NODES, _node(number)
    for number in _numbers(JOBS_COUNT, every, 57, 243, 5_007, 8_657, 8_707):
        yield JOBS, _job(number)
    for number in _numbers(TEAMS_COUNT, every, 7):
        yield TEAMS, _team(number)
    for number in _numbers(_ARRAYS, every, 3):
        yield JOB_ARRAYS, _array(number)
    for number in range(0, NODES_COUNT, 30 * every):
        yield NODE_REPORTS, _shaping_report(number, uids.get(number, ""))
    for number in range(_SICK, NODES_COUNT, _SICK):
        yield NODE_REPORTS, _sick_report(number, uids.get(number, ""))
    for number in range(_POOLS):
        yield NODE_POOLS, _pool(number)
    yield CLUSTER_REPORTS, _report()


def _numbers(count: int, every: int, *named: int) -> Sequence[int]:
    return sorted({*range(0, count, every), *named})


def _node(number: int) -> Node:
    product = "NVIDIA-H100-80GB-HBM3" if number % 5 < 3 else "NVIDIA-A100-SXM4-80GB"
    labels = {"fairlead.dev/block": f"block-{number // 128:02}", names.POOL: f"pool-{number % 12}",
              "fairlead.dev/rack": f"rack-{number // 8:03}",
              "nvidia.com/gpu.product": product}  # fmt: skip
    notes = {}
    if number and number % _SICK == 0:
        record = NodeRecord(
            NodeState.CORDONED, _ago(900), "gpu-xid gpu3 79", 1, format_time(
                SystemClock().now() + 3_000
            ), f"{_ago(900)}/{format_time(SystemClock().now() + 3_000)}",
        )  # fmt: skip
        notes = {names.HEALTH: record_text(record)}
    return make_node(
        f"node-{number:04}", gpus=GPUS, labels=labels, annotations=notes,
        ready=number % _NOT_READY != 7, unschedulable=number % _CORDONED == 11,
    )  # fmt: skip


def _job(number: int) -> Job:
    """Return a job; 50 users of 50 teams have them in turns."""
    job = _running(number) if number < HOLDING else _waiting(number)
    job = _ended(number) if number >= JOBS_COUNT - ENDED else job
    notes = {names.SUBMITTED_BY: f"user-{number % TEAMS_COUNT}"}
    return replace(job, metadata=replace(job.metadata, annotations=notes))


def _space(number: int) -> str:
    return f"team-{number % TEAMS_COUNT:02}"


def _running(number: int) -> Job:
    placed = make_placement([f"node-{2 * number:04}", f"node-{2 * number + 1:04}"])
    placed = replace(placed, team=_space(number))
    began = _ago(600 + 37 * (number % 500))
    status = {"state": "Running", "started_at": began, "number": number + 1,
              "attempts": (Attempt(1, begun_at=began, started_at=began),)}  # fmt: skip
    return make_job(f"train-{number:05}", namespace=_space(number), count=2, gpus=GPUS,
                    placement=placed, status=status, time_limit_seconds=86_400,
                    created=SystemClock().now() - 900 - 37 * (number % 500))  # fmt: skip


def _waiting(number: int) -> Job:
    verdicts = (
        VerdictStatus("Waiting", "InsufficientCapacity",
                      {"resource": "nvidia.com/gpu", "asked": 32, "free": 8, "total": 60_000,
                       "short": 24}),
        VerdictStatus("Waiting", "InsufficientCapacity",
                      {"resource": "nvidia.com/gpu", "asked": 512, "free": 420, "total": 60_000,
                       "short": 92}),
    )  # fmt: skip
    count = (4, 64)[number % 2]
    return make_job(
        f"train-{number:05}", namespace=_space(number), count=count, gpus=GPUS, priority=number % 3,
        verdict=verdicts[number % 2], status={"state": "Waiting", "number": number + 1},
        created=SystemClock().now() - 60 - number % 5_000,
    )  # fmt: skip


def _ended(number: int) -> Job:
    values = tuple(1 - 0.7 * step / 3_200 + number % 7 / 100 for step in _STEPS)
    metric = RunMetric(values[-1], 3_100, len(_STEPS), min(values), max(values), _STEPS, values)
    facts = RunFacts({"lr": f"{10 ** -(1 + number % 4)}", "optimizer": ("adam", "sgd")[number % 2],
                      "batch": str(2 ** (5 + number % 5))}, {"loss": metric})  # fmt: skip
    began, ended = _ago(9_000 + number), _ago(60 + number)
    status = {"state": "Succeeded", "run": facts, "started_at": began, "finished_at": ended,
              "number": number + 1, "attempts": (
                  Attempt(1, begun_at=began, started_at=began, finished_at=ended),
              )}  # fmt: skip
    node = f"node-{number % NODES_COUNT:04}" if number % 2 else SICK_NODE
    return make_job(
        f"train-{number:05}", namespace=_space(number), gpus=GPUS, status=status,
        placement=make_placement([node]), conditions=[Condition(names.SUCCEEDED, "True")],
    )  # fmt: skip


def _team(number: int) -> Any:
    name = _space(number)
    team = make_team(
        name, nodes=150, weight=1 + number % 3, namespaces=(name,),
        network={"internetEgress": "20G"},
        members=Subjects(users=(f"user-{number}", f"user-{number + 100}")),
        admins=Subjects(users=(f"lead-{number}",)),
    )  # fmt: skip
    use = TeamUse(
        jobs_placed=68, jobs_waiting=100, jobs_submitted=200, gpus=1_088,
        nodes_used=136 - number % 40, nodes_lent=number % 10, nodes_borrowed=number % 7,
        as_of=_ago(20),
    )  # fmt: skip
    return replace(team, status=TeamStatus(nodes=150, use=use))


def _array(number: int) -> JobArray:
    name, space = f"sweep-{number:03}", _space(number)
    done, bad = 17 * number % 900, number % 9
    counts = ElementCounts(1_000, 1_000 - done - bad - 40, 40, done, bad)
    meta = ObjectMeta(
        name, namespace=space, uid=f"array-{number}", creation_timestamp=_ago(100 * number),
        annotations={names.SUBMITTED_BY: f"user-{number % TEAMS_COUNT}"},
    )  # fmt: skip
    template = make_job(name, gpus=1).spec
    status = JobArrayStatus(number=20_000 + number, state="Running", elements=counts)
    return JobArray(metadata=meta, spec=JobArraySpec(template=template, indices="0-999"),
                    status=status)  # fmt: skip


def _shaping_report(number: int, uid: str) -> NodeReport:
    team, sent = _space(number // 30), 10_000_000 * (1 + number % 97)
    shaping = ReportedShaping(
        "limit", "", teams=(ReportedTeamEgress(team, 10**9, sent, 2 * sent, dropped=7, pods=1),),
        pods=(ReportedPodEgress(team, f"loader-{number}", team, 10**9, sent, 7),),
    )  # fmt: skip
    status = NodeReportStatus(observed_at=_ago(20), shaping=shaping,
                              node_uid=uid)  # fmt: skip
    return NodeReport(metadata=ObjectMeta(f"node-{number:04}"), status=status)


def _sick_report(number: int, uid: str) -> NodeReport:
    fault = ReportedFault(
        "gpu-xid", "gpu3", Severity.CRITICAL, Action.RESET_GPU, Recovery.BOOT, _ago(900),
        _ago(60), codes=("79",), count=4, evidence="Xid 79: GPU has fallen off the bus",
    )  # fmt: skip
    status = NodeReportStatus(observed_at=_ago(20), node_uid=uid, critical=1,
                              faults=(fault,))  # fmt: skip
    return NodeReport(metadata=ObjectMeta(f"node-{number:04}"), status=status)


def _pool(number: int) -> NodePool:
    template = NodeTemplate({"nvidia.com/gpu": str(GPUS)})
    spec = NodePoolSpec(
        Provider(ProviderType.SIMULATED), template, 800, mode=PoolMode.ACTIVE,
        price_per_hour=f"{30 + 5 * number}.50",
    )  # fmt: skip
    until = format_time(SystemClock().now() + 600)
    marks = (UnavailableDomain("zone-b", "no capacity", until, refusals=4),)
    status = NodePoolStatus(
        nodes=625, ready=610, idle=12 * (number % 3), wanted=640, launching=number % 4,
        unavailable=marks * (number % 4 == 1),
        message="zone-b has no capacity" if number % 4 == 1 else "",
    )  # fmt: skip
    return NodePool(ObjectMeta(f"pool-{number}"), spec, status)


def _report() -> ClusterReport:
    finding = ReportFinding(
        "ETCD-04", FindingSeverity.CRITICAL, "etcd-0", "Quota", "db is 5.6 GB of 8 GB",
        _ago(9_000), 0.7,
    )  # fmt: skip
    status = ClusterReportStatus(
        _ago(120), (), critical=1, passed=60, not_seen=3, findings=(finding,), nodes=NODES_COUNT,
        unknown=("API-16",),
    )  # fmt: skip
    return ClusterReport(ObjectMeta(REPORT_NAME), status)


_WHY = """train-05007 waits: needs 512 GPUs, 420 are free of 60,000 (92 short)

  starts      within 3h 20m if the jobs ahead use their whole time limits
  ahead       41 jobs of higher priority or submitted earlier
"""


class FullAnswers:
    """What would be asked for beside the mirrors, in the words of a full cluster."""

    def __init__(self) -> None:
        now = SystemClock().now()
        weeks = [f"2026-{month:02}-{day:02}" for month, day in ((11, 2), (11, 9), (11, 16))]
        hours = {(_space(n),): (9_000.0 - 100 * n, 8_000.0, 10.0, 96.5, 3.25, 8_000.0, 40.0)
                 for n in range(TEAMS_COUNT)}  # fmt: skip
        by_week = {(week, _space(n)): (3_000.0 - 30 * n, 2_600.0, 0.0, 0.0, 0.0, 0.0, 1.0)
                   for week in weeks for n in range(TEAMS_COUNT)}  # fmt: skip
        waits = {_space(n): [1.0, 60.0 + n, 120.0 * (n + 1), 7_200.0] for n in range(TEAMS_COUNT)}
        self._usage = UsageSums(now, dict(hours), dict(by_week), waits)
        at = round(now * 1_000) - 3_600_000
        self._runs = PastRuns([
            RunLine(f"past-{n}", _space(n), f"old-{n:05}", "Failed", f"user-{n % 50}", at - 60_000,
                    at - n, RunSummary(("sweep",), {"lr": f"{10 ** (-1 - n % 31 / 10):.4g}",
                                                    "optimizer": "adam"},
                                       {"loss": ListedMetric(0.3 + (n % 31 - 14) ** 2 / 400
                                                             + n * 7919 % 100 / 500, 0.3, 1.0)}))
            for n in range(_RUNS_PAST)
        ])  # fmt: skip
        lines = [DecisionLine(9_000 - n, now - 2 * n, 0.02 + n / 1_000, 5_000,
                              {"PlaceJob": 3, "SetVerdict": 12}, f"sha256:{n:064x}")
                 for n in range(100)]  # fmt: skip
        self._decided = LatestDecisions(lines)
        used = [TopLine(_space(n), f"train-{n:05}", f"user-{n % 50}", _space(n), 1, 2, 2, 16,
                        64_000, 1 << 38, 30_000 * (n % 3), 1 << 36, 1 << 37, 3_600.0,
                        int(n % 3 == 0), 16 * (n % 3 == 0), 0, 600.0)
                for n in range(HOLDING)]  # fmt: skip
        self._used = ClusterUse(now - 40, used)
        self._node = _node_past(now)

    async def why(self, key: Any, *, patience_seconds: float | None) -> Answered:
        """See `Questions`; as all of these."""
        return Answered(_WHY.replace("train-05007", key[1]), SystemClock().now())

    async def team_uses(self, *, patience_seconds: float | None) -> None:
        """Return None: the status of the teams is shown."""

    async def usage(self, question: Any, *, patience_seconds: float | None = None) -> UsageSums:
        """Return the sums."""
        return self._usage

    async def runs(self, question: Any, *, patience_seconds: float | None = None) -> PastRuns:
        """Return the runs that have ended."""
        return self._runs

    async def past_job(self, key: Any, *, patience_seconds: float | None = None) -> PastJob:
        """Return no job."""
        return PastJob(problem="it is not in the history")

    async def decisions(self, *, patience_seconds: float | None = None) -> LatestDecisions:
        """Return the latest decisions."""
        return self._decided

    async def decision(
        self, cycle: int, *, patience_seconds: float | None = None
    ) -> OpenedDecision:
        """Return one whose file cannot be had."""
        return OpenedDecision(problem=f"decision {cycle} is not kept, or not any more")

    async def job_use(self, key: Any, *, patience_seconds: float | None = None) -> JobUseAnswer:
        """Return what the first running job uses."""
        return JobUseAnswer(self._used.lines[1])

    async def cluster_use(
        self, jobs: Sequence[Job], *, patience_seconds: float | None = None
    ) -> ClusterUse:
        """Return what all running jobs use."""
        return self._used

    async def node_past(self, node: Any, *, patience_seconds: float | None = None) -> NodePast:
        """Return tests, and what was decided."""
        return self._node

    async def logs(self, key: Any, query: Any) -> AsyncGenerator[bytes]:
        """Yield some lines, and no end."""
        for step in range(0, 400, 10):
            yield f"[worker-0] step {step} loss {1 / (1 + step / 100):.3f}\n".encode()
        await asyncio.Event().wait()

    async def why_not(self, right: Any) -> str:
        """Return that everything may be done."""
        return ""

    async def priority_classes(self) -> Sequence[PriorityClass]:
        """Return no classes."""
        return ()


def _node_past(now: float) -> NodePast:
    def test(node: int, number: int) -> NodeTest:
        figures = (Figure("bytes-per-second", 3.1e12 - 1e10 * (node % 9), None, 2.8e12),)
        found = MachineFinding("gpu-memory", MachineOutcome.PASSED, "", 12.0, figures)
        status = NodeTestStatus(
            NodeTestPhase.ENDED, MachineOutcome.PASSED, shape="h100", measured=(found,), attempts=1,
            ended_at=_ago(86_400 * (6 - number)),
        )  # fmt: skip
        name = f"node-{node:04}"
        spec = NodeTestSpec(name, f"node-{name}", "quick", number=number)
        return NodeTest(ObjectMeta(f"{name}-{number}"), spec, status)

    own = [test(487, number) for number in (5, 4, 3, 2, 1)]
    every = [*own, *(test(node, 1) for node in range(200))]
    decided = [
        FleetLine(round(now * 1_000) - 900_000, "pool-7", "Cordon", "GpuFault",
                  "gpu-xid gpu3 79: gangs leave after their next checkpoint",
                  {"node": SICK_NODE}),
        FleetLine(round(now * 1_000) - 40 * 86_400_000, "pool-7", "ResetGpu", "GpuFault",
                  "gpu-xid gpu3 79: reset by the agent, which ended it", {"node": SICK_NODE}),
    ]  # fmt: skip
    return NodePast(own, every, decided)
