"""Exporters of nodes over the cluster: by collectors and reports to the page of metrics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_health import ACTING
from tests.unit.node.host_tree import HostTree, Looks

from fairlead.api.cluster.node_report import EXPORTED_METRICS_MAX
from fairlead.api.meta import to_wire
from fairlead.api.names import JOB_NAME, POOL, RACK
from fairlead.api.resources import NODE_REPORTS, NODES, PODS, TEAMS
from fairlead.api.status import Invalid
from fairlead.api.values.sketch import Sketch
from fairlead.api.values.times import format_time
from fairlead.app.collector import Collector
from fairlead.controllers.nodes.node_exports import TEXT_SECONDS
from fairlead.node.exports import ExportsUsage, SketchLine
from fairlead.node.reports.report import report_of
from fairlead.sim.loop import run
from fairlead.testing.builders import make_node, make_pod, make_team

BUSY = "DCGM_FI_DEV_GPU_UTIL"
WINDOW = 60


def text_of(*values: float) -> str:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch.text()


class Machine:
    """A node whose agent the test plays, and its collector. It ends a window each minute."""

    def __init__(self, fleet: FleetWorld, name: str, root: Path) -> None:
        self.fleet, self.name = fleet, name
        self.looks = Looks(HostTree(root / name), "kernel-log")
        self.lines: tuple[SketchLine, ...] = ()
        self.ahead_seconds = 0.0
        self.collector = Collector(fleet.client, name, self._read, clock=fleet.clock,
                                   rng=random.Random(0))  # fmt: skip

    def busy(self, *values: float, pod: str = "", namespace: str = "default") -> None:
        """Have GPUs of a pod, or of none, this busy."""
        line = SketchLine(BUSY, namespace if pod else "", pod, text_of(*values))
        self.lines = (*self.lines, line)

    def _read(self) -> bytes:
        report = report_of(self.looks.watch, self.looks.host.now())
        now = self.fleet.clock.now()
        ended = format_time(now - now % WINDOW + self.ahead_seconds)
        exports = ExportsUsage(ended, WINDOW, self.lines) if self.lines else None
        return msgspec.json.encode(msgspec.structs.replace(
            report, at=format_time(now), exports=exports
        ))  # fmt: skip


@contextmanager
def collecting(*machines: Machine) -> Generator[None]:
    tasks = [asyncio.create_task(each.collector.run()) for each in machines]
    yield
    for task in tasks:
        task.cancel()


async def make(fleet: FleetWorld, name: str, root: Path, *, rack: str = "r1") -> Machine:
    """Make a node of pool h100 with a pod of the job train."""
    node = to_wire(make_node(name))
    labels = {POOL: "h100", RACK: rack}
    await fleet.client.create(
        NODES, {"metadata": {"name": name, "labels": labels}, "spec": node.get("spec", {})}
    )
    pod = make_pod("train", node=name)
    meta = {"name": f"train-{name}", "labels": {JOB_NAME: "train"}}
    await fleet.client.create(PODS, {"metadata": meta, "spec": to_wire(pod.spec)},
                              namespace="default")  # fmt: skip
    return Machine(fleet, name, root)


async def make_vision(fleet: FleetWorld) -> None:
    team = to_wire(make_team("vision", namespaces=("default",)))
    await fleet.client.create(TEAMS, {"metadata": {"name": "vision"}, "spec": team["spec"]})


Figures = dict[tuple[str, str, str], float]


def figures(fleet: FleetWorld, metric: str = BUSY) -> Figures:
    """Return the figures of a metric by scope, name and kind of figure."""
    found: Figures = {}
    for family in text_string_to_metric_families(fleet.metrics.render().decode()):
        for sample in family.samples:
            at = sample.labels
            if sample.name == "fairlead_exported" and at["metric"] == metric:
                found[at["by"], at["name"], at["stat"]] = sample.value
    return found


def states(fleet: FleetWorld) -> Mapping[str, float]:
    return {
        sample.labels["state"]: sample.value
        for family in text_string_to_metric_families(fleet.metrics.render().decode())
        for sample in family.samples
        if sample.name == "fairlead_exported_nodes"
    }


def test_values_are_added_up_by_pool_rack_team_and_job_and_follow_each_window(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            one = await make(fleet, "n1", tmp_path)
            two = await make(fleet, "n2", tmp_path, rack="r2")
            await make(fleet, "n3", tmp_path)
            await make_vision(fleet)
            one.busy(90, 90, 80, pod="train-n1")
            one.busy(0)
            two.busy(10, pod="train-n2")
            with collecting(one, two):
                await asyncio.sleep(2 * WINDOW)
                found = figures(fleet)
                counts = {(by, name): n for (by, name, stat), n in found.items() if stat == "count"}
                assert counts == {
                    ("fleet", ""): 5, ("pool", "h100"): 5, ("rack", "r1"): 4, ("rack", "r2"): 1,
                    ("team", "vision"): 4, ("job", "default/train"): 4,
                }  # fmt: skip
                assert found["fleet", "", "min"] == 0
                assert found["team", "vision", "min"] == pytest.approx(10, rel=0.01)
                assert found["rack", "r1", "max"] == pytest.approx(90, rel=0.01)
                assert found["pool", "h100", "p50"] == pytest.approx(80, rel=0.01)
                assert found["fleet", "", "sum"] == pytest.approx(270, rel=0.01)
                assert states(fleet) == {"counted": 2, "silent": 0, "refused": 0, "absent": 1}
                one.lines = ()
                one.busy(50, pod="train-n1")
                await asyncio.sleep(WINDOW + 30)
                found = figures(fleet)
                assert found["fleet", "", "count"] == 2, "the window before is taken away"
                assert found["fleet", "", "max"] == pytest.approx(50, rel=0.01)
            await fleet.kill()
            await asyncio.sleep(2 * TEXT_SECONDS)
            assert figures(fleet)["fleet", "", "count"] == 2, "a new leader knows it from reports"

    run(main())


def test_a_silent_node_drops_out_and_a_clock_that_is_ahead_does_not_keep_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            one, two = [await make(fleet, name, tmp_path) for name in ("n1", "n2")]
            one.busy(90)
            two.busy(10)
            with collecting(one, two):
                await asyncio.sleep(2 * WINDOW)
                assert figures(fleet)["fleet", "", "count"] == 2
            # What a node writes that goes round its collector.
            at = format_time(fleet.clock.now() + 10**6)
            said = [{"metric": BUSY, "sketch": text_of(10)}]
            ahead = {"exports": {"at": at, "seconds": 10**6, "sketches": said}}
            await fleet.client.patch(NODE_REPORTS, "n2", {"status": ahead}, subresource="status")
            await asyncio.sleep(4 * WINDOW + 60)
            assert ("fleet", "", "count") in figures(fleet), "its longest window counts"
            assert states(fleet) == {"counted": 1, "silent": 1, "refused": 0, "absent": 0}
            await asyncio.sleep(3 * 600 + 60)
            assert figures(fleet) == {}
            assert states(fleet) == {"counted": 0, "silent": 2, "refused": 0, "absent": 0}
            await fleet.client.delete(NODES, "n1")
            await fleet.client.delete(NODE_REPORTS, "n1")
            await asyncio.sleep(TEXT_SECONDS)
            assert states(fleet)["silent"] == 1

    run(main())


def test_a_node_that_lies_speaks_for_itself_alone_and_outweighs_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            await make_vision(fleet)
            honest = [await make(fleet, f"n{number}", tmp_path) for number in range(4)]
            for each in honest:
                each.busy(50, 50, pod=f"train-{each.name}")
            liar = await make(fleet, "liar", tmp_path, rack="r9")
            liar.busy(1e12, pod="train-n1")  # a pod of another node
            liar.busy(1e12, pod="absent")
            with collecting(*honest, liar):
                await asyncio.sleep(2 * WINDOW)
            found = figures(fleet)
            assert found["job", "default/train", "max"] == pytest.approx(50, rel=0.01)
            assert found["team", "vision", "max"] == pytest.approx(50, rel=0.01)
            assert found["rack", "r1", "max"] == pytest.approx(50, rel=0.01)
            assert found["rack", "r9", "max"] == pytest.approx(1e12, rel=0.01)

            async def lie(*sketches: Mapping[str, str]) -> None:
                said = {"at": format_time(fleet.clock.now()), "seconds": WINDOW,
                        "sketches": list(sketches)}  # fmt: skip
                await fleet.client.patch(
                    NODE_REPORTS, "liar", {"status": {"exports": said}}, subresource="status"
                )
                await asyncio.sleep(2 * TEXT_SECONDS)

            await lie({"metric": BUSY, "sketch": "1:9999"})
            assert states(fleet)["refused"] == 1, "more values than a node has"
            await lie({"metric": BUSY, "sketch": "1:1 1:1"})
            assert states(fleet)["refused"] == 1
            assert figures(fleet)["fleet", "", "count"] == 8
            await lie(*({"metric": f"a{number}", "sketch": "1:1"} for number in range(60)))
            shown = {
                sample.labels["metric"]
                for family in text_string_to_metric_families(fleet.metrics.render().decode())
                for sample in family.samples
                if sample.name == "fairlead_exported"
            }
            assert BUSY in shown, "what most nodes report goes first"
            assert len(shown) == EXPORTED_METRICS_MAX
            for bad in ({"metric": 'a"} 1', "sketch": "1:1"}, {"metric": "a", "sketch": "x"},
                        {"metric": "a", "sketch": "1:1 " * 1000},
                        {"metric": "a", "sketch": "1:1", "pod": "a\nb"}):  # fmt: skip
                with pytest.raises(Invalid):
                    await lie(bad)
            with pytest.raises(Invalid):
                await lie(*({"metric": f"a{number}", "sketch": "1:1"} for number in range(65)))
            assert fleet.crashes() == []

    run(main())
