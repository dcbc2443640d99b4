"""Jobs with claims for devices: where they are placed, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_placement import POLICY, workers

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from fairlead.api.kubernetes.devices import (
    Device,
    DeviceAttribute,
    DeviceClass,
    DeviceTaint,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.values.quantity import CLAIMED
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cel import compile_expression
from fairlead.model.claimed.device_asks import device_claims_of
from fairlead.model.claimed.devices import KINDS_MAX, DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.sim.tenants.promises import entries_of
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_team
from fairlead.testing.device_builders import (
    DRIVER,
    all_devices_request,
    device_request,
    first_of_request,
    make_device,
    make_device_claim,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)

BIG = f'device.attributes["{DRIVER}"].size == "big"'
SIZES = [make_device(f"d{i}", {"size": size}) for i, size in enumerate(["big", "small", "small"])]


def gang(
    count: int, *templates: str, name: str = "j", claims: list[str] | None = None,
    created: float = EPOCH,
) -> Job:  # fmt: skip
    job = make_job(name, count=count, gpus=0, cpu="1", created=created)
    return with_device_claims(job, *templates, claims=claims or [])


def cluster(
    jobs: list[Job], slices: list[ResourceSlice],
    templates: list[ResourceClaimTemplate] | None = None,
    claims: list[ResourceClaim] | None = None, classes: list[DeviceClass] | None = None,
) -> ClusterState:  # fmt: skip
    given = [make_device_class(DRIVER)] if classes is None else classes
    known = [make_device_template("one")] if templates is None else templates
    nodes = [make_node(f"n{i}", cpu="64") for i in range(3)]
    devices = DeviceTable(slices, given, known, claims or [])
    return ClusterState.of(nodes, jobs, devices=devices)


def verdict(state: ClusterState, name: str = "j") -> Verdict:
    return decide(PlacementState(state), POLICY, EPOCH).verdicts["default", name]


def test_a_gang_gets_no_more_devices_than_its_nodes_have() -> None:
    state = cluster([gang(3, "one")], [make_slice("n1", 2), make_slice("n2", 1)])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1", "n1", "n2"]
    state = cluster([gang(4, "one")], [make_slice("n1", 2), make_slice("n2", 1)])
    said = verdict(state)
    assert said.reason is Reason.EXCEEDS_CLUSTER
    assert said.facts["members_fit"] == 3


def test_what_one_member_asks_for_is_on_one_node() -> None:
    pair = make_device_template("pair", device_request(count=2))
    state = cluster([gang(1, "pair")], [make_slice("n1", 1), make_slice("n2", 1)], [pair])
    said = verdict(state)
    assert said.reason is Reason.NO_NODE_SHAPE_FITS
    assert said.message == (
        f"a member of role worker needs 2 devices of class {DRIVER}; the largest node has 1"
    )


def test_devices_that_placed_jobs_have_are_not_given_twice() -> None:
    held = with_device_claims(
        make_job("held", count=2, gpus=0, cpu="1", placement=make_placement(["n1", "n1"])), "one"
    )
    state = cluster([held, gang(2, "one")], [make_slice("n1", 3)])
    said = verdict(state)
    assert said.reason is Reason.INSUFFICIENT_CAPACITY
    assert said.facts["free"] == 1
    assert said.blockers == (("default", "held"),)
    assert said.message.endswith("; 1 of 3 nodes have a free device")
    assert f"devices of class {DRIVER}" in said.message


def test_a_device_that_another_claim_has_is_there_and_not_free() -> None:
    """So the job waits for it, and `why` names the claim; before, no node's shape would do."""
    other = make_device_claim("other", has=[("n1", "gpu-0")], users=["viewer"])
    state = cluster([gang(2, "one")], [make_slice("n1", 2)], claims=[other])
    said = verdict(state)
    assert said.reason is Reason.INSUFFICIENT_CAPACITY
    assert said.message.startswith(f"needs 2 devices of class {DRIVER}, 1 of 2 are free: 1 short")
    state.devices.put_claim(other.metadata.key, None)
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1", "n1"]


def test_selectors_choose_among_the_devices_of_a_class() -> None:
    big = make_device_template("big", device_request(DRIVER, 1, BIG))
    state = cluster([gang(1, "big")], [make_slice("n1", 5), make_slice("n2", SIZES)], [big])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n2"]
    state = cluster([gang(2, "big")], [make_slice("n2", SIZES)], [big])
    assert verdict(state).reason is Reason.EXCEEDS_CLUSTER


