"""Pulls before work, while controllers die, writes get lost and nodes fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import IMAGE_SETS
from fairlead.decide.images.policy import ImagesPolicy
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.profile import ImagesSpec, load_profile
from fairlead.sim.loop import run
from fairlead.sim.observers.observer import Observer
from fairlead.sim.setup.workload import Arrival, WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World

GIB = 1 << 30
OTHERS = [f"other-{i}" for i in range(6)]
IMAGES = ImagesSpec(
    layers={"train": {"all": 20 * GIB}, **{name: {name: 10 * GIB} for name in OTHERS}},
    node_bytes_per_second=GIB / 10,
    registry_bytes_per_second=GIB,
)  # fmt: skip
POLICY = ImagesPolicy(prefetch_jobs=True, pulls_per_registry_max=4)
HOUR = 3600.0


class PullWatch(Observer):
    """What pulls there are, and the most that there were at a time: on a node, and in all."""

    def __init__(self) -> None:
        self.pods: dict[ObjectKey, str] = {}
        self.count = self.most = self.most_on_node = 0

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        is_new = key not in self.pods
        self.pods.pop(key, None)
        if new is None or new.is_terminal or names.IMAGE_PULL not in new.metadata.labels:
            return
        self.pods[key] = new.spec.node_name
        self.count += is_new
        nodes = list(self.pods.values())
        self.most = max(self.most, len(nodes))
        self.most_on_node = max(self.most_on_node, nodes.count(new.spec.node_name))


class ImageWorld(World):
    """A world with a set of images beside its load."""

    async def _story(self, arrivals: Sequence[Arrival]) -> None:
        body = {"metadata": {"name": "others"}, "spec": {"images": OTHERS}}
        await self.client.create(IMAGE_SETS, body)
        await super()._story(arrivals)


@pytest.mark.parametrize("seed", [1, 2])
def test_pulls_keep_to_their_bounds_and_leave_nothing_behind_whatever_fails(seed: int) -> None:
    watch = PullWatch()
    options = WorldOptions(
        nodes=12, workload=WorkloadOptions(30, HOUR, run_seconds_max=1200.0), images=POLICY,
        profile=replace(load_profile("default"), images=IMAGES),
        policy=PlacementPolicy(starvation_seconds=30.0), calls_between_kills_mean=400.0,
    )  # fmt: skip

    async def main() -> None:
        await ImageWorld(options, seed, observers=[watch]).run()

    run(main())
    assert watch.count > 0
    assert watch.pods == {}, "pulls go on that nobody wishes"
    # A write of a leader that was replaced may come late.
    assert watch.most <= POLICY.pulls_per_registry_max + 1
    assert watch.most_on_node <= POLICY.pulls_per_node_max + 1
