"""Clocks, power and heat of GPUs while they are busy, and what the hardware slows them down for.

The products of `gpu.py` keep every GPU busy; `nvidia-smi` is asked meanwhile. A GPU whose hardware
slows it down (its power supply, or heat that the driver does not master) has failed; one that the
driver keeps within its power limit works as it should. What the driver may do is left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.gpu import find_gpus
from fairlead.node.machine_tests.program import Broken, number
from fairlead.node.running import program_run
from fairlead.node.running.host import Absent

NVIDIA_SMI = Path("/usr/bin/nvidia-smi")
_ASK_SECONDS = 10.0
_SIZE = 4096
#: As nvidia-smi writes it: reasons are bits, of which these are the hardware's own
#: (nvml.h: nvmlClocksThrottleReasonHwSlowdown, ...HwThermalSlowdown, ...HwPowerBrakeSlowdown).
QUERY = (
    "--query-gpu=index,clocks.sm,clocks.max.sm,power.draw,temperature.gpu,"
    "clocks_throttle_reasons.active",
    "--format=csv,noheader,nounits",
)  # fmt: skip
_HARDWARE = {0x08: "hardware slowdown", 0x40: "heat", 0x80: "power brake"}


class ClockRunOptions(msgspec.Struct, frozen=True):
    """`seconds` of work; GPUs are looked at after two thirds of them."""

    seconds: float = 9.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """What a GPU says of itself while it works. `reasons`: the bits of nvidia-smi."""

    index: int
    hertz: float
    hertz_max: float
    watts: float
    celsius: float
    reasons: int


def read_states(text: str) -> tuple[GpuState, ...]:
    """Return what `nvidia-smi` says, a GPU a line; lines that have no such figures are left out."""
    found = list[GpuState]()
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        try:
            index, sm, most, watts, celsius, reasons = words
            found.append(GpuState(
                int(index), float(sm) * 1e6, float(most) * 1e6, float(watts), float(celsius),
                int(reasons, 16),
            ))  # fmt: skip
        except ValueError:
            continue
    return tuple(found)


def judge_states(states: Sequence[GpuState]) -> Iterable[Figure]:
    """Return the figures of the worst GPU; Broken for one that its hardware slows down.

    Absent without any state.
    """
    if not states:
        raise Absent("nvidia-smi says nothing of clocks")
    figures = (
        number("smHertz", min(each.hertz for each in states)),
        number("smClockShare", min(each.hertz / max(each.hertz_max, 1.0) for each in states)),
        number("watts", max(each.watts for each in states)),
        number("celsius", max(each.celsius for each in states)),
    )
    for each in states:
        why = [words for bit, words in _HARDWARE.items() if each.reasons & bit]
        if why:
            text = f"GPU {each.index} is slowed down: {', '.join(why)}, at {each.celsius:g} °C"
            raise Broken(text, figures)
    return figures


def clocks(options: ClockRunOptions) -> Iterable[Figure]:
    """Return the clocks, power and heat of the worst GPU at work; Broken, Absent."""
    torch, gpus = find_gpus()
    if not NVIDIA_SMI.exists():
        raise Absent(f"there is no {NVIDIA_SMI}")
    over = threading.Event()
    factors = {gpu: torch.ones(_SIZE, _SIZE, device=f"cuda:{gpu}", dtype=torch.float16)
               for gpu in gpus}  # fmt: skip

    def work() -> None:
        while not over.is_set():
            for each in factors.values():
                torch.matmul(each, each)
            for gpu in gpus:
                torch.cuda.synchronize(gpu)

    return judge_states(_while(work, over, gpus, options.seconds))


def _while(
    work: Callable[[], None], over: threading.Event, gpus: Sequence[int], seconds: float
) -> tuple[GpuState, ...]:
    """Return what GPUs say after two thirds of the work."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        over.wait(seconds * 2 / 3)
        said = [
            program_run.run(NVIDIA_SMI, _ASK_SECONDS, f"--id={gpu}", *QUERY).line for gpu in gpus
        ]
        over.wait(seconds / 3)
    finally:
        over.set()
        thread.join()
    return read_states("\n".join(said))
