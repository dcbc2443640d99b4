"""Boards for Grafana, as data: which panels there are, with their queries (pure).

A panel of a check has the check's limits as thresholds and its reason as description, so boards,
alerts and the doctor's report say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.doctor.check import Check, Level, Severity, Side
from fairlead.doctor.facts import Source
from fairlead.doctor.monitoring.query import JOBS, query_of
from fairlead.doctor.registry import CHECKS

#: Units of Grafana for those of checks; others are plain numbers.
_UNITS = {"s": "s", "bytes": "bytes", "bytes/s": "Bps", "/s": "ops", "share": "percentunit",
          "hours": "h"}  # fmt: skip
_COLOURS = {Severity.INFO: "blue", Severity.WARNING: "orange", Severity.CRITICAL: "red"}
#: Grafana's schema of dashboards; newer versions convert older ones.
_SCHEMA = 39
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
#: What Grafana puts a window of some scrapes in for.
SPAN = "$__rate_interval"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time. `lines` are (query, legend); a legend may name labels in `{{ }}`."""

    title: str
    lines: tuple[tuple[str, str], ...]
    text: str = ""
    unit: str = "short"
    levels: tuple[Level, ...] = ()
    side: Side = Side.ABOVE
    is_stacked: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A page of panels in rows."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of all panels."""
        for _, panels in self.rows:
            for panel in panels:
                yield from panel.lines


