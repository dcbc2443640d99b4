"""An array of 100,000 elements in a simulated world where nodes, calls and processes fail.

The real controllers in two replicas, on 64 nodes of which 80 an hour are lost with what runs on
them; 480 elements at a time. The simulator's checkers judge every write: no element is lost, none
succeeds twice, none is recorded as what it was not, and no more hold nodes than may.
`FAIRLEAD_ARRAY_ELEMENTS` makes it shorter.
"""

from __future__ import annotations

import os
import time

from tests.simulation.array_sweep import Sweep, SweepSize

from bench.harness import Report, cpu_slowness
from fairlead.sim.loop import run as play
from fairlead.sim.observers.broken_promise import unwrap_broken

ELEMENTS = int(os.environ.get("FAIRLEAD_ARRAY_ELEMENTS", "100000"))
SIZE = SweepSize(
    ELEMENTS, at_once=480, nodes=64, node_failures_per_day=2_000.0, node_repair_seconds=300.0
)


def run(report: Report) -> None:
    """Run one array to its end, and report what it cost and what became of its elements."""
    sweep, slow = Sweep(SIZE, seed=1), cpu_slowness()
    begun = time.process_time()
    try:
        outcome = play(sweep.run())
    except BaseExceptionGroup as group:
        print(f"  {unwrap_broken(group)}", flush=True)
        report.add("long_array.broken", 1, "promises")
        return
    cpu = (time.process_time() - begun) / ((slow + cpu_slowness()) / 2)
    met = f"{outcome.kills} kills, {outcome.faults} faults, {outcome.node_failures} nodes lost"
    print(f"  {met}, {len(sweep.cancelled)} cancelled, {outcome.writes} writes", flush=True)
    report.add("long_array.broken", 0, "promises")
    report.add("long_array.lost", ELEMENTS - sweep.arrays.checked, "elements")
    report.add("long_array.objects", sweep.objects_max, "objects")
    report.add("long_array.sets", sweep.set_bytes_max, "bytes")
    report.add("long_array.element", cpu / ELEMENTS * 1e3, "ms CPU")
