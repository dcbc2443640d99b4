"""Series that are read at the scrape, from what a controller of this replica knows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

R = TypeVar("R")


class ScrapedMetrics(Collector, Generic[R]):
    """The series of one report; there are none while nothing is watched."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: Callable[[], R] | None = None
        registry.register(self)

    def watch(self, source: Callable[[], R] | None) -> None:
        """Read this at each scrape, without waiting; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        return () if self._source is None else self.series(self._source())

    @abstractmethod
    def series(self, report: R) -> Iterable[Metric]:
        """Return the series of a report."""


def gauge(name: str, text: str, label: str, amounts: Iterable[tuple[str, float]]) -> Metric:
    """Return a family with one label, and an amount for each of its values."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, amount in amounts:
        family.add_metric([value], amount)
    return family
