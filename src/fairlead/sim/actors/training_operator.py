"""A tool whose pods Fairlead adopts, as Kubeflow's training operator: an owner with replicas by
type, pods with an index, an owner that says when it has ended.

Pods that fail, or whose node is lost, are deleted and made again. `GateChecker` checks what the
adoption controller does with them: a gate opens only for a member of a gang that has its place, and
onto that place.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.names import SIMULATE_SECONDS
from fairlead.api.resources import PODS, Resource
from fairlead.api.status import ApiError
from fairlead.api.values.quantity import GPU
from fairlead.decide.pinning import pinned_node
from fairlead.decide.verdict import ObjectKey
from fairlead.model.pools.grouping import is_gated
from fairlead.runtime.client import Client
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer

SPACE = names.DEFAULT_NAMESPACE
#: Of each pod of a group.
POD_GPUS = 8
_PREFIX = "training.kubeflow.org"
_TEND_SECONDS = 1.0


class ReplicaOwner(Wire, frozen=True):
    """What the tool makes pods for."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def size(self) -> int:
        """How many pods it wants."""
        return sum(each["replicas"] for each in self.spec["pytorchReplicaSpecs"].values())


OWNERS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", ReplicaOwner)
OWNER_DEFINITION: dict[str, Any] = {
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {"plural": "pytorchjobs", "kind": "PyTorchJob", "singular": "pytorchjob",
                  "listKind": "PyTorchJobList"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True,
            }},
        }],
    },
}  # fmt: skip


def owner_name(pod: Pod) -> str:
    """Return the owner that a pod is of; "" for pods of others."""
    return pod.metadata.labels.get(f"{_PREFIX}/job-name", "")


def owner_body(name: str, *, seconds: float, **replicas: int) -> dict[str, Any]:
    """Return an owner whose pods run for so long; `replicas` by type, such as Worker=4."""
    pod = {"seconds": seconds}
    specs = {role: {"replicas": count, "pod": pod} for role, count in replicas.items()}
    return {"metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": specs}}


