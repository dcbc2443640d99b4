"""Explore random worlds of many shapes: `python -m fairlead.sim.explore --minutes 10`.

A number names a world: from it follow its shape (nodes, gang sizes, kills, stalls, users, failures,
drains, how far watches lag) and its seed. Worlds are run on all cores until the time is up. Every
broken promise is printed with the one command that replays it, and the end says which faults met
which calls, so that a fault that never came to pass is seen. Exit code 1 when a promise broke.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from inspect import CORO_CREATED, getcoroutinestate
from types import FrameType
from typing import Any

import msgspec

from fairlead.api.quantity import GPU
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.jobs.policy import PeerNaming
from fairlead.decide.pinning import Binding
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.embedded.virtual.profile import SIMULATE_SECONDS
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.worker_process import end_with_parent
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.disturbances import GROUP_MEMBERS_MAX, GROUP_SECONDS_MAX
from fairlead.sim.faults import FaultRates
from fairlead.sim.loop import run
from fairlead.sim.team_changes import (
    TEAM_NAMES,
    budget_seconds,
    draw_changes,
    with_budgets,
    with_strict_order,
)
from fairlead.sim.training_operator import POD_GPUS
from fairlead.sim.workload import WorkloadOptions, generate
from fairlead.sim.world import Outcome, World
from fairlead.sim.world_options import DAY_SECONDS, PoolShape, WorldOptions

#: A world that takes longer than this, in real time, counts as one that does not end.
_WORLD_SECONDS_MAX = 900.0
#: When the time is up, the worlds under way get as much time again, and at least this.
_REST_SECONDS_MIN = 60.0
#: Attempts that a job may need, each as long as its program.
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Found:
    """What one world came to: `broken` is "" when every promise held.

    `unfit` counts the jobs that no empty cluster of its size could hold; `budgeted` the starts of
    jobs whose team has a budget, `bound` the placements that a topology binds, `dated` the attempts
    that began while nodes had maintenance windows, `moved` the requests to move for others,
    `emptied` those to empty nodes, `spares` the spares that repairs took. A world that `is_cut_off`
    had no time to end.
    """

    number: int
    broken: str = ""
    is_cut_off: bool = False
    unfit: int = 0
    budgeted: int = 0
    bound: int = 0
    dated: int = 0
    moved: int = 0
    spares: int = 0
    emptied: int = 0
    writes: int = 0
    machines: int = 0
    machine_hours: float = 0.0
    idle_hours: float = 0.0
    met: Counter[str] = field(default_factory=Counter)


def options_of(number: int) -> WorldOptions:
    """Return the shape of the world that a number names."""
    rng = random.Random(f"shape/{number}")  # noqa: S311 # a simulation, no secret
    nodes = rng.choice((1, 2, 4, 6, 10, 16, 24))
    workload = WorkloadOptions(
        jobs=rng.choice((5, 20, 60, 120)),
        seconds=rng.choice((600.0, 1800.0, 3600.0, 7200.0)),
        members_max=rng.choice((1, 1, 2, 4, 8, 16)),
        run_seconds_median=rng.choice((30.0, 60.0, 300.0)),
        run_seconds_max=rng.choice((120.0, 600.0, 3600.0)),
        failing_share=rng.choice((0.0, 0.05, 0.3)),
    )
    faults = FaultRates(
        conflict=rng.choice((0.0, 0.02, 0.1)),
        refused=rng.choice((0.0, 0.02, 0.1)),
        answer_lost=rng.choice((0.0, 0.01, 0.1)),
        stall=rng.choice((0.0, 0.0, 0.001, 0.02, 0.05)),
        stalls_creates=rng.random() < 0.3,
        latency_seconds_mean=rng.choice((0.001, 0.005, 0.05)),
        watch_life_seconds_mean=rng.choice((0.0, 20.0, 600.0)),
        watch_expired=rng.choice((0.0, 0.1, 0.5)),
        watch_lag_seconds_max=rng.choice((0.0, 0.2, 0.2, 2.0)),
    )
    options = WorldOptions(
        nodes=nodes,
        workload=workload,
        faults=faults,
        lease_seconds=rng.choice((15.0, 15.0, 60.0)),
        # Below some 60 a replica hardly gets past its lists.
        calls_between_kills_mean=rng.choice((0.0, 0.0, 60.0, 200.0, 1000.0)),
        steps_between_crashes_mean=rng.choice((0.0, 0.0, 10.0, 40.0, 200.0)),
        binding=rng.choice((None, Binding.DIRECT, Binding.DIRECT, Binding.PINNED)),
        peer_naming=rng.choice(tuple(PeerNaming)),
        node_failures_per_day=rng.choice((0.0, 60.0, 300.0)),
        node_repair_seconds=rng.choice((120.0, 3600.0)),
        drains_per_day=rng.choice((0.0, 50.0, 500.0)),
        user_acts_per_day=rng.choice((0.0, 300.0, 3000.0, 40_000.0)),
        groups=rng.choice((0, 0, 3, 10)),
        clock_jumps_per_day=rng.choice((0.0, 0.0, 500.0)),
    )
    ruled = rng.choice((0.0, 0.0, 0.3, 1.0))  # last, so that worlds without rules stay the same
    options = replace(options, workload=replace(workload, ruled_share=ruled))
    if options.binding is None or nodes == 1:  # no adoption; a group may be enlarged to two nodes
        options = replace(options, groups=0)
    options = _with_teams(options, number)
    options = _with_pools(options, number)
    options = _with_topology(options, number)
    options = _with_spares(options, number)
    options = _with_limits(options, number)  # the jobs that budgets are drawn for have them
    options = _with_budgets(options, number)
    options = _with_strict_order(options, number)
    options = _with_maintenance(options, number)
    options = _with_moves(options, number)
    options = _with_elastic(options, number)
    options = _with_consolidation(options, number)
    # As if all ran one after another: on one node they do.
    total = _run_seconds(options, number) + options.groups * GROUP_SECONDS_MAX
    return replace(options, settle_seconds_max=options.settle_seconds_max + _ATTEMPTS * total)


def _with_teams(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world with teams, or one without: as its number says."""
    rng = random.Random(f"teams/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.5:
        return options
    changes = draw_changes(rng, options.nodes, options.workload.seconds)
    teams = tuple(dict.fromkeys(change.name for change in changes))
    workload = replace(options.workload, teams=teams)
    policy = TeamsPolicy(exchange_seconds=rng.choice((0.0, 60.0, 600.0)))
    return replace(options, workload=workload, team_changes=changes, teams=policy)


def _with_pools(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world with node pools beside or instead of its nodes, or one without."""
    rng = random.Random(f"pools/{number}")  # noqa: S311 # a simulation, no secret
    if options.team_changes or rng.random() < 0.3:  # whose shares are of nodes that stay
        return options
    pools: list[PoolShape] = []
    for number in range(rng.choice((1, 1, 2, 3))):
        most, domains = rng.choice((4, 8, 16, 40)), rng.choice((0, 0, 1, 2, 3))
        pools.append(
            PoolShape(
                f"pool-{number}", most, min=rng.choice((0, 0, 1)), headroom=rng.choice((0, 0, 2)),
                weight=rng.choice((0, 1)), domains=domains,
                domain_max=rng.choice((most, -(-most // max(1, domains)))),
                ready_seconds=rng.choice((600, 1800)), idle_seconds=rng.choice((60, 600)),
                per_launch_max=rng.choice((1, 4, 100)),
            )
        )  # fmt: skip
    cloud = CloudRates(
        launch_seconds=rng.choice((5.0, 60.0, 240.0)),
        launch_jitter_seconds=rng.choice((0.0, 60.0)),
        refusal=rng.choice((0.0, 0.1, 0.5)),
        error=rng.choice((0.0, 0.05, 0.2)),
        never_registers=rng.choice((0.0, 0.0, 0.05)),
        capacity=rng.choice((1_000_000, sum(pool.max for pool in pools) // 2)),
        latency_seconds_mean=rng.choice((0.0, 0.5, 5.0)),
        list_lag_seconds_max=rng.choice((0.0, 10.0, 60.0)),
        cut=rng.choice((0.0, 0.05)),
        short=rng.choice((0.0, 0.05)),
    )
    nodes = rng.choice((0, options.nodes))
    more = 3 * DAY_SECONDS if cloud.never_registers else 0.0
    return replace(
        options, nodes=nodes, pools=tuple(pools), cloud=cloud,
        groups=options.groups if nodes else 0,
        settle_seconds_max=options.settle_seconds_max + more,
    )  # fmt: skip


def _with_spares(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world some of whose pools keep spares, or as it was."""
    rng = random.Random(f"spares/{number}")  # noqa: S311 # a simulation, no secret
    pools = tuple(replace(p, spares=min(rng.choice((0, 1, 2)), p.max // 2)) for p in options.pools)
    return replace(options, pools=pools)


def _with_topology(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world of racks, blocks and zones of other sizes whose jobs ask for them, or not."""
    rng = random.Random(f"topology/{number}")  # noqa: S311 # a simulation, no secret
    if options.pools or rng.random() < 0.5:  # nodes that are bought are in no rack
        return options
    shape = msgspec.structs.replace(
        options.profile.node, nodes_per_rack=rng.choice((2, 4, 8)),
        racks_per_block=rng.choice((1, 2, 4)), blocks_per_zone=rng.choice((1, 2, 32)),
    )  # fmt: skip
    return replace(
        options, profile=msgspec.structs.replace(options.profile, node=shape),
        workload=replace(options.workload, bound_share=rng.choice((0.3, 1.0))),
    )  # fmt: skip


def _with_budgets(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world of teams with budgets that their jobs exceed, or as it was."""
    rng = random.Random(f"budgets/{number}")  # noqa: S311 # a simulation, no secret
    if not options.team_changes or rng.random() < 0.5:
        return options
    hours = gpu_hours_of(options, number)
    changes = with_budgets(rng, options.team_changes, hours)
    return replace(
        options, team_changes=changes,
        settle_seconds_max=options.settle_seconds_max + budget_seconds(changes, hours, _ATTEMPTS),
    )  # fmt: skip


def _with_strict_order(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which some teams start their jobs in strict order, or as it was."""
    rng = random.Random(f"strict/{number}")  # noqa: S311 # a simulation, no secret
    if not options.team_changes or rng.random() < 0.5:
        return options
    return replace(options, team_changes=with_strict_order(rng, options.team_changes))


def _with_maintenance(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world whose nodes have maintenance windows, and some jobs time limits, or not."""
    rng = random.Random(f"maintenance/{number}")  # noqa: S311 # a simulation, no secret
    if options.team_changes or options.pools or rng.random() < 0.5:
        return options  # the checkers of shares and pools know no windows
    return replace(
        options, maintenances_per_day=rng.choice((50.0, 500.0, 5000.0)),
        workload=replace(
            options.workload,
            limited_share=options.workload.limited_share or rng.choice((0.5, 0.5, 1.0)),
        ),
    )  # fmt: skip


def _with_limits(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which jobs have time limits, and room is kept for the head of the queue
    earlier or later, and for more jobs, or as it was.
    """
    rng = random.Random(f"limits/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.5:
        return options
    share = rng.choice((0.5, 1.0))
    return replace(
        options, workload=replace(options.workload, limited_share=share),
        policy=replace(
            options.policy, starvation_seconds=rng.choice((0.0, 60.0, 900.0)),
            backfill_reservations_max=rng.choice((1, 1, 3, 100)),
        ),
    )  # fmt: skip


def _with_moves(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which gangs move for the head of the queue, or as it was."""
    rng = random.Random(f"moves/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.5:
        return options
    policy = replace(
        options.policy, defragments=True, move_min_run_seconds=rng.choice((0.0, 60.0, 600.0)),
        moves_max=rng.choice((1, 3, 8)), starvation_seconds=rng.choice((0.0, 30.0, 300.0)),
    )  # fmt: skip
    return replace(options, policy=policy)


def _with_elastic(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which some gangs may run with fewer members, or as it was."""
    rng = random.Random(f"elastic/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.6:
        return options
    share = rng.choice((0.3, 1.0))
    return replace(options, workload=replace(options.workload, elastic_share=share))


def _with_consolidation(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world whose node pools are consolidated, or as it was."""
    rng = random.Random(f"consolidation/{number}")  # noqa: S311 # a simulation, no secret
    if not options.pools or rng.random() < 0.5:
        return options
    policy = replace(
        options.policy, move_min_run_seconds=rng.choice((0.0, 60.0, 600.0)),
        moves_max=rng.choice((1, 3, 8)),
        consolidation_horizon_seconds=rng.choice((600.0, 3600.0, 36_000.0)),
    )  # fmt: skip
    pools = tuple(replace(pool, consolidates=rng.random() < 0.8) for pool in options.pools)
    workload = replace(  # whose last jobs go on for long
        options.workload, run_seconds_median=rng.choice((60.0, 300.0)), run_seconds_max=3600.0
    )
    return replace(options, pools=pools, policy=policy, workload=workload)


def gpu_hours_of(options: WorldOptions, seed: int) -> dict[str, float]:
    """Return what the jobs of each team need: of one attempt each."""
    seconds = dict.fromkeys(options.workload.teams, 0.0)
    for body in _bodies(options, seed):
        role = body["spec"]["roles"][0]
        gpus = int(role["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])
        seconds[body["metadata"]["namespace"]] += role["count"] * gpus * _seconds_of(body)
    # Groups of the other tool are in the namespace that the first team has, too.
    members = min(options.nodes, GROUP_MEMBERS_MAX)
    seconds[TEAM_NAMES[0]] += options.groups * members * POD_GPUS * GROUP_SECONDS_MAX
    return {team: gpu_seconds / 3600.0 for team, gpu_seconds in seconds.items()}


def _run_seconds(options: WorldOptions, seed: int) -> float:
    """Return the run time of all jobs of a world together."""
    return sum(_seconds_of(body) for body in _bodies(options, seed))


def _bodies(options: WorldOptions, seed: int) -> Iterator[dict[str, Any]]:
    workload = random.Random(f"{seed}/workload")  # noqa: S311 # as in World
    return (arrival.body for arrival in generate(options.workload, workload))


def _seconds_of(body: dict[str, Any]) -> float:
    template = body["spec"]["roles"][0]["template"]
    return float(template["metadata"]["annotations"][SIMULATE_SECONDS])


class _CutOff(BaseException):
    """The time for exploration is up; no containment of faults catches it."""


def explore_one(number: int, seconds_max: float = _WORLD_SECONDS_MAX) -> Found:
    """Run the world that a number names, for so much real time at most.

    Faults of our own code count as broken promises.
    """
    options = options_of(number)
    world: World | None = None

    async def main() -> Outcome:
        nonlocal world
        world = World(options, number)
        return await world.run()

    broken = ""
    is_limited = seconds_max < _WORLD_SECONDS_MAX
    signal.signal(signal.SIGALRM, _cut_off if is_limited else _give_up)
    begun = main()
    try:
        signal.setitimer(signal.ITIMER_REAL, min(seconds_max, _WORLD_SECONDS_MAX))
        run(begun)
    except _CutOff:
        return Found(number, is_cut_off=True)
    except BaseException as error:  # whatever it is, it is what was looked for
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if isinstance(error, BaseExceptionGroup) and error.subgroup(_CutOff):
            return Found(number, is_cut_off=True)
        broken = _first(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if getcoroutinestate(begun) == CORO_CREATED:  # the time was up before it ran
            begun.close()
    assert world is not None
    found = Found(
        number, broken, unfit=len(world.unfit), budgeted=world.budgets.judged,
        bound=world.topology.checked, dated=world.maintenance.judged, moved=world.preemptions.moves,
        emptied=world.preemptions.consolidation.requests,
        writes=world.writes, met=world.faults_met,
    )  # fmt: skip
    if (fleet := world.fleet) is None:
        return found
    hours = (fleet.use.seconds / 3600, fleet.use.idle_seconds / 3600)
    return replace(
        found, machines=fleet.use.launched, machine_hours=hours[0], idle_hours=hours[1],
        spares=fleet.spares.taken,
    )  # fmt: skip


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise PromiseBroken(f"3: the world has not ended after {_WORLD_SECONDS_MAX:g} s of real time")


def _cut_off(_signal: int, _frame: FrameType | None) -> None:
    raise _CutOff


def _first(error: BaseException) -> str:
    """Return the first broken promise in a group of errors, else the first error, in words."""
    if isinstance(error, BaseExceptionGroup):
        found = error.subgroup(PromiseBroken) or error
        return _first(found.exceptions[0])
    text = str(error)
    return text if isinstance(error, PromiseBroken) else f"{type(error).__name__}: {text}"


def explore(minutes: float, processes: int, first: int) -> list[Found]:
    """Run worlds until the time is up; print those that break a promise at once. Return all."""
    clock = SystemClock()
    until = clock.now() + 60 * minutes
    done: list[Found] = []
    number = first
    with ProcessPoolExecutor(
        processes, initializer=end_with_parent, max_tasks_per_child=50
    ) as pool:
        under_way = set[Future[Found]]()
        while under_way or clock.now() < until:
            while len(under_way) < processes and clock.now() < until:
                left = until - clock.now() + max(60 * minutes, _REST_SECONDS_MIN)
                under_way.add(pool.submit(explore_one, number, left))
                number += 1
            ready, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in ready:
                done.append(future.result())
                if done[-1].broken:
                    sys.stdout.write(broken_text(done[-1]))
                    sys.stdout.flush()
    return done


def broken_text(found: Found) -> str:
    """Return what people read of a broken promise: which, and how to see it again."""
    return (
        f"A PROMISE IS BROKEN: {found.broken}\n"
        f"  replay: python -m fairlead.sim.explore --world {found.number}\n"
    )


def summary(done: list[Found]) -> str:
    """Return the counts: worlds, writes, and how often each fault met each kind of call."""
    met = sum((found.met for found in done), Counter[str]())
    lines = [f"{met[what]:>9}  {what}" for what in sorted(met)]
    broken = sum(bool(found.broken) for found in done)
    unfit = sum(bool(found.unfit) for found in done)
    lines.append(
        f"{len(done)} worlds, {sum(found.writes for found in done)} writes, {met.total()} faults: "
        f"{broken} broke a promise; {unfit} had jobs that can never fit, and waited saying so"
    )
    lines.append(
        f"{sum(found.budgeted for found in done)} starts were judged by a budget, "
        f"{sum(found.bound for found in done)} placements by a topology, "
        f"{sum(found.dated for found in done)} by maintenance windows, "
        f"{sum(found.moved for found in done)} requests to move for others and "
        f"{sum(found.emptied for found in done)} to empty nodes, "
        f"{sum(found.spares for found in done)} spares taken"
    )
    if cut_off := sum(found.is_cut_off for found in done):
        lines.append(f"{cut_off} of them had not ended when the time was up, and show nothing")
    pooled = [found for found in done if found.machines]
    if pooled:
        hours, idle = (sum(found.machine_hours for found in pooled),
                       sum(found.idle_hours for found in pooled))  # fmt: skip
        lines.append(
            f"{len(pooled)} worlds bought {sum(found.machines for found in pooled)} machines for "
            f"{hours:.0f} hours, {idle / hours:.0%} of them idle"
        )
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Explore, or replay one world."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.sim.explore", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=None, help="number of the first world")
    parser.add_argument("--world", type=int, default=None, help="replay this one and no other")
    given = parser.parse_args()
    if given.world is not None:
        sys.stdout.write(f"{options_of(given.world)}\n")
        done = [explore_one(given.world)]
        sys.stdout.write(broken_text(done[0]) if done[0].broken else "")
    else:
        first = given.first if given.first is not None else int.from_bytes(os.urandom(4)) * 10_000
        done = explore(given.minutes, given.processes, first)
    sys.stdout.write(summary(done))
    return 1 if any(found.broken for found in done) else 0


if __name__ == "__main__":
    sys.exit(main())
