"""Jobs with claims: where they are placed, and what is said of those that are not."""

from __future__ import annotations

import pytest
from tests.unit.decide.test_placement import POLICY, apply, workers

from fairlead.api import names
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.volumes import PersistentVolumeClaim
from fairlead.api.meta import ObjectMeta, OwnerReference
from fairlead.decide.answers.explain import explain_changed
from fairlead.decide.answers.supposed import submitted
from fairlead.decide.placement.actions import Action, PlaceJob, ReleaseJob, WriteVerdict
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.places.whatif import would_fit
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason, render
from fairlead.decide.verdict import Decision
from fairlead.model.asks.requests import MemberClass
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_placement,
    make_pod_spec,
    make_role,
)
from fairlead.testing.volume_builders import ZONE, make_claim, make_storage_class, make_volume

IN_B = make_volume("v", zones=["b"], claim="data")
BOUND = make_claim("data", volume="v")


def zonal_nodes() -> list[Node]:
    return [make_node(f"{zone}{i}", labels={ZONE: zone}) for zone in "ab" for i in (1, 2)]


def test_a_gang_goes_to_the_zone_of_its_volume() -> None:
    job = make_job("j", count=2, claims=["data"])
    cluster = ClusterState.of(zonal_nodes(), [job], claims=[BOUND], volumes=[IN_B])
    assert workers(decide(PlacementState(cluster), POLICY, EPOCH), "j") == ["b1", "b2"]


def test_a_gang_that_its_zone_has_no_room_for_waits_though_there_is_room_elsewhere() -> None:
    job = make_job("j", count=3, claims=["data"])
    cluster = ClusterState.of(zonal_nodes(), [job], claims=[BOUND], volumes=[IN_B])
    decision = decide(PlacementState(cluster), POLICY, EPOCH)
    verdict = decision.verdicts["default", "j"]
    assert verdict.reason is Reason.TOO_FEW_IN_REACH
    assert verdict.message == (
        "the nodes that reach its volumes (topology.kubernetes.io/zone in (b)), empty, hold 2 of 3 "
        "members"
    )
    other = make_job("other", node_selector={ZONE: "b"}, created=EPOCH - 9)
    two = make_job("j", count=2, claims=["data"])
    cluster = ClusterState.of(zonal_nodes(), [other, two], claims=[BOUND], volumes=[IN_B])
    verdict = decide(PlacementState(cluster), POLICY, EPOCH).verdicts["default", "j"]
    assert verdict.reason is Reason.VOLUMES_IN_THE_WAY
    assert (verdict.facts["members_fit"], verdict.blockers) == (1, (("default", "other"),))


@pytest.mark.parametrize(("claims", "fits"), [(("x", "y"), True), (("x", "x"), False)])
def test_roles_are_in_one_zone_for_a_volume_that_both_use_alone(
    claims: tuple[str, str], fits: bool
) -> None:
    nodes = [make_node(f"{zone}1", labels={ZONE: zone}) for zone in "ab"]
    roles = [make_role(f"r{i}", gpus=8, claims=[claim]) for i, claim in enumerate(claims)]
    cluster = ClusterState.of(
        nodes, [make_job("j", roles=roles)],
        claims=[make_claim(each, storage_class="disks") for each in dict.fromkeys(claims)],
        storage_classes=[make_storage_class("disks", zones=["a", "b"])],
    )  # fmt: skip
    actions = decide(PlacementState(cluster), POLICY, EPOCH).actions
    assert any(isinstance(each, PlaceJob) for each in actions) is fits


def test_a_gang_that_shares_a_volume_that_is_yet_to_be_made_is_in_one_zone() -> None:
    zones = {"a1": "a", "b1": "b", "b2": "b"}
    nodes = [make_node(name, labels={ZONE: zone, "rack": zone}) for name, zone in zones.items()]
    classes = [make_storage_class("disks", zones=["a", "b"])]
    claims = [make_claim("data", storage_class="disks")]

    def state(*given: Node, count: int = 2, topology: Topology | None = None) -> ClusterState:
        job = make_job("j", count=count, claims=["data"], topology=topology)
        return ClusterState.of([*given], [job], claims=claims, storage_classes=classes)

    def decided(cluster: ClusterState) -> Decision[Action]:
        return decide(PlacementState(cluster), POLICY, EPOCH)

    for topology in (None, Topology("rack"), Topology("topology.kubernetes.io/region")):
        assert workers(decided(state(*nodes, topology=topology)), "j") == ["b1", "b2"]
    said = decided(state(*nodes[:2])).verdicts["default", "j"]
    assert said.message == (
        f"needs room for 2 members in one {ZONE}; the largest of 2, empty, holds 1"
    )
    assert workers(decided(state(*nodes[:2], count=1)), "j") == ["a1"]
    bound = [make_claim("data", volume="v")]
    known = ClusterState.of(
        nodes[:2], [make_job("j", count=2, claims=["data"])], claims=bound,
        volumes=[make_volume("v", zones=["a", "b"], claim="data")],
    )  # fmt: skip
    assert workers(decided(known), "j") == ["a1", "b1"]


