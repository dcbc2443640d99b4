"""The embedded cluster, the operator and the simulator compose the same controllers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairlead.api.kubernetes.core import Lease
from fairlead.api.resources import CRDS, NAMESPACES, NODES, PODS
from fairlead.api.schema import crd
from fairlead.app.configuration.policies import Policies
from fairlead.app.configuration.settings import UpFlags, settle
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.app.local.embedded import Cluster
from fairlead.app.local.nodes import Nodes
from fairlead.app.operator import OperatorSettings, ReplicaRun
from fairlead.app.replica import Replica, ReplicaSettings
from fairlead.controllers.records.idle import IdleController
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.pinning import Binding
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.own_controllers.device_allocator import DeviceAllocator
from fairlead.embedded.own_controllers.volume_binder import VolumeBinder
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.leading.leader import LeaderTerm
from fairlead.runtime.logs import SILENT
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import simulate
from fairlead.testing.fake_client import FakeClient

CALM = WorldOptions(
    nodes=1, workload=WorkloadOptions(1, 60.0, members_max=1, run_seconds_max=10.0),
    faults=PERFECT, calls_between_kills_mean=0.0, steps_between_crashes_mean=0.0,
    node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0, replicas=1,
)  # fmt: skip


@dataclass
class Composed:
    """What was composed: services by name, and each controller with its mirrors and options."""

    services: list[str] = field(default_factory=list)
    controllers: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Composed:
    """Everything that is composed from now on is noted here."""
    seen = Composed()
    services, begin = Controllers.services, ControllerLoop.__init__

    def noted(controllers: Controllers) -> Any:
        made = services(controllers)
        seen.services[:] = [service.name for service in made]
        return made

    def made(loop: Any, controller: Any, *, options: Any = None, **rest: Any) -> None:
        mirrors = [(mirror.resource.plural, mirror.options) for mirror in controller.mirrors]
        seen.controllers[controller.name] = (type(controller), mirrors, options)
        begin(loop, controller, options=options, **rest)

    monkeypatch.setattr(Controllers, "services", noted)
    monkeypatch.setattr(ControllerLoop, "__init__", made)
    return seen


def taken(composed: Composed) -> Composed:
    """Return what was noted, and begin a new note."""
    found = Composed(list(composed.services), dict(composed.controllers))
    composed.services.clear()
    composed.controllers.clear()
    return found


async def run_embedded(directory: Any) -> None:
    settings = settle(directory, UpFlags(listen="127.0.0.1:0"))
    cluster = Cluster(settings, "token", clock=SystemClock(), log=SILENT, say=lambda _: None)
    async with asyncio.timeout(60):
        await cluster.run(lambda _: cluster.stop())


@pytest.mark.parametrize("opens", [False, True])
async def test_a_cluster_that_is_stopped_during_its_start_ends_without_being_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    settings = settle(tmp_path, UpFlags(listen="127.0.0.1:0"))
    cluster = Cluster(settings, "token", clock=SystemClock(), log=SILENT, say=lambda _: None)
    if opens:  # in the middle of it
        monkeypatch.setattr(ApiService, "bootstrap", _stopping(cluster, ApiService.bootstrap))
    else:
        cluster.stop()
    announced: list[object] = []
    async with asyncio.timeout(30):
        await cluster.run(announced.append)
    assert announced == []


def _stopping(cluster: Cluster, call: Callable[..., Awaitable[None]]) -> Any:
    async def stop_and_call(*arguments: Any) -> None:
        cluster.stop()
        await call(*arguments)

    return stop_and_call


async def a_service() -> ApiService:
    """Return an API that has what an installation makes."""
    registry = Registry.with_builtins()
    registry.add(ResourceInfo("", "v1", "resourcequotas", "ResourceQuota"))
    numbers = random.Random(1)
    service = ApiService(
        Store.open(None), registry, SystemClock(),
        ids=lambda: f"{numbers.getrandbits(128):032x}", rng=numbers,
    )  # fmt: skip
    await service.bootstrap()
    client = InProcessClient(service)
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    await client.create(NAMESPACES, {"metadata": {"name": "fairlead-system"}})
    return service


async def run_operator(composed: Composed) -> None:
    service = await a_service()
    client = InProcessClient(service)
    policies = Policies(JobsPolicy(binding=Binding.DIRECT))
    settings = OperatorSettings(ReplicaSettings("one", policies=policies), "127.0.0.1", 0)
    operator = ReplicaRun(settings, client, MemoryHistory(), clock=SystemClock(), log=SILENT)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(operator.run(lambda _: None))
        serving = group.create_task(service.run())
        while len(composed.controllers) < 6:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.05)
        operator.stop()
        await running
        serving.cancel()


def test_all_three_compose_the_same_controllers(composed: Composed, tmp_path: Any) -> None:
    asyncio.run(run_embedded(tmp_path / "data"))
    embedded = taken(composed)
    asyncio.run(run_operator(composed))
    operator = taken(composed)
    simulate(CALM, seed=1)
    simulated = taken(composed)
    simulate(replace(CALM, binding=None), seed=1)
    simulated_embedded = taken(composed)
    assert simulated == operator
    # What a real cluster has; the first in worlds with volumes.
    assert embedded.controllers.pop("volumes")[0] is VolumeBinder
    assert embedded.controllers.pop("devices")[0] is DeviceAllocator
    # Where nodes measure use, as simulated ones of profiles with `use` do.
    assert embedded.controllers.pop("idle")[0] is IdleController
    assert simulated_embedded.controllers == embedded.controllers
    mirrors = {"mirror-priorityclasses", "mirror-teams"}  # those that each replica runs
    assert {*simulated_embedded.services, *mirrors} == {*embedded.services}
    everywhere = {
        "scheduler", "jobs", "arrays", "teams", "fleet", "images", "doctor", "unreachable-nodes",
    }  # fmt: skip
    assert {*everywhere, "adoption"} == set(operator.controllers)
    assert everywhere == set(embedded.controllers)


async def test_a_replica_shows_the_decisions_of_its_own_term_alone() -> None:
    service = await a_service()
    settings = ReplicaSettings("one", policies=Policies(JobsPolicy(binding=Binding.DIRECT)))
    context = ProcessContext(SystemClock(), Metrics(CollectorRegistry(), version="test"))
    replica = Replica(settings, InProcessClient(service), MemoryHistory(), context=context)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        serving = group.create_task(service.run())
        leading, *others = (group.create_task(each.start()) for each in replica.services())
        assert replica.decisions is None
        while replica.decisions is None:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.05)
        assert replica.controllers is not None
        leading.cancel()
        await asyncio.wait([leading])
        assert replica.decisions is None
        assert replica.controllers is None
        for task in (serving, *others):
            task.cancel()


async def test_virtual_nodes_are_not_ready_again_before_they_have_started_again(
    tmp_path: Path,
) -> None:
    client, clock = FakeClient(), SystemClock()
    pods, nodes = (
        Mirror(client, kind, clock=clock, rng=random.Random(1)) for kind in (PODS, NODES)
    )
    settings = settle(tmp_path, UpFlags(listen="127.0.0.1:0"))
    composed = Nodes(settings, client, clock, pods=pods, nodes=nodes, log=SILENT)
    virtual = composed.services()[0]
    is_ready = virtual.is_ready
    assert virtual.name == "virtual-nodes"
    assert is_ready is not None
    running = [asyncio.create_task(mirror.run()) for mirror in (pods, nodes)]
    for _ in range(2):
        service = asyncio.create_task(virtual.start())
        await asyncio.sleep(0)
        assert not is_ready()
        async with asyncio.timeout(30):
            while not is_ready():  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.01)
        service.cancel()
        await asyncio.wait([service])
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def test_a_leader_whose_controllers_have_not_started_is_not_ready() -> None:
    settings = OperatorSettings(ReplicaSettings("one"), "127.0.0.1", 0)
    operator = ReplicaRun(settings, FakeClient(), MemoryHistory(), clock=SystemClock(), log=SILENT)
    request: Any = None
    operator.elector._note(Lease())
    assert (await operator._readyz(request)).status == 200
    operator.elector.term = LeaderTerm(Lease(), float("inf"))
    assert (await operator._readyz(request)).status == 503
