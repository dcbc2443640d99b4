"""A profile that counts from the machine's start, from its fault to a node that takes work again.

The controllers, the collector and the agent's own parts, in virtual time. The machine is a tree of
files with a kubelet and GRUB; its reboot is another boot id, and the command line of the menu.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_health import ACTING
from tests.unit.node.host_tree import changed
from tests.unit.node.tuned_node import DIRECTORY, Node, line, profile_of

from fairlead.api.cluster.node_report import AgentAnswer, SettingState
from fairlead.api.resources import NODES
from fairlead.app.collector import Collector
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.health.policy import HealthPolicy
from fairlead.embedded.virtual.hardware import Quality
from fairlead.model.health.node_record import NodeState, record_of
from fairlead.node.readers import report as looked
from fairlead.node.registry import SOURCES
from fairlead.node.reports.report import report_of
from fairlead.node.reports.state import KeptRepair
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Host
from fairlead.sim.loop import run

COLLECTION = line("imageMaximumGCAge", "48h")
IOMMU = line("iommu", "pt", kind="KernelArgument")
SOMAXCONN, ACCEPTED = "proc/sys/net/core/somaxconn", "var/lib/accepted.json"
BACKLOG = line("net.core.somaxconn", "9000", kind="Sysctl")
TICK_SECONDS = 15.0
REBOOT_SECONDS = 90.0


class TunedMachine:
    """A machine of the fleet whose agent applies a profile, with its collector."""

    def __init__(
        self, fleet: FleetWorld, name: str, node: Node, outside: ProcessPoolExecutor
    ) -> None:
        self.fleet, self.name, self.node, self.outside = fleet, name, node, outside
        self.boots = 1
        self.at = fleet.clock.now()
        #: Whether it computes wrong, as it is set.
        self.is_broken: Callable[[], bool] = lambda: False
        self.kept = Kept()
        self.repair: KeptRepair | None = None
        self.text = self.handled = b""
        self.collector = Collector(
            fleet.client, name, lambda: self.text, ask=self.asked, clock=fleet.clock,
            rng=random.Random(0),
        )  # fmt: skip

    @property
    def host(self) -> Host:
        return replace(self.node.host(), clock=At(self.at))

    async def state(self) -> NodeState:
        node = await self.fleet.client.get(NODES, self.name)
        record = record_of(node.metadata.annotations)
        return NodeState.READY if record is None else record.state

    async def until(self, state: NodeState, seconds: float = 3600) -> None:
        async def holds() -> bool:
            return await self.state() is state

        try:
            await self.fleet.until(holds, seconds)
        except AssertionError as error:
            said = [f"{each.action}: {each.message}" for each in await self.fleet.decisions()]
            pytest.fail(f"{error}: {state}, but {await self.state()}; {self.repair}; {said[-8:]}")

    def is_set_to(self, value: int) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return self.host.number(SOMAXCONN) == value

        return holds

    def asked(self, data: bytes) -> None:
        Path(self.node.settings.repairs.requests).write_bytes(data)

    async def run(self) -> None:
        """One boot after the other, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.collector.run())
            while True:
                await self.boot()
                self.boots += 1
                await asyncio.sleep(REBOOT_SECONDS)
                self.node.starts_again(f"boot-{self.boots}")
                self.node.tree.passes(-800)
                self.node.kubelet()
                info = {"status": {"nodeInfo": {"bootID": f"boot-{self.boots}"}}}
                await self.fleet.client.patch(NODES, self.name, info, subresource="status")
                self.node.tree.write(SOMAXCONN, 4096)
                self.compute()

    async def boot(self) -> None:
        """The agent, as it follows its source and its requests, until the machine starts again."""
        source = SOURCES["tuning"](self.host, self.node.settings)
        assert source is not None
        host = self.host
        watch = MachineWatch((source,), self.kept, boot_id=host.boot_id(), now=host.now())
        due = self.fleet.clock.now()
        self.say(watch)
        while not self.has_gone_down():
            await asyncio.sleep(TICK_SECONDS)
            self.at = self.fleet.clock.now()
            self.node.tree.passes(TICK_SECONDS)
            if self.fleet.clock.now() >= due:
                looked(source, watch, (source.read(), None), self.host.now())
                due += source.period_seconds
            self.carry_out()
            self.compute()
            self.say(watch)
        self.kept = watch.kept()

    def compute(self) -> None:
        quality = Quality.CORRUPT if self.is_broken() else Quality.GOOD
        self.fleet.virtual.set_quality(self.name, quality)

    def has_gone_down(self) -> bool:
        at_reboot = self.node.folder / "at-reboot"
        is_down = at_reboot.exists()
        at_reboot.unlink(missing_ok=True)
        return is_down

    def say(self, watch: MachineWatch) -> None:
        report = report_of(watch, self.host.now(), repair=self.repair)
        self.text = msgspec.json.encode(report)

    def carry_out(self) -> None:
        """Follow a request that is new, in a process: programs run in real time."""
        asked = Path(self.node.settings.repairs.requests)
        data = asked.read_bytes() if asked.exists() else b""
        if data and data != self.handled:
            self.repair = self.outside.submit(self.node.carry_out, At(self.at)).result()
        self.handled = data


@dataclass(frozen=True)
class At:
    """A clock that stands still."""

    at: float

    def now(self) -> float:
        return self.at


