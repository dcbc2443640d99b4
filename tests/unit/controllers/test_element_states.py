"""Jobs are looked at again when their array says other of them, and not for counts alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta, OwnerReference, to_wire
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.controllers.elements.element_states import ElementStates
from fairlead.decide.jobs.view import DependencyState, ElementState
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job
from fairlead.testing.fake_client import FakeClient

ELEMENT, AFTER = ("default", "sweep-3"), ("default", "after")
#: What is written on an array in turn, whether jobs are looked at for it, and what it then says of
#: the element, and of the one that another job waits for.
WRITES: list[tuple[dict[str, Any], bool, ElementState, DependencyState]] = [
    ({"elements": {"running": 4}, "number": 7, "state": "Running"}, False,
     ElementState.OPEN, DependencyState.UNFINISHED),
    ({"elements": {"running": 5}}, False, ElementState.OPEN, DependencyState.UNFINISHED),
    ({"finished": "5"}, True, ElementState.OPEN, DependencyState.SUCCEEDED),
    ({"failed": "5"}, True, ElementState.OPEN, DependencyState.FAILED),
    ({"conditions": [{"type": "FailureTarget", "status": "True", "reason": "x"}]}, False,
     ElementState.OPEN, DependencyState.FAILED),
    ({"finished": "3,5"}, True, ElementState.ENDED, DependencyState.FAILED),
    ({"conditions": [{"type": "Failed", "status": "True", "reason": "x"}]}, True,
     ElementState.ENDED, DependencyState.FAILED),
]  # fmt: skip


def jobs_of(uid: str) -> tuple[Job, Job]:
    """Return an element that is not admitted, and a job that starts after another element."""
    owner = OwnerReference(names.API_VERSION, "JobArray", "sweep", uid, controller=True)
    element = make_job("sweep-3", attempt=0)
    metadata = ObjectMeta("sweep-3", namespace="default", owner_references=(owner,))
    waits = (After("sweep", elements="5"),)
    return Job(metadata, element.spec), make_job("after", attempt=0, spec={"after": waits})


def test_jobs_are_looked_at_when_their_array_says_other_of_them_and_not_for_counts() -> None:
    async def play() -> None:
        client, marked = FakeClient(), list[ObjectKey]()
        arrays = Mirror(client, JOB_ARRAYS, clock=LoopClock(EPOCH), rng=random.Random(1))
        jobs = Mirror(client, JOBS, clock=LoopClock(EPOCH), rng=random.Random(1))
        states = ElementStates(arrays, jobs, mark=marked.append, reader=None)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(arrays.run())
            spec = {"indices": "0-9", "template": to_wire(make_job("x").spec)}
            body = {"metadata": {"name": "sweep"}, "spec": spec}
            made = await client.create(JOB_ARRAYS, body, namespace="default")
            element, after = jobs_of(made.metadata.uid)
            states.put(ELEMENT, None, element)
            states.put(AFTER, None, after)
            await asyncio.sleep(1)
            assert sorted(marked) == [AFTER, ELEMENT]  # the array has come
            for status, is_seen, of_element, of_other in WRITES:
                marked.clear()
                await client.patch(
                    JOB_ARRAYS, "sweep", {"status": status}, namespace="default",
                    subresource="status",
                )  # fmt: skip
                await asyncio.sleep(1)
                assert sorted(marked) == ([AFTER, ELEMENT] if is_seen else []), status
                assert states.state(element) is of_element, status
                assert states.dependency("default", after.spec.after[0]) is of_other, status
            marked.clear()
            await client.delete(JOB_ARRAYS, "sweep", namespace="default")
            await asyncio.sleep(1)
            assert sorted(marked) == [AFTER, ELEMENT]
            assert states.state(element) is ElementState.MISSING
            task.cancel()

    run(play())


@pytest.mark.parametrize("name", ["sweep", "sweep-10", "other-3", "sweep-03"])
def test_a_job_that_is_no_element_of_its_array_never_runs(name: str) -> None:
    async def play() -> None:
        client = FakeClient()
        arrays = Mirror(client, JOB_ARRAYS, clock=LoopClock(EPOCH), rng=random.Random(1))
        jobs = Mirror(client, JOBS, clock=LoopClock(EPOCH), rng=random.Random(1))
        states = ElementStates(arrays, jobs, mark=lambda _: None, reader=None)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(arrays.run())
            spec = {"indices": "0-9", "template": to_wire(make_job("x").spec)}
            body = {"metadata": {"name": "sweep"}, "spec": spec}
            made = await client.create(JOB_ARRAYS, body, namespace="default")
            await asyncio.sleep(1)
            element, _ = jobs_of(made.metadata.uid)
            assert states.state(element) is ElementState.OPEN
            owners = element.metadata.owner_references
            metadata = ObjectMeta(name, namespace="default", owner_references=owners)
            assert states.state(Job(metadata, element.spec)) is ElementState.ENDED
            task.cancel()

    run(play())
