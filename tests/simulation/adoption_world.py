"""A world for pods of other tools: the embedded server and virtual nodes, a tool that makes pods
and makes them again, a scheduler that binds what is pinned, and our controllers, killed at random.

The tool is as Kubeflow's: an owner with replicas by type, pods with an index, an owner that says
when it has ended. The scheduler is as the stock one: it leaves gated pods alone, looks at the node
that a pod is pinned to, and binds it there or says Unschedulable.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import crd, names
from fairlead.api.core import Lease, Node, Pod
from fairlead.api.job import Job
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.quantity import resources_to_base
from fairlead.api.resources import CRDS, JOBS, NODES, PODS, Resource
from fairlead.api.status import ApiError, Conflict, NotFound
from fairlead.controllers.adoption import AdoptionController
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.scheduler import SchedulerController
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.decide.pinning import pinned_node
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store, StoreEvent
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.service import Service
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import NodeShape, load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.model.grouping import is_gated
from fairlead.runtime.client import Client, EventType
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import Recorder
from fairlead.runtime.fencing import fence
from fairlead.runtime.leader import Term
from fairlead.runtime.loop import Controller, ControllerLoop
from fairlead.sim.checkers import Checkers, PromiseBroken
from fairlead.sim.faults import FaultRates, FaultSwitch, FaultyClient
from fairlead.sim.kills import CallCounter, mortal

EPOCH = 1_767_225_600.0
SPACE = "default"
SHAPE = NodeShape(resources={"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"})
FAULTS = FaultRates(
    conflict=0.02, refused=0.02, answer_lost=0.01, latency_seconds_mean=0.005,
    watch_life_seconds_mean=600.0, watch_expired=0.1, watch_lag_seconds_max=0.2,
)  # fmt: skip
POLICY = AdoptionPolicy(bind_patience_seconds=5.0)


class Owner(Wire, frozen=True):
    """What the tool makes pods for."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


