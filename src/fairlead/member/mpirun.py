"""Start one MPI communicator over all members of a job: every member runs `mpirun -- COMMAND`.

No ssh, no daemon, no launcher. Each member starts its own rank, and serves it what an MPI library
asks of a process manager: `pmi`, or with `--pmix` what Open MPI asks (`pmix`). The addresses of the
ranks go through the first member (`gang_peers`): the others connect to it once, at MASTER_ADDR, and
both ends prove that they belong to this attempt. No member ever runs what another one sends.

A lost rank stops all ranks, and each member ends: the lost one as its rank did, the others with
EXIT_STOPPED, so that a reader of the exit codes can tell the cause from its effects.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fairlead.member import pmi, pmix
from fairlead.member.attempt_lock import EXIT_STOPPED, HELD, AttemptLock, Superseded, acquire
from fairlead.member.gang_link import Gang, NoKeyError, Spawn, is_loopback, read_key, spawning
from fairlead.member.gang_peers import (
    END_SECONDS_MAX,
    EXIT_UNAVAILABLE,
    MpiError,
    Peers,
    any_of,
    gathered,
)
from fairlead.member.passed_signals import passed_signals

#: What mpirun needs is not there, or this is no Fairlead job (a shell's "command not found").
EXIT_NOT_FOUND = 127
PR_SET_CHILD_SUBREAPER = 36
#: A thread that exits (include/linux/sched.h), in field 9 of proc_pid_stat(5).
_PF_EXITING = 0x4
ENV_KEY = "FAIRLEAD_MPI_KEY_FILE"
_NO_KEY = (
    f"this gang has no key ({ENV_KEY} is not set): Fairlead makes one for jobs whose "
    "command or script names fairlead.member.mpirun; for any other way to start it, set the "
    'annotation fairlead.dev/mpi: "true" in the template of the role'
)


class NotInstalledError(MpiError):
    """No retry helps: the image, the command or the job has to change."""

    exit_code = EXIT_NOT_FOUND


def gang_of_environment() -> Gang:
    """Return this member's gang; NotInstalledError names what is missing.

    A batch script has no rank: what it starts by itself is alone.
    """
    environ = os.environ
    try:
        size = int(environ.get("WORLD_SIZE", "1"))
        gang = Gang(
            rank=int(environ.get("RANK", "0")),
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


# The rank


@dataclass(slots=True)
class RankEnd:
    """How a rank ended: with an exit code, by signal -N, or stopped by us."""

    code: int
    is_stopped: bool = False


async def run_rank(
    gang: Gang, command: list[str], peers: Peers, spawn: Spawn, *, served: pmi.RankServer
) -> RankEnd:
    """Run the rank to its end, or until another one is lost; NotInstalledError."""
    with passed_signals() as pass_to:
        variables = {**_of_one_machine(gang), **os.environ, **served.variables}
        child = _start(command, variables, served.descriptors)
        pass_to(child)
        spawn(served.serve())
        ended = end_of(child)
        await any_of(ended, served.aborted, peers.lost)
    if served.aborted.done():
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                await any_of(ended)
    elif is_exiting(child.pid):  # by itself, and perhaps the others were lost by that
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


def _server(gang: Gang, peers: Peers, *, is_pmix: bool) -> pmi.RankServer:
    """Return what serves the rank; NotInstalledError, MpiError."""
    try:
        library = pmix.find_library() if is_pmix else None
        if library is None:  # PMI costs two descriptors where nothing asks for it
            return pmi.PmiServer(gang.rank, gang.size, peers.fence, gang.communicator())
        served = pmix.PmixServer(library, gang.rank, gang.size, peers.fence)
        served.open(gang.mac("pmix").hex() if gang.key else os.urandom(32).hex())
    except pmix.NoPmixError as error:
        raise NotInstalledError(str(error)) from None
    except OSError as error:
        raise MpiError(f"the image's libpmix does not serve: {error}") from None
    return served


def _of_one_machine(gang: Gang) -> dict[str, str]:
    """Return what keeps the ports of MPI off the network where all members are on this machine."""
    names = ("UCX_NET_DEVICES", "FI_TCP_IFACE", "OMPI_MCA_btl_tcp_if_include")
    return dict.fromkeys(names, "lo") if is_loopback(gang.address) else {}


def _start(
    command: list[str], variables: Mapping[str, str], descriptors: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Start a rank in a group of its own: the signals of this member's group are not for it."""
    try:
        return subprocess.Popen(
            command, env=variables, pass_fds=descriptors,
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


def is_exiting(pid: int) -> bool:
    """True for a child that is about to end, or has ended and is not reaped.

    A process releases its memory and its connections first, which takes long where it has much
    memory: MPI libraries of other ranks abort meanwhile (UCX: `process_vm_readv ... No such
    process`). One of which only some threads exit goes on.
    """
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # that thread is gone
            if not int(stat.read_bytes().rpartition(b")")[2].split()[6]) & _PF_EXITING:
                return False
    return True


async def _run(gang: Gang, command: list[str], *, is_pmix: bool) -> int:
    """Return this member's exit code, or -N when its rank was ended by signal N."""
    async with spawning() as spawn, gathered(gang, spawn) as peers:
        with closing(_server(gang, peers, is_pmix=is_pmix)) as served:
            end = await run_rank(gang, command, peers, spawn, served=served)
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


def run(command: list[str], *, is_pmix: bool = False) -> int:
    """Run `command` as this member's rank, under the lock of its attempt; return the exit code."""
    lock = AttemptLock.of_this_member()
    signal.signal(signal.SIGTERM, partial(_terminate, lock))
    return run_locked(lock, partial(_run, command=command, is_pmix=is_pmix))


def run_locked(lock: AttemptLock | None, part: Callable[[Gang], Coroutine[Any, Any, int]]) -> int:
    """Run this member's part of the gang, under the lock of its attempt; return the exit code."""
    gang = gang_of_environment()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if lock is not None:
        acquire(lock, superseded)
        os.environ[HELD] = "1"
    try:
        code = asyncio.run(part(gang))
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
    """Entry of `python -m fairlead.member.mpirun [--pmix] -- COMMAND`."""
    is_pmix = argv[:1] == ["--pmix"]
    command = argv[is_pmix:]
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        sys.stderr.write("usage: python -m fairlead.member.mpirun [--pmix] -- COMMAND [ARGS]\n")
        return 2
    return exit_code_of("mpirun", partial(run, command, is_pmix=is_pmix))


def exit_code_of(program: str, call: Callable[[], int]) -> int:
    """Return the exit code of a program of a member; what went wrong is on stderr."""
    try:
        return call()
    except Superseded:
        sys.stderr.write(f"fairlead {program}: a later attempt of the job has begun\n")
        return EXIT_STOPPED
    except (MpiError, OSError) as error:
        sys.stderr.write(f"fairlead {program}: {error}\n")
        kill_descendants()
        return error.exit_code if isinstance(error, MpiError) else EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
