"""What the fleet and health controllers write on nodes: marks, taints, windows, records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from fairlead.api import names
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import to_wire
from fairlead.decide.fleet.actions import Admit, Announce, AwaitTurn, Mark, SetSpare, Unmark
from fairlead.decide.health.actions import SetRecord
from fairlead.model.health.node_record import record_text
from fairlead.model.inventory.spares import with_taint

#: Who cordons the nodes that are to be removed.
OWNER = "fairlead-fleet"
_STARTUP_TAINTS = (names.TAINT_JOINING, names.TAINT_RETURNING)


def node_patch(action: Mark | Unmark | Admit | AwaitTurn | SetSpare | Announce) -> dict[str, Any]:
    """Return the merge patch of a node that an action is."""
    match action:
        case Mark(node=node, why=why):
            notes = {names.REMOVAL: why}
            if not node.spec.unschedulable:  # else the cordon is a person's, and stays his
                notes[names.CORDONED_BY] = OWNER
            return {"metadata": {"annotations": notes}, "spec": {"unschedulable": True}}
        case Unmark(node=node):
            if node.metadata.annotations.get(names.CORDONED_BY) != OWNER:
                return {"metadata": {"annotations": {names.REMOVAL: None}}}
            gone = {names.REMOVAL: None, names.CORDONED_BY: None}
            return {"metadata": {"annotations": gone}, "spec": {"unschedulable": None}}
        case Announce(window=window):
            notes = dict.fromkeys((names.MAINTENANCE, names.MAINTENANCE_ANNOUNCED), window or None)
            return {"metadata": {"annotations": notes}}
        case Admit(node=node, is_spare=is_spare):
            kept = tuple(t for t in node.spec.taints if t.key not in _STARTUP_TAINTS)
            return _taints(with_taint(kept, is_spare=True) if is_spare else kept)
        case SetSpare(node=node, is_spare=is_spare):
            return _taints(with_taint(node.spec.taints, is_spare=is_spare))
        case AwaitTurn(node=node):
            own = {"key": names.TAINT_RETURNING, "effect": "NoSchedule"}
            return {"spec": {"taints": [*map(to_wire, node.spec.taints), own]}}
        case _:
            assert_never(action)


def _taints(taints: Iterable[Taint]) -> dict[str, Any]:
    return {"spec": {"taints": [to_wire(taint) for taint in taints] or None}}


def record_patch(action: SetRecord) -> Mapping[str, Any]:
    """Return the merge patch that writes a record, with the taint and the drain of its state."""
    record, node = action.record, action.node
    is_out = record is not None and record.is_out
    notes = {
        names.HEALTH: None if record is None else record_text(record),
        names.HEALTH_DRAIN: record.drain if record is not None and is_out else None,
    }
    taints = [taint for taint in node.spec.taints if taint.key != names.TAINT_UNHEALTHY]
    if is_out:
        taints.append(Taint(names.TAINT_UNHEALTHY, "NoSchedule"))
    patch: dict[str, Any] = {"metadata": {"annotations": notes}}
    if tuple(taints) != node.spec.taints:
        patch["spec"] = {"taints": [to_wire(taint) for taint in taints] or None}
    return patch
