"""Tables of teams: how old their numbers are where no controller answers."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.cluster.team import Team
from fairlead.api.values.times import format_time
from fairlead.cli.views.teams import age_note
from fairlead.testing.builders import EPOCH, make_team


def taken(name: str, at: float | None) -> Team:
    """A team whose numbers were taken at an instant."""
    team = make_team(name, nodes=1)
    use = replace(team.status.use, as_of=None if at is None else format_time(at))
    return replace(team, status=replace(team.status, use=use))


def test_the_oldest_numbers_of_teams_say_how_old_they_are() -> None:
    teams = [taken("a", EPOCH - 2), taken("b", EPOCH - 90), taken("c", None)]
    assert age_note(teams, EPOCH) == "note: as of 1m30s ago, as no controller answers"
    assert age_note([taken("a", EPOCH + 5)], EPOCH).startswith("note: as of 0s ago")
    assert age_note([taken("c", None)], EPOCH) == ""
