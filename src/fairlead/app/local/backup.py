"""A cluster's data directory as one file, made while the cluster runs or not, and back again.

A compressed tar file of private files, in this order:

    backup.json    the version of this layout, which Fairlead made it, and when
    FORMAT, snapshot-N, log-N, log-N+1 ... below store/
    history.db     records of ended jobs
    token, tls.json, cluster.json
    logs/          output of members

The store's files only grow until they are replaced as a whole, and a log that is cut off anywhere
is one of an earlier instant. So files that are opened together are a store of one instant, without
a lock and without a word to the process that writes it. The history is copied after the store:
a job that ended in between has its record, and is recorded once more after the restore.

What members write (checkpoints, volumes) may be large and is theirs: it is not in here.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from fairlead.app.local.server_tls import TLS_FILE
from fairlead.app.run_file import CLUSTER_FILE, STORE_DIRECTORY, TOKEN_FILE, is_of_a_cluster
from fairlead.embedded.storage.store import Store
from fairlead.history import HISTORY_FILE

LAYOUT = 1
_ABOUT_FILE, _LOGS = "backup.json", "logs"
_SINGLE_FILES = (TOKEN_FILE, TLS_FILE, CLUSTER_FILE)
_STORE_FILES = ("FORMAT", "snapshot-*", "log-*")
_ABOUT_BYTES_MAX = 64 << 10
#: A compaction replaces the store's files once in many megabytes of writes.
_OPEN_TRIES = 100
#: Most of a backup is JSON, which even the fastest level makes six times smaller.
_LEVEL = 1
_CHUNK_BYTES = 1 << 20


class BackupError(Exception):
    """The file is no whole backup, or there is nothing to back up; the message says why."""


class BackupAbout(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup says of itself. `made_at` is in seconds since the epoch."""

    layout: int
    version: str
    made_at: float


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    """What a restore came to: what the backup said of itself, and the objects in its store."""

    about: BackupAbout
    objects: int


def save(data: Path, file: Path, *, version: str, now: float) -> int:
    """Write a backup of the directory; return its bytes. BackupError, OSError.

    The file has its name once it is whole and on disk, and only its owner can read it.
    """
    if not is_of_a_cluster(data):
        raise BackupError(f"{data} is not the data directory of a cluster")
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as beside:
        path = Path(beside, file.name)
        with open(path, "xb", opener=_private) as raw:
            with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=now) as packed:
                _write(data, packed, Path(beside), BackupAbout(LAYOUT, version, now))
            raw.flush()
            os.fsync(raw.fileno())
        size = path.stat().st_size
        path.replace(file)
    return size


def restore(file: Path, data: Path) -> RestoredBackup:
    """Make the directory from a backup. BackupError, StoreError, OSError.

    `data` must not exist, or be empty. It is made beside its place and checked there, so that a
    restore that is interrupted leaves nothing under its name.
    """
    if data.exists() and any(data.iterdir()):
        raise BackupError(f"{data} is not empty")
    data.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=data.parent, prefix=f".{data.name}."))
    try:
        with file.open("rb") as raw, _unpacking(file), gzip.open(raw, "rb") as packed:
            about = _read(packed, beside)
        objects = asyncio.run(_objects_in(beside / STORE_DIRECTORY))
        _check_history(beside / HISTORY_FILE)
        beside.rename(data)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return RestoredBackup(about, objects)


# Writing


def _write(data: Path, packed: gzip.GzipFile, beside: Path, about: BackupAbout) -> None:
    with ExitStack() as stack, tarfile.open(fileobj=packed, mode="w|") as archive:
        content = msgspec.json.encode(about)
        archive.addfile(_entry(_ABOUT_FILE, len(content)), io.BytesIO(content))
        for path, opened in _open_store(data / STORE_DIRECTORY, stack):
            _add(archive, f"{STORE_DIRECTORY}/{path.name}", opened)
        if (data / HISTORY_FILE).exists():
            copy = beside / HISTORY_FILE
            _copy_history(data / HISTORY_FILE, copy)
            with copy.open("rb") as opened:
                _add(archive, HISTORY_FILE, opened)
            copy.unlink()
        others = [data / name for name in _SINGLE_FILES]
        for path in (*others, *_files_below(data / _LOGS)):
            with suppress(FileNotFoundError), path.open("rb") as opened:  # logs end with their jobs
                _add(archive, path.relative_to(data).as_posix(), opened)


