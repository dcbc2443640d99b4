"""What a decision about health does about tests: open ones go on, and the gate opens or asks.

A node is at the gate while it has the taint of new nodes, or has come back from a repair. Tests and
the gate take nothing away from anybody, so they do not ask the rails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.cluster.node_suites import suites
from fairlead.api.cluster.node_test import NodeTest, NodeTestCause, NodeTestPhase
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.values.times import format_time, time_or
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.pair_step import PairSide, pair_step
from fairlead.decide.health.proving.testing import (
    BeginTest,
    DeleteTest,
    DeleteTestPod,
    TestAction,
    has_passed,
    is_gated,
    next_step,
    outdated,
    step_aside,
    wanted_test,
)
from fairlead.model.health.judgement import PeerFigures
from fairlead.model.health.pair_book import PairBook
from fairlead.model.pools.yielding_tests import is_yielding

#: Results that are judged in one decision; the next one, half a second later, has the others.
RESULTS_MAX = 16


@dataclass(frozen=True, slots=True)
class LiftTaint:
    """Let a node that has passed take work."""

    node: Node
    decided: tuple[PoolDecision, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """What tests are run with: their pods by the name of the test, and what nodes measured last, by
    shape and suite.
    """

    pods: Mapping[str, Pod]
    peers: Mapping[tuple[str, str], PeerFigures]
    policy: HealthPolicy
    now: float
    #: The other tests of pairs, by name, and what pairs measured.
    partners: Mapping[str, NodeTest] = field(default_factory=dict[str, NodeTest])
    pairs: PairBook | None = None
    #: `now` on the clock of the loop, which does not jump.
    instant: float = 0.0


def steps_of_tests(
    nodes: Mapping[str, NodeView], bench: Bench, needs: Collection[str]
) -> Iterator[TestAction | LiftTaint]:
    """Yield what follows for the tests of nodes.

    `needs`: nodes whose faults ask for something; they are not tested before these have ended.
    """
    open_ = [
        item for item in nodes.items()
        if not item[1].is_at_rest or (item[1].tests and _has_pod(item[1], bench))
    ]  # fmt: skip
    room = bench.policy.tests_at_once_max - sum(
        test.status.phase is NodeTestPhase.RUNNING
        for _, node in open_ if node.open_test is not None for test in node.tests
    )  # fmt: skip
    results = RESULTS_MAX
    for name, node in sorted(open_):
        if room <= 0 and _can_only_begin(node, bench):
            continue
        if _has_result(node, bench):
            if results <= 0:
                continue
            results -= 1
        for step in _steps(node, bench, nodes, is_needed=name in needs):
            if isinstance(step, BeginTest):
                if room <= 0:
                    continue
                room -= 1
            yield step


def _has_pod(node: NodeView, bench: Bench) -> bool:
    return any(test.metadata.name in bench.pods for test in node.tests)


def _can_only_begin(node: NodeView, bench: Bench) -> bool:
    """True for a node at the gate of which nothing follows but that its only test begins.

    When a fleet is new, thousands of them wait for a place among those that run.
    """
    test = node.open_test
    if test is None or len(node.tests) > 1 or test.spec.cause is not NodeTestCause.GATE:
        return False
    if test.spec.peer is not None or test.status.pod_uid or test.metadata.name in bench.pods:
        return False
    ends = time_or(test.metadata.creation_timestamp, float("-inf"))
    return test.spec.suite in suites() and bench.now < ends + bench.policy.test_deadline_seconds


def _has_result(node: NodeView, bench: Bench) -> bool:
    """True when a pod of an open test has ended, so that its figures are to be judged."""
    if node.open_test is None:
        return False
    found = (bench.pods.get(each.metadata.name) for each in node.tests if each.is_open)
    return any(pod is not None and pod.is_terminal for pod in found)


def _steps(
    node: NodeView, bench: Bench, nodes: Mapping[str, NodeView], *, is_needed: bool
) -> Iterator[TestAction | LiftTaint]:
    tests = node.ordered_tests
    for test in tests:
        pod = bench.pods.get(test.metadata.name)
        if not test.is_open and pod is not None and pod.metadata.deletion_timestamp is None:
            yield DeleteTestPod(pod)
    first = node.open_test
    if first is not None:
        step = _step(first, node, bench, nodes)
        if step is not None:
            yield step
        return
    for test in outdated(tests, node.suite):
        yield DeleteTest(test)
    since = node.gate_since
    if since is None or is_needed:
        return
    retests = node.retests
    if is_gated(node.node) and has_passed(node.node, tests, node.suite, since, retests=retests):
        said = f"{node.name}: it has passed the suite {node.suite}"
        facts: dict[str, int | float | str | bool] = {"node": node.name, "suite": node.suite}
        decided = PoolDecision(format_time(bench.now), "Passed", "Gate", said, facts)
        yield LiftTaint(node.node, (decided,))
        return
    wanted = wanted_test(node.node, tests, node.suite, since, retests=retests)
    if wanted is not None:
        yield wanted


def _step(
    test: NodeTest, node: NodeView, bench: Bench, nodes: Mapping[str, NodeView]
) -> TestAction | None:
    """Return what follows for the open test of a node."""
    pod = bench.pods.get(test.metadata.name)
    if test.spec.peer is not None:
        peer = test.spec.peer
        partner, other = bench.partners.get(peer.test), nodes.get(peer.node)
        is_used = other is not None and other.is_used
        return pair_step(
            PairSide(test, pod, node.is_used),
            PairSide(partner, bench.pods.get(peer.test), is_used),
            node.node, bench.policy, now=bench.now,
            alike=() if bench.pairs is None else bench.pairs.alike(node.name, peer.node),
        )  # fmt: skip
    is_aside = test.spec.cause is NodeTestCause.IDLE or (
        pod is not None and is_yielding(pod, bench.policy.test_namespace)
    )
    if node.is_used and is_aside:
        return step_aside(test, pod, now=bench.now)
    return next_step(
        test, pod, node.node, bench.policy, now=bench.now, peers=bench.peers,
        is_used=node.is_used, report=node.report,
        idle_seconds=max(0.0, bench.instant - node.idle_since),
    )  # fmt: skip
