"""Images decide where members go, and nothing else; on generated clusters."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import BOUNDED, PATIENT, a_cluster, a_job

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Container, Node
from fairlead.api.kubernetes.image_names import images_of
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.inventory.image_table import ImageTable
from fairlead.testing.builders import EPOCH, make_job, make_node, make_pod, make_role

GPUS, CPUS = 8, 32
_IMAGES = st.sampled_from([(), ("train:1",), ("train:2",)])
#: GPUs and CPUs in use on each of some equal nodes, and what they report.
_NODES = st.lists(st.tuples(st.integers(0, GPUS), st.integers(0, CPUS), _IMAGES), max_size=8)
_SIZES = st.dictionaries(st.sampled_from(["train:1", "train:2"]), st.integers(0, 3))
_REQUESTS = st.sampled_from([(0, 1), (0, 8), (1, 1), (1, 8), (3, 0), (4, 4), (8, 0), (8, 32)])


def without_images(node: Node) -> Node:
    return replace(node, status=replace(node.status, images=()))


def places(state: PlacementState) -> dict[tuple[str, str], Placement]:
    """Return the placements of the jobs that a decision places."""
    actions = decide(state, PATIENT, EPOCH).actions
    return {a.job.metadata.key: a.placement for a in actions if isinstance(a, PlaceJob)}


@BOUNDED
@given(a_cluster(), a_job("only"))
def test_whether_a_gang_fits_and_at_which_size_does_not_depend_on_images(cluster, job: Job):
    nodes, _, pods = cluster
    plain = places(PlacementState.of(map(without_images, nodes), [job], pods))
    found = places(PlacementState.of(nodes, [job], pods))
    assert [(k, [len(r.nodes) for r in p.roles]) for k, p in found.items()] == [
        (k, [len(r.nodes) for r in p.roles]) for k, p in plain.items()
    ]


@BOUNDED
@given(_NODES, _REQUESTS, st.integers(1, 9))
def test_as_many_nodes_stay_whole_and_as_much_of_the_image_is_used_as_can_be(
    given_nodes, request, count
):
    gpus, cpu = request
    nodes, pods = [], []
    for i, (gpus_used, cpus_used, images) in enumerate(given_nodes):
        nodes.append(make_node(f"n{i}", gpus=GPUS, cpu=CPUS, images=images))
        if gpus_used or cpus_used:
            pods.append(make_pod(f"p{i}", node=f"n{i}", gpus=gpus_used, cpu=cpus_used))
    job = make_job("only", roles=[make_role(count=count, gpus=gpus, cpu=cpu)])
    plain = places(PlacementState.of(map(without_images, nodes), [job], pods))
    found = places(PlacementState.of(nodes, [job], pods))
    assert found.keys() == plain.keys()
    if not found:
        return
    used = [Counter(each[job.metadata.key].roles[0].nodes) for each in (found, plain)]
    whole = [i for i, (gpus_used, cpus_used, _) in enumerate(given_nodes)
             if not gpus_used and (gpus or not cpus_used)]  # fmt: skip
    broken = [sum(f"n{i}" in each for i in whole) for each in used]
    assert broken[0] == broken[1]
    for free in range(GPUS + 1):
        alike = [i for i, (gpus_used, _, _) in enumerate(given_nodes) if GPUS - gpus_used == free]
        assert sum(used[0][f"n{i}"] for i in alike) == sum(used[1][f"n{i}"] for i in alike)
        has = [i for i in alike if given_nodes[i][2] == ("train:1",)]
        if gpus and any(used[0][f"n{i}"] for i in alike if i not in has):
            rooms = [(GPUS - given_nodes[i][0]) // gpus for i in has]
            if cpu:
                left = [(CPUS - given_nodes[i][1]) // cpu for i in has]
                rooms = list(map(min, rooms, left))
            assert [used[0][f"n{i}"] for i in has] == rooms, "others come once these are full"


@BOUNDED
@given(st.lists(st.lists(_SIZES, min_size=3, max_size=3), min_size=1, max_size=4),
       st.integers(1, 3))  # fmt: skip
def test_of_equal_domains_that_is_taken_in_which_the_slowest_pull_is_shortest(racks, count):
    nodes = [
        make_node(f"n{i}-{j}", gpus=GPUS, labels={"rack": f"r{i}"},
                  images={name: 1 << size for name, size in sizes.items()})
        for i, rack in enumerate(racks) for j, sizes in enumerate(rack)
    ]  # fmt: skip
    role = make_role(count=count, gpus=GPUS)
    spec = role.template.spec
    spec = replace(spec, containers=(*spec.containers, Container("b", image="train:2")))
    role = replace(role, template=replace(role.template, spec=spec))
    job = make_job("only", roles=[role], topology=Topology("rack", required=True))
    table = ImageTable(len(nodes))
    for slot, node in enumerate(nodes):
        table.set(slot, node.status.images)
    lacks = table.lacking(images_of(spec)).reshape(len(racks), 3)
    (found,) = places(PlacementState.of(nodes, [job])).values()
    slots = [[node.metadata.name for node in nodes].index(n) for n in found.roles[0].nodes]
    taken = [lacks[slot // 3, slot % 3] for slot in slots]
    assert max(taken) == min(sorted(rack)[count - 1] for rack in lacks.tolist())
