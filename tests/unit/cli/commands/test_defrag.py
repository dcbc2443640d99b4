"""What `fairlead defrag` says: the planner's moves in words and as data."""

from __future__ import annotations

from tests.unit.decide.test_moves import NODES, POLICY, cluster, scattered
from tests.unit.decide.test_preemption import running

from fairlead.cli.commands.defrag import _block
from fairlead.cli.views.moves import moves_facts, moves_text
from fairlead.decide.answers.block_moves import find_moves
from fairlead.testing.builders import EPOCH

WIDE = ("default", "wide")


def test_the_moves_for_a_waiting_job_are_listed_with_what_they_lose():
    state = cluster(*scattered()).state
    before = state.cluster.table.used.copy()
    moves, retry_at = find_moves(state, WIDE, POLICY, EPOCH)
    assert (state.cluster.table.used == before).all()
    first, _, header, row = moves_text(state, moves, retry_at - EPOCH).splitlines()
    assert first == f"1 move would free {NODES[0]} and lose 14,400 GPU-seconds of work"
    assert header.split() == ["NAMESPACE", "JOB", "LOST", "GPU-S", "FROM", "TO"]
    assert row.split() == ["default", "r0", "14,400", NODES[0], NODES[1]]
    facts = moves_facts(state, moves)
    assert facts["possible"]
    assert facts["moves"][0] == {
        "namespace": "default", "job": "r0", "lostGpuSeconds": 14400, "from": NODES[:1],
        "to": NODES[1:2],
    }  # fmt: skip


def test_a_block_is_asked_about_by_its_size_in_whole_nodes():
    *gangs, _ = scattered()
    state = cluster(*gangs).state
    for nodes, text in ((1, "1 move would free"), (2, "no moves free such a block")):
        block = _block(state.cluster, nodes, "", "", at=EPOCH, space="default")
        state.cluster.job_changed(block)
        moves, retry_at = find_moves(state, block.metadata.key, POLICY, EPOCH)
        assert moves_text(state, moves, retry_at - EPOCH).startswith(text)


def test_what_is_free_already_is_said_and_when_gangs_that_have_just_started_may_move():
    *_, wide = scattered()
    state = cluster(wide).state
    moves, retry_at = find_moves(state, WIDE, POLICY, EPOCH)
    assert moves_text(state, moves, retry_at - EPOCH).startswith("free already: ")
    young = [running(f"r{i}", [n], gpus=4, since=EPOCH - 20) for i, n in enumerate(NODES)]
    state = cluster(*young, wide).state
    moves, retry_at = find_moves(state, WIDE, POLICY, EPOCH)
    assert moves_text(state, moves, retry_at - EPOCH) == (
        "no moves free such a block; gangs that have just started may move in 40s\n"
    )
