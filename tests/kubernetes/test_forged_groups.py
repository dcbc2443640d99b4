"""A user with the role `edit` in one namespace changes the job of a group, and no webhook is asked:
on a real API server, with its access rules and its quota.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from tests.kubernetes.adopting import TOOLS, adopting, stand_in, sweep_all, template
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    http_client,
    install_kinds,
    job_body,
    kubeconfig_of,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_tenancy import ACCOUNTS, BINDINGS, QUOTAS, ROLES

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, NAMESPACES, PODS, PRIORITY_CLASSES
from fairlead.api.status import Forbidden
from fairlead.install.manifests import Install, manifests
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions

pytestmark = pytest.mark.kubernetes

SPACE = "mallory"
NODES = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True, controllers=TOOLS)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncGenerator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep_all(client)
    await client.close()


async def editor(client: HttpClient, cluster: ControlPlane) -> HttpClient:
    """A client with the rights of the role `edit` in a namespace, and no others."""
    await client.create(NAMESPACES, {"metadata": {"name": SPACE}})
    await client.create(ACCOUNTS, {"metadata": {"name": "mallory"}}, namespace=SPACE)
    for each in manifests(Install()):
        if each["metadata"]["name"] == "fairlead-edit":
            await client.create(ROLES, each)
    # What `edit` is made of: the controller that puts it together does not run here.
    for role in ("system:aggregate-to-edit", "system:aggregate-to-view", "fairlead-edit"):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        subject = {"kind": "ServiceAccount", "name": "mallory", "namespace": SPACE}
        name = role.replace(":", "-")
        body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        await client.create(BINDINGS, body, namespace=SPACE)
    kubeconfig = await kubeconfig_of(client, cluster, SPACE, "mallory")
    return HttpClient(load_connection(path=kubeconfig), HttpOptions())


def member(name: str) -> dict[str, Any]:
    body = template(labels={names.GANG_NAME: "h"})
    body["metadata"]["name"] = name
    body["metadata"]["annotations"][names.GROUP_SIZE] = "2"
    return body


async def test_a_class_that_a_user_gives_to_the_job_of_its_group_preempts_nobody(
    client: HttpClient, cluster: ControlPlane
) -> None:
    mallory = await editor(client, cluster)
    high = {"metadata": {"name": "high"}, "value": 1000}
    await client.create(PRIORITY_CLASSES, high)
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "9"}}}
    await client.create(QUOTAS, quota, namespace=SPACE)
    status = {"status": {"hard": {"pods": "9"}, "used": {"pods": "0"}}}
    await client.patch(QUOTAS, "q", status, namespace=SPACE, subresource="status")
    async with virtual_nodes(client, NODES), adopting(client):
        await client.create(JOBS, job_body("victim", NODES), namespace="default")

        async def runs() -> bool:
            job = await client.get(JOBS, "victim", namespace="default")
            return job.status.state == "Running" and job.status.preemption is None

        await until(runs)
        await mallory.create(PODS, member("h0"), namespace=SPACE)

        async def gathers() -> bool:
            return bool((await client.list(JOBS, namespace=SPACE)).items)

        await until(gathers)
        made = await stand_in(client, "h")
        patch = {"spec": {"priorityClassName": "high"}}
        await mallory.patch(JOBS, made.metadata.name, patch, namespace=SPACE)
        with pytest.raises(Forbidden):
            await mallory.patch(
                JOBS, made.metadata.name, {"status": {"attempt": 1}}, namespace=SPACE,
                subresource="status",
            )  # fmt: skip
        await mallory.create(PODS, member("h1"), namespace=SPACE)

        async def waits() -> bool:
            jobs = (await client.list(JOBS, namespace=SPACE)).items
            return any(
                job.status.verdict is not None
                and job.status.verdict.reason == "InsufficientCapacity"
                for job in jobs
            )

        await until(waits)

        async def is_replaced(old: Job) -> bool:
            jobs = (await client.list(JOBS, namespace=SPACE)).items
            return bool(jobs) and all(job.metadata.uid != old.metadata.uid for job in jobs)

        await until(functools.partial(is_replaced, made))
        await asyncio.sleep(5)
        replaced = await stand_in(client, "h")
        assert replaced.spec.priority_class_name == ""
        # While it waits in the queue: at once out of it, and replaced again.
        await mallory.patch(JOBS, replaced.metadata.name, patch, namespace=SPACE)
        await until(functools.partial(is_replaced, replaced))
        await asyncio.sleep(5)
        assert (await stand_in(client, "h")).spec.priority_class_name == ""
        assert await runs()
        victim = await client.get(JOBS, "victim", namespace="default")
        assert (victim.status.attempt, victim.status.members.running) == (1, NODES)
        gated = (await client.list(PODS, namespace=SPACE)).items
        assert all(pod.spec.scheduling_gates for pod in gated)
        used = (await client.get(QUOTAS, "q", namespace=SPACE))["status"]["used"]
        assert used == {"pods": "2"}, "pods behind a gate count in quotas"
    await mallory.close()
