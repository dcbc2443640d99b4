"""Hostile objects on an embedded cluster: after each batch a canary of another tenant is placed.

Three targets: the embedded API with its admission, and an API in a dictionary that lets everything
in (the controllers have to work with either, both or neither admission), with controllers composed
as in `fairlead up`, and as by the operator, which also reads quotas, services, PodGroups and the
objects of other tools. All run under virtual time.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.simulation.hostile import NAMESPACE, Poison, all_poison, job_body
from tests.simulation.hostile_tools import of_tools

from fairlead.api.cluster.node_pool import NodePool, ProviderType
from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.podgroups import GroupApi
from fairlead.api.resources import CRDS, JOBS, NAMESPACES, NODES, PODS
from fairlead.api.schema import crd
from fairlead.api.status import AlreadyExists, ApiError
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.cloud.provider import CloudError, LaunchRequest, MachineProvider, OutOfCapacity
from fairlead.cloud.registry import provider_of
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.pinning import Binding
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.runtime.client import Client
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import SupervisedService, Supervisor
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_node
from fairlead.testing.fake_client import FakeClient

BATCH = 40
#: A canary is placed, and has its pod, within this many seconds of virtual time.
CANARY_SECONDS_MAX = 20.0


class World:
    """Controllers on one API, and who watches over them."""

    def __init__(self, client: Client, clock: LoopClock, policies: Policies) -> None:
        self.client = client
        self.let_in = self.refused = self.canaries = 0
        self._rng = random.Random(1)
        metrics = Metrics(CollectorRegistry(), version="test")
        self.controllers = Controllers(
            policies, client, MemoryHistory(), context=ProcessContext(clock, metrics),
            providers=_provider_of,
        )  # fmt: skip
        self.services = list(self.controllers.services())
        self.supervisor: Supervisor | None = None
        self._clock = clock

    async def run(self) -> None:
        self.supervisor = Supervisor(self.services, clock=self._clock, rng=self._rng)
        await self.supervisor.run()

    def crashes(self) -> list[str]:
        assert self.supervisor is not None
        health = self.supervisor.health().services
        assert {"scheduler", "jobs"} <= {service.name for service in health}
        return [f"{s.name}: {s.last_error}" for s in health if s.crash_count]

    async def send(self, poison: Poison) -> None:
        try:
            try:
                await self.client.create(poison.resource, poison.body, namespace=_space(poison))
            except AlreadyExists:  # of the fleet there is one
                await self.client.patch(
                    poison.resource, poison.body["metadata"]["name"], poison.body,
                    namespace=_space(poison),
                )  # fmt: skip
            if poison.status:
                await self.client.patch(
                    poison.resource, poison.body["metadata"]["name"], poison.status,
                    namespace=_space(poison), subresource="status",
                )  # fmt: skip
        except ApiError:
            self.refused += 1
        except (msgspec.ValidationError, RecursionError):
            self.let_in += 1  # and the answer cannot be decoded
        else:
            self.let_in += 1

    async def canary(self) -> bool:
        """True when a new job of another namespace gets its pod in time."""
        self.canaries += 1
        name = f"canary-{self.canaries}"
        body = job_body(name)
        body["metadata"]["namespace"] = "canary"
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        await self.client.create(JOBS, body, namespace="canary")
        try:
            async with asyncio.timeout(CANARY_SECONDS_MAX):
                while not await self._has_pod(name):  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.5)
        except TimeoutError:
            return False
        cancel = {"spec": {"cancel": True}}
        await self.client.patch(JOBS, name, cancel, namespace="canary")
        return True

    async def _has_pod(self, name: str) -> bool:
        job: Job = await self.client.get(JOBS, name, namespace="canary")
        pods = await self.client.list(PODS, namespace="canary")
        return job.status.placement is not None and any(
            pod.metadata.name.startswith(f"{name}-") for pod in pods.items
        )


class HostileProvider:
    """A provider that answers nonsense, a different kind for each reference of a pool."""

    def __init__(self, pool: NodePool) -> None:
        self._name = pool.metadata.name
        self._kind = zlib.crc32(self._name.encode()) % 5

    def _raise(self) -> None:
        if self._kind == 0:
            raise RecursionError("planted")
        if self._kind == 1:
            raise CloudError("x" * 1_000_000)

    async def instances(self) -> Inventory:
        self._raise()
        states = tuple(InstanceState)
        ids = ("", "i" * 90_000, "\u0000", "twin", "twin", *(f"i{i}" for i in range(500)))
        return Inventory(
            tuple(
                Instance(id_, "other" if i % 2 else self._name, states[i % len(states)],
                         "d" * 9_000 if i % 3 else "", "t" * i)
                for i, id_ in enumerate(ids)
            ),
            is_complete=self._kind == 2,
        )  # fmt: skip

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        self._raise()
        if self._kind == 2:
            raise OutOfCapacity("\u202e" * 9_000)
        return ("", "twin", "twin", "i" * 9_000, *(f"l{i}" for i in range(1_000)))

    async def terminate(self, ids: tuple[str, ...]) -> None:
        self._raise()


def _provider_of(pool: NodePool) -> MachineProvider:
    if pool.spec.provider.type is ProviderType.EXEC:
        return HostileProvider(pool)
    return provider_of(pool)


def _space(poison: Poison) -> str:
    return NAMESPACE if poison.resource.namespaced else ""


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.run())
        await asyncio.sleep(2)
        yield world
        task.cancel()


@asynccontextmanager
async def embedded() -> AsyncIterator[World]:
    """The store and the API of the embedded cluster, with virtual nodes."""
    clock, ids = LoopClock(EPOCH), random.Random(2)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), clock,
        ids=lambda: f"{ids.getrandbits(128):032x}", rng=random.Random(3),
    )  # fmt: skip
    await service.bootstrap()
    client = InProcessClient(service)
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    for name in (NAMESPACE, "canary"):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    world = World(client, clock, Policies())
    profile = load_profile("instant")

    async def run_nodes() -> None:
        reader = MirrorReader(SetAside("virtual-nodes"))
        nodes = VirtualNodes(
            client, NodeFleet(4, profile.node), profile, clock=clock, rng=random.Random(4),
            pods=world.controllers.mirrors.pods, reader=reader,
        )  # fmt: skip
        try:
            await nodes.run()
        finally:
            reader.close()

    world.services += [
        SupervisedService("api", service.run),
        SupervisedService("virtual-nodes", run_nodes),
    ]
    async with running(world):
        yield world


def open_to_all() -> AbstractAsyncContextManager[World]:
    """An API without any admission or validation."""
    return _open(Policies())


def operator() -> AbstractAsyncContextManager[World]:
    """The same, read by the controllers of a cluster with a scheduler and tools of its own."""
    jobs = JobsPolicy(peer_naming=PeerNaming.DNS, binding=Binding.PINNED, groups=GroupApi.V1ALPHA2)
    return _open(Policies(jobs))


@asynccontextmanager
async def _open(policies: Policies) -> AsyncIterator[World]:
    clock = LoopClock(EPOCH)
    client = FakeClient(now=clock.now)
    for i in range(4):
        wire = to_wire(make_node(f"n{i}"))
        wire["metadata"].pop("resourceVersion")
        await client.create(NODES, wire)
    async with running(World(client, clock, policies)) as world:
        yield world


async def harm_of(target: Any, poison: Sequence[Poison]) -> tuple[str, int]:
    """Return what these objects did to others ("" for nothing), and how many were let in."""
    async with target() as world:
        assert await world.canary(), "no canary is placed even without hostile objects"
        for each in poison:
            await world.send(each)
        await asyncio.sleep(5)
        is_placed = await world.canary()
        crashes = world.crashes()
    harm = [*crashes, *([] if is_placed else ["the canary was not placed"])]
    return "; ".join(harm), world.let_in


@pytest.mark.parametrize(
    ("target", "let_in_min"), [(embedded, 80), (open_to_all, 200), (operator, 200)]
)
def test_hostile_objects_harm_nobody_else(target: Any, let_in_min: int) -> None:
    async def main() -> tuple[list[str], int]:
        found: list[str] = []
        poison, let_in = (*all_poison(), *of_tools()), 0
        for start in range(0, len(poison), BATCH):
            batch = poison[start : start + BATCH]
            harm, count = await harm_of(target, batch)
            let_in += count
            for each in batch if harm else ():
                alone, _ = await harm_of(target, [each])
                found += [f"{each.label}: {alone}"] if alone else []
            found += [f"from {batch[0].label} on: {harm}"] if harm else []
        return found, let_in

    found, let_in = run(main())
    assert found == []
    assert let_in >= let_in_min
