"""Start one MPI communicator over all members of a job: every member runs `mpirun -- COMMAND`.

No ssh, no daemon. Hydra, the process manager of MPICH and Intel MPI, has a "manual" launcher: it
prints the command of one proxy per host instead of starting it. The first member runs `mpiexec`
that way and hands each other member its proxy's command line over one short TCP connection to
MASTER_ADDR:MASTER_PORT; each member runs its proxy, and the proxy the rank. Members find the first
one once, at the start, by the pod address that the job controller wrote down.

A lost rank stops all ranks (Hydra's clean-up), and each member ends: the lost one as its rank did,
the others with EXIT_STOPPED, so that a reader of the exit codes can tell the cause from its
effects.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from fairlead.member.attempt_lock import EXIT_STOPPED, HELD, AttemptLock, Superseded, acquire

#: The other members, or the names of the gang, could not be reached in time (EX_UNAVAILABLE).
EXIT_UNAVAILABLE = 69
#: What mpirun needs is not installed, or this is no Fairlead job (a shell's "command not found").
EXIT_NOT_FOUND = 127
RENDEZVOUS_SECONDS_MAX = 300.0
RETRY_SECONDS = 0.05
MESSAGE_BYTES_MAX = 1 << 20
ERROR_BYTES_MAX = 4096
_PR_SET_CHILD_SUBREAPER = 36
#: Place of a zombie's wait status in /proc/PID/stat, counted from the state (proc_pid_stat(5)).
_EXIT_CODE = 49


class MpiError(Exception):
    """The communicator cannot be started; the message says what to do."""

    exit_code = EXIT_UNAVAILABLE


class NotInstalledError(MpiError):
    """No retry helps: the image or the command has to change."""

    exit_code = EXIT_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Member:
    """This member's part, read from the job environment."""

    rank: int
    size: int
    master_address: str
    master_port: int
    hostfile: Path
    token: str

    @classmethod
    def from_environment(cls) -> Member:
        """Read the variables that every Fairlead member has; MpiError names the missing one."""
        try:
            return cls(
                rank=int(os.environ["RANK"]),
                size=int(os.environ["WORLD_SIZE"]),
                master_address=os.environ["MASTER_ADDR"],
                master_port=int(os.environ["MASTER_PORT"]),
                hostfile=Path(os.environ["FAIRLEAD_HOSTFILE"]),
                token=f"{os.environ['FAIRLEAD_JOB']}/{os.environ['FAIRLEAD_ATTEMPT']}",
            )
        except KeyError as error:
            raise NotInstalledError(
                f"{error.args[0]} is not set: run this inside a Fairlead job (fairlead submit)"
            ) from None


def find_hydra() -> tuple[str, str]:
    """Return the paths of mpiexec.hydra and hydra_pmi_proxy: beside this Python, or on the PATH."""
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    paths = [shutil.which(name, path=search) for name in ("mpiexec.hydra", "hydra_pmi_proxy")]
    if None in paths:
        raise NotInstalledError(
            "no MPI with the Hydra process manager found (mpiexec.hydra, hydra_pmi_proxy): "
            "pip install mpich, or put MPICH or Intel MPI on the PATH"
        )
    return str(paths[0]), str(paths[1])


def machine_lines(hostfile: Path) -> list[str]:
    """Return Hydra's host lines (`address:1`) from a host file (`address slots=1`)."""
    lines = [line.split()[0] for line in hostfile.read_text().splitlines() if line.strip()]
    return [f"{address}:1" for address in lines]


def listen(address: str, port: int) -> socket.socket:
    """Return a socket on which the first member waits for the others.

    It is bound to a loopback address as it is; any other one may be a name that does not resolve
    yet, or an address that this container does not have (a Service's), so the wildcard is taken.
    """
    try:
        host = address if ipaddress.ip_address(address).is_loopback else ""
    except ValueError:
        host = "localhost" if address == "localhost" else ""
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port))
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)


