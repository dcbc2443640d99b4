"""Start one MPI communicator over all members of a job: every member runs `mpirun -- COMMAND`.

No ssh, no daemon, no launcher. Each member starts its own rank, and serves it what an MPI library
asks of a process manager (`pmi`). The addresses of the ranks go through the first member: the
others connect to it once (`gang_link`), at MASTER_ADDR, and both ends prove that they belong to
this attempt of the job. No member ever runs what another one sends.

A lost rank stops all ranks, and each member ends: the lost one as its rank did, the others with
EXIT_STOPPED, so that a reader of the exit codes can tell the cause from its effects.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from fairlead.member import pmi
from fairlead.member.attempt_lock import EXIT_STOPPED, HELD, AttemptLock, Superseded, acquire
from fairlead.member.gang_link import (
    Gang,
    Link,
    LinkLost,
    NoKeyError,
    Reception,
    Spawn,
    encode,
    is_loopback,
    join,
    listen,
    read_key,
    spawning,
)
from fairlead.member.passed_signals import passed_signals

#: The other members, or the names of the gang, could not be reached in time (EX_UNAVAILABLE).
EXIT_UNAVAILABLE = 69
#: What mpirun needs is not there, or this is no Fairlead job (a shell's "command not found").
EXIT_NOT_FOUND = 127
#: How long the members of a gang may take to come together.
GATHER_SECONDS_MAX = 300.0
#: How long a rank that has aborted, and a member that has ended, may take to be gone.
_END_SECONDS_MAX = 5.0
PR_SET_CHILD_SUBREAPER = 36
ENV_KEY = "FAIRLEAD_MPI_KEY_FILE"
_NO_KEY = (
    f"this gang has no key ({ENV_KEY} is not set): Fairlead makes one for jobs whose "
    "command or script names fairlead.member.mpirun; for any other way to start it, set the "
    'annotation fairlead.dev/mpi: "true" in the template of the role'
)


class MpiError(Exception):
    """The communicator cannot be started; the message says what to do."""

    exit_code = EXIT_UNAVAILABLE


class NotInstalledError(MpiError):
    """No retry helps: the image, the command or the job has to change."""

    exit_code = EXIT_NOT_FOUND


def gang_of_environment() -> Gang:
    """Return this member's gang; NotInstalledError names what is missing."""
    environ = os.environ
    try:
        size = int(environ["WORLD_SIZE"])
        gang = Gang(
            rank=int(environ["RANK"]),
            size=size,
            address=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            scope="/".join(
                (
                    environ["FAIRLEAD_JOB_UID"],
                    environ["FAIRLEAD_ATTEMPT"],
                    *(
                        [environ["SLURM_STEP_ID"]] if _is_task() else []
                    ),  # of two, none joins the other
                )
            ),
            key=_key() if size > 1 else b"",
        )
    except KeyError as error:
        raise NotInstalledError(
            f"{error.args[0]} is not set: run this inside a Fairlead job (fairlead submit)"
        ) from None
    return gang


def _key() -> bytes:
    path = os.environ.get(ENV_KEY)
    if not path:
        raise NotInstalledError(_NO_KEY)
    try:
        return read_key(Path(path))
    except NoKeyError as error:
        raise NotInstalledError(str(error)) from None


# The gang, as its members see it


class Peers(Protocol):
    """The other members."""

    #: Done once one of them has been lost, or has failed.
    lost: asyncio.Future[None]

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Give a rank's values to all; return those of all, once all have called it."""
        ...

    async def ended(self, code: int) -> bool:
        """Report how this rank ended; True when all others ended well, or need not be waited for.

        Members that are not the first need not wait.
        """
        ...


class Alone:
    """A gang of one."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Return the values."""
        return put

    async def ended(self, code: int) -> bool:
        """Return True: there are no others."""
        return code == 0


