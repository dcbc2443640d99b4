"""Processes outlive the command that starts them, and are ended by another one that knows them.

A child writes down itself, before it becomes the program: process id, start time, boot. So a
command that is killed at any line leaves no unrecorded process, and a process id that the kernel
has given to another process since is not mistaken. What is missing there all the same is found by
its network namespace, of which nothing else of this machine is a member.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETNS = Path("/run/netns")
#: Between two messages about what is waited for, and how many processes each names.
SAY_SECONDS, SHOWN_MAX = 2.0, 8
#: States of a process that has ended: a zombie, or dead.
_ENDED = ("Z", "X")


def _start_time(pid: int | str) -> str:
    """Return the start time of a process in clock ticks since the boot (proc(5), field 22)."""
    return _stat(pid)[19]


def _state(pid: int | str) -> str:
    """Return the state of a process, such as S or D."""
    return _stat(pid)[0]


def _stat(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


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
        is_same = boot == BOOT.read_text().strip() and ticks == _start_time(pid)
        is_alive = is_same and _state(pid) not in _ENDED
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
    return _members([namespace])


def _members(namespaces: Iterable[str]) -> set[int]:
    """Return the processes in any of some namespaces, by one look at all of this machine."""
    wanted = {found for name in namespaces if (found := _identity(NETNS / name)) is not None}
    return {
        int(process.name)
        for process in Path("/proc").glob("[0-9]*") if _identity(process / "ns/net") in wanted
    } if wanted else set()  # fmt: skip


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a namespace from others; None when the file or the process is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def end(
    records: Sequence[Path], namespaces: Sequence[str], deadline: float, say: Callable[[str], None]
) -> None:
    """Kill the recorded processes and all in the network namespaces at once; return once they have
    ended. TimeoutError names those that have not by the deadline. The records are removed.

    `say` is told what is waited for, every few seconds.
    """
    due = time.monotonic() + SAY_SECONDS
    while left := _alive(records, namespaces):
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"processes do not end: {_described(left)}")
        if now >= due:
            say(f"waits for {len(left)} processes: {_described(left)}")
            due = now + SAY_SECONDS
        for pid in left:
            _kill(pid, records, namespaces)
        time.sleep(0.05)
    for record in records:
        record.unlink(missing_ok=True)


def _alive(records: Sequence[Path], namespaces: Sequence[str]) -> set[int]:
    return {pid for record in records if (pid := recorded(record))} | _members(namespaces)


def _kill(pid: int, records: Sequence[Path], namespaces: Sequence[str]) -> None:
    """Send signal 9, unless the process id means another process by now."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The descriptor means the very process that is looked at here.
        of = {_identity(NETNS / name) for name in namespaces} - {None}
        if _identity(Path(f"/proc/{pid}/ns/net")) in of or pid in map(recorded, records):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            _reap(pid)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def _reap(pid: int) -> None:
    """Collect the process if it is a child of this one and has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _described(pids: Iterable[int]) -> str:
    """Return processes with their names and states, such as "containerd (71, D)"."""
    shown = sorted(pids)[:SHOWN_MAX]
    texts = [text for pid in shown if (text := _description(pid))]
    return ", ".join(texts) + (", ..." if len(shown) < len(set(pids)) else "")


def _description(pid: int) -> str:
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return ""
    return f"{before.partition('(')[2]} ({pid}, {after.split()[0]})"
