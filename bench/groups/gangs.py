"""Whole-node gangs on 7,500 nodes of a real control plane: Fairlead beside the stock scheduler.

From the request that starts it until the last pod is bound, as a watch tells it: one Job for us
(the controllers are a process of their own), as many pods for kube-scheduler, whose client's limits
are raised. `raw` is the server's own limit: pods created with their node by 64 connections.
All four take turns on one server; nodes are API objects, and nobody runs the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import uvloop
from tests.kubernetes.controlplane import (
    ControlPlane,
    NoControlPlane,
    control_plane,
    find_binaries,
)

from bench.harness import Report
from bench.objects import gang_body, node_body, pod_body
from fairlead.api import crd
from fairlead.api.resources import CRDS, JOBS, NODES, PODS
from fairlead.api.status import NotFound
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.transport import HttpOptions

NODE_COUNT = 7_500
MEMBERS = 1_000
ROUNDS = 3
CONNECTIONS = 64
BOUND_SECONDS_MAX = 120.0
GPU = "nvidia.com/gpu"


def run(report: Report) -> None:
    """Measure raw creates, kube-scheduler, direct and pinned; one line where there is no server."""
    try:
        find_binaries()
    except NoControlPlane as reason:
        report.skip("gangs", str(reason))
        return
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory,
        control_plane(Path(directory), scheduler=True) as plane,
    ):
        times = uvloop.run(_measure(plane))
    medians = {way: statistics.median(each) for way, each in times.items()}
    for way, taken in times.items():
        text = ", ".join(f"{seconds:.2f}" for seconds in taken)
        print(f"{way}: {text} s for {MEMBERS} members")
        report.add(f"gangs.{way}", medians[way], "s")
    report.add("gangs.direct_ratio", medians["direct"] / medians["plain"], "x")
    report.add("gangs.pinned_ratio", medians["pinned"] / medians["plain"], "x")
    report.add("gangs.direct_of_raw", medians["raw"] / medians["direct"], "x")


async def _measure(plane: ControlPlane) -> dict[str, list[float]]:
    client = HttpClient(load_connection(path=plane.kubeconfig()), HttpOptions())
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    await _each([_node(i) for i in range(NODE_COUNT)], lambda body: client.create(NODES, body))
    times: dict[str, list[float]] = {"raw": [], "plain": [], "direct": [], "pinned": []}
    for turn in range(ROUNDS):
        times["raw"].append(await _timed(client, _pods(client, f"raw-{turn}", on_nodes=True)))
        times["plain"].append(await _timed(client, _pods(client, f"plain-{turn}", on_nodes=False)))
        for way in ("direct", "pinned"):
            with _controllers(plane, way) as ready:
                await ready()
                times[way].append(await _timed(client, _job(client, f"{way}-{turn}")))
                await client.delete(JOBS, f"{way}-{turn}", namespace="default")
                await _emptied(client)
                await _gone(client, f"{way}-{turn}")
    await client.close()
    return times


def _node(number: int) -> dict[str, Any]:
    body = node_body(f"n{number:05d}")
    ready = {"type": "Ready", "status": "True", "reason": "AsExpected", "message": ""}
    body["status"]["conditions"] = [ready]
    return body


def _pods(client: HttpClient, prefix: str, *, on_nodes: bool) -> Callable[[], Awaitable[None]]:
    """Start by creating pods of the size of a gang's members, but with no owner to be collected."""

    def pod(number: int) -> dict[str, Any]:
        body = pod_body(f"{prefix}-{number}", node=f"n{number:05d}" if on_nodes else "")
        del body["metadata"]["ownerReferences"]
        body["spec"]["containers"][0]["resources"] = {"limits": {GPU: "8"}}
        return body

    async def start() -> None:
        bodies = [pod(number) for number in range(MEMBERS)]
        await _each(bodies, lambda body: client.create(PODS, body, namespace="default"))

    return start


def _job(client: HttpClient, name: str) -> Callable[[], Awaitable[None]]:
    async def start() -> None:
        await client.create(JOBS, gang_body(name, MEMBERS, gpus=8), namespace="default")

    return start


async def _each(
    bodies: list[dict[str, Any]], write: Callable[[dict[str, Any]], Awaitable[Any]]
) -> None:
    left = iter(bodies)

    async def worker() -> None:
        for body in left:
            await write(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(worker())


async def _timed(client: HttpClient, start: Callable[[], Awaitable[None]]) -> float:
    """Return the seconds from the start until a watch has shown every pod bound."""
    version = (await client.list(PODS)).resource_version
    bound: set[str] = set()

    async def watch() -> None:
        nonlocal version
        while True:  # the server cuts watchers that fall behind
            async for event in client.watch(PODS, resource_version=version):
                version = event.resource_version
                if event.object is not None and event.object.spec.node_name:
                    bound.add(event.object.metadata.uid)
                    if len(bound) == MEMBERS:
                        return

    async with asyncio.timeout(BOUND_SECONDS_MAX), asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        await asyncio.sleep(0.5)
        begun = time.perf_counter()
        group.create_task(_run(start))
        await watching
        taken = time.perf_counter() - begun
    if not (await client.list(JOBS)).items:
        await _emptied(client)
    return taken


async def _run(start: Callable[[], Awaitable[None]]) -> None:
    await start()


async def _emptied(client: HttpClient) -> None:
    """Remove all pods; nobody runs them, so nobody would confirm their end."""
    async with asyncio.timeout(BOUND_SECONDS_MAX):
        while (await client.list(PODS)).items:
            await client.delete_collection(PODS, namespace="default", grace_period_seconds=0)
            await asyncio.sleep(0.5)
    await asyncio.sleep(3)  # the stock scheduler sees it, and both servers come to rest


async def _gone(client: HttpClient, name: str) -> None:
    async with asyncio.timeout(BOUND_SECONDS_MAX):
        with contextlib.suppress(NotFound):
            while await client.get(JOBS, name, namespace="default"):
                await client.delete_collection(PODS, namespace="default", grace_period_seconds=0)
                await asyncio.sleep(0.2)


@contextlib.contextmanager
def _controllers(plane: ControlPlane, binding: str) -> Generator[Callable[[], Awaitable[None]]]:
    """Run `fairlead controller`; what is yielded waits until it leads and is ready."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "fairlead", "controller", "--kubeconfig", str(plane.kubeconfig()),
            "-n", "default", "--listen", "127.0.0.1:0", "--binding", binding,
        ],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ},
    )  # fmt: skip
    assert process.stderr is not None

    async def ready() -> None:
        lines = _lines(process)
        async with asyncio.timeout(BOUND_SECONDS_MAX):
            async for entry in lines:
                if entry["message"] == "Fenced":
                    break
        await asyncio.sleep(5)  # mirrors of 7,500 nodes are filled

    try:
        yield ready
    finally:
        process.terminate()
        process.communicate()


async def _lines(process: subprocess.Popen[str]) -> AsyncIterator[dict[str, Any]]:
    assert process.stderr is not None
    while line := await asyncio.to_thread(process.stderr.readline):
        yield json.loads(line)
