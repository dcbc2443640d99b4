"""Tests of nodes: which node needs one, what follows for an open one, what it says of the node.

    Pending -> Running -> Ended          a pod each time it runs; tried again until a deadline

Level-triggered as the rest of health: the pod is the one whose uid the status has, and another one
of its name is deleted, whoever made it. Nothing is believed that the controller did not order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api.cluster.machine_result import (
    MachineOutcome,
    SuiteResult,
    UnreadableResult,
    decode_result,
    worst_outcome,
)
from fairlead.api.cluster.node_report import WHY_MAX, Action, NodeReport, ReportedFault, Severity
from fairlead.api.cluster.node_suites import TESTED, machine_tests, suite_of, suites
from fairlead.api.cluster.node_test import (
    DEVICES_MAX,
    NodeTest,
    NodeTestCause,
    NodeTestPeer,
    NodeTestPhase,
    NodeTestSpec,
    NodeTestStatus,
)
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import Condition, set_condition
from fairlead.api.names import COMPLETE, PASSED, REPAIRED, TAINT_PREFLIGHT
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.health.changes import hardware_of, last_passed
from fairlead.decide.health.policy import HealthPolicy
from fairlead.model.health.idle_nodes import NEVER, PastTests
from fairlead.model.health.judgement import PeerFigures, judged, shape_of

#: The check of faults that tests find, as `health.actOn` names it.
CHECK = TESTED
#: Of each node, ended tests that are kept.
KEPT_MAX = 3
#: Of the name of a node in that of its test, so that the number has room.
_NODE_NAME_MAX = 240
#: A pod that was created is seen after so long.
SEEN_SECONDS = 10.0
_BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX = 10.0, 300.0
#: Reasons of an attempt, and of the end.
SPOKE, SILENT, LATE, GONE, NO_RESULT = "HarnessError", "Silent", "Late", "PodGone", "NoResult"


@dataclass(frozen=True, slots=True)
class CreateTest:
    """Create the next test of a node."""

    node: Node
    suite: str
    number: int
    cause: NodeTestCause = NodeTestCause.GATE
    #: The other node, where the connection to it is tested.
    peer: NodeTestPeer | None = None
    retests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the NodeTest: derived, so that two leaders create one."""
        return f"{self.node.metadata.name[:_NODE_NAME_MAX]}-{self.number}"


@dataclass(frozen=True, slots=True)
class BeginTest:
    """Create the pod of a test, and write its uid down.

    Of a pair, `address` is where the one that connects finds the other one, and `key` the name of
    the Secret by which they prove themselves to each other.
    """

    test: NodeTest
    node: Node
    takes_devices: bool
    at: str
    address: str = ""
    key: str = ""

    @property
    def yields(self) -> bool:
        """True for a test that leaves when work comes. No work comes to a node at the gate."""
        is_beside = not self.takes_devices and self.test.spec.peer is None
        return not is_beside and self.test.spec.cause is not NodeTestCause.GATE


@dataclass(frozen=True, slots=True)
class SetTest:
    """Write the status of a test."""

    test: NodeTest
    status: NodeTestStatus


def with_conditions(test: NodeTest, status: NodeTestStatus, now: float) -> NodeTestStatus:
    """Return a new status of a test with the conditions that say the same."""
    outcome, generation, at = status.outcome, test.metadata.generation or None, format_time(now)
    if status.phase is not NodeTestPhase.ENDED or outcome is None:
        complete, passed = ("False", status.phase.value, ""), ("Unknown", "NotComplete", "")
    else:
        found = {MachineOutcome.PASSED: "True", MachineOutcome.FAILED: "False"}
        complete = ("True", outcome.value, "")
        passed = (found.get(outcome, "Unknown"), status.reason or outcome.value, status.message)
    conditions = test.status.conditions
    for type_, said in ((COMPLETE, complete), (PASSED, passed)):
        conditions = set_condition(conditions, Condition(type_, *said, generation, at))
    return replace(status, conditions=conditions)


