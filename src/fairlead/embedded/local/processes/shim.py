"""The supervisor of one container: starts it, waits for it, writes down how it ended.

Forked once per start of a container by a server, `python -I -S shim.py DATA` (`shim_server.py`),
which has the modules loaded. It needs nothing of Fairlead but the two modules beside it and
outlives it: after a crash of the node, exit codes are still here to be read. The directory of the
run holds

    launch.json    written by the node: argv, env, cwd, log
    shim.json      written by the shim: who it is; made with link(2), which fails if the file
                   exists, so that a container starts at most once, whatever crashed in between
    started.json   the child: pid, start time
    exit.json      how it ended, and what all of its processes used; its blocks are reserved at the
                   start, so that a full disk cannot take the exit code away
    door.sock      a socket: who connects may start further programs here (`shim_session.py`)

What the child and its descendants write comes through a pipe into the log file, which is rotated
as kubelet does: at `logBytes` FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on up to
`logFiles` in all. Where the disk is full, or nearly, output is dropped and counted; the program
does not notice.

When things happened, the files' times of modification say. The pipe that comes with the request is
closed once the program has been executed. The child leads its own session, so that one signal
reaches all of its group. SIGTERM to the shim is passed on to the group; SIGUSR1 kills it. If the
shim is killed, the kernel kills the child (PR_SET_PDEATHSIG). The shim is a sub-reaper: whatever
the child leaves behind, even under another session, becomes the shim's child and is killed.

Why not threads or asyncio in the node itself: neither can wait for a process of a previous life.
"""

# Importing pathlib would make the server larger for nothing, hence os.path here.
# ruff: noqa: PTH104, PTH108, PTH118, PTH120
from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import termios
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

sys.path.append(os.path.dirname(__file__).removesuffix("/fairlead/embedded/local/processes"))
from fairlead.embedded.local.processes.shim_log import CHUNK_BYTES, RunLog
from fairlead.embedded.local.processes.shim_session import DOOR, SESSIONS_MAX, ShimSession

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
EXIT_RESERVED_BYTES = 4096
START_ERROR_EXIT_CODE = 128
LEFTOVER_ROUNDS_MAX = 100
REAP_MILLISECONDS = 1000
#: The directory of a run, as one request; paths have at most PATH_MAX bytes.
REQUEST_BYTES_MAX = 4096


