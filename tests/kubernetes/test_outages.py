"""A part of the control plane dies by signal 9 in the middle of the work, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.kubernetes.controlplane import ControlPlane, NoControlPlane, control_plane
from tests.kubernetes.operating import (
    controllers,
    http_client,
    install_kinds,
    job_body,
    until,
    virtual_nodes,
)

from fairlead.api import names
from fairlead.api.job import Job
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import ApiError
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
GANGS, MEMBERS = 10, 100


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    try:
        with control_plane(tmp_path_factory.mktemp("plane")) as running:
            yield running
    except NoControlPlane as reason:
        pytest.skip(f"no real control plane: {reason}")


async def pod_count(client: HttpClient) -> int:
    return len((await client.list(PODS, label_selector=names.JOB_UID)).items)


async def jobs_of(client: HttpClient) -> list[Job]:
    """Return all jobs, once the server answers."""
    found: list[Job] = []

    async def answered() -> bool:
        try:
            found[:] = (await client.list(JOBS)).items
        except ApiError:
            return False
        return True

    await until(answered, 60)
    return found


async def test_a_thousand_pods_are_made_once_though_etcd_is_killed_meanwhile(
    cluster: ControlPlane,
) -> None:
    client = http_client(cluster)
    await install_kinds(client)
    with ExitStack() as revived:
        async with virtual_nodes(client, GANGS * MEMBERS // 2), controllers(client) as pair:
            for i in range(GANGS):
                body = job_body(f"gang-{i}", MEMBERS, gpus=4, seconds=3600)
                await client.create(JOBS, body, namespace="default")

            async def is_in_the_middle() -> bool:
                return await pod_count(client) > GANGS * MEMBERS // 5

            await until(is_in_the_middle, 60)
            cluster.kill("etcd")
            await asyncio.sleep(1.0)
            cluster.revive(revived, "etcd")

            async def all_run() -> bool:
                jobs = await jobs_of(client)
                return all(job.status.members.running == MEMBERS for job in jobs)

            await until(all_run, 120)
            await judge(client)
            mirrored = next(m for m in pair.jobs.mirrors if m.resource is PODS)

            async def is_up_to_date() -> bool:
                now = (await client.list(PODS, label_selector=names.JOB_UID)).items
                seen = {pod.metadata.uid: pod.metadata.resource_version for pod in mirrored.items()}
                return seen == {p.metadata.uid: p.metadata.resource_version for p in now}

            await until(is_up_to_date, 30)
    await client.close()


async def judge(client: HttpClient) -> None:
    """Nothing is lost and nothing doubled: each member has its one pod, on its place."""
    pods = (await client.list(PODS, label_selector=names.JOB_UID)).items
    jobs = await jobs_of(client)
    ends = [(a.reason, a.message) for job in jobs for a in job.status.attempts if a.reason]
    assert ends == []
    places = {
        (job.metadata.name, index): node
        for job in jobs
        if job.status.placement is not None
        for index, node in enumerate(job.status.placement.roles[0].nodes)
    }
    found = [
        (pod.metadata.labels[names.JOB_NAME], int(pod.metadata.labels[names.INDEX])) for pod in pods
    ]
    assert len(found) == len(set(found)) == GANGS * MEMBERS
    assert {key: pod.spec.node_name for key, pod in zip(found, pods, strict=True)} == places
