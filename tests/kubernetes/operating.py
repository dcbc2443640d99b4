"""Our controllers on a real API server, and a witness that checks their promises.

`Witness` watches arrays, jobs, pods and nodes from before the first of them exists. A real server's
resource versions are revisions of one store, so events of several kinds, sorted by them, are the
order in which everything was committed; `judge` feeds them in that order to the checkers of the
simulator. So an over-commitment that lasted for one revision is found, whoever was slow to see it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.planted import PLANTED, VARIABLE

from fairlead.api import names
from fairlead.api.cluster.cluster_report import REPORT_NAME
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.resources import (
    CLUSTER_REPORTS,
    CRDS,
    JOB_ARRAYS,
    JOBS,
    NODES,
    PODS,
    Resource,
)
from fairlead.api.schema import crd
from fairlead.api.status import AlreadyExists, NotFound, Timeout
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.job_index import JobsMirrors
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.pinning import refusal_of
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import NodeShape, Profile, load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.client import Client, EventType
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.events import Recorder
from fairlead.runtime.loop import Controller, ControllerLoop, LoopOptions
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.sim.observers.observer import holding
from fairlead.sim.promises.array_checker import ArrayChecker
from fairlead.sim.promises.checkers import Checkers

CLOCK = SystemClock()
POLICY = JobsPolicy(peer_naming=PeerNaming.DNS)
LOOK_SECONDS = 0.05
_USERS = itertools.count()
SHAPE = NodeShape(resources={"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"})


def http_client(plane: ControlPlane, *, token: str | None = None) -> HttpClient:
    """A client as the tester, or as the owner of another token."""
    connection = load_connection(path=plane.kubeconfig(token=token))
    return HttpClient(connection, HttpOptions())


async def kubeconfig_of(
    client: HttpClient, plane: ControlPlane, namespace: str, account: str, *, pod: Pod | None = None
) -> Path:
    """Write and return a kubeconfig with a new token of a service account that has its rights.

    The token is bound to a pod of the account, if one is named, as those are that kubelets ask for.
    """
    await rights_count(client)
    token = await token_of(client, namespace, account, pod=pod)
    where = f"-{pod.metadata.name}" if pod else ""
    label = f"{namespace}-{account}{where}"  # a token is too long for the name of a file
    kubeconfig = plane.kubeconfig(token=label)
    kubeconfig.write_text(kubeconfig.read_text().replace(f'"{label}"', f'"{token}"'))
    return kubeconfig


async def token_of(
    client: HttpClient, namespace: str, account: str, *, pod: Pod | None = None
) -> str:
    """Return a new token of a service account, bound to a pod if one is named; ApiError."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    spec: dict[str, Any] = {}
    if pod is not None:
        spec["boundObjectRef"] = {
            "kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid,
        }  # fmt: skip
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return (await _post(client, path, body))["status"]["token"]


async def until(
    condition: Callable[[], Coroutine[Any, Any, bool]], seconds_max: float = PATIENCE_SECONDS
) -> None:
    """Return once the condition holds; another process does the work."""
    async with asyncio.timeout(seconds_max):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)


