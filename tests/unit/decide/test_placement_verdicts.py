"""Why a job waits: every reason of the planner, with exact numbers."""

from __future__ import annotations

import pytest

from fairlead.api.jobs.job import Job, VerdictStatus
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node, Taint
from fairlead.api.names import TEAM
from fairlead.api.values.times import format_time
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.outcome import verdict_status
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_role,
)

GPU = "nvidia.com/gpu"


def verdict(nodes: list[Node], job: Job, *others: Job, pods: tuple[object, ...] = ()) -> Verdict:
    decision = decide(PlacementState.of(nodes, [job, *others], pods), PlacementPolicy(), EPOCH)
    return decision.verdicts[job.metadata.key]


def test_too_little_in_all_is_insufficient_capacity() -> None:
    holder = make_job("holder", count=3, gpus=4, placement=make_placement(["node-0000"] * 3))
    found = verdict(make_nodes(2), make_job("a", count=2), holder)
    assert found.reason is Reason.INSUFFICIENT_CAPACITY
    assert found.facts == {"resource": GPU, "asked": 16, "free": 8, "total": 16, "short": 8}
    assert found.message == "needs 16 GPUs, 8 of 16 are free: 8 short"
    assert found.blockers == (holder.metadata.key,)


def test_the_scarcest_resource_is_named_in_its_own_unit() -> None:
    pods = (make_pod("x", node="node-0000", memory="1000Gi"),)
    found = verdict(make_nodes(1), make_job("a", count=2, gpus=1, memory="512Gi"), pods=pods)
    assert found.facts["resource"] == "memory"
    assert found.facts["short"] == (1024 - 24) << 30
    assert found.message == "needs 1Ti memory, 24Gi of 1Ti are free: 1000Gi short"


def test_enough_in_all_but_not_on_one_node_is_fragmented() -> None:
    pods = tuple(make_pod(f"p{i}", node=f"node-{i:04}", gpus=4) for i in range(4))
    found = verdict(make_nodes(4), make_job("a", count=2), pods=pods)
    assert found.reason is Reason.FRAGMENTED
    assert found.facts == {
        "resource": GPU, "free": 16, "asked": 16, "members": 2, "members_fit": 0,
    }  # fmt: skip
    assert found.message == "16 GPUs are free, but in pieces: room for 0 of 2 members"


def test_more_than_any_node_has_names_the_largest() -> None:
    nodes = [make_node("a", gpus=4), make_node("b", gpus=8, labels={"pool": "x"})]
    found = verdict(nodes, make_job("a", gpus=8, node_selector={"pool": "x"}, cpu=256))
    assert found.reason is Reason.NO_NODE_SHAPE_FITS
    assert found.facts == {
        "role": "worker", "resource": "cpu", "asked": 256_000, "largest": 128_000,
    }  # fmt: skip
    found = verdict(nodes, make_job("a", gpus=16))
    assert found.message == "a member of role worker needs 16 GPUs; the largest node has 8"


def test_a_node_must_have_everything_at_once() -> None:
    nodes = [make_node("a", gpus=8, memory="64Gi"), make_node("b", gpus=0, memory="2Ti")]
    found = verdict(nodes, make_job("a", gpus=8, memory="1Ti"))
    assert found.facts == {
        "role": "worker", "resource": "memory", "asked": 1 << 40, "largest": 64 << 30,
    }  # fmt: skip


def test_more_than_all_nodes_hold_exceeds_the_cluster() -> None:
    found = verdict(make_nodes(3), make_job("a", count=10, gpus=4))
    assert found.reason is Reason.EXCEEDS_CLUSTER
    assert found.facts == {"members": 10, "members_fit": 6}
    assert found.outcome is Outcome.IMPOSSIBLE


