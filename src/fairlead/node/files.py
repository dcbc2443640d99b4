"""Files that two processes share: replaced as a whole, and read without trust in who wrote them.

A reader of a file that is replaced sees the old one or the new one, whichever process is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import stat
import struct
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

#: An event of inotify(7): watch, mask, cookie, and the length of the name that follows.
_EVENT = struct.Struct("iIII")
_MOVED_TO, _OVERFLOW = 0x80, 0x4000
_EVENTS_BYTES = 1 << 16


def replace_file(path: Path, data: bytes, *, mode: int, is_durable: bool = False) -> None:
    """Replace a file; when `is_durable`, it is on the disk when this returns. OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if is_durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_file(path: Path, bytes_max: int) -> bytes:
    """Return the bytes of a regular file; OSError, also where it is none, a link, or larger.

    Who wrote it can have the reader neither wait, nor read another file, nor use up its memory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
    return data


@contextmanager
def on_replaced(path: Path, call: Callable[[], None]) -> Generator[None]:
    """Call `call` in the running loop each time when a file is replaced, within the block. OSError.

    By inotify(7), which needs no wake-up while nothing happens. The folder must be there; if it is
    removed, nothing is called any more, so the file is to be looked at now and then all the same.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if descriptor < 0 or libc.inotify_add_watch(
            descriptor, os.fsencode(path.parent), _MOVED_TO
        ) < 0:  # fmt: skip
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path.parent))
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, _report_replaced, descriptor, os.fsencode(path.name), call)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _report_replaced(descriptor: int, name: bytes, call: Callable[[], None]) -> None:
    """Read the events that are there, and call once if one is of the file or some were lost."""
    data, at, is_replaced = os.read(descriptor, _EVENTS_BYTES), 0, False
    while at < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size + length
        found = data[at - length : at].rstrip(b"\0")
        is_replaced |= bool(mask & _OVERFLOW) or found == name
    if is_replaced:
        call()
