"""Run one simulated world: `python -m fairlead.sim --seed 7`.

Its options are those of `WorldOptions`, stated in JSON where they are not the default:

    python -m fairlead.sim --seed 7 --options '{"nodes": 20, "workload": {"jobs": 50}}'
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from fairlead import terminal
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.replay_command import read_options
from fairlead.sim.world import simulate


def main() -> int:
    """Print the outcome, one fact a line; exit 1 when a promise is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m fairlead.sim", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", metavar="JSON", default="{}", help="what is not the default")
    given = parser.parse_args()
    try:
        options = read_options(given.options)
    except ValueError as error:
        parser.error(f"--options {error}")
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
