"""Boards for Grafana, as data: which panels there are, with their queries (pure).

A panel of a check has the check's limits as thresholds and its reason as description, so boards,
alerts and the doctor's report say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.doctor.check import Check, Harm, Limit, Side
from fairlead.doctor.facts import Source
from fairlead.doctor.query import JOBS
from fairlead.doctor.registry import CHECKS

#: Units of Grafana for those of checks; others are plain numbers.
_UNITS = {"s": "s", "bytes": "bytes", "bytes/s": "Bps", "/s": "ops", "share": "percentunit",
          "hours": "h"}  # fmt: skip
_COLOURS = {Harm.INFO: "blue", Harm.WARNING: "orange", Harm.CRITICAL: "red"}
#: Grafana's schema of dashboards; newer versions convert older ones.
_SCHEMA = 39
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
#: What Grafana puts a window of some scrapes in for.
SPAN = "$__rate_interval"
#: Quantiles of times that a panel shows.
_SHOWN = (0.5, 0.99)
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time. `lines` are (query, legend); a legend may name labels in `{{ }}`."""

    title: str
    lines: tuple[tuple[str, str], ...]
    text: str = ""
    unit: str = "short"
    levels: tuple[Limit, ...] = ()
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


def _by(labels: str, metric: str, how: str = "sum") -> tuple[str, str]:
    """Return the aggregate of a metric by labels such as "a, b", with these as the legend."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    return f"{how} by ({labels}) ({metric})", legend


def _rate(counter: str, how: str = "rate") -> str:
    return f"{how}({counter}[{SPAN}])"


def _quantile(q: float, buckets: str, label: str = "") -> tuple[str, str]:
    """Return a quantile of a histogram, by a label or over all, with the legend."""
    by = f"{label}, le" if label else "le"
    legend = f"{{{{{label}}}}}" if label else f"p{q * 100:g}"
    return f"histogram_quantile({q}, sum by ({by}) ({_rate(buckets)}))", legend


JOBS_BOARD = Board("fairlead-jobs", "Fairlead / Jobs", (
    ("Now", (
        Panel("Jobs by state", (_by("state", "fairlead_jobs"),),
              "All jobs that the cluster has, ended ones included.", is_stacked=True),
        Panel("Why jobs wait", (_by("reason", 'fairlead_jobs{reason!=""}'),),
              "The planner's verdict on each job that waits; `fairlead why JOB` has the numbers.",
              is_stacked=True),
        Panel("Jobs that run or wait", (
            ('sum(fairlead_jobs{state="Running"})', "running"),
            ('sum(fairlead_jobs{state=~"Waiting|Held|Restarting"})', "waiting"),
        )),
    )),
    ("What is done about them", (
        Panel("Placements",
              (_by("result", _rate('fairlead_actions_total{controller="scheduler"}')),),
              "Writes of the scheduler by how they ended.", "ops"),
        Panel("Starts, ends and restarts",
              (_by("action", _rate('fairlead_actions_total{controller="jobs"}')),),
              "Writes of the jobs controller.", "ops"),
        Panel("Time of a decision, p99",
              (_quantile(0.99, "fairlead_decide_duration_seconds_bucket", "controller"),),
              unit="s"),
    )),
))  # fmt: skip
CONTROLLERS_BOARD = Board("fairlead-controllers", "Fairlead / Controllers", (
    ("Leadership and faults", (
        Panel("Leaders", (("sum(fairlead_leader)", "leaders"),), "One, but for an election.",
              levels=(Limit(Harm.CRITICAL, 1),), side=Side.BELOW),
        Panel("Restarts after faults",
              (_by("service", _rate("fairlead_service_crashes_total", "increase")),),
              levels=(Limit(Harm.WARNING, 0),)),
        Panel("Objects set aside", (_by("reader, kind", "fairlead_objects_set_aside"),),
              "Objects left alone because reading them or acting on them failed.",
              levels=(Limit(Harm.WARNING, 0),)),
    )),
    ("What they see", (
        Panel("Silence by kind", (_by("kind", "fairlead_mirror_lag_seconds", "max"),),
              "Seconds since the API last said anything about a kind.", "s",
              (Limit(Harm.WARNING, 180),)),
        Panel("Objects by kind", (_by("kind", "fairlead_mirror_objects", "max"),)),
        Panel("Queues", (_by("controller", "fairlead_workqueue_depth", "max"),),
              "Keys that wait to be looked at.", levels=(Limit(Harm.WARNING, 1000),)),
    )),
    ("What they do", (
        Panel("Decisions",
              (_by("controller", _rate("fairlead_decide_duration_seconds_count")),), unit="ops"),
        Panel("Writes by result",
              (_by("controller, result", _rate("fairlead_actions_total")),), unit="ops"),
        Panel("Events dropped",
              ((f"sum({_rate('fairlead_events_dropped_total')})", "events"),), unit="ops"),
        Panel("Notices by how a try ended",
              (_by("reason", _rate("fairlead_notice_tries_total")),), unit="ops"),
    )),
    ("Doctor", (
        Panel("Findings", (
            _by("severity", "fairlead_doctor_findings", "max"),
            _by("check", "fairlead_doctor_check_findings", "max"),
        ), "Of the latest examination; `kubectl describe clusterreport cluster` has the evidence."),
        Panel("Checks by result", (_by("result", "fairlead_doctor_checks", "max"),),
              "Unknown: the controller cannot see what the check needs.", is_stacked=True),
        Panel("Cost and age", (
            ("max(fairlead_doctor_requests)", "requests of an examination"),
            ("max(time() - fairlead_doctor_examination_timestamp_seconds)", "seconds since"),
        )),
    )),
    ("Webhook", (
        Panel("Time of an answer", tuple(
            _quantile(q, "fairlead_webhook_request_duration_seconds_bucket") for q in _SHOWN
        ), unit="s"),
        Panel("Answers",
              (_by("path, outcome", _rate("fairlead_webhook_request_duration_seconds_count")),),
              unit="ops"),
        Panel("Certificate ends in", ((
            "min(fairlead_webhook_certificate_expiry_timestamp_seconds > 0) - time()",
            "certificate",
        ),), unit="s", levels=(Limit(Harm.CRITICAL, 7 * 86400),), side=Side.BELOW),
    )),
))  # fmt: skip
TEAMS_BOARD = Board("fairlead-teams", "Fairlead / Teams", (
    ("Shares", (
        Panel("Nodes owned", (_by("team", 'fairlead_team_nodes{kind="owned"}'),),
              "Healthy nodes of each share.", is_stacked=True),
        Panel("Nodes missing", (_by("team", 'fairlead_team_nodes{kind="missing"}'),),
              "What a share lacks of healthy nodes.", levels=(Limit(Harm.WARNING, 0),)),
        Panel("Nodes used", (_by("team", 'fairlead_team_nodes{kind="used"}'),),
              "Own nodes that jobs of the team are on.", is_stacked=True),
    )),
    ("Borrowing", (
        Panel("Nodes lent", (_by("team", 'fairlead_team_nodes{kind="lent"}'),),
              "Own nodes that jobs of others are on.", is_stacked=True),
        Panel("Nodes borrowed", (_by("team", 'fairlead_team_nodes{kind="borrowed"}'),),
              "Nodes of others that jobs of the team are on.", is_stacked=True),
        Panel("GPUs held", (_by("team", "fairlead_team_gpus"),), is_stacked=True),
    )),
    ("Use", (
        Panel("GPUs held and not used", (_by("team", "fairlead_idle_gpus"),),
              "Of jobs that have used almost nothing for 10 minutes: `fairlead top -A --idle`.",
              is_stacked=True),
        Panel("Jobs that use almost nothing", (_by("team", "fairlead_idle_jobs"),),
              is_stacked=True),
        Panel("What the idle policy does",
              (_by("action", _rate('fairlead_actions_total{controller="idle"}')),),
              "Warnings, ends, and reports of what it would do in shadow.", "ops"),
    )),
    ("Jobs", (
        Panel("Jobs placed", (_by("team", 'fairlead_team_jobs{kind="placed"}'),), is_stacked=True),
        Panel("Jobs waiting", (_by("team", 'fairlead_team_jobs{kind="waiting"}'),),
              is_stacked=True),
        Panel("Part of the limits used", tuple((
            f'sum by (team) ({used}) / sum by (team) (fairlead_team_limit{{kind="{limit}"}})',
            f"{{{{team}}}} {what}",
        ) for used, limit, what in (
            ('fairlead_team_jobs{kind="placed"}', "running", "running jobs"),
            ("fairlead_team_gpus", "gpus", "GPUs"),
            ("fairlead_team_gpu_hours", "gpu_hours", "GPU-hours"),
        )), unit="percentunit"),
        Panel("Jobs that wait although there is room",
              (("sum(fairlead_jobs_waiting_with_room)", "jobs"),),
              "There is enough of what they ask for; a limit or a topology holds them."),
    )),
    ("Traffic", (
        Panel("Sent to the internet", (_by(
            "team", 'fairlead_traffic_bits_per_second{class="internet", direction="out"}',
        ),), "In bits per second, as the nodes last reported.", "bps", is_stacked=True),
        Panel("Received from the internet", (_by(
            "team", 'fairlead_traffic_bits_per_second{class="internet", direction="in"}',
        ),), unit="bps", is_stacked=True),
        Panel("Traffic by class", (_by("class, direction", "fairlead_traffic_bits_per_second"),),
              "What the other end is; pods' traffic with each other counts at both.", "bps"),
        Panel("Budgets of internet traffic",
              (_by("team, direction, kind", "fairlead_team_internet_bits_per_second"),),
              "given: what nodes hold of it; wanted: what they would use.", "bps"),
        Panel("Budgets of destinations", (_by("destination, direction, kind",
                                              "fairlead_destination_bits_per_second"),),
              "Of all teams together.", "bps"),
        Panel("Nodes by what they count", (_by("state", "fairlead_traffic_nodes"),),
              "partly and blind: figures of traffic are too low.", is_stacked=True),
    )),
    ("Exporters of nodes", (
        Panel("Exported by team, median", (_by(
            "team, metric", 'label_replace(fairlead_exported{by="team", stat="p50"}, '
            '"team", "$1", "name", "(.*)")', "max",
        ),), "Values of metrics that the nodes' agents read, within the latest minute."),
        Panel("Exported by the fleet, p99", (_by(
            "metric", 'fairlead_exported{by="fleet", stat="p99"}', "max",
        ),)),
        Panel("Nodes whose exporters count", (_by("state", "fairlead_exported_nodes"),),
              "silent: the latest window is old; refused: the report is malformed; absent: the "
              "agent reads none.", is_stacked=True),
    )),
))  # fmt: skip
_CALLS = "fairlead_fleet_cloud_call_duration_seconds"
FLEET_BOARD = Board("fairlead-fleet", "Fairlead / Fleet", (
    ("Pools", (
        Panel("Machines by phase", (_by("phase", "fairlead_pool_nodes"),),
              "Unusable: cordoned, or not ready.", is_stacked=True),
        Panel("Nodes by pool", (_by("pool", 'fairlead_pool_nodes{phase!~"launching|leaving"}'),),
              is_stacked=True),
        Panel("Nodes that are wanted and not there", ((
            'max by (pool) (fairlead_pool_wanted_nodes{mode="Active"}) - sum by (pool) '
            '(fairlead_pool_nodes{phase=~"joining|ready|unusable"})', "{{pool}}",
        ),), "Above 0: still to come. Below: more than wanted, which go when they have been idle."),
        Panel("Share of the limit", ((
            'sum by (pool) (fairlead_pool_nodes{phase!="leaving"}) / '
            "(max by (pool) (fairlead_pool_limit_nodes) > 0)", "{{pool}}",
        ),), "Pools at 100 % buy no more.", "percentunit"),
        Panel("Idle nodes, and spares of these", (
            _by("pool", "fairlead_pool_idle_nodes", "max"),
            ("max by (pool, state) (fairlead_pool_spare_nodes)", "{{pool}}: spares {{state}}"),
        ), "Ready, and without a pod of a job."),
        Panel("Cost of idle nodes an hour",
              (_by("pool", "fairlead_pool_idle_cost_per_hour", "max"),),
              "By the prices that the pools state."),
        Panel("Balloons", (_by("pool, state", "fairlead_pool_balloons"),),
              "Pods that keep idle nodes, or ask another autoscaler for some."),
        Panel("Domains avoided", (_by("pool", "fairlead_pool_avoided_domains", "max"),),
              "They refused a launch, and are tried again later."),
        Panel("Invalid pools", (_by("pool", "fairlead_pool_invalid", "max"),),
              levels=(Limit(Harm.WARNING, 0),)),
    )),
    ("Buying", (
        Panel("From demand to the first launch call", tuple(
            _quantile(q, "fairlead_fleet_demand_to_launch_seconds_bucket") for q in _SHOWN
        ), "Also counts the time for which all pools were full.", "s"),
        Panel("Launches refused", (
            _by("pool, reason", _rate("fairlead_pool_launches_refused_total", "increase")),
        )),
        Panel("Calls to providers", (_by("provider, outcome", _rate(f"{_CALLS}_count")),),
              unit="ops"),
        Panel("Time of a call, p99", (_quantile(0.99, f"{_CALLS}_bucket", "call"),), unit="s"),
    )),
    ("Rails", (
        Panel("What makes the controller blind",
              (_by("rail", "fairlead_fleet_rail_holds", "max"),),
              "While one is 1, no node is removed.", levels=(Limit(Harm.WARNING, 0),)),
        Panel("Removals held back", (_by("rule, budget", "fairlead_pool_removals_held"),),
              "By the rule that holds them, and the budget that is used up.", is_stacked=True),
        Panel("Frozen", (("max(fairlead_fleet_frozen)", "frozen"),),
              "1 while a person has frozen the fleet.", levels=(Limit(Harm.INFO, 0),)),
    )),
    ("Health", (
        Panel("Nodes out of service", (_by("state", "fairlead_health_nodes"),),
              "By what is done about their faults.", is_stacked=True),
        Panel("Sick nodes in service", (_by("rule", "fairlead_health_nodes_held"),),
              "By the rule of the rails that holds them there.", is_stacked=True),
        Panel("Tickets of nodes", (_by("state", "fairlead_health_tickets"),),
              "Of nodes that need a person or other hardware, by how far sending them is."),
        Panel("What holds health back", (_by("rail", "fairlead_health_rail_holds", "max"),),
              "While one is 1, no node is taken out.", levels=(Limit(Harm.WARNING, 0),)),
        Panel("Leases of nodes", (_by("state", 'fairlead_node_leases{state!="leases"}'),),
              "silent: late; unreachable: the machine did not answer either."),
        Panel("Silent nodes", (_by("presence", "fairlead_silent_nodes"),),
              "By what was found out about the machine.", is_stacked=True),
        Panel("What holds marks back", (_by("rail", "fairlead_silence_rail_holds", "max"),),
              "While one is 1, no silent node is taken for lost.",
              levels=(Limit(Harm.WARNING, 0),)),
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
        query = check.query(jobs)
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
