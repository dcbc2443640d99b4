"""Checks promise 6 for repairs: how many nodes are taken out for faults, and on which evidence.

    books     a node gets the taint only while the Fleet has an entry for it
    windows   no more repairs are booked within a window than its share of the largest fleet allows
    storms    while most nodes have looked sick for a while, none is booked
    people    health ends no cordon: a write that changes the taint leaves spec.unschedulable alone
    places    no attempt begins on a node that has been out for so long that every decision saw it

It knows the objects and what the agents said, and shares no code with the controllers. Windows are
of true time, shares of the largest fleet that there was: both allow more than the ledger does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.api.cluster.fleet import Fleet, RemovalCause
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import TAINT_UNHEALTHY
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.actors.agents import Agents
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer

#: Seconds, and the share of the fleet that repairs may take in them (docs/design/fleet.md).
_SHARES = ((300.0, 0.02), (3600.0, 0.05), (86_400.0, 0.15))
_STORM_SHARE, _STORM_LEAST = 0.5, 4


@dataclass(slots=True)
class HealthChecker(Observer):
    """An `Observer` that is fed with the Fleet, too. `booked` counts repairs."""

    agents: Agents
    booked: int = 0
    judged: int = 0
    _at: list[float] = field(default_factory=list[float])
    _sum: int = 0
    _entries: frozenset[str] = frozenset()
    _largest: int = 0
    _nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    #: Nodes with the taint, and since when.
    out_since: dict[str, float] = field(default_factory=dict[str, float])
    _placed: dict[ObjectKey, tuple[str, int]] = field(
        default_factory=dict[ObjectKey, tuple[str, int]]
    )

    def fleet(self, new: Fleet | None, now: float) -> None:
        """6: what is booked is within every window, and not in a storm."""
        if new is None:
            return
        repairs = [each for each in new.status.removed if each.cause is RemovalCause.REPAIR]
        total = sum(each.count for each in repairs)
        self._entries = frozenset(each.uid for each in new.status.repairs)
        fresh, self._sum = max(0, total - self._sum), total
        if not fresh:
            return
        self.booked += fresh
        self._at += [now] * fresh
        for window, share in _SHARES:
            count = sum(at > now - window for at in self._at)
            allowed = max(1, int(self._largest * share))
            if count > allowed:
                text = f"6: {count} nodes are taken out within {window:g} s, {allowed} may be"
                raise PromiseBroken(text)
        old = [at for at in self.agents.sick_since.values() if at < now - STALE_SECONDS]
        if len(old) > max(_STORM_LEAST, _STORM_SHARE * len(self._nodes)):
            text = f"6: a node is taken out while {len(old)} of {len(self._nodes)} look sick"
            raise PromiseBroken(text)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in a node; the taint comes after the entry, and changes no cordon."""
        before = self._nodes.pop(name, None)
        if new is None:
            self.out_since.pop(name, None)
            return
        self._nodes[name] = new
        self._largest = max(self._largest, len(self._nodes))
        was_out, is_out = _is_out(before), _is_out(new)
        if is_out and not was_out:
            self.out_since[name] = now
            if new.metadata.uid not in self._entries:
                raise PromiseBroken(f"6: {name} is taken out, and no book has it")
        if was_out and not is_out:
            del self.out_since[name]
        if before is not None and was_out != is_out:
            self.judged += 1
            if before.spec.unschedulable != new.spec.unschedulable:
                raise PromiseBroken(f"7: the cordon of {name} changes with its health")

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """7: no attempt begins on a node that is out."""
        if new is None:
            self._placed.pop(key, None)
            return
        placement = new.status.placement
        attempt = (new.metadata.uid, placement.attempt if placement is not None else 0)
        before, self._placed[key] = self._placed.get(key), attempt
        if placement is None or before == attempt or new.spec.adopts is not None:
            return
        for name in nodes_of(placement):
            since = self.out_since.get(name)
            if since is not None and since < now - STALE_SECONDS:
                text = f"7: attempt {placement.attempt} of {'/'.join(key)} begins on {name}"
                raise PromiseBroken(f"{text}, which is out for a fault")


def _is_out(node: Node | None) -> bool:
    return node is not None and any(t.key == TAINT_UNHEALTHY for t in node.spec.taints)
