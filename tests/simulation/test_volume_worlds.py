"""Simulated worlds in which jobs have claims, checked by what knows the objects alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from fairlead.api import names
from fairlead.api.jobs.job import ClaimTemplate
from fairlead.api.meta import ObjectMeta
from fairlead.decide.pinning import Binding
from fairlead.model.asks.requests import Reach
from fairlead.model.inventory.labels import Bools, LabelTable, Slots
from fairlead.model.inventory.volume_limits import VolumeLimits
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.volumes import VolumeChecker
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World, simulate
from fairlead.testing.builders import make_job, make_node, make_placement
from fairlead.testing.volume_builders import ZONE, make_claim, make_volume

WORKLOAD = WorkloadOptions(
    jobs=36, seconds=1800.0, run_seconds_median=300.0, run_seconds_max=900.0, members_max=8,
    volume_share=1.0, failing_share=0.2,
)  # fmt: skip
OPTIONS = WorldOptions(nodes=32, workload=WORKLOAD, node_failures_per_day=200.0)
#: Less of what nodes attach than of what else members ask for.
LIMITED = replace(
    OPTIONS, nodes=8, workload=replace(WORKLOAD, jobs=20, seconds=900.0, volume_limit=3)
)


@pytest.mark.parametrize(("seed", "binding"), [
    (1, None), (2, Binding.DIRECT), (3, Binding.PINNED),
])  # fmt: skip
def test_no_member_is_placed_where_its_volume_cannot_be(seed: int, binding: Binding | None) -> None:
    world = World(replace(OPTIONS, binding=binding), seed)
    outcome = run(world.run())
    assert outcome.succeeded > 20
    assert world.volumes.checked > 50


def test_no_node_gets_more_volumes_than_it_attaches() -> None:
    world = World(LIMITED, 7)
    assert run(world.run()).succeeded > 10
    assert world.volumes.counted > 20


def test_a_gang_that_too_few_nodes_reach_waits_and_says_so() -> None:
    """Of 12 nodes eight are in one rack; each gang of eight has a volume, one in the other rack."""
    arrivals: list[Arrival] = []
    for claim in ("shared-1", "shared-3"):
        body = job_body(claim, members=8, gpus=8, run_seconds=60.0)
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        body["spec"]["roles"][0]["template"]["spec"]["volumes"] = [volume]
        arrivals.append(Arrival(1.0, claim, body))
    options = replace(OPTIONS, nodes=12, workload=replace(WORKLOAD, seconds=600.0))
    world = World(options, 5, arrivals=arrivals)
    outcome = run(world.run())
    assert list(world.unfit) == [("default", "shared-3")]
    assert (outcome.unfit, outcome.succeeded) == (1, 1)


def test_a_planner_that_does_not_count_volumes_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(VolumeLimits, "put_node", lambda *_: False)
    with pytest.raises(PromiseBroken, match="which attaches 3 volumes, and"):
        simulate(LIMITED, 4)


def test_worlds_with_claims_are_the_same_when_they_are_run_again() -> None:
    few = replace(OPTIONS, nodes=16, workload=replace(WORKLOAD, jobs=20, seconds=1200.0))
    first = simulate(few, 5)
    assert first.succeeded > 10
    assert first == simulate(few, 5)


def test_a_planner_that_does_not_look_at_volumes_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reached(_: LabelTable, reach: Reach, slots: Slots) -> Bools:
        return slots >= 0

    monkeypatch.setattr(LabelTable, "reached", reached)
    with pytest.raises(PromiseBroken, match="does not reach volume"):
        simulate(OPTIONS, 1)


class History:
    """A node of zone a and one of zone b, and a claim whose volume is in b."""

    def __init__(self) -> None:
        self.checker = VolumeChecker(stale_seconds=100.0)
        for zone in "ab":
            self.checker.node(make_node(zone, labels={ZONE: zone}), zone, 0.0)
        for claim in ("data", "own-j-worker-1"):
            key = (names.DEFAULT_NAMESPACE, claim)
            self.checker.volume(make_volume(f"v-{claim}", zones=["b"]), f"v-{claim}")
            self.checker.claim(make_claim(claim, volume=f"v-{claim}"), key, 0.0)

    def place(self, *nodes: str, now: float = 200.0, has_own: bool = False, **more: Any) -> None:
        job = make_job("j", count=len(nodes), placement=make_placement(nodes), **more)
        if has_own:
            template = ClaimTemplate(ObjectMeta(name="own"), {})
            (role,) = job.spec.roles
            role = changed(role, volume_claim_templates=(template,))
            job = changed(job, spec=changed(job.spec, roles=(role,)))
        self.checker.job(job, job.metadata.key, now)


def test_a_place_that_does_not_reach_a_volume_is_reported() -> None:
    with pytest.raises(PromiseBroken, match="node a, which does not reach volume v-data"):
        History().place("b", "a", claims=["data"])
    with pytest.raises(PromiseBroken, match="volume v-own-j-worker-1"):
        History().place("a", "a", has_own=True)


def test_places_that_reach_their_volumes_and_those_that_were_decided_before_are_not() -> None:
    history = History()
    history.place("b", "b", claims=["data"])
    history.place("a", "b", has_own=True)
    assert history.checker.checked == 3
    history.place("a", now=50.0, claims=["data"])
