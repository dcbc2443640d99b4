"""A port of this machine that leads to a server, and whose connections can be cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """Listens on loopback until the process ends; `server` is asked for each connection."""

    def __init__(self, server: Callable[[], tuple[str, int]]) -> None:
        self._server, self._open = server, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _serve(self) -> None:
        while True:
            ours, _ = self._listener.accept()
            try:
                theirs = socket.create_connection(self._server())
            except OSError:
                ours.close()
                continue
            self._open += [ours, theirs]
            for one, other in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
