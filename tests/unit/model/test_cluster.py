"""The state that decisions read: nodes, claims, pods, the queue."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.jobs.placement import Nomination, RolePlacement
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import Condition, OwnerReference
from fairlead.api.names import JOB_NAME, JOB_UID
from fairlead.api.values.times import format_time
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory import fits as fits_module
from fairlead.model.pools.grouping import alone, membership_of
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_placement,
    make_pod,
    make_role,
)


def gpus_used(state: PlacementState, node: str) -> int:
    slot = state.cluster.table.slot(node)
    return (
        0
        if slot is None
        else int(state.cluster.table.used[state.cluster.table.row("nvidia.com/gpu"), slot])
    )


def room(state: PlacementState, job: Job) -> dict[str, int]:
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest)
    row = state.cluster.fits.fits(gang.roles[0].member)
    return {n: int(row[s]) for s, n in enumerate(state.cluster.table.names) if n and row[s]}


def with_status(job: Job, **changes: object) -> Job:
    return msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, **changes))


FINISHED = (Condition(type="Succeeded", status="True"),)


def test_only_the_very_placement_that_was_given_up_counts_as_given_back() -> None:
    def changed(version: int, **more: object) -> Job:
        job = make_job("a", placement=make_placement(["n1"]), resource_version=version)
        return msgspec.structs.replace(job, **more)

    begun = (Attempt(1, begun_at=format_time(EPOCH)),)
    for is_final, then, given_back in (
        (False, changed(3), True),
        (False, with_status(changed(3), placement=None), False),
        (False, with_status(changed(3), attempts=begun), False),
        (False, with_status(changed(3), conditions=FINISHED), False),
        (True, with_status(changed(3), placement=None), True),
        (True, with_status(changed(3), attempts=begun), True),
        (True, with_status(changed(3), conditions=FINISHED), False),
        (True, make_job("a", uid="another", placement=make_placement(["n1"])), False),
    ):
        state = PlacementState.of([make_node("n1")], [changed(2)])
        state.cluster.forfeit(changed(1), is_final=is_final)
        assert (state.cluster.forfeited, gpus_used(state, "n1")) == ({}, 8), "it has changed since"
        state.cluster.forfeit(changed(2), is_final=is_final)
        key = ("default", "a")
        assert (state.cluster.forfeited, gpus_used(state, "n1")) == ({key: is_final}, 0)
        state.cluster.job_changed(then)
        assert state.cluster.is_forfeited(key) is given_back
        holds = not given_back and then.status.placement is not None and not then.is_finished
        assert gpus_used(state, "n1") == 8 * holds


def test_a_claim_counts_before_its_pods_exist_and_they_add_nothing_to_it() -> None:
    job = make_job("a", count=2, gpus=4, placement=make_placement(["n1", "n1"]))
    state = PlacementState.of([make_node("n1")], [job])
    assert gpus_used(state, "n1") == 8
    state.cluster.pod_changed(make_member_pod(job, 0))
    state.cluster.pod_changed(make_member_pod(job, 1))
    assert gpus_used(state, "n1") == 8


def test_a_pod_that_no_claim_covers_counts_by_itself() -> None:
    job = make_job("a", gpus=4, placement=make_placement(["n1"]))
    strays = [
        make_pod("other", node="n1", gpus=1),
        make_member_pod(job, 0, node="n2"),
        make_member_pod(with_status(job, attempt=2), 0, node="n2", uid="x"),
    ]
    state = PlacementState.of([make_node("n1"), make_node("n2")], [job], strays)
    assert gpus_used(state, "n1") == 4 + 1
    assert gpus_used(state, "n2") == 4 + 4


def test_a_pod_of_another_tool_is_covered_by_the_job_of_its_group_or_by_one_of_its_own() -> None:
    bare = make_pod("train-0", node="n1", gpus=4)
    owner = OwnerReference("batch/v1", "Job", "train", "tool-uid", controller=True)
    bare = replace(bare, metadata=replace(bare.metadata, owner_references=(owner,)))
    usual, single = membership_of(bare).group.key, alone(bare).group.key
    assert usual != single
    for (_, name), gpus in ((usual, 4), (single, 4), (("default", "other"), 8)):
        job = make_job(
            name, gpus=4, placement=make_placement(["n1"]), spec={"adopts": Adopts("Job", "train")}
        )
        labels = make_member_pod(job).metadata.labels
        labels = {**labels, JOB_NAME: name, JOB_UID: job.metadata.uid}
        released = replace(bare, metadata=replace(bare.metadata, labels=labels))
        state = PlacementState.of([make_node("n1")], [job], [released])
        assert gpus_used(state, "n1") == gpus, name


def test_pods_outlive_the_claim_that_covered_them() -> None:
    job = make_job("a", gpus=4, placement=make_placement(["n1"]))
    pod = make_member_pod(job, 0)
    state = PlacementState.of([make_node("n1")], [job], [pod])
    state.cluster.job_changed(with_status(job, placement=None))
    assert gpus_used(state, "n1") == 4
    state.cluster.job_changed(job)
    assert gpus_used(state, "n1") == 4
    state.cluster.job_deleted(job.metadata.key)
    assert gpus_used(state, "n1") == 4
    state.cluster.pod_changed(
        msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Failed"))
    )
    assert gpus_used(state, "n1") == 0


def test_a_claim_ends_with_its_job_and_moves_with_its_placement() -> None:
    job = make_job("a", gpus=4, placement=make_placement(["n1"]))
    state = PlacementState.of([make_node("n1"), make_node("n2")], [job])
    state.cluster.job_changed(
        with_status(job, placement=make_placement(["n2"], attempt=2), attempt=2)
    )
    assert (gpus_used(state, "n1"), gpus_used(state, "n2")) == (0, 4)
    state.cluster.job_changed(with_status(job, conditions=FINISHED))
    assert (gpus_used(state, "n1"), gpus_used(state, "n2")) == (0, 0)
    assert list(state.sets.releasable) == [job.metadata.key]


def test_use_of_a_node_that_is_not_known_is_not_forgotten() -> None:
    running = make_job("a", gpus=8, placement=make_placement(["n1"]))
    waiting = make_job("b", gpus=8)
    state = PlacementState.of([], [running, waiting])
    assert room(state, waiting) == {}
    state.cluster.node_changed(make_node("n1"))
    assert room(state, waiting) == {}
    state.cluster.node_deleted("n1")
    state.cluster.node_changed(make_node("n1"))
    assert gpus_used(state, "n1") == 8
    state.cluster.job_deleted(running.metadata.key)
    assert room(state, waiting) == {"n1": 1}


def test_slots_of_deleted_nodes_are_given_to_the_next_ones_lowest_first() -> None:
    state = PlacementState.of(make_nodes(5))
    for name in ("node-0003", "node-0001"):
        state.cluster.node_deleted(name)
    state.cluster.node_changed(make_node("zz"))
    state.cluster.node_changed(make_node("aa"))
    assert state.cluster.table.names[:5] == ["node-0000", "zz", "node-0002", "aa", "node-0004"]
    order = np.argsort(state.cluster.table.rank[:5])
    assert [state.cluster.table.names[s] for s in order] == sorted(state.cluster.table.names[:5])


def test_a_heartbeat_changes_nothing_that_anybody_would_look_at_again() -> None:
    job = make_job("a")
    state = PlacementState.of(make_nodes(3), [job])
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest)
    mask = state.cluster.fits.mask(gang.roles[0].member.constraints)
    before = (mask.changed_at, state.cluster.table.nodes_version)
    for node in make_nodes(3, resource_version=9):
        state.cluster.node_changed(node)
    mask = state.cluster.fits.mask(gang.roles[0].member.constraints)
    assert (mask.changed_at, state.cluster.table.nodes_version) == before


@pytest.mark.parametrize(
    "node",
    [
        make_node("n1", ready=False),
        make_node("n1", unschedulable=True),
        make_node("n1", taints=[Taint(key="x", effect="NoSchedule")]),
        make_node("n1", taints=[Taint(key="node.kubernetes.io/not-ready", effect="NoExecute")]),
        make_node("n1", labels={"pool": "b"}),
        make_node("n1", gpus=4),
        make_node("n1", pods=0),
    ],
)
def test_room_follows_every_change_of_a_node(node: object) -> None:
    job = make_job("a", gpus=8, node_selector={"pool": "a"})
    good = make_node("n1", labels={"pool": "a"})
    state = PlacementState.of([good], [job])
    assert room(state, job) == {"n1": 1}
    labels = {"pool": "a", **node.metadata.labels}
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    state.cluster.node_changed(msgspec.structs.replace(node, metadata=metadata))
    assert room(state, job) == {}
    state.cluster.node_changed(good)
    assert room(state, job) == {"n1": 1}


def test_rows_stay_right_when_there_are_more_classes_than_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fits_module, "ROWS_MAX", 8)
    jobs = [make_job(f"j{i:02}", gpus=1 + i % 8, cpu=f"{1 + i}m") for i in range(20)]
    state = PlacementState.of(make_nodes(3), jobs)
    for job in jobs:
        each = 8 // (1 + int(job.metadata.name[1:]) % 8)
        assert room(state, job) == {f"node-{i:04}": each for i in range(3)}
    for job in jobs[:15]:
        state.cluster.job_deleted(job.metadata.key)
    state.cluster.pod_changed(make_pod("p", node="node-0001", gpus=8))
    for job in jobs[15:]:
        assert "node-0001" not in room(state, job)
    seen = {m.request for _ in range(9) for m in state.cluster.fits.within_reach()}
    assert len(seen) == 5


def test_the_queue_orders_by_priority_then_age_then_name() -> None:
    jobs = [
        make_job("late", created=EPOCH + 9),
        make_job("b", created=EPOCH),
        make_job("a", created=EPOCH),
        make_job("urgent", priority=10, created=EPOCH + 20),
        make_job("idle", priority=-1, created=EPOCH - 50),
    ]
    state = PlacementState.of([], jobs)
    names = [o.job_key[1] for o in state.queue.first(10)]
    assert names == ["urgent", "a", "b", "late", "idle"]
    state.cluster.job_changed(make_job("idle", priority=99, created=EPOCH - 50))
    assert state.queue.first(1)[0].job_key[1] == "idle"


def test_equal_jobs_stand_in_one_group() -> None:
    jobs = [make_job(f"j{i}", count=1 + i % 2, labels={"i": str(i)}) for i in range(100)]
    state = PlacementState.of(make_nodes(1), jobs)
    assert len(state.queue) == 100
    assert len(state.queue._shapes) == 2
    for job in jobs:
        state.cluster.job_deleted(job.metadata.key)
    assert len(state.queue) == 0


def test_only_admitted_jobs_without_a_place_wait() -> None:
    placed = make_placement(["n"])
    jobs = [
        make_job("waits"),
        make_job("not-admitted", attempt=0),
        make_job("held", suspend=True),
        make_job("cancelled", cancel=True),
        make_job("placed", placement=placed),
        make_job("ended", conditions=FINISHED),
        make_job("again", attempt=2, placement=placed),
        make_job("held-placed", suspend=True, placement=placed),
    ]
    state = PlacementState.of([], jobs)
    assert [o.job_key[1] for o in state.queue.first(10)] == ["waits"]
    assert [name for _, name in state.sets.held] == ["held"]
    assert [name for _, name in state.sets.repairable] == ["again"]
    assert [name for _, name in state.sets.releasable] == ["held-placed"]
    assert [name for _, name in state.sets.unadmitted] == ["not-admitted"]
    assert [name for _, name in state.sets.evictable] == ["placed"]
    assert any(state.sets)
    version = state.evictable_version
    for job in jobs:
        state.cluster.job_deleted(job.metadata.key)
    assert not any(state.sets), "a job that is gone is in no set"
    assert state.evictable_version == version + 1


def test_an_unreadable_request_waits_as_such() -> None:
    job = make_job("a", roles=[make_role(), make_role("b", cpu="many")])
    state = PlacementState.of(make_nodes(1), [job])
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, InvalidGang)
    assert gang.field.startswith("spec.roles[1].template.spec.containers[0].resources.requests.cpu")


def test_a_transaction_is_undone_however_it_ends() -> None:
    job = make_job("a", gpus=2)
    state = PlacementState.of([make_node("n1")], [job])
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest)
    member, slot = gang.roles[0].member, np.array([state.cluster.table.slot("n1")])
    with state.cluster.transaction() as transaction:
        transaction.take(slot, np.array([3]), member)
        assert room(state, job) == {"n1": 1}
    assert room(state, job) == {"n1": 4}
    with suppress(RuntimeError), state.cluster.transaction() as transaction:
        transaction.take(slot, np.array([1]), member)
        raise RuntimeError
    assert room(state, job) == {"n1": 4}
    with state.cluster.transaction(), pytest.raises(AssertionError):
        state.cluster.transaction()


def test_the_packing_order_of_empty_nodes_follows_what_they_have_and_not_what_is_used() -> None:
    cluster = ClusterState.of(make_nodes(2))
    small, large = map(cluster.table.slot, ("node-0000", "node-0001"))
    assert cluster.table.empty_key[small] < cluster.table.empty_key[large]
    cluster.job_changed(make_job("a", gpus=8, placement=make_placement(["node-0001"])))
    assert cluster.table.key[large] < cluster.table.key[small]
    assert cluster.table.empty_key[small] < cluster.table.empty_key[large]
    cluster.node_changed(make_node("node-0001", gpus=4))
    assert cluster.table.empty_key[large] < cluster.table.empty_key[small]


def test_absurd_amounts_of_nodes_and_pods_neither_wrap_around_nor_make_room() -> None:
    huge = "9000000000000000000"
    nodes = [make_node(f"n{i}", cpu=huge, memory="8E") for i in range(300)]
    state = PlacementState.of(nodes, [make_job("a", gpus=0, cpu=huge)])
    job = state.jobs["default", "a"].job
    assert 0 < int(state.cluster.table.owned("cpu").sum()) < 2**63
    assert 0 < int(state.cluster.table.unused("memory").sum()) < 2**63
    assert room(state, job) == {}
    pods = [make_pod(f"p{i}", node="n0", cpu=huge) for i in range(4)]
    for pod in pods:
        state.cluster.pod_changed(pod)
    assert int(state.cluster.table.used[state.cluster.table.row("cpu"), 0]) > 0
    assert int(state.cluster.table.unused("cpu")[0]) == 0


def test_room_that_a_job_may_have_got_is_kept_beside_what_it_has_and_given_back_whole() -> None:
    state = PlacementState.of(make_nodes(4), [make_job("a", count=2), make_job("b")])
    names = [f"node-{i:04d}" for i in range(4)]
    before = [gpus_used(state, name) for name in names]
    placed = make_job("a", count=2, placement=make_placement(names[:2]))
    state.cluster.job_changed(placed)
    state.book_uncertain(placed, make_placement([names[0], names[2]], attempt=2))
    assert [gpus_used(state, name) for name in names] == [8, 8, 8, 0]
    assert room(state, make_job("b")) == {names[3]: 1}
    assert placed.metadata.key in state.write_blocked
    state.book_uncertain(placed, make_placement([names[3], names[1]], attempt=2))
    assert [gpus_used(state, name) for name in names] == [8, 8, 0, 8]
    assert [claim.key for claim in state.cluster.ledger.claims_by_size()] == [placed.metadata.key]
    state.unbook_uncertain(placed.metadata.key)
    state.unbook_uncertain(placed.metadata.key)
    state.cluster.job_changed(make_job("a", count=2))
    assert [gpus_used(state, name) for name in names] == before
    assert not state.write_blocked


def test_a_job_that_may_have_got_its_place_keeps_no_nominated_one_until_that_is_known() -> None:
    places = Nomination((RolePlacement("worker", ("node-0000",)),))
    job = make_job("a", status={"nomination": places})
    state = PlacementState.of(make_nodes(2), [job])
    assert [gpus_used(state, name) for name in ("node-0000", "node-0001")] == [8, 0]
    state.book_uncertain(job, make_placement(["node-0001"]))
    assert [gpus_used(state, name) for name in ("node-0000", "node-0001")] == [0, 8]
    state.unbook_uncertain(job.metadata.key)
    assert [gpus_used(state, name) for name in ("node-0000", "node-0001")] == [8, 0]
