"""Jobs with levels, preferences and slices in a world in which nodes fail, and the checker."""

from __future__ import annotations

import pytest

from fairlead.api.topology import Topology
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.loop import run
from fairlead.sim.topology_checker import TopologyChecker
from fairlead.sim.workload import WorkloadOptions
from fairlead.sim.world import World, WorldOptions
from fairlead.testing.builders import make_job, make_node, make_placement


def test_gangs_keep_to_their_domains_and_slices_while_nodes_fail() -> None:
    workload = WorkloadOptions(
        jobs=60, seconds=1800.0, run_seconds_median=200.0, members_max=8, bound_share=1.0
    )
    world = World(WorldOptions(nodes=20, workload=workload, node_failures_per_day=60.0), 11)
    outcome = run(world.run())
    assert outcome.succeeded > 20
    assert world.topology.checked > 15


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
