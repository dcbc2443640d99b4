"""The way to held terminals, in a member: `open` one and join it, `join` one, `list` them.

The command line sends this file and those that it imports to the member's Python as text. Holders
listen in directories of mode 0700 under random names, which they make themselves; those of other
users are passed over. A way carries bytes between its own streams and the holder, and ends with
either. Design: docs/design/interactive.md.
"""

from __future__ import annotations

# pathlib and tempfile would make up a third of each start, hence os here.
# ruff: noqa: PTH102, PTH106, PTH108
import json
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

from fairlead.member.terminal_frames import (
    CHUNK_BYTES,
    INFO,
    LIST,
    MAGIC,
    NO_ANSWER,
    NO_SESSION,
    NOT_HELD,
    NOT_LOGGED,
    WHOSE,
    Frames,
    frame,
)  # fmt: skip
from fairlead.member.terminal_holder import (
    GUESTS_MAX,
    JOIN_SECONDS,
    HeldProgram,
    TerminalHolder,
    is_own,
)

SESSIONS_MAX = 64
#: A holder that takes longer to answer may only have had no processor.
ANSWER_SECONDS = 5.0
_PREFIX = ".fairlead-session-"
_PLACES = ("/tmp", "/dev/shm")  # noqa: S108 # a random name, mode 0700, checked
#: By the descriptor of its directory, however long the name of that is.
_SOCKET = "/proc/self/fd/{}/socket"


def _places() -> list[str]:
    return [each for each in dict.fromkeys((os.environ.get("TMPDIR", ""), *_PLACES)) if each]


def _prefix() -> str:
    whose = "-".join(os.environ.get(name, "") for name in WHOSE)
    return f"{_PREFIX}{re.sub(r'[^A-Za-z0-9.-]', '', whose)[:180]}-"


def _listen() -> tuple[socket.socket, str] | None:
    """Listen in a directory of this user's own; None where there is no place for one."""
    for place in _places():
        path = f"{place}/{_prefix()}{os.urandom(8).hex()}"
        try:
            os.mkdir(path, 0o700)
        except OSError:
            continue
        listener = socket.socket(socket.AF_UNIX)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(directory, 0o700)
            listener.bind(_SOCKET.format(directory))
            listener.listen(GUESTS_MAX)
        finally:
            os.close(directory)
        return listener, path
    return None


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(f"{path}/socket")
    with suppress(OSError):
        os.rmdir(path)


def _connections(prefix: str) -> list[tuple[str, socket.socket | None]]:
    """Connect to holders of this user, by what their directories begin with; None for one that does
    not answer. Remove what dead ones have left behind.
    """
    found: list[tuple[str, socket.socket | None]] = []
    for place in _places():
        with suppress(OSError):
            for entry in os.scandir(place):
                if entry.name.startswith(prefix) and len(found) < SESSIONS_MAX:
                    try:
                        connection = _connect(entry.path)
                    except socket.timeout:  # noqa: UP041 - Python 3.8
                        found.append((entry.path, None))
                        continue
                    if connection is not None:
                        found.append((entry.path, connection))
    return found


def _connect(path: str) -> socket.socket | None:
    """Connect to a holder of this user; None where none listens. socket.timeout."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None  # another user's
    info = os.fstat(directory)
    connection = socket.socket(socket.AF_UNIX)
    try:
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) != 0o700:
            return None
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(_SOCKET.format(directory))
        if is_own(connection):
            return connection
    except ConnectionRefusedError:
        if time.time() > info.st_mtime + JOIN_SECONDS:
            _remove(path)
    except BlockingIOError:  # so many wait for it already
        raise socket.timeout from None  # noqa: UP041 - Python 3.8
    except socket.timeout:  # noqa: UP041 - Python 3.8
        raise
    except OSError:
        return None
    finally:
        os.close(directory)
    return None


def _ask(connection: socket.socket | None) -> dict[str, Any] | None:
    """Return what a holder says of itself, and close the connection; None where it has ended.

    socket.timeout: it does not answer.
    """
    if connection is None:
        raise socket.timeout  # noqa: UP041 - Python 3.8
    frames = Frames()
    with connection:
        try:
            connection.sendall(frame(LIST))
            while data := connection.recv(CHUNK_BYTES):
                for kind, body in frames.feed(data):
                    if kind == INFO:
                        return dict(json.loads(body))
        except socket.timeout:  # noqa: UP041 - Python 3.8
            raise
        except (OSError, ValueError):
            return None
    return None


def _hold(listener: socket.socket, path: str, program: HeldProgram) -> None:
    """In a grandchild: hold the terminal until its program has ended; never returns."""
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        os.closerange(3, listener.fileno())
        os.closerange(listener.fileno() + 1, 1024)
        log = None
        if program.log:
            from fairlead.member.terminal_log import SessionLog

            log = SessionLog(program.log, str(os.getpid()))
        TerminalHolder(listener, program, log).run()
    finally:
        _remove(path)
        os._exit(0)


def _open(program: HeldProgram) -> socket.socket:
    """Start a holder, and return a connection to it."""
    if program.log:
        from fairlead.member.terminal_log import first_output

        log, why = first_output(os.environ)
        if not log:
            _refuse(NOT_LOGGED, f"the job's log does not take what is shown: {why}")
        program = program._replace(log=log)
    for _, other in _connections(_PREFIX):  # on a machine of many members, of ended ones, too
        if other is not None:
            other.close()
    made = _listen()
    if made is None:
        _refuse(NOT_HELD, f"no directory for a socket: neither of {_places()}")
    listener, path = made
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _hold(listener, path, program)
        os._exit(0)
    os.waitpid(child, 0)
    listener.close()
    connection = _connect(path)
    if connection is None:
        _refuse(NO_SESSION, "the holder of the session has gone")
    return connection


def _join(name: str) -> socket.socket:
    """Return a connection to the session of a name."""
    is_silent = False
    for path, connection in _connections(_prefix()):
        try:
            said = _ask(connection)
            found = _connect(path) if said is not None and str(said["name"]) == name else None
        except socket.timeout:  # noqa: UP041 - Python 3.8
            is_silent = True
            continue
        if found is not None:
            return found
    if is_silent:
        _refuse(NO_ANSWER, f"the holder of session {name} does not answer")
    return _refuse(NO_SESSION, f"there is no session {name}")


def _refuse(code: int, text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(code)


def _carry(connection: socket.socket) -> None:
    """Carry bytes both ways until either end is over; never returns."""
    connection.settimeout(None)

    def up() -> None:
        with suppress(OSError):
            while True:
                data = os.read(0, CHUNK_BYTES)
                if not data:
                    break
                connection.sendall(data)
        os._exit(0)

    threading.Thread(target=up, daemon=True).start()
    with suppress(OSError):
        _write(MAGIC)
        while True:
            data = connection.recv(CHUNK_BYTES)
            if not data:
                break
            _write(data)
    os._exit(0)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main(argv: list[str]) -> int:
    """Entry of `open IDLE_SECONDS LOG TITLE COMMAND...`, `join NAME` and `list`.

    LOG is not empty where what is shown is kept in the job's log.
    """
    if argv[0] == "list":
        for _, connection in _connections(_prefix()):
            said = None
            with suppress(socket.timeout):
                said = _ask(connection)
            if said is not None and not said["is_ended"]:
                _write(json.dumps(said).encode() + b"\n")
    elif argv[0] == "open":
        _carry(_open(HeldProgram(float(argv[1]), argv[3], argv[4:], argv[2])))
    else:
        _carry(_join(argv[1]))
    return 0