def test_kinds_that_overlap_are_counted_together() -> None:
    both = make_device_template(
        "both", device_request(DRIVER, 1, BIG), device_request(DRIVER, 2, name="any")
    )
    state = cluster([gang(1, "both")], [make_slice("n1", SIZES)], [both])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"]
    more = make_device_template(
        "both", device_request(DRIVER, 1, BIG), device_request(DRIVER, 3, name="any")
    )
    state = cluster([gang(1, "both")], [make_slice("n1", SIZES)], [more])
    assert verdict(state).reason is Reason.NO_NODE_SHAPE_FITS


def test_one_device_of_two_kinds_of_which_neither_contains_the_other_counts_once() -> None:
    fast = f'device.attributes["{DRIVER}"].fast'
    both = make_device_template(
        "both", device_request(DRIVER, 1, BIG), device_request(DRIVER, 1, fast, name="fast")
    )

    def of(size: str, *, is_fast: bool) -> Device:
        return make_device(f"{size}-{is_fast}", {"size": size, "fast": is_fast})

    apart = [
        make_slice("n2", [of("big", is_fast=False)]),
        make_slice("n0", [of("x", is_fast=True)]),
    ]
    one = [of("big", is_fast=True)]
    state = cluster([gang(1, "both")], [make_slice("n1", one), *apart], [both])
    assert verdict(state).reason is Reason.NO_NODE_SHAPE_FITS
    for more in (of("big", is_fast=False), of("small", is_fast=True)):
        state = cluster([gang(1, "both")], [make_slice("n1", [*one, more]), *apart], [both])
        assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"]


@pytest.mark.parametrize(
    "change",
    [
        {"taints": (DeviceTaint("broken", "", "NoSchedule"),)},
        {"allow_multiple_allocations": True},
        {"binding_conditions": ("ready",)},
    ],
)
def test_devices_that_are_not_had_as_a_whole_do_not_count(change: dict[str, object]) -> None:
    devices: list[Device] = [replace(make_device("d0"), **change), make_device("d1")]
    state = cluster([gang(2, "one")], [make_slice("n1", devices)])
    assert verdict(state).reason is Reason.EXCEEDS_CLUSTER
    state = cluster([gang(1, "one")], [make_slice("n1", devices)])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"]


def test_a_pool_of_which_slices_are_missing_does_not_count() -> None:
    whole = make_slice("n1", 2)
    pool = replace(whole.spec.pool, resource_slice_count=2)
    part = replace(whole, spec=replace(whole.spec, pool=pool))
    assert verdict(cluster([gang(1, "one")], [part])).reason is Reason.NO_NODE_SHAPE_FITS


def test_devices_that_come_later_let_a_gang_start() -> None:
    state = cluster([gang(2, "one")], [])
    placement = PlacementState(state)
    assert decide(placement, POLICY, EPOCH).verdicts["default", "j"].outcome is Outcome.IMPOSSIBLE
    assert state.devices.put_slice("s", make_slice("n2", 2))
    assert workers(decide(placement, POLICY, EPOCH), "j") == ["n2", "n2"]


def test_a_template_that_comes_later_lets_a_gang_start() -> None:
    state = cluster([gang(1, "one")], [make_slice("n1", 1)], [])
    placement = PlacementState(state)
    said = decide(placement, POLICY, EPOCH).verdicts["default", "j"]
    assert said.reason is Reason.DEVICE_CLAIM_MISSING
    assert "ResourceClaimTemplate one" in said.message
    assert state.devices.put_template(("default", "one"), make_device_template("one"))
    assert workers(decide(placement, POLICY, EPOCH), "j") == ["n1"]


def test_a_template_of_another_namespace_is_none_of_the_jobs() -> None:
    other = make_device_template("one", namespace="other")
    state = cluster([gang(1, "one")], [make_slice("n1", 1)], [other])
    assert verdict(state).reason is Reason.DEVICE_CLAIM_MISSING


def test_a_class_that_does_not_exist_is_named_with_the_claim() -> None:
    state = cluster([gang(1, "one")], [make_slice("n1", 1)], classes=[])
    said = verdict(state)
    assert said.reason is Reason.DEVICE_CLASS_MISSING
    assert said.message == (
        f"ResourceClaimTemplate one asks for devices of class {DRIVER}, and there is no such "
        "DeviceClass; kubectl get deviceclasses lists those there are"
    )


