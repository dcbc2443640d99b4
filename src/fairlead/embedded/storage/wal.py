"""The durable log: group commit by one thread, replay at the start, compaction by snapshots.

A data directory holds

    FORMAT           version of this layout; another version is refused, never guessed at
    lock             exclusively locked (flock) while in use; holds the owner's pid
    snapshot-N       all live objects at one version, ended by a frame that counts them
    log-N, log-N+1   what was written since, in version order

The writer thread takes whatever queued up during the last sync,
writes it with one call and one fdatasync, then reports the version reached: that is the group
commit. A frame that is cut off or damaged ends the last log: it belongs to the batch that was under
way, never acknowledged, so it is cut away. Anywhere else, also before the beginning of a later
batch, damage is an error: acknowledged writes would be lost.

Compaction starts log-N+1, writes snapshot-N+1 beside it in a second thread, renames it into place
once it is on disk, and only then deletes what it replaces. When a step of it fails, the logs that
it was to replace stay, and it is tried again later. A failed write or sync of the log, and anything
else that ends the writer thread, is fatal: the file is cut back to what was acknowledged, all that
wait for a write get the failure, and nothing is accepted any more.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from fairlead.embedded.storage.frames import (
    LoggedWrite,
    batch_begins_after,
    encode_batch,
    encode_end,
    encode_frame,
    read_frames,
)
from fairlead.runtime.outside.processes import wait_for_end

FORMAT = "fairlead store 1\n"
_CHUNK_BYTES = 1 << 20
#: How long a killed owner may take to leave. After it, another one may have come.
_ENDING_SECONDS_MAX = 10.0
_TAKE_TRIES_MAX = 3


class StoreError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DirectoryInUse(StoreError):
    """Another process has the directory open; `pid` is None when it is not known."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"data directory {directory} is in use by {owner}: stop it first (fairlead down), "
            "or choose another directory with --data"
        )
        self.pid = pid


class WrongFormat(StoreError):
    """The directory was written by another version, or is not a data directory."""

    def __init__(self, directory: Path, found: str) -> None:
        super().__init__(
            f"data directory {directory} has format '{found}', this version reads "
            f"'{FORMAT.strip()}': use the version of fairlead that wrote it, or choose another "
            "directory with --data"
        )
        self.found = found


class DamagedData(StoreError):
    """A file is damaged where acknowledged writes were."""

    def __init__(self, path: Path, offset: int) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: restore the data directory from a backup, or "
            "start with another directory (--data)"
        )
        self.path = path
        self.offset = offset


class DiskFile:
    """A file, opened for appending. Tests derive classes with faults from it."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise OSError."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        """Return once everything is on disk."""
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Close it; once, for the number may be another file's by then."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Return once the names in a directory are on disk; OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class WalOptions:
    """How the log behaves. `open_file` and `sync_directory` are where tests put faults in."""

    compact_bytes_min: int = 64 << 20  # a shorter log is never compacted
    open_file: Callable[[Path], DiskFile] = DiskFile
    sync_directory: Callable[[Path], None] = sync_directory


@dataclass(frozen=True, slots=True)
class WalRecovery:
    """What a replay found: the last version, how many writes, and the bytes of a torn tail."""

    version: int
    writes: int
    bytes_cut: int


@dataclass(frozen=True, slots=True)
class _Rotate:
    """Order to the writer thread: start a new log, then write a snapshot of `entries`."""

    version: int
    entries: Iterable[LoggedWrite]


def lock_directory(directory: Path) -> int:
    """Make, lock and check a data directory; return the lock's descriptor (close it to unlock).

    Waits for a process that was killed to leave. Raises DirectoryInUse or WrongFormat.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, directory)
        _check_format(directory)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _take(lock: int, directory: Path) -> None:
    owner: int | None = None
    for _ in range(_TAKE_TRIES_MAX):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(lock, 32, 0).decode(errors="replace").strip()
            owner = int(text) if text.isdigit() else None
            if owner is None or not wait_for_end(owner, _ENDING_SECONDS_MAX):
                break
        else:
            return
    raise DirectoryInUse(directory, owner)


