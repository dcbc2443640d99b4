"""Containers whose resource devices serve (KEP-5004), on the embedded cluster."""

from __future__ import annotations

from typing import Any

from fairlead.api.meta import to_wire
from fairlead.api.resources import DEVICE_CLASSES, JOBS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from fairlead.decide.reasons import Reason
from fairlead.sim.loop import run
from fairlead.testing.device_builders import DRIVER, make_device_class, make_slice

from .embedded_world import NAMESPACE, SIMULATE_SECONDS, EmbeddedWorld, embedded_world

CARD = "example.com/card"


def body(name: str, count: int, cards: int = 2) -> dict[str, Any]:
    limits = {"limits": {"cpu": "1", CARD: cards}}
    inits = [{"name": "load", "image": "x", "resources": {"limits": {CARD: 1}}}]
    pod = {
        "metadata": {"annotations": {SIMULATE_SECONDS: "86400"}},
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": limits}],
            "initContainers": inits,
        },
    }
    roles = [{"name": "worker", "count": count, "template": pod}]
    return {"metadata": {"name": name}, "spec": {"roles": roles}}


async def offer(world: EmbeddedWorld, *counts: int) -> list[str]:
    nodes = sorted(node.metadata.name for node in (await world.client.list(NODES)).items)
    made = to_wire(make_device_class(DRIVER))
    made["metadata"] = {"name": DRIVER}
    made["spec"]["extendedResourceName"] = CARD
    await world.client.create(DEVICE_CLASSES, made)
    for each in map(make_slice, nodes, counts):
        found = to_wire(each)
        found["metadata"] = {"name": each.metadata.name}
        await world.client.create(RESOURCE_SLICES, found)
    return nodes


def test_members_get_devices_for_the_resource_of_their_containers_until_they_end() -> None:
    async def main() -> None:
        async with embedded_world(3) as world:
            nodes = await offer(world, 4, 0, 3)
            await world.client.create(JOBS, body("j", 3), namespace=NAMESPACE)
            await world.runs("j")
            pods = await world.pods("j")
            assert sorted(pod.spec.node_name for pod in pods) == [nodes[0], nodes[0], nodes[2]]
            claims = (await world.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE)).items
            had = [
                (each.pool, each.device, each.request)
                for claim in claims
                if claim.status.allocation is not None
                for each in claim.status.allocation.devices.results
            ]
            assert len({each[:2] for each in had}) == len(had) == 6
            assert {each[2] for each in had} == {"container-1-request-1"}
            named = {
                pod.status.extended_resource_claim_status.resource_claim_name
                for pod in pods
                if pod.status.extended_resource_claim_status is not None
            }
            assert named == {claim.metadata.name for claim in claims}
            await world.client.create(JOBS, body("k", 2), namespace=NAMESPACE)
            job = await world.until("k", lambda job: job.status.verdict is not None)
            assert job.status.verdict is not None
            assert job.status.verdict.reason == Reason.INSUFFICIENT_CAPACITY.value
            await world.patch("j", cancel=True)
            await world.runs("k")
            left = (await world.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE)).items
            assert {claim.pod for claim in left} == {"k-1-worker-0", "k-1-worker-1"}

    run(main())


def test_a_job_waits_for_the_class_that_serves_its_resource() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            await world.client.create(JOBS, body("j", 1), namespace=NAMESPACE)
            job = await world.until("j", lambda job: job.status.verdict is not None)
            assert job.status.verdict is not None
            assert job.status.verdict.reason == Reason.NO_NODE_SHAPE_FITS.value
            await offer(world, 2)
            await world.runs("j")

    run(main())
