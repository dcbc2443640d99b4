"""Hostile objects on a real API server: what one tenant creates harms no other tenant.

The objects of the simulation's suite, those of other gang tools, and what takes more than one
object: a forged member, borrowed labels, a priority of one's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.hostile_world import (
    CANARY,
    CANARY_SECONDS_MAX,
    hostile_world,
    on_node,
)
from tests.kubernetes.operating import CLOCK, is_served, job_body, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.sharing import GPU, watched
from tests.kubernetes.test_install import install
from tests.simulation import hostile
from tests.simulation.hostile import NAMESPACE, Poison, all_poison, pod_body
from tests.simulation.hostile_tools import TOOLS, of_tools

from fairlead.api import names
from fairlead.api.meta import to_wire
from fairlead.api.podgroups import GroupApi, pod_groups, workloads
from fairlead.api.resources import CONFIG_MAPS, CRDS, JOBS, PODS, RESOURCE_QUOTAS
from fairlead.api.status import AlreadyExists
from fairlead.api.values.times import format_time
from fairlead.kube.client import HttpClient
from fairlead.webhook.configuration import VALIDATING

pytestmark = pytest.mark.kubernetes
BATCH_SIZE = 60
#: Of all objects, by resource; the server refuses the rest by its own rules. Measured: 107 pods, 46
#: jobs (24 where the webhook is asked), 13 nodes, 34 teams (21), 46 pools (32), 9
#: versions of the fleet (8), 23 quotas, 4 services, 12 of each tool.
LET_IN_MIN = {
    "pods": 100, "jobs.fairlead.dev": 42, "nodes": 12, "configmaps": 3,
    "leases.coordination.k8s.io": 3, "priorityclasses.scheduling.k8s.io": 2,
    "podgroups.scheduling.k8s.io": 3, "workloads.scheduling.k8s.io": 3,
    "jobsets.jobset.x-k8s.io": 12, "pytorchjobs.kubeflow.org": 12, "rayclusters.ray.io": 12,
    "leaderworkersets.leaderworkerset.x-k8s.io": 12, "podgroups.scheduling.x-k8s.io": 12,
    "podgroups.scheduling.volcano.sh": 12, "teams.fairlead.dev": 31, "nodepools.fairlead.dev": 42,
    "fleets.fairlead.dev": 8, "resourcequotas": 20, "services": 3,
}  # fmt: skip
#: The same where the webhook is asked.
LET_IN_WITH_WEBHOOK_MIN = LET_IN_MIN | {
    "jobs.fairlead.dev": 20, "teams.fairlead.dev": 18, "nodepools.fairlead.dev": 28,
    "fleets.fairlead.dev": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with PodGroups and roles that aggregate, where Fairlead is installed."""
    for plane in own_plane(
        tmp_path_factory,
        flags=("--runtime-config=scheduling.k8s.io/v1alpha2=true",),
        scheduler=True,
        gates=("GenericWorkload", "GangScheduling"),
        controllers=("podgroup-protection-controller", "clusterrole-aggregation-controller"),
    ):
        values = plane.directory / "values.yaml"
        values.write_text("webhook: {enabled: false}\n")
        install(plane, "--values", str(values))
        yield plane


def _of_kubernetes() -> Iterator[Poison]:
    """PodGroups and Workloads that claim to be a canary's, or ask for what cannot be."""
    api = GroupApi.V1ALPHA2
    owner = {"apiVersion": names.API_VERSION, "kind": "Job", "name": "canary-1-gang", "uid": "u",
             "controller": True}  # fmt: skip
    labels = {names.JOB_NAME: "canary-1-gang", names.JOB_UID: "u", names.ATTEMPT: "9" * 20}
    policies: tuple[dict[str, Any], ...] = (
        {"gang": {"minCount": 1}}, {"gang": {"minCount": 2**31 - 1}}, {"basic": {}},
    )  # fmt: skip
    for i, policy in enumerate(policies):
        meta = {"name": f"canary-{i + 1}-gang-1", "labels": labels, "ownerReferences": [owner]}
        yield Poison(
            f"podgroup/{i}",
            pod_groups(api),
            {"metadata": meta, "spec": {"schedulingPolicy": policy}},
        )
        template = {"name": "gang", "schedulingPolicy": policy}
        yield Poison(
            f"workload/{i}", workloads(api),
            {"metadata": meta, "spec": {"podGroupTemplates": [template]}},
        )  # fmt: skip