@dataclass(frozen=True, slots=True)
class DeleteTestPod:
    """Delete a pod of a test's name."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class DeleteTest:
    """Delete a test that ended long ago."""

    test: NodeTest


TestAction = CreateTest | BeginTest | SetTest | DeleteTestPod | DeleteTest


def newest_first(tests: Sequence[NodeTest]) -> list[NodeTest]:
    """Return the tests of a node, the newest first."""
    return sorted(tests, key=lambda each: (-each.spec.number, each.metadata.name))


def fault_of(node: Node, tests: Sequence[NodeTest]) -> ReportedFault | None:
    """Return the fault that the latest test found; None: none, or it is over.

    It ends with the boot in which it was found, with a later test of the suite that passes, and
    when a person says so. What the gate could not find out is a fault, too; what other tests could
    not is none.
    """
    passed = list[NodeTest]()
    for test in newest_first(tests):
        outcome, is_gate = test.status.outcome, test.spec.cause is NodeTestCause.GATE
        if test.is_open or outcome is None:
            continue
        if outcome is MachineOutcome.PASSED:
            passed.append(test)
        elif (
            (outcome is MachineOutcome.FAILED or is_gate)
            and not any(_covers(each, test.spec.suite, test.spec.retests) for each in passed)
            and _still_counts(node, test)
        ):
            return _fault(test)
    return None


def _covers(test: NodeTest, suite: str, retests: Collection[str]) -> bool:
    """True for a test of the suite that had all of these tests as the longest suite has them."""
    return test.spec.suite == suite and set(retests) <= set(test.spec.retests)


def _still_counts(node: Node, test: NodeTest) -> bool:
    if test.status.boot_id != node.status.node_info.boot_id:
        return False
    repaired = node.metadata.annotations.get(REPAIRED)
    return _instant(test.status.ended_at) > _instant(repaired)


def _fault(test: NodeTest) -> ReportedFault:
    status, worst = test.status, test.status.worst
    component, action = f"suite {test.spec.suite}", Action.ASK_PERSON
    if status.outcome is MachineOutcome.FAILED and worst is not None:
        component = worst.test
        kind = machine_tests().get(worst.test)
        action = worst.action or (kind.action if kind is not None else action)
    elif status.reason == SILENT:
        action = Action.REBOOT
    at = status.ended_at or ""
    return ReportedFault(
        CHECK, component, Severity.CRITICAL, action, action.recovery, at, at, (status.reason,),
        evidence=status.message,
    )  # fmt: skip


# The gate


def is_gated(node: Node) -> bool:
    """True for a node that is to be tested before it takes work."""
    return any(taint.key == TAINT_PREFLIGHT for taint in node.spec.taints)


def has_passed(
    node: Node, tests: Sequence[NodeTest], suite: str, since: float,
    *, retests: Collection[str] = (),
) -> bool:  # fmt: skip
    """True when the node passed the suite, with the tests of faults that it had, in this boot, by a
    test made at `since` or later.
    """
    return any(
        test.status.outcome is MachineOutcome.PASSED and _covers(test, suite, retests)
        and test.status.boot_id == node.status.node_info.boot_id
        and _instant(test.metadata.creation_timestamp) >= since
        for test in tests if not test.is_open
    )  # fmt: skip


def wanted_test(
    node: Node, tests: Sequence[NodeTest], suite: str, since: float,
    *, retests: tuple[str, ...] = (),
) -> CreateTest | None:  # fmt: skip
    """Return the test that a node at the gate needs; None: it has passed, one is open, or the
    latest one found a fault that is not over.
    """
    if any(test.is_open for test in tests) or fault_of(node, tests) is not None:
        return None
    if suite not in suites() or has_passed(node, tests, suite, since, retests=retests):
        return None
    number = 1 + max((each.spec.number for each in tests), default=0)
    return CreateTest(node, suite, number, retests=retests)


# Idle nodes


def past_of(tests: Sequence[NodeTest]) -> PastTests:
    """Return what tests of a node itself there were. Errors found nothing out."""
    ended = [each for each in tests if not each.is_open and each.spec.peer is None]
    told = [each for each in ended if each.status.outcome is not MachineOutcome.ERROR]
    return PastTests(
        max((each.spec.number for each in tests), default=0),
        max((_instant(each.status.ended_at) for each in told), default=NEVER),
        max((_instant(each.status.ended_at) for each in ended), default=NEVER),
    )


def step_aside(test: NodeTest, pod: Pod | None, *, now: float) -> TestAction | None:
    """Return what follows for an open test of a node that work has come to; None: wait.

    One of an idle node is over. One of a person goes on later, beside the work.
    """
    if pod is not None:
        return DeleteTestPod(pod) if pod.metadata.deletion_timestamp is None else None
    if test.status.pod_uid and now < _instant(test.status.started_at) + SEEN_SECONDS:
        return None  # the mirror of pods may be a little behind
    return DeleteTest(test)


# One test


@dataclass(frozen=True, slots=True)
class _Now:
    test: NodeTest
    policy: HealthPolicy
    now: float

    @property
    def deadline(self) -> float:
        """When it ends, whatever it found."""
        created = _instant(self.test.metadata.creation_timestamp)
        return created + self.policy.test_deadline_seconds

    def again(self, reason: str, message: str) -> SetTest:
        """Return that the attempt was nothing: another one later, or the end."""
        status = self.test.status
        if self.now >= self.deadline:
            return self.ended(reason, message)
        wait = min(_BACKOFF_SECONDS_MAX, _BACKOFF_SECONDS * 2.0 ** max(0, status.attempts - 1))
        return SetTest(self.test, replace(
            status, phase=NodeTestPhase.PENDING, pod_uid="", reason=reason,
            message=message[:WHY_MAX], retry_at=format_time(self.now + wait),
        ))  # fmt: skip

    def ended(self, reason: str, message: str) -> SetTest:
        """Return the end of a test that never had a result."""
        words = f"{message or 'its pod never began'}; {self.test.status.attempts} attempts"
        return SetTest(self.test, replace(
            self.test.status, phase=NodeTestPhase.ENDED, outcome=MachineOutcome.ERROR,
            retry_at=None, reason=reason if reason == SPOKE else SILENT, message=words[:WHY_MAX],
            ended_at=format_time(self.now),
        ))  # fmt: skip


def next_step(
    test: NodeTest, pod: Pod | None, node: Node, policy: HealthPolicy,
    *, now: float, peers: Mapping[tuple[str, str], PeerFigures], is_used: bool,
    idle_seconds: float = float("inf"), report: NodeReport | None = None,
) -> TestAction | None:  # fmt: skip
    """Return what follows for an open test; None: wait.

    `pod` has the name of the test's pod, whoever made it. `peers`: figures by shape and suite; a
    node that works meanwhile, or that is not known to have been idle all the time, is not compared
    with them. The devices of one that works are left to its work.
    """
    at, status = _Now(test, policy, now), test.status
    suite = suite_of(test.spec.suite, test.spec.retests, policy.own_tests)
    if suite is None:
        return at.ended(SPOKE, f"there is no suite '{test.spec.suite}'")
    if pod is not None and (not status.pod_uid or pod.metadata.uid != status.pod_uid):
        return None if pod.metadata.deletion_timestamp is not None else DeleteTestPod(pod)
    if pod is None:
        if status.pod_uid and now < _instant(status.started_at) + SEEN_SECONDS:
            return None  # the mirror of pods may be a little behind
        if status.pod_uid:
            return at.again(status.reason or GONE, status.message or "its pod is gone")
        if now >= at.deadline:
            return at.ended(status.reason, status.message)
        if now < _instant(status.retry_at):
            return None
        return BeginTest(test, node, not is_used, format_time(now))
    if not pod.is_terminal:
        if pod.metadata.deletion_timestamp is not None:
            return None
        patience = suite.seconds + policy.test_start_seconds
        if now < _instant(status.started_at) + patience:
            return None
        if status.reason != LATE:
            message = f"no result after {patience:.0f} s"
            return SetTest(test, replace(status, reason=LATE, message=message))
        return DeleteTestPod(pod)
    is_quiet = idle_seconds >= now - _instant(status.started_at)
    if test.spec.cause is NodeTestCause.GATE:
        is_quiet = True  # its taint keeps work away
    hardware = hardware_of(node, report)
    return _result(
        at, pod, node, peers=peers if is_quiet and not is_used else {}, hardware=hardware
    )


def _result(
    at: _Now, pod: Pod, node: Node, *, peers: Mapping[tuple[str, str], PeerFigures],
    hardware: dict[str, str],
) -> SetTest:  # fmt: skip
    """Judge what a pod has left."""
    test = at.test
    try:
        result = _read(pod, test.spec, at.policy)
    except UnreadableResult as error:
        return at.again(NO_RESULT, str(error))
    shape = shape_of(node)
    alike = peers.get((shape, test.spec.suite), PeerFigures())
    measured = judged(
        result, alike, but=node.metadata.name, apart=test.spec.retests, own=at.policy.own_tests
    )
    outcome = worst_outcome(measured)
    worst = max(measured, key=lambda each: each.outcome.rank)
    if outcome is MachineOutcome.ERROR and at.now < at.deadline:
        return at.again(SPOKE, f"{worst.test}: {worst.message}")
    words = "" if outcome is MachineOutcome.PASSED else f"{worst.test}: {worst.message}"
    return SetTest(test, replace(
        test.status, phase=NodeTestPhase.ENDED, outcome=outcome, retry_at=None, measured=measured,
        reason=SPOKE if outcome is MachineOutcome.ERROR else outcome.value, message=words[:WHY_MAX],
        ended_at=format_time(at.now), boot_id=node.status.node_info.boot_id, shape=shape,
        machine_id=result.machine_id, devices=result.devices[:DEVICES_MAX],
        versions=result.versions, hardware=hardware,
    ))  # fmt: skip


def left_result(pod: Pod) -> SuiteResult:
    """Return what the only container of a pod left; UnreadableResult."""
    statuses = pod.status.container_statuses
    ended = statuses[0].state.terminated if statuses else None
    if ended is None or not ended.message:
        why = pod.status.message or pod.status.reason or (ended.reason if ended else "")
        raise UnreadableResult(f"the pod left no result{': ' * bool(why)}{why}")
    return decode_result(ended.message)


def _read(pod: Pod, spec: NodeTestSpec, policy: HealthPolicy) -> SuiteResult:
    """Return what the only container of a pod left; UnreadableResult.

    A result lacks no test of its suite, and has no other: what was not run has not passed.
    """
    result = left_result(pod)
    found = {each.test for each in result.measured}
    suite = suite_of(spec.suite, spec.retests, policy.own_tests)
    if suite is None or result.suite != suite.name or found != set(suite.tests):
        raise UnreadableResult(f"the result is not one of the suite {spec.suite}")
    return result


def outdated(tests: Sequence[NodeTest], suite: str = "") -> list[NodeTest]:
    """Return the tests of a node that are not kept: of itself, and of its connections.

    The latest one that passed the suite of its gate is: it says which machine that was.
    """
    kept, ended = last_passed(tests, suite), [e for e in newest_first(tests) if not e.is_open]
    own = [each for each in ended if each.spec.peer is None]
    pairs = [each for each in ended if each.spec.peer is not None]
    return [each for each in (*own[KEPT_MAX:], *pairs[KEPT_MAX:]) if each is not kept]


def _instant(text: str | None) -> float:
    """Return an instant; the beginning of time for none, and for what cannot be read."""
    try:
        return float("-inf") if text is None else parse_time(text)
    except ValueError:
        return float("-inf")
