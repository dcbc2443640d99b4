"""Both versions of every kind say the same: there and back is the same object, whatever it has."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden.cli_golden import check

from fairlead.api.schema import crd
from fairlead.api.schema.conversion import (
    ALPHA,
    BETA,
    Renames,
    UnknownVersion,
    converted,
    renamed_path,
    renames_of,
    with_beta,
)
from fairlead.embedded.schema.schema import Schema, compile_schema
from fairlead.input.yamlwrite import to_yaml

MANIFESTS = {each["spec"]["names"]["kind"]: with_beta(each) for each in crd.manifests()}
KINDS = tuple(MANIFESTS)
VERSIONS = (ALPHA, BETA)


def _openapi(kind: str, api_version: str) -> dict[str, Any]:
    [found] = [
        each["schema"]["openAPIV3Schema"]
        for each in MANIFESTS[kind]["spec"]["versions"]
        if api_version.endswith(f"/{each['name']}")
    ]
    return found


def _schema(kind: str, api_version: str) -> Schema:
    return compile_schema(_openapi(kind, api_version))


def _example(schema: dict[str, Any], name: str) -> Any:
    """Return a value with every field; a text is the name of its field in v1alpha1."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            if "properties" in schema:
                return {key: _example(inner, key) for key, inner in schema["properties"].items()}
            values = schema.get("additionalProperties")
            return {} if values is None else {"key": _example(values, name)}
        case "array":
            return [_example(schema["items"], name)]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case _ if schema.get("format") == "date-time":
            return "2026-01-02T03:04:05Z"
        case _:
            return name


def _whole(kind: str) -> dict[str, Any]:
    made = _example(_openapi(kind, ALPHA), kind)
    metadata = {"name": "example", "labels": {"team": "a"}, "annotations": {"at": "b"}}
    if kind == "Job":  # its template is a pod's
        made["spec"]["roles"][0]["template"] = {"spec": {"containers": []}, "node": 1}
    if kind == "JobArray":
        made["spec"]["template"]["roles"][0]["template"] = {"spec": {"containers": []}, "node": 1}
    return {**made, "apiVersion": ALPHA, "kind": kind, "metadata": metadata}


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def _values(tree: Renames | None) -> st.SearchStrategy[Any]:
    """Values that may fit a tree, and others: wrong types, names of the other version, nonsense."""
    if tree is None:
        return ANYTHING
    known = sorted({*tree.names, *tree.below})
    if tree.values is not None:
        own = st.dictionaries(st.text(max_size=4), _values(tree.values), max_size=2)
    else:
        fields = {name: _values(tree.below.get(name)) for name in known}
        own = st.fixed_dictionaries({}, optional={**fields, "other": ANYTHING})
    return own | st.lists(own, max_size=2) | SCALARS


OBJECTS = {
    (kind, version): st.fixed_dictionaries(
        {"apiVersion": st.just(version), "kind": st.just(kind)},
        optional={
            "metadata": ANYTHING,
            **{
                part: _values(renames_of(kind, to_beta=version == ALPHA).below.get(part))
                for part in ("spec", "status")
            },
        },
    )
    for kind in KINDS
    for version in VERSIONS
}


@pytest.mark.parametrize("version", VERSIONS, ids=("alpha", "beta"))
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_there_and_back_is_the_same_object(kind: str, version: str, data: st.DataObject) -> None:
    obj = data.draw(OBJECTS[kind, version])
    before = copy.deepcopy(obj)
    other = BETA if version == ALPHA else ALPHA
    there = converted(obj, other)
    assert obj == before
    assert there["apiVersion"] == other
    assert there.get("metadata") == obj.get("metadata")
    assert list(converted(there, version).items()) == list(obj.items())
    assert converted(obj, version) == obj


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_what_a_schema_fills_in_and_drops_is_the_same_in_both(
    kind: str, data: st.DataObject
) -> None:
    obj = data.draw(OBJECTS[kind, ALPHA])
    obj.pop("metadata", None)  # each server has rules of its own for it
    alpha, beta = _schema(kind, ALPHA), _schema(kind, BETA)
    kept, _ = alpha.prune(alpha.default(obj))
    kept_by_beta, _ = beta.prune(beta.default(converted(obj, BETA)))
    assert converted(kept, BETA) == kept_by_beta
    assert len(alpha.validate(kept)) == len(beta.validate(kept_by_beta))


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_known_to_the_other_version(kind: str) -> None:
    whole = _whole(kind)
    assert _schema(kind, ALPHA).prune(whole)[1] == []
    assert _schema(kind, BETA).prune(converted(whole, BETA))[1] == []
    there = converted(whole, BETA)
    assert converted(there, ALPHA) == whole
    assert there["metadata"] == whole["metadata"]
    check(f"v1beta1/{kind.lower()}.yaml", to_yaml(there))


