"""Host ports and anti-affinity in simulated worlds, checked by what knows the objects alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.api.kubernetes.pod_parts import ContainerPort
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.placement_checkers import NeighbourChecker
from fairlead.sim.setup.workload import WorkloadOptions
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World
from fairlead.testing.builders import (
    make_anti_affinity,
    make_job,
    make_node,
    make_placement,
    make_pod,
)

PORT = ContainerPort(container_port=80, host_port=80)


def test_no_rule_is_broken_in_a_world_in_which_all_jobs_have_some() -> None:
    workload = WorkloadOptions(
        jobs=40, seconds=1800.0, run_seconds_median=120.0, members_max=4, ruled_share=1.0
    )
    options = WorldOptions(nodes=6, workload=workload, node_failures_per_day=60.0)
    world = World(options, 11)
    outcome = run(world.run())
    assert outcome.succeeded > 20
    assert world.neighbours.checked > 30


class History:
    """Two nodes of one rack and one of another; time does not matter."""

    def __init__(self) -> None:
        self.checker = NeighbourChecker()
        for name, rack in (("n1", "r1"), ("n2", "r1"), ("n3", "r2")):
            self.checker.node(make_node(name, labels={"rack": rack}), name, 0.0)

    def job(self, name: str, nodes: list[str], **more: Any) -> None:
        job = make_job(name, count=len(nodes), gpus=1, placement=make_placement(nodes), **more)
        self.checker.job(job, job.metadata.key, 0.0)

    def pod(self, name: str, node: str, **more: Any) -> None:
        pod = make_pod(name, node=node, **more)
        self.checker.pod(pod, pod.metadata.key, 0.0)


def two_members_share_a_port(history: History) -> None:
    history.job("a", ["n1", "n1"], ports=[PORT])


def a_port_is_taken_by_a_pod(history: History) -> None:
    history.pod("p", "n1", ports=[PORT])
    history.job("a", ["n1"], ports=[PORT])


def a_member_is_near_what_it_shuns(history: History) -> None:
    history.pod("p", "n2", labels={"app": "x"})
    history.job("a", ["n1"], affinity=make_anti_affinity("rack", app="x"))


def a_member_is_near_what_shuns_it(history: History) -> None:
    history.job("shy", ["n2"], affinity=make_anti_affinity("rack", app="x"))
    history.job("a", ["n1"], pod_labels={"app": "x"})


PLANTED = [
    two_members_share_a_port,
    a_port_is_taken_by_a_pod,
    a_member_is_near_what_it_shuns,
    a_member_is_near_what_shuns_it,
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_planted_neighbour_is_reported(planted: Callable[[History], None]) -> None:
    with pytest.raises(PromiseBroken, match=r"^1: "):
        planted(History())


def test_what_is_apart_is_not_reported() -> None:
    history = History()
    history.pod("p", "n1", ports=[PORT], labels={"app": "x"})
    history.job("a", ["n2", "n3"], ports=[PORT])
    history.job("b", ["n3"], affinity=make_anti_affinity("rack", app="x"))
    history.job("b", ["n3"], affinity=make_anti_affinity("rack", app="x"))
    assert history.checker.checked == 3
