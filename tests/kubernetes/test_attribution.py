"""Modelled bytes per client of a real API server, beside the bytes that each client counted."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.audited import (
    agent,
    answered,
    audited_plane,
    create,
    make_account,
    may_read_all,
    size,
    written_since,
)
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client

from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
NAMESPACES, PODS, CONFIG_MAPS, EVENTS, NODES = 3, 80, 60, 90, 30
CLIENTS, TOP, ERROR_MAX = 12, 10, 0.2
#: What a client may do, each as a path that one request reads; `{}` is a namespace.
READS = (
    "/api/v1/pods", "/api/v1/pods?resourceVersion=0", "/api/v1/pods?limit=50",
    "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/pods/p7", "/api/v1/configmaps",
    "/api/v1/namespaces/{}/configmaps", "/api/v1/namespaces/{}/configmaps/c3", "/api/v1/events",
    "/api/v1/events?limit=20", "/api/v1/nodes", "/api/v1/nodes?limit=5", "/api/v1/nodes/n3",
)  # fmt: skip
PAGED = "/api/v1/pods?limit=40"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Path]]:
    yield from audited_plane(tmp_path_factory)


@pytest.fixture
async def client(audited: tuple[ControlPlane, Path]) -> AsyncIterator[HttpClient]:
    client = http_client(audited[0])
    yield client
    await client.close()


async def fill(client: HttpClient) -> None:
    """Create objects of different sizes, as many in each namespace."""
    for number in range(NODES):
        labels = {f"example.com/label-{each}": "x" * 40 for each in range(number % 7)}
        await create(
            client, "/api/v1/nodes", {"metadata": {"name": f"n{number}", "labels": labels}}
        )
    for name in (f"team-{each}" for each in range(NAMESPACES)):
        await create(client, "/api/v1/namespaces", {"metadata": {"name": name}})
        path = f"/api/v1/namespaces/{name}"
        for number in range(PODS):
            variables = [{"name": f"V{each}", "value": "x" * 90} for each in range(number % 9)]
            container = {"name": "c", "image": "i", "env": variables}
            body = {"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}}
            await create(client, f"{path}/pods", body)
        for number in range(CONFIG_MAPS):
            data = {"text": "x" * 300 * (number % 11)}
            await create(client, f"{path}/configmaps", {"metadata": {"name": f"c{number}"}} | {
                "data": data})  # fmt: skip
        for number in range(EVENTS):
            await create(client, f"{path}/events", {
                "metadata": {"name": f"e{number}"}, "message": "x" * (number % 13) * 50,
                "involvedObject": {"kind": "Pod", "name": "p0", "namespace": name},
            })  # fmt: skip


async def work(client: HttpClient, rng: random.Random, scale: int) -> list[int]:
    """Send a random mixture of requests and return the bytes of each answer."""
    received: list[int] = []
    for path in rng.sample(READS, 3):
        for _ in range(rng.randint(scale, 3 * scale)):
            name = f"team-{rng.randrange(NAMESPACES)}"
            received.append(len(await client.request("GET", path.format(name))))
    if rng.random() < 0.5:
        token = None
        while token != "":
            more = f"&continue={urllib.parse.quote(token)}" if token else ""
            answer = await client.request("GET", PAGED + more)
            received.append(len(answer))
            token = json.loads(answer)["metadata"].get("continue", "")
    if rng.random() < 0.5:
        for number in range(scale):
            answer = await client.request(
                "PATCH", f"/api/v1/namespaces/team-0/configmaps/c{number % CONFIG_MAPS}",
                body=b'{"metadata":{"labels":{"seen":"%d"}}}' % number,
                content_type="application/merge-patch+json",
            )  # fmt: skip
            received.append(len(answer))
    return received


@pytest.mark.parametrize("seed", [1, 2])
async def test_modelled_bytes_are_near_what_each_client_received(
    audited: tuple[ControlPlane, Path], client: HttpClient, tmp_path: Path, seed: int
) -> None:
    plane, log = audited
    namespace, rng = f"load-{seed}", random.Random(seed)
    if seed == 1:
        await fill(client)
    await may_read_all(client, namespace)
    names = [f"client-{number:02d}" for number in range(CLIENTS)]
    agents: dict[str, HttpClient] = {}
    for name in names:
        await make_account(client, namespace, name)
        agents[name] = await agent(plane, client, namespace, name)

    pages = (tmp_path / "before.txt", tmp_path / "after.txt")
    offset = size(log)
    pages[0].write_bytes(bytes(await client.request("GET", "/metrics")))
    received: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for number, name in enumerate(names):
        sizes = await work(agents[name], rng, 2 + number * number // 3)
        received[name], answers[name] = sum(sizes), len(sizes)
        await agents[name].close()
    pages[1].write_bytes(bytes(await client.request("GET", "/metrics")))
    part = tmp_path / "part.log"
    await written_since(
        log, offset, part,
        lambda es: all(
            len(answered(es, account=f"{namespace}:{name}")) >= answers[name] for name in names
        ),
    )  # fmt: skip

    shell = Shell(tmp_path)
    arguments = [word for page in pages for word in ("--metrics", str(page))]
    counts = {"pods": NAMESPACES * PODS, "events": NAMESPACES * EVENTS, "nodes": NODES,
              "namespaces": NAMESPACES, "configmaps": NAMESPACES * CONFIG_MAPS}  # fmt: skip
    objects = ",".join(f"{name}={count}" for name, count in counts.items())
    result = await asyncio.to_thread(
        shell.run, "doctor", "audit", *arguments, "--objects", objects, "-o", "json", str(part),
        code=None,
    )  # fmt: skip
    modelled: Counter[str] = Counter()
    for caller in json.loads(result.out)["callers"]:
        workload = caller["workload"].removeprefix(f"{namespace}/")
        if workload in received:
            modelled[workload] += caller["bytes"]
    errors = {name: modelled[name] / received[name] - 1 for name in names}
    assert {name: error for name, error in errors.items() if abs(error) > ERROR_MAX} == {}

    def dearest(counts: Counter[str]) -> list[str]:
        return [name for name, _ in counts.most_common(TOP)]

    assert dearest(modelled) == dearest(received), errors
