"""Which node belongs to which team: few changes, whole blocks, busy and sick nodes last."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from fairlead.api.cluster.team import Share, Team
from fairlead.api.kubernetes.core import Taint
from fairlead.api.names import POOL, TEAM
from fairlead.decide.teams.actions import SetOwner
from fairlead.decide.teams.decide import Sharing, changed_status, share_out, team_status
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.asks.teams import owner_of
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team

POLICY = TeamsPolicy(block_key="rack")


def owned(name: str, team: str = "", *, rack: str = "", **node: Any) -> Any:
    taints = [Taint(TEAM, "NoSchedule", team)] if team else []
    labels = {**node.pop("labels", {}), **({"rack": rack} if rack else {})}
    return make_node(name, taints=[*taints, *node.pop("taints", [])], labels=labels, **node)


def cluster(nodes: list[Any], *teams: Team) -> ClusterState:
    state = ClusterState.of(nodes)
    for team in teams:
        state.team_changed(team.metadata.name, team)
    return state


def shared(nodes: list[Any], *teams: Team) -> Sharing:
    return share_out(cluster(nodes, *teams), POLICY, teams)


def changes(nodes: list[Any], *teams: Team) -> dict[str, str]:
    return {change.node: change.team for change in shared(nodes, *teams).changes}


def test_each_share_gets_its_nodes_and_the_rest_belongs_to_nobody() -> None:
    nodes = [owned(f"n{i}") for i in range(5)]
    found = changes(nodes, make_team("a", nodes=2), make_team("b", nodes=1))
    assert Counter(found.values()) == {"a": 2, "b": 1}


def test_what_is_right_already_is_not_touched() -> None:
    nodes = [owned("n0", "a"), owned("n1"), owned("n2", "b")]
    assert changes(nodes, make_team("a", nodes=1), make_team("b", nodes=1)) == {}


def test_nodes_go_straight_from_a_team_with_too_many_to_one_with_too_few() -> None:
    nodes = [owned(f"n{i}", "a" if i < 4 else "") for i in range(8)]
    found = changes(nodes, make_team("a", nodes=2), make_team("b", nodes=3))
    assert Counter(found.values()) == {"b": 3}
    assert len([name for name in found if name in ("n0", "n1", "n2", "n3")]) == 2


def test_a_share_is_of_healthy_nodes_and_sick_ones_are_replaced_at_once() -> None:
    sick = Taint("node.kubernetes.io/disk-pressure", "NoSchedule")
    nodes = [
        owned("cordoned", "a", unschedulable=True), owned("lost", "a", ready=False),
        owned("tainted", "a", taints=[sick]), owned("n0", "a"), *(owned(f"m{i}") for i in range(6)),
    ]  # fmt: skip
    assert changes(nodes, make_team("a", nodes=4)) == {"m0": "a", "m1": "a", "m2": "a"}


def test_a_node_that_comes_back_leaves_the_share_whole() -> None:
    nodes = [owned(f"n{i}", "a") for i in range(3)]
    state = cluster(nodes, team := make_team("a", nodes=2))
    state.job_changed(make_job("busy", namespace="a", placement=make_placement(["n1"])))
    state.job_changed(make_job("more", namespace="a", placement=make_placement(["n2"])))
    assert share_out(state, POLICY, [team]).changes == (SetOwner("n0", ""),)


def test_idle_nodes_change_hands_before_busy_ones() -> None:
    nodes = [owned(f"n{i}") for i in range(3)]
    state = cluster(nodes, team := make_team("a", nodes=2), other := make_team("b"))
    state.job_changed(make_job("job", namespace="b", placement=make_placement(["n0"])))
    found = share_out(state, POLICY, [team, other]).changes
    assert [change.node for change in found] == ["n1", "n2"]


def test_a_teams_own_job_does_not_make_a_node_busy_for_it() -> None:
    nodes = [owned(f"n{i}") for i in range(3)]
    state = cluster(nodes, team := make_team("a", nodes=1))
    state.job_changed(make_job("job", namespace="a", placement=make_placement(["n0"])))
    assert [change.node for change in share_out(state, POLICY, [team]).changes] == ["n0"]


def test_whole_blocks_stay_together() -> None:
    nodes = [owned(f"n{i}", rack=f"r{i % 4}") for i in range(16)]
    found = changes(nodes, make_team("a", nodes=4), make_team("b", nodes=4))
    racks = {name: int(name[1:]) % 4 for name in found}
    assert len({racks[name] for name, team in found.items() if team == "a"}) == 1
    assert len({racks[name] for name, team in found.items() if team == "b"}) == 1


def test_a_team_grows_in_the_block_where_it_is() -> None:
    nodes = [owned(f"n{i}", "a" if i == 5 else "", rack=f"r{i // 4}") for i in range(8)]
    assert set(changes(nodes, make_team("a", nodes=3))) == {"n4", "n6"}


def test_a_share_of_a_pool_or_a_selector_takes_only_such_nodes() -> None:
    nodes = [owned("a1", labels={POOL: "a"}), owned("b1", labels={POOL: "b"}),
             owned("b2", labels={POOL: "b", "zone": "z"})]  # fmt: skip
    shares = (Share(pool="a", nodes=1), Share(node_selector={"zone": "z"}, nodes=1))
    assert changes(nodes, make_team("t", shares=shares)) == {"a1": "t", "b2": "t"}


def test_a_share_in_gpus_counts_whole_nodes() -> None:
    nodes = [owned("n0", gpus=8), owned("n1", gpus=0), owned("n2", gpus=8), owned("n3", gpus=8)]
    assert len(changes(nodes, make_team("a", gpus=12))) == 2
    result = shared(nodes, make_team("a", gpus=40)).results["a"][0]
    assert (result.nodes, result.gpus, result.gpus_missing) == (3, 24, 16)


def test_shares_that_compete_are_all_met_where_that_is_possible() -> None:
    """Taken one by one each share would take a node that the next one needs."""
    labels = [{"x": "1"}, {"x": "1", "y": "1"}, {"y": "1", "z": "1"}, {"z": "1"}]
    nodes = [owned(f"n{i}", labels=each) for i, each in enumerate(labels)]
    teams = [
        make_team("a", shares=[Share(node_selector={"y": "1"}, nodes=1)]),
        make_team("b", shares=[Share(node_selector={"x": "1"}, nodes=2)]),
        make_team("c", shares=[Share(node_selector={"z": "1"}, nodes=1)]),
    ]
    assert Counter(changes(nodes, *teams).values()) == {"a": 1, "b": 2, "c": 1}


def test_a_team_that_takes_another_node_instead_gives_up_an_idle_one() -> None:
    nodes = [owned(f"n{i}", "a", labels={POOL: "p"}) for i in range(2)]
    both = (make_team("a", nodes=2), make_team("b", nodes=1, pool="p"))
    state = cluster([*nodes, owned("n2")], *both)
    state.job_changed(make_job("job", namespace="a", placement=make_placement(["n0"])))
    found = share_out(state, POLICY, both).changes
    assert {change.node: change.team for change in found} == {"n1": "b", "n2": "a"}


def test_other_peoples_taints_are_no_reason_and_ours_is_made_unique() -> None:
    gpu = Taint("nvidia.com/gpu", "NoSchedule", "present")
    two = [Taint(TEAM, "NoSchedule", "a"), Taint(TEAM, "NoSchedule", "b"), gpu]
    nodes = [make_node("n0", taints=two), make_node("n1", taints=[gpu])]
    assert changes(nodes, make_team("a", nodes=2)) == {"n0": "a", "n1": "a"}


def test_the_nodes_of_a_team_that_is_gone_belong_to_nobody() -> None:
    nodes = [owned("n0", "gone"), owned("n1", "gone", ready=False), owned("n2"), owned("n3")]
    assert changes(nodes, make_team("a")) == {"n0": "", "n1": ""}


def test_no_share_gives_up_a_node_for_one_that_is_worth_less() -> None:
    nodes = [owned("n0", "a", gpus=8, labels={POOL: "p"}), owned("n1", gpus=4)]
    a, b = make_team("a", gpus=8), make_team("b", gpus=8, pool="p")
    sharing = shared(nodes, a, b)
    assert sharing.changes == ()
    missing = {name: result.gpus_missing for name, (result,) in sharing.results.items()}
    assert missing == {"a": 0, "b": 8}
    nodes[1] = owned("n1", gpus=8)
    assert changes(nodes, a, b) == {"n0": "b", "n1": "a"}


def test_the_nodes_of_a_team_that_is_not_valid_stay_as_they_are() -> None:
    bad = make_team("bad", nodes=1, weight=0)
    nodes = [owned("n0", "bad"), owned("n1", "bad"), owned("n2")]
    assert changes(nodes, bad, make_team("a", nodes=2)) == {"n2": "a"}


def test_nothing_changes_hands_while_most_nodes_are_out() -> None:
    nodes = [owned(f"n{i}", "a", ready=i < 1) for i in range(4)]
    sharing = shared(nodes, make_team("a", nodes=1))
    assert sharing.changes == ()
    assert sharing.held_back == "only 1 of 4 nodes are healthy"


def test_the_status_says_what_each_share_has_and_lacks() -> None:
    team = make_team("a", nodes=5)
    state = cluster([owned("n0", "a"), owned("n1", "a")], team)
    status = team_status(state, team, share_out(state, POLICY, [team]), EPOCH)
    assert (status.nodes, status.nodes_missing) == (2, 3)
    [condition] = status.conditions
    assert (condition.status, condition.reason) == ("False", "SharesUnmet")
    assert condition.message == "no healthy node is left for 3 nodes of its shares"


def test_the_status_of_a_team_that_is_not_valid_lists_its_mistakes() -> None:
    team = make_team("a", nodes=1, gpus=8, weight=0)
    state = cluster([owned("n0", "a")], team)
    [condition] = team_status(state, team, share_out(state, POLICY, [team]), EPOCH).conditions
    assert condition.reason == "Invalid"
    assert "spec.shares[0]" in condition.message
    assert "spec.weight" in condition.message


def test_what_a_team_borrows_and_lends_is_counted_in_nodes() -> None:
    nodes = [owned("n0", "a"), owned("n1", "a"), owned("n2", "b"), owned("n3")]
    a, b = make_team("a", nodes=2), make_team("b", nodes=1)
    state = cluster(nodes, a, b)
    state.job_changed(
        make_job("j", namespace="b", placement=make_placement(["n0", "n2", "n3"]), count=3)
    )
    sharing = share_out(state, POLICY, [a, b])
    use_a, use_b = (team_status(state, team, sharing, EPOCH).use for team in (a, b))
    assert (use_a.nodes_lent, use_a.nodes_borrowed, use_a.gpus) == (1, 0, 0)
    assert (use_b.nodes_lent, use_b.nodes_borrowed, use_b.gpus, use_b.jobs_placed) == (0, 1, 24, 1)
    state.node_changed(owned("n0", "b"))
    assert state.uses.borrowed["b"] == state.uses.lent["a"] == 0


def test_a_status_that_says_nothing_new_is_not_written() -> None:
    team = make_team("a", nodes=1)
    state = cluster([owned("n0", "a")], team)
    sharing = share_out(state, POLICY, [team])
    status = team_status(state, team, sharing, EPOCH)
    write, _ = changed_status(team, status, POLICY, EPOCH)
    assert write is not None
    written = replace(team, status=status)
    again = team_status(state, written, sharing, EPOCH + 60)
    assert changed_status(written, again, POLICY, EPOCH + 60) == (None, None)


def test_what_a_team_uses_is_written_soon_and_its_sums_once_they_have_moved() -> None:
    team = make_team("a", nodes=1)
    state = cluster([owned("n0", "a")], team)
    sharing = share_out(state, POLICY, [team])
    state.advance_shares(EPOCH)
    team = replace(team, status=team_status(state, team, sharing, EPOCH))

    def changed(now: float) -> tuple[bool, float | None]:
        nonlocal team
        state.advance_shares(now)
        write, due_at = changed_status(team, team_status(state, team, sharing, now), POLICY, now)
        team = team if write is None else replace(team, status=write.status)
        return write is not None, due_at

    state.job_changed(make_job("j", namespace="a", placement=make_placement(["n0"])))
    assert changed(EPOCH + 4) == (False, EPOCH + POLICY.use_seconds)
    assert changed(EPOCH + POLICY.use_seconds) == (True, None)
    first = EPOCH + POLICY.use_seconds
    assert changed(first + 60) == (False, first + POLICY.sums_seconds)
    assert changed(first + POLICY.sums_seconds) == (True, None)
    day = first + 86_400
    assert changed(day) == (True, None)
    assert changed(day + POLICY.sums_seconds) == (False, None), "0.4 % more"
    assert changed(day + 3 * POLICY.sums_seconds) == (True, None), "1.0 % more"


def test_the_first_owner_by_name_counts() -> None:
    assert owner_of([Taint(TEAM, "NoSchedule", "b"), Taint(TEAM, "NoSchedule", "a")]) == "a"
