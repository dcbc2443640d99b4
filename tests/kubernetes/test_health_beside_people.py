"""A sick node that a person drains with kubectl at the same time, while all that leads there is
killed.

On a real API server: a line of the kernel and an error of a device in a tree of files are found by
the agent and written by its collector, a person's `kubectl drain` meets the drain of ours, and
agent, collector and controllers are cancelled at random moments and begin again with what is kept.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
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
from tests.unit.node.host_tree import NEXT_BOOT, HostTree

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.names import TAINT_UNHEALTHY
from fairlead.api.resources import FLEETS, JOBS, NODE_REPORTS, NODES
from fairlead.app.collector import REPORT_BYTES_MAX, Collector
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.kube.client import HttpClient
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.node.agent import Agent
from fairlead.node.files import on_replaced, read_file
from fairlead.node.registry import SOURCES, sources
from fairlead.node.reports.state import open_state
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.supervisor import Supervisor

pytestmark = pytest.mark.kubernetes
SEED, LIFE_SECONDS = 40, (0.5, 3.0)
#: A collector waits for some seconds before its first report.
AGENT_LIFE_SECONDS = (4.0, 9.0)
READ = ("kernel-log", "pcie")
FOUND = {"gpu-xid", "pcie-fatal"}
ERRORS = "sys/bus/pci/devices/0000:0f:00.0"
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


class MachineLives:
    """The agent of a node and its collector on a tree of files, each one life after another."""

    def __init__(self, client: HttpClient, node: str, root: Path) -> None:
        self.tree, self.ended = HostTree(root / "host"), Counter[str]()
        self._client, self._node, self._rng = client, node, random.Random(SEED)
        self._report, self._state = root / "node.json", root / "state.db"
        self.counts_errors(0)

    def counts_errors(self, count: int) -> None:
        """Have a device of PCI count so many fatal errors."""
        for name, text in (("vendor", "0x10de"), ("device", "0x2330"),
                           ("aer_dev_fatal", f"TOTAL_ERR_FATAL {count}")):  # fmt: skip
            self.tree.write(f"{ERRORS}/{name}", text)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lives("agent", self._run_agent))
            group.create_task(self._lives("collector", self._run_collector))

    async def _lives(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(*AGENT_LIFE_SECONDS)):
                    await run()
            self.ended[name] += 1

    async def _run_agent(self) -> None:
        host, state = Host(self.tree.root), open_state(self._state)
        settings = AgentSettings(disabled=tuple(name for name in SOURCES if name not in READ))
        try:
            await Agent(host, sources(host, settings), state, report=self._report,
                        read_seconds_max=10, report_seconds=60).run()  # fmt: skip
        finally:
            state.close()

    async def _run_collector(self) -> None:
        collector = Collector(
            self._client, self._node, lambda: read_file(self._report, REPORT_BYTES_MAX),
            clock=CLOCK, rng=self._rng,
        )  # fmt: skip
        with on_replaced(self._report, collector.notify):
            await collector.run()


@asynccontextmanager
async def running(lives: Lives | MachineLives) -> AsyncGenerator[None]:
    task = asyncio.create_task(lives.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_persons_drain_of_a_sick_node_outlasts_its_repair_whatever_is_killed(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    kubectl = Kubectl(cluster.binaries / "kubectl", tmp_path, cluster.kubeconfig())
    profile = load_profile("instant")
    lives = Lives(client)
    async with virtual_nodes(client, 4, profile=profile), running(lives):
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
        machine = MachineLives(client, sick, tmp_path)
        async with running(machine):
            machine.tree.xid(48)
            machine.counts_errors(2)

            async def is_tainted() -> bool:
                return TAINT_UNHEALTHY in await taints(sick)

            async def is_reported() -> bool:
                found = [each.status.faults for each in (await client.list(NODE_REPORTS)).items]
                return {each.check for faults in found for each in faults} == FOUND

            await until(is_reported)
            patience = f"--timeout={PATIENCE_SECONDS:.0f}s"
            drained = await kubectl("drain", sick, "--force", "--delete-emptydir-data", patience)
            assert drained.code == 0, drained

            async def moved() -> bool:
                return sick not in await places() and await runs()

            async def is_rebooting() -> bool:
                record = record_of((await client.get(NODES, sick)).metadata.annotations)
                return record is not None and record.state is NodeState.REBOOTING

            async def is_back() -> bool:
                return not await is_tainted()

            await lives.next_end()
            await until(moved)
            await lives.next_end()
            await until(is_rebooting)
            assert await is_reported()
            assert await is_tainted()
            machine.counts_errors(0)
            machine.tree.boots(NEXT_BOOT)
            await lives.next_end()
            await until(is_back)
            await lives.next_end()
        assert min(machine.ended[name] for name in ("agent", "collector")) > 0
        assert (await client.get(NODES, sick)).spec.unschedulable, "the cordon is the person's"
        fleet = (await client.get(FLEETS, FLEET_NAME)).status
        assert sum(each.count for each in fleet.removed) == 1, "one session, booked once"
        job = await client.get(JOBS, "train", namespace="default")
        assert job.status.user_failures == 0
        assert lives.crashes == []
        await client.delete(JOBS, "train", namespace="default")
        await client.delete(NODE_REPORTS, sick)