def start_ticks(pid: int) -> int:
    """Return the process's start time in clock ticks since boot (field 22 of proc_pid_stat(5))."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write_json(directory: str, name: str, value: dict[str, Any]) -> None:
    """Write a file that is either absent or whole."""
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(temporary, os.path.join(directory, name))


def used() -> dict[str, int]:
    """Return what the processes used that were ours and have ended; what is not known is left out.

    The largest memory of one process is known where it is above our own: at its start a child has
    the pages of its parent, and they count for it.
    """
    all_ = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = {"cpuMilliseconds": round((all_.ru_utime + all_.ru_stime) * 1000)}
    if all_.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        out["memoryBytes"] = all_.ru_maxrss * 1024
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            amounts = dict(line.split(": ") for line in file.read().splitlines())
        out["readBytes"] = int(amounts["read_bytes"])
        out["writtenBytes"] = int(amounts["write_bytes"])
    except (OSError, ValueError, KeyError):  # a kernel without accounting of tasks' input
        return out
    return out


class Shim:
    """One run of one container."""

    def __init__(self, directory: str, started_pipe: int) -> None:
        self.directory = directory
        self.started_pipe = started_pipe
        self.child = 0
        self.log: RunLog | None = None
        self.output = -1  # the end of the pipe that is read
        self.running = False
        self.terminate_wanted = False
        self.kill_wanted = False
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.launch: dict[str, Any] = {}
        self.door: socket.socket | None = None
        self.sessions: dict[int, ShimSession] = {}
        self.watched: dict[int, Callable[[], None]] = {}  # what to do when it can be read
        self.status: int | None = None  # of the child, once it has ended

    def run(self) -> int:
        """Do it all; the shim's own exit status is 0 once exit.json is written."""
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, self._kill)
        os.set_inheritable(self.started_pipe, False)
        if not self._claim():
            return 0
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with open(os.path.join(self.directory, "launch.json"), encoding="utf-8") as file:
            self.launch = launch = json.load(file)
        with open(os.path.join(self.directory, ".exit.json"), "wb") as file:
            file.write(b" " * EXIT_RESERVED_BYTES)
            os.fsync(file.fileno())
        error = self._start(launch)
        if error:
            self._ended(exit_code=START_ERROR_EXIT_CODE, signal=0, error=error)
            return 0
        write_json(
            self.directory,
            "started.json",
            {
                "pid": self.child,
                "ticks": start_ticks(self.child),
                "grouped": self._is_in(launch["group"]),
            },
        )
        self._open_door()
        os.close(self.started_pipe)
        wanted, self.running = self.terminate_wanted, True
        if wanted:
            self._signal_group(signal.SIGTERM)
        if self.kill_wanted:
            self._signal_group(signal.SIGKILL)
        status = self._wait()
        self._kill_leftovers()
        self._drain()
        code = os.waitstatus_to_exitcode(status)
        self._ended(exit_code=max(code, 0), signal=max(-code, 0), error="")
        return 0

    def _claim(self) -> bool:
        """Say who we are; False when the container was started or given up already."""
        pid = os.getpid()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        temporary = os.path.join(self.directory, f".shim.{pid}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"pid": pid, "ticks": start_ticks(pid), "boot": boot}, file)
        try:
            os.link(temporary, os.path.join(self.directory, "shim.json"))
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def _start(self, launch: dict[str, Any]) -> str:
        """Start the child and return "", or say why the program cannot be executed."""
        try:
            self.log = RunLog(launch)
        except OSError as error:
            return f"log file {launch['log']!r}: {error.strerror}"
        self.output, writing = os.pipe2(os.O_CLOEXEC)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self.child = os.fork()
        if self.child == 0:
            null = os.open(os.devnull, os.O_RDONLY)
            self.become(launch, write_end, [null, writing, writing])
        os.close(write_end)
        os.close(writing)
        with os.fdopen(read_end, "rb") as file:
            error = file.read().decode(errors="replace")  # ends when exec closes the pipe
        if error:
            os.waitpid(self.child, 0)
        return error

    def _is_in(self, group: str) -> bool:
        """Tell whether the child is in the control group that limits its memory."""
        if not group:
            return False
        try:
            with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
                return str(self.child) in file.read().split()
        except OSError:
            return False

    def become(
        self, launch: dict[str, Any], report: int, streams: list[int], *, tty: bool = False
    ) -> None:
        """In the child: become the program, or report why not. Never returns."""
        argv, env = launch["argv"], launch["env"]
        step = f"working directory {launch['cwd']!r}"
        try:
            os.setsid()
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two
                signal.signal(number, signal.SIG_DFL)
            self._join(launch["group"])
            os.chdir(launch["cwd"])
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            if tty:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            step = f"exec {argv[0]!r}"
            os.execvpe(argv[0], argv, env)  # noqa: S606 - what the pod says, no shell
        except FileNotFoundError as error:
            missing = "executable file not found in $PATH" if "/" not in argv[0] else "not found"
            text = missing if step.startswith("exec") else str(error.strerror)
            os.write(report, f"{step}: {text}".encode())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            os.write(report, f"{step}: {reason}".encode())
        os._exit(127)

    def _join(self, group: str) -> None:
        """In the child: enter the control group. Where that fails, the node measures instead."""
        if not group:
            return
        try:
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write("0")
        except OSError:
            return

    def _open_door(self) -> None:
        """Take requests for further programs; without a door where none can be made."""
        folder = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        self.door = socket.socket(socket.AF_UNIX, flags)
        try:
            self.door.bind(f"/proc/self/fd/{folder}/{DOOR}")  # paths of sockets are short
            self.door.listen(SESSIONS_MAX)
            self.watched[self.door.fileno()] = self._admit
        except OSError:
            return  # who knocks finds none
        finally:
            os.close(folder)

    def _admit(self) -> None:
        """Accept a connection; far above the node's own bound it is closed at once."""
        assert self.door is not None
        connection, _ = self.door.accept()
        if len(self.watched) > 4 * SESSIONS_MAX:  # each has two descriptors
            connection.close()
            return
        connection.setblocking(False)
        ShimSession(self, connection)

    def _wait(self) -> int:
        """Write the log until the child has ended; return its wait status.

        What is handed to us meanwhile is reaped.
        """
        child = os.pidfd_open(self.child)
        self.watched |= {child: self.reap, self.output: self._copy_or_end}
        while self.status is None:
            poller = select.poll()
            for descriptor in self.watched:
                poller.register(descriptor, select.POLLIN)
            for descriptor, _ in poller.poll(REAP_MILLISECONDS):
                if descriptor in self.watched:  # else an earlier one of this round ended it
                    self.watched[descriptor]()
            for session in list(self.sessions.values()):
                session.look()
            self.reap()
        os.close(child)
        return self.status

    def reap(self) -> None:
        """Reap all that has ended."""
        while self.status is None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                found = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return
            if found is None:
                return
            session = self.sessions.pop(found.si_pid, None)
            if session is not None:
                session.ending()
            _, status = os.waitpid(found.si_pid, 0)
            if session is not None:
                session.ended(status)
            if found.si_pid == self.child:
                self.status = status

    def _copy_or_end(self) -> None:
        if not self._copy():
            del self.watched[self.output]  # all of them have closed it

    def _copy(self) -> bool:
        """Write what can be read of the output; False at its end."""
        assert self.log is not None
        data = os.read(self.output, CHUNK_BYTES)
        self.log.write(data)
        return bool(data)

    def _drain(self) -> None:
        """Write what is left in the pipe; a process that we could not kill is not waited for."""
        os.set_blocking(self.output, False)
        try:
            while self._copy():
                pass
        except BlockingIOError:
            return

    def _kill_leftovers(self) -> None:
        """Kill what the child left behind: its group, then whatever became ours."""
        self._signal_group(signal.SIGKILL)
        for _ in range(LEFTOVER_ROUNDS_MAX):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            for pid in self._children():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)

    def _children(self) -> list[int]:
        own = os.getpid()
        try:
            with open(f"/proc/{own}/task/{own}/children", encoding="ascii") as file:
                return [int(pid) for pid in file.read().split()]
        except OSError:  # a kernel without CONFIG_PROC_CHILDREN: the group is all we reach
            return []

    def _ended(self, *, exit_code: int, signal: int, error: str) -> None:
        value: dict[str, Any] = {"exitCode": exit_code, "signal": signal, "error": error[:2000]}
        if not error:
            value["use"] = used()
        temporary = os.path.join(self.directory, ".exit.json")
        with open(temporary, "r+b") as file:  # overwrite in place: no new blocks are needed
            file.write(json.dumps(value).encode())
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, os.path.join(self.directory, "exit.json"))

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.child, number)
        except (ProcessLookupError, PermissionError):
            return

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.terminate_wanted = True
        if self.running:
            self._signal_group(signal.SIGTERM)

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        self.kill_wanted = True
        if self.running:
            self._signal_group(signal.SIGKILL)


def serve(channel: socket.socket) -> None:
    """Fork a shim for each request, until the node closes its end.

    A request is the directory of a run, with the pipe that tells when it has started and the file
    for the shim's own errors. The answer is a pidfd of the shim, or the number of an error.
    """
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        directory, descriptors, _, _ = socket.recv_fds(
            channel, REQUEST_BYTES_MAX, 2, socket.MSG_CMSG_CLOEXEC
        )
        if not directory:
            return
        # A child that ends at once is not reaped before there is a descriptor of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            pid = os.fork()
            if pid == 0:
                channel.close()
                _be_shim(os.fsdecode(directory), *descriptors)
            descriptors.append(os.pidfd_open(pid))
            socket.send_fds(channel, [b"0"], descriptors[-1:])
        except OSError as error:
            channel.send(str(error.errno).encode())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _be_shim(directory: str, started_pipe: int, errors: int) -> None:
    """In the forked process: be the shim of a run. Never returns."""
    status = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, errors, errors)):
            os.dup2(descriptor, number)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        status = Shim(directory, started_pipe).run()
    except BaseException as error:  # noqa: BLE001 - the node reads the last line of it
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(status)


def _reap(_number: int, _frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
