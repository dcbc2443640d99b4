"""What users may change of a job that holds nodes, and what moves jobs of others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import Reservation, Subjects
from fairlead.api.jobs.job import JobSpec
from fairlead.api.names import DEFRAGMENT
from fairlead.api.status import StatusCause
from fairlead.api.validation.job_changes import CHANGES, ChangeRule
from fairlead.decide.admission.jobs import AdmissionContext, judge_job
from fairlead.decide.admission.teams import RequestSender
from fairlead.model.asks.teams import TeamTable
from fairlead.testing.builders import make_team

ANN, EVE = RequestSender("ann"), RequestSender("eve", ("vision-admins",))
PLACED: dict[str, Any] = {"attempt": 1, "placement": {"attempt": 1, "roles": []}}
FORBIDDEN = "FieldValueForbidden"


def teams(*more: str) -> TeamTable:
    """Team vision, whose admins are a group; and further ones of the same namespace."""
    spaces = ["ours"]
    both = tuple(
        Reservation(name, "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", node_names=("n0",))
        for name in ("one", "two")
    )
    admins = Subjects(groups=("vision-admins",))
    vision = make_team("vision", namespaces=spaces, nodes=4, admins=admins)
    vision = replace(vision, spec=replace(vision.spec, members=Subjects(users=("ann",))))
    vision = replace(vision, spec=replace(vision.spec, reservations=both))
    others = [make_team(name, namespaces=spaces) for name in more]
    return TeamTable([vision, *others])


def job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    roles = [{"name": "worker", "template": template}]
    return {"metadata": {"name": "job"}, "spec": {"roles": roles, **spec}, "status": status or {}}


def judged(
    new: dict[str, Any],
    old: dict[str, Any] | None,
    user: RequestSender | None = ANN,
    table: TeamTable | None = None,
) -> list[StatusCause]:
    return judge_job(
        new,
        old,
        AdmissionContext(teams=table, user=user, namespace="ours", own_namespace="fairlead-system"),
    )


def test_every_field_of_a_job_has_a_rule() -> None:
    fields = [field.encode_name for field in msgspec.structs.fields(JobSpec)]
    assert sorted(CHANGES) == sorted(fields)
    schema_says = {"roles", "topology", "checkpoint", "notify", "preflight", "adopts"}
    assert {name for name, when in CHANGES.items() if when is ChangeRule.NEVER} == schema_says


@pytest.mark.parametrize(
    ("before", "after", "is_free"),
    [(3600, 60, True), (None, 60, True), (60, 60, True), (60, 61, False), (60, None, False)],
)
def test_the_limit_of_a_job_with_nodes_becomes_only_shorter(
    before: int | None, after: int | None, is_free: bool
) -> None:
    def with_limit(seconds: int | None, status: dict[str, Any] | None) -> dict[str, Any]:
        given = {} if seconds is None else {"timeLimitSeconds": seconds}
        return job(status, suspend=seconds == after, **given)

    causes = judged(with_limit(after, PLACED), with_limit(before, PLACED))
    assert [(c.reason, c.field) for c in causes] == (
        [] if is_free else [(FORBIDDEN, "spec.timeLimitSeconds")]
    )
    assert judged(with_limit(after, None), with_limit(before, None)) == [], "it holds no nodes"


def test_who_answers_for_others_raises_the_limit_of_a_job_with_nodes() -> None:
    old, new = (job(PLACED, team="vision", timeLimitSeconds=seconds) for seconds in (3600, 7200))
    [refused] = judged(new, old, ANN, teams())
    assert refused.message == (
        "Forbidden: while the job holds nodes it may only become less than 3600; an admin of team "
        "vision, or an administrator, may raise it"
    )
    assert judged(new, old, EVE, teams()) == [], "an admin of the team"
    own = RequestSender("system:serviceaccount:fairlead-system:fairlead")
    for user in (None, own, RequestSender("root", is_administrator=True)):
        assert judged(new, old, user, teams()) == []


def test_an_admin_of_another_team_is_no_admin_of_the_jobs() -> None:
    table = teams("speech")
    old, new = (job(PLACED, team="speech", timeLimitSeconds=seconds) for seconds in (3600, 7200))
    assert [c.field for c in judged(new, old, EVE, table)] == ["spec.timeLimitSeconds"]
    moved = job(PLACED, team="vision", timeLimitSeconds=7200)
    assert [c.field for c in judged(moved, old, EVE, table)] == [
        "spec.team", "spec.timeLimitSeconds"
    ]  # fmt: skip


def test_the_team_and_the_reservation_of_a_job_stay_while_it_holds_nodes() -> None:
    table = teams("speech")
    old = job(PLACED, team="vision", reservation="one")
    new = job(PLACED, team="speech")
    assert [c.field for c in judged(new, old, ANN, table)] == ["spec.team", "spec.reservation"]
    assert judged(new, old, RequestSender("root", is_administrator=True), table) == []
    waiting = job(team="vision", reservation="one")
    assert judged(job(team="vision", reservation="two"), waiting, ANN, table) == []
    [cause] = judged(job(PLACED, team="vision", reservation="two"), old, ANN, table)
    assert "fairlead hold JOB" in cause.message


def test_a_default_that_is_written_later_is_no_change_of_the_team() -> None:
    old, new = job(PLACED), job(PLACED, team="vision", suspend=True)
    assert judged(new, old, ANN, teams()) == []
    assert judged(old, new, ANN, teams()) == []
    assert [c.field for c in judged(new, old, ANN, teams("speech"))] == ["spec.team"]


def test_all_else_is_free_while_the_job_holds_nodes() -> None:
    new = job(
        PLACED, priorityClassName="high", suspend=True, cancel=True, restart={"limit": 9},
        after=[{"job": "a"}], ttlSecondsAfterFinished=1,
    )  # fmt: skip
    assert judged(new, job(PLACED), ANN, teams()) == []


def annotated(value: str | None) -> dict[str, Any]:
    body = job()
    body["metadata"]["annotations"] = {} if value is None else {DEFRAGMENT: value}
    return body


@pytest.mark.parametrize("before", [None, "false", "absent"])
def test_only_administrators_have_the_jobs_of_others_moved(before: str | None) -> None:
    old = None if before is None else annotated(before if before != "absent" else None)
    [cause] = judged(annotated("true"), old)
    assert cause.field == f"metadata.annotations[{DEFRAGMENT}]"
    assert "only administrators" in cause.message
    assert judged(annotated("true"), old, RequestSender("root", is_administrator=True)) == []
    assert judged(annotated("true"), annotated("true")) == []
    assert judged(annotated(None), annotated("true")) == [], "a user may do without"
