"""What a running cluster leaves in its data directory so that others find it: `run.json`.

Start time in clock ticks and the boot's id (proc(5)) distinguish a process from a later one with
the same number: with a stale file, no command signals, or talks to, another process.

    <data>/kubeconfig           how to reach the cluster; 0600
    <data>/token                the bearer token; 0600, kept for the life of the directory
    <data>/cluster.json         the settings of the last start
    <data>/run.json             the process that runs it now
    <data>/log/fairlead.log     what a detached cluster says
    <data>/store/  nodes/  logs/  history.db    state, by their own modules
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

RUN_FILE = "run.json"
CLUSTER_FILE = "cluster.json"
KUBECONFIG_FILE = "kubeconfig"
TOKEN_FILE = "token"  # noqa: S105 # a file name
STORE_DIRECTORY = "store"
LOG_FILE = "log/fairlead.log"
_LOG_END_BYTES = 16_384
#: With less room than this the store cannot go on.
_ROOM_BYTES = 65_536
#: What is longer becomes the one earlier log.
LOG_BYTES_MAX = 32 << 20
_RUN_BYTES_MAX = 64 * 1024


def is_of_a_cluster(directory: Path) -> bool:
    """True for the data directory of `fairlead up`; a file alone may be another program's."""
    return (directory / CLUSTER_FILE).is_file() and (directory / STORE_DIRECTORY).is_dir()


class ProcessRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A process of the user. `start_ticks` and `boot_id` tell it from a later one of its pid."""

    pid: int
    start_ticks: int
    boot_id: str

    @property
    def lives(self) -> bool:
        """True while the recorded process does."""
        return identity(self.pid) == ProcessIdentity(self.start_ticks, self.boot_id)


R = TypeVar("R", bound=ProcessRecord)


class RunningCluster(ProcessRecord, frozen=True, rename="camel"):
    """The process of a cluster."""

    server: str
    version: str
    started_at: float  # seconds since the epoch
    nodes_kept: int = 0  # virtual nodes of an earlier, larger fleet that are in use


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What tells one process from all others since the machine was installed."""

    start_ticks: int
    boot_id: str


def identity(pid: int) -> ProcessIdentity | None:
    """Return the identity of a live process; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return ProcessIdentity(int(fields[19]), boot_id)


def read_running(data: Path) -> RunningCluster | None:
    """Return the process that runs the cluster of this directory now, or None."""
    return live_record(data / RUN_FILE, RunningCluster)


def live_record(path: Path, type_: type[R]) -> R | None:
    """Return the record in a file of a process that lives, or None.

    A record counts only for a process of the user who owns it: else anybody could have another
    user's `fairlead down` signal a process of their choice.
    """
    try:
        file = path.stat()
        if file.st_size > _RUN_BYTES_MAX:
            return None
        record = msgspec.json.decode(path.read_bytes(), type=type_)
        if Path(f"/proc/{record.pid}").stat().st_uid != file.st_uid:
            return None
    except (OSError, ValueError):
        return None
    return record if record.lives else None


def write_running(data: Path, running: RunningCluster) -> None:
    """Leave the record, whole or not at all."""
    write_private(data / RUN_FILE, msgspec.json.encode(running))


def clear_running(data: Path, pid: int) -> None:
    """Remove the record of that process; another process's record stays."""
    running = read_running(data)
    if running is not None and running.pid == pid:
        (data / RUN_FILE).unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def open_log(data: Path) -> int:
    """Open the log of a detached cluster to append to it; return the descriptor."""
    return os.open(data / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def last_error(data: Path) -> str:
    """Return why the cluster of this directory ended, if by an error: its log's last words, or a
    disk that has no room left for them; "" otherwise.
    """
    try:
        log, start = data / LOG_FILE, data / CLUSTER_FILE
        is_later = log.exists() and log.stat().st_mtime >= start.stat().st_mtime
        with (log if is_later else Path(os.devnull)).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        head = next((n for n in reversed(range(len(lines))) if lines[n][:1] not in ("", " ")), None)
        if head is not None and lines[head].startswith("error["):
            return lines[head]
        room = os.statvfs(data)
        free = room.f_bavail * room.f_frsize
    except OSError:
        return ""
    return f"its disk is full: {free:,} bytes are free" if free < _ROOM_BYTES else ""


def rotate_log(data: Path, descriptors: Iterable[int] = ()) -> None:
    """Keep one earlier log once the current one is large; OSError where that fails.

    Those of the descriptors that write the current one write the new one from then on. Where some
    are given and none of them does, it is another process's log and stays.
    """
    path = data / LOG_FILE
    if not path.exists() or (found := path.stat()).st_size <= LOG_BYTES_MAX:
        return
    given = tuple(descriptors)
    ours = [each for each in given if os.path.samestat(os.fstat(each), found)]
    if given and not ours:
        return
    path.replace(path.with_name(path.name + ".1"))
    if ours:
        log = open_log(data)
        for each in ours:
            os.dup2(log, each)
        os.close(log)
