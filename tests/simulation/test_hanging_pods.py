"""A member that cannot go holds its own node, and not those of its gang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.simulation.embedded_world import NAMESPACE, EmbeddedWorld, embedded_world

from fairlead.api import names
from fairlead.api.resources import JOBS, NODES, PODS, PRIORITY_CLASSES
from fairlead.cli.views.jobs import tasks_of, where_or_why
from fairlead.sim.loop import run

MEMBERS = 20


async def shown(world: EmbeddedWorld, name: str = "gang") -> str:
    """What `ps` shows of the tasks of a job, and where or why."""
    job = await world.job(name)
    return f"{tasks_of(job)} {where_or_why(job, world.clock.now())}"


async def delete(world: EmbeddedWorld, name: str = "hanging") -> None:
    await world.client.delete(JOBS, name, namespace=NAMESPACE)


async def cancel(world: EmbeddedWorld) -> None:
    await world.patch("hanging", cancel=True)


async def hold(world: EmbeddedWorld) -> None:
    await world.patch("hanging", suspend=True)


async def fail(world: EmbeddedWorld) -> None:
    """End a member by its own fault; the job may not restart."""
    (pod, *_) = await world.pods("hanging")
    status = {"phase": "Failed"}
    await world.client.patch(
        PODS, pod.metadata.name, {"status": status}, namespace=NAMESPACE, subresource="status"
    )


async def run_out(world: EmbeddedWorld) -> None:
    await world.patch("hanging", timeLimitSeconds=1)


async def preempt(world: EmbeddedWorld) -> None:
    """Nothing to do: the job that comes next has the higher priority."""


@pytest.mark.parametrize("end", [delete, cancel, hold, fail, run_out, preempt])
def test_the_nodes_of_all_other_members_are_free_when_one_cannot_go(end: Any) -> None:
    async def main() -> None:
        async with embedded_world(MEMBERS) as world:
            high = {"metadata": {"name": "high"}, "value": 1000}
            await world.client.create(PRIORITY_CLASSES, high)
            await world.submit("hanging", MEMBERS, restart={"policy": "Never"})
            await world.runs("hanging")
            stuck = (await world.pods("hanging"))[7]
            world.silence(stuck.spec.node_name)
            await end(world)
            spec = {"priorityClassName": "high"} if end is preempt else {}
            await world.submit("next", MEMBERS - 1, **spec)
            job = await world.runs("next", seconds=120)
            assert job.status.placement is not None
            used = {node for role in job.status.placement.roles for node in role.nodes}
            assert len(used) == MEMBERS - 1
            assert stuck.spec.node_name not in used, (
                "a pod that is being deleted counts where it is"
            )
            (left,) = [p for p in await world.pods("hanging") if not p.is_terminal]
            assert left.metadata.uid == stuck.metadata.uid
            assert left.metadata.deletion_timestamp is not None

    run(main())


def test_a_member_that_only_a_finalizer_keeps_has_ended_and_holds_no_node() -> None:
    async def main() -> None:
        async with embedded_world(MEMBERS) as world:
            await world.submit("kept", MEMBERS, restart={"policy": "Never"})
            await world.runs("kept")
            kept = (await world.pods("kept"))[7]
            finalizers = {"metadata": {"finalizers": ["example.com/never"]}}
            await world.client.patch(PODS, kept.metadata.name, finalizers, namespace=NAMESPACE)
            await delete(world, "kept")
            await world.submit("next", MEMBERS)
            await world.runs("next", seconds=120)
            (left,) = await world.pods("kept")
            assert (left.metadata.uid, left.is_terminal) == (kept.metadata.uid, True)

    run(main())


def test_a_job_that_restarts_says_why_and_how_many_members_are_still_to_end() -> None:
    async def main() -> None:
        async with embedded_world(MEMBERS + 1) as world:
            await world.submit("lost", MEMBERS)
            await world.runs("lost")
            first, second, *_ = await world.pods("lost")
            world.silence(second.spec.node_name)
            await world.client.delete(NODES, first.spec.node_name)
            job = await world.until("lost", lambda job: job.status.state == "Restarting", 120)
            await asyncio.sleep(60)
            job = await world.job("lost")
            rank = first.metadata.labels[names.RANK]
            assert where_or_why(job) == (
                f"NodeLost: member worker-{rank} (rank {rank}, node {first.spec.node_name}) was "
                "lost: its node no longer exists; 1 member to end first"
            )
            assert tasks_of(job) == f"1/{MEMBERS}"
            world.mend(second.spec.node_name)
            await world.runs("lost", seconds=60)

    run(main())


def test_a_job_that_restarts_says_what_its_next_attempt_waits_for() -> None:
    """Members that are to end, the back-off, the place: as `ps` shows them, one after the other."""

    async def main() -> None:
        async with embedded_world(3) as world:
            await world.submit("gang", 3, restart={"limit": 5, "backoffSeconds": 30})
            await world.runs("gang")
            first, second, _ = await world.pods("gang")
            world.silence(second.spec.node_name)
            await world.client.delete(NODES, first.spec.node_name)
            member = "member worker-0 (rank 0, node v00000)"
            cause = f"NodeLost: {member} was lost: its node no longer exists"
            said = dict.fromkeys([await shown(world)])
            for step in range(180):
                await asyncio.sleep(0.5)
                if step == 30:
                    world.mend(second.spec.node_name)
                said[await shown(world)] = None
            waits = [text for text in said if "begins in" in text]
            assert waits[0].startswith(f"0/3 {cause}; attempt 2 begins in ")
            assert waits[-1].endswith("begins in 1s")
            assert [text for text in said if text not in waits] == [
                "3/3 v[00000-00002]",
                f"1/3 {cause}; 1 member to end first",
                f"0/3 {cause}; waits for its place",
                "0/3 Repairing: keeps the nodes of 2 of 3 members; no replacement yet for 1 node, "
                "lost or cordoned",
            ]  # fmt: skip

    run(main())
