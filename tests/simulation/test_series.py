"""The series of Fairlead's own metrics: bounded by their labels, whatever the fleet has.

`BOUNDS` is the budget: of each family, how many series there can be at all, by the closed sets of
its labels, and how many more for each team and pool. Nodes, jobs, pods and users are in no label.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import typing
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.tidy.sources import ROOT

import fairlead.controllers
from fairlead.api import resources
from fairlead.api.cluster.cluster_report import FindingSeverity
from fairlead.api.cluster.node_pool import ProviderType
from fairlead.api.cluster.node_report import EXPORTED_METRICS_MAX
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.notify import NoticeState
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.unreachable_nodes import Presence, SilenceHold
from fairlead.decide.network import CountingState
from fairlead.decide.network.traffic import CLASSES_MAX
from fairlead.decide.notices import TryReason
from fairlead.decide.reasons import Reason
from fairlead.decide.removal.removals import RemovalRule
from fairlead.decide.removal.trust import Blindness
from fairlead.decide.use.exports import ExportScope, ExportState
from fairlead.decide.verdict import ObjectKey
from fairlead.doctor.registry import CHECKS
from fairlead.model.health.node_record import NodeState
from fairlead.runtime.exported.export_metrics import STATS
from fairlead.runtime.exported.fleet_metrics import ProviderAnswer, ProviderCall
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.loop import ActionResult
from fairlead.sim.actors import replicas
from fairlead.sim.loop import run
from fairlead.sim.observers.observer import Observer
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.team_changes import TeamChange
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import PoolShape, WorldOptions
from fairlead.sim.world import World
from fairlead.webhook.answers import RequestOutcome
from fairlead.webhook.configuration import Path
from fairlead.webhook.server import WebhookMetrics

TEAM, POOL = ExportScope.TEAM, ExportScope.POOL
PAGE = ROOT / "docs" / "design" / "monitoring.md"
SCRAPE_SECONDS = 30  # of the chart's ServiceMonitor
REPLICAS = 2


def controllers() -> dict[str, int]:
    """Return the controllers by name, and how many kinds of actions each performs."""
    found: dict[str, int] = {}
    path, prefix = fairlead.controllers.__path__, "fairlead.controllers."
    for module in pkgutil.walk_packages(path, prefix):
        loaded = importlib.import_module(module.name)
        for _, made in inspect.getmembers(loaded, inspect.isclass):
            if made.__module__ == loaded.__name__ and isinstance(getattr(made, "name", None), str):
                hints = typing.get_type_hints(made.perform)
                found[made.name] = len(typing.get_args(hints["action"])) or 1
    return found


@dataclass(frozen=True)
class Bound:
    """Series of one family: in all, and for each team and pool."""

    fixed: int = 0
    team: int = 0
    pool: int = 0

    def most(self, teams: int, pools: int) -> int:
        """Return how many series there are at most."""
        return self.fixed + self.team * teams + self.pool * pools


def counter(cells: int) -> int:
    """Return the series of a counter: its total and when it began."""
    return 2 * cells


def histogram(cells: int, buckets: int) -> int:
    """Return the series of a histogram: its buckets, the unbounded one, count, sum, beginning."""
    return cells * (buckets + 4)


@cache
def bounds() -> Mapping[str, Bound]:
    """Return the bound of each family."""
    loops = controllers()
    kinds = sum(isinstance(each, resources.Resource) for each in vars(resources).values())
    texts = [path.read_text() for path in (ROOT / "src/fairlead/app").rglob("*.py")]
    literal = re.compile(r"SupervisedService\(\s*\"(.+?)\"")
    services = {name for text in texts for name in literal.findall(text)}
    readers = len(loops) + 2  # the mirrors, the cluster's state
    waiting = 3 * len(Reason.__members__)
    severities = len(FindingSeverity)
    calls = len(ProviderType) * len(ProviderCall) * len(ProviderAnswer)
    states = len(NodeState) - 3
    figures = EXPORTED_METRICS_MAX * len(STATS)
    return {
        "fairlead_build_info": Bound(1),
        "fairlead_leader": Bound(1),
        "fairlead_store_compaction_failing": Bound(1),
        "fairlead_events_dropped": Bound(2),
        "fairlead_fenced_jobs": Bound(counter(1)),
        "fairlead_decide_duration_seconds": Bound(histogram(len(loops), 11)),
        "fairlead_actions": Bound(counter(sum(loops.values()) * len(ActionResult))),
        "fairlead_audit_targets_failing": Bound(1),
        "fairlead_audit_breaks": Bound(counter(1)),
        "fairlead_service_crashes": Bound(counter(len(services) + kinds)),
        "fairlead_notice_tries": Bound(counter(len(TryReason))),
        "fairlead_mirror_lag_seconds": Bound(kinds),
        "fairlead_mirror_objects": Bound(kinds),
        "fairlead_kind_undefined": Bound(kinds),
        "fairlead_workqueue_depth": Bound(len(loops)),
        "fairlead_objects_set_aside": Bound(readers * kinds),
        "fairlead_jobs": Bound(len(JobState) + waiting),
        "fairlead_jobs_waiting_with_room": Bound(1),
        "fairlead_team_nodes": Bound(team=5),
        "fairlead_team_intruders": Bound(team=1),
        "fairlead_team_gpus": Bound(team=1),
        "fairlead_team_gpu_hours": Bound(team=1),
        "fairlead_team_jobs": Bound(team=3),
        "fairlead_team_limit": Bound(team=5),
        "fairlead_team_internet_bits_per_second": Bound(team=2 * 4),
        "fairlead_traffic_bits_per_second": Bound(2 * (CLASSES_MAX + 1), 2 * (CLASSES_MAX + 1)),
        "fairlead_traffic_nodes": Bound(len(CountingState)),
        "fairlead_exported_nodes": Bound(len(ExportState) + 1),
        "fairlead_exported": Bound(
            figures * sum(each.most for each in ExportScope if each not in (TEAM, POOL)),
            figures, figures,
        ),
        "fairlead_idle_jobs": Bound(2, team=1),
        "fairlead_idle_gpus": Bound(2, team=1),
        "fairlead_pool_nodes": Bound(pool=5),
        "fairlead_pool_wanted_nodes": Bound(pool=1),
        "fairlead_pool_limit_nodes": Bound(pool=1),
        "fairlead_pool_avoided_domains": Bound(pool=1),
        "fairlead_pool_invalid": Bound(pool=1),
        "fairlead_pool_balloons": Bound(pool=3),
        "fairlead_pool_idle_nodes": Bound(pool=1),
        "fairlead_pool_spare_nodes": Bound(pool=2),
        "fairlead_pool_idle_cost_per_hour": Bound(pool=1),
        "fairlead_pool_removals_held": Bound(500),
        "fairlead_pool_launches_refused": Bound(pool=counter(len(ProviderAnswer))),
        "fairlead_fleet_frozen": Bound(1),
        "fairlead_fleet_rail_holds": Bound(len(Blindness)),
        "fairlead_fleet_cloud_call_duration_seconds": Bound(histogram(calls, 8)),
        "fairlead_fleet_demand_to_launch_seconds": Bound(histogram(1, 9)),
        "fairlead_doctor_findings": Bound(severities),
        "fairlead_doctor_check_findings": Bound(severities * len(CHECKS)),
        "fairlead_doctor_checks": Bound(3),
        "fairlead_doctor_examination_timestamp_seconds": Bound(1),
        "fairlead_doctor_requests": Bound(1),
        "fairlead_health_nodes": Bound(states),
        "fairlead_health_rail_holds": Bound(len(Blindness)),
        "fairlead_health_nodes_held": Bound(len(RemovalRule)),
        "fairlead_health_nodes_untested": Bound(2),
        "fairlead_health_bad_links": Bound(1),
        "fairlead_health_tickets": Bound(len(NoticeState)),
        "fairlead_node_leases": Bound(3),
        "fairlead_silent_nodes": Bound(len(Presence)),
        "fairlead_silence_rail_holds": Bound(len(SilenceHold)),
        "fairlead_webhook_request_duration_seconds": Bound(
            histogram(len(Path) * len(RequestOutcome), 9)
        ),
        "fairlead_webhook_certificate_expiry_timestamp_seconds": Bound(1),
    }  # fmt: skip


def most(teams: int, pools: int) -> int:
    """Return how many series one replica has at most."""
    return sum(each.most(teams, pools) for each in bounds().values())


@dataclass(frozen=True)
class Fleet:
    """The size of a simulated fleet."""

    nodes: int
    jobs: int
    teams: int
    pools: int


SMALL, CROWDED, SPLIT = Fleet(8, 12, 1, 1), Fleet(24, 36, 1, 1), Fleet(8, 12, 4, 3)


@dataclass
class Exported:
    """The most series of each family that a scrape found, and all values of labels."""

    series: Counter[str]
    values: set[str]

    @property
    def total(self) -> int:
        """All series."""
        return sum(self.series.values())

    def take(self, page: str) -> None:
        """Take in a page."""
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[family.name.removesuffix("_created")] += 1
                self.values |= {*sample.labels.values()}
        self.series |= found


class Names(Observer):
    """Collects the names of all nodes, jobs and pods."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def node(self, new: Node | None, name: str, now: float) -> None:
        self.seen.add(name)

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        self.seen.add(key[1])

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        self.seen.add(key[1])


