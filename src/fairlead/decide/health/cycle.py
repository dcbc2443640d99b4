"""One decision about the health of all nodes: look, grant, move, evict, and write down why.

    sight     can what is seen be trusted? (`decide/removal/`)
    grants    which sick nodes may be taken out: a removal each, on the books of the fleet
    records   what follows for each node that is out (`node_step.py`)
    pods      those of others that are to leave nodes which are drained

A grant is in the Fleet object before the node is tainted: whatever line the controller dies at, the
next one finds what it had begun, and what two leaders take is booked once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import REPAIRS_MAX, Fleet, Repair
from fairlead.api.cluster.node_pool import NodePool, PoolDecision
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.node_test import NodeTest, NodeTestCause
from fairlead.api.kubernetes.core import Pod
from fairlead.api.names import DRAIN, POOL
from fairlead.api.values.times import format_time
from fairlead.decide.health.actions import (
    Action,
    DeleteOverduePod,
    DeleteReport,
    EvictPod,
    Note,
    SetRecord,
)
from fairlead.decide.health.decisions import (
    decision,
    moved,
    over,
    shadowed,
    sight_changed,
    taken,
)
from fairlead.decide.health.node_step import NodeView, next_record, stray, taken_out
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.gate import Bench, steps_of_tests
from fairlead.decide.health.proving.idle_tests import idle_tests, room, said_overdue
from fairlead.decide.health.proving.pair_plan import PairPlan
from fairlead.decide.health.proving.pair_step import blamed, said_links
from fairlead.decide.health.proving.testing import CreateTest
from fairlead.decide.health.remembered.fault_records import FaultRecords
from fairlead.decide.health.remembered.machine_memory import remembered, with_tries
from fairlead.decide.health.seen_nodes import SeenNodes, charge_of
from fairlead.decide.removal.books import (
    CreateFleet,
    LedgerClock,
    WriteFleet,
    budget_of,
    leaving_of,
    permits_of,
)
from fairlead.decide.removal.ledger import Peaks, RailsAccount, RemovalLedger
from fairlead.decide.removal.removals import (
    Removal,
    RemovalOutcome,
    RemovalRule,
    Ruling,
)
from fairlead.decide.removal.trust import (
    Listing,
    Sight,
    SightFinding,
    SightMemory,
    look,
    reported_of,
)
from fairlead.decide.verdict import Decision
from fairlead.model.health.idle_nodes import DueNodes
from fairlead.model.health.judgement import PeerFigures
from fairlead.model.health.node_record import NodeState
from fairlead.model.health.pair_book import PairBook

_NOTES_MAX, _NAMED_MAX = 100, 3
#: So much later the next decision is due, so that no rounding makes it one that is too early.
_ROUNDING_SECONDS = 0.01


class HealthView(msgspec.Struct, frozen=True):
    """Everything that one decision looks at.

    `nodes` are those that may need something, by name: with a report that is not good, a record, a
    drain, or an entry in the books; of one that is as it was the view is the same one. `sizes` is
    how many nodes each pool and "pool/zone" has.
    """

    fleet: Fleet | None
    nodes: Mapping[str, NodeView]
    #: Pods of others on each node that is drained: those that are not on their way out.
    pods: Mapping[str, Sequence[Pod]]
    pools: Mapping[str, NodePool]
    sizes: Mapping[str, int]
    node_names: frozenset[str]
    now: float
    instant: float
    unready: int = 0
    nodes_age_seconds: float = 0.0
    api_latency_seconds: float = 0.0
    api_error_share: float = 0.0
    report: ClusterReport | None = None
    #: Pods of tests by the name of the test, and what nodes measured last, by shape and suite.
    test_pods: Mapping[str, Pod] = msgspec.field(default_factory=dict[str, Pod])
    peers: Mapping[tuple[str, str], PeerFigures] = msgspec.field(
        default_factory=dict[tuple[str, str], PeerFigures]
    )
    #: Idle nodes that are to be tested.
    due: DueNodes = msgspec.field(default_factory=DueNodes)
    #: The other tests of open tests of pairs, by name; what pairs measured, and the nodes of which
    #: pairs are to be tested. None: there are no pairs.
    partners: Mapping[str, NodeTest] = msgspec.field(default_factory=dict[str, NodeTest])
    pairs: PairBook | None = None
    due_pairs: DueNodes = msgspec.field(default_factory=DueNodes)
    #: Reports whose nodes have been gone for `orphan_seconds`.
    orphans: Sequence[NodeReport] = ()


@dataclass(slots=True)
class HealthMemory:
    """What a process keeps between decisions. A new process begins with the defaults: blind."""

    sight: SightMemory = field(default_factory=SightMemory)
    peaks: Peaks = field(default_factory=Peaks)
    ledger: LedgerClock = field(default_factory=LedgerClock)
    looked_at: float | None = None
    blind: tuple[str, ...] = ()
    #: What follows from the faults of each node.
    seen: SeenNodes = field(default_factory=SeenNodes)
    #: Which faults are on record.
    records: FaultRecords = field(default_factory=FaultRecords)
    #: What was recorded of rules in shadow, by uid of the node.
    shadows: dict[str, str] = field(default_factory=dict[str, str])
    #: It was said that idle nodes are not tested in time.
    is_late: bool = False
    #: What was said of links between good nodes, and of roll-outs that have stopped.
    links: str = ""
    stopped: str = ""


class HealthReport(msgspec.Struct, frozen=True):
    """What a decision found, for metrics."""

    findings: tuple[SightFinding, ...] = ()
    #: How many nodes that should go stay in service, by what holds them there.
    held: Mapping[RemovalRule, int] = msgspec.field(default_factory=dict[RemovalRule, int])
    states: Mapping[NodeState, int] = msgspec.field(default_factory=dict[NodeState, int])
    #: Idle nodes that are to be tested, and those of them that should have been.
    due: int = 0
    overdue: int = 0
    #: Leaves, and pairs of good nodes, between which data arrives late, slowly or changed.
    bad_links: int = 0


def decide_health(
    view: HealthView, policy: HealthPolicy, memory: HealthMemory
) -> tuple[Decision[Action], HealthReport]:
    """Return what to do, and what was found; changes `memory`."""
    return _Cycle(view, policy, memory).run()


@dataclass(slots=True)
class _Cycle:
    view: HealthView
    policy: HealthPolicy
    memory: HealthMemory
    actions: list[Action] = field(default_factory=list[Action])
    states: dict[NodeState, int] = field(default_factory=dict[NodeState, int])
    #: The nodes that are out, or marked as one that is, in the order of their names.
    recorded: Sequence[NodeView] = ()

    @property
    def at(self) -> str:
        """The instant of the decision, as records have it."""
        return format_time(self.view.now)

    @property
    def seen(self) -> SeenNodes:
        """What follows from the faults of each node."""
        return self.memory.seen

    def run(self) -> tuple[Decision[Action], HealthReport]:
        view = self.view
        self.seen.look(view.nodes, self.policy, view.now, view.instant)
        self.recorded = [node for _, node in sorted(self.seen.recorded.items())]
        findings = self._look()
        is_clear = not findings
        self._move(is_clear=is_clear)
        held = self._grant(findings)
        self._say_stopped()
        bench = Bench(
            view.test_pods, view.peers, self.policy, view.now, view.partners, view.pairs,
            instant=view.instant,
        )  # fmt: skip
        self.actions += steps_of_tests(view.nodes, bench, self.seen.needs)
        bad_links = self._blame()
        late = self._test_idle(is_clear=is_clear)
        if is_clear:
            self._evict()
            self.actions += [DeleteReport(each) for each in view.orphans[:_NOTES_MAX]]
        self._note_shadows(findings)
        self.actions += self.memory.records.look(
            view.nodes, self.seen.changed, view.sizes, count=len(view.node_names), now=view.now
        )
        is_busy = bool(view.nodes) or bool(findings)
        seconds = self.policy.loop_seconds if is_busy else self.policy.idle_loop_seconds
        doubted = self.seen.doubted_since
        if doubted is not None:
            wait = doubted + self.policy.confirm_seconds - view.instant
            seconds = min(seconds, wait + _ROUNDING_SECONDS)
        report = HealthReport(findings, held, self.states, len(view.due), late, bad_links)
        return Decision(tuple(self.actions), wake_at=view.now + seconds), report

    def _test_idle(self, *, is_clear: bool) -> int:
        """Begin tests of idle nodes, unless the cluster is in trouble; return how many are late."""
        view, memory = self.view, self.memory
        late = view.due.late(view.instant)
        if bool(late) is not memory.is_late:
            memory.is_late = bool(late)
            self.actions.append(Note(None, said_overdue(late, view.instant, view.now)))
        if is_clear:
            self.actions += self._begun()
        return len(late)

    def _begun(self) -> Iterator[CreateTest]:
        """Yield the tests of idle nodes that begin: of bad pairs first, then nodes, then pairs."""
        view, policy = self.view, self.policy
        count, fleet = 0, len(view.node_names)
        open_count = sum(
            test.spec.cause is NodeTestCause.IDLE and test.is_open
            for node in view.nodes.values() if node.open_test is not None for test in node.tests
        )  # fmt: skip
        chosen = dict[str, None]()
        plan = None if view.pairs is None else PairPlan(view.pairs, view.now, chosen)
        if plan is not None:
            for test in plan.opinions(room(policy, fleet) - open_count):
                count += 1
                yield test
        if policy.tests_idle:
            due = (each for each in view.due if each.node.metadata.name not in chosen)
            for test in idle_tests(due, policy, open_count=open_count + count, nodes=fleet):
                count += 1
                chosen[test.node.metadata.name] = None
                yield test
        if plan is not None:
            yield from plan.rotation(view.due_pairs, room(policy, fleet) - open_count - count)

    def _blame(self) -> int:
        """Have nodes failed to which bad pairs lead, and say what is between good ones."""
        pairs, memory = self.view.pairs, self.memory
        if pairs is None:
            return 0
        self.actions += blamed(pairs)
        verdict, said = pairs.verdict, said_links(pairs)
        if said != memory.links:
            memory.links = said
            kind, text = ("BadLink", said) if said else ("Resume", "no link is known to be bad")
            self.actions.append(Note(None, PoolDecision(self.at, kind, "PairTests", text, {})))
        return len(verdict.leaves) + len(verdict.links) + bool(verdict.held)

    # Sight

    def _look(self) -> tuple[SightFinding, ...]:
        view, memory, policy = self.view, self.memory, self.policy
        before = memory.looked_at
        elapsed = 0.0 if before is None else max(0.0, view.instant - before)
        memory.looked_at = view.instant
        listing = Listing(view.node_names, view.nodes_age_seconds)
        sight = Sight(
            # No machine is ended here, so the list of nodes is compared with no other one.
            listing, Listing(view.node_names), unready=view.unready,
            sick=self.seen.sick,
            api_error_share=view.api_error_share,
            api_latency_seconds=view.api_latency_seconds,
            reported=reported_of(view.report, view.now),
            is_frozen=view.fleet is not None and view.fleet.spec.freeze is not None,
        )  # fmt: skip
        # A list that lacks nodes makes shares smaller, and what it lacks is not touched.
        forgetful = replace(memory.sight, stable_count=None)
        memory.sight, findings = look(forgetful, sight, policy.sight, elapsed)
        blind = tuple(sorted(finding.blindness.value for finding in findings))
        if blind != memory.blind:
            said = sight_changed(memory.blind, blind, findings, self.at)
            memory.blind = blind
            self.actions.append(Note(None, said))
        return findings

    # Records

    def _move(self, *, is_clear: bool) -> None:
        """Write what follows for the nodes that are out."""
        view = self.view
        for node in self.recorded:
            record, need = node.record, self.seen.needs.get(node.name)
            if record is None or not record.is_out:
                if node.is_marked and need is None:
                    self._adopt(node)
                continue
            new = next_record(node, need, self.policy, view.now)
            state = NodeState.READY if new is None else new.state
            if not is_clear and state is not record.state and not state.returns:
                new, state = record, record.state  # deadlines wait for clear sight
            self.states[state] = self.states.get(state, 0) + 1
            if new != record:
                said = moved(node, record, new, self.at)
                self.actions.append(SetRecord(node.node, new, said))

    def _adopt(self, node: NodeView) -> None:
        """Take over a node that has our marks and no record that can be read: test it."""
        record = stray(node, self.policy, self.view.now)
        text = f"{node.name}: {record.reason}"
        said = (PoolDecision(self.at, record.state.value, "Stray", text),)
        self.actions.append(SetRecord(node.node, record, said))

    # Grants

    def _grant(self, findings: Sequence[SightFinding]) -> Mapping[RemovalRule, int]:
        """Book nodes that are to go out, and taint those that were booked before.

        Returns how many wait, by the rule that holds them.
        """
        view, memory, candidates = self.view, self.memory, self.seen.candidates
        if candidates:
            self.states[NodeState.SUSPECT] = len(candidates)
        if view.fleet is None:
            if candidates:
                self.actions.append(CreateFleet())
            return {}
        ledger = memory.ledger.ledger(view.fleet, view.instant)
        memory.peaks = memory.peaks.at(view.instant, view.sizes)
        granted = {each.uid for each in view.fleet.status.repairs}
        if findings:  # nothing is taken, whatever it is
            count = len(self.seen.suspects.keys() - granted)
            self._write_fleet(view.fleet, ledger, ())
            return {RemovalRule.BLIND: count} if count else {}
        rulings, held = self._rule(view.fleet, ledger) if candidates else ((), {})
        if waiting := self.seen.held_tunings:
            held = {**held, RemovalRule.TAKEN_BACK: waiting}
        for name in sorted({each.node for each in view.fleet.status.repairs} & candidates.keys()):
            if view.nodes[name].node.metadata.uid in granted:
                self.actions.append(self._taken_out(view.nodes[name], view.fleet))
        self._write_fleet(view.fleet, ledger, rulings)
        return held

    def _taken_out(self, node: NodeView, fleet: Fleet) -> SetRecord:
        """Return that a node goes out of service now."""
        view, need = self.view, self.seen.needs[node.name]
        known = remembered(
            fleet.status.tried, node.node, node.report, present=view.node_names, now=view.now
        )
        record = taken_out(node, need, self.policy, view.now, known=known)
        said = decision("Cordon", need, node, text=f"{node.name}: {record.reason}", at=self.at)
        return SetRecord(node.node, record, (said,))

    def _rule(
        self, fleet: Fleet, ledger: RemovalLedger
    ) -> tuple[tuple[Ruling, ...], Mapping[RemovalRule, int]]:
        """Return what the budgets allow of what is wanted, and how many wait for what."""
        view, status = self.view, fleet.status
        account = RailsAccount(
            ledger, self.memory.peaks.within(view.instant, view.sizes), self.policy.budgets,
            of_pools={name: budget_of(pool) for name, pool in view.pools.items()},
            leaving=leaving_of(status),
        )  # fmt: skip
        room = REPAIRS_MAX - len(status.repairs)
        granted = {each.node: each.uid for each in status.repairs}
        return self.seen.removals.rule(
            account, self._removal, granted=granted, permits=permits_of(fleet, view.now), room=room
        )

    def _removal(self, name: str) -> Removal:
        """Return the removal of a node that was a suspect for long enough."""
        node, need = self.view.nodes[name], self.seen.needs[name]
        charge, uid = charge_of(node, need), node.node.metadata.uid
        return Removal(
            charge, uid, charge.pool, name, uid,
            marked_loops=1, order=-need.worst.severity.rank, why=need.words,
        )  # fmt: skip

    def _write_fleet(self, fleet: Fleet, ledger: RemovalLedger, rulings: Sequence[Ruling]) -> None:
        status, policy = fleet.status, self.policy
        granted = [each for each in rulings if each.outcome is RemovalOutcome.REMOVE]
        kept = tuple(each for each in status.repairs if self._is_open(each))
        new = tuple(
            Repair(each.removal.name, each.removal.instance, each.removal.charge.pool, self.at)
            for each in granted
        )
        known = {each.uid for each in status.repairs}
        lost = tuple(  # it was charged when it was granted
            Repair(each.name, meta.uid, meta.labels.get(POOL, ""), self.at)
            for each in self.recorded
            if each.record is not None and each.record.is_out
            and (meta := each.node.metadata).uid not in known
        )  # fmt: skip
        new = (*new, *lost)[: max(0, REPAIRS_MAX - len(kept))]
        is_old = bool(status.removed) and ledger.clock - status.clock >= policy.ledger_seconds
        tried = with_tries(
            status.tried, ((each.node, each.record, each.report) for each in self.recorded),
            now=self.view.now,
        )  # fmt: skip
        if not new and kept == status.repairs and not is_old and tried is status.tried:
            return
        booked = ledger.with_removed(each.removal.charge for each in granted)
        after = replace(
            status, repairs=(*kept, *new), clock=booked.clock, removed=booked.removed, tried=tried
        )
        said = (
            *(taken(each, self.at) for each in granted),
            *(over(each, self.at) for each in status.repairs if each not in kept),
        )
        self.actions.append(WriteFleet(fleet, after, said))

    def _is_open(self, repair: Repair) -> bool:
        """True while the node of an entry is out, or is about to be."""
        node = self.view.nodes.get(repair.node)
        if node is None or node.node.metadata.uid != repair.uid:
            return False
        is_out = node.record is not None and node.record.is_out
        return is_out or repair.node in self.seen.needs

    # Pods of others

    def _evict(self) -> None:
        for name, pods in sorted(self.view.pods.items()):
            node, drain = self.view.nodes[name].node, self.view.nodes[name].drain
            if drain is None or drain.asked_at is None:
                continue
            begins = drain.start - self.policy.eviction_seconds
            if DRAIN in node.metadata.annotations:  # a person's begins at once
                begins = drain.asked_at
            if self.view.now >= drain.start:
                self.actions += [DeleteOverduePod(pod, node) for pod in pods]
            elif self.view.now >= begins:
                self.actions += [EvictPod(pod, node) for pod in pods]

    def _say_stopped(self) -> None:
        """Record that a roll-out of a tuning profile stops, and that it goes on."""
        nodes = sorted(self.seen.taken_back)
        said = ""
        if nodes:
            names = ", ".join(nodes[:_NAMED_MAX])
            said = (
                f"no more nodes start again for a profile that was taken back from {names}: "
                f"change it, then fairlead node repair {nodes[0]}"
            )
        if said != self.memory.stopped:
            self.memory.stopped = said
            kind, text = ("Stopped", said) if said else ("Resume", "profiles are rolled out again")
            self.actions.append(Note(None, PoolDecision(self.at, kind, "Tuning", text, {})))

    # Rules in shadow

    def _note_shadows(self, findings: Sequence[SightFinding]) -> None:
        """Record once what a rule in shadow would do, and forget what is over."""
        before, self.memory.shadows = self.memory.shadows, {}
        why = findings[0].message if findings else "the rails would be asked"
        shadows = self.seen.shadows
        for name in sorted(shadows)[:_NOTES_MAX]:
            node, need = self.view.nodes[name].node, shadows[name]
            uid = node.metadata.uid
            key = f"{need.worst.words} {need.worst.first_seen}"
            self.memory.shadows[uid] = key
            if before.get(uid) != key:
                said = shadowed(self.view.nodes[name], need, why, self.at)
                self.actions.append(Note(node, said))
