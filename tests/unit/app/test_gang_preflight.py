"""Gangs that test their nodes before they start, on virtual nodes of which one is not as it should
be.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api.cluster.machine_result import MachineOutcome
from fairlead.api.cluster.node_test import NodeTestCause
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, NODE_TESTS
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.trust import SightLimits
from fairlead.embedded.virtual.hardware import Hardware, Quality
from fairlead.embedded.virtual.profile import HardwareSpec
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job

NODES = 12
MEMBERS = 10
NAMES = [f"h100-{i:06}" for i in range(1, NODES + 1)]
#: Beside the gate: what idle suspects are tested with.
HEALTH = HealthPolicy(
    enabled=True, idle_test_suite="quick", idle_test_after_seconds=80_000,
    sight=SightLimits(nodes_age_seconds_max=float("inf")),
)  # fmt: skip


def _one_bad(quality: Quality) -> tuple[HardwareSpec, str]:
    """Return the hardware of a fleet of which one node has a quality, and its name."""
    for seed in range(10_000):
        spec = HardwareSpec(seed=seed, **{quality.value: 0.1})
        bad = [name for name in NAMES if Hardware(spec).quality(name) is quality]
        if len(bad) == 1:
            return spec, bad[0]
    raise AssertionError("no such seed")


async def _submit(fleet: FleetWorld, wish: str, *, count: int = MEMBERS) -> None:
    spec = to_wire(make_job("wide", gpus=8, count=count))["spec"]
    note = {"fairlead.dev/simulate-seconds": "36000"}
    spec["roles"][0]["template"].setdefault("metadata", {})["annotations"] = note
    spec |= {"preflight": wish, "restart": {"limit": 0, "infrastructureLimit": 0}}
    await fleet.client.create(
        JOBS, {"metadata": {"name": "wide"}, "spec": spec}, namespace="default"
    )


async def _filled(fleet: FleetWorld) -> None:
    await fleet.pool(hold=NODES)

    async def ready() -> bool:
        return len(await fleet.nodes()) == NODES

    await fleet.until(ready, 1200)
    await asyncio.sleep(60)


async def _runs(fleet: FleetWorld) -> Job:
    async def running() -> bool:
        return (await fleet.job("wide")).status.state == "Running"

    await fleet.until(running, 600)
    return await fleet.job("wide")


@pytest.mark.parametrize(
    ("quality", "wish"),
    [(Quality.CORRUPT, "Quick"), (Quality.SLOW, "Network"), (Quality.SLOW, "Quick")],
)
def test_a_gang_leaves_the_bad_node_keeps_the_others_and_pays_nothing(
    quality: Quality, wish: str
) -> None:
    spec, bad = _one_bad(quality)

    async def main() -> None:
        async with FleetWorld.running(hardware=spec, health=HEALTH) as fleet:
            await _filled(fleet)
            await _submit(fleet, wish, count=NODES - 1)
            job = await _runs(fleet)
            status = job.status
            assert bad not in nodes_of(status.placement)
            first = status.attempts[0]
            if len(status.attempts) == 1:
                assert first.preflight is not None
                pytest.skip("the planner did not choose the bad node")
            assert (first.reason, first.cause, first.nodes_lost) == (
                "PreflightFailed", None, (bad,),
            )  # fmt: skip
            assert first.preflight is not None
            assert first.preflight.nodes == (bad,)
            assert (status.user_failures, status.infrastructure_failures) == (0, 0)
            assert status.attempts[1].preflight is not None
            assert status.attempts[1].preflight.outcome is MachineOutcome.PASSED

            async def tested() -> bool:
                tests = (await fleet.client.list(NODE_TESTS)).items
                return any(
                    each.spec.node == bad and each.spec.cause is NodeTestCause.IDLE
                    for each in tests
                )  # fmt: skip

            await fleet.until(tested, 3600)
            assert fleet.crashes() == []

    run(main())


def test_a_gang_on_good_nodes_starts_after_the_test() -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            await _filled(fleet)
            await _submit(fleet, "Network")
            [attempt] = (await _runs(fleet)).status.attempts
            assert attempt.preflight is not None
            assert attempt.preflight.outcome is MachineOutcome.PASSED

    run(main())


def test_a_machine_that_hangs_holds_the_start_up_for_no_longer_than_the_test_may() -> None:
    spec, _ = _one_bad(Quality.HANGING)

    async def main() -> None:
        async with FleetWorld.running(hardware=spec) as fleet:
            await _filled(fleet)
            await _submit(fleet, "Quick", count=NODES)
            [attempt] = (await _runs(fleet)).status.attempts
            assert attempt.preflight is not None
            assert attempt.preflight.outcome is MachineOutcome.ERROR

    run(main())


def test_whatever_instant_the_controllers_die_at_a_gang_gets_through_its_gate() -> None:
    spec, bad = _one_bad(Quality.CORRUPT)

    async def main(dies_after: float) -> None:
        async with FleetWorld.running(hardware=spec) as fleet:
            await _filled(fleet)
            await _submit(fleet, "Quick", count=NODES - 1)
            await asyncio.sleep(dies_after)
            await fleet.kill()
            status = (await _runs(fleet)).status
            assert bad not in nodes_of(status.placement)
            assert len(status.attempts) <= 2
            assert (status.user_failures, status.infrastructure_failures) == (0, 0)

    for dies_after in (0.2, 2.0, 6.0, 11.0, 12.5, 14.0, 20.0):
        run(main(dies_after))


def test_the_default_of_a_team_or_the_cluster_is_the_wish_of_jobs_without_one() -> None:
    from fairlead.api.jobs.job_defaults import JobDefaults, JobTerms
    from fairlead.api.jobs.preflight import PreflightSuite
    from fairlead.decide.admission.job_defaults import fill

    job = {"spec": to_wire(make_job("a"))["spec"]}
    terms = JobTerms(defaults=JobDefaults(preflight=PreflightSuite.QUICK))
    filled = fill(job, None, team="", teams=None, terms=terms)
    assert filled.fields == {"preflight": "Quick"}
    assert filled.note == "preflight=cluster"
    own = {"spec": {**job["spec"], "preflight": "None"}}
    assert fill(own, None, team="", teams=None, terms=terms).fields == {}
