"""What nodes can attach, against a count by sets that starts anew for each node, as
kube-scheduler's plugin NodeVolumeLimits does (`csi.go`), over random events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.volumes import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from fairlead.api.values.quantity import ATTACHED
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.inventory.device_offers import UNLIMITED
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node, make_pod
from fairlead.testing.volume_builders import (
    make_attachment,
    make_claim,
    make_csi_node,
    make_storage_class,
    make_volume,
)

DRIVER, CLASS, NODES = "disk.test", make_storage_class("s"), ("a", "b", "c")


@dataclass
class World:
    """The objects, as the judge sees them."""

    nodes: dict[str, CSINode] = field(default_factory=dict[str, CSINode])
    claims: dict[str, PersistentVolumeClaim] = field(
        default_factory=dict[str, PersistentVolumeClaim]
    )
    volumes: dict[str, PersistentVolume] = field(default_factory=dict[str, PersistentVolume])
    attached: dict[str, VolumeAttachment] = field(default_factory=dict[str, VolumeAttachment])
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])

    def volume_of(self, name: str) -> str | None:
        claim = self.claims.get(name)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name)
        if volume is not None:
            return volume.spec.csi.volume_handle if volume.spec.csi is not None else None
        return f"claim {name}" if claim.storage_class == "s" else None

    def used(self, node: str) -> int:
        """How many volumes of the driver are on a node, for kube-scheduler."""
        pods = [pod for pod in self.pods.values() if pod.spec.node_name == node]
        names = {v.name for pod in pods for v in pod.spec.volumes}
        of_pods = {found for name in names if (found := self.volume_of(name)) is not None}
        count = len(of_pods)
        others = set[str]()
        for each in self.attached.values():
            volume = self.volumes.get(each.spec.source.persistent_volume_name or "")
            if each.spec.node_name == node and volume is not None and volume.spec.csi is not None:
                others.add(volume.spec.csi.volume_handle)
        return count + len(others - of_pods)


def change(rng: random.Random, world: World, state: ClusterState) -> None:
    """Change one object, in the world and in the state."""
    table, number = state.volumes, rng.randrange(5)
    there = rng.random() < 0.7
    match rng.choice(("claim", "volume", "attachment", "pod", "pod", "node")):
        case "claim":
            name = f"c{number}"
            claim = make_claim(name, volume=rng.choice(("", f"v{rng.randrange(5)}")),
                               storage_class=rng.choice(("", "s")))  # fmt: skip
            world.claims.pop(name, None)
            world.claims |= {name: claim} if there else {}
            table.put_claim(("default", name), claim if there else None)
        case "volume":
            name = f"v{number}"
            volume = make_volume(name, driver=rng.choice(("", DRIVER, DRIVER)),
                                 handle=f"h{rng.randrange(4)}")  # fmt: skip
            world.volumes.pop(name, None)
            world.volumes |= {name: volume} if there else {}
            table.put_volume(name, volume if there else None)
        case "attachment":
            found = make_attachment(f"v{number}", rng.choice(NODES), DRIVER)
            name = found.metadata.name
            world.attached.pop(name, None)
            world.attached |= {name: found} if there else {}
            table.limits.put_attachment(name, found if there else None)
        case "pod":
            name = f"p{number}-{rng.randrange(3)}"
            if name in world.pods:
                del world.pods[name]
                state.pod_deleted(("default", name))
            else:
                claims = rng.sample([f"c{i}" for i in range(5)], rng.randrange(4))
                world.pods[name] = make_pod(name, node=rng.choice(NODES), claims=claims)
                state.pod_changed(world.pods[name])
        case _:
            name = rng.choice(NODES)
            node = make_csi_node(name, disk_test=rng.choice((None, 2, 5)))
            world.nodes.pop(name, None)
            world.nodes |= {name: node} if there else {}
            table.limits.put_node(name, node if there else None)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_left_is_what_kube_scheduler_would_count(seed: int) -> None:
    rng, world = random.Random(seed), World()
    state = ClusterState.of(
        [make_node(name) for name in NODES], [make_job("j", claims=["none"])],
        storage_classes=[CLASS],
    )  # fmt: skip
    compared = 0
    for _ in range(120):
        change(rng, world, state)
        state.follow_claims()
        row = state.table.find_row(ATTACHED + DRIVER)
        stated = {n: world.nodes[n].limits for n in NODES if n in world.nodes}
        if row is None:
            assert not any(stated.values())
            continue
        for node in NODES:
            slot = state.table.slot(node)
            assert slot is not None
            left = int(state.table.allocatable[row, slot] - state.table.used[row, slot])
            limit = stated.get(node, {}).get(DRIVER)
            expected = UNLIMITED if limit is None else limit - world.used(node)
            assert left == expected, node
            compared += limit is not None
    assert compared > 30


@pytest.mark.parametrize("seed", range(30))
def test_no_gang_gets_places_that_kube_scheduler_would_refuse(seed: int) -> None:
    """Members may share volumes, with each other and with pods that are there."""
    rng, world = random.Random(seed), World()
    for i in range(5):
        world.claims[f"c{i}"] = make_claim(f"c{i}", volume=f"v{i}")
        world.volumes[f"v{i}"] = make_volume(f"v{i}", driver=DRIVER, handle=f"h{i % 4}")
    state = ClusterState.of(
        [make_node(name) for name in NODES], claims=world.claims.values(),
        volumes=world.volumes.values(), storage_classes=[CLASS],
    )  # fmt: skip
    for name in NODES:
        world.nodes[name] = make_csi_node(name, disk_test=rng.randint(3, 5))
        state.volumes.limits.put_node(name, world.nodes[name])
    planner = PlacementState(state)
    placed = 0
    for number in range(6):
        claims = rng.sample([f"c{i}" for i in range(5)], rng.randint(1, 3))
        count = rng.randint(1, 3)
        job: Job = make_job(f"j{number}", count=count, gpus=0, cpu=1, claims=claims,
                            created=EPOCH + number)  # fmt: skip
        state.job_changed(job)
        for action in decide(planner, PlacementPolicy(), EPOCH + number).actions:
            if not isinstance(action, PlaceJob):
                continue
            placed += 1
            written = as_written(action)
            state.job_changed(written)
            assert written.status.placement is not None
            for role in written.status.placement.roles:
                for i, node in enumerate(role.nodes):
                    name = f"{written.metadata.name}-{i}"
                    names = [v.name for v in written.spec.roles[0].template.spec.volumes]
                    labels = {"fairlead.dev/role": role.role, "fairlead.dev/index": str(i)}
                    pod = make_pod(name, node=node, claims=names, owner=written, labels=labels)
                    world.pods[name] = pod
                    state.pod_changed(pod)
            for node in NODES:
                assert world.used(node) <= world.nodes[node].limits[DRIVER], (node, written)
    assert placed
