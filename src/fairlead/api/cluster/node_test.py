"""The NodeTest kind (fairlead.dev/v1alpha1, cluster scope): one test of one machine.

A test pod measures. The health controller judges what it left, and alone writes the status, so
nothing that a pod says is a verdict.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from fairlead.api.cluster.machine_result import (
    MEASURED_MAX,
    TEST_MAX,
    MachineFinding,
    MachineOutcome,
)
from fairlead.api.cluster.node_report import FACTS_MAX, ID_MAX, WHY_MAX
from fairlead.api.meta import Condition, Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import INT32_MAX, Name, doc

DEVICES_MAX = 16
#: Where the test pod that listens waits for the other one of its pair, in a network of its own.
PAIR_PORT = 20_417


class NodeTestCause(Enum):
    """Why a node is tested."""

    GATE = "Gate"  # before it takes work: a new node, or one that was repaired
    PERSON = "Person"
    IDLE = "Idle"  # it was idle, and not tested for long


class NodeTestPhase(Enum):
    """What a test does now."""

    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"


class NodeTestPeer(Wire, frozen=True):
    """The other node of a pair, which is tested together with this one."""

    node: Annotated[Name, doc("Name of the other node.")]
    node_uid: Annotated[
        str, doc("Uid of the other node.", maxLength=ID_MAX),
    ] = msgspec.field(name="nodeUID")  # fmt: skip
    test: Annotated[Name, doc("Its NodeTest, whose peer is this one.")]
    listens: Annotated[
        bool, doc("This node waits for a connection; false: it connects to the other one.")
    ] = False


class NodeTestSpec(Wire, frozen=True):
    """What is tested."""

    node: Annotated[Name, doc("Name of the node.")]
    node_uid: Annotated[
        str, doc("Uid of the node; one that was made again is another one.", maxLength=ID_MAX),
    ] = msgspec.field(name="nodeUID")  # fmt: skip
    suite: Annotated[str, doc("Name of the suite.", maxLength=TEST_MAX)]
    cause: Annotated[NodeTestCause, doc("Why it is tested. Default Person.")] = NodeTestCause.PERSON
    number: Annotated[
        int, doc("Counts the tests of a node; the latest has the highest.", ge=0, maximum=INT32_MAX)
    ] = 0
    retests: Annotated[
        tuple[Annotated[str, doc(maxLength=TEST_MAX)], ...],
        doc("Tests that run as the suite full has them: those of faults that the node had.",
            maxItems=MEASURED_MAX),
    ] = ()  # fmt: skip
    peer: Annotated[
        NodeTestPeer | None, doc("The connection to this node is tested; absent: the node itself.")
    ] = None


class NodeTestStatus(Wire, frozen=True):
    """How the test does, written by the health controller."""

    phase: Annotated[NodeTestPhase, doc("What it does now.")] = NodeTestPhase.PENDING
    outcome: Annotated[MachineOutcome | None, doc("How it ended.")] = None
    reason: Annotated[str, doc("Why it ended so, in a word.", maxLength=TEST_MAX)] = ""
    message: Annotated[str, doc("The same in a sentence.", maxLength=WHY_MAX)] = ""
    pod_uid: Annotated[
        str, doc("The pod that runs it; no other one is believed.", maxLength=ID_MAX),
    ] = msgspec.field(name="podUID", default="")  # fmt: skip
    attempts: Annotated[int, doc("Pods that were begun.", ge=0, maximum=INT32_MAX)] = 0
    retry_at: Annotated[Instant | None, doc("When the next pod is begun.")] = None
    started_at: Annotated[Instant | None, doc("When the latest pod was begun.")] = None
    ended_at: Annotated[Instant | None, doc("When it was judged.")] = None
    boot_id: Annotated[str, doc("The boot of the machine.", maxLength=ID_MAX)] = ""
    machine_id: Annotated[str, doc("The machine by its hardware.", maxLength=ID_MAX)] = ""
    shape: Annotated[str, doc("Nodes of one shape are compared.", maxLength=ID_MAX)] = ""
    devices: Annotated[
        tuple[Annotated[str, doc(maxLength=ID_MAX)], ...],
        doc("Its accelerators.", maxItems=DEVICES_MAX),
    ] = ()
    versions: Annotated[dict[str, str], doc("Versions of kernel, driver and libraries.")] = {}
    hardware: Annotated[
        dict[str, str],
        doc("What identified the machine: kernel, board, driver, firmware, GPUs.",
            maxProperties=FACTS_MAX),
    ] = {}  # fmt: skip
    measured: Annotated[
        tuple[MachineFinding, ...], doc("What each test found.", maxItems=MEASURED_MAX)
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        doc("Complete: it has ended. Passed: how; Unknown while it runs, and where it found "
            "nothing out."),
    ] = ()  # fmt: skip

    @property
    def worst(self) -> MachineFinding | None:
        """The first test of the worst outcome."""
        return max(self.measured, key=lambda each: each.outcome.rank, default=None)


class NodeTest(Wire, frozen=True):
    """One test of one machine."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeTestSpec = NodeTestSpec(node="", node_uid="", suite="")
    status: NodeTestStatus = NodeTestStatus()

    @property
    def is_open(self) -> bool:
        """True until it has ended."""
        return self.status.phase is not NodeTestPhase.ENDED
