"""Reads what GPUs of pods do from a Prometheus that scrapes NVIDIA's DCGM exporter.

The exporter names the pod that has a GPU in the labels `namespace` and `pod`; a Prometheus that
keeps its own labels calls these `exported_namespace` and `exported_pod`. Queries add up by pod
there, so an answer has a sample for each pod that has GPUs. There is one query for each figure,
however many pods there are. Series that are absent are unknown: SM occupancy is not among the
exporter's defaults, and a GPU that is cut into slices (MIG) has no utilisation.

Source: NVIDIA/dcgm-exporter, `etc/default-counters.csv` (names and units) and
`internal/pkg/transformation/kubernetes.go` (labels).
"""

from __future__ import annotations

import asyncio
import math
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.decide.use.use_meter import GpuReading
from fairlead.decide.verdict import ObjectKey
from fairlead.doctor.prometheus.answers import PromSample, vector
from fairlead.doctor.prometheus.api import BadPrometheusAnswer, Get, PrometheusApi, server_get
from fairlead.runtime.outside.fetch import Web, mounted_access

QUERY_SECONDS_MAX = 10.0
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]
_BY = "by (namespace, pod, exported_namespace, exported_pod)"
_UTILISATION, _MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
_POWER, _OCCUPANCY = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_OCCUPANCY"
#: The amount of one GPU that no answer exceeds: percent, MiB, watts and a fraction are far below.
_AMOUNT_MAX = 1e9
_MIB = 1 << 20


def gpus_of_pods(get: Get) -> dict[ObjectKey, GpuReading]:
    """Return what the GPUs of each pod do; BadPrometheusAnswer, OSError."""
    api = PrometheusApi(get)
    counts = _by_pod(api, f"count {_BY} ({_UTILISATION})")
    busy = _by_pod(api, f"sum {_BY} ({_UTILISATION})")
    memory = _by_pod(api, f"sum {_BY} ({_MEMORY})")
    power = _by_pod(api, f"sum {_BY} ({_POWER})")
    occupancy = _by_pod(api, f"sum {_BY} ({_OCCUPANCY})")
    return {
        key: GpuReading(
            max(round(count), 1), _units(busy.get(key), 1), _units(memory.get(key), _MIB),
            _units(power.get(key), 1000), _units(occupancy.get(key), 1000),
        )
        for key, count in counts.items()
    }  # fmt: skip


class PrometheusGpus:
    """Asks one server, with the access that the files of a directory give, read each time."""

    def __init__(self, url: str, credentials: Path, run: Runner = asyncio.to_thread) -> None:
        """`run` runs a blocking call elsewhere."""
        self._url = url
        self._credentials = credentials
        self._run = run

    async def __call__(self) -> Mapping[ObjectKey, GpuReading]:
        """Return what the GPUs of each pod do; OSError."""
        found: dict[ObjectKey, GpuReading] = await self._run(self._read)
        return found

    def _read(self) -> dict[ObjectKey, GpuReading]:
        try:
            web = Web(mounted_access(self._credentials / "prometheus"))
            get = server_get(self._url, web, seconds_left=lambda: QUERY_SECONDS_MAX)
            return gpus_of_pods(get)
        except BadPrometheusAnswer as error:
            raise OSError(f"Prometheus at {self._url}: {error}") from error


def _by_pod(api: PrometheusApi, query: str) -> dict[ObjectKey, float]:
    arguments = {"query": query, "timeout": f"{QUERY_SECONDS_MAX:g}s"}
    samples = vector(api.data(f"/api/v1/query?{urllib.parse.urlencode(arguments)}"))
    found: dict[ObjectKey, float] = {}
    for sample in samples:
        key, number = _key(sample), sample.number
        if all(key) and math.isfinite(number) and 0 <= number < _AMOUNT_MAX:
            found[key] = number
    return found


def _key(sample: PromSample) -> ObjectKey:
    """Return the pod that a series is of; where its labels are kept apart, those are the pod's and
    the others the exporter's.
    """
    labels = sample.metric
    if labels.get("exported_pod"):
        return labels.get("exported_namespace", ""), labels["exported_pod"]
    return labels.get("namespace", ""), labels.get("pod", "")


def _units(amount: float | None, unit: int) -> int | None:
    return None if amount is None else round(amount * unit)
