"""Pulls before work from a registry that throttles, fails, lies, is slow or is private."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kubernetes.nodes.faulty_registry import HOST, PASSWORD, USER, faulty_registry, starts
from tests.kubernetes.nodes.pulling import image_sets, on_nodes, pulls, push, wish
from tests.kubernetes.nodes.running import until
from tools.cluster.cluster import Cluster
from tools.cluster.install import NAMESPACE

pytestmark = pytest.mark.kubernetes
LAYER_BYTES = 1 << 20
#: What is said, by the fault; "" where the image comes all the same.
FAULTS = {
    "throttled": "", "throttling": "429", "broken": "500", "wrong": "digest", "slow": "",
    "private": "", "private/closed": "401", "absent": "not found",
}  # fmt: skip
SECRET = "of-faulty"


@pytest.fixture(scope="module")
def registry(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with faulty_registry(cluster, tmp_path_factory.mktemp("faulty")) as log:
        yield log


def secret(cluster: Cluster) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    config = json.dumps({"auths": {HOST: {"auth": auth}}})
    body = {
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "stringData": {".dockerconfigjson": config},
    }  # fmt: skip
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def test_what_a_registry_does_wrong_is_said_and_costs_one_pull_at_a_time(
    cluster: Cluster, registry: Path, tmp_path: Path
) -> None:
    images = dict[str, str]()
    for fault in FAULTS:  # each of its own content: a node that has some does not fetch it again
        if fault == "absent":
            images[fault] = f"{HOST}/absent/model:1"
            continue
        (images[fault],) = push(cluster, tmp_path, [f"{HOST}/{fault}/model"], LAYER_BYTES).values()
    secret(cluster)
    sets = {fault.replace("/", "-"): fault for fault in FAULTS}
    most = dict.fromkeys(sets, 0)
    try:
        for name, fault in sets.items():
            secrets = [] if fault == "private/closed" else [SECRET]
            wish(cluster, name, [images[fault]], imagePullSecrets=secrets)

        def is_said(name: str) -> Callable[[], bool]:
            def holds() -> bool:
                now = pulls(cluster)
                for of, fault in sets.items():
                    most[of] = max(most[of], now.count(images[fault]))
                status = image_sets(cluster)[name]
                said = FAULTS[sets[name]]
                return said in status.get("message", "") if said else status.get("phase") == "Ready"

            return holds

        for name, fault in sets.items():
            until(f"{name}: {FAULTS[fault] or 'it comes'}", is_said(name))
        found = image_sets(cluster)
    finally:
        cluster.kubectl("delete", "imagesets", *sets)
    for name, fault in sets.items():
        nodes = len(cluster.layout.nodes) if not FAULTS[fault] else 0
        assert (found[name].get("present", 0), on_nodes(cluster, images[fault])) == (
            nodes,
            nodes,
        ), name
        if FAULTS[fault]:
            assert "waits after a failure" in found[name]["message"]
            assert most[name] <= 1, f"{name}: a fault costs one pull at a time"
    assert {path for _, _, path in starts(registry)} == {f"/v2/{f}/model" for f in FAULTS}
    until("no pull is left", lambda: pulls(cluster) == [])
