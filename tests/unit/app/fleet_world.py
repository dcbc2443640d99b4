"""A cluster whose nodes are bought: the controllers, virtual nodes and a simulated cloud."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry
from tests.unit.history.contract import decisions_of

from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import to_wire
from fairlead.api.resources import CRDS, FLEETS, JOBS, NODE_POOLS, NODES
from fairlead.api.schema import crd
from fairlead.api.status import InternalError
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.cloud.provider import MachineProvider
from fairlead.cloud.registry import provider_of
from fairlead.cloud.simulated import CloudRates, SimulatedCloud
from fairlead.controllers.records.message_tries import NoticeSender
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.fleet.view import FleetPolicy
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.network import EgressPolicy
from fairlead.decide.notices import TicketsPolicy
from fairlead.decide.removal.trust import SightLimits
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import HardwareSpec, ProgressSpec, load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.kept.history import FleetQuery, FleetRecord, History
from fairlead.runtime.supervisor import Supervisor
from fairlead.sim.actors.quiet_client import QuietClient
from fairlead.testing.builders import EPOCH, make_job

A = TypeVar("A")
#: As rarely as its setting allows: a quarter of the time of these worlds went into examinations.
RARE_DOCTOR = DoctorPolicy(interval_seconds=1200)
#: Three times as long as by default: nearly all that is left of a world's time goes into decisions
#: of the fleet while something is under way. What is new is decided on at once all the same.
_LOOP_SECONDS = 15.0


class PagedClient(QuietClient):
    """Answers reads of some paths as the test says; `is_full`: refuses writes as a full etcd."""

    pages: dict[str, Callable[[], bytes]]
    is_full: bool = False

    async def call(self, request: Request[A]) -> A:
        if self.is_full and request.is_write:
            raise InternalError("etcdserver: mvcc: database space exceeded")
        if request.verb is RequestVerb.READ and request.name in self.pages:
            answer: Any = self.pages[request.name]()
            return answer
        return await super().call(request)


class FleetWorld:
    """Run it with `async with FleetWorld.running() as world`, in virtual time."""

    def __init__(
        self,
        rates: CloudRates,
        policy: FleetPolicy,
        health: HealthPolicy | None = None,
        *,
        doctor: DoctorPolicy = RARE_DOCTOR,
        profile: str = "default",
        hardware: HardwareSpec | None = None,
        progress: ProgressSpec | None = None,
        jobs: JobsPolicy | None = None,
        egress: EgressPolicy | None = None,
    ) -> None:
        self.clock = LoopClock(EPOCH)
        rng = random.Random(7)
        self.api = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
        )  # fmt: skip
        # Watches that last say nothing while nothing happens.
        self.client = PagedClient(self.api, renews_watches=False, keeps_events=False)
        self.client.pages = {}
        found = load_profile(profile)
        if hardware is not None:
            found = msgspec.structs.replace(found, hardware=hardware)
        if progress is not None:
            found = msgspec.structs.replace(found, progress=progress)
        self.virtual = VirtualNodes(
            self.client, NodeFleet(0, found.node), found, clock=self.clock, rng=rng
        )
        self.cloud = SimulatedCloud(self.virtual, random.Random(3), rates)
        self.policy = policy
        self.health = health or HealthPolicy()
        self.doctor = doctor
        self.jobs = jobs or JobsPolicy()
        self.egress = egress or EgressPolicy()
        self.history: History = MemoryHistory()
        self.rng = rng
        #: What makes providers of a test's own, by pool: for each life of the controllers.
        self.provider_makers: dict[str, Callable[[], MachineProvider]] = {}
        self.supervisor: Supervisor | None = None
        #: Whom tickets go to, and what sends them, for each life of the controllers.
        self.tickets = TicketsPolicy()
        self.sender: NoticeSender | None = None

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        rates: CloudRates | None = None,
        policy: FleetPolicy | None = None,
        health: HealthPolicy | None = None,
        *,
        doctor: DoctorPolicy = RARE_DOCTOR,
        profile: str = "default",
        hardware: HardwareSpec | None = None,
        progress: ProgressSpec | None = None,
        jobs: JobsPolicy | None = None,
        egress: EgressPolicy | None = None,
    ) -> AsyncGenerator[FleetWorld]:
        silent = FleetPolicy(
            loop_seconds=_LOOP_SECONDS, sight=SightLimits(nodes_age_seconds_max=float("inf"))
        )
        world = cls(
            rates or CloudRates(), policy or silent, health, doctor=doctor, profile=profile,
            hardware=hardware, progress=progress, jobs=jobs, egress=egress,
        )  # fmt: skip
        await world.api.bootstrap()
        for manifest in crd.manifests():
            await world.client.create(CRDS, manifest)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(world.api.run()),
                    group.create_task(world.virtual.run()),
                    group.create_task(world.cloud.run()),
                    group.create_task(world.control()),
                ]
                world.controller = tasks[-1]
                world.group = group
                yield world
                for task in [*tasks, world.controller]:
                    task.cancel()
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None  # the first that failed, with its own traceback

    #: Of the latest life of the controllers.
    metrics: Metrics
    group: asyncio.TaskGroup
    controller: asyncio.Task[None]

    async def control(self) -> None:
        """One life of the controllers."""
        self.metrics = Metrics(CollectorRegistry(), version="test", stopwatch=self.clock.now)
        controllers = Controllers(
            Policies(self.jobs, fleet=self.policy, health=self.health, doctor=self.doctor,
                     egress=self.egress, tickets=self.tickets),
            self.client, self.history,
            context=ProcessContext(self.clock, self.metrics),
            providers=self._provider_of, notices=self.sender,
        )  # fmt: skip
        self.supervisor = Supervisor(controllers.services(), clock=self.clock, rng=self.rng)
        await self.supervisor.run()

    def _provider_of(self, pool: NodePool) -> MachineProvider:
        own = self.provider_makers.get(pool.metadata.name)
        return own() if own is not None else provider_of(pool, simulated=self.cloud)

    def crashes(self) -> list[str]:
        """Return which services have crashed, and of what."""
        assert self.supervisor is not None
        services = self.supervisor.health().services
        return [f"{each.name}: {each.last_error}" for each in services if each.crash_count]

    async def kill(self) -> None:
        """End the controllers at once and start them again."""
        self.controller.cancel()
        await asyncio.sleep(1)
        self.controller = self.group.create_task(self.control())

    async def pool(self, name: str = "h100", **spec: Any) -> None:
        template = spec.pop("template", {"resources": {"cpu": "96", "memory": "1Ti",
                                                       "nvidia.com/gpu": "8"}})  # fmt: skip
        body = {
            "metadata": {"name": name},
            "spec": {"provider": {"type": "Simulated"}, "template": template, "max": 64,
                     "mode": "Active", **spec},
        }  # fmt: skip
        await self.client.create(NODE_POOLS, body)

    async def resize(self, hold: int | None, name: str = "h100") -> None:
        """Change how many nodes a pool is to keep, idle or not."""
        await self.client.patch(NODE_POOLS, name, {"spec": {"hold": hold}})

    def announce(self, id_: str, window: str, *, may_begin: bool = False) -> None:
        """Have the cloud announce maintenance of a machine, as START/END; "": none."""
        machine = self.cloud.machines[id_]
        machine.instance = replace(machine.instance, maintenance=window, may_begin=may_begin)

    async def submit(self, name: str, *, seconds: int = 3600, **spec: Any) -> None:
        job = to_wire(make_job(name, **spec))["spec"]
        for role in job["roles"]:
            note = {"fairlead.dev/simulate-seconds": str(seconds)}
            role["template"].setdefault("metadata", {})["annotations"] = note
        await self.client.create(JOBS, {"metadata": {"name": name}, "spec": job},
                                 namespace="default")  # fmt: skip

    async def job(self, name: str) -> Job:
        return await self.client.get(JOBS, name, namespace="default")

    async def nodes(self) -> list[Node]:
        return list((await self.client.list(NODES)).items)

    async def get_pool(self, name: str = "h100") -> NodePool:
        return await self.client.get(NODE_POOLS, name)

    async def fleet(self) -> Fleet:
        return await self.client.get(FLEETS, FLEET_NAME)

    async def decisions(self, **query: Any) -> list[FleetRecord]:
        """Return the recorded decisions, oldest first."""
        return list(await decisions_of(self.history, FleetQuery(limit=1_000, **query)))[::-1]

    async def until(self, holds: Callable[[], Any], seconds: float) -> float:
        """Wait until an async condition holds; return how long it took, within a hundredth."""
        started, waited = self.clock.now(), 0.0
        while not await holds():
            waited = self.clock.now() - started
            assert waited < seconds, "it never holds"
            await asyncio.sleep(max(1.0, waited / 100))
        return self.clock.now() - started
