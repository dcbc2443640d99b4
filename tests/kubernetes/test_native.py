"""The native way: a server that has PodGroups, and the real kube-scheduler that places gangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    POLICY,
    controllers,
    delete_all,
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
from tests.kubernetes.sharing import NEEDS_FRIEND, befriend, friend, other_pod, watched
from tests.kubernetes.test_devices import body_of
from tests.kubernetes.test_volume_gangs import BINDER, OF_ITS_OWN, provisioner

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.podgroups import GroupApi, pod_groups, workloads
from fairlead.api.resources import (
    CLAIMS,
    DEVICE_CLASSES,
    JOBS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
)
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.pinning import Binding, pinned_node
from fairlead.kube.client import HttpClient
from fairlead.runtime.watching.discovery import discover_groups
from fairlead.testing.device_builders import (
    DRIVER,
    make_device_class,
    make_device_template,
    make_slice,
)
from fairlead.testing.volume_builders import ZONE, make_volume

pytestmark = pytest.mark.kubernetes
API = GroupApi.V1ALPHA2
#: The patience is longer than kube-scheduler's back-off (1 s): a gang that is given up while it is
#: bound there may keep its nodes for five minutes, the time limit of its members at Permit (1.36).
NATIVE = replace(POLICY, binding=Binding.NATIVE, groups=API, native_patience_seconds=4.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(
        tmp_path_factory,
        flags=("--runtime-config=scheduling.k8s.io/v1alpha2=true",),
        scheduler=True,
        gates=("GenericWorkload", "GangScheduling"),
        controllers=("podgroup-protection-controller", "resourceclaim-controller", *BINDER),
    )


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def job(client: HttpClient, name: str) -> Job:
    return await client.get(JOBS, name, namespace="default")


async def pods_of(client: HttpClient, name: str) -> list[Pod]:
    found = await client.list(PODS, label_selector=f"{names.JOB_NAME}={name}")
    return list(found.items)


def where(pods: list[Pod]) -> dict[int, str]:
    """Node by index of the member."""
    return {int(pod.metadata.labels[names.INDEX]): pod.spec.node_name for pod in pods}


async def test_the_version_is_found_out(client: HttpClient) -> None:
    assert await discover_groups(client) is API


async def test_a_gang_is_placed_by_kube_scheduler_and_its_placement_says_where(
    client: HttpClient,
) -> None:
    async with (
        watched(client), virtual_nodes(client, 12) as nodes, controllers(client, policy=NATIVE),
    ):  # fmt: skip
        await client.create(JOBS, job_body("gang", 8), namespace="default")

        async def runs() -> bool:
            status = (await job(client, "gang")).status
            pods = await pods_of(client, "gang")
            if status.placement is None or not status.members.running:
                return False
            placed = dict(enumerate(status.placement.roles[0].nodes))
            return len(pods) == 8 and placed == where(pods)

        await until(runs)
        pods = await pods_of(client, "gang")
        assert [pinned_node(pod.spec) for pod in pods] == [""] * 8
        groups = [pod.spec.scheduling_group for pod in pods]
        assert [group.pod_group_name for group in groups if group] == ["gang-1"] * 8
        group = await client.get(pod_groups(API), "gang-1", namespace="default")
        load = await client.get(workloads(API), "gang", namespace="default")
        owner = (await job(client, "gang")).metadata.uid
        owners = [each.metadata.owner_references[0].uid for each in (group, load)]
        assert owners == [owner, owner]
        await running(client, "gang", 8)
        await succeed(client, nodes, "gang")
        done = await ended(client, "gang")
        assert (done.status.state, done.status.attempt) == ("Succeeded", 1)

        async def group_is_gone() -> bool:
            return (await client.list(pod_groups(API))).items == ()

        await until(group_is_gone)


async def test_a_gang_that_kube_scheduler_cannot_place_holds_nothing_and_runs_when_it_can(
    client: HttpClient,
) -> None:
    alone, body = "v00000", job_body("whole", 6, seconds=1)
    body["spec"]["roles"][0]["template"]["spec"]["affinity"] = NEEDS_FRIEND
    async with (
        watched(client),
        virtual_nodes(client, 6) as nodes,
        controllers(client, policy=NATIVE),
    ):
        await befriend(client, nodes.node_names(), but=alone)
        await client.create(JOBS, body, namespace="default")

        async def gave_up() -> bool:
            pods = await pods_of(client, "whole")
            assert not any(pod.spec.node_name for pod in pods)
            first_is_gone = all(pod.metadata.labels[names.ATTEMPT] != "1" for pod in pods)
            ended = any(a.reason for a in (await job(client, "whole")).status.attempts)
            return ended and first_is_gone

        await until(gave_up)
        await client.create(PODS, friend(alone), namespace="default")
        done = await ended(client, "whole")
    first = done.status.attempts[0]
    assert done.status.state == "Succeeded"
    assert (first.reason, first.cause) == (EndReason.NOT_BOUND.value, None)
    assert len(first.nodes_lost) == 6
    assert "pod affinity" in first.message
    assert done.status.infrastructure_failures == done.status.user_failures == 0


async def test_native_pods_stay_off_the_nodes_that_are_bound_directly(client: HttpClient) -> None:
    async with watched(client), virtual_nodes(client, 4), controllers(client, policy=NATIVE):
        label = {"metadata": {"labels": {names.BINDING: "direct"}}}
        await client.patch(NODES, "v00000", label)
        taint = {"key": "pool", "value": "own", "effect": "NoSchedule"}
        await client.patch(NODES, "v00000", {"spec": {"taints": [taint]}})
        await client.create(JOBS, job_body("three", 3), namespace="default")

        async def are_bound() -> bool:
            pods = await pods_of(client, "three")
            return len(pods) == 3 and all(pod.spec.node_name for pod in pods)

        await until(are_bound)
        assert "v00000" not in where(await pods_of(client, "three")).values()
        # Its room is all that is left; a gang that may use it is bound there by us.
        body = job_body("lone", 1)
        body["spec"]["roles"][0]["template"]["spec"]["tolerations"] = [taint]
        await client.create(JOBS, body, namespace="default")

        async def is_placed() -> bool:
            return where(await pods_of(client, "lone")) == {0: "v00000"}

        await until(is_placed)
        assert (await pods_of(client, "lone"))[0].spec.scheduling_group is None


async def test_a_gang_with_devices_and_volumes_is_placed_by_kube_scheduler_where_they_are(
    client: HttpClient,
) -> None:
    """Three nodes of four have devices, two of these are of the zone of a volume that a gang
    shares, and each member gets a volume of its own there. Another gang waits, unseen by
    kube-scheduler.
    """
    await client.create(DEVICE_CLASSES, body_of(make_device_class(DRIVER)))
    template = body_of(make_device_template("one"))
    await client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    await client.create(STORAGE_CLASSES, {
        "metadata": {"name": "disks"}, "provisioner": "disk.test",
        "volumeBindingMode": "WaitForFirstConsumer",
    })  # fmt: skip
    async with (
        watched(client), virtual_nodes(client, 4) as nodes, provisioner(client),
        controllers(client, policy=NATIVE),
    ):  # fmt: skip
        names_ = sorted(nodes.node_names())
        zones = dict(zip(names_, "abba", strict=True))
        for name in names_:
            await client.patch(NODES, name, {"metadata": {"labels": {ZONE: zones[name]}}})
        for name in names_[1:]:
            await client.create(RESOURCE_SLICES, body_of(make_slice(name, 2)))
        with_devices = names_[1:3]
        volume = body_of(make_volume("data", zones=["b"], claim="data"))
        volume["spec"]["hostPath"] = {"path": "/none"}
        await client.create(VOLUMES, volume)
        claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "data",
                 "resources": {"requests": {"storage": "1Gi"}}}  # fmt: skip
        await client.create(
            CLAIMS, {"metadata": {"name": "data"}, "spec": claim}, namespace="default"
        )
        for name in ("first", "second"):
            body = job_body(name, 3, gpus=1)
            body["spec"]["roles"][0]["volumeClaimTemplates"] = [OF_ITS_OWN]
            spec = body["spec"]["roles"][0]["template"]["spec"]
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
            shared = {"name": "shared", "persistentVolumeClaim": {"claimName": "data"}}
            spec["volumes"] = [shared]
            await client.create(JOBS, body, namespace="default")
            if name == "first":
                await running(client, "first", 3)
        pods = await pods_of(client, "first")
        assert [pinned_node(pod.spec) for pod in pods] == [""] * 3
        assert set(where(pods).values()) == set(with_devices)
        claims = (await client.list(RESOURCE_CLAIMS, namespace="default")).items
        had = [e for claim in claims if (a := claim.status.allocation) for e in a.devices.results]
        assert len({(each.pool, each.device) for each in had}) == len(had) == 3
        disks = (await client.list(CLAIMS, namespace="default")).items
        assert {each.metadata.name for each in disks if each.is_bound} == {
            "data", *(f"data-first-worker-{i}" for i in range(3))
        }  # fmt: skip

        async def waits() -> bool:
            return (await job(client, "second")).status.verdict is not None

        await until(waits)
        assert await pods_of(client, "second") == []
        await succeed(client, nodes, "first")
        await running(client, "second", 3)
        for name in ("first", "second"):
            assert (await job(client, name)).status.attempt == 1
        await succeed(client, nodes, "second")
    for resource in (
        RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, STORAGE_CLASSES, CLAIMS, VOLUMES,
    ):  # fmt: skip
        await delete_all(client, resource)


async def test_gangs_get_their_turn_among_pods_that_kube_scheduler_puts_where_it_likes(
    client: HttpClient,
) -> None:
    async with watched(client), virtual_nodes(client, 20), controllers(client, policy=NATIVE):

        async def others() -> None:
            for i in range(200):
                pod = other_pod(f"other-{i}", seconds=0.5 + i % 7 / 5)
                await client.create(PODS, pod, namespace="default")
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            group.create_task(others())
            for i in range(6):
                body = job_body(f"gang-{i}", 6, seconds=1, gpus=4)
                await client.create(JOBS, body, namespace="default")
        for i in range(6):
            done = await ended(client, f"gang-{i}")
            assert done.status.state == "Succeeded"
            assert done.status.infrastructure_failures == 0
