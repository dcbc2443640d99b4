"""The pinned way: Fairlead places, the real kube-scheduler binds, others' pods come in between.

The virtual nodes refuse what does not fit, as kubelets do: a pod that ends as OutOf... would show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.operating import (
    POLICY,
    controllers,
    ended,
    http_client,
    install_kinds,
    job_body,
    running,
    succeed,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.sharing import GPUS_PER_NODE, NEEDS_FRIEND, befriend, other_pod, watched

from fairlead.api import names
from fairlead.api.jobs.job import Cause
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODES, PODS
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.pinning import Binding, pinned_node
from fairlead.decide.reasons import Reason
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
PINNED = replace(POLICY, binding=Binding.PINNED, bind_patience_seconds=1.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def test_a_gang_is_bound_by_the_stock_scheduler_and_starts_when_all_are(
    client: HttpClient,
) -> None:
    async with (
        watched(client),
        virtual_nodes(client, 20) as nodes,
        controllers(client, policy=PINNED),
    ):
        await client.create(JOBS, job_body("gang", 20), namespace="default")
        await running(client, "gang", 20)
        pods = (await client.list(PODS)).items
        assert len(pods) == 20
        assert all(pod.spec.node_name == pinned_node(pod.spec) for pod in pods)
        scheduled = [c for p in pods for c in p.status.conditions if c.type == "PodScheduled"]
        assert [c.status for c in scheduled] == ["True"] * 20
        # only a scheduler's binding sets this condition; containers wait for the ConfigMap
        shared = await client.get(CONFIG_MAPS, "gang-1-gang", namespace="default")
        last = max(c.last_transition_time or "" for c in scheduled)
        assert (shared.metadata.creation_timestamp or "") >= last
        await succeed(client, nodes, "gang")
        job = await ended(client, "gang")
    assert (job.status.state, job.status.attempt) == ("Succeeded", 1)


async def test_a_node_that_says_direct_is_not_left_to_the_stock_scheduler(
    client: HttpClient,
) -> None:
    async with watched(client), virtual_nodes(client, 2), controllers(client, policy=PINNED):
        label = {"metadata": {"labels": {names.BINDING: "direct"}}}
        await client.patch(NODES, "v00000", label)
        await client.create(JOBS, job_body("mixed", 2), namespace="default")

        async def are_bound() -> bool:
            pods = (await client.list(PODS)).items
            return len(pods) == 2 and all(pod.spec.node_name for pod in pods)

        await until(are_bound)
        pods = {pod.spec.node_name: pod for pod in (await client.list(PODS)).items}
    assert pinned_node(pods["v00000"].spec) == ""
    assert pinned_node(pods["v00001"].spec) == "v00001"


async def test_a_member_that_the_stock_scheduler_refuses_moves_and_nobody_is_blamed(
    client: HttpClient,
) -> None:
    home, body = "v00000", job_body("moves", 9, seconds=1)
    body["spec"]["roles"][0]["template"]["spec"]["affinity"] = NEEDS_FRIEND
    async with (
        watched(client),
        virtual_nodes(client, 10) as nodes,
        controllers(client, policy=PINNED),
    ):
        await befriend(client, nodes.node_names(), but=home)
        await client.create(JOBS, body, namespace="default")
        job = await ended(client, "moves")
    assert job.status.state == "Succeeded"
    first = job.status.attempts[0]
    assert (first.reason, first.cause, first.nodes_lost) == (
        EndReason.NOT_BOUND.value, None, (home,),
    )  # fmt: skip
    assert "pod affinity" in first.message
    assert job.status.infrastructure_failures == job.status.user_failures == 0
    assert job.status.placement is None or home not in job.status.placement.roles[0].nodes


async def test_a_gang_that_no_node_takes_gives_its_place_up_and_says_what_the_scheduler_says(
    client: HttpClient,
) -> None:
    body = job_body("lonely", 3, seconds=1)
    body["spec"]["roles"][0]["template"]["spec"]["affinity"] = NEEDS_FRIEND
    async with watched(client), virtual_nodes(client, 4), controllers(client, policy=PINNED):
        await client.create(JOBS, body, namespace="default")

        async def waits() -> bool:
            job = await client.get(JOBS, "lonely", namespace="default")
            verdict = job.status.verdict
            return verdict is not None and verdict.reason == Reason.PLACE_REFUSED.value

        await until(waits)
        job = await client.get(JOBS, "lonely", namespace="default")
        assert (job.status.state, job.status.placement) == ("Waiting", None)
        assert [a.reason for a in job.status.attempts] == [EndReason.NOT_BOUND.value] * 3
        assert job.status.verdict is not None
        assert "pod affinity" in str(job.status.verdict.facts["message"])
        assert (await client.list(PODS, namespace="default")).items == ()
        # Its nodes are free: another gang takes all of them, and ends before it is tried again.
        await client.create(JOBS, job_body("next", 4, seconds=1), namespace="default")
        assert (await ended(client, "next")).status.state == "Succeeded"


async def test_a_gang_moves_off_a_node_that_is_drained_and_stays_off(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    kubectl = Kubectl(cluster.binaries / "kubectl", tmp_path, cluster.kubeconfig())

    async def nodes_of_the_running() -> set[str]:
        pods = (await client.list(PODS)).items
        return {pod.spec.node_name for pod in pods if pod.status.phase == "Running"}

    async with watched(client), virtual_nodes(client, 4), controllers(client, policy=PINNED):
        await client.create(JOBS, job_body("drained", 3, seconds=600), namespace="default")

        async def runs() -> bool:
            return len(await nodes_of_the_running()) == 3

        await until(runs)
        home = min(await nodes_of_the_running())
        patience = f"--timeout={PATIENCE_SECONDS:.0f}s"
        drained = await kubectl("drain", home, "--delete-emptydir-data", patience)
        assert drained.code == 0, drained

        async def moved() -> bool:
            job = await client.get(JOBS, "drained", namespace="default")
            return job.status.attempt == 2 and await runs()

        await until(moved)
        assert home not in await nodes_of_the_running()
        job = await client.get(JOBS, "drained", namespace="default")
    first = job.status.attempts[0]
    assert (first.reason, first.cause, first.nodes_lost) == (
        EndReason.DRAINED.value, Cause.INFRASTRUCTURE, (home,),
    )  # fmt: skip
    assert "was evicted from a cordoned node" in first.message
    assert job.status.user_failures == 0


async def test_gangs_get_their_turn_on_nodes_that_the_stock_scheduler_fills_as_well(
    client: HttpClient,
) -> None:
    async with watched(client) as bound, virtual_nodes(client, 40):

        async def others() -> None:
            for i in range(600):
                pod = other_pod(f"other-{i}", seconds=0.5 + i % 7 / 5)
                await client.create(PODS, pod, namespace="default")
                await asyncio.sleep(0.01)

        async with controllers(client, policy=PINNED), asyncio.TaskGroup() as group:
            group.create_task(others())
            for i in range(12):
                body = job_body(f"gang-{i}", 4 + i, seconds=1, gpus=8 if i % 2 else 4)
                await client.create(JOBS, body, namespace="default")
                await asyncio.sleep(0.3)
            jobs = [await ended(client, f"gang-{i}") for i in range(12)]
    assert {job.status.state for job in jobs} == {"Succeeded"}
    assert bound.most == GPUS_PER_NODE
