"""Jobs whose containers ask for a resource that devices serve (KEP-5004): on nodes that have the
resource by themselves, and on those whose devices take its place.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_placement import POLICY, workers

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import (
    Container,
    Node,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from fairlead.api.kubernetes.device_shapes import DeviceShape
from fairlead.api.kubernetes.devices import DeviceClass, ResourceClaim, ResourceSlice
from fairlead.api.kubernetes.pod_parts import ExtendedResourceClaim
from fairlead.api.meta import ObjectMeta
from fairlead.api.pods.served_resources import served_asks, served_requests
from fairlead.api.values.quantity import GPU
from fairlead.decide.fleet.buying.growth import pools_that_hold
from fairlead.decide.jobs.following.pods import AttemptPods
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.members import missing_pods
from fairlead.decide.pinning import Binding, pinned_node
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_pod_spec
from fairlead.testing.device_builders import (
    DRIVER,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)


def serving(resource: str = GPU, name: str = DRIVER) -> DeviceClass:
    made = make_device_class(name, f'device.driver == "{DRIVER}"')
    return replace(made, spec=replace(made.spec, extended_resource_name=resource))


def gang(count: int, gpus: int = 1, name: str = "j", **given: object) -> Job:
    return make_job(name, count=count, gpus=gpus, cpu="1", **given)  # type: ignore[arg-type]


def cluster(
    jobs: list[Job],
    slices: list[ResourceSlice],
    *,
    nodes: list[Node] | None = None,
    classes: list[DeviceClass] | None = None,
    claims: list[ResourceClaim] | None = None,
    pods: list[Pod] | None = None,
) -> PlacementState:
    """Nodes n0 to n2 without GPUs of their own, unless others are given."""
    given = nodes or [make_node(f"n{i}", gpus=0, cpu="64") for i in range(3)]
    devices = DeviceTable(
        slices, classes or [serving()], [make_device_template("one")], claims or []
    )
    return PlacementState(ClusterState.of(given, jobs, pods or [], devices=devices))


def places(state: PlacementState, name: str = "j") -> list[str]:
    return workers(decide(state, POLICY, EPOCH), name)


def verdict(state: PlacementState, name: str = "j") -> Verdict:
    return decide(state, POLICY, EPOCH).verdicts["default", name]


def test_devices_serve_a_resource_of_containers_on_nodes_without_it() -> None:
    slices = [make_slice("n1", 3), make_slice("n2", 2)]
    assert places(cluster([gang(2, 2)], slices)) == ["n1", "n2"]
    said = verdict(cluster([gang(3, 2)], slices))
    assert said.reason is Reason.EXCEEDS_CLUSTER
    assert said.facts["members_fit"] == 2


def test_the_implicit_name_of_a_class_is_served_as_well() -> None:
    name = f"deviceclass.resource.kubernetes.io/{DRIVER}"
    asking = make_job("j", count=2, gpus=0, cpu="1", extra={name: 1})
    assert places(cluster([asking], [make_slice("n1", 2)])) == ["n1", "n1"]
    assert verdict(cluster([asking], [make_slice("n1", 1)])).reason is Reason.EXCEEDS_CLUSTER


def test_without_a_class_that_serves_it_a_resource_is_not_had_by_devices() -> None:
    said = verdict(cluster([gang(1)], [make_slice("n1", 2)], classes=[make_device_class(DRIVER)]))
    assert said.reason is Reason.NO_NODE_SHAPE_FITS


def test_a_class_that_comes_later_lets_a_gang_start_and_one_that_goes_stops_it() -> None:
    state = cluster([gang(1)], [make_slice("n1", 2)], classes=[make_device_class(DRIVER)])
    assert verdict(state).reason is Reason.NO_NODE_SHAPE_FITS
    assert state.cluster.devices.put_class(DRIVER, serving())
    assert places(state) == ["n1"]
    state.cluster.devices.put_class(DRIVER, None)
    assert verdict(state).reason is Reason.NO_NODE_SHAPE_FITS


def test_nodes_with_the_resource_and_nodes_with_devices_share_a_gang() -> None:
    nodes = [make_node("n0", gpus=2), make_node("n1", gpus=0), make_node("n2", gpus=0)]
    state = cluster([gang(4)], [make_slice("n1", 2)], nodes=nodes)
    assert sorted(places(state)) == ["n0", "n0", "n1", "n1"]
    assert verdict(
        cluster([gang(5)], [make_slice("n1", 2)], nodes=nodes)
    ).reason is Reason.EXCEEDS_CLUSTER  # fmt: skip


def test_a_node_with_the_resource_serves_no_member_by_its_devices() -> None:
    nodes = [make_node("n0", gpus=2)]
    claiming = with_device_claims(
        make_job("claims", count=3, gpus=0, cpu="1", created=EPOCH + 1), "one"
    )
    state = cluster([gang(2), claiming], [make_slice("n0", 3)], nodes=nodes)
    assert places(state) == ["n0", "n0"]
    assert places(state, "claims") == ["n0"] * 3
    assert verdict(
        cluster([gang(3)], [make_slice("n0", 3)], nodes=nodes)
    ).reason is Reason.EXCEEDS_CLUSTER  # fmt: skip


@pytest.mark.parametrize("is_first", [True, False])
def test_members_with_claims_and_with_the_resource_get_no_device_twice(*, is_first: bool) -> None:
    claiming = with_device_claims(
        make_job("claims", count=2, gpus=0, cpu="1", created=EPOCH - 1 + 2 * is_first), "one"
    )
    state = cluster([gang(2), claiming], [make_slice("n1", 3)])
    first, second = ("j", "claims") if is_first else ("claims", "j")
    assert places(state, first) == ["n1", "n1"]
    assert verdict(state, second).reason is not Reason.PLACED


def test_what_placed_members_hold_is_free_for_no_claim() -> None:
    held = gang(2, name="held", placement=make_placement(["n1", "n1"]))
    claiming = with_device_claims(make_job("claims", count=2, gpus=0, cpu="1"), "one")
    said = verdict(cluster([held, claiming], [make_slice("n1", 3)]), "claims")
    assert said.reason is Reason.INSUFFICIENT_CAPACITY
    assert said.facts["free"] == 1
    assert said.blockers == (("default", "held"),)


def test_a_pod_of_others_with_the_claim_of_its_resource_counts_once() -> None:
    spec = make_pod_spec(gpus=2, node_name="n1")
    status = PodStatus("Running", extended_resource_claim_status=ExtendedResourceClaim("x-1"))
    pod = Pod(
        ObjectMeta(name="x", namespace="default", uid="x", resource_version="1"), spec, status
    )
    claim = make_device_claim("x-1", pod="x", has=[("n1", "gpu-0"), ("n1", "gpu-1")])
    state = cluster([gang(2)], [make_slice("n1", 4)], claims=[claim], pods=[pod])
    assert places(state) == ["n1", "n1"]
    state = cluster([gang(3)], [make_slice("n1", 4)], claims=[claim], pods=[pod])
    assert verdict(state).facts["free"] == 2


def test_a_node_that_gets_the_resource_by_itself_is_counted_by_it() -> None:
    state = cluster([gang(3)], [make_slice("n1", 3)])
    assert places(state) == ["n1"] * 3
    state.cluster.node_changed(make_node("n1", gpus=2, cpu="64", resource_version=2))
    assert verdict(state).reason is Reason.EXCEEDS_CLUSTER
    state.cluster.node_changed(make_node("n1", gpus=0, cpu="64", resource_version=3))
    assert places(state) == ["n1"] * 3


def test_a_node_that_comes_with_the_resource_takes_members() -> None:
    state = cluster([gang(2)], [make_slice("n1", 1)])
    assert verdict(state).reason is Reason.EXCEEDS_CLUSTER
    state.cluster.node_changed(make_node("n9", gpus=2, cpu="64"))
    assert places(state) == ["n1", "n9"]


def test_of_classes_that_serve_one_resource_the_newest_does() -> None:
    older, newer = serving(name="older"), serving(name="newer")
    at = {"older": "2026-01-01T00:00:00Z", "newer": "2026-02-01T00:00:00Z"}
    none = make_device_class("newer", 'device.driver == "elsewhere.example.com"')
    newer = replace(newer, spec=replace(none.spec, extended_resource_name=GPU))
    classes = [
        replace(each, metadata=replace(each.metadata, creation_timestamp=at[each.metadata.name]))
        for each in (older, newer)
    ]
    state = cluster([gang(1)], [make_slice("n1", 2)], classes=classes)
    assert verdict(state).reason is Reason.NO_NODE_SHAPE_FITS
    state.cluster.devices.put_class("newer", None)
    assert places(state) == ["n1"]


def test_more_than_a_claim_can_have_is_served_by_no_devices() -> None:
    said = verdict(cluster([gang(1, 33)], [make_slice("n1", 40)]))
    assert said.reason is Reason.DEVICE_CLAIM_UNSUPPORTED
    assert said.message == (
        "resource nvidia.com/gpu cannot be planned: containers.resources.requests: devices serve "
        "it, and a pod has 32 of these at most"
    )


def test_the_verdict_names_the_class_and_the_resource() -> None:
    held = gang(2, name="held", placement=make_placement(["n1", "n1"]))
    said = verdict(cluster([held, gang(2)], [make_slice("n1", 3)]))
    assert said.message == (
        "needs 2 devices for nvidia.com/gpu, 1 of 3 are free: 1 short; 1 of 3 nodes have a free "
        "device"
    )


def test_where_another_scheduler_allocates_members_are_pinned() -> None:
    placed = gang(1, 2, placement=make_placement(["n1"]))

    def pod(binding: Binding | None, *served: str) -> Pod:
        policy = JobsPolicy(binding=binding)
        (made,) = missing_pods(placed, policy, AttemptPods(), resume_step=None, served=served)
        return made

    pinned = pod(Binding.DIRECT, GPU)
    assert (pinned.spec.node_name, pinned_node(pinned.spec)) == ("", "n1")
    assert pod(Binding.DIRECT, "example.com/other").spec.node_name == "n1"
    assert pod(None, GPU).spec.node_name == "n1"


def test_init_containers_that_end_share_what_the_largest_needs_beyond_the_later_ones() -> None:
    def container(name: str, count: int, restart: str = "") -> Container:
        resources = ResourceRequirements(limits={GPU: str(count)} if count else {"cpu": "1"})
        return Container(name, resources=resources, restart_policy=restart)

    spec = PodSpec(
        containers=(container("main", 1), container("none", 0)),
        init_containers=(
            container("a", 4), container("side", 2, "Always"), container("b", 2), container("c", 1),
        ),
    )  # fmt: skip
    found = served_requests(spec, {GPU: DRIVER})
    counts = {each["name"]: each["exactly"]["count"] for each in found.requests}
    assert counts == {"container-0-request-0": 1, "container-1-request-0": 2,
                      "container-4-request-0": 1}  # fmt: skip
    mapped = [(each["containerName"], each["requestName"][10:11]) for each in found.mappings]
    assert mapped == [
        ("side", "1"), ("main", "4"), ("a", "1"), ("a", "4"), ("a", "0"), ("b", "4"), ("b", "0"),
        ("c", "4"),
    ]  # fmt: skip
    assert sum(counts.values()) == served_asks(spec, (GPU,))[GPU] == 4


def test_nodes_are_bought_for_a_resource_that_devices_of_a_template_serve() -> None:
    template = NodeTemplate({"cpu": 96}, devices=(DeviceShape(DRIVER, 4),))
    spec = NodePoolSpec(Provider(ProviderType.SIMULATED), template, max=9, mode=PoolMode.ACTIVE)
    pool, job = NodePool(ObjectMeta("p"), spec), gang(3, gpus=3)
    devices = DeviceTable([], [serving()])
    state = ClusterState.of([make_node("n", gpus=0)], [job], devices=devices, pools=[pool])
    wanted = state.jobs[job.metadata.key].gang
    assert isinstance(wanted, GangRequest)
    nodes = [make_node("n", gpus=0)]
    assert pools_that_hold(nodes, wanted, [pool], state.table.devices) == {"p": 3}
