"""Memory: patterns that are written and read back, and the bandwidth of a copy.

The patterns are those of memtest86: all bits off and on, alternating ones, and noise with its
complement. Each block has its own number in it, so a line of the address that is stuck shows, too.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.program import REPEATS, Broken, higher, number
from fairlead.node.running.host import Absent

BLOCK_BYTES = 1 << 20
#: Of the memory that programs can get, at most this share is taken.
_SHARE = 4
_SEED = 20260701
_STAMP_BYTES = 8
_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


class RamOptions(msgspec.Struct, frozen=True):
    """`bytes`: of memory that is tested, if there is so much."""

    bytes: int = 256 << 20


def measure(
    options: RamOptions, root: Path = Path("/"), spoil: Callable[[memoryview], None] | None = None
) -> Iterable[Figure]:
    """Return bandwidth and size; Broken where memory does not keep what was written.

    `spoil` changes the memory between writing and reading: a test of this test.
    """
    size = _size(options.bytes, root) // (2 * BLOCK_BYTES) * BLOCK_BYTES
    if size < BLOCK_BYTES:
        raise Absent("too little memory is free to test any")
    with mmap.mmap(-1, 2 * size) as memory, memoryview(memory) as view:
        rates = list[float]()
        for pattern in _patterns():
            _write(view, pattern)
            if spoil is not None:
                spoil(view)
            _read(view, pattern)
        for _ in range(REPEATS):
            started = perf_counter()
            view[size:] = view[:size]
            rates.append(2 * size / (perf_counter() - started))
    return (higher("copyBytesPerSecond", rates), number("testedBytes", 2 * size))


def _patterns() -> Iterable[bytes]:
    for byte in (0x00, 0xFF, 0xAA, 0x55):
        yield bytes([byte]) * BLOCK_BYTES
    noise = random.Random(_SEED).randbytes(BLOCK_BYTES)  # noqa: S311 # a pattern, no secret
    yield noise
    yield bytes(byte ^ 0xFF for byte in noise)


def _write(view: memoryview, pattern: bytes) -> None:
    for at in range(0, len(view), BLOCK_BYTES):
        view[at : at + BLOCK_BYTES] = pattern
        view[at : at + _STAMP_BYTES] = at.to_bytes(_STAMP_BYTES, "little")


def _read(view: memoryview, pattern: bytes) -> None:
    rest, bad = pattern[_STAMP_BYTES:], 0
    for at in range(0, len(view), BLOCK_BYTES):
        block = bytes(view[at : at + BLOCK_BYTES])
        stamp = int.from_bytes(block[:_STAMP_BYTES], "little")
        bad += stamp != at or block[_STAMP_BYTES:] != rest
    if bad:
        blocks = len(view) // BLOCK_BYTES
        raise Broken(f"{bad} of {blocks} blocks of 1 MiB did not keep what was written")


def _size(wanted: int, root: Path) -> int:
    """Return how much may be taken: a share of what is free and of what the cgroup allows."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    free = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    bounds = [wanted, *(each // _SHARE for each in free)]
    for name in _LIMITS:
        try:
            text = (root / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            bounds.append(int(text) // _SHARE)
    return min(bounds)
