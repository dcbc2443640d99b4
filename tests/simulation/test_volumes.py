"""Jobs with claims on the embedded cluster: where they run, or what is said of them."""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead.api.meta import to_wire
from fairlead.api.resources import CLAIMS, JOBS, NODES, PODS, STORAGE_CLASSES, VOLUMES, Resource
from fairlead.decide.reasons import Reason
from fairlead.sim.loop import run
from fairlead.testing.volume_builders import ZONE, make_claim, make_storage_class, make_volume

from .embedded_world import NAMESPACE, EmbeddedWorld, embedded_world

LOCAL = make_storage_class("local", makes=False)


def job_body(name: str, count: int, *claims: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    template = {
        "metadata": {"annotations": {"fairlead.dev/simulate-seconds": "86400"}},
        "spec": {"containers": [container], "volumes": volumes},
    }
    roles = [{"name": "worker", "count": count, "template": template}]
    return {"metadata": {"name": name}, "spec": {"roles": roles}}


async def zonal_nodes(world: EmbeddedWorld) -> dict[str, str]:
    """Put every other node into zone b, the others into zone a; return the zones by node."""
    nodes = [node.metadata.name for node in (await world.client.list(NODES)).items]
    zones = {node: "ab"[i % 2] for i, node in enumerate(sorted(nodes))}
    for node, zone in zones.items():
        await world.client.patch(NODES, node, {"metadata": {"labels": {ZONE: zone}}})
    return zones


async def create(world: EmbeddedWorld, *objects: Any) -> None:
    kinds: dict[type[Any], Resource[Any]] = {
        each.type: each for each in (CLAIMS, VOLUMES, STORAGE_CLASSES)
    }
    for each in objects:
        body = to_wire(each)
        body["metadata"] = {"name": each.metadata.name}
        body.pop("status", None)
        resource = kinds[type(each)]
        namespace = NAMESPACE if resource.namespaced else ""
        await world.client.create(resource, body, namespace=namespace)


async def zones_of(world: EmbeddedWorld, job: str, zones: dict[str, str]) -> list[str]:
    return [zones[pod.spec.node_name] for pod in await world.pods(job)]


def test_a_job_waits_for_its_claim_in_words_and_runs_once_it_is_there() -> None:
    async def main() -> None:
        async with embedded_world(2) as world:
            await world.client.create(JOBS, job_body("j", 2, "data"), namespace=NAMESPACE)
            job = await world.until("j", lambda job: job.status.verdict is not None)
            assert job.status.verdict is not None
            assert job.status.verdict.reason == Reason.CLAIM_MISSING.value
            assert await world.pods("j") == []
            await create(world, make_claim("data"))
            assert (await world.runs("j")).status.attempt == 1
            claim = await world.client.get(CLAIMS, "data", namespace=NAMESPACE)
            assert claim.is_bound
            assert claim.status.phase == "Bound"

    run(main())


def test_a_gang_runs_in_the_zone_of_its_volume_and_waits_for_room_there() -> None:
    async def main() -> None:
        async with embedded_world(6) as world:
            zones = await zonal_nodes(world)
            await create(world, make_volume("v", zones=["b"]), make_claim("data"))
            await world.client.create(JOBS, job_body("j", 2, "data"), namespace=NAMESPACE)
            await world.runs("j")
            assert await zones_of(world, "j", zones) == ["b", "b"]
            await world.client.create(JOBS, job_body("k", 2, "data"), namespace=NAMESPACE)
            job = await world.until("k", lambda job: job.status.verdict is not None)
            assert job.status.verdict is not None
            assert job.status.verdict.outcome == "Waiting"
            await world.patch("j", cancel=True)
            await world.runs("k")
            assert await zones_of(world, "k", zones) == ["b", "b"]

    run(main())


def test_a_volume_is_made_where_its_first_pod_is_and_keeps_later_jobs_there() -> None:
    async def main() -> None:
        async with embedded_world(4) as world:
            zones = await zonal_nodes(world)
            await create(
                world, make_storage_class("s", zones=["b"]), make_claim("data", storage_class="s")
            )
            await world.client.create(JOBS, job_body("j", 1, "data"), namespace=NAMESPACE)
            await world.runs("j")
            assert await zones_of(world, "j", zones) == ["b"]
            await world.client.create(JOBS, job_body("k", 1, "data"), namespace=NAMESPACE)
            await world.runs("k")
            assert await zones_of(world, "k", zones) == ["b"]
            [volume] = (await world.client.list(VOLUMES)).items
            assert volume.status.phase == "Bound"
            await world.client.delete(CLAIMS, "data", namespace=NAMESPACE)
            await world.client.create(JOBS, job_body("l", 1, "data"), namespace=NAMESPACE)
            await world.until("l", lambda job: job.status.verdict is not None)
            assert not (await world.client.list(VOLUMES)).items

    run(main())


def test_a_local_volume_has_one_node() -> None:
    async def main() -> None:
        async with embedded_world(3) as world:
            node = sorted(await zonal_nodes(world))[1]
            await create(
                world, LOCAL, make_volume("v", nodes=[node], storage_class="local"),
                make_claim("data", storage_class="local"),
            )  # fmt: skip
            await world.client.create(JOBS, job_body("j", 1, "data"), namespace=NAMESPACE)
            await world.runs("j")
            assert [pod.spec.node_name for pod in await world.pods("j")] == [node]
            await create(world, make_claim("more", storage_class="local"))
            await world.client.create(JOBS, job_body("k", 1, "more"), namespace=NAMESPACE)
            job = await world.until("k", lambda job: job.status.verdict is not None)
            assert job.status.verdict is not None
            assert job.status.verdict.reason == Reason.NO_VOLUME.value

    run(main())


def test_nothing_of_volumes_is_read_before_a_job_asks_for_a_claim() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            await create(world, make_claim("data"))
            await world.submit("plain", 1, gpus=1)
            await world.runs("plain")
            mirrors = world.controllers.world.mirrors.of_volumes
            assert [each.list_count for each in mirrors] == [0] * 5
            await world.client.create(JOBS, job_body("j", 1, "data"), namespace=NAMESPACE)
            await world.until("j", lambda job: job.status.verdict is not None)
            assert [each.list_count for each in mirrors] == [1] * 5

    run(main())


def own_body(name: str, count: int, **spec: Any) -> dict[str, Any]:
    """A job whose members have a claim of their own each."""
    body = job_body(name, count)
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"name": "data"}, "spec": {**wanted, "storageClassName": "s"}}
    body["spec"]["roles"][0]["volumeClaimTemplates"] = [template]
    body["spec"] |= spec
    return body


