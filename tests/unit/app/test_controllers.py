"""The controllers of one process share a world, which a fault of the scheduler does not outlive."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.names import TEAM
from fairlead.api.resources import CRDS, JOBS, NODES, TEAMS
from fairlead.api.schema import crd
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.controllers.placing import scheduler
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import SupervisedService, Supervisor
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_node


class Cluster:
    """An API with a node, and all controllers on it."""

    def __init__(self) -> None:
        self.clock, rng = LoopClock(EPOCH), random.Random(2)
        self.service = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
        )  # fmt: skip
        self.client = InProcessClient(self.service)
        self.metrics = Metrics(CollectorRegistry(), version="test", stopwatch=self.clock.now)
        self.controllers = Controllers(
            Policies(), self.client, MemoryHistory(),
            context=ProcessContext(self.clock, self.metrics),
        )  # fmt: skip
        self.supervisor = Supervisor(
            [SupervisedService("api", self.service.run), *self.controllers.services()],
            clock=self.clock, rng=rng,
        )  # fmt: skip

    @asynccontextmanager
    async def running(self, without: Collection[str] = ()) -> AsyncIterator[Cluster]:
        """Define all kinds but these and run."""
        await self.service.bootstrap()
        for manifest in crd.manifests():
            if manifest["spec"]["names"]["plural"] not in without:
                await self.client.create(CRDS, manifest)
        await self.client.create(NODES, {"metadata": {"name": "n0"}})
        status = {"status": to_wire(make_node("n0"))["status"]}
        await self.client.patch(NODES, "n0", status, subresource="status")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.supervisor.run())
            yield self
            task.cancel()

    async def submit(self, name: str) -> Job:
        body = {"metadata": {"name": name}, "spec": to_wire(make_job(name, gpus=4))["spec"]}
        await self.client.create(JOBS, body, namespace="default")
        await asyncio.sleep(30)
        return await self.client.get(JOBS, name, namespace="default")

    def crashes(self) -> list[str]:
        services = self.supervisor.health().services
        return [service.name for service in services if service.crash_count]


def test_a_scheduler_that_crashed_decides_on_a_cluster_state_that_was_built_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(state: Any, *_: Any, **__: Any) -> None:
        state.cluster.table.used += 1_000_000  # half changed
        raise RecursionError("planted")

    async def main() -> None:
        async with Cluster().running() as cluster:
            assert (await cluster.submit("first")).status.placement is not None
            before = cluster.controllers.world.state
            with monkeypatch.context() as patched:
                patched.setattr(scheduler, "decide", crash)
                assert (await cluster.submit("second")).status.placement is None
                assert cluster.controllers.decisions is None, "those of a scheduler that is gone"
            await asyncio.sleep(600)
            second = await cluster.client.get(JOBS, "second", namespace="default")
            assert second.status.placement is not None
            assert cluster.controllers.world.state is not before
            assert cluster.crashes() == ["scheduler"]
        assert "fairlead_mirror_lag_seconds{" not in cluster.metrics.render().decode()

    run(main())


OPTIONAL = ("teams", "nodepools", "fleets")


def test_a_cluster_without_the_kinds_that_it_may_lack_places_jobs_and_knows_them_once_defined() -> (
    None
):
    """Controllers that are upgraded before the definitions, or installed without them."""

    async def main() -> None:
        async with Cluster().running(without=OPTIONAL) as cluster:
            taint = {"key": TEAM, "effect": "NoSchedule", "value": "vision"}
            await cluster.client.create(NODES, {"metadata": {"name": "owned"},
                                                "spec": {"taints": [taint]}})  # fmt: skip
            assert (await cluster.submit("first")).status.placement is not None
            assert all(s.ready for s in cluster.supervisor.health().services)
            scraped = cluster.metrics.render().decode()
            for kind in ("Team", "NodePool", "Fleet"):
                assert f'fairlead_kind_undefined{{kind="{kind}"}} 1.0' in scraped
            owned = await cluster.client.get(NODES, "owned")
            assert [t.value for t in owned.spec.taints] == ["vision"], "nothing says it is nobody's"
            for manifest in crd.manifests():
                if manifest["spec"]["names"]["plural"] in OPTIONAL:
                    await cluster.client.create(CRDS, manifest)
            team = {"metadata": {"name": "speech"}, "spec": {"namespaces": ["default"]}}
            await cluster.client.create(TEAMS, team)
            await asyncio.sleep(60)
            found = await cluster.client.get(TEAMS, "speech")
            assert found.status.conditions[0].reason == "SharesMet"
            assert "fairlead_kind_undefined{" not in cluster.metrics.render().decode()
            owned = await cluster.client.get(NODES, "owned")
            assert owned.spec.taints == ()
            assert (await cluster.submit("second")).status.placement.team == "speech"
            assert cluster.crashes() == []

    run(main())
