"""What became of the jobs of a trace where it was recorded, in the figures of a simulation (pure).

So one sees what the recorded scheduler did beside what another policy would have done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fairlead.member.hostlist import expand_hosts
from fairlead.sim.traces.trace import TraceJob


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """Waits in seconds, in no order; `busy` and `used` are GPU-seconds: those of jobs that ran, and
    those that the nodes had on which any job ran. `seconds` is from the first arrival to the last
    end.
    """

    waits: tuple[float, ...]
    busy: float
    used: float
    seconds: float


def recorded_load(jobs: Sequence[TraceJob], gpus: int) -> RecordedLoad | None:
    """Return what was recorded of jobs on nodes of so many GPUs; None where no wait was."""
    ran = [job for job in jobs if job.waited_seconds is not None]
    if not ran:
        return None
    spans: dict[str, list[tuple[float, float]]] = {}
    last = busy = 0.0
    for job in ran:
        start = job.at_seconds + (job.waited_seconds or 0.0)
        end = start + job.run_seconds
        last = max(last, end)
        busy += job.members * job.gpus * job.run_seconds
        if job.gpus:
            with suppress(ValueError):  # what cannot be read is not known
                for host in expand_hosts(job.nodes) if job.nodes else ():
                    spans.setdefault(host, []).append((start, end))
    used = sum(_covered(each) for each in spans.values()) * gpus
    first = min(job.at_seconds for job in ran)
    return RecordedLoad(tuple(job.waited_seconds or 0.0 for job in ran), busy, used, last - first)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
