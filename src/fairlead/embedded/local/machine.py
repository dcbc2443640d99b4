"""What this machine has: CPUs, memory, GPUs, identity. Limits of the own control group are
respected.

Reads proc(5) and cgroups(7) below a root that tests replace. A control group's limit counts when
it is below what the machine has; "max" and the huge number of version 1 mean none.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MACHINE = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the machine."""

    index: int
    uuid: str
    model: str
    memory_bytes: int


def nvml_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs in index order, as NVIDIA's management library has them.

    () when there are none, or without the library or the driver.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    found: list[Gpu] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, model = nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetName(device)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
            found.append(Gpu(index, _text(uuid), _text(model), memory))
    except nvml.NVMLError:
        return tuple(found)
    finally:
        nvml.nvmlShutdown()
    return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine. `cpu_milli` is in thousandths of a CPU."""

    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    boot_id: str  # process ids mean nothing across boots
    machine_id: str
    kernel: str
    os_image: str
    architecture: str


def read_machine(gpus: Callable[[], tuple[Gpu, ...]], root: Path = Path("/")) -> Machine:
    """Return what the machine has; OSError when proc is not mounted."""
    groups = _control_groups(root)
    cpu_milli = len(os.sched_getaffinity(0)) * 1000
    quota = _cpu_quota_milli(groups)
    memory = _memory_total(root)
    limit = _memory_limit(groups)
    return Machine(
        cpu_milli=min(cpu_milli, quota) if quota else cpu_milli,
        memory_bytes=min(memory, limit) if limit else memory,
        gpus=gpus(),
        boot_id=read_text(root / "proc/sys/kernel/random/boot_id"),
        machine_id=read_text(root / "etc/machine-id"),
        kernel=platform.release(),
        os_image=_os_image(root),
        architecture=_MACHINE.get(platform.machine(), platform.machine()),
    )


def read_text(path: Path) -> str:
    """Return what a file of the kernel holds, stripped; "" when it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _os_image(root: Path) -> str:
    for line in read_text(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def _memory_total(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} has no MemTotal")


def _control_groups(root: Path) -> tuple[Path, ...]:
    """Return the directories of the own control groups and their parents, innermost first."""
    out: dict[Path, None] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "memory" in controllers.split(",") or "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers]
            mounts += [root / "sys/fs/cgroup" / name for name in controllers.split(",")]
        else:
            continue
        for mount in mounts:
            inner = mount / path.strip("/")
            while inner != mount:
                out[inner] = None
                inner = inner.parent
            out[mount] = None
    return tuple(out)


def _cpu_quota_milli(groups: tuple[Path, ...]) -> int:
    """Return the tightest CPU quota in milli-CPU; 0 when there is none."""
    found: list[int] = []
    for group in groups:
        quota, _, period = read_text(group / "cpu.max").partition(" ")
        if not quota:
            quota = read_text(group / "cpu.cfs_quota_us")
            period = read_text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(max(int(quota) * 1000 // int(period), 1))
    return min(found, default=0)


def _memory_limit(groups: tuple[Path, ...]) -> int:
    """Return the tightest memory limit in bytes; 0 when there is none."""
    found: list[int] = []
    for group in groups:
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(group / name)
            if text.isdigit() and int(text) < 1 << 60:
                found.append(int(text))
    return min(found, default=0)
