"""Jobs and arrays that start after arrays, on the embedded cluster under virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.simulation.embedded_world import NAMESPACE, EmbeddedWorld, embedded_world
from tests.simulation.test_arrays import Watcher, array, submit, template

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import find_condition
from fairlead.api.names import SIMULATE_EXIT_CODE
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import Invalid
from fairlead.decide.jobs.admitting.gate import admitted_verdict
from fairlead.runtime.watching.mirror import Change
from fairlead.runtime.watching.reader import follow
from fairlead.sim.loop import run


def after(job: str, elements: str = "All", **more: Any) -> dict[str, Any]:
    return {"job": job, "elements": elements, **more}


def failing() -> dict[str, Any]:
    body = template(seconds=2)
    body["roles"][0]["template"]["metadata"]["annotations"][SIMULATE_EXIT_CODE] = "1"
    return body


def waiting_for(found: Job) -> tuple[str, object]:
    """What the condition says, and what is read from it for `why`: they are the same."""
    said = find_condition(found.status.conditions, names.ADMITTED)
    verdict = admitted_verdict(found)
    if verdict is None or said is None:
        return "", ""
    assert (verdict.reason.value, verdict.message) == (said.reason, said.message)
    return verdict.reason.value, verdict.facts.get("job")


@pytest.mark.parametrize(
    ("state", "fails", "ends"),
    [
        ("Succeeded", False, "Succeeded"), ("Succeeded", True, "Cancelled"),
        ("Failed", True, "Succeeded"), ("Failed", False, "Cancelled"),
        ("Finished", True, "Succeeded"), ("Finished", False, "Succeeded"),
    ],
)  # fmt: skip
def test_a_job_starts_after_a_whole_array_has_come_to_the_wanted_end(
    state: str,
    fails: bool,
    ends: str,
) -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            first = failing() if fails else template(seconds=2)
            await submit(world, "0-4", name="first", parallelism=1, template=first)
            await world.submit("last", 1, gpus=1, seconds=1, after=[after("first", state=state)])
            going = await until_array(world, "first", ended=2)
            waiting = await world.job("last")
            assert going.status.finished_at is None
            assert waiting.status.attempt == 0
            assert waiting_for(waiting) == ("Dependency", "array first")
            done = await world.until("last", lambda job: job.is_finished, 60)
            assert done.status.state == ends
            assert (await array(world, "first")).is_finished

    run(play())


async def until_array(world: EmbeddedWorld, name: str, *, ended: int) -> Any:
    for _ in range(200):
        found = await array(world, name)
        if found.status.elements.succeeded + found.status.elements.failed >= ended:
            return found
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} does not come so far")


def test_each_element_starts_after_the_element_of_its_own_index() -> None:
    async def play() -> None:
        async with embedded_world(2) as world:
            watcher, begun = Watcher(world), list[tuple[str, frozenset[str]]]()

            def note(change: Change[Job]) -> None:
                old, new = change.old, change.new
                if new is not None and new.status.placement and not (old and old.status.placement):
                    begun.append((change.key[1], frozenset(watcher.succeeded)))

            follow(world.controllers.mirrors.jobs, note, None)
            await submit(world, "0-9", name="first", parallelism=2, template=template(seconds=5))
            each = {**template(seconds=1), "after": [after("first", "Same")]}
            await submit(world, "0-9", name="then", template=each)
            for _ in range(200):
                if (await array(world, "then")).is_finished:
                    break
                await asyncio.sleep(0.5)
            assert (await array(world, "then")).status.elements.succeeded == 10
            order = [name for name, _ in begun if name.startswith("then-")]
            assert len(order) == 10
            for name, succeeded in begun:
                if name.startswith("then-"):
                    assert f"first-{name.removeprefix('then-')}" in succeeded
            last_of_first = max(i for i, (name, _) in enumerate(begun) if name.startswith("first"))
            assert begun[last_of_first - 4][0].startswith("then-") or order[0] in {
                name for name, _ in begun[:last_of_first]
            }, "no element waits for the whole of the other array"

    run(play())


def test_a_job_starts_after_the_elements_that_it_lists() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-9", name="first", parallelism=1, template=template(seconds=5))
            await world.submit("last", 1, gpus=1, seconds=1, after=[after("first", "1,3")])
            await until_array(world, "first", ended=2)
            assert waiting_for(await world.job("last")) == ("Dependency", "first[1,3]")
            await world.until("last", lambda job: job.status.state == "Succeeded", 60)
            found = await array(world, "first")
            assert 4 <= found.status.elements.succeeded < 8

    run(play())


def test_elements_that_never_start_count_as_failed_once_their_array_has_ended() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-9", name="first", parallelism=1, template=template(seconds=9))
            await world.submit(
                "any", 1, gpus=1, seconds=1, after=[after("first", "8", state="Finished")]
            )
            await world.submit("ok", 1, gpus=1, seconds=1, after=[after("first", "8")])
            await until_array(world, "first", ended=1)
            stop = {"spec": {"cancel": True}}
            await world.client.patch(JOB_ARRAYS, "first", stop, namespace=NAMESPACE)
            assert (await world.until("any", lambda j: j.is_finished)).status.state == "Succeeded"
            assert (await world.until("ok", lambda j: j.is_finished)).status.state == "Cancelled"

    run(play())


def test_an_array_that_is_missing_is_waited_for_and_one_that_was_deleted_is_missing() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await world.submit("last", 1, gpus=1, seconds=1, after=[after("first")])
            await world.until("last", lambda job: waiting_for(job)[0] == "DependencyMissing")
            await submit(world, "0-4", name="first", parallelism=1, template=template(seconds=9))
            await world.until("last", lambda job: waiting_for(job)[0] == "Dependency")
            await world.client.delete(JOB_ARRAYS, "first", namespace=NAMESPACE)
            await world.until("last", lambda job: waiting_for(job)[0] == "DependencyMissing")
            await submit(world, "0-1", name="first", template=template(seconds=1))
            await world.until("last", lambda job: job.status.state == "Succeeded", 60)

    run(play())


def test_an_element_that_the_array_does_not_have_is_told_and_starts_nothing() -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            await submit(world, "0-8:2", name="first", template=template(seconds=1))
            for name, elements in (("odd", "2,3"), ("same", "Same")):
                await world.submit(name, 1, gpus=1, after=[after("first", elements)])
                stuck = await world.until(name, lambda job: waiting_for(job)[0] == "NoSuchElement")
                assert waiting_for(stuck)[1] == f"first[{elements}]"
            each = {**template(seconds=1), "after": [after("first", "Same")]}
            await submit(world, "0-3", name="then", template=each)
            await until_array(world, "then", ended=2)
            await asyncio.sleep(30)
            then = await array(world, "then")
            assert (then.status.elements.succeeded, then.status.finished) == (2, "0,2")
            assert then.status.verdict is not None
            assert then.status.verdict.reason == "NoSuchElement"

    run(play())


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        (after("a", "x"), "spec.after[0].elements"), (after("a", "3-1"), "spec.after[0].elements"),
        (after("a", "1,1"), "spec.after[0].elements"), (after("", "1"), "spec.after[0].job"),
    ],
)  # fmt: skip
def test_a_wrong_list_of_elements_is_refused(entry: dict[str, Any], path: str) -> None:
    async def play() -> None:
        async with embedded_world(1) as world:
            with pytest.raises(Invalid) as refused:
                await world.submit("j", 1, after=[entry])
            assert path in refused.value.message
            each = {**template(), "after": [after("own", "Same")]}
            with pytest.raises(Invalid, match="an array can't wait for itself"):
                await submit(world, "0-3", name="own", template=each)

    run(play())


def test_an_unknown_job_before_names_of_arrays_is_another_object() -> None:
    """A job and an array may have one name: which one is meant, the field says."""

    async def play() -> None:
        async with embedded_world(1) as world:
            await world.submit("first", 1, gpus=1, seconds=9_000)
            await submit(world, "0-1", name="first", template=template(seconds=1))
            await world.submit("a", 1, gpus=1, seconds=1, after=[after("first")])
            await world.submit("j", 1, gpus=1, seconds=1, after=[{"job": "first"}])
            await world.until("a", lambda job: job.status.state == "Succeeded", 60)
            assert waiting_for(await world.job("j")) == ("Dependency", "first")
            assert (await world.client.list(JOBS, namespace=NAMESPACE)).items

    run(play())