@pytest.mark.parametrize(
    ("request_", "path", "why"),
    [
        ({"name": "r", "firstAvailable": [{"name": "a", "ofTomorrow": True}]},
         "firstAvailable[0].ofTomorrow", "not planned"),
        ({"name": "r", "firstAvailable": [{"deviceClassName": DRIVER}]}, "firstAvailable[0]",
         "no subrequest with a name"),
        ({"name": "r", "firstAvailable": [{"name": f"o{i}"} for i in range(9)]},
         "firstAvailable", "8 subrequests at most"),
        ({"name": "r", "firstAvailable": [{"name": "a"}], "exactly": {"count": 1}}, "exactly",
         "one of both"),
        (first_of_request(device_request(), device_request(count=33)), "requests",
         "32 devices at most"),
        ({"name": "r", "exactly": {"deviceClassName": DRIVER, "allocationMode": "Some"}},
         "exactly.allocationMode", "accepted: ExactCount, All"),
        ({"name": "r", "exactly": {"deviceClassName": DRIVER, "adminAccess": True}},
         "exactly.adminAccess", "not planned"),
        ({"name": "r", "exactly": {"deviceClassName": DRIVER, "tolerations": [
            {"key": "a", "operator": "Exists", "effect": "None"}]}},
         "exactly.tolerations[0]", "accepted: key, operator"),
        ({"name": "r", "exactly": {"deviceClassName": DRIVER, "ofTomorrow": {"x": 1}}},
         "exactly.ofTomorrow", "not planned"),
        (device_request(count=33), "requests", "32 devices at most"),
        (device_request(DRIVER, 1, *(["true"] * 9)), "exactly.selectors", "9 expressions"),
        (device_request(DRIVER, 1, "device."), "the selectors of class", "does not compile"),
        (device_request(DRIVER, 1, "cel.bind(x, 1, x == 1)"), "the selectors", "function bind"),
        (device_request(DRIVER, 1, f'device.attributes["{DRIVER}"].no == 1'), "the selectors",
         "no such member"),
        (device_request(DRIVER, 1, "device.driver"), "the selectors", "neither true nor false"),
        # cel-go, and so the API server, takes these.
        (device_request(DRIVER, 1, "!" * 1500 + "true"), "the selectors", "nested too deeply"),
        (device_request(DRIVER, 1, "1" + " + 1" * 240 + " > 0"), "the selectors", "too deeply"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_a_verdict_with_its_path(
    request_: dict[str, object], path: str, why: str
) -> None:
    template = make_device_template("one", request_)
    said = verdict(cluster([gang(1, "one")], [make_slice("n1", 2)], [template]))
    assert said.reason is Reason.DEVICE_CLAIM_UNSUPPORTED
    assert said.outcome is Outcome.BLOCKED
    assert "ResourceClaimTemplate one" in said.message
    assert path in str(said.facts["path"])
    assert why in str(said.facts["why"])


@pytest.mark.parametrize("expression", ["!" * 110 + "true", "1" + " + 1" * 54 + " > 0"])
def test_an_expression_of_all_levels_has_one_answer_however_deep_the_stack_is(
    expression: str,
) -> None:
    program = compile_expression(expression)

    def called(frames: int) -> bool:
        return called(frames - 1) if frames else program.evaluate(lambda _: ("string", "x"))

    assert called(0) is called(300) is True


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"key": "old", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "old", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "old", "value": "no"}, False),
        ({"key": "old"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "old", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_devices_with_taints_count_for_those_that_tolerate_them(
    toleration: dict[str, str], is_tolerated: bool
) -> None:  # fmt: skip
    taint = DeviceTaint("old", "yes", "NoSchedule")
    devices = [make_device("d0"), replace(make_device("d1"), taints=(taint,))]
    request = device_request()
    request["exactly"]["tolerations"] = [toleration]
    templates = [make_device_template("one"), make_device_template("any", request)]
    state = cluster([gang(2, "any")], [make_slice("n1", devices)], templates)
    assert (verdict(state).reason is Reason.PLACED) is is_tolerated
    plain = cluster([gang(2, "one")], [make_slice("n1", devices)], templates)
    assert verdict(plain).reason is Reason.EXCEEDS_CLUSTER


@pytest.mark.parametrize(
    ("effect", "toleration", "node"),
    [
        ("NoExecute", {"effect": "NoExecute"}, "n1"),
        ("NoExecute", {"effect": "NoExecute", "tolerationSeconds": 60}, "n2"),
        ("NoSchedule", {"effect": "NoExecute", "tolerationSeconds": 60}, "n2"),
        ("NoExecute", {"tolerationSeconds": 60}, "n1"),
    ],
    ids=["for ever", "for a minute", "another taint", "seconds without their effect"],
)
def test_devices_that_are_tolerated_for_some_seconds_keep_members_off_their_nodes(
    effect: str, toleration: dict[str, object], node: str
) -> None:
    """kube-scheduler might allocate them, and the pod would be evicted once these are over."""
    tainted = replace(make_device("d0"), taints=(DeviceTaint("old", "", effect),))
    request = device_request(count=2)
    given = {"key": "old", "operator": "Exists", **toleration}
    request["exactly"]["tolerations"] = [given, {**given, "key": "other"}]
    slices = [make_slice("n1", [tainted, make_device("d1")]), make_slice("n2", 2)]
    state = cluster([gang(1, "one")], slices, [make_device_template("one", request)])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == [node]


def constrained(
    constraint: dict[str, object], *requests: dict[str, object]
) -> ResourceClaimTemplate:
    template = make_device_template("one", *requests or (device_request(count=2),))
    devices = replace(template.spec.spec.devices, constraints=(constraint,))
    spec = replace(template.spec, spec=replace(template.spec.spec, devices=devices))
    return replace(template, spec=spec)


def test_devices_that_are_to_be_alike_are_had_where_as_many_of_a_node_are() -> None:
    racks = {"n0": ["a", "b"], "n1": ["b", "b"], "n2": ["a"]}
    slices = [
        make_slice(node, [make_device(f"d{i}", {"rack": rack}) for i, rack in enumerate(found)])
        for node, found in racks.items()
    ]
    slices[2] = make_slice("n2", [make_device("d0"), make_device("d1")])
    template = constrained({"matchAttribute": f"{DRIVER}/rack"})
    state = cluster([gang(1, "one")], slices, [template])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"]
    state = cluster([gang(2, "one")], slices, [template])
    assert verdict(state).reason is Reason.EXCEEDS_CLUSTER
    said = verdict(cluster([gang(1, "one")], slices[::2], [template]))
    assert said.reason is Reason.NO_NODE_SHAPE_FITS
    assert f"of one {DRIVER}/rack" in said.message
    again = make_slice("n0", [make_device(f"d{i}", {"rack": "c"}) for i in range(2)])
    state.devices.put_slice(slices[0].metadata.name, again)
    state.follow_claims()
    assert sorted(workers(decide(PlacementState(state), POLICY, EPOCH), "j")) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("constraint", "path", "why"),
    [
        ({"matchAttribute": "a/b", "requests": ["none"]}, ".requests", "no request"),
        ({"matchAttribute": "a/b", "requests": ["x", "z"]}, ".requests", "alternatives"),
        ({"matchAttribute": "a/b"}, ".requests", "alternatives"),
        ({"distinctAttribute": "a/b"}, ".distinctAttribute", "of one kind"),
        ({"distinctAttribute": "a/b", "requests": ["x"]}, ".distinctAttribute", "two requests"),
        ({"distinctAttribute": "a/b", "requests": ["x", "y"]}, ".distinctAttribute", "of one kind"),
        (
            {"distinctAttribute": "a/b", "matchAttribute": "a/c", "requests": ["x", "y"]},
            ".distinctAttribute",
            "one of both",
        ),
        ({"distinctAttribute": "b", "requests": ["x", "y"]}, "", "a domain and a name"),
        ({"newAttribute": "a/b", "requests": ["x", "y"]}, ".newAttribute", "not planned"),
        ({"requests": ["x"]}, "", "no matchAttribute"),
        ({"matchAttribute": "b"}, "", "a domain and a name"),
    ],
)
def test_constraints_that_are_not_planned_are_said_with_their_path(
    constraint: dict[str, object], path: str, why: str
) -> None:
    either = first_of_request(device_request(), device_request(DRIVER, 2), name="z")
    requests = [device_request(name="x"), device_request(DRIVER, 1, BIG, name="y"), either]
    template = constrained(constraint, *requests)
    said = verdict(cluster([gang(1, "one")], [make_slice("n1", SIZES)], [template]))
    assert said.reason is Reason.DEVICE_CLAIM_UNSUPPORTED
    assert said.facts["path"] == f"spec.spec.devices.constraints[0]{path}"
    assert why in str(said.facts["why"])


def test_a_selector_that_fails_for_one_device_leaves_its_node_out() -> None:
    odd = [*SIZES, replace(make_device("odd"), attributes={"other": DeviceAttribute(int_=1)})]
    big = make_device_template("big", device_request(DRIVER, 1, BIG))
    state = cluster([gang(1, "big")], [make_slice("n1", odd), make_slice("n2", SIZES)], [big])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n2"]


def test_members_stay_where_the_devices_of_the_claim_that_they_share_are_reached() -> None:
    here = NodeSelectorRequirement("metadata.name", "In", ("n2",))
    selector = NodeSelector((NodeSelectorTerm(match_fields=(here,)),))
    claim = make_device_claim("shared", has=[("n2", "gpu-0")])
    assert claim.status.allocation is not None
    allocation = replace(claim.status.allocation, node_selector=selector)
    claim = replace(claim, status=replace(claim.status, allocation=allocation))
    jobs = [gang(3, claims=["shared"])]
    state = cluster(jobs, [make_slice("n2", 1)], claims=[claim])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n2"] * 3


def test_a_gang_that_shares_a_claim_without_devices_is_on_one_node_that_has_them() -> None:
    claim, slices = make_device_claim("shared"), [make_slice("n2", 1)]
    state = cluster([gang(3, claims=["shared"])], slices, claims=[claim])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n2"] * 3
    # The device is had once, and whole: neither a second gang nor a lone member finds one.
    jobs = [
        gang(3, claims=["shared"], created=EPOCH - 9), gang(2, name="k", claims=["more"]),
        gang(1, "one", name="lone"),
    ]  # fmt: skip
    state = cluster(jobs, slices, [make_device_template("one")], [claim, make_device_claim("more")])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n2"] * 3
    for name in ("k", "lone"):
        assert verdict(state, name).reason is Reason.INSUFFICIENT_CAPACITY
    parts = f"devices of class {DRIVER}, each in 6 parts"
    assert verdict(state, "k").message.startswith(f"needs 6 {parts}")


def test_a_launcher_asks_for_what_it_shares_with_all_workers() -> None:
    sharing = gang(4, claims=["shared"])
    [role] = sharing.spec.roles
    roles = (role, replace(role, name="launcher", count=1))
    job = replace(sharing, spec=replace(sharing.spec, roles=roles))
    claim = make_device_claim("shared", device_request(DRIVER, 2))
    state = cluster([job], [make_slice("n0", 1), make_slice("n1", 2)], claims=[claim])
    decision = decide(PlacementState(state), POLICY, EPOCH)
    assert workers(decision, "j") == ["n1"] * 4
    need = state.devices.read(job, device_claims_of(job))
    assert isinstance(need, tuple)
    assert [each.request for each in need] == [(), ((f"{CLAIMED}{DRIVER}", 2),)]


def test_a_gang_that_finds_no_single_node_for_what_it_shares_says_so() -> None:
    slices = [make_slice(f"n{i}", 1) for i in range(3)]
    state = cluster([gang(70, claims=["s"])], slices, claims=[make_device_claim("s")])
    said = verdict(state)
    assert said.reason is Reason.NO_DOMAIN_FITS
    where = "one kubernetes.io/hostname; the largest of 3, empty, holds 64"
    assert said.message == f"needs room for 70 members in {where}"


def test_a_gang_whose_members_share_devices_in_part_waits_for_these() -> None:
    """Another role, a domain of its own choice or alternatives: where they will be is not known."""
    claim, slices = make_device_claim("shared"), [make_slice("n2", 2)]
    sharing = gang(2, claims=["shared"])
    [role] = sharing.spec.roles
    plain = replace(role, name="other", template=gang(1).spec.roles[0].template)
    apart = replace(sharing, spec=replace(sharing.spec, roles=(role, plain)))
    bound = replace(sharing, spec=replace(sharing.spec, topology=Topology("zone", required=True)))
    for job in (apart, bound):
        assert verdict(cluster([job], slices, claims=[claim])).reason is Reason.DEVICE_CLAIM_SHARED
    either = first_of_request(device_request(DRIVER, 2), device_request(DRIVER, 1))
    state = cluster([sharing], slices, claims=[make_device_claim("shared", either)])
    assert verdict(state).reason is Reason.DEVICE_CLAIM_SHARED


def test_of_two_jobs_that_name_a_claim_without_devices_the_older_one_starts() -> None:
    claim = make_device_claim("shared")
    jobs = [gang(1, name=name, claims=["shared"], created=at) for name, at in
            (("young", EPOCH - 1), ("old", EPOCH - 9))]  # fmt: skip
    state = cluster(jobs, [make_slice("n1", 1), make_slice("n2", 1)], claims=[claim])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "old") != []
    said = verdict(state, "young")
    assert said.reason is Reason.DEVICE_CLAIM_SHARED
    assert said.message.startswith("ResourceClaim shared, which job old gets first, has no devices")


def test_a_gang_behind_a_job_that_fits_nowhere_says_which_job_that_is() -> None:
    """The lone job keeps its turn, since a node for it may come; to end it helps the gang."""
    lone = with_device_claims(
        make_job("lone", gpus=0, cpu="1", node_selector={"no": "such"}), claims=["shared"]
    )
    jobs = [gang(2, claims=["shared"], created=EPOCH - 9), lone]
    state = cluster(jobs, [make_slice("n1", 1)], claims=[make_device_claim("shared")])
    assert "ResourceClaim shared, which job lone gets first, has" in verdict(state).message
    assert verdict(state, "lone").reason is Reason.NO_MATCHING_NODE
    state = cluster(jobs[:1], [make_slice("n1", 1)], claims=[make_device_claim("shared")])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"] * 2


@pytest.mark.parametrize("waits", ["gang", "held"])
def test_a_job_that_cannot_get_the_devices_of_a_claim_lets_a_younger_one_start(waits: str) -> None:
    """A gang that shares the claim waits for one pod to have it; a held job asks for none."""
    claim = make_device_claim("shared")
    old = gang(2 if waits == "gang" else 1, name="old", claims=["shared"], created=EPOCH - 9)
    old = replace(old, spec=replace(old.spec, suspend=waits == "held"))
    jobs = [old, gang(1, name="young", claims=["shared"], created=EPOCH - 1)]
    state = cluster(jobs, [make_slice("n1", 1)], claims=[claim])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "young") == ["n1"]
    state.job_changed(replace(old, spec=replace(old.spec, suspend=False)))
    if waits == "held":  # released, the older one comes first
        assert workers(decide(PlacementState(state), POLICY, EPOCH), "old") == ["n1"]
        assert verdict(state, "young").reason is Reason.DEVICE_CLAIM_SHARED


