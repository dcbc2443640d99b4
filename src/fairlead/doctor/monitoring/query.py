"""The expressions of checks as PromQL, for a Prometheus that scrapes the control plane (pure).

An instance is never averaged with another one, as in the doctor's own reading. A counter that does
not exist gives no sample, so no alert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.doctor.check import Check, Level, Side
from fairlead.doctor.checks.etcd import ALARM
from fairlead.doctor.expressions import CodeShare, Increase, Quantile, Rate, Ratio, Recorded, Value
from fairlead.doctor.facts import Source

JOBS: Mapping[Source, str] = {source: source.job for source in Source if source.job}
RATE = "5m"
#: A window for what happens rarely.
LONG = "1h"
_NODES = (
    'max(apiserver_resource_objects{resource="nodes"} or apiserver_storage_objects'
    '{resource="nodes"})'
)

Match = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Query:
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

    def violates(self, check: Check, level: Level) -> str:
        """Return the expression that has samples while the value violates the level."""
        sign = ">" if check.side is Side.ABOVE else "<"
        parts = [f"{self.value} {sign} {level.limit:g}", *([self.guard] if self.guard else ())]
        text = " and ".join(f"({each})" for each in parts) if len(parts) > 1 else parts[0]
        if level.nodes_from:
            text = f"({text}) and on () ({_NODES} >= {level.nodes_from})"
        return text


def query_of(measure: object, jobs: Mapping[Source, str] = JOBS) -> Query | None:
    """Return a check's measure as PromQL; None for what Prometheus does not know."""
    match measure:
        case Value() if measure.name != ALARM:
            gauge = selected(measure.name, jobs[measure.source])
            return Query(_sum(measure.by, gauge), measure.by)
        case Ratio():
            job = jobs[measure.source]
            over = _sum(measure.by, selected(measure.over, job))
            part = _sum(measure.by, selected(measure.name, job))
            return Query(f"{part} / ({over} > 0)", measure.by)
        case Rate():
            counter = selected(measure.name, jobs[measure.source], measure.match)
            seen = _seen(measure.name, jobs[measure.source]) if measure.match else ""
            return Query(_sum(measure.by, f"rate({counter}[{RATE}])"), measure.by, seen=seen)
        case Increase():
            counter = selected(measure.name, jobs[measure.source])
            return Query(_sum(measure.by, f"increase({counter}[{LONG}])"), measure.by)
        case CodeShare():
            return _share(measure, jobs[measure.source])
        case Quantile():
            return _quantile(measure, jobs[measure.source])
        case Recorded():
            job = json.dumps(jobs[measure.source])[1:-1]
            return Query(measure.query.replace("$job", job), measure.by)
        case _:
            return None


def _share(measure: CodeShare, job: str) -> Query:
    bad = f"{measure.label}=~{json.dumps(measure.prefix + '.*')}"
    all_ = selected(measure.name, job)
    part = _sum(measure.by, f"rate({selected(measure.name, job, (), bad)}[{RATE}])")
    whole = _sum(measure.by, f"rate({all_}[{RATE}])")
    count = _sum(measure.by, f"increase({all_}[{RATE}])")
    return Query(f"{part} / {whole}", measure.by, count, measure.count_min)


def _quantile(measure: Quantile, job: str) -> Query:
    name = f"{measure.name}_bucket"
    buckets = _sum((*measure.by, "le"), f"rate({selected(name, job, measure.match)}[{RATE}])")
    counted = selected(name, job, measure.match, 'le="+Inf"')
    count = _sum(measure.by, f"increase({counted}[{RATE}])")
    value = f"histogram_quantile({measure.q:g}, {buckets})"
    seen = _seen(name, job, 'le="+Inf"') if measure.match else ""
    return Query(value, measure.by, count, measure.count_min, seen)


def _seen(name: str, job: str, more: str = "") -> str:
    return f"count by (instance) (rate({selected(name, job, (), more)}[{RATE}]))"


def _sum(by: Sequence[str], what: str) -> str:
    return f"sum by ({', '.join(('instance', *by))}) ({what})"


def selected(name: str, job: str, match: Match = (), more: str = "") -> str:
    """Return the selector of a metric's series of a job."""
    parts = [f"job=~{json.dumps(job)}"]
    for label, values in match:
        sign = "=" if len(values) == 1 else "=~"
        parts.append(f"{label}{sign}{json.dumps('|'.join(values))}")
    return f"{name}{{{', '.join([*parts, more] if more else parts)}}}"
