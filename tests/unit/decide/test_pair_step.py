"""The step of a pair of tests: what both sides said decides what follows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.machine_result import (
    MachineOutcome,
    PairMeasure,
    SuiteResult,
    encode_result,
)
from fairlead.api.cluster.node_suites import pair_suite
from fairlead.api.cluster.node_test import (
    NodeTest,
    NodeTestPeer,
    NodeTestPhase,
    NodeTestSpec,
    NodeTestStatus,
)
from fairlead.api.kubernetes.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.pair_step import BAD_PAIR, PairSide, pair_step
from fairlead.decide.health.proving.testing import SetTest
from fairlead.testing.builders import EPOCH, make_node, make_pod

LOSES = PairMeasure(1, 0.0, 5e-5, loses_full_packets=True)
SILENT = PairMeasure(0, error="the other member did not answer in time")


def side(name: str, other: str, said: PairMeasure | None, *, listens: bool) -> PairSide:
    """Return one side; `said` is what its pod left, None while that runs."""
    peer = NodeTestPeer(other, f"uid-{other}", f"{other}-1", listens)
    spec = NodeTestSpec(name, f"uid-{name}", pair_suite().name, peer=peer)
    at = format_time(EPOCH)
    status = NodeTestStatus(NodeTestPhase.RUNNING, pod_uid=f"pod-{name}", started_at=at)
    meta = ObjectMeta(name=f"{name}-1", uid=f"test-{name}", creation_timestamp=at)
    return PairSide(NodeTest(meta, spec, status), pod(name, said))


def pod(name: str, said: PairMeasure | None) -> Pod:
    made = make_pod(f"{name}-1", node=name)
    made = replace(made, metadata=replace(made.metadata, uid=f"pod-{name}"))
    if said is None:
        return replace(made, status=replace(made.status, phase="Running"))
    text = encode_result(SuiteResult(pair_suite().name, (), pairs=(said,))).decode()
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=0, message=text))
    left = ContainerStatus(name="test", state=ended)
    return replace(made, status=replace(made.status, phase="Succeeded", container_statuses=(left,)))


def after(listens: PairMeasure | None, connects: PairMeasure | None) -> list[object]:
    """Return what follows for each of the two."""
    one = side("n1", "n2", listens, listens=True)
    two = side("n2", "n1", connects, listens=False)
    return [
        pair_step(own, other, make_node(name), HealthPolicy(), now=EPOCH + 5, alike=())
        for own, other, name in ((one, two, "n1"), (two, one, "n2"))
    ]


@pytest.mark.parametrize("said", [(SILENT, LOSES), (LOSES, SILENT)])
def test_a_side_that_loses_full_packets_explains_the_silence_of_the_other(
    said: tuple[PairMeasure, PairMeasure],
) -> None:
    for action in after(*said):
        assert isinstance(action, SetTest)
        assert (action.status.reason, action.status.outcome) == (BAD_PAIR, MachineOutcome.ERROR)
        assert "packets of full size are lost" in action.status.message
        assert action.status.measured[0].outcome is MachineOutcome.FAILED


def test_silence_alone_says_nothing_and_waits_for_what_the_other_side_says() -> None:
    for action in after(SILENT, SILENT):
        assert isinstance(action, SetTest)
        assert (action.status.measured, action.status.reason) == ((), "HarnessError")
    assert after(SILENT, None) == [None, None]
