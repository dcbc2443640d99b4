"""Jobs whose volumes are of drivers that attach so many to a node."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace
from tests.unit.decide.test_placement import POLICY, apply, places

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.jobs.job import ClaimTemplate, Job
from fairlead.api.kubernetes.core import Volume
from fairlead.api.kubernetes.pod_parts import EphemeralVolumeSource
from fairlead.api.kubernetes.volumes import MIGRATED, CSINode, FormerSource, PersistentVolume
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.quantity import ATTACHED
from fairlead.app.queries.decision_file import read_lines, write_lines, writes_of
from fairlead.controllers.placing.decision_log import Cycle
from fairlead.decide.answers.explain import explain
from fairlead.decide.fleet.buying.demand import demand_of, device_source, offers_of
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import Recall
from fairlead.decide.placement.snapshot import CarriedState, Snapshot
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.device_offers import UNLIMITED
from fairlead.model.inventory.volume_limits import DRIVERS_MAX, StatedLimits
from fairlead.model.objects import Objects
from fairlead.testing.builders import EPOCH, make_job, make_node, make_pod
from fairlead.testing.volume_builders import (
    make_attachment,
    make_claim,
    make_csi_node,
    make_storage_class,
    make_volume,
)

DRIVER = "disk.test"
ROW = ATTACHED + DRIVER
CLASS = make_storage_class("s")


def own(name: str, count: int, *, storage_class: str | None = "s", **more: Any) -> Job:
    """A job whose members have a claim of their own each, and little else."""
    job = make_job(name, count=count, gpus=0, cpu=1, **more)
    (role,) = job.spec.roles
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"]}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    template = ClaimTemplate(ObjectMeta(name="d"), spec)
    role = replace(role, volume_claim_templates=(template,))
    return replace(job, spec=replace(job.spec, roles=(role,)))


def shared(name: str, count: int, *claims: str, **more: Any) -> Job:
    return make_job(name, count=count, gpus=0, cpu=1, claims=claims, **more)


def limits(*names: str, count: int | None = 2) -> StatedLimits:
    return StatedLimits(tuple(make_csi_node(name, disk_test=count) for name in names))


def cluster_of(jobs: list[Job], stated: StatedLimits, *names: str, **more: Any) -> ClusterState:
    nodes = [make_node(name) for name in names]
    more.setdefault("storage_classes", [CLASS])
    return ClusterState.of(nodes, jobs, limits=stated, **more)


def places_of(state: PlacementState, job: str, now: float = EPOCH) -> list[str]:
    """Decide, and return the nodes of a job; [] where it gets none."""
    found = places(decide(state, POLICY, now)).get(job, {})
    return sorted(found.get("worker", ()))


def free(cluster: ClusterState) -> dict[str, int]:
    """What is left of the row by node."""
    cluster.follow_claims()
    table = cluster.table
    left = table.allocatable[table.row(ROW)] - table.used[table.row(ROW)]
    return {name: int(left[slot]) for slot, name in enumerate(table.names) if name}


def test_members_with_volumes_of_their_own_are_as_many_as_a_node_attaches() -> None:
    cluster = cluster_of([own("j", 4)], limits("a", "b"), "a", "b")
    assert places_of(PlacementState(cluster), "j") == ["a", "a", "b", "b"]
    cluster = cluster_of([own("j", 5)], limits("a", "b"), "a", "b")
    assert not places_of(PlacementState(cluster), "j")
    cluster = cluster_of([own("j", 5)], limits("a"), "a", "b")
    assert len(places_of(PlacementState(cluster), "j")) == 5, "b has no limit"


def test_the_verdict_names_driver_limit_and_what_would_change_it() -> None:
    claims = [make_claim(f"c{i}", volume=f"v{i}") for i in range(4)]
    volumes = [make_volume(f"v{i}", claim=f"c{i}", driver=DRIVER) for i in range(4)]
    pods = [make_pod(f"p{i}", node="ab"[i // 2], claims=[f"c{i}"]) for i in range(4)]
    cluster = cluster_of(
        [own("j", 1)], limits("a", "b"), "a", "b", claims=claims, volumes=volumes, pods=pods
    )
    state = PlacementState(cluster)
    verdict = decide(state, POLICY, EPOCH).verdicts["default", "j"]
    assert verdict.reason is Reason.INSUFFICIENT_CAPACITY
    assert verdict.message == (
        "needs 1 volume of driver disk.test, 0 of 4 are free: 1 short; 0 of 2 nodes can attach "
        "one more, and none more than 2 in all: there is room once pods with such volumes have "
        "ended, or on nodes that attach more"
    )
    found = explain(state, ("default", "j"), EPOCH, POLICY)
    assert found is not None
    assert any("volumes of driver disk.test: asks 1" in each.message for each in found.arithmetic)
    cluster.pod_deleted(pods[3].metadata.key)
    assert places_of(state, "j", EPOCH + 1) == ["b"]


def test_a_member_with_more_volumes_than_any_node_attaches_fits_nowhere() -> None:
    names = ["c0", "c1", "c2"]
    claims = [make_claim(name, storage_class="s") for name in names]
    job = shared("j", 1, *names)
    cluster = cluster_of([job], limits("a"), "a", claims=claims)
    verdict = decide(PlacementState(cluster), POLICY, EPOCH).verdicts["default", "j"]
    assert verdict.reason is Reason.NO_NODE_SHAPE_FITS
    assert "needs 3 volumes of driver disk.test; the largest node has 2" in verdict.message


def test_a_volume_of_several_pods_on_a_node_counts_once() -> None:
    claims = [make_claim("c", volume="v"), make_claim("same", volume="w"), make_claim("other")]
    volumes = [
        make_volume("v", claim="c", driver=DRIVER, handle="h"),
        make_volume("w", claim="same", driver=DRIVER, handle="h"),
    ]
    pods = [make_pod(f"p{i}", node="a", claims=["c", "same"]) for i in range(4)]
    cluster = cluster_of([own("j", 1)], limits("a"), "a", claims=claims, volumes=volumes, pods=pods)
    assert free(cluster) == {"a": 1}
    cluster.pod_deleted(pods[0].metadata.key)
    assert free(cluster) == {"a": 1}
    for pod in pods[1:]:
        cluster.pod_deleted(pod.metadata.key)
    assert free(cluster) == {"a": 2}


def test_pods_in_the_places_of_their_members_are_counted_with_these() -> None:
    claims = [make_claim("c", volume="v")]
    volumes = [make_volume("v", claim="c", driver=DRIVER)]
    job = shared("j", 2, "c")
    cluster = cluster_of([job, own("k", 1)], limits("a", count=5), "a", claims=claims,
                         volumes=volumes)  # fmt: skip
    state = PlacementState(cluster)
    apply(state, decide(state, POLICY, EPOCH))
    assert free(cluster) == {"a": 2}, "three members, as their pods are not there"
    placed = cluster.jobs["default", "j"].job
    for i in range(2):
        labels = {"fairlead.dev/role": "worker", "fairlead.dev/index": str(i)}
        cluster.pod_changed(make_pod(f"j{i}", node="a", claims=["c"], owner=placed, cpu=1,
                                     labels=labels))  # fmt: skip
    assert free(cluster) == {"a": 3}, "one volume of two pods"


def test_a_member_keeps_its_volume_when_the_claim_is_seen_bound_before_the_volume_is() -> None:
    cluster = cluster_of([own("j", 1), own("k", 2, created=EPOCH + 9)], limits("a"), "a")
    state = PlacementState(cluster)
    apply(state, decide(state, POLICY, EPOCH))
    assert free(cluster) == {"a": 1}
    bound = make_claim("d-j-worker-0", volume="v")
    cluster.volumes.put_claim(bound.metadata.key, bound)
    assert free(cluster) == {"a": 1}
    assert not isinstance(cluster.jobs["default", "j"].reaches, tuple), "its claim is lost for now"
    cluster.volumes.put_volume("v", make_volume("v", claim="d-j-worker-0", driver=DRIVER))
    assert free(cluster) == {"a": 1}


def test_volumes_that_are_attached_for_no_pod_count_and_those_of_pods_once() -> None:
    claims = [make_claim("c", volume="v")]
    volumes = [make_volume("v", claim="c", driver=DRIVER), make_volume("w", driver=DRIVER),
               make_volume("x")]  # fmt: skip
    attached = tuple(make_attachment(name, "a", DRIVER) for name in ("v", "w", "x", "gone"))
    stated = StatedLimits(limits("a", count=5).nodes, attached)
    pod = make_pod("p", node="a", claims=["c"])
    cluster = cluster_of([own("j", 1)], stated, "a", claims=claims, volumes=volumes, pods=[pod])
    assert free(cluster) == {"a": 3}
    cluster.pod_deleted(pod.metadata.key)
    assert free(cluster) == {"a": 3}, "it is still attached"
    assert cluster.volumes.limits.put_attachment("v-a", None)
    assert free(cluster) == {"a": 4}
    cluster.volumes.put_volume("w", None)
    assert free(cluster) == {"a": 5}, "kube-scheduler counts no attachment without a volume"


def test_former_plugins_count_as_their_drivers() -> None:
    spec = replace(make_volume("v").spec, aws_elastic_block_store=FormerSource())
    volume = PersistentVolume(ObjectMeta(name="v"), spec)
    ebs = MIGRATED["kubernetes.io/aws-ebs"]
    assert volume.handle == (ebs, "v")
    former = replace(CLASS, provisioner="kubernetes.io/aws-ebs")
    assert former.driver == ebs
    stated = StatedLimits((make_csi_node("a", ebs_csi_aws_com=2),))
    cluster = cluster_of([own("j", 3)], stated, "a", storage_classes=[former])
    assert not places_of(PlacementState(cluster), "j")
    assert make_storage_class("hand", makes=False).driver == ""


def test_claims_that_are_made_for_a_pod_count() -> None:
    pod = make_pod("p", node="a")
    volume = Volume("tmp", ephemeral=EphemeralVolumeSource())
    pod = replace(pod, spec=replace(pod.spec, volumes=(volume,)))
    made = make_claim("p-tmp", storage_class="s")
    cluster = cluster_of([own("j", 1)], limits("a"), "a", claims=[made], pods=[pod])
    assert free(cluster) == {"a": 1}


def test_an_unmade_claim_without_a_class_is_one_of_the_default_class() -> None:
    marked = {"storageclass.kubernetes.io/is-default-class": "true"}
    default = replace(CLASS, metadata=replace(CLASS.metadata, annotations=marked))
    job = own("j", 3, storage_class=None)
    cluster = cluster_of([job], limits("a"), "a", storage_classes=[CLASS])
    state = PlacementState(cluster)
    assert places_of(state, "j") == ["a"] * 3
    cluster = cluster_of([job], limits("a"), "a", storage_classes=[default])
    assert not places_of(PlacementState(cluster), "j")


def test_new_nodes_attach_what_the_best_of_their_pool_do() -> None:
    """A node of the pool that states less, as one that was taken over may, makes no difference."""
    template = NodeTemplate({"cpu": 96})
    pool = NodePool(ObjectMeta("p"), NodePoolSpec(
        Provider(ProviderType.SIMULATED), template, max=50, mode=PoolMode.ACTIVE
    ))  # fmt: skip
    stated = StatedLimits((*limits("a", "b", count=3).nodes, *limits("z", count=0).nodes))
    cluster = cluster_of([own("j", 12)], stated, "a", "b", "z")
    cluster.follow_claims()
    gang = cluster.jobs["default", "j"].gang
    assert isinstance(gang, GangRequest)
    offers = offers_of(pool, 50, like=device_source(cluster, "p", ["z", "b"]))
    demand = demand_of(cluster, [(("default", "j"), gang)], offers, {})
    assert [each.count for each in demand.purchases.values()] == [2], "six on a and b, three each"
    offers = offers_of(pool, 50, like=device_source(cluster, "p", ()))
    demand = demand_of(cluster, [(("default", "j"), gang)], offers, {})
    assert [each.count for each in demand.purchases.values()] == [1], (
        "they are not known to have one"
    )


def test_rows_are_there_while_some_job_asks_for_a_claim() -> None:
    plain = make_job("plain", gpus=0, cpu=1)
    cluster = cluster_of([plain], limits("a"), "a", "b")
    cluster.follow_claims()
    assert ROW not in cluster.table.resources
    cluster.job_changed(own("j", 1))
    assert free(cluster) == {"a": 2, "b": UNLIMITED}
    cluster.node_changed(make_node("c"))
    assert free(cluster)["c"] == UNLIMITED
    assert cluster.volumes.limits.put_node("c", make_csi_node("c", disk_test=7))
    assert free(cluster)["c"] == 7
    assert not cluster.volumes.limits.put_node("c", make_csi_node("c", disk_test=7))
    cluster.job_deleted(("default", "j"))
    cluster.follow_claims()
    assert ROW not in cluster.table.resources


def test_what_a_node_says_of_itself_makes_no_rows() -> None:
    """A kubelet writes its own CSINode: names that no volume or class has count nowhere."""
    lies = {f"d{i}_test": i for i in range(400)}
    stated = StatedLimits((make_csi_node("a", **lies), make_csi_node("b", disk_test=2)))
    cluster = cluster_of([own("j", 1)], stated, "a", "b")
    cluster.follow_claims()
    assert [each for each in cluster.table.resources if each.startswith(ATTACHED)] == [ROW]
    classes = [replace(make_storage_class(f"s{i}"), provisioner=f"d{i}.test") for i in range(400)]
    cluster = cluster_of([own("j", 1, storage_class="s1")], stated, "a", "b",
                         storage_classes=classes)  # fmt: skip
    cluster.follow_claims()
    rows = [each for each in cluster.table.resources if each.startswith(ATTACHED)]
    assert len(rows) == DRIVERS_MAX


def test_a_node_without_drivers_has_no_limits() -> None:
    """As kubelets make it, and API servers write it."""
    body = b'{"metadata": {"name": "a"}, "spec": {"drivers": null}}'
    assert msgspec.json.decode(body, type=CSINode).limits == {}
    body = (
        b'{"metadata": {"name": "a"}, "spec": {"drivers": [{"name": "d", "topologyKeys": null}]}}'
    )
    assert msgspec.json.decode(body, type=CSINode).limits == {}


def test_a_limit_of_zero_or_less_attaches_nothing() -> None:
    for count in (0, -5):
        cluster = cluster_of([own("j", 1)], limits("a", count=count), "a")
        verdict = decide(PlacementState(cluster), POLICY, EPOCH).verdicts["default", "j"]
        assert "the largest node has 0" in verdict.message


def test_a_decision_on_limits_is_made_again_from_its_file() -> None:
    attached = (make_attachment("w", "a", DRIVER),)
    volumes = (make_volume("w", driver=DRIVER),)
    jobs = (own("j", 3), own("k", 1, created=EPOCH + 1))
    objects = Objects(
        (make_node("a"), make_node("b")), jobs, volumes=volumes, storage_classes=(CLASS,),
        csi_nodes=limits("a", "b").nodes, attachments=attached,
    )  # fmt: skip
    state = PlacementState(objects.state(()))
    made = decide(state, POLICY, EPOCH)
    assert sorted(places(made)["j"]["worker"]) == ["a", "b", "b"]
    snapshot = Snapshot(EPOCH, objects, POLICY, carried=CarriedState.of(state))
    cycle = Cycle(
        EPOCH,
        0.1,
        2,
        contains_faults=False,
        actions=made.actions,
        recall=Recall(),
        carried=snapshot.carried,
    )
    recorded = read_lines(write_lines(cycle, snapshot))
    assert recorded.snapshot.objects.csi_nodes == objects.csi_nodes
    assert recorded.snapshot.objects.attachments == attached
    assert recorded.replay() == writes_of(made.actions)
