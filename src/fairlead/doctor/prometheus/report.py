"""What a Prometheus server carries without use, as values and as text (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.doctor.prometheus.drops import (
    PANEL_POINTS,
    SERIES_BYTES,
    DropRule,
    Replay,
    TsdbSeries,
    large,
)
from fairlead.doctor.prometheus.promql import Uses
from fairlead.input.yamlwrite import to_yaml

SHOWN_MAX = 20
#: A warning where this share of the series is unused.
UNUSED_WARNING = 0.3


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """The analysis of one server. `unused` are series by metric, `jobs` by metric and job."""

    series: TsdbSeries
    uses: Uses
    expressions: int
    unused: Mapping[str, int]
    jobs: Mapping[str, Mapping[str, int]]
    rules: tuple[DropRule, ...]
    replay: Replay
    unfinished: tuple[tuple[str, int], ...] = ()

    @property
    def unused_share(self) -> float:
        """The share of all series that no expression names."""
        return sum(self.unused.values()) / max(self.series.total, 1)

    def exit_code(self) -> int:
        """Return 1 where much is unused or large, else 0."""
        is_bad = self.unused_share > UNUSED_WARNING or large(self.series) or self.unfinished
        return 1 if is_bad else 0


def metrics_values(report: MetricsReport) -> dict[str, Any]:
    """Return the whole analysis."""
    series = report.series
    return {
        "series": series.total, "metrics": len(series.by_metric),
        "memory_estimate_bytes": series.total * SERIES_BYTES,
        "memory_bytes": series.memory_bytes, "expressions": report.expressions,
        "wal": {"bytes": series.wal_bytes, "last_replay_seconds": series.replay_seconds,
                "predicted_replay_seconds": series.predicted_replay_seconds,
                "predicted_replay_memory_bytes": series.predicted_replay_bytes},
        "unused": [
            {"metric": name, "series": count, "jobs": dict(report.jobs.get(name, {}))}
            for name, count in report.unused.items()
        ],
        "large": [{"subject": name, "value": value, "what": what}
                  for name, value, what in large(series)],
        "rules": [{"job": rule.job, "metric_relabel_configs": [rule.config()]}
                  for rule in report.rules],
        "replay": {"dropped_series": report.replay.dropped, "left_series": report.replay.left,
                   "saved_bytes_estimate": report.replay.saved_bytes,
                   "broken": list(report.replay.broken)},
        "unnamed_selectors": list(report.uses.unnamed),
        "samples_max": series.samples_max,
        "unfinished": [{"expression": expression, "samples": samples}
                       for expression, samples in report.unfinished],
    }  # fmt: skip


def metrics_lines(report: MetricsReport) -> Iterator[str]:
    """Yield the lines for a terminal."""
    series, plan = report.series, report.replay
    yield (f"{series.total:,} series of {len(series.by_metric):,} metrics, about "
           f"{_megabytes(series.total * SERIES_BYTES)} of memory; {report.expressions:,} "
           "expressions read")  # fmt: skip
    if series.wal_bytes is not None:
        yield (f"write-ahead log: {_megabytes(series.wal_bytes)}; to replay it takes about "
               f"{series.predicted_replay_seconds:,.0f} s of a core and "
               f"{_megabytes(series.predicted_replay_bytes)} of memory (estimate)")  # fmt: skip
    for name, value, what in large(series)[:SHOWN_MAX]:
        yield f"large: {name}: {value:,} ({what})"
    if report.unfinished:
        yield ""
        yield (f"{len(report.unfinished)} expressions may hold more samples than the limit of "
               f"{series.samples_max:,}, as a panel of {PANEL_POINTS:,} points:")  # fmt: skip
        yield from (f"{samples:14,}  {expression[:100]}"
                    for expression, samples in report.unfinished[:SHOWN_MAX])  # fmt: skip
    yield ""
    unused = sum(report.unused.values())
    yield (f"unused: {unused:,} series of {len(report.unused):,} metrics "
           f"({report.unused_share * 100:.1f} %)")  # fmt: skip
    for name, count in list(report.unused.items())[:SHOWN_MAX]:
        jobs = ", ".join(f"{job} {number:,}" for job, number in report.jobs.get(name, {}).items())
        yield f"{count:10,}  {name}  ({jobs or 'job not known'})"
    if len(report.unused) > SHOWN_MAX:
        yield f"and {len(report.unused) - SHOWN_MAX:,} more; -o json has them all"
    if report.uses.unnamed:
        yield ""
        yield f"{len(report.uses.unnamed)} expressions select series without the name of a metric:"
        yield from (f"  {each[:100]}" for each in report.uses.unnamed[:5])
        yield "they may read any metric; check them before a rule is applied"
    if report.rules:
        yield ""
        yield (f"# Replayed over the status of the TSDB, these rules drop {plan.dropped:,} series; "
               f"{plan.left:,} are left.")  # fmt: skip
        yield (f"# That is about {_megabytes(plan.saved_bytes)} of memory. Metrics in use that "
               f"they would drop: {len(plan.broken)}.")  # fmt: skip
        for rule in report.rules:
            config = {"job_name": rule.job, "metric_relabel_configs": [rule.config()]}
            yield from to_yaml([config]).splitlines()


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count < 10**10 else f"{count / 1e9:,.1f} GB"
