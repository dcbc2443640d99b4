"""Plants serious bugs and sees whether simulated worlds notice: `make mutants SIM=seconds`.

    python -m tools.mutants.simulated --seconds 60

The bugs are those of `table.toml` that are marked `serious`: they lose jobs, give nodes away twice,
or stop the controllers. Each is planted in a copy of the tree, on which `worlds.py` runs explored
worlds until one breaks a promise or the processor time is over: the same worlds for each bug. They
run without a bug first: worlds that break anyway notice nothing. Nothing says where to look, as a
test does: what is not noticed here no checker sees, or no world reaches in that time.

Exit codes: 0 when enough bugs are noticed, 1 when too few are, 2 when a world breaks without a bug.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tools.mutants.run import Mutant, load
from tools.mutants.trees import copied_tree, end_all, planted, started

#: Of a hundred serious bugs, so many are to be noticed.
NOTICED_PERCENT_MIN = 90
_BROKEN = "A PROMISE IS BROKEN: "


def broken_promise(tree: Path, first: int, seconds: int) -> str:
    """Run the worlds of a copy for so much processor time; return the first promise that breaks,
    and the world; "" if none does.
    """
    command = [sys.executable, "-m", "tools.mutants.worlds"]
    command += ["--first", str(first), "--seconds", str(seconds)]
    with started(command, tree) as process:
        output, _ = process.communicate()
    lines = output.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith(_BROKEN)), None)
    if at is not None:
        return f"{lines[at].removeprefix(_BROKEN)} [world {output.split()[-1]}]"
    if process.returncode == -signal.SIGXCPU:
        return ""
    if process.returncode < 0:  # ended by others, which says nothing of the bug
        raise RuntimeError(f"the worlds were ended by signal {-process.returncode}")
    return f"the worlds do not run: {output[-500:]}"


def _judge(mutant: Mutant, trees: queue.SimpleQueue[Path], given: argparse.Namespace) -> bool:
    """Plant one bug, and print what the worlds say of it; True when they notice it."""
    began_at = time.monotonic()
    tree = trees.get()
    try:
        with planted(tree / mutant.file, mutant.planted(tree)):
            broken = broken_promise(tree, given.first, given.seconds)
    finally:
        trees.put(tree)
    words = "noticed" if broken else "NOT SEEN"
    took = time.monotonic() - began_at
    print(f"{words:8} {took:5.1f} s  {mutant.id}: {broken or mutant.effect}", flush=True)
    return bool(broken)


def judge_all(tree: Path, mutants: Sequence[Mutant], given: argparse.Namespace) -> int:
    """Judge bugs beside each other, each in a copy of the tree; return how many are noticed."""
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with ExitStack() as stack:
        for _ in range(given.processes):
            trees.put(stack.enter_context(copied_tree(tree)))
        pool = ThreadPoolExecutor(given.processes)
        try:
            return sum(pool.map(partial(_judge, trees=trees, given=given), mutants))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
        finally:
            pool.shutdown()


def main(arguments: Sequence[str]) -> int:
    """Plant the serious bugs whose id contains one of the words, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.simulated", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of processor time for one bug")
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
            if broken := broken_promise(tree, given.first, given.seconds):
                print(f"without a bug: {broken}")
                return 2
            noticed = judge_all(tree, serious, given)
    finally:
        end_all()
    print(f"{noticed} of {len(serious)} serious bugs noticed")
    return int(noticed * 100 < NOTICED_PERCENT_MIN * len(serious))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
