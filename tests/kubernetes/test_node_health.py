"""Reports of nodes on a real API server: who may write them, and what follows from one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    CLOCK,
    http_client,
    install_kinds,
    job_body,
    kubeconfig_of,
    rights_count,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_tenancy import ACCOUNTS, CLUSTER_BINDINGS, ROLES

from fairlead.api.fleet import FLEET_NAME
from fairlead.api.meta import to_wire
from fairlead.api.names import DRAIN, TAINT_UNHEALTHY
from fairlead.api.node_report import (
    Action,
    NodeReportStatus,
    Recovery,
    ReportedFault,
    Severity,
)
from fairlead.api.placement import nodes_of
from fairlead.api.resources import FLEETS, JOBS, NAMESPACES, NODE_REPORTS, NODES
from fairlead.api.status import AlreadyExists, Forbidden, Invalid
from fairlead.api.times import format_time
from fairlead.app.context import ProcessContext
from fairlead.app.controller_settings import ControllerSettings
from fairlead.app.controllers import Controllers, Policies
from fairlead.app.health_settings import HealthSettings
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Values
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.runtime.metrics import Metrics
from fairlead.runtime.supervisor import Supervisor

pytestmark = pytest.mark.kubernetes
SPACE = "health"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await client.close()


def installed() -> list[dict[str, Any]]:
    """Return what an installation consists of whose settings turn the health of nodes on."""
    settings = ControllerSettings(health=HealthSettings(enabled=True))
    return manifests(Install(SPACE, Values(settings=settings)))


async def account(client: HttpClient, cluster: ControlPlane, name: str, role: str) -> HttpClient:
    """Return a client of a new service account that has a cluster role of the installation."""
    for resource, body, space in (
        (NAMESPACES, {"metadata": {"name": SPACE}}, ""),
        (ACCOUNTS, {"metadata": {"name": name}}, SPACE),
    ):
        with suppress(AlreadyExists):
            await client.create(resource, body, namespace=space)
    for each in installed():
        if each["kind"] == "ClusterRole" and each["metadata"]["name"] == role:
            with suppress(AlreadyExists):
                await client.create(ROLES, each)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": SPACE}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
    with suppress(AlreadyExists):
        await client.create(CLUSTER_BINDINGS, binding)
    path = await kubeconfig_of(client, cluster, SPACE, name)
    return HttpClient(load_connection(path=path))


def body_of(uid: str, *faults: ReportedFault) -> dict[str, Any]:
    at = format_time(CLOCK.now())
    critical = sum(each.severity is Severity.CRITICAL for each in faults)
    status = NodeReportStatus(at, uid, "boot", critical=critical, faults=faults)
    return {"status": {"faults": None, "critical": None, **to_wire(status)}}


def fault() -> ReportedFault:
    at = format_time(CLOCK.now())
    return ReportedFault(
        "gpu-xid", "0000:3b:00", Severity.CRITICAL, Action.RESET_GPU, Recovery.BOOT, at, at, ("48",)
    )


async def report(writer: HttpClient, name: str, body: dict[str, Any]) -> None:
    with suppress(AlreadyExists):
        await writer.create(NODE_REPORTS, {"metadata": {"name": name}})
    await writer.patch(NODE_REPORTS, name, body, subresource="status")


async def refused(action: Awaitable[object]) -> bool:
    try:
        await action
    except Forbidden:
        return True
    return False


async def test_only_the_collector_writes_reports_and_it_writes_nothing_else(
    client: HttpClient, cluster: ControlPlane
) -> None:
    collector = await account(client, cluster, "fairlead-collector", "fairlead-collector")
    controller = await account(client, cluster, "fairlead-controller", "fairlead-controller")
    tenant = await account(client, cluster, "ana", "fairlead-edit")
    edit = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    ana = {"kind": "ServiceAccount", "name": "ana", "namespace": SPACE}
    binding = {"metadata": {"name": "ana-edit"}, "roleRef": edit, "subjects": [ana]}
    await client.create(CLUSTER_BINDINGS, binding)  # of every namespace, even
    await rights_count(client)
    kubelet = http_client(cluster, token="kubelet-token")
    async with virtual_nodes(client, 1):
        node = (await client.list(NODES)).items[0]
        name = node.metadata.name
        await report(collector, name, body_of(node.metadata.uid))
        for other in (tenant, kubelet, controller):
            body = body_of(node.metadata.uid, fault())
            assert await refused(other.create(NODE_REPORTS, {"metadata": {"name": "forged"}}))
            assert await refused(other.patch(NODE_REPORTS, name, body, subresource="status"))
            assert await refused(other.delete(NODE_REPORTS, name))
        rates = {"metadata": {"labels": {}}}
        for other in (tenant, kubelet, collector):
            assert await refused(other.patch(NODE_REPORTS, name, rates)), "the controllers' part"
        for other in (tenant, kubelet):
            assert await refused(other.get(NODE_REPORTS, name)), "nor is it theirs to read"
        assert (await controller.list(NODE_REPORTS)).items[0].metadata.name == name
        drain = {"metadata": {"annotations": {DRAIN: "now"}}}
        for writer in (collector, tenant):
            assert await refused(writer.patch(NODES, name, drain))
        assert await refused(collector.delete(NODE_REPORTS, name))
        assert await refused(collector.list(JOBS))
        assert await refused(collector.get(FLEETS, FLEET_NAME))
        assert (await client.get(NODE_REPORTS, name)).status.faults == ()
        await client.delete(NODE_REPORTS, name)
    for each in (collector, controller, tenant, kubelet):
        await each.close()


async def test_a_report_that_breaks_the_schema_is_refused(client: HttpClient) -> None:
    await client.create(NODE_REPORTS, {"metadata": {"name": "strange"}})
    good = to_wire(fault())
    for bad in (
        {**good, "severity": "Terrible"}, {**good, "action": "Burn"},
        {**good, "evidence": "x" * 241}, {**good, "count": -1},
    ):  # fmt: skip
        patch = {"status": {"faults": [bad]}}
        with pytest.raises(Invalid):
            await client.patch(NODE_REPORTS, "strange", patch, subresource="status")
    patch = {"status": {"faults": [good] * 101}}
    with pytest.raises(Invalid):
        await client.patch(NODE_REPORTS, "strange", patch, subresource="status")
    await client.delete(NODE_REPORTS, "strange")


async def test_a_fault_drains_a_gang_with_the_rights_of_the_installation_and_its_end_brings_it_back(
    client: HttpClient, cluster: ControlPlane
) -> None:
    acting = await account(client, cluster, "fairlead-controller", "fairlead-controller")
    health = HealthPolicy(enabled=True, act_on=("*",), critical_drain_seconds=60,
                          validate_seconds=2)  # fmt: skip
    jobs = JobsPolicy(checkpoint_wait_seconds=1)
    made = Controllers(
        Policies(jobs, health=health), acting, MemoryHistory(),
        context=ProcessContext(CLOCK, Metrics(CollectorRegistry(), version="test")),
    )  # fmt: skip
    supervisor = Supervisor(made.services(), clock=CLOCK, rng=random.Random(1))
    async with virtual_nodes(client, 3, profile=load_profile("instant")):
        running = asyncio.create_task(supervisor.run())
        try:
            body = job_body("train", 2, seconds=3600)
            await client.create(JOBS, body, namespace="default")

            async def places() -> list[str]:
                job = await client.get(JOBS, "train", namespace="default")
                placement = job.status.placement
                return sorted(nodes_of(placement)) if job.status.state == "Running" else []

            async def runs() -> bool:
                return bool(await places())

            await until(runs)
            sick = (await places())[0]
            node = await client.get(NODES, sick)
            await report(client, sick, body_of(node.metadata.uid, fault()))

            async def moved() -> bool:
                return sick not in await places() and await runs()

            await until(moved)
            node = await client.get(NODES, sick)
            assert TAINT_UNHEALTHY in {each.key for each in node.spec.taints}
            booked = (await client.get(FLEETS, FLEET_NAME)).status
            assert [each.node for each in booked.repairs] == [sick]
            job = await client.get(JOBS, "train", namespace="default")
            assert job.status.attempts[0].reason == "Drained"

            async def is_resetting() -> bool:
                record = record_of((await client.get(NODES, sick)).metadata.annotations)
                return record is not None and record.state is NodeState.RESETTING

            await until(is_resetting)
            await report(client, sick, body_of(node.metadata.uid))

            async def is_back() -> bool:
                taints = (await client.get(NODES, sick)).spec.taints
                return TAINT_UNHEALTHY not in {each.key for each in taints}

            await until(is_back)
            crashed = [s.last_error for s in supervisor.health().services if s.crash_count]
            assert crashed == []
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await client.delete(JOBS, "train", namespace="default")
    await acting.close()
