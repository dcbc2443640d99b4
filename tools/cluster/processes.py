"""Processes outlive the command that starts them, and are ended by another one that knows them.

A child writes down itself, before it becomes the program: process id, start time, boot. So a
command that is killed at any line leaves no unrecorded process, and a process id that the kernel
has given to another process since is not mistaken. What is missing there all the same is found by
its network namespace, of which nothing else of this machine is a member.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETNS = Path("/run/netns")
KILL_SECONDS_MAX = 20.0


def _start_time(pid: int | str) -> str:
    """Return the start time of a process in clock ticks since the boot (proc(5), field 22)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def start(record: Path, command: list[str], log: Path) -> None:
    """Start a process in a session of its own and return at once; `record` will name it.

    Signals wait: Python loses an exception that a handler raises in the middle of a fork.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

    def write_down() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        text = f"{os.getpid()} {_start_time('self')} {BOOT.read_text()}"
        new = record.with_suffix(".new")
        new.write_text(text)
        new.rename(record)

    try:
        with log.open("ab") as output:
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
                start_new_session=True, preexec_fn=write_down,  # noqa: PLW1509 - no other thread runs
            )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def recorded(record: Path) -> int | None:
    """Return the process that the record means, while it lives."""
    try:
        pid, ticks, boot = record.read_text().split()
        is_alive = boot == BOOT.read_text().strip() and ticks == _start_time(pid)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return int(pid) if is_alive else None


def child(pid: int) -> int | None:
    """Return the first child of a process, as this machine counts them."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


def members(namespace: str) -> set[int]:
    """Return the processes in a named network namespace; none when there is no such namespace."""
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        if _is_member(int(process.name), namespace):
            found.add(int(process.name))
    return found


def _is_member(pid: int, namespace: str) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").samefile(NETNS / namespace)
    except OSError:
        return False


def kill_recorded(record: Path) -> None:
    """Kill the process of a record with signal 9, and remove the record."""
    pid = recorded(record)
    if pid is not None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if recorded(record) == pid:  # the descriptor means the very process
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                _reap(pid)
                select.select([descriptor], [], [], KILL_SECONDS_MAX)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)
    record.unlink(missing_ok=True)


def _reap(pid: int) -> None:
    """Collect the process if it is a child of this one."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def kill_members(namespace: str) -> None:
    """Kill all in a network namespace and return once it is empty; TimeoutError if it stays so."""
    deadline = time.monotonic() + KILL_SECONDS_MAX
    while found := members(namespace):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"processes of {namespace} do not end: {sorted(found)}")
        for pid in found:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if _is_member(pid, namespace):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass
            finally:
                os.close(descriptor)
        time.sleep(0.05)
