"""The connections of a server: accepted within limits, so that no client can shut others out.

A connection begins as a stranger. It remains one until the server settles it: after it has shown
credentials, where the server asks for them; after the head of a request, where it does not.
Strangers have a limit of their own, far below the total, and a deadline for TLS handshake and head.
When there is no room for one more, the oldest idle connection is aborted, strangers first. A
stranger has a short time of its own, though: until it is over, new ones wait in the backlog, so
that many clients that connect at once are all served. A client that only opens connections, or
never ends a head, therefore keeps out neither settled clients nor new ones.

Sockets are accepted here and not by the event loop's server, since that one shows a connection only
after its handshake. The limit on open files of the process bounds the total as well, less a reserve
for its own files.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import cast

#: Files of the process that are no connections: its log, its store, its own clients.
RESERVED_FILES = 128
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.1
#: A client that keeps sending instead of ending its side of TLS is cut off so long after the server
#: has closed the connection; event loops wait for 30 s.
_TLS_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on connections. `stranger_seconds_max` counts from the accept to `settle`."""

    total_max: int
    strangers_max: int
    stranger_seconds_max: float = 10.0
    #: How long a connection without credentials may stay when there are too many.
    stranger_seconds_min: float = 0.25
    backlog_max: int = 1024

    def within_open_files(self) -> ConnectionLimits:
        """Return limits that leave the process files of its own."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self
        total = min(self.total_max, max(soft - RESERVED_FILES, soft // 2))
        return replace(self, total_max=total, strangers_max=min(self.strangers_max, total // 2))


class _Connection(asyncio.Protocol):
    """One connection; passes everything on to the protocol that answers."""

    def __init__(self, owner: Connections, answering: asyncio.Protocol) -> None:
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None  # of the handshake
        self.deadline: asyncio.TimerHandle | None = None
        self.is_busy = False
        self.accepted_at = asyncio.get_running_loop().time()
        self._owner = owner
        self._answering = answering
        # No call of ours between the loop and the protocol for what comes often.
        self.data_received = answering.data_received
        self.eof_received = answering.eof_received
        self.pause_writing = answering.pause_writing
        self.resume_writing = answering.resume_writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it
        self._owner.made(self.transport, self)
        self._answering.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        self._answering.connection_lost(exc)

    def abort(self) -> None:
        """End it at once, in whatever state it is."""
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()
        self._owner.lost(self)


class Connections:
    """The open connections of one server. `protocol` makes what answers one connection."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits.within_open_files()
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        # In order of their arrival; of the settled, in order of their settling.
        self._strangers: dict[_Connection, None] = {}
        self._settled: dict[_Connection, None] = {}
        self._by_transport: dict[asyncio.BaseTransport, _Connection] = {}
        self._handshakes: asyncio.TaskGroup | None = None  # while it listens
        self._paused: tuple[asyncio.TimerHandle, socket.socket] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """How many strangers there are, and how many others."""
        return len(self._strangers), len(self._settled)

    def settle(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that this connection has shown itself; it has no deadline any more."""
        connection = self._by_transport.get(transport) if transport is not None else None
        if connection is None or connection in self._settled:
            return
        self._strangers.pop(connection, None)
        self._settled[connection] = None
        self._resume()
        if connection.deadline is not None:
            connection.deadline.cancel()

    @contextmanager
    def answering(self, transport: asyncio.BaseTransport | None) -> Generator[None]:
        """Keep this connection until the end of the block."""
        connection = self._by_transport.get(transport) if transport is not None else None
        if connection is None:
            yield
            return
        connection.is_busy = True
        try:
            yield
        finally:
            connection.is_busy = False

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncGenerator[int]:
        """Accept until the end of the block; yields the port. OSError.

        Connections that stand at its end are left to the server.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(
            (host, port), family=family, backlog=self.limits.backlog_max
        )
        listener.setblocking(False)
        async with asyncio.TaskGroup() as group:
            self._handshakes = group
            try:
                self._loop.add_reader(listener, self._accept, listener)
                yield int(listener.getsockname()[1])
            finally:
                self._handshakes = None
                self._loop.remove_reader(listener)
                listener.close()
                for connection in tuple(self._strangers):
                    if connection.transport is None:
                        connection.abort()

    def made(self, transport: asyncio.Transport, connection: _Connection) -> None:
        """Note the transport of a connection, known from its handshake on."""
        self._by_transport[transport] = connection

    def lost(self, connection: _Connection) -> None:
        """Note the end of a connection; harmless when repeated."""
        self._strangers.pop(connection, None)
        self._settled.pop(connection, None)
        if connection.transport is not None:
            self._by_transport.pop(connection.transport, None)
        if connection.deadline is not None:
            connection.deadline.cancel()
        self._resume()

    def _accept(self, listener: socket.socket) -> None:
        """Take one connection out of the backlog, or leave it there for a while."""
        if self._handshakes is None:
            return
        wait = self._seconds_until_room()
        if wait > 0:
            self._pause(listener, wait)
            return
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _NO_FILES:
                raise
            if not self._abort_oldest(self._strangers):
                self._pause(listener, _PAUSE_SECONDS)
            return
        if len(self._strangers) + len(self._settled) >= self.limits.total_max:
            accepted.close()  # each of them has a request in work
            return
        accepted.setblocking(False)
        connection = _Connection(self, self._protocol())
        self._strangers[connection] = None
        connection.deadline = self._loop.call_later(
            self.limits.stranger_seconds_max, connection.abort
        )
        connection.task = self._handshakes.create_task(self._connect(connection, accepted))

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listener)
        self._paused = (self._loop.call_later(seconds, self._resume), listener)

    def _resume(self) -> None:
        """Accept again, after the pause or since there is room before its end."""
        if self._paused is None:
            return
        timer, listener = self._paused
        self._paused = None
        timer.cancel()
        if self._handshakes is not None:
            self._loop.add_reader(listener, self._accept, listener)

    async def _connect(self, connection: _Connection, accepted: socket.socket) -> None:
        """Make the connection's transport, which begins with the handshake."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=(
                    None if self._tls is None else self.limits.stranger_seconds_max
                ),
                ssl_shutdown_timeout=None if self._tls is None else _TLS_END_SECONDS,
            )
        except (OSError, ssl.SSLError):
            self.lost(connection)  # no TLS, another authority, or gone: theirs to sort out
        finally:
            if connection.transport is None:
                self.lost(connection)
                accepted.close()

    def _seconds_until_room(self) -> float:
        """Make room for one connection if an idle one may go; return how long to wait for it."""
        limits, strangers = self.limits, self._strangers
        if len(strangers) >= limits.strangers_max:
            oldest = next(iter(strangers))
            wait = oldest.accepted_at + limits.stranger_seconds_min - self._loop.time()
            if wait <= 0:
                self._abort_oldest(strangers)
            return max(wait, 0.0)
        if len(strangers) + len(self._settled) >= limits.total_max:
            # When neither has an idle one, the new one is refused.
            _ = self._abort_oldest(strangers) or self._abort_oldest(self._settled)
        return 0.0

    def _abort_oldest(self, among: dict[_Connection, None]) -> bool:
        idle = next((each for each in among if not each.is_busy), None)
        if idle is not None:
            idle.abort()
        return idle is not None
