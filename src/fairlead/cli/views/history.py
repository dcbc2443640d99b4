"""The table of jobs that have ended (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.app.messages import HistoryLine
from fairlead.cli.table import Align, Column, Row
from fairlead.decide.words import duration

NONE = "-"

COLUMNS: tuple[Column, ...] = (
    Column("NAME"),
    Column("STATE"),
    Column("TASKS", Align.RIGHT),
    Column("ATTEMPTS", Align.RIGHT),
    Column("WAITED"),
    Column("TIME"),
    Column("ENDED"),
    Column("USER", wide_only=True),
    Column("PRIORITY", Align.RIGHT, wide_only=True),
    Column("UID", wide_only=True),
    Column("REASON", may_cut=True),
)
NAMESPACE_COLUMN = Column("NAMESPACE")


def history_rows(
    lines: Iterable[HistoryLine], now: float, *, with_namespace: bool = False
) -> list[Row]:
    """Return a row per job in the given order, preceded by the namespace when asked."""
    rows: list[Row] = []
    for line in lines:
        ended = line.finished_at_ms
        row = (
            line.name,
            line.state or NONE,
            str(line.member_count),
            str(line.attempt_count),
            _between(line.submitted_at_ms, line.started_at_ms or ended),
            _between(line.started_at_ms, ended),
            f"{duration(now - ended / 1000)} ago" if ended is not None else NONE,
            line.user or NONE,
            str(line.priority),
            line.uid,
            _why(line),
        )
        rows.append((line.namespace, *row) if with_namespace else row)
    return rows


def _why(line: HistoryLine) -> str:
    if line.state == "Succeeded" or not line.reason:
        return NONE
    return f"{line.reason}: {line.message}" if line.message else line.reason


def _between(start_ms: int | None, end_ms: int | None) -> str:
    return NONE if start_ms is None or end_ms is None else duration((end_ms - start_ms) / 1000)
