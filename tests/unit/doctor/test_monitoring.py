"""Alert rules and boards: their queries read metrics that exist, and say what the checks say."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.tidy.sources import ROOT

from fairlead.api.values.sketch import Sketch
from fairlead.app.operator import OperatorSettings, ReplicaRun
from fairlead.app.replica import ReplicaSettings
from fairlead.cli.main import guarded
from fairlead.decide.doctor.examination import Examination
from fairlead.decide.health.cycle import HealthReport
from fairlead.decide.health.unreachable_nodes import SilenceReport
from fairlead.decide.use.exports import ExportKey, ExportScope
from fairlead.doctor.check import Check, Harm, Limit, Side, critical, warning
from fairlead.doctor.checks.etcd import NOSPACE
from fairlead.doctor.expressions import (
    CodeShare,
    Gauge,
    Increase,
    PerSecond,
    Quantile,
    Ratio,
    Recorded,
)
from fairlead.doctor.facts import Source
from fairlead.doctor.monitoring.alerts import OWN, groups, of_checks
from fairlead.doctor.monitoring.boards import boards, control_plane, model
from fairlead.doctor.prometheus.promql import uses_of
from fairlead.doctor.query import JOBS as DEFAULT_JOBS
from fairlead.doctor.registry import CHECKS, wanted_samples
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Alerts, MetricsValues, Values
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.exported.export_metrics import HEAD, ExportReport, lines_of
from fairlead.runtime.exported.fleet_metrics import FleetSource
from fairlead.runtime.exported.traffic_metrics import TrafficReport
from fairlead.runtime.exported.use_metrics import IdleReport
from fairlead.runtime.logs import SILENT
from fairlead.webhook.server import WebhookMetrics

JOBS = {source: f"the-{source.name.lower()}" for source in Source}
ETCD = Source.ETCD
#: Metrics of which only a Prometheus has the history.
RECORDED = {
    "etcd_mvcc_db_total_size_in_bytes", "etcd_server_quota_backend_bytes",
    "kube_endpoint_address", "kube_node_status_capacity", "kube_node_status_condition",
    "kubelet_running_pods", "kubelet_runtime_operations_total", "scrape_duration_seconds",
}  # fmt: skip


def make_check(measure: Any, *levels: Limit, side: Side = Side.ABOVE) -> Check:
    return Check("X-1", "A title", (ETCD,), measure, levels, "why", "fix", "reference", side)


@pytest.mark.parametrize(
    ("measure", "value", "guard"),
    [
        (Gauge(ETCD, "a", ("x",)), 'sum by (instance, x) (a{job=~"the-etcd"})', ""),
        (
            Ratio(ETCD, "a", "b"),
            'sum by (instance) (a{job=~"the-etcd"}) / (sum by (instance) (b{job=~"the-etcd"}) > 0)',
            "",
        ),
        (
            PerSecond(ETCD, "a", match=(("code", ("429", "500")), ("verb", ("GET",)))),
            'sum by (instance) (rate(a{job=~"the-etcd", code=~"429|500", verb="GET"}[5m]))',
            "",
        ),
        (Increase(ETCD, "a"), 'sum by (instance) (increase(a{job=~"the-etcd"}[1h]))', ""),
        (
            CodeShare(ETCD, "a", "code", "5", count_min=50),
            'sum by (instance) (rate(a{job=~"the-etcd", code=~"5.*"}[5m])) / '
            'sum by (instance) (rate(a{job=~"the-etcd"}[5m]))',
            'sum by (instance) (increase(a{job=~"the-etcd"}[5m])) >= 50',
        ),
        (
            Quantile(ETCD, "a", 0.9, count_min=100),
            'histogram_quantile(0.9, sum by (instance, le) (rate(a_bucket{job=~"the-etcd"}[5m])))',
            'sum by (instance) (increase(a_bucket{job=~"the-etcd", le="+Inf"}[5m])) >= 100',
        ),
        (
            Recorded(ETCD, 'max by (node) (a{job=~"$job"})', ("node",)),
            'max by (node) (a{job=~"the-etcd"})',
            "",
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_form_of_expression_has_its_query(measure: Any, value: str, guard: str) -> None:
    query = measure.query(JOBS)
    assert query is not None
    assert (query.value, query.guard) == (value, guard)


def test_what_prometheus_does_not_know_has_no_query() -> None:
    assert make_check(lambda facts: ()).query(JOBS) is None
    assert NOSPACE.query(JOBS) is None


def test_each_level_of_a_check_is_an_alert() -> None:
    check = make_check(Quantile(ETCD, "a"), warning(0.01), critical(0.1))
    low, high = of_checks([check], JOBS)
    assert (low.severity, high.severity) == (Harm.WARNING, Harm.CRITICAL)
    assert low.name == high.name == "DoctorX1"
    assert "> 0.01) and (" in low.expression
    assert "> 0.1) and (" in high.expression
    assert high.minutes < low.minutes


def test_a_limit_from_below_and_one_for_large_clusters() -> None:
    check = make_check(Gauge(ETCD, "a"), critical(1, nodes_from=501), side=Side.BELOW)
    (alert,) = of_checks([check], JOBS)
    assert alert.expression.startswith('(sum by (instance) (a{job=~"the-etcd"}) < 1) and on () (')
    assert alert.expression.endswith(" >= 501)")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the sample names that a controller exports, by family."""
    service = ApiService(
        Store.open(None), Registry.with_builtins(), SystemClock(),
        ids=lambda: "1", rng=random.Random(1),
    )  # fmt: skip
    operator = ReplicaRun(
        OperatorSettings(ReplicaSettings("one"), "127.0.0.1", 0), InProcessClient(service),
        MemoryHistory(), clock=SystemClock(), log=SILENT,
    )  # fmt: skip
    operator._metrics.watch_jobs(lambda: ())
    operator._metrics.watch_teams(lambda: ())
    operator._metrics.fleet.watch(FleetSource(lambda: (), lambda: None, lambda: (), lambda: None))
    operator._metrics.doctor.watch(lambda: Examination(0.0))
    operator._metrics.health.watch(HealthReport)
    operator._metrics.silence.watch(SilenceReport)
    operator._metrics.tickets.watch(Counter)
    operator._metrics.traffic.watch(TrafficReport)
    operator._metrics.use.watch(IdleReport)
    line = lines_of(ExportKey(ExportScope.FLEET, "", "a"), Sketch({1: 1}))
    operator._metrics.exports.watch(lambda: ExportReport({"counted": 1}, f"{HEAD}{line}".encode()))
    webhook = CollectorRegistry()
    WebhookMetrics(webhook, lambda: 0.0)
    text = operator._metrics.render().decode() + generate_latest(webhook).decode()
    suffixes = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",), "gauge": ("",)}
    return {
        family.name: {family.name + each for each in suffixes[family.type]}
        for family in text_string_to_metric_families(text)
        if family.name.startswith("fairlead_") and not family.name.endswith("_created")
    }


