"""Simulated worlds whose kubelets renew leases, fall silent, and are cut off all at once.

`sim/actors/kubelets.py` has the promise: no node is marked whose machine answers, and none in an
outage of the API server, of our own network, or of half of the machines.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.decide.health import unreachable_nodes
from fairlead.decide.health.policy import SilencePolicy
from fairlead.decide.health.unreachable_nodes import Presence
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.setup.faults import PERFECT, ROUGH
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World

HOUR = 3600.0
OPTIONS = WorldOptions(
    nodes=12, workload=WorkloadOptions(12, HOUR / 2, members_max=5, run_seconds_max=600.0),
    silence=SilencePolicy(), lease_outages_per_day=240.0, node_failures_per_day=480.0,
    node_repair_seconds=300.0, drains_per_day=0.0,
)  # fmt: skip


def world_of(options: WorldOptions, seed: int) -> World:
    async def main() -> World:
        world = World(options, seed)
        await world.run()
        return world

    return run(main())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("faults", [PERFECT, ROUGH], ids=["perfect", "rough"])
def test_nodes_that_are_lost_are_marked_and_no_others(faults: object, seed: int) -> None:
    world = world_of(replace(OPTIONS, faults=faults), seed)
    assert world.kubelets.outages
    assert world.kubelets.marked


def test_an_engine_that_believes_every_late_lease_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The canary: without the second side and the rails, good nodes are marked."""
    monkeypatch.setattr(unreachable_nodes, "_hold", lambda *_: None)
    monkeypatch.setattr(
        "fairlead.controllers.nodes.unreachable_nodes.presence_of", lambda *_: Presence.ABSENT
    )
    with pytest.raises(BaseExceptionGroup) as found:
        world_of(replace(OPTIONS, faults=PERFECT), 0)
    assert found.group_contains(PromiseBroken, match="is marked as unreachable")
