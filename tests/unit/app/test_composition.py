"""The embedded cluster, the operator and the simulator compose the same controllers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fairlead.api import crd
from fairlead.api.core import Lease
from fairlead.api.resources import CRDS, NAMESPACES
from fairlead.app.controllers import Controllers, Policies
from fairlead.app.embedded import Cluster
from fairlead.app.operator import Operator, OperatorSettings
from fairlead.app.replica import ReplicaSettings
from fairlead.app.settings import Asked, settle
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.pinning import Binding
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import Service as ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.leader import Term
from fairlead.runtime.logs import SILENT
from fairlead.runtime.loop import ControllerLoop
from fairlead.sim.faults import PERFECT
from fairlead.sim.workload import WorkloadOptions
from fairlead.sim.world import simulate
from fairlead.sim.world_options import WorldOptions
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
    settings = settle(directory, Asked(listen="127.0.0.1:0"))
    cluster = Cluster(settings, "token", clock=SystemClock(), log=SILENT, say=lambda _: None)
    async with asyncio.timeout(60):
        await cluster.run(lambda _: cluster.stop())


async def run_operator(composed: Composed) -> None:
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
    policies = Policies(JobsPolicy(binding=Binding.DIRECT))
    settings = OperatorSettings(ReplicaSettings("one", policies=policies), "127.0.0.1", 0)
    operator = Operator(settings, client, MemoryHistory(), clock=SystemClock(), log=SILENT)
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
    assert simulated_embedded.controllers == embedded.controllers
    mirrors = {"mirror-priorityclasses", "mirror-teams"}  # those that each replica runs
    assert {*simulated_embedded.services, *mirrors} == {*embedded.services}
    assert {"scheduler", "jobs", "adoption", "teams", "fleet", "doctor"} == set(
        operator.controllers
    )
    assert {"scheduler", "jobs", "teams", "fleet", "doctor"} == set(embedded.controllers)


async def test_a_leader_whose_controllers_have_not_started_is_not_ready() -> None:
    settings = OperatorSettings(ReplicaSettings("one"), "127.0.0.1", 0)
    operator = Operator(settings, FakeClient(), MemoryHistory(), clock=SystemClock(), log=SILENT)
    request: Any = None
    operator.elector._note(Lease())
    assert (await operator._readyz(request)).status == 200
    operator.elector.term = Term(Lease(), float("inf"))
    assert (await operator._readyz(request)).status == 503
