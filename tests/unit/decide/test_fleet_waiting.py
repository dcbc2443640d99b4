"""Which waiting gangs nodes are bought for, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job, VerdictStatus
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.decide.fleet.buying.demand import Offer, demand_of
from fairlead.decide.fleet.buying.waiting import gangs_in_order, lacks_nodes
from fairlead.decide.placement.places.whatif import would_fit
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    make_anti_affinity,
    make_job,
    make_node,
    make_placement,
    make_team,
)

NOW = EPOCH + 7200
APART: dict[str, Any] = {"pod_labels": {"app": "x"}, "affinity": make_anti_affinity(app="x")}


def node(name: str, gpus: int = 8) -> Node:
    return make_node(name, cpu=96, gpus=gpus, labels={"rack": name})


def offer(room: int) -> Offer:
    return Offer("pool", "", make_node("template", cpu=96, gpus=8), room, room)


def running(name: str, *nodes: str, **job: Any) -> Job:
    return make_job(
        name, count=len(nodes), placement=make_placement(list(nodes)),
        conditions=[Condition("Admitted", "True")], **job,
    )  # fmt: skip


def waiting(name: str, reason: Reason = Reason.INSUFFICIENT_CAPACITY, **job: Any) -> Job:
    verdict = VerdictStatus(reason=reason.value, outcome=reason.outcome.value)
    return make_job(name, conditions=[Condition("Admitted", "True")], verdict=verdict, **job)


def bought_for(state: ClusterState, *names: str, room: int) -> list[str]:
    """Return the jobs, of those that wait, that nodes are bought for."""
    keys = [key for key in state.jobs if key[1] in names]
    demand = demand_of(state, gangs_in_order(state, keys, NOW), [offer(room)], {})
    return sorted(name for each in demand.purchases.values() for _, name in each.jobs)


def test_the_team_that_has_used_least_gets_the_last_nodes_of_a_pool_as_it_gets_places() -> None:
    teams: list[Team] = [make_team("a"), make_team("b")]
    jobs = [
        running("busy", "n0", gpus=8, namespace="a"),
        waiting("older", gpus=8, namespace="a", created=EPOCH + 1),
        waiting("newer", gpus=8, namespace="b", created=EPOCH + 2),
        waiting("urgent", gpus=8, namespace="a", created=EPOCH + 3, priority=5),
    ]
    state = ClusterState.of([node("n0")], jobs, teams=teams)
    state.advance_shares(NOW - 3600)
    state.advance_shares(NOW)
    every = ("older", "newer", "urgent")
    order = [name for (_, name), _ in gangs_in_order(state, [*state.jobs], NOW) if name in every]
    assert order == ["urgent", "newer", "older"]
    assert bought_for(state, "older", "newer", room=1) == ["newer"]
    assert bought_for(state, *every, room=2) == ["newer", "urgent"]


def test_without_teams_the_oldest_of_the_highest_priority_comes_first() -> None:
    jobs = [
        waiting("b", created=EPOCH), waiting("a", created=EPOCH + 1),
        waiting("c", created=EPOCH + 2, priority=1),
    ]  # fmt: skip
    state = ClusterState.of([], jobs)
    assert [name for (_, name), _ in gangs_in_order(state, [*state.jobs], NOW)] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("expected", "others", "job"),
    [
        (Reason.INSUFFICIENT_CAPACITY, [running("o", "n0", "n1", gpus=8)], {"gpus": 8}),
        (Reason.FRAGMENTED, [running("o", "n0", "n1", gpus=4)], {"gpus": 8}),
        (Reason.EXCEEDS_CLUSTER, [], {"gpus": 8, "count": 3}),
        (Reason.NO_NODE_SHAPE_FITS, [], {"gpus": 8, "extra": {"cpu": 200}}),
        (Reason.NEIGHBOURS_IN_THE_WAY, [running("o", "n0", "n1", gpus=1, **APART)],
         {"gpus": 1, **APART}),
        (Reason.TOO_FEW_APART, [], {"gpus": 1, "count": 3, **APART}),
        (Reason.NO_DOMAIN_FITS, [],
         {"gpus": 8, "count": 2, "topology": Topology("rack", required=True)}),
    ],
    ids=lambda each: each.value if isinstance(each, Reason) else "",
)  # fmt: skip
def test_nodes_are_bought_for_every_gang_that_more_nodes_would_place(
    expected: Reason, others: list[Job], job: dict[str, Any]
) -> None:
    """Whatever the planner says of a gang: where an offer holds it, its verdict asks for nodes."""
    asked = make_job("a", conditions=[Condition("Admitted", "True")], **job)
    state = ClusterState.of([node("n0"), node("n1")], [*others, asked])
    gang = state.jobs[asked.metadata.key].gang
    assert isinstance(gang, GangRequest)
    verdict = would_fit(state, gang)
    assert verdict.reason is expected
    lacks = lacks_nodes(waiting("a", verdict.reason))
    roomy = Offer("pool", "", make_node("t", cpu=960, gpus=16, labels={"rack": "new"}), 9, 9)
    demand = demand_of(state, [(asked.metadata.key, gang)], [roomy], {})
    assert demand.purchases
    assert lacks


def test_no_nodes_are_bought_for_who_waits_for_a_person_a_quota_or_a_turn() -> None:
    for reason in (Reason.AWAITING_QUOTA, Reason.HELD, Reason.GPU_LIMIT, Reason.PREEMPTING):
        assert not lacks_nodes(waiting("a", reason)), reason
    assert not lacks_nodes(make_job("a", conditions=[Condition("Admitted", "True")]))
    assert not lacks_nodes(waiting("a", placement=make_placement(["n0"])))
