"""The controllers of one process share a world, which a fault of the scheduler does not outlive."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairlead.api import crd
from fairlead.api.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.resources import CRDS, JOBS, NODES
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers, Policies
from fairlead.controllers import scheduler
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import Service as ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.metrics import Metrics
from fairlead.runtime.supervisor import Service, Supervisor
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_node


def test_a_scheduler_that_crashed_decides_on_a_cluster_state_that_was_built_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        clock, rng = LoopClock(EPOCH), random.Random(2)
        service = ApiService(
            Store.open(None), Registry.with_builtins(), clock,
            ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
        )  # fmt: skip
        await service.bootstrap()
        client = InProcessClient(service)
        for manifest in crd.manifests():
            await client.create(CRDS, manifest)
        await client.create(NODES, {"metadata": {"name": "n0"}})
        await client.patch(
            NODES, "n0", {"status": to_wire(make_node("n0"))["status"]}, subresource="status"
        )
        controllers = Controllers(
            Policies(), client, MemoryHistory(),
            context=ProcessContext(
                clock, Metrics(CollectorRegistry(), version="test", stopwatch=clock.now)
            ),
        )  # fmt: skip
        supervisor = Supervisor(
            [Service("api", service.run), *controllers.services()], clock=clock, rng=rng
        )

        async def submit(name: str) -> Job:
            body = {"metadata": {"name": name}, "spec": to_wire(make_job(name, gpus=4))["spec"]}
            await client.create(JOBS, body, namespace="default")
            await asyncio.sleep(30)
            return await client.get(JOBS, name, namespace="default")

        def crash(state: Any, *_: Any, **__: Any) -> None:
            state.cluster.table.used += 1_000_000  # half changed
            raise RecursionError("planted")

        async with asyncio.TaskGroup() as group:
            task = group.create_task(supervisor.run())
            assert (await submit("first")).status.placement is not None
            before = controllers.world.state
            with monkeypatch.context() as patched:
                patched.setattr(scheduler, "decide", crash)
                assert (await submit("second")).status.placement is None
            await asyncio.sleep(600)
            second = await client.get(JOBS, "second", namespace="default")
            assert second.status.placement is not None
            assert controllers.world.state is not before
            crashes = {s.name: s.crash_count for s in supervisor.health().services if s.crash_count}
            assert list(crashes) == ["scheduler"]
            task.cancel()

    run(main())
