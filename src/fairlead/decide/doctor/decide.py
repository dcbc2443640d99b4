"""Decides what the report says, and whether that is worth a write.

The report is written when a finding begins or ends, when a check becomes visible or invisible, when
a condition changes, and every `confirm_seconds` otherwise. Numbers in the evidence change with
every examination and are no reason to write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.api.cluster.cluster_report import (
    FINDINGS_MAX,
    TEXT_MAX,
    TITLE_MAX,
    UNKNOWN_MAX,
    ClusterReport,
    ClusterReportStatus,
    FindingSeverity,
    ReportCondition,
    ReportFinding,
)
from fairlead.api.meta import Condition, set_condition
from fairlead.api.values.bounds import OBJECT_NAME_MAX
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.doctor.actions import (
    Action,
    ChangeKind,
    CreateReport,
    FindingChange,
    WriteReport,
)
from fairlead.decide.doctor.examination import Examination, ExaminationFinding
from fairlead.decide.doctor.policy import DoctorPolicy

#: What identifies a finding from one report to the next.
_Key = tuple[str, str]


def decide_report(
    report: ClusterReport | None, examination: Examination, policy: DoctorPolicy
) -> tuple[Action, ...]:
    """Return the write that an examination asks for; () when the report says the same already."""
    if report is None:
        return (CreateReport(),)
    status = report_status(report.status, examination)
    is_same = _substance(status) == _substance(report.status)
    observed = report.status.observed_at
    age = examination.at - parse_time(observed) if observed is not None else float("inf")
    # A report from the future is one of a clock that was wrong: it is replaced.
    if is_same and 0 <= age < policy.confirm_seconds:
        return ()
    return (WriteReport(report, status, _changes(report.status, status, examination, policy)),)


def report_status(old: ClusterReportStatus, examination: Examination) -> ClusterReportStatus:
    """Return the status that an examination gives; findings that stay keep their `since`."""
    at = format_time(examination.at)
    since = {_key(each): each.since for each in old.findings}
    listed = tuple(_finding(each, since, at) for each in examination.found[:FINDINGS_MAX])
    counts = Counter(each.severity for each in examination.found)
    conditions = old.conditions
    for type_ in ReportCondition:
        conditions = set_condition(conditions, _condition(type_, examination, at))
    return ClusterReportStatus(
        observed_at=at,
        conditions=conditions,
        critical=counts[FindingSeverity.CRITICAL],
        warning=counts[FindingSeverity.WARNING],
        info=counts[FindingSeverity.INFO],
        passed=len(examination.passed),
        not_seen=len(examination.unknown),
        findings=listed,
        left_out=len(examination.found) - len(listed) + examination.left_out,
        unknown=tuple(sorted(examination.unknown)[:UNKNOWN_MAX]),
        nodes=examination.nodes,
        requests=examination.requests,
    )


def _finding(found: ExaminationFinding, since: Mapping[_Key, str | None], at: str) -> ReportFinding:
    subject = found.subject[:OBJECT_NAME_MAX]
    return ReportFinding(
        found.check, found.severity, subject, found.title[:TITLE_MAX], found.evidence[:TEXT_MAX],
        since.get((found.check, subject)) or at, found.value,
    )  # fmt: skip


def _condition(type_: ReportCondition, examination: Examination, at: str) -> Condition:
    """Return True with the first critical finding of a check behind it.

    Else Unknown while such a check is not seen, or there is none, else False.
    """
    checks = examination.behind.get(type_, ())
    evaluated = {*examination.passed, *(each.check for each in examination.found)}
    bad = [each for each in examination.found if each.check in checks
           and each.severity is FindingSeverity.CRITICAL]  # fmt: skip
    if bad:
        text = f"{bad[0].check} {bad[0].subject}: {bad[0].evidence}"
        status, reason, message = "True", "FindingsPresent", text[:TEXT_MAX]
    elif not evaluated.issuperset(checks) or not checks:
        status, reason = "Unknown", "NotSeen"
        missing = [check for check in checks if check not in evaluated]
        message = f"not seen: {', '.join(missing)}"
    else:
        status, reason, message = "False", "ChecksPassed", ""
    return Condition(type_.value, status, reason, message, last_transition_time=at)


def _substance(status: ClusterReportStatus) -> object:
    """Return what makes two reports different: no numbers of the evidence, no times."""
    return (
        [(each.check, each.subject, each.severity) for each in sorted(status.findings, key=_key)],
        sorted((each.type, each.status, each.reason) for each in status.conditions),
        status.critical, status.warning, status.info, status.passed, status.not_seen,
        status.left_out, status.unknown,
    )  # fmt: skip


def _changes(
    old: ClusterReportStatus,
    new: ClusterReportStatus,
    examination: Examination,
    policy: DoctorPolicy,
) -> tuple[FindingChange, ...]:
    """Return what began and ended, at most `events_max`.

    A finding that the list merely has no room for has not ended, nor has one whose check is not
    seen any more.
    """
    before = {_key(each) for each in old.findings}
    present = {(each.check, each.subject[:OBJECT_NAME_MAX]) for each in examination.found}
    unseen = frozenset(examination.unknown)
    out = [
        FindingChange(ChangeKind.BEGAN, each) for each in new.findings if _key(each) not in before
    ]
    cut_checks = _checks_of(examination.found) if examination.left_out else frozenset[str]()
    for each in old.findings:
        if _key(each) in present or each.check in cut_checks:
            continue
        kind = ChangeKind.NOT_SEEN if each.check in unseen else ChangeKind.ENDED
        out.append(FindingChange(kind, each))
    return tuple(out[: policy.events_max])


def _checks_of(found: Sequence[ExaminationFinding]) -> frozenset[str]:
    return frozenset(each.check for each in found)


def _key(finding: ReportFinding) -> _Key:
    return (finding.check, finding.subject)
