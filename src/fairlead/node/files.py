"""Files that two processes share: replaced as a whole, and read without trust in who wrote them.

A reader of a file that is replaced sees the old one or the new one, whichever process is killed.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


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
