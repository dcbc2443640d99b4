"""Teams, node pools and a report for the pages of operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from fairlead.api.cluster.cluster_report import (
    REPORT_NAME,
    ClusterReport,
    ClusterReportStatus,
    FindingSeverity,
    ReportFinding,
)
from fairlead.api.cluster.fleet import FLEET_NAME, Fleet, FleetSpec, FleetStatus, Freeze, Grant
from fairlead.api.cluster.node_pool import (
    Launch,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
    UnavailableDomain,
)
from fairlead.api.cluster.team import Reservation, Subjects, TeamStatus, TeamUse
from fairlead.api.jobs.job import Job, VerdictStatus
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.names import READY, SUBMITTED_BY
from fairlead.api.resources import CLUSTER_REPORTS, FLEETS, JOBS, NODE_POOLS, NODES, TEAMS, Resource
from fairlead.api.values.times import format_time
from fairlead.runtime.clock import SystemClock
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team
from fairlead.web.sources.history_reads import UsageSums

Objects = Iterator[tuple[Resource[Any], Any]]
SCRIPT = "<script>alert(1)</script>"
EVIL = f"{SCRIPT}\"'><img src=x onerror=alert(1)>\x1b]0;owned\x07\x9b31m"


def by(job: Job, user: str) -> Job:
    """Return the job as one that this user has submitted."""
    return replace(job, metadata=replace(job.metadata, annotations={SUBMITTED_BY: user}))


def ready(reason: str, message: str) -> tuple[Condition, ...]:
    """Return the condition of a team."""
    return (Condition(READY, "True", reason, message, last_transition_time=format_time(EPOCH)),)


def teams_world(text: str = "lab") -> Objects:
    """Two teams: vision uses 3 of its 4 nodes, lends 1 and borrows 2 of speech; three jobs of it
    wait. `text` goes wherever people write text.
    """
    now = SystemClock().now()
    for number in range(6):
        yield NODES, make_node(f"n{number}", gpus=8)
    use = TeamUse(jobs_placed=1, jobs_waiting=3, jobs_submitted=4, gpus=24, nodes_used=3,
                  nodes_lent=1, nodes_borrowed=2, as_of=format_time(now - 40))  # fmt: skip
    vision = make_team(
        "vision", nodes=4, weight=3, namespaces=("default",),
        members=Subjects(users=("ada", text)), admins=Subjects(users=("grace",)),
        reservations=(Reservation("workshop", format_time(now - 60), format_time(now + 3_600),
                                  node_selector={"rack": text}),),
    )  # fmt: skip
    status = TeamStatus(nodes=4, use=use, conditions=ready("SharesMet", text))
    yield TEAMS, replace(vision, status=status)
    speech = make_team("speech", nodes=2, namespaces=("speech",))
    yield TEAMS, replace(speech, status=TeamStatus(nodes=2, use=TeamUse(nodes_lent=2)))
    placed = make_placement(["n0", "n1", "n2"])
    placed = replace(placed, team="vision")
    yield JOBS, by(make_job("runs", count=3, placement=placed, status={"state": "Running"}), "ada")
    verdict = VerdictStatus("Waiting", "InsufficientCapacity",
                            {"resource": "nvidia.com/gpu", "asked": 32, "free": 8, "total": 48,
                             "short": 24})  # fmt: skip
    for name, priority, created in (("older", 0, 1), ("younger", 0, 2), ("urgent", 10, 3)):
        job = make_job(name, count=4, priority=priority, created=EPOCH + created, verdict=verdict,
                       status={"state": "Waiting"})  # fmt: skip
        yield JOBS, by(job, text if name == "older" else "ada")


def pool(name: str, **status: Any) -> NodePool:
    """Return an active pool of at most 16 nodes."""
    template = NodeTemplate({"nvidia.com/gpu": "8"})
    spec = NodePoolSpec(Provider(ProviderType.SIMULATED), template, 16, mode=PoolMode.ACTIVE)
    return NodePool(ObjectMeta(name), spec, NodePoolStatus(**status))


def fleet_world(text: str = "move of rack 7") -> Objects:
    """A frozen fleet of a pool that grows and is held back, and one that has what it wants."""
    at = format_time(SystemClock().now() - 90)
    until = format_time(SystemClock().now() + 600)
    launch = Launch("t1", "zone-a", 3, at, jobs=("default/older",))
    yield NODE_POOLS, pool(
        "h100", nodes=6, ready=5, idle=2, wanted=12, launching=3, launches=(launch,), message=text,
        unavailable=(UnavailableDomain("zone-b", text, until, refusals=4),),
    )  # fmt: skip
    yield NODE_POOLS, pool("a100", nodes=2, ready=2, wanted=2)
    spec = FleetSpec(freeze=Freeze(text, by=text))
    grants = (Grant("a100", text, text, granted_at=at),)
    status = FleetStatus(grants=grants, unmanaged={text: 2})
    yield FLEETS, Fleet(ObjectMeta(FLEET_NAME), spec, status)


def report_world(text: str = "db is 5.6 GB of 8 GB") -> Objects:
    """A report on 1,000 nodes: a critical finding that grows, one of a check that nobody knows."""
    at = format_time(SystemClock().now() - 120)
    grows = ReportFinding("ETCD-04", FindingSeverity.CRITICAL, "etcd-0", "Quota", text, at, 0.85)
    other = ReportFinding("NEWER-01", FindingSeverity.WARNING, text[:60], text, text, at, 3.0)
    condition = Condition(
        "EtcdNearlyFull", "True", "FindingsPresent", text, last_transition_time=at
    )
    status = ClusterReportStatus(
        at, (condition,), critical=1, warning=1, passed=40, not_seen=2, findings=(grows, other),
        unknown=("API-16", text[:40]), nodes=1_000,
    )  # fmt: skip
    yield CLUSTER_REPORTS, ClusterReport(ObjectMeta(REPORT_NAME), status)


def usage_answer(text: str = "ada") -> UsageSums:
    """Return hours of two teams in three weeks, and waits of one of them."""
    weeks: dict[tuple[str, ...], tuple[float, ...]] = {
        (f"2026-11-{day:02}", team): (hours, hours, 0.0, 0.0, 0.0, 0.0, hours)
        for day, hours in ((9, 100.0), (16, 900.0), (23, 400.0))
        for team in ("vision", text)
    }
    found = {(text,): (2_500.0, 2_400.0, 10.0, 96.5, 3.25, 8_000.0, 40.0),
             ("grace",): (12.0, 9.0, 0, 0, 0, 0, 12.0)}  # fmt: skip
    waits = {"vision": [1.0, 60.0, 120.0, 7_200.0], text: [5.0]}
    return UsageSums(SystemClock().now(), found, weeks, waits)
