"""Jobs with claims for parts of GPUs: devices that share counters."""

from __future__ import annotations

from itertools import combinations

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_devices import cluster, gang, verdict
from tests.unit.decide.test_placement import POLICY, places

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.devices import CounterConsumption, DeviceCounter, ResourceSlice
from fairlead.api.meta import ObjectMeta
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.claimed.shared_counters import Layout, shapes, weight_of
from fairlead.model.claimed.work import complete
from fairlead.testing.builders import EPOCH, make_job
from fairlead.testing.device_builders import (
    MIG,
    make_device,
    make_device_claim,
    make_mig_slices,
    make_slice,
    mig_template,
    with_device_claims,
)

ALL = [mig_template(profile) for profile in MIG]


def parts(profile: str, count: int, *, age: float = 0) -> Job:
    name = profile.replace(".", "-")
    return gang(count, name, name=f"j{name}", created=EPOCH - age)


def placed(jobs: list[Job], slices: list[ResourceSlice]) -> dict[str, list[str]]:
    """The nodes of each job that is placed in one cycle."""
    decision = decide(PlacementState(cluster(jobs, slices, ALL)), POLICY, EPOCH)
    return {name: [*roles["worker"]] for name, roles in places(decision).items()}


@pytest.mark.parametrize(
    ("profile", "most"),
    [("7g.80gb", 1), ("4g.40gb", 1), ("3g.40gb", 2), ("2g.20gb", 3), ("1g.20gb", 4),
     ("1g.10gb", 7)],
)  # fmt: skip
def test_a_gpu_gives_as_many_parts_as_its_counters_have(profile: str, most: int) -> None:
    slices = make_mig_slices("n1", 2)
    assert len(placed([parts(profile, 2 * most)], slices)) == 1
    said = verdict(cluster([parts(profile, 2 * most + 1)], slices, ALL), f"j{parts_name(profile)}")
    assert said.reason is Reason.EXCEEDS_CLUSTER


def parts_name(profile: str) -> str:
    return profile.replace(".", "-")


def test_parts_of_several_sizes_share_a_gpu() -> None:
    jobs = [parts("3g.40gb", 1, age=2), parts("1g.10gb", 3, age=1)]
    assert len(placed(jobs, make_mig_slices("n1"))) == 2
    jobs = [parts("3g.40gb", 1, age=2), parts("1g.10gb", 4, age=1)]
    assert placed(jobs, make_mig_slices("n1")).keys() == {"j3g-40gb"}, "kept on the safe side"


def test_a_whole_gpu_leaves_no_part_of_it_and_parts_leave_no_whole_gpu() -> None:
    jobs = [parts("7g.80gb", 1, age=2), parts("1g.10gb", 1, age=1)]
    assert placed(jobs, make_mig_slices("n1")).keys() == {"j7g-80gb"}
    jobs = [parts("7g.80gb", 1, age=1), parts("1g.10gb", 1, age=2)]
    assert placed(jobs, make_mig_slices("n1")).keys() == {"j1g-10gb"}
    assert len(placed(jobs, make_mig_slices("n1", 2))) == 2


def test_whole_gpus_elsewhere_are_had_beside_those_in_parts() -> None:
    whole = [make_device(f"g{i}", {"profile": "7g.80gb"}) for i in range(3)]
    slices = [*make_mig_slices("n1"), make_slice("n2", whole)]
    jobs = [parts("7g.80gb", 3, age=1), parts("1g.10gb", 7, age=2)]
    found = placed(jobs, slices)
    assert found["j7g-80gb"] == ["n2"] * 3
    assert found["j1g-10gb"] == ["n1"] * 7


