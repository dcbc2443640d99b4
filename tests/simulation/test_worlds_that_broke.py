"""Worlds that once broke a promise keep all of them: each file says which it was, when, and why.

They broke on the source before the change that mended it. Jobs are stated one by one, so that what
is drawn later does not make other worlds of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.sim.exploration import run_world
from fairlead.sim.setup.world_file import read_world

WORLDS = sorted((Path(__file__).parent / "worlds").glob("*.json"))


def test_there_are_such_worlds() -> None:
    assert WORLDS


@pytest.mark.parametrize("file", WORLDS, ids=[file.stem for file in WORLDS])
def test_a_world_that_once_broke_a_promise_keeps_all(file: Path) -> None:
    world = read_world(file)
    assert re.match(r"\d+: ", world.broken)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", world.found)
    assert world.bug.endswith(".")
    assert world.arrivals
    ran = run_world(world.options, world.seed, arrivals=world.arrivals)
    assert ran.broken == ""
    assert ran.outcome is not None
    assert ran.outcome.jobs > 0
