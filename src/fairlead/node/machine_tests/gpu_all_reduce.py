"""All-reduce over all GPUs of the machine, by torch.distributed: a process for each GPU.

What is summed are whole numbers, so each sum is known and exact. The rate is the bus bandwidth:
bytes per second times 2 (n - 1) / n, as nccl-tests have it (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.gpu import find_gpus
from fairlead.node.machine_tests.program import REPEATS, Broken, higher
from fairlead.node.running.host import Absent

_WORD_BYTES = 4
#: Numbers of the pattern, small enough that sums over many processes are exact in float32.
_MODULUS = 251


class AllReduceOptions(msgspec.Struct, frozen=True):
    """`bytes` that are summed; `seconds` for all of it, the start of the processes included."""

    bytes: int = 1 << 30
    seconds: float = 50.0


@dataclass(frozen=True, slots=True)
class _Job:
    """What one process does; `meeting`: the file by which they find each other."""

    backend: str
    device: str
    rank: int
    count: int
    meeting: str
    options: AllReduceOptions
    is_spoiled: bool


class _Said(msgspec.Struct, frozen=True):
    """What a process found."""

    rates: tuple[float, ...] = ()
    is_wrong: bool = False
    error: str = ""


def all_reduce(options: AllReduceOptions) -> Iterable[Figure]:
    """Return the bus bandwidth; Broken for wrong sums, Absent for one GPU, RuntimeError."""
    _, gpus = find_gpus()
    if len(gpus) == 1:
        raise Absent("there is one GPU alone")
    return reduce_over("nccl", [f"cuda:{gpu}" for gpu in gpus], options)


def reduce_over(
    backend: str, devices: Sequence[str], options: AllReduceOptions, *, spoiled: int = -1
) -> Iterable[Figure]:
    """Return the bus bandwidth of the slowest of these devices; as above.

    The rank `spoiled` changes its sum before it is compared: a test of this test.
    """
    context = multiprocessing.get_context("spawn")
    deadline, running = monotonic() + options.seconds, list[tuple[Any, Connection]]()
    with tempfile.TemporaryDirectory() as directory:
        meeting = f"file://{Path(directory) / 'meeting'}"
        try:
            for rank, device in enumerate(devices):
                ours, theirs = context.Pipe(duplex=False)
                job = _Job(
                    backend, device, rank, len(devices), meeting=meeting, options=options,
                    is_spoiled=rank == spoiled,
                )  # fmt: skip
                process = context.Process(target=_answer, args=(theirs, job), daemon=True)
                process.start()
                theirs.close()
                running.append((process, ours))
            said = [_hear(pipe, device, deadline)
                    for (_, pipe), device in zip(running, devices, strict=True)]  # fmt: skip
        finally:
            for process, _ in running:
                process.kill()
                process.join()
    wrong = [device for device, each in zip(devices, said, strict=True) if each.is_wrong]
    if wrong:
        raise Broken(f"a sum over {len(devices)} GPUs is wrong on {', '.join(wrong)}")
    for each in said:
        if each.error:
            raise RuntimeError(each.error)
    return (higher("busBytesPerSecond", min((each.rates for each in said), key=max)),)


def _hear(pipe: Connection, device: str, deadline: float) -> _Said:
    try:
        if not pipe.poll(max(0.0, deadline - monotonic())):
            return _Said(error=f"the process of {device} did not end in time")
        return msgspec.json.decode(pipe.recv_bytes(), type=_Said)
    except EOFError:
        return _Said(error=f"the process of {device} ended without a result")


def _answer(pipe: Connection, job: _Job) -> None:
    try:
        said = _sum(job)
    except Exception as error:  # noqa: BLE001 # the library's: it says nothing of the machine
        said = _Said(error=f"{type(error).__name__}: {error}"[:200])
    pipe.send_bytes(msgspec.json.encode(said))


def _sum(job: _Job) -> _Said:
    """Return what this rank measures in the sums with all others."""
    rank, count, options, device = job.rank, job.count, job.options, job.device
    torch: Any = importlib.import_module("torch")
    is_gpu = device.startswith("cuda")
    if is_gpu:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        job.backend, init_method=job.meeting, rank=rank, world_size=count,
        timeout=timedelta(seconds=options.seconds),
    )  # fmt: skip
    words = options.bytes // _WORD_BYTES
    pattern = torch.remainder(torch.arange(words, device=device), _MODULUS).to(torch.float32)
    wanted, rates, is_wrong = pattern * (count * (count + 1) // 2), list[float](), False
    for _ in range(REPEATS + 1):
        own = pattern * (rank + 1)
        if is_gpu:
            torch.cuda.synchronize()
        torch.distributed.barrier()
        started = perf_counter()
        torch.distributed.all_reduce(own)
        if is_gpu:
            torch.cuda.synchronize()
        share = 2 * (count - 1) / count
        rates.append(options.bytes / (perf_counter() - started) * share)
        if job.is_spoiled:
            own[words // 3] += 1
        is_wrong |= not torch.equal(own, wanted)
    torch.distributed.destroy_process_group()
    return _Said(tuple(rates[1:]), is_wrong)
