"""The team of a job at admission: the default, and what may not be claimed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead.api.cluster.team import Reservation, Subjects
from fairlead.api.names import TEAM
from fairlead.api.resources import TEAMS
from fairlead.decide.admission.cluster_kinds import judge_cluster_object
from fairlead.decide.admission.jobs import AdmissionContext, judge_job
from fairlead.decide.admission.teams import RequestSender, team_to_set
from fairlead.model.asks.teams import TeamTable
from fairlead.testing.builders import make_team

ANN = RequestSender("ann", ("vision-members",))
BOB = RequestSender("bob")


def _teams() -> TeamTable:
    vision = make_team(
        "vision", namespaces=["shared", "vision"], members=Subjects(groups=("vision-members",))
    )
    speech = make_team("speech", namespaces=["shared"], admins=Subjects(users=("bob",)))
    return TeamTable([vision, speech])


def _job(team: str = "", **pod: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], **pod}}
    spec: dict[str, Any] = {"roles": [{"name": "worker", "template": template}]}
    return {"metadata": {"name": "job"}, "spec": {**spec, **({"team": team} if team else {})}}


def _messages(job: dict[str, Any], namespace: str, user: RequestSender | None) -> list[str]:
    causes = judge_job(
        job, context=AdmissionContext(teams=_teams(), user=user, namespace=namespace)
    )
    return [f"{cause.field}: {cause.message}" for cause in causes]


def test_the_only_team_of_a_namespace_is_filled_in() -> None:
    assert team_to_set(_job(), _teams(), "vision", None) == "vision"
    assert team_to_set(_job("vision"), _teams(), "vision", None) is None
    assert team_to_set(_job(), _teams(), "elsewhere", ANN) is None
    assert team_to_set(_job(), TeamTable(), "vision", ANN) is None


def test_of_several_teams_the_users_own_is_filled_in() -> None:
    assert team_to_set(_job(), _teams(), "shared", ANN) == "vision"
    assert team_to_set(_job(), _teams(), "shared", BOB) == "speech"
    assert team_to_set(_job(), _teams(), "shared", RequestSender("eve")) is None
    assert team_to_set(_job(), _teams(), "shared", None) is None


def test_a_claim_to_a_foreign_team_is_refused_and_names_the_open_ones() -> None:
    [message] = _messages(_job("speech"), "vision", ANN)
    assert message.startswith(
        'spec.team: Invalid value: "speech": namespace vision does not belong'
    )
    assert message.endswith("open to you here: vision")


def test_who_is_no_member_cannot_use_the_team() -> None:
    [message] = _messages(_job("vision"), "vision", BOB)
    assert "you are not a member" in message
    assert message.endswith("open to you in namespace vision: none")


def test_a_job_that_names_no_team_among_several_is_refused() -> None:
    [message] = _messages(_job(), "shared", RequestSender("eve"))
    assert "belongs to several teams; open to you: none" in message


def test_who_acts_for_others_is_not_judged_by_membership() -> None:
    ours = RequestSender("system:serviceaccount:ours:controller", ("system:serviceaccounts:ours",))
    of_cluster = RequestSender("system:serviceaccount:kube-system:job-controller")
    for user in (ours, of_cluster, None, RequestSender("root", ("system:masters",))):
        causes = judge_job(
            _job("vision"),
            context=AdmissionContext(
                teams=_teams(), user=user, namespace="vision", own_namespace="ours"
            ),
        )
        assert causes == []


def test_service_accounts_are_members_by_their_name_or_the_group_of_their_namespace() -> None:
    groups = ("system:serviceaccounts", "system:serviceaccounts:vision", "system:authenticated")
    account = RequestSender("system:serviceaccount:vision:ci", groups)
    [message] = _messages(_job("vision"), "vision", account)
    assert "you are not a member" in message
    named = (Subjects(users=(account.name,)), Subjects(groups=("system:serviceaccounts:vision",)))
    for members in named:
        teams = TeamTable([make_team("vision", members=members)])
        assert (
            judge_job(
                _job("vision"),
                context=AdmissionContext(teams=teams, user=account, namespace="vision"),
            )
            == []
        )


def test_a_toleration_of_the_teams_taint_is_refused() -> None:
    job = _job("vision", tolerations=[{"key": "a", "operator": "Exists"}, {"key": TEAM}])
    [message] = _messages(job, "vision", ANN)
    assert message.startswith("spec.roles[0].template.spec.tolerations[1].key: ")


def test_an_update_that_leaves_the_spec_alone_is_never_refused() -> None:
    job = _job("speech")
    assert judge_job(job, job, AdmissionContext(teams=_teams(), user=ANN, namespace="vision")) == []


def test_a_team_is_judged_when_its_spec_changes() -> None:
    bad = {"metadata": {"name": "vision"}, "spec": {"weight": 0}}
    assert [cause.field for cause in judge_cluster_object(TEAMS.name, bad)] == ["spec.weight"]
    assert judge_cluster_object(TEAMS.name, bad, bad) == []


def test_a_job_may_name_a_reservation_of_its_own_team_only() -> None:
    booked = Reservation(
        "talk", "2026-12-01T08:00:00Z", "2026-12-01T12:00:00Z", node_names=("node-0001",)
    )
    other = replace(booked, name="demo")
    teams = TeamTable(
        [make_team("vision", reservations=(booked,)), make_team("speech", reservations=(other,))]
    )

    def messages(namespace: str, teams: TeamTable) -> list[str]:
        job = _job()
        job["spec"]["reservation"] = "talk"
        causes = judge_job(
            job, context=AdmissionContext(teams=teams, user=ANN, namespace=namespace)
        )
        return [f"{cause.field}: {cause.message}" for cause in causes]

    assert messages("vision", teams) == []
    [foreign] = messages("speech", teams)
    assert foreign.startswith("spec.reservation: ")
    assert foreign.endswith("open to team speech: demo")
    [none] = messages("elsewhere", teams)
    assert none.endswith("open to a job without a team: none")
    [nowhere] = messages("vision", TeamTable())
    assert nowhere.endswith("there are no teams, which make them")
