"""Metrics of one instance: the wanted families of one or two scrapes, and what follows from them.

Two scrapes give rates. With one scrape a counter gives its mean since the process started, when the
page has `process_start_time_seconds`; quantiles are then over that whole time (pure).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.runtime.exported.metrics_page import START, Labels

#: Made by the reader from what /health says; etcd exports no metric of its alarms.
ALARM = "fairlead_etcd_nospace"


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one sample name by labels: now, and at an earlier scrape when there was one.

    `seconds` is the time between them; None when a counter's rate cannot be computed.
    """

    now: Mapping[Labels, float]
    before: Mapping[Labels, float] = field(default_factory=dict[Labels, float])
    seconds: float | None = None

    def values(self) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and the latest value of each sample."""
        for labels, value in self.now.items():
            yield dict(labels), value

    def increases(self) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and the increase of each counter; a reset counts from zero."""
        for labels, value in self.now.items():
            earlier = self.before.get(labels, 0.0)
            yield dict(labels), value - earlier if value >= earlier else value


@dataclass(frozen=True, slots=True)
class Scrapes:
    """The families of one instance by sample name; histograms under `NAME_bucket`."""

    instance: str
    families: Mapping[str, Family]


def pair(
    instance: str,
    now: Mapping[str, Mapping[Labels, float]],
    *,
    before: Mapping[str, Mapping[Labels, float]] | None,
    seconds: float,
    at: float,
) -> Scrapes:
    """Return the scrapes of one instance; `before` was read `seconds` before `now`, at `at`."""
    started = next(iter(now.get(START, {}).values()), 0.0)
    if before is None:
        age = at - started if 0 < started < at else None
        return Scrapes(instance, {name: Family(each, {}, age) for name, each in now.items()})
    return Scrapes(
        instance,
        {name: Family(each, before.get(name, {}), seconds) for name, each in now.items()},
    )


def quantile(buckets: Iterable[tuple[float, float]], q: float) -> float | None:
    """Return the quantile of cumulative (upper bound, count) pairs, as PromQL computes it.

    None when nothing was counted. A value in the last, unbounded bucket gives the highest bound.
    """
    ordered = sorted(buckets)
    if not ordered or ordered[-1][1] <= 0:
        return None
    rank = q * ordered[-1][1]
    lower_bound, lower_count = 0.0, 0.0
    for bound, count in ordered:
        if count >= rank:
            if math.isinf(bound) or count == lower_count:
                return lower_bound
            return lower_bound + (bound - lower_bound) * (rank - lower_count) / (
                count - lower_count
            )
        lower_bound, lower_count = bound, count
    return lower_bound
