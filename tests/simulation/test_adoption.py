"""Pods of another tool under virtual time: gangs start whole, whoever dies at whatever line."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.simulation.adoption_world import FAULTS, AdoptionWorld, running
from tests.unit.history.contract import records_of

from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, PODS
from fairlead.runtime.kept.history import HistoryQuery
from fairlead.sim.actors.training_operator import OWNERS, SPACE, owner_body, owner_name
from fairlead.sim.loop import run


async def until(condition: Callable[[], bool], seconds_max: float) -> None:
    async with asyncio.timeout(seconds_max):
        while not condition():  # noqa: ASYNC110 -- virtual time
            await asyncio.sleep(0.5)


async def have_ended(world: AdoptionWorld, names: list[str], seconds_max: float) -> None:
    async def left() -> list[str]:
        owners = {o.metadata.name: o for o in (await world.client.list(OWNERS)).items}
        return [name for name in names if not owners[name].status.get("conditions")]

    try:
        async with asyncio.timeout(seconds_max):
            while await left():  # noqa: ASYNC110 -- virtual time
                await asyncio.sleep(1.0)
            await until(lambda: all(j.is_finished for j in world.jobs.values()), seconds_max)
    except TimeoutError:
        states = {j.metadata.name: j.status for j in world.jobs.values() if not j.is_finished}
        raise AssertionError(f"{await left()} never end: {states}") from None


def test_two_groups_that_need_all_nodes_run_one_after_the_other() -> None:
    async def main() -> None:
        async with running(AdoptionWorld(seed=1, nodes=8)) as world:
            for name in ("left", "right"):
                body = owner_body(name, seconds=60, Master=1, Worker=7)
                await world.client.create(OWNERS, body, namespace=SPACE)
            await have_ended(world, ["left", "right"], 600)
            jobs = sorted(world.jobs.values(), key=lambda j: j.status.started_at or "")
            assert [j.status.attempt for j in jobs] == [1, 1]
            assert (jobs[0].status.finished_at or "") <= (jobs[1].status.started_at or "")
            assert {r.name: r.count for r in jobs[0].spec.roles} == {"master": 1, "worker": 7}
            recorded = await records_of(world.history, HistoryQuery())
            assert sorted(r.state for r in recorded) == ["Succeeded", "Succeeded"]

    run(main())


@pytest.mark.parametrize("seed", range(3))
def test_every_group_ends_and_none_starts_in_part_when_controllers_die_every_few_calls(
    seed: int,
) -> None:
    run(live_through(lambda: AdoptionWorld(
        seed, 10, calls_between_kills_mean=100.0, steps_between_crashes_mean=20.0, faults=FAULTS
    )))  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_every_group_ends_when_writes_arrive_long_after_their_sender_died(seed: int) -> None:
    late = replace(FAULTS, stall=0.05)
    arrived = run(live_through(lambda: AdoptionWorld(
        seed, 10, calls_between_kills_mean=150.0, steps_between_crashes_mean=40.0, faults=late,
        checks_places=False,
    )))  # fmt: skip
    assert arrived > 2


async def live_through(make: Callable[[], AdoptionWorld]) -> int:
    """Let groups arrive, nodes fail and controllers die; in the end all groups must end.

    Return how many writes arrived late.
    """
    world = make()
    rng = random.Random(f"{world.seed}/arrivals")
    async with running(world):
        names = [f"group-{i}" for i in range(12)]
        for name in names:
            workers = rng.randint(1, 9)
            body = owner_body(name, seconds=rng.uniform(5, 60), Master=1, Worker=workers)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await asyncio.sleep(rng.uniform(0, 30))
        for _ in range(6):
            await asyncio.sleep(rng.uniform(5, 40))
            node = rng.choice(world.virtual.node_names())
            world.virtual.fail_node(node, detect_seconds=5)
            await asyncio.sleep(rng.uniform(5, 60))
            world.virtual.recover_node(node)
            if rng.random() < 0.4:
                await scale_up(world, rng.choice(names))
            if rng.random() < 0.4:  # its user has had enough: waiting, running or over
                name = names.pop(rng.randrange(len(names)))
                await world.client.delete(OWNERS, name, namespace=SPACE)
        world.switch.stop()
        world.replicas.stop_faults()
        await have_ended(world, names, 4 * 3600)
        await until(lambda: owners_of_jobs(world) == sorted(names), 300)
        assert world.kills + world.replicas.crashes > 10
        assert world.checkers.checked > 100
    return world.switch.late.arrived


def test_a_member_on_a_lost_node_moves_while_the_others_run_on() -> None:
    async def main() -> None:
        async with running(AdoptionWorld(seed=2, nodes=5)) as world:
            body = owner_body("train", seconds=300, Worker=4)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "train") == 4, 60)
            before = {k: p.metadata.uid for k, p in world.pods.items()}
            victim = world.pods[SPACE, "train-worker-2"].spec.node_name
            world.virtual.fail_node(victim)
            await until(
                lambda: runs(world, "train") == 4
                and world.pods[SPACE, "train-worker-2"].spec.node_name != victim, 120
            )  # fmt: skip
            after = {k: p.metadata.uid for k, p in world.pods.items()}
            moved = [key[1] for key in after if after[key] != before[key]]
            assert moved == ["train-worker-2"]
            (job,) = world.jobs.values()
            assert (job.status.attempt, job.status.attempts[0].reason) == (2, "NodeLost")
            assert job.status.members.running == 4

    run(main())


def test_a_refused_member_moves_and_nobody_else_does() -> None:
    async def main() -> None:
        world = AdoptionWorld(seed=3, nodes=6, refuses=("v00001",))
        async with running(world):
            body = owner_body("train", seconds=300, Worker=4)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "train") == 3, 60)
            before = {p.metadata.uid: p.spec.node_name for p in world.pods.values()}
            await until(lambda: runs(world, "train") == 4, 60)
            after = {p.metadata.uid: p.spec.node_name for p in world.pods.values()}
            assert "v00001" not in after.values()
            stayed = {uid: node for uid, node in before.items() if node}
            assert stayed == {uid: node for uid, node in after.items() if uid in before}
            (job,) = world.jobs.values()
            assert job.status.attempt == 2
            assert job.status.attempts[0].reason == "NotBound"
            assert "0/1 nodes are available" in job.status.attempts[0].message

    run(main())


def test_a_moments_refusal_after_a_long_wait_moves_nobody() -> None:
    async def main() -> None:
        async with running(AdoptionWorld(seed=3, nodes=5)) as world:
            first = owner_body("first", seconds=60, Worker=4)
            await world.client.create(OWNERS, first, namespace=SPACE)
            await until(lambda: runs(world, "first") == 4, 60)
            second = owner_body("second", seconds=60, Worker=4)
            await world.client.create(OWNERS, second, namespace=SPACE)
            world.scheduler.refuse(["v00001"])
            await until(lambda: runs(world, "second") == 3, 200)
            await asyncio.sleep(2)
            world.scheduler.refuse([])
            await have_ended(world, ["first", "second"], 300)
            attempts = [job.status.attempt for job in world.jobs.values()]
            assert attempts == [1, 1]

    run(main())


def test_a_gang_that_is_refused_everywhere_waits_again_and_holds_nothing_meanwhile() -> None:
    async def main() -> None:
        names = tuple(f"v{i:05d}" for i in range(1, 6))
        async with running(AdoptionWorld(seed=3, nodes=6, refuses=names)) as world:
            body = owner_body("train", seconds=900, Worker=3)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: any(ends(j) == "WaitsAgain" for j in world.jobs.values()), 600)
            await until(lambda: all(not j.status.placement for j in world.jobs.values()), 20)
            (job,) = world.jobs.values()
            assert [a.reason for a in job.status.attempts] == ["NotBound"] * 4 + ["WaitsAgain"]
            await until(lambda: all(p.spec.scheduling_gates for p in world.pods.values()), 60)
            world.scheduler.refuse([])
            await have_ended(world, ["train"], 3000)

    run(main())


def ends(job: Job) -> str:
    return job.status.attempts[-1].reason if job.status.attempts else ""


def test_a_gang_whose_lost_node_finds_no_replacement_gives_everything_back() -> None:
    async def main() -> None:
        async with running(AdoptionWorld(seed=5, nodes=4)) as world:
            body = owner_body("train", seconds=3000, Worker=4)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "train") == 4, 60)
            world.virtual.fail_node("v00001")
            await until(lambda: runs(world, "train") == 3, 60)
            small = owner_body("small", seconds=10, Worker=3)
            await world.client.create(OWNERS, small, namespace=SPACE)
            await until(lambda: runs(world, "small") == 3, 600)
            assert runs(world, "train") == 0
            world.virtual.recover_node("v00001")
            await have_ended(world, ["small", "train"], 6000)

    run(main())


def test_a_group_that_loses_a_member_before_its_place_gives_the_queue_up() -> None:
    async def main() -> None:
        async with running(AdoptionWorld(seed=4, nodes=4)) as world:
            await world.client.create(
                OWNERS, owner_body("first", seconds=100, Worker=4), namespace=SPACE
            )
            await until(lambda: runs(world, "first") == 4, 60)
            await world.client.create(
                OWNERS, owner_body("second", seconds=10, Worker=4), namespace=SPACE
            )
            await until(lambda: admitted(world, "second"), 60)
            # Its tool is told to make fewer, and one of the four goes.
            patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}}
            await world.client.patch(OWNERS, "second", patch, namespace=SPACE)
            await world.client.delete(PODS, "second-worker-3", namespace=SPACE)
            await until(lambda: not admitted(world, "second"), 60)
            await have_ended(world, ["first", "second"], 600)
            sizes = {
                j.spec.adopts.name: j.member_count for j in world.jobs.values() if j.spec.adopts
            }
            assert sizes == {"first": 4, "second": 3}

    run(main())


def test_a_group_that_has_grown_waits_for_all_its_members_when_it_gathers_again() -> None:
    def group(world: AdoptionWorld) -> list[Job]:
        return [
            job for job in world.jobs.values()
            if job.spec.adopts is not None and job.spec.adopts.name == "train"
        ]  # fmt: skip

    async def main() -> None:
        async with running(AdoptionWorld(seed=6, nodes=5)) as world:
            body = owner_body("train", seconds=3000, Worker=3)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "train") == 3, 60)
            await scale_up(world, "train")
            await until(lambda: runs(world, "train") == 4, 60)
            [first] = group(world)
            assert first.member_count == 3, "the fourth has a job of its own"
            await world.client.delete(JOBS, first.metadata.name, namespace=SPACE)
            for number in (0, 1):
                await world.client.delete(PODS, f"train-worker-{number}", namespace=SPACE)
            await until(lambda: gated(world, "train") == 2, 60)
            await world.client.delete(PODS, "train-worker-2", namespace=SPACE)
            await until(lambda: [j.metadata.uid for j in group(world)] != [first.metadata.uid], 60)
            await until(lambda: runs(world, "train") == 4, 60)
            [again] = group(world)
            assert again.metadata.uid != first.metadata.uid
            assert again.member_count == 3

    run(main())


def test_a_member_that_comes_again_after_the_others_have_ended_well_holds_only_its_own_node() -> (
    None
):
    async def main() -> None:
        async with running(AdoptionWorld(seed=7, nodes=3)) as world:
            body = owner_body("train", seconds=60, Worker=2)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "train") == 2, 60)
            await asyncio.sleep(30)
            await scale_up(world, "train")
            await until(lambda: runs(world, "train") == 3, 20)
            await until(lambda: runs(world, "train") == 1, 60)
            lost = world.pods[SPACE, "train-worker-2"]
            world.virtual.fail_node(lost.spec.node_name)
            await until(lambda: not is_of(world, lost.metadata.uid), 60)
            await until(lambda: runs(world, "train") == 1, 60)
            await asyncio.sleep(1)
            states = [(j.status.state, j.member_count) for j in world.jobs.values()]
            assert states == [("Running", 1)]
            await have_ended(world, ["train"], 300)

    run(main())


def is_of(world: AdoptionWorld, uid: str) -> bool:
    """True while the pod of a uid is there."""
    return any(pod.metadata.uid == uid for pod in world.pods.values())


def owners_of_jobs(world: AdoptionWorld) -> list[str]:
    """Whose groups have jobs; members that were too many have jobs of their own."""
    adopted = [j.spec.adopts for j in world.jobs.values() if j.spec.adopts]
    return sorted(adopts.name for adopts in adopted if adopts.kind != "Pod")


async def scale_up(world: AdoptionWorld, name: str) -> None:
    owner = await world.client.get(OWNERS, name, namespace=SPACE)
    count = owner.spec["pytorchReplicaSpecs"]["Worker"]["replicas"]
    patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": count + 1}}}}
    await world.client.patch(OWNERS, name, patch, namespace=SPACE)


def admitted(world: AdoptionWorld, name: str) -> bool:
    return any(
        c.type == "Admitted" and c.status == "True"
        for j in world.jobs.values()
        if j.spec.adopts is not None and j.spec.adopts.name == name
        for c in j.status.conditions
    )


def gated(world: AdoptionWorld, name: str) -> int:
    mine = [p for p in world.pods.values() if owner_name(p) == name]
    return sum(bool(p.spec.scheduling_gates) for p in mine)


def runs(world: AdoptionWorld, name: str) -> int:
    mine = [p for p in world.pods.values() if owner_name(p) == name]
    return sum(p.status.phase == "Running" and not p.metadata.deletion_timestamp for p in mine)