def _names(count: int) -> Poison:
    many = {f"example.com/r{i}": "1" for i in range(count)}
    body = hostile.job_body(f"job-names-{count}")
    container = body["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": many}
    return Poison(f"job/names-{count}", JOBS, body)


def poison() -> tuple[Poison, ...]:
    """Return all of them, quotas last: the server admits no pod beside most of these."""
    found = (*all_poison(), _names(20_000), *_of_kubernetes(), *of_tools())
    return tuple(sorted(found, key=lambda each: each.resource is RESOURCE_QUOTAS))


async def define_tools(client: HttpClient) -> None:
    """Serve the kinds of other tools, with any content."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for resource, _ in TOOLS:
        kind = {"plural": resource.plural, "kind": resource.kind}
        version = {
            "name": resource.version, "served": True, "storage": True,
            "schema": {"openAPIV3Schema": anything},
        }  # fmt: skip
        body = {
            # approval: https://kubernetes.io/docs (API review of x-k8s.io groups)
            "metadata": {
                "name": resource.name,
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
            },
            "spec": {
                "group": resource.group, "scope": "Namespaced", "names": kind,
                "versions": [version],
            },
        }  # fmt: skip
        with contextlib.suppress(AlreadyExists):
            await client.create(CRDS, body)

    async def are_served() -> bool:
        return all([await is_served(client, resource) for resource, _ in TOOLS])

    await until(are_served)


@pytest.mark.parametrize("webhook", [False, True], ids=["no-webhook", "webhook"])
async def test_hostile_objects_harm_no_other_tenant(
    cluster: ControlPlane, tmp_path: Path, *, webhook: bool
) -> None:
    async with hostile_world(cluster, tmp_path, webhook=webhook) as world:
        await define_tools(world.admin)
        assert await world.harm() == "", "there is harm without any hostile object"
        found: list[str] = []
        objects = poison()
        for start in range(0, len(objects), BATCH_SIZE):
            found += await world.harmful(objects[start : start + BATCH_SIZE])
        by_webhook = sum("denied the request" in said for said in world.refused.values())
        print(f"{world.let_in} of {len(objects)} let in, {by_webhook} refused by the webhook, "
              f"{world.canaries} canaries")  # fmt: skip
        assert found == []
        expected = LET_IN_WITH_WEBHOOK_MIN if webhook else LET_IN_MIN
        assert {name: world.let_in[name] for name in expected if
                world.let_in[name] < expected[name]} == {}  # fmt: skip
        assert (by_webhook > 10) is webhook
        if not webhook:
            assert world.replica.said("Set object aside"), "one that cannot be decoded was met"


async def test_an_object_that_does_harm_others_is_found(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    """The planted one refuses every pod of the canary's namespace."""
    webhook = {
        "name": "refuses.hostile.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": CANARY}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
             "resources": ["pods"]},
        ],
    }  # fmt: skip
    body = {"metadata": {"name": "planted"}, "webhooks": [webhook]}
    async with hostile_world(cluster, tmp_path) as world:
        assert await world.harm() == ""
        world.canary_seconds_max = 3.0
        await world.send(Poison("webhook/planted", VALIDATING, body))
        assert world.refused == {}
        assert await world.harm() == "the canary does not run"
        assert await world.clean() == ""


@pytest.mark.parametrize("webhook", [False, True], ids=["no-webhook", "webhook"])
async def test_a_forged_member_with_the_true_uid_in_another_namespace_ends_no_gang(
    cluster: ControlPlane, tmp_path: Path, *, webhook: bool
) -> None:
    async with hostile_world(cluster, tmp_path, webhook=webhook) as world:
        await world.admin.create(JOBS, job_body("victim", 2, gpus=1), namespace=CANARY)
        await world.runs("victim")
        before = {pod.metadata.name: pod.metadata.uid for pod in await world.pods_of("victim")}
        assert len(before) == 2
        meta = to_wire((await world.pods_of("victim"))[0])["metadata"]
        forged = {
            "name": meta["name"], "labels": meta["labels"],
            "ownerReferences": meta["ownerReferences"], "finalizers": ["hostile.example/never"],
        }  # fmt: skip
        pod = {
            **pod_body("x", nodeName=(await world.pods_of("victim"))[0].spec.node_name),
            "metadata": forged,
        }
        await world.tenant.create(PODS, pod, namespace=NAMESPACE)
        await world.tenant.create(
            CONFIG_MAPS, {"metadata": {**forged, "name": "victim-1-gang"}}, namespace=NAMESPACE
        )
        failed = {"status": {"phase": "Failed", "reason": "Evicted"}}
        await world.admin.patch(
            PODS, meta["name"], failed, namespace=NAMESPACE, subresource="status"
        )
        # An ordinary event on each true member makes the jobs controller judge the gang.
        for name in before:
            seen = {"metadata": {"annotations": {"example.com/seen": "yes"}}}
            await world.admin.patch(PODS, name, seen, namespace=CANARY)
        assert await world.harm() == ""
        victim = await world.job("victim")
        assert (victim.status.state, victim.status.attempt) == ("Running", 1), (
            victim.status.attempts
        )
        after = {pod.metadata.name: pod.metadata.uid for pod in await world.pods_of("victim")}
        assert after == before
        free = {"metadata": {"finalizers": None}}
        await world.admin.patch(PODS, meta["name"], free, namespace=NAMESPACE)
        await world.admin.patch(CONFIG_MAPS, "victim-1-gang", free, namespace=NAMESPACE)


