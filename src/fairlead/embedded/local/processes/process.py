"""Handles on shims: start one, find one of a previous life, wait, signal.

A process is meant by a pidfd, never by its number alone: numbers are used again. One found on disk
must have the same boot id and start time. Waiting is a reader on the pidfd, so there is no thread
and no polling.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlead.api.values import quantity
from fairlead.embedded.local.containers import ContainerLaunch
from fairlead.embedded.local.logfiles import LogLimits
from fairlead.embedded.local.memory import MemoryGroups, kill_count, remove_group
from fairlead.embedded.local.poddir import read_struct, write_file
from fairlead.embedded.local.processes.shim_server import ShimServer
from fairlead.embedded.local.processes.shim_session import session_members

F = TypeVar("F", bound=msgspec.Struct)


class ShimFile(msgspec.Struct, frozen=True):
    """shim.json; pid 0 means that the run was given up before a shim claimed it."""

    pid: int
    ticks: int
    boot: str


class StartedFile(msgspec.Struct, frozen=True, rename="camel"):
    """started.json; `started_at` is the file's own time."""

    pid: int
    ticks: int
    grouped: bool = False  # in the control group that limits its memory
    started_at: float = 0.0


class LaunchFile(msgspec.Struct, frozen=True, rename="camel"):
    """What later lives of the node need of launch.json; 0 and "" mean none."""

    memory_bytes: int = 0
    group: str = ""


class MemoryFile(msgspec.Struct, frozen=True, rename="camel"):
    """memory.json: the run was killed for its memory. `used_bytes` 0: the kernel did it."""

    used_bytes: int = 0


class ExitUse(msgspec.Struct, frozen=True, rename="camel"):
    """What all processes of a run used; None is what the machine does not tell.

    `memory_bytes` is the largest of one process. Log lines that the shim wrote count as written.
    """

    cpu_milliseconds: int | None = None
    memory_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


class ExitFile(msgspec.Struct, frozen=True, rename="camel"):
    """exit.json. `error` is not empty when the program could not be executed.

    The instants are the times of the files, so that the shim needs no clock of its own.
    """

    exit_code: int
    signal: int
    error: str
    use: ExitUse | None = None
    started_at: float = 0.0
    finished_at: float = 0.0


