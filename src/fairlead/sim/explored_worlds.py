"""The worlds that `sim/explore.py` runs: a number names one; its shape follows from it.

Each part is drawn from a stream of its own: a new one leaves worlds without it as they were.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from fairlead.cloud.simulated import CloudRates
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.jobs.policy import PeerNaming
from fairlead.decide.pinning import Binding
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.sim.settling import gpu_hours
from fairlead.sim.setup.faults import FaultRates
from fairlead.sim.setup.team_changes import (
    draw_changes,
    with_budgets,
    with_replacements,
    with_strict_order,
)
from fairlead.sim.setup.workload import WorkloadOptions, generate
from fairlead.sim.setup.world_options import PoolShape, WorldOptions


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
    options = _with_arrays(options, number)
    options = _with_consolidation(options, number)
    options = _with_hardware(options, number)
    options = _with_deletions(options, number)
    options = _with_slow_answers(options, number)
    return _with_health(options, number)


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
    groups = options.groups if nodes else 0
    return replace(options, nodes=nodes, pools=tuple(pools), cloud=cloud, groups=groups)


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
    workload = random.Random(f"{number}/workload")  # noqa: S311 # as in World
    hours = gpu_hours(options, (job.body for job in generate(options.workload, workload)))
    return replace(options, team_changes=with_budgets(rng, options.team_changes, hours))


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
    return replace(
        options, workload=replace(options.workload, limited_share=rng.choice((0.5, 1.0))),
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
    workload = replace(options.workload, elastic_share=rng.choice((0.3, 1.0)))
    return replace(options, workload=workload)


def _with_arrays(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which some of the small jobs are arrays, or as it was."""
    rng = random.Random(f"arrays/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.7:
        return options
    workload = replace(
        options.workload, array_share=rng.choice((0.05, 0.3)), elements_max=rng.choice((5, 40))
    )
    return replace(options, workload=workload)


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


def _with_hardware(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world with GPU faults, slow nodes and storage that stalls, or as it was."""
    rng = random.Random(f"hardware/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.6:
        return options
    return replace(
        options, gpu_faults_per_day=rng.choice((0.0, 50.0, 500.0)),
        gpu_repair_seconds=rng.choice((60.0, 1800.0)),
        slowdowns_per_day=rng.choice((0.0, 50.0, 500.0)), slow_factor=rng.choice((1.5, 4.0, 50.0)),
        slow_seconds=rng.choice((60.0, 1800.0)),
        stalls_per_day=rng.choice((0.0, 0.0, 20.0, 200.0)),
        stall_seconds=rng.choice((30.0, 600.0)),
    )  # fmt: skip


def _with_deletions(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which people delete jobs, node pools and teams, or as it was."""
    rng = random.Random(f"deletions/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.5:
        return options
    return replace(
        options, deletions_per_day=rng.choice((300.0, 3000.0, 10_000.0)),
        pool_deletions_per_day=rng.choice((0.0, 50.0, 300.0)) if options.pools else 0.0,
        team_changes=with_replacements(rng, options.team_changes),
    )  # fmt: skip


def _with_slow_answers(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world in which writes are answered late and out of order, or as it was."""
    rng = random.Random(f"answers/{number}")  # noqa: S311 # a simulation, no secret
    if rng.random() < 0.7:
        return options
    lag = rng.choice((0.05, 0.5, 3.0))
    return replace(options, faults=replace(options.faults, answer_lag_seconds_mean=lag))


def _with_health(options: WorldOptions, number: int) -> WorldOptions:
    """Return a world whose nodes fall sick and are taken out for it, or as it was."""
    rng = random.Random(f"health/{number}")  # noqa: S311 # a simulation, no secret
    if options.team_changes or options.pools or rng.random() < 0.6:
        return options  # the checkers of shares and pools know no drains
    health = HealthPolicy(
        enabled=True, act_on=rng.choice((("*",), ("*",), ("gpu-xid",))),
        critical_drain_seconds=rng.choice((60, 600)), eviction_seconds=rng.choice((0, 600)),
        degraded_drain_seconds=rng.choice((300, 3600)),
        cosmetic_drain_seconds=rng.choice((900, 86_400)),
        reset_seconds=rng.choice((60, 600)), reboot_seconds=rng.choice((120, 1800)),
    )  # fmt: skip
    options = replace(
        options, health=health, sick_nodes_per_day=rng.choice((100.0, 500.0, 5000.0)),
        sick_seconds=rng.choice((60.0, 600.0, 3600.0)),
        sick_storms_per_day=rng.choice((0.0, 50.0)),
    )  # fmt: skip
    return _with_node_tests(options, rng)


def _with_node_tests(options: WorldOptions, rng: random.Random) -> WorldOptions:
    """Return a world whose idle nodes are tested, again and again, or as it was."""
    if rng.random() < 0.5:
        return options
    health = replace(
        options.health, test_suite="quick", idle_test_suite="quick",
        idle_test_after_seconds=rng.choice((30, 1800)),
        idle_test_interval_seconds=rng.choice((120, 7200)),
        idle_test_share=rng.choice((0.005, 0.2, 1.0)),
    )  # fmt: skip
    return replace(
        options, health=health, infant_share=rng.choice((0.0, 0.1)),
        silent_faults_per_day=rng.choice((0.0, 20.0)),
    )  # fmt: skip
