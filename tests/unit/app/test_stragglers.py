"""A gang on virtual nodes of which one is slow: found by what its members report, suspected, and
tested once it is idle.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api.cluster.node_test import NodeTestCause
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.resources import JOBS, NODE_TESTS
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.removal.trust import SightLimits
from fairlead.embedded.virtual.hardware import Hardware, Quality
from fairlead.embedded.virtual.profile import HardwareSpec, ProgressSpec
from fairlead.sim.loop import run

NODES = 8
NAMES = [f"h100-{i:06}" for i in range(1, NODES + 1)]
#: By themselves idle nodes are not tested within the time of these tests; suspects are.
HEALTH = HealthPolicy(
    enabled=True, idle_test_suite="quick", idle_test_after_seconds=80_000,
    sight=SightLimits(nodes_age_seconds_max=float("inf")),
)  # fmt: skip
STEPS = ProgressSpec(
    step_seconds=2.0, checkpoint_every_steps=30, all_members=True, own_work_seconds=0.5
)
SUSPECTS = JobsPolicy(stragglers_suspect=True)


def _one_slow() -> tuple[HardwareSpec, str]:
    """Return the hardware of a fleet of which one node is slow, and its name."""
    for seed in range(10_000):
        spec = HardwareSpec(seed=seed, slow=0.1)
        slow = [name for name in NAMES if Hardware(spec).quality(name) is Quality.SLOW]
        if len(slow) == 1:
            return spec, slow[0]
    raise AssertionError("no such seed")


async def _tested(fleet: FleetWorld) -> set[str]:
    """Return the nodes that were tested as idle ones."""
    tests = (await fleet.client.list(NODE_TESTS)).items
    return {each.spec.node for each in tests if each.spec.cause is NodeTestCause.IDLE}


async def _run_for(fleet: FleetWorld, seconds: float) -> Job:
    """Run a gang on all nodes for so long, and then cancel it."""
    await fleet.pool(hold=NODES)

    async def ready() -> bool:
        return len(await fleet.nodes()) == NODES

    await fleet.until(ready, 1200)
    await asyncio.sleep(60)
    await fleet.submit("wide", seconds=36_000, count=NODES, gpus=8)
    await asyncio.sleep(seconds)
    job = await fleet.job("wide")
    assert job.status.state == "Running"
    await fleet.client.patch(JOBS, "wide", {"spec": {"cancel": True}}, namespace="default")
    return job


def test_a_slow_node_is_found_suspected_and_tested_and_nothing_is_evicted() -> None:
    spec, slow = _one_slow()

    async def main() -> None:
        async with FleetWorld.running(
            hardware=spec, health=HEALTH, progress=STEPS, jobs=SUSPECTS
        ) as fleet:
            job = await _run_for(fleet, 1200)
            [attempt] = job.status.attempts
            [found] = attempt.stragglers
            assert (found.node, found.compared, found.is_suspected) == (slow, NODES, True)
            assert 95 <= found.percent <= 105
            assert len(set(nodes_of(job.status.placement))) == NODES, "it runs on, on all of them"

            async def tested() -> bool:
                return bool(await _tested(fleet))

            await fleet.until(tested, 3600)
            assert await _tested(fleet) == {slow}
            assert fleet.crashes() == []

    run(main())


@pytest.mark.parametrize(
    ("jobs", "found"),
    [(JobsPolicy(), 1), (replace(SUSPECTS, straggler_percent=0), 0)],
    ids=["reported", "off"],
)
def test_by_default_a_slow_member_is_reported_and_no_node_is_suspected(
    jobs: JobsPolicy, found: int
) -> None:
    spec, _ = _one_slow()

    async def main() -> None:
        async with FleetWorld.running(
            hardware=spec, health=HEALTH, progress=STEPS, jobs=jobs
        ) as fleet:
            job = await _run_for(fleet, 1200)
            assert len(job.status.attempts[0].stragglers) == found
            await asyncio.sleep(3600)
            assert await _tested(fleet) == set()

    run(main())
