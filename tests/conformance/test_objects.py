"""Points 1 to 8 and 10 of the checklist: identity, versions, generations, times and names."""

from __future__ import annotations

import re

import pytest
from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.target import Target

NS = "/api/v1/namespaces/default"
MAPS = f"{NS}/configmaps"
PODS = f"{NS}/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"


async def test_p01_a_name_created_again_has_a_new_uid(target: Target) -> None:
    first = (await target.request("POST", MAPS, config("a"))).json
    await target.request("DELETE", f"{MAPS}/a")
    second = (await target.request("POST", MAPS, config("a"))).json
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_p02_versions_are_one_growing_number_over_all_kinds(target: Target) -> None:
    versions: list[str] = []
    for path, body in ((MAPS, config("a")), (PODS, pod("a")), (MAPS, config("b"))):
        created = (await target.request("POST", path, body)).json
        versions.append(created["metadata"]["resourceVersion"])
    assert all(re.fullmatch(r"[1-9][0-9]*", version) for version in versions)
    assert sorted(versions, key=int) == versions
    assert len(set(versions)) == 3


async def test_p03_a_write_that_changes_nothing_keeps_the_version(target: Target) -> None:
    created = (await target.request("POST", MAPS, config("a", team="red"))).json
    again = (await target.request("PUT", f"{MAPS}/a", created)).json
    patched = await target.request(
        "PATCH", f"{MAPS}/a", {"metadata": {"labels": {"team": "red"}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )  # fmt: skip
    assert again == created
    assert patched.json == created


async def test_p04_what_the_server_owns_is_not_taken_from_clients(target: Target) -> None:
    body = config("a")
    body["metadata"] |= {
        "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 77,
        "deletionTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x",
    }  # fmt: skip
    metadata = (await target.request("POST", MAPS, body)).json["metadata"]
    assert metadata["uid"] != "mine"
    assert not metadata["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in metadata
    assert "selfLink" not in metadata
    body["metadata"] = {"name": "b", "resourceVersion": "5"}
    assert (await target.request("POST", MAPS, body)).status in (400, 500)


async def test_p05_generation_counts_changes_of_the_spec_only(target: Target) -> None:
    await target.request("POST", CRDS, widget_crd())
    created = (await target.request("POST", WIDGETS, widget("w"))).json
    assert created["metadata"]["generation"] == 1
    merge = {"Content-Type": "application/merge-patch+json"}

    async def generation(path: str, patch: object) -> int:
        answer = await target.request("PATCH", path, patch, headers=merge)
        return answer.json["metadata"]["generation"]

    path = f"{WIDGETS}/w"
    assert await generation(path, {"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation(f"{path}/status", {"status": {"state": "on"}}) == 1
    assert await generation(path, {"spec": {"size": 2}}) == 2
    held = {"metadata": {"finalizers": ["example.dev/hold"]}}
    assert await generation(path, held) == 2
    await target.request("DELETE", path)
    assert (await target.request("GET", path)).json["metadata"]["generation"] == 3


async def test_p06_creation_times_are_rfc_3339_in_whole_seconds(target: Target) -> None:
    created = (await target.request("POST", MAPS, config("a"))).json
    text = created["metadata"]["creationTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)


async def test_p07_generate_name_appends_five_safe_characters(target: Target) -> None:
    body = config("")
    body["metadata"] = {"generateName": "run-"}
    names = {(await target.request("POST", MAPS, body)).json["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"run-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-a", "a-", "a..b", "x" * 254])
async def test_p08_a_bad_name_is_invalid_with_its_field(target: Target, name: str) -> None:
    answer = await target.request("POST", MAPS, config(name))
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert [c["field"] for c in answer.json["details"]["causes"]] == ["metadata.name"]
    assert answer.json["details"]["kind"] == "ConfigMap"
    assert (await target.request("GET", MAPS)).json["items"] == []


async def test_p08_all_mistakes_are_reported_at_once(target: Target) -> None:
    body = pod("Bad", labels={"a b": "c"}, restartPolicy="Sometimes", containers=[])
    answer = await target.request("POST", PODS, body)
    assert {c["field"] for c in answer.json["details"]["causes"]} == {
        "metadata.name", "metadata.labels", "spec.restartPolicy", "spec.containers",
    }  # fmt: skip


async def test_p08_the_namespace_of_body_and_path_must_agree(target: Target) -> None:
    body = config("a")
    body["metadata"]["namespace"] = "other"
    assert (await target.request("POST", MAPS, body)).status == 400
    missing = await target.request("POST", "/api/v1/namespaces/nowhere/configmaps", config("a"))
    assert (missing.status, missing.json["message"]) == (404, 'namespaces "nowhere" not found')


async def test_p60_a_kind_is_served_from_the_write_of_its_definition_on(target: Target) -> None:
    assert (await target.request("GET", WIDGETS)).status == 404
    crd = (await target.request("POST", CRDS, widget_crd())).json
    true = {c["type"] for c in crd["status"]["conditions"] if c["status"] == "True"}
    assert true >= {"Established", "NamesAccepted"}
    assert (await target.request("POST", WIDGETS, widget("w"))).status == 201
    assert (await target.request("GET", WIDGETS)).json["kind"] == "WidgetList"


async def test_p61_objects_are_checked_and_pruned_by_their_schema(target: Target) -> None:
    await target.request("POST", CRDS, widget_crd())
    wrong = await target.request("POST", WIDGETS, widget("w", size="big", replicas="x"))
    assert wrong.status == 422
    fields = [c["field"] for c in wrong.json["details"]["causes"]]
    assert {"spec.replicas", "spec.size"} <= set(fields)
    body = widget("w")
    body["spec"]["surprise"] = 1
    kept = (await target.request("POST", WIDGETS, body)).json
    assert kept["spec"] == {"size": 1}
    strict = await target.request(
        "POST", WIDGETS, widget("v", surprise=1), query={"fieldValidation": "Strict"}
    )
    assert strict.status == 400
    assert "spec.surprise" in strict.json["message"]


async def test_p61_a_definition_that_is_not_structural_is_refused(target: Target) -> None:
    crd = widget_crd()
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"]
    answer = await target.request("POST", CRDS, crd)
    assert answer.status == 422
    assert any("openAPIV3Schema" in c["field"] for c in answer.json["details"]["causes"])


async def test_p10_what_a_client_does_to_its_copy_is_its_own_affair(target: Target) -> None:
    body = pod("a", labels={"team": "red"})
    made = (await target.request("POST", PODS, body)).json
    body["spec"]["containers"][0]["image"] = "other"
    for copy in (made, (await target.request("GET", f"{PODS}/a")).json):
        copy["metadata"]["labels"]["team"] = "blue"
        copy["spec"]["containers"].clear()
    listed = (await target.request("GET", PODS)).json["items"]
    read = (await target.request("GET", f"{PODS}/a")).json
    for seen in (read, *listed):
        assert seen["metadata"]["labels"] == {"team": "red"}
        assert [c["image"] for c in seen["spec"]["containers"]] == ["none"]
