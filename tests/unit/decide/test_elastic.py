"""Elastic roles: how many members an attempt begins with, in the planner and at its limits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.cluster.team import JobLimits
from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Taint
from fairlead.api.kubernetes.resource_quota import ResourceQuota, ResourceQuotaStatus
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.names import ADMITTED, TEAM
from fairlead.api.validation.validate import validate_job
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.seats import covers
from fairlead.decide.attempts.usage import gpu_count, usage_of
from fairlead.decide.placement.actions import NominateJob, PlaceJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.whatif import would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import InvalidGang
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_nodes,
    make_placement,
    make_role,
    make_spread,
    make_team,
)

POLICY = PlacementPolicy(repair_hold_seconds=300)
EAGER = PlacementPolicy(starvation_seconds=0.0)


def elastic(least: int, most: int, name: str = "gang", **more: object) -> Job:
    return make_job(name, min_count=least, count=most, **more)  # type: ignore[arg-type] # passed on


def again(least: int, most: int, *nodes: str, lost: tuple[str, ...] = (), **more: object) -> Job:
    """A gang on these nodes, whose first attempt is over."""
    status = {"attempts": (Attempt(number=1, nodes_lost=lost),)}
    placement = make_placement(nodes)
    return elastic(least, most, attempt=2, placement=placement, status=status, **more)


def decided(state: PlacementState, policy: PlacementPolicy = POLICY) -> dict[str, Any]:
    """Decide; return each job's nodes, in order, or the reason why it waits."""
    found: dict[str, Any] = {}
    for action in decide(state, policy, EPOCH).actions:
        name = action.job.metadata.name
        if isinstance(action, PlaceJob):
            places = [role.nodes for role in action.placement.roles]
            found[name] = list(places[0]) if len(places) == 1 else [list(p) for p in places]
        elif isinstance(action, WriteVerdict):
            found[name] = Reason(action.verdict.reason)
        state.cluster.job_changed(as_written(action))
    return found


def outcome(nodes: list[str], *jobs: Job, policy: PlacementPolicy = POLICY) -> dict[str, Any]:
    return decided(PlacementState.of([make_node(n) for n in nodes], jobs), policy)


# The first attempt


@pytest.mark.parametrize(("nodes", "size"), [("ab", 2), ("abc", 3), ("abcde", 5), ("abcdefg", 5)])
def test_an_attempt_begins_with_as_many_members_as_have_room(nodes: str, size: int) -> None:
    assert len(outcome(list(nodes), elastic(2, 5))["gang"]) == size


def test_without_room_for_the_least_the_gang_waits_and_its_verdict_counts_these() -> None:
    decision = decide(PlacementState.of([make_node("a")], [elastic(2, 5)]), POLICY, EPOCH)
    (action,) = decision.actions
    assert isinstance(action, WriteVerdict)
    assert (action.verdict.facts["members"], action.verdict.facts["members_fit"]) == (2, 1)


def test_of_several_roles_the_last_is_the_first_to_shrink() -> None:
    roles = [make_role("a", count=4, min_count=1, gpus=8), make_role("b", count=4, min_count=2)]
    roles[1] = replace(roles[1], template=roles[0].template)
    for count, sizes in ((8, (4, 4)), (7, (4, 3)), (6, (4, 2)), (5, (3, 2)), (3, (1, 2))):
        state = PlacementState.of(make_nodes(count), [make_job("gang", roles=roles)])
        assert [len(nodes) for nodes in decided(state)["gang"]] == list(sizes)


def test_size_comes_before_the_tightest_domain() -> None:
    nodes = [make_node(f"x{i}", labels={"rack": "x"}) for i in range(2)]
    nodes += [make_node(f"y{i}", labels={"rack": "y"}) for i in range(3)]
    state = PlacementState.of(nodes, [elastic(2, 4, topology=Topology("rack", required=True))])
    assert decided(state)["gang"] == ["y0", "y1", "y2"]


def test_members_that_are_kept_apart_count_by_the_nodes_that_they_may_use() -> None:
    spread = make_spread("rack", app="a")
    nodes = [make_node(f"n{i}", labels={"rack": f"r{i % 2}"}) for i in range(3)]
    job = elastic(1, 6, gpus=4, pod_labels={"app": "a"}, spreads=[spread])
    assert (
        len(decided(PlacementState.of(nodes, [job]))["gang"]) == 5
    )  # 3 in one rack, 2 in the other


def test_the_what_if_of_a_submission_says_the_size() -> None:
    state = ClusterState.of(make_nodes(3), [elastic(2, 5)])
    gang = state.jobs["default", "gang"].gang
    assert dict(would_fit(state, gang).facts) == {"nodes_used": 3, "members": 3}


