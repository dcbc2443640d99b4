"""The collector of one agent, on the API of the embedded cluster in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.node.host_tree import HostTree, Looks, changed
from tests.unit.runtime.test_mirror import Warnings

from fairlead.api.cluster.node_report import Action
from fairlead.api.meta import to_wire
from fairlead.api.names import HEALTH, TUNING_PROFILE
from fairlead.api.resources import NODE_REPORTS, NODES
from fairlead.api.status import NotFound
from fairlead.api.values.times import format_time, parse_time
from fairlead.app.collector import (
    CONFIRM_SECONDS,
    LOOK_SECONDS,
    REQUEST_SECONDS_MIN,
    START_SECONDS,
    WRITE_SECONDS_MIN,
    Collector,
)
from fairlead.model.health.node_record import (
    NodeRecord,
    NodeRequest,
    NodeState,
    Try,
    record_text,
)
from fairlead.node.repairs import REQUEST_VERSION, RepairRequest, decode_request
from fairlead.node.reports.report import Report, report_of
from fairlead.node.settings import AgentSettings
from fairlead.runtime.client import Request, RequestVerb
from fairlead.runtime.logs import SILENT, Logger
from fairlead.sim.loop import run
from fairlead.testing.builders import make_node


class Machine:
    """A node, the report of its agent, and the collector."""

    def __init__(self, fleet: FleetWorld, root: Path, log: Logger = SILENT) -> None:
        self.fleet = fleet
        self.tree = HostTree(root / "host")
        self.looks = Looks(self.tree, "kernel-log")
        self.text = b""
        self.handed: list[bytes] = []
        self.chosen: list[bytes] = []
        self.collector = Collector(
            fleet.client, "n1", self.read, ask=self.handed.append, choose=self.chosen.append,
            clock=fleet.clock, rng=random.Random(0), log=log,
        )  # fmt: skip

    def read(self) -> bytes:
        if not self.text:
            raise FileNotFoundError(2, "no such file")
        return self.text

    def say(self) -> Report:
        """Write the report anew, at the time of the world."""
        self.looks.look()
        report = report_of(self.looks.watch, self.looks.host.now())
        report = msgspec.structs.replace(report, at=format_time(self.fleet.clock.now()))
        self.text = msgspec.json.encode(report)
        return report

    async def make_node(self, uid: str = "") -> str:
        node = to_wire(make_node("n1"))
        body = {"metadata": {"name": "n1"}, "spec": node.get("spec", {})}
        return (await self.fleet.client.create(NODES, body)).metadata.uid


def test_what_changes_is_written_at_once_and_the_rest_confirmed_rarely(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            uid = await machine.make_node()
            writes: list[float] = []
            call = fleet.client.call

            async def counted(request: object) -> object:
                if (
                    getattr(request, "resource", None) is NODE_REPORTS
                    and (getattr(request, "verb", None) is RequestVerb.PATCH)
                    and getattr(request, "body", None)
                ):
                    writes.append(fleet.clock.now())
                return await call(request)  # type: ignore[arg-type] # any request

            fleet.client.call = counted  # type: ignore[method-assign] # for one test
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(60)
            assert writes == [], "there is no report yet"
            machine.say()
            await asyncio.sleep(5)
            assert len(writes) == 1
            machine.tree.xid(48)
            at = fleet.clock.now()
            machine.say()
            await asyncio.sleep(10)
            assert len(writes) == 2
            assert writes[1] - at <= WRITE_SECONDS_MIN + 1
            found = await fleet.client.get(NODE_REPORTS, "n1")
            assert [each.codes for each in found.status.faults] == [("48",)]
            assert found.status.node_uid == uid
            for _ in range(360):  # an hour in which the agent counts on
                await asyncio.sleep(10)
                machine.tree.xid(48)
                machine.say()
            assert len(writes) - 2 <= 3600 / (0.8 * CONFIRM_SECONDS) + 1
            found = await fleet.client.get(NODE_REPORTS, "n1")
            assert found.status.faults[0].count > 300
            machine.collector.stop()
            await task

    run(main())


def test_a_replaced_report_is_written_at_once_and_many_at_a_bounded_rate(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            versions = set[str]()

            async def codes_after(code: int, seconds: float) -> int:
                machine.tree.xid(code)
                machine.say()
                machine.collector.notify()
                await asyncio.sleep(seconds)
                found = await fleet.client.get(NODE_REPORTS, "n1")
                versions.add(found.metadata.resource_version)
                return len(found.status.faults)

            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(START_SECONDS + 2 * LOOK_SECONDS)
            found = [await codes_after(code, 0.2) for code in (48, 79)]
            assert found == [1, 2], "it waits neither for a look nor for the write before it"
            await asyncio.sleep(2 * WRITE_SECONDS_MIN)
            versions.clear()
            for code in range(100, 160):  # another fault each second
                await codes_after(code, 1)
            assert 60 / WRITE_SECONDS_MIN <= len(versions) <= 60 / WRITE_SECONDS_MIN + 3
            assert await codes_after(160, WRITE_SECONDS_MIN + 0.1) == 63, "none is left out"
            machine.collector.stop()
            await task

    run(main())


def test_a_token_that_could_write_for_other_nodes_is_warned_of_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            log = Warnings()
            machine = Machine(fleet, tmp_path, log)
            await machine.make_node()
            task = asyncio.create_task(machine.collector.run())
            for _ in range(3):
                machine.tree.xid(48)
                machine.say()
                await asyncio.sleep(CONFIRM_SECONDS)
            assert ["reports of all nodes" in each for each in log.lines] == [True]
            found = (await fleet.client.list(NODE_REPORTS)).items
            assert [each.metadata.name for each in found] == ["n1"], "it was only tried"
            machine.collector.stop()
            await task

    run(main())


def test_an_agent_that_has_ended_is_not_confirmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            said = machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(3 * 3600)
            observed = (await fleet.client.get(NODE_REPORTS, "n1")).status.observed_at
            assert observed is not None
            assert parse_time(observed) == parse_time(said.at)
            machine.collector.stop()
            await task

    run(main())


def test_faults_that_have_ended_are_taken_out_of_the_object(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            machine.tree.xid(48)
            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(START_SECONDS + 10)
            machine.tree.boots("another boot")
            machine.looks = Looks(machine.tree, "kernel-log")
            machine.say()
            await asyncio.sleep(10)
            status = (await fleet.client.get(NODE_REPORTS, "n1")).status
            assert (status.faults, status.critical) == ((), 0)
            machine.collector.stop()
            await task

    run(main())


def test_settings_that_differ_are_in_the_object_until_the_profile_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            machine.tree.write("proc/sys/net/core/somaxconn", 4096)
            tuned = changed(AgentSettings(), "tuning", profile="ml-node",
                            record=str(tmp_path / "record.json"))  # fmt: skip
            machine.looks = Looks(machine.tree, "tuning", settings=tuned)
            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(START_SECONDS + 10)
            found = (await fleet.client.get(NODE_REPORTS, "n1")).status.tuning
            assert found is not None
            assert (found.profile, found.values["net.core.somaxconn"]) == ("ml-node", "4096")
            assert [each.name for each in found.differences] == ["net.core.somaxconn"]
            machine.tree.write("proc/sys/net/core/somaxconn", 32768)
            machine.say()
            await asyncio.sleep(10)
            found = (await fleet.client.get(NODE_REPORTS, "n1")).status.tuning
            assert found is not None
            assert found.differences == ()
            machine.looks = Looks(machine.tree, "kernel-log")
            machine.say()
            await asyncio.sleep(10)
            assert (await fleet.client.get(NODE_REPORTS, "n1")).status.tuning is None
            machine.collector.stop()
            await task

    run(main())


def test_without_its_node_or_the_api_it_goes_on_when_these_are_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(600)
            uid = await machine.make_node()
            fleet.client.is_full = True
            await asyncio.sleep(600)
            try:
                found = await fleet.client.get(NODE_REPORTS, "n1")
                assert found.status.node_uid == ""
            except NotFound:
                pass
            fleet.client.is_full = False
            await asyncio.sleep(120)
            assert (await fleet.client.get(NODE_REPORTS, "n1")).status.node_uid == uid
            machine.text = b"half a rep"
            await asyncio.sleep(600)
            assert not task.done(), "what cannot be read is tried again"
            machine.collector.stop()
            await task

    run(main())


def test_collectors_that_start_together_neither_start_nor_confirm_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            names_ = [f"n{number}" for number in range(100)]
            for name in names_:
                await fleet.client.create(NODES, {"metadata": {"name": name}})
            made = [
                Collector(fleet.client, name, machine.read, clock=fleet.clock,
                          rng=random.Random(name))
                for name in names_
            ]  # fmt: skip
            asked: Counter[tuple[str, int]] = Counter()
            call = fleet.client.call

            async def counted(request: Request[Any]) -> object:
                if request.name in names_ or request.resource is NODE_REPORTS:
                    asked[request.verb.value, int(fleet.clock.now() - began)] += 1
                return await call(request)

            fleet.client.call = counted  # type: ignore[method-assign] # for one test
            began = fleet.clock.now()
            machine.say()
            tasks = [asyncio.create_task(each.run()) for each in made]
            for _ in range(90):
                await asyncio.sleep(10)
                machine.say()
            for each in made:
                each.stop()
            await asyncio.gather(*tasks)
            fleet.client.call = call  # type: ignore[method-assign] # as it was
            assert len((await fleet.client.list(NODE_REPORTS)).items) == len(names_)
            at_start = [n for (_, second), n in asked.items() if second <= START_SECONDS + 1]
            assert max(at_start) < 5 * len(names_) / START_SECONDS
            later = Counter[int]()
            for (_, second), count in asked.items():
                if second > START_SECONDS + 1:
                    later[second] += count
            assert sum(later.values()) == 2 * len(names_), "each reads its node, and writes"
            assert min(later) > 0.75 * CONFIRM_SECONDS
            assert max(later.values()) < 0.15 * sum(later.values())

    run(main())


def test_a_report_that_others_changed_or_deleted_is_written_whole_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            machine.tree.xid(48)
            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(START_SECONDS + 10)
            await fleet.client.patch(
                NODE_REPORTS, "n1", {"status": {"faults": []}}, subresource="status"
            )
            machine.tree.xid(79)
            machine.say()
            await asyncio.sleep(10)
            codes = {("48",), ("79",)}
            found = await fleet.client.get(NODE_REPORTS, "n1")
            assert {each.codes for each in found.status.faults} == codes
            await fleet.client.delete(NODE_REPORTS, "n1")
            await fleet.client.delete(NODES, "n1")
            uid = await machine.make_node()
            machine.tree.xid(31)
            machine.say()
            await asyncio.sleep(10)
            found = await fleet.client.get(NODE_REPORTS, "n1")
            assert {each.codes for each in found.status.faults} == codes | {("31",)}
            assert found.status.node_uid == uid
            machine.collector.stop()
            await task

    run(main())


def test_the_profile_that_the_label_of_its_node_names_is_handed_over_when_it_changes(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(30)
            for label in ("large", "large", "small", None):
                labels = {"metadata": {"labels": {TUNING_PROFILE: label}}}
                await fleet.client.patch(NODES, "n1", labels)
                await asyncio.sleep(90)
            assert machine.chosen == [b"\n", b"large\n", b"small\n", b"\n"]
            machine.collector.stop()
            await task

    run(main())


def test_what_the_record_of_its_node_asks_for_is_handed_over_and_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running() as fleet:
            machine = Machine(fleet, tmp_path)
            await machine.make_node()
            machine.tree.xid(48)
            machine.say()
            task = asyncio.create_task(machine.collector.run())
            await asyncio.sleep(30)
            assert [decode_request(each) for each in machine.handed] == [None]
            asked = NodeRequest("uid/1/now", Action.RESET_GPU, ("0000:3b:00",))
            deadline = format_time(fleet.clock.now() + 600)
            record = NodeRecord(
                NodeState.RESETTING, format_time(fleet.clock.now()), deadline=deadline,
                request=asked, tries=(Try(Action.RESET_GPU, deadline, "boot-7"),),
            )  # fmt: skip

            async def write(text: str | None) -> None:
                notes = {"metadata": {"annotations": {HEALTH: text}}}
                await fleet.client.patch(NODES, "n1", notes)
                await asyncio.sleep(REQUEST_SECONDS_MIN + 2)

            await write(record_text(record))
            assert decode_request(machine.handed[-1]) == RepairRequest(
                REQUEST_VERSION, "uid/1/now", Action.RESET_GPU, "boot-7", deadline, ("0000:3b:00",)
            )
            # Without a boot it would be of any machine, and without a deadline for ever.
            nameless = (Try(Action.RESET_GPU, deadline, ""),)
            for other in (
                msgspec.structs.replace(record, tries=nameless),
                msgspec.structs.replace(record, deadline=None),
                msgspec.structs.replace(record, request=None),
            ):
                await write(record_text(other))
                assert decode_request(machine.handed[-1]) is None
                await write(record_text(record))
            await write("no record")
            assert decode_request(machine.handed[-1]) is None
            assert len(machine.handed) == 9, "what is as it was is not written again"
            machine.collector.stop()
            await task

    run(main())
