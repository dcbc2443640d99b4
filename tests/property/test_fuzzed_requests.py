"""Requests that nobody should send: each is answered as an API server answers, none with a fault of
the server, and what it stored is what its log says.

FAIRLEAD_RANDOM=1 explores; FAIRLEAD_EXAMPLES says how long (default 40 cases of up to 25 requests).
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.embedded import EmbeddedTarget, embedded_target
from tests.conformance.http_server import config, pod, widget, widget_crd
from yarl import URL

from fairlead.embedded.storage.store import Store, StoreOptions
from fairlead.embedded.storage.wal import WalOptions

pytestmark = pytest.mark.e2e
EXAMPLES = int(os.environ.get("FAIRLEAD_EXAMPLES", "40"))
ANSWER_SECONDS_MAX = 10.0
#: Small, so that the log is compacted in the middle of a case.
OPTIONS = StoreOptions(history_max=50, log=WalOptions(compact_bytes_min=20_000))
NS = "/api/v1/namespaces/default"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def _node() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {}}


def _lease() -> dict[str, Any]:
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15}
    api = "coordination.k8s.io/v1"
    return {"apiVersion": api, "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}


def _budget() -> dict[str, Any]:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}
    api = "policy/v1"
    return {
        "apiVersion": api, "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec,
    }  # fmt: skip


#: A body that is right, and where it goes.
BODIES: list[tuple[str, dict[str, Any]]] = [
    (f"{NS}/configmaps", config("a", x="y")),
    (f"{NS}/pods", pod("a", nodeName="n", labels={"a": "b"})),
    (f"{NS}/pods/a/binding", {"target": {"name": "n"}, "metadata": {"name": "a"}}),
    (f"{NS}/pods/a/eviction", {"metadata": {"name": "a"}}),
    (f"{NS}/secrets", {"metadata": {"name": "s"}, "stringData": {"k": "v"}}),
    (f"{NS}/services", {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
    (f"{NS}/events", {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}),
    ("/api/v1/nodes", _node()),
    ("/api/v1/namespaces", {"metadata": {"name": "other"}}),
    ("/apis/coordination.k8s.io/v1/namespaces/default/leases", _lease()),
    ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", _budget()),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "p"}, "value": 1}),
    (CRDS, widget_crd()),
    (WIDGETS, widget("a", replicas=2)),
    (HOOKS, {"metadata": {"name": "h"}, "webhooks": []}),
    ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}}),
]
SUFFIXES = [
    "",
    "/a",
    "/a/status",
    "/a/scale",
    "/a/log",
    "/a/nothing",
    "/a/../a",
    "/%00",
    "/%ff",
    "//",
]
METHODS = ["POST", "PUT", "PATCH", "DELETE", "GET", "OPTIONS", "HEAD"]
TYPES = [
    "application/json", "application/merge-patch+json", "application/json-patch+json",
    "application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/yaml",
    "application/vnd.kubernetes.protobuf", "text/plain", "application/json; charset=latin-1", "x",
]  # fmt: skip
QUERIES = [
    "limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector",
    "fieldSelector", "dryRun", "fieldValidation", "propagationPolicy", "gracePeriodSeconds",
    "fieldManager", "force", "pretty", "allowWatchBookmarks", "tailLines", "sinceSeconds",
]  # fmt: skip
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["0", "1", "-1", "", "All", "true", "a=b", "a in (", "!a,b", "spec.nodeName=n", "Strict",
     "Foreground", "Exact", "NotOlderThan", "99999999999", "%", "é"]
)  # fmt: skip
KEYS = st.sampled_from(
    ["metadata", "spec", "status", "name", "namespace", "labels", "annotations", "finalizers",
     "ownerReferences", "uid", "resourceVersion", "generateName", "containers", "env", "resources",
     "limits", "cpu", "size", "replicas", "versions", "schema", "$patch", "op", "path", "value", ""]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "A b", "1e999", "-1", "9" * 40, "\u0000", "é" * 300, "None", "All"])
    | st.text(max_size=8)
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"])},
        optional={
            "path": st.sampled_from(["", "/", "/metadata/labels/x", "/spec/~", "/a/0", "/data/-"]),
            "from": st.sampled_from(["/metadata", "/spec", "nowhere"]),
            "value": JSON,
        },
    ),
    max_size=4,
)
RAW = st.sampled_from(
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"a":"\xff"}', b"[" * 5_000, b'{"a":' * 3_000,
     b'{"metadata":{"name":"a","name":"b"}}', b'{"metadata":1e400}',
     b'{"spec":' + b"9" * 5_000 + b"}",
     b'{"metadata":{"name":"\\u0000"}}', b'{"metadata":{"name":"\\ud800"}}', b"k8s\x00\x01\x02\xff",
     b"a: &a [*a]", b"--- {}\n--- {}"]
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request; `path` is percent-encoded already."""

    method: str
    path: str
    body: bytes | None
    media_type: str
    query: dict[str, str]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*at, key))


