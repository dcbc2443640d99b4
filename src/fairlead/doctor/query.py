"""PromQL for a Prometheus that scrapes the control plane (pure).

An instance is never averaged with another one, as in the doctor's own reading. A counter that does
not exist gives no sample, so no alert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.doctor.sources import Source

JOBS: Mapping[Source, str] = {source: source.job for source in Source if source.job}
RATE = "5m"
#: A window for what happens rarely.
LONG = "1h"

Match = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class PromQuery:
    """`value` in PromQL, one sample per instance and group of the labels `by`.

    Of groups where `count` is below `count_min` it says nothing. `seen` has samples where the
    metric has any rate. Empty: there is no such bound; `value` has samples where `seen` would.
    """

    value: str
    by: tuple[str, ...]
    count: str = ""
    count_min: float = 0.0
    seen: str = ""

    @property
    def guard(self) -> str:
        """The condition without which the value says nothing; "": none."""
        return f"{self.count} >= {self.count_min:g}" if self.count else ""


def summed(by: Sequence[str], what: str) -> str:
    """Return the sum of an expression by instance and the labels `by`."""
    return f"sum by ({', '.join(('instance', *by))}) ({what})"


def any_rate(name: str, job: str, more: str = "") -> str:
    """Return what has samples where the counter of a job has any rate."""
    return f"count by (instance) (rate({selected(name, job, (), more)}[{RATE}]))"


def selected(name: str, job: str, match: Match = (), more: str = "") -> str:
    """Return the selector of a metric's series of a job."""
    parts = [f"job=~{json.dumps(job)}"]
    for label, values in match:
        sign = "=" if len(values) == 1 else "=~"
        parts.append(f"{label}{sign}{json.dumps('|'.join(values))}")
    return f"{name}{{{', '.join([*parts, more] if more else parts)}}}"
