"""Members that are tied to nodes by volumes of their own: each gets a node that reaches them.

The tie with the least room is packed first, so that the others leave it what only it can use. That
finds a place whenever there is one where the nodes of two ties are apart, or those of one are among
those of the other, as zones and nodes are; else it is a heuristic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.model.gang.gangs import RoleRequest
from fairlead.model.gang.role_reach import Tie
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable

#: Packs so many members into what nodes have room for: distinct slots and counts; None: no room.
Pack: TypeAlias = Callable[[npt.NDArray[Any], int], tuple[Ints, Ints] | None]


def place_tied(
    table: NodeTable, role: RoleRequest, fits: npt.NDArray[Any], pack: Pack
) -> Ints | None:
    """Return int64[count]: the slot of each member by its index; None when some find none."""
    slots = np.full(role.count, -1, dtype=np.int64)
    left = fits.astype(np.int64)
    for members, near in _groups(table, role, left):
        packed = pack(left if near is None else np.where(near, left, 0), len(members))
        if packed is None:
            return None
        used, counts = packed
        left[used] -= counts
        slots[members] = np.repeat(used, counts)
    return slots


def tied_room(table: NodeTable, role: RoleRequest, fits: npt.NDArray[Any]) -> Ints:
    """Return int64[N]: how many members each node takes, when as many are placed as find room."""
    left = fits.astype(np.int64)
    for members, near in _groups(table, role, left):
        room = left if near is None else np.where(near, left, 0)
        before = np.cumsum(room) - room
        left = left - np.clip(len(members) - before, 0, room)
    return fits.astype(np.int64) - left


def _groups(table: NodeTable, role: RoleRequest, fits: Ints) -> list[tuple[Ints, Bools | None]]:
    """Return members that are tied alike, and the nodes that they reach, in the order in which they
    are placed; None for those that are not tied, who come last.
    """
    found: list[tuple[int, int, Ints, Bools]] = []
    free = np.ones(role.count, dtype=np.bool_)
    for order, tie in enumerate(role.ties):
        members = np.array([m for m in tie.members if m < role.count], dtype=np.int64)
        if len(members):
            near = nodes_near(table, tie)
            found.append((int(fits[near].sum()), order, members, near))
            free[members] = False
    found.sort(key=lambda each: each[:2])
    groups: list[tuple[Ints, Bools | None]] = [(members, near) for _, _, members, near in found]
    rest = np.flatnonzero(free)
    return [*groups, (rest, None)] if len(rest) else groups


def nodes_near(table: NodeTable, tie: Tie) -> Bools:
    """Return bool[N]: the nodes that reach the volumes of a tie."""
    return table.labels.reached(tie.reach, np.arange(table.capacity))
