"""The test of a pair of nodes: what follows for each of its two tests, and what they say.

    made together -> one listens -> the other one connects -> judged together

Each side looks at the other one: what has work, is gone or has ended ends both. There is no second
attempt: a pair that measured nothing is an Error of both, and each is due again later. A bad pair
is no verdict about a node. Where several lead to a node, its latest test fails (`blamed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    PairMeasure,
    UnreadableResult,
)
from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.api.cluster.node_suites import pair_suite
from fairlead.api.cluster.node_test import NodeTest, NodeTestPhase, NodeTestStatus
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import REPAIRED
from fairlead.api.values.times import format_time, time_or
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.testing import (
    GONE,
    LATE,
    NO_RESULT,
    SEEN_SECONDS,
    SPOKE,
    BeginTest,
    DeleteTestPod,
    SetTest,
    TestAction,
    fault_of,
    left_result,
    newest_first,
    past_of,
    step_aside,
)
from fairlead.model.health.gang_check import bad_pairs
from fairlead.model.health.idle_nodes import NEVER, PastTests
from fairlead.model.health.judgement import shape_of
from fairlead.model.health.pair_book import PairBook, PairRecord

#: The reason of a bad pair of which it is not known to which of the two it leads.
BAD_PAIR = "BadPair"
#: Of what is wrong between nodes, so much is said.
_SAID_MAX = 5
_RATE, _TRIP = "bytesPerSecond", "roundTripSeconds"


@dataclass(frozen=True, slots=True)
class PairSide:
    """One of the two: its test and pod, if they are there, and whether its node has work."""

    test: NodeTest | None
    pod: Pod | None
    is_used: bool = False

    @property
    def own_pod(self) -> Pod | None:
        """The pod that the controller made for the test; others of its name are none."""
        pod, test = self.pod, self.test
        is_own = pod is not None and test is not None and pod.metadata.uid == test.status.pod_uid
        return pod if is_own else None


def key_name(test: NodeTest, other: NodeTest) -> str:
    """Return the name of the Secret of a pair, which no other pair has."""
    return f"node-test-{(test if _listens(test) else other).metadata.uid}"


def are_a_pair(test: NodeTest, other: NodeTest | None) -> bool:
    """True when each of two tests names the other one and its node."""
    peer, back = test.spec.peer, other.spec.peer if other is not None else None
    if peer is None or back is None or other is None or peer.listens is back.listens:
        return False
    names = (peer.test, peer.node, peer.node_uid, back.test, back.node, back.node_uid)
    ours, theirs = test.spec, other.spec
    return names == (
        other.metadata.name, theirs.node, theirs.node_uid,
        test.metadata.name, ours.node, ours.node_uid,
    )  # fmt: skip


def pair_step(
    own: PairSide, other: PairSide, node: Node, policy: HealthPolicy,
    *, now: float, alike: Sequence[PairMeasure],
) -> TestAction | None:  # fmt: skip
    """Return what follows for the open test `own` of a node; None: wait.

    `alike`: what other pairs of the shape and distance measured last.
    """
    test, status = own.test, own.test.status if own.test is not None else NodeTestStatus()
    assert test is not None
    created = time_or(test.metadata.creation_timestamp, now)
    partner = other.test if are_a_pair(test, other.test) else None
    if own.is_used or other.is_used or (partner is None and now >= created + SEEN_SECONDS):
        return step_aside(test, own.pod, now=now)
    if partner is None:
        return None
    if own.pod is not None and own.own_pod is None:
        return None if own.pod.metadata.deletion_timestamp is not None else DeleteTestPod(own.pod)
    ends = _Ends(test, node, now)
    if not partner.is_open:
        return ends.with_partner(partner)
    if now >= created + policy.test_deadline_seconds:
        return ends.nothing(LATE, "the pair did not meet in time")
    if own.pod is None:
        if status.pod_uid:
            is_new = now < time_or(status.started_at, now) + SEEN_SECONDS
            return None if is_new else ends.nothing(GONE, "its pod is gone")
        return _begun(own, other, node, now)
    if not own.pod.is_terminal:
        starts = 2 if _listens(test) else 1  # it waits for the other one to start
        patience = pair_suite().seconds + starts * policy.test_start_seconds
        is_late = now >= time_or(status.started_at, now) + patience
        return ends.nothing(LATE, f"no result after {patience:.0f} s") if is_late else None
    try:
        mine = _measure(own.pod)
        if mine.error and other.own_pod is None:
            return ends.nothing(SPOKE, mine.error)
        if other.own_pod is None or not other.own_pod.is_terminal:
            return None  # the other one judges both, or ends without a result
        theirs = _measure(other.own_pod)
    except UnreadableResult as error:
        return ends.nothing(NO_RESULT, str(error))
    both = (theirs, mine) if _listens(test) else (mine, theirs)
    return ends.judged(*both, alike)


def _listens(test: NodeTest) -> bool:
    return test.spec.peer is not None and test.spec.peer.listens


def _begun(own: PairSide, other: PairSide, node: Node, now: float) -> BeginTest | None:
    """Return the start of a pod: that of the one that connects once the other one listens."""
    test, partner = own.test, other.test
    assert test is not None
    assert partner is not None
    key, at = key_name(test, partner), format_time(now)
    if _listens(test):
        return BeginTest(test, node, takes_devices=False, at=at, key=key)
    pod = other.own_pod
    if pod is None or pod.status.phase != "Running" or not pod.status.pod_ip:
        return None
    return BeginTest(test, node, takes_devices=False, at=at, address=pod.status.pod_ip, key=key)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of a test."""

    test: NodeTest
    node: Node
    now: float

    def nothing(self, reason: str, message: str) -> SetTest:
        """Return that nothing was measured, which says nothing about either node."""
        return SetTest(self.test, replace(
            self.test.status, phase=NodeTestPhase.ENDED, outcome=MachineOutcome.ERROR,
            reason=reason, message=message[:WHY_MAX], ended_at=format_time(self.now),
        ))  # fmt: skip

    def with_partner(self, partner: NodeTest) -> SetTest:
        """Return the end of a test whose partner's has ended: by its measurement, if it has one."""
        found = partner.status.measured
        if not found or partner.status.ended_at is None:
            return self.nothing(partner.status.reason, f"the partner: {partner.status.message}")
        return self._measured(found[0], partner.status.ended_at)

    def judged(
        self, client: PairMeasure, server: PairMeasure, alike: Sequence[PairMeasure]
    ) -> SetTest:
        """Return the end of a test of which both sides have measured."""
        loses = client.loses_full_packets or server.loses_full_packets
        if (client.error or server.error) and not loses:  # then it is the silence of the other
            return self.nothing(SPOKE, client.error or server.error)
        both = joined(client, server)
        finding = judged_pair(both, alike)
        return self._measured(finding, format_time(self.now))

    def _measured(self, finding: MachineFinding, ended_at: str) -> SetTest:
        is_bad = finding.outcome is MachineOutcome.FAILED
        outcome = MachineOutcome.ERROR if is_bad else MachineOutcome.PASSED
        words = f"{finding.message}; not known at which end" if is_bad else ""
        return SetTest(self.test, replace(
            self.test.status, phase=NodeTestPhase.ENDED, outcome=outcome,
            reason=BAD_PAIR if is_bad else outcome.value, message=words[:WHY_MAX],
            ended_at=ended_at, boot_id=self.node.status.node_info.boot_id,
            shape=shape_of(self.node), measured=(finding,),
        ))  # fmt: skip


