"""A terminal that stays while viewers come and go: its holder, in a member beside the program.

It listens to processes of its own user alone, has one viewer at a time, the latest, and ends with
its program. What the program writes is data to it, whatever that is: it looks only for the modes
that a new viewer's terminal has to be put in. It is sent to the member as text, so it needs the
standard library only, of version 3.8. Design: docs/design/interactive.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.member.terminal_frames import (
    ACK,
    CHUNK_BYTES,
    END,
    HELLO,
    INFO,
    INPUT,
    INPUT_BYTES_MAX,
    LEAVE,
    LIST,
    OFFSET,
    OUTPUT,
    PING,
    ROWS_COLUMNS,
    SCROLLBACK_BYTES,
    SIZE,
    TAKEN,
    TAKEN_OVER,
    WELCOME,
    WINDOW_BYTES,
    Frames,
    Modes,
    frame,
)  # fmt: skip

if TYPE_CHECKING:
    from fairlead.member.terminal_log import SessionLog

GUESTS_MAX = 8
#: What waits to be sent to one connection.
OUT_BYTES_MAX = 1 << 20
#: A viewer that says nothing, or takes nothing, for so long is gone; it pings more often.
SILENCE_SECONDS_MAX = 45.0
#: After a connection is lost the program may wait so long for the viewer, before output is dropped.
RETURN_SECONDS = 15.0
#: How long an end waits for its viewer, and for one whose connection was lost.
END_SECONDS, END_RETURN_SECONDS = 10.0, 60.0
JOIN_SECONDS = 60.0
KILL_SECONDS = 5.0
#: For the viewer to be sent why the session ends, before it does.
SAY_SECONDS = 2.0
#: The time limit and the idle limit are warned of so long before.
WARNING_SECONDS = (300.0, 60.0)
#: The exit code of a program that was ended: 128 + SIGHUP.
HUNG_UP = 129


def is_own(connection: socket.socket) -> bool:
    """Say whether the other end is a process of this user."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", peer)[1] == os.geteuid())