def test_a_selector_that_no_node_matches() -> None:
    found = verdict(make_nodes(3), make_job("a", node_selector={"pool": "none"}))
    assert found.reason is Reason.NO_MATCHING_NODE
    assert found.facts == {"nodes": 3, "role": "worker"}
    taint = Taint(key="team", value="a", effect="NoSchedule")
    found = verdict([make_node("n", taints=[taint])], make_job("a"))
    assert found.reason is Reason.NO_MATCHING_NODE


def test_nodes_with_room_that_belong_to_teams_are_counted_where_the_others_are_too_few() -> None:
    def of(team: str, count: int) -> list[Node]:
        taints = [Taint(key=TEAM, value=team, effect="NoSchedule")]
        return make_nodes(count, prefix=team, taints=taints)

    nodes = [*of("vision", 2), *of("speech", 1), *make_nodes(1)]
    found = verdict(nodes, make_job("a", count=4))
    assert found.reason is Reason.EXCEEDS_CLUSTER
    assert found.message == (
        "needs room for 4 members; all matching nodes, empty, hold 1; 3 more nodes belong to other "
        "teams (speech, vision)"
    )
    small = make_node("small", gpus=1, taints=[Taint(key=TEAM, value="a", effect="NoSchedule")])
    found = verdict([small, *of("b", 1)], make_job("a"))
    assert found.message.endswith("; 1 more node belongs to other teams (b)")
    found = verdict([*(each for n in range(7) for each in of(f"t{n}", 1))], make_job("a"))
    assert found.message.endswith("to other teams (t0, t1, t2, t3, t4 and 2 more)")
    own = verdict(of("vision", 2), make_job("a", node_selector={"pool": "none"}))
    assert "belong" not in own.message, "a selector keeps it off these nodes, too"


@pytest.mark.parametrize(
    ("out", "cause"),
    [
        ({"unschedulable": True}, "cordoned"),
        ({"ready": False}, "not ready"),
        ({"ready": False, "unschedulable": True}, "cordoned"),
        ({"taints": [Taint(key="node.kubernetes.io/disk-pressure", effect="NoSchedule")]},
         "tainted"),
    ],
)  # fmt: skip
def test_nodes_that_are_out_are_named_with_the_cause_when_they_decide(
    out: dict[str, object], cause: str
) -> None:
    nodes = [make_node("a"), make_node("b", **out)]
    found = verdict(nodes, make_job("a", count=2))
    assert found.reason is Reason.NODES_UNAVAILABLE
    assert found.message == (
        f"it cannot use b ({cause}) for now; the others, empty, hold 1 of 2 members"
    )
    assert found.facts["nodes_unavailable"] == 1
    pods = (make_pod("x", node="a", gpus=1),)
    assert verdict(nodes, make_job("a"), pods=pods).reason is Reason.INSUFFICIENT_CAPACITY


def test_many_nodes_that_are_out_are_folded_and_very_many_counted() -> None:
    out = [*make_nodes(3, prefix="n", unschedulable=True), make_node("x", ready=False)]
    found = verdict([*out, make_node("a")], make_job("a", count=2))
    words = "it cannot use n-[0000-0002] (cordoned), x (not ready) for now;"
    assert found.message.startswith(words)
    odd = [make_node(f"node-{n * n}", ready=False) for n in range(30)]
    found = verdict([*odd, make_node("a")], make_job("a", count=2))
    assert found.message.startswith("it cannot use 30 nodes (not ready) for now;")


def test_room_but_not_within_one_domain() -> None:
    nodes = [make_node(f"{r}{i}", labels={"rack": r}) for r in "ab" for i in range(2)]
    pods = (make_pod("x", node="a0", gpus=1), make_pod("y", node="b0", gpus=1))
    job = make_job("j", count=2, topology=Topology(key="rack", required=True))
    found = verdict(nodes, job, pods=pods)
    assert found.reason is Reason.TOPOLOGY_UNAVAILABLE
    assert found.facts == {"topology_key": "rack", "members": 2, "members_fit": 1, "domains": 2}
    job = make_job("j", count=3, topology=Topology(key="rack", required=True))
    found = verdict(nodes, job, pods=pods)
    assert found.reason is Reason.NO_DOMAIN_FITS
    assert found.facts == {"topology_key": "rack", "members": 3, "members_fit": 2, "domains": 2}


