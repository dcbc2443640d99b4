"""The way from a port of this machine to the JupyterLab of a job, while its attempt runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from fairlead import terminal
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import ApiError
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.watching import attempt_end
from fairlead.cli.sessions.forwarding import Forward, Ports
from fairlead.cli.sessions.notebook import FIND, NotebookServer, read_server, usual_port
from fairlead.cli.sessions.session import Streams, run_session
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.websocket import SocketServer

#: Between two looks at what becomes of the job, and at whether its server listens.
LOOK_SECONDS = 2.0
FIND_SECONDS = 0.5
#: Jupyter listens within seconds; an image's file system that is not in memory yet takes longer.
START_SECONDS_MAX = 300.0
#: Of Jupyter's file.
_BYTES_MAX = 64 << 10


class NotebookWay:
    """Leads to the server of a job's current attempt, whose member is `pod`."""

    def __init__(self, api: Api, sockets: SocketServer, job: Job, pod: Pod) -> None:
        self._api = api
        self._sockets = sockets
        self._job = job
        self._pod = pod

    async def lead(self, port: int | None, found: Callable[[str], None]) -> Job:
        """Lead to the server until the attempt has ended, and return the job as it is then.

        `port` None is the job's usual one. `found` is given the address. Gone, CliError.
        """
        server = await self._server()
        if isinstance(server, Job):
            return server
        listener = await self._listen(server, port)
        async with listener:
            found(server.address(listener.sockets[0].getsockname()[1]))
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if (job := await self._ended()) is not None:
                    return job

    async def _server(self) -> NotebookServer | Job:
        """Return the server once it listens, or the job where the attempt ends before."""
        until, last = time.monotonic() + START_SECONDS_MAX, "it did not say where it listens"
        while time.monotonic() < until:
            try:
                if (server := read_server(await self._read())) is not None:
                    return server
            except (ApiError, CliError) as error:
                last = str(error)
            if (job := await self._ended()) is not None:
                return job
            await asyncio.sleep(FIND_SECONDS)
        name = self._job.metadata.name
        raise fail(Code.NOT_STARTED, f"the JupyterLab of {name} cannot be reached: {last}",
                   help=(f"fairlead logs {name}",))  # fmt: skip

    async def _read(self) -> bytes:
        pieces = bytearray()

        def take(data: bytes) -> None:
            pieces.extend(data[: _BYTES_MAX - len(pieces)])

        def drop(_data: bytes) -> None:
            pass

        streams = Streams(stdin=False, tty=False, out=take, error=drop)
        await run_session(self._sockets, self._pod, FIND, streams)
        return bytes(pieces)

    async def _listen(self, server: NotebookServer, port: int | None) -> asyncio.Server:
        if port is None:
            with suppress(OSError):
                return await self._forward(server, usual_port(self._job)).listen()
        try:
            return await self._forward(server, port or 0).listen()
        except OSError as error:
            raise fail(Code.PORT_IN_USE, f"cannot listen on 127.0.0.1:{port}: {error.strerror}",
                       help=("--port 0 takes a free port",)) from error  # fmt: skip

    def _forward(self, server: NotebookServer, local: int) -> Forward:
        return Forward(self._sockets, self._pod, Ports(local, server.port), terminal.tell)

    async def _ended(self) -> Job | None:
        """Return the job where its attempt has ended; None where it goes on, or is not known."""
        return await asyncio.to_thread(attempt_end, lambda: self._api, self._job)
