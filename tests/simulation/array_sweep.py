"""One long array in a rough world, with a person who cancels an element now and then."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from fairlead.api.resources import EVENTS, JOB_ARRAYS, JOBS
from fairlead.sim.setup.faults import ROUGH
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World

#: Jobs of elements that wait, and jobs that have ended: the policy's window_max and ended_max.
WINDOW_MAX, ENDED_MAX = 100, 400
#: From the end of an element until the next one runs in its place.
_TURN_SECONDS = 6.0

ROUGH_WORLD = WorldOptions(
    nodes=8,
    workload=WorkloadOptions(10, 3_600.0, members_max=2, failing_share=0.1, array_share=0.8,
                             elements_max=40, run_seconds_max=900.0),
    faults=ROUGH,
    calls_between_kills_mean=100.0,
    steps_between_crashes_mean=40.0,
    node_failures_per_day=120.0,
    user_acts_per_day=800.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SweepSize:
    """How long the array is, and how wide it runs. Its elements have one GPU of eight of a node."""

    elements: int
    at_once: int = 60
    run_seconds: float = 30.0
    nodes: int = 8
    node_failures_per_day: float = 120.0
    node_repair_seconds: float = 3_600.0

    @property
    def seconds(self) -> float:
        """Twice what the array takes where nothing fails; until then there are faults."""
        return 2 * self.elements * max(self.run_seconds, _TURN_SECONDS) / self.at_once

    @property
    def objects_max(self) -> int:
        """The most objects of the array: the Jobs of its window, each with a pod.

        And what an earlier leader asked for that arrives late, the array, and a lease.
        """
        return 2 * (self.at_once + ENDED_MAX) + WINDOW_MAX + 100

    @property
    def options(self) -> WorldOptions:
        """The world around it: the longer the array, the rarer a kill, about 20 and more."""
        return replace(
            ROUGH_WORLD, nodes=self.nodes, workload=WorkloadOptions(2, self.seconds),
            user_acts_per_day=0.0, node_failures_per_day=self.node_failures_per_day,
            node_repair_seconds=self.node_repair_seconds,
            calls_between_kills_mean=max(40.0, self.elements / 20),
            steps_between_crashes_mean=max(40.0, self.elements / 50),
        )  # fmt: skip


class Sweep(World):
    """The world. `objects_max` is the most objects in its store beyond those before the array.

    Without Events: they tell of what goes wrong, as much as that is, and go after an hour.
    """

    def __init__(self, size: SweepSize, seed: int) -> None:
        template = job_body("x", members=1, gpus=1, run_seconds=size.run_seconds)["spec"]
        indices = f"0-{size.elements - 1}"
        spec = {"indices": indices, "parallelism": size.at_once, "template": template}
        swept = {**job_body("sweep", members=1, gpus=1, run_seconds=1), "kind": "JobArray"}
        last = job_body("last", members=1, gpus=1, run_seconds=1)
        arrivals = [
            Arrival(0.0, "sweep", {**swept, "spec": spec}),
            Arrival(size.seconds, "last", last),  # until then there are faults
        ]
        super().__init__(size.options, seed, arrivals=arrivals, on_writes=self._count)
        self.size = size
        self.cancelled: set[str] = set()
        self.set_bytes_max = self.objects_max = 0
        self._objects_before: int | None = None

    def _count(self) -> None:
        count = self._store.count
        kinds = [kind for kind in self._store.table_names() if kind != EVENTS.name]
        if self._objects_before is None:
            self._objects_before = sum(map(count, kinds)) if JOB_ARRAYS.name in kinds else None
        else:
            self.objects_max = max(self.objects_max, sum(map(count, kinds)) - self._objects_before)

    async def _look(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super()._look())
            rng = random.Random(f"{self.seed}/person")
            while True:
                seconds = max(self.size.run_seconds, _TURN_SECONDS)
                await asyncio.sleep(rng.expovariate(self.size.at_once / seconds / 100))
                status = (await self.client.get(JOB_ARRAYS, "sweep", namespace="default")).status
                self.set_bytes_max = max(
                    self.set_bytes_max, len(status.finished), len(status.failed)
                )
                jobs = (await self.client.list(JOBS, namespace="default")).items
                names = [job.metadata.name for job in jobs if not job.is_finished]
                if names:
                    name = rng.choice(names)
                    cancel = {"spec": {"cancel": True}}
                    await self.client.patch(JOBS, name, cancel, namespace="default")
                    self.cancelled.add(name)