def test_a_job_is_renamed_down_to_its_lists_and_no_further() -> None:
    pod = {"spec": {"containers": [{"name": "a", "env": [{"name": "node"}]}], "node": "kept"}}
    job = {
        "apiVersion": ALPHA, "kind": "Job", "metadata": {"name": "a", "node": "kept"},
        "spec": {
            "team": "t", "roles": [{"name": "w", "template": pod}],
            "after": [{"job": "b"}, {"job": "c", "elements": "1"}],
        },
        "status": {
            "conditions": [{"type": "Failed", "node": "kept"}],
            "startedAt": "x", "run": {"metrics": {"team": {"min": 1, "max": 2}}},
        },
    }  # fmt: skip
    assert converted(job, BETA) == {
        "apiVersion": BETA, "kind": "Job", "metadata": {"name": "a", "node": "kept"},
        "spec": {
            "teamName": "t", "roles": [{"name": "w", "template": pod}],
            "after": [{"jobName": "b"}, {"jobName": "c", "elements": "1"}],
        },
        "status": {
            "conditions": [{"type": "Failed", "node": "kept"}],
            "startTime": "x", "run": {"metrics": {"team": {"min": 1, "max": 2}}},
        },
    }  # fmt: skip


def test_a_name_of_the_other_version_is_as_unknown_there() -> None:
    job = {"apiVersion": ALPHA, "kind": "Job", "spec": {"team": "a", "teamName": "b"}}
    assert converted(job, BETA)["spec"] == {"teamName": "a", "team": "b"}


def test_the_schema_of_v1beta1_has_its_names_keys_and_columns() -> None:
    spec = _openapi("Job", BETA)["properties"]["spec"]["properties"]
    assert "teamName" in spec
    assert "team" not in spec
    assert spec["after"]["x-kubernetes-list-map-keys"] == ["jobName"]
    assert spec["after"]["items"]["required"] == ["jobName"]
    pools = _openapi("NodePool", BETA)["properties"]["spec"]["properties"]
    assert pools["domains"]["items"]["properties"]["nodesMax"]["default"] == 100000
    mentions = _openapi("Team", BETA)["properties"]["spec"]["properties"]["namespaces"]
    assert "spec.teamName" in mentions["description"]
    [alpha, beta] = MANIFESTS["Job"]["spec"]["versions"]
    assert (alpha["storage"], beta["storage"], beta["served"]) == (True, False, True)
    assert {"jsonPath": ".spec.teamName"} in beta["selectableFields"]
    assert renamed_path('.status.conditions[?(@.type=="team")].node', "Job").endswith(".node")
    assert renamed_path(".status.attempts[0].startedAt", "Job") == ".status.attempts[0].startTime"


@pytest.mark.parametrize("kind", KINDS)
def test_selectable_fields_differ_as_api_servers_want_it_and_are_fields(kind: str) -> None:
    alpha, beta = (each.get("selectableFields") for each in MANIFESTS[kind]["spec"]["versions"])
    assert (alpha is None) is (beta is None)
    for each in beta or ():
        assert beta != alpha
        fields = _openapi(kind, BETA)
        for name in each["jsonPath"].split(".")[1:]:
            fields = fields["properties"][name]
        assert fields["type"] in ("string", "boolean")


@pytest.mark.parametrize("kind", KINDS)
def test_descriptions_name_no_field_of_the_other_version(kind: str) -> None:
    text = str(_openapi(kind, BETA))
    assert "fairlead.dev/v1alpha1" not in text
    assert not [old for old in ("spec.team.", "spec.egressAt") if f"{old}" in text]


@pytest.mark.parametrize(
    ("obj", "to", "said"),
    [
        ({"kind": "Job", "apiVersion": "fairlead.dev/v2"}, BETA, "got 'fairlead.dev/v2'"),
        ({"kind": "Job", "apiVersion": ALPHA}, "batch/v1", "got 'batch/v1'"),
        ({"kind": "Job"}, BETA, "got nothing"),
        ({"kind": "Pod", "apiVersion": "v1"}, BETA, "kind: got 'Pod', accepted: ClusterReport"),
        ({"kind": ["Job"], "apiVersion": ALPHA}, BETA, "kind: got no text"),
        ({"kind": "Job", "apiVersion": {}}, BETA, "apiVersion: got no text"),
    ],
    ids=["version", "wanted", "none", "kind", "list", "object"],
)
def test_what_is_not_ours_is_refused(obj: dict[str, Any], to: str, said: str) -> None:
    with pytest.raises(UnknownVersion, match=said.replace("(", r"\(")):
        converted(obj, to)
