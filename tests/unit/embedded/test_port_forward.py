"""Forwarded connections of one tunnel: apart from one another, and within bounds."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.unit.embedded.test_spdy import Client, data

from fairlead.embedded.http.streams.pod_streams import StreamSource
from fairlead.embedded.http.streams.port_forward import WAITING_BYTES_MAX, Forwarding
from fairlead.embedded.http.streams.websockets import Socket
from fairlead.testing.builders import make_pod

HANGS, TAKES, PIECE = 1, 2, 1 << 18


class Tunnel:
    """The client's side: `messages` are what it sends, `taken` how many of them were read."""

    def __init__(self, *messages: bytes) -> None:
        self.messages, self.taken = messages, 0

    async def receive(self) -> bytes:
        if self.taken == len(self.messages):
            await asyncio.Event().wait()
        self.taken += 1
        return self.messages[self.taken - 1]

    async def send(self, _: bytes) -> None:
        return


class Source:
    """A pod that accepts no connection to HANGS before `accepts`; the others are taken at once."""

    def __init__(self) -> None:
        self.accepts = asyncio.Event()
        self.got: dict[int, bytearray] = {HANGS: bytearray(), TAKES: bytearray()}

    async def connect(self, _: Any, port: int) -> tuple[asyncio.StreamReader, Any]:
        if port == HANGS:
            await self.accepts.wait()
        return asyncio.StreamReader(), Writer(self.got[port])


class Writer:
    def __init__(self, got: bytearray) -> None:
        self.write = got.extend

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def write_eof(self) -> None:
        return

    close = write_eof


def opened(client: Client, request: int, port: int) -> bytes:
    """Open both streams of a connection; that of its data is 4 * request + 3."""
    common = {"requestid": str(request), "port": str(port)}
    first = client.open(4 * request + 1, streamtype="error", **common)
    return first + client.open(4 * request + 3, streamtype="data", **common)


async def forwarded(tunnel: Tunnel, source: Source, *, until: Any) -> None:
    """Serve the tunnel until the condition holds, or nothing moves any more."""
    forwarding = Forwarding(cast("Socket", tunnel), cast("StreamSource", source), make_pod("web"))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(forwarding.run(None))
        for _ in range(1000):
            if until():
                break
            await asyncio.sleep(0)
        serving.cancel()


async def test_a_connection_that_hangs_holds_up_no_other() -> None:
    client, source = Client(), Source()
    both = opened(client, 0, HANGS) + opened(client, 1, TAKES)
    tunnel = Tunnel(both, data(3, b"waits"), data(7, b"goes"))
    await forwarded(tunnel, source, until=lambda: source.got[TAKES])
    assert source.got == {HANGS: b"", TAKES: b"goes"}


async def test_a_client_that_floods_connections_which_hang_is_read_no_further() -> None:
    client, source = Client(), Source()
    opens = b"".join(opened(client, number, HANGS) for number in range(20))
    flood = [data(4 * (number % 20) + 3, bytes(PIECE)) for number in range(200)]
    tunnel = Tunnel(opens, *flood)
    await forwarded(tunnel, source, until=lambda: False)
    assert tunnel.taken <= 1 + WAITING_BYTES_MAX // PIECE + 2


async def test_small_pieces_are_counted_with_what_they_cost() -> None:
    client, source = Client(), Source()
    small = [data(3, b"x")] * 2 * (WAITING_BYTES_MAX // 256)
    tunnel = Tunnel(opened(client, 0, HANGS), *small)
    await forwarded(tunnel, source, until=lambda: False)
    assert tunnel.taken < len(tunnel.messages)


async def test_what_waited_comes_whole_and_in_order_once_the_pod_accepts() -> None:
    client, source = Client(), Source()
    pieces = [bytes([number]) * PIECE for number in range(20)]
    tunnel = Tunnel(opened(client, 0, HANGS), *(data(3, each) for each in pieces))

    def is_whole() -> bool:
        if tunnel.taken > WAITING_BYTES_MAX // PIECE:
            source.accepts.set()
        return len(source.got[HANGS]) == PIECE * len(pieces)

    await forwarded(tunnel, source, until=is_whole)
    assert bytes(source.got[HANGS]) == b"".join(pieces)
