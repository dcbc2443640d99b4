"""Errors over HTTP: every one is a Status with its code, and bad input never harms the server.

Points 22, 51, 52 and 59 of the conformance list, and the limits of the embedded server.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.conformance.http_server import TOKEN, Running, config, pod, running, widget, widget_crd
from tests.conformance.target import Answer, Target
from tests.patience import PATIENCE_SECONDS

from fairlead.embedded.http.request import BodyLimits
from fairlead.embedded.http.server import ServerLimits
from fairlead.runtime.outside.connections import ConnectionLimits

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def assert_status(answer: Answer, code: int, reason: str) -> dict[str, Any]:
    status = answer.json
    assert answer.status == code, answer
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert (status["code"], status["reason"]) == (code, reason)
    assert status["message"]
    return status


async def test_51_a_missing_object_is_a_status_with_details(target: Target) -> None:
    status = assert_status(await target.request("GET", f"{PODS}/nope"), 404, "NotFound")
    assert status["message"] == 'pods "nope" not found'
    assert status["details"] == {"name": "nope", "kind": "pods"}


async def test_52_an_unknown_path_is_plain_text(target: Target) -> None:
    for path in ("/nope", "/apis/nope.dev/v1/things"):
        answer = await target.request("GET", path)
        assert (answer.status, answer.body) == (404, b"404 page not found\n"), path


async def test_52_a_timeout_that_is_no_duration_is_refused_everywhere(target: Target) -> None:
    for path in ("/version", PODS):
        answer = await target.request("GET", path, query={"timeout": "invalid"})
        assert answer.status == 400
        assert b"invalid timeout specified in the request URL" in answer.body
        for timeout in ("3m", "0s", "1m30.5s", "0", ""):
            fine = await target.request("GET", path, query={"timeout": timeout})
            assert fine.status == 200, timeout


async def test_52_what_a_known_group_does_not_have_is_a_status(target: Target) -> None:
    for path in (f"{PODS}/x/nope", "/api/v1/namespaces/default/nodes", "/api/v1/pods/x",
                 "/api/v2", "/api/v1/nope"):  # fmt: skip
        status = assert_status(await target.request("GET", path), 404, "NotFound")
        assert status["message"] == "the server could not find the requested resource", path


@pytest.mark.parametrize("value", ["", "Bearer wrong", "Bearer ", "Basic abc", "bearer"])
async def test_52_a_request_without_the_right_token_gets_401(target: Target, value: str) -> None:
    for path in (PODS, "/api", "/metrics", "/nope", "/openapi/v2", "/"):
        answer = await target.request("GET", path, headers={"Authorization": value})
        assert_status(answer, 401, "Unauthorized")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version"])
async def test_52_health_and_version_need_no_token(target: Target, path: str) -> None:
    answer = await target.request("GET", path, headers={"Authorization": ""})
    assert answer.status == 200


async def test_52_verbs_that_a_kind_does_not_have_get_405(target: Target) -> None:
    for method, path in (("PUT", MAPS), ("POST", f"{MAPS}/x"), ("DELETE", "/api/v1/namespaces"),
                         ("POST", "/api/v1/configmaps"), ("POST", "/version")):  # fmt: skip
        answer = await target.request(method, path, config("x"))
        assert_status(answer, 405, "MethodNotAllowed")


async def test_59_a_client_that_takes_only_protobuf_gets_406_and_others_get_json(
    target: Target,
) -> None:
    protobuf = "application/vnd.kubernetes.protobuf"
    answer = await target.request("GET", MAPS, headers={"Accept": protobuf})
    assert_status(answer, 406, "NotAcceptable")
    both = await target.request(
        "GET", MAPS, headers={"Accept": f"{protobuf}, application/json;q=0.9"}
    )
    assert (both.status, both.json["kind"]) == (200, "ConfigMapList")
    body = await target.request(
        "POST", PODS, b"k8s\0\n\t\n\x02v1\x12\x03Pod", headers={"Content-Type": protobuf}
    )
    assert_status(body, 415, "UnsupportedMediaType")


async def test_59_the_protobuf_that_kubectl_writes_is_read_and_other_bytes_are_refused(
    target: Target,
) -> None:
    kind = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    head = b"k8s\0" + b"\n\x0f\n\x02v1\x12\x09ConfigMap"
    metadata = b"\n\x0e\n\x0afrom-proto\x12\0"
    data = b"\x12\x08\n\x01k\x12\x03val"
    body = metadata + data
    made = await target.request(
        "POST", MAPS, head + b"\x12" + bytes((len(body),)) + body, headers=kind
    )
    assert (made.status, made.json["data"]) == (201, {"k": "val"})
    assert made.json["metadata"]["name"] == "from-proto"
    for rest in (b"\x12\xff", b"\x12\x02\xff\xff", b"\x0f", b"\x12\x02\x58\x01", b"\x10\x01",
                 b"\x12\x04\n\x02\n\x09", b"\x12\x04\n\x02\xa8\x01"):  # fmt: skip
        answer = await target.request("POST", MAPS, head + rest, headers=kind)
        assert answer.status in (400, 415), (rest, answer)


async def test_52_patch_types_that_are_not_there_get_415_that_names_those_that_are(
    target: Target,
) -> None:
    await target.request("POST", MAPS, config("patched"))
    for kind, word in (
        ("application/apply-patch+cbor", "apply-patch+yaml"),
        ("application/json", "merge-patch+json"),
        ("text/plain", "strategic-merge-patch+json"),
    ):
        answer = await target.request(
            "PATCH", f"{MAPS}/patched", b"{}", headers={"Content-Type": kind},
            query={"fieldManager": "x"},
        )  # fmt: skip
        assert word in assert_status(answer, 415, "UnsupportedMediaType")["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"), (b"{", "JSON"), (b"[]", "object"), (b'"x"', "object"), (b"null", "object"),
        (b'{"a": "\xff"}', "UTF-8"), (b'{"a": NaN}', "JSON"), (b'{"a": 1e999}', "JSON"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "deeper"), (b"[" * 5000 + b"]" * 5000, "deeper"),
        (b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"}}', "ConfigMap"),
        (b'{"metadata": 5}', ""), (b'{"metadata": {"name": 5}}', ""),
        (b'{"metadata": {"name": "x", "labels": ["a"]}}', ""),
        (b'{"metadata": {"name": "x"}, "data": [1]}', ""),
        (b'{"metadata": {"name": "x", "annotations": {"a": 184467440737095516160}}}', ""),
    ],
    ids=(
        "empty", "open", "list", "text", "null", "not-utf8", "nan", "huge-float", "deep-object",
        "deep-list", "pod", "metadata-number", "name-number", "labels-list", "data-list",
        "huge-integer",
    ),
)  # fmt: skip
async def test_52_a_bad_body_is_refused_and_nothing_is_stored(
    target: Target, body: bytes, word: str
) -> None:
    before = await target.request("GET", MAPS)
    answer = await target.request("POST", MAPS, body, headers={"Content-Type": "application/json"})
    assert answer.status in (400, 422), answer
    assert answer.json["kind"] == "Status"
    assert word in answer.json["message"]
    after = await target.request("GET", MAPS)
    assert after.json["items"] == before.json["items"]


async def test_52_yaml_is_taken_as_far_as_json_can_say_it(target: Target) -> None:
    yaml = {"Content-Type": "application/yaml"}
    good = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml}\ndata: {a: '1'}\n"
    made = await target.request("POST", MAPS, good, headers=yaml)
    assert (made.status, made.json["data"]) == (201, {"a": "1"})
    for bad in (b"a: &x [1]\nb: *x\n", b"? [a]\n: b\n", b"a: [\n", b"\xff", b"- a\n",
                b"[" * 200 + b"]" * 200, b"a: !!python/object:os.system x\n"):  # fmt: skip
        answer = await target.request("POST", MAPS, bad, headers=yaml)
        assert_status(answer, 400, "BadRequest")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "many"}, {"labelSelector": "a=b=c"},
        {"fieldSelector": "metadata.name"}, {"fieldSelector": "spec.nope=1"},
        {"resourceVersion": "abc"}, {"continue": "!!!"}, {"watch": "1", "timeoutSeconds": "x"},
        {"labelSelector": "a in (b"}, {"limit": "9" * 40}, {"limit": "--5"},
    ],
)  # fmt: skip
async def test_52_a_wrong_query_value_is_400(target: Target, query: dict[str, str]) -> None:
    assert_status(await target.request("GET", PODS, query=query), 400, "BadRequest")


async def test_52_what_a_real_server_overlooks_in_a_query_is_400_too() -> None:
    async with running() as api:
        for query in (
            "watch=perhaps",
            "watch=1&resourceVersion=-4",
            "watch=1&allowWatchBookmarks=2",
        ):
            code, status, _ = await api.call("GET", f"{PODS}?{query}")
            assert (code, status["reason"]) == (400, "BadRequest")


async def test_52_a_media_type_has_no_case() -> None:
    async with running() as api:
        kind = {"Content_Type": "Application/JSON; charset=utf-8"}
        assert (await api.call("POST", MAPS, config("x"), **kind))[0] == 201


async def test_52_write_options_are_checked_too(target: Target) -> None:
    for query in ({"dryRun": "Some"}, {"fieldValidation": "Maybe"}, {"fieldManager": "m" * 129}):
        answer = await target.request("POST", MAPS, config("never"), query=query)
        assert_status(answer, 422, "Invalid")
    sideways = {"propagationPolicy": "Sideways"}
    answer = await target.request("DELETE", f"{MAPS}/never", sideways)
    assert_status(answer, 422, "Invalid")
    for body in ({"gracePeriodSeconds": "x"}, {"kind": "Pod"},
                 {"preconditions": {"uid": 4}}, {"dryRun": "All"}):  # fmt: skip
        answer = await target.request("DELETE", f"{MAPS}/never", body)
        assert_status(answer, 400, "BadRequest")
    assert (await target.request("GET", f"{MAPS}/never")).status == 404


async def test_22_unknown_fields_of_a_custom_kind_are_refused_or_warned_of() -> None:
    async with running() as api:
        await established(api)
        path = "/apis/example.dev/v1/namespaces/default/widgets"
        body = widget("w") | {"nonsense": 1}
        code, status, _ = await api.call("POST", f"{path}?fieldValidation=Strict", body)
        assert (code, status["reason"]) == (400, "BadRequest")
        assert "nonsense" in status["message"]
        code, made, headers = await api.call("POST", f"{path}?fieldValidation=Warn", body)
        assert (code, "nonsense" in made) == (201, False)
        assert headers["Warning"].startswith("299 - ")
        assert "nonsense" in headers["Warning"]
        code, _, headers = await api.call(
            "POST", f"{path}?fieldValidation=Ignore", widget("w2") | {"nonsense": 1}
        )
        assert (code, "Warning" in headers) == (201, False)
        code, status, _ = await api.call(
            "PATCH", f"{path}/w", b"{}",
            Content_Type="application/strategic-merge-patch+json",
        )  # fmt: skip
        assert (code, status["reason"]) == (415, "UnsupportedMediaType")


async def established(api: Running) -> None:
    """Create the widget kind, and return once it is served."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    code, made, _ = await api.call("POST", crds, widget_crd())
    assert code == 201, made
    path = f"{crds}?watch=1&fieldSelector=metadata.name%3Dwidgets.example.dev"
    async with api.session.get(api.server.url + path) as stream:
        async for line in stream.content:
            if b'"type":"Established"' in line and b'"status":"True"' in line:
                return
    raise AssertionError("the definition was never established")


