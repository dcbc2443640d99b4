"""Reservations of nodes as a table (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from fairlead.api.core import Node
from fairlead.api.team import Team
from fairlead.cli.table import Align, Column, Row
from fairlead.decide.words import duration
from fairlead.model.requests import NAME_COLUMN
from fairlead.model.reserved_nodes import Reserved, reserved_by

COLUMNS: tuple[Column, ...] = (
    Column("NAME"),
    Column("TEAM"),
    Column("NODES", Align.RIGHT),
    Column("STATE"),
    Column("FROM"),
    Column("UNTIL"),
    Column("SELECTS", may_cut=True),
)
_NAMES_SHOWN_MAX = 3
#: The labels of each node, with its name under NAME_COLUMN.
NodeLabels: TypeAlias = Sequence[Mapping[str, str]]


def labels_of(nodes: Iterable[Node]) -> NodeLabels:
    """Return what reservations select nodes by."""
    return [{**node.metadata.labels, NAME_COLUMN: node.metadata.name} for node in nodes]


def reservation_rows(teams: Iterable[Team], nodes: NodeLabels | None, now: float) -> list[Row]:
    """Return a row for each reservation, those of a team together, the one to begin first before
    the others. `nodes` is None where they are not known.
    """
    rows: list[Row] = []
    for team in teams:
        found = zip(team.spec.reservations, reserved_by([team]), strict=True)
        for each, reserved in sorted(found, key=lambda both: both[1].window.start):
            count = "-" if nodes is None else f"{sum(map(reserved.holds, nodes)):,}"
            state = _state(reserved, now)
            rows.append(
                (each.name, team.metadata.name, count, state, each.start_time, each.end_time,
                 _selects(reserved))
            )  # fmt: skip
    return rows


def _state(reserved: Reserved, now: float) -> str:
    window = reserved.window
    if now < window.start:
        return f"begins in {duration(window.start - now)}"
    return f"{duration(window.end - now)} left" if now < window.end else "ended"


def _selects(reserved: Reserved) -> str:
    parts = [f"{key}={value}" for key, value in reserved.selector]
    names = reserved.names[:_NAMES_SHOWN_MAX]
    more = len(reserved.names) - len(names)
    return ", ".join([*parts, *names, *([f"{more:,} more"] if more else [])])
