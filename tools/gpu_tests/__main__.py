"""Runs all tests of GPUs on one GPU, within 10 minutes: `make test-gpu`.

    as it is     each test of the suite `quick`, against the floors of the architecture
    flipped      one bit of a product, and one of a block of memory: both must be found
    slowed       the products beside a kernel that competes: slower than the same GPU before

Each runs in a process of its own, as a test of a node does: what one leaves in the memory of the
GPU would make it look used to the next. Clocks and the power limit are left alone.

Exit code 0: all was found as it should be; 1: not so; 77: there is no GPU, and why.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from tools.gpu_tests.check import (
    NO_GPU,
    UNEXPECTED,
    Step,
    against_itself,
    exit_code,
    lines,
    with_floors,
)

from fairlead import terminal
from fairlead.api.cluster.machine_result import MachineFinding, SuiteResult
from fairlead.api.cluster.node_suites import suites
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.node.machine_tests.gpu import MemoryOptions, memory
from fairlead.node.machine_tests.gpu_products import MatmulOptions, matmul
from fairlead.node.machine_tests.program import measured
from fairlead.node.machine_tests.runner import AlreadyRunning, run_suite

SECONDS_MAX = 600.0
#: Of one planted step.
_STEP_SECONDS = 120.0
_GPU_PREFIX = "gpu-"
_MATMUL, _MEMORY = "gpu-matmul", "gpu-memory"
_SIZE = 4096
#: Need a second GPU.
_OF_SEVERAL = ("gpu-peers", "gpu-all-reduce")
_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def flipped_product() -> MachineFinding:
    """Return what the products find when one bit of one of them is wrong."""
    return measured(_MATMUL, lambda: matmul(MatmulOptions(seconds=3.0), flip_bit))


def flipped_memory() -> MachineFinding:
    """Return what the patterns find when one bit does not keep what was written."""
    return measured(_MEMORY, lambda: memory(MemoryOptions(share=0.1), flip_bit))


def slowed_product() -> MachineFinding:
    """Return what the products find beside a kernel that competes, from the first one on."""
    begun, over = threading.Event(), threading.Event()
    rival = threading.Thread(target=_compete, args=(begun, over), daemon=True)
    rival.start()
    try:
        return measured(_MATMUL, lambda: matmul(MatmulOptions(), lambda _: begun.set()))
    finally:
        over.set()
        begun.set()
        rival.join()


def flip_bit(tensor: Any) -> None:
    """Flip the lowest bit of one element."""
    torch = sys.modules["torch"]
    flat = tensor.view(getattr(torch, _WORDS[tensor.element_size()])).view(-1)
    flat[flat.numel() // 3] ^= 1


def _compete(begun: threading.Event, over: threading.Event) -> None:
    """Keep the GPU busy on a stream of its own."""
    begun.wait()
    torch: Any = sys.modules.get("torch")
    if over.is_set() or torch is None:
        return
    factor = torch.ones(_SIZE, _SIZE, device="cuda:0", dtype=torch.float16)
    stream = torch.cuda.Stream(device="cuda:0")
    while not over.is_set():
        with torch.cuda.stream(stream):
            for _ in range(32):
                torch.matmul(factor, factor)
        stream.synchronize()


@dataclass(frozen=True, slots=True)
class Bench:
    """What runs the suite, and each planted step; a test puts its own in their place."""

    suite: Callable[[], SuiteResult]
    alone: Callable[[Callable[[], MachineFinding], float], MachineFinding]


def steps(bench: Bench, deadline: float) -> Iterator[Step]:
    """Yield the steps, each when it has ended; one without a GPU yields none.

    What has no time left is an Error.
    """
    result = bench.suite()
    device = result.devices[0] if result.devices else ""
    before = next(each for each in result.measured if each.test == _MATMUL)
    if before.outcome is MachineOutcome.SKIPPED:
        terminal.say(f"no GPU to test: {before.message}\n")
        return
    terminal.say(f"{device or 'a GPU of unknown name'}\n")
    for found in result.measured:
        wanted = (MachineOutcome.PASSED,)
        if found.test in _OF_SEVERAL:
            wanted = (MachineOutcome.PASSED, MachineOutcome.SKIPPED)
        yield Step(found.test, with_floors(found, device), wanted)
    failed = (MachineOutcome.FAILED,)
    for title, step in (
        ("gpu-matmul with a flipped bit", flipped_product),
        ("gpu-memory with a flipped bit", flipped_memory),
        ("gpu-matmul beside a competing kernel", slowed_product),
    ):
        found = bench.alone(step, min(_STEP_SECONDS, deadline - time.monotonic()))
        if step is slowed_product:
            found = against_itself(found, before)
        yield Step(title, found, failed)


def in_process(step: Callable[[], MachineFinding], seconds_max: float) -> MachineFinding:
    """Return what a step finds in a process of its own; an Error where it finds nothing in time."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(step, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(max(0.0, seconds_max)):
            return MachineFinding(step.__name__, MachineOutcome.ERROR, "it did not end in time")
        return msgspec.json.decode(ours.recv_bytes(), type=MachineFinding)
    except EOFError:
        return MachineFinding(step.__name__, MachineOutcome.ERROR, "it ended without a result")
    finally:
        process.kill()
        process.join()


def _answer(step: Callable[[], MachineFinding], pipe: Connection) -> None:
    pipe.send_bytes(msgspec.json.encode(step()))


def _suite() -> SuiteResult:
    quick = suites()["quick"]
    return run_suite(quick, only=[name for name in quick.tests if name.startswith(_GPU_PREFIX)])


def main(bench: Bench | None = None) -> int:
    """Run the steps on the first GPU, print them, and return the exit code."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    done, deadline = list[Step](), time.monotonic() + SECONDS_MAX
    try:
        for step in steps(bench or Bench(_suite, in_process), deadline):
            done.append(step)
            terminal.say("\n".join(lines(step)) + "\n")
    except AlreadyRunning as error:
        terminal.tell(str(error))
        return UNEXPECTED
    if not done:
        return NO_GPU
    bad = [step.title for step in done if not step.is_as_wanted]
    said = f"not as expected: {', '.join(bad)}" if bad else "all as expected"
    terminal.say(f"{len(done)} steps, {said}\n")
    return exit_code(done)


if __name__ == "__main__":
    sys.exit(main())
