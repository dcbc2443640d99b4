"""The drill of a mass failure on a real control plane: all nodes not ready at once, etcd full.

tests/unit/app/test_fleet_drill.py is the same in the simulated world.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client, install_kinds, job_body, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import leader, replicas
from tests.kubernetes.test_monitoring import sees_clearly

from fairlead.api import names
from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODE_POOLS, NODES
from fairlead.api.status import ApiError
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
COUNT = int(os.environ.get("FAIRLEAD_DRILL_NODES", "1000"))
SURPLUS = 3
#: What all versions of the nodes take, and room for the rest.
QUOTA_BYTES = (64 << 20) + COUNT * 16_384
RESOURCES = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}
#: Replicas that keep the lease while the machine is busy.
LEASE = ("-n", "default", "--lease-seconds", "15", "--binding", "direct")


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, etcd_flags=[f"--quota-backend-bytes={QUOTA_BYTES}"])


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(plane)
    await install_kinds(client)
    yield client
    await client.close()


class Machines:
    """A provider of the type Exec whose machines all exist; it keeps what it is told to end."""

    def __init__(self, directory: Path) -> None:
        self.command, self._ended = directory / "machines", directory / "ended"
        listed = directory / "list.json"
        ids = [{"id": f"drill://{number}"} for number in range(COUNT)]
        listed.write_text(json.dumps({"instances": ids}))
        self._ended.touch()
        self.command.write_text(
            "#!/bin/sh\ncase $1 in\n"
            f"list) cat {listed};;\n"
            f"terminate) cat >> {self._ended}; echo >> {self._ended};;\n"
            "*) exit 69;;\nesac\n"
        )
        self.command.chmod(0o755)

    def ended(self) -> set[str]:
        lines = self._ended.read_text().splitlines()
        return {id_ for line in lines for id_ in json.loads(line)["instances"]}


async def each(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Make all calls, 32 at a time."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(32):
            group.create_task(work())


def status(*, ready: bool) -> dict[str, Any]:
    state = "True" if ready else "Unknown"
    return {"conditions": [{"type": "Ready", "status": state, "reason": "Drill"}]}


async def make_nodes(client: HttpClient) -> None:
    def made(number: int) -> Callable[[], Awaitable[Any]]:
        name = f"n{number:05}"
        body = {
            "metadata": {"name": name, "labels": {names.HOSTNAME: name, names.POOL: "drill"}},
            "spec": {"providerID": f"drill://{number}"},
            "status": {"capacity": RESOURCES, "allocatable": RESOURCES, **status(ready=True)},
        }
        return lambda: client.create(NODES, body)

    await each(made(number) for number in range(COUNT))


async def turn(client: HttpClient, *, ready: bool) -> None:
    """Have all nodes report, or none."""
    patch = {"status": status(ready=ready)}
    await each(
        (lambda name=f"n{number:05}": client.patch(NODES, name, patch, subresource="status"))
        for number in range(COUNT)
    )


def etcd(plane: ControlPlane, call: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call etcd through its gateway for JSON."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{plane.etcd_url}/v3/{call}", data=data, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


async def fill(client: HttpClient) -> None:
    """Write until etcd refuses."""
    for number in range(QUOTA_BYTES // 400_000):
        body = {"metadata": {"name": f"large-{number}"}, "data": {"text": "x" * 900_000}}
        try:
            await client.create(CONFIG_MAPS, body, namespace="default")
        except ApiError as error:
            if "database space exceeded" in str(error):
                return
            raise
    raise AssertionError("etcd is never full")


def empty(plane: ControlPlane) -> None:
    """Mend etcd, as a person does."""
    prefix = b"/registry/configmaps/default/large"
    first, last = (base64.b64encode(prefix + end).decode() for end in (b"-", b"."))
    etcd(plane, "kv/deleterange", {"key": first, "range_end": last})
    plane.compact()
    etcd(plane, "maintenance/defragment", {})
    for alarm in etcd(plane, "maintenance/alarm", {"action": "GET"})["alarms"]:
        etcd(plane, "maintenance/alarm", {**alarm, "action": "DEACTIVATE"})


async def test_all_nodes_not_ready_at_once_removes_none_and_work_goes_on_by_itself(
    plane: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    machines = Machines(tmp_path)
    await make_nodes(client)
    pool = {
        "provider": {"type": "Exec", "reference": str(machines.command)}, "mode": "Active",
        "template": {"resources": RESOURCES}, "max": COUNT, "hold": COUNT,
        "scaleDown": {"idleSeconds": 1},
    }  # fmt: skip
    await client.create(NODE_POOLS, {"metadata": {"name": "drill"}, "spec": pool})
    async with replicas(plane, arguments=LEASE) as world:
        await world.start()
        replica = await leader(client, world)
        await until(lambda: sees_clearly(client))

        async def is_said() -> bool:
            page = (await replica.get("/metrics"))[1]
            return 'fairlead_fleet_rail_holds{rail="NodesUnready"} 1.0' in page

        began = time.monotonic()
        failing = asyncio.create_task(turn(client, ready=False))
        await until(is_said)
        said_seconds = time.monotonic() - began
        print(f"said after {said_seconds:.1f} s of {COUNT} nodes")
        assert said_seconds <= 30, "what the alert reads"
        surplus = {"spec": {"hold": COUNT - SURPLUS}}
        await client.patch(NODE_POOLS, "drill", surplus)  # what removes any removes these first
        await failing
        print(f"all are not ready after {time.monotonic() - began:.1f} s")
        await fill(client)
        await asyncio.sleep(60)
        assert machines.ended() == set()
        assert not any(map(is_marked, (await client.list(NODES)).items))
        await asyncio.to_thread(empty, plane)
        await turn(client, ready=True)
        mended = time.monotonic()
        await client.create(JOBS, job_body("train", 2), namespace="default")

        async def works_again() -> bool:
            job = await client.get(JOBS, "train", namespace="default")
            return job.status.placement is not None and len(machines.ended()) == SURPLUS

        await until(works_again)
        print(f"places jobs and removes idle nodes again after {time.monotonic() - mended:.1f} s")


def is_marked(node: Node) -> bool:
    return node.spec.unschedulable or names.REMOVAL in node.metadata.annotations
