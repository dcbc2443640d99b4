"""Pods of other tools, placed as gangs beside the real kube-scheduler and the real controllers of
`batch/v1` Jobs and StatefulSets.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kubernetes.adopting import (
    BATCH,
    SETS,
    TOOLS,
    adopting,
    batch_job,
    complete,
    pods_of,
    settled,
    stand_in,
    stateful_set,
    sweep_all,
    template,
)
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    http_client,
    install_kinds,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import holder, leader, replicas
from tests.kubernetes.sharing import NEEDS_FRIEND, befriend

from fairlead.api import names
from fairlead.api.resources import EVENTS, JOBS, NODES, PODS
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True, controllers=TOOLS)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep_all(client)
    await client.close()


async def test_an_indexed_job_is_placed_as_a_gang_and_runs_to_its_end(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 4), adopting(client):
        await client.create(BATCH, batch_job("train", 4, seconds=1), namespace="default")

        async def is_over() -> bool:
            return await complete(client, "train")

        await until(is_over)

        async def is_told() -> bool:
            return (await stand_in(client, "train")).is_finished

        await until(is_told)
        job = await stand_in(client, "train")
        assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
        assert job.status.members.succeeded == 4
        pods = await pods_of(client, "train")
        assert len(pods) == 4
        assert len({p.spec.node_name for p in pods}) == 4


async def test_a_lost_pod_comes_back_to_its_place(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 6), adopting(client):
        await client.create(SETS, stateful_set("web", 4), namespace="default")
        await settled(client, "web", total=4)
        before = {p.metadata.name: p for p in await pods_of(client, "web")}
        await client.delete(PODS, "web-2", namespace="default", grace_period_seconds=0)

        async def is_back() -> bool:
            pods = {p.metadata.name: p for p in await pods_of(client, "web")}
            new = pods.get("web-2")
            return bool(
                new and new.metadata.uid != before["web-2"].metadata.uid and new.spec.node_name
            )

        await until(is_back)
        after = {p.metadata.name: p for p in await pods_of(client, "web")}
        job = await stand_in(client, "web")
    assert after["web-2"].spec.node_name == before["web-2"].spec.node_name
    assert {n: p.metadata.uid for n, p in after.items() if n != "web-2"} == {
        n: p.metadata.uid for n, p in before.items() if n != "web-2"
    }
    assert job.status.attempt == 1


async def test_a_member_whose_node_is_out_moves_and_the_others_stay(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 6), adopting(client):
        await client.create(SETS, stateful_set("web", 4), namespace="default")
        await settled(client, "web", total=4)
        before = {p.metadata.name: p for p in await pods_of(client, "web")}
        node = before["web-1"].spec.node_name
        await client.patch(NODES, node, {"spec": {"unschedulable": True}})
        await client.delete(PODS, "web-1", namespace="default", grace_period_seconds=0)

        async def is_back() -> bool:
            pods = {p.metadata.name: p for p in await pods_of(client, "web")}
            return "web-1" in pods and pods["web-1"].spec.node_name not in ("", node)

        await until(is_back)
        after = {p.metadata.name: p.metadata.uid for p in await pods_of(client, "web")}
        job = await stand_in(client, "web")
    assert {n: u for n, u in after.items() if n != "web-1"} == {
        n: p.metadata.uid for n, p in before.items() if n != "web-1"
    }
    assert (job.status.attempt, job.status.attempts[0].nodes_lost) == (2, (node,))


async def test_members_that_a_set_gets_later_are_placed_one_by_one(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 5), adopting(client):
        await client.create(SETS, stateful_set("web", 3), namespace="default")
        await settled(client, "web", total=3)
        await client.patch(SETS, "web", {"spec": {"replicas": 6}}, namespace="default")
        await settled(client, "web", total=5)
        jobs = (await client.list(JOBS)).items
        sizes = {job.spec.adopts.name: job.member_count for job in jobs if job.spec.adopts}
        assert sizes == {"web": 3, "web-3": 1, "web-4": 1, "web-5": 1}
        await client.patch(SETS, "web", {"spec": {"replicas": 3}}, namespace="default")

        async def are_gone() -> bool:
            return len((await client.list(JOBS)).items) == 1

        await until(are_gone)
        assert (await stand_in(client, "web")).status.attempt == 1


async def test_a_group_that_never_completes_holds_nothing(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 4), adopting(client):
        lonely = template(labels={names.GANG_NAME: "lonely"})
        lonely["metadata"]["annotations"][names.GROUP_SIZE] = "4"
        for i in range(3):
            lonely["metadata"]["name"] = f"lonely-{i}"
            await client.create(PODS, lonely, namespace="default")

        async def is_told() -> bool:
            jobs = (await client.list(JOBS)).items
            return any("3 of 4 members" in c.message for j in jobs for c in j.status.conditions)

        await until(is_told)
        await client.create(BATCH, batch_job("whole", 4, seconds=1), namespace="default")

        async def is_over() -> bool:
            return await complete(client, "whole")

        await until(is_over)
        job = await stand_in(client, "lonely")
        assert (job.status.attempt, job.status.placement) == (0, None)
        lonely["metadata"]["name"] = "lonely-3"
        await client.create(PODS, lonely, namespace="default")

        async def is_placed() -> bool:
            pods = (await client.list(PODS, label_selector=names.GANG_NAME)).items
            return all(p.spec.node_name for p in pods)

        await until(is_placed)


KILLS = 6


async def test_groups_run_through_though_the_leader_is_killed_again_and_again(
    cluster: ControlPlane, client: HttpClient
) -> None:
    rng = random.Random(6)
    names_: list[str] = []
    async with witnessed(client), virtual_nodes(client, 24), replicas(cluster) as world:
        for _ in range(2):
            await world.start()
        await leader(client, world)
        for kill in range(KILLS):
            # always some to gather, to release and to end when the leader dies
            for i in range(2):
                names_.append(f"gang-{kill:02d}-{i}")
                body = batch_job(names_[-1], rng.choice([3, 8, 20]), seconds=rng.uniform(0.5, 2))
                await client.create(BATCH, body, namespace="default")
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            world.kill(await leader(client, world))
            fresh = asyncio.ensure_future(world.start())
            await leader(client, world)
            await fresh
        for name in names_:

            async def is_over(name: str = name) -> bool:
                return await complete(client, name)

            await until(is_over)

        async def are_told() -> bool:
            return all([(await stand_in(client, name)).is_finished for name in names_])

        await until(are_told)
        jobs = [await stand_in(client, name) for name in names_]
        assert {(job.status.state, job.status.attempt) for job in jobs} == {("Succeeded", 1)}


async def test_a_leader_that_slept_through_its_lease_releases_nothing_wrongly(
    cluster: ControlPlane, client: HttpClient
) -> None:
    """SIGSTOP while groups are released; it wakes up when another leads and has placed others."""
    rng = random.Random(7)
    names_: list[str] = []
    async with witnessed(client), virtual_nodes(client, 24), replicas(cluster) as world:
        for _ in range(2):
            await world.start()
        await leader(client, world)
        for sleep in range(4):
            for i in range(3):
                names_.append(f"gang-{sleep}-{i}")
                body = batch_job(names_[-1], rng.choice([8, 20, 24]), seconds=rng.uniform(0.5, 2))
                await client.create(BATCH, body, namespace="default")
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            sleeper = await leader(client, world)
            os.kill(sleeper.process.pid, signal.SIGSTOP)

            async def another_leads(asleep: str = sleeper.identity) -> bool:
                return await holder(client) not in ("", asleep)

            await until(another_leads)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            os.kill(sleeper.process.pid, signal.SIGCONT)
        for name in names_:

            async def is_over(name: str = name) -> bool:
                return await complete(client, name)

            await until(is_over)


async def test_ten_pods_that_nobody_grouped_and_one_group_whose_tool_is_not_installed(
    client: HttpClient,
) -> None:
    """The size is on the pods, so the kind behind them need not be served."""
    prefix = "leaderworkerset.sigs.k8s.io"
    async with witnessed(client), virtual_nodes(client, 14), adopting(client):
        for i in range(10):
            single = template(gpus=1)
            single["metadata"]["name"] = f"single-{i}"
            await client.create(PODS, single, namespace="default")
        leader, workers = stateful_set("serve", 1), stateful_set("serve-0", 3)
        workers["spec"]["ordinals"] = {"start": 1}
        for body, more in ((leader, {f"{prefix}/worker-index": "0"}), (workers, {})):
            meta = body["spec"]["template"]["metadata"]
            meta["labels"] |= {f"{prefix}/name": "serve", f"{prefix}/group-index": "0", **more}
            meta["annotations"][f"{prefix}/size"] = "4"
            await client.create(SETS, body, namespace="default")

        async def are_bound() -> bool:
            pods = (await client.list(PODS)).items
            return len(pods) == 14 and all(pod.spec.node_name for pod in pods)

        await until(are_bound)
        jobs = (await client.list(JOBS)).items
        sizes = sorted((len(job.spec.roles), job.member_count) for job in jobs)
        assert sizes == [(1, 1)] * 10 + [(2, 4)]


async def test_a_set_that_starts_in_order_is_told_how_to_be_a_gang(client: HttpClient) -> None:
    async with virtual_nodes(client, 2), adopting(client):
        body = stateful_set("slow", 2)
        body["spec"]["podManagementPolicy"] = "OrderedReady"
        await client.create(SETS, body, namespace="default")

        async def is_told() -> bool:
            events = (await client.list(EVENTS, namespace="default")).items
            return any(
                e.reason == "NotAGang" and "podManagementPolicy: Parallel" in e.message
                and e.involved_object.name == "slow-0"
                for e in events
            )  # fmt: skip

        await until(is_told)
        assert (await client.list(JOBS)).items == ()


async def test_a_member_that_kube_scheduler_refuses_moves_and_the_others_stay(
    client: HttpClient,
) -> None:
    home, body = "v00000", stateful_set("web", 4)
    body["spec"]["template"]["spec"]["affinity"] = NEEDS_FRIEND
    async with witnessed(client), virtual_nodes(client, 5) as nodes, adopting(client):
        await befriend(client, nodes.node_names(), but=home)
        await client.create(SETS, body, namespace="default")
        await settled(client, "web", total=4)
        job = await stand_in(client, "web")
        nodes = {pod.spec.node_name for pod in await pods_of(client, "web")}
    assert home not in nodes
    assert len(nodes) == 4
    assert (job.status.attempts[0].reason, job.status.attempts[0].nodes_lost) == (
        "NotBound", (home,),
    )  # fmt: skip
    assert "pod affinity" in job.status.attempts[0].message
