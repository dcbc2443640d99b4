"""Arrays beside other work: who waits for whom, who gives way, and what an element may be."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.simulation.embedded_world import GPUS, NAMESPACE, EmbeddedWorld, embedded_world
from tests.simulation.test_arrays import Watcher, array, jobs, submit, template, until

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.resources import PODS, PRIORITY_CLASSES, TEAMS
from fairlead.api.values.times import parse_time
from fairlead.decide.arrays import ArraysPolicy
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.reasons import Reason
from fairlead.runtime.watching.mirror import Change
from fairlead.runtime.watching.reader import follow
from fairlead.sim.loop import run

ELEMENT_SECONDS = 20.0


def follow_jobs(world: EmbeddedWorld) -> dict[str, Job]:
    """Return the jobs by name as they are seen last, deleted ones included."""
    seen: dict[str, Job] = {}

    def note(change: Change[Job]) -> None:
        if change.new is not None:
            seen[change.key[1]] = change.new

    follow(world.controllers.mirrors.jobs, note, None)
    return seen


def waited_seconds(job: Job) -> float:
    """Return how long a job waited for its first place."""
    begun = job.status.attempts[0].started_at
    assert begun
    assert job.metadata.creation_timestamp
    return parse_time(begun) - parse_time(job.metadata.creation_timestamp)


@pytest.mark.parametrize("seed", range(2))
def test_an_array_that_fills_the_cluster_starves_no_job_and_no_job_starves_it(seed: int) -> None:
    """A job waits for no more than the elements that were jobs before it, whatever its size."""

    async def play() -> None:
        rng = random.Random(seed)
        async with embedded_world(1) as world:
            seen = follow_jobs(world)
            count = 400
            await submit(world, f"0-{count - 1}", template=template(seconds=ELEMENT_SECONDS))
            await until(world, lambda a: a.status.elements.running == GPUS)
            sizes = [rng.choice((1, 2, 4, GPUS)) for _ in range(8)] + [GPUS]
            for number, gpus in enumerate(sizes):
                await asyncio.sleep(rng.uniform(1, 60))
                await world.submit(f"single-{number}", 1, gpus=gpus, seconds=ELEMENT_SECONDS)
            alone_seconds = count / GPUS * ELEMENT_SECONDS
            done = await until(world, lambda a: a.is_finished, seconds=3 * alone_seconds)
            assert done.status.elements.succeeded == count
            ahead = ArraysPolicy().window_max / GPUS + 1 + len(sizes)  # each may drain the node
            for number in range(len(sizes)):
                single = seen[f"single-{number}"]
                assert single.status.state == "Succeeded"
                assert waited_seconds(single) <= ahead * ELEMENT_SECONDS < alone_seconds / 2

    run(play())


def test_elements_that_give_way_begin_again_and_the_others_run_on() -> None:
    async def play() -> None:
        async with embedded_world(2) as world:
            watcher, seen = Watcher(world), follow_jobs(world)
            for name, value in (("low", 5), ("high", 500)):
                await world.client.create(
                    PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}
                )
            low = {**template(seconds=200), "priorityClassName": "low"}
            await submit(world, "0-15", template=low)
            await until(world, lambda a: a.status.elements.running == 2 * GPUS)

            async def pods() -> dict[str, str]:
                found = (await world.client.list(PODS, namespace=NAMESPACE)).items
                return {
                    pod.metadata.labels[names.JOB_NAME]: pod.metadata.uid
                    for pod in found
                    if pod.status.phase == "Running"
                }

            before = await pods()
            await asyncio.sleep(PlacementPolicy().preemption_min_run_seconds)
            await world.submit("urgent", 1, gpus=5, seconds=50, priorityClassName="high")
            await world.runs("urgent")
            during = await pods()
            gave_way = set(before) - set(during)
            assert len(gave_way) == 5
            on = set(before) - gave_way
            assert {name: during[name] for name in on} == {name: before[name] for name in on}
            done = await until(world, lambda a: a.is_finished)
            assert (done.status.state, done.status.failed) == ("Succeeded", "")
            assert all(len(uids) == 1 for uids in watcher.succeeded.values())
            attempts = {name: seen[name].status.attempt for name in before}
            assert attempts == {name: 2 if name in gave_way else 1 for name in before}

    run(play())


async def make_team(world: EmbeddedWorld, limits: dict[str, int]) -> None:
    spec = {"namespaces": [NAMESPACE], "limits": limits}
    await world.client.create(TEAMS, {"metadata": {"name": "red"}, "spec": spec})
    await asyncio.sleep(2)


@pytest.mark.parametrize(
    ("limits", "most", "reason"),
    [({"running": 3}, 3, Reason.RUNNING_LIMIT), ({"gpus": 5}, 5, Reason.GPU_LIMIT)],
)
def test_the_limits_of_a_team_count_elements_that_run_and_jobs_alike(
    limits: dict[str, int], most: int, reason: Reason
) -> None:
    async def play() -> None:
        async with embedded_world(2) as world:
            await make_team(world, limits)
            watcher = Watcher(world)
            await world.submit("alone", 1, gpus=1, seconds=100, team="red")
            await submit(world, "0-19", template={**template(), "team": "red"})
            await until(world, lambda a: a.status.elements.running == most - 1)
            waiting = await until(world, lambda a: a.status.verdict is not None)
            assert waiting.status.verdict is not None
            assert waiting.status.verdict.reason == reason.value
            done = await until(world, lambda a: a.is_finished)
            assert done.status.elements.succeeded == 20
            assert watcher.placed_max == most

    run(play())


def test_elements_beyond_what_a_team_may_have_submitted_are_made_as_others_end() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await make_team(world, {"submitted": 4})
            watcher = Watcher(world)
            await submit(world, "0-19", template={**template(seconds=5), "team": "red"})
            done = await until(world, lambda a: a.is_finished, seconds=3600)
            assert done.status.elements.succeeded == 20
            assert watcher.unfinished_max == 4
            assert all(len(uids) == 1 for uids in watcher.succeeded.values())

    run(play())


def gang(count: int, *, gpus: int, **role: Any) -> dict[str, Any]:
    made = template(gpus=gpus)
    made["roles"][0] |= {"count": count, **role}
    return made


def mpi() -> dict[str, Any]:
    made = gang(2, gpus=GPUS)
    made["roles"][0]["template"]["metadata"]["annotations"][names.MPI] = "true"
    return made


@pytest.mark.parametrize(
    ("shape", "members", "at_once"),
    [
        pytest.param(gang(3, gpus=4), 3, 1, id="gang"),
        pytest.param(gang(5, gpus=4, minCount=2), 4, 1, id="elastic"),
        pytest.param(gang(2, gpus=2), 2, 4, id="small-gang"),
        pytest.param(mpi(), 2, 1, id="mpi"),
    ],
)
def test_gangs_elastic_and_mpi_jobs_are_elements_like_any(
    shape: dict[str, Any], members: int, at_once: int
) -> None:
    async def play() -> None:
        async with embedded_world(2) as world:  # 16 GPUs
            watcher, seen = Watcher(world), follow_jobs(world)
            await submit(world, "0-8", template=shape)
            done = await until(world, lambda a: a.is_finished)
            assert (done.status.state, done.status.finished) == ("Succeeded", "0-8")
            assert watcher.placed_max == at_once
            assert all(len(uids) == 1 for uids in watcher.succeeded.values())
            assert {seen[f"sweep-{i}"].status.members.succeeded for i in range(9)} == {members}
            assert await jobs(world) == []
            assert (await array(world)).status.elements.succeeded == 9

    run(play())
