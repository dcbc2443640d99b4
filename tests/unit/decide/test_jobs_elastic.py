"""An attempt with fewer members than its role counts: its pods, what they see, and its end."""

from __future__ import annotations

from base64 import b64decode

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming

from .jobs_world import World, new_job


def _running(nodes: int, *, least: int = 1, naming: PeerNaming = PeerNaming.ADDRESS) -> World:
    world = World(new_job(count=4, min_count=least), JobsPolicy(peer_naming=naming))
    world.nodes = world.nodes[:nodes]
    world.start()
    return world


def _gang_map(world: World) -> ConfigMap:
    (found,) = world.config_maps.values()
    return found


def test_the_attempt_has_the_size_of_its_placement_everywhere() -> None:
    world = _running(3)
    assert sorted(world.pods) == [f"train-1-worker-{i}" for i in range(3)]
    assert (world.status.state, world.status.members.total, world.status.members.running) == (
        "Running", 3, 3,
    )  # fmt: skip
    data = _gang_map(world)
    assert (data.data["WORLD_SIZE"], data.data["PET_NNODES"]) == ("3", "3")
    assert len(b64decode(data.binary_data["hostfile"]).splitlines()) == 3
    assert world.status.attempts[0].sizes == {"worker": 3}


def test_it_succeeds_once_all_members_of_its_size_have() -> None:
    world = _running(3)
    for i in (0, 1):
        world.end_pod(f"train-1-worker-{i}")
    world.settle()
    assert world.status.state == "Running"
    world.end_pod("train-1-worker-2")
    world.settle()
    assert world.condition("Succeeded")[0] == "True"
    assert world.job is not None
    assert (world.job.member_count, world.status.members.succeeded) == (3, 3)
    (record,) = world.records.values()
    assert record.member_count == 3


def test_after_a_lost_node_the_next_attempt_is_smaller_and_a_later_one_larger() -> None:
    world = _running(4)
    world.lose_node("n1")
    world.run_to(world.now + 40)
    world.restart()
    assert (world.status.attempt, world.status.members.total) == (2, 3)
    assert _gang_map(world).data["WORLD_SIZE"] == "3"
    world.end_pod("train-2-worker-0", signal=9)
    del world.troubles["n1"]
    world.run_to(world.now + 60)
    world.restart()
    assert (world.status.attempt, world.status.members.total) == (3, 4)
    assert [a.sizes["worker"] for a in world.status.attempts] == [4, 3, 4]


def test_an_attempt_of_one_member_is_a_lone_one_and_leaves_no_service_behind() -> None:
    world = _running(2, naming=PeerNaming.DNS)
    assert len(world.services) == 1
    world.lose_node("n1")
    world.run_to(world.now + 40)
    world.restart()
    assert world.config_maps == {}
    (pod,) = world.pods.values()
    env = {v.name: v.value for v in pod.spec.containers[0].env}
    assert (env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("1", "localhost")
    world.end_pod(pod.metadata.name)
    world.settle()
    assert world.condition("Succeeded")[0] == "True"
    assert world.services == {}
