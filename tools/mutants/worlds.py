"""Runs explored worlds in one process until one breaks a promise or its processor time is over.

    python -m tools.mutants.worlds --first 0 --seconds 60

What `simulated.py` starts in a copy of the tree with a bug. Processor time, since a machine that is
shared gives a bug as many worlds as an idle one does; one process for all worlds, since starting
the interpreter costs as much as a world of the usual size. The kernel ends it at the limit, amid a
world or between two. Exit code 1 when a promise broke.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from itertools import count

from fairlead.sim.explore import broken_text, explore_one


def main(arguments: Sequence[str]) -> int:
    """Run one world after the other; print the promise that breaks."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.worlds", description=__doc__)
    parser.add_argument("--first", type=int, required=True, help="number of the first world")
    parser.add_argument("--seconds", type=int, required=True, help="of processor time")
    given = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_CPU, (given.seconds, given.seconds + 1))
    for number in count(given.first):
        found = explore_one(number)
        if found.broken:
            print(broken_text(found), end="", flush=True)
            return 1
    raise AssertionError("the numbers of worlds have no end")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
