"""Figures of nodes' exporters over the cluster, as text that is ready when it is asked for.

There may be tens of thousands of lines, which take longer than a scrape may hold up the process:
who adds the values up makes the text, in slices, and a scrape sends it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from fairlead.api.values.sketch import Sketch
from fairlead.decide.use.exports import ExportKey
from fairlead.runtime.exported.scraped import ScrapedMetrics, gauge

#: In one pass of `Sketch.quantiles`: the least, the quantiles and the most.
_QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
STATS = ("count", "sum", *_QUANTILES)
HEAD = (
    "# HELP fairlead_exported Values of metrics of nodes' exporters within a window, by fleet, "
    "pool, rack, team or job: count, sum, min, max and quantiles, to 1 %.\n"
    "# TYPE fairlead_exported gauge\n"
)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Nodes by what is known of their exporters, and the text of all figures."""

    states: Mapping[str, int] = field(default_factory=dict[str, int])
    text: bytes = b""


class ExportMetrics(ScrapedMetrics[ExportReport]):
    """The series of nodes' exporters."""

    def series(self, report: ExportReport) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        yield gauge(
            "fairlead_exported_nodes",
            "Nodes by whether their exporters are in the figures: counted; silent: their latest "
            "window is old; refused: their report is malformed; absent: they report none.",
            "state",
            report.states.items(),
        )

    @property
    def text(self) -> bytes:
        """The lines of all figures; they belong at the end of a page."""
        return self._source().text if self._source is not None else b""


def lines_of(key: ExportKey, sketch: Sketch) -> str:
    """Return the lines of a sum that has values."""
    values = (sketch.count, sketch.total, *sketch.quantiles(_QUANTILES.values()))
    name = key.name.translate(_ESCAPES)
    head = f'fairlead_exported{{by="{key.scope.value}",metric="{key.metric}",name="{name}",stat='
    return "".join(
        f'{head}"{stat}"}} {value:.6g}\n' for stat, value in zip(STATS, values, strict=True)
    )