async def nodes_of(world: EmbeddedWorld, job: str) -> dict[str, str]:
    """The node of each member, by index."""
    return {pod.metadata.labels["fairlead.dev/index"]: pod.spec.node_name
            for pod in await world.pods(job)}  # fmt: skip


def test_members_come_back_to_the_nodes_of_their_own_volumes() -> None:
    async def main() -> None:
        async with embedded_world(4) as world:
            nodes = sorted(await zonal_nodes(world))
            await create(world, make_storage_class("s", makes=False))
            for node in nodes[1:]:
                await create(world, make_volume(
                    f"disk-of-{node}", nodes=[node], storage_class="s", modes=["ReadWriteOnce"]
                ))  # fmt: skip
            body = own_body("j", 3, restart={"limit": 3, "backoffSeconds": 0})
            await world.client.create(JOBS, body, namespace=NAMESPACE)
            await world.runs("j")
            before = await nodes_of(world, "j")
            assert sorted(before.values()) == nodes[1:]
            claims = (await world.client.list(CLAIMS, namespace=NAMESPACE)).items
            assert [each.metadata.name for each in claims] == [f"data-j-worker-{i}" for i in "012"]
            for pod in await world.pods("j"):
                await world.client.delete(PODS, pod.metadata.name, namespace=NAMESPACE)
            await world.until("j", lambda job: job.status.attempt == 2)
            await world.runs("j")
            assert await nodes_of(world, "j") == before
            await world.patch("j", suspend=True)
            await world.until("j", lambda job: job.status.placement is None)
            await world.submit("other", 1)
            await world.runs("other")
            [taken] = [pod.spec.node_name for pod in await world.pods("other")]
            await world.patch("j", suspend=False)
            if taken in before.values():
                waits = await world.until("j", lambda job: job.status.verdict is not None)
                assert waits.status.verdict is not None
                await world.patch("other", cancel=True)
            await world.runs("j")
            assert await nodes_of(world, "j") == before
            await world.client.delete(JOBS, "j", namespace=NAMESPACE)
            await asyncio.sleep(30)
            assert not (await world.client.list(CLAIMS, namespace=NAMESPACE)).items

    run(main())


def test_a_member_gets_no_volume_where_it_does_not_reach_what_it_shares_and_moves_there() -> None:
    async def main() -> None:
        async with embedded_world(4) as world:
            zones = await zonal_nodes(world)
            await create(world, make_storage_class("s"))
            await create(world, make_claim("all", storage_class="s"))
            body = own_body("j", 2, restart={"limit": 3, "backoffSeconds": 0})
            shared = {"name": "all", "persistentVolumeClaim": {"claimName": "all"}}
            body["spec"]["roles"][0]["template"]["spec"]["volumes"] = [shared]
            await world.client.create(JOBS, body, namespace=NAMESPACE)
            await world.runs("j")
            assert await zones_of(world, "j", zones) == ["a", "b"]
            await asyncio.sleep(60)
            claims = (await world.client.list(CLAIMS, namespace=NAMESPACE)).items
            assert [each.metadata.name for each in claims if each.is_bound] == [
                "all", "data-j-worker-0"
            ]  # fmt: skip
            for pod in await world.pods("j"):
                await world.client.delete(PODS, pod.metadata.name, namespace=NAMESPACE)
            await world.until("j", lambda job: job.status.attempt == 2)
            await world.runs("j")
            assert await zones_of(world, "j", zones) == ["a", "a"]

    run(main())
