"""Defaults and maxima of teams and of the cluster: what is filled in, what always stands, what is
refused.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job_defaults import JobDefaults, JobMaxima, JobTerms
from fairlead.api.jobs.job_mounts import EmptyDir, JobMount
from fairlead.api.names import DEFAULTS
from fairlead.api.status import StatusCause
from fairlead.api.validation.validate import validate_job
from fairlead.api.validation.validate_team import validate_team
from fairlead.decide.admission.job_defaults import ADDED_BYTES_MAX
from fairlead.decide.admission.jobs import NO_TERMS, AdmissionContext, fill_job, judge_job
from fairlead.decide.admission.teams import RequestSender
from fairlead.model.asks.teams import TeamTable
from fairlead.testing.builders import make_team

DAY = 86_400
Obj = dict[str, Any]
ANN = RequestSender("ann")
OF_TEAM = JobDefaults(
    image="registry/torch:1", image_pull_secrets=("pull",), env={"HTTP_PROXY": "p:1", "A": "team"},
    node_selector={"gpu": "a100", "net": "ib"},
    mounts=(
        JobMount(path="/data", claim="data", read_only=True),
        JobMount(path="/dev/shm", empty_dir=EmptyDir.MEMORY),
    ),
)  # fmt: skip
OF_CLUSTER = JobDefaults(
    image="registry/plain:1", env={"A": "cluster", "TZ": "UTC"}, node_selector={"arch": "amd64"},
    mounts=(JobMount(path="/scratch", host_path="/scratch"), JobMount(path="/data/", claim="x")),
)  # fmt: skip


def table(defaults: JobDefaults = OF_TEAM, maxima: JobMaxima | None = None) -> TeamTable:
    team = make_team("vision", job_defaults=defaults, job_maxima=maxima or JobMaxima())
    assert validate_team(team) == []
    return TeamTable([team, make_team("speech", namespaces=["speech"])])


def job(namespace: str = "vision", *, pod: Obj | None = None, **spec: Any) -> Obj:
    template = {"spec": pod or {"containers": [{"name": "main"}]}}
    roles = [{"name": "worker", "template": template}]
    return {"metadata": {"name": "x", "namespace": namespace}, "spec": {"roles": roles, **spec}}


def filled(new: Obj, teams: TeamTable, terms: JobTerms = NO_TERMS, old: Obj | None = None) -> Obj:
    """Return the job as admission stores it; what was given stays as it was."""
    before = copy.deepcopy(new)
    made = fill_job(
        new, old, AdmissionContext(teams=teams, namespace=new["metadata"]["namespace"], terms=terms)
    )
    assert (made.causes, new) == ((), before)
    out = {**new, "spec": {**new["spec"], **made.fields}}
    if made.note is not None:
        out["metadata"] = {**new["metadata"], "annotations": {DEFAULTS: made.note}}
    return out


def pod_of(stored: Obj) -> Obj:
    return stored["spec"]["roles"][0]["template"]["spec"]


def note_of(stored: Obj) -> str:
    return stored["metadata"].get("annotations", {}).get(DEFAULTS, "")


def refusals(
    new: Obj, teams: TeamTable, terms: JobTerms = NO_TERMS, *, old: Obj | None = None,
    user: RequestSender | None = ANN,
) -> list[str]:  # fmt: skip
    space = new["metadata"]["namespace"]
    found: list[StatusCause] = judge_job(
        new, old, AdmissionContext(teams=teams, namespace=space, terms=terms, user=user)
    )
    return [f"{each.field}: {each.message}" for each in found]


def test_a_job_that_says_nothing_gets_all_that_its_team_has() -> None:
    stored = filled(job(), table())
    pod = pod_of(stored)
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"gpu": "a100", "net": "ib"}
    assert pod["volumes"] == [
        {"name": "default-1", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "default-2", "emptyDir": {"medium": "Memory"}},
    ]
    assert pod["containers"] == [{
        "name": "main", "image": "registry/torch:1",
        "env": [{"name": "HTTP_PROXY", "value": "p:1"}, {"name": "A", "value": "team"}],
        "volumeMounts": [
            {"name": "default-1", "mountPath": "/data", "readOnly": True},
            {"name": "default-2", "mountPath": "/dev/shm"},
        ],
    }]  # fmt: skip
    assert note_of(stored) == ",".join(
        f"{field}=team/vision"
        for field in ("image", "imagePullSecrets", "env", "nodeSelector", "mounts")
    )
    assert validate_job(stored) == []


def test_what_a_job_says_itself_always_stands() -> None:
    own = {
        "imagePullSecrets": [{"name": "mine"}],
        "nodeSelector": {"gpu": "h100"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "net", "operator": "In", "values": ["eth"]}]}]}}},
        "volumes": [{"name": "default-1", "configMap": {"name": "c"}}],
        "containers": [
            {"name": "main", "image": "mine:1", "env": [{"name": "A", "value": "mine"}],
             "volumeMounts": [{"name": "default-1", "mountPath": "/data/"}]},
            {"name": "side", "envFrom": [{"secretRef": {"name": "keys"}}]},
        ],
    }  # fmt: skip
    stored = filled(job(pod=own), table())
    pod = pod_of(stored)
    main, side = pod["containers"]
    assert pod["imagePullSecrets"] == [{"name": "mine"}]
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert main["image"] == "mine:1"
    assert main["env"] == [{"name": "HTTP_PROXY", "value": "p:1"}, {"name": "A", "value": "mine"}]
    assert [each["mountPath"] for each in main["volumeMounts"]] == ["/data/", "/dev/shm"]
    assert "env" not in side, "what envFrom sets is not known, and env would win over it"
    assert [each["mountPath"] for each in side["volumeMounts"]] == ["/data", "/dev/shm"]
    assert [each["name"] for each in pod["volumes"]] == ["default-1", "default-2", "default-3"]
    assert validate_job(stored) == []


def test_the_team_goes_before_the_cluster_field_by_field() -> None:
    terms = JobTerms(OF_CLUSTER)
    stored = filled(job(), table(), terms)
    pod = pod_of(stored)
    assert pod["containers"][0]["image"] == "registry/torch:1"
    assert {each["name"]: each["value"] for each in pod["containers"][0]["env"]} == {
        "TZ": "UTC", "HTTP_PROXY": "p:1", "A": "team"
    }  # fmt: skip
    assert pod["nodeSelector"] == {"gpu": "a100", "net": "ib", "arch": "amd64"}
    paths = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
    assert paths == ["/data", "/dev/shm", "/scratch"]
    assert note_of(stored).endswith("mounts=team/vision,env=cluster,nodeSelector=cluster,"
                                    "mounts=cluster")  # fmt: skip
    alone = filled(job("elsewhere"), table(), terms)
    assert pod_of(alone)["containers"][0]["image"] == "registry/plain:1"
    assert "team/" not in note_of(alone)


@pytest.mark.parametrize(
    ("team", "cluster", "limit", "whose"),
    [
        ((None, None), (None, None), None, ""),
        ((600, None), (300, None), 600, "team/vision"),
        ((None, None), (300, None), 300, "cluster"),
        ((None, 900), (None, None), 900, "team/vision"),
        ((None, 900), (None, 700), 700, "cluster"),
        ((600, 900), (None, 400), 400, "team/vision"),
        ((None, 500), (600, None), 500, "cluster"),
    ],
)
def test_a_job_without_a_time_limit_gets_the_default_within_the_smallest_maximum(
    team: tuple[int | None, int | None], cluster: tuple[int | None, int | None],
    limit: int | None, whose: str,
) -> None:  # fmt: skip
    teams = table(JobDefaults(time_limit_seconds=team[0]), JobMaxima(team[1]))
    terms = JobTerms(JobDefaults(time_limit_seconds=cluster[0]), JobMaxima(cluster[1]))
    stored = filled(job(), teams, terms)
    assert stored["spec"].get("timeLimitSeconds") == limit
    assert note_of(stored) == (f"timeLimitSeconds={whose}" if whose else "")
    assert refusals(stored, teams, terms) == []
    assert filled(job(timeLimitSeconds=7), teams, terms)["spec"]["timeLimitSeconds"] == 7


def test_more_than_the_maximum_is_refused_with_whose_it_is_and_what_to_write() -> None:
    teams, terms = table(maxima=JobMaxima(DAY)), JobTerms(maxima=JobMaxima(2 * DAY))
    [message] = refusals(job(timeLimitSeconds=3 * DAY), teams, terms)
    assert message == (
        "spec.timeLimitSeconds: Invalid value: 259200: team vision allows at most 1d (86,400 s): "
        "ask for less, such as --time 1d"
    )
    [message] = refusals(job("speech", timeLimitSeconds=3 * DAY), teams, terms)
    assert "the cluster allows at most 2d" in message
    [message] = refusals(job(), teams, terms)  # the defaults were not asked
    assert message.startswith("spec.timeLimitSeconds: Required value: team vision allows at most")
    assert refusals(job(timeLimitSeconds=3 * DAY), teams, terms, user=None) != []
    assert refusals(job(timeLimitSeconds=DAY), teams, terms) == []


def test_an_update_may_not_exceed_a_maximum_by_more_than_before_but_an_administrator_may() -> None:
    teams = table(maxima=JobMaxima(DAY))

    def update(was: int | None, wanted: int | None, user: RequestSender = ANN) -> bool:
        before, after = (
            job(**({"timeLimitSeconds": limit} if limit is not None else {}))
            for limit in (was, wanted)
        )
        return refusals(after, teams, old=before, user=user) == []

    assert not update(DAY, 2 * DAY)
    assert not update(DAY, None)
    assert not update(3 * DAY, 4 * DAY)
    assert update(3 * DAY, 2 * DAY), "it was stored before there was a maximum"
    assert update(None, 2 * DAY)
    assert update(DAY, 2 * DAY, RequestSender("root", is_administrator=True))
    cancelled = job(timeLimitSeconds=3 * DAY, cancel=True)
    assert refusals(cancelled, teams, old=job(timeLimitSeconds=3 * DAY)) == []


def test_a_job_that_changes_its_team_is_held_to_the_maximum_of_the_new_one() -> None:
    short = make_team("short", namespaces=["shared"], job_maxima=JobMaxima(600))
    teams = TeamTable([short, make_team("long", namespaces=["shared"])])
    before = job("shared", team="long", timeLimitSeconds=DAY)
    [message] = refusals(job("shared", team="short", timeLimitSeconds=DAY), teams, old=before)
    assert "team short allows at most 10m" in message


def test_the_same_manifest_may_be_applied_again() -> None:
    teams, terms = table(), JobTerms(OF_CLUSTER)
    stored = filled(job(), teams, terms)
    again = {**stored, "spec": {**stored["spec"], **job()["spec"]}}
    assert filled(again, teams, terms, old=stored) == stored
    changed = {**again, "spec": {**again["spec"], "suspend": True}}
    assert filled(changed, teams, terms, old=stored)["spec"]["suspend"]
    other = {
        **stored,
        "spec": {**stored["spec"], **job(pod={"containers": [{"name": "b"}]})["spec"]},
    }
    assert refusals(filled(other, teams, terms, old=stored), teams, terms, old=stored) != []


def test_a_job_that_exists_gets_no_defaults() -> None:
    old = job()
    for new in (old, {**old, "spec": {**old["spec"], "cancel": True}}):
        made = fill_job(
            new,
            old,
            AdmissionContext(teams=table(), namespace="vision", terms=JobTerms(OF_CLUSTER)),
        )
        assert (dict(made.fields), made.note) == ({"team": "vision"}, None)


def test_jobs_that_stand_for_pods_of_others_get_nothing_and_no_maximum() -> None:
    teams = table(maxima=JobMaxima(60))
    group = job(adopts={"kind": "StatefulSet", "name": "s"}, timeLimitSeconds=DAY)
    assert filled(group, teams)["spec"] == {**group["spec"], "team": "vision"}
    assert not [each for each in refusals(group, teams) if "timeLimit" in each]


def test_a_note_that_the_author_wrote_is_replaced() -> None:
    forged = job("elsewhere")
    forged["metadata"]["annotations"] = {DEFAULTS: "image=team/rich"}
    assert note_of(filled(forged, table())) == ""
    forged["metadata"]["namespace"] = "vision"
    assert "team/rich" not in note_of(filled(forged, table()))


def test_what_defaults_add_is_bounded_however_many_containers_there_are() -> None:
    big = JobDefaults(env={f"V{i}": "x" * 4000 for i in range(64)})
    many: Obj = {"containers": [{"name": f"c{i}"} for i in range(1_000)]}
    made = fill_job(job(pod=many), context=AdmissionContext(teams=table(big), namespace="vision"))
    [cause] = made.causes
    assert (cause.field, dict(made.fields)) == ("spec.roles", {"team": "vision"})
    assert f"at most {ADDED_BYTES_MAX:,}" in cause.message
    assert (
        fill_job(job(), context=AdmissionContext(teams=table(big), namespace="vision")).causes == ()
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"roles": None}, {"roles": "x"}, {"roles": [None, 3, {"template": []}]},
        {"roles": [{"template": {"spec": {"containers": {"a": 1}, "volumes": 7,
                                          "nodeSelector": []}}}]},
        {"roles": [{"template": {"spec": {"containers": [
            None, {"env": "x", "volumeMounts": 3, "image": []}], "affinity": [1]}}}]},
        {"roles": [], "timeLimitSeconds": "soon", "team": ["x"]},
    ],
)  # fmt: skip
def test_what_is_no_job_is_left_to_the_schema(spec: Obj) -> None:
    new = {"metadata": {"name": "x", "namespace": "vision"}, "spec": spec}
    teams, terms = table(maxima=JobMaxima(60)), JobTerms(OF_CLUSTER, JobMaxima(30))
    fill_job(new, context=AdmissionContext(teams=teams, namespace="vision", terms=terms))
    assert (
        judge_job(new, context=AdmissionContext(teams=teams, namespace="vision", terms=terms)) != []
    )


# What a Team may say


@pytest.mark.parametrize(
    ("defaults", "field"),
    [
        (JobDefaults(mounts=(JobMount(path="/x", host_path="/etc"),)), "mounts[0].hostPath"),
        (JobDefaults(mounts=(JobMount(path="/x"),)), "mounts[0]"),
        (JobDefaults(mounts=(JobMount(path="/x", claim="a", secret="b"),)), "mounts[0]"),
        (JobDefaults(mounts=(JobMount(path="/x", secret="other/keys"),)), "mounts[0].secret"),
        (JobDefaults(mounts=(JobMount(path="/x", claim="a", sub_path="../b"),)),
         "mounts[0].subPath"),
        (JobDefaults(mounts=(JobMount(path="x", claim="a"),)), "mounts[0].path"),
        (JobDefaults(mounts=(JobMount(path="/x", claim="a"), JobMount(path="/x/", claim="b"))),
         "mounts[1].path"),
        (JobDefaults(env={"A=B": "1"}), "env"),
        (JobDefaults(env={"A": "x" * 5000}), "env[A]"),
        (JobDefaults(node_selector={"a b": "1"}), "nodeSelector"),
        (JobDefaults(node_selector={"a": "1 2"}), "nodeSelector[a]"),
        (JobDefaults(image_pull_secrets=("Other/Keys",)), "imagePullSecrets[0]"),
        (JobDefaults(image=" x"), "image"),
        (JobDefaults(env={f"V{i}": "" for i in range(65)}), "env"),
        (JobDefaults(time_limit_seconds=120), "timeLimitSeconds"),
    ],
)  # fmt: skip
def test_defaults_that_cannot_be_are_refused_and_the_team_has_none(
    defaults: JobDefaults, field: str
) -> None:
    team: Team = make_team("vision", job_defaults=defaults, job_maxima=JobMaxima(60))
    [cause] = validate_team(team)
    assert cause.field == f"spec.jobDefaults.{field}"
    assert TeamTable([team]).get("vision") is None