@pytest.mark.parametrize(
    "selector", [f"{{}} == {{}} && {BIG}", "{}.0 < 100.0"], ids=["apart", "alike"]
)
def test_a_namespace_with_many_kinds_leaves_room_for_the_first_ones_of_others(
    selector: str,
) -> None:
    """It came first, with more kinds than there may be."""
    names = [f"t{i}" for i in range(KINDS_MAX + 5)]
    templates = [
        make_device_template(
            name, device_request(DRIVER, 1, selector.format(i, i)), namespace="mallory"
        )
        for i, name in enumerate(names)
    ]
    jobs = [
        with_device_claims(
            make_job(name, namespace="mallory", gpus=0, cpu="1", created=EPOCH - 100 + i), name
        )
        for i, name in enumerate(names)
    ]
    jobs.append(gang(1, "one", name="late", created=EPOCH))
    state = cluster(
        jobs, [make_slice("n1", SIZES)], [*templates, make_device_template("one")]
    )  # fmt: skip
    assert isinstance(state.jobs["default", "late"].reaches, tuple), "it may be planned"


def test_kinds_beyond_the_limit_wait_and_those_of_older_jobs_stay() -> None:
    names = [f"t{i}" for i in range(KINDS_MAX + 1)]
    templates = [
        make_device_template(name, device_request(DRIVER, 1, f'"{i}" == "{i}" && {BIG}'))
        for i, name in enumerate(names)
    ]
    jobs = [gang(1, name, name=name, created=EPOCH - i) for i, name in enumerate(names)]
    state = cluster(jobs, [make_slice("n1", SIZES)], templates)
    said = {name: entry.reaches for (_, name), entry in state.jobs.items()}
    waits = [name for name, reaches in said.items() if not isinstance(reaches, tuple)]
    assert "t0" in waits, "the youngest job"
    assert len(waits) < len(names), "those that came first are planned"
    assert "too many kinds" in verdict(state, "t0").message
    state.job_deleted(("default", names[-1]))
    state.follow_claims()
    still = [e for e in state.jobs.values() if not isinstance(e.reaches, tuple)]
    assert len(still) == len(waits) - 1, "each that goes lets one more in"


