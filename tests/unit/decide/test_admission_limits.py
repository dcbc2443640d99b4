"""Whose a job is, and how many a user and a team may have: what admission writes and refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api.cluster.team import JobLimits
from fairlead.api.names import SUBMITTED_BY
from fairlead.decide.admission.jobs import AdmissionContext, judge_job
from fairlead.decide.admission.limits import acts_for_others, submitter_to_set
from fairlead.decide.admission.teams import RequestSender
from fairlead.model.asks.teams import TeamTable
from fairlead.model.holdings.submitted import JobOutline, SubmittedTable
from fairlead.model.holdings.team_use import Account
from fairlead.testing.builders import make_job, make_team

ANN = RequestSender("ann", ("people",))
ADMIN = RequestSender("kubernetes-admin", ("system:masters",))
OWN = "fairlead-system"
CONTROLLER = RequestSender(f"system:serviceaccount:{OWN}:fairlead-controller")
ROBOT = RequestSender("system:serviceaccount:vision:robot")


def body(user: str = "", *, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    template = {"spec": {"containers": [{"name": "main", "image": "x", **limits}]}}
    annotations = {"annotations": {SUBMITTED_BY: user}} if user else {}
    roles = [{"name": "worker", "template": template}]
    return {"metadata": {"name": "job", **annotations}, "spec": {"roles": roles, **spec}}


def causes(
    new: dict[str, Any], old: dict[str, Any] | None = None, *, user: RequestSender | None = ANN,
    teams: TeamTable | None = None, has: int = 0,
) -> list[str]:  # fmt: skip
    context = AdmissionContext(
        teams=teams, user=user, namespace="vision", own_namespace=OWN, count=lambda _: has
    )
    found = judge_job(new, old, context)
    return [f"{cause.field}: {cause.message}" for cause in found]


def test_a_persons_and_a_robots_name_is_written_whatever_the_job_says() -> None:
    for user in (ANN, ROBOT):
        assert submitter_to_set(body(), None, user, OWN) == user.name
        assert submitter_to_set(body("eve"), None, user, OWN) == user.name
        assert submitter_to_set(body(user.name), None, user, OWN) is None
        assert submitter_to_set(body("eve"), body("ben"), user, OWN) == "ben"
        assert submitter_to_set(body(), body(), user, OWN) is None


@pytest.mark.parametrize("user", [None, ADMIN, CONTROLLER, RequestSender("system:kube-scheduler")])
def test_who_acts_for_others_says_whose_a_job_is(user: RequestSender | None) -> None:
    assert acts_for_others(user, OWN)
    assert submitter_to_set(body("eve"), None, user, OWN) is None
    assert causes(body("eve"), body("ben"), user=user) == []


def test_a_name_of_another_user_is_refused_and_so_is_a_change_of_it() -> None:
    assert not acts_for_others(RequestSender("system:anonymous"), OWN)
    [wrong] = causes(body("eve"))
    assert wrong.endswith('Invalid value: "eve": you are ann: leave it out')
    for later in ("eve", "ann", ""):
        [changed] = causes(body(later), body("ben"))
        assert changed.endswith("whose a job is does not change")
    assert causes(body("ben", suspend=True), body("ben")) == []


def test_a_job_beyond_the_submitted_limit_is_refused_with_the_numbers() -> None:
    teams = TeamTable([make_team("vision", user_limits=JobLimits(submitted=3))])
    assert causes(body("ann"), teams=teams, has=2) == []
    assert causes(body("ann"), teams=teams, has=3) == [
        "spec.team: Forbidden: user ann of team vision has 3 unfinished jobs, of at most 3: wait "
        "until one of them ends, or cancel one (fairlead cancel JOB)"
    ]
    assert causes(body("ann", suspend=True), body("ann"), teams=teams, has=9) == []
    group = body(adopts={"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "1"})
    assert not [c for c in causes(group, user=CONTROLLER, teams=teams, has=9) if "unfini" in c]


def test_the_service_accounts_of_a_namespace_are_one_user_and_so_are_its_groups() -> None:
    teams = TeamTable([make_team("vision", user_limits=JobLimits(submitted=3))])
    [refused] = causes(body(ROBOT.name), user=ROBOT, teams=teams, has=3)
    assert "user system:serviceaccounts:vision of team vision has 3" in refused
    table = SubmittedTable()
    adopts = {"apiVersion": "v1", "kind": "Pod", "name": "x"}
    for name, user, more in (
        ("one", "system:serviceaccount:vision:a", {}),
        ("two", "system:serviceaccount:vision:b", {}),
        ("three", "", {}), ("four", "ann", {"adopts": adopts}), ("five", "ann", {}),
    ):  # fmt: skip
        metadata = {**body(user)["metadata"], "name": name, "namespace": "vision"}
        table.put(msgspec.convert({"metadata": metadata, "spec": more}, JobOutline))
    group = {"metadata": {"name": "g", "namespace": "vision"}, "spec": {"adopts": adopts}}
    table.put(msgspec.convert(group, JobOutline))
    counts = {user: table.count(teams, Account("vision", user))
              for user in ("system:serviceaccounts:vision", "", "ann")}  # fmt: skip
    assert counts == {"system:serviceaccounts:vision": 4, "": 1, "ann": 1}


def test_a_job_that_asks_for_more_gpus_than_may_ever_be_held_is_refused() -> None:
    teams = TeamTable([make_team("vision", limits=JobLimits(gpus=8))])
    assert causes(body(gpus=8), teams=teams) == []
    assert causes(body(gpus=16), teams=teams) == [
        "spec.roles: Forbidden: asks for 16 GPUs; team vision may hold 8"
    ]


def test_unfinished_jobs_count_for_the_team_of_their_namespace_and_the_user_they_say() -> None:
    teams = TeamTable(
        [make_team("a", namespaces=["a", "both"]), make_team("b", namespaces=["both"])]
    )
    table = SubmittedTable()

    def put(name: str, namespace: str, user: str, team: str = "", *, ended: bool = False) -> None:
        conditions = ({"type": "Failed", "status": "True"},) if ended else ()
        outline = {
            "metadata": {"name": name, "namespace": namespace,
                         "annotations": {SUBMITTED_BY: user} if user else {}},
            "spec": {"team": team}, "status": {"conditions": conditions},
        }  # fmt: skip
        table.put(msgspec.convert(outline, JobOutline))

    put("one", "a", "ann")
    put("two", "both", "ann", "a")
    put("three", "both", "ann", "b")
    put("four", "both", "ann")  # of no team: its namespace has two
    put("five", "a", "")
    put("six", "a", "ann", ended=True)
    table.put(make_job("seven", namespace="a"))
    assert [table.count(teams, Account("a", u)) for u in ("ann", "", None)] == [2, 2, 4]
    assert table.count(teams, Account("b", "ann")) == 1
    put("one", "a", "ann", ended=True)
    table.remove(("both", "two"))
    assert table.count(teams, Account("a", "ann")) == 0
    assert table.count(teams, Account("gone")) == 0