async def test_52_a_body_over_the_limit_is_413_and_the_server_goes_on() -> None:
    async with running(limits=ServerLimits(body=BodyLimits(bytes_max=10_000))) as api:
        big = config("big")
        big["data"]["key"] = "x" * 20_000
        code, status, _ = await api.call("POST", MAPS, big)
        assert (code, status["reason"]) == (413, "RequestEntityTooLarge")

        reader, writer = await api.connect()
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        writer.write((b"2710\r\n" + b" " * 10_000 + b"\r\n") * 3)
        assert b" 413 " in await reader.readline()
        writer.close()
        assert (await api.call("GET", f"{MAPS}/big"))[0] == 404


async def test_52_compressed_bodies_are_refused() -> None:
    async with running() as api:
        code, status, _ = await api.call("POST", MAPS, b"\x1f\x8b", Content_Encoding="gzip")
        assert (code, status["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    "path",
    ["/api/v1/namespaces/../pods", "/api/v1/namespaces/%2e%2e/pods", "/../../etc/passwd",
     "/api/v1/namespaces/default/pods/..%2f..%2fx", "/api/v1/namespaces/a%00b/pods",
     "/api/v1/namespaces/%ff/pods", "/api/v1/namespaces/%zz/pods", "/" + "a" * 5000,
     "/api/v1//pods", "//", "/api/v1/namespaces//pods"],
)  # fmt: skip
async def test_52_paths_that_climb_or_make_no_sense_are_refused(path: str) -> None:
    async with running() as api:
        reader, writer = await api.connect()
        head = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\n{head}".encode())
        code = int((await reader.readline()).split()[1])
        assert code in (400, 404)
        writer.close()


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"NONSENSE / HTTP/9.9\r\n\r\n",
     b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
     b"POST /api HTTP/1.1\r\nContent-Length: -5\r\n\r\n"],
)  # fmt: skip
async def test_52_what_is_no_http_gets_400_and_the_server_goes_on(
    junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as api:
        reader, writer = await api.connect()
        writer.write(junk)
        line = await reader.readline()
        assert line == b"" or b" 400 " in line
        writer.close()
        assert (await api.call("GET", "/readyz"))[:2] == (200, "ok")
    assert "Traceback" not in caplog.text


async def test_52_more_requests_than_the_server_takes_get_429_with_retry_after() -> None:
    async with running(limits=ServerLimits(requests_in_flight_max=0)) as api:
        code, status, headers = await api.call("GET", MAPS)
        assert (code, status["reason"]) == (429, "TooManyRequests")
        assert headers["Retry-After"] == "1"
        assert status["details"]["retryAfterSeconds"] == 1


async def test_52_an_eviction_that_a_budget_forbids_gets_429_with_retry_after() -> None:
    async with running() as api:
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        selector = {"matchLabels": {"app": "a"}}
        budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}}
        assert (await api.call("POST", budgets, budget))[0] == 201
        assert (await api.call("POST", PODS, pod("guarded", labels={"app": "a"})))[0] == 201
        ready = {"status": {"phase": "Running",
                            "conditions": [{"type": "Ready", "status": "True"}]}}  # fmt: skip
        await api.call(
            "PATCH", f"{PODS}/guarded/status", ready, Content_Type="application/merge-patch+json"
        )
        code, status, headers = await api.call(
            "POST", f"{PODS}/guarded/eviction",
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "guarded"}},
        )  # fmt: skip
        assert (code, status["reason"]) == (429, "TooManyRequests")
        assert int(headers["Retry-After"]) >= 1