def test_a_topology_that_no_node_names_is_told_from_one_that_is_too_small() -> None:
    job = make_job("j", count=2, topology=Topology(key="no.such/key", required=True))
    found = verdict(make_nodes(4), job)
    assert found.reason is Reason.NO_SUCH_TOPOLOGY
    assert found.facts == {"topology_key": "no.such/key", "members": 2}
    assert found.message.endswith("but no node has that label")


def test_an_unreadable_request_is_invalid() -> None:
    found = verdict(make_nodes(1), make_job("a", cpu="lots"))
    assert found.reason is Reason.INVALID_REQUEST
    assert "spec.roles[0].template.spec.containers[0].resources.requests.cpu" in found.message
    assert "'lots' is not a quantity" in found.message


def test_a_shortage_of_one_role_is_not_hidden_by_room_for_the_other() -> None:
    nodes = [make_node("gpu"), *(make_node(f"cpu{i}", gpus=0, cpu=64) for i in range(4))]
    roles = [
        make_role(
            "worker", count=1, gpus=1, cpu=100, node_selector={"kubernetes.io/hostname": "gpu"}
        ),
        make_role("data", count=1, cpu=10),
    ]
    pods = (make_pod("x", node="gpu", cpu=64),)
    found = verdict(nodes, make_job("a", roles=roles), pods=pods)
    assert found.reason is Reason.INSUFFICIENT_CAPACITY
    assert found.facts == {
        "resource": "cpu", "asked": 100_000, "free": 64_000, "total": 128_000, "short": 36_000,
    }  # fmt: skip


def test_blockers_are_the_largest_holders_within_reach_and_at_most_ten() -> None:
    nodes = [*make_nodes(12), make_node("far", labels={"pool": "x"})]
    holders = [
        make_job(f"h{i:02}", count=1, gpus=1 + i % 8, placement=make_placement([f"node-{i:04}"]))
        for i in range(12)
    ]
    far = make_job("far", gpus=8, placement=make_placement(["far"]))
    job = make_job("a", count=12, tolerations=())
    found = verdict(nodes, job, *holders, far)
    assert len(found.blockers) == 10
    assert found.blockers[:4] == (
        ("default", "far"), ("default", "h07"), ("default", "h06"), ("default", "h05"),
    )  # fmt: skip
    selective = make_job("b", node_selector={"pool": "x"})
    assert verdict(nodes, selective, *holders, far).blockers == (far.metadata.key,)


def test_a_reason_keeps_its_since_while_its_numbers_change() -> None:
    state = PlacementState.of(make_nodes(1), [make_job("a", count=1)],
                            [make_pod("x", node="node-0000", gpus=1)])  # fmt: skip
    [first] = decide(state, PlacementPolicy(), EPOCH).actions
    state.cluster.job_changed(as_written(first))
    state.cluster.pod_changed(make_pod("y", node="node-0000", gpus=1))
    [second] = decide(state, PlacementPolicy(), EPOCH + 60).actions
    assert second.verdict.facts["short"] == 2
    assert second.verdict.since == first.verdict.since


def test_a_verdict_holds_since_its_reason_holds() -> None:
    """Or a gang that has waited for long would be given up at once when it loses a node."""
    long_ago, at = format_time(EPOCH - 9_000.0), format_time(EPOCH)
    told = VerdictStatus("Waiting", Reason.INSUFFICIENT_CAPACITY.value, {}, since=long_ago)
    job = make_job("a", verdict=told)
    same = verdict_status(job, Verdict(Reason.INSUFFICIENT_CAPACITY, {"x": 1}), at)
    other = verdict_status(job, Verdict(Reason.REPAIRING), at)
    assert (same.since, other.since) == (long_ago, at)