OWNERS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", Owner)
OWNER_DEFINITION = {
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


@dataclass
class AdoptionWorld:
    """One simulated cluster. `async with running(world)` runs it."""

    seed: int
    nodes: int
    calls_between_kills_mean: float = 0.0
    faults: FaultRates = field(default_factory=FaultRates)
    #: False where writes may arrive late: what goes wrong by them is put right, not excluded.
    checks_places: bool = True
    #: Nodes that the stock scheduler refuses for a reason that our planner does not know.
    refuses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.clock = LoopClock(EPOCH)
        self.checkers = Checkers()
        self.history = MemoryHistory()
        self.releases: dict[str, int] = {}
        self.pods: dict[tuple[str, str], Pod] = {}
        self.jobs: dict[tuple[str, str], Job] = {}
        self._terms = 0
        self._store = Store.open(None)
        ids = self.rng("uid")
        self.service = Service(
            self._store, Registry.with_builtins(), self.clock,
            ids=lambda: f"{ids.getrandbits(128):032x}", rng=self.rng("names"),
        )  # fmt: skip
        self.client = InProcessClient(self.service)
        self.switch = FaultSwitch(self.faults)
        self.counters: list[CallCounter] = []
        self.virtual = VirtualNodes(
            self.client, NodeFleet(self.nodes, SHAPE), load_profile("instant"),
            clock=self.clock, rng=self.rng("nodes"),
        )  # fmt: skip

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    # Every committed write

    def observe(self, events: Sequence[StoreEvent]) -> None:
        now = self.clock.now()
        for event in events:
            deleted = event.type is EventType.DELETED
            new, old = None if deleted else event.record, event.previous
            if event.info.name == JOBS.name:
                self.checkers.job(_typed(new, Job), _typed(old, Job), now)
                self._keep(self.jobs, event.record.key, _typed(new, Job))
            elif event.info.name == PODS.name:
                pod, before = _typed(new, Pod), _typed(old, Pod)
                self._keep(self.pods, event.record.key, pod)
                if self.checks_places:
                    self.checkers.pod(pod, before, now)
                is_released = pod and before and is_gated(before) and not is_gated(pod)
                if is_released and self.checks_places:
                    self._released(pod)
            elif event.info.name == NODES.name and self.checks_places:
                self.checkers.node(_typed(new, Node), _typed(old, Node), now)

    @staticmethod
    def _keep(table: dict[Any, Any], key: Any, value: Any) -> None:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value

    def _released(self, pod: Pod) -> None:
        """A gate goes only for a member of a gang that has its place, and onto that place."""
        labels = pod.metadata.labels
        job = self.jobs.get((SPACE, labels[names.JOB_NAME]))
        name = pod.metadata.name
        if job is None or job.metadata.uid != labels[names.JOB_UID] or not job.status.placement:
            raise PromiseBroken(f"{name} was released without a place")
        nodes = {r.role: r.nodes for r in job.status.placement.roles}
        if nodes[labels[names.ROLE]][int(labels[names.INDEX])] != pinned_node(pod.spec):
            raise PromiseBroken(f"{name} was released onto another node than its place")
        if job.metadata.uid not in self.releases:
            group = pod.metadata.labels["training.kubeflow.org/job-name"]
            there = [p for p in self.pods.values() if owner_name(p) == group]
            if len(there) < job.member_count:
                raise PromiseBroken(f"{group} was released with {len(there)} members")
        self.releases[job.metadata.uid] = self.releases.get(job.metadata.uid, 0) + 1

    # Ours

    async def mortal(self, name: str, make: Callable[[Client, Recorder], Controller]) -> None:
        rng = self.rng(f"kills/{name}")
        counter = CallCounter(rng, self.calls_between_kills_mean)
        self.counters.append(counter)
        faults, loops = self.rng(f"faults/{name}"), self.rng(f"loop/{name}")

        async def live() -> None:
            client = FaultyClient(self.client, self.switch, faults, step=counter.tick)
            recorder = Recorder(client, self.clock, name, rng=loops)
            controller = make(client, recorder)
            if isinstance(controller, SchedulerController):
                await self._fence(client, controller, faults)
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run())
                group.create_task(ControllerLoop(controller, clock=self.clock, rng=loops).run())

        await mortal(live, counter, down_seconds=lambda: rng.random() * 10)

    async def _fence(
        self, client: Client, scheduler: SchedulerController, rng: random.Random
    ) -> None:
        """Outdate what the scheduler before may have under way, as the start of a term does."""
        self._terms += 1
        lease = Lease(metadata=ObjectMeta(resource_version=str(self._terms)))
        while True:
            try:
                await fence(client, scheduler.jobs, Term(lease, math.inf), rng=rng)
            except* ApiError:
                await asyncio.sleep(1.0)
            else:
                return

    def make_scheduler(self, client: Client, events: Recorder) -> Controller:
        mirrors = ClusterWorld.make(client, clock=self.clock, rng=self.rng("m/scheduler"))
        return SchedulerController(client, mirrors, policy=PlacementPolicy(), events=events)

    def make_adoption(self, client: Client, events: Recorder) -> Controller:
        mirrors = ClusterWorld.make(client, clock=self.clock, rng=self.rng("m/adoption"))
        return AdoptionController(
            client, mirrors, history=self.history, events=events, clock=self.clock, policy=POLICY
        )

    # The stock scheduler

    async def bind_pods(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            for key in sorted(self.pods):
                pod = self.pods.get(key)
                if pod is not None and _is_pending(pod):
                    await self._bind(key, pod)

    async def _bind(self, key: tuple[str, str], pod: Pod) -> None:
        wanted = pinned_node(pod.spec)
        nodes = {n.metadata.name: n for n in (await self.client.list(NODES)).items}
        tried = [wanted] if wanted else sorted(nodes)
        node = next((n for n in tried if n in nodes and self._fits(pod, nodes[n])), None)
        try:
            if node is not None:
                target = {"kind": "Node", "name": node}
                body = {"metadata": {"name": key[1]}, "target": target}
                await self.service.bind(key, body, WriteOptions())
            elif not any(c.reason == "Unschedulable" for c in pod.status.conditions):
                condition = {
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/1 nodes are available",
                    # As on a real server: the status was False already, for the gate's sake.
                    "lastTransitionTime": pod.metadata.creation_timestamp,
                }  # fmt: skip
                patch = {"status": {"conditions": [condition]}}
                await self.client.patch(PODS, key[1], patch, namespace=key[0], subresource="status")
        except (Conflict, NotFound):
            pass

    def _fits(self, pod: Pod, node: Node) -> bool:
        is_refused = node.metadata.name in self.refuses
        if node.spec.unschedulable or node.spec.taints or is_refused:
            return False
        left = resources_to_base(node.status.allocatable)
        there = [p for p in self.pods.values() if p.spec.node_name == node.metadata.name]
        for each in [pod, *(p for p in there if not p.is_terminal)]:
            for resource, amount in _requests(each).items():
                left[resource] = left.get(resource, 0) - amount
        return min(left.values()) >= 0

    # The tool

    async def run_tool(self) -> None:
        """Make what is missing of each owner, delete what failed or hangs on a dead node."""
        while True:
            await asyncio.sleep(1.0)
            for owner in (await self.client.list(OWNERS)).items:
                try:
                    await self._tend(owner)
                except ApiError:
                    continue

    async def _tend(self, owner: Owner) -> None:
        if owner.status.get("conditions"):
            return
        name = owner.metadata.name
        mine = {p.metadata.name: p for p in self.pods.values() if owner_name(p) == name}
        ready = {
            n.metadata.name for n in (await self.client.list(NODES)).items if not n.spec.taints
        }
        done = 0
        for role, each in owner.spec["pytorchReplicaSpecs"].items():
            for index in range(each["replicas"]):
                pod = mine.get(f"{name}-{role.lower()}-{index}")
                if pod is None:
                    body = owned_pod(owner, role.lower(), index, each["pod"])
                    await self.client.create(PODS, body, namespace=SPACE)
                    continue
                is_lost = pod.spec.node_name and pod.spec.node_name not in ready
                if pod.status.phase == "Succeeded":
                    done += 1
                elif pod.status.phase == "Failed" or is_lost:
                    await self.client.delete(
                        PODS, pod.metadata.name, namespace=SPACE, grace_period_seconds=0
                    )
        if done == sum(each["replicas"] for each in owner.spec["pytorchReplicaSpecs"].values()):
            patch = {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
            await self.client.patch(OWNERS, name, patch, namespace=SPACE)


def owner_name(pod: Pod) -> str:
    return pod.metadata.labels.get("training.kubeflow.org/job-name", "")


def owner_body(name: str, *, seconds: float, **replicas: int) -> dict[str, Any]:
    pod = {"seconds": seconds}
    specs = {role: {"replicas": count, "pod": pod} for role, count in replicas.items()}
    return {"metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": specs}}


def owned_pod(owner: Owner, role: str, index: int, pod: dict[str, Any]) -> dict[str, Any]:
    prefix = "training.kubeflow.org"
    amounts = {"cpu": "1", "nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "train:1", "resources": {"limits": amounts}}
    return {
        "metadata": {
            "name": f"{owner.metadata.name}-{role}-{index}",
            "labels": {
                f"{prefix}/job-name": owner.metadata.name, f"{prefix}/replica-type": role,
                f"{prefix}/replica-index": str(index), names.GANG_SCHEDULING: "enabled",
            },
            "annotations": {"fairlead.dev/simulate-seconds": str(pod["seconds"])},
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


def _requests(pod: Pod) -> dict[str, int]:
    total = {"pods": 1}
    for container in pod.spec.containers:
        amounts = {**container.resources.limits, **container.resources.requests}
        for resource, amount in resources_to_base(amounts).items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _is_pending(pod: Pod) -> bool:
    is_done = pod.is_terminal or pod.metadata.deletion_timestamp is not None
    return not (pod.spec.node_name or pod.spec.scheduling_gates or is_done)


def _typed(record: Any, type_: type[Any]) -> Any:
    return None if record is None else record.typed(type_)


@asynccontextmanager
async def running(world: AdoptionWorld) -> AsyncIterator[AdoptionWorld]:
    """Run everything for the length of the block."""
    await world.service.bootstrap()
    for manifest in (*crd.manifests(), OWNER_DEFINITION):
        await world.client.create(CRDS, manifest)
    world._store.subscribe(world.observe)
    await world.virtual.start()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(task)
            for task in (
                world.service.run(), world.virtual.run(), world.bind_pods(), world.run_tool(),
                world.switch.late.run(),
                world.mortal("scheduler", world.make_scheduler),
                world.mortal("adoption", world.make_adoption),
            )
        ]  # fmt: skip
        yield world
        for task in tasks:
            task.cancel()
