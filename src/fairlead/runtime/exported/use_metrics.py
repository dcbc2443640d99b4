"""GPUs that are held and not used, by team, at the scrape.

Labels are bounded: teams, which administrators name, up to a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.runtime.exported.traffic_metrics import TEAMS_MAX

_OTHERS = "-"


@dataclass(frozen=True, slots=True)
class IdleReport:
    """Jobs that have used almost nothing for ten minutes, and their GPUs; by team, "" without."""

    jobs: Mapping[str, int] = field(default_factory=dict[str, int])
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])


class UseMetrics(Collector):
    """The series of what is held and not used."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: Callable[[], IdleReport] | None = None
        registry.register(self)

    def watch(self, source: Callable[[], IdleReport] | None) -> None:
        """Read this at each scrape, without waiting; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        if self._source is None:
            return
        report = self._source()
        for name, text, amounts in (
            ("fairlead_idle_jobs", "Jobs that hold GPUs and", report.jobs),
            ("fairlead_idle_gpus", "GPUs whose jobs", report.gpus),
        ):
            family = GaugeMetricFamily(
                name, f"{text} have used almost nothing for 10 minutes, by team.", labels=["team"]
            )
            for team, amount in bounded(amounts).items():
                family.add_metric([team], amount)
            yield family


def bounded(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts of the first teams by name; those of the others are added up as "-"."""
    out: dict[str, int] = {}
    for count, team in enumerate(sorted(amounts)):
        key = team if count < TEAMS_MAX else _OTHERS
        out[key] = out.get(key, 0) + amounts[team]
    return out
