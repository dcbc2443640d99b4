"""What NVIDIA's driver says of each GPU: first of all what it recommends, then its counts.

The driver's own recommendation goes before any list of codes. A look is another process
(`node/running/gpu_probe.py`), killed with its group when it does not end; one that cannot be killed
is left behind, and no other one is begun meanwhile. That is a state of the source; a GPU that is
lost, and a driver that NVML cannot be begun with, are faults.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from fairlead.model.health.faults import (
    Action,
    Identity,
    Moment,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.program_run import ProgramOutcome, run
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource, SkippedCheck, skipped

SOURCE = "nvml"
DRIVER, RECOVERY, LOST = "gpu-driver", "gpu-recovery", "gpu-lost"
ROWS, ECC, SLOWDOWN, COUNT = "gpu-rows", "gpu-ecc", "gpu-slowdown", "gpu-count"
LINKS, FABRIC = "gpu-nvlink", "gpu-fabric"
_PERIOD_SECONDS = 60
_LOOK_SECONDS = 40.0
_OUTPUT_BYTES_MAX = 1 << 18
#: The interpreter that runs the agent, and what finds libraries where a runtime puts them.
_PROBE = ("-P", "-m", "fairlead.node.running.gpu_probe")
_INHERITED = ("PYTHONPATH", "LD_LIBRARY_PATH")
_MACHINE = "machine"
#: HW slowdown, software and hardware thermal slowdown, power brake; not the power cap and idleness.
_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80
#: In a row, before they count: a driver that is being replaced, a peak of load, a fabric manager
#: that starts again.
_STRIKES = {DRIVER: 3, SLOWDOWN: 3, FABRIC: 3}
#: NVML_GPU_FABRIC_STATE of a GPU that has no fabric, or has been registered with it.
_NO_FABRIC, _REGISTERED = 0, 3
#: nvmlDeviceGpuRecoveryAction_t.
_RECOVERIES = {
    1: ("GPU reset", Severity.CRITICAL, Action.RESET_GPU),
    2: ("node reboot", Severity.CRITICAL, Action.REBOOT),
    3: ("drain of peer-to-peer work", Severity.WARNING, Action.WATCH),
    4: ("drain and reset", Severity.CRITICAL, Action.RESET_GPU),
    5: ("recovery of the IMEX domain", Severity.WARNING, Action.ASK_PERSON),
    6: ("bus reset", Severity.CRITICAL, Action.REBOOT),
    7: ("system reboot", Severity.CRITICAL, Action.REBOOT),
}


class GpuLook(msgspec.Struct, frozen=True, rename="camel"):
    """What one GPU said; None for what it did not say.

    `rows`: corrected, uncorrected, whether a remap is pending, and whether one failed. `links`: how
    many of NVLink are active. `fabric`: state and status of its registration. `ecc_modes`: whether
    ECC is on, and whether it is from the next start on.
    """

    index: int
    address: str | None = None
    error: str = ""
    is_lost: bool = False
    recovery_action: int | None = None
    rows: tuple[int, int, int, int] | None = None
    uncorrected: int | None = None
    slowdown: int | None = None
    links: int | None = None
    fabric: tuple[int, int] | None = None
    persistence: int | None = None
    ecc_modes: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Return the address as the kernel's log has it; the index of one that has none."""
        if self.address is None:
            return f"gpu{self.index}"
        domain, _, rest = self.address.lower().partition(":")
        return f"{domain[-4:]}:{rest.partition('.')[0]}"


class NvmlLook(msgspec.Struct, frozen=True, rename="camel"):
    """The GPUs, or why NVML could not be begun."""

    gpus: tuple[GpuLook, ...] = ()
    error: str = ""
    is_absent: bool = False


class NvmlMemory(msgspec.Struct, frozen=True):
    """How often in a row a check has failed, as `check component`."""

    failed: dict[str, int] = {}


def parse_look(text: str) -> NvmlLook:
    """Return what the program wrote; OSError for what is none."""
    try:
        return msgspec.json.decode(text, type=NvmlLook)
    except ValueError as error:
        raise OSError(f"the look at the GPUs has no result: {str(error)[:80]}") from error


class NvmlReader:
    """Has another process look. Used by one thread."""

    def __init__(self, host: Host, run: Callable[..., ProgramOutcome] = run) -> None:
        self._host, self._run = host, run
        self._hanging: subprocess.Popen[bytes] | None = None

    def read(self) -> NvmlLook:
        """Return what the GPUs say; Absent without a driver or library, OSError."""
        self._host.present("proc/driver/nvidia/version")
        if self._hanging is not None and self._hanging.poll() is None:
            raise OSError("the last look still hangs in the driver")
        outcome = self._run(
            Path(sys.executable), _LOOK_SECONDS, *_PROBE, inherit=_INHERITED,
            output_bytes_max=_OUTPUT_BYTES_MAX,
        )  # fmt: skip
        self._hanging = outcome.leftover
        if outcome.code != 0:
            why = outcome.why or f"ended with exit code {outcome.code}"
            raise OSError(f"the look at the GPUs {why}")
        found = parse_look(outcome.text)
        if found.is_absent:
            raise Absent("no libnvidia-ml here")
        return found


Found: TypeAlias = tuple[Identity, str, tuple[Severity, Action]]


