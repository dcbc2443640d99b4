"""From where the claims of a job can be reached, and when from nowhere."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Checkpoint
from fairlead.api.kubernetes.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from fairlead.api.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from fairlead.api.values.times import format_time
from fairlead.model.claimed.job_claims import NO_CLAIMS, Claims, claims_of
from fairlead.model.claimed.volumes import (
    DeletedClaim,
    LostClaim,
    MissingClaim,
    UnboundClaim,
    UnusableClaim,
    VolumelessClaim,
    VolumeTable,
    turn_of,
)
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.phase import Phase
from fairlead.testing.builders import EPOCH, make_job, make_node, make_role
from fairlead.testing.volume_builders import ZONE, make_claim, make_storage_class, make_volume

WHERE = {"a1": "a", "a2": "a", "b1": "b"}


def reachable(table: VolumeTable, *claims: str) -> list[str] | UnusableClaim:
    """The nodes of the three from which all claims of one role can be reached."""
    found = table.read("default", Claims((claims,)))
    if not isinstance(found, tuple):
        return found
    nodes = [make_node(name, labels={ZONE: zone}) for name, zone in WHERE.items()]
    state = ClusterState.of(nodes)
    slots = state.table.exists.nonzero()[0]
    labels = state.table.labels
    is_near = labels.reached(found[0].shared, slots)
    return [state.table.names[slot] for slot in slots[is_near]]


def deleted(volume: PersistentVolume) -> PersistentVolume:
    """Return a volume that is being deleted."""
    metadata = replace(volume.metadata, deletion_timestamp=format_time(EPOCH))
    return replace(volume, metadata=metadata)


@pytest.mark.parametrize(("claim", "volumes", "classes", "expected"), [
    (make_claim("c", volume="v"), [make_volume("v", zones=["a"], claim="c")], [], ["a1", "a2"]),
    (make_claim("c", volume="v"), [make_volume("v", nodes=["b1"], claim="c")], [], ["b1"]),
    (make_claim("c", volume="v"), [make_volume("v", claim="c")], [], [*WHERE]),
    (make_claim("c", volume="v"), [make_volume("v", labels={ZONE: "b"})], [], ["b1"]),
    (make_claim("c", volume="v"), [make_volume("v", labels={ZONE: "b__a"})], [], [*WHERE]),
    (make_claim("c", volume="v"),
     [make_volume("v", labels={"failure-domain.beta.kubernetes.io/zone": "b"})], [], ["b1"]),
    (make_claim("c", volume="v"), [], [], LostClaim("c", "v")),
    (make_claim("c", volume="v", phase="Lost"), [make_volume("v")], [], LostClaim("c", "v")),
    (make_claim("c", is_deleted=True, volume="v"), [make_volume("v")], [], DeletedClaim("c")),
    (make_claim("other"), [], [], MissingClaim("c")),
    (make_claim("c", namespace="other"), [], [], MissingClaim("c")),
    (make_claim("c"), [make_volume("v")], [], UnboundClaim("c", "")),
    (make_claim("c", storage_class="s"), [make_volume("v", storage_class="s")],
     [make_storage_class("s", waits=False)], UnboundClaim("c", "s")),
    (make_claim("c", storage_class="gone"), [], [], UnboundClaim("c", "gone")),
    (make_claim("c", storage_class="s"), [], [make_storage_class("s")], [*WHERE]),
    (make_claim("c", storage_class="s"), [], [make_storage_class("s", zones=["b"])], ["b1"]),
    (make_claim("c", storage_class="s", node="a2"), [], [make_storage_class("s")], ["a2"]),
    (make_claim("c", storage_class="s", node="a2"), [], [make_storage_class("s", zones=["b"])],
     []),
    (make_claim("c", storage_class="s"), [], [make_storage_class("s", makes=False)],
     VolumelessClaim("c", "s")),
    (make_claim("c", storage_class="s"),
     [make_volume("v", nodes=["a1"], storage_class="s"),
      make_volume("w", nodes=["b1"], storage_class="s"),
      make_volume("x", nodes=["a2"], storage_class="s", claim="of-another")],
     [make_storage_class("s", makes=False)], ["a1", "b1"]),
    (make_claim("c", storage_class="s", size="2Gi"),
     [make_volume("v", nodes=["a1"], storage_class="s"),
      make_volume("w", nodes=["b1"], storage_class="s", size="2Gi")],
     [make_storage_class("s", makes=False)], ["b1"]),
    (make_claim("c", storage_class="s", modes=["ReadWriteOnce"]),
     [make_volume("v", nodes=["a1"], storage_class="s"),
      make_volume("w", nodes=["b1"], storage_class="s", modes=["ReadWriteOnce"])],
     [make_storage_class("s", makes=False)], ["b1"]),
    (make_claim("c", storage_class="s"),
     [deleted(make_volume("v", nodes=["a1"], storage_class="s")),
      make_volume("w", nodes=["b1"], storage_class="s")],
     [make_storage_class("s", makes=False)], ["b1"]),
    (make_claim("c", storage_class="s"), [deleted(make_volume("v", storage_class="s"))],
     [make_storage_class("s", makes=False)], VolumelessClaim("c", "s")),
    (make_claim("c", storage_class="s"), [make_volume("v", storage_class="s", phase="Released")],
     [make_storage_class("s", makes=False)], VolumelessClaim("c", "s")),
    (make_claim("c", storage_class="s"), [make_volume("v", nodes=["b1"], storage_class="s")],
     [make_storage_class("s", zones=["a"])], [*WHERE]),
])  # fmt: skip
def test_a_claim_is_reached_from_where_kube_scheduler_would_let_its_pods_run(
    claim: PersistentVolumeClaim, volumes: list[PersistentVolume], classes: list[StorageClass],
    expected: list[str] | UnusableClaim,
) -> None:  # fmt: skip
    found = reachable(VolumeTable([claim], volumes, classes), "c")
    assert (sorted(found) if isinstance(found, list) else found) == expected


def test_a_node_without_labels_of_zone_and_region_reaches_a_volume_that_has_some() -> None:
    table = VolumeTable([make_claim("c", volume="v")], [make_volume("v", labels={ZONE: "a"})])
    found = table.read("default", Claims((("c",),)))
    assert isinstance(found, tuple)
    state = ClusterState.of([make_node("bare"), make_node("far", labels={ZONE: "b"})])
    slots = state.table.exists.nonzero()[0]
    near = slots[state.table.labels.reached(found[0].shared, slots)]
    assert [state.table.names[slot] for slot in near] == ["bare"]


def test_all_claims_of_a_member_must_be_reached() -> None:
    claims = [make_claim("c", volume="v"), make_claim("d", volume="w")]
    volumes = [make_volume("v", zones=["a"]), make_volume("w", nodes=["a2", "b1"])]
    assert reachable(VolumeTable(claims, volumes), "c", "d") == ["a2"]
    assert reachable(VolumeTable(claims, volumes), "c", "e") == MissingClaim("e")


def test_thousands_of_local_volumes_are_one_alternative() -> None:
    volumes = [make_volume(f"v{i}", nodes=[f"n{i}"], storage_class="s") for i in range(5000)]
    claim = make_claim("c", storage_class="s")
    table = VolumeTable([claim], volumes, [make_storage_class("s", makes=False)])
    found = table.read("default", Claims((("c",),)))
    assert isinstance(found, tuple)
    [selector] = found[0].shared
    assert len(selector.node_selector_terms) == 1


def test_alternatives_that_cannot_be_joined_stay_apart() -> None:
    zone, host = (NodeSelectorRequirement(k, "In", (v,)) for k, v in ((ZONE, "a"), ("rack", "r")))
    both = NodeSelectorTerm((zone, host))
    volume = make_volume("v", zones=["b"], claim="c")
    affinity = volume.spec.node_affinity
    assert affinity is not None
    assert affinity.required is not None
    terms = (*affinity.required.node_selector_terms, both)
    spec = replace(volume.spec, node_affinity=replace(affinity, required=NodeSelector(terms)))
    table = VolumeTable([make_claim("c", volume="v")], [replace(volume, spec=spec)])
    assert reachable(table, "c") == ["b1"]


def test_the_claims_of_a_job_are_those_of_its_templates_and_of_its_checkpoint() -> None:
    roles = (make_role("a", claims=["data", "data"]), make_role("b"))
    assert claims_of(make_job("j", roles=roles)) == Claims((("data",), ()))
    own = Checkpoint(claim_name="runs")
    job = make_job("j", roles=roles, spec={"checkpoint": own})
    assert claims_of(job) == Claims((("data", "runs"), ("runs",)))
    assert claims_of(make_job("j")) is NO_CLAIMS


def test_only_jobs_that_ask_for_a_claim_are_looked_at_when_something_changes() -> None:
    table = VolumeTable(classes=[make_storage_class("s")])
    user = make_job("user", claims=["c"])
    claims = Claims((("c",),))
    table.use(user, claims, turn_of(user, Phase.QUEUED, 0))
    assert not table.put_claim(("default", "other"), make_claim("other", storage_class="s"))
    assert not table.put_volume("v", make_volume("v", storage_class="s"))
    assert table.pop_stale() == []
    assert table.put_claim(("default", "c"), make_claim("c", storage_class="s"))
    assert table.pop_stale() == [("default", "user")]
    assert table.put_volume("v", make_volume("v", storage_class="s"))
    assert table.put_class("s", None)
    assert table.pop_stale() == [("default", "user")]
    table.put_claim(("default", "c"), make_claim("c", volume="w"))
    assert table.put_volume("w", make_volume("w"))
    table.leave(user.metadata.key)
    assert table.pop_stale() == []
    assert not table.is_used
    assert not table.put_volume("w", None)
