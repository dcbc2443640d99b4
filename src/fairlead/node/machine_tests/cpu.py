"""CPU: the same computation on every core at once, again and again, with a known result.

A round uses integers (SHA-256, products of 1024 bits) and IEEE arithmetic whose results are exact
on every machine: sums, products, quotients and square roots. A core that gets another digest than
the others computes wrong. All cores are busy, as heat and power are part of the test.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import struct
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from time import perf_counter

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.program import REPEATS, Broken, higher, number
from fairlead.node.running.host import Absent

#: What `compute` gives on a machine that works.
DIGEST = "6792e6549b11a088dcb0989f72a6f46922c419db4b18024beed12c6d4c3ce2c3"
_MODULUS = (1 << 1279) - 1
_STEPS = 400
_SHOWN_MAX = 8


class CpuOptions(msgspec.Struct, frozen=True):
    """`seconds`: for all repetitions together."""

    seconds: float = 6.0


class Core(msgspec.Struct, frozen=True):
    """What one core did in each repetition, and how many rounds were wrong."""

    cpu: int
    rounds_per_second: tuple[float, ...]
    rounds: int
    wrong: int


def compute() -> str:
    """Return the digest of one round."""
    digest = hashlib.sha256(b"fairlead")
    whole, real = 3, 0.5
    for step in range(1, _STEPS + 1):
        whole = whole * whole % _MODULUS
        real = math.sqrt(real * real + step) / (1.0 + real / step)
        digest.update(whole.to_bytes(160, "little") + struct.pack("<d", real))
        digest.update(digest.digest() * 32)
    return digest.hexdigest()


def measure(options: CpuOptions, compute: Callable[[], str] = compute) -> Iterable[Figure]:
    """Return the rounds per second of the slowest core; Broken for a core that computes wrong."""
    cores = _run(sorted(os.sched_getaffinity(0)), options.seconds / REPEATS, compute)
    slowest = [min(each) for each in zip(*(core.rounds_per_second for core in cores), strict=True)]
    figures = (higher("roundsPerSecond", slowest), number("cores", len(cores)))
    bad = [core for core in cores if core.wrong]
    if bad:
        shown = ", ".join(
            f"{core.cpu} ({core.wrong} of {core.rounds})" for core in bad[:_SHOWN_MAX]
        )
        raise Broken(f"wrong results on {len(bad)} of {len(cores)} CPUs: {shown}", figures)
    return figures


def _run(cpus: list[int], seconds: float, compute: Callable[[], str]) -> list[Core]:
    """Return what each core did; Absent without any, RuntimeError for one that ended early."""
    if not cpus:
        raise Absent("no CPU may be used")
    context = multiprocessing.get_context("fork")
    running: list[tuple[int, Connection]] = []
    for cpu in cpus:
        ours, theirs = context.Pipe(duplex=False)
        context.Process(target=_work, args=(cpu, seconds, compute, theirs), daemon=True).start()
        theirs.close()
        running.append((cpu, ours))
    cores: list[Core] = []
    for cpu, pipe in running:
        try:
            cores.append(msgspec.json.decode(pipe.recv_bytes(), type=Core))
        except EOFError as error:
            raise RuntimeError(f"the process on CPU {cpu} ended early") from error
    return cores


def _work(cpu: int, seconds: float, compute: Callable[[], str], pipe: Connection) -> None:
    os.sched_setaffinity(0, {cpu})
    rates: list[float] = []
    rounds = wrong = 0
    for _ in range(REPEATS):
        started, done = perf_counter(), 0
        while (elapsed := perf_counter() - started) < seconds or not done:
            wrong += compute() != DIGEST
            done += 1
        rates.append(done / elapsed)
        rounds += done
    pipe.send_bytes(msgspec.json.encode(Core(cpu, tuple(rates), rounds, wrong)))
