"""The rules of a Job that its schema can't say."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.validation.validate import job_name_max, validate_job
from fairlead.api.values.bounds import (
    ANNOTATION_BYTES_MAX,
    CONSTRAINT_VALUES_MAX,
    RESOURCES_MAX,
    SPEC_BYTES_MAX,
)


def _container(**more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "i", **more}


def _role(name: str = "worker", **more: Any) -> dict[str, Any]:
    return {"name": name, "template": {"spec": {"containers": [_container()]}}, **more}


def _spec(**more: Any) -> dict[str, Any]:
    return {"roles": [_role()], **more}


def _with_container(**more: Any) -> dict[str, Any]:
    return _spec(roles=[{"name": "w", "template": {"spec": {"containers": [_container(**more)]}}}])


def _with_pod(**more: Any) -> dict[str, Any]:
    return _spec(roles=[{"name": "w", "template": {"spec": more}}])


def _resources(requests: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    return _with_container(resources={"requests": requests, "limits": limits})


POD = "spec.roles[0].template.spec"
REQUESTS = f"{POD}.containers[0].resources.requests"
TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def _with_terms(*terms: dict[str, Any], **more: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return _with_pod(containers=[_container()], affinity={"nodeAffinity": required}, **more)


def _expression(operator: str, *values: str, key: str = "rank") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def _at(**spec: Any) -> dict[str, Any]:
    return {"roles": [{"name": "w", "template": {"spec": {"containers": [_container()]}}}], **spec}


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"roles": []}, "spec.roles", "length >= 1"),
    (_spec(roles=[_role("Worker")]), "spec.roles[0].name", "lowercase RFC 1123 label"),
    (_spec(roles=[_role(), _role()]), "spec.roles[1].name", "Duplicate value"),
    (_spec(roles=[_role("a", count=60_000), _role("b", count=60_000)]), "spec.roles", "100000"),
    (_with_pod(containers=[]), f"{POD}.containers", "at least one container"),
    (_with_pod(containers=[_container()], restartPolicy="Always"), f"{POD}.restartPolicy", "Never"),
    (
        _with_pod(containers=[_container()], restartPolicy="OnFailure"),
        f"{POD}.restartPolicy",
        "Never",
    ),
    (_with_pod(containers=[_container()], nodeName="n"), f"{POD}.nodeName", "nodeSelector"),
    (
        _with_pod(containers=[_container(), _container()]),
        f"{POD}.containers[1].name",
        "Duplicate value",
    ),
    (_resources({"cpu": "lots"}, {}), f"{REQUESTS}.cpu", "is not a quantity"),
    (_resources({"cpu": "-1"}, {}), f"{REQUESTS}.cpu", "greater than or equal to 0"),
    (_resources({"memory": "2Gi"}, {"memory": "1Gi"}), f"{REQUESTS}.memory", "limit of 1Gi"),
    (_resources({"nvidia.com/gpu": 0.5}, {}), f"{REQUESTS}.nvidia.com/gpu", "whole devices only"),
    (
        _resources({"nvidia.com/gpu": 2}, {"cpu": 1}),
        f"{POD}.containers[0].resources.limits.nvidia.com/gpu",
        "set it to 2, what is requested, or set the limit alone",
    ),
    (
        _resources({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}),
        f"{REQUESTS}.nvidia.com/gpu",
        "must be equal to nvidia.com/gpu limit of 2",
    ),
    (_spec(after=[{"job": "train"}]), "spec.after[0].job", "can't wait for itself"),
    (_spec(after=[{"job": "a"}, {"job": "a"}]), "spec.after[1].job", "Duplicate value"),
    (_spec(checkpoint={"path": "ckpt"}), "spec.checkpoint.path", "absolute"),
    (_spec(checkpoint={"path": "/a/../b"}), "spec.checkpoint.path", "'..'"),
    (_spec(topology={"key": "no good"}), "spec.topology.key", "node label"),
    (_spec(roles=[{"name": "w", "template": {}, "count": "4"}]), "spec.roles[0].count", "int"),
    (
        _resources({}, {f"example.com/r{i}": 1 for i in range(RESOURCES_MAX + 1)}),
        f"{POD}.containers",
        "a pod may ask for 64 resources at most",
    ),
    (
        _with_terms(
            {"matchExpressions": [_expression("In", *map(str, range(CONSTRAINT_VALUES_MAX)))]}
        ),
        f"{POD}.affinity",
        "10000 values at most",
    ),
    (
        _with_pod(containers=[_container()], tolerations=[{"operator": "Exists"}] * 10_001),
        f"{POD}.affinity",
        "10000 values at most",
    ),
    (
        _with_terms({"matchExpressions": [_expression("Gt", "9" * 19)]}),
        f"{POD}.{TERMS}[0].matchExpressions[0].values[0]",
        "64-bit integer",
    ),
    (
        _with_terms({"matchExpressions": [_expression("In", "a", "b c")]}),
        f"{POD}.{TERMS}[0].matchExpressions[0].values[1]",
        "must be a label value",
    ),
    (
        _with_terms({"matchFields": [_expression("Gt", "5", key="metadata.name")]}),
        f"{POD}.{TERMS}[0].matchFields[0].operator",
        "not a valid selector operator",
    ),
    (
        _with_terms({"matchFields": [_expression("In", "a", "b", key="metadata.name")]}),
        f"{POD}.{TERMS}[0].matchFields[0].values",
        "only one value",
    ),
    (
        _with_terms({"matchFields": [_expression("In", "a", key="metadata.uid")]}),
        f"{POD}.{TERMS}[0].matchFields[0].key",
        "not a valid field selector key",
    ),
    (
        _with_terms({"matchFields": [_expression("In", "A_B", key="metadata.name")]}),
        f"{POD}.{TERMS}[0].matchFields[0].values[0]",
        "RFC 1123 subdomain",
    ),
    (
        {
            "roles": [
                {
                    "name": "w",
                    "template": {
                        "metadata": {"annotations": {"a": "x" * ANNOTATION_BYTES_MAX}},
                        "spec": {"containers": [_container()]},
                    },
                }
            ]
        },
        "spec.roles[0].template.metadata.annotations",
        "may not be more than 262144 bytes",
    ),
    (
        _with_container(args=["x" * SPEC_BYTES_MAX]),
        "spec",
        "Too long: may not be more than 786432 bytes",
    ),
    (_at(notBefore="tomorrow"), "spec.notBefore", "must be a time such as"),
    (_at(deadline="2026-01-02T00:00:00Z"), "spec.timeLimitSeconds", "follows from it"),
    (
        _at(
            deadline="2026-01-02T00:00:00Z",
            timeLimitSeconds=3600,
            notBefore="2026-01-01T23:30:00Z",
        ),
        "spec.deadline",
        "is less than the time limit of 3600s after notBefore",
    ),
]


@pytest.mark.parametrize(("spec", "field", "words"), MISTAKES)
def test_each_mistake_is_found_at_its_field(spec: dict[str, Any], field: str, words: str) -> None:
    before = copy.deepcopy(spec)
    causes = validate_job(spec, name="train")
    assert [c.field for c in causes] == [field]
    assert words in causes[0].message
    assert spec == before


def test_a_good_job_has_no_causes_in_any_of_its_forms() -> None:
    spec = _resources({"cpu": 0.5, "memory": "1Gi"}, {"cpu": "1", "nvidia.com/gpu": 8})
    spec |= {"after": [{"job": "other"}], "checkpoint": {"path": "/data/..x"}}
    whole = {"metadata": {"name": "train"}, "spec": spec}
    assert validate_job(spec) == []
    assert validate_job(whole) == []
    assert validate_job(msgspec.convert(whole, Job)) == []


def test_all_mistakes_are_collected() -> None:
    spec = _spec(roles=[_role("A"), _role("B")], checkpoint={"path": "x/.."}, after=[{"job": ""}])
    fields = [c.field for c in validate_job({"metadata": {"name": "J"}, "spec": spec})]
    assert fields == [
        "metadata.name", "spec.roles[0].name", "spec.roles[1].name", "spec.checkpoint.path",
        "spec.checkpoint.path", "spec.after[0].job",
    ]  # fmt: skip


def test_what_reaches_the_bounds_is_accepted_and_mistakes_beyond_them_are_collected() -> None:
    most = [str(i) for i in range(CONSTRAINT_VALUES_MAX - 1)]
    good = _with_terms({"matchExpressions": [_expression("In", *most)]})
    assert validate_job(good) == []
    names = {f"example.com/r{i}": 1 for i in range(RESOURCES_MAX)}
    assert validate_job(_resources(names, names)) == []
    assert (
        validate_job(_with_terms({"matchExpressions": [_expression("Lt", str(2**63 - 1))]})) == []
    )
    bad = _with_terms(
        {"matchExpressions": [_expression("Gt", "9" * 5000), _expression("Lt", "soon")]},
        {"matchFields": [_expression("In", "n1", key="metadata.name")]},
        nodeSelector={"pool": "a b"},
    )
    bad["roles"][0]["template"]["spec"]["overhead"] = {
        f"example.com/r{i}": 1 for i in range(RESOURCES_MAX + 1)
    }
    expressions = f"{POD}.{TERMS}[0].matchExpressions"
    assert [c.field for c in validate_job(bad)] == [
        f"{POD}.containers",
        f"{expressions}[0].values[0]",
        f"{expressions}[1].values[0]",
        f"{POD}.nodeSelector",
        f"{expressions}[0].values[0]",
    ]


def test_a_job_name_is_as_long_as_its_pods_names_allow() -> None:
    spec = _spec(roles=[_role("worker", count=1000)])
    most = job_name_max(msgspec.convert({"spec": spec}, Job).spec)
    assert len("x" * most + "-1234-worker-999") == 63
    assert validate_job(spec, name="x" * most) == []
    (cause,) = validate_job(spec, name="x" * (most + 1))
    assert cause.field == "metadata.name"
    assert f"at most {most} characters, is {most + 1}" in cause.message


def test_roles_whose_names_leave_no_room_are_refused() -> None:
    causes = validate_job(_spec(roles=[_role("r" * 63)]), name="j")
    assert [c.field for c in causes] == ["spec.roles"]
    assert "leaves no room for the job's name" in causes[0].message
