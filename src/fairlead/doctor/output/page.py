"""A report as one HTML page without scripts or outside resources (pure)."""

from __future__ import annotations

from fairlead.charts import markup
from fairlead.doctor.check import Finding
from fairlead.doctor.examine import ExaminationReport
from fairlead.doctor.output.text import number, summary

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
article{border-left:.4rem solid #888;padding:.2rem 1rem;margin:1rem 0}
.critical{border-color:#b00020}.warning{border-color:#c77700}.info{border-color:#2266aa}
pre{white-space:pre-wrap;background:#8882;padding:.5rem}h2{font-size:1.1rem}
dt{font-weight:600}dd{margin:0 0 .5rem}"""


def _article(finding: Finding) -> str:
    check = finding.check
    value = f"{number(finding.value, check.unit)}, limit {number(finding.limit, check.unit)}"
    return (
        f'<article class="{finding.severity.word}"><h2>{markup(check.id)} '
        f"{markup(check.title)} <small>{finding.severity.word}</small></h2><dl>"
        f"<dt>{markup(finding.subject)}</dt><dd>{markup(finding.evidence)} ({markup(value)})</dd>"
        f"<dt>Why</dt><dd>{markup(check.why)}</dd><dt>Fix</dt><dd><pre>{markup(check.fix)}</pre>"
        f"</dd><dt>Reference</dt><dd>{markup(check.reference)}</dd></dl></article>"
    )


def html_page(report: ExaminationReport) -> str:
    """Return the page."""
    unknown = "".join(
        f"<li><b>{markup(each.check.id)}</b> {markup(each.check.title)}: {markup(each.reason)}. "
        f"To show: {markup(each.show)}</li>"
        for each in report.unknown
    )
    passed = ", ".join(markup(each.check.id) for each in report.passed)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>fairlead doctor</title>"
        f"<style>{STYLE}</style><h1>fairlead doctor</h1><p>{markup(summary(report))}</p>"
        f"{''.join(_article(each) for each in report.findings)}"
        f"<h2>Unknown</h2><ul>{unknown}</ul><h2>Passed</h2><p>{passed}</p></html>\n"
    )
