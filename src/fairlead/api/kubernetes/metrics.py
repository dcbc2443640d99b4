"""metrics.k8s.io/v1beta1: what pods use now, as metrics-server or the embedded cluster says it.

Source: kubernetes/metrics `pkg/apis/metrics/v1beta1/types.go`.
"""

from __future__ import annotations

import re

from fairlead.api.meta import ObjectMeta, Wire

#: Go's text of a duration, as `time.Duration.String` writes it.
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)", re.ASCII)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class ContainerMetrics(Wire, frozen=True):
    """Use of one container: quantities by resource."""

    name: str = ""
    usage: dict[str, str] = {}


class PodMetrics(Wire, frozen=True):
    """Use of a pod over `window`, which ended at `timestamp`.

    The embedded cluster adds the annotation `fairlead.dev/use`: the use from the start on.
    """

    metadata: ObjectMeta
    timestamp: str = ""
    window: str = ""
    containers: tuple[ContainerMetrics, ...] = ()

    @property
    def window_seconds(self) -> float:
        """Return the length of the window; 0 where it says none."""
        return sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(self.window[:40]))