JOBS_BOARD = Board("fairlead-jobs", "Fairlead / Jobs", (
    ("Now", (
        Panel("Jobs by state", (("sum by (state) (fairlead_jobs)", "{{state}}"),),
              "All jobs that the cluster has, ended ones included.", is_stacked=True),
        Panel("Why jobs wait",
              (('sum by (reason) (fairlead_jobs{reason!=""})', "{{reason}}"),),
              "The planner's verdict on each job that waits; `fairlead why JOB` has the numbers.",
              is_stacked=True),
        Panel("Jobs that run or wait", (
            ('sum(fairlead_jobs{state="Running"})', "running"),
            ('sum(fairlead_jobs{state=~"Waiting|Held|Restarting"})', "waiting"),
        )),
    )),
    ("What is done about them", (
        Panel("Placements", ((
            'sum by (result) (rate(fairlead_actions_total{controller="scheduler"}'
            f"[{SPAN}]))", "{{result}}",
        ),), "Writes of the scheduler by how they ended.", "ops"),
        Panel("Starts, ends and restarts", ((
            'sum by (action) (rate(fairlead_actions_total{controller="jobs"}'
            f"[{SPAN}]))", "{{action}}",
        ),), "Writes of the jobs controller.", "ops"),
        Panel("Time of a decision, p99", ((
            "histogram_quantile(0.99, sum by (controller, le) "
            f"(rate(fairlead_decide_duration_seconds_bucket[{SPAN}])))", "{{controller}}",
        ),), unit="s"),
    )),
))  # fmt: skip
CONTROLLERS_BOARD = Board("fairlead-controllers", "Fairlead / Controllers", (
    ("Leadership and faults", (
        Panel("Leaders", (("sum(fairlead_leader)", "leaders"),), "One, but for an election.",
              levels=(Level(Severity.CRITICAL, 1),), side=Side.BELOW),
        Panel("Restarts after faults", ((
            f"sum by (service) (increase(fairlead_service_crashes_total[{SPAN}]))", "{{service}}",
        ),), levels=(Level(Severity.WARNING, 0),)),
        Panel("Objects set aside",
              (("sum by (reader, kind) (fairlead_objects_set_aside)", "{{reader}} {{kind}}"),),
              "Objects left alone because reading them or acting on them failed.",
              levels=(Level(Severity.WARNING, 0),)),
    )),
    ("What they see", (
        Panel("Silence by kind", (("max by (kind) (fairlead_mirror_lag_seconds)", "{{kind}}"),),
              "Seconds since the API last said anything about a kind.", "s",
              (Level(Severity.WARNING, 180),)),
        Panel("Objects by kind", (("max by (kind) (fairlead_mirror_objects)", "{{kind}}"),)),
        Panel("Queues", (("max by (controller) (fairlead_workqueue_depth)", "{{controller}}"),),
              "Keys that wait to be looked at.", levels=(Level(Severity.WARNING, 1000),)),
    )),
    ("What they do", (
        Panel("Decisions", ((
            f"sum by (controller) (rate(fairlead_decide_duration_seconds_count[{SPAN}]))",
            "{{controller}}",
        ),), unit="ops"),
        Panel("Writes by result", ((
            f"sum by (controller, result) (rate(fairlead_actions_total[{SPAN}]))",
            "{{controller}} {{result}}",
        ),), unit="ops"),
        Panel("Events dropped",
              ((f"sum(rate(fairlead_events_dropped_total[{SPAN}]))", "events"),), unit="ops"),
    )),
    ("Doctor", (
        Panel("Findings", (
            ("max by (severity) (fairlead_doctor_findings)", "{{severity}}"),
            ("max by (check) (fairlead_doctor_check_findings)", "{{check}}"),
        ), "Of the latest examination; `kubectl describe clusterreport cluster` has the evidence."),
        Panel("Checks by result",
              (("max by (result) (fairlead_doctor_checks)", "{{result}}"),),
              "Unknown: the controller cannot see what the check needs.", is_stacked=True),
        Panel("Cost and age", (
            ("max(fairlead_doctor_requests)", "requests of an examination"),
            ("max(time() - fairlead_doctor_examination_timestamp_seconds)", "seconds since"),
        )),
    )),
    ("Webhook", (
        Panel("Time of an answer", tuple((
            f"histogram_quantile({q}, sum by (le) "
            f"(rate(fairlead_webhook_request_duration_seconds_bucket[{SPAN}])))", name,
        ) for q, name in ((0.5, "p50"), (0.99, "p99"))), unit="s"),
        Panel("Answers", ((
            "sum by (path, outcome) "
            f"(rate(fairlead_webhook_request_duration_seconds_count[{SPAN}]))",
            "{{path}} {{outcome}}",
        ),), unit="ops"),
        Panel("Certificate ends in", ((
            "min(fairlead_webhook_certificate_expiry_timestamp_seconds > 0) - time()",
            "certificate",
        ),), unit="s", levels=(Level(Severity.CRITICAL, 7 * 86400),), side=Side.BELOW),
    )),
))  # fmt: skip
TEAMS_BOARD = Board("fairlead-teams", "Fairlead / Teams", (
    ("Shares", (
        Panel("Nodes owned", ((
            'sum by (team) (fairlead_team_nodes{kind="owned"})', "{{team}}",
        ),), "Healthy nodes of each share.", is_stacked=True),
        Panel("Nodes missing", ((
            'sum by (team) (fairlead_team_nodes{kind="missing"})', "{{team}}",
        ),), "What a share lacks of healthy nodes.", levels=(Level(Severity.WARNING, 0),)),
        Panel("Nodes used", ((
            'sum by (team) (fairlead_team_nodes{kind="used"})', "{{team}}",
        ),), "Own nodes that jobs of the team are on.", is_stacked=True),
    )),
    ("Borrowing", (
        Panel("Nodes lent", (('sum by (team) (fairlead_team_nodes{kind="lent"})', "{{team}}"),),
              "Own nodes that jobs of others are on.", is_stacked=True),
        Panel("Nodes borrowed", ((
            'sum by (team) (fairlead_team_nodes{kind="borrowed"})', "{{team}}",
        ),), "Nodes of others that jobs of the team are on.", is_stacked=True),
        Panel("GPUs held", (("sum by (team) (fairlead_team_gpus)", "{{team}}"),), is_stacked=True),
    )),
    ("Jobs", (
        Panel("Jobs placed", ((
            'sum by (team) (fairlead_team_jobs{kind="placed"})', "{{team}}",
        ),), is_stacked=True),
        Panel("Jobs waiting", ((
            'sum by (team) (fairlead_team_jobs{kind="waiting"})', "{{team}}",
        ),), is_stacked=True),
        Panel("Part of the limits used", ((
            'sum by (team) (fairlead_team_jobs{kind="placed"})'
            ' / sum by (team) (fairlead_team_limit{kind="running"})', "{{team}} running jobs",
        ), (
            "sum by (team) (fairlead_team_gpus)"
            ' / sum by (team) (fairlead_team_limit{kind="gpus"})', "{{team}} GPUs",
        ), (
            "sum by (team) (fairlead_team_gpu_hours)"
            ' / sum by (team) (fairlead_team_limit{kind="gpu_hours"})', "{{team}} GPU-hours",
        )), unit="percentunit"),
        Panel("Jobs that wait although there is room",
              (("sum(fairlead_jobs_waiting_with_room)", "jobs"),),
              "There is enough of what they ask for; a limit or a topology holds them."),
    )),
))  # fmt: skip
_CALLS = "fairlead_fleet_cloud_call_duration_seconds"
FLEET_BOARD = Board("fairlead-fleet", "Fairlead / Fleet", (
    ("Pools", (
        Panel("Machines by phase", ((
            "sum by (phase) (fairlead_pool_nodes)", "{{phase}}",
        ),), "Unusable: cordoned, or not ready.", is_stacked=True),
        Panel("Nodes by pool", ((
            'sum by (pool) (fairlead_pool_nodes{phase!~"launching|leaving"})', "{{pool}}",
        ),), is_stacked=True),
        Panel("Nodes that are wanted and not there", ((
            'max by (pool) (fairlead_pool_wanted_nodes{mode="Active"}) - sum by (pool) '
            '(fairlead_pool_nodes{phase=~"joining|ready|unusable"})', "{{pool}}",
        ),), "Above 0: still to come. Below: more than wanted, which go when they have been idle."),
        Panel("Share of the limit", ((
            'sum by (pool) (fairlead_pool_nodes{phase!="leaving"}) / '
            "(max by (pool) (fairlead_pool_limit_nodes) > 0)", "{{pool}}",
        ),), "Pools at 100 % buy no more.", "percentunit"),
        Panel("Idle nodes, and spares of these", (
            ("max by (pool) (fairlead_pool_idle_nodes)", "{{pool}}"),
            ("max by (pool, state) (fairlead_pool_spare_nodes)", "{{pool}}: spares {{state}}"),
        ), "Ready, and without a pod of a job."),
        Panel("Cost of idle nodes an hour",
              (("max by (pool) (fairlead_pool_idle_cost_per_hour)", "{{pool}}"),),
              "By the prices that the pools state."),
        Panel("Balloons", (
            ("sum by (pool, state) (fairlead_pool_balloons)", "{{pool}} {{state}}"),
        ), "Pods that keep idle nodes, or ask another autoscaler for some."),
        Panel("Domains avoided", (("max by (pool) (fairlead_pool_avoided_domains)", "{{pool}}"),),
              "They refused a launch, and are tried again later."),
        Panel("Invalid pools", (("max by (pool) (fairlead_pool_invalid)", "{{pool}}"),),
              levels=(Level(Severity.WARNING, 0),)),
    )),
    ("Buying", (
        Panel("From demand to the first launch call", tuple((
            f"histogram_quantile({q}, sum by (le) "
            f"(rate(fairlead_fleet_demand_to_launch_seconds_bucket[{SPAN}])))", name,
        ) for q, name in ((0.5, "p50"), (0.99, "p99"))),
            "Also counts the time for which all pools were full.", "s"),
        Panel("Launches refused", ((
            "sum by (pool, reason) "
            f"(increase(fairlead_pool_launches_refused_total[{SPAN}]))", "{{pool}} {{reason}}",
        ),)),
        Panel("Calls to providers", ((
            f"sum by (provider, outcome) (rate({_CALLS}_count[{SPAN}]))",
            "{{provider}} {{outcome}}",
        ),), unit="ops"),
        Panel("Time of a call, p99", ((
            f"histogram_quantile(0.99, sum by (call, le) (rate({_CALLS}_bucket[{SPAN}])))",
            "{{call}}",
        ),), unit="s"),
    )),
    ("Rails", (
        Panel("What makes the controller blind", ((
            "max by (rail) (fairlead_fleet_rail_holds)", "{{rail}}",
        ),), "While one is 1, no node is removed.", levels=(Level(Severity.WARNING, 0),)),
        Panel("Removals held back", ((
            "sum by (rule, budget) (fairlead_pool_removals_held)", "{{rule}} {{budget}}",
        ),), "By the rule that holds them, and the budget that is used up.", is_stacked=True),
        Panel("Frozen", (("max(fairlead_fleet_frozen)", "frozen"),),
              "1 while a person has frozen the fleet.", levels=(Level(Severity.INFO, 0),)),
    )),
))  # fmt: skip
_ROWS = {
    Source.ETCD: "etcd",
    Source.APISERVER: "API server",
    Source.SCHEDULER: "Scheduler",
    Source.CONTROLLER_MANAGER: "Controller manager",
    Source.KUBELET: "Kubelets",
    Source.KUBE_STATE: "Nodes and Services",
    Source.KUBE_PROXY: "kube-proxy",
    Source.COREDNS: "DNS",
    Source.PROMETHEUS: "Prometheus",
}


