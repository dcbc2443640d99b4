"""The story of one job or node in a simulated run, event by event."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.observer import Observer

EVENTS_MAX = 10_000


class Story(Observer):
    """An observer that keeps the changes of one job and its pods, or of one node."""

    def __init__(self, name: str, epoch: float) -> None:
        self.events: list[tuple[float, str]] = []
        self._name = name
        self._epoch = epoch
        self._last: dict[ObjectKey, str] = {}

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Note a change of the job's state, attempt or verdict."""
        if key[1] != self._name:
            return
        if new is None:
            self._note(("job", key[1]), "job removed", now)
            return
        status = new.status
        verdict = status.verdict
        nodes = list(dict.fromkeys(nodes_of(status.placement)))
        parts = [status.state or "submitted", f"attempt {status.attempt}"]
        if verdict is not None and not nodes:
            parts.append(verdict.reason)
        if nodes:
            shown = ", ".join(nodes[:4])
            parts.append(f"on {len(nodes)} nodes: {shown}{', ...' if len(nodes) > 4 else ''}")
        closed = [a for a in status.attempts if a.finished_at is not None]
        if closed:
            last = closed[-1]
            cause = f" ({last.cause.value})" if last.cause is not None else ""
            parts.append(
                f"attempt {last.number} ended: {last.reason}{cause} {last.message}".strip()
            )
        self._note(("job", key[1]), "job " + "; ".join(parts), now)

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note a change of a pod of the job, or of a pod on the node."""
        if new is None:
            if ("pod", key[1]) in self._last:
                self._note(("pod", key[1]), f"pod {key[1]} removed", now)
            return
        job, node = new.metadata.labels.get(names.JOB_NAME), new.spec.node_name
        if self._name not in (job, node):
            return
        leaving = ", terminating" if new.metadata.deletion_timestamp else ""
        text = f"pod {key[1]} {new.status.phase or 'Pending'} on {node or 'no node'}{leaving}"
        self._note(("pod", key[1]), text, now)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note a change of the node's readiness or cordon."""
        if name != self._name:
            return
        if new is None:
            self._note(("node", name), "node removed", now)
            return
        is_ready = any(c.type == "Ready" and c.status == "True" for c in new.status.conditions)
        cordon = ", cordoned" if new.spec.unschedulable else ""
        self._note(("node", name), f"node {'ready' if is_ready else 'not ready'}{cordon}", now)

    def _note(self, key: ObjectKey, text: str, now: float) -> None:
        if self._last.get(key) != text and len(self.events) < EVENTS_MAX:
            self._last[key] = text
            self.events.append((now - self._epoch, text))
