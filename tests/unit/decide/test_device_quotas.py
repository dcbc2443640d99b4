"""Jobs whose claims for devices a ResourceQuota would refuse: they wait, and say which one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_placement import POLICY, places, workers

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import ResourceClaim
from fairlead.api.kubernetes.resource_quota import (
    ResourceQuota,
    ResourceQuotaSpec,
    ResourceQuotaStatus,
)
from fairlead.api.meta import ObjectMeta
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement
from fairlead.testing.device_builders import (
    DRIVER,
    device_request,
    first_of_request,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)

DEVICES = f"{DRIVER}.deviceclass.resource.k8s.io/devices"
CLAIMS = "count/resourceclaims.resource.k8s.io"
CARD = "requests.example.com/card"


def quota(name: str, limit: int, used: int = 0, scopes: tuple[str, ...] = ()) -> ResourceQuota:
    status = ResourceQuotaStatus({name: str(limit)}, {name: str(used)})
    metadata = ObjectMeta(name="q", namespace="default", uid="q", resource_version="1")
    return ResourceQuota(metadata, ResourceQuotaSpec({name: str(limit)}, scopes), status)


def gang(count: int, name: str = "j", template: str = "two", nodes: int = 0) -> Job:
    placed = make_placement(["n1"] * nodes) if nodes else None
    job = make_job(name, count=count, gpus=0, cpu="1", placement=placed)
    return with_device_claims(job, template)


def cluster(
    jobs: list[Job], limit: ResourceQuota, claims: list[ResourceClaim] | None = None
) -> PlacementState:
    made = make_device_class(DRIVER)
    named = replace(made, spec=replace(made.spec, extended_resource_name="example.com/card"))
    either = first_of_request(device_request(DRIVER, 9), device_request(DRIVER, 3))
    templates = [
        make_device_template("two", device_request(DRIVER, 2)),
        make_device_template("either", either),
    ]
    table = DeviceTable([make_slice("n1", 27)], [named], templates, claims or [])
    nodes = [make_node("n1", gpus=0, cpu="64")]
    return PlacementState(ClusterState.of(nodes, jobs, quotas=[limit], devices=table))


def verdict(state: PlacementState, name: str = "j") -> Verdict:
    return decide(state, POLICY, EPOCH).verdicts["default", name]


@pytest.mark.parametrize(
    ("name", "template", "least"),
    [
        (DEVICES, "two", 6), (CLAIMS, "two", 3), (CARD, "two", 6), (DEVICES, "either", 27),
        (f"requests.deviceclass.resource.kubernetes.io/{DRIVER}", "two", 6),
    ],
)  # fmt: skip
def test_a_gang_waits_while_a_quota_would_refuse_one_of_its_claims(
    name: str, template: str, least: int
) -> None:
    state = cluster([gang(3, template=template)], quota(name, least - 1))
    said = verdict(state)
    assert said.reason is Reason.AWAITING_QUOTA
    assert said.facts["message"] == (
        f"exceeded quota: q, requested: {name}={least}, used: {name}=0, limited: {name}={least - 1}"
    )
    state = cluster([gang(3, template=template)], quota(name, least))
    assert workers(decide(state, POLICY, EPOCH), "j") == ["n1"] * 3


def test_a_quota_with_scopes_counts_no_claims() -> None:
    state = cluster([gang(3)], quota(DEVICES, 1, scopes=("NotTerminating",)))
    assert workers(decide(state, POLICY, EPOCH), "j") == ["n1"] * 3


def test_claims_that_are_yet_to_be_made_for_placed_members_count() -> None:
    held = gang(2, "held", nodes=2)
    said = verdict(cluster([held, gang(1)], quota(DEVICES, 5)))
    assert said.reason is Reason.AWAITING_QUOTA
    assert str(said.facts["message"]).endswith(
        f"used: {DEVICES}=4, limited: {DEVICES}=5; of what is used, jobs hold {DEVICES}=4 without "
        "claims"
    )
    made = [make_device_claim(f"c{i}", pod=f"held-1-worker-{i}") for i in range(2)]
    said = verdict(cluster([held, gang(1)], quota(DEVICES, 5, used=4), made))
    assert str(said.facts["message"]).endswith(f"used: {DEVICES}=4, limited: {DEVICES}=5")
    state = cluster([held, gang(1)], quota(DEVICES, 6, used=4), made)
    assert workers(decide(state, POLICY, EPOCH), "j") == ["n1"]


def test_what_a_claim_made_later_uses_is_counted_once() -> None:
    state = cluster([gang(2, "held", nodes=2), gang(1)], quota(DEVICES, 6, used=2))
    assert verdict(state).reason is Reason.AWAITING_QUOTA  # used is of claims of others
    claim = make_device_claim("c0", pod="held-1-worker-0")
    state.cluster.devices.put_claim(claim.metadata.key, claim)
    assert workers(decide(state, POLICY, EPOCH + 1), "j") == ["n1"]


def test_of_jobs_that_would_have_room_one_by_one_as_many_are_placed_as_have_it_together() -> None:
    state = cluster([gang(1, f"j{i}") for i in range(3)], quota(DEVICES, 5))
    decision = decide(state, POLICY, EPOCH)
    assert list(places(decision)) == ["j0", "j1"]
    assert decision.verdicts["default", "j2"].reason is Reason.AWAITING_QUOTA
