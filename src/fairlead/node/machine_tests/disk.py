"""Disk: a file that is written, synced and read back, in a directory that is given.

The page cache is dropped in between (posix_fadvise), so what is read comes from the disk. The file
has no name: whatever becomes of the program, nothing is left.
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.program import REPEATS, Broken, higher, lower
from fairlead.node.running.host import Absent

_BLOCK_BYTES = 4 << 20
_SEED = 20260702
_SYNCS = 8
_SYNC_BYTES = 4096


class DiskOptions(msgspec.Struct, frozen=True):
    """`bytes` are written in each repetition; no directory: nothing is tested."""

    bytes: int = 128 << 20
    directory: str = ""


def measure(options: DiskOptions, spoil: Callable[[int], None] | None = None) -> Iterable[Figure]:
    """Return bandwidths and the time of a sync; Broken for a read that gives other data.

    `spoil` changes the file, by its descriptor, between writing and reading: a test of this test.
    OSError for what cannot be written.
    """
    directory = _directory(options)
    block = random.Random(_SEED).randbytes(_BLOCK_BYTES)  # noqa: S311 # a pattern, no secret
    count = max(1, options.bytes // _BLOCK_BYTES)
    writes, reads, syncs = list[float](), list[float](), list[float]()
    for _ in range(REPEATS):
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            started = perf_counter()
            written = hashlib.sha256()
            for number in range(count):
                data = _numbered(block, number)
                written.update(data)
                _write_all(file.fileno(), data)
            os.fsync(file.fileno())
            writes.append(count * _BLOCK_BYTES / (perf_counter() - started))
            syncs.append(_sync_seconds(file.fileno()))
            if spoil is not None:
                spoil(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            started = perf_counter()
            found = _digest(file.fileno(), count)
            reads.append(count * _BLOCK_BYTES / (perf_counter() - started))
        if found != written.hexdigest():
            raise Broken(f"what was read in {directory} is not what was written")
    return (
        higher("writeBytesPerSecond", writes), higher("readBytesPerSecond", reads),
        lower("syncSeconds", syncs),
    )  # fmt: skip


def _directory(options: DiskOptions) -> Path:
    if not options.directory:
        raise Absent("no directory is given")
    directory = Path(options.directory)
    try:
        size = os.statvfs(directory)
    except FileNotFoundError as error:
        raise Absent(f"there is no {directory}") from error
    if size.f_bavail * size.f_frsize < 2 * options.bytes:
        raise Absent(f"too little is free in {directory} to write {options.bytes:,} bytes")
    return directory


def _numbered(block: bytes, number: int) -> bytes:
    return number.to_bytes(8, "little") + block[8:]


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_seconds(descriptor: int) -> float:
    """Return the median time of a small write that is synced, behind the data."""
    end, seconds = os.lseek(descriptor, 0, os.SEEK_CUR), list[float]()
    for number in range(_SYNCS):
        started = perf_counter()
        os.pwrite(descriptor, bytes(_SYNC_BYTES), end + number * _SYNC_BYTES)
        os.fsync(descriptor)
        seconds.append(perf_counter() - started)
    return median(seconds)


def _digest(descriptor: int, count: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    digest, left = hashlib.sha256(), count * _BLOCK_BYTES
    while left:
        data = os.read(descriptor, min(left, _BLOCK_BYTES))
        if not data:
            break
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()
