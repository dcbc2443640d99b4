"""Clients for any API server, with TLS or without: `python -m bench.exchange PLAN`.

PLAN is one JSON object, see `Plan`. Unlike `bench.load` this reads chunked answers too, keeps no
bodies (an answer may have tens of megabytes), and loads nothing of the server, so that it starts in
no time. It prints `"ready"`, waits for a line, works, and prints its result as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import uvloop

from bench.objects import encoded, node_body, small_pod_body, status_patch

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
WATCH_SECONDS_MAX = 60
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Target(msgspec.Struct, frozen=True):
    """A server on loopback; `ca_file` is empty where it speaks plain HTTP."""

    port: int
    token: str
    ca_file: str = ""

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return what a client needs for TLS."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None


class Plan(msgspec.Struct, frozen=True):
    """What one process of clients does. `per_second` 0 is as fast as answers come."""

    kind: str
    target: Target
    count: int
    connections: int
    tag: str = ""
    per_second: float = 0
    version: str = ""
    serials: int = 0  # names are used again after so many; 0: never
    offset: int = 0  # makes the contents of one plan differ from those of another


def request(plan: Plan, serial: int) -> bytes:
    """Return request number `serial` of a plan, whole."""
    patch = "application/merge-patch+json"
    pod = f"{PODS}/{plan.tag}-{serial % plan.serials if plan.serials else serial}"
    if plan.kind == "get-pod":
        return whole_request(plan, "GET", pod)
    if plan.kind == "list-nodes":
        return whole_request(plan, "GET", NODES)
    if plan.kind == "watch-pods":
        return whole_request(plan, "GET", f"{PODS}?watch=1&resourceVersion={plan.version}")
    if plan.kind == "create-pod":
        body = encoded(small_pod_body(f"{plan.tag}-{serial}"), kind="Pod")
        return whole_request(plan, "POST", PODS, body=body)
    if plan.kind == "create-node":
        body = encoded(node_body(f"{plan.tag}-{serial}"), kind="Node")
        return whole_request(plan, "POST", NODES, body=body)
    if plan.kind == "patch-status":
        body = encoded(status_patch(plan.offset + serial))
        return whole_request(plan, "PATCH", f"{pod}/status", body=body, content=patch)
    raise AssertionError(plan.kind)


def whole_request(
    plan: Plan, method: str, path: str, *, body: bytes = b"", content: str = "application/json"
) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{plan.target.port}\r\n"
        f"Authorization: Bearer {plan.target.token}\r\n"
        f"User-Agent: bench\r\nAccept: application/json\r\n"
    )
    if body:
        head += f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Exchange(asyncio.Protocol):
    """One keep-alive connection: the next request goes when the answer is complete."""

    def __init__(self, requests: Iterator[bytes], *, period_seconds: float = 0) -> None:
        self._requests = requests
        self._period_seconds = period_seconds
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._head = b""
        self._left: int | None = None  # bytes of the body that are missing; None: chunked
        self._tail = b""
        self.answered = self.wrong = self.received_bytes = 0
        self.first_refusal = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it

    def begin(self, *, after_seconds: float = 0) -> None:
        """Send the first request, once its time has come."""
        self._due = self._loop.time() + after_seconds
        self._loop.call_at(self._due, self._send)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _send(self) -> None:
        following = next(self._requests, None)
        if following is not None:
            self._transport.write(following)
        elif not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._head.endswith(b"\r\n\r\n"):
            self._take(data)
            return
        head, end, rest = (self._head + data).partition(b"\r\n\r\n")
        self._head = head + end
        if not end:
            return
        lower = head.lower()
        at = lower.find(b"\r\ncontent-length:")
        chunked = at < 0
        self._left = None if chunked else int(lower[at + 17 :].split(b"\r\n", 1)[0])
        if head[9:11] != b"20":
            self.wrong += 1
            self.first_refusal = self.first_refusal or repr(head[:60] + rest[:300])
        self._take(rest)

    def _take(self, data: bytes) -> None:
        """Count a part of a body; JSON has no bare line ends, so the last chunk is told by them."""
        if self._left is None:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            if self._tail != _LAST_CHUNK:
                return
        else:
            self._left -= len(data)
            assert self._left >= 0, "one answer at a time"
            if self._left:
                return
        self.answered += 1
        self._head = self._tail = b""
        if not self._period_seconds:
            self._send()
            return
        self._due += self._period_seconds
        self._loop.call_at(self._due, self._send)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))


class EventCounter(asyncio.Protocol):
    """Counts the events of one watch: a brace and a line end close each, and nothing else."""

    def __init__(self) -> None:
        self.events = self.received_bytes = 0
        self.is_open = True
        self._last = b""

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self.events += data.count(b"}\n") + (self._last == b"}" and data[:1] == b"\n")
        self._last = data[-1:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False


async def call(plan: Plan) -> dict[str, Any]:
    """Send the plan's requests; all are made before the clock starts."""
    made = iter([request(plan, serial) for serial in range(plan.count)])
    loop = asyncio.get_running_loop()
    period = plan.connections / plan.per_second if plan.per_second else 0.0
    exchanges: list[Exchange] = []
    for _ in range(plan.connections):
        one = Exchange(made, period_seconds=period)
        await loop.create_connection(
            lambda one=one: one, "127.0.0.1", plan.target.port, ssl=plan.target.context
        )
        exchanges.append(one)
    await _wait_for_the_line()
    start = time.perf_counter()
    for index, one in enumerate(exchanges):
        one.begin(after_seconds=period * index / plan.connections)
    await asyncio.gather(*(one.done for one in exchanges))
    taken = time.perf_counter() - start
    for one in exchanges:
        one.close()
    return {
        "answered": sum(one.answered for one in exchanges),
        "wrong": sum(one.wrong for one in exchanges),
        "refusal": next((one.first_refusal for one in exchanges if one.wrong), ""),
        "bytes": sum(one.received_bytes for one in exchanges),
        "seconds": taken,
    }


async def watch(plan: Plan) -> dict[str, Any]:
    """Open `connections` watches and wait until each has seen `count` events."""
    loop = asyncio.get_running_loop()
    counters: list[EventCounter] = []
    for _ in range(plan.connections):
        transport, counter = await loop.create_connection(
            EventCounter, "127.0.0.1", plan.target.port, ssl=plan.target.context
        )
        transport.write(request(plan, 0))
        counters.append(counter)
    await _until(lambda: all(counter.received_bytes for counter in counters))
    await _wait_for_the_line()
    await _until(lambda: all(c.events >= plan.count or not c.is_open for c in counters))
    return {
        "complete": sum(c.events == plan.count for c in counters),
        "events": sum(c.events for c in counters),
        "bytes": sum(c.received_bytes for c in counters),
    }


async def _wait_for_the_line() -> None:
    print('"ready"', flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WATCH_SECONDS_MAX
    while not reached() and time.monotonic() < deadline:  # noqa: ASYNC110 # counters, no events
        await asyncio.sleep(0.01)


async def main(plan: Plan) -> None:
    """Work, then print the result."""
    working = watch(plan) if plan.kind == "watch-pods" else call(plan)
    print(json.dumps(await working), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