def _check_format(directory: Path) -> None:
    path = directory / "FORMAT"
    if path.exists():
        found = path.read_text(errors="replace")
        if found != FORMAT:
            raise WrongFormat(directory, found.strip()[:80])
        return
    others = sorted(p.name for p in directory.iterdir() if p.name != "lock")
    if any(name.startswith(("log-", "snapshot-")) for name in others):
        raise WrongFormat(directory, "none")
    temporary = directory / "FORMAT.tmp"
    with temporary.open("w") as file:
        file.write(FORMAT)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(directory)


def _numbered(directory: Path, stem: str) -> list[int]:
    names = (p.name for p in directory.glob(f"{stem}-*"))
    return sorted(int(n[len(stem) + 1 :]) for n in names if n[len(stem) + 1 :].isdigit())


def replay(
    directory: Path, apply: Callable[[LoggedWrite], None], options: WalOptions
) -> tuple[WalRecovery, int]:
    """Give every logged write to `apply`, oldest first; return what was found and the last log.

    Cuts a torn last batch off the last log. Raises DamagedData when anything else is damaged, and
    OSError.
    """
    for leftover in directory.glob("*.tmp"):
        leftover.unlink()
    snapshots = _numbered(directory, "snapshot")
    first = snapshots[-1] if snapshots else 0
    version = writes = bytes_cut = 0
    if snapshots:
        version, writes = _replay_snapshot(directory / f"snapshot-{first}", apply)
    logs = [n for n in _numbered(directory, "log") if n >= first]
    for number in logs:
        path = directory / f"log-{number}"
        end = 0
        for end, entry in read_frames(path):  # noqa: B007 # its last value is the good length
            if entry.version > version:
                version = entry.version
                writes += 1
                apply(entry)
        bytes_cut = path.stat().st_size - end
        if bytes_cut and (number != logs[-1] or batch_begins_after(path, end)):
            raise DamagedData(path, end)
        if bytes_cut:
            os.truncate(path, end)
    _delete_replaced(directory, first, options)
    return WalRecovery(version, writes, bytes_cut), (logs[-1] if logs else first + 1)


def _delete_replaced(directory: Path, number: int, options: WalOptions) -> None:
    """Delete what snapshot `number` replaces, once its name is on disk; OSError."""
    replaced = [
        directory / f"{stem}-{old}"
        for stem in ("snapshot", "log")
        for old in _numbered(directory, stem)
        if old < number
    ]
    if replaced:
        options.sync_directory(directory)
    for path in replaced:
        path.unlink()


def _replay_snapshot(path: Path, apply: Callable[[LoggedWrite], None]) -> tuple[int, int]:
    count, end = 0, 0
    for end, entry in read_frames(path):  # noqa: B007 # its last value says where damage begins
        if entry.table:
            count += 1
            apply(entry)
        elif int(entry.name) == count:
            return entry.version, count
    raise DamagedData(path, end)


