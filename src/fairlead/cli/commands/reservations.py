"""`reservations`: nodes that teams have for some time."""

from __future__ import annotations

import click

from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES, TEAMS
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.common import Common, Format, common, now
from fairlead.cli.views.reservations import COLUMNS, NodeLabels, labels_of, reservation_rows


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
