"""Clients in a process of their own: `python -m bench.load KIND PORT COUNT ...`.

Raw asyncio on uvloop, since a client library would cost more than the server that it measures. It
prints `"ready"`, waits for a line, works, and prints its result as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import uvloop

from bench.objects import config_map_body, encoded, pod_body, status_patch
from bench.server import TOKEN

RECEIVE_BYTES = 1 << 20
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


def request(method: str, path: str, body: bytes = b"", content: str = "application/json") -> bytes:
    """Return a whole HTTP/1.1 request."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"User-Agent: bench\r\nAccept: application/json\r\n"
    )
    if body:
        head += f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Caller(asyncio.Protocol):
    """One keep-alive connection that sends its next request when the answer is complete."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._done = done
        self._buffer = b""
        self.wrong = 0
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it

    def go_on(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        """Send further requests over the same connection."""
        self._requests, self._done = requests, done
        self.begin()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def begin(self) -> None:
        """Send the next request, or end."""
        following = next(self._requests, None)
        if following is not None:
            self._transport.write(following)
            return
        if not self._done.done():
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = buffer.index(b"Content-Length: ") + 16
        size = int(buffer[at : buffer.index(b"\r", at)])
        if len(buffer) < end + 4 + size:
            return
        assert len(buffer) == end + 4 + size, "one answer at a time"
        self.wrong += buffer[9:11] != b"20"
        self.answered += 1
        self._buffer = b""
        self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection"))


def _bodies(kind: str, serial: int, tag: str) -> bytes:
    """Return the request number `serial`."""
    if kind == "get":
        return request("GET", f"{MAPS}/map-{serial % 100}")
    if kind == "create-map":
        return request("POST", MAPS, encoded(config_map_body(f"{tag}-{serial}"), kind="ConfigMap"))
    if kind == "create-pod":
        return request("POST", PODS, encoded(pod_body(f"{tag}-{serial}"), kind="Pod"))
    if kind == "patch-status":
        return request(
            "PATCH", f"{PODS}/{tag}-{serial}/status", encoded(status_patch(serial)),
            "application/merge-patch+json",
        )  # fmt: skip
    raise AssertionError(kind)


async def call(port: int, connections: int, kind: str, *, count: int, tag: str) -> dict[str, Any]:
    """Send `count` requests over the connections; the bodies are made before the clock starts."""
    made = iter([_bodies(kind, serial, tag) for serial in range(count)])
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []
    ends: list[asyncio.Future[None]] = []
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        caller = Caller(made, done)
        await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", port)
        callers.append(caller)
        ends.append(done)
    print('"ready"', flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    start = time.perf_counter()
    for caller in callers:
        caller.begin()
    await asyncio.gather(*ends)
    taken = time.perf_counter() - start
    for caller in callers:
        caller.close()
    answered = sum(caller.answered for caller in callers)
    return {"answered": answered, "wrong": sum(c.wrong for c in callers), "seconds": taken}


class WatchCounter(asyncio.BufferedProtocol):
    """Counts the events of one watch: each is one line."""

    buffer = bytearray(RECEIVE_BYTES)  # one for all: it is read before the next one fills it

    def __init__(self) -> None:
        self.events = 0
        self.received_bytes = 0
        self.is_open = True
        self._ends_in_brace = False

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        # Every event ends in "}\n"; nothing else in the stream does.
        self.events += self.buffer.count(b"}\n", 0, nbytes)
        if self._ends_in_brace and self.buffer[0] == 10:
            self.events += 1
        self._ends_in_brace = self.buffer[nbytes - 1] == 125

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False


async def watch(port: int, watchers: int, version: str) -> dict[str, Any]:
    """Open watches on configmaps, and count until the input says how many there should be."""
    loop = asyncio.get_running_loop()
    line = request("GET", f"{MAPS}?watch=1&resourceVersion={version}")
    counters: list[WatchCounter] = []
    for _ in range(watchers):
        transport, counter = await loop.create_connection(WatchCounter, "127.0.0.1", port)
        transport.write(line)
        counters.append(counter)
    print('"ready"', flush=True)
    wanted = int(await loop.run_in_executor(None, sys.stdin.readline))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(counter.is_open and counter.events < wanted for counter in counters):
            break
        await asyncio.sleep(0.01)
    return {
        "complete": sum(c.events == wanted for c in counters),
        "events": sum(c.events for c in counters),
        "open": sum(c.is_open for c in counters),
        "bytes": sum(c.received_bytes for c in counters),
        "at": time.time(),
    }


def open_slow(port: int, version: str) -> socket.socket:
    """Open a watch that nobody reads."""
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(("127.0.0.1", port))
    stalled.sendall(request("GET", f"{MAPS}?watch=1&resourceVersion={version}"))
    return stalled


async def main(kind: str, port: int, count: int, rest: list[str]) -> None:
    """Work, then print the result."""
    if kind == "watch":
        print(json.dumps(await watch(port, count, rest[0])), flush=True)
        return
    result = await call(port, int(rest[0]), kind, count=count, tag=rest[1])
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