def test_parts_that_pods_have_on_several_gpus_leave_no_whole_one() -> None:
    """Their sum would leave one: where they are counts."""
    name = "gpu-{}-1g-10gb-0"
    claims = [
        make_device_claim(f"c{i}", pod=f"p{i}", has=[("n1", name.format(i))]) for i in range(2)
    ]
    jobs = [parts("7g.80gb", 1, age=1), parts("1g.10gb", 12, age=2)]
    state = cluster(jobs, make_mig_slices("n1", 2), ALL, claims)
    for i in range(2):
        other = with_device_claims(make_job("x", gpus=0, cpu="1"), "1g-10gb")
        meta = ObjectMeta(name=f"p{i}", namespace="default", uid=f"p{i}")
        state.pod_changed(Pod(meta, replace(other.spec.roles[0].template.spec, node_name="n1")))
    decision = decide(PlacementState(state), POLICY, EPOCH)
    assert {name: len(roles["worker"]) for name, roles in places(decision).items()} == {
        "j1g-10gb": 12
    }
    assert decision.verdicts["default", "j7g-80gb"].reason is not Reason.PLACED


def test_a_part_that_a_claim_of_no_pod_has_takes_what_it_covers() -> None:
    taken = make_device_claim("other", has=[("n1", "gpu-0-4g-40gb-0")])
    for profile, count in (("1g.10gb", 3), ("3g.40gb", 1), ("2g.20gb", 1)):
        for more, reason in ((0, Reason.PLACED), (1, Reason.EXCEEDS_CLUSTER)):
            job = parts(profile, count + more)
            state = cluster([job], make_mig_slices("n1"), ALL, [taken])
            assert verdict(state, job.metadata.name).reason is reason, (profile, count + more)


def test_a_pool_that_consumes_what_it_does_not_have_counts_nothing() -> None:
    counters, devices = make_mig_slices("n1")
    odd = replace(make_device("odd"), consumes_counters=(
        CounterConsumption("gpu-0", {"no such counter": DeviceCounter(1)}),
    ))  # fmt: skip
    spec = replace(devices.spec, devices=(*devices.spec.devices, odd))
    job = parts("1g.10gb", 1)
    assert placed([job], [counters, replace(devices, spec=spec)]) == {}
    assert placed([job], [devices]) == {}, "the counters have yet to come"
    assert len(placed([job], [counters, devices])) == 1


def test_two_pools_of_one_name_that_share_counters_count_nothing() -> None:
    """kube-scheduler takes the counters of the one for those of the other."""
    slices = make_mig_slices("n1")
    others = [
        replace(
            each,
            metadata=replace(each.metadata, name=f"{each.metadata.name}-other"),
            spec=replace(each.spec, driver="other.example.com"),
        )
        for each in slices
    ]
    assert placed([parts("1g.10gb", 1)], [*slices, *others]) == {}


def test_a_row_is_kept_by_every_way_in_which_devices_may_be_taken() -> None:
    """All sets of parts of one GPU that others may take, against the rows of each kind."""
    counters, devices = make_mig_slices("n1")
    found = shapes(devices.spec.devices, counters.spec.shared_counters)
    assert found is not None
    [(_, shape)] = found
    profile = [str(d.attributes["profile"].value) for d in devices.spec.devices]
    bits = {each: 1 << i for i, each in enumerate(dict.fromkeys(profile))}
    layout = Layout(shape, tuple(bits[each] for each in profile))
    order = [*bits]
    for j, kind in enumerate(order):
        weights = {bits[o]: complete(weight_of(layout, bits[o], bits[kind])) for o in order[:j]}
        weights = {bit: w for bit, w in weights.items() if w} | {bits[kind]: 1}
        room = complete(layout.room(bits[kind], weights))
        assert room > 0
        mine = layout.of(bits[kind])
        usable = [i for i, mask in enumerate(layout.masks) if mask in weights]
        tried = 0
        for size in range(5):
            for chosen in combinations(usable, size):
                taken = sum(1 << i for i in chosen)
                left = shape.left(taken)
                if left is None:
                    continue
                tried += 1
                is_over = not any(
                    mine >> i & 1 and not taken >> i & 1 and shape.without(left, use) is not None
                    for i, use in enumerate(shape.uses)
                )
                cost = sum(weights[layout.masks[i]] for i in chosen)
                assert not is_over or cost >= room, (chosen, kind)
        assert tried > 1
