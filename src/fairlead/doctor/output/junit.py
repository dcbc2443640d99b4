"""A report as JUnit XML: a test case per check; unknown checks are skipped ones (pure)."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from fairlead.charts import markup
from fairlead.doctor.check import Check, Finding, Harm
from fairlead.doctor.examine import ExaminationReport
from fairlead.terminal import escaped


def _attribute(text: str) -> str:
    return quoteattr(escaped(text))


def _case(check: Check, inner: str) -> str:
    name = _attribute(f"{check.id} {check.title}")
    return f'  <testcase classname="fairlead.doctor" name={name}>{inner}</testcase>\n'


def junit(report: ExaminationReport) -> str:
    """Return the XML document; findings of severity info are no failures."""
    by_check: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.severity > Harm.INFO:
            by_check.setdefault(finding.check.id, []).append(finding)
    cases: list[str] = []
    for findings in by_check.values():
        inner = "".join(
            f"<failure type={_attribute(each.severity.word)} message={_attribute(each.subject)}>"
            f"{markup(each.evidence)}\n{markup(each.check.fix)}</failure>"
            for each in findings
        )
        cases.append(_case(findings[0].check, inner))
    cases += [
        _case(each.check, f"<skipped message={_attribute(each.reason)}/>")
        for each in report.unknown
    ]
    cases += [_case(each.check, "") for each in report.passed]
    failures = len(by_check)
    head = (f'<testsuite name="fairlead doctor" tests="{len(cases)}" failures="{failures}" '
            f'skipped="{len(report.unknown)}">\n')  # fmt: skip
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}{"".join(cases)}</testsuite>\n'
