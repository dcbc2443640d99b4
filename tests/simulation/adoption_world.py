"""Simulated worlds that a test drives by hand: it makes the groups of another tool and breaks nodes
itself, and looks at what becomes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.profile import NodeShape, load_profile
from fairlead.sim.actors.training_operator import GateChecker
from fairlead.sim.observers.observer import Observer
from fairlead.sim.promises.checkers import Checkers
from fairlead.sim.setup.faults import PERFECT, FaultRates
from fairlead.sim.setup.workload import Arrival, WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World

SHAPE = NodeShape(resources={"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"})
FAULTS = FaultRates(
    conflict=0.02, refused=0.02, answer_lost=0.01, latency_seconds_mean=0.005,
    watch_life_seconds_mean=600.0, watch_expired=0.1, watch_lag_seconds_max=0.2,
)  # fmt: skip
START_SECONDS = 3.0


class _JobsOnly(Checkers):
    """Checks no places: what late writes break is put right, not excluded."""

    def pod(self, new: Pod | None, old: Pod | None, now: float) -> None:
        self.checked += 1

    def node(self, new: Node | None, old: Node | None, now: float) -> None:
        self.checked += 1


class AdoptionWorld(World, Observer):
    """`async with running(world)` runs it; nothing happens by itself but the faults."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        *,
        calls_between_kills_mean: float = 0.0,
        steps_between_crashes_mean: float = 0.0,
        faults: FaultRates = PERFECT,
        checks_places: bool = True,
        refuses: Collection[str] = (),
    ) -> None:
        """`refuses`: nodes that the stock scheduler refuses for a reason unknown to our planner."""
        options = WorldOptions(
            nodes=nodes, workload=WorkloadOptions(0, 0.0), faults=faults, lease_seconds=15.0,
            profile=replace(load_profile("instant"), node=SHAPE),
            calls_between_kills_mean=calls_between_kills_mean,
            steps_between_crashes_mean=steps_between_crashes_mean, down_seconds_max=10.0,
            adoption=AdoptionPolicy(bind_patience_seconds=5.0, vacant_seconds_max=300.0),
        )  # fmt: skip
        super().__init__(options, seed, observers=[self])
        if not checks_places:
            self.checkers = _JobsOnly()
            self._observers = [o for o in self._observers if not isinstance(o, GateChecker)]
        self.jobs: dict[ObjectKey, Job] = {}
        self.scheduler.refuse(refuses)

    @property
    def pods(self) -> dict[ObjectKey, Pod]:
        """The pods of groups."""
        return self.tool.pods

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        if new is None:
            self.jobs.pop(key, None)
        else:
            self.jobs[key] = new

    async def _story(self, arrivals: Sequence[Arrival]) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def running(world: AdoptionWorld) -> AsyncIterator[Any]:
    """Run everything for the length of the block."""
    async with asyncio.TaskGroup() as group:
        group.create_task(world.run())
        await asyncio.sleep(START_SECONDS)
        yield world
        world.stop()