async def test_52_a_fault_of_the_server_is_a_500_that_shows_no_traceback() -> None:
    async def broken(_request: web.BaseRequest) -> web.StreamResponse:
        raise RuntimeError("a secret detail")

    async with running(extensions={"/fairlead/v1": broken}) as api:
        code, status, _ = await api.call("GET", "/fairlead/v1/anything")
        assert (code, status["reason"]) == (500, "InternalError")
        assert "secret" not in status["message"]


async def test_extensions_stand_behind_the_same_token() -> None:
    async def hello(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=f"hello {request.path}")

    async with running(extensions={"/metrics": hello, "/fairlead/v1": hello}) as api:
        assert (await api.call("GET", "/metrics"))[:2] == (200, "hello /metrics")
        assert (await api.call("GET", "/fairlead/v1/a/b"))[1] == "hello /fairlead/v1/a/b"
        assert (await api.call("GET", "/fairlead/v12"))[0] == 404
        assert (await api.call("GET", "/metrics", Authorization="Bearer no"))[0] == 401


async def test_a_stop_does_not_wait_for_idle_connections() -> None:
    limits = ServerLimits(stop_seconds_max=2 * PATIENCE_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with running(limits=limits) as api:
            reader, writer = await api.connect()
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readuntil(b"ok")
        assert await reader.read() == b""
    writer.close()


async def test_the_token_counts_only_as_a_bearer_and_not_from_other_sites() -> None:
    async with running() as api, aiohttp.ClientSession() as bare:
        with_password = api.server.url.replace("://", f"://fairlead:{TOKEN}@")
        async with bare.get(with_password + PODS) as answer:
            assert answer.status == 401
        host = api.server.url.partition("://")[2]
        for origin, code in ((f"http://{host}", 200), ("https://evil.example", 403), ("null", 403)):
            assert (await api.call("GET", PODS, Origin=origin))[0] == code, origin


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", ""])
async def test_a_request_of_another_site_is_refused_for_its_origin(kind: str, origin: str) -> None:
    """Whatever its type: a browser sends text/plain without asking the server first."""
    async with running() as api:
        headers = {"Origin": origin, "Content-Type": kind}
        code, answer, _ = await api.call("POST", PODS, pod("csrf"), **headers)
        assert (code, answer["reason"]) == (403, "Forbidden")
        assert answer["message"] == "requests from pages of other sites are not accepted"
        assert (await api.call("GET", f"{PODS}/csrf"))[0] == 404
        headers["Origin"] = api.server.url
        code, _, _ = await api.call("POST", PODS, pod("csrf"), **headers)
        assert code == (415 if kind == "text/plain" else 201)


async def test_ready_is_what_all_parts_are_and_alive_is_who_answers() -> None:
    failing: list[str] = []
    async with running(not_ready=lambda: failing) as api:
        assert await probes(api) == {"healthz": 200, "livez": 200, "readyz": 200}
        failing.append("scheduler")
        assert await probes(api) == {"healthz": 200, "livez": 200, "readyz": 500}
        _, text, _ = await api.call("GET", "/readyz")
        assert text == ("[+]ping ok\n[-]scheduler failed: reason withheld\nreadyz check failed\n")


async def probes(api: Running) -> dict[str, int]:
    return {name: (await api.call("GET", f"/{name}"))[0] for name in ("healthz", "livez", "readyz")}


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """True when the server ends the connection."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.read()
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


async def test_a_head_that_does_not_come_in_time_ends_its_connection() -> None:
    limits = ServerLimits(connections=ConnectionLimits(100, 50, stranger_seconds_max=1.0))
    heads = (b"", b"GET /healthz HTTP/1.1\r\nX-", b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n")
    for with_tls in (False, True):
        async with running(limits=limits, with_tls=with_tls) as api:
            # who has shown the token stays, and comes first: its time is over before theirs
            assert (await api.call("GET", PODS))[0] == 200
            opened = [await api.connect() for _ in heads]
            for (_, writer), sent in zip(opened, heads, strict=True):
                writer.write(sent)
            for (reader, writer), sent in zip(opened, heads, strict=True):
                assert await is_closed(reader), (with_tls, sent)
                writer.close()
            assert api.server.connections.counts == (0, 1)
            assert (await api.call("GET", PODS))[0] == 200
            assert api.server.connections.counts == (0, 1)


async def test_strangers_keep_out_neither_those_who_are_known_nor_new_ones() -> None:
    limits = ServerLimits(connections=ConnectionLimits(40, 8, stranger_seconds_min=0.05))
    for with_tls in (False, True):
        async with (
            running(limits=limits, with_tls=with_tls) as api,
            api.session.get(f"{api.server.url}{PODS}?watch=1") as watch,
        ):
            held = [await api.connect() for _ in range(60)]
            assert (await api.call("POST", PODS, pod("late")))[0] == 201
            assert b"late" in await watch.content.readline()
            strangers, settled = api.server.connections.counts
            assert strangers <= 8
            assert settled == 2
            for _, writer in held:
                writer.close()


async def test_1500_half_open_connections_keep_nobody_out_and_go_after_their_deadline() -> None:
    """With the server's own limits, but for a shorter deadline."""
    own = dataclasses.replace(ServerLimits().connections, stranger_seconds_max=3.0)
    async with running(limits=ServerLimits(connections=own)) as api:
        held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for _ in range(30):
            opened = await asyncio.gather(*(api.connect() for _ in range(50)))
            for _, writer in opened:
                writer.write(b"GET /healthz HTTP/1.1\r\nX-")
            held += opened
            assert (await api.call("GET", PODS))[0] == 200
            assert api.server.connections.counts[0] <= own.strangers_max
        assert len(held) == 1_500
        reader, writer = await api.connect()  # and a client that has not shown its token yet
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readuntil(b"ok")
        for reader, writer in held:
            assert await is_closed(reader)
            writer.close()
        assert (await api.call("POST", PODS, pod("after")))[0] == 201


async def test_strangers_make_room_before_those_who_are_known() -> None:
    limits = ServerLimits(connections=ConnectionLimits(6, 5))
    async with running(limits=limits) as api:
        request = f"GET {PODS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for is_known in (True,) * 4 + (False,) * 3:
            reader, writer = await api.connect()
            held.append((reader, writer))
            if is_known:
                writer.write(request.encode())
                await reader.readuntil(b"}")
        assert await is_closed(held[4][0])
        assert api.server.connections.counts == (2, 4)
        for _, writer in held:
            writer.close()


async def test_of_those_who_are_known_the_oldest_idle_one_makes_room() -> None:
    limits = ServerLimits(connections=ConnectionLimits(6, 3))
    async with running(limits=limits) as api:
        request = f"GET {PODS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for _ in range(10):
            reader, writer = await api.connect()
            writer.write(request.encode())
            await reader.readuntil(b"}")
            held.append((reader, writer))
        assert (await api.call("GET", PODS))[0] == 200
        assert sum(api.server.connections.counts) <= 6
        assert await is_closed(held[0][0])
        for _, writer in held:
            writer.close()
