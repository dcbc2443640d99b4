"""`reservations`: nodes that teams have for some time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import click

from fairlead.api.cluster.team import Team
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES, TEAMS
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.connection.common import Common, Format, common, now
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.words import duration
from fairlead.model.asks.requests import NAME_COLUMN
from fairlead.model.inventory.reserved_nodes import NodeReservation, reserved_by


@click.command(
    epilog="""Examples:

    \b
      fairlead reservations
      fairlead submit train.sh --reservation workshop
    """
)
@common()
def reservations(common_: Common) -> None:
    """Show reservations: nodes that only jobs of a team which name them may use.

    An administrator writes them into the team (spec.reservations). Other jobs do not start on these
    nodes if they could still run when the reservation begins.
    """
    api = common_.connect()
    try:
        teams = sorted(api.list(TEAMS), key=lambda team: team.metadata.name)
    except NotFound:
        teams = []
    if common_.is_structured:
        items = [
            {"team": team.metadata.name, **to_wire(each)}
            for team in teams
            for each in team.spec.reservations
        ]
        common_.structured(items)
        return
    if common_.format is Format.NAME:
        names = (each.name for team in teams for each in team.spec.reservations)
        common_.lines(names)
        return
    nodes: NodeLabels | None = None
    try:
        nodes = labels_of(api.list(NODES))
    except Forbidden:
        common_.note("note: you may not list nodes, so those that are reserved are not counted")
    rows = reservation_rows(teams, nodes, now())
    common_.table(COLUMNS, rows, empty="no reservations; docs/operations/teams.md shows one")


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


def _state(reserved: NodeReservation, now: float) -> str:
    window = reserved.window
    if now < window.start:
        return f"begins in {duration(window.start - now)}"
    return f"{duration(window.end - now)} left" if now < window.end else "ended"


def _selects(reserved: NodeReservation) -> str:
    parts = [f"{key}={value}" for key, value in reserved.selector]
    names = reserved.names[:_NAMES_SHOWN_MAX]
    more = len(reserved.names) - len(names)
    return ", ".join([*parts, *names, *([f"{more:,} more"] if more else [])])
