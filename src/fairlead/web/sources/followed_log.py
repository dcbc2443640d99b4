"""A log that a page follows: read by a thread, and ended from the loop at any time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

from fairlead.api.status import ApiError
from fairlead.cli.cluster.archive import Archive
from fairlead.cli.cluster.embedded import LogPart, is_embedded, stream_logs
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.memberlogs import MemberLogs
from fairlead.decide.verdict import ObjectKey
from fairlead.input.errors import CliError
from fairlead.kube.blocking import connect_to
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import HttpOptions

_PIECES_MAX = 64


class FollowedLog:
    """One log that is read by a thread. Stopping it closes its connections under it."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES_MAX)
        self._connection, self._loop = connection, loop
        self._sockets: list[socket.socket] = []
        self._is_stopped = False

    def run(self, key: ObjectKey, query: LogPart) -> None:
        """Read to the end, in a thread."""
        api = Api(self._connection, connect=self._connect)
        try:
            for piece in self._chunks(api, key, query):
                if not self._put(piece):
                    return
        except (CliError, ApiError) as error:
            self._put(f"\n[{error}]\n".encode())
        finally:
            api.close()
            self._put(None)

    def stop(self) -> None:
        """Have the thread end soon; harmless when repeated."""
        self._is_stopped = True
        while not self.pieces.empty():
            self.pieces.get_nowait()
        for each in tuple(self._sockets):
            _cut(each)

    def _chunks(self, api: Api, key: ObjectKey, query: LogPart) -> Iterator[bytes]:
        if is_embedded(api):
            return stream_logs(api, key, query)
        return MemberLogs(api, Archive(api, ""), key, query, self._note).stream()

    def _note(self, text: str) -> None:
        self._put(f"[{text}]\n".encode())

    def _connect(self, connection: Connection, options: HttpOptions) -> socket.socket:
        if self._is_stopped:
            raise ConnectionAbortedError("nobody looks any more")
        made = connect_to(connection, options)
        self._sockets.append(made)
        if self._is_stopped:  # meanwhile
            _cut(made)
        return made

    def _put(self, piece: bytes | None) -> bool:
        """Hand a piece over once there is room; False where nobody looks any more."""
        if self._is_stopped:
            return False
        putting: Coroutine[Any, Any, None] = self.pieces.put(piece)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except RuntimeError:  # the loop has ended
            putting.close()
            return False
        return not self._is_stopped


def _cut(connection: socket.socket) -> None:
    """End a connection that another thread uses; not by the method of a TLS socket, which that
    thread may be in.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
