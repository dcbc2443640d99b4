"""The embedded cluster's store, API and virtual nodes with all controllers, under virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import CRDS, JOBS, PODS
from fairlead.api.schema import crd
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.app.use_service import looks_of
from fairlead.controllers.records.message_tries import NoticeSender
from fairlead.decide.use.idle import MemberLook
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.own_controllers.device_allocator import DeviceAllocator
from fairlead.embedded.own_controllers.node_leases import KUBELETS, NodeLeases
from fairlead.embedded.own_controllers.volume_binder import VolumeBinder
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.contact import VirtualContact
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import Profile, load_profile
from fairlead.embedded.virtual.stages.records import NodeFault
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Request
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import SupervisedService, Supervisor
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.testing.builders import EPOCH

A = TypeVar("A")
NAMESPACE = "default"
#: Of a virtual node.
GPUS = 8
SIMULATE_SECONDS = "fairlead.dev/simulate-seconds"


class CountingClient(InProcessClient):
    """Counts what is asked for by verb and kind, with the subresource: `jobs/status`."""

    def __init__(self, service: ApiService) -> None:
        super().__init__(service)
        self.asked: Counter[tuple[str, str]] = Counter()

    async def call(self, request: Request[A]) -> A:
        rest = f"/{request.subresource}" if request.subresource else ""
        self.asked[request.verb.value, f"{request.resource.plural}{rest}"] += 1
        return await super().call(request)


class EmbeddedWorld:
    """Short ways to make, change and look at jobs; every job runs for a day unless it says so."""

    def __init__(self, client: CountingClient, controllers: Controllers, clock: LoopClock) -> None:
        self.client, self.controllers, self.clock = client, controllers, clock
        self.nodes: VirtualNodes | None = None
        self.contact = VirtualContact(lambda: self.nodes.records if self.nodes else {})

    def silence(self, node: str) -> None:
        """Let the kubelet of a node confirm no end any more; the node stays ready."""
        assert self.nodes is not None
        self.nodes.fail_node(node, NodeFault.UNREACHABLE, detect_seconds=86_400)

    def renews(self, node: str) -> bool:
        """True while the kubelet of a node renews its lease; tests replace it."""
        return self.contact.renews(node)

    def mend(self, node: str) -> None:
        """Let a node answer again."""
        assert self.nodes is not None
        self.nodes.recover_node(node)

    async def submit(
        self, name: str, count: int, *, gpus: int = GPUS, seconds: float = 86_400, **spec: Any
    ) -> None:
        """Create a job of members with so many GPUs each."""
        container = {
            "name": "main",
            "image": "x",
            "resources": {"limits": {"nvidia.com/gpu": gpus}},
        }
        template = {
            "metadata": {"annotations": {SIMULATE_SECONDS: str(seconds)}},
            "spec": {"containers": [container]},
        }
        roles = [{"name": "worker", "count": count, "template": template}]
        body = {"metadata": {"name": name}, "spec": {"roles": roles, **spec}}
        await self.client.create(JOBS, body, namespace=NAMESPACE)

    async def job(self, name: str) -> Job:
        return await self.client.get(JOBS, name, namespace=NAMESPACE)

    async def patch(self, name: str, **spec: Any) -> None:
        await self.client.patch(JOBS, name, {"spec": spec}, namespace=NAMESPACE)

    async def pods(self, job: str) -> list[Pod]:
        found = await self.client.list(PODS, namespace=NAMESPACE)
        return [pod for pod in found.items if pod.metadata.labels.get(names.JOB_NAME) == job]

    async def until(self, name: str, test: Callable[[Job], bool], seconds: float = 30.0) -> Job:
        """Return the job once `test` holds; AssertionError with its status otherwise."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            job = await self.job(name)
            if test(job):
                return job
            await asyncio.sleep(0.5)
        raise AssertionError(f"{name} after {seconds} s: {(await self.job(name)).status}")

    async def runs(self, name: str, seconds: float = 30.0) -> Job:
        return await self.until(name, lambda job: job.status.state == "Running", seconds)


@asynccontextmanager
async def embedded_world(
    nodes: int,
    policies: Policies | None = None,
    *,
    has_kubelets: bool = False,
    profile: Profile | None = None,
    notices: NoticeSender | None = None,
    history: MemoryHistory | None = None,
) -> AsyncGenerator[EmbeddedWorld]:
    """Run the cluster inside, with nodes of 8 GPUs; these renew leases where they have kubelets."""
    clock, ids = LoopClock(EPOCH), random.Random(2)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), clock,
        ids=lambda: f"{ids.getrandbits(128):032x}", rng=random.Random(3),
    )  # fmt: skip
    await service.bootstrap()
    client = CountingClient(service)
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    metrics = Metrics(CollectorRegistry(), version="test")

    def looks() -> list[MemberLook]:
        return [] if world.nodes is None else list(looks_of(world.nodes.measured_pods()))

    controllers = Controllers(
        policies or Policies(),
        client,
        history or MemoryHistory(),
        context=ProcessContext(clock, metrics),
        connect=lambda *how: world.contact.connect(*how),
        notices=notices,
        measured=looks if profile is not None and profile.use is not None else None,
    )
    profile = profile or load_profile("instant")
    world = EmbeddedWorld(client, controllers, clock)

    async def run_nodes() -> None:
        reader = MirrorReader(SetAside("virtual-nodes"))
        world.nodes = virtual = VirtualNodes(
            client, NodeFleet(nodes, profile.node), profile, clock=clock, rng=random.Random(4),
            pods=controllers.mirrors.pods, reader=reader,
        )  # fmt: skip
        try:
            await virtual.run()
        finally:
            reader.close()

    async def bind_volumes() -> None:
        mirrors = controllers.mirrors
        binder = VolumeBinder(
            client, mirrors.pods, mirrors.nodes, clock=clock, rng=random.Random(5)
        )
        await binder.run()

    async def allocate_devices() -> None:
        mirrors = controllers.mirrors
        allocator = DeviceAllocator(
            client, mirrors.pods, mirrors.nodes, clock=clock, rng=random.Random(6)
        )
        await allocator.run()

    services = [
        *controllers.services(), SupervisedService("api", service.run),
        SupervisedService("virtual-nodes", run_nodes),
        SupervisedService("volume-binder", bind_volumes),
        SupervisedService("device-allocator", allocate_devices),
    ]  # fmt: skip
    if has_kubelets:
        leases = NodeLeases(
            client, clock, controllers.mirrors.nodes, renews=lambda name: world.renews(name),
            times=KUBELETS,
        )  # fmt: skip
        services.append(SupervisedService("node-leases", leases.run))
    supervisor = Supervisor(services, clock=clock, rng=random.Random(1))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(supervisor.run())
        await asyncio.sleep(2)
        yield world
        crashed = [s for s in supervisor.health().services if s.crash_count]
        task.cancel()
    assert crashed == []
