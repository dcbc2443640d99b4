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
