"""An SSH server for one client, the one that started this process, before one member of a job.

The client's channels become the streams that Fairlead's other commands use: a command, a shell and
SFTP an `exec`, a connection to a port of the member a `portforward`. So the image needs no sshd,
and who may do what is RBAC's to say, as for those. The server speaks through its stdin and stdout,
listens nowhere, and asks for no key: who started it could run `fairlead exec` as well. Nothing of
this machine is served: no file, no port, no agent. Design: docs/design/interactive.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import asyncssh
from asyncssh.constants import (
    DISC_BY_APPLICATION,
    OPEN_ADMINISTRATIVELY_PROHIBITED,
    OPEN_RESOURCE_SHORTAGE,
)

from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import ApiError
from fairlead.cli.sessions.foreground import SHELL
from fairlead.cli.sessions.forwarding import CONNECTIONS_MAX, Forward, Ports, Reads, Writes
from fairlead.cli.sessions.session import CHUNK_BYTES, Streams, read_ready, run_session
from fairlead.cli.sessions.shipped import NO_PYTHON, Shipped
from fairlead.input.errors import CliError
from fairlead.kube.websocket import SocketServer

#: A container takes as many programs beside its own.
SESSIONS_MAX = 64
INPUT_BYTES_MAX = 256 << 10
#: The exit code of what did not run to its end, as ssh's own.
LOST = 255
_SFTP = Shipped("sftp_server")
#: As sshd's AcceptEnv on most systems, and what git speaks its newer protocol by.
_ACCEPTED = re.compile(r"LANG|LC_[A-Z]+|COLORTERM|GIT_PROTOCOL")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Fast in hardware at both ends, which pipes of one user join.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr")


@dataclass(slots=True)
class SshMember:
    """The member that is led to. `server` gives the address with a credential that holds now, and
    `note` tells the person what went wrong.
    """

    pod: Pod
    host: str
    server: Callable[[], Awaitable[SocketServer]]
    note: Callable[[str], None]
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    sessions: int = 0
    connections: int = 0


async def serve(
    member: SshMember, key: bytes, until_ended: Callable[[], Awaitable[str]]
) -> int:  # fmt: skip
    """Serve the client at stdin and stdout until it goes, or `until_ended` returns why the member
    is there no more; return the exit code.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    options = asyncssh.SSHServerConnectionOptions(
        server_factory=lambda: MemberServer(member),
        server_host_keys=[asyncssh.import_private_key(key)], encoding=None,
        encryption_algs=_CIPHERS, compression_algs=("none",), agent_forwarding=False,
        gss_host=None, server_version="Fairlead",
    )  # fmt: skip
    async with member.tasks as tasks:
        beside = [tasks.create_task(_send(ours)), tasks.create_task(_receive(ours))]
        code = 0
        try:
            connection = await asyncssh.run_server(theirs, options=options)
            ended = tasks.create_task(_until_ended(connection, member, until_ended))
            beside.append(ended)
            await connection.wait_closed()
        except (asyncssh.Error, OSError) as error:
            member.note(f"the client's connection failed: {error}")
            code = LOST
        for task in beside:
            task.cancel()
    ours.close()
    return code


async def _until_ended(
    connection: asyncssh.SSHServerConnection, member: SshMember,
    until_ended: Callable[[], Awaitable[str]],
) -> None:  # fmt: skip
    why = await until_ended()
    member.note(why)
    connection.disconnect(DISC_BY_APPLICATION, why)