class FirstMember:
    """The peers of the first member, which brings all of them together."""

    def __init__(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._size = size
        self._links: dict[int, Link] = {}
        self._has_all: asyncio.Future[None] = loop.create_future()
        self._fence: asyncio.Future[Mapping[str, str]] = loop.create_future()
        self._fence_of: set[int] = set()
        self._put: pmi.Values = {}
        self._well: set[int] = set()
        self._all_well: asyncio.Future[None] = loop.create_future()

    async def welcome(self, rank: int, link: Link) -> None:
        """Serve a member. One whose link breaks off before all are here makes another."""
        self._links[rank] = link
        if len(self._links) == self._size - 1 and not self._has_all.done():
            self._has_all.set_result(None)
        try:
            while True:
                await self._heard(rank, await link.receive())
        except LinkLost:
            if self._links.get(rank) is not link or rank in self._well:
                return
            if self._has_all.done():
                self._note_lost()
            else:
                del self._links[rank]

    async def gather(self) -> None:
        """Return once all members are here, and have been told to start; MpiError."""
        try:
            async with asyncio.timeout(GATHER_SECONDS_MAX):
                await self._has_all
        except TimeoutError:
            missing = sorted(set(range(1, self._size)) - set(self._links))
            raise MpiError(
                f"ranks {missing[:10]} did not come within {GATHER_SECONDS_MAX:.0f} s"
            ) from None
        await self._send_all({"start": True})

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Give the first rank's values to all; return those of all."""
        fence = self._fence
        await self._arrived(0, put)
        return await fence

    async def ended(self, code: int) -> bool:
        """Report how the first rank ended, and wait for the others."""
        if code:
            self._note_lost()
            return False
        self._note_well(0)
        await any_of(self._all_well, self.lost)
        return self._all_well.done()

    async def _heard(self, rank: int, message: Mapping[str, object]) -> None:
        match message:
            case {"fence": dict(put)}:
                await self._arrived(rank, put)
            case {"ended": 0}:
                self._note_well(rank)
                self._links[rank].close()
            case _:
                self._note_lost()

    async def _arrived(self, rank: int, put: pmi.Values) -> None:
        self._fence_of.add(rank)
        self._put.update(put)
        if len(self._fence_of) == self._size:
            values, fence = self._put, self._fence
            self._fence = asyncio.get_running_loop().create_future()
            self._put, self._fence_of = {}, set()
            await self._send_all({"values": values})
            fence.set_result(values)
        elif self._well:
            self._note_lost()  # the others wait for a rank that has ended

    async def _send_all(self, message: Mapping[str, object]) -> None:
        body = encode(message)
        for link in self._links.values():
            try:
                await link.send_encoded(body)
            except LinkLost:
                self._note_lost()

    def _note_well(self, rank: int) -> None:
        self._well.add(rank)
        if self._fence_of:
            self._note_lost()
        if len(self._well) == self._size and not self._all_well.done():
            self._all_well.set_result(None)

    def _note_lost(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        for link in self._links.values():
            link.close()


class OtherMember:
    """The peers of any other member, which hears of them from the first one."""

    def __init__(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._link = link
        self._values: asyncio.Future[Mapping[str, str]] = loop.create_future()

    async def listen(self) -> None:
        """Take what the first member sends, until it is gone."""
        try:
            while True:
                match await self._link.receive():
                    case {"values": dict(values)} if not self._values.done():
                        self._values.set_result(values)
                    case _:
                        return
        except LinkLost:
            return
        finally:
            if not self.lost.done():
                self.lost.set_result(None)

    async def fence(self, put: pmi.Values) -> Mapping[str, str]:
        """Give this rank's values to all; return those of all."""
        self._values = asyncio.get_running_loop().create_future()
        with suppress(LinkLost):  # the rank is about to be stopped
            await self._link.send({"fence": put})
        return await self._values

    async def ended(self, code: int) -> bool:
        """Report how this rank ended, and wait until the first member has heard it."""
        with suppress(LinkLost, TimeoutError):
            await self._link.send({"ended": code})
            async with asyncio.timeout(_END_SECONDS_MAX):
                await any_of(self.lost)
        return code == 0


@asynccontextmanager
async def gathered(gang: Gang, spawn: Spawn) -> AsyncGenerator[Peers]:
    """Bring the gang together, for as long as the context is open; MpiError when it cannot be."""
    if gang.size == 1:
        yield Alone()
    elif gang.rank == 0:
        first = FirstMember(gang.size)
        try:
            listener = listen(gang)
        except OSError as error:
            raise MpiError(f"no port of {gang.address} is free: {error.strerror}") from None
        accepting = spawn(Reception(gang, first.welcome, spawn).serve(listener))
        try:
            await first.gather()
        finally:
            accepting.cancel()
        yield first
    else:
        try:
            link, _ = await join(gang, GATHER_SECONDS_MAX)
        except TimeoutError:
            raise MpiError(
                f"the first member did not answer at {gang.address}:{gang.port} within "
                f"{GATHER_SECONDS_MAX:.0f} s, or not all members came"
            ) from None
        other = OtherMember(link)
        spawn(other.listen())
        try:
            yield other
        finally:
            link.close()


# The rank


@dataclass(slots=True)
class RankEnd:
    """How a rank ended: with an exit code, by signal -N, or stopped by us."""

    code: int
    is_stopped: bool = False


async def run_rank(gang: Gang, command: list[str], peers: Peers, spawn: Spawn) -> RankEnd:
    """Run the rank to its end, or until another one is lost; NotInstalledError."""
    ours, theirs = socket.socketpair()
    served = pmi.PmiServer(gang.size, peers.fence, gang.communicator())
    variables = pmi.environment(gang.rank, gang.size, theirs.fileno())
    with passed_signals() as pass_to:
        with theirs:
            child = _start(command, _of_one_machine(gang) | os.environ | variables, theirs)
        pass_to(child)
        spawn(served.serve(*await asyncio.open_connection(sock=ours)))
        ended = end_of(child)
        await any_of(ended, served.aborted, peers.lost)
    if served.aborted.done():
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS_MAX):
                await any_of(ended)
    if not ended.done():
        kill_descendants()
        code = served.aborted.result() if served.aborted.done() else 0
        return RankEnd(code, is_stopped=not served.aborted.done())
    code = child.wait()
    if code == 0 and served.has_begun and not served.has_finished:
        sys.stderr.write("fairlead mpirun: the program ended without MPI_Finalize\n")
        return RankEnd(1)
    return RankEnd(code)


def _of_one_machine(gang: Gang) -> dict[str, str]:
    """Return what keeps the ports of MPI off the network where all members are on this machine."""
    return {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"} if is_loopback(gang.address) else {}


def _start(
    command: list[str], variables: Mapping[str, str], descriptor: socket.socket
) -> subprocess.Popen[bytes]:
    """Start a rank in a group of its own: the signals of this member's group are not for it."""
    try:
        return subprocess.Popen(
            command, env=variables, pass_fds=(descriptor.fileno(),),
            stdin=None if _is_task() else subprocess.DEVNULL, process_group=0,
        )  # fmt: skip
    except OSError as error:
        raise NotInstalledError(f"cannot start '{command[0]}': {error.strerror}") from None


def _is_task() -> bool:
    """True for a task of a step, which reads what srun gives it."""
    return "SLURM_STEP_ID" in os.environ


def end_of(child: subprocess.Popen[bytes]) -> asyncio.Future[None]:
    """Return a future that is done once a process has ended; it is not yet reaped then."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(child.pid)

    def note() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended.set_result(None)

    loop.add_reader(descriptor, note)
    return ended


async def any_of(*futures: asyncio.Future[Any]) -> None:
    """Return once one of the futures is done; none is cancelled."""
    is_done = asyncio.Event()
    for future in futures:
        future.add_done_callback(lambda _: is_done.set())
    await is_done.wait()


async def _run(gang: Gang, command: list[str]) -> int:
    """Return this member's exit code, or -N when its rank was ended by signal N."""
    async with spawning() as spawn, gathered(gang, spawn) as peers:
        end = await run_rank(gang, command, peers, spawn)
        all_well = await peers.ended(EXIT_STOPPED if end.is_stopped else end.code)
    if end.is_stopped or (end.code == 0 and not all_well):
        sys.stderr.write("fairlead mpirun: stopped, because another member of the job ended\n")
        return EXIT_STOPPED
    return end.code


def kill_descendants() -> None:
    """Kill and reap all descendants; orphans become children of this process (a subreaper).

    The children of a killed process are not killed with it, so the list is read after each one.
    """
    while children := Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(ChildProcessError):  # a thread of asyncio has reaped it
            os.waitpid(-1, 0)


def run(command: list[str]) -> int:
    """Run `command` as this member's rank, under the lock of its attempt; return the exit code."""
    gang, lock = gang_of_environment(), AttemptLock.of_this_member()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, partial(_terminate, lock))
    if lock is not None:
        acquire(lock, superseded)
        os.environ[HELD] = "1"
    try:
        code = asyncio.run(_run(gang, command))
    finally:
        kill_descendants()
        if lock is not None:
            lock.end()
    return end_like(code)


def end_like(code: int) -> int:
    """Return an exit code as it is; for -N end by signal N, as the rank did.

    Process 1 of a container ignores the signals that it sends itself; it returns 128 + N.
    """
    if code >= 0:
        return code
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def superseded() -> None:
    """End this member at once: a later attempt works on what this one works on."""
    sys.stderr.write("fairlead mpirun: stopped, because a later attempt of the job has begun\n")
    kill_descendants()
    os._exit(EXIT_STOPPED)


def _terminate(lock: AttemptLock | None, *_: object) -> NoReturn:
    kill_descendants()
    if lock is not None:
        lock.end()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit(128 + signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Entry of `python -m fairlead.member.mpirun -- COMMAND`."""
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        sys.stderr.write("usage: python -m fairlead.member.mpirun -- COMMAND [ARGS]\n")
        return 2
    try:
        return run(command)
    except Superseded:
        sys.stderr.write("fairlead mpirun: a later attempt of the job has begun\n")
        return EXIT_STOPPED
    except (MpiError, OSError) as error:
        sys.stderr.write(f"fairlead mpirun: {error}\n")
        kill_descendants()
        return error.exit_code if isinstance(error, MpiError) else EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
