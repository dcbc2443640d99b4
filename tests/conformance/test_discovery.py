"""Discovery over HTTP: what clients ask first. Points 53 and 54 of the conformance list."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.conformance.http_server import running, widget_crd
from tests.conformance.target import Target
from tests.patience import PATIENCE_SECONDS

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def by_name(items: list[dict[str, Any]], key: str = "name") -> dict[str, dict[str, Any]]:
    return {item[key]: item for item in items}


async def test_53_the_version_is_of_a_kubernetes_release(target: Target) -> None:
    version = (await target.request("GET", "/version")).json
    assert version["gitVersion"].startswith(f"v{version['major']}.{version['minor']}.")


async def test_53_groups_and_versions_are_listed(target: Target) -> None:
    core = (await target.request("GET", "/api")).json
    assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
    groups = (await target.request("GET", "/apis")).json
    assert groups["kind"] == "APIGroupList"
    coordination = by_name(groups["groups"])["coordination.k8s.io"]
    assert coordination["preferredVersion"] == {
        "groupVersion": "coordination.k8s.io/v1", "version": "v1",
    }  # fmt: skip
    group = (await target.request("GET", "/apis/coordination.k8s.io")).json
    assert (group["kind"], group["versions"]) == ("APIGroup", coordination["versions"])
    assert (await target.request("GET", "/apis/nope.dev")).status == 404


async def test_53_resources_have_verbs_short_names_and_sub_resources(target: Target) -> None:
    answer = (await target.request("GET", "/api/v1")).json
    assert (answer["kind"], answer["groupVersion"]) == ("APIResourceList", "v1")
    resources = by_name(answer["resources"])
    assert resources["pods"]["shortNames"] == ["po"]
    assert resources["pods"]["categories"] == ["all"]
    assert resources["pods"]["singularName"] == "pod"
    assert set(resources["pods"]["verbs"]) == {
        "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
    }  # fmt: skip
    assert resources["pods/log"]["verbs"] == ["get"]
    assert resources["pods/eviction"]["kind"] == "Eviction"
    assert resources["pods/eviction"]["group"] == "policy"
    assert resources["nodes"]["namespaced"] is False
    assert "deletecollection" not in resources["namespaces"]["verbs"]


async def test_54_aggregated_discovery_says_the_same_in_two_requests(target: Target) -> None:
    for version in ("v2",):
        kind = AGGREGATED.format(version)
        for root in ("/api", "/apis"):
            answer = await target.request("GET", root, headers={"Accept": kind})
            assert answer.headers["Content-Type"] == kind
            assert answer.json["apiVersion"] == f"apidiscovery.k8s.io/{version}"
            for group in answer.json["items"]:
                name = group["metadata"].get("name", "")
                for served in group["versions"]:
                    assert served["freshness"] == "Current"
                    path = f"/apis/{name}" if name else "/api"
                    plain = await target.request("GET", f"{path}/{served['version']}")
                    flat = {
                        r["resource"]: r["verbs"] for r in served["resources"]
                    } | {
                        f"{r['resource']}/{s['subresource']}": s["verbs"]
                        for r in served["resources"] for s in r.get("subresources", [])
                    }  # fmt: skip
                    assert flat == {r["name"]: r["verbs"] for r in plain.json["resources"]}


async def test_54_an_unchanged_document_is_not_sent_again(target: Target) -> None:
    headers = {"Accept": AGGREGATED.format("v2")}
    first = await target.request("GET", "/apis", headers=headers)
    again = await target.request(
        "GET", "/apis", headers=headers | {"If-None-Match": first.headers["ETag"]}
    )
    assert (again.status, again.body) == (304, b"")


async def test_53_a_new_kind_appears_in_discovery_and_goes_with_its_definition() -> None:
    async with running() as api:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert (await api.call("GET", "/apis/example.dev/v1"))[0] == 404
        await api.call("POST", crds, widget_crd())
        while (await api.call("GET", "/apis/example.dev/v1"))[0] == 404:
            pass
        resources = by_name((await api.call("GET", "/apis/example.dev/v1"))[1]["resources"])
        assert resources["widgets"]["shortNames"] == ["wg"]
        assert resources["widgets"]["categories"] == ["toys"]
        assert resources["widgets/scale"]["kind"] == "Scale"
        assert (await api.call("DELETE", f"{crds}/widgets.example.dev"))[0] == 200
        while (await api.call("GET", "/apis/example.dev/v1"))[0] == 200:
            pass
        assert "example.dev" not in by_name((await api.call("GET", "/apis"))[1]["groups"])


async def test_55_openapi_v3_is_an_index_of_documents_whose_urls_change_with_them(
    target: Target,
) -> None:
    index = (await target.request("GET", "/openapi/v3")).json["paths"]
    assert {"api/v1", "apis/coordination.k8s.io/v1", "apis/policy/v1"} <= index.keys()
    for path in ("api/v1", "apis/coordination.k8s.io/v1"):
        url = index[path]["serverRelativeURL"]
        assert url.startswith(f"/openapi/v3/{path}?hash=")
        kept = await target.request("GET", f"/openapi/v3/{path}", query=query_of(url))
        assert (kept.status, kept.json["openapi"]) == (200, "3.0.0")
        assert kept.headers["Cache-Control"] == "public, immutable"
        assert kept.headers["ETag"].strip('"') == query_of(url)["hash"]
        plain = await target.request("GET", f"/openapi/v3/{path}")
        assert plain.json == kept.json
    schemas = (await target.request("GET", "/openapi/v3/api/v1")).json["components"]["schemas"]
    pod = schemas["io.k8s.api.core.v1.Pod"]
    kind = {"group": "", "kind": "Pod", "version": "v1"}
    assert kind in pod["x-kubernetes-group-version-kind"]
    assert {"metadata", "spec", "status"} <= pod["properties"].keys()
    assert (await target.request("GET", "/openapi/v3/apis/nope.dev/v1")).status == 404


async def test_55_a_new_kind_appears_in_openapi_and_changes_only_its_own_urls(
    target: Target,
) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    before = (await target.request("GET", "/openapi/v3")).json["paths"]
    await target.request("POST", crds, widget_crd())
    path = "apis/example.dev/v1"
    async with asyncio.timeout(PATIENCE_SECONDS):  # a real server publishes it some time later
        while (  # noqa: ASYNC110 -- another process does the work
            path not in (after := (await target.request("GET", "/openapi/v3")).json["paths"])
        ):
            await asyncio.sleep(0.1)
    assert after["api/v1"] == before["api/v1"]
    assert "hash=" in after[path]["serverRelativeURL"]
    schemas = (await target.request("GET", f"/openapi/v3/{path}")).json["components"]["schemas"]
    assert "dev.example.v1.Widget" in schemas


async def test_55_an_outdated_url_of_a_document_leads_to_the_present_one() -> None:
    async with running() as api:
        for path in ("/openapi/v3/api/v1", "/openapi/v3/apis/policy/v1"):
            url = f"{api.server.url}{path}?hash=old"
            async with api.session.get(url, allow_redirects=False) as answer:
                assert answer.status == 301
                assert answer.headers["Location"].startswith(f"{path}?hash=")
                assert "Cache-Control" not in answer.headers


async def test_55_openapi_v2_is_one_document(target: Target) -> None:
    answer = await target.request("GET", "/openapi/v2")
    assert (answer.status, answer.json["swagger"]) == (200, "2.0")
    pod = answer.json["definitions"]["io.k8s.api.core.v1.Pod"]
    assert {"metadata", "spec", "status"} <= pod["properties"].keys()
    assert "/api/v1/namespaces/{namespace}/pods" in answer.json["paths"]
    again = await target.request(
        "GET", "/openapi/v2", headers={"If-None-Match": answer.headers["ETag"]}
    )
    assert again.status == 304


async def test_65_a_client_may_ask_what_it_may_do(target: Target) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    spec = {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}
    answer = await target.request("POST", path, {"kind": "SelfSubjectAccessReview", "spec": spec})
    assert answer.status == 201
    assert answer.json["status"]["allowed"] is True
    assert answer.json["spec"] == spec
    assert (await target.request("GET", path)).status == 405