@pytest.fixture(scope="module")
def outside() -> Iterator[ProcessPoolExecutor]:
    """A process outside virtual time, which has imported all that the agent's step needs."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(os.getpid).result()
        yield pool


@asynccontextmanager
async def tuned(
    path: Path, outside: ProcessPoolExecutor, *lines: str, health: HealthPolicy = ACTING,
    accepted: str = "",
) -> AsyncGenerator[TunedMachine]:  # fmt: skip
    """A fleet of two nodes, one of which has an agent that applies a profile of these lines."""
    rates = CloudRates(preflight=bool(health.test_suite))
    async with FleetWorld.running(rates, health=health) as fleet:
        await fleet.pool(hold=2, disruption={})
        await asyncio.sleep(1200)
        node = Node(path)
        node.grub()
        node.tree.write(SOMAXCONN, 4096)
        node.tree.write(ACCEPTED, accepted)
        node.settings = changed(
            node.settings, "tuning", kubelet_directory=DIRECTORY, accepted_file=f"/{ACCEPTED}"
        )
        node.profile.write_text(profile_of(*lines))
        machine = TunedMachine(fleet, (await fleet.nodes())[0].metadata.name, node, outside)
        task = fleet.group.create_task(machine.run())
        yield machine
        task.cancel()
        assert fleet.crashes() == []


def test_a_profile_of_the_kubelet_and_the_kernel_takes_one_reboot_and_the_node_comes_back(
    tmp_path: Path, outside: ProcessPoolExecutor
) -> None:
    async def main() -> None:
        async with tuned(tmp_path, outside, COLLECTION, IOMMU) as machine:
            before = machine.node.boot_line()
            await machine.until(NodeState.REBOOTING)
            await machine.until(NodeState.READY)
            await asyncio.sleep(900)  # three looks
            assert (await machine.state(), machine.boots) == (NodeState.READY, 2)
            assert machine.node.body["imageMaximumGCAge"] == "48h"
            assert machine.node.boot_line() == f"{before} iommu=pt"
            assert machine.repair is not None
            assert machine.repair.answer is AgentAnswer.ACCEPTED
            said = [each.action for each in await machine.fleet.decisions()]
            assert [said.count(each) for each in ("Cordon", "Rebooting", "Ready")] == [1, 1, 1]
            assert "Replacing" not in said

    run(main())


GATED = replace(ACTING, test_suite="quick")


def test_a_change_with_which_a_test_fails_is_taken_back_and_the_node_comes_back(
    tmp_path: Path, outside: ProcessPoolExecutor
) -> None:
    async def main() -> None:
        async with tuned(tmp_path, outside, COLLECTION, IOMMU, health=GATED) as machine:
            before = machine.node.boot_line()
            machine.is_broken = lambda: "iommu=pt" in machine.node.boot_line().split()
            await machine.until(NodeState.REBOOTING)
            await machine.until(NodeState.READY)
            assert (machine.boots, machine.node.boot_line()) == (3, before)
            assert not machine.node.file.exists()
            await asyncio.sleep(900)
            assert (await machine.state(), machine.boots) == (NodeState.READY, 3)
            for each in ("KernelArgument iommu", "KubeletConfig imageMaximumGCAge"):
                found = machine.node.differences()[each]
                assert found.state is SettingState.REFUSED
                assert found.why.endswith("the node was not healthy with it")
            said = [each.action for each in await machine.fleet.decisions()]
            assert "Replacing" not in said

    run(main())


def test_what_takes_effect_at_once_is_set_on_the_empty_node_and_tested_without_a_reboot(
    tmp_path: Path, outside: ProcessPoolExecutor
) -> None:
    async def main() -> None:
        async with tuned(tmp_path, outside, BACKLOG, health=GATED) as machine:
            await machine.until(NodeState.REBOOTING)
            assert machine.host.number(SOMAXCONN) == 4096, "it is set on the empty node alone"
            await machine.until(NodeState.VALIDATING)
            assert machine.host.number(SOMAXCONN) == 9000
            await machine.until(NodeState.READY)
            await asyncio.sleep(900)
            assert (await machine.state(), machine.boots) == (NodeState.READY, 1)
            assert machine.repair is not None
            assert (machine.repair.answer, machine.repair.message) == (
                AgentAnswer.DONE, "settings were set"
            )  # fmt: skip

    run(main())


def test_what_takes_effect_at_once_and_fails_a_test_is_taken_back_with_its_earlier_value(
    tmp_path: Path, outside: ProcessPoolExecutor
) -> None:
    async def main() -> None:
        lines = (BACKLOG.replace("9000", "20000"),)
        earlier = '{"net.core.somaxconn":"9000"}'
        async with tuned(tmp_path, outside, *lines, health=GATED, accepted=earlier) as machine:
            machine.is_broken = lambda: machine.host.number(SOMAXCONN) == 20_000
            await machine.fleet.until(machine.is_set_to(9000), 60)
            await machine.fleet.until(machine.is_set_to(20_000), 3600)
            await machine.fleet.until(machine.is_set_to(9000), 3600)
            await machine.until(NodeState.READY)
            await asyncio.sleep(900)
            assert (await machine.state(), machine.boots) == (NodeState.READY, 2)
            assert machine.host.number(SOMAXCONN) == 9000
            found = machine.node.differences()["net.core.somaxconn"]
            assert (found.state, found.actual) == (SettingState.REFUSED, "9000")
            assert found.why.endswith("the node was not healthy with it")
            assert "Stopped" in [each.action for each in await machine.fleet.decisions()]

    run(main())
