"""Members with volumes of their own: where each is placed, and placed again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_placement import POLICY, apply, workers

from fairlead.api.jobs.job import Attempt, ClaimTemplate, Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.api.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim
from fairlead.api.meta import ObjectMeta
from fairlead.api.validation.validate import validate_job
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_spread
from fairlead.testing.volume_builders import ZONE, make_claim, make_storage_class, make_volume

SPEC: dict[str, Any] = {
    "accessModes": ["ReadWriteOnce"], "storageClassName": "s",
    "resources": {"requests": {"storage": "1Gi"}},
}  # fmt: skip


def own_job(count: int, spec: dict[str, Any] = SPEC, name: str = "data", **more: Any) -> Job:
    job = make_job("j", count=count, **more)
    (role,) = job.spec.roles
    template = ClaimTemplate(ObjectMeta(name=name), spec)
    roles = (replace(role, volume_claim_templates=(template,)),)
    return replace(job, spec=replace(job.spec, roles=roles))


def nodes() -> list[Node]:
    return [make_node(f"{zone}{i}", labels={ZONE: zone}) for zone in "ab" for i in (1, 2)]


def made(where: dict[int, str]) -> tuple[list[PersistentVolumeClaim], list[PersistentVolume]]:
    """The claims of members that are made, and their volumes in zones or on nodes."""
    claims = [make_claim(f"data-j-worker-{i}", volume=f"v{i}") for i in where]
    volumes = [
        make_volume(f"v{i}", zones=[at]) if len(at) == 1 else make_volume(f"v{i}", nodes=[at])
        for i, at in where.items()
    ]
    return claims, volumes


def state_of(job: Job, where: dict[int, str], *others: Job) -> PlacementState:
    claims, volumes = made(where)
    return PlacementState(ClusterState.of(
        nodes(), [job, *others], claims=claims, volumes=volumes,
        storage_classes=[make_storage_class("s")],
    ))  # fmt: skip


@pytest.mark.parametrize(("where", "expected"), [
    ({}, ["a1", "a2", "b1", "b2"]),
    ({0: "b", 1: "b"}, ["b1", "b2", "a1", "a2"]),
    ({0: "b", 3: "b2"}, ["b1", "a1", "a2", "b2"]),
    ({0: "b2", 1: "a2", 2: "b1", 3: "a1"}, ["b2", "a2", "b1", "a1"]),
])  # fmt: skip
def test_each_member_gets_a_node_that_reaches_its_own_volume(
    where: dict[int, str], expected: list[str]
) -> None:
    assert workers(decide(state_of(own_job(4), where), POLICY, EPOCH), "j") == expected


def test_members_whose_volumes_are_in_a_zone_that_is_too_small_are_a_verdict() -> None:
    state = state_of(own_job(3), {0: "b", 1: "b", 2: "b"})
    verdict = decide(state, POLICY, EPOCH).verdicts["default", "j"]
    assert verdict.reason is Reason.TOO_FEW_IN_REACH
    state = state_of(own_job(4), {0: "b1", 1: "b1"})
    verdict = decide(state, POLICY, EPOCH).verdicts["default", "j"]
    assert (verdict.reason, verdict.facts["members_fit"]) == (Reason.TOO_FEW_IN_REACH, 3)


def test_a_member_whose_node_is_taken_waits_for_it() -> None:
    other = make_job("other", node_selector={ZONE: "b"}, created=EPOCH - 9, count=2)
    state = state_of(own_job(2), {0: "a", 1: "b2"}, other)
    decision = decide(state, POLICY, EPOCH)
    verdict = decision.verdicts["default", "j"]
    assert verdict.reason is Reason.VOLUMES_IN_THE_WAY
    apply(state, decision)
    state.cluster.job_deleted(("default", "other"))
    assert workers(decide(state, POLICY, EPOCH + 1), "j") == ["a1", "b2"]


def test_a_lost_member_is_replaced_where_its_own_volume_is() -> None:
    placed = make_placement(["a1", "b1"])
    lost = Attempt(1, nodes_lost=("b1",), finished_at="2026-01-01T00:00:00Z")
    job = own_job(2, placement=placed, attempt=2, status={"attempts": (lost,)})
    assert workers(decide(state_of(job, {0: "a", 1: "b"}), POLICY, EPOCH), "j") == ["a1", "b2"]


def test_a_member_whose_volume_was_made_elsewhere_moves_there() -> None:
    job = own_job(2, placement=make_placement(["a1", "a2"]), attempt=2)
    assert workers(decide(state_of(job, {0: "a", 1: "b"}), POLICY, EPOCH), "j") == ["a1", "b1"]


@pytest.mark.parametrize(("job", "path", "words"), [
    (own_job(1, name="Data"), "[0].metadata.name", "Invalid value"),
    (own_job(1, claims=["data"]), "[0].metadata.name", "Duplicate"),
    (own_job(1, {**SPEC, "accessModes": 5}), "[0].spec.accessModes", "array"),
    (own_job(1, {**SPEC, "accessModes": []}), "[0].spec.accessModes", "Required"),
    (own_job(1, {**SPEC, "resources": {}}), "[0].spec.resources.requests.storage", "10Gi"),
    (own_job(1, {**SPEC, "resources": {"requests": {"storage": "x"}}}),
     "[0].spec.resources.requests.storage", "not a quantity"),
    (own_job(1, {**SPEC, "volumeName": "v"}), "[0].spec.volumeName", "Forbidden"),
    (own_job(2, min_count=1), "", "minCount"),
    (own_job(4, topology=Topology(slice_level="rack", slice_size=2)), "", "sliceSize"),
    (own_job(2, spreads=[make_spread("rack", app="x")]), "", "topologySpreadConstraints"),
])  # fmt: skip
def test_what_no_member_can_have_of_its_own_is_refused_with_the_path(
    job: Job, path: str, words: str
) -> None:
    found = [c for c in validate_job(job) if "volumeClaimTemplates" in c.field]
    assert [c.field for c in found] == [f"spec.roles[0].volumeClaimTemplates{path}"]
    assert words in found[0].message


def test_templates_that_can_be_are_taken() -> None:
    assert validate_job(own_job(4)) == []