async def _post(client: HttpClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return msgspec.json.decode(await client.request("POST", path, body=msgspec.json.encode(body)))


async def rights_count(client: HttpClient) -> None:
    """Return once the API server judges by all roles and bindings that there are now.

    Its authorizer watches each of the four kinds: it gets the objects of one kind in the order of
    their versions, those of several kinds in any order. So it knows all before a last role and a
    last binding, in a namespace and of the cluster, once it allows what these allow.
    """
    group, user = "rbac.authorization.k8s.io", f"last-{next(_USERS)}"
    named = {"metadata": {"name": user}}
    subject = {"apiGroup": group, "kind": "User", "name": user}
    asked: list[dict[str, Any]] = []
    for kind, namespace in (("ClusterRole", ""), ("Role", "default")):
        place = f"namespaces/{namespace}/" if namespace else ""
        path = f"/apis/{group}/v1/{place}{kind.lower()}"
        right = {"verb": "get", "group": "", "resource": f"seen-{kind.lower()}s"}
        rule = {"apiGroups": [""], "resources": [right["resource"]], "verbs": [right["verb"]]}
        reference = {"apiGroup": group, "kind": kind, "name": user}
        await _post(client, f"{path}s", {**named, "rules": [rule]})
        binding = {**named, "roleRef": reference, "subjects": [subject]}
        await _post(client, f"{path}bindings", binding)
        asked.append({"user": user, "resourceAttributes": {**right, "namespace": namespace}})

    async def are_allowed() -> bool:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answers = [await _post(client, path, {"spec": each}) for each in asked]
        return all(each["status"]["allowed"] for each in answers)

    await until(are_allowed)


async def is_served(client: Client, resource: Resource[Any]) -> bool:
    try:
        await client.list(resource)
    except NotFound:
        return False
    return True


async def install_kinds(client: Client) -> None:
    """Create our kinds and return once they are served."""
    for manifest in crd.manifests():
        try:
            await client.create(CRDS, manifest)
        except AlreadyExists:
            continue

    async def is_ready() -> bool:
        for manifest in crd.manifests():
            stored = await client.get(CRDS, manifest["metadata"]["name"])
            status = {
                each["type"]: each["status"] for each in stored.status.get("conditions") or ()
            }
            if status.get("Established") != "True":
                return False
        return await is_served(client, JOBS) and await is_served(client, JOB_ARRAYS)

    await until(is_ready)


async def sweep(client: Client) -> None:
    """Delete all arrays, jobs, pods and nodes, whatever holds them."""
    await delete_all(client, JOB_ARRAYS)
    for job in (await client.list(JOBS)).items:
        namespace, name = job.metadata.key
        if job.metadata.finalizers:
            free = {"metadata": {"finalizers": None}}
            await client.patch(JOBS, name, free, namespace=namespace)
    await delete_all(client, JOBS)
    await delete_all(client, PODS, grace_period_seconds=0)
    await delete_all(client, NODES)


async def delete_all(
    client: Client, resource: Resource[Any], *, grace_period_seconds: int | None = None
) -> None:
    """Delete all objects of a kind; of a thousand, one request may not delete all in time."""

    async def are_deleted() -> bool:
        try:
            await client.delete_collection(resource, grace_period_seconds=grace_period_seconds)
        except Timeout:
            return False
        return True

    await until(are_deleted)


async def remove_report(client: Client) -> None:
    """Delete the doctor's report: where one is recent, a new process waits for its turn."""
    with suppress(NotFound):
        await client.delete(CLUSTER_REPORTS, REPORT_NAME)


WITNESSED: tuple[Resource[Any], ...] = (JOB_ARRAYS, JOBS, PODS, NODES)


@dataclass(slots=True)
class Seen:
    """One committed write."""

    version: int
    resource: Resource[Any]
    type: EventType
    object: Any


@dataclass(slots=True)
class Witness:
    """Records every committed write of arrays, jobs, pods and nodes."""

    client: Client
    seen: list[Seen] = field(default_factory=list)
    progress: dict[str, int] = field(default_factory=dict)
    #: What the last judgement saw of arrays.
    arrays: ArrayChecker = field(default_factory=ArrayChecker)

    async def watch(self, resource: Resource[Any], version: str) -> None:
        """Record until cancelled; the history of the server is long enough for one test."""
        while True:
            async for event in self.client.watch(
                resource, resource_version=version, timeout_seconds=60
            ):
                version = event.resource_version
                self.progress[resource.name] = int(version)
                if event.object is not None:
                    self.seen.append(Seen(int(version), resource, event.type, event.object))

    async def caught_up(self) -> None:
        """Return once all watches have shown what is committed now."""
        for resource in WITNESSED:
            now = await self.client.list(resource)
            last = max((int(o.metadata.resource_version) for o in now.items), default=0)

            async def reached(name: str = resource.name, wanted: int = last) -> bool:
                return self.progress.get(name, 0) >= wanted

            await until(reached)

    def judge(self) -> Checkers:
        """Return the checkers after all writes, in the order of their commits; PromiseBroken."""
        checkers, self.arrays = Checkers(), ArrayChecker()
        known: dict[tuple[str, tuple[str, str]], Any] = {}
        for seen in sorted(self.seen, key=lambda each: each.version):
            key = (seen.resource.name, seen.object.metadata.key)
            old = known.pop(key, None)
            new = None if seen.type is EventType.DELETED else seen.object
            if new is not None:
                known[key] = new
            _feed(checkers, self.arrays, new, old if old is not None else seen.object)
        return checkers


def _feed(checkers: Checkers, arrays: ArrayChecker, new: Any, old: Any) -> None:
    some = new or old
    if isinstance(some, JobArray):
        arrays.array(new, some.metadata.key, CLOCK.now())
    elif isinstance(some, Job):
        arrays.job(new, some.metadata.key, CLOCK.now())
        checkers.job(holding(new), holding(old if new is not None else some), CLOCK.now())
    elif isinstance(some, Pod):
        checkers.pod(new, None if new is old else old, CLOCK.now())
    elif isinstance(some, Node):
        checkers.node(new, old, CLOCK.now())


@asynccontextmanager
async def witnessed(client: Client) -> AsyncIterator[Witness]:
    """Record from now on; the writes are judged at the end of the block."""
    witness = Witness(client)
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        for resource in WITNESSED:
            version = (await client.list(resource)).resource_version
            tasks.append(group.create_task(witness.watch(resource, version)))
        yield witness
        await witness.caught_up()
        for task in tasks:
            task.cancel()
    witness.judge()


@asynccontextmanager
async def virtual_nodes(
    client: Client, count: int, *, profile: Profile | None = None, seed: int = 1,
    reader: MirrorReader | None = None,
) -> AsyncIterator[VirtualNodes]:  # fmt: skip
    """Nodes that run pods by pretending to; gone, with their pods, at the end of the block."""
    nodes = VirtualNodes(
        client, NodeFleet(count, SHAPE), profile or load_profile("instant"),
        clock=CLOCK, rng=random.Random(seed), reader=reader,
    )  # fmt: skip
    await nodes.start()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(nodes.run())
        await nodes.wait_synced()
        yield nodes
        task.cancel()
    await delete_all(client, NODES)


class Pair:
    """Scheduler and jobs controller with everything of their own, as one replica has them."""

    def __init__(
        self, client: Client, *, policy: JobsPolicy = POLICY, seed: int = 2,
        placement: PlacementPolicy | None = None,
    ) -> None:  # fmt: skip
        self._rng = random.Random(seed)
        self.events = Recorder(client, CLOCK, "fairlead", rng=self._rng)
        self.world = world = ClusterWorld.make(client, clock=CLOCK, rng=self._rng)
        own = JobsMirrors.make(client, policy, clock=CLOCK, rng=self._rng)
        self.scheduler = SchedulerController(client, world, events=self.events, policy=placement)
        self.jobs = JobsController(
            client,
            world,
            own,
            history=MemoryHistory(),
            events=self.events,
            policy=policy,
            clock=CLOCK,
            keys=self._rng,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.events.run())
            for mirror in {*self.scheduler.mirrors, *self.jobs.mirrors}:
                group.create_task(mirror.run())
            for controller in (self.scheduler, self.jobs):
                group.create_task(self._loop(controller).run())

    def _loop(self, controller: Controller) -> ControllerLoop:
        options = LoopOptions(runs_mirrors=False)
        return ControllerLoop(controller, clock=CLOCK, rng=self._rng, options=options)


@asynccontextmanager
async def controllers(
    client: Client, *, policy: JobsPolicy = POLICY, placement: PlacementPolicy | None = None
) -> AsyncIterator[Pair]:
    """Both controllers, for the length of the block."""
    pair = Pair(client, policy=policy, placement=placement)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(pair.run())
        yield pair
        task.cancel()


def job_body(
    name: str, members: int, *, seconds: float | None = None, gpus: int = 8, **spec: Any
) -> dict[str, Any]:
    """A job of one role whose members take all GPUs of a node and end after `seconds`."""
    notes = {} if seconds is None else {"fairlead.dev/simulate-seconds": str(seconds)}
    resources = {"cpu": "1"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    template = {
        "metadata": {"annotations": notes},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "command": ["train"],
                    "env": [{"name": VARIABLE, "value": PLANTED}],
                    "resources": {"requests": resources, "limits": resources},
                    "securityContext": {"runAsNonRoot": True},
                }
            ]
        },
    }
    role = {"name": "worker", "count": members, "template": template}
    return {"metadata": {"name": name}, "spec": {"roles": [role], **spec}}