async def _send(ours: socket.socket) -> None:
    """Pass on what the client says, to its end."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await read_ready(0):
            await loop.sock_sendall(ours, data)
        ours.shutdown(socket.SHUT_WR)


async def _receive(ours: socket.socket) -> None:
    """Pass on what the client is answered. It may take none for hours: nothing else waits then."""
    loop = asyncio.get_running_loop()
    os.set_blocking(1, False)
    with suppress(OSError):
        while data := await loop.sock_recv(ours, CHUNK_BYTES):
            left = memoryview(data)
            while left:
                try:
                    left = left[os.write(1, left) :]
                except BlockingIOError:
                    await _writable(1)


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


class MemberServer(asyncssh.SSHServer):
    """What a client may open. Listening for it, its agent and X11 are refused by default."""

    def __init__(self, member: SshMember) -> None:
        self._member = member

    def begin_auth(self, username: str) -> bool:
        """Ask for nothing: the two ends of the pipes are of one user."""
        return False

    def session_requested(self) -> MemberSession | bool:
        """Take a session, up to a number at a time."""
        if self._member.sessions >= SESSIONS_MAX:
            return False
        return MemberSession(self._member)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Callable[[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]], Awaitable[None]]:
        """Lead to a port of the member; never to one of this machine or of its network."""
        member = self._member
        if dest_host.lower() not in (*_LOOPBACK, member.host):
            raise asyncssh.ChannelOpenError(
                OPEN_ADMINISTRATIVELY_PROHIBITED,
                f"{dest_host}: only ports of the member itself, localhost, are led to",
            )
        if member.connections >= CONNECTIONS_MAX:
            raise asyncssh.ChannelOpenError(
                OPEN_RESOURCE_SHORTAGE, f"{CONNECTIONS_MAX} connections are open"
            )

        async def lead(reader: Reads, writer: Writes) -> None:
            member.connections += 1
            try:
                ports = Ports(0, dest_port)
                forward = Forward(await member.server(), member.pod, ports, member.note)
                await forward.serve(reader, writer)
            except (ApiError, CliError) as error:
                member.note(str(error))
            finally:
                member.connections -= 1
                writer.close()

        return lead


class MemberSession(asyncssh.SSHServerSession[bytes]):
    """One command, shell or SFTP server beside the member."""

    def __init__(self, member: SshMember) -> None:
        self._member = member
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._words: tuple[str, ...] = ()
        self._first = b""
        self._given = deque[bytes]()
        self._given_bytes = 0
        self._is_given_all = False
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_resized = asyncio.Event()

    @property
    def _open(self) -> asyncssh.SSHServerChannel[bytes]:
        assert self._channel is not None, "a session begins with its channel"
        return self._channel

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Take the channel."""
        self._member.sessions += 1
        self._channel = chan

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Take a terminal; what it is, the channel knows."""
        return True

    def shell_requested(self) -> bool:
        """Take a shell."""
        self._words = ("sh", "-c", SHELL)
        return True

    def exec_requested(self, command: str) -> bool:
        """Take a command, for the shell as sshd does."""
        self._words = ("sh", "-c", f'{SHELL} -c "$1"', "fairlead-ssh", command)
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Take SFTP, which is sent to the member."""
        self._words, self._first = _SFTP.command(()), _SFTP.text
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Begin."""
        self._task = self._member.tasks.create_task(self._run())

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Take input, and no more until the program has taken it."""
        self._given.append(data)
        self._given_bytes += len(data)
        if self._given_bytes > INPUT_BYTES_MAX:
            self._open.pause_reading()
        self._has_news.set()

    def eof_received(self) -> bool:
        """Take the end of input; output goes on."""
        self._is_given_all = True
        self._has_news.set()
        return True

    def pause_writing(self) -> None:
        """Have output wait."""
        self._has_room.clear()

    def resume_writing(self) -> None:
        """Let output go on."""
        self._has_room.set()

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Have the new size sent."""
        self._is_resized.set()

    def signal_received(self, signal: str) -> None:
        """End the program as a connection that ends does; none else can be sent to it."""
        if signal in ("HUP", "INT", "QUIT", "TERM", "KILL"):
            self._open.exit_with_signal(signal)
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the program, if it goes on."""
        self._member.sessions -= 1
        self._end()

    def _end(self) -> None:
        self._has_room.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        channel, terminal = self._open, self._open.get_terminal_type()
        given = {name: value for name, value in channel.get_environment().items()
                 if _ACCEPTED.fullmatch(name)}  # fmt: skip
        if terminal is not None:
            given["TERM"] = terminal or "xterm"
        setting = ("env", *(f"{name}={value}" for name, value in given.items())) if given else ()
        streams = Streams(
            stdin=self._input(), tty=terminal is not None, out=self._write,
            error=self._write_error, sizes=self._sizes(), until_room=self._has_room.wait,
        )  # fmt: skip
        try:
            server = await self._member.server()
            code = await run_session(server, self._member.pod, setting + self._words, streams)
            if code == NO_PYTHON and self._first:
                self._say("the image has no Python 3.8, which SFTP needs; scp -O and rsync use the "
                          "image's own programs")  # fmt: skip
        except (ApiError, CliError) as error:
            self._say(str(error))
            code = LOST
        if not channel.is_closing():
            channel.exit(code & 0xFF)

    async def _input(self) -> AsyncGenerator[bytes]:
        if self._first:
            yield self._first
        while True:
            while self._given:
                data = self._given.popleft()
                yield data
                self._given_bytes -= len(data)
                if self._given_bytes <= INPUT_BYTES_MAX:
                    self._open.resume_reading()
            if self._is_given_all:
                return
            self._has_news.clear()
            await self._has_news.wait()

    async def _sizes(self) -> AsyncGenerator[tuple[int, int]]:
        while True:
            columns, lines, _, _ = self._open.get_terminal_size()
            yield columns, lines
            await self._is_resized.wait()
            self._is_resized.clear()

    def _write(self, data: bytes) -> None:
        if not self._open.is_closing():
            self._open.write(data)

    def _write_error(self, data: bytes) -> None:
        if not self._open.is_closing():
            self._open.write_stderr(data)

    def _say(self, text: str) -> None:
        self._write_error(f"fairlead: {text}\n".encode())