def test_a_volume_that_no_matching_node_reaches_is_said_with_where_it_is() -> None:
    job = make_job("j", claims=["data"], node_selector={ZONE: "a"})
    cluster = ClusterState.of(zonal_nodes(), [job], claims=[BOUND], volumes=[IN_B])
    verdict = would_fit(cluster, cluster.jobs["default", "j"].gang)
    assert verdict.reason is Reason.VOLUMES_OUT_OF_REACH
    assert verdict.message == (
        "2 nodes match role worker, but its volumes can be reached from none of them, only from "
        "nodes with topology.kubernetes.io/zone in (b)"
    )


@pytest.mark.parametrize(("claim", "reason", "facts"), [
    (None, Reason.CLAIM_MISSING, {"claim": "data"}),
    (make_claim("data", volume="v", is_deleted=True), Reason.CLAIM_DELETED, {"claim": "data"}),
    (make_claim("data", volume="w"), Reason.CLAIM_LOST, {"claim": "data", "volume": "w"}),
    (make_claim("data"), Reason.CLAIM_UNBOUND, {"claim": "data", "storage_class": "none"}),
    (make_claim("data", storage_class="local"), Reason.NO_VOLUME,
     {"claim": "data", "storage_class": "local"}),
])  # fmt: skip
def test_a_claim_that_no_node_can_have_is_a_verdict_and_no_attempt(
    claim: PersistentVolumeClaim | None, reason: Reason, facts: dict[str, str]
) -> None:
    claims = [] if claim is None else [claim]
    cluster = ClusterState.of(
        zonal_nodes(), [make_job("j", claims=["data"]), make_job("other")], claims=claims,
        volumes=[IN_B], storage_classes=[make_storage_class("local", makes=False)],
    )  # fmt: skip
    state = PlacementState(cluster)
    decision = decide(state, POLICY, EPOCH)
    assert workers(decision, "other"), "one that asks for none does not wait"
    [write] = [each for each in decision.actions if isinstance(each, WriteVerdict)]
    assert write.verdict is not None
    assert (write.verdict.reason, write.verdict.facts) == (reason.value, facts)
    assert write.verdict.outcome == Outcome.BLOCKED.value
    assert all(name in render(reason, facts) for name in facts.values())
    apply(state, decision)
    assert decide(state, POLICY, EPOCH + 60).actions == ()
    cluster.volumes.put_claim(BOUND.metadata.key, BOUND)
    assert workers(decide(state, POLICY, EPOCH + 61), "j") == ["b1"]


def test_who_asks_before_submitting_hears_of_a_missing_claim() -> None:
    state = PlacementState(ClusterState.of(zonal_nodes()))
    asked = submitted(make_job("j", claims=["data"]), EPOCH)
    found = explain_changed(state, asked, EPOCH, POLICY)
    assert found is not None
    assert found.verdict.reason is Reason.CLAIM_MISSING


def test_a_claim_that_is_bound_after_the_job_has_come_moves_where_it_may_go() -> None:
    waiting = make_claim("data", storage_class="s")
    job = make_job("j", count=5, claims=["data"])
    cluster = ClusterState.of(
        zonal_nodes(), [job], claims=[waiting], storage_classes=[make_storage_class("s")]
    )
    state = PlacementState(cluster)
    decide(state, POLICY, EPOCH)
    assert len(zonal_nodes()) == cluster.fits.total(_member(cluster))
    cluster.volumes.put_volume("v", IN_B)
    cluster.volumes.put_claim(BOUND.metadata.key, BOUND)
    decide(state, POLICY, EPOCH + 1)
    assert cluster.fits.total(_member(cluster)) == 2


def _member(cluster: ClusterState) -> MemberClass:
    gang = cluster.jobs["default", "j"].gang
    assert isinstance(gang, GangRequest)
    return gang.roles[0].member


