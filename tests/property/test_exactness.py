"""Whether a place is found where there is one, against a search through all ways to place a gang.

The search goes node by node and keeps every count of members per role that can be reached. It
shares nothing with the planner and forgets no way, so on these small clusters it is exact.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from tests.property.placement_world import BOUNDED, PATIENT

from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_role

#: GPUs and CPUs of a node; members of a role, and the GPUs and CPUs that one asks for.
Shape = tuple[int, int]
Asked = tuple[int, int, int]

CASES = 200
FOUND_SHARE_MIN = 0.995

a_node = st.tuples(st.sampled_from([0, 4, 8]), st.sampled_from([8, 16, 32]))
a_role = st.tuples(st.integers(1, 6), st.sampled_from([0, 1, 2, 3, 8]), st.integers(1, 8))


def is_possible(nodes: list[Shape], roles: list[Asked]) -> bool:
    """True when every member of every role has a place."""
    goal = tuple(count for count, _, _ in roles)
    reached = {tuple(0 for _ in roles)}
    for gpus, cpus in nodes:
        fillings = [
            filling
            for filling in product(*(range(count + 1) for count in goal))
            if sum(n * role[1] for n, role in zip(filling, roles, strict=True)) <= gpus
            and sum(n * role[2] for n, role in zip(filling, roles, strict=True)) <= cpus
        ]
        reached = {
            tuple(min(a + b, most) for a, b, most in zip(state, filling, goal, strict=True))
            for state in reached
            for filling in fillings
        }
    return goal in reached


def sizes_placed(
    nodes: list[Shape], roles: list[Asked], least: Sequence[int] = ()
) -> tuple[int, ...]:
    """Let the planner decide; return the members of each role that have places, () for none.

    The placement is checked node by node. `least` are the least members of each role, by default
    all of them.
    """
    job = make_job(
        "gang",
        roles=[
            make_role(f"r{i}", count=n, min_count=least[i] if least else None, gpus=g, cpu=c)
            for i, (n, g, c) in enumerate(roles)
        ],
    )
    shapes = {f"n{i}": shape for i, shape in enumerate(nodes)}
    made = [make_node(name, gpus=g, cpu=c) for name, (g, c) in shapes.items()]
    actions = decide(PlacementState.of(made, [job]), PATIENT, EPOCH).actions
    sizes: tuple[int, ...] = ()
    for placement in [action.placement for action in actions if isinstance(action, PlaceJob)]:
        left = {name: list(shape) for name, shape in shapes.items()}
        for (_, gpus, cpus), placed in zip(roles, placement.roles, strict=True):
            for name in placed.nodes:
                left[name][0] -= gpus
                left[name][1] -= cpus
        assert min(min(rest) for rest in left.values()) >= 0
        sizes = tuple(len(placed.nodes) for placed in placement.roles)
        for size, role, low in zip(sizes, roles, least or [n for n, _, _ in roles], strict=True):
            assert low <= size <= role[0]
    return sizes


def is_placed(nodes: list[Shape], roles: list[Asked]) -> bool:
    """True when the planner finds a place for all members."""
    return bool(sizes_placed(nodes, roles))


def largest_sizes(nodes: list[Shape], roles: list[Asked], least: Sequence[int]) -> tuple[int, ...]:
    """Return the members of each role, as many of the first as there may be, then of the next; ()
    where not even the least have places.
    """
    ranges = (range(n, low - 1, -1) for (n, _, _), low in zip(roles, least, strict=True))
    for sizes in product(*ranges):
        asked = [(n, *role[1:]) for n, role in zip(sizes, roles, strict=True)]
        if is_possible(nodes, asked):
            return sizes
    return ()


@BOUNDED
@given(st.lists(a_node, min_size=1, max_size=6), a_role)
def test_a_homogeneous_gang_is_placed_if_and_only_if_there_is_a_place(nodes, role):
    assert is_placed(nodes, [role]) == is_possible(nodes, [role])


@BOUNDED
@given(st.lists(a_node, min_size=1, max_size=6), a_role, st.integers(1, 6))
def test_an_elastic_gang_of_one_role_has_the_largest_size_that_there_is_room_for(
    nodes, role, least
):
    low = [min(least, role[0])]
    assert sizes_placed(nodes, [role], low) == largest_sizes(nodes, [role], low)


def a_tight_case(rng: random.Random) -> tuple[list[Shape], list[Asked]]:
    """Nodes, and two or three roles that ask for more than half of one resource of them all."""
    while True:
        nodes = [(rng.choice((0, 4, 8, 8)), rng.choice((8, 16, 32)))
                 for _ in range(rng.randint(2, 6))]  # fmt: skip
        roles = [
            (rng.randint(1, 5), rng.choice((0, 1, 2, 3, 4, 8)), rng.choice((1, 2, 4, 6, 8)))
            for _ in range(rng.randint(2, 3))
        ]
        shares = [
            sum(role[0] * role[kind] for role in roles) / max(sum(n[kind - 1] for n in nodes), 1)
            for kind in (1, 2)
        ]
        if 0.6 < max(shares) <= 1.0:
            return nodes, roles


def test_a_gang_of_mixed_shapes_is_placed_in_nearly_all_cases_in_which_there_is_a_place() -> None:
    rng = random.Random(7)
    possible = found = 0
    while possible < CASES:
        nodes, roles = a_tight_case(rng)
        if is_possible(nodes, roles):
            possible += 1
            found += is_placed(nodes, roles)
        else:
            assert not is_placed(nodes, roles)
    assert found >= FOUND_SHARE_MIN * possible


def test_of_an_elastic_gang_the_first_role_is_as_large_as_it_can_be_in_nearly_all_cases() -> None:
    rng = random.Random(11)
    possible = found = 0
    while possible < CASES // 2:
        nodes, roles = a_tight_case(rng)
        roles = [(n + rng.randint(0, 2), *rest) for n, *rest in roles]
        least = [rng.randint(1, n) for n, _, _ in roles]
        expected = largest_sizes(nodes, roles, least)
        sizes = sizes_placed(nodes, roles, least)
        assert sizes <= expected
        possible += bool(expected)
        found += bool(expected) and sizes == expected
    assert found >= FOUND_SHARE_MIN * possible
