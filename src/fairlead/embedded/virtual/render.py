"""The status of a virtual pod, from its record (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from fairlead.embedded.virtual.profile import PodState
from fairlead.embedded.virtual.records import PodRecord
from fairlead.embedded.virtual.status import (
    ContainerNow,
    ContainerStateNow,
    Phase,
    PodNow,
    Running,
    Waiting,
    pod_patch,
)


def status_patch(record: PodRecord, waits_for: str) -> dict[str, Any]:
    """Return the patch that writes the record's present state; `waits_for` is said while Bound."""
    phase, state = _phase(record, waits_for)
    containers: tuple[ContainerNow, ...] = ()
    if state is not None:
        last = record.ended if state is not record.ended else None
        one = ContainerNow("", "", state, record.restart_count, last, f"simulated://{record.uid}")
        containers = tuple(
            replace(one, name=c.name, image=c.image) for c in record.pod.spec.containers
        )
    now = PodNow(
        phase,
        containers,
        record.address,
        record.node.address,
        record.bound_at,
        record.changed_at or record.bound_at,
        record.reason,
        record.message,
        record.disrupted,
    )
    return pod_patch(record.pod, now)


def _phase(record: PodRecord, waits_for: str) -> tuple[Phase, ContainerStateNow | None]:
    """Return the phase and the state that all containers share; None for a refused pod."""
    match record.state:
        case PodState.BOUND:
            return Phase.PENDING, Waiting("ContainerCreating", waits_for)
        case PodState.BACK_OFF:
            message = "the container ended and waits to be restarted"
            return Phase.RUNNING, Waiting("CrashLoopBackOff", message)
        case PodState.RUNNING | PodState.TERMINATING | PodState.GONE:
            return Phase.RUNNING, Running(record.started_at)
        case PodState.SUCCEEDED:
            return Phase.SUCCEEDED, record.ended
        case PodState.FAILED:
            return Phase.FAILED, record.ended
        case _:
            assert_never(record.state)
