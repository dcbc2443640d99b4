"""An array is looked at again when its jobs change in what a decision on it could act on."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from fairlead.api import names
from fairlead.api.meta import OwnerReference, to_wire
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.values.indices import parse_indices
from fairlead.controllers.elements.array_index import ArrayIndex
from fairlead.decide.arrays import ElementJobs
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_placement
from fairlead.testing.fake_client import FakeClient

SWEEP = ("default", "sweep")


def condition(type_: str, status: str = "True", reason: str = "x") -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason}


ADMITTED = condition("Admitted")
#: What happens to a job in turn, and whether its array is looked at for it.
CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({"status": {"conditions": [condition("Admitted", "False", "Dependency")]}}, True),
    ({"status": {"conditions": [ADMITTED], "state": "Waiting"}}, True),
    ({"status": {"verdict": {"outcome": "Waiting", "reason": "InsufficientCapacity"}}}, True),
    ({"status": {"placement": to_wire(make_placement(["n0"])), "state": "Starting"}}, True),
    ({"status": {"conditions": [ADMITTED, condition("Running")], "state": "Running"}}, False),
    ({"status": {"members": {"total": 1, "running": 1}}}, False),
    ({"status": {"progress": {"step": 7, "at": "2026-01-01T00:00:00.000000Z"}}}, False),
    ({"status": {"run": {"metrics": {"loss": {"last": 0.5}}}}}, True),
    ({"metadata": {"annotations": {names.HELD_BY_ARRAY: "true"}}}, True),
    ({"spec": {"suspend": True}}, True),
    ({"status": {"conditions": [ADMITTED, condition("Succeeded")]}}, True),
    ({"metadata": {"finalizers": ["example.com/kept"]}}, False),
]


def sorted_as(jobs: ElementJobs) -> tuple[object, ...]:
    return jobs.all, jobs.ended, jobs.waiting, jobs.running, jobs.held


def test_a_job_that_reports_how_it_gets_on_is_kept_and_is_no_reason_to_decide() -> None:
    async def play() -> None:
        client, clock, marked = FakeClient(), LoopClock(EPOCH), list[ObjectKey]()
        arrays = Mirror(client, JOB_ARRAYS, clock=clock, rng=random.Random(1))
        jobs = Mirror(client, JOBS, clock=clock, rng=random.Random(1))
        index = ArrayIndex(arrays, jobs, mark=marked.append, on_gone=lambda _: None, reader=None)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(mirror.run()) for mirror in (arrays, jobs)]
            spec = {"indices": "0-9", "template": to_wire(make_job("x").spec)}
            body = {"metadata": {"name": "sweep", "uid": "u"}, "spec": spec}
            array = await client.create(JOB_ARRAYS, body, namespace="default")
            indices = parse_indices(array.spec.indices)
            owner = OwnerReference(
                names.API_VERSION, "JobArray", "sweep", array.metadata.uid, controller=True
            )
            job = to_wire(make_job("sweep-3", attempt=0))
            job["metadata"] = {"name": "sweep-3", "ownerReferences": [to_wire(owner)]}
            await client.create(JOBS, job, namespace="default")
            await asyncio.sleep(1)
            for change, is_seen in CHANGES:
                marked.clear()
                part = "status" if "status" in change else ""
                latest = await client.patch(
                    JOBS, "sweep-3", change, namespace="default", subresource=part
                )
                await asyncio.sleep(1)
                assert marked == ([SWEEP] if is_seen else []), change
                kept = index.elements(array, indices, ())
                assert kept[3].metadata.resource_version == latest.metadata.resource_version
                assert sorted_as(kept) == sorted_as(ElementJobs({3: kept[3]}))
            kept = index.elements(array, indices, ())
            assert kept.ended == kept.held == {3}
            marked.clear()
            await client.delete(JOBS, "sweep-3", namespace="default")
            await client.patch(
                JOBS, "sweep-3", {"metadata": {"finalizers": None}}, namespace="default"
            )
            await asyncio.sleep(1)
            assert marked == [SWEEP]
            assert index.elements(array, indices, ()).ended == {3}  # no end is forgotten
            assert index.elements(array, indices, {3}).all == 0
            for task in tasks:
                task.cancel()

    run(play())