def _stat(pid: int) -> list[bytes] | None:
    """Return what follows a process's name in proc_pid_stat(5), None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, None when there is none."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


class Run:
    """One start of one container, by its directory."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self._boot = boot
        self._descriptor: int | None = None
        self._started_pipe: int | None = None
        self._measured: tuple[int, int] | None = None
        self._shim_pid: int | None = None

    def start(
        self,
        launch: ContainerLaunch,
        log: Path,
        limits: LogLimits,
        groups: MemoryGroups,
        *,
        shims: ShimServer,
    ) -> None:
        """Start a shim; OSError. The program itself follows within some milliseconds."""
        group = groups.make(self._group_name, launch.memory_bytes) if launch.memory_bytes else None
        content = {
            "argv": launch.argv,
            "env": launch.env,
            "cwd": launch.cwd,
            "log": str(log),
            "logBytes": limits.file_bytes_max,
            "logFiles": limits.files_max,
            "reserveBytes": limits.reserve_bytes,
            "memoryBytes": launch.memory_bytes,
            "group": str(group or ""),
        }
        write_file(self.path / "launch.json", msgspec.json.encode(content))
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with (self.path / "shim.err").open("wb") as errors:
                self._descriptor = shims.start(self.path, write_end, errors.fileno())
        except BaseException as error:
            # Without an answer there may be a shim: it is found, or never will be.
            if not isinstance(error, TimeoutError) or not self.attach():
                os.close(read_end)
                raise
        finally:
            os.close(write_end)
        self._started_pipe = read_end

    async def wait_started(self) -> None:
        """Return once the program has been executed, or the shim has ended without that."""
        if self._started_pipe is None:
            return
        pipe, self._started_pipe = self._started_pipe, None
        try:
            await readable(pipe)
        finally:
            os.close(pipe)

    def attach(self) -> bool:
        """Find the shim of a previous life; True when it lives. Forbids a later start if none came.

        OSError when the directory cannot be read or written.
        """
        found = self._claimed()
        if found is None or found.pid == 0 or found.boot != self._boot:
            return False
        if start_ticks(found.pid) != found.ticks:
            return False
        try:
            descriptor = os.pidfd_open(found.pid)
        except ProcessLookupError:
            return False
        if start_ticks(found.pid) != found.ticks:  # gone between the two looks
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def _claimed(self) -> ShimFile | None:
        """Return the claim on the run; if there is none, claim it as given up and return None."""
        path = self.path / "shim.json"
        temporary = self.path / ".shim.void"
        write_file(temporary, msgspec.json.encode(ShimFile(0, 0, "")))
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return self._decode("shim.json", ShimFile)
        finally:
            temporary.unlink()
        return None

    def never_started(self) -> bool:
        """True when no shim ever claimed this run (and, after `attach`, none ever will)."""
        found = self._decode("shim.json", ShimFile)
        return found is None or found.pid == 0

    def same_boot(self) -> bool:
        """True when the run belongs to the machine's present boot."""
        found = self._decode("shim.json", ShimFile)
        return found is not None and found.boot == self._boot

    def started(self) -> StartedFile | None:
        """Return the child's identity once it has been started."""
        found = self._decode("started.json", StartedFile)
        if found is None:
            return None
        return msgspec.structs.replace(found, started_at=self._written_at("started.json"))

    @property
    def _group_name(self) -> str:
        """A name of its own for every start of every container."""
        container, pod = self.path.parent, self.path.parents[2]
        return f"fairlead-{pod.name}-{container.name}-{self.path.name}"

    def shim_pid(self) -> int | None:
        """Return the process that supervises the run; None before there is one."""
        if self._shim_pid is None and self.started() is not None:
            found = self._decode("shim.json", ShimFile)
            self._shim_pid = None if found is None else found.pid
        return self._shim_pid

    def measured_limit(self) -> tuple[int, int] | None:
        """Return (shim, limit in bytes) when the node must measure; None when not, or not yet."""
        if self._measured is None:
            launch, started = self._decode("launch.json", LaunchFile), self.started()
            shim_pid = self.shim_pid()
            if launch is None or started is None or shim_pid is None:
                return None
            limit = 0 if started.grouped else launch.memory_bytes
            self._measured = (shim_pid, limit)
        return self._measured if self._measured[1] else None

    def limit_memory(self, limit_bytes: int, groups: MemoryGroups) -> None:
        """Change the memory limit while it runs; OSError.

        What had no limit before is measured from now on: it is in no control group.
        """
        launch, started = self._decode("launch.json", LaunchFile), self.started()
        if launch is None:
            return
        if launch.group and started is not None and started.grouped:
            groups.limit(Path(launch.group), limit_bytes)
        path = self.path / "launch.json"
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        write_file(path, msgspec.json.encode({**content, "memoryBytes": limit_bytes}))
        self._measured = None

    def kill_for_memory(self, used_bytes: int) -> None:
        """End the container, and note why; OSError when that cannot be noted."""
        content = msgspec.json.encode(MemoryFile(used_bytes))
        write_file(self.path / "memory.json", content)
        self.kill()

    def memory_excess(self) -> str:
        """Return what to say when an ended run was killed for its memory, "" when it was not."""
        launch = self._decode("launch.json", LaunchFile) or LaunchFile()
        if not launch.memory_bytes:
            return ""
        found = self._decode("memory.json", MemoryFile)
        if found is None and launch.group and kill_count(Path(launch.group)):
            found = MemoryFile()
            write_file(self.path / "memory.json", msgspec.json.encode(found))
        self.remove_group()
        if found is None:
            return ""
        limit = quantity.format_base(quantity.MEMORY, launch.memory_bytes)
        used = f": {found.used_bytes >> 20} MiB were in use" if found.used_bytes else ""
        return f"the container used more memory than its limit of {limit}{used}"

    def memory_used(self) -> int | None:
        """Return the memory that an ended run was killed for; None when it was not. OSError."""
        launch, found = (
            self._decode("launch.json", LaunchFile), self._decode("memory.json", MemoryFile)
        )  # fmt: skip
        if found is None or launch is None:
            return None
        return found.used_bytes or launch.memory_bytes

    def remove_group(self) -> None:
        """Remove the control group of a run that has ended."""
        launch = self._decode("launch.json", LaunchFile)
        if launch is not None and launch.group:
            remove_group(Path(launch.group))

    def exit(self) -> ExitFile | None:
        """Return how it ended, None when that was never written."""
        found = self._decode("exit.json", ExitFile)
        if found is None:
            return None
        began = "launch.json" if found.error else "started.json"
        return msgspec.structs.replace(
            found,
            started_at=self._written_at(began),
            finished_at=self._written_at("exit.json"),
        )

    def _written_at(self, name: str) -> float:
        return (self.path / name).stat().st_mtime

    def _decode(self, name: str, type_: type[F]) -> F | None:
        return read_struct(self.path / name, type_)

    def last_words(self) -> str:
        """Return the last line that the shim wrote to its standard error."""
        try:
            lines = (self.path / "shim.err").read_text(errors="replace").strip().splitlines()
        except OSError as error:
            return str(error)
        return lines[-1][:500] if lines else "no message"

    @property
    def has_shim(self) -> bool:
        """True while there is a living or unreaped shim."""
        return self._descriptor is not None

    async def wait(self) -> None:
        """Return once the shim has ended; it writes exit.json before."""
        if self._descriptor is None:
            return
        await readable(self._descriptor)
        self.release()

    def release(self) -> None:
        """Close the handle; the processes stay as they are."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def terminate(self) -> None:
        """Ask the container to end: SIGTERM to its group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the container: SIGKILL to its group and to what it left elsewhere."""
        self._signal(signal.SIGUSR1)

    def destroy(self) -> None:
        """Kill the shim itself, which did not answer; the kernel then kills the child."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._descriptor is None:
            return
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return

    def kill_survivors(self) -> None:
        """Kill what is left of the child's session, when its shim was killed from outside.

        The number of a session is in use for as long as it has members. A process of that number
        that is not the child shows that the session is gone and its number another program's.
        """
        started = self.started()
        if started is None or not self.same_boot():
            return
        if start_ticks(started.pid) not in (None, started.ticks):
            return
        for pid in session_members(started.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


async def readable(descriptor: int) -> None:
    """Return once the descriptor can be read: data, its end, or, for a pidfd, the process's end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, note)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
