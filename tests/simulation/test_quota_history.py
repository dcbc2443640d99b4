"""A real history of quotas against a live queue: teams grow, shrink, vanish and come back while
their jobs wait, run, borrow and give way. `bench/groups/quotas.py` replays all of it.
"""

from __future__ import annotations

import pytest
from tests.simulation.quota_history import Moves, QuotaHistory, replay

from fairlead.decide.teams.assign import _Assigning

DAY_SECONDS = 600.0
#: Six days of an eighth of the cluster; on the fourth all teams vanish for one that takes half.
PART = QuotaHistory.read(scale=8).part(3, 9)


def test_the_history_is_the_whole_one() -> None:
    whole = QuotaHistory.read()
    assert (len(whole.days), whole.changes, len(whole.teams), whole.nodes) == (21, 63, 25, 154)
    assert (len(PART.days), len(PART.teams), PART.nodes) == (6, 18, 21)


def test_quotas_change_under_a_queue_and_every_job_ends_and_few_nodes_more_move_than_must() -> None:
    moves = Moves()
    world = replay(PART, moves, day_seconds=DAY_SECONDS, run_seconds=1200.0, kills_at=(30, 60))
    jobs = list(world.checkers.finished.values())
    assert len(jobs) == len(world.checkers.accepted) > 100
    assert {job.status.state for job in jobs} == {"Succeeded"}
    for number, day in enumerate(PART.days):
        assert moves.owned_at((number + 1) * DAY_SECONDS - 1.0) == day
    assert PART.moves_min <= len(moves.seen) <= 1.2 * PART.moves_min
    # What the checkers watch took place, and so did the kills.
    assert min(world.teams.borrowed, world.preemptions.reclaims) > 50
    assert world.teams.compared >= len(PART.days)
    assert world.kills == 2


def test_a_teams_controller_that_keeps_no_node_moves_more_than_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = PART.part(0, 4)
    sound, planted = Moves(), Moves()
    replay(few, sound, day_seconds=DAY_SECONDS, run_seconds=None)
    assert len(sound.seen) <= 1.2 * few.moves_min
    monkeypatch.setattr(_Assigning, "keep", lambda *_: None)
    replay(few, planted, day_seconds=DAY_SECONDS, run_seconds=None)
    assert len(planted.seen) > 1.2 * few.moves_min
