"""GPUs that are held and not used, by team, at the scrape.

Labels are bounded: teams, which administrators name, up to a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from fairlead.runtime.exported.scraped import ScrapedMetrics, gauge
from fairlead.runtime.exported.traffic_metrics import TEAMS_MAX

_OTHERS = "-"


@dataclass(frozen=True, slots=True)
class IdleReport:
    """Jobs that have used almost nothing for ten minutes, and their GPUs; by team, "" without."""

    jobs: Mapping[str, int] = field(default_factory=dict[str, int])
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])


class UseMetrics(ScrapedMetrics[IdleReport]):
    """The series of what is held and not used."""

    def series(self, report: IdleReport) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        for name, text, amounts in (
            ("fairlead_idle_jobs", "Jobs that hold GPUs and", report.jobs),
            ("fairlead_idle_gpus", "GPUs whose jobs", report.gpus),
        ):
            text = f"{text} have used almost nothing for 10 minutes, by team."
            yield gauge(name, text, "team", bounded(amounts).items())


def bounded(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts of the first teams by name; those of the others are added up as "-"."""
    out: dict[str, int] = {}
    for count, team in enumerate(sorted(amounts)):
        key = team if count < TEAMS_MAX else _OTHERS
        out[key] = out.get(key, 0) + amounts[team]
    return out
