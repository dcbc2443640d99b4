"""What other shares would change, before they are applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from fairlead.api import names
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.meta import Condition, OwnerReference
from fairlead.api.names import TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.teams.whatif import NodeMove, Reclaim, SharesPlan, plan_shares
from fairlead.model.objects import Objects
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_placement,
    make_pod,
    make_team,
)

NOW = EPOCH + 3600


def owned(name: str, team: str) -> Node:
    return make_node(name, taints=[Taint(TEAM, "NoSchedule", team)] if team else [])


def running(name: str, team: str, *nodes: str) -> Job:
    return make_job(
        name, namespace=team, count=len(nodes), gpus=8, placement=make_placement(list(nodes)),
        conditions=[Condition("Admitted", "True"), Condition("Running", "True")],
        status={"attempts": (Attempt(1, started_at=format_time(NOW - 600)),)},
    )  # fmt: skip


def planned(given: Objects, *after: object) -> SharesPlan:
    teams: list[Any] = list(after)
    return plan_shares(given, teams, NOW, shares=TeamsPolicy(), planner=PlacementPolicy())


def objects(nodes: list[Node], jobs: list[Job], teams: list[Team]) -> Objects:
    return Objects(tuple(nodes), tuple(jobs), teams=tuple(teams))


BEFORE = [make_team("a", nodes=2), make_team("b", nodes=0)]


def test_jobs_on_nodes_that_change_hands_borrow_and_those_that_the_new_owner_waits_for_go() -> None:
    nodes = [owned("n0", "a"), owned("n1", "a"), owned("n2", "c")]
    jobs = [
        running("gang", "a", "n0", "n1"), running("guest", "a", "n2"),
        make_job("own", namespace="b", gpus=8),
    ]  # fmt: skip
    c = make_team("c", nodes=1)
    after = (make_team("a"), make_team("b", nodes=1), c)
    found = planned(objects(nodes, jobs, [*BEFORE, c]), *after)
    assert {(move.before, move.after) for move in found.moves} == {("a", ""), ("a", "b")}
    assert found.borrowers == (("a", "gang"),), "not the one that borrows already"
    assert found.reclaimed == (Reclaim(("a", "gang"), ("b", "own")),)
    assert found.started == ()


def test_the_plan_of_the_teams_that_there_are_changes_nothing() -> None:
    nodes = [owned("n0", "a"), owned("n1", "a")]
    jobs = [running("gang", "a", "n0", "n1")]
    found = planned(objects(nodes, jobs, BEFORE), *BEFORE)
    assert (found.moves, found.borrowers, found.reclaimed) == ((), (), ())
    assert [share.nodes for share in found.results["a"]] == [2]


def test_a_balloon_keeps_no_job_from_a_node_that_changes_hands() -> None:
    owner = OwnerReference(names.API_VERSION, "NodePool", "h100", "uid-h100", controller=True)
    balloon = make_pod("balloon", node="n0", gpus=8, namespace="ours")
    meta = structs.replace(balloon.metadata, owner_references=(owner,))
    balloon = structs.replace(balloon, metadata=meta)
    before = [make_team("a", nodes=1), make_team("b")]
    mine = make_job("mine", namespace="b", gpus=8, spec={"team": "b"})
    given = objects([owned("n0", "a")], [mine], before)
    given = replace(given, pods=(balloon,))
    after = (make_team("a"), make_team("b", nodes=1))
    assert planned(given, *after).started == ()
    assert planned(replace(given, balloon_namespace="ours"), *after).started == (("b", "mine"),)


def test_a_job_starts_where_its_team_gets_a_node_and_one_that_loses_its_team_waits() -> None:
    before = [make_team("a", nodes=1, borrow_priority_max=-1), make_team("b")]
    nodes = [owned("n0", "a")]
    jobs = [make_job("mine", namespace="b", gpus=8, spec={"team": "b"})]
    after = make_team("b", nodes=1)
    found = planned(objects(nodes, jobs, before), after)
    assert found.moves == (NodeMove("n0", "a", "b"),)
    assert found.started == (("b", "mine"),)
    gone = planned(objects(nodes, jobs, before), before[0])
    assert gone.teamless == (("b", "mine"),)
