"""Records which faults of each node ask for something, whenever that changes.

A NodeReport has the present alone. These records stay in the history of the fleet, with what else
a decision about the node depends on, so that what another policy would have done can be decided
again from them (`replay.py`). One node has at most one record a minute, of its worst faults: an
agent that reports garbage does not push out the records of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.cluster.node_report import ReportedFault
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Wire
from fairlead.api.names import POOL, ZONE
from fairlead.api.values.times import format_time
from fairlead.decide.health.actions import Note
from fairlead.decide.health.need import open_faults, urgency_of
from fairlead.decide.health.node_step import NodeView

#: The action of such a record, and its reason where no fault is left.
FAULTS, _NONE = "Faults", "None"
RECORDED_FAULTS_MAX = 16
PACE_SECONDS = 60.0
_NOTES_MAX = 100


class RecordedFaults(Wire, frozen=True):
    """The facts of a record: the faults of a node, and what else a decision depends on.

    `faults` is a JSON array of them; `nodes`, `pool_nodes` and `zone_nodes` are how many there were
    in the fleet, in the pool of the node and in its failure domain.
    """

    node: str
    uid: str
    faults: str
    pool: str = ""
    zone: str = ""
    nodes: int = 1
    pool_nodes: int = 1
    zone_nodes: int = 1
    created: str = ""
    is_used: bool = False
    is_replaceable: bool = False
    is_restartable: bool = False

    def open_faults(self) -> tuple[ReportedFault, ...]:
        """Return the faults; ValueError where they cannot be read."""
        return msgspec.json.decode(self.faults, type=tuple[ReportedFault, ...])


@dataclass(frozen=True, slots=True)
class _Recorded:
    at: float
    faults: str
    node: Node


@dataclass(slots=True)
class FaultRecords:
    """What this process has recorded of each node with faults, and of which nodes it is to look."""

    known: dict[str, _Recorded] = field(default_factory=dict[str, _Recorded])
    waiting: dict[str, None] = field(default_factory=dict[str, None])

    def look(
        self, nodes: Mapping[str, NodeView], changed: Iterable[str],
        sizes: Mapping[str, int], *, count: int, now: float,
    ) -> list[Note]:  # fmt: skip
        """Return the records of nodes whose faults have changed, some at a time.

        `changed`: nodes whose view is another one than before; `count`: the nodes of the fleet.
        """
        waiting, notes = self.waiting, list[Note]()
        waiting.update(dict.fromkeys(changed))
        waiting.update(dict.fromkeys(sorted(self.known.keys() - nodes.keys())))
        for name in tuple(waiting):
            if len(notes) == _NOTES_MAX:
                break
            view, known = nodes.get(name), self.known.get(name)
            if known is not None and now < known.at + PACE_SECONDS:
                continue
            faults = asking(view) if view is not None else ()
            text = msgspec.json.encode(faults).decode()
            del waiting[name]
            if (known is None and not faults) or (known is not None and known.faults == text):
                continue
            node = view.node if view is not None else known.node if known is not None else Node()
            facts = _facts(node, view, text, sizes, count=count)
            notes.append(Note(node, _record(facts, faults, now)))
            if faults:
                self.known[name] = _Recorded(now, text, node)
            else:
                del self.known[name]
        return notes


def asking(view: NodeView) -> tuple[ReportedFault, ...]:
    """Return the faults of a node that any policy may act on: the worst ones, without evidence."""
    found = [
        replace(each, evidence="", count=1, last_seen=each.first_seen)
        for each in (
            *open_faults(view.node, view.report, view.tests),
            *(() if view.change is None else (view.change,)),
        )
        if urgency_of(each) is not None
    ]  # fmt: skip
    found.sort(key=lambda each: (-each.severity.rank, -each.action.rank, each.words))
    return tuple(found[:RECORDED_FAULTS_MAX])


def _facts(
    node: Node, view: NodeView | None, faults: str, sizes: Mapping[str, int], *, count: int
) -> RecordedFaults:
    meta = node.metadata
    pool, zone = (meta.labels.get(key, "") for key in (POOL, ZONE))
    return RecordedFaults(
        meta.name, meta.uid, faults, pool, zone, count, sizes.get(pool, 1),
        sizes.get(f"{pool}/{zone}", 1), meta.creation_timestamp or "",
        is_used=view is not None and view.is_used,
        is_replaceable=view is not None and view.is_replaceable,
        is_restartable=view is not None and view.is_restartable,
    )  # fmt: skip


def _record(facts: RecordedFaults, faults: Sequence[ReportedFault], now: float) -> PoolDecision:
    more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
    said = (
        f"reports {faults[0].severity.value} {faults[0].words}{more}"
        if faults else "reports no fault that asks for something"
    )  # fmt: skip
    reason = faults[0].check if faults else _NONE
    return PoolDecision(
        format_time(now), FAULTS, reason, f"{facts.node}: {said}", msgspec.to_builtins(facts)
    )
