"""What a report asks for: which of its faults count, how urgent they are, until when.

A report is read as it stands: a fault counts while it is listed, and no longer. It counts for the
node that the report names by uid, and not if a person has said since its last sight that it is
mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from fairlead.api.cluster.node_report import (
    CLOUD_MAINTENANCE,
    TUNING_RESTART,
    Action,
    NodeReport,
    ReportedFault,
    Severity,
    SourceState,
)
from fairlead.api.cluster.node_suites import proofs_of
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import REPAIRED
from fairlead.api.values.times import time_or
from fairlead.decide.health.changes import CHANGED
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.testing import fault_of


class Urgency(Enum):
    """How soon a node has to be empty; the value names the option with the seconds."""

    CRITICAL = "critical_drain_seconds"
    DEGRADED = "degraded_drain_seconds"
    COSMETIC = "cosmetic_drain_seconds"

    def seconds(self, policy: HealthPolicy) -> float:
        """Return the time from the first sight to the deadline."""
        return float(getattr(policy, self.value))


#: By the rank of the severity.
_URGENCIES = (Urgency.COSMETIC, Urgency.DEGRADED, Urgency.CRITICAL)


@dataclass(frozen=True)
class Need:
    """What the faults of a node ask for. `worst` is the one that the action is of.

    `deadline`: when the node is to be empty.
    """

    worst: ReportedFault
    action: Action
    deadline: float
    faults: Sequence[ReportedFault]
    #: From then on the need is the same at any time; before, a fault is of a clock that is ahead.
    settled_at: float

    @property
    def count(self) -> int:
        """How many faults ask for something."""
        return len(self.faults)

    @property
    def components(self) -> tuple[str, ...]:
        """What is faulty."""
        return tuple(sorted({fault.component for fault in self.faults}))

    @cached_property
    def retests(self) -> tuple[str, ...]:
        """The tests that would find these faults again."""
        found = {(fault.check, fault.component) for fault in self.faults}
        return tuple(sorted({name for each in found for name in proofs_of(*each)}))

    @property
    def is_test(self) -> bool:
        """True where nothing is wrong, and the node is only to be tested again."""
        return self.worst.check == CHANGED

    @property
    def is_tuning(self) -> bool:
        """True where nothing is wrong, and settings of a tuning profile wait for a start."""
        return all(fault.check == TUNING_RESTART for fault in self.faults)

    @property
    def is_announced(self) -> bool:
        """True where nothing is wrong, and the machine is about to stop."""
        return all(fault.check == CLOUD_MAINTENANCE for fault in self.faults)

    def stay_seconds(self, policy: HealthPolicy) -> float:
        """Return how long after its deadline the drain may last; an announced stop is waited for
        as long as for a replacement, as nothing is to be repaired.
        """
        return float(policy.replace_seconds if self.is_announced else policy.stuck_seconds)

    @property
    def words(self) -> str:
        """The worst fault in one line, and how many more there are."""
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.worst.severity.value} {self.worst.words}{more}"


def urgency_of(fault: ReportedFault) -> Urgency | None:
    """Return how urgent a fault is; None: nothing has to be done about it."""
    is_needed = fault.severity is Severity.CRITICAL or fault.action.asks
    return _URGENCIES[fault.severity.rank] if is_needed else None


def open_faults(
    node: Node, report: NodeReport | None, tests: Sequence[NodeTest] = (),
    stated: tuple[ReportedFault, ...] = (),
) -> Sequence[ReportedFault]:  # fmt: skip
    """Return the faults of a node, of its report, its tests and what others state of it, that are
    not said to be mended.
    """
    found = fault_of(node, tests) if tests else None
    tested = () if found is None else (found,)
    is_own = report is not None and report.status.node_uid == node.metadata.uid
    faults = stated
    if report is not None and is_own:
        faults = (*report.status.faults, *stated) if stated else report.status.faults
    if not faults:
        return tested
    if (said := node.metadata.annotations.get(REPAIRED)) is not None:
        repaired = time_or(said, float("-inf"))
        faults = tuple(f for f in faults if time_or(f.last_seen, float("inf")) > repaired)
    return (*tested, *faults) if tested else faults


def need_of(
    node: Node, report: NodeReport | None, policy: HealthPolicy, now: float, *, acting: bool,
    tests: Sequence[NodeTest] = (), change: ReportedFault | None = None,
    stated: tuple[ReportedFault, ...] = (),
) -> Need | None:  # fmt: skip
    """Return what the faults of rules that act ask for, or those of the others; None: nothing.

    `change`: the machine is another one than the one that was tested. `stated`: what others state
    as conditions of the node.
    """
    faults = open_faults(node, report, tests, stated)
    counted = {c for c in {f.check for f in faults} if policy.acts_on(c) is acting}
    found = [
        fault for fault in faults
        if fault.check in counted and (fault.severity is Severity.CRITICAL or fault.action.asks)
    ]  # fmt: skip
    if change is not None and policy.acts_on(change.check) is acting:
        found.append(change)
    return _need(node, found, policy, now) if found else None


def _need(node: Node, found: Sequence[ReportedFault], policy: HealthPolicy, now: float) -> Need:
    """Return what some faults ask for; in one pass, as all nodes of a fleet may have many."""
    worst, harm, action = found[0], (-1, -1), found[0].action
    #: When the first fault of each rank of severity was first seen, and all instants by their text.
    firsts, instants = dict[int, float](), dict[str, float]()
    due = float("inf")
    for fault in found:
        rank, seen = fault.severity.rank, fault.first_seen
        first = instants.get(seen)
        if first is None:
            first = instants[seen] = time_or(seen, float("inf"))
        if first < firsts.get(rank, now):
            firsts[rank] = first
        elif rank not in firsts:  # the clock of a node may be wrong: not of the future
            firsts[rank] = now
        if fault.due_time is not None:
            due = min(due, time_or(fault.due_time, due))
        own = rank, fault.action.rank
        if fault.action.rank > action.rank:
            action = fault.action
        if own > harm or (own == harm and _named(fault) > _named(worst)):
            worst, harm = fault, own
    # Nor is a fault older than its node.
    created = time_or(node.metadata.creation_timestamp, float("-inf"))
    deadline = min(
        max(created, due),
        *(max(created, first) + _URGENCIES[rank].seconds(policy) for rank, first in firsts.items()),
    )
    return Need(worst, action, deadline, found, max(instants.values()))


def _named(fault: ReportedFault) -> tuple[str, str, tuple[str, ...]]:
    return fault.check, fault.component, fault.codes


def is_proven(node: Node, report: NodeReport | None, policy: HealthPolicy, now: float) -> bool:
    """True when a report that shows no fault shows it by looking: it is fresh, and no source that
    is blind, hung or stale sees what acts.
    """
    if report is None or report.status.node_uid != node.metadata.uid:
        return False
    age = now - time_or(report.status.observed_at, float("-inf"))
    if age > policy.report_seconds_max:
        return False
    return not any(
        policy.acts_on(check)
        for source in report.status.sources
        if source.state in (SourceState.BLIND, SourceState.HUNG, SourceState.STALE)
        for check in source.checks
    )
