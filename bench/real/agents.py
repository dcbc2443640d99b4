"""Agents and collectors of many nodes in a process of its own.

    python -m bench.real.agents KUBECONFIG FOLDER FIRST COUNT AGENTS [bare]

For nodes FIRST to FIRST + COUNT, of the names that `Ground.add_nodes` gives. The first AGENTS of
them have the agent itself: on a tree of files, with the thread and the state file that it has on a
machine, and the notices of its report. A line that is appended to `FOLDER/NODE/host/dev/kmsg` is a
message of the kernel of that node. Of the others the report says at each look that all is well. The
collector of each node is that of `fairlead collector`; all of them share one client. They start
one after another, as those of a cluster that grows do: what a start of all at once asks for is
known (`docs/design/node-agent.md`), and is not what is measured.

`bare` is what no collector avoids: at the same times it reads and decodes the report, and asks for
the node and writes the time of the report.

It prints a line once all have started, and ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path

import msgspec
import uvloop

from bench.real.ground import USER_AGENT, node_name
from fairlead.api.resources import NODE_REPORTS, NODES
from fairlead.api.status import AlreadyExists
from fairlead.api.values.times import format_time
from fairlead.app.collector import CONFIRM_SECONDS, LOOK_SECONDS, REPORT_BYTES_MAX, Collector
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions
from fairlead.node.agent import Agent
from fairlead.node.files import on_replaced, read_file
from fairlead.node.registry import SOURCES, sources
from fairlead.node.reports.report import Report, report_of
from fairlead.node.reports.state import open_state
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.runtime.client import Client
from fairlead.runtime.clock import SystemClock

STARTS_PER_SECOND = 200
KERNEL_LOG, LOG = "kernel-log", "host/dev/kmsg"
#: Of machines with faults: other sources would find this machine's in the trees.
_SETTINGS = AgentSettings(disabled=tuple(name for name in SOURCES if name != KERNEL_LOG))
_CLOCK = SystemClock()


def make_machine(folder: Path) -> Host:
    """Return a machine of files, which has what an agent cannot do without, and a log."""
    root = folder / "host"
    for path, text in (
        ("proc/uptime", "90000.00 0.00\n"), ("dev/kmsg", ""),
        ("proc/sys/kernel/random/boot_id", "5e5a1d4e-0000-4000-8000-000000000001\n"),
    ):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Host(root)


def _quiet_report(folder: Path) -> Report:
    """Return the report of a machine on which all sources look and find nothing."""
    host = make_machine(folder)
    chosen = sources(host, AgentSettings())
    now = host.now()
    watch = MachineWatch(chosen, Kept(), boot_id=host.boot_id(), now=now)
    for source in chosen:
        watch.absent(source, "this machine has none", now)
    return report_of(watch, now)


class _Bare:
    """The least that a collector does."""

    def __init__(self, client: Client, node: str, report: Report, rng: random.Random) -> None:
        self._client, self._node, self._report, self._rng = client, node, report, rng

    async def run(self) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(NODE_REPORTS, {"metadata": {"name": self._node}})
        loop, due = asyncio.get_running_loop(), 0.0
        while True:
            report = msgspec.json.decode(_said(self._report))
            if loop.time() >= due:
                due = loop.time() + self._rng.uniform(0.8, 1) * CONFIRM_SECONDS
                await self._client.get(NODES, self._node)
                body = {"status": {"observedAt": report["at"]}}
                await self._client.patch(NODE_REPORTS, self._node, body, subresource="status")
            await asyncio.sleep(LOOK_SECONDS)


def _said(report: Report) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(report, at=format_time(_CLOCK.now())))


async def _run_agent(client: Client, node: str, folder: Path) -> None:
    """Run the agent of a node and its collector until cancelled."""
    path, host = folder / "node.json", make_machine(folder)
    state = open_state(folder / "state.db")
    agent = Agent(host, sources(host, _SETTINGS), state, report=path, read_seconds_max=10,
                  report_seconds=60)  # fmt: skip
    collector = Collector(client, node, lambda: read_file(path, REPORT_BYTES_MAX), clock=_CLOCK,
                          rng=random.Random(node))  # fmt: skip
    with on_replaced(path, collector.notify):
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.run())
            group.create_task(collector.run())


async def main(kubeconfig: Path, folder: Path, nodes: range, agents: int, *, bare: bool) -> None:
    """Run all until the input ends."""
    client = HttpClient(load_connection(path=kubeconfig), HttpOptions(user_agent=USER_AGENT))
    quiet = _quiet_report(folder / "quiet")
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group:
        running: list[asyncio.Task[None]] = []
        begun = loop.time()
        for number in nodes:
            name = node_name(number)
            if bare:
                work = _Bare(client, name, quiet, random.Random(name)).run()
            elif number < nodes.start + agents:
                work = _run_agent(client, name, folder / name)
            else:
                work = Collector(client, name, lambda: _said(quiet), clock=_CLOCK,
                                 rng=random.Random(name)).run()  # fmt: skip
            running.append(group.create_task(work))
            await asyncio.sleep(begun + len(running) / STARTS_PER_SECOND - loop.time())
        print(json.dumps(len(running)), flush=True)
        await reader.read()
        for task in running:
            task.cancel()
    await client.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    first, count, of_agents = map(int, given[2:5])
    uvloop.run(
        main(Path(given[0]), Path(given[1]), range(first, first + count), of_agents,
             bare=given[5:] == ["bare"])
    )  # fmt: skip
