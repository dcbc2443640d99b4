"""Members fill nodes in packing order, however many they are."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from tests.property.placement_world import BOUNDED

from fairlead.decide.placement.places.search import pack

ROOMS = st.lists(st.integers(0, 5), min_size=1, max_size=30)


def filled(rooms: list[int], key: list[int], count: int) -> list[tuple[int, int]] | None:
    """Return each node that is used and what it takes, one node after the other."""
    used: list[tuple[int, int]] = []
    for node in sorted(range(len(rooms)), key=key.__getitem__):
        taken = min(rooms[node], count)
        if taken:
            used.append((node, taken))
            count -= taken
    return None if count else used


@BOUNDED
@given(ROOMS, st.randoms(use_true_random=False), st.integers(0, 12) | st.integers(0, 60))
def test_nodes_are_filled_in_packing_order(rooms, random, count) -> None:
    key = random.sample(range(1000), len(rooms))
    if random.random() < 0.5:  # only where there is room has each node a key of its own
        first = min(key)
        key = [k if room else first for k, room in zip(key, rooms, strict=True)]
    found = pack(np.array(rooms, dtype=np.int32), np.array(key, dtype=np.int64), count)
    event("no room" if found is None else "few" if count <= 4 else "many")
    packed = None if found is None else [*zip(*map(np.ndarray.tolist, found), strict=True)]
    assert packed == filled(rooms, key, count)
