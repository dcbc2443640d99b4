"""Bandwidths of copies by `nvbandwidth -j` (NVIDIA/nvbandwidth, json_output.cpp).

    {"nvbandwidth": {"testcases": [
        {"name": ..., "status": "Passed", "bandwidth_matrix": [["55.6"]]}]}}

The rates are texts in GB/s, a row for each source; what a pair has none of is "N/A". The worst pair
of a run counts, and the best of three runs: bandwidths of good machines flutter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from fairlead.api.cluster.machine_result import Figure
from fairlead.node.machine_tests.installed.tool import InstalledTool
from fairlead.node.machine_tests.program import REPEATS, higher
from fairlead.node.running.host import Absent

#: Cases of the tool, and the figures that they are.
CASES = {
    "host_to_device_memcpy_ce": "toDeviceBytesPerSecond",
    "device_to_host_memcpy_ce": "fromDeviceBytesPerSecond",
    "device_to_device_memcpy_read_ce": "peerBytesPerSecond",
}
_GIGA = 1e9


class BandwidthOptions(msgspec.Struct, frozen=True):
    """`seconds` for each of the runs."""

    seconds: float = 60.0


class _Case(msgspec.Struct, frozen=True):
    name: str
    status: str
    error: str = ""
    bandwidth_matrix: tuple[tuple[str, ...], ...] = ()


class _Run(msgspec.Struct, frozen=True):
    testcases: tuple[_Case, ...] = ()
    error: str = ""


class _Document(msgspec.Struct, frozen=True):
    nvbandwidth: _Run


def read_rates(text: str) -> Mapping[str, float]:
    """Return bytes per second of the worst pair by figure; RuntimeError for what is no result.

    Cases that the machine cannot run, such as copies between GPUs with one alone, are left out.
    """
    start, end = text.find("{"), text.rfind("}")
    try:
        found = msgspec.json.decode(text[max(start, 0) : end + 1], type=_Document).nvbandwidth
    except (ValueError, RecursionError) as error:
        said = " ".join(text.split())[:120]
        raise RuntimeError(f"nvbandwidth says what is no result: {said or 'nothing'}") from error
    if found.error:
        raise RuntimeError(f"nvbandwidth: {found.error}")
    rates: dict[str, float] = {}
    for case in found.testcases:
        if case.status not in ("Passed", "Waived"):
            raise RuntimeError(f"nvbandwidth: {case.name}: {case.error or case.status}")
        values = [_rate(case, each) for row in case.bandwidth_matrix for each in row]
        known = [each for each in values if each > 0]
        if case.name in CASES and known:
            rates[CASES[case.name]] = min(known) * _GIGA
    return rates


def _rate(case: _Case, text: str) -> float:
    """Return a rate of the matrix; 0 for a pair that has none."""
    try:
        return 0.0 if text == "N/A" else float(text)
    except ValueError as error:
        raise RuntimeError(f"nvbandwidth: {case.name}: {text[:40]!r} is no rate") from error


def measure(options: BandwidthOptions, tool: InstalledTool | None = None) -> Iterable[Figure]:
    """Return the bandwidth of the worst pair, the best of three runs; Absent, RuntimeError."""
    tool = tool or InstalledTool("nvbandwidth")
    tool.gpus()
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(REPEATS):
        ended = tool.said(options.seconds, "-j", "-t", *CASES)
        for name, rate in read_rates(ended.text).items():
            rates[name].append(rate)
    if not rates:
        raise Absent("nvbandwidth runs none of the copies here")
    return tuple(higher(name, values) for name, values in rates.items())
