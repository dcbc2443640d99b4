"""A report as plain values, for JSON and YAML (pure)."""

from __future__ import annotations

from typing import Any

from fairlead.doctor.check import Check, Finding
from fairlead.doctor.examine import ExaminationReport


def finding_values(finding: Finding) -> dict[str, Any]:
    """Return one finding."""
    check = finding.check
    values: dict[str, Any] = {
        "id": check.id, "severity": finding.severity.word, "title": check.title,
        "subject": finding.subject, "value": finding.value, "limit": finding.limit,
        "unit": check.unit, "evidence": finding.evidence, "why": check.why, "fix": check.fix,
        "reference": check.reference,
    }  # fmt: skip
    if finding.projected is not None:
        values["projected"] = finding.projected
    return values


def check_values(check: Check) -> dict[str, Any]:
    """Return one check as data, without its expression."""
    return {
        "id": check.id, "title": check.title, "severity": check.worst.word,
        "needs": [need.value for need in check.needs], "unit": check.unit,
        "levels": [
            {"severity": level.severity.word, check.side.value: level.limit,
             "nodesFrom": level.nodes_from}
            for level in check.levels
        ],
        "why": check.why, "fix": check.fix, "reference": check.reference,
    }  # fmt: skip


def report_values(report: ExaminationReport) -> dict[str, Any]:
    """Return the whole report."""
    return {
        "nodes": report.nodes,
        "requests": report.requests,
        "findings": [finding_values(each) for each in report.findings],
        "unknown": [
            {"id": each.check.id, "title": each.check.title, "reason": each.reason,
             "show": each.show}
            for each in report.unknown
        ],
        "passed": [each.check.id for each in report.passed],
        "suppressed": [
            {"id": each.check_id, "subject": each.subject, "reason": each.suppression.reason,
             "until": each.suppression.until}
            for each in report.suppressed
        ],
        "expiredSuppressions": [
            {"check": each.check, "reason": each.reason, "until": each.until}
            for each in report.expired
        ],
        "known": report.known,
        "leftOut": dict(report.left_out or {}),
    }  # fmt: skip
