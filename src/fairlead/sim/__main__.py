"""Run one simulated world: `python -m fairlead.sim --seed 7`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace

from fairlead import terminal
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.faults import ROUGH
from fairlead.sim.workload import WorkloadOptions
from fairlead.sim.world import simulate
from fairlead.sim.world_options import WorldOptions


def main() -> int:
    """Print the outcome, one fact a line; exit 1 when a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=86_400.0, help="of simulated time")
    parser.add_argument("--members-max", type=int, default=64)
    parser.add_argument("--calls-between-kills", type=float, default=800.0, metavar="MEAN")
    parser.add_argument("--steps-between-crashes", type=float, default=200.0, metavar="MEAN")
    parser.add_argument("--groups", type=int, default=0, help="of another tool's pods")
    parser.add_argument("--node-failures-per-day", type=float, default=20.0)
    parser.add_argument("--drains-per-day", type=float, default=50.0)
    parser.add_argument("--user-acts-per-day", type=float, default=100.0)
    parser.add_argument("--clock-jumps-per-day", type=float, default=0.0)
    parser.add_argument("--stall", type=float, default=ROUGH.stall, metavar="PROBABILITY")
    given = parser.parse_args()
    options = WorldOptions(
        nodes=given.nodes,
        workload=WorkloadOptions(given.jobs, given.seconds, members_max=given.members_max),
        groups=given.groups,
        calls_between_kills_mean=given.calls_between_kills,
        steps_between_crashes_mean=given.steps_between_crashes,
        node_failures_per_day=given.node_failures_per_day,
        drains_per_day=given.drains_per_day,
        user_acts_per_day=given.user_acts_per_day,
        clock_jumps_per_day=given.clock_jumps_per_day,
        faults=replace(ROUGH, stall=given.stall),
    )
    try:
        outcome = simulate(options, given.seed)
    except PromiseBroken as broken:
        terminal.tell(f"a promise is broken: {broken}")
        return 1
    for name, value in asdict(outcome).items():
        terminal.say(f"{name:14} {value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
