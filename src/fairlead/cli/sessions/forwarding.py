"""Ports of this machine that lead to a member's: a WebSocket for each connection.

So a connection that takes no data holds up no other one, and one that breaks breaks alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import ApiError
from fairlead.cli.sessions.session import CHUNK_BYTES, V4
from fairlead.kube.websocket import PodSocket, SocketServer, pod_socket

CONNECTIONS_MAX = 256
_DATA, _ERROR = 0, 1


class Reads(Protocol):
    """What comes from the one who connects: asyncio's streams, and those of SSH."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return up to n bytes once there are some; nothing at the end."""
        ...


class Writes(Protocol):
    """What goes to the one who connects."""

    def write(self, data: bytes, /) -> None:
        """Write, without waiting."""

    async def drain(self) -> None:
        """Wait until there is room."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Ports:
    """A port of this machine, 0 for a free one, and the member's."""

    local: int
    remote: int


class Forward:
    """Forwards one port. `note` tells the person what went wrong with a connection."""

    def __init__(
        self, server: SocketServer, pod: Pod, ports: Ports, note: Callable[[str], None]
    ) -> None:
        self._server = server
        self._pod = pod
        self._ports = ports
        self._note = note
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    async def listen(self) -> asyncio.Server:
        """Listen on loopback; OSError."""
        return await asyncio.start_server(self.serve, "127.0.0.1", self._ports.local)

    async def serve(self, reader: Reads, writer: Writes) -> None:
        """Lead one connection to the member's port, until either end closes it."""
        path = PODS.path(*self._pod.metadata.key, "portforward")
        query = [("ports", str(self._ports.remote))]
        try:
            async with (
                self._room,
                pod_socket(self._server, path, query, (V4,)) as socket,
                asyncio.TaskGroup() as group,
            ):
                beside = [
                    group.create_task(_send(socket, reader)),
                    group.create_task(socket.keep_alive()),
                ]
                await self._receive(socket, writer)
                for task in beside:
                    task.cancel()
        except* ApiError as errors:
            self._note(str(errors.exceptions[0]))
        finally:
            writer.close()

    async def _receive(self, socket: PodSocket, writer: Writes) -> None:
        begun: set[int] = set()  # channels whose port, their first two bytes, has come
        while message := await socket.receive():
            channel, data = message[0], message[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[2:]
            if channel == _ERROR and data:
                self._note(data.decode(errors="replace"))
            elif data:
                try:
                    writer.write(data)
                    await writer.drain()
                except OSError:
                    return  # its peer has closed it


async def _send(socket: PodSocket, reader: Reads) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            await socket.send(_DATA, data)