class Log:
    """The open log. `append`, `compact` and `close` are the event loop's, the rest is threads'."""

    def __init__(
        self,
        directory: Path,
        number: int,
        lock: int,
        *,
        options: WalOptions,
        on_durable: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        on_compacted: Callable[[OSError | MemoryError | None], None],
    ) -> None:
        """`on_compacted` gets None, or why a compaction failed: the logs stay, and grow."""
        self._directory = directory
        self._number = number
        self._lock = lock
        self._options = options
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._on_compacted = on_compacted
        path = directory / f"log-{number}"
        self._file = options.open_file(path)
        options.sync_directory(directory)
        self._good_bytes = path.stat().st_size  # of the current file; the writer thread's
        self._log_bytes = sum(p.stat().st_size for p in directory.glob("log-*"))
        self._batch: list[LoggedWrite] = []
        self._queue: SimpleQueue[list[LoggedWrite] | _Rotate | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="fairlead-log", daemon=True)
        self._compaction: threading.Thread | None = None

    @property
    def needs_compaction(self) -> bool:
        """True when the log has grown enough and no compaction is under way."""
        return self._compaction is None and self._log_bytes >= self._options.compact_bytes_min

    @property
    def log_bytes(self) -> int:
        """Bytes written since the last snapshot."""
        return self._log_bytes

    def append(self, entry: LoggedWrite) -> None:
        """Queue one write; all that are queued in one step of the loop go together."""
        if not self._batch:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                self._thread.start()
            self._loop.call_soon(self._flush)
        self._batch.append(entry)

    def _flush(self) -> None:
        if self._batch:
            self._queue.put(self._batch)
            self._batch = []

    def compact(self, version: int, entries: Iterable[LoggedWrite]) -> None:
        """Replace what was appended so far by a snapshot.

        `entries` is the state at `version`, all appended writes included; a thread iterates over it
        later, so it must not change.
        """
        self._flush()
        self._log_bytes = 0
        self._queue.put(_Rotate(version, entries))

    def close(self) -> None:
        """Write what is queued, wait for it, and unlock the directory."""
        self._flush()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        compaction = self._compaction
        if compaction is not None:
            compaction.join()
        self._file.close()
        os.close(self._lock)

    # ------------------------------------------------------------------ the writer thread

    def _run(self) -> None:
        try:
            while True:
                work = [self._queue.get()]
                while True:
                    try:
                        work.append(self._queue.get_nowait())
                    except Empty:
                        break
                if not self._write(work):
                    return
        except BaseException as error:
            self._cut_back()
            if isinstance(error, OSError):
                self._tell(self._on_failed, error)
                return
            failure = OSError(f"the writer thread ended: {error!r}")
            failure.__cause__ = error
            self._tell(self._on_failed, failure)
            if not isinstance(error, MemoryError):
                raise  # a fault of ours

    def _write(self, work: list[list[LoggedWrite] | _Rotate | None]) -> bool:
        """Carry out orders; False when the last was to stop."""
        entries: list[LoggedWrite] = []
        for order in work:
            if order is None:
                self._commit(entries)
                return False
            if isinstance(order, _Rotate):
                self._commit(entries)
                entries = []
                self._rotate(order)
            else:
                entries.extend(order)
        self._commit(entries)
        return True

    def _commit(self, entries: list[LoggedWrite]) -> None:
        if not entries:
            return
        data = encode_batch(entries)
        self._file.write(data)
        self._file.sync()
        self._good_bytes += len(data)
        self._log_bytes += len(data)
        self._tell(self._on_durable, entries[-1].version)

    def _cut_back(self) -> None:
        """Best effort: what was refused must not come back at the next start."""
        try:
            self._file.truncate(self._good_bytes)
            self._file.sync()
        except OSError:
            return  # the disk is gone; the checksum of a half-written frame still cuts it off

    def _tell(self, callback: Callable[..., None], value: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)

    def _rotate(self, order: _Rotate) -> None:
        """Go on in a new log; in the old one when there can be none."""
        path = self._directory / f"log-{self._number + 1}"
        try:
            file = self._open_new(path)
        except OSError as error:
            self._tell(self._on_compacted, error)
            return
        old, self._file = self._file, file
        self._number += 1
        self._good_bytes = 0
        old.close()
        self._compaction = threading.Thread(
            target=self._compact, args=(order, self._number), name="fairlead-compact", daemon=True
        )
        self._compaction.start()

    def _open_new(self, path: Path) -> DiskFile:
        file = self._options.open_file(path)
        try:
            self._options.sync_directory(self._directory)
        except OSError:
            file.close()
            path.unlink()  # only the last log may have a torn end
            raise
        return file

    # ------------------------------------------------------------------ the compaction thread

    def _compact(self, order: _Rotate, number: int) -> None:
        try:
            self._write_snapshot(order, number)
            self._tell(self._on_compacted, None)
        except (OSError, MemoryError) as error:
            self._tell(self._on_compacted, error)
        finally:
            self._compaction = None

    def _write_snapshot(self, order: _Rotate, number: int) -> None:
        path = self._directory / f"snapshot-{number}"
        temporary = path.with_suffix(".tmp")
        file = self._options.open_file(temporary)
        try:
            count, size = 0, 0
            chunk: list[bytes] = []
            for entry in order.entries:
                frame = encode_frame(entry)
                chunk.append(frame)
                count += 1
                size += len(frame)
                if size >= _CHUNK_BYTES:
                    file.write(b"".join(chunk))
                    chunk, size = [], 0
            chunk.append(encode_end(order.version, count))
            file.write(b"".join(chunk))
            file.sync()
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            file.close()
        temporary.rename(path)
        _delete_replaced(self._directory, number, self._options)
