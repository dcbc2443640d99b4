"""What members used on a cluster whose nodes do not say it: metrics.k8s.io, and their GPUs.

The kind of metrics.k8s.io is a definition here, so the API server itself answers with the objects
that a metrics-server would make. A server answers as a Prometheus does that scrapes NVIDIA's
exporter. The first leader is killed, and the next one goes on.
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.audited import create
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    CLOCK,
    ended,
    http_client,
    install_kinds,
    job_body,
    running,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import ARGUMENTS, leader, replicas
from tests.unit.history.contract import uses_of

from fairlead.api.jobs.use import MemberUse, decode_use
from fairlead.api.resources import JOBS, POD_METRICS
from fairlead.api.status import ApiError
from fairlead.api.values.times import format_time
from fairlead.history.sqlite import SqliteHistory
from fairlead.kube.client import HttpClient
from fairlead.runtime.kept.history import UseQuery

pytestmark = pytest.mark.kubernetes
PODS = [f"measured-1-worker-{index}" for index in range(2)]
GIB = 1 << 30
KIND = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, in place of metrics-server"},
    },
    "spec": {
        "group": "metrics.k8s.io", "scope": "Namespaced",
        "names": {"plural": "pods", "kind": "PodMetrics", "listKind": "PodMetricsList"},
        "versions": [{
            "name": "v1beta1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True,
            }},
        }],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    await create(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", KIND)

    async def is_served() -> bool:
        try:
            return not (await client.list(POD_METRICS, namespace="default")).items
        except ApiError:
            return False

    await until(is_served)
    yield client
    await client.close()


@contextmanager
def prometheus() -> Iterator[str]:
    """Two GPUs of each member, half busy; SM occupancy is not exported."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"][0]
            amounts = {"count": "2", "UTIL)": "100", "USED)": "2048", "USAGE)": "600"}
            found = next((value for key, value in amounts.items() if key in query), None)
            result = [] if found is None else [
                {"metric": {"namespace": "gpu-operator", "pod": "dcgm-exporter",
                            "exported_namespace": "default", "exported_pod": pod},
                 "value": [0, found]} for pod in PODS
            ]  # fmt: skip
            body = json.dumps({"data": {"resultType": "vector", "result": result}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def measure(client: HttpClient) -> None:
    """Write, until cancelled, what a metrics-server answers."""
    while True:
        for pod in PODS:
            body = {
                "metadata": {"name": pod, "labels": {"fairlead.dev/attempt": "1"}},
                "timestamp": format_time(CLOCK.now()), "window": "1s",
                "containers": [{"name": "main", "usage": {"cpu": "500m", "memory": "1Gi"}}],
            }  # fmt: skip
            try:
                await client.create(POD_METRICS, body, namespace="default")
            except ApiError:
                change = {"timestamp": body["timestamp"]}
                await client.patch(POD_METRICS, pod, change, namespace="default")
        await asyncio.sleep(1)


async def test_members_are_sampled_by_every_leader_and_kept(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    file, settings = tmp_path / "history.db", tmp_path / "settings.yaml"
    with prometheus() as url:
        settings.write_text(json.dumps(
            {"use": {"sampleSeconds": 1}, "doctor": {"enabled": False, "prometheus": url}}
        ))  # fmt: skip
        arguments = (*ARGUMENTS, "--settings", str(settings))
        async with (
            virtual_nodes(client, 2),
            replicas(cluster, history=str(file), arguments=arguments) as world,
            asyncio.TaskGroup() as group,
        ):
            await world.start()
            await leader(client, world)
            await client.create(JOBS, job_body("measured", 2, seconds=14), namespace="default")
            await running(client, "measured", 2)
            measuring = group.create_task(measure(client))
            await asyncio.sleep(4)
            world.kill(await leader(client, world))
            await world.start()
            await ended(client, "measured")
            measuring.cancel()
            found = await until_kept(file)
    for use in found.values():
        assert use.cpu_milliseconds is not None
        assert use.gpu_milliseconds is not None
        assert use.gpu_busy_milliseconds is not None
        assert 500 <= use.cpu_milliseconds <= use.milliseconds // 2 + 500
        assert (use.memory_peak_bytes, use.is_partial) == (GIB, True)
        assert abs(use.gpu_busy_milliseconds * 2 - use.gpu_milliseconds) <= 2
        assert (use.gpu_memory_peak_bytes, use.gpu_power_milliwatts) == (2 * GIB, 300_000)
        assert use.gpu_occupancy_permille is None


async def until_kept(file: Path) -> dict[str, MemberUse]:
    found: dict[str, MemberUse] = {}

    async def are_kept() -> bool:
        history = SqliteHistory.open(file, runner=asyncio.to_thread)
        try:
            records = await uses_of(history, UseQuery("default", "measured"))
        finally:
            await history.close()
        found.update((each.task, use) for each in records
                     if (use := decode_use(each.document)) is not None)  # fmt: skip
        return len(found) == 2

    await until(are_kept)
    return found
