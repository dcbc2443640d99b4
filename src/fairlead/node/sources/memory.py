"""The machine's memory: how much there is, and how much programs can still get.

Both are judged only against what is set: a machine that uses its memory well is no fault.
"""

from __future__ import annotations

import re
from functools import partial

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, Nothing, SignalSource, skipped

SIZE, AVAILABLE = "memory-size", "memory-available"
_LINE = re.compile(r"^(\w+):\s+(\d{1,15}) kB$", re.MULTILINE)


def read(host: Host) -> dict[str, int]:
    """Return the lines of /proc/meminfo in bytes; OSError when the totals are not there."""
    found = {name: int(amount) * 1024 for name, amount in _LINE.findall(host.text("proc/meminfo"))}
    if not {"MemTotal", "MemAvailable"} <= found.keys():
        raise OSError("proc/meminfo has no MemTotal or MemAvailable")
    return found


def judge(
    facts: dict[str, int], memory: Nothing, at: Moment, *, settings: AgentSettings
) -> Judged[Nothing]:
    """Compare with what is expected."""
    limits, stable = settings.memory, settings.stable_seconds
    total, available = facts["MemTotal"], facts["MemAvailable"]
    observations: list[Observation] = []
    if total < limits.total_bytes_min:
        text = f"{total:,} bytes; expected: {limits.total_bytes_min:,}"
        verdict = steady(Severity.CRITICAL, Action.REPLACE, stable)
        observations.append(observed(identity(SIZE, "memory"), verdict, text, at))
    percent = 100 * available / total if total else 0.0
    if percent < limits.available_percent_min:
        text = f"{percent:.1f} % available; expected: {limits.available_percent_min} %"
        verdict = steady(Severity.WARNING, Action.WATCH, stable)
        observations.append(observed(identity(AVAILABLE, "memory"), verdict, text, at))
    return Judged(
        memory, tuple(observations),
        skipped=(*skipped([(SIZE, limits.total_bytes_min > 0)], "memory.totalBytesMin is not set"),
                 *skipped([(AVAILABLE, limits.available_percent_min > 0)],
                          "memory.availablePercentMin is not set")),
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[dict[str, int], Nothing]:
    """Return the source of memory."""
    return SignalSource("memory", (SIZE, AVAILABLE), Nothing, partial(read, host),
                  partial(judge, settings=settings), period_seconds=10)  # fmt: skip
