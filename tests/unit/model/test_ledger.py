"""What counts as used: a claim covers one pod per place, if it is the job's, and no more of it."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.kubernetes.core import ContainerStatus, Pod, ResourceRequirements, SchedulingGate
from fairlead.api.meta import Condition, OwnerReference
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import RecordActualPlacement, ReleaseJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.pools.grouping import membership_of
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
)

replace = msgspec.structs.replace
NODE = make_node("n1", gpus=8)


def gpus_used(state: PlacementState, node: str = "n1") -> int:
    slot = state.cluster.table.slot(node)
    return (
        0
        if slot is None
        else int(state.cluster.table.used[state.cluster.table.row("nvidia.com/gpu"), slot])
    )


def renamed(pod: Pod, name: str, namespace: str = names.DEFAULT_NAMESPACE) -> Pod:
    meta = replace(pod.metadata, name=name, namespace=namespace, uid=f"uid-{namespace}-{name}")
    return replace(pod, metadata=meta)


def without_owner(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, owner_references=()))


def asking(pod: Pod, **amounts: int) -> Pod:
    other = make_pod("other", **amounts)
    return replace(pod, spec=replace(pod.spec, containers=other.spec.containers))


def on_node(pod: Pod, node: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_name=node))


def a_job(gpus: int = 1, **more: object) -> Job:
    return make_job("victim", gpus=gpus, placement=make_placement(["n1"]), **more)


def test_a_place_covers_one_pod_and_the_others_count() -> None:
    job = a_job()
    member = make_member_pod(job)
    state = PlacementState.of([NODE], [job], [member])
    assert gpus_used(state) == 1
    for i in range(6):
        state.cluster.pod_changed(renamed(member, f"more-{i}"))
    assert gpus_used(state) == 7
    state.cluster.pod_deleted(member.metadata.key)
    assert gpus_used(state) == 6
    for i in range(6):
        state.cluster.pod_deleted(("default", f"more-{i}"))
    assert gpus_used(state) == 1


def test_a_pod_of_another_namespace_is_covered_by_nothing_it_says() -> None:
    job = a_job()
    forged = renamed(make_member_pod(job), "victim-1-worker-0", "attacker")
    assert gpus_used(PlacementState.of([NODE], [job], [forged])) == 2


def test_labels_alone_cover_nothing() -> None:
    job = a_job()
    forged = without_owner(make_member_pod(job))
    assert gpus_used(PlacementState.of([NODE], [job], [forged])) == 2


def test_of_a_pod_that_asks_for_more_than_its_place_the_rest_counts() -> None:
    job = a_job()
    state = PlacementState.of([NODE], [job], [asking(make_member_pod(job), gpus=8)])
    assert gpus_used(state) == 8
    state.cluster.job_changed(replace(job, status=replace(job.status, placement=None)))
    assert gpus_used(state) == 8
    state.cluster.job_changed(job)
    assert gpus_used(state) == 8
    state.cluster.pod_changed(asking(make_member_pod(job), gpus=3))  # resized where it runs
    assert gpus_used(state) == 3
    state.cluster.pod_deleted(make_member_pod(job).metadata.key)
    assert gpus_used(state) == 1


def test_only_what_leaves_or_has_lost_its_place_is_expected_back() -> None:
    def expected_back() -> int:
        uses = state.cluster.ledger.leaving_uses(lambda _: False)
        return sum(int(n.sum()) * dict(request)["nvidia.com/gpu"] for _, n, request in uses)

    job = a_job()
    big = asking(make_member_pod(job), gpus=8)
    leaving = replace(big.metadata, deletion_timestamp=format_time(EPOCH))
    state = PlacementState.of([NODE], [job], [big])
    assert expected_back() == 0
    state.cluster.pod_changed(replace(big, metadata=leaving))
    assert expected_back() == 7
    state.cluster.pod_changed(big)
    assert expected_back() == 0
    state.cluster.job_changed(replace(job, status=replace(job.status, placement=None)))
    assert expected_back() == 8
    state.cluster.pod_deleted(big.metadata.key)
    assert expected_back() == 0


def test_what_a_pod_asks_for_beyond_its_place_keeps_a_node_that_is_not_known() -> None:
    job = a_job()
    big = asking(make_member_pod(job), gpus=8)
    state = PlacementState.of([], [job], [big])
    state.cluster.job_changed(replace(job, status=replace(job.status, placement=None)))
    state.cluster.node_changed(NODE)
    assert gpus_used(state) == 8
    state.cluster.pod_deleted(big.metadata.key)
    assert gpus_used(state) == 0


def test_the_size_of_a_claim_is_that_of_all_its_members() -> None:
    jobs = [
        make_job("one", gpus=4, placement=make_placement(["n1"])),
        make_job("many", count=5, gpus=1, placement=make_placement(["n1"] * 5)),
        make_job("cpus", gpus=0, cpu=64, placement=make_placement(["n1"])),
        make_job("more", count=3, gpus=0, cpu=32, placement=make_placement(["n1"] * 3)),
    ]
    ledger = PlacementState.of([NODE], jobs).cluster.ledger
    assert [claim.key[1] for claim in ledger.claims_by_size()] == ["many", "one", "more", "cpus"]


TOOL = OwnerReference("batch/v1", "Job", "train", "tool-uid", controller=True)


def of_tool(pod: Pod, owner: OwnerReference = TOOL) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, owner_references=(owner,)))


def stand_in() -> Job:
    admitted = (Condition(type=names.ADMITTED, status="True"),)
    adopts = Adopts("Job", "train", "batch/v1", "tool-uid")
    _, name = membership_of(of_tool(make_pod("train-0"))).group.key
    job = a_job(spec={"adopts": adopts}, conditions=admitted)
    return replace(job, metadata=replace(job.metadata, name=name))


def test_a_group_of_another_tool_covers_one_pod_per_place_that_the_tool_controls() -> None:
    job = stand_in()
    member = of_tool(make_member_pod(job))
    state = PlacementState.of([NODE], [job], [member])
    assert gpus_used(state) == 1
    state.cluster.pod_changed(renamed(member, "second"))
    assert gpus_used(state) == 2
    state.cluster.pod_changed(renamed(member, "victim-1-worker-0", "attacker"))
    assert gpus_used(state) == 3
    state.cluster.pod_changed(
        renamed(make_member_pod(job), "of-no-tool")
    )  # the stand-in owns no pods
    assert gpus_used(state) == 4


@pytest.mark.parametrize(
    "forge",
    [
        without_owner,
        lambda pod: of_tool(pod, replace(TOOL, uid="another")),
        lambda pod: of_tool(pod, replace(TOOL, controller=False)),
    ],
)
def test_a_pod_with_the_labels_of_a_group_that_its_tool_does_not_control_is_none_of_it(
    forge,
) -> None:
    """Neither does it take a place, nor does it keep the places of a group that has ended."""
    job = stand_in()
    forged = forge(make_member_pod(job))
    assert gpus_used(PlacementState.of([NODE], [job], [forged])) == 2
    over = replace(job, spec=replace(job.spec, cancel=True))
    waiting = on_node(forged, "")
    state = PlacementState.of([NODE], [over], [on_node(of_tool(make_member_pod(over)), "")])
    assert decide(state, PlacementPolicy(), EPOCH).actions == (), "its tool's pod may be bound yet"
    actions = decide(PlacementState.of([NODE], [over], [waiting]), PlacementPolicy(), EPOCH).actions
    assert [type(action) for action in actions] == [ReleaseJob]


@pytest.mark.parametrize("forge", [without_owner, lambda pod: renamed(pod, "x", "attacker")])
def test_a_complete_set_of_forged_pods_moves_no_placement(forge) -> None:
    job = make_job("victim", gpus=1, placement=make_placement(["node-0000"]))
    own = make_member_pod(job, node="node-0003")
    followed = PlacementState.of(make_nodes(4), [job], [own])
    actions = decide(followed, PlacementPolicy(), EPOCH).actions
    assert [type(action) for action in actions] == [RecordActualPlacement]
    forged = PlacementState.of(make_nodes(4), [job], [forge(on_node(own, "node-0003"))])
    assert gpus_used(forged, "node-0003") == 1
    assert decide(forged, PlacementPolicy(), EPOCH).actions == ()


def test_pods_of_another_tool_move_no_placement() -> None:
    job = stand_in()
    stray = on_node(of_tool(make_member_pod(job)), "n2")
    state = PlacementState.of([NODE, make_node("n2")], [job], [stray])
    assert (gpus_used(state, "n1"), gpus_used(state, "n2")) == (1, 1)
    assert decide(state, PlacementPolicy(), EPOCH).actions == ()


def test_a_place_is_kept_while_a_pod_of_it_may_still_be_bound() -> None:
    job = replace(a_job(), spec=replace(a_job().spec, cancel=True))
    pending = on_node(make_member_pod(job, phase="Pending"), "")
    state = PlacementState.of([NODE], [job], [pending])
    assert decide(state, PlacementPolicy(), EPOCH).actions == ()

    gated = replace(pending, spec=replace(pending.spec, scheduling_gates=(SchedulingGate("x"),)))
    stopping = replace(pending.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    for free in (gated, replace(pending, metadata=stopping), on_node(pending, "n1")):
        state.cluster.pod_changed(free)
        actions = decide(state, PlacementPolicy(), EPOCH).actions
        assert [type(action) for action in actions] == [ReleaseJob]
        state.cluster.pod_changed(pending)
        assert decide(state, PlacementPolicy(), EPOCH).actions == ()
    state.cluster.pod_deleted(pending.metadata.key)
    assert len(decide(state, PlacementPolicy(), EPOCH).actions) == 1


def life_of(pod: Pod, state: PlacementState) -> list[bool]:
    """Return what of a pod's life a decision could see: from its start to twice gone."""
    running = replace(pod, status=replace(pod.status, phase="Running"))
    leaving = replace(running.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    ended = replace(pod, status=replace(pod.status, phase="Succeeded"))
    versions = (pod, running, replace(running, metadata=leaving), ended, ended)
    seen = [state.cluster.pod_changed(version) for version in versions]
    return [*seen, state.cluster.pod_deleted(pod.metadata.key)]


def test_a_pod_in_its_place_changes_nothing_and_one_beyond_it_when_it_comes_and_goes() -> None:
    job = a_job()
    pod = make_member_pod(job)
    in_place, beyond = PlacementState.of([NODE], [job]), PlacementState.of([NODE])
    assert life_of(pod, in_place) == [False] * 6
    assert life_of(pod, beyond) == [True, False, True, True, False, False]


def test_a_second_pod_of_a_member_is_seen_and_so_is_the_first_that_leaves_it_the_place() -> None:
    job = a_job()
    first, second = make_member_pod(job), make_member_pod(job)
    second = replace(second, metadata=replace(second.metadata, name=f"{second.metadata.name}-b"))
    ledger = PlacementState.of([NODE], [job]).cluster.ledger
    assert not ledger.set_pod(first)
    assert ledger.set_pod(second)
    assert ledger.remove_pod(first.metadata.key)
    assert not ledger.remove_pod(second.metadata.key)


def test_what_a_member_is_resized_to_beyond_its_place_counts_on_its_node() -> None:
    job = a_job()
    pod = make_member_pod(job)
    grown = ResourceRequirements(requests={"nvidia.com/gpu": 3}, limits={"nvidia.com/gpu": 3})
    status = ContainerStatus("main", resources=grown, allocated_resources={"nvidia.com/gpu": 2})
    resized = replace(pod, status=replace(pod.status, container_statuses=(status,)))
    state = PlacementState.of(nodes=[NODE], jobs=[job], pods=[pod])
    assert gpus_used(state) == 1
    state.cluster.pod_changed(resized)
    assert gpus_used(state) == 3
    state.cluster.pod_changed(pod)
    assert gpus_used(state) == 1


def test_a_pod_of_another_tool_takes_what_it_asks_for_as_a_whole() -> None:
    node = make_node("n1", cpu=96)
    pod = make_pod("other", node="n1", cpu=1)
    whole = ResourceRequirements(requests={"cpu": 50})
    pod = replace(pod, spec=replace(pod.spec, resources=whole))
    state = PlacementState.of(nodes=[node], pods=[pod])
    table = state.cluster.table
    assert table.used[table.row("cpu"), table.slot("n1")] == 50_000