async def running(client: Client, name: str, members: int, *, attempt: int = 1) -> Job:
    """Return the job once so many members of the attempt run."""
    found: list[Job] = []

    async def runs() -> bool:
        job = await client.get(JOBS, name, namespace="default")
        found.append(job)
        return job.status.members.running == members and job.status.attempt == attempt

    await until(runs)
    return found[-1]


async def succeed(client: Client, nodes: VirtualNodes, name: str) -> None:
    """End all running members of a job with success.

    For a job that a test has to see running: no time of its own is long enough on a busy machine.
    """
    for pod in (await client.list(PODS, label_selector=f"{names.JOB_NAME}={name}")).items:
        if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None:
            nodes.fail_pod(pod.metadata.key, exit_code=0)


async def ended(client: Client, name: str) -> Job:
    """Return the job once it has ended."""

    async def is_over() -> bool:
        return (await client.get(JOBS, name, namespace="default")).is_finished

    try:
        await until(is_over)
    except TimeoutError:
        status = (await client.get(JOBS, name, namespace="default")).status
        pods = (await client.list(PODS, label_selector=f"{names.JOB_NAME}={name}")).items
        raise AssertionError(
            f"{name} does not end: {status.state}\n  attempts: "
            f"{[(a.number, a.reason, a.message) for a in status.attempts[-3:]]}\n  pods: "
            f"{[(p.status.phase, p.spec.node_name, refusal_of(p)) for p in pods]}\n  {status}"
        ) from None
    return await client.get(JOBS, name, namespace="default")