def judge(
    facts: NvmlLook, memory: NvmlMemory, at: Moment, *, settings: AgentSettings
) -> Judged[NvmlMemory]:
    """Give what the driver recommends, what it has lost, and what its counts say."""
    expected, links, stable = settings.nvml.gpus, settings.nvml.nvlinks, settings.stable_seconds
    found: list[Found] = []
    if facts.error:
        verdict = Severity.CRITICAL, Action.REBOOT
        found.append((identity(DRIVER, _MACHINE), f"NVML: {facts.error}", verdict))
    for gpu in facts.gpus:
        found += [*_of_gpu(gpu), *_of_links(gpu, links)]
    if expected and not facts.error and len(facts.gpus) < expected:
        text, verdict = f"{len(facts.gpus)} of {expected} GPUs", (Severity.CRITICAL, Action.REBOOT)
        found.append((identity(COUNT, _MACHINE), text, verdict))
    failed = {
        key: memory.failed.get(key, 0) + 1
        for of, _, _ in found
        if of.check in _STRIKES and (key := f"{of.check} {of.component}")
    }
    observations = tuple(
        observed(of, steady(*verdict, stable), text, at)
        for of, text, verdict in found
        if failed.get(f"{of.check} {of.component}", 0) >= _STRIKES.get(of.check, 0)
    )
    return Judged(
        NvmlMemory(failed), observations, _looked(facts),
        unreadable=tuple(f"{gpu.name}: {gpu.error}" for gpu in facts.gpus if gpu.error),
        skipped=(*skipped([(COUNT, expected > 0)], "nvml.gpus is not set"),
                 *skipped([(LINKS, links > 0)], "nvml.nvlinks is not set"),
                 *(each for each in _unknown(facts) if each.check != LINKS or links)),
    )  # fmt: skip


def _looked(facts: NvmlLook) -> frozenset[str]:
    """Return the machine, and the GPUs that answer by both of their names."""
    gpus = [gpu for gpu in facts.gpus if not gpu.error]
    return frozenset({_MACHINE, *(n for gpu in gpus for n in (gpu.name, f"gpu{gpu.index}"))})


def _unknown(facts: NvmlLook) -> Iterator[SkippedCheck]:
    """Yield the checks whose fields some GPU left out: what is blank is not 0."""
    if facts.error:
        yield SkippedCheck(COUNT, "NVML cannot be begun", is_unset=False)
    gpus = [gpu for gpu in facts.gpus if not gpu.error]
    for check, values in (
        (RECOVERY, [gpu.recovery_action for gpu in gpus]), (ROWS, [gpu.rows for gpu in gpus]),
        (ECC, [gpu.uncorrected for gpu in gpus]), (SLOWDOWN, [gpu.slowdown for gpu in gpus]),
        (LINKS, [gpu.links for gpu in gpus]), (FABRIC, [gpu.fabric for gpu in gpus]),
    ):  # fmt: skip
        if None in values:
            yield SkippedCheck(check, "a GPU does not say it", is_unset=False)


def _of_gpu(gpu: GpuLook) -> list[Found]:
    found: list[Found] = []
    critical, warning = Severity.CRITICAL, Severity.WARNING
    if gpu.error:
        verdict = critical, Action.REBOOT if gpu.is_lost else Action.RESET_GPU
        found.append((identity(LOST, gpu.name), gpu.error, verdict))
    if (known := _RECOVERIES.get(gpu.recovery_action or 0)) is not None:
        text, *_ = known
        of = identity(RECOVERY, gpu.name, (str(gpu.recovery_action),))
        found.append((of, f"the driver recommends: {text}", known[1:]))
    if gpu.rows is not None:
        _, uncorrected, is_pending, has_failed = gpu.rows
        if has_failed:
            verdict = critical, Action.REPLACE
            found.append((identity(ROWS, gpu.name, ("failed",)), "a row was not remapped", verdict))
        elif is_pending:
            text, verdict = (
                f"{uncorrected} rows; one waits for a reset",
                (warning, Action.RESET_GPU),
            )
            found.append((identity(ROWS, gpu.name, ("pending",)), text, verdict))
    if gpu.uncorrected:
        text, verdict = f"{gpu.uncorrected:,} uncorrected errors", (critical, Action.RESET_GPU)
        found.append((identity(ECC, gpu.name), text, verdict))
    if reasons := (gpu.slowdown or 0) & _SLOWDOWN:
        text, verdict = f"its clocks are held down ({reasons:#x})", (warning, Action.WATCH)
        found.append((identity(SLOWDOWN, gpu.name), text, verdict))
    return found


def _of_links(gpu: GpuLook, expected: int) -> Iterator[Found]:
    """Yield links of NVLink that are down, and a registration with the fabric that failed."""
    critical = Severity.CRITICAL
    if gpu.links is not None and gpu.links < expected:
        text = f"{gpu.links} of {expected} links of NVLink are active"
        yield identity(LINKS, gpu.name), text, (critical, Action.RESET_GPU)
    if gpu.fabric is None or gpu.fabric[0] == _NO_FABRIC:
        return
    state, status = gpu.fabric
    if state != _REGISTERED:
        text = f"it is not registered with the fabric (state {state})"
        yield identity(FABRIC, gpu.name), text, (critical, Action.REBOOT)
    elif status:
        text = f"its registration with the fabric failed ({status})"
        yield identity(FABRIC, gpu.name), text, (critical, Action.REBOOT)


def source(host: Host, settings: AgentSettings) -> SignalSource[NvmlLook, NvmlMemory]:
    """Return the source of what the driver says."""
    return SignalSource(
        SOURCE, (DRIVER, RECOVERY, LOST, ROWS, ECC, SLOWDOWN, COUNT, LINKS, FABRIC), NvmlMemory,
        NvmlReader(host).read, partial(judge, settings=settings), period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
