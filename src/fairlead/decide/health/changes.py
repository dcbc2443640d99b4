"""Whether the machine of a node is another one than the one that passed its tests.

A node keeps its name over a new driver, kernel, firmware or board. What it was when it passed its
suite is in the NodeTest; what it is now is said by the Node (kernel, board), by labels (driver) and
by the report of its agent (GPUs, firmware). What is not said now is no change: a label goes while
its writer restarts, and an agent may be away.

A change is information, no sickness: the node leaves service within the budgets, with a week for
what runs there, and passes its suite again.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.api.cluster.machine_result import MachineOutcome
from fairlead.api.cluster.node_report import (
    COMPONENT_MAX,
    EVIDENCE_MAX,
    VALUE_MAX,
    Action,
    NodeReport,
    Recovery,
    ReportedFault,
    Severity,
)
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.kubernetes.core import Node

#: The check of changes, as `health.actOn` names it.
CHANGED = "node-changed"
#: Labels with the version of the driver. NVIDIA's GPU feature discovery (k8s-device-plugin,
#: docs/gpu-feature-discovery) and AMD's node labeller (ROCm/k8s-device-plugin).
_DRIVERS = ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version")


def hardware_of(node: Node, report: NodeReport | None) -> dict[str, str]:
    """Return what tells the machine of a node from another one, by name."""
    info, labels = node.status.node_info, node.metadata.labels
    driver = next((labels[key] for key in _DRIVERS if key in labels), "")
    found = {"kernel": info.kernel_version, "board": info.system_uuid, "driver": driver}
    if report is not None and report.status.node_uid == node.metadata.uid:
        found |= report.status.hardware
    return {name: value[:VALUE_MAX] for name, value in sorted(found.items()) if value}


def last_passed(tests: Sequence[NodeTest], suite: str) -> NodeTest | None:
    """Return the latest test of a suite that passed; None: there is none."""
    passed = (
        each for each in tests
        if each.status.outcome is MachineOutcome.PASSED and each.spec.suite == suite
    )  # fmt: skip
    return max(passed, key=lambda each: (each.spec.number, each.metadata.name), default=None)


def change_of(
    node: Node, report: NodeReport | None, tests: Sequence[NodeTest], suite: str
) -> ReportedFault | None:
    """Return that a node is another machine than the one that passed the suite; None: it is not,
    or none is known to have passed.
    """
    tested = last_passed(tests, suite)
    if tested is None:
        return None
    before, now = tested.status.hardware, hardware_of(node, report)
    changed = [name for name, value in before.items() if now.get(name, value) != value]
    if not changed:
        return None
    said = "; ".join(f"{name} {before[name]}, now {now[name]}" for name in changed)
    return ReportedFault(
        CHANGED, ", ".join(changed)[:COMPONENT_MAX], Severity.INFO, Action.WATCH, Recovery.PERSON,
        "", "", evidence=said[:EVIDENCE_MAX],
    )  # fmt: skip
