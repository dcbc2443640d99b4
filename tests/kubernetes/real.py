"""A real API server as a conformance target, emptied between tests.

The suite assumes an empty cluster. `Cleaner` brings one back: it deletes every object that was not
there when the control plane started, without grace and without finalizers, and waits for those
whose absence the next test relies on.

A real server serves a custom kind some time after its definition was accepted, an embedded one at
once. The suite is written without waits for that: here a POST of a definition returns once the kind
is served. That difference stands in the list of accepted ones.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from tests.conformance.over_http import HttpTarget
from tests.conformance.target import Answer
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = {"Content-Type": "application/merge-patch+json"}
STEP_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind whose objects tests make: all of them, and one of them."""

    collection: str
    prefix: str
    plural: str

    def path(self, metadata: Mapping[str, Any]) -> str:
        """The path of one object."""
        namespace = metadata.get("namespace")
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.prefix}{middle}/{self.plural}/{metadata['name']}"


def _kind(prefix: str, plural: str) -> Kind:
    return Kind(f"{prefix}/{plural}", prefix, plural)


#: In the order of deletion: what creates or holds others comes first.
KINDS = (
    _kind("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    _kind("/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    _kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    _kind("/api/v1", "namespaces"),
    _kind("/apis/policy/v1", "poddisruptionbudgets"),
    _kind("/api/v1", "resourcequotas"),
    _kind("/api/v1", "limitranges"),
    _kind("/api/v1", "configmaps"),
    _kind("/api/v1", "secrets"),
    _kind("/api/v1", "services"),
    _kind("/api/v1", "serviceaccounts"),
    _kind("/api/v1", "persistentvolumeclaims"),
    _kind("/api/v1", "pods"),
    _kind("/api/v1", "nodes"),
    _kind("/api/v1", "events"),
    _kind("/apis/coordination.k8s.io/v1", "leases"),
    _kind("/apis/scheduling.k8s.io/v1", "priorityclasses"),
)


class RealTarget(HttpTarget):
    """A real API server."""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        answer = await super().request(method, path, body, query=query, headers=headers)
        if method == "POST" and path == CRDS and answer.status == 201 and not query:
            return await self._served(answer)
        return answer

    async def _served(self, made: Answer) -> Answer:
        """Return the definition once its kind is served."""
        spec = made.json["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
        name = made.json["metadata"]["name"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            for wanted in (f"{path}/{spec['names']['plural']}", path):
                while (await super().request("GET", wanted)).status != 200:  # noqa: ASYNC110
                    await asyncio.sleep(STEP_SECONDS)  # another process does the work
        now = await super().request("GET", f"{CRDS}/{name}")
        return Answer(made.status, now.json, now.body, made.headers)


#: What a fresh cluster holds.
_SYSTEM = (
    "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system",
    "/api/v1/namespaces/kube-public", "/api/v1/namespaces/kube-node-lease",
    "/api/v1/namespaces/default/services/kubernetes",
    "/apis/scheduling.k8s.io/v1/priorityclasses/system-cluster-critical",
    "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
)  # fmt: skip
_SYSTEM_PARTS = (
    "/namespaces/kube-system/leases/apiserver-",
    "/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    "/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking",
)


def _is_system(path: str) -> bool:
    return path in _SYSTEM or any(part in path for part in _SYSTEM_PARTS)


class Cleaner:
    """Brings an empty cluster back."""

    def __init__(self, target: HttpTarget) -> None:
        self._target = target

    async def _list(self, kind: Kind) -> list[dict[str, Any]]:
        answer = await self._target.request("GET", kind.collection)
        return [item["metadata"] for item in answer.json["items"]] if answer.status == 200 else []

    async def clean(self) -> None:
        """Delete what a fresh cluster does not hold, and return once it is gone."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._sweep():  # noqa: ASYNC110 -- another process does the work
                await asyncio.sleep(STEP_SECONDS)

    async def _sweep(self) -> int:
        found = 0
        for kind in KINDS:
            for metadata in await self._list(kind):
                path = kind.path(metadata)
                if not _is_system(path):
                    found += 1
                    await self._remove(kind, path, metadata)
        return found

    async def _remove(self, kind: Kind, path: str, metadata: Mapping[str, Any]) -> None:
        free = {"metadata": {"finalizers": None}}
        if kind.plural == "customresourcedefinitions":
            await self._free_instances(path)
        elif metadata.get("finalizers"):
            await self._target.request("PATCH", path, free, headers=MERGE)
        query = {"gracePeriodSeconds": "0"}
        if kind.plural == "pods" or not metadata.get("deletionTimestamp"):
            await self._target.request("DELETE", path, query=query)

    async def _free_instances(self, path: str) -> None:
        crd = (await self._target.request("GET", path)).json
        spec = crd.get("spec")
        if not spec:
            return
        prefix = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
        kind = _kind(prefix, spec["names"]["plural"])
        for metadata in await self._list(kind):
            if metadata.get("finalizers"):
                free = {"metadata": {"finalizers": None}}
                await self._target.request("PATCH", kind.path(metadata), free, headers=MERGE)


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[RealTarget]:
    """A connection to the real server, as the tester."""
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    connector = aiohttp.TCPConnector(ssl=context)
    headers = {"Authorization": f"Bearer {plane.token}"}
    # A test that waits for nothing fails, not hangs; a long watch may take long on a busy machine.
    timeout = aiohttp.ClientTimeout(sock_connect=20, sock_read=20)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        yield RealTarget(session, plane.url)
