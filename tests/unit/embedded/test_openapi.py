"""OpenAPI documents: what kubectl looks for is there, and every reference leads somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.resources import ALL, Resource
from fairlead.api.schema import crd
from fairlead.embedded.openapi import openapi_v2, openapi_v3_group, openapi_v3_index
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.schema import Schema, compile_schema


def _info(key: Resource[Any], schema: Schema | None, *, is_builtin: bool) -> ResourceInfo:
    return ResourceInfo(
        key.group, key.version, key.plural, key.kind, namespaced=key.namespaced,
        is_builtin=is_builtin, schema=schema, subresources=("status",),
    )  # fmt: skip


def _served() -> tuple[ResourceInfo, ...]:
    schemas = {
        m["spec"]["names"]["kind"]: m["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for m in crd.manifests()
    }
    own = {r: compile_schema(schemas[r.kind]) for r in ALL if r.group == names.GROUP}
    return Registry(_info(r, own.get(r), is_builtin=r not in own) for r in ALL).all()


SERVED = _served()


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _resolve(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def _follow(document: dict[str, Any], schema: dict[str, Any], *path: str) -> dict[str, Any]:
    """Walk properties as kubectl explain does, through $ref, allOf and items."""
    for name in (*path, ""):
        while True:
            if "$ref" in schema:
                schema = _resolve(document, schema["$ref"])
            elif "allOf" in schema:
                schema = {**schema, **_resolve(document, schema["allOf"][0]["$ref"])}
                del schema["allOf"]
            elif name and "items" in schema:
                schema = schema["items"]
            else:
                break
        if name:
            schema = schema["properties"][name]
    return schema


def test_the_index_lists_every_group_and_its_hash_changes_with_the_document() -> None:
    index = openapi_v3_index(SERVED)["paths"]
    assert {"api/v1", "apis/fairlead.dev/v1alpha1", "apis/coordination.k8s.io/v1"} <= set(index)
    url = index["api/v1"]["serverRelativeURL"]
    assert url.startswith("/openapi/v3/api/v1?hash=")
    fewer = [info for info in SERVED if info.plural != "services"]
    assert openapi_v3_index(fewer)["paths"]["api/v1"]["serverRelativeURL"] != url
    assert openapi_v3_group(SERVED, "nobody.example", "v1") is None


@pytest.mark.parametrize(("group", "version"), sorted({(i.group, i.version) for i in SERVED}))
def test_every_reference_leads_to_a_component(group: str, version: str) -> None:
    document = openapi_v3_group(SERVED, group, version)
    assert document is not None
    for reference in set(_references(document)):
        _resolve(document, reference)
    v2 = openapi_v2(SERVED)
    for reference in set(_references(v2)):
        _resolve(v2, reference)


def _kind(document: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [
        schema
        for schema in document["components"]["schemas"].values()
        if any(g["kind"] == kind for g in schema.get("x-kubernetes-group-version-kind", ()))
    ]
    assert len(found) == 1
    return found[0]


def test_explain_finds_pod_fields_with_descriptions_and_merge_keys() -> None:
    document = openapi_v3_group(SERVED, "", "v1")
    assert document is not None
    pod = _kind(document, "Pod")
    containers = _follow(document, pod, "spec")["properties"]["containers"]
    assert containers["description"] == "The containers of the pod; at least one."
    assert containers["x-kubernetes-patch-strategy"] == "merge"
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    requests = _follow(document, pod, "spec", "containers", "resources", "requests")
    quantity = _follow(document, requests["additionalProperties"])
    assert {"type": "number"} in quantity["oneOf"]
    assert "x-fairlead" not in str(document)


def test_explain_finds_job_fields_with_their_descriptions() -> None:
    document = openapi_v3_group(SERVED, "fairlead.dev", "v1alpha1")
    assert document is not None
    job = _kind(document, "Job")
    count = _follow(document, job, "spec", "roles", "count")
    assert count["minimum"] == 1
    assert "Number of members" in count["description"]
    assert _follow(document, job, "metadata", "labels")["type"] == "object"


def test_apply_sees_field_validation_and_the_patches_that_each_kind_takes() -> None:
    core = openapi_v3_group(SERVED, "", "v1")
    jobs = openapi_v3_group(SERVED, "fairlead.dev", "v1alpha1")
    assert core is not None
    assert jobs is not None
    pod = core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert pod["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert "fieldValidation" in [p["name"] for p in pod["parameters"]]
    assert "application/strategic-merge-patch+json" in pod["requestBody"]["content"]
    path = "/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/jobs/{name}"
    job = jobs["paths"][path]["patch"]
    assert set(job["requestBody"]["content"]) == {
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    }


def test_v2_has_no_words_that_swagger_does_not_know() -> None:
    text = str(openapi_v2(SERVED))
    for word in ("'oneOf'", "'anyOf'", "'allOf'", "'nullable'", "components/schemas"):
        assert word not in text


def test_a_custom_kind_without_a_schema_is_an_object_of_which_v2_says_no_more() -> None:
    schema = compile_schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    served = _info(Resource("e.com", "v1", "anys", "Any", Any), schema, is_builtin=False)
    v2 = openapi_v2([served])["definitions"]["com.e.v1.Any"]
    gvk = [{"group": "e.com", "version": "v1", "kind": "Any"}]
    assert v2 == {"type": "object", "x-kubernetes-group-version-kind": gvk}
    v3 = openapi_v3_group([served], "e.com", "v1")
    assert v3 is not None
    fields = v3["components"]["schemas"]["com.e.v1.Any"]["properties"]
    assert fields["apiVersion"]["description"].startswith("APIVersion defines")
