"""Products of matrices on GPUs in each type, all GPUs at once, compared bit by bit.

The factors are small whole numbers, so each sum is exact in the accumulators of every type, in
whatever order the cores add; the product of the result with a vector is then known from the factors
alone (Freivalds' check, 1977). They are drawn once for all GPUs, which work at the same time, as
they do in training.

FP8 is the exception: tensor cores may keep fewer bits of its sums than of others, so its first
product may be off by a little, and those after it by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.gpu import as_it_is, find_gpus
from fairlead.node.machine_tests.program import REPEATS, Broken, higher

_SEED = 20260704
#: Names of types in torch, and the part of the figure's name.
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_FP8, _FP8_TYPE = "fp8", "float8_e4m3fn"
#: FP8 has tensor cores from Ada on (NVIDIA, CUDA C++ Programming Guide, compute capabilities).
_FP8_CAPABILITY = (8, 9)
#: Of each element of a product in FP8: so much per row of the factors may be lost.
_FP8_LOSS = 2.0**-10


class MatmulOptions(msgspec.Struct, frozen=True):
    """`seconds` for all types of a GPU; `size`: rows and columns of the factors."""

    seconds: float = 8.0
    size: int = 4096


@dataclass(frozen=True, slots=True)
class _Work:
    """What one GPU multiplies, and for how long. `spoil` changes products: a test of this test."""

    torch: Any
    left: Any
    right: Any
    size: int
    seconds: float
    spoil: Callable[[Any], None]


def matmul(options: MatmulOptions, spoil: Callable[[Any], None] | None = None) -> Iterable[Figure]:
    """Return operations per second of the slowest GPU in each type; Broken for a wrong product.

    `spoil` changes each product after the first before it is compared: a test of this test.
    """
    torch, gpus = find_gpus()
    source = torch.Generator().manual_seed(_SEED)
    shape = (options.size, options.size)
    left, right = (
        torch.randint(-2, 3, shape, generator=source).to(torch.float64) for _ in range(2)
    )
    work = _Work(torch, left, right, options.size, options.seconds, spoil or as_it_is)
    with ThreadPoolExecutor(len(gpus)) as pool:
        found = list(pool.map(partial(_rates_of, work=work), gpus))
    common = [short for short in found[0] if all(short in each for each in found)]
    return tuple(
        higher(f"{short}FlopsPerSecond", min((each[short] for each in found), key=max))
        for short in common
    )


def _rates_of(gpu: int, work: _Work) -> Mapping[str, list[float]]:
    """Return operations per second of a GPU by type; Broken for a wrong product."""
    torch, device = work.torch, f"cuda:{gpu}"
    left, right = work.left.to(device), work.right.to(device)
    ones = torch.ones(work.size, 1, device=device, dtype=torch.float64)
    exact = left.to(torch.float32) @ right.to(torch.float32)
    if not torch.equal(exact.to(torch.float64) @ ones, left @ (right @ ones)):
        raise Broken(f"GPU {gpu}: a product of whole numbers is wrong")
    kinds = {short: _plain(torch, name, left, right) for short, name in _TYPES.items()}
    if _has_fp8(torch, gpu):
        kinds[_FP8] = _fp8(torch, left, right)
    rates: dict[str, list[float]] = {}
    for short, product in kinds.items():
        first = product()
        loss = work.size * _FP8_LOSS if short == _FP8 else 0.0
        if (first.to(torch.float32) - exact.to(first.dtype).to(torch.float32)).abs().max() > loss:
            raise Broken(f"GPU {gpu}: a product in {short} is wrong")
        seconds = work.seconds / len(kinds) / REPEATS
        rates[short] = [
            _rate(gpu, work, product, first, name=short, seconds=seconds) for _ in range(REPEATS)
        ]
    return rates


def _plain(torch: Any, name: str, left: Any, right: Any) -> Callable[[], Any]:
    type_ = getattr(torch, name)
    a, b = left.to(type_), right.to(type_)
    return lambda: a @ b


def _has_fp8(torch: Any, gpu: int) -> bool:
    is_known = hasattr(torch, _FP8_TYPE) and hasattr(torch, "_scaled_mm")
    return is_known and torch.cuda.get_device_capability(gpu) >= _FP8_CAPABILITY


def _fp8(torch: Any, left: Any, right: Any) -> Callable[[], Any]:
    """Return products in FP8. The second factor is stored by columns, as the hardware takes it."""
    type_, multiply = getattr(torch, _FP8_TYPE), getattr(torch, "_scaled_mm")  # noqa: B009 # private
    a, b = left.to(type_), right.t().contiguous().to(type_).t()
    scale = torch.ones((), device=left.device, dtype=torch.float32)

    def product() -> Any:
        found = multiply(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.float32)
        return found[0] if isinstance(found, tuple) else found  # until torch 2.5

    return product


def _rate(
    gpu: int, work: _Work, product: Callable[[], Any], first: Any, *, name: str, seconds: float
) -> float:
    """Return operations per second; Broken when a product differs from the first."""
    torch = work.torch
    torch.cuda.synchronize(gpu)
    started, done = perf_counter(), 0
    while (elapsed := perf_counter() - started) < seconds or not done:
        found = product()
        work.spoil(found)
        done += 1
        if not torch.equal(found, first):  # waits for the product, too
            raise Broken(f"GPU {gpu}: the same product in {name} came out in two ways")
    return done * 2.0 * work.size**3 / elapsed
