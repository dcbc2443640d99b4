"""Properties of the assignment of nodes to shares, against an exact solver and a real history."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.names import TEAM
from fairlead.decide.teams.assign import NO_TEAM, OwnedNodes, ShareRequest, assign
from fairlead.decide.teams.decide import share_out
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.cluster import ClusterState
from fairlead.model.inventory.nodes import Bools, Ints
from fairlead.testing.builders import make_node, make_team

POLICY = TeamsPolicy(block_key="rack")
HELIOS = Path(__file__).parent / "data" / "helios_earth_quota_changes.csv"


def _matched(eligible: list[Bools], amounts: list[int]) -> int:
    """Return how many nodes can be given at most, by plain augmenting paths (Kuhn)."""
    seats = [i for i, amount in enumerate(amounts) for _ in range(amount)]
    holder: dict[int, int] = {}

    def place(seat: int, seen: set[int]) -> bool:
        for node in np.flatnonzero(eligible[seats[seat]]).tolist():
            if node not in seen:
                seen.add(node)
                if node not in holder or place(holder[node], seen):
                    holder[node] = seat
                    return True
        return False

    return sum(place(seat, set()) for seat in range(len(seats)))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[OwnedNodes, list[ShareRequest]]:
    count, teams = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    numbers = st.lists(st.integers(NO_TEAM, teams - 1), min_size=count, max_size=count)
    masks = st.lists(st.booleans(), min_size=count, max_size=count)
    blocks = st.lists(st.integers(-1, 2), min_size=count, max_size=count)
    busy = np.array(draw(masks))

    def burden(_team: int, slots: Ints) -> Ints:
        return busy[slots].astype(np.int64)

    fleet = OwnedNodes(
        np.array(draw(numbers)), np.array(draw(blocks)), np.arange(count), burden
    )  # fmt: skip
    ones = np.ones(count, dtype=np.int64)
    shares = [
        ShareRequest(team, draw(st.integers(0, 5)), np.array(draw(masks)), ones)
        for team in range(teams)
        for _ in range(draw(st.integers(1, 2)))
    ]
    return fleet, shares


@given(fleets())
@settings(max_examples=300, deadline=None)
def test_as_many_nodes_are_given_as_can_be(world: tuple[OwnedNodes, list[ShareRequest]]) -> None:
    fleet, shares = world
    found = assign(fleet, shares)
    for i, share in enumerate(shares):
        nodes = found.share == i
        assert not (nodes & ~share.eligible).any()
        assert int(nodes.sum()) + found.missing[i] == share.amount
    given_count = int((found.share >= 0).sum())
    best = _matched([s.eligible for s in shares], [s.amount for s in shares])
    assert given_count == best


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=30),
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_no_more_nodes_change_hands_than_must(owners: list[int], amounts: list[int]) -> None:
    """Where any node serves any share: those that teams have too many of, or those that lack."""
    fleet = OwnedNodes(
        np.array(owners), np.full(len(owners), -1), np.arange(len(owners)),
        lambda _team, slots: np.zeros(len(slots), dtype=np.int64),
    )  # fmt: skip
    everything = np.ones(len(owners), dtype=np.bool_)
    units = np.ones(len(owners), dtype=np.int64)
    shares = [ShareRequest(i, amount, everything, units) for i, amount in enumerate(amounts)]
    found = assign(fleet, shares)
    changed = int((found.share != fleet.owner).sum())
    had = Counter(owners)
    surplus = sum(max(had[i] - amount, 0) for i, amount in enumerate(amounts))
    lack = sum(max(amount - had[i], 0) for i, amount in enumerate(amounts))
    assert changed == max(surplus, min(lack, surplus + had[NO_TEAM]))


def test_a_real_history_of_quotas_moves_few_more_nodes_than_it_must() -> None:
    """All quota changes of a Helios cluster: teams grow, shrink, appear and vanish."""
    rows = list(csv.DictReader(line for line in HELIOS.open() if not line.startswith("#")))
    teams = [name for name in rows[0] if name != "day"]
    most = max(sum(int(row[team]) for team in teams) for row in rows) // 8
    state = ClusterState()
    nodes = {f"n{i:03}": make_node(f"n{i:03}", labels={"rack": f"r{i // 8}"}) for i in range(most)}
    for node in nodes.values():
        state.node_changed(node)
    moved = least = 0
    before: Counter[str] = Counter()
    for row in rows:
        wanted = Counter({team: int(row[team]) // 8 for team in teams if int(row[team]) >= 8})
        for team in teams:
            made = make_team(team, nodes=wanted[team]) if wanted[team] else None
            state.team_changed(team, made)
        found = share_out(state, POLICY, list(state.teams))
        for change in found.changes:
            taints = [Taint(TEAM, "NoSchedule", change.team)] if change.team else []
            nodes[change.node] = _with_taints(nodes[change.node], taints)
            state.node_changed(nodes[change.node])
        owners = Counter(state.uses.owner(name) for name in nodes)
        assert {team: count for team, count in owners.items() if team} == dict(wanted)
        surplus = sum(max(before[team] - wanted[team], 0) for team in teams)
        lack = sum(max(wanted[team] - before[team], 0) for team in teams)
        moved, least, before = moved + len(found.changes), least + max(surplus, lack), wanted
    changes = sum(a[team] != b[team] for a, b in pairwise(rows) for team in teams)
    assert (len(rows), changes) == (21, 63)
    assert least <= moved <= 1.2 * least  # the blocks are kept together


def _with_taints(node: Node, taints: list[Taint]) -> Node:
    labels = {"rack": node.metadata.labels["rack"]}
    return make_node(node.metadata.name, labels=labels, taints=taints)
