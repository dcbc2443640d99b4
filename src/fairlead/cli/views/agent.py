"""The tables of `fairlead agent check` and `fairlead agent tune` (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.api.cluster.node_report import SettingState
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.node.reports.report import Report
from fairlead.node.tuning import TuningFinding, TuningOutcome

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
SETTING_COLUMNS = (
    Column("SETTING"),
    Column("STATE"),
    Column("ACTUAL"),
    Column("WANTED"),
    Column("WHY", may_cut=True),
    Column("REASON", wide_only=True),
    Column("SOURCE", wide_only=True),
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


def setting_rows(findings: Iterable[TuningFinding]) -> list[Row]:
    """Return a row per setting, in the order of the profile; targets that are alike are one."""
    rows: dict[tuple[str, str, str, str], tuple[TuningFinding, int]] = {}
    for each in findings:
        key = (each.setting, each.state.value, each.actual, each.why)
        rows[key] = each, rows.get(key, (each, 0))[1] + 1
    return [
        (
            each.setting + f" ({count:,} times)" * (count > 1), each.state.value,
            each.actual or "-", each.wanted or "-", each.why or each.formula or "-", each.reason,
            each.source,
        )
        for each, count in rows.values()
    ]  # fmt: skip


def tuning_line(outcome: TuningOutcome) -> str:
    """Return the result of a comparison, or of a change, in a line."""
    found = outcome.findings
    drifts = sum(each.state.is_drift for each in found)
    unjudged = sum(
        each.state in (SettingState.NOT_JUDGED, SettingState.UNREADABLE) for each in found
    )
    parts = [f"{drifts:,} of {len(found):,} differ" if found else "no settings are wanted"]
    if unjudged:
        parts.append(f"{unjudged:,} not judged")
    if outcome.changed:
        parts.append(f"{outcome.changed:,} set")
    back = sum(not each.why for each in outcome.restored)
    if back:
        parts.append(f"{back:,} restored")
    return "; ".join(parts)


def restored_lines(outcome: TuningOutcome) -> list[str]:
    """Return a line per setting that was restored, or was not."""
    return [
        f"{each.setting}: {each.why or f'restored to {each.value}'}" for each in outcome.restored
    ]


def start_lines(outcome: TuningOutcome) -> list[str]:
    """Return a line for each drop-in with which something is to be done, or cannot be."""
    return [each.words for each in outcome.starts if each.words]
