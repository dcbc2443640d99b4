"""The results of one examination, as the report takes them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.api.cluster.cluster_report import FindingSeverity, ReportCondition


@dataclass(frozen=True, slots=True)
class ExaminationFinding:
    """One finding."""

    check: str
    severity: FindingSeverity
    subject: str
    title: str = ""
    evidence: str = ""
    #: In the unit of the check; None: not known.
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """All results.

    `found` is in order of harm. `unknown` and `passed` are ids of checks; a check is in one of the
    three only. `left_out` counts findings that the examination itself left out.
    """

    at: float
    found: tuple[ExaminationFinding, ...] = ()
    unknown: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    left_out: int = 0
    nodes: int | None = None
    requests: int = 0
    #: The checks whose critical findings make each condition of the report true.
    behind: Mapping[ReportCondition, tuple[str, ...]] = field(
        default_factory=dict[ReportCondition, tuple[str, ...]]
    )
