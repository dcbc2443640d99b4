"""Arrays on a real API server, under two replicas of `fairlead controller` of which the leader is
killed, put to sleep past its lease, or robbed of it, each time after a drawn number of writes.

The witness saw every write, and judges it with the simulator's checker of arrays. How often an
element ran is read from the pods, which the controllers do not count.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    LOOK_SECONDS,
    Witness,
    http_client,
    install_kinds,
    job_body,
    sweep,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import LEASE, Replica, Replicas, holder, leader, replicas

from fairlead.api import names
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOB_ARRAYS, LEASES
from fairlead.api.values.indices import parse_indices
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes

INDICES = {"whole": "1-139:2", "holed": "0-69"}
#: Elements of the second that are stopped before they begin, between two changes of the leader.
STOPPED = {"whole": set[int](), "holed": {33, *range(50, 57), 69}}
AT_ONCE = 8
#: Elements that end between two changes of the leader, and most of their writes before the next:
#: each has seven of its job and four of its pod.
ENDS_PER_TURN = 12
WRITES_MAX = 80


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Its nodes have no kubelets: that there is no log to keep is said at once."""
    yield from own_plane(tmp_path_factory, flags=("--kubelet-preferred-address-types=ExternalIP",))


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def submit(client: HttpClient, name: str) -> None:
    spec = job_body("x", 1, gpus=1)["spec"]
    spec = {"indices": INDICES[name], "parallelism": AT_ONCE, "template": spec}
    await client.create(JOB_ARRAYS, {"metadata": {"name": name}, "spec": spec}, namespace="default")


async def array(client: HttpClient, name: str) -> JobArray:
    return await client.get(JOB_ARRAYS, name, namespace="default")


async def kill(client: HttpClient, world: Replicas, victim: Replica) -> None:
    world.kill(victim)
    await world.start()


async def put_to_sleep(client: HttpClient, world: Replicas, victim: Replica) -> None:
    """Wake it up only when the other leads: it finishes what it was about to do."""
    victim.lines.clear()
    os.kill(victim.process.pid, signal.SIGSTOP)

    async def another_leads() -> bool:
        return await holder(client) not in ("", victim.identity)

    await until(another_leads)
    os.kill(victim.process.pid, signal.SIGCONT)
    await lost(victim)


async def rob(client: HttpClient, world: Replicas, victim: Replica) -> None:
    """Free the lease under it: until it renews, it leads beside the one that takes it."""
    victim.lines.clear()
    freed = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
    await client.patch(LEASES, LEASE, freed, namespace="default")
    await lost(victim)


async def lost(victim: Replica) -> None:
    async def is_noticed() -> bool:
        return victim.said("Lost the lease")

    await until(is_noticed)


DISTURBANCES: list[Callable[[HttpClient, Replicas, Replica], Awaitable[None]]] = [
    kill, rob, put_to_sleep, rob, kill, rob, kill, rob,
]  # fmt: skip


@dataclass
class Ends:
    """Ends running elements with success, as many as it may, however slow the machine is."""

    witness: Witness
    nodes: VirtualNodes
    may: float = 0
    _seen: int = 0
    _running: dict[ObjectKey, bool] = field(default_factory=dict)

    async def run(self) -> None:
        """End them until cancelled; the writes of others are looked at as they are seen."""
        while True:
            for seen in self.witness.seen[self._seen :]:
                self._seen += 1
                if isinstance(seen.object, Pod) and seen.object.status.phase == "Running":
                    self._running.setdefault(seen.object.metadata.key, True)
            for key in [key for key, goes_on in self._running.items() if goes_on]:
                if self.may > 0:
                    self.nodes.fail_pod(key, exit_code=0)
                    self._running[key] = False
                    self.may -= 1
            await asyncio.sleep(LOOK_SECONDS)


def runs(witness: Witness, name: str) -> dict[int, dict[str, Pod]]:
    """Return the pods of each element of an array, by index and uid, as they were at last."""
    found: dict[int, dict[str, Pod]] = defaultdict(dict)
    for seen in witness.seen:
        stem, _, index = str(seen.object.metadata.labels.get(names.JOB_NAME, "")).rpartition("-")
        if isinstance(seen.object, Pod) and stem == name:
            found[int(index)][seen.object.metadata.uid] = seen.object
    return found


async def test_every_element_runs_once_however_often_the_leader_changes(
    cluster: ControlPlane, client: HttpClient
) -> None:
    rng = random.Random(12)
    async with (
        witnessed(client) as witness,
        virtual_nodes(client, 3) as nodes,
        replicas(cluster) as world,
        asyncio.TaskGroup() as group,
    ):
        ends = Ends(witness, nodes)
        ending = group.create_task(ends.run())
        for _ in range(2):
            await world.start()
        await leader(client, world)
        for name in INDICES:
            await submit(client, name)
        for turn, disturb in enumerate(DISTURBANCES):
            victim = await leader(client, world)
            wanted = len(witness.seen) + rng.randint(1, WRITES_MAX)
            ends.may += ENDS_PER_TURN

            async def is_written(wanted: int = wanted) -> bool:
                return len(witness.seen) >= wanted

            await until(is_written)
            if turn == 1:
                stopped = {"spec": {"cancelIndices": "33,50-56,69"}}
                await client.patch(JOB_ARRAYS, "holed", stopped, namespace="default")
            await disturb(client, world, victim)
        left = [(await array(client, name)).status.elements.waiting for name in INDICES]
        assert sum(left) > 0, "the last change met no array that had elements to make"

        ends.may = math.inf

        async def are_over() -> bool:
            return all([(await array(client, name)).is_finished for name in INDICES])

        await until(are_over)
        ending.cancel()
        statuses = {name: (await array(client, name)).status for name in INDICES}
        await witness.caught_up()
    witness.judge()
    elements = {name: set(parse_indices(text)) for name, text in INDICES.items()}
    assert witness.arrays.over == len(INDICES)
    assert witness.arrays.checked == sum(map(len, elements.values()))
    for name, status in statuses.items():
        failed = set(parse_indices(status.failed)) if status.failed else set[int]()
        assert failed == STOPPED[name]
        pods = runs(witness, name)
        assert set(pods) == elements[name] - failed, "no element is skipped"
        assert {len(each) for each in pods.values()} == {1}, "a change of the leader costs no run"
        phases = {pod.status.phase for each in pods.values() for pod in each.values()}
        assert phases == {"Succeeded"}
