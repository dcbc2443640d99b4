"""What GPUs of pods do, as a Prometheus says it that scrapes NVIDIA's exporter."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest

from fairlead.app.gpu_use import gpus_of_pods
from fairlead.decide.use.use_meter import GpuReading
from fairlead.doctor.prometheus.api import BadPrometheusAnswer

OWN = {"namespace": "a", "pod": "train-1-worker-0"}
KEPT = {"namespace": "gpu", "pod": "dcgm-exporter-x", "exported_namespace": "a",
        "exported_pod": "train-1-worker-1"}  # fmt: skip
SERIES = {
    "count DCGM_FI_DEV_GPU_UTIL": [(OWN, "2"), (KEPT, "1"), ({"namespace": "gpu"}, "8")],
    "sum DCGM_FI_DEV_GPU_UTIL": [(OWN, "150"), (KEPT, "NaN")],
    "sum DCGM_FI_DEV_FB_USED": [(OWN, "1024"), (KEPT, "-5")],
    "sum DCGM_FI_DEV_POWER_USAGE": [(OWN, "700.5"), (KEPT, "1e300")],
    "sum DCGM_FI_PROF_SM_OCCUPANCY": [(OWN, "0.5")],
}


def answer(path: str) -> bytes:
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["query"][0]
    verb, _, name = query.partition(" by ")
    series = SERIES[f"{verb} {name.partition(') (')[2].rstrip(')')}"]
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in series]
    return vector(result)


def vector(result: Any) -> bytes:
    return json.dumps({"data": {"resultType": "vector", "result": result}}).encode()


def test_figures_are_added_up_by_the_pod_that_has_the_gpus() -> None:
    assert gpus_of_pods(answer) == {
        ("a", "train-1-worker-0"): GpuReading(2, 150, 1 << 30, 700_500, 500),
        ("a", "train-1-worker-1"): GpuReading(1),  # what is no amount is not known
    }


def test_a_cluster_without_the_exporter_has_none() -> None:
    assert gpus_of_pods(lambda _: vector([])) == {}


@pytest.mark.parametrize("body", [b"<html>", b"[]", vector("x"), vector([{"metric": 1}])])
def test_an_answer_that_is_none_of_prometheus_is_refused(body: bytes) -> None:
    with pytest.raises(BadPrometheusAnswer):
        gpus_of_pods(lambda _: body)
