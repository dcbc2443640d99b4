"""A report for a terminal: findings in order of harm, then unknown checks, then counts (pure)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from fairlead.doctor.check import Check, Finding, Harm, Unknown
from fairlead.doctor.examine import ExaminationReport

#: Columns of text that goes to no terminal, and the least that text is wrapped to.
WIDTH_DEFAULT, WIDTH_MIN = 100, 40


def number(value: float, unit: str = "") -> str:
    """Return a value with its unit, in at most four significant digits."""
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "bool":
        return "yes" if value else "no"
    text = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def _hanging(head: str, text: str, width: int) -> Iterator[str]:
    """Yield the text after a head, its further lines below its first."""
    yield from textwrap.wrap(
        text, max(width, WIDTH_MIN), initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _wrapped(label: str, text: str, width: int) -> Iterator[str]:
    """Yield the text under a label, indented; lines of a command or manifest stay as they are."""
    head = f"  {label:<10} "
    if "\n" in text:
        yield head.rstrip()
        yield from (f"    {line}".rstrip() for line in text.splitlines())
        return
    yield from _hanging(head, text, width)


def finding_lines(
    finding: Finding, project_to: int = 0, *, width: int = WIDTH_DEFAULT
) -> Iterator[str]:
    """Yield one finding with its evidence, reason, fix and reference."""
    check = finding.check
    yield from _hanging(f"{finding.severity.word.upper():<9} {check.id}  ", check.title, width)
    measured = measured_words(check, finding.value, finding.limit)
    measured = f" ({measured})" if measured else ""
    yield from _wrapped("found", f"{finding.subject}: {finding.evidence}{measured}", width)
    if finding.projected is not None and project_to:
        yield from _wrapped("at scale", f"{number(finding.projected, check.unit)} at "
                            f"{project_to:,} nodes", width)  # fmt: skip
    yield from _wrapped("why", check.why, width)
    yield from _wrapped("fix", check.fix, width)
    yield from _wrapped("reference", check.reference, width)
    yield ""


def measured_words(check: Check, value: float, limit: float) -> str:
    """Return a value beside its limit; "" for what is only there or not."""
    if check.unit == "bool":
        return ""
    return f"{number(value, check.unit)}; limit: {check.side.value} {number(limit, check.unit)}"


def _grouped(unknown: Sequence[Unknown], width: int) -> Iterator[str]:
    """Yield the unknown checks by the way to show them; reasons that differ are in -o json."""
    groups: dict[str, list[Unknown]] = {}
    for each in unknown:
        groups.setdefault(each.show, []).append(each)
    for show, members in groups.items():
        reasons = {each.reason for each in members}
        reason = reasons.pop() if len(reasons) == 1 else members[0].reason.partition(":")[0]
        ids = ", ".join(member.check.id for member in members)
        yield from _wrapped("not seen", f"{reason}: {ids}", width)
        yield from _wrapped("to show", show, width)


def report_lines(
    report: ExaminationReport, project_to: int = 0, *, width: int = WIDTH_DEFAULT
) -> Iterator[str]:
    """Yield the lines of the whole report, wrapped to a width in columns."""
    for finding in report.findings:
        yield from finding_lines(finding, project_to, width=width)
    for check_id, count in sorted((report.left_out or {}).items()):
        yield f"{check_id}: {count:,} more findings are not shown"
    if report.unknown:
        yield f"UNKNOWN   {len(report.unknown)} checks could not be evaluated"
        yield from _grouped(report.unknown, width)
        yield ""
    for expired in report.expired:
        yield (f"The suppression of {expired.check} ended on {expired.until}: {expired.reason}")
    yield from _hanging("", summary(report), width)


def summary(report: ExaminationReport) -> str:
    """Return the last line: how many of what."""
    counts = dict.fromkeys(sorted(Harm, reverse=True), 0)
    for finding in report.findings:
        counts[finding.severity] += 1
    parts = [f"{count} {severity.word}" for severity, count in counts.items()]
    parts += [f"{len(report.unknown)} unknown", f"{len(report.passed)} passed"]
    if report.suppressed:
        parts.append(f"{len(report.suppressed)} suppressed")
    if report.known:
        parts.append(f"{report.known} known from the baseline")
    return ", ".join(parts)


def check_lines(check: Check, *, width: int = WIDTH_DEFAULT) -> Iterator[str]:
    """Yield the explanation of one check."""
    yield from _hanging(f"{check.id}  ", check.title, width)
    yield from _wrapped("needs", ", ".join(need.value for need in check.needs), width)
    for level in sorted(check.levels, key=lambda each: (-each.severity, each.nodes_from)):
        size = f" from {level.nodes_from:,} nodes on" if level.nodes_from else ""
        limit = "is true" if check.unit == "bool" else (
            f"is {check.side.value} {number(level.limit, check.unit)}")  # fmt: skip
        yield from _wrapped(level.severity.word, f"when the value {limit}{size}", width)
    yield from _wrapped("why", check.why, width)
    yield from _wrapped("fix", check.fix, width)
    yield from _wrapped("reference", check.reference, width)