def control_plane(checks: Iterable[Check] = CHECKS, jobs: Mapping[Source, str] = JOBS) -> Board:
    """Return a board with a panel for each check that Prometheus can evaluate."""
    rows: dict[Source, list[Panel]] = {source: [] for source in _ROWS}
    for check in checks:
        query = query_of(check.measure, jobs)
        if query is None:
            continue
        legend = " ".join(f"{{{{{name}}}}}" for name in ("instance", *query.by))
        rows[check.needs[0]].append(Panel(
            f"{check.id} {check.title}", ((query.value, legend),), check.why,
            _UNITS.get(check.unit, "short"), check.levels, check.side,
        ))  # fmt: skip
    shown = tuple((_ROWS[source], tuple(panels)) for source, panels in rows.items() if panels)
    return Board("fairlead-control-plane", "Fairlead / Control plane", shown)


def all_boards(jobs: Mapping[Source, str] = JOBS) -> tuple[Board, ...]:
    """Return all boards."""
    return JOBS_BOARD, TEAMS_BOARD, FLEET_BOARD, CONTROLLERS_BOARD, control_plane(jobs=jobs)


def boards(jobs: Mapping[Source, str] = JOBS) -> dict[str, dict[str, Any]]:
    """Return the model of each board, as Grafana imports it, by file name."""
    return {f"{board.uid}.json": model(board) for board in all_boards(jobs)}


