"""sacctmgr: teams as the accounts of programs that ask before they submit."""

from __future__ import annotations

import pytest
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.meta import to_wire
from fairlead.api.resources import TEAMS
from fairlead.cli.connection.common import Common, Format
from fairlead.cli.slurm_tools import sacctmgr
from fairlead.testing.builders import make_team

COMMON = Common(Format.TABLE, "", False, "", "", True, False, False, 0)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("-n -s list user ada format=account%8", ["nlp", "vision"]),
        (
            "-nP show users withassoc format=account,qos where user=ada cluster=fairlead",
            ["nlp|", "vision|"],
        ),
        ("-nP show assoc where user=ada", ["fairlead|nlp|ada|", "fairlead|vision|ada|"]),
    ],
)
def test_teams_are_the_accounts_of_every_user(
    words: str,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = FakeApi()
    for name in ("vision", "nlp"):
        api.create(TEAMS.raw, to_wire(make_team(name, nodes=1)))
    serve(monkeypatch, api)
    assert sacctmgr.run(COMMON, words.split()) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == lines
