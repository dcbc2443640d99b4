"""What nodes report of their settings, and what a profile would change there (pure)."""

from __future__ import annotations

from fairlead.api.cluster.node_report import ReportedTuning
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.words import duration, plural
from fairlead.node.tuning import RollOut

_NODES_SHOWN_MAX = 3
DIFFERENCE_COLUMNS = (
    Column("SETTING"), Column("STATE"), Column("ACTUAL"), Column("WANTED"),
    Column("WHY", may_cut=True),
)  # fmt: skip
CHANGE_COLUMNS = (
    Column("SETTING"), Column("ACTUAL"), Column("WANTED"), Column("NODES", Align.RIGHT),
    Column("HOW"), Column("WHERE", may_cut=True), Column("FORMULA", wide_only=True),
)  # fmt: skip


def difference_rows(tuning: ReportedTuning) -> list[Row]:
    """Return a row per difference that a node reports."""
    return [
        (each.name, each.state.value, each.actual or "-", each.wanted or "-", each.why or "-")
        for each in tuning.differences
    ]


def tuning_line(tuning: ReportedTuning) -> str:
    """Return what a node reports in a line."""
    count = len(tuning.differences) + tuning.left_out
    parts = [f"profile {tuning.profile}, mode {tuning.mode.value}: {count:,} differ"]
    if tuning.left_out:
        parts.append(f"{tuning.left_out:,} of them not listed")
    if tuning.not_judged:
        parts.append(f"{tuning.not_judged:,} not judged")
    return "; ".join(parts)


def change_rows(found: RollOut) -> list[Row]:
    """Return a row per setting and change, with the first nodes by name."""
    return [
        (
            each.setting, each.actual or "-", each.wanted or "-", f"{len(each.nodes):,}",
            each.how, _named(each.nodes), each.formula or "-",
        )
        for each in found.changes
    ]  # fmt: skip


def _named(nodes: tuple[str, ...]) -> str:
    rest = len(nodes) - _NODES_SHOWN_MAX
    more = f" and {rest:,} more" if rest > 0 else ""
    return ", ".join(nodes[:_NODES_SHOWN_MAX]) + more


def roll_out_line(found: RollOut) -> str:
    """Return how many nodes there are of each sort."""
    drifts = [each for each in found.changes if each.state.is_drift]
    touched = {node for each in drifts for node in each.nodes}
    unknown = {node for each in found.changes for node in each.nodes} - touched
    parts = [
        f"{plural(len(found.as_wanted), 'node')} as wanted", f"{len(touched):,} with changes",
    ]  # fmt: skip
    if found.restarted:
        parts[-1] += f", {len(found.restarted):,} of them by a restart"
    if unknown:
        parts.append(f"{len(unknown):,} not judged")
    if found.unreported:
        names = _named(found.unreported)
        parts.append(f"{len(found.unreported):,} report no settings ({names})")
    return "; ".join(parts)


def pace_line(seconds: float | None, out_seconds: float) -> str:
    """Return how long the nodes with a restart take at least; None: longer than is looked ahead."""
    if seconds is None:
        return "the budgets for nodes out of service make it longer than 90 days"
    return (
        f"it takes {duration(seconds)} at least within the budgets for nodes out of service, "
        f"each {duration(out_seconds)} when it is empty; nodes with work are emptied first"
    )
