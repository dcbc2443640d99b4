"""Reservations of nodes for teams: from when until when only jobs of the team that name it start.

A reservation is a field of a team (`Team.spec.reservations`), and closes its nodes to all other
jobs as a maintenance window does (`windows.py`): to attempts that may still run when it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.api.cluster.team import Team
from fairlead.api.validation.validate_team import selector_of
from fairlead.api.values.times import parse_time
from fairlead.model.asks.requests import NAME_COLUMN
from fairlead.model.health.windows import Window


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """Nodes that a team may use for some time, and no other job."""

    #: See `reservation_key`.
    key: str
    window: Window
    #: Labels that each of the nodes has; and their names, () for any.
    selector: tuple[tuple[str, str], ...]
    names: tuple[str, ...] = ()

    @property
    def team(self) -> str:
        """The team whose it is."""
        return self.key.partition("/")[0]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True for a node of the reservation; `labels` contain its name under NAME_COLUMN."""
        if NAME_COLUMN not in labels or (self.names and labels[NAME_COLUMN] not in self.names):
            return False
        return all(labels.get(key) == value for key, value in self.selector)


def reservation_key(team: str, name: str) -> str:
    """Return what names a reservation among those of all teams; "" for no reservation."""
    return f"{team}/{name}" if name else ""


def reserved_by(teams: Iterable[Team]) -> tuple[NodeReservation, ...]:
    """Return the reservations of valid teams, in their order."""
    return tuple(
        NodeReservation(
            reservation_key(team.metadata.name, each.name),
            Window(parse_time(each.start_time), parse_time(each.end_time)),
            tuple(sorted(selector_of(each).items())),
            each.node_names,
        )
        for team in teams
        for each in team.spec.reservations
    )
