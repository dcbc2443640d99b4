"""Jobs that claim to be elements of arrays, by somebody whom no admission stops: no element of an
array is lost, succeeds twice or is counted wrongly, whatever such jobs say of themselves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.simulation.embedded_world import NAMESPACE, EmbeddedWorld, embedded_world
from tests.simulation.test_arrays import Watcher, jobs, submit, template, until

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOB_ARRAYS, JOBS, NAMESPACES, PODS
from fairlead.api.status import ApiError, Invalid, NotFound
from fairlead.runtime.watching.mirror import Change
from fairlead.runtime.watching.reader import follow
from fairlead.sim.loop import run


def owner(array: JobArray, **changed: Any) -> dict[str, Any]:
    meta = array.metadata
    reference = {
        "apiVersion": names.API_VERSION, "kind": "JobArray", "name": meta.name, "uid": meta.uid,
        "controller": True,
    }  # fmt: skip
    return {**reference, **changed}


async def forge(
    world: EmbeddedWorld, name: str, *owners: dict[str, Any], space: str = NAMESPACE, **meta: Any
) -> str:
    """Create a job that says what it likes; return its uid."""
    metadata = {"name": name, "ownerReferences": list(owners), **meta}
    body = {"metadata": metadata, "spec": template(seconds=1)}
    return (await world.client.create(JOBS, body, namespace=space)).metadata.uid


async def pods_of(world: EmbeddedWorld, uid: str, seconds: float, space: str) -> set[str]:
    """Return the pods of a job that are seen for so long."""
    seen, end = set[str](), world.clock.now() + seconds
    while world.clock.now() < end:
        for pod in (await world.client.list(PODS, namespace=space)).items:
            if pod.metadata.labels.get(names.JOB_UID) == uid:
                seen.add(pod.metadata.name)
        await asyncio.sleep(0.2)
    return seen


@pytest.mark.parametrize("released", [{"finalizers": None}, {"ownerReferences": None}])
def test_an_element_whose_job_is_taken_out_of_the_array_at_its_end_does_not_run_again(
    released: dict[str, None],
) -> None:
    """The job is gone, or of nobody, before its end is in the status of the array."""

    async def play() -> None:
        async with embedded_world(1) as world:
            watcher = Watcher(world)
            await submit(world, "0-19", parallelism=4, template=template(seconds=0.2))
            ended: asyncio.Queue[str] = asyncio.Queue()
            taken_out: list[str] = []

            def note(change: Change[Job]) -> None:
                was_over = change.old is not None and change.old.is_finished
                if change.new is not None and change.new.is_finished and not was_over:
                    ended.put_nowait(change.key[1])

            async def take_out() -> None:
                while True:
                    name = await ended.get()
                    for write in (_patch, _delete):
                        try:
                            await write(world, name, released)
                        except NotFound:
                            continue
                    taken_out.append(name)

            follow(world.controllers.mirrors.jobs, note, None)
            taking = asyncio.create_task(take_out())
            done = await until(world, lambda a: a.is_finished)
            assert len(taken_out) >= 10
            assert (done.status.elements.succeeded, done.status.finished) == (20, "0-19")
            assert {len(uids) for uids in watcher.succeeded.values()} == {1}
            taking.cancel()

    run(play())


async def _patch(world: EmbeddedWorld, name: str, released: dict[str, None]) -> None:
    await world.client.patch(JOBS, name, {"metadata": released}, namespace=NAMESPACE)


async def _delete(world: EmbeddedWorld, name: str, released: dict[str, None]) -> None:
    await world.client.delete(JOBS, name, namespace=NAMESPACE)


def test_a_job_of_an_array_that_is_gone_never_runs_and_goes_too() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-3", parallelism=1)
            first = await until(world, lambda a: a.status.elements.running == 1)
            await world.client.delete(JOB_ARRAYS, "sweep", namespace=NAMESPACE)
            await submit(world, "0-3", parallelism=1, template=template(seconds=5))
            uid = await forge(world, "sweep-3", owner(first))
            assert await pods_of(world, uid, 4.0, NAMESPACE) == set()
            done = await until(world, lambda a: a.is_finished)
            assert (done.status.elements.succeeded, done.metadata.uid != first.metadata.uid) == (
                4, True,
            )  # fmt: skip
            assert uid not in [job.metadata.uid for job in await jobs(world)]

    run(play())


def test_an_index_that_the_array_does_not_have_never_runs_and_is_not_counted() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-9:3", parallelism=1, template=template(seconds=5))
            going = await until(world, lambda a: a.status.elements.running == 1)
            for name in ("sweep-1", "sweep-12", "sweep-4000001", "sweep-09", "sweep-x", "other-0"):
                uid = await forge(world, name, owner(going))
                assert await pods_of(world, uid, 1.0, NAMESPACE) == set(), name
            done = await until(world, lambda a: a.is_finished)
            counts = done.status.elements
            assert (counts.total, counts.succeeded, done.status.finished) == (4, 4, "0-9")

    run(play())


def test_labels_and_marks_alone_make_no_element() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-3", parallelism=1, template=template(seconds=5))
            going = await until(world, lambda a: a.status.elements.running == 1)
            labels = {names.ARRAY: "sweep", names.ARRAY_INDEX: "2"}
            marks = {names.HELD_BY_ARRAY: "true"}
            aside = owner(going, controller=False)
            await forge(world, "mine", labels=labels, annotations=marks)
            await forge(world, "beside-2", aside, labels=labels, annotations=marks)
            for name in ("mine", "beside-2"):
                await world.patch(name, suspend=True)
            for suspend in (True, False):
                change = {"spec": {"suspend": suspend}}
                await world.client.patch(JOB_ARRAYS, "sweep", change, namespace=NAMESPACE)
                await asyncio.sleep(2)
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 4
            assert [(await world.job(name)).spec.suspend for name in ("mine", "beside-2")] == [
                True, True,
            ]  # fmt: skip

    run(play())


def test_an_array_of_another_namespace_has_no_element_here() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await world.client.create(NAMESPACES, {"metadata": {"name": "mallory"}})
            await submit(world, "0-3", parallelism=1, template=template(seconds=5))
            going = await until(world, lambda a: a.status.elements.running == 1)
            own = {"metadata": {"name": "sweep"},
                   "spec": {"indices": "0-3", "template": template(seconds=5)}}  # fmt: skip
            for has_namesake in (False, True):
                if has_namesake:
                    await world.client.create(JOB_ARRAYS, own, namespace="mallory")
                    await asyncio.sleep(2)
                uid = await forge(world, "sweep-9", owner(going), space="mallory")
                assert await pods_of(world, uid, 2.0, "mallory") == set()
                with pytest.raises(NotFound):
                    await world.client.get(JOBS, "sweep-9", namespace="mallory")
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 4

    run(play())


def test_one_name_is_one_job_and_a_job_has_one_controller() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-3", parallelism=1)
            going = await until(world, lambda a: a.status.elements.running == 1)
            with pytest.raises(ApiError, match="already exists"):
                await forge(world, "sweep-0", owner(going))
            with pytest.raises(Invalid, match="controller"):
                await forge(world, "sweep-2", owner(going), owner(going, name="b", uid="u"))

    run(play())
