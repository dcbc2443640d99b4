"""Explore what a tenant can do to others: `python -m fairlead.sim.tenants --sequences 1000`.

A seed and a number name a world; from them follow its shape and his sequences. Every broken promise
is printed with the fewest calls that break it and the command that replays it. Exit code 1 when a
promise broke.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from fairlead import terminal
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.outside.worker_process import end_with_parent
from fairlead.sim.tenants.runs import WORLD_SEQUENCES, Result, explored, hash_of


def explore(
    seed: str, sequences: int | None, *, seconds: float, processes: int
) -> Iterator[Result]:
    """Run worlds in order until there were as many sequences, or without a number for so long.

    Each is yielded in its turn, so the order does not depend on the machine.
    """
    clock = SystemClock()
    until = clock.now() + seconds if sequences is None else float("inf")
    left = float("inf") if sequences is None else sequences
    with ProcessPoolExecutor(
        processes, initializer=end_with_parent, max_tasks_per_child=50
    ) as pool:
        futures, started = deque[Future[Result]](), 0
        while futures or (left > 0 and clock.now() < until):
            while len(futures) < 2 * processes and left > 0 and clock.now() < until:
                count = int(min(WORLD_SEQUENCES, left))
                futures.append(pool.submit(explored, f"{seed}/{started}", count))
                started, left = started + 1, left - count
            yield futures.popleft().result()


def main() -> int:
    """Explore, or replay one world."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.sim.tenants", description=__doc__)
    parser.add_argument("--sequences", type=int, default=None, help="how many are run")
    parser.add_argument("--seconds", type=float, default=60.0, help="or else for how long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", default=None, help="by default one that the system draws")
    parser.add_argument("--world", type=int, default=None, help="replay this one and no other")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else str(int.from_bytes(os.urandom(4)))
    results: list[Result] = []
    if given.world is not None:
        worlds = iter([explored(f"{seed}/{given.world}")])
    else:
        worlds = explore(seed, given.sequences, seconds=given.seconds, processes=given.processes)
    for result in worlds:
        results.append(result)
        if result.broken:
            terminal.say(result.text)
    terminal.say(summary(seed, results))
    return 1 if any(result.broken for result in results) else 0


def summary(seed: str, results: list[Result]) -> str:
    """Return the counts: what calls came to, what was judged, and the hash of all writes."""
    outcomes = Counter(
        outcome.partition(":")[0]
        for result in results
        for sequence in result.played.outcomes
        for outcome in sequence
    )
    judged = sum((result.judged for result in results), Counter[str]())
    sequences = sum(len(result.played.outcomes) for result in results)
    lines = [f"{count:>9}  {outcome}" for outcome, count in sorted(outcomes.items())]
    lines += [f"{count:>9}  judged: {promise}" for promise, count in sorted(judged.items())]
    broken = sum(bool(result.broken) for result in results)
    lines.append(
        f"seed {seed}: {sequences} sequences of {outcomes.total()} calls in {len(results)} worlds, "
        f"{sum(result.played.writes for result in results)} writes, hash "
        f"{hash_of(results)[:16]}: {broken} broke a promise"
    )
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
