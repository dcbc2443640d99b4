"""Jobs with claims for devices on the embedded cluster: what they get, and what is said of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import ResourceClaim
from fairlead.api.meta import to_wire
from fairlead.api.resources import (
    DEVICE_CLASSES,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Resource,
)
from fairlead.api.status import Invalid
from fairlead.decide.reasons import Reason
from fairlead.sim.loop import run
from fairlead.testing.device_builders import (
    DRIVER,
    MIG,
    all_devices_request,
    device_request,
    first_of_request,
    make_device,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_mig_slices,
    make_slice,
    mig_template,
)

from .embedded_world import NAMESPACE, SIMULATE_SECONDS, EmbeddedWorld, embedded_world


def job_body(
    name: str, count: int, seconds: float = 86_400, template: str = "one", claim: str = ""
) -> dict[str, Any]:
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    pod = {
        "metadata": {"annotations": {SIMULATE_SECONDS: str(seconds)}},
        "spec": {"containers": [container], "resourceClaims": [{"name": "gpu", **source}]},
    }
    roles = [{"name": "worker", "count": count, "template": pod}]
    return {"metadata": {"name": name}, "spec": {"roles": roles}}


async def create(world: EmbeddedWorld, *objects: Any) -> None:
    kinds: dict[type[Any], Resource[Any]] = {
        each.type: each
        for each in (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, RESOURCE_SLICES)
    }
    for each in objects:
        body = to_wire(each)
        body["metadata"] = {"name": each.metadata.name}
        resource = kinds[type(each)]
        namespace = NAMESPACE if resource.namespaced else ""
        await world.client.create(resource, body, namespace=namespace)


async def devices_on(world: EmbeddedWorld, counts: list[int]) -> list[str]:
    nodes = sorted(node.metadata.name for node in (await world.client.list(NODES)).items)
    await create(world, make_device_class(DRIVER), *map(make_slice, nodes, counts))
    return nodes


async def submit(world: EmbeddedWorld, name: str, count: int, **given: Any) -> None:
    await world.client.create(JOBS, job_body(name, count, **given), namespace=NAMESPACE)


async def claims(world: EmbeddedWorld) -> list[ResourceClaim]:
    return list((await world.client.list(RESOURCE_CLAIMS, namespace=NAMESPACE)).items)


async def verdict(world: EmbeddedWorld, name: str) -> str:
    job = await world.until(name, lambda job: job.status.verdict is not None)
    assert job.status.verdict is not None
    return job.status.verdict.reason


def says(job: Job, reason: str) -> bool:
    return job.status.verdict is not None and job.status.verdict.reason == reason


def test_each_member_has_a_device_of_its_own_until_it_ends() -> None:
    async def main() -> None:
        async with embedded_world(3) as world:
            nodes = await devices_on(world, [2, 0, 1])
            await create(world, make_device_template("one"))
            await submit(world, "j", 3)
            await world.runs("j")
            pods = await world.pods("j")
            assert sorted(pod.spec.node_name for pod in pods) == [nodes[0], nodes[0], nodes[2]]
            found = await claims(world)
            had = [
                (each.pool, each.device)
                for claim in found
                if claim.status.allocation is not None
                for each in claim.status.allocation.devices.results
            ]
            assert len(set(had)) == len(had) == 3
            reserved = {claim.status.reserved_for[0].name for claim in found}
            assert reserved == {pod.metadata.name for pod in pods}
            await submit(world, "k", 2)
            assert await verdict(world, "k") == Reason.INSUFFICIENT_CAPACITY.value
            await world.patch("j", cancel=True)
            await world.runs("k")
            assert {claim.pod for claim in await claims(world)} == {"k-1-worker-0", "k-1-worker-1"}

    run(main())


def test_a_gang_waits_for_the_quota_of_its_claims_and_makes_none_before() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            await devices_on(world, [4])
            name = f"{DRIVER}.deviceclass.resource.k8s.io/devices"
            quota = {"metadata": {"name": "q"}, "spec": {"hard": {name: "2"}}}
            await world.client.create(RESOURCE_QUOTAS, quota, namespace=NAMESPACE)
            await create(world, make_device_template("one"))
            await submit(world, "j", 3)
            assert await verdict(world, "j") == Reason.AWAITING_QUOTA.value
            await asyncio.sleep(60)
            assert not await claims(world)
            assert not await world.pods("j")
            more = {"spec": {"hard": {name: "3"}}}
            await world.client.patch(RESOURCE_QUOTAS, "q", more, namespace=NAMESPACE)
            await world.runs("j")
            await submit(world, "k", 1)
            assert await verdict(world, "k") == Reason.AWAITING_QUOTA.value

    run(main())


def test_members_have_parts_of_gpus_that_together_are_no_more_than_these() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            [node] = (await world.client.list(NODES)).items
            slices = make_mig_slices(node.metadata.name, 2)
            templates = [mig_template(profile) for profile in MIG]
            await create(world, make_device_class(DRIVER), *slices, *templates)
            for name, count in (("3g-40gb", 2), ("1g-10gb", 6)):
                await submit(world, name, count, template=name)
                await world.runs(name)
            await submit(world, "whole", 1, template="7g-80gb")
            assert await verdict(world, "whole") == Reason.INSUFFICIENT_CAPACITY.value
            had = [
                each.device
                for claim in await claims(world)
                if claim.status.allocation is not None
                for each in claim.status.allocation.devices.results
            ]
            assert len(set(had)) == len(had) == 8
            consumed = Counter[tuple[str, str]]()
            for device in slices[1].spec.devices:
                if device.name in had:
                    consumed.update({key: int(value) for key, value in device.consumed.items()})
            for counters in slices[0].spec.shared_counters:
                for counter, there_is in counters.counters.items():
                    assert consumed[counters.name, counter] <= int(there_is.value)
            await world.patch("1g-10gb", cancel=True)
            await world.runs("whole")

    run(main())


def test_an_allocation_names_the_alternative_that_a_member_got() -> None:
    async def main() -> None:
        big = f'device.attributes["{DRIVER}"].size == "big"'
        async with embedded_world(2) as world:
            nodes = sorted(node.metadata.name for node in (await world.client.list(NODES)).items)
            large = make_device("large", {"size": "big"})
            small = [make_device(f"small-{i}", {"size": "small"}) for i in range(3)]
            request = first_of_request(device_request(DRIVER, 1, big), all_devices_request())
            await create(
                world, make_device_class(DRIVER), make_slice(nodes[0], [large, *small]),
                make_slice(nodes[1], small), make_device_template("one", request),
            )  # fmt: skip
            await submit(world, "j", 2)
            await world.runs("j")
            had = {
                claim.pod: [(e.request, e.pool) for e in claim.status.allocation.devices.results]
                for claim in await claims(world)
                if claim.status.allocation is not None
            }
            where = {pod.metadata.name: pod.spec.node_name for pod in await world.pods("j")}
            assert sorted(where.values()) == nodes
            for pod, node in where.items():
                is_first = node == nodes[0]
                assert had[pod] == ([("r0/o0", node)] if is_first else [("r0/o1", node)] * 3)
            await submit(world, "k", 1)
            assert await verdict(world, "k") == Reason.INSUFFICIENT_CAPACITY.value

    run(main())


def test_combinations_without_end_delay_their_own_namespace_alone() -> None:
    """A tenant binds pods by hand whose claims ask for one device in 8 ** 20 ways."""

    async def main() -> None:
        async with embedded_world(1) as world:
            [node] = await devices_on(world, [3])
            await world.client.create(NAMESPACES, {"metadata": {"name": "a-tenant"}})
            never = [device_request(DRIVER, 3)] * 8
            requests = [first_of_request(*never, name=f"r{i}") for i in range(10)]
            template = to_wire(make_device_template("endless", *requests))
            template["metadata"] = {"name": "endless"}
            await world.client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="a-tenant")
            claim = {"name": "gpu", "resourceClaimTemplateName": "endless"}
            main = {"name": "main", "image": "x"}
            for i in range(3):
                spec = {"containers": [main], "resourceClaims": [claim], "nodeName": node}
                pod = {"metadata": {"name": f"p{i}"}, "spec": spec}
                await world.client.create(PODS, pod, namespace="a-tenant")
            await create(world, make_device_template("one"))
            await submit(world, "j", 3)
            await world.runs("j")
            assert sum(claim.status.allocation is not None for claim in await claims(world)) == 3
            theirs = (await world.client.list(RESOURCE_CLAIMS, namespace="a-tenant")).items
            assert [each.status.allocation for each in theirs] == [None] * 3

    run(main())


def test_a_job_waits_in_words_for_a_template_a_class_and_devices_and_then_runs() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            await submit(world, "j", 1)
            assert await verdict(world, "j") == Reason.DEVICE_CLAIM_MISSING.value
            await create(world, make_device_template("one"))
            missing = Reason.DEVICE_CLASS_MISSING.value
            await world.until("j", lambda job: says(job, missing))
            assert await world.pods("j") == []
            await create(world, make_device_class(DRIVER))
            shape = Reason.NO_NODE_SHAPE_FITS.value
            await world.until("j", lambda job: says(job, shape))
            [node] = (await world.client.list(NODES)).items
            await create(world, make_slice(node.metadata.name, 1))
            assert (await world.runs("j")).status.attempt == 1

    run(main())


def test_members_run_where_the_devices_of_the_claim_that_they_share_are() -> None:
    async def main() -> None:
        async with embedded_world(3) as world:
            nodes = await devices_on(world, [0, 1, 0])
            await create(world, make_device_claim("shared"))
            await submit(world, "first", 1, claim="shared")
            await world.runs("first")
            await submit(world, "j", 2, claim="shared")
            await world.runs("j")
            assert {pod.spec.node_name for pod in await world.pods("j")} == {nodes[1]}
            [claim] = await claims(world)
            assert len(claim.status.reserved_for) == 3
            await world.patch("j", cancel=True)
            await world.patch("first", cancel=True)
            await world.until("j", lambda job: job.status.state == "Cancelled")
            await submit(world, "k", 2, claim="shared")  # without another pod before it
            await world.runs("k")
            assert {pod.spec.node_name for pod in await world.pods("k")} == {nodes[1]}
            [claim] = await claims(world)
            assert len(claim.status.reserved_for) == 2

    run(main())


def test_gangs_that_share_a_claim_each_get_devices_beside_each_other() -> None:
    """Of three, two find a node whose devices are free; the third one waits for their end."""

    async def main() -> None:
        async with embedded_world(3) as world:
            nodes = await devices_on(world, [0, 1, 2])
            for name, count in (("a", 2), ("b", 1), ("c", 2)):
                request = device_request(DRIVER, count)
                await create(world, make_device_claim(name, request))
                await submit(world, name, 3, claim=name)
                if name != "c":
                    await world.runs(name)
            places = {n: {pod.spec.node_name for pod in await world.pods(n)} for n in "ab"}
            assert places == {"a": {nodes[2]}, "b": {nodes[1]}}
            assert await verdict(world, "c") == Reason.INSUFFICIENT_CAPACITY.value
            assert await world.pods("c") == []
            await world.patch("a", cancel=True)
            job = await world.runs("c")
            assert job.status.attempt == 1
            assert {pod.spec.node_name for pod in await world.pods("c")} == {nodes[2]}

    run(main())


def test_an_expression_that_does_not_compile_is_refused_with_its_path() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            with pytest.raises(Invalid) as error:
                await create(world, make_device_template("t", device_request(DRIVER, 1, "device.")))
            path = "spec.spec.devices.requests[0].exactly.selectors[0].cel.expression"
            assert path in str(error.value)
            with pytest.raises(Invalid, match=r"spec\.selectors\[0\]\.cel\.expression"):
                await create(world, make_device_class("c", "no such thing"))

    run(main())
