"""GPUs, by torch: products in each type, memory, copies to and from the host, and between GPUs.

Where torch is not installed, or no GPU is there, all of it is skipped. A GPU that is cut into
instances (MIG) is passed over; one that something else uses makes the run an Error, no Failed.

Results are compared bit by bit. The factors of a product are small whole numbers, so each sum is
exact in the accumulators of every type, in whatever order the cores add; the product of the result
with a vector is then known from the factors alone (Freivalds' check, 1977).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.host import Absent
from fairlead.node.machine_tests.program import REPEATS, Broken, higher, number

_SEED = 20260704
#: Memory of a GPU that may be in use before a test: contexts of the driver and of monitors.
_USED_BYTES_MAX = 1 << 30
_CHUNK_BYTES = 1 << 30
_WORD_BYTES = 4
#: Names of types in torch, and the part of the figure's name.
_TYPES = (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"))
_PATTERNS = (0, -1, 0x55555555, -0x55555556)


class MatmulOptions(msgspec.Struct, frozen=True):
    """`seconds` for all types of a GPU; `size`: rows and columns of the factors."""

    seconds: float = 8.0
    size: int = 4096


class MemoryOptions(msgspec.Struct, frozen=True):
    """`share` of the free memory that is tested."""

    share: float = 0.5


class CopyOptions(msgspec.Struct, frozen=True):
    """`bytes` of each copy."""

    bytes: int = 256 << 20


def matmul(options: MatmulOptions, spoil: Callable[[Any], None] | None = None) -> Iterable[Figure]:
    """Return operations per second of the slowest GPU in each type; Broken for a wrong product.

    `spoil` changes each product after the first before it is compared: a test of this test.
    """
    torch, gpus = find_gpus()
    rates: dict[str, list[float]] = {short: [] for _, short in _TYPES}
    lows: dict[str, list[float]] = {short: [] for _, short in _TYPES}
    for gpu in gpus:
        for name, short in _TYPES:
            seconds = options.seconds / len(_TYPES) / REPEATS
            found = [
                _products(
                    torch,
                    gpu,
                    getattr(torch, name),
                    size=options.size,
                    seconds=seconds,
                    spoil=spoil or _as_it_is,
                )
                for _ in range(REPEATS)
            ]
            rates[short].append(max(found))
            lows[short].append(min(found))
    return tuple(
        Figure(f"{short}FlopsPerSecond", min(rates[short]), min(lows[short])) for short in rates
    )


def _as_it_is(_: Any) -> None:
    """Change nothing."""


def _products(
    torch: Any, gpu: int, type_: Any, *, size: int, seconds: float, spoil: Callable[[Any], None]
) -> float:
    """Return operations per second; Broken when a product is wrong, or differs from the first."""
    device = f"cuda:{gpu}"
    source = torch.Generator().manual_seed(_SEED)
    shape = (size, size)
    left, right = (
        torch.randint(-2, 3, shape, generator=source).to(device, torch.float64) for _ in range(2)
    )
    ones = torch.ones(size, 1, device=device, dtype=torch.float64)
    wanted = left @ (right @ ones)
    exact = left.to(torch.float32) @ right.to(torch.float32)
    if not torch.equal(exact.to(torch.float64) @ ones, wanted):
        raise Broken(f"GPU {gpu}: a product of whole numbers is wrong")
    a, b = left.to(type_), right.to(type_)
    first = a @ b
    if not torch.equal(first, exact.to(type_)):
        raise Broken(f"GPU {gpu}: a product in {type_} is wrong")
    torch.cuda.synchronize(gpu)
    started, done = perf_counter(), 0
    while (elapsed := perf_counter() - started) < seconds or not done:
        product = a @ b
        spoil(product)
        done += 1
        if not torch.equal(product, first):  # waits for the product, too
            raise Broken(f"GPU {gpu}: the same product in {type_} came out in two ways")
    return done * 2.0 * size**3 / elapsed


def memory(options: MemoryOptions, spoil: Callable[[Any], None] | None = None) -> Iterable[Figure]:
    """Return bandwidth and size; Broken where memory does not keep what was written.

    `spoil` changes each block between writing and reading: a test of this test.
    """
    spoil = spoil or _as_it_is
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


def copies(options: CopyOptions) -> Iterable[Figure]:
    """Return bandwidths to and from the slowest GPU; Broken for a copy that changed its data."""
    torch, gpus = find_gpus()
    words = options.bytes // _WORD_BYTES
    there, back = list[list[float]](), list[list[float]]()
    source = torch.arange(words, dtype=torch.int32).pin_memory()
    for gpu in gpus:
        on_gpu = torch.empty(words, dtype=torch.int32, device=f"cuda:{gpu}")
        returned = torch.empty(words, dtype=torch.int32).pin_memory()
        there.append(
            _rates(torch, [gpu], options.bytes,
                   lambda g=on_gpu: g.copy_(source, non_blocking=True))
        )  # fmt: skip
        back.append(
            _rates(torch, [gpu], options.bytes,
                   lambda g=on_gpu, r=returned: r.copy_(g, non_blocking=True))
        )  # fmt: skip
        if not torch.equal(returned, source):
            raise Broken(f"GPU {gpu}: a copy to it and back has other data")
    return (_slowest("toDeviceBytesPerSecond", there), _slowest("fromDeviceBytesPerSecond", back))


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
