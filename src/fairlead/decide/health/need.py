"""What a report asks for: which of its faults count, how urgent they are, until when.

A report is read as it stands: a fault counts while it is listed, and no longer. It counts for the
node that the report names by uid, and not if a person has said since its last sight that it is
mended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from fairlead.api.cluster.node_report import (
    Action,
    NodeReport,
    ReportedFault,
    Severity,
    SourceState,
)
from fairlead.api.cluster.node_suites import TESTED, proofs_of
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import REPAIRED
from fairlead.api.values.times import parse_time
from fairlead.decide.health.changes import CHANGED
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.testing import fault_of


class Urgency(Enum):
    """How soon a node has to be empty; the value names the option with the seconds."""

    CRITICAL = "critical_drain_seconds"
    DEGRADED = "degraded_drain_seconds"
    COSMETIC = "cosmetic_drain_seconds"

    def seconds(self, policy: HealthPolicy) -> float:
        """Return the time from the first sight to the deadline."""
        return float(getattr(policy, self.value))


_URGENCIES = {
    Severity.CRITICAL: Urgency.CRITICAL,
    Severity.WARNING: Urgency.DEGRADED,
    Severity.INFO: Urgency.COSMETIC,
}


@dataclass(frozen=True, slots=True)
class Need:
    """What the faults of a node ask for. `worst` is the one that the action is of.

    `deadline`: when the node is to be empty.
    """

    worst: ReportedFault
    action: Action
    deadline: float
    components: tuple[str, ...]
    count: int = 1
    #: Tests that would find these faults again.
    retests: tuple[str, ...] = ()

    @property
    def is_test(self) -> bool:
        """True where nothing is wrong, and the node is only to be tested again."""
        return self.worst.check == CHANGED

    @property
    def words(self) -> str:
        """The worst fault in one line, and how many more there are."""
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.worst.severity.value} {self.worst.words}{more}"


def urgency_of(fault: ReportedFault) -> Urgency | None:
    """Return how urgent a fault is; None: nothing has to be done about it."""
    is_needed = fault.severity is Severity.CRITICAL or fault.action.asks
    return _URGENCIES[fault.severity] if is_needed else None


def open_faults(
    node: Node, report: NodeReport | None, tests: Sequence[NodeTest] = ()
) -> Iterator[ReportedFault]:
    """Yield the faults of a node, of its report and tests, that are not said to be mended."""
    if (found := fault_of(node, tests)) is not None:
        yield found
    if report is None or report.status.node_uid != node.metadata.uid:
        return
    said = node.metadata.annotations.get(REPAIRED)
    if said is None:
        yield from report.status.faults
        return
    repaired = instant_of(said, float("-inf"))
    for fault in report.status.faults:
        if instant_of(fault.last_seen, float("inf")) > repaired:
            yield fault


def need_of(
    node: Node, report: NodeReport | None, policy: HealthPolicy, now: float, *, acting: bool,
    tests: Sequence[NodeTest] = (), change: ReportedFault | None = None,
) -> Need | None:  # fmt: skip
    """Return what the faults of rules that act ask for, or those of the others; None: nothing.

    `change`: the machine is another one than the one that was tested.
    """
    acts: dict[str, bool] = {}
    found: list[ReportedFault] = []
    for fault in open_faults(node, report, tests):
        if fault.severity is not Severity.CRITICAL and not fault.action.asks:
            continue
        check = fault.check
        if check not in acts:
            acts[check] = policy.acts_on(check) is acting
        if acts[check]:
            found.append(fault)
    if change is not None and policy.acts_on(change.check) is acting:
        found.append(change)
    return _need(node, found, policy, now) if found else None


def _need(node: Node, found: Sequence[ReportedFault], policy: HealthPolicy, now: float) -> Need:
    """Return what some faults ask for; in one pass, as all nodes of a fleet may have many."""
    created = instant_of(node.metadata.creation_timestamp, float("-inf"))
    worst, deadline, action = found[0], float("inf"), found[0].action
    instants: dict[str, float] = {}
    for fault in found:
        first = instants.get(fault.first_seen)
        if first is None:  # the clock of a node may be wrong: not of the future
            first = instants[fault.first_seen] = min(now, instant_of(fault.first_seen, now))
        # Nor is a fault older than its node.
        deadline = min(deadline, max(created, first) + _URGENCIES[fault.severity].seconds(policy))
        if fault.action.rank > action.rank:
            action = fault.action
        harm = fault.severity.rank - worst.severity.rank or fault.action.rank - worst.action.rank
        if harm > 0 or (harm == 0 and fault.words > worst.words):
            worst = fault
    components = tuple(sorted({fault.component for fault in found}))
    proofs = {(fault.check, fault.component if fault.check == TESTED else "") for fault in found}
    retests = {name for check, component in proofs for name in proofs_of(check, component)}
    return Need(worst, action, deadline, components, len(found), tuple(sorted(retests)))


def is_proven(node: Node, report: NodeReport | None, policy: HealthPolicy, now: float) -> bool:
    """True when a report that shows no fault shows it by looking: it is fresh, and no source that
    is blind, hung or stale sees what acts.
    """
    if report is None or report.status.node_uid != node.metadata.uid:
        return False
    age = now - instant_of(report.status.observed_at, float("-inf"))
    if age > policy.report_seconds_max:
        return False
    return not any(
        policy.acts_on(check)
        for source in report.status.sources
        if source.state in (SourceState.BLIND, SourceState.HUNG, SourceState.STALE)
        for check in source.checks
    )


def instant_of(text: str | None, default: float) -> float:
    """Return an instant, or the default for none and for what cannot be read."""
    try:
        return default if text is None else parse_time(text)
    except ValueError:
        return default
