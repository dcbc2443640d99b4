"""Places for a gang of several roles that the packing, role by role, finds none for.

Role by role, the first one may take what another could not do without. Here the nodes are visited
once, in packing order, with all roles at a time: for each way to fill the nodes so far, what is
left of the roles. A way is dropped when another one leaves no more of any role. That is exact, and
takes time in proportion to the ways, so it is bounded: beyond the bounds below none is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import le
from typing import TypeAlias

import numpy as np

from fairlead.model.gang.gangs import RoleRequest
from fairlead.model.inventory.nodes import Ints, NodeTable

#: Steps of one search, of about a microsecond each.
STEPS_MAX = 3_000
#: Ways that are kept side by side.
STATES_MAX = 256
#: Fillings of one node.
FILLINGS_MAX = 128
#: Nodes that are visited.
NODES_MAX = 128

#: Members by role.
Counts: TypeAlias = tuple[int, ...]


def pack_mixed(
    table: NodeTable, roles: Sequence[RoleRequest], rooms: Ints, free: Ints
) -> Ints | None:
    """Return int64[roles, nodes]: how many members of each role every node takes; None: none found.

    `rooms` int64[roles, nodes]: how many of one role alone each node takes, 0 where it may not;
    `free` int64[D, nodes]. The nodes are in packing order.
    """
    vectors = np.stack([table.vector(role.member.request) for role in roles], axis=1)
    counts = np.array([role.count for role in roles])
    is_short = (vectors * counts).sum(axis=1) > np.maximum(free, 0).sum(axis=1)
    if is_short.any() or (rooms.sum(axis=1) < counts).any():
        return None
    rows = vectors.any(axis=1)
    asked, left = vectors[rows].T.tolist(), free[rows].T.tolist()
    goal = tuple(0 for _ in roles)
    start = tuple(role.count for role in roles)
    ways: dict[Counts, list[Counts]] = {}
    before: list[dict[Counts, tuple[Counts, Counts]]] = []
    front, steps = [start], 0
    for node, most in enumerate(rooms.T.tolist()):
        shape = (*most, *left[node])
        if shape not in ways:
            ways[shape] = _fillings(asked, left[node], most, start)
            steps += len(ways[shape])
        reached: dict[Counts, tuple[Counts, Counts]] = {}
        for state in front:
            for filling in ways[shape]:
                after = tuple([max(s - f, 0) for s, f in zip(state, filling, strict=True)])
                reached.setdefault(after, (state, filling))
        steps += len(front) * len(ways[shape])
        before.append(reached)
        if goal in reached:
            return _trace(before, goal, len(left))
        if steps > STEPS_MAX or len(reached) > STATES_MAX:
            return None
        front = _undominated(reached)
        steps += len(front) ** 2 // 8
    return None


def _fillings(
    asked: list[list[int]], free: list[int], most: list[int], goal: Counts
) -> list[Counts]:
    """Return the ways to fill one node to which no further member can be added."""
    found: list[Counts] = []

    def fill(role: int, free: list[int], taken: Counts) -> None:
        room = min(most[role], goal[role])
        for amount, have in zip(asked[role], free, strict=True):
            if amount:
                room = min(room, have // amount)
        is_last = role == len(asked) - 1
        for count in range(room, room - 1 if is_last else -1, -1):
            rest = [have - count * amount for have, amount in zip(free, asked[role], strict=True)]
            if is_last:
                found.append((*taken, count))
            elif len(found) < FILLINGS_MAX:
                fill(role + 1, rest, (*taken, count))

    fill(0, free, ())
    least = _undominated({tuple(-n for n in each): None for each in found})
    return [tuple(-n for n in each) for each in least]


def _undominated(states: Iterable[Counts]) -> list[Counts]:
    """Return the states but those that are nowhere smaller than some other, smallest sum first."""
    kept: list[Counts] = []
    for state in sorted(states, key=_by_sum):
        if not any(all(map(le, other, state)) for other in kept):
            kept.append(state)
    return kept


def _by_sum(state: Counts) -> tuple[int, Counts]:
    return sum(state), state


def _trace(
    before: list[dict[Counts, tuple[Counts, Counts]]], state: Counts, node_count: int
) -> Ints:
    """Return what each node takes on the way to a state."""
    out = np.zeros((len(state), node_count), dtype=np.int64)
    for node in range(len(before) - 1, -1, -1):
        earlier, filling = before[node][state]
        taken = [min(n, f) for n, f in zip(earlier, filling, strict=True)]
        out[:, node] = taken
        state = earlier
    return out
