"""Gangs that move for others in whole simulated worlds, and canaries of the checker."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.placement import (
    Nomination,
    Preemption,
    PreemptionKind,
    RolePlacement,
    Victim,
)
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.preemption_checker import PreemptionChecker
from fairlead.sim.setup.faults import PERFECT, FaultRates
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import make_job, make_node, make_placement

MOVES = PlacementPolicy(starvation_seconds=30.0, defragments=True, move_min_run_seconds=60.0)


def world_of(faults: FaultRates, arrivals: list[Arrival], *, seed: int, kills: float) -> World:
    """Run a world of four nodes to its end."""
    options = WorldOptions(
        nodes=4, workload=WorkloadOptions(0, 1800.0), faults=faults,
        calls_between_kills_mean=kills, steps_between_crashes_mean=kills / 4,
        node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0, policy=MOVES,
    )  # fmt: skip
    found: list[World] = []

    async def main() -> None:
        found.append(World(options, seed, arrivals=arrivals))
        await found[0].run()

    run(main())
    return found[0]


def scattered() -> list[Arrival]:
    """Four gangs that fill every node, of which the short ones leave half of each behind."""
    jobs = list[Arrival]()
    for i in range(4):
        body = job_body(f"stays-{i}", members=1, gpus=4, run_seconds=6000.0)
        jobs.append(Arrival(i * 2.0, f"stays-{i}", body))
        body = job_body(f"ends-{i}", members=1, gpus=4, run_seconds=1200.0)
        jobs.append(Arrival(i * 2.0 + 1.0, f"ends-{i}", body))
    body = job_body("wide", members=2, gpus=8, run_seconds=60.0)
    return [*jobs, Arrival(600.0, "wide", body)]


def test_gangs_move_for_a_wide_one_and_run_on_at_once() -> None:
    world = world_of(PERFECT, scattered(), seed=1, kills=0.0)
    finished = {key[1]: job for key, job in world.checkers.finished.items()}
    assert {job.status.state for job in finished.values()} == {"Succeeded"}
    assert world.preemptions.moves == 2
    moved = [job for job in finished.values() if len(job.status.attempts) == 2]
    assert len(moved) == 2
    for job in moved:
        assert [each.reason for each in job.status.attempts] == ["Preempted", "Succeeded"]
        assert "moves to other nodes" in job.status.attempts[0].message
        assert job.status.user_failures == job.status.infrastructure_failures == 0
        assert job.status.attempts[1].begun_at < finished["wide"].status.finished_at
    stays = [job for name, job in finished.items() if name.startswith("stays")]
    assert finished["wide"].status.finished_at < min(job.status.finished_at for job in stays)


@pytest.mark.parametrize("seed", [2, 4, 5])
def test_moves_survive_kills_conflicts_and_lost_answers(seed) -> None:
    faults = FaultRates(
        conflict=0.05, refused=0.05, answer_lost=0.05, stall=0.01, latency_seconds_mean=0.02
    )
    world = world_of(faults, scattered(), seed=seed, kills=40.0)
    assert world.preemptions.moves >= 1
    states = {job.status.state for job in world.checkers.finished.values()}
    assert states == {"Succeeded"}


class History:
    """The checker, a gang of one node that is asked to move, and the job that it moves for."""

    def __init__(self) -> None:
        self.checker = PreemptionChecker({"high": 10})
        for name in ("n1", "n2", "n3"):
            self.checker.node(make_node(name), name, 1000.0)
        mover = make_job(
            "mover", count=1, placement=make_placement(["n1"]), status={"attempts": (Attempt(1),)}
        )
        wide = make_job("wide", count=1, spec={"priority_class_name": "high"})
        victim = Victim("default", "mover", mover.metadata.uid)
        kept = Nomination((RolePlacement("worker", ("n1",)),), (victim,), kind=PreemptionKind.MOVE)
        self.put(mover)
        self.wide = self.put(replace(wide, status=replace(wide.status, nomination=kept)))
        self.place = Nomination((RolePlacement("worker", ("n2",)),))
        self.mover = mover

    def put(self, job: Job) -> Job:
        self.checker.job(job, job.metadata.key, 1000.0)
        return job

    def asked(self, place: Nomination | None) -> Job:
        """The write by which the gang is asked to move."""
        meta = self.wide.metadata
        request = Preemption(meta.namespace, meta.name, meta.uid, 10, kind=PreemptionKind.MOVE)
        status = replace(self.mover.status, preemption=request, nomination=place)
        return replace(self.mover, status=status)


def test_a_move_with_a_place_that_is_kept_until_it_is_taken_breaks_nothing() -> None:
    history = History()
    asked = history.put(history.asked(history.place))
    released = replace(asked.status, placement=None, preemption=None)
    history.put(replace(asked, status=released))
    placed = replace(released, placement=make_placement(["n2"]), nomination=None)
    history.put(replace(asked, status=placed))
    assert history.checker.moves == 1


def test_the_checker_reports_a_move_without_a_place() -> None:
    history = History()
    with pytest.raises(PromiseBroken, match="is to move to"):
        history.put(history.asked(None))


def test_the_checker_reports_a_place_that_is_given_back_with_the_old_one() -> None:
    history = History()
    asked = history.put(history.asked(history.place))
    released = replace(asked.status, placement=None, preemption=None, nomination=None)
    with pytest.raises(PromiseBroken, match="gives back the place"):
        history.put(replace(asked, status=released))


def test_the_checker_reports_a_move_for_a_job_of_lower_priority() -> None:
    history = History()
    asked = history.asked(history.place)
    high = replace(history.mover.spec, priority_class_name="high")
    history.checker.job(None, asked.metadata.key, 1000.0)
    history.put(replace(history.mover, spec=high))
    low = replace(history.wide.spec, priority_class_name="")
    history.checker.job(None, history.wide.metadata.key, 1000.0)
    history.put(replace(history.wide, spec=low))
    with pytest.raises(PromiseBroken, match="moves for one of"):
        history.put(replace(asked, spec=high))


def test_the_checker_reports_a_gang_that_moved_and_is_not_placed() -> None:
    history = History()
    asked = history.put(history.asked(history.place))
    history.put(replace(asked, status=replace(asked.status, placement=None, preemption=None)))
    history.checker.check_by_clock(4000.0)
    with pytest.raises(PromiseBroken, match="is not placed"):
        history.checker.check_by_clock(5000.0)