def _mostly(usual: Any, others: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 4).flatmap(
        lambda n: st.sampled_from(others) if n == 4 else st.just(usual)
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request that was right before something happened to it, mostly."""
    collection, right = draw(st.sampled_from(BODIES))
    method = draw(st.sampled_from(METHODS))
    kind = draw(st.integers(0, 9))
    body: bytes | None
    if kind < 6:
        value = copy.deepcopy(right)
        for _ in range(draw(st.integers(0, 2))):
            place = draw(st.sampled_from(list(_places(value))))
            if not place:
                continue
            parent = value
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = draw(JSON)
        body = msgspec.json.encode(value)
    elif kind == 6:
        body = msgspec.json.encode(draw(OPERATIONS))
    elif kind == 7:
        body = msgspec.json.encode(draw(JSON))
    else:
        body = draw(RAW)
    name = right.get("metadata", {}).get("name", "a")
    own = "" if method == "POST" else f"/{name}"
    if method == "PATCH":
        media_type = TYPES[2] if kind == 6 else draw(st.sampled_from([TYPES[1], TYPES[3]]))
    else:
        media_type = TYPES[0]
    # Most requests have one thing wrong; with more, the first is all that is looked at.
    return Request(
        method,
        collection + draw(_mostly(own, SUFFIXES)),
        body,
        draw(_mostly(media_type, TYPES)),
        draw(st.dictionaries(st.sampled_from(QUERIES), TEXTS, max_size=draw(_mostly(0, [1, 2])))),
    )


def _is_encodable(request: Request) -> bool:
    try:
        "".join(request.query.values()).encode()
    except UnicodeEncodeError:
        return False
    return True


async def _send(target: EmbeddedTarget, request: Request) -> None:
    url = URL(target.url + request.path, encoded=True).update_query(request.query)
    headers = {"Content-Type": request.media_type}
    sent = target.session.request(request.method, url, data=request.body, headers=headers)
    async with sent as response:
        raw = await response.read()
        status = response.status
    told = f"{request}: {status} {raw[:300]!r}"
    # 504 is how the real server asks to come back for a version of the future.
    assert status < 500 or (status == 504 and "resourceVersion" in request.query), told
    if status < 400 or request.method == "HEAD" or raw == b"404 page not found\n":
        return
    answer = msgspec.json.decode(raw)
    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Failure", status), told


Contents = dict[str, dict[tuple[str, str], tuple[int, bytes]]]


def contents(store: Store) -> Contents:
    found = {
        table: {record.key: (record.version, record.data) for record in store.records(table)}
        for table in store.table_names()
    }
    return {table: records for table, records in found.items() if records}


async def _play(directory: Path, requests: Sequence[Request]) -> tuple[int, Contents]:
    store = Store.open(directory, OPTIONS)
    try:
        async with embedded_target(store) as target:
            for path, body in BODIES:
                if "binding" not in path and "eviction" not in path:
                    await target.request("POST", path, body)
            for request in requests:
                try:
                    async with asyncio.timeout(ANSWER_SECONDS_MAX):
                        await _send(target, request)
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise AssertionError(f"{request}: no answer: {error!r}") from error
    finally:
        await store.close()
    # The server's own writes may have been on their way to the log until then.
    return store.version, contents(store)


async def _replayed(directory: Path) -> tuple[int, Contents]:
    store = Store.open(directory, OPTIONS)
    try:
        return store.version, contents(store)
    finally:
        await store.close()


@settings(
    deadline=None, max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    drawn=st.lists(requests().filter(_is_encodable), min_size=5, max_size=25),
    torn=st.binary(max_size=64),
)
def test_no_request_breaks_the_server_or_parts_the_store_from_its_log(
    drawn: list[Request], torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        written = asyncio.run(_play(directory, drawn))
        assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
        assert asyncio.run(_replayed(directory)) == written
        # What a power cut leaves of a write that nobody was told of.
        last = max(directory.glob("log-*"), key=lambda path: int(path.name.partition("-")[2]))
        with last.open("ab") as log:
            log.write(torn)
        assert asyncio.run(_replayed(directory)) == written