# Limits


def test_a_limit_of_gpus_bounds_the_size_and_counts_what_was_taken() -> None:
    cluster = ClusterState.of(make_nodes(9))
    cluster.team_changed("a", make_team("a", limits=JobLimits(gpus=40)))
    state = PlacementState(cluster)
    for i, least in enumerate((1, 1, 1)):
        job = elastic(least, 3, f"j{i}", namespace="a", created=EPOCH + i)
        cluster.job_changed(job)
    found = decided(state)
    assert [len(found[name]) for name in ("j0", "j1")] == [3, 2]
    assert found["j2"] is Reason.GPU_LIMIT


def test_a_quota_bounds_the_size_but_not_below_the_least() -> None:
    for hard, size in (("32", 4), ("8", 2)):
        state = PlacementState.of(make_nodes(9), [elastic(2, 6, namespace="poor")])
        status = ResourceQuotaStatus(
            {"requests.nvidia.com/gpu": hard}, {"requests.nvidia.com/gpu": "0"}
        )
        state.cluster.quotas.put(ResourceQuota(ObjectMeta("q", namespace="poor"), status=status))
        assert len(decided(state)["gang"]) == size


def test_what_is_borrowed_stays_within_its_limit_at_every_size() -> None:
    cluster = ClusterState.of([make_node(f"n{i}") for i in range(3)])
    for i in range(3):
        cluster.node_changed(make_node(f"t{i}", taints=[Taint(TEAM, "NoSchedule", "b")]))
    cluster.team_changed("b", make_team("b"))
    cluster.team_changed("a", make_team("a", borrow_limit_nodes=1))
    cluster.job_changed(elastic(1, 6, namespace="a"))
    found = decided(PlacementState(cluster))["gang"]
    assert sorted(name[0] for name in found) == ["n", "n", "n", "t"]


# The next attempt


def test_after_the_loss_of_a_node_it_goes_on_at_once_with_fewer() -> None:
    assert outcome(["a", "b", "d"], again(2, 4, "a", "b", "c", "d"))["gang"] == ["a", "b", "d"]


def test_lost_members_are_replaced_where_there_is_room_and_others_are_added() -> None:
    job = again(2, 4, "a", "b", "c")
    assert outcome(["a", "c", "d"], job)["gang"] == ["a", "d", "c"]
    assert outcome(["a", "c", "d", "e", "f"], job)["gang"] == ["a", "d", "c", "e"]


def test_of_lost_members_the_last_are_left_out_and_the_others_keep_their_numbers() -> None:
    assert outcome(["a", "c", "x"], again(2, 4, "a", "b", "c", "d"))["gang"] == ["a", "x", "c"]


def test_a_smaller_attempt_grows_with_the_next_one_and_keeps_its_nodes() -> None:
    assert outcome(list("abcdef"), again(2, 4, "d", "b"))["gang"] == ["d", "b", "a", "c"]


def test_below_its_least_it_waits_for_replacements_and_keeps_what_it_has() -> None:
    state = PlacementState.of([make_node("a")], [again(2, 4, "a", "b", "c")])
    (action,) = decide(state, POLICY, EPOCH).actions
    assert isinstance(action, WriteVerdict)
    facts = {"members_kept": 1, "members": 2, "nodes_lost": 2}
    assert (action.verdict.reason, action.verdict.facts) == (Reason.REPAIRING.value, facts)


def test_a_gang_that_keeps_no_node_is_placed_anew_at_any_size() -> None:
    assert outcome(["x", "y", "z"], again(2, 4, "a", "b"))["gang"] == ["x", "y", "z"]


def test_a_domain_that_has_become_too_small_shrinks_the_gang() -> None:
    nodes = [make_node(f"x{i}", labels={"rack": "x"}) for i in range(3)]
    nodes += [make_node(f"y{i}", labels={"rack": "y"}) for i in range(9)]
    job = again(2, 4, "x0", "x1", "x2", "x3", topology=Topology("rack", required=True))
    assert decided(PlacementState.of(nodes, [job]))["gang"] == ["x0", "x1", "x2"]


def test_it_replaces_and_grows_only_in_room_that_is_not_kept_for_the_head() -> None:
    head = make_job("head", count=4, created=EPOCH - 99)
    job = again(2, 4, "a", "b", "c", created=EPOCH - 9)
    found = outcome(list("abdef"), head, job, policy=EAGER)
    assert found["gang"] == ["a", "b"]
    short = replace(head, spec=replace(head.spec, roles=(make_role(count=2, gpus=8),)))
    assert outcome(list("abdef"), short, job, policy=EAGER)["gang"] == ["a", "b", "f"]


