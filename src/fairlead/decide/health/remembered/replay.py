"""Decides again about recorded faults, under a policy: what would have been done, and how much?

    records of faults -> the decisions of `cycle.py`, carried out on values -> steps of nodes

The decision is the one that runs in the cluster; the machines are simple. Faults begin and end as
they were recorded. A node that was in use is so until the end of its drain. An agent carries out
each request within five minutes, which ends the faults that a boot or a reset ends, until they are
recorded with a later beginning; a replaced machine is gone after half an hour. Nodes pass their
tests, and there are no pods of others: so times are estimates, and the decisions are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_report import (
    Action,
    AgentAnswer,
    NodeReport,
    NodeReportStatus,
    Recovery,
    ReportedFault,
    RequestAnswer,
)
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import HEALTH_DRAIN, POOL, ZONE
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.health.actions import Note, SetRecord
from fairlead.decide.health.cycle import HealthMemory, HealthView, decide_health
from fairlead.decide.health.node_step import NodeView, drain_deadline
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.remembered.fault_records import RecordedFaults
from fairlead.decide.removal.books import WriteFleet
from fairlead.decide.removal.trust import Blindness
from fairlead.model.health.node_record import NodeRecord, NodeState

#: An agent answers a request, and a provider replaces a machine, after so long.
REPAIR_SECONDS, REPLACE_SECONDS = 300.0, 1800.0
#: Between two decisions: after one that did something, and while nodes wait for others.
_SOON_SECONDS, _PACE_SECONDS = 0.25, 300.0
#: The same while what is seen cannot be trusted, and within the first minute, when nothing is yet.
_BLIND_SECONDS, _FIRST_SECONDS = 60.0, 5.0
_ENDED_BY_BOOT = (Recovery.BOOT, Recovery.COUNTER_RESET)
_REQUESTS = (NodeState.RESETTING, NodeState.REBOOTING)
#: What a node does, beside its states: it goes out, and its machine is another one.
CORDON, REPLACED, HOLD = "Cordon", "Replaced", "Hold"
#: Why nothing is taken, of the reasons of that, where it follows from faults.
SIGHT = Blindness.NODES_SICK.value
#: After these something was done about the machine, and not only about its node.
_REPAIRS = frozenset(("Resetting", "Rebooting", "Replacing", "Asking"))


class HealthStep(NamedTuple):
    """What was, or would have been, done about a node; `name` "": about all of them."""

    at: float
    node: str
    action: str
    is_used: bool = False


class RecordedRow(NamedTuple):
    """A record of faults, with its instant and what it says."""

    at: float
    facts: RecordedFaults
    faults: Sequence[ReportedFault]


@dataclass(frozen=True, slots=True)
class HealthTally:
    """Sums of steps. `in_vain`: nodes that came back though nothing was done about the machine:
    the faults had ended by themselves. `node_hours`: for which nodes were out.
    """

    cordons: int = 0
    in_use: int = 0
    resets: int = 0
    reboots: int = 0
    replacements: int = 0
    persons: int = 0
    in_vain: int = 0
    holds: int = 0
    node_hours: float = 0.0


def tally_of(steps: Iterable[HealthStep], end: float) -> HealthTally:
    """Return the sums of steps in the order of time; nodes that are out then are so until `end`."""
    counts, out, repaired = Counter[str](), dict[str, float](), set[str]()
    in_use, in_vain, seconds = 0, 0, 0.0
    for at, node, action, is_used in steps:
        counts[action] += 1
        if action == CORDON:
            out.setdefault(node, at)
            repaired.discard(node)
            in_use += is_used
        elif action in _REPAIRS:
            repaired.add(node)
        elif action in (NodeState.READY.value, REPLACED) and node in out:
            seconds += at - out.pop(node)
            in_vain += node not in repaired
    seconds += sum(end - at for at in out.values())
    return HealthTally(
        counts[CORDON], in_use, counts["Resetting"], counts["Rebooting"], counts["Replacing"],
        counts["Asking"], in_vain, counts[HOLD], seconds / 3600,
    )  # fmt: skip


def replay(rows: Sequence[RecordedRow], policy: HealthPolicy, end: float) -> list[HealthStep]:
    """Return what would have been done by `end` about faults that were recorded, in this order."""
    if not policy.enabled or not rows:
        return []
    return list(_Replay(policy, rows[0].at).run(rows, end))


@dataclass(slots=True)
class _Machine:
    """A machine with faults, and what was done about it."""

    row: RecordedRow
    record: NodeRecord | None = None
    boot: int = 1
    answered: RequestAnswer | None = None
    #: When what was asked for is done; None: nothing is asked for.
    done_at: float | None = None
    mended: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])

    def view(self, now: float) -> NodeView:
        """Return what a decision sees of it."""
        facts, record = self.row.facts, self.record
        is_out = record is not None and record.is_out
        notes = {HEALTH_DRAIN: record.drain} if record is not None and is_out else {}
        labels = {POOL: facts.pool, ZONE: facts.zone}
        meta = ObjectMeta(
            name=facts.node, uid=facts.uid, annotations=notes,
            labels={key: text for key, text in labels.items() if text},
            creation_timestamp=facts.created or None,
        )  # fmt: skip
        status = NodeReportStatus(
            format_time(now), facts.uid, f"boot-{self.boot}",
            faults=tuple(each for each in self.row.faults if _identity(each) not in self.mended),
            answered=self.answered,
        )  # fmt: skip
        is_empty = record is not None and is_out and now >= drain_deadline(record)
        return NodeView(
            Node(meta), record, NodeReport(ObjectMeta(name=facts.node), status=status),
            is_used=facts.is_used and not is_empty, is_replaceable=facts.is_replaceable,
            is_restartable=facts.is_restartable,
        )  # fmt: skip

    def repair(self) -> None:
        """Let the agent carry out what it is asked for."""
        assert self.record is not None
        assert self.record.request is not None
        request, self.done_at = self.record.request, None
        self.answered = RequestAnswer(request.id, AgentAnswer.DONE)
        is_boot = request.action is Action.REBOOT
        self.boot += is_boot
        self.mended |= {
            _identity(each) for each in self.row.faults
            if each.recovery in _ENDED_BY_BOOT and (is_boot or each.action is Action.RESET_GPU)
        }  # fmt: skip

    def next_at(self, policy: HealthPolicy, now: float) -> Iterator[float]:
        """Yield when something about it is due."""
        record = self.record
        if self.done_at is not None:
            yield self.done_at
        if record is None or not record.is_out:
            return
        yield drain_deadline(record)
        if record.deadline is not None:
            yield parse_time(record.deadline)
        if record.state is NodeState.VALIDATING:
            yield parse_time(record.entered_at) + policy.validate_seconds
            yield now + policy.validate_seconds


class _Replay:
    """The fleet as far as faults were recorded of it."""

    def __init__(self, policy: HealthPolicy, now: float) -> None:
        self._policy, self._now = _without_tests(policy), now
        self._machines = dict[str, _Machine]()
        self._gone = set[str]()
        self._fleet = Fleet(ObjectMeta(name=FLEET_NAME))
        self._memory = HealthMemory()
        self._views = dict[str, NodeView]()
        self._sizes, self._names = dict[str, int](), frozenset[str]()
        #: Nodes of which nothing is recorded: as many as there were nodes, for their number alone.
        self._count, self._well = 0, frozenset[str]()

    def run(self, rows: Sequence[RecordedRow], end: float) -> Iterator[HealthStep]:
        """Yield steps until the end."""
        index = 0
        while self._now <= end:
            while index < len(rows) and rows[index].at <= self._now:
                self._take(rows[index])
                index += 1
            yield from self._due()
            pace = _PACE_SECONDS
            if self._machines:
                decision, report = decide_health(self._view(), self._policy, self._memory)
                for action in decision.actions:
                    yield from self._perform(action)
                if any(not isinstance(action, Note) for action in decision.actions):
                    pace = _SOON_SECONDS
                elif report.findings:
                    is_first = self._now <= rows[0].at + _BLIND_SECONDS
                    pace = _FIRST_SECONDS if is_first else _BLIND_SECONDS
            row_at = rows[index].at if index < len(rows) else end + 1
            self._now = self._next(row_at, self._now + pace)

    def _next(self, row_at: float, paced_at: float) -> float:
        now, doubted = self._now, self._memory.seen.doubted_since
        if not self._machines:
            return row_at
        times = [row_at, paced_at]
        if doubted is not None:
            times.append(doubted + self._policy.confirm_seconds + _SOON_SECONDS)
        for machine in self._machines.values():
            times += machine.next_at(self._policy, now)
        return min(at for at in times if at > now)

    def _take(self, row: RecordedRow) -> None:
        """Take in a record; a node that was made again has another machine."""
        name, facts = row.facts.node, row.facts
        if facts.uid in self._gone:
            return
        machine = self._machines.get(name)
        self._views.pop(name, None)
        if machine is None or machine.row.facts.uid != facts.uid:
            self._machines[name] = _Machine(row)
        else:
            machine.row = row
        self._sizes[facts.pool] = facts.pool_nodes
        self._sizes[f"{facts.pool}/{facts.zone}"] = facts.zone_nodes
        if facts.nodes != self._count:
            self._count = facts.nodes
            self._well = frozenset(f"~{number}" for number in range(facts.nodes))
        self._names = self._well | self._machines.keys()

    def _due(self) -> Iterator[HealthStep]:
        """Let agents and providers do what is asked for, and forget what is well."""
        for name, machine in sorted(self._machines.items()):
            if machine.done_at is not None and machine.done_at <= self._now:
                self._views.pop(name, None)
                if machine.record is None or machine.record.request is not None:
                    machine.repair()
                    continue
                yield HealthStep(self._now, name, REPLACED)
                self._gone.add(machine.row.facts.uid)
                del self._machines[name]
            elif machine.record is None and not machine.row.faults:
                del self._machines[name]
                self._views.pop(name, None)

    def _view(self) -> HealthView:
        now = self._now
        for name, machine in self._machines.items():
            record = machine.record
            if name not in self._views or (record is not None and record.is_out):
                self._views[name] = machine.view(now)
        return HealthView(
            self._fleet, {name: self._views[name] for name in self._machines}, {}, {},
            self._sizes, self._names, now, now,
        )  # fmt: skip

    def _perform(self, action: object) -> Iterator[HealthStep]:
        match action:
            case WriteFleet(status=status):
                self._fleet = replace(self._fleet, status=status)
            case SetRecord(node, record, decided):
                self._set(node.metadata.name, record)
                for each in decided:
                    is_used = bool(each.facts.get("isUsed", False))
                    yield HealthStep(self._now, node.metadata.name, each.action, is_used)
            case Note(None, decided) if (decided.action, decided.reason) == (HOLD, SIGHT):
                yield HealthStep(self._now, "", HOLD)
            case _:
                pass

    def _set(self, name: str, record: NodeRecord | None) -> None:
        machine = self._machines[name]
        before, machine.record = machine.record, record
        self._views.pop(name, None)
        if record is None or (before is not None and before.request == record.request
                              and before.state is record.state):  # fmt: skip
            return
        machine.done_at = None
        if record.state in _REQUESTS:
            machine.done_at = self._now + REPAIR_SECONDS
        elif record.state is NodeState.REPLACING:
            machine.done_at = self._now + REPLACE_SECONDS


def _without_tests(policy: HealthPolicy) -> HealthPolicy:
    """Return the policy without tests, which the machines pass."""
    return changed(policy, test_suite="", test_suites=(), idle_test_suite="", pair_tests=False)


def _identity(fault: ReportedFault) -> tuple[str, str, str]:
    return fault.check, fault.component, fault.first_seen


def differing(
    before: Iterable[HealthStep], after: Iterable[HealthStep]
) -> Mapping[str, tuple[Sequence[HealthStep], Sequence[HealthStep]]]:
    """Return the steps of each node about which other things were done, in the order of names."""
    found = dict[str, tuple[list[HealthStep], list[HealthStep]]]()
    for which, steps in enumerate((before, after)):
        for step in steps:
            if step.node:
                found.setdefault(step.node, ([], []))[which].append(step)
    return {
        name: (old, new) for name, (old, new) in sorted(found.items())
        if [each.action for each in old] != [each.action for each in new]
    }  # fmt: skip
