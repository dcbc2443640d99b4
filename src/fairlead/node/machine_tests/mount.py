"""Mount: whether storage is mounted where it should be, and takes a file and gives it back."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.program import Broken, lower
from fairlead.node.running.host import Absent

_BYTES = 1 << 20
_SEED = 20260703


class MountOptions(msgspec.Struct, frozen=True):
    """`paths` at which something is mounted that can be written."""

    paths: tuple[str, ...] = ()


def measure(options: MountOptions) -> Iterable[Figure]:
    """Return the time of the slowest write; Broken where nothing is mounted, or cannot be used."""
    if not options.paths:
        raise Absent("no paths are given")
    return (lower("writeSeconds", [max(_seconds(Path(path)) for path in options.paths)]),)


def _seconds(path: Path) -> float:
    if not os.path.ismount(path):
        raise Broken(f"nothing is mounted at {path}")
    data = random.Random(_SEED).randbytes(_BYTES)  # noqa: S311 # a pattern, no secret
    started = perf_counter()
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            found = file.read()
    except OSError as error:
        raise Broken(f"{path} cannot be used: {error.strerror or error}") from error
    if found != data:
        raise Broken(f"what was read at {path} is not what was written")
    return perf_counter() - started