async def test_pods_with_the_labels_of_a_seat_are_counted_beside_it(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    node, body = "v00000", job_body("seat", 1, gpus=1)
    async with hostile_world(cluster, tmp_path) as world, watched(world.admin) as bound:
        await world.tenant.create(JOBS, on_node(body, node), namespace=NAMESPACE)
        await world.runs("seat", NAMESPACE)
        (member,) = await world.pods_of("seat", NAMESPACE)
        for i in range(7):
            amounts = {"limits": {GPU: "1"}}
            container = {"name": "main", "image": "x", "resources": amounts}
            pod = pod_body(f"extra-{i}", nodeName=node, containers=[container])
            pod["metadata"]["labels"] = member.metadata.labels
            await world.tenant.create(PODS, pod, namespace=NAMESPACE)
        assert await world.harm() == ""
        await world.admin.create(
            JOBS, on_node(job_body("honest", 1, gpus=7), node), namespace=CANARY
        )

        async def is_decided() -> bool:
            status = (await world.job("honest")).status
            return status.placement is not None or status.verdict is not None

        await until(is_decided, CANARY_SECONDS_MAX)
        assert await world.harm() == ""
        status = (await world.job("honest")).status
        extras = [
            p
            for p in await world.pods_of("seat", NAMESPACE)
            if p.metadata.uid != member.metadata.uid
        ]
        print(f"{len(extras)} extra pods, the honest job: {status.state}, {status.verdict}")
        assert (status.placement is None) == bool(extras)
        assert bound.most == 8


async def test_a_priority_that_no_class_gives_puts_no_job_before_an_older_one(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    node = "v00000"
    async with hostile_world(cluster, tmp_path) as world:
        for name in ("first", "older"):
            await world.admin.create(JOBS, on_node(job_body(name, 1), node), namespace=CANARY)
            if name == "first":
                await world.runs("first")
        created_at = (await world.job("older")).metadata.creation_timestamp
        assert created_at is not None

        async def is_later() -> bool:  # creation times are whole seconds
            return format_time(CLOCK.now()) > created_at

        await until(is_later)
        greedy = job_body("greedy", 1, priority=2**31 - 1)
        await world.tenant.create(JOBS, on_node(greedy, node), namespace=NAMESPACE)

        async def both_wait() -> bool:
            found = (await world.job("older"), await world.job("greedy", NAMESPACE))
            return all(job.status.verdict is not None for job in found)

        await until(both_wait, CANARY_SECONDS_MAX)
        await world.admin.patch(JOBS, "first", {"spec": {"cancel": True}}, namespace=CANARY)
        await world.runs("older")
        assert (await world.job("greedy", NAMESPACE)).status.placement is None


async def test_progress_that_is_nested_deep_harms_neither_its_own_job_nor_others(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    async with hostile_world(cluster, tmp_path) as world:
        await world.tenant.create(JOBS, job_body("own", 1, gpus=1), namespace=NAMESPACE)
        await world.runs("own", NAMESPACE)
        (member,) = await world.pods_of("own", NAMESPACE)
        deep = '{"x":' + "[" * 20_000 + "]" * 20_000 + "}"
        note = {"metadata": {"annotations": {names.PROGRESS: deep}}}
        await world.tenant.patch(PODS, member.metadata.name, note, namespace=NAMESPACE)
        assert await world.harm() == ""
        own = await world.job("own", NAMESPACE)
        assert (own.status.state, own.status.progress) == ("Running", None)
        await world.tenant.delete(JOBS, "own", namespace=NAMESPACE)
        assert await world.clean() == ""
