"""What one object can cost the planner: rows, names, roles, digits and amounts are bounded."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api.jobs.job import MEMBERS_MAX, ROLES_MAX, Job
from fairlead.api.kubernetes.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from fairlead.api.values.bounds import CONSTRAINT_VALUES_MAX, RESOURCES_MAX
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory.nodes import RESOURCES_PER_NODE_MAX, ROWS_MAX
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_placement,
    make_pod,
    make_role,
)

FPGA = "example.com/fpga"


def verdict_of(state: PlacementState, job: Job) -> Reason:
    return decide(state, PlacementPolicy(), EPOCH).verdicts[job.metadata.key].reason


def used(state: PlacementState, resource: str, node: str) -> int:
    slot = state.cluster.table.slot(node)
    assert slot is not None
    return int(state.cluster.table.used[state.cluster.table.row(resource), slot])


def with_affinity(job: Job, *requirements: NodeSelectorRequirement) -> Job:
    term = NodeSelectorTerm(match_expressions=requirements)
    affinity = Affinity(node_affinity=NodeAffinity(required=NodeSelector((term,))))
    role = job.spec.roles[0]
    pod = msgspec.structs.replace(role.template.spec, affinity=affinity)
    template = msgspec.structs.replace(role.template, spec=pod)
    roles = (msgspec.structs.replace(role, template=template),)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, roles=roles))


def test_what_no_node_offers_has_no_row_whoever_asks_for_it() -> None:
    rows = PlacementState.of([make_node("n1")]).cluster.table.resources
    job = make_job("a", extra={FPGA: 1})
    pod = make_pod("p", node="n1", extra={"example.com/other": 1})
    state = PlacementState.of([make_node("n1")], [job], [pod])
    assert verdict_of(state, job) is Reason.NO_NODE_SHAPE_FITS
    assert state.cluster.table.resources == rows


def test_a_job_for_what_no_node_offers_is_impossible_and_says_which_resource() -> None:
    job = make_job("a", extra={FPGA: 1})
    state = PlacementState.of([make_node("n1")], [job])
    verdict = decide(state, PlacementPolicy(), EPOCH).verdicts[job.metadata.key]
    assert verdict.message == f"a member of role worker needs 1 {FPGA}; the largest node has 0"


def test_a_job_that_waited_for_a_resource_is_placed_once_a_node_offers_it() -> None:
    job = make_job("a", extra={FPGA: 1})
    state = PlacementState.of([make_node("n1")], [job])
    assert verdict_of(state, job) is Reason.NO_NODE_SHAPE_FITS
    state.cluster.node_changed(make_node("n2", extra={FPGA: 1}, resource_version=2))
    assert verdict_of(state, job) is Reason.PLACED


def test_what_is_used_of_a_resource_is_booked_when_the_first_node_offers_it() -> None:
    placed = make_job("a", count=2, extra={FPGA: 2}, placement=make_placement(["n1", "n1"]))
    stray = make_pod("p", node="n1", extra={FPGA: 3})
    state = PlacementState.of([], [placed], [stray])
    state.cluster.node_changed(make_node("n1", extra={FPGA: 8}))
    assert used(state, FPGA, "n1") == 7
    state.cluster.pod_deleted(stray.metadata.key)
    assert used(state, FPGA, "n1") == 4
    state.cluster.job_deleted(placed.metadata.key)
    assert used(state, FPGA, "n1") == 0


def test_the_row_of_a_resource_goes_with_the_last_node_that_offers_it_and_comes_back() -> None:
    placed = make_job("a", gpus=0, extra={FPGA: 2}, placement=make_placement(["n1"]))
    waiting = make_job("b", gpus=0, extra={FPGA: 7})
    state = PlacementState.of([make_node("n1", extra={FPGA: 8})], [placed, waiting])
    assert verdict_of(state, waiting) is Reason.INSUFFICIENT_CAPACITY
    state.cluster.node_changed(make_node("n1", resource_version=2))
    assert FPGA not in state.cluster.table.resources
    assert verdict_of(state, waiting) is Reason.NO_NODE_SHAPE_FITS
    state.cluster.node_changed(make_node("n1", extra={FPGA: 16}, resource_version=3))
    assert used(state, FPGA, "n1") == 2
    assert verdict_of(state, waiting) is Reason.PLACED
    state.cluster.node_deleted("n1")
    assert FPGA not in state.cluster.table.resources


def test_nodes_can_name_only_so_many_resources_and_ordinary_ones_come_first() -> None:
    state = PlacementState()
    for i in range(8):
        extra: dict[str, str | int | float] = {f"a.example/{i}-{j}": 1 for j in range(1000)}
        state.cluster.node_changed(make_node(f"n{i}", gpus=0, extra=extra))
    assert len(state.cluster.table.resources) == ROWS_MAX
    assert RESOURCES_PER_NODE_MAX < 1000
    job = make_job("a", gpus=0)
    state.cluster.job_changed(job)
    assert verdict_of(state, job) is Reason.PLACED


def test_a_job_with_too_many_resource_names_is_invalid() -> None:
    names = {f"example.com/r{i}": 1 for i in range(RESOURCES_MAX + 1)}
    job = make_job("a", extra=names)
    state = PlacementState.of([make_node("n1")], [job])
    gang = state.jobs[job.metadata.key].gang
    assert isinstance(gang, InvalidGang)
    assert "accepted: 64 at most" in gang.field
    assert verdict_of(state, job) is Reason.INVALID_REQUEST


def test_a_bound_pod_whose_request_is_out_of_bounds_counts_with_what_nodes_offer() -> None:
    names = {f"example.com/r{i}": 1 for i in range(RESOURCES_MAX + 1)}
    state = PlacementState.of(
        [make_node("n1")], [], [make_pod("p", node="n1", gpus=8, extra=names)]
    )
    assert used(state, "nvidia.com/gpu", "n1") == 8
    job = make_job("a", gpus=1)
    state.cluster.job_changed(job)
    assert verdict_of(state, job) is Reason.INSUFFICIENT_CAPACITY


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
@pytest.mark.parametrize("value", ["9" * 5000, "many", str(2**63), ""])
def test_a_bound_that_is_no_integer_makes_a_job_invalid(operator: str, value: str) -> None:
    job = with_affinity(make_job("a"), NodeSelectorRequirement("size", operator, (value,)))
    state = PlacementState.of([make_node("n1", labels={"size": "5"})], [job])
    assert verdict_of(state, job) is Reason.INVALID_REQUEST


def test_a_job_with_too_many_constraint_values_is_invalid() -> None:
    values = tuple(f"v{i}" for i in range(CONSTRAINT_VALUES_MAX))
    job = with_affinity(make_job("a"), NodeSelectorRequirement("size", "In", values))
    state = PlacementState.of([make_node("n1")], [job])
    assert verdict_of(state, job) is Reason.INVALID_REQUEST


@pytest.mark.parametrize("count", [0, -1, MEMBERS_MAX + 1, 10**30])
def test_a_job_with_an_absurd_number_of_members_is_invalid(count: int) -> None:
    job = make_job("a", count=count)
    state = PlacementState.of([make_node("n1")], [job])
    assert verdict_of(state, job) is Reason.INVALID_REQUEST


def test_a_job_with_too_many_roles_is_invalid() -> None:
    job = make_job("a", roles=[make_role(f"r{i}") for i in range(ROLES_MAX + 1)])
    state = PlacementState.of([make_node("n1")], [job])
    assert verdict_of(state, job) is Reason.INVALID_REQUEST


@pytest.mark.parametrize("counts", [[1], [MEMBERS_MAX], [MEMBERS_MAX - 1, 1], [1] * ROLES_MAX])
def test_a_job_at_its_bounds_is_valid_and_one_beyond_them_is_not(counts: list[int]) -> None:
    roles = [make_role(f"r{i}", count=count) for i, count in enumerate(counts)]
    job = make_job("a", roles=roles)
    gang = PlacementState.of([], [job]).jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest)
    assert gang.member_count == sum(counts)
    if len(counts) == ROLES_MAX or sum(counts) == MEMBERS_MAX:
        more = make_job("b", roles=[*roles, make_role("more")])
        assert isinstance(PlacementState.of([], [more]).jobs[more.metadata.key].gang, InvalidGang)


@pytest.mark.parametrize(("least", "is_valid"), [(0, False), (1, True), (4, True), (5, False)])
def test_a_role_may_shrink_to_one_member_and_no_further(least: int, is_valid: bool) -> None:
    job = make_job("a", roles=[make_role("r", count=4, min_count=least)])
    gang = PlacementState.of([], [job]).jobs[job.metadata.key].gang
    assert isinstance(gang, GangRequest) is is_valid


def test_nodes_of_any_size_leave_classes_that_nobody_waits_with_alone() -> None:
    """The sum of what nodes hold must not reach the mark of a class without a need."""
    state = PlacementState.of([make_node("n1", cpu="1e30", memory="1e30", pods=2**31 - 1)])
    for name in ("a", "b"):
        job = make_job(name, gpus=0)
        state.cluster.job_changed(job)
        assert verdict_of(state, job) is Reason.PLACED
        state.cluster.job_deleted(job.metadata.key)
    other = make_job("c", gpus=1)
    state.cluster.job_changed(other)
    assert verdict_of(state, other) is Reason.PLACED
