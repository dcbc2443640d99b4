"""The moves that free a block of nodes, in words and as a table (pure)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairlead.cli.formats.table import Align, Column, render_table
from fairlead.decide.placement.evict.moves import Moves
from fairlead.decide.placement.places.search import Plan
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey
from fairlead.decide.words import duration, fold_names, plural

_COLUMNS = (
    Column("NAMESPACE"),
    Column("JOB"),
    Column("LOST GPU-S", Align.RIGHT),
    Column("FROM", may_cut=True),
    Column("TO", may_cut=True),
)


def moves_text(state: PlacementState, moves: Moves | None, retry_seconds: float) -> str:
    """Return what would move where; `retry_seconds` until gangs that have just started may."""
    if moves is None:
        more = ""
        if retry_seconds < float("inf"):
            more = f"; gangs that have just started may move in {duration(retry_seconds)}"
        return f"no moves free such a block{more}\n"
    block = fold_names(_nodes(state, moves.plan))
    if not moves.moves:
        return f"free already: {block}\n"
    lost = f"{round(moves.lost_gpu_seconds):,} GPU-seconds of work"
    rows = [
        (*move.candidate.key, f"{round(move.candidate.lost_gpu_seconds):,}",
         fold_names(_held(state, move.candidate.key)), fold_names(_nodes(state, move.plan)))
        for move in moves.moves
    ]  # fmt: skip
    text = f"{plural(len(moves.moves), 'move')} would free {block} and lose {lost}\n\n"
    return text + render_table(_COLUMNS, rows)


def moves_facts(state: PlacementState, moves: Moves | None) -> dict[str, Any]:
    """Return the same as plain data for -o json and yaml."""
    if moves is None:
        return {"possible": False, "nodes": [], "moves": []}
    return {
        "possible": True,
        "nodes": _nodes(state, moves.plan),
        "lostGpuSeconds": round(moves.lost_gpu_seconds),
        "moves": [
            {
                "namespace": move.candidate.key[0],
                "job": move.candidate.key[1],
                "lostGpuSeconds": round(move.candidate.lost_gpu_seconds),
                "from": _held(state, move.candidate.key),
                "to": _nodes(state, move.plan),
            }
            for move in moves.moves
        ],
    }


def _nodes(state: PlacementState, plan: Plan) -> list[str]:
    names = state.cluster.table.names
    return sorted(names[slot] for slot in plan.distinct_slots.tolist())


def _held(state: PlacementState, key: ObjectKey) -> list[str]:
    names = state.cluster.table.names
    return sorted(names[slot] for slot in np.unique(state.cluster.ledger.slots(key)).tolist())
