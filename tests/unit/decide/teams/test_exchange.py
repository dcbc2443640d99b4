"""Exchanges of nodes between teams: a team borrows only beyond its share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from fairlead.api.cluster.team import Share, Team
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.names import POOL, TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.teams.decide import share_out
from fairlead.decide.teams.exchange import Exchanges
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team

POLICY = TeamsPolicy(block_key="rack", exchange_seconds=600.0)
LATE = EPOCH + 601.0


def owned(name: str, team: str, **node: Any) -> Node:
    return make_node(name, taints=[Taint(TEAM, "NoSchedule", team)] if team else [], **node)


def cluster(nodes: list[Node], teams: list[Team], jobs: dict[str, list[str]]) -> ClusterState:
    """Return a cluster with a job on each list of nodes; `a-1` is one of team a."""
    state = ClusterState.of(nodes)
    for team in teams:
        state.team_changed(team.metadata.name, team)
    for name, places in jobs.items():
        team = name.partition("-")[0]
        made = make_job(name, namespace=team, count=len(places), gpus=1,
                        placement=with_fields(make_placement(places), team=team))  # fmt: skip
        state.job_changed(made)
    return state


def exchanged(
    state: ClusterState, teams: list[Team], *, now: float = LATE
) -> tuple[dict[str, str], float | None]:
    found = Exchanges(state, share_out(state, POLICY, teams), POLICY)
    changes = [change for pair in found.find(now) for change in pair]
    return {change.node: change.team for change in changes}, found.wake_at


def teams(**nodes: int) -> list[Team]:
    return [make_team(name, nodes=count) for name, count in nodes.items()]


def test_a_borrowed_node_is_exchanged_for_one_that_the_team_does_not_use() -> None:
    both = teams(a=1, b=1)
    state = cluster([owned("n0", "a"), owned("n1", "b")], both, {"a-1": ["n1"]})
    assert exchanged(state, both) == ({"n1": "a", "n0": "b"}, None)


def test_two_teams_on_nodes_of_each_other_both_come_home() -> None:
    both = teams(a=2, b=1)
    nodes = [owned("n0", "a"), owned("n1", "b"), owned("n2", "a")]
    state = cluster(nodes, both, {"a-1": ["n1"], "b-1": ["n2"]})
    assert exchanged(state, both)[0] == {"n1": "a", "n2": "b"}  # not the idle n0


def test_a_node_that_is_lent_to_a_third_team_is_the_last_choice_and_still_one() -> None:
    three = teams(a=1, b=1, c=0)
    nodes = [owned("n0", "a"), owned("n1", "b")]
    state = cluster(nodes, three, {"a-1": ["n1"], "c-1": ["n0"]})
    assert exchanged(state, three)[0] == {"n1": "a", "n0": "b"}


def test_a_team_that_uses_all_of_its_nodes_goes_on_borrowing() -> None:
    both = teams(a=1, b=1)
    nodes = [owned("n0", "a"), owned("n1", "b")]
    state = cluster(nodes, both, {"a-1": ["n0"], "a-2": ["n1"]})
    assert exchanged(state, both) == ({}, None)


def test_a_node_that_its_owner_uses_too_stays() -> None:
    both = teams(a=1, b=1)
    nodes = [owned("n0", "a"), owned("n1", "b")]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"], "b-1": ["n1"]}), both)[0] == {}


def test_a_job_that_has_just_come_waits_and_the_instant_is_known() -> None:
    both = teams(a=1, b=1)
    state = cluster([owned("n0", "a"), owned("n1", "b")], both, {"a-1": ["n1"]})
    assert exchanged(state, both, now=EPOCH + 599.0) == ({}, EPOCH + 600.0)


def test_how_long_jobs_of_another_team_have_been_on_a_node_does_not_count() -> None:
    three = teams(a=1, b=1, c=0)
    state = cluster([owned("n0", "a"), owned("n1", "b")], three, {"c-1": ["n1"]})
    placement = with_fields(make_placement(["n1"]), team="a", placed_at=format_time(EPOCH + 500))
    state.job_changed(make_job("a-1", namespace="a", gpus=1, placement=placement))
    assert exchanged(state, three) == ({}, EPOCH + 1100.0)


def test_of_several_jobs_that_have_just_come_the_first_instant_is_known() -> None:
    both = teams(a=2, b=2)
    nodes = [owned(f"n{i}", "ab"[i // 2]) for i in range(4)]
    state = cluster(nodes, both, {"a-1": ["n2"]})
    placement = with_fields(make_placement(["n3"]), team="a", placed_at=format_time(EPOCH + 100))
    state.job_changed(make_job("a-2", namespace="a", gpus=1, placement=placement))
    assert exchanged(state, both, now=EPOCH + 1.0) == ({}, EPOCH + 600.0)


@pytest.mark.parametrize("pools", [("a", "b"), ("", "b"), ("a", "")])
def test_nodes_that_one_of_the_shares_does_not_admit_are_not_exchanged(
    pools: tuple[str, str],
) -> None:
    both = [
        make_team(team, shares=[Share(pool=pool, nodes=1) if pool else Share(nodes=1)])
        for team, pool in zip("ab", pools, strict=True)
    ]
    nodes = [owned("n0", "a", labels={POOL: "a"}), owned("n1", "b", labels={POOL: "b"})]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"]}), both) == ({}, None)


def test_no_more_nodes_are_exchanged_at_once_than_may_change_hands() -> None:
    both = teams(a=5, b=5)
    nodes = [owned(f"n{i}", "ab"[i // 5]) for i in range(10)]
    state = cluster(nodes, both, {f"a-{i}": [f"n{i}"] for i in range(5, 10)})
    policy = replace(POLICY, changes_max=4)
    assert len(list(Exchanges(state, share_out(state, policy, both), policy).find(LATE))) == 2


def test_blocks_stay_whole() -> None:
    both = teams(a=1, b=1)
    nodes = [owned("n0", "a", labels={"rack": "r0"}), owned("n1", "b", labels={"rack": "r1"})]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"]}), both)[0] == {}


def test_shares_in_gpus_exchange_nodes_of_as_many() -> None:
    both = [make_team("a", gpus=8), make_team("b", gpus=4)]
    nodes = [owned("n0", "a", gpus=8), owned("n1", "b", gpus=4)]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"]}), both)[0] == {}
    nodes = [owned("n0", "a", gpus=8), owned("n1", "b", gpus=8)]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"]}), both)[0] == {"n1": "a", "n0": "b"}


def test_nothing_is_exchanged_while_shares_have_to_be_met_or_nodes_are_sick() -> None:
    both = teams(a=1, b=2)
    nodes = [owned("n0", "a"), owned("n1", "b"), owned("n2", "")]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"]}), both)[0] == {}
    both = teams(a=1, b=1)
    nodes = [owned("n0", "a"), owned("n1", "b", unschedulable=True), owned("n2", "b")]
    assert exchanged(cluster(nodes, both, {"a-1": ["n1"]}), both)[0] == {}


def _borrowed(state: ClusterState, names: list[str]) -> set[tuple[str, str]]:
    return {
        (team, node) for node in names for team in state.uses.users(node)
        if state.uses.borrows(team, node)
    }  # fmt: skip


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=10),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), max_size=12),
    st.lists(st.sampled_from(["r0", "r1"]), min_size=10, max_size=10),
)
@settings(max_examples=300, deadline=None)
def test_shares_stay_met_and_nothing_else_becomes_borrowed(
    owners: list[str], places: list[tuple[str, int]], racks: list[str]
) -> None:
    names = [f"n{i}" for i in range(len(owners))]
    three = [make_team(name, nodes=owners.count(name)) for name in ("a", "b", "c")]
    jobs = {f"{team}-{i}": [f"n{at % len(owners)}"] for i, (team, at) in enumerate(places)}
    held = dict(zip(names, owners, strict=True))
    for _ in range(20):
        nodes = [owned(n, held[n], labels={"rack": racks[int(n[1:])]}) for n in names]
        state = cluster(nodes, three, jobs)
        before = _borrowed(state, names)
        sharing = share_out(state, POLICY, three)
        assert sharing.changes == ()
        pairs = list(Exchanges(state, sharing, POLICY).find(LATE))
        if not pairs:
            break
        changed = [change.node for pair in pairs for change in pair]
        assert len(changed) == len(set(changed))
        held |= {change.node: change.team for pair in pairs for change in pair}
        nodes = [owned(n, held[n], labels={"rack": racks[int(n[1:])]}) for n in names]
        after = _borrowed(cluster(nodes, three, jobs), names)
        users = {team for team, _ in after}
        assert len(after) <= len(before) - len(pairs)
        for team in users:
            assert sum(t == team for t, _ in after) <= sum(t == team for t, _ in before)
    else:
        raise AssertionError("exchanges go on for ever")
    assert Counter(held.values()) == Counter(owners)
    # What is left: a team that borrows in a block has no node there that it does not use.
    for team, node in _borrowed(state, names):
        rack = racks[int(node[1:])]
        spare = [
            n for n in names
            if held[n] == team and racks[int(n[1:])] == rack and team not in state.uses.users(n)
        ]  # fmt: skip
        assert not spare or held[node] in state.uses.users(node)


def test_exchange_seconds_of_nothing_exchanges_at_once() -> None:
    both, policy = teams(a=1, b=1), replace(POLICY, exchange_seconds=0.0)
    state = cluster([owned("n0", "a"), owned("n1", "b")], both, {"a-1": ["n1"]})
    assert list(Exchanges(state, share_out(state, policy, both), policy).find(EPOCH))
