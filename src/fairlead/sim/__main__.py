"""Run one simulated world: `python -m fairlead.sim --seed 7`.

Its options are those of `WorldOptions`, stated in JSON where they are not the default:

    python -m fairlead.sim --seed 7 --options '{"nodes": 20, "workload": {"jobs": 50}}'

A file states a whole world, such as one that exploration has shrunk:

    python -m fairlead.sim --world FILE
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from fairlead import terminal
from fairlead.sim.exploration import run_world
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.outcome import SimulationOutcome
from fairlead.sim.setup.replay_command import read_options
from fairlead.sim.setup.world_file import read_world
from fairlead.sim.world import simulate


def main() -> int:
    """Print the outcome, one fact a line; exit 1 when a promise is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m fairlead.sim", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int)
    parser.add_argument("--options", metavar="JSON", help="what is not the default")
    parser.add_argument("--world", type=Path, metavar="FILE", help="the world of a file")
    given = parser.parse_args()
    if given.world is not None:
        if given.seed is not None or given.options is not None:
            parser.error("--world states the seed and the options; leave --seed and --options out")
        return _replay(parser, given.world)
    try:
        options = read_options(given.options or "{}")
    except ValueError as error:
        parser.error(f"--options {error}")
    try:
        outcome = simulate(options, given.seed or 0)
    except PromiseBroken as broken:
        terminal.tell(f"a promise is broken: {broken}")
        return 1
    _say(outcome)
    return 0


def _replay(parser: argparse.ArgumentParser, file: Path) -> int:
    """Run the world of a file; exit 1 when a promise is broken, and 2 for no world."""
    try:
        world = read_world(file)
    except ValueError as error:
        parser.error(f"--world {error}")
    ran = run_world(world.options, world.seed, arrivals=world.arrivals)
    if ran.broken:
        terminal.tell(f"a promise is broken: {ran.broken}")
        return 1
    assert ran.outcome is not None
    _say(ran.outcome)
    return 0


def _say(outcome: SimulationOutcome) -> None:
    for name, value in asdict(outcome).items():
        terminal.say(f"{name:14} {value}\n")


if __name__ == "__main__":
    sys.exit(main())
