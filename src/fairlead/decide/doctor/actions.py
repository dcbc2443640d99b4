"""The closed set of the doctor's actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairlead.api.cluster.cluster_report import ClusterReport, ClusterReportStatus, ReportFinding


class ChangeKind(Enum):
    """How a finding changed; the value is the reason of the Event."""

    BEGAN = "FindingBegan"
    ENDED = "FindingEnded"
    #: Its check can no longer be evaluated, which is not the end of the finding.
    NOT_SEEN = "FindingNotSeen"


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding that the report has now and did not have before, or the reverse."""

    kind: ChangeKind
    finding: ReportFinding


@dataclass(frozen=True, slots=True)
class Examine:
    """Run the checks. It takes many requests, one after another."""


@dataclass(frozen=True, slots=True)
class CreateReport:
    """Create the object; what it says is written next."""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Write the report, and record the changes as Events."""

    report: ClusterReport
    status: ClusterReportStatus
    changes: tuple[FindingChange, ...] = ()


Action: TypeAlias = Examine | CreateReport | WriteReport
