"""Gangs that ask in all ways at once, before three judges: our planner, a real kube-scheduler on a
real API server, and a search that tries all places (`tests/property/asks_world.py`).

The gangs of a case come one after the other, and each is judged by what the server then has. Where
our planner places one, kube-scheduler binds all members to these nodes. Where it does not, the same
members are given to kube-scheduler without places: it does not bind all of them either. Cases have
nodes, volumes and classes of their own, so they run side by side.

A provisioner is played (`test_volume_gangs.py`); controllers of Kubernetes bind volumes and make
the claims for devices. Beside the gangs are pods that are resized, and one that waits at a gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kubernetes.adopting import Thing
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import delete_all, http_client, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_devices import body_of as device_body
from tests.kubernetes.test_volume_gangs import BINDER, provisioner
from tests.kubernetes.test_volumes import body_of
from tests.property.asks_world import (
    OVERHEAD,
    OVERHEAD_CLASS,
    Case,
    Gang,
    Judge,
    draw_case,
    planned,
)

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import (
    CLAIMS,
    CSI_NODES,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fairlead.decide.jobs.following.pods import AttemptPods
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.members import missing_pods
from fairlead.decide.jobs.rendering.owned import own_claims
from fairlead.decide.pinning import Binding
from fairlead.kube.client import HttpClient
from fairlead.model.objects import Objects
from fairlead.testing.builders import make_placement

pytestmark = pytest.mark.kubernetes
RUNTIME_CLASSES = Resource(
    "node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", Thing, namespaced=False
)
PINNED = JobsPolicy(binding=Binding.PINNED)
CASES_DRAWN, SEED = 12, 3
#: For so long kube-scheduler may take a refusal back, as it hears of objects one after the other:
#: of a gang that we refuse, and of one that we place (it tries such pods again after up to 10 s).
REFUSED_SETTLED_SECONDS, PLACED_SETTLED_SECONDS = 2.0, 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    controllers = (*BINDER, "resourceclaim-controller")
    yield from own_plane(tmp_path_factory, scheduler=True, controllers=controllers)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    yield client
    await delete_all(client, PODS, grace_period_seconds=0)
    await delete_all(client, NODES)
    await client.close()


async def make(client: HttpClient, case: Case) -> None:
    """Create the objects of a case, and wait until claims that name their volumes have these."""
    objects = case.objects
    for node in objects.nodes:
        name = node.metadata.name
        await client.create(NODES, {"metadata": {"name": name, "labels": node.metadata.labels}})
        status = {"status": to_wire(node)["status"]}
        await client.patch(NODES, name, status, subresource="status")
    for each in objects.csi_nodes:
        drivers = [{**driver, "nodeID": each.metadata.name} for driver in
                   to_wire(each)["spec"]["drivers"]]  # fmt: skip
        await client.create(
            CSI_NODES, {"metadata": {"name": each.metadata.name}, "spec": {"drivers": drivers}}
        )
    for each in objects.storage_classes:
        await client.create(STORAGE_CLASSES, body_of(each))
    for volume in objects.volumes:
        body = body_of(volume)
        body["spec"]["hostPath"] = {"path": "/none"}
        await client.create(VOLUMES, body)
    for claim in objects.claims:
        body = body_of(claim)
        body["metadata"].pop("annotations")
        body["spec"].setdefault("storageClassName", "")
        await client.create(CLAIMS, body, namespace="default")
    for found in objects.slices:
        await client.create(RESOURCE_SLICES, device_body(found))
    for template in objects.device_templates:
        await client.create(RESOURCE_CLAIM_TEMPLATES, device_body(template), namespace="default")
    for card in objects.device_claims:
        await client.create(RESOURCE_CLAIMS, device_body(card), namespace="default")
    for pod in objects.pods:
        body = to_wire(pod)
        await create_pod(client, pod)
        if body.get("status"):
            await client.patch(PODS, pod.metadata.name, {"status": body["status"]},
                               namespace="default", subresource="status")  # fmt: skip
    bound = {each.metadata.name for each in objects.claims if each.is_bound}

    async def are_bound() -> bool:
        claims = (await client.list(CLAIMS, namespace="default")).items
        return bound <= {each.metadata.name for each in claims if each.is_bound}

    await until(are_bound)


async def create_pod(client: HttpClient, pod: Pod) -> None:
    body, meta = to_wire(pod), pod.metadata
    owners = [to_wire(each) for each in meta.owner_references]
    body["metadata"] = {"name": meta.name, "labels": meta.labels, "ownerReferences": owners}
    body.pop("status", None)
    if pod.spec.overhead:  # which the read model has, and not the class
        body["spec"]["runtimeClassName"] = OVERHEAD_CLASS
    await client.create(PODS, body, namespace="default")


async def read(client: HttpClient, jobs: Sequence[Job]) -> Objects:
    """Return what the server has, and these jobs."""

    async def items(resource: Resource[Any]) -> tuple[Any, ...]:
        return (await client.list(resource)).items

    return Objects(
        nodes=await items(NODES), pods=await items(PODS), jobs=tuple(jobs),
        claims=await items(CLAIMS), volumes=await items(VOLUMES),
        storage_classes=await items(STORAGE_CLASSES), csi_nodes=await items(CSI_NODES),
        device_claims=await items(RESOURCE_CLAIMS),
        device_templates=await items(RESOURCE_CLAIM_TEMPLATES),
        device_classes=await items(DEVICE_CLASSES), slices=await items(RESOURCE_SLICES),
    )  # fmt: skip


def members(gang: Gang, age: int, placement: Placement | None) -> tuple[Job, list[Pod]]:
    """Return the job with its place, and its pods; without a place the pods are not pinned."""
    job = gang.job(age)
    anywhere = {role.name: ["none"] * role.count for role in gang.roles}
    given = placement or make_placement(anywhere)
    job = replace(job, status=replace(job.status, placement=given))
    pods = list(missing_pods(job, PINNED, AttemptPods(), resume_step=None))
    if placement is None:
        pods = [replace(pod, spec=replace(pod.spec, affinity=None)) for pod in pods]
    return job, pods


async def submit(client: HttpClient, job: Job, pods: Sequence[Pod]) -> None:
    for pod in pods:
        for claim in own_claims(job, pod):
            await client.create(CLAIMS, claim, namespace="default")
        await create_pod(client, pod)


async def are_bound(client: HttpClient, pods: Sequence[Pod], settled_seconds: float) -> bool:
    """Return whether kube-scheduler binds all of them, or refuses some for so long."""
    refused_since: list[float] = []

    async def is_judged() -> bool:
        found = [await client.get(PODS, pod.metadata.name, namespace="default") for pod in pods]
        if all(pod.spec.node_name for pod in found):
            return True
        conditions = [each for pod in found for each in pod.status.conditions]
        now = asyncio.get_running_loop().time()
        if not any(each.reason == "Unschedulable" for each in conditions):
            refused_since.clear()
            return False
        refused_since.append(now)
        return now - refused_since[0] > settled_seconds

    await until(is_judged)
    found = [await client.get(PODS, pod.metadata.name, namespace="default") for pod in pods]
    return all(pod.spec.node_name for pod in found)


async def take_back(client: HttpClient, job: Job, pods: Sequence[Pod]) -> None:
    """Delete pods, and what was made for them."""
    own = {claim["metadata"]["name"] for pod in pods for claim in own_claims(job, pod)}
    names = {pod.metadata.name for pod in pods}
    for name in sorted(names):
        await client.delete(PODS, name, namespace="default", grace_period_seconds=0)
    for name in sorted(own):
        await client.delete(CLAIMS, name, namespace="default")

    async def are_gone() -> bool:
        claims = (await client.list(CLAIMS, namespace="default")).items
        devices = (await client.list(RESOURCE_CLAIMS, namespace="default")).items
        users = {user.name for each in devices for user in each.status.reserved_for}
        given_back = all(
            each.status.allocation is None or each.status.reserved_for for each in devices
        )
        return (
            own.isdisjoint(each.metadata.name for each in claims)
            and names.isdisjoint({*users, *(each.pod for each in devices)})
            and given_back
        )

    await until(are_gone)


@dataclass
class Count:
    """How many gangs we placed, and refused; and of these how many kube-scheduler has bound."""

    placed: int = 0
    refused: int = 0
    missed: int = 0
    #: How many of those placed ask for what.
    asked: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, gang: Gang) -> None:
        self.placed += 1
        for role in gang.roles:
            for name in ("claims", "disks", "devices", "card"):
                self.asked[name] = self.asked.get(name, 0) + bool(getattr(role, name))


async def judge(client: HttpClient, case: Case, count: Count) -> None:
    """Have all gangs of a case judged, one after the other."""
    await make(client, case)
    jobs: list[Job] = []
    for age, gang in enumerate(case.gangs):
        objects = await read(client, jobs)
        exact = Judge(case, objects)
        placement = planned(objects, gang.job(age))
        job, pods = members(gang, age, placement)
        await submit(client, job, pods)
        settled = PLACED_SETTLED_SECONDS if placement else REFUSED_SETTLED_SECONDS
        is_bound = await are_bound(client, pods, settled)
        shown = (case.name, gang, placement, case.gpus)
        if placement is None:
            assert not (gang.is_certain and exact.finds_places(gang)), shown
            assert not (gang.is_certain and is_bound), shown
            count.refused, count.missed = count.refused + 1, count.missed + is_bound
            await take_back(client, job, pods)
            continue
        assert exact.accepts(gang, [role.nodes for role in placement.roles]), shown
        assert is_bound, shown
        count.add(gang)
        jobs.append(job)


async def test_kube_scheduler_binds_what_we_place_and_binds_no_gang_that_we_refuse(
    client: HttpClient,
) -> None:
    scheduling = {"handler": "none", "overhead": {"podFixed": OVERHEAD}}
    await client.create(RUNTIME_CLASSES, {"metadata": {"name": OVERHEAD_CLASS}, **scheduling})
    rng, count = Random(SEED), Count()
    cases = [draw_case(rng, f"c{i}", roles_max=1 + (i % 4 == 3)) for i in range(CASES_DRAWN)]
    for each in cases[0].objects.device_classes:
        await client.create(DEVICE_CLASSES, device_body(each))
    async with provisioner(client), asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(judge(client, case, count))
    assert count.placed >= CASES_DRAWN, count
    assert count.refused >= CASES_DRAWN // 2, count
    # With alternatives, or several roles, we may wait where kube-scheduler finds places.
    assert count.missed * 10 <= count.placed, count
    assert sorted(count.asked) == ["card", "claims", "devices", "disks"]
    assert min(count.asked.values()) > 2, count
    gated = [pod for pod in (await client.list(PODS)).items if pod.metadata.name.endswith("gated")]
    assert len(gated) == CASES_DRAWN
    assert not any(pod.spec.node_name for pod in gated)
