"""The test programs by name, and the start of one: options in, one line of JSON out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from fairlead.api.cluster.machine_result import Figure, MachineFinding
from fairlead.node.machine_tests import (
    clock,
    cpu,
    disk,
    gpu,
    gpu_all_reduce,
    gpu_clocks,
    gpu_products,
    memory,
    mount,
    names,
)
from fairlead.node.machine_tests.installed import dcgm, nccl, nvbandwidth
from fairlead.node.machine_tests.program import measured

#: What each test measures, and the type of its options. Tests of the suites that are not here are
#: unknown to this version.
PROGRAMS: Mapping[str, tuple[type[msgspec.Struct], Callable[[Any], Iterable[Figure]]]] = {
    "cpu": (cpu.CpuOptions, cpu.measure),
    "memory": (memory.RamOptions, memory.measure),
    "disk": (disk.DiskOptions, disk.measure),
    "clock": (clock.ClockOptions, clock.measure),
    "names": (names.NamesOptions, names.measure),
    "mount": (mount.MountOptions, mount.measure),
    "gpu-matmul": (gpu_products.MatmulOptions, gpu_products.matmul),
    "gpu-memory": (gpu.MemoryOptions, gpu.memory),
    "gpu-copies": (gpu.CopyOptions, gpu.copies),
    "gpu-peers": (gpu.CopyOptions, gpu.peers),
    "gpu-all-reduce": (gpu_all_reduce.AllReduceOptions, gpu_all_reduce.all_reduce),
    "gpu-clocks": (gpu_clocks.ClockRunOptions, gpu_clocks.clocks),
    "gpu-dcgm": (dcgm.DcgmOptions, dcgm.measure),
    "gpu-nvbandwidth": (nvbandwidth.BandwidthOptions, nvbandwidth.measure),
    "gpu-nccl": (nccl.NcclOptions, nccl.measure),
}


def run_program(test: str, options: str) -> MachineFinding:
    """Return what a test found; options that are none make it an Error."""
    type_, measure = PROGRAMS[test]
    return measured(test, lambda: measure(msgspec.json.decode(options, type=type_)))