def await_name(address: str, seconds_max: float = RENDEZVOUS_SECONDS_MAX) -> None:
    """Return once the name resolves: in a cluster it appears some time after the pod has started.

    Raises MpiError when it does not in time.
    """
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise MpiError(
                    f"the name {address} does not resolve after {seconds_max:.0f} s: {error}"
                ) from None
        else:
            return
        time.sleep(RETRY_SECONDS)


def start_mpiexec(
    member: Member, command: list[str], scratch: Path
) -> tuple[subprocess.Popen[bytes], list[list[str]]]:
    """Start mpiexec; return it and the proxy command line of each rank, in rank order."""
    mpiexec, _ = find_hydra()
    hosts = scratch / "hosts"
    hosts.write_text("\n".join(machine_lines(member.hostfile)) + "\n")
    rank = [sys.executable, "-m", "fairlead.member.rank", *command]
    process = subprocess.Popen(
        [
            mpiexec, "-launcher", "manual", "-localhost", member.master_address, "-genvnone",
            "-f", str(hosts), "-n", str(member.size), *rank,
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    proxies: list[list[str]] = []
    for raw in process.stdout:
        line = raw.decode(errors="replace").strip()
        if line == "HYDRA_LAUNCH_END":
            break
        if line.startswith("HYDRA_LAUNCH:"):
            proxies.append(line.split()[1:])
        elif line:
            sys.stderr.write(line + "\n")
    if len(proxies) != member.size:
        process.kill()
        raise MpiError(f"mpiexec started {len(proxies)} proxies, {member.size} were expected")
    return process, proxies


def hand_out(member: Member, proxies: list[list[str]], listener: socket.socket) -> None:
    """Give every other member its proxy's arguments; MpiError when one does not come in time."""
    deadline = time.monotonic() + RENDEZVOUS_SECONDS_MAX
    waiting = set(range(1, member.size))
    while waiting:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            raise MpiError(
                f"ranks {sorted(waiting)[:10]} did not come within {RENDEZVOUS_SECONDS_MAX:.0f} s"
            ) from None
        with connection:
            connection.settimeout(10)
            try:
                rank = _rank_of(json.loads(_read_line(connection)), member)
                if rank is None:
                    continue
                connection.sendall(json.dumps(proxies[rank][1:]).encode() + b"\n")
            except (OSError, ValueError, RecursionError):
                continue
            waiting.discard(rank)


def _rank_of(hello: Any, member: Member) -> int | None:
    """Return the rank of a member of this attempt; None for any other client of the port."""
    if not isinstance(hello, dict) or hello.get("token") != member.token:
        return None
    rank = hello.get("rank")
    return rank if type(rank) is int and 0 <= rank < member.size else None


def fetch(member: Member) -> list[str]:
    """Ask the first member for this rank's proxy arguments, until it answers or time is up."""
    deadline = time.monotonic() + RENDEZVOUS_SECONDS_MAX
    hello = json.dumps({"token": member.token, "rank": member.rank}).encode() + b"\n"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((member.master_address, member.master_port), 10) as link:
                link.sendall(hello)
                link.settimeout(RENDEZVOUS_SECONDS_MAX)
                answer = _read_line(link)
            if answer:
                return [str(part) for part in json.loads(answer)]
        except (OSError, ValueError):  # not there yet, or the answer broke off
            pass
        time.sleep(RETRY_SECONDS)
    raise MpiError(
        f"the first member did not answer at {member.master_address}:{member.master_port} "
        f"within {RENDEZVOUS_SECONDS_MAX:.0f} s"
    )


def _read_line(link: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < MESSAGE_BYTES_MAX:
        part = link.recv(65536)
        if not part:
            break
        data += part
    return bytes(data).strip()


def _pass_on(stream: IO[bytes]) -> None:
    for line in stream:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()


def _run_proxy(arguments: list[str], result: Path) -> subprocess.Popen[bytes]:
    _, proxy = find_hydra()
    out, err = os.dup(1), os.dup(2)
    environment = dict(
        os.environ, FAIRLEAD_RANK_OUTPUT=f"{out},{err}", FAIRLEAD_RANK_RESULT=str(result)
    )
    # What it says after a lost rank is noise; it is shown only when the rank never ran.
    with _errors_of(result).open("wb") as errors:
        process = subprocess.Popen(
            [proxy, *arguments], env=environment, pass_fds=(out, err), stdin=subprocess.DEVNULL,
            stderr=errors,
        )  # fmt: skip
    os.close(out)
    os.close(err)
    return process


def _errors_of(result: Path) -> Path:
    """Return the file with what the proxy of this member wrote to its standard error."""
    return result.with_name("proxy-errors")


def _kill_descendants() -> None:
    """Kill and reap all descendants; orphans become children of this process (a subreaper).

    The children of a killed process are not killed with it, so the list is read after each one.
    """
    while children := Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
        os.waitpid(-1, 0)


def _finish(result: Path, proxy_code: int, mpiexec: subprocess.Popen[bytes] | None) -> int:
    """Return this member's exit code, or -N when its rank was ended by signal N."""
    kind, number = _rank_end(result)
    mpiexec_code = 0
    if mpiexec is not None:
        try:
            mpiexec_code = mpiexec.wait(timeout=10)
        except subprocess.TimeoutExpired:
            mpiexec_code = EXIT_STOPPED
    _kill_descendants()
    if kind == "signal":
        return -number
    if kind == "exit" and number:
        return number
    if kind == "exit" and proxy_code == 0 and mpiexec_code == 0:
        return 0
    if not kind and _errors_of(result).exists():
        sys.stderr.write(_errors_of(result).read_text(errors="replace")[-ERROR_BYTES_MAX:])
    sys.stderr.write("fairlead mpirun: stopped, because another member of the job ended\n")
    return EXIT_STOPPED


def _rank_end(result: Path) -> tuple[str, int]:
    """Return how the rank ended: exit or signal, N; runs, PID when it did not, or "" for never ran.

    The proxy kills the rank's parent once another rank has failed, perhaps before that has written
    down that this one, too, had ended by itself: its zombie shows it.
    """
    kind, number = _recorded(result)
    if kind != "runs":
        return kind, number
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # its parent has written it down by now
        return _recorded(result)
    if fields[0] != "Z":
        return kind, number
    code = os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
    return ("exit", code) if code >= 0 else ("signal", -code)


def _recorded(result: Path) -> tuple[str, int]:
    kind, _, number = (result.read_text() if result.exists() else "").partition(" ")
    return kind, int(number or 0)


def run(command: list[str]) -> int:
    """Run `command` as this member's rank, under the lock of its attempt; return the exit code."""
    member, lock = Member.from_environment(), AttemptLock.of_this_member()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, partial(_terminate, lock))
    if lock is not None:
        acquire(lock, _superseded)
        os.environ[HELD] = "1"
    try:
        code = _run(member, command)
    finally:
        _kill_descendants()
        if lock is not None:
            lock.end()
    return _end(code)


def _end(code: int) -> int:
    """Return an exit code as it is; for -N end by signal N, as the rank did.

    Process 1 of a container ignores the signals that it sends itself; it returns 128 + N.
    """
    if code >= 0:
        return code
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def _superseded() -> None:
    sys.stderr.write("fairlead mpirun: stopped, because a later attempt of the job has begun\n")
    _kill_descendants()
    os._exit(EXIT_STOPPED)


def _run(member: Member, command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="fairlead-mpi-") as directory:
        scratch = Path(directory)
        result = scratch / "result"
        if member.rank != 0:
            proxy = _run_proxy(fetch(member), result)
            return _finish(result, proxy.wait(), None)
        with listen(member.master_address, member.master_port) as listener:
            await_name(member.master_address)
            mpiexec, proxies = start_mpiexec(member, command, scratch)
            assert mpiexec.stdout is not None
            threading.Thread(target=_pass_on, args=(mpiexec.stdout,), daemon=True).start()
            proxy = _run_proxy(proxies[0][1:], result)
            hand_out(member, proxies, listener)
        return _finish(result, proxy.wait(), mpiexec)


def _terminate(lock: AttemptLock | None, *_: object) -> NoReturn:
    _kill_descendants()
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
        _kill_descendants()
        return error.exit_code if isinstance(error, MpiError) else EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
