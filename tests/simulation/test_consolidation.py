"""Gangs that move so that nodes empty, in whole simulated worlds, and canaries of the checker."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.placement import Nomination, Preemption, PreemptionKind, RolePlacement
from fairlead.api.names import POOL
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.preemption_checker import PreemptionChecker
from fairlead.sim.setup.faults import PERFECT, FaultRates
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import PoolShape, WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import make_job, make_node, make_placement

MOVES = PlacementPolicy(move_min_run_seconds=60.0)


def world_of(faults: FaultRates, *, consolidates: bool = True, seed: int, kills: float) -> World:
    """Run a world of bought nodes, of which a small gang keeps each, to its end."""
    jobs = list[Arrival]()
    for i in range(4):
        for name, gpus, seconds in ((f"ends-{i}", 7, 120.0), (f"stays-{i}", 1, 4000.0)):
            body = job_body(name, members=1, gpus=gpus, run_seconds=seconds)
            jobs.append(Arrival(i * 2.0, name, body))
    options = WorldOptions(
        nodes=0, workload=WorkloadOptions(0, 3600.0), faults=faults,
        pools=(PoolShape("p", 6, idle_seconds=60, consolidates=consolidates),),
        calls_between_kills_mean=kills, steps_between_crashes_mean=kills / 4,
        node_failures_per_day=0.0, drains_per_day=0.0, user_acts_per_day=0.0, policy=MOVES,
    )  # fmt: skip
    found: list[World] = []

    async def main() -> None:
        found.append(World(options, seed, arrivals=jobs))
        await found[0].run()

    run(main())
    return found[0]


def test_small_gangs_gather_on_one_node_and_the_others_go() -> None:
    world = world_of(PERFECT, seed=1, kills=0.0)
    finished = {key[1]: job for key, job in world.checkers.finished.items()}
    assert {job.status.state for job in finished.values()} == {"Succeeded"}
    moved = [job for job in finished.values() if len(job.status.attempts) == 2]
    assert len(moved) == world.preemptions.consolidation.requests == 3
    for job in moved:
        assert [each.reason for each in job.status.attempts] == ["Preempted", "Succeeded"]
        assert "so that 1 node of its pool can be removed" in job.status.attempts[0].message
        assert job.status.user_failures == job.status.infrastructure_failures == 0
    without = world_of(PERFECT, consolidates=False, seed=1, kills=0.0)
    assert without.preemptions.consolidation.requests == 0
    assert world.machine_use.seconds < without.machine_use.seconds


@pytest.mark.parametrize("seed", [1, 2])
def test_consolidation_survives_kills_conflicts_and_lost_answers(seed) -> None:
    faults = FaultRates(
        conflict=0.05, refused=0.05, answer_lost=0.05, stall=0.01, latency_seconds_mean=0.02
    )
    world = world_of(faults, seed=seed, kills=60.0)
    assert world.preemptions.consolidation.requests >= 1
    assert {job.status.state for job in world.checkers.finished.values()} == {"Succeeded"}


class History:
    """The checker; a small gang on n1 and another one on n2, both of a consolidated pool; n3 is
    idle, n4 is in use and of a pool that stays as it is, n5 is of none.
    """

    def __init__(self, clock_error_seconds: float = 0.0) -> None:
        pools = (PoolShape("p", 9, consolidates=True), PoolShape("q", 9))
        self.now = 1000.0
        options = WorldOptions(pools=pools, policy=MOVES)
        self.checker = PreemptionChecker(
            {}, options=options, clock_error_seconds=clock_error_seconds
        )
        for name, pool in (("n1", "p"), ("n2", "p"), ("n3", "p"), ("n4", "q"), ("n5", "")):
            self.checker.node(make_node(name, labels={POOL: pool} if pool else {}), name, self.now)
        self.small = self.put(self.placed("small", "n1"))
        self.put(self.placed("other", "n2"))
        self.fixed = self.put(self.placed("fixed", "n4"))
        self.now += 1000.0

    def placed(self, name: str, node: str) -> Job:
        status = {"attempts": (Attempt(1),)}
        return make_job(name, count=1, placement=make_placement([node]), status=status)

    def put(self, job: Job) -> Job:
        self.checker.job(job, job.metadata.key, self.now)
        return job

    def asked(self, job: Job, to: str | None, empties: tuple[str, ...]) -> Job:
        """The write by which a gang is asked to move."""
        place = None if to is None else Nomination((RolePlacement("worker", (to,)),))
        asked = Preemption(kind=PreemptionKind.EMPTY, empties=empties)
        return replace(job, status=replace(job.status, preemption=asked, nomination=place))


@pytest.mark.parametrize("to", ["n2", "n4", "n5"])
def test_a_move_to_a_node_that_stays_breaks_nothing(to) -> None:
    history = History()
    asked = history.put(history.asked(history.small, to, ("n1",)))
    released = replace(asked.status, placement=None, preemption=None)
    history.put(replace(asked, status=released))
    placed = replace(released, placement=make_placement([to]), nomination=None)
    history.put(replace(asked, status=placed))
    assert history.checker.consolidation.requests == 1


@pytest.mark.parametrize(
    ("who", "to", "empties", "message"),
    [
        ("small", "n2", (), "for no job and no node"),
        ("small", "n2", ("n1", "n2"), "for no job and no node"),
        ("fixed", "n2", ("n4",), "whose pool is to stay as it is"),
        ("small", "n3", ("n1",), "not in use"),
        ("small", "n1", ("n1",), "not in use"),
        ("small", None, ("n1",), "is to move to"),
    ],
)
def test_the_checker_reports_moves_that_may_not_be(who, to, empties, message) -> None:
    history = History()
    with pytest.raises(PromiseBroken, match=message):
        history.put(history.asked(getattr(history, who), to, empties))


def test_the_checker_reports_a_gang_that_stays_beside_another_on_the_node_that_it_is_to_empty():
    history = History()
    history.put(history.placed("beside", "n1"))
    with pytest.raises(PromiseBroken, match="not in use"):
        history.put(history.asked(history.small, "n1", ("n1",)))


@pytest.mark.parametrize(("error", "seconds", "is_late"), [(0, 30, False), (20, 21, True)])
def test_the_checker_reports_a_gang_that_moves_too_soon(
    error: float, seconds: float, is_late: bool
) -> None:
    """By a clock that was slow when it came and is fast now, it has been there for longer."""
    history = History(error)
    young = history.put(history.placed("young", "n1"))
    history.now += seconds
    with nullcontext() if is_late else pytest.raises(PromiseBroken, match="after it came"):
        history.put(history.asked(young, "n2", ("n1",)))


def test_the_checker_reports_a_place_that_is_given_back_with_the_old_one() -> None:
    history = History()
    asked = history.put(history.asked(history.small, "n2", ("n1",)))
    released = replace(asked.status, placement=None, preemption=None, nomination=None)
    with pytest.raises(PromiseBroken, match="gives back the place"):
        history.put(replace(asked, status=released))


def test_the_checker_reports_a_preemption_for_no_job() -> None:
    history = History()
    status = replace(history.small.status, preemption=Preemption(kind=PreemptionKind.EMPTY))
    with pytest.raises(PromiseBroken, match="for no job and no node"):
        history.put(replace(history.small, status=status))
