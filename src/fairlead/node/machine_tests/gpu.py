"""GPUs, by torch: memory, copies to and from the host, and between GPUs.

Where torch is not installed, or no GPU is there, all of it is skipped. A GPU that is cut into
instances (MIG) is passed over; one that something else uses makes the run an Error, no Failed.

Copies to and from the host are made from the memory of each side (NUMA): of each GPU the side with
the best rate is its own, and the worst one is far.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.numa import on, sides
from fairlead.node.machine_tests.program import REPEATS, Broken, higher, number
from fairlead.node.running.host import Absent, Host

#: Memory of a GPU that may be in use before a test: contexts of the driver and of monitors.
_USED_BYTES_MAX = 1 << 30
_CHUNK_BYTES = 1 << 30
_WORD_BYTES = 4
_PATTERNS = (0, -1, 0x55555555, -0x55555556)


class MemoryOptions(msgspec.Struct, frozen=True):
    """`share` of the free memory that is tested."""

    share: float = 0.5


class CopyOptions(msgspec.Struct, frozen=True):
    """`bytes` of each copy."""

    bytes: int = 256 << 20


def as_it_is(_: Any) -> None:
    """Change nothing."""


def memory(options: MemoryOptions, spoil: Callable[[Any], None] | None = None) -> Iterable[Figure]:
    """Return bandwidth and size; Broken where memory does not keep what was written.

    `spoil` changes each block between writing and reading: a test of this test.
    """
    spoil = spoil or as_it_is
    torch, gpus = find_gpus()
    tested, best, worst = list[int](), list[float](), list[float]()
    for gpu in gpus:
        free, _ = torch.cuda.mem_get_info(gpu)
        count = max(1, int(free * options.share) // _CHUNK_BYTES)
        words = _CHUNK_BYTES // _WORD_BYTES
        chunks = [torch.empty(words, dtype=torch.int32, device=f"cuda:{gpu}") for _ in range(count)]
        for pattern in _PATTERNS:
            for chunk in chunks:
                chunk.fill_(pattern)
                spoil(chunk)
            if not all(bool((chunk == pattern).all()) for chunk in chunks):
                raise Broken(f"GPU {gpu}: memory did not keep {pattern:#x}")
        places = torch.arange(words, dtype=torch.int32, device=f"cuda:{gpu}")
        for index, chunk in enumerate(chunks):
            torch.bitwise_xor(places, index, out=chunk)
        if not all(
            torch.equal(chunk, torch.bitwise_xor(places, index))
            for index, chunk in enumerate(chunks)
        ):
            raise Broken(f"GPU {gpu}: memory did not keep numbers of its places")
        rates = _rates(torch, [gpu], 2 * _CHUNK_BYTES, lambda c=chunks, p=places: c[0].copy_(p))
        tested.append(count * _CHUNK_BYTES)
        best.append(max(rates))
        worst.append(min(rates))
        del chunks, places
        torch.cuda.empty_cache()
    return (
        Figure("copyBytesPerSecond", min(best), min(worst)), number("testedBytes", min(tested)),
    )  # fmt: skip


def copies(options: CopyOptions, host: Host | None = None) -> Iterable[Figure]:
    """Return bandwidths to and from the slowest GPU, from its own side of the machine and, where
    there are several, from the far one; Broken for a copy that changed its data.
    """
    torch, gpus = find_gpus()
    there: dict[int, list[list[float]]] = {gpu: [] for gpu in gpus}
    back: dict[int, list[list[float]]] = {gpu: [] for gpu in gpus}
    all_sides = sides(host or Host(), os.sched_getaffinity(0))
    for cpus in all_sides:
        with on(cpus):
            _copies_from_here(torch, options.bytes, there, back)
    return tuple(_by_side(there, back, is_far=len(all_sides) > 1))


def _copies_from_here(
    torch: Any, bytes_: int, there: dict[int, list[list[float]]], back: dict[int, list[list[float]]]
) -> None:
    """Measure copies between the memory of this side and each GPU, and add the rates."""
    source = torch.arange(bytes_ // _WORD_BYTES, dtype=torch.int32).pin_memory()
    returned = torch.empty(bytes_ // _WORD_BYTES, dtype=torch.int32).pin_memory()
    for gpu, rates in there.items():
        on_gpu = torch.empty(bytes_ // _WORD_BYTES, dtype=torch.int32, device=f"cuda:{gpu}")
        rates.append(
            _rates(torch, [gpu], bytes_, lambda g=on_gpu: g.copy_(source, non_blocking=True))
        )
        back[gpu].append(
            _rates(torch, [gpu], bytes_, lambda g=on_gpu: returned.copy_(g, non_blocking=True))
        )
        if not torch.equal(returned, source):
            raise Broken(f"GPU {gpu}: a copy to it and back has other data")


def _by_side(
    there: Mapping[int, Sequence[list[float]]], back: Mapping[int, Sequence[list[float]]],
    *, is_far: bool,
) -> Iterator[Figure]:  # fmt: skip
    for name, rates in (("toDeviceBytesPerSecond", there), ("fromDeviceBytesPerSecond", back)):
        yield _slowest(name, [max(of_gpu, key=max) for of_gpu in rates.values()])
        if is_far:
            far = f"far{name[0].upper()}{name[1:]}"
            yield _slowest(far, [min(of_gpu, key=max) for of_gpu in rates.values()])


def peers(options: CopyOptions) -> Iterable[Figure]:
    """Return the bandwidth of the slowest pair; Broken for a copy that changed its data."""
    torch, gpus = find_gpus()
    pairs = [
        (a, b) for a in gpus for b in gpus
        if a != b and torch.cuda.can_device_access_peer(a, b)
    ]  # fmt: skip
    if not pairs:
        raise Absent("no two GPUs can reach each other")
    words, rates = options.bytes // _WORD_BYTES, list[list[float]]()
    for a, b in pairs:
        source = torch.arange(words, dtype=torch.int32, device=f"cuda:{a}")
        target = torch.empty(words, dtype=torch.int32, device=f"cuda:{b}")
        rates.append(
            _rates(torch, [a, b], options.bytes,
                   lambda s=source, t=target: t.copy_(s, non_blocking=True))
        )  # fmt: skip
        if not torch.equal(target.cpu(), source.cpu()):
            raise Broken(f"GPU {a} to GPU {b}: the copy has other data")
    return (_slowest("peerBytesPerSecond", rates),)


def _slowest(name: str, rates: Sequence[Sequence[float]]) -> Figure:
    """Return the figure of the slowest device or pair."""
    return higher(name, min(rates, key=max))


def _rates(torch: Any, gpus: Sequence[int], bytes_: int, copy: Callable[[], object]) -> list[float]:
    """Return bytes per second of each repetition, after one that is not counted."""
    rates = list[float]()
    for _ in range(REPEATS + 1):
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        started = perf_counter()
        copy()
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        rates.append(bytes_ / (perf_counter() - started))
    return rates[1:]


def find_gpus() -> tuple[Any, list[int]]:
    """Return torch and the GPUs; Absent without any, RuntimeError for one that is in use."""
    try:
        torch: Any = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise Absent("torch is not installed") from error
    if not torch.cuda.is_available():
        raise Absent("torch finds no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    found = [
        gpu for gpu in range(torch.cuda.device_count())
        if "MIG" not in torch.cuda.get_device_name(gpu)
    ]  # fmt: skip
    if not found:
        raise Absent("every GPU is cut into instances (MIG)")
    for gpu in found:
        free, total = torch.cuda.mem_get_info(gpu)
        if total - free > _USED_BYTES_MAX:
            raise RuntimeError(f"GPU {gpu} is in use: {total - free:,} bytes of its memory")
    return torch, found