def model(board: Board) -> dict[str, Any]:
    """Return a board in Grafana's format."""
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["fairlead"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": list(_placed(board)),
    }


def _placed(board: Board) -> Iterator[dict[str, Any]]:
    top, number = 0, 0
    for title, panels in board.rows:
        number += 1
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            column = index % (_COLUMNS // _WIDTH)
            if index and not column:
                top += _HEIGHT
            place = {"x": column * _WIDTH, "y": top, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "gridPos": place, **_chart(panel)}
        top += _HEIGHT


def _chart(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10}
    if panel.is_stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal"}}
    if panel.levels:
        custom["thresholdsStyle"] = {"mode": "line"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend,
             "datasource": _SOURCE}
            for i, (query, legend) in enumerate(panel.lines)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": _steps(panel)},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
    }  # fmt: skip


def _steps(panel: Panel) -> list[dict[str, Any]]:
    """Return Grafana's steps: a colour from a value on, the first one from minus infinity."""
    levels = sorted(panel.levels, key=lambda level: level.limit)
    if panel.side is Side.ABOVE:
        return [
            {"value": None, "color": "green"},
            *({"value": each.limit, "color": _COLOURS[each.severity]} for each in levels),
        ]
    colours = [*(_COLOURS[each.severity] for each in levels), "green"]
    limits = [None, *(each.limit for each in levels)]
    return [{"value": v, "color": c} for v, c in zip(limits, colours, strict=True)]
