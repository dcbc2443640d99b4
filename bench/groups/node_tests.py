"""What tests of nodes cost a decision about health: 7,500 nodes that have all been tested.

    idle     half a percent of them is under test, and more wait to be tested
    judged   the same, and one of those tests has ended: its figures are compared with the others'
    gate     1,000 nodes join at once, of which 256 are under test; 32 tests have ended

Beside a decision about the same fleet without a test, in turns; what is given is what tests add.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec.structs import replace

from bench.harness import Report, cpu_slowness
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_suites import suites
from fairlead.api.cluster.node_test import (
    NodeTest,
    NodeTestCause,
    NodeTestPhase,
    NodeTestSpec,
    NodeTestStatus,
)
from fairlead.api.kubernetes.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Node,
    Pod,
    PodStatus,
    Taint,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import TAINT_PREFLIGHT
from fairlead.api.values.times import format_time
from fairlead.controllers.nodes.node_tests import NodeTests
from fairlead.decide.health.actions import Action
from fairlead.decide.health.cycle import HealthMemory, HealthView, decide_health
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.gate import RESULTS_MAX
from fairlead.decide.health.proving.testing import SetTest
from fairlead.model.health.idle_nodes import DueNodes, IdleNodes, PastTests
from fairlead.model.health.judgement import shape_of
from fairlead.runtime.watching.mirror import Change
from fairlead.testing.builders import EPOCH, make_node

NODES, JOINING, AT_ONCE, ROUNDS = 7_500, 1_000, 256, 15
POLICY = HealthPolicy(enabled=True, act_on=("*",), test_suite="quick", idle_test_suite="quick")
#: As many nodes are under test as may be.
IDLE = int(NODES * POLICY.idle_test_share)
#: A day after the start: of the clock on the wall, and of the monotonic one.
NOW, INSTANT = EPOCH + 86_400.0, 86_400.0
MEASURED = tuple(
    MachineFinding(kind.name, MachineOutcome.PASSED, seconds=1.0,
                   figures=tuple(Figure(each.name, 1e10, 0.9e10) for each in kind.figure))
    for kind in suites()["quick"].kinds()
)  # fmt: skip
RESULT = encode_result(SuiteResult("quick", MEASURED)).decode()


@dataclass(slots=True)
class Case:
    """What a decision looks at, what it decided, and what that took beyond one without tests."""

    nodes: Mapping[str, NodeView]
    pods: Mapping[str, Pod]
    costs: list[float] = field(default_factory=list[float])
    actions: Sequence[Action] = ()

    @property
    def results(self) -> int:
        """Results that were judged."""
        return sum(isinstance(each, SetTest) for each in self.actions)


def run(report: Report) -> None:
    """Measure decisions in turns."""
    fleet = [make_node(f"n{i:04}") for i in range(NODES)]
    book, idle = NodeTests(cast("Any", None), POLICY), _idle(fleet)
    for node in fleet:
        book.changed(Change(None, _passed(node)))
    under = {node.metadata.name: _view(node) for node in fleet[:IDLE]}
    taint = [Taint(TAINT_PREFLIGHT, "NoSchedule")]
    joining = [make_node(f"j{i:04}", taints=taint) for i in range(JOINING)]
    at_gate = {each.metadata.name: NodeView(each, None, None, suite="quick") for each in joining}
    at_gate |= {node.metadata.name: _view(node) for node in joining[:AT_ONCE]}
    running = _pods(under.values())
    cases = {
        "idle": Case(under, running),
        "judged": Case(under, running | _pods([under["n0000"]], message=RESULT)),
        "gate": Case(at_gate, _pods(at_gate.values())
                     | _pods(list(at_gate.values())[: 2 * RESULTS_MAX], message=RESULT)),
    }  # fmt: skip
    names = frozenset(node.metadata.name for node in fleet)
    for _ in range(ROUNDS):
        without, slow = _decide(Case({}, {}), names, None, None), cpu_slowness()
        for case in cases.values():
            case.costs.append((_decide(case, names, book, idle) - without) / slow)
    found = {name: case.results for name, case in cases.items()}
    assert found == {"idle": 0, "judged": 1, "gate": RESULTS_MAX}, found
    for name, case in cases.items():
        report.add(f"node_tests.{name}", statistics.median(case.costs) * 1e3, "ms CPU")


def _decide(
    case: Case, names: frozenset[str], book: NodeTests | None, idle: IdleNodes | None
) -> float:
    """Return the CPU seconds of one decision, and keep what it decided."""
    gc.collect()
    began = time.process_time()
    view = HealthView(
        fleet=Fleet(), nodes=case.nodes, pods={}, pools={}, sizes={"": NODES}, node_names=names,
        now=NOW, instant=INSTANT, test_pods=case.pods, peers={} if book is None else book.peers,
        due=DueNodes() if idle is None else idle.due(INSTANT),
    )  # fmt: skip
    decision, _ = decide_health(view, POLICY, HealthMemory(looked_at=INSTANT))
    seconds = time.process_time() - began
    case.actions = decision.actions
    return seconds


def _idle(fleet: Iterable[Node]) -> IdleNodes:
    """Return nodes that are idle, of which one in a hundred waits for its test."""
    idle = IdleNodes(1800, 72_000)
    for i, node in enumerate(fleet):
        tested = NOW - (80_000.0 if i % 100 == 0 else 3_600.0)
        idle.put(node, PastTests(1, tested, tested), is_fit=True, now=NOW - INSTANT, instant=0.0)
    return idle


def _passed(node: Node) -> NodeTest:
    name = node.metadata.name
    status = NodeTestStatus(
        NodeTestPhase.ENDED, MachineOutcome.PASSED, shape=shape_of(node), measured=MEASURED,
        ended_at=format_time(NOW - 3600.0), hardware={"kernel": "6.8"},
    )  # fmt: skip
    return NodeTest(ObjectMeta(name=f"{name}-1"), NodeTestSpec(name, "uid", "quick"), status)


def _view(node: Node) -> NodeView:
    """Return a node that passed a test an hour ago, and is under one now."""
    passed = _passed(node)
    spec = replace(passed.spec, cause=NodeTestCause.IDLE, number=2)
    name = node.metadata.name
    started = NodeTestStatus(
        NodeTestPhase.RUNNING, pod_uid=f"pod-{name}", attempts=1, started_at=format_time(NOW - 9.0)
    )
    meta = ObjectMeta(name=f"{name}-2", creation_timestamp=format_time(NOW - 10.0))
    return NodeView(node, None, None, tests=(passed, NodeTest(meta, spec, started)), suite="quick")


def _pods(views: Iterable[NodeView], message: str = "") -> dict[str, Pod]:
    """Return the pods of tests that run, or that have left a message."""
    ended = ContainerStateTerminated(0, message=message) if message else None
    status = PodStatus(
        "Succeeded" if message else "Running",
        container_statuses=(ContainerStatus("test", state=ContainerState(terminated=ended)),),
    )
    return {
        f"{each.name}-2": Pod(ObjectMeta(name=f"{each.name}-2", uid=f"pod-{each.name}"),
                              status=status)
        for each in views if each.tests
    }  # fmt: skip