def first_of(*requests: dict[str, Any]) -> ResourceClaimTemplate:
    return make_device_template("one", first_of_request(*requests))


def of_size(size: str, count: int) -> list[Device]:
    return [make_device(f"{size}-{i}", {"size": size}) for i in range(count)]


def test_a_member_gets_the_first_alternative_that_its_node_has() -> None:
    template = first_of(device_request(DRIVER, 1, BIG), device_request(DRIVER, 2))
    slices = [make_slice("n1", of_size("big", 2)), make_slice("n2", of_size("small", 5))]
    state = cluster([gang(4, "one")], slices, [template])
    placed = workers(decide(PlacementState(state), POLICY, EPOCH), "j")
    assert sorted(placed) == ["n1", "n1", "n2", "n2"]
    assert verdict(cluster([gang(5, "one")], slices, [template])).facts["members_fit"] == 4


def test_devices_that_alternatives_take_are_not_given_to_others() -> None:
    template = first_of(device_request(DRIVER, 1, BIG), device_request(DRIVER, 2))
    held = with_device_claims(
        make_job("held", count=1, gpus=0, cpu="1", placement=make_placement(["n2"])), "one"
    )
    plain = make_device_template("plain")
    for members, is_placed in ((3, True), (4, False)):
        slices = [make_slice("n2", of_size("small", 5))]
        state = cluster([held, gang(members, "plain")], slices, [template, plain])
        assert (verdict(state).outcome is Outcome.PLACED) == is_placed


