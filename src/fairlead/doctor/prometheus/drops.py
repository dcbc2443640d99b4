"""Which series nothing uses, the rules that drop them, and a replay of the rules (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.doctor.prometheus.promql import Uses, uses_of

#: Memory of a series in the head: 4 to 8 KB are reported; the larger.
SERIES_BYTES = 8_192
#: What a replay costs a core: for each series, and for the bytes of its log. Fitted to 1.4 s for
#: 120,000 series in 12 MB, and to logs of some 20 GB; a rough estimate.
REPLAY_SERIES_SECONDS = 8e-6
REPLAY_BYTES_PER_SECOND = 25_000_000
#: Points of a panel over time: each keeps one sample of each series in memory.
PANEL_POINTS = 1_000
#: A metric over this share of all series, and a label with so many values, are named.
SHARE_LARGE = 0.1
LABEL_VALUES_MAX = 10_000
#: Metrics that Prometheus makes itself: a rule of a scrape does not reach them.
_OWN = re.compile(r"up|scrape_.*|ALERTS|ALERTS_FOR_STATE|.*:.*")
REGEX_NAMES_MAX = 200


@dataclass(frozen=True, slots=True)
class TsdbSeries:
    """The TSDB's own status: series by metric and in all, values by label; bytes of the WAL."""

    total: int
    by_metric: Mapping[str, int]
    values_by_label: Mapping[str, int] = field(default_factory=dict[str, int])
    wal_bytes: int | None = None
    replay_seconds: float | None = None
    memory_bytes: int | None = None
    samples_max: int | None = None

    @property
    def predicted_replay_seconds(self) -> float | None:
        """What a restart takes until it answers, on one core; None without a log."""
        if self.wal_bytes is None:
            return None
        return self.total * REPLAY_SERIES_SECONDS + self.wal_bytes / REPLAY_BYTES_PER_SECOND

    @property
    def predicted_replay_bytes(self) -> int:
        """The memory that a restart needs: that of all series, or what is resident now."""
        return max(self.memory_bytes or 0, self.total * SERIES_BYTES)


@dataclass(frozen=True, slots=True)
class DropRule:
    """A rule of one job's scrape: the metrics that it drops."""

    job: str
    metrics: tuple[str, ...]

    @property
    def regex(self) -> str:
        """The regular expression over `__name__`."""
        return "|".join(map(re.escape, self.metrics))

    def config(self) -> dict[str, Any]:
        """Return the entry of `metric_relabel_configs`."""
        return {"source_labels": ["__name__"], "regex": self.regex, "action": "drop"}


@dataclass(frozen=True, slots=True)
class Replay:
    """What rules do to the series of a status. `broken` are used metrics that they would drop."""

    dropped: int
    left: int
    broken: tuple[str, ...]

    @property
    def saved_bytes(self) -> int:
        """Memory of the series that go."""
        return self.dropped * SERIES_BYTES


def unused(series: TsdbSeries, uses: Uses) -> dict[str, int]:
    """Return series by metric that no expression names, the largest first.

    Metrics that Prometheus makes itself are left out.
    """
    found = {name: count for name, count in series.by_metric.items()
             if not uses.uses(name) and not _OWN.fullmatch(name)}  # fmt: skip
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def drop_rules(
    candidates: Mapping[str, int], jobs: Mapping[str, Mapping[str, int]]
) -> tuple[DropRule, ...]:
    """Return rules for the jobs that emit the candidates; `jobs` has series by metric and job.

    A metric whose job is not known is in no rule.
    """
    by_job: dict[str, list[str]] = {}
    for metric in candidates:
        for job in jobs.get(metric, {}):
            by_job.setdefault(job, []).append(metric)
    return tuple(
        DropRule(job, tuple(sorted(metrics)[start : start + REGEX_NAMES_MAX]))
        for job, metrics in sorted(by_job.items())
        for start in range(0, len(metrics), REGEX_NAMES_MAX)
    )


def replay(
    series: TsdbSeries, jobs: Mapping[str, Mapping[str, int]], rules: Sequence[DropRule], uses: Uses
) -> Replay:
    """Apply the rules, as Prometheus does (anchored), to every metric of the status."""
    dropped = 0
    broken: set[str] = set()
    for rule in rules:
        pattern = re.compile(rule.regex)
        for metric in series.by_metric:
            if not pattern.fullmatch(metric):
                continue
            dropped += jobs.get(metric, {}).get(rule.job, 0)
            if uses.uses(metric):
                broken.add(metric)
    return Replay(dropped, max(series.total - dropped, 0), tuple(sorted(broken)))


def large(series: TsdbSeries) -> list[tuple[str, int, str]]:
    """Return what is large, as (subject, value, reason): metrics, labels and label pairs."""
    limit = SHARE_LARGE * max(series.total, 1)
    found = [(name, count, "of all series, one metric") for name, count in series.by_metric.items()
             if count > limit]  # fmt: skip
    found += [(name, count, "values of one label") for name, count in
              series.values_by_label.items() if count > LABEL_VALUES_MAX]  # fmt: skip
    return sorted(found, key=lambda each: (-each[1], each[0]))


def unfinished(series: TsdbSeries, expressions: Iterable[str]) -> list[tuple[str, int]]:
    """Return expressions that cannot finish as a panel, with the samples of it, the most first.

    Prometheus ends a query that holds more samples than its limit. A selector counts with all
    series of its metrics, whatever its labels select: a bound from above.
    """
    if series.samples_max is None:
        return []
    found: dict[str, int] = {}
    for expression in expressions:
        uses = uses_of([expression])
        names = series.by_metric if uses.patterns else uses.names
        count = sum(series.by_metric.get(name, 0) for name in names if uses.uses(name))
        if count * PANEL_POINTS > series.samples_max:
            found[expression] = count * PANEL_POINTS
    return sorted(found.items(), key=lambda each: (-each[1], each[0]))
