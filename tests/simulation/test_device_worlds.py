"""Simulated worlds in which members ask for devices by claims, checked by what knows the objects
alone; nodes and devices fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.device_shapes import DevicePart, DeviceShape
from fairlead.api.kubernetes.devices import ResourceSlice
from fairlead.api.kubernetes.pod_parts import PodResourceClaim
from fairlead.decide.pinning import Binding
from fairlead.embedded.own_controllers.node_devices import NodeDevices
from fairlead.embedded.virtual.profile import load_profile
from fairlead.model.claimed import devices
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.devices import DeviceChecker, DeviceWish
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World, simulate
from fairlead.testing.builders import make_pod
from fairlead.testing.device_builders import make_device_claim, make_mig_slices, make_slice

NIC, GPU = "nic.example.com", "gpu.example.com"
SHAPES = (
    DeviceShape(NIC, 2, name="nic"),
    DeviceShape(
        GPU, 2, counters={"memory": 4}, parts=(DevicePart("half", 2, counters={"memory": 2}),)
    ),
)
WISHES = (
    DeviceWish(NIC, share=0.3), DeviceWish(NIC, 2, 0.2), DeviceWish(GPU, 3, 0.2),
    DeviceWish(NIC, 2, 0.2, shared=2), DeviceWish(GPU, share=0.1, shared=1),
)  # fmt: skip


def world_options(binding: Binding | None = Binding.PINNED) -> WorldOptions:
    profile = load_profile("default")
    profile = changed(profile, node=changed(profile.node, devices=SHAPES))
    load = WorkloadOptions(
        jobs=30, seconds=1800.0, run_seconds_median=300.0, members_max=8, devices=WISHES,
        failing_share=0.1,
    )  # fmt: skip
    return WorldOptions(
        nodes=24, workload=load, profile=profile, binding=binding, node_failures_per_day=100.0,
        device_faults_per_day=500.0, gpu_repair_seconds=900.0,
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "binding"), [(1, None), (2, Binding.PINNED)])
def test_no_device_is_of_two_members_and_none_is_given_that_has_failed(
    seed: int, binding: Binding | None
) -> None:
    world = World(world_options(binding), seed)
    outcome = run(world.run())
    assert outcome.succeeded > 15
    assert min(world.devices.checked, world.devices.near) > 40
    assert world.disturbances.device_faults > 5


def test_a_planner_in_which_each_job_comes_first_to_a_shared_claim_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "first_of", lambda *_: None)
    with pytest.raises(PromiseBroken, match=r"has .* of .* for a pod on"):
        simulate(world_options(None), 3)


def test_an_allocator_that_gives_devices_twice_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocate = NodeDevices.allocate

    def blind(self: NodeDevices, claims: Any, node: str, taken: Any, *more: Any) -> Any:
        return allocate(self, claims, node, set(), *more)

    monkeypatch.setattr(NodeDevices, "allocate", blind)
    with pytest.raises(PromiseBroken, match="is of the claims"):
        simulate(replace(world_options(None), device_faults_per_day=0.0), 1)


class History:
    """A node with two devices, of which a claim has the first."""

    def __init__(self) -> None:
        self.checker = DeviceChecker()
        self.put(make_slice("n", 2))
        self.claim("a", "gpu-0")

    def put(self, found: ResourceSlice, now: float = 0.0) -> None:
        self.checker.device_slice(found, found.metadata.name, now)

    def claim(self, name: str, *devices: str, now: float = 0.0) -> None:
        found = make_device_claim(name, has=[("n", device) for device in devices])
        self.checker.claim(found, found.metadata.key, now)


def test_a_device_that_two_claims_have_is_reported_until_the_first_gives_it_back() -> None:
    with pytest.raises(PromiseBroken, match="gpu-0 of n is of the claims a and b"):
        History().claim("b", "gpu-0")
    history = History()
    history.claim("a")
    history.claim("b", "gpu-0", "gpu-1")
    assert history.checker.checked == 3


def test_a_device_that_was_never_there_or_has_vanished_is_reported() -> None:
    with pytest.raises(PromiseBroken, match="gpu-2 of n: it never was there"):
        History().claim("b", "gpu-2")
    for now, vanishes in ((3.0, False), (60.0, True)):
        history = History()
        history.put(make_slice("n", 1), now=1.0)
        if vanishes:
            with pytest.raises(PromiseBroken, match="vanished 59 s ago"):
                history.claim("b", "gpu-1", now=now)
        else:
            history.claim("b", "gpu-1", now=now)
            history.put(make_slice("n", 2), now=now)
            history.claim("b", now=now)
            history.claim("c", "gpu-1", now=90.0)


def claiming_pod(name: str, node: str) -> Pod:
    pod = make_pod(name, node=node, uid=f"uid-{name}")
    return changed(pod, spec=changed(pod.spec, resource_claims=(PodResourceClaim("c0", "a"),)))


@pytest.mark.parametrize("is_bound_first", [True, False])
def test_a_pod_elsewhere_than_the_devices_of_its_claim_is_reported(*, is_bound_first: bool) -> None:
    history = History()
    claim = make_device_claim("a", has=[("n", "gpu-0")], users=["near", "far"])
    pods = [claiming_pod("near", "n"), claiming_pod("far", "m")]
    history.checker.pod(pods[0], pods[0].metadata.key, 0.0)
    steps = [
        lambda: history.checker.claim(claim, claim.metadata.key, 0.0),
        lambda: history.checker.pod(pods[1], pods[1].metadata.key, 0.0),
    ]
    first, second = steps[::-1] if is_bound_first else steps
    first()
    with pytest.raises(PromiseBroken, match="claim a has gpu-0 of n for a pod on m"):
        second()
    assert history.checker.near == 2


def test_parts_that_exceed_their_device_are_reported() -> None:
    history = History()
    for each in make_mig_slices("n", 1):
        history.put(each)
    history.claim("b", "gpu-0-3g-40gb-0", "gpu-0-1g-10gb-4")
    with pytest.raises(PromiseBroken, match="claims have 2 of memory-slice-4 of gpu-0 on n"):
        history.claim("c", "gpu-0-3g-40gb-4")
