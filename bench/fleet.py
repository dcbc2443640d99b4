"""A large cluster as its API server has it: nodes with the images of a kubelet, and gangs that run.

The objects are made in the process of the server, through its verbs: the members by the code that
makes them for the jobs controller, with the status that a kubelet reports.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from bench.objects import gang_body, node_body, status_patch
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.meta import Condition, to_wire
from fairlead.api.names import JOB_FINALIZER
from fairlead.api.resources import JOBS, NODES, PODS
from fairlead.api.values.times import format_time
from fairlead.app.local.embedded import install_crds
from fairlead.decide.attempts.seats import seats
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.rendering.members import PodFactory
from fairlead.embedded.client import InProcessClient
from fairlead.testing.builders import EPOCH, make_placement

#: Images of each node, of these those that all nodes have, and of the cluster.
NODE_IMAGES, BASE_IMAGES, IMAGES = 50, 20, 5_000
NAMESPACE = "default"
#: What a member asks of the eight GPUs of a node.
MEMBER_GPUS = 2


@dataclass(frozen=True)
class FleetSize:
    """So many nodes; gangs of so many members, three on a node."""

    nodes: int
    gangs: int
    members: int

    @property
    def pods(self) -> int:
        """Members of all gangs."""
        return self.gangs * self.members


async def fill(client: InProcessClient, size: FleetSize) -> None:
    """Make the nodes, the gangs that run on them, and their pods."""
    await install_crds(client)
    rng = random.Random(1)  # a benchmark
    images = [_image(number) for number in range(IMAGES)]
    for number in range(size.nodes):
        body = node_body(_node(number))
        own = rng.sample(images[BASE_IMAGES:], NODE_IMAGES - BASE_IMAGES)
        body["status"]["images"] = images[:BASE_IMAGES] + own
        await client.create(NODES, body)
    for number in range(size.gangs):
        await _gang(client, f"gang-{number:04}", size, first=number * size.members)


def _node(number: int) -> str:
    return f"node-{number:06}"


def _image(number: int) -> dict[str, Any]:
    name = f"registry.example/team/train-{number}"
    names = [f"{name}@sha256:{number:064x}", f"{name}:v{number}", f"{name}:main"]
    return {"names": names, "sizeBytes": 1_000_000 + number}


async def _gang(client: InProcessClient, name: str, size: FleetSize, *, first: int) -> None:
    """Make a gang that runs: its Job, placed and begun, and its pods, which report Running."""
    body = gang_body(name, size.members, gpus=MEMBER_GPUS)
    body["metadata"]["finalizers"] = [JOB_FINALIZER]
    await client.create(JOBS, body, namespace=NAMESPACE)
    at = format_time(EPOCH)
    nodes = [_node((first + i) % size.nodes) for i in range(size.members)]
    placement = make_placement(nodes)
    status = JobStatus(
        number=first // size.members + 1, state="Running", attempt=1, placement=placement,
        conditions=tuple(
            Condition(kind, "True", last_transition_time=at)
            for kind in ("Admitted", "Placed", "Running")
        ),
        attempts=(Attempt(1, begun_at=at, started_at=at),),
    )  # fmt: skip
    job: Job = await client.patch(
        JOBS, name, {"status": to_wire(status)}, namespace=NAMESPACE, subresource="status"
    )
    policy = JobsPolicy(peer_naming=PeerNaming.DNS, checkpoint_root="/checkpoints")
    factory = PodFactory(job, policy, resume_step=None)
    for serial, seat in enumerate(seats(job, placement), first):
        pod = await client.create(PODS, factory.make(seat), namespace=NAMESPACE)
        await client.patch(
            PODS, pod.metadata.name, status_patch(serial), namespace=NAMESPACE,
            subresource="status",
        )  # fmt: skip