def test_no_later_alternative_counts_where_a_device_of_an_earlier_one_may_be_had() -> None:
    template = first_of(device_request(DRIVER, 1, BIG), device_request(DRIVER, 1))
    odd = replace(make_device("odd", {"size": "big"}), binds_to_node=True)
    small = of_size("small", 2)
    wide = make_slice("wide", of_size("big", 1))
    wide = replace(wide, spec=replace(wide.spec, node_name=""))
    other = replace(wide, spec=replace(wide.spec, driver="other.example.com"))
    for slices, is_placed in (
        ([make_slice("n1", small)], True),
        ([make_slice("n1", [*small, odd])], False),
        ([make_slice("n1", small), wide], False),
        ([make_slice("n1", small), other], True),
    ):
        state = cluster([gang(1, "one")], slices, [template])
        assert (verdict(state).outcome is Outcome.PLACED) == is_placed, slices


def test_an_alternative_whose_expression_fails_on_a_node_leaves_the_node_out() -> None:
    failing = f'device.attributes["{DRIVER}"].rare == 1'
    template = first_of(device_request(DRIVER, 3, failing), device_request(DRIVER, 1))
    rare = [make_device("d0", {"rare": 2})]
    state = cluster([gang(1, "one")], [make_slice("n1", 2), make_slice("n2", rare)], [template])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n2"]


