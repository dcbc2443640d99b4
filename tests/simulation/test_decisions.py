"""Every decision of the scheduler can be made again from what its log has, to the same actions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fairlead.api.resources import JOBS, NODE_POOLS
from fairlead.app.queries.decision_file import RecordedDecision, digest_of, read_lines, write_lines
from fairlead.controllers.placing.decision_log import DecisionLog
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.verdict import Decision
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.loop import run
from fairlead.sim.setup.faults import PERFECT, ROUGH
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import simulate

from .test_balloons import BalloonWorld, gang, holds, play, pool_body
from .test_consolidation import world_of

#: Of a number of decisions one is made again; of the many of a long world, fewer.
EVERY, RARELY = 5, 16
BUSY = WorldOptions(
    nodes=6,
    workload=WorkloadOptions(
        60, 3600.0, members_max=6, run_seconds_median=300.0, run_seconds_max=1200.0,
        elastic_share=0.3,
    ),
    groups=3, faults=replace(ROUGH, stall=0.0), calls_between_kills_mean=300.0,
    steps_between_crashes_mean=0.0, node_failures_per_day=300.0, drains_per_day=100.0,
    user_acts_per_day=2000.0, maintenances_per_day=200.0,
)  # fmt: skip


def saved(log: DecisionLog, number: int) -> RecordedDecision:
    """Return a decision as it is read from its file."""
    found = log.snapshot(number)
    assert found is not None
    return read_lines(list(write_lines(*found)))


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Make decisions again as they are made, and one of some cycles before; count what is met."""
    decide, met = SchedulerController.decide, Counter[str]()

    def checked(scheduler: SchedulerController, now: float) -> Decision[Any]:
        decision = decide(scheduler, now)
        met["decided"] += 1
        if met["decided"] % EVERY == 0:
            cycles = scheduler.decisions.cycles
            for cycle in {each.number: each for each in (cycles[0], cycles[len(cycles) // 2])}:
                recorded = saved(scheduler.decisions, cycle)
                made = recorded.replay()
                assert made == recorded.actions
                assert digest_of(made) == recorded.digest
                note(met, recorded)
        return decision

    monkeypatch.setattr(SchedulerController, "decide", checked)
    return met


def note(met: Counter[str], recorded: RecordedDecision) -> None:
    """Count what a decision did, and what it took from memory."""
    recall, carried = recorded.snapshot.recall, recorded.snapshot.carried
    met["replayed"] += 1
    met.update(write.action for write in recorded.actions)
    met["verdicts"] += len(recall.verdicts)
    met.update(verdict.reason.value for verdict in recall.verdicts)
    met["no_victims"] += len(recall.no_victims)
    met["failed"] += len(recall.failed)
    met["tried"] += sum(each is not None for each in recall.tried)
    met["write_blocked"] += len(carried.write_blocked)
    met["teams"] += len(recorded.snapshot.objects.teams)
    met["claims"] += len(recorded.snapshot.objects.claims)


def test_decisions_about_jobs_with_claims_are_made_again_from_their_files(
    met: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "EVERY", RARELY)
    workload = replace(BUSY.workload, volume_share=0.7, elastic_share=0.0)
    simulate(replace(BUSY, nodes=34, workload=workload, groups=0), seed=1)
    assert min(met["replayed"], met["claims"], met["PlaceJob"]) > 20, met


def test_decisions_of_a_busy_cluster_are_made_again_from_their_files(met: Counter[str]) -> None:
    simulate(BUSY, seed=1)
    assert met["replayed"] > 100, met
    assert min(met["PlaceJob"], met["WriteVerdict"], met["verdicts"], met["no_victims"]) > 20, met
    assert met["ReleaseJob"], met


def test_decisions_that_keep_room_for_several_jobs_are_made_again_from_their_files(
    met: Counter[str],
) -> None:
    policy = PlacementPolicy(starvation_seconds=0.0, backfill_reservations_max=100)
    load = replace(BUSY.workload, jobs=40, limited_share=1.0)
    simulate(replace(BUSY, policy=policy, workload=load), 4)
    assert met["replayed"] > 50, met
    assert min(met["PlaceJob"], met["WriteVerdict"], met["BehindReservation"]) > 10, met


def test_decisions_that_leave_work_to_the_next_one_are_made_again_from_their_files(
    met: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they look at depends on whose turn it is."""
    monkeypatch.setitem(globals(), "EVERY", RARELY)
    monkeypatch.setattr("fairlead.model.inventory.fits.ROWS_MAX", 2)
    monkeypatch.setattr("fairlead.model.inventory.fits._UNCACHED_MAX", 1)
    monkeypatch.setattr("fairlead.decide.placement.waiting.queue._COMPLEX_MAX", 1)
    narrow = PlacementPolicy(
        evaluations_max=1, judgements_max=2, writes_max=3, placements_max=2, fresh_jobs_max=3
    )
    load = replace(BUSY.workload, jobs=25)
    simulate(replace(BUSY, policy=narrow, workload=load), 2)
    assert met["replayed"] > 100, met
    assert min(met["PlaceJob"], met["tried"], met["failed"]) > 20, met


def test_decisions_that_empty_nodes_are_made_again_from_their_files(
    met: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "EVERY", 1)
    world_of(PERFECT, seed=1, kills=0.0)
    assert met["PreemptJob"] >= 3, met


@pytest.mark.parametrize("number", [3, 8])
def test_decisions_of_explored_worlds_are_made_again_from_their_files(
    met: Counter[str], number: int
) -> None:
    simulate(options_of(number), number)
    assert met["replayed"] > 20, met
    assert met["PlaceJob"], met


def test_decisions_that_look_through_balloons_are_made_again_from_their_files(
    met: Counter[str],
) -> None:
    world = BalloonWorld(seed=1)

    async def story() -> None:
        await world.client.create(NODE_POOLS, pool_body(headroomNodes=8))
        await world.until(holds(world, 8), 300, "headroom")
        for number in range(EVERY):
            await world.client.create(JOBS, gang(f"train-{number}", 2), namespace="default")
            await world.until(partial(world.is_running, f"train-{number}"), 120, "start")

    run(play(world, story))
    assert met["PlaceJob"], met
