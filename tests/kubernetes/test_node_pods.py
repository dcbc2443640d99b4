"""Pods for facts of nodes on a real API server; a hollow kubelet runs the script of each pod."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.audited import create
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.kubelet import Kubelet, kubelet
from tests.kubernetes.operating import http_client, until
from tests.kubernetes.own_plane import own_plane

from fairlead.cli.connection.transport import Api
from fairlead.doctor.readers.node_pods import OWNER, POD_SECONDS_MAX, NodePodReader, PodSettings
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection

pytestmark = pytest.mark.kubernetes
SPACE = "facts"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
MERGE = "application/merge-patch+json"
COMMAND = ("doctor", "--node-pods", "1", "-n", SPACE, "--interval", "0", "--only", "SYS-0*",
           "-o", "json")  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await create(client, "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    for number, kernel in enumerate(("6.1.0", "6.1.0", "6.6.0")):
        name = f"node-{number}"
        await create(client, "/api/v1/nodes", {"metadata": {"name": name}})
        info = dict.fromkeys(
            ("machineID", "systemUUID", "bootID", "osImage", "containerRuntimeVersion",
             "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"), "x",
        ) | {"kernelVersion": kernel}  # fmt: skip
        await patch(client, f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": info}})
    yield client
    for pod in await pods(client):
        await confirm_end(client, pod)
    await client.request("DELETE", "/api/v1/nodes")
    await client.request("DELETE", f"/api/v1/namespaces/{SPACE}")

    async def is_gone() -> bool:
        spaces = json.loads(await client.request("GET", "/api/v1/namespaces"))["items"]
        return all(each["metadata"]["name"] != SPACE for each in spaces)

    await until(is_gone)
    await client.close()


async def patch(client: HttpClient, path: str, body: Any) -> None:
    await client.request("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE)


async def confirm_end(client: HttpClient, pod: dict[str, Any]) -> None:
    """Remove a pod as its kubelet does once its containers have ended."""
    path = f"{PODS}/{pod['metadata']['name']}"
    await client.request("DELETE", path, body=b'{"gracePeriodSeconds": 0}')


async def pods(client: HttpClient) -> list[dict[str, Any]]:
    return json.loads(await client.request("GET", PODS))["items"]


@asynccontextmanager
async def running(cluster: ControlPlane, client: HttpClient) -> AsyncGenerator[Kubelet]:
    """Run the command of each pod on this machine, and end the pod as a kubelet does."""
    with kubelet(cluster) as served:
        await served.serve_nodes(client)

        async def be_kubelet() -> None:
            while True:
                for pod in await pods(client):
                    name = pod["metadata"]["name"]
                    if name not in served.logs:
                        command = pod["spec"]["containers"][0]["command"]
                        done = await asyncio.to_thread(
                            subprocess.run, command, capture_output=True, check=True
                        )
                        served.logs[name] = done.stdout
                        await patch(client, f"{PODS}/{name}/status",
                                    {"status": {"phase": "Succeeded"}})  # fmt: skip
                await asyncio.sleep(0.2)

        task = asyncio.create_task(be_kubelet())
        yield served
        task.cancel()


@pytest.fixture
def shell(cluster: ControlPlane, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(cluster.kubeconfig())
    return shell


async def test_facts_of_a_node_of_each_class_are_checked_and_no_pod_stays(
    cluster: ControlPlane, client: HttpClient, shell: Shell
) -> None:
    async with running(cluster, client) as served:
        done = await asyncio.to_thread(shell.run, *COMMAND, "--nodes", "3000", code=None)
        assert len(served.logs) == 2
    report = json.loads(done.out)
    assert "SYS-05" in {each["id"] for each in report["findings"]} | set(report["passed"])
    limits = [each["subject"] for each in report["findings"] if each["id"] == "SYS-01"]
    assert {each.split()[0] for each in limits} == {"node-0", "node-2"}, "1,024 entries are few"
    assert await pods(client) == []


async def test_a_namespace_that_enforces_pod_security_is_named(
    client: HttpClient, shell: Shell
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    await patch(client, f"/api/v1/namespaces/{SPACE}", {"metadata": {"labels": labels}})
    done = await asyncio.to_thread(shell.run, *COMMAND, code=3)
    reasons = {each["reason"] for each in json.loads(done.out)["unknown"]}
    assert len(reasons) == 1
    assert f"namespace {SPACE} enforces Pod Security" in reasons.pop()
    assert await pods(client) == []


async def killed(
    client: HttpClient, shell: Shell, number: signal.Signals, is_there: Callable[[int], bool]
) -> int:
    """Start the doctor, whose pods never end, send it a signal, and return its exit code."""
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-m", "fairlead", *COMMAND], env=shell.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    async def has_pods() -> bool:
        assert process.poll() is None
        return is_there(len(await pods(client)))

    await until(has_pods)
    os.kill(process.pid, number)
    return await asyncio.to_thread(process.wait)


async def test_ctrl_c_deletes_the_pods_and_a_kill_leaves_them_to_the_next_run(
    cluster: ControlPlane, client: HttpClient, shell: Shell
) -> None:
    assert await killed(client, shell, signal.SIGINT, lambda count: count == 2) == 130
    interrupted = await pods(client)
    assert all("deletionTimestamp" in each["metadata"] for each in interrupted)
    for pod in interrupted:
        await confirm_end(client, pod)

    assert await killed(client, shell, signal.SIGKILL, lambda count: count == 2) == -9
    left = await pods(client)
    assert len(left) == 2
    assert all(each["spec"]["activeDeadlineSeconds"] == POD_SECONDS_MAX for each in left)
    assert all(OWNER.items() <= each["metadata"]["labels"].items() for each in left)
    api = Api(load_connection(path=cluster.kubeconfig()))

    def send(method: str, path: str, query: Any, body: object = None) -> bytes:
        return api.request(method, path, query=query, body=body).body

    for later, are_deleted in ((0.0, False), (1_000.0, True)):
        settings = PodSettings(1, SPACE, "none", "run-2")
        reader = NodePodReader(send, settings, wall=lambda later=later: time.time() + later)
        await asyncio.to_thread(reader.read, ())
        assert reader.problems == []
        found = ["deletionTimestamp" in each["metadata"] for each in await pods(client)]
        assert found == [are_deleted] * 2
    api.close()
