"""What the agent has set on this machine, and what was there before: one small JSON file.

It is on the disk before a setting is written, so a process that is killed at any line leaves a
record of all that it may have changed. Settings of the kernel last until the next boot, and so does
the record: entries of another boot say nothing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from fairlead.node.files import replace_file

VERSION = 1


class TargetEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A target that was written, or is about to be, for a setting of a profile.

    `original` was there before the first write: it is what is restored. `before` was there before
    the latest write, `asked` is what that wrote, and `made` what the kernel made of it; None until
    that is known, which is also what a killed process leaves.
    """

    setting: str
    original: str
    before: str
    asked: str
    made: str | None = None

    def is_ours(self, actual: str) -> bool:
        """True when a value is what the latest write left, or may have left if it was killed."""
        return actual == self.made if self.made is not None else actual in (self.before, self.asked)


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    version: int
    boot_id: str
    entries: dict[str, TargetEntry]


class RecordError(OSError):
    """The record cannot be used; nothing is written without it."""


class TuningRecord:
    """The record, held by one process."""

    def __init__(self, path: Path, boot_id: str) -> None:
        """Read the file, an empty record without one; RecordError."""
        self._path = path
        self._boot_id = boot_id
        self.entries: Mapping[str, TargetEntry] = {}
        try:
            document = msgspec.json.decode(path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(error.errno, error.strerror, str(path)) from error
        except ValueError as error:
            raise RecordError(f"{path} is no record of settings: {error}") from error
        if document.version != VERSION:
            raise RecordError(f"{path} has version {document.version}; accepted: {VERSION}")
        if document.boot_id == boot_id:
            self.entries = document.entries

    def save(self, entries: Mapping[str, TargetEntry]) -> None:
        """Replace the file, durably: it is on the disk when this returns. RecordError."""
        if entries == self.entries:
            return
        document = _Document(VERSION, self._boot_id, dict(sorted(entries.items())))
        try:
            data = msgspec.json.encode(document) + b"\n"
            replace_file(self._path, data, mode=0o600, is_durable=True)
        except OSError as error:
            raise RecordError(error.errno, error.strerror, str(self._path)) from error
        self.entries = dict(entries)


@contextmanager
def open_record(path: Path, boot_id: str) -> Generator[TuningRecord]:
    """Hold the record; RecordError when it is damaged, or another process holds it."""
    with _lock(path):
        yield TuningRecord(path, boot_id)


def _lock(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            lock.close()
            raise
    except BlockingIOError as error:
        raise RecordError(f"another process uses {path}") from error
    except OSError as error:
        raise RecordError(error.errno, error.strerror, str(path)) from error
    return lock
