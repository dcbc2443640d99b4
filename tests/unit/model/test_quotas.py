"""What the quotas of a namespace leave for a gang."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.kubernetes.core import ResourceRequirements
from fairlead.api.kubernetes.resource_quota import (
    ResourceQuota,
    ResourceQuotaSpec,
    ResourceQuotaStatus,
    ScopeRequirement,
    ScopeSelector,
)
from fairlead.api.meta import ObjectMeta
from fairlead.model.gang.gangs import GangRequest, RequestReader, gang_of
from fairlead.model.holdings.quotas import (
    Memo,
    Places,
    QuotaExcess,
    QuotaHolding,
    QuotaQuestion,
    QuotaTable,
)
from fairlead.testing.builders import make_job, make_role

GPU = "requests.nvidia.com/gpu"


def quota(hard: dict[str, Any], used: dict[str, Any], **spec: Any) -> ResourceQuota:
    return ResourceQuota(
        ObjectMeta(name="team", namespace="default"),
        ResourceQuotaSpec(hard, **spec),
        ResourceQuotaStatus(hard, used),
    )


def excess(
    job: Job, *quotas: ResourceQuota, held: tuple[QuotaHolding, ...] = ()
) -> QuotaExcess | None:
    table, gang = QuotaTable(), gang_of(job.spec, RequestReader())
    for each in quotas:
        table.put(each)
    assert isinstance(gang, GangRequest)
    return table.excess(job, gang, {}, Places(1, held, {"nvidia.com/gpu": 1}))


def held_by(job: Job, **amounts: int) -> QuotaHolding:
    gang = gang_of(job.spec, RequestReader())
    assert isinstance(gang, GangRequest)
    return QuotaHolding(QuotaQuestion.of(job), gang, {"nvidia.com/gpu": amounts["gpus"]})


def test_what_jobs_hold_without_pods_counts_as_used_and_is_named() -> None:
    holder, job = make_job("h", count=2, gpus=4), make_job("a", gpus=4)
    limit = quota({GPU: "16"}, {GPU: "6"})
    assert excess(job, limit, held=(held_by(holder, gpus=6),)) is None
    found = excess(job, limit, held=(held_by(holder, gpus=4), held_by(holder, gpus=3)))
    assert str(found).endswith(
        f"requested: {GPU}=4, used: {GPU}=13, limited: {GPU}=16; of what is used, jobs hold "
        f"{GPU}=7 without pods"
    )


def test_what_is_held_counts_in_the_quotas_of_its_class_only() -> None:
    scope = ScopeRequirement("PriorityClass", "In", ("high",))
    of_high = quota({GPU: "8"}, {GPU: "0"}, scope_selector=ScopeSelector((scope,)))
    high, low = (
        make_job(name, gpus=8, spec={"priority_class_name": name}) for name in ("high", "low")
    )
    assert excess(high, of_high, held=(held_by(low, gpus=8),)) is None
    assert excess(high, of_high, held=(held_by(high, gpus=8),)) is not None


def test_a_group_whose_pods_are_counted_waits_for_what_others_hold_without_pods() -> None:
    group = make_job("g", gpus=4)
    group = replace(group, spec=replace(group.spec, adopts=Adopts("Pod", "x")))
    full = quota({GPU: "8"}, {GPU: "8"})
    assert excess(group, full) is None
    assert excess(group, full, held=(held_by(make_job("h", gpus=1), gpus=1),)) is not None
    assert excess(group, quota({GPU: "9"}, {GPU: "8"}), held=(held_by(group, gpus=1),)) is None


def test_the_whole_gang_is_counted_and_named_in_the_words_of_the_api_server() -> None:
    gang = make_job("a", count=3, gpus=4)
    assert excess(gang, quota({GPU: "16"}, {GPU: "4"})) is None
    found = excess(gang, quota({GPU: "16"}, {GPU: "8"}))
    assert str(found) == (
        f"exceeded quota: team, requested: {GPU}=12, used: {GPU}=8, limited: {GPU}=16"
    )


@pytest.mark.parametrize(
    ("name", "hard", "used"),
    [
        ("pods", "2", "1"),
        ("count/pods", "2", "1"),
        ("cpu", "3", "500m"),
        ("requests.cpu", "3", "500m"),
        ("limits.cpu", "3", "500m"),
        ("memory", "3Gi", "2Gi"),
        ("requests.memory", "3Gi", "2Gi"),
    ],
)
def test_each_way_to_name_a_resource_counts(name: str, hard: str, used: str) -> None:
    gang = make_job("a", count=2, gpus=0, cpu="1500m", memory="1Gi")
    found = excess(gang, quota({name: hard}, {name: used}))
    assert found is not None
    assert found.resource == name
    assert excess(gang, quota({name: "1000Gi"}, {name: used})) is None


def test_roles_are_counted_together() -> None:
    job = make_job("a", roles=[make_role("x", count=2, gpus=1), make_role("y", count=1, gpus=8)])
    assert excess(job, quota({GPU: "10"}, {GPU: "0"})) is None
    assert excess(job, quota({GPU: "9"}, {GPU: "0"})) is not None


@pytest.mark.parametrize(
    "other",
    [
        quota({"services": "0", "nvidia.com/gpu": "0", "count/jobs.batch": "0"}, {}),
        quota({GPU: "0"}, {}),  # not counted yet
        quota({GPU: "many"}, {GPU: "0"}),
        quota({GPU: "0"}, {GPU: "0"}, scopes=("Terminating",)),
        quota({GPU: "0"}, {GPU: "0"}, scopes=("NotBestEffort",)),
        quota({GPU: "0"}, {GPU: "0"}, scopes=("VolumeAttributesClass",)),
    ],
)
def test_what_does_not_concern_the_pods_or_cannot_be_judged_is_wide_enough(
    other: ResourceQuota,
) -> None:
    assert excess(make_job("a"), other) is None


def scoped(operator: str, *values: str) -> ResourceQuota:
    requirement = ScopeRequirement("PriorityClass", operator, values)
    return quota({"pods": "0"}, {"pods": "0"}, scope_selector=ScopeSelector((requirement,)))


@pytest.mark.parametrize(
    ("operator", "values", "concerns"),
    [
        ("In", ("high",), True),
        ("In", ("low",), False),
        ("NotIn", ("low",), True),
        ("NotIn", ("high",), False),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
    ],
)
def test_a_scope_of_priority_classes_concerns_the_jobs_of_those_classes(
    operator: str, values: tuple[str, ...], *, concerns: bool
) -> None:
    job = make_job("a", spec={"priority_class_name": "high"})
    assert (excess(job, scoped(operator, *values)) is not None) is concerns
    assert excess(make_job("b"), scoped(operator, *values)) is None, "the default is not known"


def test_each_role_has_a_class_of_its_own() -> None:
    roles = [
        replace(role, template=replace(role.template, spec=replace(
            role.template.spec, priority_class_name=role.name
        )))
        for role in (make_role("low"), make_role("high"))
    ]  # fmt: skip
    found = excess(make_job("a", roles=roles), scoped("In", "high"))
    assert found is not None
    assert found.requested == 1
    assert excess(make_job("a", roles=roles), scoped("In", "other")) is None


def test_a_quota_of_another_namespace_or_one_that_is_gone_concerns_nobody() -> None:
    table, job = QuotaTable(), make_job("a", namespace="other")
    table.put(quota({"pods": "0"}, {"pods": "0"}))
    gang = gang_of(job.spec, RequestReader())
    assert isinstance(gang, GangRequest)
    assert table.excess(job, gang, {}) is None
    assert table.excess(make_job("a"), gang, {}) is not None
    table.remove(("default", "team"))
    table.remove(("default", "team"))
    assert table.excess(make_job("a"), gang, {}) is None


def test_an_answer_is_remembered_until_a_quota_changes() -> None:
    table, job, memos = QuotaTable(), make_job("a"), dict[QuotaQuestion, Memo]()
    gang = gang_of(job.spec, RequestReader())
    assert isinstance(gang, GangRequest)
    table.put(quota({"pods": "0"}, {"pods": "0"}))
    assert table.excess(job, gang, memos) is table.excess(job, gang, memos) is not None
    table.put(quota({"pods": "1"}, {"pods": "0"}))
    assert table.excess(job, gang, memos) is None


def test_the_pods_of_another_tool_exist_and_are_counted_already() -> None:
    adopted = make_job("a", spec={"adopts": Adopts("Job", "a")})
    assert excess(adopted, quota({"pods": "0"}, {"pods": "1"})) is None


def test_a_pod_that_asks_as_a_whole_is_no_best_effort_pod() -> None:
    job = make_job("a")
    spec = replace(job.spec.roles[0].template.spec, resources=ResourceRequirements({"cpu": 1}))
    template = replace(job.spec.roles[0].template, spec=spec)
    role = replace(job.spec.roles[0], template=template)
    whole = replace(job, spec=replace(job.spec, roles=(role,)))
    for scope, refused, taken in (("BestEffort", job, whole), ("NotBestEffort", whole, job)):
        limit = quota({"pods": "0"}, {"pods": "0"}, scopes=(scope,))
        assert excess(refused, limit) is not None, scope
        assert excess(taken, limit) is None, scope
