"""Members that ask for resources as a whole, on the embedded cluster's store, API and nodes."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.status import Invalid
from fairlead.api.values import quantity
from fairlead.decide.reasons import Reason
from fairlead.sim.loop import run

from .embedded_world import NAMESPACE, EmbeddedWorld, embedded_world


def job_body(name: str, count: int, whole: dict[str, Any], **pod: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "resources": whole, **pod}}
    roles = [{"name": "worker", "count": count, "template": template}]
    return {"metadata": {"name": name}, "spec": {"roles": roles}}


async def cpus_of_a_node(world: EmbeddedWorld) -> int:
    node = (await world.client.list(NODES)).items[0]
    return quantity.to_base(quantity.CPU, node.status.allocatable[quantity.CPU]) // 1000


def test_members_that_ask_as_a_whole_for_more_than_half_a_node_get_one_each() -> None:
    async def main() -> None:
        async with embedded_world(2) as world:
            half = await cpus_of_a_node(world) // 2 + 1
            for name, whole in (
                ("requests", {"requests": {"cpu": str(half)}}),
                ("limits", {"requests": {"cpu": str(half)}, "limits": {"cpu": str(half)}}),
            ):
                body = job_body(name, 2, whole)
                await world.client.create(JOBS, body, namespace=NAMESPACE)
                await world.runs(name)
                nodes = {pod.spec.node_name for pod in await world.pods(name)}
                assert len(nodes) == 2, name
                await world.patch(name, cancel=True)
                await world.until(name, lambda job: job.is_finished)
            await world.client.create(
                JOBS, job_body("three", 3, {"requests": {"cpu": str(half)}}), namespace=NAMESPACE
            )
            job = await world.until("three", lambda job: job.status.verdict is not None)
            assert job.status.verdict is not None
            assert job.status.verdict.reason == Reason.EXCEEDS_CLUSTER.value
            assert await world.pods("three") == []

    run(main())


def test_a_pod_gets_the_defaults_and_the_class_of_what_it_asks_as_a_whole() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            whole = {"limits": {"cpu": "2", "memory": "1Gi"}}
            await world.client.create(JOBS, job_body("one", 1, whole), namespace=NAMESPACE)
            await world.runs("one")
            (pod,) = await world.pods("one")
            assert pod.spec.resources is not None
            assert pod.spec.resources.requests == {"cpu": "1", "memory": "1Gi"}
            assert pod.spec.resources.limits == whole["limits"]

    run(main())


def test_what_a_member_cannot_ask_as_a_whole_is_refused_with_the_job() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            body = job_body("bad", 1, {"requests": {"cpu": "500m"}})
            with pytest.raises(Invalid) as caught:
                await world.client.create(JOBS, body, namespace=NAMESPACE)
            path = "spec.roles[0].template.spec.resources.requests[cpu]"
            assert path in str(caught.value)
            pod = body["spec"]["roles"][0]["template"]["spec"]
            with pytest.raises(Invalid) as caught:
                await world.client.create(
                    PODS, {"metadata": {"name": "bad"}, "spec": pod}, namespace=NAMESPACE
                )
            assert "spec.resources.requests[cpu]" in str(caught.value)

    run(main())


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("schedulingGates", [{"name": "example.dev/gate"}], "spec.suspend"),
        ("resourceClaims", [{"name": "gpu"}], "exactly one of resourceClaimName"),
    ],
)
def test_what_no_member_can_have_is_refused_with_the_job(
    field: str, value: object, remedy: str
) -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            body = job_body("bad", 1, {}, **{field: value})
            with pytest.raises(Invalid) as caught:
                await world.client.create(JOBS, body, namespace=NAMESPACE)
            assert f"spec.roles[0].template.spec.{field}" in str(caught.value)
            assert remedy in str(caught.value)

    run(main())