def _measure(pod: Pod) -> PairMeasure:
    """Return the pair that the only container of a pod left; UnreadableResult."""
    result = left_result(pod)
    if result.suite != pair_suite().name or len(result.pairs) != 1:
        raise UnreadableResult("the result is not one of a pair")
    return result.pairs[0]


def joined(client: PairMeasure, server: PairMeasure) -> PairMeasure:
    """Return what both sides found: the lower rate, and wrong data of either.

    So a side that lies makes its own pairs worse at most, and none of others looks slow beside it.
    """
    rate = max(0.0, min(client.bytes_per_second, server.bytes_per_second))
    trip = max(0.0, client.round_trip_seconds)
    return PairMeasure(
        1, rate, trip, is_wrong=client.is_wrong or server.is_wrong,
        loses_full_packets=client.loses_full_packets or server.loses_full_packets,
    )  # fmt: skip


def judged_pair(both: PairMeasure, alike: Sequence[PairMeasure]) -> MachineFinding:
    """Return what a pair is beside others: bad, by the rule of gangs, or good."""
    measures = {(2 * i, 2 * i + 1): each for i, each in enumerate((both, *alike))}
    why = bad_pairs(measures, [str(i) for i in range(2 * len(measures))]).get((0, 1), "")
    figures = (Figure(_RATE, both.bytes_per_second), Figure(_TRIP, both.round_trip_seconds))
    outcome = MachineOutcome.FAILED if why else MachineOutcome.PASSED
    return MachineFinding(pair_suite().tests[0], outcome, why[:WHY_MAX], figures=figures)