def breaches(found: Exported, fleet: Fleet, names: set[str]) -> list[str]:
    """Return what is wrong with the series of a fleet."""
    above = [
        f"{family} has {count} series"
        for family, count in found.series.items()
        if count > bounds().get(family, Bound()).most(fleet.teams, fleet.pools)
    ]
    return above + [f"{name} is in a label" for name in sorted(found.values & names)]


def exported(fleet: Fleet, names: Names, monkeypatch: pytest.MonkeyPatch) -> Exported:
    """Return what scrapes of the replica of a simulated fleet found, one each 100 writes."""
    pages: list[Metrics] = []
    watched = replicas._WatchedMetrics
    begin, decided, acted = watched.__init__, watched.decided, watched.acted

    def made(self: typing.Any, *given: typing.Any) -> None:
        begin(self, *given)
        pages.append(self)

    def counted(self: typing.Any, controller: str, seconds: float) -> None:
        Metrics.decided(self, controller, seconds)
        decided(self, controller, seconds)

    def noted(self: typing.Any, controller: str, action: str, result: ActionResult) -> None:
        Metrics.acted(self, controller, action, result)
        acted(self, controller, action, result)

    teams = tuple(f"team-{number}" for number in range(fleet.teams))
    options = WorldOptions(
        nodes=fleet.nodes, faults=PERFECT, replicas=1, calls_between_kills_mean=0.0,
        steps_between_crashes_mean=0.0, node_failures_per_day=0.0, drains_per_day=0.0,
        user_acts_per_day=0.0, health=HealthPolicy(enabled=True), sick_nodes_per_day=500.0,
        workload=WorkloadOptions(
            fleet.jobs, 1800.0, members_max=8, run_seconds_max=300.0, teams=teams
        ),
        team_changes=tuple(
            TeamChange(0.0, name, {"namespaces": [name], "shares": []}) for name in teams
        ),
        pools=tuple(PoolShape(f"pool-{number}", 2, min=1) for number in range(fleet.pools)),
    )  # fmt: skip
    seen, writes = Exported(Counter(), set()), 0

    def look() -> None:
        nonlocal writes
        writes += 1
        if writes % 100 == 0:
            for page in pages:
                seen.take(page.render().decode())

    async def main() -> None:
        await World(options, 7, observers=[names], on_writes=look).run()

    with monkeypatch.context() as patch:
        patch.setattr(watched, "__init__", made)
        patch.setattr(watched, "decided", counted)
        patch.setattr(watched, "acted", noted)
        run(main())
    return seen


