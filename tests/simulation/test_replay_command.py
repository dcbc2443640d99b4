"""The command that runs a world again states all that the world needs."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from fairlead.sim.explored_worlds import options_of
from fairlead.sim.setup.replay_command import read_options, replay_command
from fairlead.sim.setup.world_options import Outage, WorldOptions


def stated(options: WorldOptions) -> str:
    *command, text = shlex.split(replay_command(options, 7))
    assert command == ["python", "-m", "fairlead.sim", "--seed", "7", "--options"]
    return text


def test_every_explored_world_is_the_one_that_its_command_states() -> None:
    worlds = [options_of(number) for number in range(200)]
    assert sum(bool(options.pools) for options in worlds) > 20
    assert sum(bool(options.team_changes) for options in worlds) > 20
    for options in worlds:
        assert read_options(stated(options)) == options


def test_what_is_as_usual_is_not_stated() -> None:
    usual = WorldOptions()
    assert stated(usual) == "{}"
    assert stated(replace(usual, nodes=3)) == '{"nodes": 3}'
    shape = replace(usual, workload=replace(usual.workload, members_max=2))
    assert stated(shape) == '{"workload": {"members_max": 2}}'


def test_outages_and_bounds_without_end_can_be_stated() -> None:
    options = WorldOptions(
        outages=(Outage(60.0, range(2, 5), 600.0),), settle_seconds_max=float("inf")
    )
    assert read_options(stated(options)) == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON: Expecting property name"),
        ("[]", "Expected `object`, got `array`"),
        ('{"node": 3}', r"^\$\.node is unknown; did you mean nodes\?"),
        ('{"workload": {"jbs": 3}}', r"^\$\.workload\.jbs is unknown; did you mean jobs\?"),
        ('{"nodes": "3"}', r"^Expected `int`, got `str` - at `\$\.nodes`"),
        ('{"workload": 3}', r"^Expected `object`, got `int` - at `\$\.workload`"),
    ],
)
def test_options_that_are_none_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options(text)
