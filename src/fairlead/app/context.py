"""What all parts of one process share: the clock, random streams, metrics and the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.logs import SILENT, Logger

#: Returns a source of random numbers for a named part: what one draws does not shift another's.
Streams = Callable[[str], random.Random]


def unseeded(_name: str) -> random.Random:
    """Return the operating system's own source. A simulation passes seeded ones instead.

    Jitter could be foreseen without harm, the keys of gangs could not.
    """
    return random.SystemRandom()


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """Passed to every part of a process; nothing below `app` reads time or chance elsewhere."""

    clock: Clock
    metrics: Metrics
    log: Logger = SILENT
    streams: Streams = unseeded
