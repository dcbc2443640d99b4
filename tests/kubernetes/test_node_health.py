"""Reports of nodes on a real API server: who may write them, and what follows from one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
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
    token_of,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_team_boundary import POLICIES, POLICY_BINDINGS
from tests.kubernetes.test_tenancy import ACCOUNTS, CLUSTER_BINDINGS, ROLES
from tests.unit.runtime.test_mirror import Warnings

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.cluster.node_report import (
    Action,
    NodeReportSpec,
    NodeReportStatus,
    Recovery,
    ReportedFault,
    Severity,
)
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.meta import to_wire
from fairlead.api.names import (
    DRAIN,
    GROUP,
    NODE_LEASES_NAMESPACE,
    TAINT_UNHEALTHY,
    UNREACHABLE,
)
from fairlead.api.resources import FLEETS, JOBS, LEASES, NAMESPACES, NODE_REPORTS, NODES, PODS
from fairlead.api.status import AlreadyExists, ApiError, Forbidden, Invalid, NotFound, Unauthorized
from fairlead.api.values.times import format_time
from fairlead.app.collector import Collector
from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.settings import HealthSettings
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Values
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.node.reports.report import Report
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import Supervisor
from fairlead.webhook.policies import REPORT_WRITERS_MAX

pytestmark = pytest.mark.kubernetes
SPACE, COLLECTOR, POLICY_NAME = "health", "fairlead-collector", f"{GROUP}-node-reports"
APPLY = "application/apply-patch+yaml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(
        tmp_path_factory,
        flags=("--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction"),
    )


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


async def account(
    client: HttpClient, cluster: ControlPlane, name: str, role: str, *, node: str = ""
) -> HttpClient:
    """Return a client of a service account that has a cluster role of the installation.

    With a node, its token is that of a pod there.
    """
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
    pod = None
    if node:
        with suppress(NotFound):  # of the node that had its name before
            await client.delete(PODS, f"on-{node}", namespace=SPACE, grace_period_seconds=0)
        token = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
        spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": name,
                "volumes": [{"name": "token", "projected": token}]}  # fmt: skip
        body = {"metadata": {"name": f"on-{node}"}, "spec": {**spec, "nodeName": node}}
        pod = await client.create(PODS, body, namespace=SPACE)
    path = await kubeconfig_of(client, cluster, SPACE, name, pod=pod)
    return HttpClient(load_connection(path=path))


async def collector_of(client: HttpClient, cluster: ControlPlane, node: str) -> HttpClient:
    """Return a client of the collector on a node, once the policy on reports is in force."""
    collector = await account(client, cluster, COLLECTOR, COLLECTOR, node=node)
    for each in installed():
        for resource in (POLICIES, POLICY_BINDINGS):
            if each["kind"] == resource.kind and each["metadata"]["name"] == POLICY_NAME:
                with suppress(AlreadyExists):
                    await client.create(resource, each)

    async def is_in_force() -> bool:
        body = {"metadata": {"name": "of-another"}}
        return await refused(collector.create(NODE_REPORTS, body, dry_run=True))

    await until(is_in_force)
    return collector


def body_of(uid: str, *faults: ReportedFault) -> dict[str, Any]:
    at = format_time(CLOCK.now())
    critical = sum(each.severity is Severity.CRITICAL for each in faults)
    status = NodeReportStatus(at, uid, "boot", critical=critical, faults=faults)
    return {"status": {"faults": None, "critical": None, **to_wire(status)}}


def agent_report() -> bytes:
    """Return what an agent without a fault has written."""
    said = Report(1, is_healthy=True, at=format_time(CLOCK.now()), uptime_seconds=60,
                  boot_id="boot", faults=(), ended=(), sources=(), skipped=())  # fmt: skip
    return msgspec.json.encode(said)


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


async def refusal(action: Awaitable[object]) -> str:
    """Return why the policy on reports refuses; any other answer is an error."""
    with pytest.raises(Forbidden) as caught:
        await action
    assert POLICY_NAME in caught.value.message, caught.value.message
    return caught.value.message


async def test_only_the_collector_writes_reports_and_it_writes_nothing_else(
    client: HttpClient, cluster: ControlPlane
) -> None:
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
        collector = await collector_of(client, cluster, name)
        await report(collector, name, body_of(node.metadata.uid))
        for other in (tenant, kubelet, controller):
            body = body_of(node.metadata.uid, fault())
            assert await refused(other.create(NODE_REPORTS, {"metadata": {"name": "forged"}}))
            assert await refused(other.patch(NODE_REPORTS, name, body, subresource="status"))
        rates = {"metadata": {"labels": {}}}
        for other in (tenant, kubelet, collector):
            assert await refused(other.patch(NODE_REPORTS, name, rates)), "the controllers' part"
        for other in (tenant, kubelet, collector):
            assert await refused(other.get(NODE_REPORTS, name)), "nor is it theirs to read"
            assert await refused(other.list(NODE_REPORTS))
            assert await refused(other.delete(NODE_REPORTS, name))
        assert (await controller.list(NODE_REPORTS)).items[0].metadata.name == name
        drain = {"metadata": {"annotations": {DRAIN: "now"}}}
        for writer in (collector, tenant):
            assert await refused(writer.patch(NODES, name, drain))
        assert await refused(collector.list(JOBS))
        assert await refused(collector.get(FLEETS, FLEET_NAME))
        assert (await client.get(NODE_REPORTS, name)).status.faults == ()
        await controller.delete(NODE_REPORTS, name)
        for each in (collector, controller, tenant, kubelet):
            await each.close()


async def test_a_compromised_node_neither_reads_nor_writes_the_report_of_another(
    client: HttpClient, cluster: ControlPlane
) -> None:
    async with virtual_nodes(client, 3):
        uids = {each.metadata.name: each.metadata.uid for each in (await client.list(NODES)).items}
        bad, good, silent = sorted(uids)
        theirs, honest = [await collector_of(client, cluster, each) for each in (bad, good)]
        await report(honest, good, body_of(uids[good]))
        before = await client.get(NODE_REPORTS, good)

        lie = body_of(uids[good], fault())
        path = f"/apis/{NODE_REPORTS.api_version}/{NODE_REPORTS.plural}/{good}/status"
        applied = {"apiVersion": NODE_REPORTS.api_version, "kind": NODE_REPORTS.kind,
                   "metadata": {"name": good}, **lie}  # fmt: skip
        for attack in (
            theirs.patch(NODE_REPORTS, good, lie, subresource="status"),
            theirs.patch(NODE_REPORTS, good, {}, subresource="status"),  # which would read it
            theirs.patch(NODE_REPORTS, good, body_of(uids[bad]), subresource="status"),
            theirs.request("PATCH", f"{path}?fieldManager=x&force=true",
                           body=msgspec.json.encode(applied), content_type=APPLY),
            theirs.create(NODE_REPORTS, {"metadata": {"name": silent}}),
            theirs.create(NODE_REPORTS, {"metadata": {"name": "of-no-node"}}),
            theirs.create(NODE_REPORTS, {"metadata": {"generateName": bad}}),
        ):  # fmt: skip
            assert f"a pod on node {bad}" in await refusal(attack)
        assert await refused(theirs.get(NODE_REPORTS, good))
        assert await refused(theirs.delete(NODE_REPORTS, good))
        assert await refused(theirs.request("PUT", path, body=msgspec.json.encode(applied)))

        unbound = HttpClient(load_connection(path=await kubeconfig_of(
            client, cluster, SPACE, COLLECTOR)))  # fmt: skip
        for name in (bad, good, silent):
            attack = unbound.patch(NODE_REPORTS, name, {}, subresource="status")
            with pytest.raises((Forbidden, NotFound)):
                await attack
            body = {"metadata": {"name": name}}
            assert "no pod on a node" in await refusal(unbound.create(NODE_REPORTS, body))

        assert (await client.get(NODE_REPORTS, good)) == before
        found = {each.metadata.name for each in (await client.list(NODE_REPORTS)).items}
        assert found == {good}
        await client.delete(NODE_REPORTS, good)
        for each in (theirs, honest, unbound):
            await each.close()


async def test_a_kubelet_gets_no_token_of_another_nodes_collector(
    client: HttpClient, cluster: ControlPlane
) -> None:
    async with virtual_nodes(client, 2):
        own, other = sorted(each.metadata.name for each in (await client.list(NODES)).items)
        for node in (own, other):
            await (await collector_of(client, cluster, node)).close()
        kubelet = http_client(cluster, token="kubelet-token")  # of v00000
        assert own == "v00000"

        pods = {
            node: await client.get(PODS, f"on-{node}", namespace=SPACE) for node in (own, other)
        }

        async def has_its_own() -> bool:  # the server learns of the pod by a watch
            return not await refused(token_of(kubelet, SPACE, COLLECTOR, pod=pods[own]))

        await until(has_its_own)
        for pod in (pods[other], None):
            assert await refused(token_of(kubelet, SPACE, COLLECTOR, pod=pod))
        mirror = {
            "metadata": {"name": "mirror", "annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": own,
                     "serviceAccountName": COLLECTOR},
        }  # fmt: skip
        assert await refused(kubelet.create(PODS, mirror, namespace=SPACE))
        await kubelet.close()


async def test_a_kubelet_makes_no_node_silent_loud_or_unreachable_but_its_own(
    client: HttpClient, cluster: ControlPlane
) -> None:
    space = NODE_LEASES_NAMESPACE
    async with virtual_nodes(client, 2):
        own, other = sorted(each.metadata.name for each in (await client.list(NODES)).items)
        kubelet = http_client(cluster, token="kubelet-token")  # of v00000
        renewal = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
        mark = {"metadata": {"annotations": {UNREACHABLE: "2026-01-01T00:00:00Z"}}}
        address = {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}
        for name in (own, other):
            await client.create(LEASES, {"metadata": {"name": name}}, namespace=space)
        await kubelet.patch(LEASES, own, renewal, namespace=space)
        await kubelet.patch(NODES, own, mark)
        await kubelet.patch(NODES, own, address, subresource="status")
        assert await refused(kubelet.patch(LEASES, other, renewal, namespace=space))
        assert await refused(kubelet.delete(LEASES, other, namespace=space))
        assert await refused(kubelet.create(LEASES, {"metadata": {"name": "n"}}, namespace=space))
        assert await refused(kubelet.patch(NODES, other, mark))
        assert await refused(kubelet.patch(NODES, other, address, subresource="status"))
        await kubelet.close()
        for name in (own, other):
            await client.delete(LEASES, name, namespace=space)


async def test_what_a_node_writes_into_its_own_report_is_its_status_and_is_bounded(
    client: HttpClient, cluster: ControlPlane
) -> None:
    async with virtual_nodes(client, 2):
        uids = {each.metadata.name: each.metadata.uid for each in (await client.list(NODES)).items}
        bad, other = sorted(uids)
        theirs = await collector_of(client, cluster, bad)
        share = {"team": "t", "namespaces": ["default"], "bitsPerSecond": 10**12,
                 "safeBitsPerSecond": 10**12}  # fmt: skip
        owner = {"apiVersion": "v1", "kind": "Node", "name": other, "uid": uids[other]}
        for more in (
            {"spec": {"egress": [share], "egressAt": format_time(CLOCK.now())}},
            {"metadata": {"labels": {"kubernetes.io/hostname": other}}},
            {"metadata": {"annotations": {DRAIN: "now"}}},
            {"metadata": {"ownerReferences": [owner]}},
            {"metadata": {"finalizers": ["example.com/forever"]}},
        ):
            meta: dict[str, Any] = {"name": bad, **more.get("metadata", {})}
            body = {**more, "metadata": meta}
            assert "nothing else" in await refusal(theirs.create(NODE_REPORTS, body))
        await theirs.create(NODE_REPORTS, {"metadata": {"name": bad}, "spec": {}})

        forged = body_of(uids[other], fault())
        message = await refusal(theirs.patch(NODE_REPORTS, bad, forged, subresource="status"))
        assert uids[bad] in message
        meta = {"name": other, "labels": {"a": "b"}, "ownerReferences": [owner],
                "finalizers": ["example.com/forever"], "annotations": {DRAIN: "now"}}  # fmt: skip
        body = {**body_of(uids[bad]), "spec": {"egress": [share]}, "metadata": meta}
        with suppress(ApiError):  # the name differs
            await theirs.patch(NODE_REPORTS, bad, body, subresource="status")
        del meta["name"]
        await theirs.patch(NODE_REPORTS, bad, body, subresource="status")
        found = await client.get(NODE_REPORTS, bad)
        assert found.status.node_uid == uids[bad], "the status of the same patch has come"
        kept = found.metadata
        assert (kept.labels, kept.annotations, kept.owner_references, kept.finalizers) == (
            {}, {}, (), ())  # fmt: skip
        assert found.spec == NodeReportSpec()

        path = f"/apis/{NODE_REPORTS.api_version}/{NODE_REPORTS.plural}/{bad}"
        refusals: list[str] = []
        for number in range(2 * REPORT_WRITERS_MAX):
            applied = {"apiVersion": NODE_REPORTS.api_version, "kind": NODE_REPORTS.kind,
                       "metadata": {"name": bad}, "status": {"nodeUid": uids[bad]}}  # fmt: skip
            try:
                await theirs.request(
                    "PATCH", f"{path}/status?fieldManager={'x' * 100}{number}&force=true",
                    body=msgspec.json.encode(applied), content_type=APPLY,
                )  # fmt: skip
            except Forbidden as error:
                refusals.append(error.message)
        assert len(refusals) >= REPORT_WRITERS_MAX
        assert all("field managers" in each for each in refusals)
        huge = {"status": {"tuning": {"values": {str(i): "x" * 64 for i in range(50_000)}}}}
        for garbage in (
            huge, {"status": {"faults": "all"}}, {"status": {"bootId": "x" * 3_000_000}},
            {"status": None}, {"status": {"strange": {"deep": ["x" * 100] * 5000}}},
            {"status": {"tuning": {"values": {"x" * 100_000: "1"}}}},
        ):  # fmt: skip
            with suppress(ApiError):
                await theirs.patch(NODE_REPORTS, bad, garbage, subresource="status")
        assert len(await client.request("GET", path)) < 64 * 1024
        await client.delete(NODE_REPORTS, bad)
        await theirs.close()


async def test_the_collector_of_a_node_works_and_its_token_ends_with_its_pod(
    client: HttpClient, cluster: ControlPlane
) -> None:
    async with virtual_nodes(client, 2):
        uids = {each.metadata.name: each.metadata.uid for each in (await client.list(NODES)).items}
        own, other = sorted(uids)
        granted = await collector_of(client, cluster, own)
        said = agent_report()
        log = Warnings()

        def collector(client: HttpClient, node: str) -> Collector:
            return Collector(client, node, lambda: said, clock=CLOCK, rng=random.Random(0), log=log)

        await collector(granted, own).look()
        assert (await client.get(NODE_REPORTS, own)).status.node_uid == uids[own]
        assert log.lines == []
        await collector(client, other).look()
        assert ["reports of all nodes" in each for each in log.lines] == [True]
        with pytest.raises(Forbidden, match=f"this token is of a pod on node {own}"):
            await collector(granted, other).look()
        pod = await client.get(PODS, f"on-{own}", namespace=SPACE)
        path = await kubeconfig_of(client, cluster, SPACE, COLLECTOR, pod=pod)
        unused = HttpClient(load_connection(path=path))  # the server remembers others for 10 s
        await client.delete(PODS, f"on-{own}", namespace=SPACE, grace_period_seconds=0)

        async def is_unknown() -> bool:
            try:
                await unused.patch(NODE_REPORTS, own, {}, subresource="status")
            except Unauthorized:
                return True
            return False

        await until(is_unknown)
        for name in uids:
            await client.delete(NODE_REPORTS, name)
        for each in (granted, unused):
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