def test_a_class_of_an_alternative_that_does_not_exist_is_missing() -> None:
    template = first_of(device_request(), device_request("absent"))
    said = verdict(cluster([gang(1, "one")], [make_slice("n1", 2)], [template]))
    assert said.reason is Reason.DEVICE_CLASS_MISSING
    assert said.facts["device_class"] == "absent"


def test_all_devices_of_a_node_are_had_together_or_not_at_all() -> None:
    every = make_device_template("every", all_devices_request())
    one = make_device_template("one")
    slices = [make_slice("n0", 0), make_slice("n1", 8), make_slice("n2", 3)]
    state = cluster([gang(2, "every")], slices, [every])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1", "n2"]
    held = with_device_claims(
        make_job("held", count=1, gpus=0, cpu="1", placement=make_placement(["n2"])), "one"
    )
    said = verdict(cluster([held, gang(2, "every")], slices, [every, one]))
    assert said.reason is Reason.FRAGMENTED
    assert said.message == (
        f"2 devices of class {DRIVER} (all of a node) are free, but in pieces: room for 1 of 2 "
        "members"
    )
    assert said.blockers == (("default", "held"),)
    held = with_device_claims(held, "every")
    state = cluster([held, gang(8, "one")], slices, [every, one])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"] * 8
    assert verdict(cluster([held, gang(9, "one")], slices, [every, one])).blockers


@pytest.mark.parametrize(
    ("change", "is_placed"),
    [
        ({}, True),
        ({"taints": (DeviceTaint("old", "", "NoSchedule"),)}, False),
        ({"binds_to_node": True}, False),
    ],
)
def test_all_devices_are_not_had_where_one_cannot_be(
    change: dict[str, object], is_placed: bool
) -> None:
    devices = [make_device("d0"), replace(make_device("d1"), **change)]
    every = make_device_template("every", all_devices_request())
    state = cluster([gang(1, "every")], [make_slice("n1", devices)], [every])
    assert (verdict(state).outcome is Outcome.PLACED) == is_placed


def test_all_devices_are_not_had_where_slices_of_a_pool_are_missing() -> None:
    every = make_device_template("every", all_devices_request())
    part = make_slice("n1", 1, driver="other.example.com")
    pool = replace(part.spec.pool, resource_slice_count=2)
    part = replace(part, spec=replace(part.spec, pool=pool))
    for slices, is_placed in (([], True), ([part], False)):
        state = cluster([gang(1, "every")], [make_slice("n1", 2), *slices], [every])
        assert (verdict(state).outcome is Outcome.PLACED) == is_placed


def test_a_request_for_all_devices_has_what_a_claim_has_room_for() -> None:
    two = make_device_template(
        "every", all_devices_request(), device_request(DRIVER, 30, BIG, name="r1")
    )
    for count, is_placed in ((2, True), (3, False)):
        devices = [make_device(f"s{i}", {"size": "small"}) for i in range(count)]
        template = replace_kind(two, f'device.attributes["{DRIVER}"].size == "small"')
        slices = [make_slice("n1", [*devices, *of_size("big", 30)])]
        state = cluster([gang(1, "every")], slices, [template])
        assert (verdict(state).outcome is Outcome.PLACED) == is_placed


def replace_kind(template: ResourceClaimTemplate, expression: str) -> ResourceClaimTemplate:
    """Return a template whose first request is for all devices that the expression chooses."""
    devices = template.spec.spec.devices
    requests = (all_devices_request(DRIVER, expression), *devices.requests[1:])
    spec = replace(template.spec.spec, devices=replace(devices, requests=requests))
    return replace(template, spec=replace(template.spec, spec=spec))


