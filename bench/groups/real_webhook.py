"""What our webhook adds to the creation of a pod on a real server: one by one, and many at a time;
and how long its own answers take at a fixed rate.

The webhook runs in a process of its own, a replica that does not lead (somebody else holds the
lease), so that nothing but its answers is measured. Rounds with and without it alternate.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.harness import Report
from bench.real.ground import Ground, each, on_ground
from fairlead.api import names
from fairlead.api.resources import LEASES, NAMESPACES, PODS, TEAMS
from fairlead.api.values.times import format_micro_time
from fairlead.webhook.certificates import Step, Times, take_step, to_secret
from fairlead.webhook.configuration import MUTATING, SERVICE, configurations
from fairlead.webhook.configuration import Path as WebhookPath

ROUNDS = 5
ALONE = 100
TOGETHER = 1_000
CONNECTIONS = 32
#: Reviews of pods, per second and in all, that are sent whether or not earlier ones are answered.
RATE = 500
PACED = 10_000
TEAMS_COUNT = 50
ASKED, NOT_ASKED = "asked", "not-asked"
SECONDS_MAX = 30.0


def run(report: Report) -> None:
    """Measure; one line where there is no server."""
    alone: dict[str, list[float]] = {ASKED: [], NOT_ASKED: []}
    together: dict[str, list[float]] = {ASKED: [], NOT_ASKED: []}
    paced: list[float] = []

    async def measure(ground: Ground) -> None:
        enabled = {names.GANG_SCHEDULING: "enabled"}
        for name, labels in ((ASKED, enabled), (NOT_ASKED, {}), ("fairlead-system", {})):
            await ground.client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        await _hold_lease(ground)
        async with _webhook(ground) as (port, bundle):
            await _configure(ground, port, bundle)
            for number in range(ROUNDS):
                for namespace in (NOT_ASKED, ASKED):
                    alone[namespace].append(await _alone(ground, namespace, number))
                for namespace in (NOT_ASKED, ASKED):
                    together[namespace].append(await _together(ground, namespace, number))
                await _clear(ground)
            paced.extend(await _paced(ground, port, bundle))

    on_ground(report, "real_webhook", measure)
    if not alone[ASKED]:
        return
    for name, found in (("alone", alone), ("together", together)):
        without, with_ = (statistics.median(found[each]) for each in (NOT_ASKED, ASKED))
        report.add(f"real_webhook.{name}_without", without * 1e3, "ms/pod")
        report.add(f"real_webhook.{name}_with", with_ * 1e3, "ms/pod")
        report.add(f"real_webhook.{name}_ratio", with_ / without, "x")
    for percent in (50, 99):
        value = statistics.quantiles(paced, n=100)[percent - 1]
        report.add(f"real_webhook.paced_{RATE}_p{percent}", value * 1e3, "ms")


async def _hold_lease(ground: Ground) -> None:
    now = format_micro_time(time.time())
    spec = {
        "holderIdentity": "bench", "leaseDurationSeconds": 3600, "leaseTransitions": 0,
        "acquireTime": now, "renewTime": now,
    }  # fmt: skip
    body = {"metadata": {"name": "fairlead-controller"}, "spec": spec}
    await ground.client.create(LEASES, body, namespace="fairlead-system")


@contextlib.asynccontextmanager
async def _webhook(ground: Ground) -> AsyncGenerator[tuple[int, str]]:
    """Run a replica; yields its port and the authorities to trust, in base64."""
    directory = ground.plane.directory / "webhook"
    directory.mkdir()
    now, times = time.time(), Times()
    material = take_step(Step.MAKE, None, ("127.0.0.1",), now=now, times=times)
    (directory / "tls.crt").write_bytes(material.serving.certificate)
    (directory / "tls.key").write_bytes(material.serving.key)
    log = directory / "log"
    command = [
        sys.executable, "-m", "fairlead", "controller", "--kubeconfig",
        str(ground.plane.kubeconfig()), "--listen", "127.0.0.1:0", "--webhook-listen",
        "127.0.0.1:0", "--webhook-cert-dir", str(directory),
    ]  # fmt: skip
    process = _start(command, log)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while not (port := _port(log)):  # noqa: ASYNC110 # another process's
                await asyncio.sleep(0.05)
        yield port, str(to_secret(material)["ca.crt"])
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream)


def _port(log: Path) -> int:
    """Return the port once the process has said it; 0 before."""
    for line in log.read_text().splitlines():
        if '"Started"' in line:
            return int(json.loads(line)["webhook_port"])
    return 0


async def _configure(ground: Ground, port: int, bundle: str) -> None:
    mutating, _ = configurations("fairlead-system", SERVICE, bundle)
    for webhook in mutating["webhooks"]:
        path = webhook["clientConfig"].pop("service")["path"]
        webhook["clientConfig"]["url"] = f"https://127.0.0.1:{port}{path}"
    await ground.client.create(MUTATING, mutating)
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            made = await ground.client.create(PODS, _pod("p"), namespace=ASKED, dry_run=True)
            if made.spec.scheduling_gates:
                return
            await asyncio.sleep(0.1)


def _pod(name: str) -> dict[str, Any]:
    resources = {"limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}}
    variables = [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(20)]
    container = {"name": "main", "image": "train:1", "resources": resources, "env": variables}
    labels = {"app": "train", "version": "1"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


async def _alone(ground: Ground, namespace: str, number: int) -> float:
    """Return the median seconds of one creation, nothing else going on."""
    taken: list[float] = []
    for n in range(ALONE):
        begun = time.perf_counter()
        await ground.client.create(PODS, _pod(f"alone-{number}-{n}"), namespace=namespace)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


async def _together(ground: Ground, namespace: str, number: int) -> float:
    """Return the seconds per pod when many are created at a time."""
    bodies = [_pod(f"together-{number}-{n}") for n in range(TOGETHER)]

    async def create(body: dict[str, Any]) -> None:
        await ground.client.create(PODS, body, namespace=namespace)

    begun = time.perf_counter()
    await each(bodies, create, connections=CONNECTIONS)
    return (time.perf_counter() - begun) / TOGETHER


async def _paced(ground: Ground, port: int, bundle: str) -> list[float]:
    """Return what each review took from the instant when it was due, with teams to choose from."""
    for n in range(TEAMS_COUNT):
        spec = {"namespaces": [f"team-{n}"]}
        await ground.client.create(TEAMS, {"metadata": {"name": f"team-{n}"}, "spec": spec})
    trust = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    url = f"https://127.0.0.1:{port}{WebhookPath.POD_TEAMS.value}"
    bodies = [_review(n) for n in range(TEAMS_COUNT)]
    taken: list[float] = []
    connector = aiohttp.TCPConnector(ssl=trust, limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:

        async def ask(body: bytes, due: float) -> None:
            async with session.post(url, data=body) as answer:
                assert msgspec.json.decode(await answer.read())["response"]["allowed"]
            taken.append(time.perf_counter() - due)

        begun = time.perf_counter() + 0.1
        for n in range(PACED):
            due = begun + n / RATE
            await asyncio.sleep(due - time.perf_counter())
            group.create_task(ask(bodies[n % len(bodies)], due))
    return taken


def _review(number: int) -> bytes:
    namespace = f"team-{number}"
    pods = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": f"review-{number}", "operation": "CREATE", "namespace": namespace,
        "resource": pods, "userInfo": {"username": "user"}, "object": _pod("p"),
    }  # fmt: skip
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.encode(body)


async def _clear(ground: Ground) -> None:
    for namespace in (ASKED, NOT_ASKED):
        await ground.client.delete_collection(PODS, namespace=namespace, grace_period_seconds=0)
