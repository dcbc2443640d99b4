"""Jobs with levels, preferences and slices in whole worlds, the checkers, and planted bugs."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.embedded.virtual.fleet import NodeFleet, node_object
from fairlead.embedded.virtual.profile import NodeShape, load_profile
from fairlead.model.asks.topology import DEFAULT_LEVELS, TopologyRequest
from fairlead.model.cluster import ClusterState
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken, unwrap_broken
from fairlead.sim.promises.placement_checkers import TopologyChecker
from fairlead.sim.setup.fitting import never_fits
from fairlead.sim.setup.workload import TOPOLOGIES, Arrival, WorkloadOptions, job_body
from fairlead.sim.world import World, WorldOptions
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement


def test_gangs_keep_to_their_domains_and_slices_while_nodes_fail() -> None:
    workload = WorkloadOptions(
        jobs=60, seconds=1800.0, run_seconds_median=200.0, members_max=8, bound_share=1.0
    )
    world = World(WorldOptions(nodes=20, workload=workload, node_failures_per_day=60.0), 11)
    outcome = run(world.run())
    assert outcome.succeeded > 20
    assert world.topology.checked > 15


def too_wide() -> World:
    """Four nodes in racks of two; gang a of four must be in one rack, each half of gang b."""
    profile = replace(load_profile("default"), node=NodeShape(nodes_per_rack=2))
    wide, sliced = (job_body(name, members=4, gpus=8, run_seconds=60.0) for name in ("a", "b"))
    wide["spec"]["topology"] = {"key": "rack", "required": True}
    sliced["spec"]["topology"] = {"sliceLevel": "rack", "sliceSize": 2}
    arrivals = [Arrival(60.0, body["metadata"]["name"], body) for body in (wide, sliced)]
    options = WorldOptions(nodes=4, profile=profile, workload=WorkloadOptions(0, 600.0))
    return World(options, 1, arrivals=arrivals)


def test_a_gang_that_no_domain_holds_waits_and_says_so() -> None:
    world = too_wide()
    outcome = run(world.run())
    assert list(world.unfit) == [("default", "a")]
    assert (outcome.unfit, outcome.succeeded) == (1, 1)


def test_a_planner_that_knows_no_topology_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.model.gang.gangs.topology_of", lambda *_: TopologyRequest())
    with pytest.raises(BaseExceptionGroup) as group:
        run(too_wide().run())
    assert re.match("2: 4 members of a must be in one rack", str(unwrap_broken(group.value)))


@pytest.mark.parametrize(("per_rack", "racks_per_block"), [(2, 1), (4, 2), (8, 4), (3, 5)])
@pytest.mark.parametrize("asked", TOPOLOGIES, ids=str)
def test_a_job_counts_as_one_that_can_never_run_where_the_planner_places_none(
    asked: dict[str, Any], per_rack: int, racks_per_block: int
) -> None:
    shape = NodeShape(nodes_per_rack=per_rack, racks_per_block=racks_per_block, blocks_per_zone=2)
    options = WorldOptions(nodes=13, profile=replace(load_profile("default"), node=shape))
    fleet = NodeFleet(options.nodes, shape)
    nodes = [msgspec.convert(node_object(fleet, i, 0.0), Node) for i in range(options.nodes)]
    # Long enough for it to accept wider levels than the one that it prefers.
    waits = Condition("Placed", "False", last_transition_time=format_time(EPOCH - 3600.0))
    conditions = [Condition("Admitted", "True"), waits]
    for members in range(1, 15):
        for gpus in (4, 8):
            body = job_body("a", members=members, gpus=gpus, run_seconds=1.0)
            body["spec"]["topology"] = asked
            job = make_job("a", count=members, gpus=gpus, conditions=conditions,
                           topology=msgspec.convert(asked, Topology))  # fmt: skip
            state = PlacementState(ClusterState.of(nodes, [job], levels=DEFAULT_LEVELS))
            actions = decide(state, PlacementPolicy(), EPOCH).actions
            is_placed = any(isinstance(action, PlaceJob) for action in actions)
            assert is_placed is (never_fits(body, options) == ""), (members, gpus)


@pytest.mark.parametrize(
    ("topology", "nodes", "message"),
    [
        (Topology("rack", required=True), ["n1", "n3"], "2 members of a must be in one rack"),
        (Topology("", False, "", 0, "rack", 2), ["n1", "n3", "n2"], "2 members of a must be in"),
        (Topology("rack", required=True), ["n4"], "but are in None"),
    ],
)
def test_the_checker_reports_a_gang_that_is_not_together(
    topology: Topology, nodes: list[str], message: str
) -> None:
    checker = TopologyChecker({})
    for name, rack in (("n1", "r1"), ("n2", "r1"), ("n3", "r2")):
        checker.node(make_node(name, labels={"rack": rack}), name, 0.0)
    checker.node(make_node("n4"), "n4", 0.0)
    together = make_job("b", count=3, placement=make_placement(["n1", "n2", "n3"]),
                        topology=Topology("", False, "", 0, "rack", 2))  # fmt: skip
    checker.job(together, together.metadata.key, 0.0)
    job = make_job("a", count=len(nodes), placement=make_placement(nodes), topology=topology)
    with pytest.raises(PromiseBroken, match=message):
        checker.job(job, job.metadata.key, 0.0)
