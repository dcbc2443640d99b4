"""All-reduce over all GPUs of the machine, by `all_reduce_perf` (NVIDIA/nccl-tests).

Its table is for people; the two lines at its end are the result: `# Out of bounds values : 0 OK`
and `# Avg bus bandwidth : 460.2`, in GB/s (doc/PERFORMANCE.md says what bus bandwidth is). AMD's
rccl-tests writes the same. Variables such as NCCL_P2P_DISABLE come from users: the runner of tests
gives none to its programs, and a run by hand refuses them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.installed.tool import InstalledTool
from fairlead.node.machine_tests.program import REPEATS, Broken, higher
from fairlead.node.running.host import Absent

_WRONG = re.compile(r"^# Out of bounds values *: *(\d+) (OK|FAILED) *$", re.MULTILINE)
_RATE = re.compile(r"^# Avg bus bandwidth *: *([0-9.]+) *$", re.MULTILINE)
_FAILURE = re.compile(r"^.*Test (?:NCCL|CUDA)? ?failure.*$", re.MULTILINE)
_PREFIXES = ("NCCL_", "RCCL_")
_GIGA = 1e9


class NcclOptions(msgspec.Struct, frozen=True):
    """`bytes` that are reduced, such as 16G; `seconds` for each of the runs."""

    bytes: str = "16G"
    seconds: float = 60.0


def read_rate(text: str) -> float:
    """Return the bus bandwidth in bytes per second; Broken for wrong sums, RuntimeError."""
    if failure := _FAILURE.search(text):
        raise RuntimeError(f"all_reduce_perf: {failure[0].strip()[:120]}")
    wrong, rate = _WRONG.search(text), _RATE.search(text)
    if wrong is None or rate is None:
        said = " ".join(text.split())[-120:]
        raise RuntimeError(f"all_reduce_perf says what is no result: {said or 'nothing'}")
    if wrong[1] != "0" or wrong[2] != "OK":
        raise Broken(f"all-reduce over all GPUs: {wrong[1]} sums are wrong")
    try:
        return float(rate[1]) * _GIGA
    except ValueError as error:
        raise RuntimeError(f"all_reduce_perf: {rate[1][:40]!r} is no rate") from error


def refuse_variables(environment: Mapping[str, str]) -> None:
    """Raise RuntimeError where a user's variable would change what is measured."""
    named = sorted(each for each in environment if each.startswith(_PREFIXES))
    if named:
        raise RuntimeError(f"{', '.join(named)} is set; unset it: the result is of the machine")


def measure(options: NcclOptions, tool: InstalledTool | None = None) -> Iterable[Figure]:
    """Return the bus bandwidth, the best of three runs; Broken, Absent, RuntimeError."""
    tool = tool or InstalledTool("all_reduce_perf")
    gpus = tool.gpus()
    if gpus == 1:
        raise Absent("there is one GPU alone")
    refuse_variables(os.environ)
    size = options.bytes
    rates = [
        read_rate(tool.said(
            options.seconds, "-b", size, "-e", size, "-g", str(gpus), "-n", "5", "-c", "1"
        ).text)
        for _ in range(REPEATS)
    ]  # fmt: skip
    return (higher("busBytesPerSecond", rates),)
