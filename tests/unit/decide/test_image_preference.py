"""Members go to nodes that have their images, where that costs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Container, Node, Pod
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import (
    EPOCH,
    as_written,
    make_job,
    make_node,
    make_placement,
    make_pod,
    make_role,
)

HAS = ("docker.io/library/train:1",)


def placed(nodes: Sequence[Node], *jobs: Job, pods: Sequence[Pod] = ()) -> list[str]:
    """Return the nodes of the jobs that are placed."""
    return placed_by(PlacementState.of(nodes, jobs, pods))


def placed_by(state: PlacementState) -> list[str]:
    return [
        node
        for action in decide(state, PlacementPolicy(), EPOCH).actions
        if isinstance(action, PlaceJob)
        for role in action.placement.roles
        for node in role.nodes
    ]


def test_a_gang_takes_the_free_nodes_that_have_its_image() -> None:
    nodes = [make_node(name, images=HAS if name in "bd" else ("other",)) for name in "abcd"]
    assert placed(nodes, make_job("j", count=2)) == ["b", "d"]
    assert placed(nodes, make_job("j", count=3)) == ["a", "b", "d"], "it is no reason to wait"
    other = make_job("j", roles=[make_role(count=2, gpus=8, image="train:2")])
    assert placed(nodes, other) == ["a", "b"]


def test_images_are_followed_as_nodes_report_them() -> None:
    state = PlacementState.of([make_node(name) for name in "abc"], [make_job("j")])
    assert placed_by(state) == ["a"]
    state.cluster.node_changed(make_node("c", images=HAS))
    assert placed_by(state) == ["c"]
    state.cluster.node_changed(make_node("b", images=HAS))
    assert placed_by(state) == ["b"]
    state.cluster.node_deleted("b")
    assert placed_by(state) == ["c"]
    state.cluster.node_changed(make_node("c"))
    assert placed_by(state) == ["a"]


def test_jobs_of_one_request_go_each_to_its_own_image() -> None:
    nodes = [make_node(name, images=(f"train:{n}",)) for name, n in zip("abc", "321", strict=True)]
    jobs = [
        make_job(f"j{n}", roles=[make_role(gpus=8, image=f"train:{n}")], created=EPOCH + n)
        for n in (1, 2, 3)
    ]
    state = PlacementState.of(nodes, jobs)
    assert len({id(entry.group) for entry in state.jobs.values()}) == 1
    assert placed_by(state) == ["c", "b", "a"]


def test_no_whole_node_is_broken_up_for_an_image() -> None:
    used = make_pod("p", node="a", gpus=4)
    nodes = [make_node("a"), make_node("b", images=HAS)]
    assert placed(nodes, make_job("j", gpus=1), pods=[used]) == ["a"]
    small = [make_node("a"), make_node("b", gpus=4, images=HAS)]
    assert placed(small, make_job("j", gpus=1), pods=[used]) == ["a"], "as many are free on both"


def test_without_devices_the_fullest_node_comes_before_one_with_the_image() -> None:
    nodes = [make_node("a", gpus=0), make_node("b", gpus=0), make_node("c", gpus=0, images=HAS)]
    job = make_job("j", gpus=0, cpu=1)
    assert placed(nodes, job) == ["c"]
    assert placed(nodes, job, pods=[make_pod("p", node="b", cpu=2)]) == ["b"]


def test_with_devices_an_image_counts_more_than_the_cpu_that_is_left() -> None:
    nodes, pods = [make_node("a"), make_node("b", images=HAS)], [make_pod("p", node="a", cpu=64)]
    assert placed(nodes, make_job("j", gpus=8), pods=pods) == ["b"]


def test_a_suspect_node_comes_last_although_it_has_the_image() -> None:
    lost = (Attempt(1, finished_at=format_time(EPOCH - 10), nodes_lost=("b",)),)
    ended = make_job("ended", suspend=True, attempt=2, status={"attempts": lost})
    nodes = [make_node("a"), make_node("b", images=HAS)]
    assert placed(nodes, make_job("j"), ended) == ["a"]


def test_the_node_that_lacks_fewest_images_comes_first() -> None:
    both = make_role(gpus=8)
    pod = both.template.spec
    pod = replace(pod, containers=(*pod.containers, Container("proxy", image="proxy:1")))
    both = replace(both, template=replace(both.template, spec=pod))
    nodes = [make_node("a"), make_node("b", images=HAS), make_node("c", images=("proxy:1", *HAS))]
    assert placed(nodes, make_job("j", roles=[both])) == ["c"]
    assert placed(nodes[:2], make_job("j", roles=[both])) == ["b"]


def test_a_repair_prefers_nodes_with_the_image() -> None:
    nodes = [make_node(name, images=HAS if name in "ae" else ()) for name in "abcde"]
    job = make_job("j", count=3, placement=make_placement(["a", "b", "x"]), attempt=2)
    assert placed(nodes, job) == ["a", "b", "e"]


def test_a_gang_of_two_roles_is_placed_if_only_without_its_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first role would take the node that only its second one fits on."""
    monkeypatch.setattr(
        "fairlead.decide.placement.places.search.NODES_MAX", 1
    )  # not both roles at a time
    large = make_role("large", gpus=4)
    small = make_role("small", gpus=3, cpu=100)
    nodes = [make_node("a", gpus=4, cpu=10), make_node("b", gpus=4, images=HAS)]
    later = make_job("later", gpus=2, created=EPOCH + 1)
    assert placed(nodes, make_job("j", roles=[large, small]), later) == ["a", "b"], "each once"


def test_a_job_that_was_placed_stays_where_it_is() -> None:
    state = PlacementState.of([make_node("a"), make_node("b")], [make_job("j")])
    (action,) = decide(state, PlacementPolicy(), EPOCH).actions
    state.cluster.job_changed(as_written(action))
    state.cluster.node_changed(make_node("b", images=HAS))
    assert not decide(state, PlacementPolicy(), EPOCH).actions


def in_racks(**sizes: Sequence[int]) -> list[Node]:
    """Return a node for each size in each rack: bytes of the image that it has, 0 for none."""
    return [
        make_node(f"{rack}{i}", labels={"rack": rack}, images={HAS[0]: size} if size else ())
        for rack, has in sizes.items() for i, size in enumerate(has)
    ]  # fmt: skip


@pytest.mark.parametrize("required", [True, False])
def test_of_equal_racks_a_gang_takes_the_one_in_which_it_starts_soonest(required: bool) -> None:
    job = make_job("j", count=2, topology=Topology("rack", required=required))
    assert placed(in_racks(a=(0, 0), b=(9, 0), c=(9, 9)), job) == ["c0", "c1"]
    assert placed(in_racks(a=(0, 0), b=(0, 9)), job) == ["b0", "b1"], "one pulls, and not two"
    assert placed(in_racks(a=(0, 0), b=(0, 0)), job) == ["a0", "a1"]
    assert placed(in_racks(a=(0, 0), b=(9, 9, 9)), job) == ["a0", "a1"], "b stays whole"


def test_what_is_small_is_pulled_rather_than_what_is_large() -> None:
    role = make_role(count=2, gpus=8)
    pod = role.template.spec
    pod = replace(pod, containers=(*pod.containers, Container("proxy", image="proxy:1")))
    role = replace(role, template=replace(role.template, spec=pod))
    large, small = {HAS[0]: 17 * 10**9}, {"proxy:1": 3 * 10**8}
    nodes = [make_node("a", images=small), make_node("b", images=large | small)]
    nodes.append(make_node("c", images=large))
    assert placed(nodes, make_job("j", roles=[role])) == ["b", "c"]
