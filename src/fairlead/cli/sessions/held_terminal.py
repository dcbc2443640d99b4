"""This terminal, joined with one that a holder keeps in a member, for as long as the program runs.

A connection that is lost is made again by itself, and goes on where the last one ended: both sides
count bytes, and keep what the other one does not have yet. `Ctrl-] d` leaves the session, which
goes on. The other end: `member/terminal_holder.py`. Design: docs/design/interactive.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto

import msgspec

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import ApiError, Forbidden, Unauthorized, Unavailable
from fairlead.cli.formats.program_output import write_as_is
from fairlead.cli.sessions.session import (
    MESSAGE_MAX,
    V4,
    V5,
    exit_code_of,
    raw_terminal,
    read_ready,
)
from fairlead.cli.sessions.shipped import Shipped
from fairlead.input.errors import CliError, Code, fail
from fairlead.kube.websocket import PodSocket, SocketServer, pod_socket
from fairlead.member.terminal_frames import (
    ACK,
    END,
    HELLO,
    INPUT,
    INPUT_BYTES_MAX,
    LEAVE,
    MAGIC,
    NO_SESSION,
    NOT_HELD,
    NOT_LOGGED,
    OFFSET,
    OUTPUT,
    PING,
    ROWS_COLUMNS,
    SIZE,
    TAKEN,
    TAKEN_OVER,
    WELCOME,
    Frames,
    Modes,
    frame,
)
from fairlead.terminal import printable

WAY = Shipped("terminal_frames", "terminal_holder", "terminal_way")
PING_SECONDS = 10.0
#: A holder that answers nothing for so long is not reached.
SILENCE_SECONDS_MAX = 30.0
#: Between two tries to join again; and for how long they go on.
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
RETRY_SECONDS_MAX = 1800.0
#: For the holder to hear of a viewer that leaves.
LEAVE_SECONDS = 1.0
#: How much output has come is said at least so often, and after so much.
ACK_SECONDS = 5.0
_ACK_BYTES = 32 << 10
_STDIN, _STDOUT, _STDERR, _ERROR = 0, 1, 2, 3
_PREFIX, _LEAVES, _CTRL_C = 0x1D, ord("d"), 0x03


class SessionEnding(Enum):
    """Why this terminal is not joined with the session any more."""

    #: The program has ended; the code says how.
    ENDED = auto()
    #: A person has left it; it goes on.
    LEFT = auto()
    #: This terminal is gone, or this process was ended; the session goes on.
    INTERRUPTED = auto()
    #: It could not be joined again in all the time for that; it may go on.
    LOST = auto()
    #: Another terminal has joined it.
    TAKEN_OVER = auto()
    #: It is gone, and with it how the program ended.
    GONE = auto()
    #: The member keeps no terminals: it has no Python.
    NOT_HELD = auto()


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """How it came to an end."""

    ending: SessionEnding
    #: What the session is called; "" where it was never joined.
    name: str = ""
    code: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """Where the session is. `connect` gives the server of now, which may have moved meanwhile."""

    pod: Pod
    connect: Callable[[], SocketServer]
    #: False once the member has ended; asked after a connection was lost.
    is_there: Callable[[], bool]
    #: How long the job may still run, if that is limited.
    seconds_left: Callable[[], float | None]


class _Lost(Exception):
    """The connection is lost."""


class _Left(Exception):
    """A person leaves the session."""


class _Welcome(msgspec.Struct, frozen=True):
    """What the holder says first."""

    name: int
    first: int = msgspec.field(name="from")
    input: int
    modes: str


class _Ended(msgspec.Struct, frozen=True):
    """How the program has ended, and why it was ended."""

    code: int
    why: str


def _logging_way() -> Shipped:
    return Shipped("terminal_frames", "terminal_log", "terminal_holder", "terminal_way")


class LeaveKey:
    """Finds `Ctrl-] d` in what is typed; `Ctrl-] Ctrl-]` is one Ctrl-] for the program."""

    def __init__(self) -> None:
        self._has_prefix = False

    def feed(self, keys: bytes) -> tuple[bytes, bool]:
        """Return what the program gets, and whether the session is left after it."""
        kept = bytearray()
        for key in keys:
            if not self._has_prefix:
                self._has_prefix = key == _PREFIX
                if not self._has_prefix:
                    kept.append(key)
                continue
            self._has_prefix = False
            if key == _LEAVES:
                return bytes(kept), True
            kept += bytes((_PREFIX,)) if key == _PREFIX else bytes((_PREFIX, key))
        return bytes(kept), False


class HeldTerminal:
    """One terminal's side of one session, over as many connections as it takes."""

    def __init__(self, member: Member, way: Sequence[str]) -> None:
        """`way` is `("open", IDLE_SECONDS, LOG, TITLE, COMMAND...)` or `("join", NAME)`."""
        self._member, self._way = member, way
        is_logged = way[0] == "open" and bool(way[2])
        self._shipped = _logging_way() if is_logged else WAY
        self._id = secrets.token_hex(8)
        #: What the session is called, once it is joined.
        self.name = ""
        self._seen = self._acked = 0  # bytes of output that are shown, and the holder knows of
        self._typed, self._typed_at = bytearray(), 0  # not taken yet, and the offset of its first
        self._modes = Modes()
        self._changed = asyncio.Event()  # something is to be sent
        self._has_room = asyncio.Event()  # for what is typed
        self._leaves = asyncio.Event()
        self._is_joined = self._is_resized = False
        self._is_drawn = True  # False: the program is to draw its screen again, over our words

    async def run(self) -> SessionOutcome:
        """Join the session until that is over; ApiError, CliError where it cannot be joined."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._resized)
        try:
            async with asyncio.TaskGroup() as group:
                keys = group.create_task(self._read_keys())
                outcome = await self._persist()
                keys.cancel()
                if outcome.ending is not SessionEnding.ENDED:
                    write_as_is(b"\r\n")
                return outcome
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            with suppress(OSError):
                write_as_is(self._modes.leaving())

    async def _persist(self) -> SessionOutcome:
        """Connect, and again after each loss."""
        lost_at, tries = 0.0, 0
        while True:
            try:
                return await self._connected()
            except _Left:
                return SessionOutcome(SessionEnding.LEFT)
            except (_Lost, ApiError, CliError) as error:
                if not self.name:
                    raise Unavailable(str(error)) if isinstance(error, _Lost) else error from None
                if self._is_joined:
                    self._is_joined, lost_at, tries = False, time.monotonic(), 0
                    why = printable(str(error), MESSAGE_MAX)
                    self._tell(f"the connection is lost: {why}; joining again, Ctrl-C leaves")
                if isinstance(error, (Unauthorized, Forbidden)):
                    return SessionOutcome(SessionEnding.LOST, why=str(error))
                if not await asyncio.to_thread(self._member.is_there):
                    return SessionOutcome(SessionEnding.GONE)
                if time.monotonic() > lost_at + RETRY_SECONDS_MAX:
                    return SessionOutcome(SessionEnding.LOST, why=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]):
                    await self._leaves.wait()
            if self._leaves.is_set():
                return SessionOutcome(SessionEnding.LEFT)
            tries += 1

    def _tell(self, text: str) -> None:
        write_as_is(f"\r\n[fairlead: {text}]\r\n".encode())

    async def _connected(self) -> SessionOutcome:
        """Join the session over one connection, until that or the session ends; _Lost, ApiError."""
        shipped, words = (WAY, ("join", self.name)) if self.name else (self._shipped, self._way)
        way = shipped.command(words)
        server = await asyncio.to_thread(self._member.connect)
        pod = self._member.pod
        query = [("container", pod.spec.containers[0].name)]
        query += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
        query += [("command", word) for word in way]
        path = PODS.path(*pod.metadata.key, "exec")
        try:
            async with (
                pod_socket(server, path, query, (V5, V4)) as socket,
                asyncio.TaskGroup() as group,
            ):
                beside = [group.create_task(socket.keep_alive()),
                          group.create_task(self._send(socket))]  # fmt: skip
                outcome = await self._receive(socket)
                for task in beside:
                    task.cancel()
                return outcome
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _send(self, socket: PodSocket) -> None:
        """Send the greeting, then keys, sizes, how much has come, and signs of life; _Left."""
        await socket.send(_STDIN, WAY.text if self.name else self._shipped.text)
        rows, columns = _size()
        greeting = {
            "id": self._id, "seen": self._seen if self.name else None, "rows": rows,
            "columns": columns, "seconds_left": self._member.seconds_left(),
        }  # fmt: skip
        await socket.send(_STDIN, frame(HELLO, json.dumps(greeting).encode()))
        sent, pinged_at = 0, time.monotonic()
        while True:
            if self._is_joined:
                sent = max(sent, self._typed_at)
                if fresh := bytes(self._typed[sent - self._typed_at :]):
                    await socket.send(_STDIN, frame(INPUT, OFFSET.pack(sent) + fresh))
                    sent += len(fresh)
                if not self._is_drawn:
                    self._is_drawn, self._is_resized = True, True
                    rows, columns = _size()
                    await socket.send(_STDIN, frame(SIZE, ROWS_COLUMNS.pack(rows - 1, columns)))
                if self._is_resized:
                    self._is_resized = False
                    await socket.send(_STDIN, frame(SIZE, ROWS_COLUMNS.pack(*_size())))
                await self._acknowledge(socket)
            if self._leaves.is_set():
                await socket.send(_STDIN, frame(LEAVE))
                await asyncio.sleep(LEAVE_SECONDS)
                raise _Left
            if time.monotonic() > pinged_at + PING_SECONDS:
                await socket.send(_STDIN, frame(PING))
                pinged_at = time.monotonic()
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ACK_SECONDS):
                    await self._changed.wait()

    async def _acknowledge(self, socket: PodSocket) -> None:
        if self._seen > self._acked:
            self._acked = self._seen
            await socket.send(_STDIN, frame(ACK, OFFSET.pack(self._seen)))

    async def _receive(self, socket: PodSocket) -> SessionOutcome:
        """Take what comes until the session or the connection ends; _Lost, CliError."""
        frames, begun, said = Frames(), bytearray(), bytearray()
        while True:
            channel, data = await self._message(socket)
            if channel == _STDERR:
                said += data[: MESSAGE_MAX - len(said)]
            elif channel == _ERROR and data:
                self._way_ended(exit_code_of(data), text := _text(said))
                ending = SessionEnding.GONE if self.name else SessionEnding.NOT_HELD
                return SessionOutcome(ending, why=text)
            if channel != _STDOUT:
                continue
            if len(begun) < len(MAGIC):
                begun += data
                data, begun = bytes(begun[len(MAGIC) :]), begun[: len(MAGIC)]
                if not MAGIC.startswith(begun):
                    raise _not_a_holder()
            try:
                outcomes = [self._hear(kind, body) for kind, body in frames.feed(data)]
            except (struct.error, ValueError) as error:
                raise _not_a_holder() from error
            for outcome in filter(None, outcomes):
                await self._acknowledge(socket)
                return outcome

    async def _message(self, socket: PodSocket) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                message = await socket.receive()
        except TimeoutError:
            raise _Lost("no answer") from None
        if message is None:
            raise _Left if self._leaves.is_set() else _Lost("it was closed")
        return message[0], message[1:]

    def _way_ended(self, code: int, said: str) -> None:
        """Raise what the end of the way means where it means no end of the session."""
        if self._leaves.is_set():
            raise _Left
        if self.name and code != NO_SESSION:
            raise _Lost("its way has ended")
        if not self.name and code not in (NOT_HELD, 126, 127):
            remedy = (
                "without --log the session opens" if code == NOT_LOGGED else "fairlead sessions"
            )
            raise fail(Code.NOT_STARTED, said or f"the session cannot be joined: {code}",
                       help=(remedy,))  # fmt: skip

    def _hear(self, kind: bytes, body: bytes) -> SessionOutcome | None:
        """Do what the holder says; how the session has ended, or None."""
        if kind == WELCOME:
            self._welcomed(msgspec.json.decode(body, type=_Welcome))
        elif kind == OUTPUT:
            self._show(OFFSET.unpack_from(body)[0], body[OFFSET.size :])
        elif kind == TAKEN:
            self._taken(OFFSET.unpack(body)[0])
        elif kind == END:
            ended = msgspec.json.decode(body, type=_Ended)
            return SessionOutcome(
                SessionEnding.ENDED, code=ended.code, why=printable(ended.why, MESSAGE_MAX)
            )
        elif kind == TAKEN_OVER:
            return SessionOutcome(SessionEnding.TAKEN_OVER)
        return None

    def _welcomed(self, said: _Welcome) -> None:
        if self.name:
            self._is_drawn = not self._modes.is_full_screen
            if self._is_drawn:
                self._tell("joined again")
        else:
            self.name, self._seen = str(said.name), said.first
            write_as_is(said.modes.encode())
            self._modes.feed(said.modes.encode())
        self._taken(said.input)
        self._is_joined = True
        self._changed.set()

    def _show(self, offset: int, data: bytes) -> None:
        if offset > self._seen:
            self._tell(f"{offset - self._seen} bytes of output were not kept")
        data = data[max(0, self._seen - offset) :]
        write_as_is(data)
        self._modes.feed(data)
        self._seen = max(self._seen, offset) + len(data)
        if self._seen > self._acked + _ACK_BYTES:
            self._changed.set()

    def _taken(self, offset: int) -> None:
        done = min(max(0, offset - self._typed_at), len(self._typed))
        del self._typed[:done]
        self._typed_at += done
        self._has_room.set()

    def _resized(self) -> None:
        self._is_resized = True
        self._changed.set()

    async def _read_keys(self) -> None:
        """Take what is typed, as far as the holder takes it."""
        descriptor, key = sys.stdin.fileno(), LeaveKey()
        while not self._leaves.is_set():
            while (room := INPUT_BYTES_MAX - len(self._typed)) <= 0:
                self._has_room.clear()
                await self._has_room.wait()
            try:
                keys = await read_ready(descriptor, room)
            except OSError:
                keys = b""  # the terminal is gone
            kept, leaves = key.feed(keys)
            self._typed += kept
            if leaves or not keys or (not self._is_joined and _CTRL_C in keys):
                self._leaves.set()
            self._changed.set()


def _text(said: bytearray) -> str:
    return printable(said.decode(errors="replace").strip(), MESSAGE_MAX)


def _not_a_holder() -> CliError:
    return fail(Code.BAD_ANSWER, "what keeps the terminal in the member answers something else",
                help=("fairlead exec --tty JOB -- COMMAND works without it",))  # fmt: skip


def _size() -> tuple[int, int]:
    size = os.get_terminal_size(sys.stdin.fileno())  # $COLUMNS may be of another one
    return size.lines, size.columns


def join_session(member: Member, way: Sequence[str]) -> SessionOutcome:
    """Join a session with this process's terminal until that is over, or left. ApiError, CliError.

    Where the terminal goes, or SIGTERM comes, the session goes on.
    """
    held: list[HeldTerminal] = []

    async def work() -> SessionOutcome:
        held.append(HeldTerminal(member, way))
        return await held[0].run()

    with raw_terminal():
        try:
            outcome = asyncio.run(work())
        except KeyboardInterrupt:
            outcome = SessionOutcome(SessionEnding.INTERRUPTED)
        return replace(outcome, name=held[0].name if held else "")
