"""What pods take of a node, as the real API server and kube-scheduler count it.

Random pods, most of which ask for resources as a whole. Each is bound to a node that has just what
`RequestReader` says that it takes, and refused by one that has a little less of one resource; the
server refuses exactly those in which our rules find a mistake.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client, until
from tests.kubernetes.own_plane import own_plane

from fairlead.api.kubernetes.core import Pod
from fairlead.api.pods.pod_rules import pod_spec_causes
from fairlead.api.resources import NODES, PODS
from fairlead.api.status import Invalid
from fairlead.kube.client import HttpClient
from fairlead.model.asks.requests import RequestReader

pytestmark = pytest.mark.kubernetes
PODS_DRAWN = 60
CPUS, MEMORIES = ("0", "100m", "1", "1500m", "2"), ("64Mi", "1Gi", "1500M")
PAGES = "hugepages-2Mi"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    yield client
    await client.delete_collection(PODS, namespace="default", grace_period_seconds=0)
    await client.delete_collection(NODES)
    await client.close()


def amounts(rng: random.Random, factor: int = 1) -> dict[str, Any]:
    """Draw requests and limits; limits are at least the requests."""
    requests, limits = dict[str, str](), dict[str, str]()
    for name, choices in (("cpu", CPUS), ("memory", MEMORIES)):
        kind = rng.randrange(4)
        if kind in (1, 3):
            requests[name] = choices[rng.randrange(len(choices) - 1)]
        if kind in (2, 3):
            limits[name] = choices[-1] if factor == 1 else {"cpu": "9", "memory": "9Gi"}[name]
    if rng.random() < 0.2:
        requests[PAGES] = limits[PAGES] = f"{2 * factor * rng.randint(1, 3)}Mi"
        requests.setdefault("cpu", "100m")
    if factor > 1:
        requests = {n: {"cpu": "8", "memory": "8Gi"}.get(n, a) for n, a in requests.items()}
        if rng.random() < 0.2:  # too little, or a resource that no pod has as a whole
            requests[rng.choice(("cpu", "memory", "ephemeral-storage"))] = "100m"
    return {"requests": requests, "limits": limits}


def pod_body(rng: random.Random, name: str) -> dict[str, Any]:
    def container(label: str) -> dict[str, Any]:
        return {"name": label, "image": "none", "resources": amounts(rng)}

    initial = [container(f"i{i}") for i in range(rng.randrange(3))]
    for each in initial:
        if rng.random() < 0.5:
            each["restartPolicy"] = "Always"
    spec: dict[str, Any] = {
        "containers": [container(f"c{i}") for i in range(rng.randint(1, 3))],
        "initContainers": initial,
    }
    if rng.random() < 0.8:
        spec["resources"] = amounts(rng, factor=8)
    return {"metadata": {"name": name}, "spec": spec}


async def add_node(client: HttpClient, name: str, held: dict[str, int]) -> None:
    await client.create(NODES, {"metadata": {"name": name, "labels": {"own": name}}})
    texts = {n: f"{a}m" if n == "cpu" else str(a) for n, a in held.items()}
    status = {
        "allocatable": texts, "capacity": texts, "conditions": [{"type": "Ready", "status": "True"}]
    }  # fmt: skip
    await client.patch(NODES, name, {"status": status}, subresource="status")
    await client.patch(NODES, name, {"spec": {"taints": None}})


async def verdict(client: HttpClient, body: dict[str, Any], node: str) -> bool:
    """Return whether kube-scheduler binds the pod to the node; it can go to no other."""
    name = f"{body['metadata']['name']}-{node}"
    spec = {**body["spec"], "nodeSelector": {"own": node}}
    await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    async def is_judged() -> bool:
        pod = await client.get(PODS, name, namespace="default")
        return any(each.type == "PodScheduled" for each in pod.status.conditions)

    await until(is_judged)
    return bool((await client.get(PODS, name, namespace="default")).spec.node_name)


async def is_refused(client: HttpClient, body: dict[str, Any]) -> bool:
    try:
        await client.create(PODS, body, namespace="default", dry_run=True)
    except Invalid:
        return True
    return False


async def test_random_pods_are_refused_and_fit_as_the_real_ones_do(client: HttpClient) -> None:
    rng, reader, refused = random.Random(7), RequestReader(), 0

    async def try_one(number: int, body: dict[str, Any]) -> None:
        taken = dict(reader.request(msgspec.convert(body, Pod).spec))
        lacks = rng.choice(sorted(name for name in taken if name != "pods") or ["pods"])
        await add_node(client, f"exact-{number}", taken)
        await add_node(client, f"less-{number}", {**taken, lacks: taken[lacks] - 1})
        shown = (body["spec"], taken, lacks)
        assert await verdict(client, body, f"exact-{number}"), shown
        assert not await verdict(client, body, f"less-{number}"), shown

    async with asyncio.TaskGroup() as group:
        for number in range(PODS_DRAWN):
            body = pod_body(rng, f"p{number}")
            causes = pod_spec_causes(msgspec.convert(body, Pod).spec)
            assert await is_refused(client, body) is bool(causes), (body["spec"], causes)
            refused += bool(causes)
            if not causes:
                group.create_task(try_one(number, body))
    assert 5 < refused < PODS_DRAWN - 20


async def test_a_pod_that_is_resized_takes_what_the_real_scheduler_says(
    client: HttpClient,
) -> None:
    """The kubelet's part is played: it reports what the container has and what is allocated."""
    for number, (has, allocated, reason) in enumerate((
        ("3", "2", ""), ("1", "4", ""), ("500m", "500m", "Infeasible"),
        ("500m", "500m", "Deferred"),
    )):  # fmt: skip
        node, name = f"n{number}", f"resized-{number}"
        await add_node(client, node, {"cpu": 10_000, "pods": 9, "memory": 1 << 30})
        main = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "2"}}}
        body = {"metadata": {"name": name}, "spec": {"containers": [main], "nodeName": node}}
        await client.create(PODS, body, namespace="default")
        state = {
            "name": "main", "ready": True, "restartCount": 0, "image": "none", "imageID": "",
            "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": allocated},
        }  # fmt: skip
        pending = {"type": "PodResizePending", "status": "True", "reason": reason}
        status = {"containerStatuses": [state], "conditions": [pending] if reason else []}
        pod = await client.patch(
            PODS, name, {"status": status}, namespace="default", subresource="status"
        )
        free = 10_000 - dict(RequestReader().pod_request(pod))["cpu"]
        for asked, fits in ((free + 1, False), (free, True)):
            other = {**main, "resources": {"requests": {"cpu": f"{asked}m"}}}
            rest = {"metadata": {"name": f"{name}-{asked}"}, "spec": {"containers": [other]}}
            assert await verdict(client, rest, node) is fits, (has, allocated, reason, asked)