def test_series_of_a_fleet_grow_with_teams_and_pools_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    found = {fleet: exported(fleet, names, monkeypatch) for fleet in (SMALL, CROWDED, SPLIT)}
    small, crowded, split = found.values()
    assert len(names.seen) > 60
    for fleet, each in found.items():
        assert {"team-0", "pool-0", "scheduler"} <= each.values
        assert breaches(each, fleet, names.seen) == []
    closed = {name for name, each in bounds().items() if not each.team and not each.pool}
    #: Three times the nodes and jobs: nothing but further members of closed sets.
    assert {name: count for name, count in crowded.series.items() if name not in closed} == {
        name: count for name, count in small.series.items() if name not in closed
    }
    for name, each in bounds().items():
        if name in split.series and name not in closed:
            more = 3 * each.team + 2 * each.pool
            assert 0 < split.series[name] - small.series[name] <= more, name
    assert crowded.total - small.total < 0.2 * small.total


def test_a_label_with_the_name_of_a_node_and_a_family_that_grows_are_found() -> None:
    found = Exported(Counter(), set())
    lines = [f'fairlead_leader{{node="n{number}"}} 1' for number in range(2)]
    found.take("\n".join(["# TYPE fairlead_leader gauge", *lines, "fairlead_new 1", ""]))
    assert breaches(found, SMALL, {"n0"}) == [
        "fairlead_leader has 2 series", "fairlead_new has 1 series", "n0 is in a label",
    ]  # fmt: skip


def test_every_family_has_a_bound_and_no_bound_is_of_nothing() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, version="1")
    WebhookMetrics(registry, lambda: 0.0)
    known = {each.removesuffix("_created") for each in bounds()}
    own = {each.name.removesuffix("_created") for each in registry.collect()}
    assert own <= known
    assert generate_latest(registry) == metrics.render()
    sources = [path.read_text() for path in (ROOT / "src/fairlead").rglob("*.py")]
    for name in known:
        assert any(re.search(rf'["# ]{name}(_total)?[" ]', text) for text in sources), name


FLEETS = (("7,500", 40, 20), ("100,000", 200, 60), ("any", 500, 500))


def rows() -> list[str]:
    """Return the rows of the table of the page."""
    found: list[str] = []
    for nodes, teams, pools in FLEETS:
        one = most(teams, pools)
        both = REPLICAS * one
        found.append(
            f"| {nodes} | {teams} | {pools} | {one:,} | {both:,} | {both / SCRAPE_SECONDS:,.0f} |"
        )
    return found


def test_the_budget_of_the_page_is_the_bound() -> None:
    text = PAGE.read_text()
    for row in rows():
        assert row in text, "the rows are:\n" + "\n".join(rows())
    last = max(most(*fleet[1:]) for fleet in FLEETS)
    assert last <= 150_000, "a metric needs so many series that it belongs into the history"
