"""A sick node that a person drains with kubectl at the same time, while the controllers are killed.

On a real API server: the report is written, a person's `kubectl drain` meets the drain of ours, and
what decides about both is cancelled at random moments and begins again with what is stored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.operating import (
    CLOCK,
    http_client,
    install_kinds,
    job_body,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_node_health import body_of, fault, report

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.names import TAINT_UNHEALTHY
from fairlead.api.resources import FLEETS, JOBS, NODE_REPORTS, NODES
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.app.policies import Policies
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.kube.client import HttpClient
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.runtime.metrics import Metrics
from fairlead.runtime.supervisor import Supervisor

pytestmark = pytest.mark.kubernetes
SEED, LIFE_SECONDS = 40, (0.5, 3.0)
HEALTH = HealthPolicy(enabled=True, act_on=("*",), critical_drain_seconds=60, validate_seconds=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await client.close()


class Lives:
    """The controllers, one life after another; `ended` counts those that were cut short."""

    def __init__(self, client: HttpClient) -> None:
        self._client, self._rng = client, random.Random(SEED)
        self.ended, self.crashes = 0, list[str]()

    async def run(self) -> None:
        """Run until cancelled, each life for a random time; the first ones are the shortest."""
        while True:
            made = Controllers(
                Policies(JobsPolicy(checkpoint_wait_seconds=1), health=HEALTH), self._client,
                MemoryHistory(),
                context=ProcessContext(CLOCK, Metrics(CollectorRegistry(), version="test")),
            )  # fmt: skip
            supervisor = Supervisor(made.services(), clock=CLOCK, rng=self._rng)
            with suppress(TimeoutError):
                # Longer with each, so that the slowest machine gets on.
                seconds = self._rng.uniform(*LIFE_SECONDS) * (1 + self.ended)
                await asyncio.wait_for(supervisor.run(), seconds)
            self.crashes += [str(s.last_error) for s in supervisor.health().services
                             if s.crash_count]  # fmt: skip
            self.ended += 1

    async def next_end(self) -> None:
        """Wait until one more life has been cut short."""
        ended = self.ended

        async def is_over() -> bool:
            return self.ended > ended

        await until(is_over)


@asynccontextmanager
async def lives_of(client: HttpClient) -> AsyncGenerator[Lives]:
    lives = Lives(client)
    task = asyncio.create_task(lives.run())
    try:
        yield lives
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_persons_drain_of_a_sick_node_outlasts_its_repair_though_controllers_are_killed(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    kubectl = Kubectl(cluster.binaries / "kubectl", tmp_path, cluster.kubeconfig())
    profile = load_profile("instant")
    async with virtual_nodes(client, 4, profile=profile), lives_of(client) as lives:
        await client.create(JOBS, job_body("train", 2, seconds=3600), namespace="default")

        async def places() -> list[str]:
            job = await client.get(JOBS, "train", namespace="default")
            is_running = job.status.state == "Running"
            return sorted(nodes_of(job.status.placement)) if is_running else []

        async def taints(name: str) -> set[str]:
            return {each.key for each in (await client.get(NODES, name)).spec.taints}

        async def runs() -> bool:
            return bool(await places())

        await until(runs)
        sick = (await places())[0]
        uid = (await client.get(NODES, sick)).metadata.uid
        await report(client, sick, body_of(uid, fault()))
        patience = f"--timeout={PATIENCE_SECONDS:.0f}s"
        drained = await kubectl("drain", sick, "--force", "--delete-emptydir-data", patience)
        assert drained.code == 0, drained

        async def moved() -> bool:
            return sick not in await places() and await runs()

        async def is_resetting() -> bool:
            record = record_of((await client.get(NODES, sick)).metadata.annotations)
            return record is not None and record.state is NodeState.RESETTING

        async def is_back() -> bool:
            return TAINT_UNHEALTHY not in await taints(sick)

        await lives.next_end()
        await until(moved)
        await lives.next_end()
        await until(is_resetting)
        assert await taints(sick) >= {TAINT_UNHEALTHY}
        await report(client, sick, body_of(uid))
        await lives.next_end()
        await until(is_back)
        await lives.next_end()
        assert (await client.get(NODES, sick)).spec.unschedulable, "the cordon is the person's"
        fleet = (await client.get(FLEETS, FLEET_NAME)).status
        assert sum(each.count for each in fleet.removed) == 1, "one session, booked once"
        job = await client.get(JOBS, "train", namespace="default")
        assert job.status.user_failures == 0
        assert lives.crashes == []
        await client.delete(JOBS, "train", namespace="default")
        await client.delete(NODE_REPORTS, sick)