def test_each_of_several_gangs_grows_beside_the_others_and_within_the_limit_of_gpus() -> None:
    cluster = ClusterState.of(make_nodes(9, prefix="n"))
    cluster.team_changed("a", make_team("a", limits=JobLimits(gpus=56)))
    for i in range(2):
        nodes = [f"n-000{2 * i}", f"n-000{2 * i + 1}"]
        job = again(1, 4, *nodes, namespace="a", created=EPOCH + i)
        cluster.job_changed(replace(job, metadata=replace(job.metadata, name=f"j{i}", uid=f"{i}")))
    found = decided(PlacementState(cluster))
    assert [len(found[name]) for name in ("j0", "j1")] == [4, 3]


# Preemption


def test_it_preempts_for_its_least_and_takes_what_is_free_beside_that() -> None:
    at = format_time(EPOCH - 3600)
    low = make_job("low", count=2, priority=0, placement=make_placement(["a", "b"]),
                   status={"attempts": (Attempt(1, begun_at=at, started_at=at),)})  # fmt: skip
    job = elastic(2, 4, priority=9)
    state = PlacementState.of([make_node("a"), make_node("b")], [low, job])
    (action,) = (a for a in decide(state, POLICY, EPOCH).actions if isinstance(a, NominateJob))
    assert [len(role.nodes) for role in action.nomination.roles] == [2]
    state.cluster.job_changed(as_written(action))
    state.cluster.job_deleted(("default", "low"))
    state.cluster.node_changed(make_node("c"))
    assert sorted(decided(state)["gang"]) == ["a", "b", "c"]


# The request, and what was given


def test_a_size_below_the_least_or_above_the_most_is_none_of_the_job() -> None:
    for count in range(1, 7):
        is_one = covers(elastic(2, 4), make_placement([f"n{i}" for i in range(count)]))
        assert is_one is (2 <= count <= 4)


def test_what_a_job_holds_is_counted_by_its_attempts() -> None:
    job = elastic(2, 4, gpus=4)
    assert (gpu_count(job), job.member_count) == (16, 4)
    placed = replace(job, status=replace(job.status, placement=make_placement(list("abc"))))
    assert (gpu_count(placed), placed.member_count) == (12, 3)
    record = Attempt(1, begun_at=format_time(EPOCH), finished_at=format_time(EPOCH + 10),
                     sizes={"worker": 2})  # fmt: skip
    between = replace(job, status=replace(job.status, attempts=(record,)))
    assert between.member_count == 4, "what the next attempt may have"
    done = (Condition("Succeeded", "True"),)
    ended = replace(between, status=replace(between.status, conditions=done))
    assert (ended.member_count, gpu_count(ended)) == (2, 8)
    assert [use.held for use in usage_of(ended, EPOCH, EPOCH + 99)] == [8 * 10.0]


def test_a_first_attempt_records_its_size_and_counts_its_members_by_it() -> None:
    admitted = (Condition(ADMITTED, "True"),)
    state = PlacementState.of(make_nodes(3), [elastic(2, 5, conditions=admitted)])
    (action,) = decide(state, POLICY, EPOCH).actions
    status = as_written(action).status
    assert status.attempts[0].sizes == {"worker": 3}
    assert (status.members.total, status.members.pending) == (3, 3)


@pytest.mark.parametrize("least", [-1, 0, 5])
def test_a_least_that_is_no_size_of_the_role_is_refused(least: int) -> None:
    job = elastic(least, 4)
    assert [c.field for c in validate_job(job)] == ["spec.roles[0].minCount"]
    gang = ClusterState.of([], [job]).jobs["default", "gang"].gang
    assert isinstance(gang, InvalidGang)
    assert gang.field.startswith("spec.roles[0].minCount")


def test_slices_and_groups_of_other_tools_have_a_fixed_size() -> None:
    job = elastic(2, 4, topology=Topology(slice_level="rack", slice_size=2))
    assert [c.field for c in validate_job(job)] == ["spec.roles[0].minCount"]
    assert isinstance(ClusterState.of([], [job]).jobs["default", "gang"].gang, InvalidGang)
    adopts = Adopts("Job", "gang", "batch/v1")
    job = elastic(2, 4, spec={"adopts": adopts})
    assert [c.field for c in validate_job(job)] == ["spec.roles[0].minCount"]
    assert isinstance(ClusterState.of([], [job]).jobs["default", "gang"].gang, InvalidGang)
    job = elastic(4, 4, topology=Topology(slice_level="rack", slice_size=2))
    assert validate_job(job) == []
