"""What the doctor's report says about the control plane, as evidence for the rails.

A report counts only while it is fresh. Without one, or with a stale one, the rails rest on what
they see themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.cluster_report import ClusterReport, ReportCondition
from fairlead.api.meta import find_condition
from fairlead.api.times import parse_time


@dataclass(frozen=True, slots=True)
class Reported:
    """A condition that is True in a report of that age, by the wall clock, with its evidence."""

    condition: ReportCondition
    evidence: str
    age_seconds: float


def reported_of(report: ClusterReport | None, now: float) -> tuple[Reported, ...]:
    """Return the conditions of a report that are True. Unknown is no evidence."""
    if report is None or report.status.observed_at is None:
        return ()
    age = now - parse_time(report.status.observed_at)
    out: list[Reported] = []
    for type_ in ReportCondition:
        condition = find_condition(report.status.conditions, type_.value)
        if condition is not None and condition.status == "True":
            out.append(Reported(type_, condition.message, age))
    return tuple(out)
