"""Traffic of jobs that have ended: from the report of an agent to the history, and out of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_egress import collecting
from tests.unit.app.test_health import ACTING
from tests.unit.cli.fake_api import FakeApi, serve
from tests.unit.node.host_tree import HostTree, Looks

from fairlead.api import names
from fairlead.api.jobs.use import ClassTraffic, JobTraffic
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import NODE_REPORTS, PODS
from fairlead.api.values.times import format_time
from fairlead.app.collector import Collector
from fairlead.cli.formats.text import bytes_text
from fairlead.cli.main import guarded
from fairlead.history.sqlite import SqliteHistory
from fairlead.input.errors import Exit
from fairlead.node.reports.report import report_of
from fairlead.node.traffic import EndedTrafficLine, TrafficUsage
from fairlead.sim.loop import run

T = TypeVar("T")


async def _at_once(call: Callable[[], T]) -> T:
    return call()


class Machine:
    """A node with an agent, which the test plays, and its collector."""

    def __init__(self, fleet: FleetWorld, name: str, root: Path) -> None:
        self.fleet = fleet
        self.looks = Looks(HostTree(root / name), "kernel-log")
        self.ended: tuple[EndedTrafficLine, ...] = ()
        self.collector = Collector(fleet.client, name, self._read, clock=fleet.clock,
                                   rng=random.Random(0))  # fmt: skip

    def _read(self) -> bytes:
        report = report_of(self.looks.watch, self.looks.host.now())
        at, traffic = format_time(self.fleet.clock.now()), TrafficUsage(ended=self.ended)
        return msgspec.json.encode(msgspec.structs.replace(report, at=at, traffic=traffic))


async def _members(fleet: FleetWorld, job: str) -> list[Pod]:
    pods = (await fleet.client.list(PODS, namespace="default")).items
    return [each for each in pods if each.metadata.labels.get(names.JOB_NAME) == job]


def test_traffic_of_a_job_is_there_after_its_end_and_after_a_restart_as_its_nodes_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, file = random.Random(43), tmp_path / "history.db"
    uids: list[str] = []
    said: Counter[tuple[str, int]] = Counter()

    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            history = SqliteHistory.open(file, runner=_at_once)
            fleet.history = history
            await fleet.kill()
            await fleet.pool(hold=2)
            await fleet.submit("train", gpus=8, count=2, seconds=300)

            async def runs() -> bool:
                pods = await _members(fleet, "train")
                return [each.status.phase for each in pods] == ["Running"] * 2

            await fleet.until(runs, 1800)
            pods = await _members(fleet, "train")
            job = await fleet.job("train")
            uids.append(job.metadata.uid)
            machines = [Machine(fleet, each.spec.node_name, tmp_path) for each in pods]
            with collecting(*machines):
                await fleet.until(lambda: _is_over(fleet), 1800)
                for n, (machine, pod) in enumerate(zip(machines, pods, strict=True)):
                    lines: list[EndedTrafficLine] = []
                    for name in ("internal", "internet", "storage")[: n + 1]:
                        sent, received = draw.getrandbits(62), draw.getrandbits(40)
                        said[name, 0] += sent
                        said[name, 1] += received
                        lines.append(
                            EndedTrafficLine("default", pod.metadata.uid, name, sent, received)
                        )
                    machine.ended = tuple(lines)
                # A node says nothing of members of others, nor of what is no member.
                other = pods[1].metadata.uid
                machines[0].ended += (
                    EndedTrafficLine("default", other, "internet", 7, 7),
                    EndedTrafficLine("default", "of-none", "internet", 7, 7),
                    EndedTrafficLine("other", pods[0].metadata.uid, "own", 7, 7),
                )
                await fleet.until(lambda: _is_kept(fleet, history, wanted(said)), 300)
                await fleet.kill()
                machines[0].ended = ()  # it reports them no more
                await _wait(fleet, 900)
            assert await history.traffic_of(uids) == {uids[0]: wanted(said)}
            assert not fleet.crashes()
            report = await fleet.client.get(NODE_REPORTS, pods[1].spec.node_name)
            assert report.status.traffic is not None
            assert {each.pod for each in report.status.traffic.ended} == {other}
            await history.close()

    async def _is_over(fleet: FleetWorld) -> bool:
        return (await fleet.job("train")).is_finished

    async def _is_kept(fleet: FleetWorld, history: SqliteHistory, found: JobTraffic) -> bool:
        return (await history.traffic_of(uids)).get(uids[0]) == found

    run(main())
    monkeypatch.setenv("FAIRLEAD_HISTORY_URL", str(file))
    assert guarded(["eff", "train", "-o", "json"]) == Exit.OK
    facts = json.loads(capsys.readouterr().out)
    assert msgspec.convert(facts["traffic"], JobTraffic) == wanted(said)
    assert guarded(["eff", "train"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert any("network   internal: sent" in each and "2 members counted" in each for each in lines)
    assert guarded(["history", "-o", "name,internet-sent,internet-received"]) == Exit.OK
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["train", bytes_text(said["internet", 0]), bytes_text(said["internet", 1])]
    serve(monkeypatch, FakeApi())
    assert guarded(["network", "traffic", "--job", "train", "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)["traffic"]
    assert {(e["trafficClass"], e["sent"], e["received"]) for e in shown} == {
        (e.traffic_class, e.sent, e.received) for e in wanted(said).classes
    }


def wanted(said: Counter[tuple[str, int]]) -> JobTraffic:
    members = {"internal": 2, "internet": 1, "storage": 0}
    return JobTraffic(2, tuple(
        ClassTraffic(name, count, said[name, 0], said[name, 1])
        for name, count in members.items() if count
    ))  # fmt: skip


async def _wait(fleet: FleetWorld, seconds: float) -> None:
    started = fleet.clock.now()

    async def is_over() -> bool:
        return fleet.clock.now() - started >= seconds

    await fleet.until(is_over, seconds + 60)
