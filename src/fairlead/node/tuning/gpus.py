"""Persistence mode and ECC of the GPUs: read by the probe of NVML, set by nvidia-smi.

The probe is a process of its own (`node/running/gpu_probe.py`), so a driver that hangs stops no
agent. Persistence mode counts at once. A mode of ECC is pending until the GPU is reset or the
machine starts again. Only whole GPUs are looked at; how they are partitioned (MIG) is neither read
nor set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fairlead.node.running.host import Absent, GpuModes, Host
from fairlead.node.running.program_run import run
from fairlead.node.sources.nvml import NvmlLook, NvmlReader

#: Begins a target that is a mode of a GPU, and no file: `gpu/0000:3b:00/persistence`.
TARGETS = "gpu/"
PERSISTENCE, ECC = "persistence", "ecc"
NAMES = (PERSISTENCE, ECC)
#: Values in a profile; nvidia-smi has them as 1 and 0.
ON, OFF = "on", "off"
_FLAGS = {PERSISTENCE: "-pm", ECC: "-e"}
_SECONDS_MAX = 45.0
#: All settings of one look are of one probe.
_KEPT_SECONDS = 20.0


class _Reader:
    """Looks once for all settings of a look of the agent. Used by one thread."""

    def __init__(self, host: Host, look: Callable[[], NvmlLook]) -> None:
        self._host, self._look = host, look
        self._modes: Mapping[str, GpuModes] = {}
        self._at = float("-inf")

    def __call__(self, *, is_fresh: bool = False) -> Mapping[str, GpuModes]:
        now = self._host.now().uptime_seconds
        if is_fresh or not 0 <= now - self._at < _KEPT_SECONDS:
            self._modes, self._at = _modes(self._look()), now
        return self._modes


def _modes(look: NvmlLook) -> dict[str, GpuModes]:
    if look.error:
        raise OSError(f"NVML: {look.error}")
    if lost := next((gpu for gpu in look.gpus if gpu.error), None):
        raise OSError(f"{lost.name}: {lost.error}")
    return {
        gpu.name: GpuModes(_word(gpu.persistence), _word((gpu.ecc_modes or (None, None))[0]),
                           _word((gpu.ecc_modes or (None, None))[1]))
        for gpu in look.gpus
    }  # fmt: skip


def _word(value: int | None) -> str:
    return "" if value is None else ON if value else OFF


def with_gpus(host: Host) -> Host:
    """Return the host with a reader of its GPUs, where it has none."""
    if host.gpu_modes is not None:
        return host
    return replace(host, gpu_modes=_Reader(host, NvmlReader(host).read))


def gpu_modes(host: Host, *, is_fresh: bool = False) -> Mapping[str, GpuModes]:
    """Return the modes of each GPU, by address; Absent without GPUs or NVML, OSError."""
    if host.gpu_modes is None:
        raise Absent("the GPUs are not looked at")
    found = host.gpu_modes(is_fresh=is_fresh)
    if not found:
        raise Absent("no GPU")
    return found


def gpu_targets(host: Host, name: str) -> tuple[str, ...]:
    """Return the targets of a setting, one for each GPU; Absent, OSError."""
    return tuple(f"{TARGETS}{gpu}/{name}" for gpu in gpu_modes(host))


def read_gpu(host: Host, target: str) -> str:
    """Return a mode; Absent where the GPU lacks it, OSError."""
    _, gpu, name = target.split("/")
    modes = gpu_modes(host).get(gpu)
    value = "" if modes is None else modes.persistence if name == PERSISTENCE else modes.ecc
    if not value:
        raise Absent(f"GPU {gpu} has no mode of {name}")
    return value


def write_gpu(host: Host, target: str, value: str) -> None:
    """Set a mode by nvidia-smi and look again; OSError."""
    _, gpu, name = target.split("/")
    if value not in (ON, OFF):
        raise OSError(f"'{value}' is neither {ON} nor {OFF}")
    try:
        program = host.program("nvidia-smi")
    except Absent as error:
        raise OSError(str(error)) from error
    device = gpu.removeprefix("gpu") if gpu.startswith("gpu") else f"{gpu}.0"
    outcome = run(program, _SECONDS_MAX, "-i", device, _FLAGS[name], "1" if value == ON else "0")
    if outcome.code != 0:
        raise OSError(f"nvidia-smi: {outcome.line or outcome.why or f'exit code {outcome.code}'}")
    gpu_modes(host, is_fresh=True)