def test_constraints_hold_for_alternatives_each() -> None:
    constraint = {"matchAttribute": f"{DRIVER}/rack", "requests": ["r0/o0"]}
    template = first_of(device_request(DRIVER, 2, BIG), device_request(DRIVER, 1))
    devices = replace(template.spec.spec.devices, constraints=(constraint,))
    spec = replace(template.spec.spec, devices=devices)
    template = replace(template, spec=replace(template.spec, spec=spec))
    racks = [make_device(f"d{i}", {"size": "big", "rack": f"r{i}"}) for i in range(2)]
    same = [make_device(f"d{i}", {"size": "big", "rack": "r"}) for i in range(2)]
    slices = [make_slice("n0", racks), make_slice("n1", same), make_slice("n2", racks[:1])]
    state = cluster([gang(2, "one")], slices, [template])
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1", "n2"]
    assert verdict(cluster([gang(3, "one")], slices, [template])).facts["members_fit"] == 2


def test_devices_of_different_kinds_that_are_alike_are_had_together() -> None:
    """Four roots of a node have two GPUs each, three of them a card."""
    constraint = {"matchAttribute": f"{DRIVER}/root", "requests": ["gpu", "card"]}
    template = constrained(
        constraint, device_request("gpu", 1, name="gpu"), device_request("card", 1, name="card")
    )
    gpus = [make_device(f"g{i}", {"what": "gpu", "root": i // 2}) for i in range(8)]
    cards = [make_device(f"c{i}", {"what": "card", "root": i}) for i in range(3)]
    classes = [
        make_device_class(each, f'device.attributes["{DRIVER}"].what == "{each}"')
        for each in ("gpu", "card")
    ]
    given = [make_slice("n1", [*gpus, *cards]), make_slice("n2", [gpus[0], cards[1]])]
    plain = make_device_template("plain", device_request("gpu", 5))
    state = cluster([gang(3, "one")], given, [template], classes=classes)
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "j") == ["n1"] * 3
    state = cluster([gang(4, "one")], given, [template], classes=classes)
    assert verdict(state).facts["members_fit"] == 3
    held = with_device_claims(
        make_job("held", count=1, gpus=0, cpu="1", placement=make_placement(["n1"])), "plain"
    )
    state = cluster([held, gang(1, "one")], given, [template, plain], classes=classes)
    said = verdict(state)
    assert said.reason is Reason.INSUFFICIENT_CAPACITY
    assert f"device of class card with gpu, of one {DRIVER}/root" in said.message


def test_constraints_that_share_some_requests_are_said_with_their_path() -> None:
    names = ("x", "y", "z")
    template = constrained(
        {"matchAttribute": "a/b", "requests": ["x", "y"]},
        *(device_request(name=name) for name in names),
    )
    devices = template.spec.spec.devices
    more = ({"matchAttribute": "a/c", "requests": ["y", "z"]},)
    devices = replace(devices, constraints=(*devices.constraints, *more))
    spec = replace(template.spec.spec, devices=devices)
    template = replace(template, spec=replace(template.spec, spec=spec))
    said = verdict(cluster([gang(1, "one")], [make_slice("n1", 3)], [template]))
    assert said.reason is Reason.DEVICE_CLAIM_UNSUPPORTED
    assert said.facts["path"] == "spec.spec.devices.constraints[1].requests"


def test_what_is_gone_leaves_nothing_behind() -> None:
    templates = [
        make_device_template(f"t{i}", device_request(DRIVER, 1, f"{BIG} && {i} < 9"))
        for i in range(8)
    ]
    state = cluster([], [make_slice("n1", SIZES)], templates)
    state.team_changed("red", make_team("red", namespaces=["default"]))
    decider = PlacementState(state)
    kept: list[int] = []
    for number in range(8):
        job = gang(1, f"t{number}", name=f"j{number}")
        place = make_placement(["n1"])
        placed = make_job(f"j{number}", count=1, gpus=0, cpu="1", placement=place)
        for each in (job, with_device_claims(placed, f"t{number}")):
            state.job_changed(each)
            decide(decider, POLICY, EPOCH)
        claim = make_device_claim(f"c{number}", has=[("n1", "d0")])
        state.devices.put_claim(claim.metadata.key, claim)
        state.devices.put_claim(claim.metadata.key, None)
        state.job_deleted(job.metadata.key)
        kept.append(sum(map(entries_of, (state.ledger, state.uses, state.devices))))
    assert kept[-1] == kept[0]
    assert not +state.uses.amounts["red"]
