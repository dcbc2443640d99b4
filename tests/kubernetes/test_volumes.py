"""Where pods with claims may run, as the real kube-scheduler sees it.

Random claims of both binding modes, with volumes of zones, nodes and labels. For each set of claims
and each node a pod that can go to this node only: kube-scheduler accepts exactly those that
`VolumeTable` says can reach their volumes. Accepted is a pod that is bound, or that has its node
and waits for its volumes: no provisioner is there, and no controller of volumes, and kube-scheduler
is given no time to wait for them, so it says at once that it did. A pod is created when
kube-scheduler knows the objects behind it, so the first that it says of the pod is its verdict.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client, until
from tests.kubernetes.own_plane import own_plane

from fairlead.api.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from fairlead.api.meta import to_wire
from fairlead.api.resources import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from fairlead.kube.client import HttpClient
from fairlead.model.claimed.job_claims import Claims
from fairlead.model.claimed.volumes import ClaimInUse, VolumeTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_job, make_node
from fairlead.testing.volume_builders import ZONE, make_claim, make_storage_class, make_volume

pytestmark = pytest.mark.kubernetes
CASES_DRAWN = 50
#: Of a pod that was given a node, once the time for its volumes is over (`BindPodVolumes`).
WAITED = "binding volumes: context deadline exceeded"
REGION = "topology.kubernetes.io/region"
LABELS: dict[str, dict[str, str]] = {
    "a1": {ZONE: "a", REGION: "r"}, "a2": {ZONE: "a", REGION: "r"}, "b1": {ZONE: "b"}, "bare": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plugins = {"VolumeBinding": {"bindTimeoutSeconds": 0}}
    yield from own_plane(tmp_path_factory, scheduler=True, plugins=plugins)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    condition = {"type": "Ready", "status": "True"}
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "200"}
    for name, labels in LABELS.items():
        own = {"own": name, "kubernetes.io/hostname": name, **labels}
        await client.create(NODES, {"metadata": {"name": name, "labels": own}})
        status = {"status": {"allocatable": amounts, "capacity": amounts,
                             "conditions": [condition]}}  # fmt: skip
        await client.patch(NODES, name, status, subresource="status")
    yield client
    await client.delete_collection(PODS, grace_period_seconds=0)
    await client.delete_collection(NODES)
    await client.close()


@dataclass
class Case:
    """The objects behind the claims of one pod, all with names of their own."""

    name: str
    names: list[str] = field(default_factory=list[str])
    claims: list[PersistentVolumeClaim] = field(default_factory=list[PersistentVolumeClaim])
    volumes: list[PersistentVolume] = field(default_factory=list[PersistentVolume])
    classes: list[StorageClass] = field(default_factory=list[StorageClass])

    @property
    def pod(self) -> str:
        return f"pod-{self.name}"

    def draw(self, rng: random.Random, kind: str) -> None:
        """Add a claim of a kind."""
        name = f"{self.name}-{len(self.names)}"
        self.names.append(name)
        if kind == "missing":
            return
        if kind in ("bound", "deleted", "lost", "volume gone"):
            self.claims.append(make_claim(
                name, volume=name, is_deleted=kind == "deleted", phase="Lost" * (kind == "lost")
            ))  # fmt: skip
            if kind != "volume gone":
                self.volumes.append(self._volume(rng, name, claim=name))
            return
        waits = kind != "immediate"
        self.claims.append(make_claim(
            name, storage_class=name, node=rng.choice([*LABELS]) if kind == "selected" else "",
            modes=[rng.choice(("ReadWriteOnce", "ReadWriteMany"))], size=rng.choice(("1Gi", "2Gi")),
        ))  # fmt: skip
        if kind == "class gone":
            return
        zones = rng.choice(([], ["a"], ["b"], ["a", "b"]))
        self.classes.append(
            make_storage_class(name, waits=waits, makes=kind != "static", zones=zones)
        )
        for i in range(rng.randrange(4) if kind == "static" else 0):
            volume = self._volume(rng, f"{name}-{i}", storage_class=name)
            phase = rng.choice(("Available", "Available", "Released"))
            self.volumes.append(replace(volume, status=replace(volume.status, phase=phase)))

    def _volume(self, rng: random.Random, name: str, **given: Any) -> PersistentVolume:
        kind = rng.randrange(4)
        if kind == 0:
            given["zones"] = rng.sample("ab", rng.randint(1, 2))
        elif kind == 1:
            given["nodes"] = rng.sample([*LABELS], rng.randint(1, 2))
        elif kind == 2:
            old = "failure-domain.beta.kubernetes.io/zone"
            given["labels"] = rng.choice(
                ({ZONE: "a"}, {ZONE: "a__b"}, {old: "b"}, {ZONE: "a", REGION: "r"}, {REGION: "s"})
            )
        return make_volume(
            name, modes=["ReadWriteOnce", *rng.sample(["ReadWriteMany"], rng.randint(0, 1))],
            size=rng.choice(("1Gi", "2Gi")), **given,
        )  # fmt: skip


KINDS = ("missing", "bound", "bound", "bound", "deleted", "lost", "volume gone", "immediate",
         "class gone", "selected", "made", "made", "static", "static", "static")  # fmt: skip


def admits(case: Case, node: str) -> bool:
    """What our planner says."""
    table = VolumeTable(case.claims, case.volumes, case.classes)
    found = table.read("default", Claims((tuple(case.names),)))
    if not isinstance(found, tuple):
        return False
    state = ClusterState.of([make_node(node, labels=LABELS[node])])
    slots = state.table.exists.nonzero()[0]
    return bool(state.table.labels.reached(found[0].shared, slots).all())


def body_of(obj: Any) -> dict[str, Any]:
    """The object as a server takes it, without what only the server writes."""
    body = to_wire(obj)
    meta = obj.metadata
    body["metadata"] = {"name": meta.name, "labels": meta.labels, "annotations": meta.annotations}
    body.pop("status", None)
    return body


async def make(client: HttpClient, case: Case) -> None:
    for each in case.classes:
        await client.create(STORAGE_CLASSES, body_of(each))
    for volume in case.volumes:
        body = body_of(volume)
        body["spec"]["hostPath"] = {"path": "/none"}
        await client.create(VOLUMES, body)
        status = {"status": {"phase": volume.status.phase}}
        await client.patch(VOLUMES, volume.metadata.name, status, subresource="status")
    for claim in case.claims:
        body, name = body_of(claim), claim.metadata.name
        is_deleted = claim.metadata.deletion_timestamp is not None
        if is_deleted:
            body["metadata"]["finalizers"] = ["test.example/kept"]
        if not claim.spec.storage_class_name:
            body["spec"]["storageClassName"] = ""
        await client.create(CLAIMS, body, namespace="default")
        status = {"status": {"phase": claim.status.phase}}
        await client.patch(CLAIMS, name, status, namespace="default", subresource="status")
        if is_deleted:
            await client.delete(CLAIMS, name, namespace="default")


async def create_pod(client: HttpClient, case: Case, node: str) -> None:
    """Create a pod with these claims that can go to this node only."""
    volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}}
               for i, name in enumerate(case.names)]  # fmt: skip
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes,
            "nodeSelector": {"own": node}}  # fmt: skip
    body = {"metadata": {"name": case.pod}, "spec": spec}
    await client.create(PODS, body, namespace="default")


async def verdict_of(client: HttpClient, case: Case) -> bool | None:
    """Return whether kube-scheduler accepts the pod; None while it has not said so."""
    pod = await client.get(PODS, case.pod, namespace="default")
    for each in pod.status.conditions:
        if each.type == "PodScheduled":
            if each.reason == "Unschedulable":
                return False
            if each.status == "True" or WAITED in each.message:
                return True
    return None


async def is_accepted(client: HttpClient, case: Case, node: str) -> bool:
    """Return what kube-scheduler says first of a pod with these claims on the node.

    It has to know the objects behind them already (`are_known`).
    """
    await create_pod(client, case, node)
    answers: list[bool] = []

    async def is_judged() -> bool:
        found = await verdict_of(client, case)
        answers.extend([] if found is None else [found])
        return found is not None

    await until(is_judged)
    return answers[0]


async def are_known(client: HttpClient, name: str) -> None:
    """Return once kube-scheduler knows all classes, volumes, claims and nodes as they are now.

    It gets the objects of each kind in the order of their versions, and those of several kinds in
    any order. So the last of each kind are one for a pod that needs them all: its claim is unknown,
    or bound at once, or cannot be bound, until it has the claim, the class, the volume. There is
    such a pod on each node. It is refused for as long as something is missing, and judged again
    with what comes.
    """
    cases = {node: Case(f"{name}-{node}") for node in LABELS}
    for case in cases.values():
        claim = f"{case.name}-last"
        case.names.append(claim)
        case.classes.append(make_storage_class(claim, waits=True, makes=False))
        case.volumes.append(make_volume(claim, storage_class=claim))
        case.claims.append(make_claim(claim, storage_class=claim))
        await make(client, case)
    for node, case in cases.items():
        await create_pod(client, case, node)

        async def is_accepted_at_last(case: Case = case) -> bool:
            return await verdict_of(client, case) is True

        await until(is_accepted_at_last)


async def test_pods_with_claims_are_accepted_where_they_reach_their_volumes(
    client: HttpClient,
) -> None:
    rng = random.Random(12)
    drawn: list[tuple[Case, str, list[str]]] = []
    for number in range(CASES_DRAWN):
        kinds = [rng.choice(KINDS) for _ in range(1 + (rng.random() < 0.3))]
        if number < len(set(KINDS)):
            kinds = [sorted(set(KINDS))[number]]
        seed = rng.random()
        for node in LABELS:
            case, same = Case(f"c{number}-{node}"), random.Random(seed)
            for kind in kinds:
                case.draw(same, kind)
            drawn.append((case, node, kinds))
    seen: dict[bool, int] = {True: 0, False: 0}
    limit = asyncio.Semaphore(12)

    async def make_one(case: Case) -> None:
        async with limit:
            await make(client, case)

    async def try_one(case: Case, node: str, kinds: list[str]) -> None:
        async with limit:
            expected = admits(case, node)
            shown = (kinds, node, case)
            assert await is_accepted(client, case, node) is expected, shown
            seen[expected] += 1

    async with asyncio.TaskGroup() as group:
        for case, _, _ in drawn:
            group.create_task(make_one(case))
    await are_known(client, "drawn")
    async with asyncio.TaskGroup() as group:
        for case, node, kinds in drawn:
            group.create_task(try_one(case, node, kinds))
    assert min(seen.values()) > CASES_DRAWN // 2, seen


async def test_a_claim_for_one_pod_is_refused_to_a_second_one_wherever_the_first_is(
    client: HttpClient,
) -> None:
    claim = make_claim("alone", volume="alone", modes=["ReadWriteOncePod"])
    volume = make_volume("alone", claim="alone", modes=["ReadWriteOncePod"])
    case = Case("alone", ["alone"], [claim], [volume])
    await make(client, case)
    await are_known(client, "one-pod")
    assert await is_accepted(client, case, "a1")
    second = Case("second", ["alone"], [claim], [volume])
    assert not await is_accepted(client, second, "b1")
    state = ClusterState.of(
        [make_node("b1")], [make_job("second", claims=["alone"])],
        (await client.list(PODS, namespace="default")).items, claims=[claim], volumes=[volume],
    )  # fmt: skip
    found = state.jobs["default", "second"].reaches
    assert found == ClaimInUse("alone", "pod pod-alone")
