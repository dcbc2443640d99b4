"""What a decision about health costs: 7,500 nodes of which every one has faults.

storm      each has eight faults, of which the worst asks for a reboot: nothing is taken
cosmetic   each has eight faults that are information and ask for a reset: all ask to go
out        1 % of the nodes are out, in all states, and the others have no fault
gate       a new fleet waits for its tests, of which as many run as may

The first two look at each node for the first time, as a new leader does. The same a moment later,
when one node has reported another fault, is `storm_change` and `cosmetic_change`: the median of a
row, whose first decision confirms all nodes and whose second lets the first of them go. The last
two cases are by a leader that has seen all of it before.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import cycle

from msgspec.structs import replace

from bench.harness import Report, cpu_slowness
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_report import (
    Action,
    NodeReport,
    NodeReportStatus,
    ReportedFault,
    Severity,
)
from fairlead.api.cluster.node_test import (
    NodeTest,
    NodeTestCause,
    NodeTestPhase,
    NodeTestSpec,
    NodeTestStatus,
)
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import HEALTH, HEALTH_DRAIN, TAINT_PREFLIGHT
from fairlead.api.values.times import format_time
from fairlead.decide.health.actions import Note
from fairlead.decide.health.cycle import HealthMemory, HealthView, decide_health
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy
from fairlead.model.health.node_record import (
    NodeRecord,
    NodeRequest,
    NodeState,
    Try,
    record_text,
)
from fairlead.testing.builders import EPOCH, make_node

NODES, FAULTS, OUT, ROUNDS, CHANGES = 7_500, 8, 75, 9, 9
POLICY = HealthPolicy(enabled=True, act_on=("*",))
NOW, INSTANT = EPOCH + 86_400.0, 86_400.0
#: States of nodes that are out, and what was asked for in them.
STATES = {
    NodeState.RESETTING: Action.RESET_GPU, NodeState.REBOOTING: Action.REBOOT,
    NodeState.REPLACING: Action.REPLACE, NodeState.ASKING: Action.REBOOT,
}  # fmt: skip


def run(report: Report) -> None:
    """Measure decisions in turns."""
    cases = {
        "storm": {name: _sick(name, Severity.CRITICAL, Action.REBOOT) for name in _names(NODES)},
        "cosmetic": {
            name: _sick(name, Severity.INFO, Action.RESET_GPU) for name in _names(NODES)
        },
        "out": dict(zip(_names(OUT), map(_out, _names(OUT), cycle(STATES)), strict=True)),
        "gate": {name: _gated(name, number) for number, name in enumerate(_names(NODES))},
    }  # fmt: skip
    costs: dict[str, list[float]] = defaultdict(list)
    memories: dict[str, HealthMemory] = defaultdict(HealthMemory)
    names = frozenset(_names(NODES))
    for _ in range(ROUNDS):
        slow = cpu_slowness()
        for name, known in cases.items():
            is_new = name in ("storm", "cosmetic")
            nodes = {each: _unseen(view) if is_new else view for each, view in known.items()}
            memory = HealthMemory(looked_at=INSTANT - 5.0) if is_new else memories[name]
            costs[name].append(_decide(nodes, names, memory) / slow)
            if is_new:
                for number in range(CHANGES):
                    changed = f"n{number:04}"
                    nodes[changed] = _changed(nodes[changed])
                    seconds = _decide(nodes, names, memory, later=5.0 * (number + 1))
                    costs[f"{name}_change"].append(seconds / slow)
    for name, seconds in costs.items():
        report.add(f"health.{name}", statistics.median(seconds) * 1e3, "ms CPU")


def _unseen(view: NodeView) -> NodeView:
    """Return a view of which nothing is known yet."""
    return dataclasses.replace(view)


def _changed(view: NodeView) -> NodeView:
    """Return the view of a node that has reported one fault less."""
    assert view.report is not None
    status = view.report.status
    less = replace(status, faults=status.faults[1:])
    return dataclasses.replace(view, report=replace(view.report, status=less))


def _names(count: int) -> list[str]:
    return [f"n{i:04}" for i in range(count)]


def _decide(
    nodes: Mapping[str, NodeView], names: frozenset[str], memory: HealthMemory, *,
    later: float = 0.0,
) -> float:  # fmt: skip
    """Return the CPU seconds of one decision."""
    view = HealthView(
        fleet=Fleet(), nodes=nodes, pods={}, pools={}, sizes={"": NODES}, node_names=names,
        now=NOW + later, instant=INSTANT + later,
    )  # fmt: skip
    gc.collect()
    began = time.process_time()
    decision, found = decide_health(view, POLICY, memory)
    seconds = time.process_time() - began
    if any(each.tests for each in nodes.values()):
        assert all(isinstance(each, Note) for each in decision.actions), decision.actions
        return seconds
    suspected = found.states.get(NodeState.SUSPECT, 0)
    assert suspected == NODES or sum(found.states.values()) == OUT, found.states
    return seconds


def _sick(name: str, severity: Severity, action: Action) -> NodeView:
    at = format_time(NOW - 60.0)
    faults = tuple(
        ReportedFault("gpu-xid", f"0000:{i:02x}:00", severity, action, action.recovery, at, at,
                      ("48",), evidence="NVRM: Xid")
        for i in range(FAULTS)
    )  # fmt: skip
    return NodeView(make_node(name), None, _report(name, faults))


def _report(name: str, faults: tuple[ReportedFault, ...]) -> NodeReport:
    node = make_node(name)
    status = NodeReportStatus(format_time(NOW - 5.0), node.metadata.uid, "boot-1",
                              machine_id=f"board-{name}", faults=faults)  # fmt: skip
    return NodeReport(ObjectMeta(name=name), status=status)


def _gated(name: str, number: int) -> NodeView:
    """Return a node whose test waits, or runs."""
    node, at = make_node(name, taints=(Taint(TAINT_PREFLIGHT, "NoSchedule"),)), NOW - 1.0
    runs = number < POLICY.tests_at_once_max
    status = NodeTestStatus(
        NodeTestPhase.RUNNING if runs else NodeTestPhase.PENDING,
        pod_uid="p" if runs else "", started_at=format_time(at) if runs else None,
    )  # fmt: skip
    spec = NodeTestSpec(name, node.metadata.uid, "quick", NodeTestCause.GATE, 1)
    meta = ObjectMeta(name=f"{name}-1", creation_timestamp=format_time(at))
    return NodeView(node, None, None, tests=(NodeTest(meta, spec, status),), suite="quick")


def _out(name: str, state: NodeState) -> NodeView:
    action = STATES[state]
    at = format_time(NOW - 30.0)
    record = NodeRecord(
        state, at, "Critical gpu-xid", session=1, deadline=format_time(NOW + 600.0),
        drain=f"{at}/{at}", request=NodeRequest("id", action), tries=(Try(action, at, "boot-1"),),
    )  # fmt: skip
    sick = _sick(name, Severity.CRITICAL, action)
    notes = {HEALTH: record_text(record), HEALTH_DRAIN: record.drain}
    meta = replace(sick.node.metadata, annotations=notes)
    return NodeView(replace(sick.node, metadata=meta), record, sick.report, is_replaceable=True)
