"""`report.html`: one self-contained page about a run, for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fairlead.charts import (
    STYLE,
    ChartLook,
    Series,
    distribution_chart,
    line_chart,
    markup,
    number,
    percent,
)
from fairlead.decide.words import duration
from fairlead.sim.scenarios.recorder import RunRecorder
from fairlead.sim.scenarios.scenario import LoadReport, Scenario, faults_of
from fairlead.sim.scenarios.summary import PerPod, RecordedFigures, Summary

#: Groups of jobs by GPUs that the waiting times are shown for: upper bounds, inclusive.
SIZES = ((1, "1 GPU"), (8, "2 to 8"), (64, "9 to 64"), (512, "65 to 512"), (10**9, "over 512"))
TENANTS_MAX = 8

_STYLE = (
    STYLE
    + """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 780px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .2em .6em; text-align: left;
  border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.bad { border-left: 4px solid #d55e00; padding-left: .8em; } code { overflow-wrap: anywhere; }
"""
)


def render_report(
    scenario: Scenario, load: LoadReport, summary: Summary, recorder: RunRecorder
) -> str:
    """Return the page; it loads nothing from elsewhere."""
    title = scenario.name or f"{load.source.rsplit('/', 1)[-1]}, policy {scenario.policy}"
    parts = [
        f"<h1>{markup(title)}</h1>",
        f'<p class="soft">{markup(_line(scenario, load))}</p>',
        _violations(summary),
        _figures(summary),
        *_charts(recorder),
        _load(load),
        _counts("Lost GPU hours by cause", {
            cause: round(seconds / 3600, 1)
            for cause, seconds in summary.lost_gpu_seconds_by_cause.items()
        }),
        _counts("API writes by kind", summary.writes_by_kind),
        _requests(summary),
        _decisions(recorder),
        f'<p class="soft">Seed {summary.seed}, log hash <code>{summary.log_hash}</code>. Equal '
        "seed, scenario and version give an equal hash.</p>",
    ]  # fmt: skip
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{markup(title)}</title><style>{_STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _line(scenario: Scenario, load: LoadReport) -> str:
    cluster = scenario.cluster
    faults = faults_of(scenario)
    kind = (
        "ideal run: no start delays, exact run times"
        if scenario.ideal
        else f"faults: {faults.name}"
    )
    pools = sum(pool.max for pool in cluster.pools)
    nodes, bought = cluster.nodes + pools, f", {pools:,} of them bought" if pools else ""
    return (
        f"{load.jobs:,} jobs from {load.source} on {nodes:,} nodes with {cluster.gpus} GPUs each"
        f"{bought}; policy {scenario.policy}; {kind}"
    )


def _violations(summary: Summary) -> str:
    if summary.violations:
        items = "".join(f"<li><code>{markup(text)}</code></li>" for text in summary.violations)
        return (
            '<div class="bad"><p>The run broke a promise and was stopped.</p>'
            f"<ul>{items}</ul></div>"
        )
    if not summary.is_complete:
        return '<p class="bad">The run was stopped early; the figures cover what had happened.</p>'
    return "<p>All promises were checked at every write, and held.</p>"


def figure_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return the figures that the page and the terminal show, as (name, value)."""
    rows = [
        ("Jobs", f"{summary.jobs:,}"),
        ("Ended", f"{summary.finished:,}, of which {summary.succeeded:,} succeeded"),
        ("Wait, mean", _duration(summary.wait_mean_seconds)),
        ("Wait, median", _duration(summary.wait_p50_seconds)),
        ("Wait, 95th percentile", _duration(summary.wait_p95_seconds)),
        ("Job completion time, mean", _duration(summary.jct_mean_seconds)),
        ("GPU utilization", _share(summary.utilization)),
        ("Packing", _share(summary.packing)),
        *(_as_recorded(summary.recorded) if summary.recorded is not None else ()),
        ("Useful GPU hours", f"{summary.useful_gpu_seconds / 3600:,.0f}"),
        ("Lost GPU hours", _lost(summary)),
        ("Attempts", f"{summary.attempts:,}"),
        ("Node failures", f"{summary.node_failures:,}"),
        *(
            (name, f"{count:,}")
            for name, count in (
                ("GPU faults", summary.gpu_faults),
                ("Device faults", summary.device_faults),
                ("Slow nodes", summary.slowdowns),
                ("Storage stalls", summary.stalls),
            )
            if count
        ),
        *_tested(summary),
        ("API writes", f"{summary.writes:,}"),
        ("Simulated", f"{duration(summary.simulated_seconds)} in {duration(summary.wall_seconds)}"),
    ]
    if summary.machine_seconds is not None and summary.idle_machine_seconds is not None:
        idle = summary.idle_machine_seconds / summary.machine_seconds
        rows[-3:-3] = [
            ("Machines bought", f"{summary.machines:,}, {summary.machines_most:,} at once at most"),
            ("Machine hours", f"{summary.machine_seconds / 3600:,.0f}, {percent(idle)} idle"),
            *(_beside(summary.per_pod) if summary.per_pod is not None else ()),
        ]
    if summary.kills or summary.api_faults:
        rows.insert(-2, ("Faults of the API", f"{summary.api_faults:,}"))
        rows.insert(-2, ("Controllers killed", f"{summary.kills:,}"))
    return rows


def _tested(summary: Summary) -> list[tuple[str, str]]:
    """Return the figures of silent faults, and of the tests that find them."""
    rows: list[tuple[str, str]] = []
    if summary.silent_faults:
        found = f"{summary.silent_faults_found_by_tests:,} found by tests"
        spoiled = (summary.spoiled_gpu_seconds or 0.0) / 3600
        rows += [
            ("Silent faults", f"{summary.silent_faults:,}, {found}"),
            ("Attempts begun on bad nodes", f"{summary.gangs_hit:,}, {spoiled:,.0f} GPU hours"),
        ]
    if summary.nodes_taken:
        again = f"{summary.nodes_taken_again:,} within 7 days after a repair"
        text = f"{summary.nodes_taken:,}, {summary.nodes_taken_good:,} of them good, {again}"
        rows.append(("Nodes taken out", text))
    if summary.node_test_share is not None:
        share = f"{summary.node_test_share:.3%} of the node time"
        rows.append(("Node tests", f"{summary.node_tests:,}, {share}"))
        rows.append(("Idle half hours with a test", _share(summary.node_test_coverage)))
    return rows


def _beside(per_pod: PerPod) -> list[tuple[str, str]]:
    """Return the figures of the same load without gangs."""
    seconds = max(per_pod.machine_seconds, 1.0)
    idle = percent(per_pod.idle_machine_seconds / seconds)
    return [
        ("Without gangs: wait, mean", _duration(per_pod.wait_mean_seconds)),
        ("Without gangs: wait, 95th percentile", _duration(per_pod.wait_p95_seconds)),
        ("Without gangs: jobs that never run", f"{per_pod.never_ran:,}"),
        ("Without gangs: machine hours", f"{seconds / 3600:,.0f}, {idle} idle"),
    ]


def _lost(summary: Summary) -> str:
    """Return the GPU hours that were lost, and to what, most first."""
    by_cause = sorted(summary.lost_gpu_seconds_by_cause.items(), key=lambda each: (-each[1], each))
    causes = [f"{seconds / 3600:,.0f} {cause}" for cause, seconds in by_cause if seconds >= 1800]
    return f"{summary.lost_gpu_seconds / 3600:,.0f}" + (f": {', '.join(causes)}" if causes else "")


def _as_recorded(figures: RecordedFigures) -> list[tuple[str, str]]:
    """Return what was done where the trace was recorded."""
    return [
        ("As recorded: wait, mean", _duration(figures.wait_mean_seconds)),
        ("As recorded: wait, median", _duration(figures.wait_p50_seconds)),
        ("As recorded: wait, 95th percentile", _duration(figures.wait_p95_seconds)),
        ("As recorded: GPU utilization", _share(figures.utilization)),
        ("As recorded: packing", _share(figures.packing)),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _figures(summary: Summary) -> str:
    rows = "".join(
        f'<tr><td>{markup(name)}</td><td class="n">{markup(value)}</td></tr>'
        for name, value in figure_rows(summary)
    )
    return f"<table>{rows}</table>"


def _charts(recorder: RunRecorder) -> list[str]:
    samples = recorder.samples
    at = [sample.at for sample in samples]
    reasons = sorted({reason for sample in samples for reason in sample.waiting_gpus_by_reason})
    by_reason = [
        Series(reason, [float(s.waiting_gpus_by_reason.get(reason, 0)) for s in samples])
        for reason in reasons
    ]
    use = [
        Series("held by a placement", [s.held_gpus / s.gpus if s.gpus else 0.0 for s in samples]),
        Series("running", [s.busy_gpus / s.gpus if s.gpus else 0.0 for s in samples]),
    ]
    jobs = [
        Series("waiting", [float(s.waiting_jobs) for s in samples]),
        Series("running", [float(s.running_jobs) for s in samples]),
    ]
    out = Series("nodes out", [float(s.nodes_out) for s in samples])
    return [
        "<h2>Over time</h2>",
        line_chart("GPU utilization", at, use, ChartLook(high=1.0, form=percent)),
        line_chart("Jobs", at, jobs),
        line_chart("Waiting GPUs by reason", at, by_reason, ChartLook(is_stacked=True)),
        line_chart("Nodes out", at, [out]) if any(out.values) else "",
        "<h2>Waiting times</h2>",
        distribution_chart("By GPUs of the job", _by_size(recorder)),
        distribution_chart("By tenant", _by_tenant(recorder)),
    ]


def _by_size(recorder: RunRecorder) -> list[tuple[str, Sequence[float]]]:
    groups: dict[str, list[float]] = {name: [] for _, name in SIZES}
    for record in recorder.jobs.values():
        wait = record.wait_seconds
        if wait is not None:
            groups[next(name for most, name in SIZES if record.gpus <= most)].append(wait)
    return [(f"{name} ({len(waits):,} jobs)", waits) for name, waits in groups.items() if waits]


def _by_tenant(recorder: RunRecorder) -> list[tuple[str, Sequence[float]]]:
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for record in recorder.jobs.values():
        if record.wait_seconds is not None:
            groups[record.tenant or "all"].append(record.wait_seconds)
    ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:TENANTS_MAX]
    return [(f"{name} ({len(waits):,} jobs)", waits) for name, waits in ranked]


def _load(load: LoadReport) -> str:
    lines = [*load.assumptions]
    if load.problem_count:
        lines.append(f"{number(load.problem_count)} lines are not jobs and were left out:")
        lines += [f"line {problem.line}: {problem.message}" for problem in load.problems]
    items = "".join(f"<li>{markup(line)}</li>" for line in lines)
    return f"<h2>What was assumed of the load</h2><ul>{items}</ul>" if items else ""


def _requests(summary: Summary) -> str:
    """Return the table of the API requests of each controller, its largest first."""
    rows = [
        (service, what, count)
        for service, counts in summary.requests_by_service.items()
        for what, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    if not rows:
        return ""
    jobs = max(summary.jobs, 1)
    cells = "".join(
        f"<tr><td>{markup(service)}</td><td>{markup(what)}</td>"
        f'<td class="n">{count:,}</td><td class="n">{count / jobs:.2f}</td></tr>'
        for service, what, count in rows
    )
    head = "<tr><th>Controller</th><th>Request</th><th>Count</th><th>Per job</th></tr>"
    return f"<h2>API requests by controller</h2><table>{head}{cells}</table>"


def _decisions(recorder: RunRecorder) -> str:
    """Return the table of what the decisions of each controller took, in real time."""
    if not recorder.decision_times:
        return ""
    cells = "".join(
        f'<tr><td>{markup(name)}</td><td class="n">{times.count:,}</td>'
        f'<td class="n">{times.seconds / max(times.count, 1) * 1000:.3f}</td>'
        f'<td class="n">{times.seconds_max * 1000:.1f}</td></tr>'
        for name, times in recorder.decision_times.items()
    )
    head = "<tr><th>Controller</th><th>Decisions</th><th>Mean, ms</th><th>Longest, ms</th></tr>"
    return f"<h2>Decisions, in real time</h2><table>{head}{cells}</table>"


def _counts(title: str, counts: dict[str, int] | dict[str, float]) -> str:
    if not counts:
        return ""
    rows = "".join(
        f'<tr><td>{markup(name)}</td><td class="n">{value:,}</td></tr>'
        for name, value in counts.items()
    )
    return f"<h2>{markup(title)}</h2><table>{rows}</table>"
