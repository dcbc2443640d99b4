"""Answering the streams of a pod: which container, by which protocol, and whether at all.

What can be refused before the handshake is, with a Status; afterwards an error goes through the
session's own channel. Each session is in the log of the server, which keeps no other record of it.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import ApiError, BadRequest, NotFound, TooManyRequests
from fairlead.embedded.http.request import Query
from fairlead.embedded.http.streams import port_forward, sessions
from fairlead.embedded.http.streams.logs import LogOptions, LogSource
from fairlead.embedded.http.streams.pod_streams import ExecOptions, StreamSource
from fairlead.embedded.http.streams.podlogs import choose_container
from fairlead.embedded.http.streams.spdy_sockets import (
    SpdySession,
    SpdySocket,
    is_spdy,
    require_protocol,
)
from fairlead.embedded.http.streams.websockets import Socket, chosen_protocol
from fairlead.runtime.logs import SILENT, Logger

#: What one server has open at once: each may hold a message of its client's.
SESSIONS_MAX = 128
#: Of the command in the log.
_ASKED_LENGTH_MAX = 200


class PodStreams:
    """Answers `exec`, `attach` and `portforward` of pods."""

    def __init__(
        self,
        source: StreamSource | None,
        logs: LogSource | None,
        is_stopping: Callable[[], bool],
        *,
        log: Logger = SILENT,
    ) -> None:
        """`source` None: no node of this server has programs to start others beside."""
        self._log = log
        self._source = source
        self._logs = logs
        self._is_stopping = is_stopping
        self._open = self._count = 0

    async def answer(
        self, request: web.BaseRequest, pod: Pod, query: Query, subresource: str
    ) -> web.StreamResponse:
        """Serve one session to its end; ApiError before it begins."""
        if self._open >= SESSIONS_MAX:
            raise TooManyRequests(f"{SESSIONS_MAX} sessions are open, the server's limit")
        if self._source is None or self._logs is None:
            raise NotFound(f"this server has no node that serves pods/{subresource}")
        self._count += 1
        facts = {"session": self._count, "pod": "/".join(pod.metadata.key)}
        self._log.info(
            "Session requested", **facts, kind=subresource, client=request.remote or "",
            agent=request.headers.get("User-Agent", ""),
            asked=" ".join((*query.texts("command"), *query.texts("ports")))[:_ASKED_LENGTH_MAX],
        )  # fmt: skip
        self._open += 1
        try:
            match subresource:
                case "exec":
                    answer = await self._exec(request, pod, query, self._source)
                case "attach":
                    answer = await self._attach(request, pod, query, self._logs)
                case _:
                    answer = await self._forward(request, pod, query, self._source)
        except ApiError as error:
            self._log.info("Session refused", **facts, error=str(error))
            raise
        finally:
            self._open -= 1
        self._log.info("Session ended", **facts)
        return answer

    async def _exec(
        self, request: web.BaseRequest, pod: Pod, query: Query, source: StreamSource
    ) -> web.StreamResponse:
        options = _options(query)
        if not options.command:
            raise BadRequest("you must specify at least one command for the container")
        container = _running_container(pod, query, "exec into")
        socket, protocol, session = self._session(request, options)
        execution = await source.execute(pod, container, options)
        try:
            await socket.open(protocol)
        except BaseException:
            execution.close()
            raise
        return await socket.run(session.run(execution))

    async def _attach(
        self, request: web.BaseRequest, pod: Pod, query: Query, logs: LogSource
    ) -> web.StreamResponse:
        options = _options(query)
        container = _running_container(pod, query, "attach")
        socket, protocol, session = self._session(request, options)
        new = LogOptions(follow=True, tail_lines=0)
        pieces = await logs.read(*pod.metadata.key, container, new)
        await socket.open(protocol)
        return await socket.run(sessions.attach(session, pieces))

    async def _forward(
        self, request: web.BaseRequest, pod: Pod, query: Query, source: StreamSource
    ) -> web.StreamResponse:
        _require_running(pod, "forward a port of")
        if is_spdy(request):
            socket: Socket = SpdySocket(request, self._is_stopping)
            protocol = require_protocol(request, port_forward.SPDY_ALONE)
        else:
            socket = Socket(request, self._is_stopping)
            protocol = chosen_protocol(request, port_forward.PROTOCOLS)
        ports = None
        if protocol == port_forward.V4:
            ports = port_forward.ports_of(query.texts("ports"))
        await socket.open(protocol)
        return await socket.run(port_forward.Forwarding(socket, source, pod).run(ports))

    def _session(
        self, request: web.BaseRequest, options: ExecOptions
    ) -> tuple[Socket, str, sessions.StreamSession]:
        """Return a connection, the protocol to open it with, and its session; BadRequest."""
        if is_spdy(request):
            spdy = SpdySession(request, self._is_stopping, options)
            protocol = require_protocol(request, sessions.V4)
            return spdy, protocol, sessions.StreamSession(spdy, sessions.V5, options)
        socket = Socket(request, self._is_stopping)
        protocol = chosen_protocol(request, sessions.PROTOCOLS)
        return socket, protocol, sessions.StreamSession(socket, protocol, options)


def _options(query: Query) -> ExecOptions:
    options = ExecOptions(
        command=query.texts("command"),
        stdin=query.flag("stdin"), stdout=query.flag("stdout"), stderr=query.flag("stderr"),
        tty=query.flag("tty"),
    )  # fmt: skip
    if not (options.stdin or options.stdout or options.stderr):
        raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
    return options


def _require_running(pod: Pod, what: str) -> None:
    """Refuse a pod that has ended, or has no node; as upstream words it."""
    if pod.is_terminal:
        phase = pod.status.phase
        raise BadRequest(f"cannot {what} a container in a completed pod; current phase is {phase}")
    if not pod.spec.node_name:
        raise BadRequest(f"pod {pod.metadata.name} does not have a host assigned")


def _running_container(pod: Pod, query: Query, what: str) -> str:
    _require_running(pod, what)
    return choose_container(pod, query.text("container"))
