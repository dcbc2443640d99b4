"""The API over HTTP: reads, durable writes, and watches by the thousand.

The server and its clients are processes of their own. Rates are per core of the server: requests by
the CPU time that the server's process took, all its threads and the kernel's part included. Each
is set against a bare HTTP server (`bench.bare_server`) that gets the same requests from the same
clients in turns. Wall rates stand beside them; on a machine that others use they say less.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench.harness import Report, cpu_slowness
from bench.load import MAPS, Caller, open_slow, request
from bench.objects import config_map_body, encoded
from bench.processes import Child, child, cpu_seconds

CLIENTS = 2
CONNECTIONS = 64
ROUNDS = 3
GETS, WRITES = 20_000, 3_000
WATCHERS, EVENTS_PER_SECOND, WATCH_SECONDS = 1_000, 1_000, 4
#: The bare server writes each event to each watcher by itself, so fewer are enough.
BARE_WATCHERS, BARE_EVENTS = 100, 1_000
BURST_WATCHERS, BURST_EVENTS, BURST_BYTES = 100, 150, 100_000


@dataclass(frozen=True)
class Rate:
    """Requests per CPU second of the server (on the reference core), and per second of the wall."""

    per_core: float
    wall: float
    per_cpu_second: float  # of this machine


def run(report: Report) -> None:
    """Measure requests, then watches, each with fresh servers."""
    with _server() as (server, port), _server("bench.bare_server") as (bare, bare_port):
        _prepare(port)
        for name, kind, count in (
            ("get", "get", GETS),
            ("create_small", "create-map", WRITES),
            ("create_pod", "create-pod", WRITES),
            ("patch_pod_status", "patch-status", WRITES),
        ):
            rates, ratios = [], []
            for turn in range(ROUNDS):
                rates.append(_rate(server, port, kind, count=count, turn=turn))
                plain = _rate(bare, bare_port, kind, count=count, turn=turn)
                ratios.append(plain.per_cpu_second / rates[-1].per_cpu_second)
            report.add(f"api.{name}_ratio", statistics.median(ratios[1:]), "x bare")
            core = statistics.median(rate.per_core for rate in rates[1:])
            report.add(f"api.{name}_per_core", core, "1/s")
            wall = statistics.median(rate.wall for rate in rates[1:])
            report.add(f"api.{name}_wall", wall, "1/s")
    with _server("bench.bare_server") as (bare, bare_port):
        plain = _deliver(bare, bare_port, watchers=BARE_WATCHERS, events=BARE_EVENTS)
    with _server() as (server, port):
        _fan_out(report, server, port, bare_cpu=plain.cpu / (BARE_WATCHERS * BARE_EVENTS))
    with _server() as (server, port):
        _burst(report, server, port)


class _server:  # noqa: N801 # a context manager, used like a function
    """Yield a fresh server and its port."""

    def __init__(self, module: str = "bench.server") -> None:
        self._module = module

    def __enter__(self) -> tuple[Child, int]:
        self._stack = ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-bench-"))
        server = self._stack.enter_context(child(self._module, directory))
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
    return Rate(answered / cpu * slow, answered / seconds * slow, answered / cpu)


@dataclass(frozen=True)
class Delivered:
    """What came of a fan-out: the clients' results, the server's CPU seconds, seconds taken."""

    results: list[dict[str, Any]]
    cpu: float
    taken: float
    written_at: float


def _deliver(server: Child, port: int, *, watchers: int, events: int) -> Delivered:
    """Send events at a steady rate to so many watchers."""
    version = str(server.ask()["version"])
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                child("bench.load", "watch", str(port), str(watchers // CLIENTS), version)
            )
            for _ in range(CLIENTS)
        ]
        for client in clients:
            client.read()
        _wait_for_watchers(server, watchers)
        writes = [request("POST", MAPS, _map(f"e-{i}")) for i in range(events)]
        cpu, start = cpu_seconds(server.pid), time.time()
        asyncio.run(_send_wide(port, writes, per_second=EVENTS_PER_SECOND))
        written = time.time()
        for client in clients:
            client.tell(str(events))
        results = [client.read() for client in clients]
        cpu = cpu_seconds(server.pid) - cpu
    return Delivered(results, cpu, written - start, written)


def _fan_out(report: Report, server: Child, port: int, *, bare_cpu: float) -> None:
    """Measure a thousand watchers at a thousand events per second.

    `bare_cpu` is what the bare server takes for one event and watcher, in seconds.
    """
    total = EVENTS_PER_SECOND * WATCH_SECONDS
    slow = cpu_slowness()
    seen = _deliver(server, port, watchers=WATCHERS, events=total)
    slow = (slow + cpu_slowness()) / 2
    lost = WATCHERS * total - sum(result["events"] for result in seen.results)
    report.add("api.watch_lost", lost, "events")
    report.add("api.watchers_complete", sum(r["complete"] for r in seen.results), "watchers")
    report.add("api.watch_ratio", seen.cpu / (WATCHERS * total) / bare_cpu, "x bare")
    report.add("api.watch_core_share", seen.cpu / (total / EVENTS_PER_SECOND) / slow, "cores")
    report.add("api.watch_write_rate", total / seen.taken, "1/s")
    lag = max(r["at"] for r in seen.results) - seen.written_at
    report.add("api.watch_lag", max(0.0, lag), "s")


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
