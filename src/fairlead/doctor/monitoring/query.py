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
from fairlead.doctor.expressions import CodeShare, Increase, Quantile, Rate, Ratio, Value
from fairlead.doctor.facts import Source

#: The label `job` of each source, as the usual charts name their scrapes.
JOBS: Mapping[Source, str] = {
    Source.APISERVER: ".*apiserver.*",
    Source.ETCD: ".*etcd.*",
    Source.SCHEDULER: ".*scheduler.*",
    Source.CONTROLLER_MANAGER: ".*controller-manager.*",
    Source.COREDNS: ".*dns.*",
    Source.KUBELET: ".*kubelet.*",
    Source.PROMETHEUS: ".*prometheus.*",
}
_RATE = "5m"
#: A window for what happens rarely.
_LONG = "1h"
_NODES = (
    'max(apiserver_resource_objects{resource="nodes"} or apiserver_storage_objects'
    '{resource="nodes"})'
)

Match = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """`value` in PromQL, one sample per instance and group of the labels `by`.

    `guard` is the condition without which it says nothing; "": none.
    """

    value: str
    by: tuple[str, ...]
    guard: str = ""

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
            text = _sum(measure.by, _selected(measure.name, jobs[measure.source]))
            text = text if measure.factor == 1 else f"{text} * {measure.factor:g}"
            return Query(text, measure.by)
        case Ratio():
            job = jobs[measure.source]
            over = _sum(measure.by, _selected(measure.over, job))
            part = _sum(measure.by, _selected(measure.name, job))
            return Query(f"{part} / ({over} > 0)", measure.by)
        case Rate():
            counter = _selected(measure.name, jobs[measure.source], measure.match)
            return Query(_sum(measure.by, f"rate({counter}[{_RATE}])"), measure.by)
        case Increase():
            counter = _selected(measure.name, jobs[measure.source])
            return Query(_sum(measure.by, f"increase({counter}[{_LONG}])"), measure.by)
        case CodeShare():
            return _share(measure, jobs[measure.source])
        case Quantile():
            return _quantile(measure, jobs[measure.source])
        case _:
            return None


def _share(measure: CodeShare, job: str) -> Query:
    bad = f"{measure.label}=~{json.dumps(measure.prefix + '.*')}"
    all_ = _selected(measure.name, job)
    part = _sum(measure.by, f"rate({_selected(measure.name, job, (), bad)}[{_RATE}])")
    whole = _sum(measure.by, f"rate({all_}[{_RATE}])")
    count = _sum(measure.by, f"increase({all_}[{_RATE}])")
    return Query(f"{part} / {whole}", measure.by, f"{count} >= {measure.count_min:g}")


def _quantile(measure: Quantile, job: str) -> Query:
    name = f"{measure.name}_bucket"
    buckets = _sum((*measure.by, "le"), f"rate({_selected(name, job, measure.match)}[{_RATE}])")
    counted = _selected(name, job, measure.match, 'le="+Inf"')
    count = _sum(measure.by, f"increase({counted}[{_RATE}])")
    value = f"histogram_quantile({measure.q:g}, {buckets})"
    return Query(value, measure.by, f"{count} >= {measure.count_min:g}")


def _sum(by: Sequence[str], what: str) -> str:
    return f"sum by ({', '.join(('instance', *by))}) ({what})"


def _selected(name: str, job: str, match: Match = (), more: str = "") -> str:
    parts = [f"job=~{json.dumps(job)}"]
    for label, values in match:
        sign = "=" if len(values) == 1 else "=~"
        parts.append(f"{label}{sign}{json.dumps('|'.join(values))}")
    return f"{name}{{{', '.join([*parts, more] if more else parts)}}}"
