"""Arrays on the embedded cluster under virtual time: every element ends, and none runs twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from tests.simulation.array_bodies import MIXED, OF_SCHEMA, WRONG_ARRAYS, has_paths, template
from tests.simulation.embedded_world import NAMESPACE, EmbeddedWorld, embedded_world

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, element_name
from fairlead.api.meta import find_condition
from fairlead.api.resources import JOB_ARRAYS, JOBS, PODS, PRIORITY_CLASSES
from fairlead.api.status import Invalid, NotFound
from fairlead.model.asks.requests import RequestReader
from fairlead.model.gang.gangs import gang_of
from fairlead.runtime.watching.mirror import Change
from fairlead.runtime.watching.reader import follow
from fairlead.sim.loop import run


async def submit(world: EmbeddedWorld, indices: str, *, name: str = "sweep", **spec: Any) -> None:
    spec = {"template": template(), **spec}
    body = {"metadata": {"name": name}, "spec": {"indices": indices, **spec}}
    await world.client.create(JOB_ARRAYS, body, namespace=NAMESPACE)


async def array(world: EmbeddedWorld, name: str = "sweep") -> JobArray:
    return await world.client.get(JOB_ARRAYS, name, namespace=NAMESPACE)


async def jobs(world: EmbeddedWorld) -> list[Job]:
    return list((await world.client.list(JOBS, namespace=NAMESPACE)).items)


async def until(
    world: EmbeddedWorld, test: Callable[[JobArray], bool], seconds: float = 600
) -> JobArray:
    end = world.clock.now() + seconds
    while world.clock.now() < end:
        found = await array(world)
        if test(found):
            return found
        await asyncio.sleep(0.5)
    raise AssertionError(f"after {seconds} s: {(await array(world)).status}")


class Watcher:
    """Follows the jobs: the successes of each by uid, and the most objects at a time."""

    def __init__(self, world: EmbeddedWorld) -> None:
        self.succeeded: dict[str, set[str]] = {}
        self.jobs_max = self.unfinished_max = self.placed_max = 0
        self._jobs: dict[str, Job] = {}
        follow(world.controllers.mirrors.jobs, self._changed, None)

    def _changed(self, change: Change[Job]) -> None:
        self._jobs.pop(change.key[1], None)
        if change.new is not None:
            self._jobs[change.key[1]] = change.new
            if change.new.status.state == "Succeeded":
                ended = self.succeeded.setdefault(change.key[1], set())
                ended.add(change.new.metadata.uid)
        going = [job for job in self._jobs.values() if not job.is_finished]
        placed = [job for job in going if job.status.placement is not None]
        self.jobs_max = max(self.jobs_max, len(self._jobs))
        self.unfinished_max = max(self.unfinished_max, len(going))
        self.placed_max = max(self.placed_max, len(placed))


def test_an_array_runs_every_element_once_within_its_window_and_leaves_one_object() -> None:
    async def play() -> None:
        async with embedded_world(4) as world:
            watcher = Watcher(world)
            await submit(world, "0-398:2", parallelism=20)
            done = await until(world, lambda a: a.is_finished)
            assert done.status.state == "Succeeded"
            assert done.status.finished == "0-398"
            counts = done.status.elements
            assert (counts.total, counts.succeeded, counts.failed) == (200, 200, 0)
            assert sorted(watcher.succeeded) == sorted(f"sweep-{i}" for i in range(0, 400, 2))
            assert all(len(uids) == 1 for uids in watcher.succeeded.values())
            assert watcher.placed_max == watcher.unfinished_max == 20
            assert watcher.jobs_max <= 20 + 100
            await asyncio.sleep(2)
            assert await jobs(world) == []

    run(play())


def test_a_short_element_costs_seven_requests_and_nothing_is_read() -> None:
    """Of the controllers; what the node writes of its pod is left out."""

    async def play() -> None:
        async with embedded_world(4) as world:
            await submit(world, "0-199", parallelism=20, template=template(seconds=1))
            before = world.client.asked.copy()
            await until(world, lambda a: a.is_finished)
            await asyncio.sleep(2)
            asked = world.client.asked - before
            each = {key: count / 200 for key, count in asked.items() if key[1] != "pods/status"}
            assert {key: count for key, count in each.items() if count >= 0.5} == {
                ("create", "jobs"): 1, ("create", "pods"): 1, ("delete", "pods"): 1,
                ("patch", "jobs/status"): 2, ("delete", "jobs"): 1, ("patch", "jobs"): 1,
            }  # fmt: skip
            assert ("get", "jobs") not in each

    run(play())


def test_an_array_of_a_million_is_one_object_until_it_starts_and_then_its_window() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            watcher = Watcher(world)
            await submit(
                world, "0-999999", parallelism=8, suspend=True, template=template(seconds=2)
            )
            held = await until(world, lambda a: a.status.state == "Held")
            assert held.status.elements.waiting == 1_000_000
            await asyncio.sleep(5)
            assert await jobs(world) == []
            await world.client.patch(
                JOB_ARRAYS, "sweep", {"spec": {"suspend": False}}, namespace=NAMESPACE
            )
            going = await until(world, lambda a: a.status.elements.succeeded >= 40)
            assert watcher.unfinished_max == watcher.placed_max == 8
            assert watcher.jobs_max <= 8 + 32
            assert len(msgspec.json.encode(going.status)) < 2_000

    run(play())


def test_without_a_limit_an_array_is_as_wide_as_the_cluster_and_at_most_100_jobs_wait() -> None:
    async def play() -> None:
        async with embedded_world(4) as world:  # 32 GPUs
            watcher = Watcher(world)
            await submit(world, "0-499")
            running = await until(world, lambda a: a.status.elements.running == 32)
            assert running.status.verdict is not None
            assert running.status.verdict.reason == "InsufficientCapacity"
            assert running.status.elements.waiting == 468
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 500
            assert watcher.placed_max == 32
            assert 100 < watcher.unfinished_max <= 132

    run(play())


def test_the_members_of_an_element_know_their_array_and_their_index() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "4-10:3", template=template(hostname="h"))
            await until(world, lambda a: a.status.elements.running == 3)
            raw = await world.client.list(PODS.raw, namespace=NAMESPACE)
            environments = {}
            for pod in raw.items:
                env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
                environments[pod["metadata"]["labels"][names.JOB_NAME]] = env
            assert sorted(environments) == ["sweep-10", "sweep-4", "sweep-7"]
            wanted = {
                "FAIRLEAD_ARRAY": "sweep", "FAIRLEAD_ARRAY_INDEX": "7", "MINE": "kept",
                "SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "4",
                "SLURM_ARRAY_TASK_MAX": "10", "SLURM_ARRAY_TASK_STEP": "3",
            }  # fmt: skip
            env = environments["sweep-7"]
            assert {name: env.get(name) for name in wanted} == wanted
            [element] = [job for job in await jobs(world) if job.metadata.name == "sweep-7"]
            labels = element.metadata.labels
            assert (labels[names.ARRAY], labels[names.ARRAY_INDEX]) == ("sweep", "7")

    run(play())


def test_a_cancelled_array_stops_what_runs_starts_nothing_and_tells_what_ended() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-99", parallelism=8)
            await until(world, lambda a: a.status.elements.succeeded >= 8)
            await until(world, lambda a: a.status.elements.running == 8)
            await world.client.patch(
                JOB_ARRAYS, "sweep", {"spec": {"cancel": True}}, namespace=NAMESPACE
            )
            done = await until(world, lambda a: a.is_finished)
            assert done.status.state == "Cancelled"
            counts = done.status.elements
            assert counts.failed == 8
            assert counts.waiting == 100 - counts.succeeded - 8
            assert done.status.failed == f"{counts.succeeded}-{counts.succeeded + 7}"
            await asyncio.sleep(5)
            assert await jobs(world) == []

    run(play())


def test_single_elements_are_cancelled_whether_they_run_or_have_not_begun() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-29", parallelism=4)
            await until(world, lambda a: a.status.elements.running == 4)
            await world.client.patch(
                JOB_ARRAYS, "sweep", {"spec": {"cancelIndices": "2,20-25,77"}}, namespace=NAMESPACE
            )
            await until(world, lambda a: a.status.failed == "2,20-25")
            nothing = {"spec": {"cancelIndices": None}}  # what is stopped stays so
            await world.client.patch(JOB_ARRAYS, "sweep", nothing, namespace=NAMESPACE)
            done = await until(world, lambda a: a.is_finished)
            assert (done.status.state, done.status.failed) == ("Failed", "2,20-25")
            assert done.status.elements.succeeded == 23
            condition = find_condition(done.status.conditions, names.FAILED)
            assert condition is not None
            assert condition.message == "7 of 30 elements failed"

    run(play())


def test_an_array_stops_when_more_elements_have_failed_than_it_may_lose() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-99", parallelism=4, maxFailed=2)
            await until(world, lambda a: a.status.elements.running == 4)
            for index in range(3):
                await world.patch(f"sweep-{index}", cancel=True)
            done = await until(world, lambda a: a.is_finished)
            condition = find_condition(done.status.conditions, names.FAILED)
            assert condition is not None
            assert (done.status.state, condition.reason) == ("Failed", "TooManyFailed")
            assert condition.message == "3 elements failed, of at most 2"
            assert done.status.elements.succeeded < 10

    run(play())


def test_a_held_array_gives_its_nodes_back_and_what_a_person_holds_stays_held() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-9", parallelism=4, template=template(seconds=60))
            await until(world, lambda a: a.status.elements.running == 4)
            await world.patch("sweep-1", suspend=True)
            await world.client.patch(
                JOB_ARRAYS, "sweep", {"spec": {"suspend": True}}, namespace=NAMESPACE
            )
            held = await until(world, lambda a: a.status.state == "Held")
            assert held.status.verdict is not None
            assert held.status.verdict.reason == "Held"
            await asyncio.sleep(30)
            assert not [job for job in await jobs(world) if job.status.placement is not None]
            await world.client.patch(
                JOB_ARRAYS, "sweep", {"spec": {"suspend": False}}, namespace=NAMESPACE
            )
            await until(world, lambda a: a.status.elements.running == 3)
            assert (await world.job("sweep-1")).status.state == "Held"
            await world.patch("sweep-1", suspend=False)
            assert (await until(world, lambda a: a.is_finished)).status.state == "Succeeded"

    run(play())


async def late(world: EmbeddedWorld, owner: JobArray, index: int) -> str:
    """Create the job of an element as a creation does that the server carries out late."""
    meta = owner.metadata
    reference = {
        "apiVersion": names.API_VERSION, "kind": "JobArray", "name": meta.name, "uid": meta.uid,
        "controller": True,
    }  # fmt: skip
    body = {
        "metadata": {"name": element_name(meta.name, index), "ownerReferences": [reference]},
        "spec": template(),
    }
    made = await world.client.create(JOBS, body, namespace=NAMESPACE)
    return made.metadata.uid


def test_a_job_that_is_created_after_the_end_of_its_element_never_runs() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-9", parallelism=2, template=template(seconds=5))
            going = await until(world, lambda a: a.status.elements.succeeded >= 4)
            pods: list[str] = []
            uid = await late(world, going, 0)
            for _ in range(100):
                found = await world.client.list(PODS, namespace=NAMESPACE)
                pods += [
                    p.metadata.name for p in found.items if p.metadata.labels[names.JOB_UID] == uid
                ]
                await asyncio.sleep(0.05)
            assert pods == []
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 10
            over = await late(world, done, 9)
            await asyncio.sleep(5)
            assert over not in [job.metadata.uid for job in await jobs(world)]

    run(play())


def test_an_element_that_is_deleted_before_its_end_is_recorded_is_not_run_again() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            watcher = Watcher(world)
            await submit(world, "0-19", parallelism=2, template=template(seconds=0.2))

            ended: asyncio.Queue[str] = asyncio.Queue()

            def note(change: Change[Job]) -> None:
                was_over = change.old is not None and change.old.is_finished
                if change.new is not None and change.new.is_finished and not was_over:
                    ended.put_nowait(change.key[1])

            async def delete_the_ended() -> None:
                while True:
                    with suppress(NotFound):
                        await world.client.delete(JOBS, await ended.get(), namespace=NAMESPACE)

            follow(world.controllers.mirrors.jobs, note, None)
            deleting = asyncio.create_task(delete_the_ended())
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 20
            assert all(len(uids) == 1 for uids in watcher.succeeded.values())
            deleting.cancel()

    run(play())


def test_a_deleted_array_takes_its_jobs_along_and_its_name_is_free_again() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-19", template=template(seconds=500))
            await until(world, lambda a: a.status.elements.running == 8)
            await world.client.delete(JOB_ARRAYS, "sweep", namespace=NAMESPACE)
            await submit(world, "0-3", template=template(seconds=5))
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 4
            await asyncio.sleep(5)
            assert await jobs(world) == []

    run(play())


def test_a_name_that_somebody_else_has_delays_that_element_alone() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await world.submit("sweep-1", 1, gpus=1)
            await submit(world, "0-9", parallelism=2, template=template(seconds=5))
            stuck = await until(world, lambda a: a.status.elements.succeeded == 9)
            stuck = await until(world, lambda a: a.status.verdict is not None)
            assert stuck.status.verdict is not None
            assert stuck.status.verdict.reason == "ElementRefused"
            assert "Job sweep-1 exists already" in str(stuck.status.verdict.facts["message"])
            await world.client.delete(JOBS, "sweep-1", namespace=NAMESPACE)
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 10

    run(play())


def test_an_ended_array_is_deleted_after_its_time() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "3", ttlSecondsAfterFinished=30, template=template(seconds=5))
            await until(world, lambda a: a.is_finished)
            await asyncio.sleep(40)
            assert (await world.client.list(JOB_ARRAYS, namespace=NAMESPACE)).items == ()

    run(play())


@pytest.mark.parametrize(("spec", "paths"), [*WRONG_ARRAYS, (MIXED, ["spec.indices", *OF_SCHEMA])])
def test_a_wrong_array_is_refused_with_the_paths_of_all_mistakes(
    spec: dict[str, Any], paths: list[str]
) -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            with pytest.raises(Invalid) as refused:
                await submit(world, **{"indices": "0-9", **spec})
            has_paths(refused.value, paths)

    run(play())


def test_names_of_elements_must_have_room_and_indices_and_template_stay() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            with pytest.raises(Invalid, match=r"its elements are jobs named a{49}-1000"):
                await submit(world, "0-1000", name="a" * 49)
            await submit(world, "0-9", parallelism=1)
            for change in ({"indices": "0-10"}, {"template": template(gpus=2)}):
                with pytest.raises(Invalid, match="field is immutable"):
                    await world.client.patch(
                        JOB_ARRAYS, "sweep", {"spec": change}, namespace=NAMESPACE
                    )
            await world.client.patch(
                JOB_ARRAYS, "sweep", {"spec": {"parallelism": 5}}, namespace=NAMESPACE
            )
            await until(world, lambda a: a.status.elements.running == 5)

    run(play())


def test_the_class_of_a_template_may_change_and_waiting_elements_follow() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            for name, value in (("low", 5), ("high", 500)):
                body = {"metadata": {"name": name}, "value": value}
                await world.client.create(PRIORITY_CLASSES, body)
            await submit(
                world, "0-299", template={**template(seconds=50), "priorityClassName": "low"}
            )
            await until(world, lambda a: a.status.elements.running == 8)
            await world.submit("between", 1, seconds=5, priorityClassName="high")
            change = {"spec": {"template": {"priorityClassName": "high", "priority": None}}}
            raised = await world.client.patch(JOB_ARRAYS, "sweep", change, namespace=NAMESPACE)
            assert raised.spec.template.priority == 500
            await asyncio.sleep(30)
            found = [job for job in await jobs(world) if job.metadata.name.startswith("sweep")]
            placed = {job.metadata.name for job in found if job.status.placement is not None}
            classes = {job.spec.priority_class_name for job in found if not job.status.placement}
            assert len(found) > len(placed)
            assert (classes, {job.spec.priority for job in found} >= {500}) == ({"high"}, True)
            for name in ("none-such", "system-node-critical"):
                change = {"spec": {"template": {"priorityClassName": name, "priority": None}}}
                with pytest.raises(Invalid, match=r"spec.template.priorityClassName"):
                    await world.client.patch(JOB_ARRAYS, "sweep", change, namespace=NAMESPACE)

    run(play())


def test_the_planner_tries_one_of_the_elements_that_wait() -> None:
    """They are equal gangs, which share a group, its fits and its verdict."""

    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-299", template=template(seconds=50))
            going = await until(world, lambda a: a.status.elements.running == 8)
            await asyncio.sleep(5)
            waiting = [job for job in await jobs(world) if job.status.placement is None]
            assert len(waiting) == 100
            verdicts = {job.status.verdict.reason for job in waiting if job.status.verdict}
            assert verdicts == {"InsufficientCapacity"}
            reader = RequestReader()
            assert len({gang_of(job.spec, reader) for job in waiting}) == 1
            assert going.status.elements.waiting == 292

    run(play())


def test_the_watcher_sees_an_element_that_runs_twice() -> None:
    """The canary of the tests above: a record that is lost has an element run again."""

    async def play() -> None:
        async with embedded_world(1) as world:
            watcher = Watcher(world)
            await submit(world, "0-9", parallelism=2, template=template(seconds=5))
            await until(world, lambda a: a.status.elements.succeeded >= 4)
            lost = {"status": {"finished": None}}
            await world.client.patch(
                JOB_ARRAYS, "sweep", lost, namespace=NAMESPACE, subresource="status"
            )
            await until(world, lambda a: a.is_finished)
            ran = Counter(len(uids) for uids in watcher.succeeded.values())
            assert ran[2] >= 2

    run(play())


#: `FAIRLEAD_ARRAY_ELEMENTS=100000` for a long run; what is kept does not grow with it.
ELEMENTS = int(os.environ.get("FAIRLEAD_ARRAY_ELEMENTS", "1000"))


def test_a_long_array_keeps_within_its_window_while_members_are_lost() -> None:
    """100 at a time; now and then a pod is deleted under an element, which then runs again."""

    async def play() -> None:
        async with embedded_world(13) as world:
            watcher, rng, lost = Watcher(world), random.Random(5), 0
            await submit(world, f"0-{ELEMENTS - 1}", parallelism=100, template=template(seconds=1))
            while not (await array(world)).is_finished:
                await asyncio.sleep(rng.uniform(0.2, 2.0))
                pods = (await world.client.list(PODS, namespace=NAMESPACE)).items
                running = [pod.metadata.name for pod in pods if pod.status.phase == "Running"]
                for name in rng.sample(running, min(2, len(running))):
                    with suppress(NotFound):
                        await world.client.delete(
                            PODS, name, namespace=NAMESPACE, grace_period_seconds=0
                        )
                        lost += 1
            done = await array(world)
            assert lost >= ELEMENTS / 200
            assert (done.status.state, done.status.finished) == ("Succeeded", f"0-{ELEMENTS - 1}")
            assert len(watcher.succeeded) == ELEMENTS
            assert {len(uids) for uids in watcher.succeeded.values()} == {1}
            assert watcher.unfinished_max == watcher.placed_max == 100
            assert watcher.jobs_max <= 100 + 400
            await asyncio.sleep(2)
            assert await jobs(world) == []

    run(play())
