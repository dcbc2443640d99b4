"""A bare HTTP server in a process of its own: `python -m bench.bare_server`.

What no API server on asyncio avoids: it reads a request, decodes its body, encodes an answer of the
same size, and sends it; an answer to a POST also goes to every watcher as a line. No routes, no
schema, no store, nothing on disk. Its control lines are those of `bench.server`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import msgspec
import uvloop

from bench.objects import config_map_body, encoded

_READ = msgspec.json.decode(encoded(config_map_body("map-0"), kind="ConfigMap"))


class _Connection(asyncio.Protocol):
    """One keep-alive connection; a request is complete before the next one begins."""

    watchers: list[asyncio.Transport] = []

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport in self.watchers:
            self.watchers.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = buffer[:end].split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in head[1:])
        size = int(headers.get(b"Content-Length", b"0"))
        if len(buffer) < end + 4 + size:
            return
        self._buffer = b""
        method, target, _ = head[0].split(b" ")
        if b"watch=1" in target:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
            self.watchers.append(self._transport)
            return
        value = msgspec.json.decode(buffer[end + 4 :]) if size else _READ
        answer = msgspec.json.encode(value)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(answer), answer)
        )
        if method == b"POST" and self.watchers:
            line = b'{"type":"ADDED","object":%b}\n' % answer
            for transport in self.watchers:
                transport.write(line)


async def main() -> None:
    """Serve until the input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=2048)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        while await reader.readline():
            counts = {"watchers": len(_Connection.watchers), "slow": 0, "version": 1}
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