def own_queries() -> Iterator[str]:
    yield from (alert.expression for alert in OWN)
    for name, board in boards().items():
        if name != "fairlead-control-plane.json":
            yield from queries_of(board)


def queries_of(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_queries_about_fairlead_read_only_what_it_exports(exported: dict[str, set[str]]) -> None:
    known = {name for names in exported.values() for name in names}
    read = uses_of(own_queries())
    assert not read.unnamed
    assert read.names <= known


def test_every_metric_of_fairlead_is_on_a_board_or_in_an_alert(
    exported: dict[str, set[str]],
) -> None:
    read = uses_of(own_queries()).names
    unread = {family for family, names in exported.items() if not names & read}
    assert unread == {"fairlead_fenced_jobs"}  # of interest after an incident only


def test_queries_about_the_control_plane_read_what_the_checks_read() -> None:
    wanted = {name for names in wanted_samples().values() for name in names}
    nodes = {"apiserver_resource_objects", "apiserver_storage_objects"}
    read = uses_of([*(each.expression for each in of_checks(CHECKS)),
                    *queries_of(model(control_plane()))]).names  # fmt: skip
    assert read <= wanted | nodes | RECORDED
    assert len(read) > 30


def test_panels_lie_beside_each_other_and_have_ids_of_their_own() -> None:
    for board in boards().values():
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            own = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
            assert not own & cells
            assert at["x"] + at["w"] <= 24
            cells |= own


def test_a_panel_shows_the_limits_of_its_check() -> None:
    checks = [
        make_check(Gauge(ETCD, "a"), warning(1), critical(2)),
        make_check(Gauge(ETCD, "b"), warning(2), critical(1), side=Side.BELOW),
    ]
    panels = model(control_plane(checks))["panels"][1:]
    thresholds = [panel["fieldConfig"]["defaults"]["thresholds"]["steps"] for panel in panels]
    assert [[(each["value"], each["color"]) for each in steps] for steps in thresholds] == [
        [(None, "green"), (1, "orange"), (2, "red")],
        [(None, "red"), (1, "orange"), (2, "green")],
    ]


def test_the_command_writes_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["doctor", "alerts", "--job", "etcd=my-etcd"]) == 0
    written = yaml.safe_load(capsys.readouterr().out)
    assert written == groups({**DEFAULT_JOBS, ETCD: "my-etcd"})
    assert guarded(["doctor", "alerts", "--operator", "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["kind"], made["spec"]) == ("PrometheusRule", groups())


def rules_of(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in spec["groups"]:
        yield from group["rules"]


def test_the_runbook_of_every_alert_exists_on_its_page() -> None:
    headings = {
        page.name: {f"#{line.removeprefix('## ').lower()}" for line in page.read_text().splitlines()
                    if line.startswith("## ")}
        for page in (ROOT / "docs" / "reference").glob("*.md")
    }  # fmt: skip
    links = [
        rule["annotations"]["runbook_url"] for rule in rules_of(groups(runbooks="https://h/d"))
    ]
    assert len(links) > 60
    for link in links:
        base, _, rest = link.rpartition("/")
        page, mark, anchor = rest.partition("#")
        assert base == "https://h/d"
        assert mark + anchor in headings[page], link


def test_the_runbooks_are_where_the_flag_and_the_chart_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = "https://wiki.example/fairlead"
    assert guarded(["doctor", "alerts", "--runbooks", f"{place}/"]) == 0
    written = yaml.safe_load(capsys.readouterr().out)
    assert written == groups(runbooks=place)
    assert guarded(["doctor", "alerts", "--runbooks", "wiki"]) == 2
    assert "--runbooks: 'wiki' is not the URL" in capsys.readouterr().err
    assert rules_of_chart(place) == written


def test_without_a_place_no_alert_links_anywhere() -> None:
    assert rules_of_chart("") == groups()
    for rule in rules_of(groups()):
        assert "runbook_url" not in rule["annotations"]
        assert rule["annotations"]["action"], "what to do is in the rule itself"


def rules_of_chart(place: str) -> dict[str, Any]:
    values = Values(metrics=MetricsValues(alerts=Alerts(enabled=True, runbook_url=place)))
    made = {each["kind"]: each for each in manifests(Install(values=values))}
    return made["PrometheusRule"]["spec"]


@pytest.mark.parametrize(
    ("job", "said"), [("etdc=x", "SOURCE=REGEX"), ("etcd", "SOURCE=REGEX"), ("etcd=(", "pattern")]
)
def test_a_wrong_job_is_named(job: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["doctor", "alerts", "--job", job]) == 2
    assert said in capsys.readouterr().err


def test_the_command_writes_boards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "new" / "boards"
    assert guarded(["doctor", "dashboards", str(directory)]) == 0
    assert {path.name: json.loads(path.read_text()) for path in directory.iterdir()} == boards()
    (tmp_path / "file").write_text("")
    assert guarded(["doctor", "dashboards", str(tmp_path / "file")]) != 0
    assert "E703" in capsys.readouterr().err