class TrainingOperator(Observer):
    """Makes what is missing of each owner. An `Observer` of the world."""

    def __init__(self, client: Client) -> None:
        self.pods: dict[ObjectKey, Pod] = {}
        self._client = client
        self._nodes: dict[str, Node] = {}
        self._woken = asyncio.Event()

    def wrote(self, kind: str) -> None:
        """Look at owners that have changed."""
        if kind == OWNERS.name:
            self._woken.set()

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note a pod of an owner."""
        if new is None:
            if self.pods.pop(key, None) is not None:
                self._woken.set()
        elif owner_name(new):
            self.pods[key] = new
            self._woken.set()

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note a node, whose pods may be lost."""
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new
        if self.pods:
            self._woken.set()

    async def unfinished(self) -> list[str]:
        """Return the owners that have not ended."""
        owners = (await self._client.list(OWNERS)).items
        return [owner.metadata.name for owner in owners if not owner.status.get("conditions")]

    async def run(self) -> None:
        """Tend to the owners until cancelled."""
        while True:
            await self._woken.wait()
            await asyncio.sleep(_TEND_SECONDS)
            self._woken.clear()
            for owner in (await self._client.list(OWNERS)).items:
                if owner.status.get("conditions"):
                    continue
                try:
                    await self._tend(owner)
                except ApiError:
                    self._woken.set()

    async def _tend(self, owner: ReplicaOwner) -> None:
        name, done = owner.metadata.name, 0
        mine = {p.metadata.name: p for p in self.pods.values() if owner_name(p) == name}
        for role, each in owner.spec["pytorchReplicaSpecs"].items():
            for index in range(each["replicas"]):
                pod = mine.get(f"{name}-{role.lower()}-{index}")
                if pod is None:
                    body = _owned_pod(owner, role.lower(), index, each["pod"])
                    await self._client.create(PODS, body, namespace=SPACE)
                elif pod.status.phase == "Succeeded":
                    done += 1
                elif pod.status.phase == "Failed" or self._is_lost(pod):
                    await self._client.delete(
                        PODS, pod.metadata.name, namespace=SPACE, grace_period_seconds=0
                    )
        if done == owner.size:
            patch = {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
            await self._client.patch(OWNERS, name, patch, namespace=SPACE)

    def _is_lost(self, pod: Pod) -> bool:
        node = self._nodes.get(pod.spec.node_name)
        if node is None:
            return bool(pod.spec.node_name)
        # Not the taint of a team: that is for pods which are still to come.
        return any(taint.effect == "NoExecute" for taint in node.spec.taints)


def _owned_pod(owner: ReplicaOwner, role: str, index: int, pod: dict[str, Any]) -> dict[str, Any]:
    amounts = {"cpu": "1", GPU: str(POD_GPUS)}
    container = {"name": "main", "image": "train:1", "resources": {"limits": amounts}}
    return {
        "metadata": {
            "name": f"{owner.metadata.name}-{role}-{index}",
            "labels": {
                f"{_PREFIX}/job-name": owner.metadata.name, f"{_PREFIX}/replica-type": role,
                f"{_PREFIX}/replica-index": str(index), names.GANG_SCHEDULING: "enabled",
            },
            "annotations": {SIMULATE_SECONDS: str(pod["seconds"])},
            "ownerReferences": [{
                "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": True,
                "name": owner.metadata.name, "uid": owner.metadata.uid,
            }],
        },
        "spec": {
            "restartPolicy": "Never", "containers": [container],
            "schedulingGates": [{"name": names.GANG_GATE}],
        },
    }  # fmt: skip


class GateChecker(Observer):
    """Promise 2 for adopted pods, at every write. An `Observer` of the world.

    The write of a release may be applied late: it may be for the place that the member had then.
    """

    def __init__(self) -> None:
        self.releases: dict[str, int] = {}  # by the uid of the job
        #: The places that jobs had, each with when it changed.
        self._former: dict[ObjectKey, list[tuple[Placement, float]]] = {}
        self._jobs: dict[ObjectKey, Job] = {}
        self._pods: dict[ObjectKey, Pod] = {}

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Note a job that represents a group."""
        if new is None:
            self._jobs.pop(key, None)
            self._former.pop(key, None)
        elif new.spec.adopts is not None:
            before = self._jobs.get(key)
            place = before.status.placement if before is not None else None
            if place is not None and place != new.status.placement:
                self._former.setdefault(key, []).append((place, now))
            self._jobs[key] = new

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Check a gate that has been opened. PromiseBroken."""
        if new is None:
            self._pods.pop(key, None)
            return
        if not owner_name(new):
            return
        before = self._pods.get(key)
        self._pods[key] = new
        if before is not None and is_gated(before) and not is_gated(new):
            self._check(new, now)

    def _check(self, pod: Pod, now: float) -> None:
        labels, name = pod.metadata.labels, pod.metadata.name
        key = (SPACE, labels[names.JOB_NAME])
        job = self._jobs.get(key)
        if job is None or job.metadata.uid != labels[names.JOB_UID] or not job.status.placement:
            raise PromiseBroken(f"2: {name} was released without a place")
        former = [each for each, at in self._former.get(key, ()) if now - at <= STALE_SECONDS]
        seats = [
            role.nodes[int(labels[names.INDEX])]
            for placement in (job.status.placement, *former)
            for role in placement.roles
            if role.role == labels[names.ROLE] and int(labels[names.INDEX]) < len(role.nodes)
        ]
        if pinned_node(pod.spec) not in seats:
            raise PromiseBroken(f"2: {name} was released onto another node than its place")
        if job.metadata.uid not in self.releases:
            group = owner_name(pod)
            there = [each for each in self._pods.values() if owner_name(each) == group]
            if len(there) < job.member_count:
                raise PromiseBroken(f"2: {group} was released with {len(there)} members")
        self.releases[job.metadata.uid] = self.releases.get(job.metadata.uid, 0) + 1
