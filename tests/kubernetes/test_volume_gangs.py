"""Gangs with claims on a real API server: kube-scheduler binds them, and their volumes are made.

The provisioner is played: it makes a volume for a claim for which a node was selected, in the zone
of that node. kube-controller-manager binds the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.kubernetes.adopting import (
    SETS,
    TOOLS,
    adopting,
    pods_of,
    settled,
    stand_in,
    stateful_set,
    sweep_all,
)
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    POLICY,
    controllers,
    http_client,
    install_kinds,
    job_body,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.volumes import SELECTED_NODE
from fairlead.api.resources import CLAIMS, JOBS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from fairlead.decide.pinning import Binding
from fairlead.decide.reasons import Reason
from fairlead.embedded.own_controllers.volume_binder import new_volume
from fairlead.kube.client import HttpClient
from fairlead.testing.volume_builders import ZONE

pytestmark = pytest.mark.kubernetes
DIRECT = replace(POLICY, binding=Binding.DIRECT)
BINDER = ("persistentvolume-binder-controller", "persistentvolumeclaim-protection-controller")
WANTED = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
OF_ITS_OWN = {"metadata": {"name": "data"}, "spec": {**WANTED, "storageClassName": "disks"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True, controllers=(*BINDER, *TOOLS))


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]
    await client.create(STORAGE_CLASSES, {
        "metadata": {"name": "disks"}, "provisioner": "disk.test", "allowedTopologies": terms,
        "volumeBindingMode": "WaitForFirstConsumer",
    })  # fmt: skip
    yield client
    await client.delete(STORAGE_CLASSES, "disks")
    await sweep_all(client)
    await client.close()


@asynccontextmanager
async def provisioner(client: HttpClient) -> AsyncIterator[None]:
    """Make volumes for claims for which a node was selected, for the length of the block."""

    async def run() -> None:
        made: set[str] = set()
        while True:
            for claim in (await client.list(CLAIMS)).items:
                node = claim.metadata.annotations.get(SELECTED_NODE, "")
                if not node or claim.is_bound or claim.metadata.uid in made:
                    continue
                found = await client.get(STORAGE_CLASSES, claim.storage_class)
                body = new_volume(claim, found, await client.get(NODES, node))
                await client.create(VOLUMES, body)
                made.add(claim.metadata.uid)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        yield
        task.cancel()


async def zonal_nodes(client: HttpClient) -> dict[str, str]:
    """Put every other node into zone b, the others into zone a; return the zones by node."""
    nodes = sorted(node.metadata.name for node in (await client.list(NODES)).items)
    zones = {node: "ab"[i % 2] for i, node in enumerate(nodes)}
    for node, zone in zones.items():
        await client.patch(NODES, node, {"metadata": {"labels": {ZONE: zone}}})
    return zones


async def state_of(client: HttpClient, name: str) -> Job:
    return await client.get(JOBS, name, namespace="default")


async def runs(client: HttpClient, name: str, *, attempt: int = 1) -> None:
    async def is_running() -> bool:
        status = (await state_of(client, name)).status
        return status.attempt == attempt and status.members.running == 2

    await until(is_running)


async def test_members_with_claims_of_their_own_get_volumes_and_come_back_to_them(
    client: HttpClient,
) -> None:
    body = job_body("own", 2, seconds=300, restart={"limit": 2, "backoffSeconds": 0})
    body["spec"]["roles"][0]["volumeClaimTemplates"] = [OF_ITS_OWN]
    async with (
        virtual_nodes(client, 4), provisioner(client), controllers(client, policy=DIRECT),
    ):  # fmt: skip
        zones = await zonal_nodes(client)
        await client.create(JOBS, body, namespace="default")
        await runs(client, "own")
        pods = (await client.list(PODS, namespace="default")).items
        scheduled = [c.status for p in pods for c in p.status.conditions
                     if c.type == "PodScheduled"]  # fmt: skip
        assert scheduled == ["True", "True"], "kube-scheduler has bound them, as it alone can"
        before = {p.metadata.labels["fairlead.dev/index"]: zones[p.spec.node_name] for p in pods}
        claims = (await client.list(CLAIMS, namespace="default")).items
        assert {c.metadata.name: c.is_bound for c in claims} == {
            "data-own-worker-0": True, "data-own-worker-1": True
        }  # fmt: skip
        await client.patch(JOBS, "own", {"spec": {"suspend": True}}, namespace="default")

        async def is_free() -> bool:
            return (await state_of(client, "own")).status.placement is None

        await until(is_free)
        await client.patch(JOBS, "own", {"spec": {"suspend": False}}, namespace="default")
        await runs(client, "own", attempt=2)
        pods = (await client.list(PODS, namespace="default")).items
        after = {p.metadata.labels["fairlead.dev/index"]: zones[p.spec.node_name]
                 for p in pods if not p.is_terminal}  # fmt: skip
        assert after == before
        assert (await state_of(client, "own")).status.infrastructure_failures == 0


async def test_a_job_waits_for_a_claim_in_words_and_is_never_tried(client: HttpClient) -> None:
    body = job_body("waits", 2, seconds=300)
    spec = body["spec"]["roles"][0]["template"]["spec"]
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]

    async def verdict_is(reason: Reason) -> None:
        async def is_said() -> bool:
            verdict = (await state_of(client, "waits")).status.verdict
            return verdict is not None and verdict.reason == reason.value

        await until(is_said)

    async with virtual_nodes(client, 4), controllers(client, policy=DIRECT):
        zones = await zonal_nodes(client)
        await client.create(JOBS, body, namespace="default")
        await verdict_is(Reason.CLAIM_MISSING)
        claim: dict[str, Any] = {"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        }}  # fmt: skip
        await client.create(CLAIMS, claim, namespace="default")
        await verdict_is(Reason.CLAIM_UNBOUND)
        assert (await state_of(client, "waits")).status.attempts == ()
        rule = {"key": ZONE, "operator": "In", "values": ["b"]}
        terms = [{"matchExpressions": [rule]}]
        await client.create(VOLUMES, {"metadata": {"name": "there"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }})  # fmt: skip
        await runs(client, "waits")
        pods = (await client.list(PODS, namespace="default")).items
        assert [zones[pod.spec.node_name] for pod in pods] == ["b", "b"]
        assert len((await state_of(client, "waits")).status.attempts) == 1


async def test_the_members_of_an_adopted_set_come_back_to_their_volumes(client: HttpClient) -> None:
    body = stateful_set("db", 2)
    body["spec"]["volumeClaimTemplates"] = [OF_ITS_OWN]
    async with virtual_nodes(client, 4), provisioner(client), adopting(client):
        zones = await zonal_nodes(client)
        before = await zones_of_set(client, body, zones)
        first = await stand_in(client, "db")
        await client.delete(SETS, "db", namespace="default")
        await client.delete_collection(PODS, namespace="default")

        async def is_over() -> bool:
            return (await stand_in(client, "db")).is_finished

        await until(is_over)
        await client.delete(JOBS, first.metadata.name, namespace="default")
        there = [node for node, zone in zones.items() if zone == before["db-0"]]
        for node in there:
            await client.patch(NODES, node, {"spec": {"unschedulable": True}})
        await client.create(SETS, body, namespace="default")

        async def is_said() -> bool:
            jobs = (await client.list(JOBS)).items
            verdicts = [job.status.verdict for job in jobs if job.status.verdict]
            said = [(each.reason, each.facts.get("members_fit")) for each in verdicts]
            return said == [(Reason.NODES_UNAVAILABLE.value, 1)]  # two nodes are free

        await until(is_said)
        for node in there:
            await client.patch(NODES, node, {"spec": {"unschedulable": False}})
        assert await zones_of_set(client, None, zones) == before
        job = await stand_in(client, "db")
        assert [role.count for role in job.spec.roles] == [1, 1]
        assert len(job.status.attempts) == 1, "no member was refused"


async def zones_of_set(
    client: HttpClient, body: dict[str, Any] | None, zones: dict[str, str]
) -> dict[str, str]:
    """Create the set `db`, if it is given, and return the zones in which its members run."""
    if body is not None:
        await client.create(SETS, body, namespace="default")
    await settled(client, "db", total=2)
    return {p.metadata.name: zones[p.spec.node_name] for p in await pods_of(client, "db")}
