"""What a simulation came to."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.sim.actors.machines import MachineUse


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What a simulation came to."""

    seed: int
    log_hash: str
    writes: int
    jobs: int
    succeeded: int
    failed: int
    kills: int
    crashes: int
    faults: int
    late: int
    unfit: int
    node_failures: int
    evictions: int
    user_acts: int
    seconds: float
    machines: MachineUse
