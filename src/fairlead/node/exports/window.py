"""Values of exporters within a window of time, as sketches by metric and pod (pure).

A window is reported once it is over, so windows of all nodes can be added up: no value counts
twice. Where it begins follows from an offset, which spreads the writes of all nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from fairlead.api.cluster.node_report import EXPORTED_VALUES_MAX, SKETCHES_MAX
from fairlead.api.values.bounds import NAME_MAX, OBJECT_NAME_MAX
from fairlead.api.values.sketch import Sketch
from fairlead.api.values.times import format_time
from fairlead.model.health.faults import Moment
from fairlead.node.settings import ExportedMetricSettings
from fairlead.runtime.exported.metrics_page import Labels

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_POD = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)


class SketchLine(msgspec.Struct, frozen=True, rename="camel"):
    """Values of a metric: those of a pod, or, without one, of the rest of the machine."""

    metric: str
    namespace: str
    pod: str
    sketch: str


class ExportsUsage(msgspec.Struct, frozen=True, rename="camel"):
    """A window that is over. `left_out` and `refused` count values, not sketches."""

    at: str
    seconds: int
    sketches: tuple[SketchLine, ...] = ()
    left_out: int = 0
    refused: int = 0


class ExportWindow:
    """Takes samples in, and has the latest window that is over."""

    def __init__(self, seconds: int, offset: int) -> None:
        """Windows end when the uptime and the offset are a multiple of `seconds`."""
        self._seconds = seconds
        self._offset = offset
        self._number: int | None = None
        self._sketches: dict[tuple[str, str, str], Sketch] = {}
        self._counts: Counter[str] = Counter()
        self._left_out = self._refused = 0
        #: Latest values of counters, with the uptime.
        self._before: dict[tuple[str, Labels], tuple[float, float]] = {}
        self.usage: ExportsUsage | None = None

    def begin(self, at: Moment) -> None:
        """Take note of the time of a read: a window may be over."""
        number = int(at.uptime_seconds + self._offset) // self._seconds
        if self._number is not None and number != self._number:
            self.usage = ExportsUsage(
                format_time(at.time), self._seconds,
                tuple(SketchLine(metric, namespace, pod, sketch.text())
                      for (namespace, pod, metric), sketch in sorted(self._sketches.items())),
                self._left_out, self._refused,
            )  # fmt: skip
            self._sketches = {}
            self._counts.clear()
            self._left_out = self._refused = 0
        self._number = number

    def take(
        self,
        wanted: Sequence[ExportedMetricSettings],
        samples: Mapping[str, Mapping[Labels, float]],
        at: Moment,
    ) -> None:
        """Count the samples of a page."""
        seen: dict[tuple[str, Labels], tuple[float, float]] = {}
        for metric in wanted:
            for labels, value in samples.get(metric.name, {}).items():
                if not _matches(metric.match, dict(labels)):
                    continue
                if not metric.counts:
                    self._count(metric.name, labels, value)
                    continue
                key = metric.name, labels
                seen[key] = value, at.uptime_seconds
                before, then = self._before.pop(key, (value + 1, at.uptime_seconds))
                if value >= before and at.uptime_seconds > then:
                    self._count(metric.name, labels, (value - before) / (at.uptime_seconds - then))
        names = {metric.name for metric in wanted}
        kept = {key: each for key, each in self._before.items() if key[0] not in names}
        self._before = kept | seen

    def _count(self, metric: str, labels: Labels, value: float) -> None:
        key = (*_pod_of(dict(labels)), metric)
        sketch = self._sketches.get(key)
        is_full = sketch is None and len(self._sketches) == SKETCHES_MAX
        if is_full or self._counts[metric] == EXPORTED_VALUES_MAX:
            self._left_out += 1
            return
        sketch = sketch or Sketch()
        if sketch.add(value):
            self._sketches[key] = sketch
            self._counts[metric] += 1
        else:
            self._refused += 1


def _matches(patterns: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(fnmatchcase(labels.get(name, ""), each) for name, each in patterns.items())


def _pod_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the pod that a sample is of; ("", "") where it names none that could be."""
    namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
    if len(namespace) > NAME_MAX or len(pod) > OBJECT_NAME_MAX:
        return "", ""
    is_pod = _NAMESPACE.fullmatch(namespace) and _POD.fullmatch(pod)
    return (namespace, pod) if is_pod else ("", "")