class _Guest:
    """A connection to the holder, which may become its viewer."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.frames = Frames()
        self.out = bytearray()
        self.heard_at = self.taken_at = time.monotonic()
        self.sent = self.acked = 0
        self.has_end = self.is_last = False

    def fileno(self) -> int:
        return self.connection.fileno()

    def flush(self) -> None:
        """Send what the other side takes at once; OSError."""
        while self.out:
            try:
                del self.out[: self.connection.send(self.out)]
            except BlockingIOError:
                return


class HeldProgram(NamedTuple):
    """What is run, and what it is called. `idle_seconds` 0: without a limit.

    `log` is the path of the pipe that takes what is shown; "": it is not kept.
    """

    idle_seconds: float
    title: str
    command: list[str]
    log: str = ""


class TerminalHolder:
    """Holds one program's terminal until the program has ended."""

    def __init__(
        self, listener: socket.socket, program: HeldProgram, log: SessionLog | None = None
    ) -> None:
        self._listener, self._program = listener, program
        self._guests: list[_Guest] = []
        self._viewer: _Guest | None = None
        self._viewer_id = ""
        self._kept, self._begin = bytearray(), 0  # output, and the offset of its first byte
        self._acked = 0  # by the last viewer
        self._typed, self._input = bytearray(), 0  # not read yet; taken of this viewer so far
        self._modes = Modes()
        self._pid, self._terminal, self._code = 0, -1, -1
        self._is_drained = self._is_left = self._is_told = self._is_hung_up = False
        self._why = ""
        self._began_at = time.time()
        now = time.monotonic()
        self._used_at = self._lost_at = self._made_at = now
        self._ended_at = self._kill_at = self._quiet_until = 0.0
        self._limit_at = 0.0  # of the job's time
        self._warned: dict[str, float] = {}
        self._log = log
        if self._log is not None:
            self._say("what is shown here is kept in the log of the job, which others may read")
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, _nothing)

    def run(self) -> None:
        """Serve until the program has ended and its viewer knows."""
        while not self._is_over(time.monotonic()):
            reading: list[Any] = [self._listener, self._wake, *self._guests]
            writing: list[Any] = [each for each in self._guests if self._fill(each)]
            now = time.monotonic()
            if self._code < 0 and self._terminal >= 0:
                if self._may_read(now):
                    reading.append(self._terminal)
                if self._typed:
                    writing.append(self._terminal)
            is_ending = self._code >= 0 and self._may_read(now)
            readable, writable, _ = select.select(reading, writing, [], 0.0 if is_ending else 1.0)
            if self._wake in readable:
                os.read(self._wake, 512)
            if self._terminal in writable:
                self._write()
            if self._terminal in readable or is_ending:
                self._read()
            self._reap()
            if self._listener in readable:
                self._accept()
            for guest in tuple(self._guests):
                self._attend(guest, guest in readable)
            self._look(time.monotonic())
            if self._log is not None:
                self._log.flush()
        if self._log is not None:
            self._log.close()

    @property
    def _end(self) -> int:
        return self._begin + len(self._kept)

    def _is_over(self, now: float) -> bool:
        if not self._pid:
            return now > self._made_at + JOIN_SECONDS  # it was never joined
        if self._code < 0 or not self._is_drained:
            return False
        if self._viewer is not None:
            return now > max(self._ended_at, self._viewer.taken_at) + END_SECONDS
        return self._is_told or self._is_left or now > self._ended_at + END_RETURN_SECONDS

    def _may_read(self, now: float) -> bool:
        """Say whether the program's output is taken: not while too much of it is on its way."""
        if self._is_drained or now < self._quiet_until or self._terminal < 0:
            return False
        if self._viewer is not None:
            return self._end - self._viewer.acked < WINDOW_BYTES
        is_awaited = not self._is_left and now < self._lost_at + RETURN_SECONDS
        return not is_awaited or self._end - self._acked < WINDOW_BYTES

    def _start(self, rows: int, columns: int) -> None:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._pid = os.fork()
        if self._pid == 0:
            _become(self._program.command, theirs)
        os.close(theirs)
        os.set_blocking(ours, False)
        self._terminal = ours

    def _read(self) -> None:
        try:
            data = os.read(self._terminal, CHUNK_BYTES)
        except OSError as error:  # EIO: no process has the terminal open
            self._is_drained = self._code >= 0
            if error.errno != errno.EAGAIN:
                self._quiet_until = time.monotonic() + 1.0
            return
        self._keep(data)
        if self._viewer is not None:
            self._used_at = time.monotonic()

    def _keep(self, data: bytes) -> None:
        self._modes.feed(data)
        if self._log is not None:
            self._log.feed(data)
        self._kept += data
        over = len(self._kept) - (WINDOW_BYTES + SCROLLBACK_BYTES + 2 * CHUNK_BYTES)
        if over > 0:
            del self._kept[:over]
            self._begin += over

    def _say(self, text: str) -> None:
        self._keep(f"\r\n[fairlead: {text}]\r\n".encode())

    def _write(self) -> None:
        try:
            del self._typed[: os.write(self._terminal, self._typed)]
        except BlockingIOError:
            return
        except OSError:
            self._typed.clear()
        if self._viewer is not None:
            self._tell_taken(self._viewer)

    def _tell_taken(self, viewer: _Guest) -> None:
        viewer.out += frame(TAKEN, OFFSET.pack(max(0, self._input - len(self._typed))))

    def _reap(self) -> None:
        if self._pid and self._code < 0:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                is_killed = os.WIFSIGNALED(status)
                self._code = 128 + os.WTERMSIG(status) if is_killed else os.WEXITSTATUS(status)
                self._code = HUNG_UP if self._why else self._code
                self._ended_at = time.monotonic()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if is_own(connection) and len(self._guests) < GUESTS_MAX:
            self._guests.append(_Guest(connection))
        else:
            connection.close()

    def _fill(self, guest: _Guest) -> bool:
        """Give a guest the next piece of output; return whether it has something to be sent."""
        if guest is self._viewer and not guest.out:
            if guest.sent < self._begin:
                guest.sent = self._begin  # dropped meanwhile; the offset says how much
            begin = guest.sent - self._begin
            data = bytes(self._kept[begin : begin + CHUNK_BYTES])
            if data:
                guest.out += frame(OUTPUT, OFFSET.pack(guest.sent) + data)
                guest.sent += len(data)
            elif self._is_drained and not guest.has_end:
                ended = {"code": self._code, "why": self._why}
                guest.out += frame(END, json.dumps(ended).encode())
                guest.has_end = True
        return bool(guest.out)

    def _attend(self, guest: _Guest, is_readable: bool) -> None:  # noqa: FBT001
        """Read what a guest says and send what is for it; drop it where that is over."""
        try:
            if is_readable:
                data = guest.connection.recv(CHUNK_BYTES)
                if not data:
                    raise ConnectionResetError
                guest.heard_at = time.monotonic()
                for kind, body in guest.frames.feed(data):
                    self._hear(guest, kind, body)
            guest.flush()
            now = time.monotonic()
            is_stuck = guest is self._viewer and guest.acked < guest.sent and (
                now > guest.taken_at + SILENCE_SECONDS_MAX)  # fmt: skip
            is_stuck |= len(guest.out) > OUT_BYTES_MAX
            if now > guest.heard_at + SILENCE_SECONDS_MAX or is_stuck:
                raise TimeoutError
            if guest.is_last and not guest.out:
                raise ConnectionResetError
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        if guest in self._guests:
            self._guests.remove(guest)
        guest.connection.close()
        if guest is self._viewer:
            self._viewer, self._acked = None, guest.acked
            self._lost_at = time.monotonic()
            self._is_told = guest.has_end and guest.acked >= guest.sent

    def _hear(self, guest: _Guest, kind: bytes, body: bytes) -> None:
        """Do what a guest says; ValueError and the like for what no viewer says."""
        if kind == LIST:
            guest.out += frame(INFO, json.dumps(self._info()).encode())
            guest.is_last = True
        elif kind == HELLO:
            self._welcome(guest, json.loads(body))
        elif guest is not self._viewer:
            return  # another viewer has taken its place
        elif kind == INPUT:
            self._take(guest, OFFSET.unpack_from(body)[0], body[OFFSET.size :])
        elif kind == SIZE:
            self._resize(*ROWS_COLUMNS.unpack(body))
        elif kind == ACK:
            guest.acked = max(guest.acked, min(OFFSET.unpack(body)[0], guest.sent))
            guest.taken_at = time.monotonic()
        elif kind == PING:
            guest.out += frame(PING)
        elif kind == LEAVE:
            self._is_left = guest.is_last = True
        else:
            raise ValueError("an unknown message")

    def _welcome(self, guest: _Guest, asked: dict[str, Any]) -> None:
        rows, columns = int(asked["rows"]), int(asked["columns"])
        seen, name = asked["seen"], str(asked["id"])
        limit = asked["seconds_left"]
        self._limit_at = time.monotonic() + float(limit) if limit is not None else 0.0
        if not self._pid:
            self._start(rows, columns)
        if name != self._viewer_id:
            self._viewer_id, self._input, seen = name, 0, None
        if self._viewer is not None and self._viewer is not guest:
            self._viewer.out += frame(TAKEN_OVER)
            self._viewer.is_last = True
        first = self._first_shown() if seen is None else max(0, min(int(seen), self._end))
        guest.sent = guest.acked = max(first, self._begin)
        guest.taken_at = self._used_at = time.monotonic()
        self._viewer, self._is_left = guest, False
        modes = self._modes.entering().decode("ascii") if seen is None else ""
        said = {"name": os.getpid(), "from": first, "input": self._input, "modes": modes}
        guest.out += frame(WELCOME, json.dumps(said).encode())
        if self._modes.is_full_screen and seen is None:  # have the program draw it
            self._resize(max(1, rows - 1), columns)
        self._resize(rows, columns)

    def _first_shown(self) -> int:
        """Return where a new viewer begins: with a whole line, unless a screen is drawn."""
        if self._modes.is_full_screen:
            return self._end
        first = max(0, len(self._kept) - SCROLLBACK_BYTES)
        if first or self._begin:
            first = max(self._kept.find(b"\n", first) + 1, first)
        return self._begin + first

    def _take(self, guest: _Guest, offset: int, data: bytes) -> None:
        if not offset <= self._input <= offset + len(data):
            raise ValueError("input is missing")
        fresh = data[self._input - offset :]
        if len(self._typed) + len(fresh) > 2 * INPUT_BYTES_MAX:
            raise ValueError("more input than was allowed")
        self._input += len(fresh)
        self._typed += fresh
        self._used_at = time.monotonic()
        if self._code >= 0:
            self._typed.clear()
        self._tell_taken(guest)

    def _resize(self, rows: int, columns: int) -> None:
        if self._code < 0:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ,
                        struct.pack("HHHH", rows, columns, 0, 0))  # fmt: skip

    def _look(self, now: float) -> None:
        """Warn of what is about to end the session, and end it."""
        if self._code >= 0 or not self._pid:
            if self._code >= 0 and now > self._ended_at + KILL_SECONDS:
                self._is_drained = True  # something else keeps on writing
            return
        if self._kill_at:
            self._hang_up(now)
            return
        if self._limit_at:
            self._warn("the job ends at its time limit", self._limit_at - now)
        if not self._program.idle_seconds:
            return
        left = self._used_at + self._program.idle_seconds - now
        if left > 0:
            self._warn(
                "nothing was typed or shown; the session ends", left, self._program.idle_seconds
            )
            return
        self._why = f"it was idle for {_duration(self._program.idle_seconds)}"
        self._say(f"the session ends: {self._why}")
        self._kill_at = now + SAY_SECONDS + KILL_SECONDS

    def _hang_up(self, now: float) -> None:
        """End the program once its viewer has the reason: the container may end with it."""
        viewer = self._viewer
        is_said = viewer is None or (viewer.sent >= self._end and not viewer.out)
        if not self._is_hung_up and (is_said or now > self._kill_at - KILL_SECONDS):
            self._is_hung_up = True
            self._kill_at = now + KILL_SECONDS
            _signal_session(self._pid, signal.SIGHUP)
            _signal_session(self._pid, signal.SIGCONT)
        elif now > self._kill_at:
            _signal_session(self._pid, signal.SIGKILL)

    def _warn(self, what: str, left: float, whole: float = 1e9) -> None:
        passed = [each for each in WARNING_SECONDS if left <= min(each, whole / 2)]
        warned = self._warned.get(what, 0)
        self._warned[what] = len(passed)
        if len(passed) > warned:
            self._say(f"{what} in {_duration(left)}")

    def _info(self) -> dict[str, Any]:
        idle = time.monotonic() - self._used_at
        return {
            "name": os.getpid(), "command": self._program.title[:1000], "idle": idle,
            "began": self._began_at, "is_joined": self._viewer is not None,
            "idle_limit": self._program.idle_seconds, "is_ended": self._code >= 0,
            "is_logged": self._log is not None,
        }  # fmt: skip


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def _duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 120:
        return f"{whole}s"
    return f"{round(whole / 60)}m" if whole < 7200 else f"{round(whole / 3600)}h"


def _become(command: list[str], terminal: int) -> None:
    """In a child: become the program, with the terminal as its session's; never returns."""
    code = 126
    try:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(terminal, number)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        code = 127 if error.errno == errno.ENOENT else 126
        os.write(2, f"{command[0]}: {error.strerror}\r\n".encode())
    finally:
        os._exit(code)


def _signal_session(leader: int, number: int) -> None:
    """Signal the leader first: a shell that outlives its command by an instant reports its end."""
    with suppress(OSError):
        os.kill(leader, number)
    for name in os.listdir("/proc"):  # noqa: PTH208
        with suppress(OSError, ValueError):
            if int(name) != leader and os.getsid(int(name)) == leader:
                os.kill(int(name), number)
