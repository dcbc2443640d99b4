"""Doctor: what the doctor last found in the control plane, what it will be at more nodes, and the
fix. It shows the ClusterReport; nothing is examined for a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fairlead.api.cluster.cluster_report import (
    REPORT_NAME,
    ClusterReportStatus,
    FindingSeverity,
    ReportFinding,
)
from fairlead.api.values.times import parse_time
from fairlead.decide.words import duration
from fairlead.doctor.check import Check, projected
from fairlead.doctor.output.text import measured_words, number
from fairlead.doctor.registry import BY_ID
from fairlead.web.pages.site import AskedPath, Site
from fairlead.web.render import Page

NODES_MAX = 1_000_000
SEVERITIES = tuple(each.value for each in FindingSeverity)


class FindingLine(NamedTuple):
    """One finding. `at_scale`, `why`, `fix` and `reference` are "" where they are not known."""

    finding: ReportFinding
    since: float | None
    measured: str
    at_scale: str
    why: str
    fix: str
    reference: str
    explain: str


async def doctor_page(site: Site, asked: AskedPath) -> Page:
    """Return the page: the findings that match, with their values at a number of nodes."""
    cluster = site.cluster
    report = cluster.findings.get("", REPORT_NAME)
    status = report.status if report is not None else ClusterReportStatus()
    given = {name: asked.text(name) for name in ("q", "severity")}
    nodes = asked.number("nodes", NODES_MAX)
    lines = [
        _line(site, each, status, nodes) for each in status.findings if _is_chosen(each, given)
    ]
    at = parse_time(status.observed_at) if status.observed_at else None
    values = {
        "rights": cluster.rights, "given": given, "nodes": nodes, "severities": SEVERITIES,
        "lines": lines, "status": status, "observed_at": at, "is_filtered": any(given.values()),
        "age": duration(max(0.0, cluster.clock.now() - at)) if at is not None else "",
        "counts": ((FindingSeverity.CRITICAL.value, status.critical),
                   (FindingSeverity.WARNING.value, status.warning),
                   (FindingSeverity.INFO.value, status.info), ("Passed", status.passed)),
        "unknown": list(_unknown(status)), "doctor_command": site.command("doctor"),
    }  # fmt: skip
    scale = ("--at-nodes", str(nodes)) if nodes else ()
    command = site.command("doctor", *scale)
    return Page("doctor.html", "Doctor", values, command, "doctor")


def _is_chosen(finding: ReportFinding, given: dict[str, str]) -> bool:
    text = "\n".join((finding.check, finding.subject, finding.title, finding.evidence)).lower()
    return given["severity"] in ("", finding.severity.value) and given["q"].lower() in text


def _line(
    site: Site, finding: ReportFinding, status: ClusterReportStatus, nodes: int
) -> FindingLine:
    """Return a finding with what its check says; a check of another release says nothing."""
    since = parse_time(finding.since) if finding.since else None
    check = BY_ID.get(finding.check)
    if check is None:
        return FindingLine(finding, since, "", "", "", "", "", "")
    measured, at_scale = _values(check, finding, status.nodes, nodes)
    explain = site.command("doctor", "--explain", check.id)
    return FindingLine(
        finding, since, measured, at_scale, check.why, check.fix, check.reference, explain
    )


def _values(check: Check, finding: ReportFinding, nodes: int | None, to: int) -> tuple[str, str]:
    """Return the value beside its limit, and the value at `to` nodes."""
    value = finding.value
    if value is None:
        return "", ""
    level = check.level_of(value, nodes or 0)
    measured = measured_words(check, value, level.limit) if level is not None else ""
    scaled = projected(check, value, nodes, to)
    return measured, "" if scaled is None else number(scaled, check.unit)


def _unknown(status: ClusterReportStatus) -> Iterator[tuple[str, str]]:
    """Yield the id and the title of each check that could not be evaluated."""
    for each in status.unknown:
        check = BY_ID.get(each)
        yield each, check.title if check is not None else ""