def _open_store(store: Path, stack: ExitStack) -> Sequence[tuple[Path, IO[bytes]]]:
    """Open all files of one instant: none of them was replaced while the others were opened."""
    for _ in range(_OPEN_TRIES):
        with ExitStack() as attempt, suppress(FileNotFoundError):
            paths = _store_files(store)
            opened = [(path, attempt.enter_context(path.open("rb"))) for path in paths]
            if _store_files(store) == paths:
                stack.push(attempt.pop_all())
                return opened
    raise BackupError(f"the files of {store} are replaced too fast to be read")


def _store_files(store: Path) -> list[Path]:
    found = [path for pattern in _STORE_FILES for path in store.glob(pattern)]
    return sorted(path for path in found if path.suffix != ".tmp")


def _files_below(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(files)):
            with suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def _copy_history(source: Path, copy: Path) -> None:
    """Copy the database in one transaction, whoever writes to it."""
    copy.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(copy)) as there:
            here.backup(there)
            there.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied: {error}") from error


def _add(archive: tarfile.TarFile, name: str, opened: IO[bytes]) -> None:
    """Add what a file has now; what is appended meanwhile is of a later instant."""
    entry = _entry(name, os.fstat(opened.fileno()).st_size)
    try:
        archive.addfile(entry, opened)
    except OSError as error:
        if error.errno is not None:
            raise
        raise BackupError(f"{name} was cut while it was read") from error


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


# Reading


@contextmanager
def _unpacking(file: Path) -> Generator[None]:
    """Turn what a damaged or foreign file leads to into BackupError."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BackupError(f"{file} is no whole backup: {error or type(error).__name__}") from error


def _read(packed: gzip.GzipFile, into: Path) -> BackupAbout:
    """Unpack all files, and read on to the check sum at the end."""
    with tarfile.open(fileobj=packed, mode="r|") as archive:
        about = _about(archive)
        while (entry := archive.next()) is not None:
            path = into / _checked(entry)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = archive.extractfile(entry)
            assert opened is not None, "it is a regular file"
            with open(path, "xb", opener=_private) as target:
                shutil.copyfileobj(opened, target, _CHUNK_BYTES)
                target.flush()
                os.fsync(target.fileno())
    while packed.read(_CHUNK_BYTES):
        pass
    return about


def _about(archive: tarfile.TarFile) -> BackupAbout:
    first = archive.next()
    opened = archive.extractfile(first) if first is not None and first.isreg() else None
    if first is None or opened is None or first.name != _ABOUT_FILE:
        raise tarfile.ReadError(f"it does not begin with {_ABOUT_FILE}")
    try:
        about = msgspec.json.decode(opened.read(_ABOUT_BYTES_MAX), type=BackupAbout)
    except ValueError as error:
        raise tarfile.ReadError(f"{_ABOUT_FILE}: {error}") from error
    if about.layout != LAYOUT:
        raise BackupError(
            f"the backup has layout {about.layout}, this Fairlead reads layout {LAYOUT}: "
            f"use Fairlead {about.version}"
        )
    return about


def _checked(entry: tarfile.TarInfo) -> str:
    """Return the name of a file that a backup may have."""
    path = PurePosixPath(entry.name)
    is_known = path.parts[0] in (STORE_DIRECTORY, _LOGS) if len(path.parts) > 1 else (
        entry.name in (HISTORY_FILE, *_SINGLE_FILES)
    )  # fmt: skip
    if not entry.isreg() or not is_known or path.is_absolute() or ".." in path.parts:
        raise tarfile.ReadError(f"there is {entry.name!r} in it")
    return entry.name


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def _objects_in(store: Path) -> int:
    """Return how many objects a store has; StoreError where it is damaged."""
    if not (store / "FORMAT").is_file():
        raise BackupError("there is no store in the backup")
    opened = Store.open(store)
    try:
        return sum(opened.count(table) for table in opened.table_names())
    finally:
        await opened.close()


def _check_history(path: Path) -> None:
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path)) as connection:
            said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        raise BackupError(f"{HISTORY_FILE} in the backup is damaged: {said}")
