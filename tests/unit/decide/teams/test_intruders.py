"""Pods that may not be on a team's node: which they are, when they are reported and evicted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import IntruderPolicy, Team
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod, PodCondition, Taint
from fairlead.api.meta import OwnerReference
from fairlead.api.names import MIRROR_POD, TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.teams.actions import EvictIntruder, ReportIntruder
from fairlead.decide.teams.intruders import Intruders
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_placement,
    make_pod,
    make_team,
)

POLICY = TeamsPolicy(evictions_max=2)
#: When the node came to the team, and when pods are bound that entered.
SINCE, LATER = EPOCH, EPOCH + 600.0
RICH = make_team("rich", intruders=IntruderPolicy.EVICT)
#: Any number of these may borrow; the poor may not.
OTHERS = (make_team("lenders"), make_team("poor", borrow_limit_nodes=0))


def owned(name: str = "n0", team: str = "rich", *, since: float | None = SINCE) -> Node:
    at = None if since is None else format_time(since)
    return make_node(name, taints=[Taint(TEAM, "NoSchedule", team, at)])


def bound(pod: Pod, at: float) -> Pod:
    scheduled = PodCondition("PodScheduled", "True", last_transition_time=format_time(at))
    return replace(pod, status=replace(pod.status, conditions=(scheduled,)))


def stranger(
    name: str = "stranger", *, at: float = LATER, space: str = "nobody", **more: Any
) -> Pod:
    return bound(make_pod(name, namespace=space, node="n0", **more), at)


class World:
    """A cluster that the intruders are looked for in, as the controller does it."""

    def __init__(
        self, *pods: Pod, nodes: tuple[Node, ...] = (owned(),), teams: tuple[Team, ...] = (RICH,),
        jobs: tuple[Job, ...] = (), policy: TeamsPolicy = POLICY,
    ) -> None:  # fmt: skip
        self.state = ClusterState.of(nodes, jobs, pods)
        for team in (*teams, *OTHERS):
            self.state.team_changed(team.metadata.name, team)
        self.pods = {pod.metadata.key: pod for pod in pods}
        self.intruders = Intruders(self.state, policy)
        for node in nodes:
            self.intruders.node_changed(node.metadata.name, node)
        for key, pod in self.pods.items():
            self.intruders.pod_changed(key, None, pod)

    def decide(self, now: float, *, may_evict: bool = True) -> list[Any]:
        found = self.intruders.decide(lambda: self.pods.values(), now, may_evict=may_evict)
        return list(found)

    def put(self, pod: Pod) -> None:
        key = pod.metadata.key
        self.state.pod_changed(pod)
        self.intruders.pod_changed(key, self.pods.get(key), pod)
        self.pods[key] = pod

    def reported(self, now: float) -> list[str]:
        actions = self.decide(now)
        return [a.pod.metadata.name for a in actions if isinstance(a, ReportIntruder)]


def seen(*pods: Pod, **world: Any) -> list[str]:
    """Return who is reported once each kind of intruder would be."""
    made = World(*pods, **world)
    made.decide(LATER)
    return made.reported(LATER + POLICY.leftover_seconds)


def test_a_pod_of_a_foreign_namespace_is_reported_after_a_moment_and_counted() -> None:
    world = World(stranger())
    assert world.decide(LATER) == []
    assert world.intruders.wake_at == LATER + 60
    assert world.decide(LATER + 59) == []
    assert world.intruders.counts() == {}
    [action] = world.decide(LATER + 60)
    assert action == ReportIntruder(world.pods["nobody", "stranger"], "rich", has_entered=True)
    assert world.decide(LATER + 61) == []
    assert world.intruders.counts() == {"rich": 1}


def test_who_may_be_there_is_none() -> None:
    daemon = OwnerReference("apps/v1", "DaemonSet", "d", "u", controller=True)
    of_daemon, mirror = stranger("d"), stranger("m")
    of_daemon = replace(of_daemon, metadata=replace(of_daemon.metadata, owner_references=(daemon,)))
    mirror = replace(mirror, metadata=replace(mirror.metadata, annotations={MIRROR_POD: "x"}))
    fine = (
        stranger("own", space="rich"), stranger("borrows", space="lenders"),
        stranger("system", space="kube-system"), stranger("ours", space="fairlead-system"),
        stranger("gone", deleted=True), stranger("ended", phase="Succeeded"), of_daemon, mirror,
    )  # fmt: skip
    assert seen(*fine) == []
    assert seen(*fine, stranger("poor", space="poor")) == ["poor"]
    assert seen(stranger(), nodes=(make_node("n0"),)) == []
    calico = stranger(space="calico-system")
    assert seen(calico) == ["stranger"]
    assert seen(calico, policy=TeamsPolicy(system_namespaces=("calico-system",))) == []


def test_a_member_in_the_place_of_its_job_is_none_and_one_beside_it_is() -> None:
    job = make_job("job", namespace="poor", placement=make_placement(["n0"]))
    labels = {"fairlead.dev/role": "worker", "fairlead.dev/index": "0"}
    member = stranger("a", space="poor", owner=job, labels=labels)
    assert seen(member, jobs=(job,)) == []
    beside = stranger("b", space="poor", owner=job, labels=labels)
    assert seen(member, beside, jobs=(job,)) == ["b"]
    assert seen(member) == ["a"], "an owner reference alone says nothing"


def test_one_that_was_there_before_the_node_came_to_the_team_is_only_reported_and_late() -> None:
    for at in (SINCE - 100, SINCE + POLICY.clock_seconds):
        world = World(stranger(at=at))
        assert world.decide(LATER) == []
        [action] = world.decide(SINCE + 3600)
        assert action == ReportIntruder(world.pods["nobody", "stranger"], "rich", has_entered=False)
        assert world.decide(SINCE + 7200) == []


def test_without_a_time_in_the_taint_the_node_is_the_teams_since_it_was_seen() -> None:
    world = World(stranger("before", at=LATER - 1), nodes=(owned(since=None),))
    world.decide(LATER)
    world.put(stranger("after", at=LATER + 100))
    world.decide(LATER + 110)
    assert world.reported(LATER + 170) == ["after"]
    assert world.reported(LATER + 3600) == ["before"]


def test_times_that_are_none_evict_nobody_and_stop_nothing() -> None:
    taint = Taint(TEAM, "NoSchedule", "rich", "yesterday")
    pod = stranger("before")
    wrong = replace(pod.status.conditions[0], last_transition_time="soon")
    pod = replace(pod, status=replace(pod.status, conditions=(wrong,)))
    world = World(pod, nodes=(make_node("n0", taints=[taint]),))
    world.decide(LATER)
    [action] = world.decide(LATER + 3600)
    assert (type(action), action.has_entered) == (ReportIntruder, False)


def test_those_that_entered_are_evicted_a_few_at_a_time_and_tried_again() -> None:
    world = World(*(stranger(f"s{i}") for i in range(3)))
    world.decide(LATER)
    first = LATER + POLICY.doubt_seconds

    def evicted(now: float) -> list[str]:
        actions = world.decide(now)
        return [a.pod.metadata.name for a in actions if isinstance(a, EvictIntruder)]

    assert evicted(LATER + 60) == [], "right after a start the Teams may not be what they were"
    assert evicted(first) == ["s0", "s1"]
    assert evicted(first + 1) == []
    assert world.intruders.wake_at == first + POLICY.eviction_seconds
    assert evicted(first + 60) == ["s2"]
    assert evicted(first + 120) == []
    assert evicted(first + POLICY.retry_seconds) == ["s0", "s1"]


@pytest.mark.parametrize("doubt", ["report", "controller", "teams"])
def test_none_is_evicted_where_the_team_does_not_ask_or_anything_is_in_doubt(doubt: str) -> None:
    team = make_team("rich") if doubt == "report" else RICH
    world = World(stranger(), teams=(team,))
    world.decide(LATER)
    late = LATER + 400.0
    if doubt == "teams":
        world.state.team_changed("new", make_team("new"))
    actions = world.decide(late, may_evict=doubt != "controller")
    assert [type(action) for action in actions] == [ReportIntruder]
    world.decide(late + 299, may_evict=doubt != "controller")
    assert bool(world.decide(late + 300, may_evict=doubt != "controller")) is (doubt == "teams")


def test_what_ceases_to_be_one_is_neither_counted_nor_evicted() -> None:
    world = World(stranger("gone"), stranger("stays"))
    world.decide(LATER)
    world.decide(LATER + 60)
    assert world.intruders.counts() == {"rich": 2}
    gone = world.pods.pop(("nobody", "gone"))
    world.intruders.pod_changed(gone.metadata.key, gone, None)
    world.decide(LATER + 61)
    assert world.intruders.counts() == {"rich": 1}
    wider = make_team("rich", namespaces=["rich", "nobody"])
    world.state.team_changed("rich", wider)
    assert world.decide(LATER + 400) == []
    assert world.intruders.counts() == {}
    world.state.team_changed("rich", RICH)
    world.decide(LATER + 500)
    assert world.reported(LATER + 560) == ["stays"]
    world.intruders.node_changed("n0", make_node("n0"))
    assert world.decide(LATER + 9999) == []
    assert world.intruders.counts() == {}
