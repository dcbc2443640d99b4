"""The API over HTTP: reads, durable writes, and watches by the thousand.

The server and its clients are processes of their own. Rates are per core of the server: requests by
the CPU time that the server's process took, all its threads and the kernel's part included. Wall
rates stand beside them; on a machine that others use they say less.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.harness import Report, cpu_slowness
from bench.load import MAPS, Caller, open_slow, request
from bench.objects import config_map_body, encoded
from bench.processes import Child, child, cpu_seconds

CLIENTS = 2
CONNECTIONS = 64
ROUNDS = 3
GETS, WRITES = 20_000, 3_000
WATCHERS, EVENTS_PER_SECOND, WATCH_SECONDS = 1_000, 1_000, 4
BURST_WATCHERS, BURST_EVENTS, BURST_BYTES = 100, 150, 100_000


@dataclass(frozen=True)
class Rate:
    """Requests per CPU second of the server (on the reference core), and per second of the wall."""

    per_core: float
    wall: float


def run(report: Report) -> None:
    """Measure requests, then watches, each with a fresh server."""
    with _server() as (server, port):
        _prepare(port)
        for name, kind, count in (
            ("get", "get", GETS),
            ("create_small", "create-map", WRITES),
            ("create_pod", "create-pod", WRITES),
            ("patch_pod_status", "patch-status", WRITES),
        ):
            rates = [_rate(server, port, kind, count=count, turn=turn) for turn in range(ROUNDS)]
            core = statistics.median(rate.per_core for rate in rates[1:])
            report.add(f"api.{name}_per_core", core, "1/s")
            wall = statistics.median(rate.wall for rate in rates[1:])
            report.add(f"api.{name}_wall", wall, "1/s")
    with _server() as (server, port):
        _fan_out(report, server, port)
    with _server() as (server, port):
        _burst(report, server, port)


class _server:  # noqa: N801 # a context manager, used like a function
    """Yield a fresh server and its port."""

    def __enter__(self) -> tuple[Child, int]:
        self._stack = ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-bench-"))
        server = self._stack.enter_context(child("bench.server", directory))
        return server, server.read()

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _prepare(port: int) -> None:
    """Create what is read later."""
    asyncio.run(
        _send(port, [request("POST", MAPS, _map(f"map-{i}")) for i in range(100)], per_second=0)
    )


def _map(name: str, size_bytes: int = 100) -> bytes:
    return encoded(config_map_body(name, size_bytes), kind="ConfigMap")


async def _send(port: int, requests: list[bytes], *, per_second: float) -> None:
    """Send requests over one connection, at most so many per second (0: as they are answered)."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    _, caller = await loop.create_connection(
        lambda: Caller(iter(()), loop.create_future()), "127.0.0.1", port
    )
    for serial, one in enumerate(requests):
        if per_second and (ahead := start + serial / per_second - loop.time()) > 0:
            await asyncio.sleep(ahead)
        done: asyncio.Future[None] = loop.create_future()
        caller.go_on(iter([one]), done)
        await done
        assert not caller.wrong, "a write was refused"
    caller.close()


def _rate(server: Child, port: int, kind: str, *, count: int, turn: int) -> Rate:
    """Let the client processes send `count` requests and return the server's rates."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                child("bench.load", kind, str(port), str(count // CLIENTS),
                      str(CONNECTIONS // CLIENTS), f"c{index}-{turn}")
            )
            for index in range(CLIENTS)
        ]  # fmt: skip
        for client in clients:
            client.read()
        slow = cpu_slowness()
        cpu = cpu_seconds(server.pid)
        for client in clients:
            client.tell()
        results = [client.read() for client in clients]
        cpu = cpu_seconds(server.pid) - cpu
    slow = (slow + cpu_slowness()) / 2
    assert not any(result["wrong"] for result in results), f"{kind}: requests were refused"
    answered = sum(result["answered"] for result in results)
    seconds = max(result["seconds"] for result in results)
    return Rate(answered / cpu * slow, answered / seconds * slow)


def _fan_out(report: Report, server: Child, port: int) -> None:
    """A thousand watchers and a thousand events per second, and one watcher that reads nothing."""
    version = str(server.ask()["version"])
    total = EVENTS_PER_SECOND * WATCH_SECONDS
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                child("bench.load", "watch", str(port), str(WATCHERS // CLIENTS), version)
            )
            for _ in range(CLIENTS)
        ]
        for client in clients:
            client.read()
        _wait_for_watchers(server, WATCHERS)
        writes = [request("POST", MAPS, _map(f"e-{i}")) for i in range(total)]
        slow = cpu_slowness()
        cpu, start = cpu_seconds(server.pid), time.time()
        asyncio.run(_send_wide(port, writes, per_second=EVENTS_PER_SECOND))
        written = time.time()
        for client in clients:
            client.tell(str(total))
        results = [client.read() for client in clients]
        cpu = cpu_seconds(server.pid) - cpu
    lost = WATCHERS * total - sum(result["events"] for result in results)
    report.add("api.watch_lost", lost, "events")
    report.add("api.watchers_complete", sum(r["complete"] for r in results), "watchers")
    report.add("api.watch_core_share", cpu / (total / EVENTS_PER_SECOND) / slow, "cores")
    report.add("api.watch_write_rate", total / (written - start), "1/s")
    report.add("api.watch_lag", max(0.0, max(r["at"] for r in results) - written), "s")


async def _send_wide(port: int, requests: list[bytes], *, per_second: float) -> None:
    """Send over several connections, so that a write's way to the disk does not pace them."""
    lanes = 8
    async with asyncio.TaskGroup() as group:
        for lane in range(lanes):
            group.create_task(_send(port, requests[lane::lanes], per_second=per_second / lanes))


def _wait_for_watchers(server: Child, count: int) -> None:
    deadline = time.monotonic() + 20
    while server.ask()["watchers"] < count:
        assert time.monotonic() < deadline, "the watches do not open"
        time.sleep(0.02)


def _burst(report: Report, server: Child, port: int) -> None:
    """Fifteen megabytes for each watcher: the one that reads nothing is cut off, and no other."""
    version = str(server.ask()["version"])
    with ExitStack() as stack:
        client = stack.enter_context(
            child("bench.load", "watch", str(port), str(BURST_WATCHERS), version)
        )
        client.read()
        stalled = stack.enter_context(open_slow(port, version))
        _wait_for_watchers(server, BURST_WATCHERS + 1)
        writes = [request("POST", MAPS, _map(f"b-{i}", BURST_BYTES)) for i in range(BURST_EVENTS)]
        asyncio.run(_send(port, writes, per_second=60))
        result = client.ask(str(BURST_EVENTS))
        counts = server.ask()
        assert stalled.fileno() >= 0
    report.add("api.slow_watchers_dropped", counts["slow"], "watchers")
    report.add("api.other_watchers_dropped", BURST_WATCHERS - result["complete"], "watchers")
