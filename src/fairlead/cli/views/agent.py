"""The tables of `fairlead agent check` (pure)."""

from __future__ import annotations

from fairlead.cli.table import Align, Column, Row
from fairlead.node.report import Report

FAULT_COLUMNS = (
    Column("SEVERITY"),
    Column("CHECK"),
    Column("COMPONENT"),
    Column("CODES"),
    Column("COUNT", Align.RIGHT),
    Column("SINCE"),
    Column("ACTION"),
    Column("EVIDENCE", may_cut=True),
    Column("ENDS BY", wide_only=True),
    Column("LAST SEEN", wide_only=True),
)
SOURCE_COLUMNS = (Column("SOURCE"), Column("STATE"), Column("WHY", may_cut=True))


def fault_rows(report: Report) -> list[Row]:
    """Return a row per fault, the worst first."""
    return [
        (
            each.severity, each.check, each.component or "-", ",".join(each.codes) or "-",
            f"{each.count:,}", each.first_seen, each.action, each.evidence, each.recovery,
            each.last_seen,
        )
        for each in report.faults
    ]  # fmt: skip


def source_rows(report: Report) -> list[Row]:
    """Return a row per source, and one for each of its checks that was skipped by itself."""
    rows = [
        (each.source, each.state, each.why or ", ".join(each.unreadable) or "-")
        for each in report.sources
    ]
    named = {why for _, _, why in rows}
    rows += [(each.check, "Skipped", each.why) for each in report.skipped if each.why not in named]
    return rows


def summary_line(report: Report) -> str:
    """Return the result in a line."""
    sick = sum(each.severity != "Info" for each in report.faults)
    blind = sum(each.state not in ("Ok", "Skipped") for each in report.sources)
    verdict = "healthy" if report.is_healthy else f"{sick} fault{'s' * (sick != 1)}"
    unread = f"; {blind} of {len(report.sources)} sources not fully read" if blind else ""
    return verdict + unread