# What tests of pairs say of a node


def records_of(node: Node, tests: Sequence[NodeTest]) -> list[PairRecord]:
    """Return the pairs of a node, the newest first, of this boot and since it was mended."""
    repaired = time_or(node.metadata.annotations.get(REPAIRED), NEVER)
    out: list[PairRecord] = []
    for test in newest_first(tests):
        peer, status = test.spec.peer, test.status
        if peer is None or test.is_open or not status.measured:
            continue
        at, found = time_or(status.ended_at, NEVER), status.measured[0]
        if status.boot_id != node.status.node_info.boot_id or at <= repaired:
            continue
        why = "" if found.outcome is MachineOutcome.PASSED else found.message or "it is bad"
        figures = {each.name: each.value for each in found.figures}
        measure = PairMeasure(1, figures.get(_RATE, 0.0), figures.get(_TRIP, 0.0))
        out.append(PairRecord(test, peer.node, peer.node_uid, at, why, measure))
    return out


def past_pairs_of(tests: Sequence[NodeTest]) -> PastTests:
    """Return what pairs of a node there were: the latest good one, and the latest at all."""
    ended = [each for each in tests if each.spec.peer is not None and not each.is_open]
    good = [each for each in ended if each.status.outcome is MachineOutcome.PASSED]
    return PastTests(
        past_of(tests).number,
        max((time_or(each.status.ended_at, NEVER) for each in good), default=NEVER),
        max((time_or(each.status.ended_at, NEVER) for each in ended), default=NEVER),
    )


def blamed_at(tests: Sequence[NodeTest]) -> float:
    """Return when a node was last found to be what is wrong with its pairs; NEVER."""
    failed = [
        each for each in tests
        if each.spec.peer is not None and each.status.outcome is MachineOutcome.FAILED
    ]  # fmt: skip
    return max((time_or(each.status.ended_at, NEVER) for each in failed), default=NEVER)


def is_blamed(node: Node, tests: Sequence[NodeTest]) -> bool:
    """True while what pairs found of a node is a fault of it."""
    return fault_of(node, [each for each in tests if each.spec.peer is not None]) is not None


def blamed(book: PairBook) -> Iterator[SetTest]:
    """Yield the failure of each node to which bad pairs lead, by its latest test."""
    for name, why in sorted(book.verdict.nodes.items()):
        test = book.nodes[name].records[0].test
        if test.status.outcome is MachineOutcome.FAILED:
            continue
        outcome, words = MachineOutcome.FAILED, f"network: {why}"[:WHY_MAX]
        status = replace(test.status, outcome=outcome, reason=outcome.value, message=words)
        yield SetTest(test, status)


def said_links(book: PairBook) -> str:
    """Return what is wrong between good nodes, or with too many nodes at once; "": nothing."""
    verdict = book.verdict
    parts = [f"the links of leaf {'/'.join(filter(None, leaf))}: {why}"
             for leaf, why in sorted(verdict.leaves.items())]  # fmt: skip
    parts += [f"between {a} and {b}: {why}" for a, b, why in verdict.links]
    if verdict.held:
        parts.append(f"{len(verdict.held)} nodes at once, which is rather the test than the nodes")
    return "; ".join(parts[:_SAID_MAX]) + (f"; {len(parts)} in all" * (len(parts) > _SAID_MAX))
