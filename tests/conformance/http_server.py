"""An embedded API server of the test's own: for other limits, extras, or raw connections."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.patience import PATIENCE_SECONDS

from fairlead.embedded.http.server import Server, serve
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.kube.kubeconfig import write_kubeconfig
from fairlead.runtime.clock import SystemClock
from fairlead.webhook.certificates import Times, make
from fairlead.webhook.tls import load_pair, server_context

TOKEN = "secret-of-the-test"
# A test that waits for nothing fails, not hangs; a long watch may take long on a busy machine.
PATIENCE = aiohttp.ClientTimeout(sock_connect=PATIENCE_SECONDS, sock_read=PATIENCE_SECONDS)


@dataclass(frozen=True, slots=True)
class Running:
    """A server and a session that carries its token."""

    service: ApiService
    server: Server
    session: aiohttp.ClientSession
    authority: bytes = b""

    def write_kubeconfig(self, path: Path) -> None:
        """Write what kubectl needs; kubectl sends a token over TLS only."""
        write_kubeconfig(path, self.server.url, TOKEN, "x", authority=self.authority)

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Return (code, decoded body or text, headers)."""
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            given.setdefault("Content-Type", "application/json")
        url = self.server.url + path
        async with self.session.request(method, url, data=data, headers=given) as response:
            raw = await response.read()
            kind = response.headers.get("Content-Type", "")
            value = msgspec.json.decode(raw) if "json" in kind else raw.decode()
            return response.status, value, response.headers

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a bare connection: TCP, also where the server expects TLS."""
        return await asyncio.open_connection(self.server.host, self.server.port)


@asynccontextmanager
async def running(
    store: Store | None = None, *, with_tls: bool = False, **options: Any
) -> AsyncIterator[Running]:
    """Serve an empty cluster, in memory unless told otherwise, with these options of `serve`."""
    authority, trust = b"", None
    if with_tls:
        authority, pair = make(("127.0.0.1",), now=SystemClock().now(), times=Times())
        options["tls"] = server_context()
        load_pair(options["tls"], pair)
        trust = ssl.create_default_context(cadata=authority.decode())
    rng = random.Random(7)
    numbers = itertools.count(1)
    store = store or Store.open(None)
    service = ApiService(
        store,
        Registry.with_builtins(),
        SystemClock(),
        ids=lambda: f"00000000-0000-4000-8000-{next(numbers):012x}",
        rng=rng,
    )
    await service.bootstrap()
    async with asyncio.TaskGroup() as group:
        sweeping = group.create_task(service.run())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            serve(service, token=TOKEN, **options) as server,
            aiohttp.ClientSession(
                headers=headers, timeout=PATIENCE, connector=aiohttp.TCPConnector(ssl=trust or True)
            ) as session,
        ):
            yield Running(service, server, session, authority)
        sweeping.cancel()


async def eventually(condition: Callable[[], object]) -> None:
    """Return once the condition holds; TimeoutError after some seconds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 -- what the server does has no event to wait for
            await asyncio.sleep(0.005)


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A small pod."""
    containers = spec.pop("containers", [{"name": "main", "image": "none"}])
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": containers, **spec},
    }


def config(name: str, **labels: str) -> dict[str, Any]:
    """A small ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {"key": "value"},
    }


def widget_crd() -> dict[str, Any]:
    """The definition of a small custom kind with printer columns and a scale."""
    replicas = {"type": "integer"}
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {"size": {"type": "integer"}, "replicas": replicas},
            },
            "status": {
                "type": "object",
                "properties": {"state": {"type": "string"}, "replicas": replicas},
            },
        },
    }
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "State", "type": "string", "jsonPath": ".status.state", "priority": 1},
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {
                "plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wg"],
                "categories": ["toys"],
            },
            "versions": [{
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": scale},
                "additionalPrinterColumns": columns,
            }],
        },
    }  # fmt: skip


def widget(name: str, **spec: Any) -> dict[str, Any]:
    """An object of that kind."""
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }
