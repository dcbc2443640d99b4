"""Teams in the planner: own nodes first, limits of borrowing, fair share, nodes taken back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    Provider,
    ProviderType,
)
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.kubernetes.core import Node, Pod, Taint
from fairlead.api.meta import Condition, ObjectMeta, OwnerReference
from fairlead.api.names import HOSTNAME, POOL, TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.answers.explanation import Forecast
from fairlead.decide.answers.forecast import Forecasts
from fairlead.decide.placement.actions import NominateJob, PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.evict.preempt import PotentialRises, check_potential
from fairlead.decide.placement.evict.victim_search import VictimSearch
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.health.windows import GRACE_SECONDS_DEFAULT
from fairlead.model.holdings.team_use import HALF_LIFE_SECONDS, DecayedSums
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_placement,
    make_pod,
    make_team,
)

NOW = EPOCH + 3600


def node(name: str, team: str = "", **more: Any) -> Node:
    taints = [Taint(TEAM, "NoSchedule", team)] if team else []
    return make_node(name, taints=taints, **more)


def state_of(nodes: list[Node], teams: list[Team], jobs: list[Job]) -> PlacementState:
    cluster = ClusterState.of(nodes)
    for team in teams:
        cluster.team_changed(team.metadata.name, team)
    for job in jobs:
        cluster.job_changed(job)
    return PlacementState(cluster)


def placed(state: PlacementState, now: float = NOW) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for action in decide(state, PlacementPolicy(), now).actions:
        if isinstance(action, PlaceJob):
            nodes = [n for role in action.placement.roles for n in role.nodes]
            found[action.job.metadata.name] = sorted(nodes)
            state.cluster.job_changed(as_written(action))
    return found


def nominated(state: PlacementState) -> dict[str, list[str]]:
    actions = decide(state, PlacementPolicy(), NOW).actions
    return {
        a.job.metadata.name: [victim.name for victim in a.nomination.victims]
        for a in actions
        if isinstance(a, NominateJob)
    }


A, B = make_team("a"), make_team("b")


def test_members_take_their_teams_nodes_then_those_of_nobody_then_those_of_others() -> None:
    nodes = [node("n0", "b"), node("n1"), node("n2", "a")]
    state = state_of(nodes, [A, B], [make_job("one", namespace="a", gpus=8)])
    assert placed(state) == {"one": ["n2"]}
    state.cluster.job_changed(make_job("two", namespace="a"))
    assert placed(state) == {"two": ["n1"]}
    state.cluster.job_changed(make_job("three", namespace="a"))
    assert placed(state) == {"three": ["n0"]}


def test_a_placement_says_how_many_gpus_are_of_which_pool_and_borrowed_of_whom() -> None:
    nodes = [node("n0", "b", labels={POOL: "h100"}), node("n1", "a", labels={POOL: "a100"})]
    job = make_job(
        "gang", namespace="a", count=2, gpus=8, conditions=[Condition("Admitted", "True")]
    )
    state = state_of(nodes, [A, B], [job])
    (action,) = (
        a for a in decide(state, PlacementPolicy(), NOW).actions if isinstance(a, PlaceJob)
    )
    assert action.placement.held == (HeldNodes("a100", "", 8), HeldNodes("h100", "b", 8))
    assert action.begun is not None
    assert (action.begun.team, action.begun.held) == ("a", action.placement.held)


def test_a_placement_keeps_the_price_of_its_pool_at_that_time_and_none_that_is_not_known() -> None:
    nodes = [node("n0", labels={POOL: "h100"}), node("n1", labels={POOL: "plain"})]
    job = make_job("gang", count=2, gpus=8, conditions=[Condition("Admitted", "True")])
    state = state_of(nodes, [], [job])
    template = NodeTemplate({"nvidia.com/gpu": "8"})
    provider = Provider(ProviderType.SIMULATED)
    for name, resources, price in (
        ("h100", template, "98.32"), ("plain", template, 0), ("cpu", NodeTemplate({}), "3"),
        ("wrong", NodeTemplate({"nvidia.com/gpu": "many"}), "3"),
    ):  # fmt: skip
        spec = NodePoolSpec(provider, resources, 4, price_per_hour=price)
        state.cluster.pools.set_pool(name, NodePool(ObjectMeta(name), spec))
    (action,) = (
        a for a in decide(state, PlacementPolicy(), NOW).actions if isinstance(a, PlaceJob)
    )
    assert action.placement.held == (
        HeldNodes("h100", "", 8, gpu_hour_micros=12_290_000),
        HeldNodes("plain", "", 8),
    )
    state.cluster.pools.set_pool("h100", None)
    assert state.cluster.pools.gpu_hour_micros == {}


def test_the_placement_of_a_gang_that_borrows_nothing_says_nothing_of_it() -> None:
    state = state_of([node("n0", "a"), node("n1")], [A], [make_job("gang", namespace="a", count=2)])
    (action,) = (
        a for a in decide(state, PlacementPolicy(), NOW).actions if isinstance(a, PlaceJob)
    )
    assert action.placement.held == ()


def test_a_team_borrows_no_more_nodes_than_it_may() -> None:
    nodes = [node(f"n{i}", "a") for i in range(4)]
    jobs = [make_job(f"j{i}", namespace="b") for i in range(4)]
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=2)], jobs)
    assert len(placed(state)) == 2
    assert placed(state) == {}
    assert state.cluster.uses.borrowed["b"] == 2
    state.cluster.team_changed("b", make_team("b", borrow_limit_nodes=3))
    assert len(placed(state)) == 1


def test_a_place_that_a_job_may_have_got_counts_against_the_limits_of_its_team() -> None:
    jobs = [make_job(f"j{i}", namespace="b") for i in range(2)]
    limited = make_team("b", borrow_limit_nodes=1)
    state = state_of([node("n0", "a"), node("n1", "a")], [A, limited], jobs)
    state.book_uncertain(jobs[0], make_placement(["n0"]))
    state.cluster.team_changed("b", limited)
    assert placed(state) == {}
    assert (state.cluster.uses.borrowed["b"], state.cluster.uses.lent["a"]) == (1, 1)
    state.unbook_uncertain(jobs[0].metadata.key)
    assert state.cluster.uses.borrowed["b"] == 0
    assert len(placed(state)) == 1


def test_a_team_lends_no_more_nodes_than_it_will() -> None:
    nodes = [node(f"n{i}", "a") for i in range(4)]
    jobs = [make_job(f"j{i}", namespace=space) for i in range(2) for space in ("b", "c")]
    teams = [make_team("a", lend_limit_nodes=1), B, make_team("c")]
    state = state_of(nodes, teams, jobs)
    assert len(placed(state)) == 1
    assert state.cluster.uses.lent["a"] == 1


@pytest.mark.parametrize("limits", [({"lend_limit_nodes": 2}, {}), ({}, {"borrow_limit_nodes": 2})])
def test_each_node_of_a_gang_counts_against_a_limit(limits: tuple[Any, Any]) -> None:
    teams = [make_team(name, **limit) for name, limit in zip("ab", limits, strict=True)]
    nodes = [node(f"n{i}", "a") for i in range(4)]
    state = state_of(nodes, teams, [make_job("three", namespace="b", count=3)])
    assert placed(state) == {}
    state.cluster.job_changed(make_job("two", namespace="b", count=2))
    assert placed(state) == {"two": ["n0", "n1"]}


def test_a_borrowed_node_costs_nothing_more_for_a_second_job() -> None:
    jobs = [make_job(f"j{i}", namespace="b", gpus=4) for i in range(3)]
    nodes = [node("n0", "a"), node("n1", "a")]
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], jobs)
    assert sorted(placed(state)) == ["j0", "j1"]


def test_a_lent_node_costs_its_owner_nothing_more_for_a_further_job_of_the_same_decision() -> None:
    nodes = [node("n0", "a"), node("n1", "a")]
    jobs = [make_job("j0", namespace="b", gpus=4), make_job("j1", namespace="c", created=EPOCH + 1)]
    teams = [make_team("a", lend_limit_nodes=2), B, make_team("c")]
    state = state_of(nodes, teams, [running("there", "c", ["n0"], gpus=4), *jobs])
    assert placed(state) == {"j0": ["n0"], "j1": ["n1"]}


def test_a_forecast_counts_what_jobs_borrow_and_give_back_until_then() -> None:
    """The limit admits one node at a time; the second job needs another one than the first."""
    nodes = [node("n0", "a"), node("n1", "a")]
    own = [running(f"own{i}", "a", [f"n{i}"], time_limit_seconds=600) for i in range(2)]
    waiting = [
        make_job(f"j{i}", namespace="b", created=EPOCH + i, time_limit_seconds=1000,
                 node_selector={HOSTNAME: f"n{i}"})
        for i in range(2)
    ]  # fmt: skip
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], [*own, *waiting])
    found = Forecasts(state, NOW, PlacementPolicy())
    first, second = (found.of(("b", f"j{i}")) for i in range(2))
    assert isinstance(first, Forecast)
    assert isinstance(second, Forecast)
    assert second.may_start_by == first.may_start_by + 1000 + GRACE_SECONDS_DEFAULT


def test_a_forecast_counts_what_a_gang_borrows_no_more_once_it_has_moved() -> None:
    nodes = [node("n0", "a", ready=False), node("n1", "b"), node("n2", "a")]
    lost = (Attempt(1, finished_at=format_time(NOW - 10), nodes_lost=("n0",)),)
    moves = make_job("moves", namespace="b", attempt=2, placement=make_placement(["n0"]),
                     time_limit_seconds=1000, status={"attempts": lost})  # fmt: skip
    waits = make_job("waits", namespace="b", created=EPOCH + 1)
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], [moves, waits])
    found = Forecasts(state, NOW, PlacementPolicy()).of(("b", "waits"))
    assert isinstance(found, Forecast)
    assert found.may_start_by == NOW


def test_a_forecast_repairs_a_gang_within_the_limit_of_borrowing_as_a_decision_does() -> None:
    nodes = [node("n0", "b", ready=False), node("n1", "a"), node("n2", "a")]
    lost = (Attempt(1, finished_at=format_time(NOW - 10), nodes_lost=("n0",)),)
    moves = make_job("moves", namespace="b", attempt=2, placement=make_placement(["n0"]),
                     time_limit_seconds=1000, status={"attempts": lost})  # fmt: skip
    lent = running("lent", "b", ["n2"], time_limit_seconds=1000)
    waits = make_job("waits", namespace="a", created=EPOCH + 1)
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], [moves, lent, waits])
    found = Forecasts(state, NOW, PlacementPolicy()).of(("a", "waits"))
    assert isinstance(found, Forecast)
    assert found.may_start_by == NOW
    assert placed(state) == {"waits": ["n1"]}


def test_a_job_that_only_a_limit_keeps_from_its_place_says_so() -> None:
    nodes = [node("n0", "a"), node("n1", "a")]
    jobs = [make_job("j0", namespace="b"), make_job("j1", namespace="b")]
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], jobs)
    verdict = decide(state, PlacementPolicy(), NOW).verdicts[("b", "j1")]
    assert verdict.reason is Reason.BORROW_LIMIT


def running(name: str, team: str, nodes: list[str], **more: Any) -> Job:
    at = format_time(NOW - 10)
    return make_job(
        name, namespace=team, count=len(nodes), placement=make_placement(nodes),
        conditions=[Condition("Admitted", "True"), Condition("Running", "True")],
        status={"attempts": (Attempt(1, at, at),)}, **more,
    )  # fmt: skip


def pod_of(team: str, node_name: str, name: str = "tool", *, kind: str = "", **more: Any) -> Pod:
    """A pod that kube-scheduler has bound, for a controller of this kind."""
    pod = make_pod(name, namespace=team, node=node_name, **more)
    owner = OwnerReference("apps/v1", kind, "x", "x-uid", controller=True)
    metadata = replace(pod.metadata, owner_references=(owner,) if kind else ())
    return replace(pod, metadata=metadata)


def test_nodes_that_pods_of_other_tools_use_count_for_the_limit_of_their_team() -> None:
    nodes = [node(f"n{i}", "a") for i in range(3)]
    jobs = [make_job(f"j{i}", namespace="b", gpus=4) for i in range(2)]
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], jobs)
    state.cluster.pod_changed(pod_of("b", "n2", gpus=4))
    uses = state.cluster.uses
    assert (uses.borrowed["b"], uses.lent["a"], uses.lent_to_jobs["a"]) == (1, 1, 0)
    decision = decide(state, PlacementPolicy(), NOW)
    (placed_job,) = (a for a in decision.actions if isinstance(a, PlaceJob))
    assert placed_job.placement.roles[0].nodes == ("n2",)  # which is borrowed already
    verdict = decision.verdicts["b", "j1"]
    assert (verdict.reason, verdict.facts["borrowed"]) == (Reason.BORROW_LIMIT, 1)
    state.cluster.job_changed(as_written(placed_job))
    state.cluster.pod_deleted(("b", "tool"))
    assert placed(state) == {"j1": ["n2"]}
    assert (uses.borrowed["b"], uses.lent["a"]) == (1, 1)


def test_nodes_that_pods_of_other_tools_use_count_for_the_limit_of_their_owner() -> None:
    teams = [make_team("a", lend_limit_nodes=1), B, make_team("c")]
    state = state_of([node("n0", "a"), node("n1", "a")], teams, [make_job("job", namespace="c")])
    state.cluster.pod_changed(pod_of("b", "n0", gpus=8))
    assert placed(state) == {}
    state.cluster.pod_changed(pod_of("b", "n0", gpus=8, phase="Succeeded"))
    assert list(placed(state)) == ["job"]


def test_pods_of_daemon_sets_and_of_no_team_use_no_nodes_of_a_team() -> None:
    state = state_of([node("n0", "a")], [A, B], [])
    uses = state.cluster.uses
    state.cluster.pod_changed(pod_of("b", "n0", kind="DaemonSet"))
    state.cluster.pod_changed(pod_of("kube-system", "n0"))
    assert (uses.borrowed["b"], uses.lent["a"]) == (0, 0)
    state.cluster.pod_changed(pod_of("b", "n0", kind="ReplicaSet"))
    assert (uses.borrowed["b"], uses.lent["a"]) == (1, 1)


def test_pods_count_for_another_team_once_their_namespace_belongs_to_it() -> None:
    state = state_of([node("n0", "a")], [A, B], [])
    cluster, uses = state.cluster, state.cluster.uses
    cluster.pod_changed(pod_of("b", "n0"))
    assert (uses.borrowed["b"], uses.used["a"]) == (1, 0)
    cluster.team_changed("b", None)
    cluster.team_changed("a", make_team("a", namespaces=["a", "b"]))
    assert (uses.borrowed["b"], uses.lent["a"], uses.used["a"]) == (0, 0, 1)


def test_an_owner_preempts_jobs_on_its_nodes_and_no_pods_of_other_tools() -> None:
    nodes = [node("n0", "a"), node("n1", "a")]
    jobs = [running("borrower", "b", ["n1"], gpus=8), make_job("own", namespace="a", gpus=8)]
    state = state_of(nodes, [A, B], jobs)
    state.cluster.pod_changed(pod_of("b", "n0", gpus=8))
    assert nominated(state) == {"own": ["borrower"]}
    state = state_of(nodes, [A, B], [jobs[0], make_job("both", namespace="a", count=2)])
    state.cluster.pod_changed(pod_of("b", "n0", gpus=8))
    assert nominated(state) == {}


def test_a_team_that_lent_to_pods_alone_looks_for_no_victims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    find = VictimSearch.find

    def watched(self: VictimSearch, entry: QueueEntry, gang: GangRequest) -> Any:
        searched.append(entry.job.metadata.name)
        return find(self, entry, gang)

    monkeypatch.setattr(VictimSearch, "find", watched)
    nodes, own = [node("n0", "a"), node("n1", "b")], make_job("own", namespace="a", gpus=8)
    teams = [make_team("a", borrow_priority_max=-1), B]
    with_jobs = state_of(nodes, teams, [running("job", "b", ["n0"], gpus=8), own])
    assert nominated(with_jobs) == {"own": ["job"]}
    assert searched == ["own"]
    with_pods = state_of(nodes, teams, [running("job", "b", ["n1"], gpus=8), own])
    with_pods.cluster.pod_changed(pod_of("b", "n0", gpus=8))
    assert nominated(with_pods) == {}
    assert searched == ["own"]


def test_a_job_over_a_limit_is_placed_once_its_team_gives_any_borrowed_node_back() -> None:
    """The node that is given back is of no use to the job itself."""
    nodes = [node("n0", "a", labels={POOL: "x"}), node("n1", "a", labels={POOL: "y"})]
    first = make_job("first", namespace="b", node_selector={POOL: "x"})
    then = make_job("then", namespace="b", node_selector={POOL: "y"})
    state = state_of(nodes, [A, make_team("b", borrow_limit_nodes=1)], [first])
    assert placed(state) == {"first": ["n0"]}
    state.cluster.job_changed(then)
    assert placed(state) == {}
    state.cluster.job_deleted(("b", "first"))
    assert placed(state) == {"then": ["n1"]}


def test_an_owner_takes_its_nodes_back_from_a_borrower_of_the_same_priority() -> None:
    nodes = [node("n0", "a"), node("n1", "a"), node("n2", "b")]
    jobs = [running("borrower", "b", ["n0"]), running("own", "b", ["n2"]),
            running("mine", "a", ["n1"]), make_job("owner", namespace="a")]  # fmt: skip
    assert nominated(state_of(nodes, [A, B], jobs)) == {"owner": ["borrower"]}


def test_whole_gangs_give_way_and_a_borrower_of_higher_priority_too() -> None:
    teams = [A, make_team("b", borrow_priority_max=10)]
    nodes = [node(f"n{i}", "a") for i in range(3)]
    jobs = [running("gang", "b", ["n0", "n1", "n2"], priority=10), make_job("own", namespace="a")]
    assert nominated(state_of(nodes, teams, jobs)) == {"own": ["gang"]}


def test_what_is_reserved_for_a_job_of_another_team_keeps_no_owner_from_its_nodes() -> None:
    teams = [A, make_team("b", borrow_priority_max=10)]
    jobs = [running(f"low-{i}", "b", [f"n{i}"], priority=10) for i in range(2)]
    waits = Condition("Placed", "False", last_transition_time=format_time(EPOCH))
    conditions = [Condition("Admitted", "True"), waits]
    head = make_job("head", namespace="b", count=2, priority=10, conditions=conditions)
    jobs += [head, make_job("own", namespace="a")]
    state = state_of([node("n0", "a"), node("n1", "a")], teams, jobs)
    assert list(nominated(state)) == ["own"]


def test_nothing_is_reserved_for_a_job_that_limits_of_borrowing_keep_back_for_ever() -> None:
    """On one node of its own and two of others, one of which is in use, three nodes are needed."""
    waits = Condition("Placed", "False", last_transition_time=format_time(EPOCH))
    conditions = [Condition("Admitted", "True"), waits]
    head = make_job("head", namespace="a", count=3, conditions=conditions)
    small = make_job("small", namespace="a", created=EPOCH + 1)
    jobs = [running("other", "b", ["n2"], gpus=8), head, small]
    state = state_of([node("n0", "a"), node("n1", "b"), node("n2", "b")], [A, B], jobs)
    for limit, starts in ((1, ["small"]), (2, []), (1, ["small"])):
        state.cluster.team_changed("a", make_team("a", borrow_limit_nodes=limit))
        actions = decide(state, PlacementPolicy(), EPOCH + 1000).actions
        assert [a.job.metadata.name for a in actions if isinstance(a, PlaceJob)] == starts, limit


def test_an_owner_takes_its_nodes_back_however_many_other_requests_are_ahead_in_the_queue() -> None:
    """100 different requests of a third team, and 40 of the owner that no node of its own holds."""
    teams = [A, B, make_team("c", weight=1000)]
    jobs = [running("gang", "b", ["n0", "n1"]), make_job("own", namespace="a", gpus=8)]
    jobs += [make_job(f"far-{i}", namespace="c", count=3 + i, created=EPOCH) for i in range(100)]
    jobs += [make_job(f"big-{i}", namespace="a", count=3 + i, created=EPOCH) for i in range(40)]
    state = state_of([node("n0", "a"), node("n1", "a")], teams, jobs)
    policy, now = PlacementPolicy(evaluations_max=10_000), NOW
    for _ in range(5):
        decision = decide(state, policy, now)
        found = [a for a in decision.actions if isinstance(a, NominateJob)]
        if found:
            break
        assert decision.wake_at is not None
        assert decision.wake_at <= now + policy.deep_refresh_seconds
        now = decision.wake_at
    assert [a.job.metadata.name for a in found] == ["own"]


def test_owners_take_turns_to_look_for_borrowers_while_the_cluster_changes() -> None:
    """Each change makes the search for the first of them worth a try again."""
    jobs = [
        running("gang", "b", ["n0"]), make_job("far", namespace="c", count=9, priority=1),
        make_job("big", namespace="a", count=9), make_job("own", namespace="a", created=EPOCH + 1),
    ]  # fmt: skip
    state = state_of([node("n0", "a")], [A, B, make_team("c")], jobs)
    policy, found = PlacementPolicy(fresh_jobs_max=1), list[str]()
    for i in range(4):
        state.cluster.node_changed(node(f"new-{i}", "a", gpus=1))
        actions = decide(state, policy, NOW + i * policy.deep_refresh_seconds).actions
        found += [a.job.metadata.name for a in actions if isinstance(a, NominateJob)]
    assert found[:1] == ["own"]


def test_no_job_preempts_for_the_nodes_of_another_team() -> None:
    teams = [A, make_team("b", borrow_priority_max=100)]
    jobs = [running("own", "a", ["n0"], priority=0), make_job("other", namespace="b", priority=100)]
    assert nominated(state_of([node("n0", "a")], teams, jobs)) == {}


def test_two_teams_never_take_from_each_other_in_turn() -> None:
    """What an owner has on its own nodes is not taken back by who was there before."""
    nodes = [node("n0", "a"), node("n1", "b")]
    jobs = [running("a-own", "a", ["n0"]), running("b-own", "b", ["n1"]),
            make_job("a2", namespace="a"), make_job("b2", namespace="b")]  # fmt: skip
    assert nominated(state_of(nodes, [A, B], jobs)) == {}


def test_the_potential_falls_when_a_borrower_gives_way_and_rises_otherwise() -> None:
    check_potential((True, 0), [(False, 9), (True, -1)])
    for victim in ((True, 0), (True, 1)):
        with pytest.raises(PotentialRises):
            check_potential((True, 0), [victim])


def test_of_equal_priority_the_team_goes_first_that_has_used_less_for_its_weight() -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    heavy = make_team("b", weight=4)
    jobs = [running("a0", "a", ["n0"]), running("b0", "b", ["n1"])]
    state = state_of(nodes, [A, heavy], jobs)
    state.cluster.advance_shares(NOW - 3600)
    state.cluster.advance_shares(NOW)
    state.cluster.job_changed(make_job("a-older", namespace="a", created=EPOCH))
    state.cluster.job_changed(make_job("b-newer", namespace="b", created=EPOCH + 60))
    assert placed(state) == {"b-newer": ["n2"]}


def test_no_job_is_behind_itself_when_its_team_has_used_more_since_the_last_decision() -> None:
    waits = Condition("Placed", "False", last_transition_time=format_time(EPOCH))
    conditions = [Condition("Admitted", "True"), waits]
    jobs = [running(f"a{i}", "a", [f"n{i}"], gpus=8) for i in range(2)]
    jobs += [make_job(f"w{i}", namespace="a", gpus=8, conditions=conditions) for i in range(2)]
    state = state_of([node("n0", "a"), node("n1", "a")], [A, B], jobs)
    state.cluster.advance_shares(NOW - 60)
    assert placed(state, NOW - 60) == {}
    state.cluster.job_deleted(("a", "a1"))
    state.cluster.advance_shares(NOW)
    assert placed(state, NOW) == {"w0": ["n1"]}


def test_priority_goes_before_the_fair_share() -> None:
    jobs = [running("a0", "a", ["n0"])]
    state = state_of([node("n0"), node("n1")], [A, B], jobs)
    state.cluster.advance_shares(NOW - 3600)
    state.cluster.advance_shares(NOW)
    state.cluster.job_changed(make_job("a1", namespace="a", priority=1))
    state.cluster.job_changed(make_job("b1", namespace="b", created=EPOCH - 60))
    assert placed(state) == {"a1": ["n1"]}


def test_what_was_used_counts_half_after_a_half_life_and_survives_a_restart() -> None:
    shares = DecayedSums()
    shares.advance(0.0, {"a": 0.5})
    shares.advance(1000.0, {})
    assert shares.at("a", 1000.0) == pytest.approx(500.0, rel=1e-3)
    later = 1000.0 + HALF_LIFE_SECONDS
    assert shares.at("a", later) == pytest.approx(250.0, rel=1e-3)
    again = DecayedSums()
    again.restore("a", shares.at("a", 1000.0), 1000.0)
    again.advance(1000.0, {})
    assert again.at("a", later) == pytest.approx(250.0, rel=1e-3)


def test_a_team_that_uses_nodes_again_has_used_nothing_meanwhile() -> None:
    shares = DecayedSums()
    for now, rates in ((0.0, {"a": 1.0}), (100.0, {}), (200.0, {"a": 1.0})):
        shares.advance(now, rates)
    assert shares.at("a", 200.0) == pytest.approx(100.0, rel=1e-3)


def test_the_head_of_the_queue_keeps_no_team_off_nodes_that_it_would_borrow() -> None:
    busy = make_job("busy", namespace="b", placement=make_placement(["b1"]),
                    status={"attempts": (Attempt(1),)})  # fmt: skip
    waits = Condition("Placed", "False", "Fragmented", last_transition_time=format_time(EPOCH))
    head = make_job("head", namespace="a", count=3, conditions=(waits,))
    later = [make_job(name, namespace=name, priority=-1) for name in ("a", "b", "c")]
    state = state_of(
        [node("a1", "a"), node("b1", "b"), node("b2", "b")],
        [make_team(name, nodes=own, borrow_priority_max=10)
         for name, own in (("a", 1), ("b", 2), ("c", 0))],
        [busy, head, *later],
    )  # fmt: skip
    decision = decide(state, PlacementPolicy(), EPOCH + 900)
    assert [a.job.metadata.name for a in decision.actions if isinstance(a, PlaceJob)] == ["b"]
    for name in ("a", "c"):
        verdict = decision.verdicts[name, name]
        assert (verdict.reason, verdict.facts) == (Reason.BEHIND_EARLIER_JOB, {"job": "a/head"})
