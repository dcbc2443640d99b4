"""Checks that spares only replace lost nodes: no gang begins on one, and none moves there unhurt.

A decision may be older than its write: a node counts as a spare once that has been so for longer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fairlead.api.core import Node
from fairlead.api.job import Job
from fairlead.api.names import READY, TAINT_SPARE
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.checkers import PromiseBroken, offers_all
from fairlead.sim.observer import Observer

#: A write that its author decided on earlier comes at most this much later.
_STALE_SECONDS = 150.0


@dataclass(slots=True)
class SpareChecker(Observer):
    """An `Observer`. `judged` counts attempts that are placed while there are spares, `taken` the
    spares that they get.
    """

    judged: int = 0
    taken: int = 0
    #: Since when each node has been a spare.
    _since: dict[str, float] = field(default_factory=dict[str, float])
    #: Since when members could stay on each node.
    _sound_since: dict[str, float] = field(default_factory=dict[str, float])
    #: The attempt that each job was placed for, and its nodes.
    _placed: dict[ObjectKey, tuple[str, int, Counter[str]]] = field(
        default_factory=dict[ObjectKey, tuple[str, int, Counter[str]]]
    )

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """A placement of a further attempt."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        if new is None or placement is None:
            self._placed.pop(key, None)
            return
        nodes = Counter(node for role in placement.roles for node in role.nodes)
        uid, attempt, before = self._placed.get(key, ("", 0, Counter[str]()))
        self._placed[key] = (new.metadata.uid, placement.attempt, nodes)
        if (uid, attempt) == (new.metadata.uid, placement.attempt):
            return  # where another scheduler has bound its members
        before = before if uid == new.metadata.uid else Counter[str]()
        self.judged += bool(self._since)
        known = now - _STALE_SECONDS
        spares = [node for node in nodes - before if self._since.get(node, now) < known]
        if not spares:
            return
        self.taken += len(spares)
        what = f"attempt {placement.attempt} of {'/'.join(key)} is placed on spare {spares[0]}"
        if not before:
            raise PromiseBroken(f"11: {what}, and had no place before")
        lost = {node for record in new.status.attempts for node in record.nodes_lost}
        if all(n not in lost and self._sound_since.get(n, now) < known for n in before):
            raise PromiseBroken(f"11: {what}, and has lost no node")

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note whether a node is a spare, and whether members could stay there."""
        taints = new.spec.taints if new is not None else ()
        if any(t.key == TAINT_SPARE and t.effect == "NoSchedule" for t in taints):
            self._since.setdefault(name, now)
        else:
            self._since.pop(name, None)
        is_sound = (
            new is not None and not new.spec.unschedulable
            and any(c.type == READY and c.status == "True" for c in new.status.conditions)
            and not any(taint.effect == "NoExecute" for taint in taints)
            and offers_all(new)
        )  # fmt: skip
        if is_sound:
            self._sound_since.setdefault(name, now)
        else:
            self._sound_since.pop(name, None)
