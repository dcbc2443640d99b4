"""The ClusterReport kind (fairlead.dev/v1alpha1, cluster scope): one object, named `cluster`.

The doctor alone writes it, so it has no spec. It holds the worst findings of the latest
examination and counts of the others, and conditions that other controllers read. Its size is
bounded, and values that change all the time are no reason to write it.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.meta import Condition, Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import ObjectName, doc

#: The name of the one object.
REPORT_NAME = "cluster"
FINDINGS_MAX = 50
UNKNOWN_MAX = 256
TEXT_MAX = 512
TITLE_MAX = 160
CHECK_MAX = 32


class ReportCondition(Enum):
    """The conditions of a report: True, False, or Unknown where a check could not be evaluated."""

    ETCD_NEARLY_FULL = "EtcdNearlyFull"
    API_SERVER_DEGRADED = "APIServerDegraded"


class FindingSeverity(Enum):
    """How much harm a finding can do."""

    CRITICAL = "Critical"
    WARNING = "Warning"
    INFO = "Info"


class ReportFinding(Wire, frozen=True):
    """One finding: a check, and what it was found on."""

    check: Annotated[
        str, doc("Id of the check: `fairlead doctor --explain ID`.", maxLength=CHECK_MAX)
    ]
    severity: Annotated[FindingSeverity, doc("How much harm it can do.")]
    subject: Annotated[ObjectName, doc("What it was found on.")]
    title: Annotated[str, doc("What is wrong.", maxLength=TITLE_MAX)] = ""
    evidence: Annotated[
        str, doc("The numbers when the report was last written.", maxLength=TEXT_MAX)
    ] = ""
    since: Annotated[Instant | None, doc("When it was first found.")] = None
    value: Annotated[
        float | None,
        doc("What the check measured when the report was last written, in the check's unit."),
    ] = None


class ClusterReportStatus(Wire, frozen=True):
    """What the latest examinations of the control plane found, written by Fairlead's doctor."""

    observed_at: Annotated[
        Instant | None, doc("When the examination ended that was written last.")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        doc("EtcdNearlyFull, APIServerDegraded: what other controllers act on."),
    ] = ()
    critical: Annotated[int, doc("Critical findings.", ge=0)] = 0
    warning: Annotated[int, doc("Warnings.", ge=0)] = 0
    info: Annotated[int, doc("Findings for information.", ge=0)] = 0
    passed: Annotated[int, doc("Checks that found nothing.", ge=0)] = 0
    not_seen: Annotated[
        int, doc("Checks that could not be evaluated. They have not passed.", ge=0)
    ] = 0
    findings: Annotated[
        tuple[ReportFinding, ...],
        doc("The findings in order of harm, the worst only.", maxItems=FINDINGS_MAX),
    ] = ()
    left_out: Annotated[int, doc("Findings beyond those that are listed.", ge=0)] = 0
    unknown: Annotated[
        tuple[str, ...], doc("Ids of the checks that could not be evaluated.", maxItems=UNKNOWN_MAX)
    ] = ()
    nodes: Annotated[int | None, doc("Nodes of the cluster.")] = None
    requests: Annotated[int, doc("Requests to the API server that the examination took.", ge=0)] = 0


class ClusterReport(Wire, frozen=True):
    """What the doctor last found in the control plane of this cluster."""

    metadata: ObjectMeta = ObjectMeta()
    status: ClusterReportStatus = ClusterReportStatus()
