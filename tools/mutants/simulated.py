"""Plants serious bugs and sees whether simulated worlds notice: `make mutants SIM=seconds`.

    python -m tools.mutants.simulated --seconds 60

The bugs are those of `table.toml` that are marked `serious`: they lose jobs, give nodes away twice,
or stop the controllers. Each is planted in a copy of the tree, on which `fairlead.sim.explore` runs
worlds until one breaks a promise or the time is up: the same worlds for each bug. They run without
a bug first: worlds that break anyway notice nothing. Nothing says where to look, as a test does:
what is not noticed here no checker sees, or no world reaches in that time.

Exit codes: 0 when enough bugs are noticed, 1 when too few are, 2 when a world breaks without a bug.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tools.mutants.run import Mutant, load
from tools.mutants.trees import copied_tree, end_all, end_group, planted, started

#: Of a hundred serious bugs, so many are to be noticed.
NOTICED_PERCENT_MIN = 90
_BROKEN = "A PROMISE IS BROKEN: "


def broken_promise(tree: Path, first: int, processes: int, seconds: float) -> str:
    """Run the worlds of a copy for so long; return the first promise that breaks, "" if none."""
    command = [
        sys.executable, "-m", "fairlead.sim.explore", "--first", str(first),
        "--minutes", str(seconds / 60), "--processes", str(processes),
    ]  # fmt: skip
    with started(command, tree, {"PYTHONUNBUFFERED": "1"}) as process:
        timer = threading.Timer(seconds, end_group, [process])
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(_BROKEN):
                    return line.removeprefix(_BROKEN).strip()
        finally:
            timer.cancel()
    return ""


def _report(mutant: Mutant, tree: Path, given: argparse.Namespace) -> bool:
    """Plant one bug, and print what the worlds say of it; True when they notice it."""
    began_at = time.monotonic()
    with planted(tree / mutant.file, mutant.planted(tree)):
        broken = broken_promise(tree, given.first, given.processes, given.seconds)
    words = "noticed" if broken else "NOT SEEN"
    took = time.monotonic() - began_at
    print(f"{words:8} {took:5.1f} s  {mutant.id}: {broken or mutant.effect}", flush=True)
    return bool(broken)


def main(arguments: Sequence[str]) -> int:
    """Plant the serious bugs whose id contains one of the words, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.simulated", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of real time for one bug")
    parser.add_argument("--first", type=int, default=0, help="number of the first world")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("word", nargs="*", help="plant the bugs whose id contains one of these")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what runs is ended
    words: list[str] = given.word
    serious = [
        mutant for mutant in load()
        if mutant.serious and (not words or any(word in mutant.id for word in words))
    ]  # fmt: skip
    if not serious:
        parser.error(f"no serious bug has an id that contains {' or '.join(words)}")
    try:
        with copied_tree() as tree:
            if broken := broken_promise(tree, given.first, given.processes, given.seconds):
                print(f"a world breaks without a bug: {broken}")
                return 2
            noticed = sum(_report(mutant, tree, given) for mutant in serious)
    finally:
        end_all()
    print(f"{noticed} of {len(serious)} serious bugs noticed")
    return int(noticed * 100 < NOTICED_PERCENT_MIN * len(serious))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