def test_jobs_whose_volumes_are_in_one_zone_are_alike() -> None:
    claims = [make_claim(name, volume=f"v-{name}") for name in "xy"]
    volumes = [make_volume(f"v-{name}", zones=["b"], claim=name) for name in "xy"]
    jobs = [make_job(name, claims=[name]) for name in "xy"]
    cluster = ClusterState.of(zonal_nodes(), jobs, claims=claims, volumes=volumes)
    assert cluster.jobs["default", "x"].gang == cluster.jobs["default", "y"].gang


ALONE = make_claim("data", modes=["ReadWriteOncePod"], volume="v")


def test_a_claim_for_one_pod_is_impossible_for_a_gang() -> None:
    jobs = [make_job("j", count=2, claims=["data"])]
    cluster = ClusterState.of(zonal_nodes(), jobs, claims=[ALONE], volumes=[IN_B])
    verdict = decide(PlacementState(cluster), POLICY, EPOCH).verdicts["default", "j"]
    assert verdict.reason is Reason.CLAIM_FOR_ONE_POD
    assert verdict.facts == {"claim": "data", "members": 2}


def test_jobs_with_a_claim_for_one_pod_run_one_after_another_by_priority_and_age() -> None:
    jobs = [
        make_job("old", created=EPOCH - 9, claims=["data"]),
        make_job("young", claims=["data"]),
        make_job("urgent", claims=["data"], priority=5),
    ]
    cluster = ClusterState.of(zonal_nodes(), jobs, claims=[ALONE], volumes=[IN_B])
    state = PlacementState(cluster)
    for name, after in (("urgent", "old"), ("old", "young"), ("young", "")):
        decision = decide(state, POLICY, EPOCH)
        assert workers(decision, name) == ["b1"]
        apply(state, decision)
        again = decide(state, POLICY, EPOCH)
        assert not any(isinstance(each, PlaceJob) for each in again.actions)
        if after:
            verdict = again.verdicts["default", after]
            assert verdict.reason is Reason.CLAIM_IN_USE
            assert verdict.facts == {"claim": "data", "user": f"job {name}"}
        cluster.job_deleted(("default", name))


def test_a_claim_for_one_pod_that_a_pod_of_another_owner_uses_is_waited_for() -> None:
    job, spec = make_job("j", claims=["data"]), make_pod_spec(claims=["data"], node_name="a1")
    other = Pod(ObjectMeta("eval-0", namespace="default", uid="e"), spec)
    own = Pod(ObjectMeta("j-0", namespace="default", uid="o", owner_references=(
        OwnerReference("v1", "Job", "j", job.metadata.uid, controller=True),)), spec)  # fmt: skip
    cluster = ClusterState.of(zonal_nodes(), [job], [own, other], claims=[ALONE], volumes=[IN_B])
    state = PlacementState(cluster)
    verdict = decide(state, POLICY, EPOCH).verdicts["default", "j"]
    assert (verdict.reason, verdict.facts["user"]) == (Reason.CLAIM_IN_USE, "pod eval-0")
    assert cluster.pod_deleted(other.metadata.key)
    assert workers(decide(state, POLICY, EPOCH), "j") == ["b1"]


def test_a_claim_for_one_pod_is_not_in_the_way_of_the_adopted_job_whose_pod_uses_it() -> None:
    """Such a pod has a controller of its tool, and the label of its release."""
    job, spec = make_job("j", claims=["data"]), make_pod_spec(claims=["data"], node_name="a1")
    uid = job.metadata.uid
    member = Pod(ObjectMeta("db-0", namespace="default", uid="p", labels={names.JOB_UID: uid},
        owner_references=(OwnerReference("apps/v1", "StatefulSet", "db", "s", controller=True),)
    ), spec)  # fmt: skip
    cluster = ClusterState.of(zonal_nodes(), [job], [member], claims=[ALONE], volumes=[IN_B])
    assert workers(decide(PlacementState(cluster), POLICY, EPOCH), "j") == ["b1"]


def test_a_gang_whose_claim_is_gone_when_it_restarts_gives_its_nodes_back() -> None:
    placement = make_placement(["b1"])
    job = make_job("j", claims=["data"], placement=placement, attempt=2)
    cluster = ClusterState.of(zonal_nodes(), [job])
    [action] = decide(PlacementState(cluster), POLICY, EPOCH).actions
    assert isinstance(action, ReleaseJob)
    assert action.verdict is not None
    assert action.verdict.reason == Reason.CLAIM_MISSING.value
    bound = ClusterState.of(zonal_nodes(), [job], claims=[BOUND], volumes=[IN_B])
    [again] = decide(PlacementState(bound), POLICY, EPOCH).actions
    assert isinstance(again, PlaceJob)
