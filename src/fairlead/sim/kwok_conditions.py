"""How far a pod has come where a condition of a KWOK Stage holds, without running jq (pure)."""

from __future__ import annotations

import re
from typing import TypeAlias

Levels: TypeAlias = frozenset[int]

#: What a pod passes: 0 nothing written, 1 containers wait, 2 init containers run, 3 initialized,
#: 4 running but not ready, 5 ready, 6 ended.
PENDING, RUNNING, ENDED = frozenset(range(4)), frozenset({4, 5}), frozenset({6})
ALL = PENDING | RUNNING | ENDED
_WRITTEN = ALL - {0}
PHASES = {"Pending": PENDING, "Running": RUNNING, "Succeeded": ENDED, "Failed": ENDED}
_CONDITIONS = {
    "PodScheduled": ALL, "PodReadyToStartContainers": _WRITTEN, "Initialized": ALL - {0, 1, 2},
    "Ready": frozenset({5}), "ContainersReady": frozenset({5}),
}  # fmt: skip
_CONTAINERS = {
    "initContainerStatuses": _WRITTEN, "containerStatuses": _WRITTEN,
    "initContainerStatuses.waiting": frozenset({1}),
    "initContainerStatuses.running": frozenset({2}),
    "initContainerStatuses.terminated": ALL - {0, 1, 2},
    "containerStatuses.waiting": frozenset({1, 2, 3}), "containerStatuses.running": RUNNING,
    "containerStatuses.terminated": ENDED,
}  # fmt: skip
_CONDITION = re.compile(r'\.status\.conditions\[\]\|select\(\.type=="([^"]+)"\)\|\.status')
_STATUSES = re.compile(
    r"\.status\.((?:initC|c)ontainerStatuses)(?:\[\](?:\.state(?:\.(\w+)(?:\.\w+)?)?)?)?"
)


def levels_of(key: str, values: set[str]) -> tuple[Levels, Levels] | None:
    """Return the steps at which a condition on a path holds, and those at which its contrary
    does; None for a path that is not known.
    """
    if key == ".status.phase":
        holds = frozenset(step for phase in values or PHASES for step in PHASES.get(phase, ()))
        return holds, ALL - holds
    if key in (".status.podIP", ".status.podIPs", ".status.hostIP", ".status.startTime"):
        return _WRITTEN, ALL - _WRITTEN
    if key in (".spec.initContainers", ".spec.readinessGates"):
        return ALL, frozenset()
    if match := _CONDITION.fullmatch(key):
        if match[1] not in _CONDITIONS:  # a readiness gate, which becomes true at any time
            return (RUNNING, ALL - {5}) if "False" not in values else (ALL - {5}, RUNNING)
        holds = _CONDITIONS[match[1]]
        return (holds, ALL - holds) if "False" not in values else (ALL - holds, holds)
    if match := _STATUSES.fullmatch(key):
        known = _CONTAINERS.get(f"{match[1]}.{match[2]}" if match[2] else match[1])
        if known is None:
            return None
        is_optional = key.startswith(".status.initContainerStatuses") and not match[2]
        return known, (ALL if is_optional else ALL - known)
    return None
